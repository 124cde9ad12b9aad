//! The part of the product's `src/runtime/tasks.rs` that mutators use.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use orderfree::runtime::tasks::Task;
use shuttle::future::batch_semaphore::{BatchSemaphore, Fairness};
use shuttle::future::{spawn, yield_now};

/// More tasks than ever run at once.
const TASKS_MAX: usize = 1_000;

#[derive(Clone)]
pub struct Tasks {
    /// Each running task holds one permit. A task that joins needs all of them.
    free: Arc<BatchSemaphore>,
}

pub(crate) struct Token {
    of: Tasks,
    /// `None` after everything has ended.
    held: Option<()>,
}

impl Drop for Token {
    fn drop(&mut self) {
        if self.held.is_some() {
            self.of.free.release(1);
        }
    }
}

impl Tasks {
    /// A panic ends the test.
    pub(crate) fn counting<Counts>(_: Counts) -> Tasks {
        let free = BatchSemaphore::new(TASKS_MAX, Fairness::Unfair);
        Tasks { free: Arc::new(free) }
    }

    pub(crate) fn vital<T>(&self, _: Task, run: impl FnOnce() -> T) -> T {
        run()
    }

    pub(crate) async fn failed(&self) -> &str {
        std::future::pending().await
    }

    pub(crate) fn spawn(&self, _: Task, task: impl Future<Output = ()> + Send + 'static) {
        let token = self.token();
        spawn(async move {
            task.await;
            drop(token);
        });
    }

    pub(crate) fn token(&self) -> Token {
        Token { of: self.clone(), held: self.free.try_acquire(1).ok() }
    }

    pub(crate) async fn sleep(&self, _: Duration) -> bool {
        yield_now().await;
        true
    }

    /// Never gives up, so that a test sees the end of every task.
    pub(crate) async fn join(&self, _: Duration) -> bool {
        self.free.acquire(TASKS_MAX).await.expect("never closed");
        self.free.release(TASKS_MAX);
        true
    }
}
