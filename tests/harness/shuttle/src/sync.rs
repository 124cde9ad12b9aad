//! The names and promises of the product's `src/runtime/sync.rs`.

use std::future::{Future, poll_fn};
use std::ops::Add;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use shuttle::future::batch_semaphore::{BatchSemaphore, Fairness};
pub(crate) use shuttle::future::yield_now;
pub(crate) use shuttle::future::yield_now as consume_budget;
use shuttle::rand::{Rng, thread_rng};
pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
pub(crate) use shuttle::sync::{Mutex, MutexGuard};
pub(crate) use std::sync::PoisonError;

/// A value that one task sets once and many tasks await.
#[derive(Debug)]
pub(crate) struct SetOnce<T> {
    value: std::sync::OnceLock<T>,
    is_set: BatchSemaphore,
}

impl<T> Default for SetOnce<T> {
    fn default() -> SetOnce<T> {
        let is_set = BatchSemaphore::new(0, Fairness::StrictlyFair);
        SetOnce { value: std::sync::OnceLock::new(), is_set }
    }
}

impl<T> SetOnce<T> {
    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        self.value.set(value)?;
        // Wakes all tasks that wait, now or later.
        self.is_set.close();
        Ok(())
    }

    pub(crate) fn get(&self) -> Option<&T> {
        self.value.get()
    }

    pub(crate) async fn wait(&self) -> &T {
        // A closed semaphore means that the value is set.
        let _ = self.is_set.acquire(1).await;
        self.value.get().expect("set before it was closed")
    }
}

/// Locks a mutex.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Time passes when the scheduler lets all other tasks run first.
pub(crate) async fn sleep(_: Duration) {
    yield_now().await;
}

/// The deadline has passed.
#[derive(Debug)]
pub(crate) struct Elapsed;

/// No time passes: a deadline may expire whenever there is no answer yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Instant;

impl Instant {
    pub(crate) fn now() -> Instant {
        Instant
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, _: Duration) -> Instant {
        Instant
    }
}

pub(crate) async fn timeout<T>(_: Duration, answer: impl Future<Output = T>) -> Result<T, Elapsed> {
    timeout_at(Instant, answer).await
}

pub(crate) async fn timeout_at<T>(
    _: Instant,
    answer: impl Future<Output = T>,
) -> Result<T, Elapsed> {
    let mut answer = pin!(answer);
    let patience = thread_rng().gen_range(0..40);
    for _ in 0..patience {
        if let Poll::Ready(value) = poll_fn(|cx| Poll::Ready(answer.as_mut().poll(cx))).await {
            return Ok(value);
        }
        yield_now().await;
    }
    if thread_rng().gen_bool(0.5) { Err(Elapsed) } else { Ok(answer.await) }
}
