//! A pod in this process. It resets keys at once, although the table of resets is new: all pods of these tests begin after
//! the table was made, so each has found it.

use std::process::Output;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use orderfree::engine::Context;
use orderfree::engine::fold::{Folder, Folding};
use orderfree::engine::resetter::{ResetFailure, Resetter};
use orderfree::engine::service::Service;
use orderfree::engine::write::{Bounds, Mutators, UpdateError};
use orderfree::policy::Policies;
use orderfree::runtime::clock::{Clock, SystemClock};
use orderfree::runtime::random::Random;
use orderfree::runtime::tasks::{Task, Tasks};
use orderfree::store::cassandra::CassandraConfig;
use orderfree::store::{Folds, LogGap, Receipt, ResetLog, Store, StoreError, SweepPart};
use orderfree_core::crdt::{Counter, Kind, State};
use orderfree_core::protocol::fold::{Fold, Grave};
use orderfree_core::protocol::generation::Generation;
use orderfree_core::protocol::reset::{LogRow, ResetError};
use orderfree_core::protocol::sweep::{GroupSize, Nomination, Nominator};
use orderfree_core::protocol::{
    Constants, Durability, Key, Name, Now, Overrides, Timestamp, WriteOutcome,
};
use serde_json::Value;
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::time::sleep;
use uuid::Uuid;

use crate::cassandra::connect;

/// How long a request is sent again that the pod refused, or a reset that has no answer.
const PATIENCE: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(200);

/// Lifetime 20 s, drain margin 6 s, cutoff 20 s: as short as resets allow.
pub(crate) fn constants() -> Constants {
    let seconds = |count| Some(Duration::from_secs(count));
    let constants = Constants::resolve(Overrides {
        lifetime: seconds(20),
        drain_margin: seconds(6),
        cutoff: seconds(20),
        request_budget: seconds(3),
        clock_offset_max: Some(Duration::from_millis(1_500)),
        ..Overrides::default()
    });
    let constants = constants.expect("consistent");
    constants.check_resets().expect("keys can be reset");
    constants
}

/// Longer than until a row that is written now is final.
pub(crate) fn until_final() -> Duration {
    constants().lifetime() + constants().cutoff() + 2 * constants().fence_quantum()
}

/// Runs a command of the program on a keyspace.
pub(crate) async fn run(config: &CassandraConfig, command: &str, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_orderfree"))
        .args([command, "--cassandra", &config.contact_points.join(",")])
        .args(["--keyspace", &config.keyspace])
        .args(more)
        .env_clear()
        .kill_on_drop(true)
        .output()
        .await
        .expect("the program runs")
}

/// See the [module documentation](self).
pub(crate) struct Pod {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) folder: Arc<Folder>,
    mutators: Arc<Mutators>,
    service: Arc<Service>,
    resetter: Arc<Resetter>,
    tasks: Tasks,
}

impl Pod {
    /// Starts a pod with a connection of its own.
    pub(crate) async fn start(config: &CassandraConfig) -> Pod {
        let pod = Pod::idle(config).await;
        pod.tasks.spawn(Task::Tidy, Arc::clone(&pod.mutators).tidy(pod.tasks.clone()));
        pod.folder.start(&pod.tasks);
        pod.tasks.spawn(Task::ResetPoll, Arc::clone(&pod.resetter).poll(pod.tasks.clone()));
        pod
    }

    /// A pod without background work.
    pub(crate) async fn idle(config: &CassandraConfig) -> Pod {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let store = connect(config, Arc::clone(&clock)).await;
        let policies = Policies::default();
        let context = Context::new(store.clone(), config.constants, clock, Random::system());
        let mutators =
            Mutators::new(store.clone(), context.clone(), Bounds::awake(1_000), policies.clone());
        let log = Arc::new(Young(store.clone()));
        let resetter =
            Resetter::new(log, store.clone(), Some(mutators.clone()), &context, None, None);
        let folding = Folding::InBackground;
        let folder = Folder::new(store.clone(), store.clone(), context.clone(), folding, policies);
        let service =
            Service::new(store.clone(), store.clone(), context, mutators.clone(), folder.clone());
        let (service, tasks) = (Arc::new(service), Tasks::new());
        Pod { store, folder, mutators, service, resetter, tasks }
    }

    /// Applies an op, as often as it is refused.
    pub(crate) async fn update(&self, key: &Key, op: &Value) {
        let op = key.kind.parse_op(op).expect("an op");
        let began = Instant::now();
        loop {
            match self.service.update(key, vec![op.clone()], Durability::Stored).await {
                Ok(_) => return,
                Err(UpdateError::Refused(why)) => {
                    assert!(began.elapsed() < PATIENCE, "{key}: {why}");
                    sleep(PAUSE).await;
                }
                Err(error) => panic!("{key}: {error}"),
            }
        }
    }

    /// Applies an op once.
    pub(crate) async fn try_update(&self, key: &Key, op: &Value) -> Result<(), String> {
        let op = key.kind.parse_op(op).expect("an op");
        let done = self.service.update(key, vec![op], Durability::Stored).await;
        done.map(drop).map_err(|error| error.to_string())
    }

    /// Deletes a key, as often as that is refused. Returns what it had.
    pub(crate) async fn delete(&self, key: &Key) -> State {
        self.clear(key, true).await
    }

    /// Resets a key, as often as that is refused. Returns what it had.
    pub(crate) async fn reset(&self, key: &Key) -> State {
        self.clear(key, false).await
    }

    /// Resets a key once.
    pub(crate) async fn try_reset(&self, key: &Key) -> Result<(), String> {
        self.resetter.reset(key, false).await.map(drop).map_err(|error| error.to_string())
    }

    /// Whether it has read the log of resets.
    pub(crate) fn check_log(&self) -> Result<String, String> {
        self.resetter.check_log()
    }

    async fn clear(&self, key: &Key, is_deletion: bool) -> State {
        let began = Instant::now();
        loop {
            match self.resetter.reset(key, is_deletion).await {
                Ok(done) => return done.cleared.expect("one key"),
                Err(
                    error @ (ResetFailure::Unknown(_) | ResetFailure::Refused(ResetError::Absent)),
                ) => {
                    panic!("{key}: {error}")
                }
                Err(error) => {
                    assert!(began.elapsed() < PATIENCE, "{key}: {error}");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// A key's state; none if it is absent.
    pub(crate) async fn state(&self, key: &Key) -> Option<State> {
        let read = self.service.read(key, None).await.expect("readable");
        read.map(|value| value.state.clone())
    }

    /// The total of a counter; none if it is absent.
    pub(crate) async fn total(&self, key: &Key) -> Option<i128> {
        let state = self.state(key).await?;
        Some(Counter::try_from(state).expect("a counter").total())
    }

    /// The number of a key's rows, including the tally or the grave.
    pub(crate) async fn rows(&self, key: &Key) -> usize {
        self.store.read_for_fold(key).await.expect("readable").slice().len()
    }

    /// The time by this pod's clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.service.now().wall
    }

    /// Folds a key until it has one row. All its rows must be final.
    pub(crate) async fn fold(&self, key: &Key) {
        let began = Instant::now();
        loop {
            // A fold of another pod can be under way.
            let folded = self.service.fold(key, false).await;
            let rows = self.rows(key).await;
            if rows <= 1 {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{key} has {rows} rows: {folded:?}");
            sleep(PAUSE).await;
        }
    }

    pub(crate) async fn stop(self) {
        let within = Duration::from_secs(5);
        assert_eq!(self.mutators.close(within).await, 0);
        self.tasks.join(within).await;
        self.service.close(within).await;
        self.store.close().await;
    }
}

/// The log of a store whose table need not be old.
struct Young(Arc<dyn Store>);

#[async_trait]
impl Folds for Young {
    fn sweep_parts(&self) -> u32 {
        self.0.sweep_parts()
    }

    async fn sweep(
        &self,
        part: SweepPart,
        nominator: Nominator,
        found: mpsc::Sender<Nomination>,
    ) -> Result<Option<GroupSize>, StoreError> {
        self.0.sweep(part, nominator, found).await
    }

    fn folds_max(&self) -> usize {
        self.0.folds_max()
    }

    async fn write_folds(&self, folds: &[Fold]) -> WriteOutcome {
        self.0.write_folds(folds).await
    }

    async fn remove_grave(&self, grave: &Grave) -> WriteOutcome {
        self.0.remove_grave(grave).await
    }
}

#[async_trait]
impl ResetLog for Young {
    fn has_resets(&self) -> bool {
        self.0.has_resets()
    }

    fn log_absent_at(&self) -> Option<Duration> {
        self.0.log_absent_at()
    }

    async fn find_log(&self) -> Result<bool, StoreError> {
        self.0.find_log().await
    }

    fn reset_obstacle(&self, _: Now) -> Option<String> {
        None
    }

    fn own_resets(&self) -> Option<Vec<LogRow>> {
        self.0.own_resets()
    }

    async fn read_resets(&self, part: u8, after: Timestamp) -> Result<Vec<LogRow>, StoreError> {
        self.0.read_resets(part, after).await
    }

    async fn write_reset(&self, row: &LogRow, receipt: &Receipt) -> WriteOutcome {
        self.0.write_reset(row, receipt).await
    }

    fn log_gap(&self, now: Timestamp) -> Option<LogGap> {
        self.0.log_gap(now)
    }

    async fn close_log_gap(&self, looked: Timestamp) -> WriteOutcome {
        self.0.close_log_gap(looked).await
    }

    async fn write_markers(
        &self,
        row: &LogRow,
        receipt: &Receipt,
        markers: &[Fold],
    ) -> WriteOutcome {
        self.0.write_markers(row, receipt, markers).await
    }

    async fn read_receipt(
        &self,
        group: (Kind, &Name),
        generation: Generation,
        id: Uuid,
    ) -> Result<Option<(LogRow, Receipt)>, StoreError> {
        self.0.read_receipt(group, generation, id).await
    }
}
