//! Turns requests into checked values, and values into answers.

pub(crate) mod bodies;
pub(crate) mod extract;
pub(crate) mod ids;
pub(crate) mod json;
pub(crate) mod parameters;
pub(crate) mod requests;
#[allow(dead_code, reason = "types of the document, read by its test only")]
pub(crate) mod schemas;
pub(crate) mod wire;
