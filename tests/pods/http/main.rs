//! The HTTP interface over a real embedded store, without sockets.

mod access;
mod bad_input;
mod bodies;
#[path = "../clock/mod.rs"]
mod clock;
mod cors;
mod document;
mod good_input;
mod gzip;
mod ids;
mod kinds;
mod lifecycle;
mod log;
mod matrix;
mod operators;
mod ordinary_input;
mod pictures;
mod pod;
mod repair;
mod resets;
mod streams;
mod watch;
