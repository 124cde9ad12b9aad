//! The product's engine, with `write` compiled here.

pub use orderfree::engine::{Context, changes, clock_gate, metrics, resets};

#[path = "../../../../src/engine/write/mod.rs"]
#[allow(dead_code, reason = "the product uses all of it")]
pub mod write;
