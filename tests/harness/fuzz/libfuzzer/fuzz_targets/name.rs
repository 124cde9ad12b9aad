//! See `../../targets`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| orderfree_fuzz::run("name", input));
