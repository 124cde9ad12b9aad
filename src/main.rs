//! The `orderfree` binary.

fn main() {}
