//! The locks, atomics and timers with which a pod's tasks synchronize. They are in one module so that a
//! scheduler that tries interleavings can replace them (`tests/harness/shuttle`).

pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) use tokio::sync::SetOnce;
pub(crate) use tokio::task::coop::consume_budget;
pub(crate) use tokio::task::yield_now;
pub(crate) use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Locks a mutex. A poisoned one means that a task panicked, which its owner has reported. To go on is safe only if no
/// holder can panic between two changes that belong together.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
