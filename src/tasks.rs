//! The only place that spawns tasks, so that every one is named, counted and awaited at the end.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::Instrument;

/// The background tasks of one node.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Tasks {
    /// No tasks yet.
    #[must_use]
    pub fn new() -> Tasks {
        Tasks::default()
    }

    /// Runs a task to its end. It is not cancelled; one that waits must watch [`Tasks::stopped`].
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn(task.instrument(tracing::debug_span!("task", name)));
    }

    /// A placeholder that [`Tasks::join`] waits for like for a task, until it is dropped.
    pub fn token(&self) -> TaskTrackerToken {
        self.tracker.token()
    }

    /// How many tasks and tokens there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.tracker.len()
    }

    /// Ready once [`Tasks::stop`] was called.
    pub async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Whether [`Tasks::stop`] was called.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Waits for `span`, or until the tasks shall stop: then the answer is false.
    pub async fn sleep(&self, span: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.stopped() => false,
            () = tokio::time::sleep(span) => true,
        }
    }

    /// Asks all tasks to stop.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Asks all tasks to stop and waits until they have; false if `deadline` passed first.
    pub async fn join(&self, deadline: Duration) -> bool {
        self.stop();
        self.tracker.close();
        tokio::time::timeout(deadline, self.tracker.wait()).await.is_ok()
    }
}
