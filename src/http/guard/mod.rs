//! Permissions, limits on concurrent work, and what browsers may pass on.

pub(crate) mod access;
pub(crate) mod answers;
pub(crate) mod cors;
pub(crate) mod turns;
