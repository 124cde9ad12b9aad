//! One pod from start to end: its configuration, its parts, its signals and its drain.

pub mod config;
pub mod node;
mod rotation;
pub mod serve;
pub mod start;
