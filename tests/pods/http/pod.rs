//! A pod over the embedded store, called without a socket. A test can make the store fail.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::Response;
use orderfree::engine::Context;
use orderfree::engine::fold::{Folder, Folding};
use orderfree::engine::health::Health;
use orderfree::engine::resetter::Resetter;
use orderfree::engine::service::Service;
use orderfree::engine::write::{Bounds, Mutators};
use orderfree::http::{AppState, Build, router};
use orderfree::limits;
use orderfree::policy::Policies;
use orderfree::runtime::random::Random;
use orderfree::store::embedded::EmbeddedStore;
use orderfree::store::{
    GroupCursor, GroupList, Operators, Pause, Placement, Reads, ResetLog, Shards, Store,
    StoreClock, StoreError,
};
use orderfree_core::crdt::envelope::{KeySeal, encode_shard};
use orderfree_core::crdt::item::Item;
use orderfree_core::crdt::{GSetOp, Kind, Op, State};
use orderfree_core::protocol::clock::ClockError;
use orderfree_core::protocol::consistency::{Level, Replication};
use orderfree_core::protocol::group::{Chunk, From as Start};
use orderfree_core::protocol::prefix::Part;
use orderfree_core::protocol::{
    Constants, FullRead, Key, MutatorId, Name, Now, Overrides, Row, ShardWrite, Slice, Timestamp,
    WholeSlice, WriteError, WriteOutcome,
};
use serde_json::Value;
use tempfile::TempDir;
use tower::ServiceExt;
use uuid::Uuid;

use crate::clock::ShiftedClock;
use crate::log::Logged;

const EVENTS: &str = "text/event-stream";

/// How the store fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Nothing is sent or read.
    Down,
    /// Writes arrive, but are not acknowledged.
    Silent,
    /// Writes take as long as this lasts.
    Stalled,
    /// Reads of a key, also for folds and resets, take as long as this lasts.
    Hanging,
    /// Reads of groups take as long as this lasts.
    HangingGroups,
    /// Reads find too many rows.
    TooManyRows,
    /// Folds and resets find too many rows in keys with the name `home`.
    LongKey,
    /// Reads return invalid rows.
    Corrupt,
    /// One byte is changed in every state of keys with the name `home`.
    Damaged,
    /// Folds find more in the key than a tally can hold.
    Huge,
    /// The store panics.
    Panic,
    /// Folds of keys with the name `home` panic.
    FoldPanics,
    /// The clock was never measured, or is wrong.
    Unmeasured,
    Moved,
    /// The replication was altered, and does not fit the levels.
    Altered,
    /// Two data centres have replicas, and the pod's own has no quorum.
    Regions,
    /// One data centre has three replicas.
    OneRegion,
}

struct Faulty {
    inner: Arc<EmbeddedStore>,
    fault: Arc<Mutex<Fault>>,
    offsets_asked: Arc<AtomicUsize>,
    writes: Arc<AtomicUsize>,
    reads: Arc<AtomicUsize>,
    group_reads: Arc<AtomicUsize>,
    fold_reads: Arc<AtomicUsize>,
}

/// A pod, its faults and the folder of its file.
pub(crate) struct Pod {
    pub(crate) health: Arc<Health>,
    /// How often the clock offset was requested.
    pub(crate) offsets_asked: Arc<AtomicUsize>,
    /// How many shards were written.
    pub(crate) writes: Arc<AtomicUsize>,
    /// How often a key was read.
    pub(crate) reads: Arc<AtomicUsize>,
    /// How often a part of a group was read.
    pub(crate) group_reads: Arc<AtomicUsize>,
    /// How often a key was read for a fold.
    pub(crate) fold_reads: Arc<AtomicUsize>,
    pub(crate) folder: Arc<Folder>,
    pub(crate) resetter: Arc<Resetter>,
    pub(crate) mutators: Arc<Mutators>,
    fault: Arc<Mutex<Fault>>,
    ground: Arc<Ground>,
    router: Router,
}

/// What pods can share: a clock, and a store in a folder.
pub(crate) struct Ground {
    clock: Arc<ShiftedClock>,
    constants: Constants,
    pub(crate) store: Arc<EmbeddedStore>,
    _directory: TempDir,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    pub(crate) bytes: Vec<u8>,
}

impl Ground {
    pub(crate) fn new() -> Arc<Ground> {
        Ground::with_cutoff(Duration::from_secs(30))
    }

    /// A reset waits for a 15th of the cutoff. Another pod can prove it for two thirds of the cutoff at most.
    pub(crate) fn with_cutoff(cutoff: Duration) -> Arc<Ground> {
        let directory = tempfile::tempdir().expect("a directory");
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        // These have a request budget of 2 s: unknown outcomes come soon, and a slow disk still answers in time.
        let constants = Constants::resolve(Overrides {
            lifetime: seconds(60),
            drain_margin: seconds(10),
            cutoff: Some(cutoff),
            ..Overrides::default()
        });
        let constants = constants.expect("consistent");
        let clock = Arc::new(ShiftedClock::default());
        let file = directory.path().join("orderfree.redb");
        let store = EmbeddedStore::open(&file, constants, clock.clone()).expect("a store");
        Arc::new(Ground { clock, constants, store: Arc::new(store), _directory: directory })
    }
}

impl Pod {
    pub(crate) fn new() -> Pod {
        Pod::with(Policies::default())
    }

    /// A pod with a policy.
    pub(crate) fn with(policies: Policies) -> Pod {
        Pod::of(policies, Bounds::default())
    }

    pub(crate) fn of(policies: Policies, bounds: Bounds) -> Pod {
        let ground = Ground::new();
        Pod::on(&ground, ground.store.clone(), policies, bounds)
    }

    /// A pod that is not alone with its store. It looks at the log of resets all the time.
    pub(crate) async fn with_log(log: &Arc<Logged>) -> Pod {
        let pod = Pod::on(&log.ground, log.clone(), Policies::default(), Bounds::default());
        let resetter = pod.resetter.clone();
        resetter.look().await;
        tokio::spawn(async move {
            loop {
                resetter.look().await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        pod
    }

    pub(crate) fn on(
        ground: &Arc<Ground>,
        log: Arc<dyn ResetLog>,
        policies: Policies,
        bounds: Bounds,
    ) -> Pod {
        Pod::build(ground, log, policies, bounds, None)
    }

    /// `closed` says why the pod makes no resets.
    pub(crate) fn build(
        ground: &Arc<Ground>,
        log: Arc<dyn ResetLog>,
        policies: Policies,
        bounds: Bounds,
        closed: Option<&'static str>,
    ) -> Pod {
        let Ground { clock, constants, store: inner, .. } = &**ground;
        let (clock, constants, inner) = (clock.clone(), *constants, inner.clone());
        let fault = Arc::new(Mutex::new(Fault::None));
        let offsets_asked = Arc::new(AtomicUsize::new(0));
        let [writes, reads, group_reads, fold_reads] = <[Arc<AtomicUsize>; 4]>::default();
        let faulty = Arc::new(Faulty {
            inner: inner.clone(),
            fault: fault.clone(),
            offsets_asked: offsets_asked.clone(),
            writes: writes.clone(),
            reads: reads.clone(),
            group_reads: group_reads.clone(),
            fold_reads: fold_reads.clone(),
        });
        let store = inner.name();
        let context = Context::new(faulty.clone(), constants, clock, Random::system());
        let mutators = Mutators::new(faulty.clone(), context.clone(), bounds, policies.clone());
        let resetter =
            Resetter::new(log, faulty.clone(), Some(mutators.clone()), &context, closed, None);
        let folder = Folder::new(
            faulty.clone(),
            inner,
            context.clone(),
            Folding::InBackground,
            policies.clone(),
        );
        let service =
            Service::new(faulty.clone(), faulty, context, mutators.clone(), folder.clone());
        let health = Arc::new(Health::default());
        health.set_started();
        let app = AppState {
            store,
            service: Arc::new(service),
            resetter: resetter.clone(),
            health: health.clone(),
            policies,
            build: Build::THIS,
            has_page: true,
            requests_max: limits::REQUESTS_MAX,
        };
        Pod {
            health,
            offsets_asked,
            writes,
            reads,
            group_reads,
            fold_reads,
            folder,
            resetter,
            mutators,
            fault,
            ground: ground.clone(),
            router: router(app),
        }
    }

    pub(crate) fn set(&self, fault: Fault) {
        *self.fault.lock().expect("lock") = fault;
    }

    /// Sets the pod's clock ahead.
    pub(crate) fn advance(&self, span: Duration) {
        self.ground.clock.set_ahead(i64::try_from(span.as_secs()).expect("short"));
    }

    /// The service, for a test with a socket.
    pub(crate) fn router(&self) -> Router {
        self.router.clone()
    }

    /// The beginning of an answer.
    pub(crate) async fn answer(&self, request: Request<Body>) -> Response {
        self.router.clone().oneshot(request).await.expect("infallible")
    }

    /// A whole answer. Of a stream of events it has only the head.
    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let (parts, body) = self.answer(request).await.into_parts();
        let is_stream = parts.headers.get("content-type").is_some_and(|media| media == EVENTS);
        let body = if is_stream { Body::empty() } else { body };
        let body = to_bytes(body, usize::MAX).await.expect("a body");
        let (bytes, text) = (body.to_vec(), String::from_utf8_lossy(&body).into_owned());
        Answer { status: parts.status, headers: parts.headers, text, bytes }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(request("GET", path, &[], "")).await
    }

    pub(crate) async fn post(&self, path: &str, media: &str, body: &str) -> Answer {
        self.send(request("POST", path, &[("content-type", media)], body.to_owned())).await
    }

    /// The value of a counter; `None` if it does not exist.
    pub(crate) async fn value(&self, path: &str) -> Option<String> {
        let answer = self.send(request("GET", path, &[("accept", "text/plain")], "")).await;
        match answer.status {
            StatusCode::NOT_FOUND => None,
            StatusCode::OK => Some(answer.text.trim_end().to_owned()),
            status => panic!("{status}: {}", answer.text),
        }
    }
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).unwrap_or_else(|| panic!("{name}: {:?}", self.headers));
        value.to_str().expect("ASCII")
    }

    /// Checks that this is a complete problem and returns its sentence.
    pub(crate) fn detail(&self, status: u16, slug: &str) -> String {
        self.problem(status, slug);
        self.json()["detail"].as_str().expect("a sentence").to_owned()
    }

    /// Checks that this is a complete problem and returns its outcome.
    pub(crate) fn problem(&self, status: u16, slug: &str) -> Option<String> {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        assert_eq!(self.header("content-type"), "application/problem+json");
        let problem = self.json();
        assert_eq!(problem["type"], format!("/problems/{slug}"), "{}", self.text);
        assert_eq!(problem["status"], status);
        assert_eq!(problem["instance"], self.header("x-request-id"));
        assert!(!problem["title"].as_str().expect("a title").is_empty());
        let detail = problem["detail"].as_str().expect("a detail");
        assert!(detail.ends_with('.') && detail.len() > 10, "not a sentence: {detail}");
        assert!(!self.text.to_lowercase().contains("failed"), "{}", self.text);
        problem["outcome"].as_str().map(str::to_owned)
    }
}

pub(crate) fn request(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Body>,
) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(path).header("host", "pod");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body.into()).expect("a request")
}

/// Seventeen sets of 250 KB, all of them final: one more than fits into a tally.
fn huge(key: &Key) -> WholeSlice {
    let row = |id: u8| {
        let items =
            (0..250).map(|item| Item::text(&format!("{id}{item:0>1000}")).expect("an item"));
        let mut set = State::new(Kind::GSet, None);
        set.apply(&Op::GSet(GSetOp::Add { items: items.collect() })).expect("items");
        let mutator_id = MutatorId::new(Uuid::from_u128(id.into()));
        let expires_at = Timestamp::from_micros(1_000_000 - i64::from(id));
        let seal = KeySeal::of(key).row(expires_at, mutator_id);
        Row { expires_at, mutator_id, state: encode_shard(seal, &set, 1) }
    };
    Slice::new((0..17).map(row).collect(), None, 17).whole().expect("whole")
}

impl Faulty {
    fn fault(&self) -> Fault {
        *self.fault.lock().expect("lock")
    }

    fn check_read(&self) -> Result<(), StoreError> {
        match self.fault() {
            Fault::Down => Err(StoreError::Unavailable("no node answers".to_owned())),
            Fault::TooManyRows => Err(StoreError::TooManyRows { limit: 10_000, bytes: 0 }),
            Fault::Corrupt => Err(StoreError::Corrupt("a row without a key".to_owned())),
            Fault::Panic => panic!("invariant: a test of panics"),
            _ => Ok(()),
        }
    }

    fn damages(&self, name: &Name) -> bool {
        self.fault() == Fault::Damaged && name.as_str() == "home"
    }

    fn damage(&self, name: &Name, slice: WholeSlice) -> WholeSlice {
        if !self.damages(name) {
            return slice;
        }
        let after = slice.after();
        let mut rows: Vec<Row> = slice.tally().into_iter().chain(slice.shards()).cloned().collect();
        let count = rows.len();
        rows.iter_mut().for_each(flip);
        Slice::new(rows, after, count).whole().expect("whole")
    }
}

/// Makes a row undecodable, or decodable again.
fn flip(row: &mut Row) {
    row.state[1] ^= 0x40;
}

#[async_trait]
impl Shards for Faulty {
    async fn write_shards(&self, writes: &[ShardWrite]) -> WriteOutcome {
        self.writes.fetch_add(writes.len(), Ordering::SeqCst);
        while self.fault() == Fault::Stalled {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        match self.fault() {
            Fault::Down => Err(WriteError::Refused("no node is up".to_owned())),
            Fault::Silent => {
                self.inner.write_shards(writes).await?;
                Err(WriteError::Unknown("no answer in time".to_owned()))
            }
            _ => self.inner.write_shards(writes).await,
        }
    }
}

#[async_trait]
impl Reads for Faulty {
    fn placement(&self) -> Option<Arc<Placement>> {
        let datacenters = match self.fault() {
            Fault::Regions => &["east", "west"][..],
            Fault::OneRegion => &["east"],
            _ => return None,
        };
        let replication = Replication::new(datacenters.iter().map(|name| ((*name).to_owned(), 3)));
        Some(Arc::new(Placement { local_datacenter: "east".to_owned(), replication }))
    }

    async fn read_slice(
        &self,
        key: &Key,
        after: Option<Timestamp>,
        level: Level,
        limit: usize,
    ) -> Result<WholeSlice, StoreError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        while self.fault() == Fault::Hanging {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.check_read()?;
        if self.fault() == Fault::Huge && after.is_none() {
            return Ok(huge(key));
        }
        Ok(self.damage(&key.name, self.inner.read_slice(key, after, level, limit).await?))
    }

    async fn read_tally(&self, key: &Key) -> Result<Option<Row>, StoreError> {
        self.check_read()?;
        self.inner.read_tally(key).await
    }

    async fn read_part(&self, key: &Key, part: Part) -> Result<Vec<Row>, StoreError> {
        self.check_read()?;
        let mut rows = self.inner.read_part(key, part).await?;
        if self.damages(&key.name) {
            rows.iter_mut().for_each(flip);
        }
        Ok(rows)
    }

    async fn read_chunk(
        &self,
        kind: Kind,
        group: &Name,
        from: &Start,
        level: Level,
    ) -> Result<Chunk, StoreError> {
        self.group_reads.fetch_add(1, Ordering::SeqCst);
        while self.fault() == Fault::HangingGroups {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.check_read()?;
        let mut chunk = self.inner.read_chunk(kind, group, from, level).await?;
        for (name, slice) in &mut chunk.keys {
            *slice = slice.clone().map(|slice| self.damage(name, slice));
        }
        Ok(chunk)
    }

    async fn read_for_folds(&self, keys: &[Key]) -> Result<Vec<FullRead>, StoreError> {
        self.fold_reads.fetch_add(1, Ordering::SeqCst);
        while self.fault() == Fault::Hanging {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let is_home = |key: &Key| key.name.as_str() == "home";
        let has_bug = self.fault() == Fault::FoldPanics && keys.iter().any(is_home);
        assert!(!has_bug, "invariant: a test of panics");
        self.check_read()?;
        if self.fault() == Fault::LongKey && keys.iter().any(is_home) {
            return Err(StoreError::TooManyRows { limit: 128, bytes: 0 });
        }
        let reads = self.inner.read_for_folds(keys).await?;
        if self.fault() == Fault::Huge {
            let read = |key: &Key| FullRead::at_fold_level(key.clone(), huge(key));
            return Ok(keys.iter().map(read).collect());
        }
        let damaged = reads.into_iter().map(|read| {
            let (key, slice) = (read.key().clone(), read.slice().clone());
            let slice = self.damage(&key.name, slice);
            FullRead::at_fold_level(key, slice)
        });
        Ok(damaged.collect())
    }
}

impl StoreClock for Faulty {
    fn check_clock(&self, now: Now) -> Result<(), ClockError> {
        match self.fault() {
            Fault::Unmeasured => {
                Err(ClockError::Unmeasured { datacenter: "a".to_owned(), fresh: 0, nodes: 3 })
            }
            Fault::Moved => Err(ClockError::Moved),
            _ => self.inner.check_clock(now),
        }
    }

    fn fold_time(&self, now: Now) -> Result<Timestamp, Pause> {
        self.check_clock(now)?;
        match self.fault() {
            Fault::Altered => Err(Pause::Replication("folds can miss updates".to_owned())),
            _ => self.inner.fold_time(now),
        }
    }

    fn check_quorum(&self) -> Result<(), String> {
        let why = "no quorum of data centre east has answered for 30 s";
        if self.fault() == Fault::Regions { Err(why.to_owned()) } else { Ok(()) }
    }

    fn clock_offset_us(&self) -> Option<i64> {
        self.offsets_asked.fetch_add(1, Ordering::Relaxed);
        self.inner.clock_offset_us()
    }
}

#[async_trait]
impl Operators for Faulty {
    async fn groups(
        &self,
        kind: Kind,
        behind: Option<&GroupCursor>,
        limit: usize,
    ) -> Result<GroupList, StoreError> {
        self.check_read()?;
        self.inner.groups(kind, behind, limit).await
    }

    async fn count_names(
        &self,
        kind: Kind,
        group: &Name,
        most: usize,
    ) -> Result<usize, StoreError> {
        self.check_read()?;
        self.inner.count_names(kind, group, most).await
    }

    async fn remove_row(&self, key: &Key, row: &Row) -> WriteOutcome {
        match self.fault() {
            Fault::Silent => Err(WriteError::Unknown("no answer".to_owned())),
            // The state was damaged on its way here.
            Fault::Damaged => {
                let mut row = row.clone();
                flip(&mut row);
                self.inner.remove_row(key, &row).await
            }
            _ => self.inner.remove_row(key, row).await,
        }
    }
}
