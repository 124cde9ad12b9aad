//! Locks that go on after a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. A poisoned lock means that a task panicked; joining the tasks reports the panic.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
