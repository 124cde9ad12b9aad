//! The pod for operators and strangers: the real program in its own process, on the embedded store. It is stopped,
//! reloaded, attacked and overloaded.
//!
//! Tests share the machine. Tests whose figures depend on it call [`machine::alone`]; others that load it heavily call
//! [`machine::beside`].

mod audit;
mod bombs;
mod bystanders;
mod certificates;
mod clients;
mod clocks;
mod crowds;
mod delays;
mod deletes;
mod demo;
mod disk;
mod early;
mod haproxy;
mod idle;
mod lifecycle;
mod listeners;
mod machine;
mod memory;
mod nonsense;
mod opening;
mod outputs;
mod overload;
mod pages;
// Release builds have no option that makes a task panic.
#[cfg(debug_assertions)]
mod panics;
mod pod;
mod pressure;
mod proxy;
mod relay;
mod reload;
mod repair;
mod retries;
mod secrets;
mod tls;
mod traces;
mod waiting;
mod wire;
