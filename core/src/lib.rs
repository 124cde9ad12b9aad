//! The pure core of Orderfree: the data types and the protocol that makes their numbers right.
//!
//! Nothing here does I/O, logs, reads a clock or draws a random number. Times and ids are parameters;
//! decisions are return values. In reading order:
//!
//! * [`crdt`]: what a mutator accumulates: the kinds, their laws, and the envelope that stores them;
//! * [`protocol`]: which mutator can write when, how rows become a value, and how expired rows become a
//!   tally.

#![warn(missing_docs)]

pub mod crdt;
pub mod protocol;
