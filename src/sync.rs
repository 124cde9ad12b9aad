//! What tasks of one pod meet at, and wait by. It stands here, in one place, so that a scheduler
//! which tries their interleavings can take its place (`tests/shuttle`).

pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) use tokio::sync::SetOnce;
pub(crate) use tokio::task::coop::consume_budget;
pub(crate) use tokio::task::yield_now;
pub(crate) use tokio::time::{Instant, sleep, timeout, timeout_at};
