//! The registry of a pod's tasks. Each task has a name, is awaited at the end, and its panic is noticed. Only
//! blocking calls and the threads of stores are started elsewhere.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clap::ValueEnum;
use futures::{FutureExt, future};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tokio::sync::SetOnce;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::Instrument;

use crate::runtime::panics;

/// The tasks of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub enum Task {
    /// Serves one client's connection.
    Connection,
    /// Answers one request, except for its work with a mutator.
    Request,
    /// Applies an update to its mutator, within a request.
    Update,
    /// Reads one key for all requests that want it.
    Read,
    /// Reads one key for all clients that watch it.
    Watch,
    /// Folds keys of one group, within one of the next two tasks.
    Fold,
    /// Folds keys that reads nominate.
    FoldQueue,
    /// Finds and folds keys that no client reads.
    FoldSweep,
    /// Writes mutators to the store, one request after the other.
    WriteRequest,
    /// Waits before a mutator is written again.
    Retry,
    /// Hands a dead mutator's ops to its successor.
    Handover,
    /// Forgets mutators that take no more ops.
    Tidy,
    /// Looks at the log of resets.
    ResetPoll,
    /// Resets keys for a client.
    Reset,
    /// Compares the clocks of Cassandra's nodes.
    ClockSampler,
    /// The thread that writes the embedded store's file.
    StoreWriter,
}

/// What the end of a task means for the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A panic harms only the task's own work.
    Contained,
    /// A panic leaves something half done, so that the pod must end.
    Vital,
    /// The task runs as long as the pod: if it ends, the pod must end.
    Lasting,
}

impl Task {
    fn role(self) -> Role {
        match self {
            Task::Connection
            | Task::Request
            | Task::Read
            | Task::Watch
            | Task::Fold
            | Task::Reset => Role::Contained,
            Task::Update
            | Task::WriteRequest
            | Task::Retry
            | Task::Handover
            | Task::StoreWriter => Role::Vital,
            Task::FoldQueue
            | Task::FoldSweep
            | Task::Tidy
            | Task::ResetPoll
            | Task::ClockSampler => Role::Lasting,
        }
    }

    /// Whether the pod ends if the task panics.
    #[must_use]
    pub fn is_vital(self) -> bool {
        self.role() != Role::Contained
    }

    /// The task's name in logs and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Task::Connection => "connection",
            Task::Request => "request",
            Task::Update => "update",
            Task::Read => "read",
            Task::Watch => "watch",
            Task::Fold => "fold",
            Task::FoldQueue => "fold-queue",
            Task::FoldSweep => "fold-sweep",
            Task::WriteRequest => "write-request",
            Task::Retry => "retry",
            Task::Handover => "handover",
            Task::Tidy => "tidy",
            Task::ResetPoll => "reset-poll",
            Task::Reset => "reset",
            Task::ClockSampler => "clock-sampler",
            Task::StoreWriter => "store-writer",
        }
    }
}

/// The task that panics once, for tests of panics. A release build has no option for it.
static PANICS_IN: OnceLock<Task> = OnceLock::new();
static HAS_PANICKED: AtomicBool = AtomicBool::new(false);

/// Makes this task panic at its next panic point, once in this process.
pub fn panic_in(task: Task) {
    // A second task would need a second process.
    let _ = PANICS_IN.set(task);
}

/// The point at which a task panics if a test requested it.
pub(crate) fn panic_point(task: Task) {
    if cfg!(debug_assertions)
        && PANICS_IN.get() == Some(&task)
        && !HAS_PANICKED.swap(true, Ordering::Relaxed)
    {
        panic!("a test requested this panic");
    }
}

/// Label of the counter of panics.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TaskLabel {
    /// [`Task::name`].
    pub task: &'static str,
}

/// Tasks that ended with a panic, or too early.
#[derive(Debug, Default)]
struct Ends {
    panics: Family<TaskLabel, Counter>,
    /// Why the pod must end: the first end of a task that it needs.
    fatal: SetOnce<String>,
}

impl Ends {
    fn panicked(&self, task: Task, panic: &str) {
        self.panics.get_or_create(&TaskLabel { task: task.name() }).inc();
        tracing::error!(task = task.name(), "a task panicked: {panic}");
        if task.is_vital() {
            self.fatal(format!("its task {:?} panicked: {panic}", task.name()));
        }
    }

    fn fatal(&self, reason: String) {
        // Only the first reason counts.
        let _ = self.fatal.set(reason);
    }
}

/// Background tasks that are stopped and awaited together.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
    ends: Arc<Ends>,
}

impl Tasks {
    #[must_use]
    pub fn new() -> Tasks {
        Tasks::default()
    }

    /// Tasks whose panics are counted in `panics`.
    #[must_use]
    pub fn counting(panics: Family<TaskLabel, Counter>) -> Tasks {
        Tasks { ends: Arc::new(Ends { panics, ..Ends::default() }), ..Tasks::default() }
    }

    /// Runs a task to its end. It is never cancelled: a task that waits must watch [`Tasks::stopped`].
    pub fn spawn(&self, task: Task, run: impl Future<Output = ()> + Send + 'static) {
        let (ends, stop) = (Arc::clone(&self.ends), self.stop.clone());
        // The panic point of a contained task is inside [`Tasks::contain`].
        let begin = future::lazy(move |_| {
            if task.is_vital() || task == Task::Connection {
                panic_point(task);
            }
        });
        // Combinators store the task's future once. An async block stores what it awaits twice, and there can
        // be ten thousand connections. State that a panic leaves half done is not used again: the pod ends,
        // or the state belonged only to this task.
        let run = AssertUnwindSafe(begin.then(move |()| run)).catch_unwind();
        let watched = run.map(move |end| match end {
            Err(panic) => ends.panicked(task, panics::text(&*panic)),
            Ok(()) if task.role() == Role::Lasting && !stop.is_cancelled() => {
                ends.fatal(format!("its task {:?} ended too early", task.name()));
            }
            Ok(()) => {}
        });
        self.tracker.spawn(watched.instrument(tracing::debug_span!("task", name = task.name())));
    }

    /// Runs part of a task. A panic in it is counted and does no other harm.
    ///
    /// # Errors
    /// The panic's text.
    pub async fn contain<T>(&self, task: Task, run: impl Future<Output = T>) -> Result<T, String> {
        let run = future::lazy(move |_| panic_point(task)).then(move |()| run);
        AssertUnwindSafe(run).catch_unwind().await.map_err(|panic| {
            let panic = panics::text(&*panic);
            self.ends.panicked(task, panic);
            panic.to_owned()
        })
    }

    /// Runs code that leaves state half done if it panics, within a task whose panics are contained. The
    /// panic is passed on, and the pod ends.
    pub fn vital<T>(&self, task: Task, run: impl FnOnce() -> T) -> T {
        let run = || {
            panic_point(task);
            run()
        };
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            self.ends.panicked(task, panics::text(&*panic));
            resume_unwind(panic)
        })
    }

    /// Waits until a task that the pod needs has ended. Returns one sentence about it.
    pub async fn failed(&self) -> &str {
        self.ends.fatal.wait().await
    }

    /// One sentence about a needed task that has ended, if one has.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.ends.fatal.get().map(String::as_str)
    }

    /// A token that [`Tasks::join`] waits for, as for a task, until the token is dropped.
    pub fn token(&self) -> TaskTrackerToken {
        self.tracker.token()
    }

    /// The number of tasks and tokens.
    #[must_use]
    pub fn count(&self) -> usize {
        self.tracker.len()
    }

    /// Waits until [`Tasks::stop`] is called.
    pub async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Whether [`Tasks::stop`] was called.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Waits for `span`. Returns false if the tasks must stop before that.
    pub async fn sleep(&self, span: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.stopped() => false,
            () = tokio::time::sleep(span) => true,
        }
    }

    /// Requests all tasks to stop.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Requests all tasks to stop and waits until they have stopped. Returns false if `deadline` passes
    /// first.
    pub async fn join(&self, deadline: Duration) -> bool {
        self.stop();
        self.tracker.close();
        tokio::time::timeout(deadline, self.tracker.wait()).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_task_that_panics_is_missed() {
        for &task in Task::value_variants() {
            let panics = Family::default();
            let tasks = Tasks::counting(panics.clone());
            tasks.spawn(task, async { panic!("page {}", 7) });
            let count = panics.get_or_create(&TaskLabel { task: task.name() });
            while count.get() == 0 {
                tokio::task::yield_now().await;
            }
            match task.is_vital() {
                true => assert!(tasks.failed().await.ends_with("panicked: page 7"), "{task:?}"),
                false => assert_eq!(tasks.failure(), None, "{task:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_task_that_should_last_must_not_end_by_itself() {
        for &task in Task::value_variants() {
            for is_told in [false, true] {
                let tasks = Tasks::new();
                if is_told {
                    tasks.stop();
                }
                tasks.spawn(task, async {});
                while tasks.count() > 0 {
                    tokio::task::yield_now().await;
                }
                let is_missed = task.role() == Role::Lasting && !is_told;
                assert_eq!(tasks.failure().is_some(), is_missed, "{task:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_panic_that_is_contained_is_an_error_and_no_more() {
        let tasks = Tasks::new();
        let contained = tasks.contain(Task::Fold, async { panic!("a key") }).await;
        assert_eq!(contained, Err::<(), _>("a key".to_owned()));
        assert_eq!(tasks.contain(Task::Fold, async { 5 }).await, Ok(5));
        assert_eq!(tasks.failure(), None);
    }
}
