//! Permissions, and limits on concurrent work.

pub(crate) mod access;
pub(crate) mod answers;
pub(crate) mod turns;
