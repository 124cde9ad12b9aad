//! A pod as operators and strangers meet it: the real program as a process of its own, on the embedded
//! store, stopped, reloaded, attacked and overloaded.
//!
//! The machine is shared: tests whose numbers depend on it take [`machine::alone`], others that need much
//! of it [`machine::beside`].

mod audit;
mod bombs;
mod bystanders;
mod certificates;
mod crowds;
mod delays;
mod disk;
mod early;
mod lifecycle;
mod listeners;
mod machine;
mod memory;
mod nonsense;
mod opening;
mod outputs;
mod overload;
mod pages;
mod panics;
mod pod;
mod pressure;
mod reload;
mod repair;
mod secrets;
mod tls;
mod traces;
mod waiting;
mod wire;
