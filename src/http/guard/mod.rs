//! Permissions, limits on concurrent work, lists that streams share, and what browsers may pass on.

pub(crate) mod access;
pub(crate) mod answers;
pub(crate) mod cors;
pub(crate) mod lists;
pub(crate) mod turns;
