//! A pod with the embedded store in memory, called without a socket. Its clock stands still until it is advanced, and
//! nothing runs in the background, so an input always does the same.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::header::{CONTENT_TYPE, HOST, LOCATION};
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use orderfree::engine::Context;
use orderfree::engine::fold::{Folder, Folding};
use orderfree::engine::health::Health;
use orderfree::engine::resetter::Resetter;
use orderfree::engine::service::Service;
use orderfree::engine::write::{Bounds, Mutators};
use orderfree::http::{AppState, Build, router};
use orderfree::policy::Policies;
use orderfree::runtime::clock::Clock;
use orderfree::runtime::random::Random;
use orderfree::store::Store;
use orderfree::store::embedded::{EmbeddedStore, SHARDS};
use orderfree_core::crdt::{Kind, State};
use orderfree_core::protocol::read::{self, Answer as Reading};
use orderfree_core::protocol::{
    Constants, Key, MutatorId, Name, Now, Overrides, Row, Slice, Timestamp,
};
use redb::backends::InMemoryBackend;
use redb::{Builder, ReadableDatabase, ReadableTable, StorageBackend};
use serde_json::Value as Json;
use tokio::runtime::{self, Runtime};
use tower::ServiceExt;
use uuid::Uuid;

/// Longest wait until updates in memory are written.
const FLUSH_MAX: Duration = Duration::from_secs(20);
/// Pause between two checks whether something has ended: these writes, or a reset.
const POLL: Duration = Duration::from_millis(1);

/// A pod, and the runtime that it lives in.
pub(super) struct Pod {
    router: Router,
    mutators: Arc<Mutators>,
    store: Arc<dyn Store>,
    clock: Arc<TurnedClock>,
    memory: Memory,
    constants: Constants,
    // Must be last, so that it outlives the others when they are dropped.
    runtime: Runtime,
}

/// A whole answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) bytes: Vec<u8>,
}

/// The value of each key that exists.
pub(super) type Values = BTreeMap<(String, String, String), State>;

impl Pod {
    pub(super) fn new() -> Pod {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let constants = Constants::resolve(Overrides {
            lifetime: seconds(60),
            drain_margin: seconds(10),
            cutoff: seconds(30),
            ..Overrides::default()
        });
        let constants = constants.expect("consistent");
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let (clock, memory) = (Arc::new(TurnedClock::new()), Memory::default());
        let store = EmbeddedStore::open_backend(memory.clone(), constants, clock.clone());
        let store: Arc<dyn Store> = Arc::new(store.expect("a store"));
        let context = Context::new(store.clone(), constants, clock.clone(), Random::seeded(0));
        let mutators =
            Mutators::new(store.clone(), context.clone(), Bounds::default(), Policies::default());
        let folder = Folder::new(
            store.clone(),
            store.clone(),
            context.clone(),
            Folding::InBackground,
            Policies::default(),
        );
        let resetter = Resetter::new(
            store.clone(),
            store.clone(),
            Some(mutators.clone()),
            &context,
            None,
            None,
        );
        let service = Service::new(store.clone(), store.clone(), context, mutators.clone(), folder);
        let (service, health) = (Arc::new(service), Arc::new(Health::default()));
        health.set_started();
        let (policies, build) = (Policies::default(), Build::THIS);
        let (name, requests_max) = (store.name(), 1);
        let app = AppState {
            store: name,
            service,
            resetter,
            health,
            policies,
            build,
            requests_max,
            has_page: true,
        };
        let router = router(app);
        Pod { router, mutators, store, clock, memory, constants, runtime }
    }

    /// Advances both clocks.
    pub(super) fn advance(&self, seconds: u32) {
        let span_us = i64::from(seconds) * 1_000_000;
        self.clock.passed_us.fetch_add(span_us, Ordering::SeqCst);
    }

    pub(super) fn send(&self, mut request: Request<Body>) -> Answer {
        // Clients name the host by themselves.
        request.headers_mut().entry(HOST).or_insert(HeaderValue::from_static("pod"));
        self.runtime.block_on(async {
            let response = self.router.clone().oneshot(request).await.expect("infallible");
            let (parts, body) = response.into_parts();
            // A stream of values has no end.
            let media = parts.headers.get(CONTENT_TYPE);
            let is_stream = media.is_some_and(|media| media == "text/event-stream");
            let body = if is_stream { Body::empty() } else { body };
            let bytes = to_bytes(body, usize::MAX).await.expect("a body").to_vec();
            // Otherwise it would be chance whether the next request sees what was acknowledged from memory.
            while parts.status == StatusCode::ACCEPTED && self.mutators.flushing() > 0 {
                tokio::time::sleep(POLL).await;
            }
            // The same is true of a reset that goes on after its answer.
            if let Some(place) = parts.headers.get(LOCATION) {
                while self.is_running(place).await {
                    tokio::time::sleep(POLL).await;
                }
            }
            Answer { status: parts.status, headers: parts.headers, bytes }
        })
    }

    /// Whether the reset at this address has not ended.
    async fn is_running(&self, place: &HeaderValue) -> bool {
        let request = Request::builder().uri(place.as_bytes()).header(HOST, "pod");
        let request = request.body(Body::empty()).expect("a request");
        let response = self.router.clone().oneshot(request).await.expect("infallible");
        let is_known = response.status() == StatusCode::OK;
        let bytes = to_bytes(response.into_body(), usize::MAX).await.expect("a body");
        let json: Json = serde_json::from_slice(&bytes).expect("JSON");
        is_known && json["outcome"] == "accepted"
    }

    pub(super) fn get(&self, address: &str) -> Answer {
        let request = Request::builder().method(Method::GET).uri(address).body(Body::empty());
        self.send(request.expect("a request"))
    }

    pub(super) fn post(&self, address: &str, media: &str, body: Body) -> Answer {
        let request = Request::builder().method(Method::POST).uri(address);
        self.send(request.header("content-type", media).body(body).expect("a request"))
    }

    /// Writes everything, stops, and reads the remaining rows.
    pub(super) fn end(self) -> Values {
        let Pod { router, mutators, store, clock, memory, constants, runtime } = self;
        runtime.block_on(async {
            assert_eq!(mutators.close(FLUSH_MAX).await, 0, "mutators that could not be written");
            store.close().await;
        });
        drop((router, mutators, store));
        drop(runtime);
        values(memory, clock.now().wall, &constants)
    }
}

impl Answer {
    pub(super) fn json(&self) -> Json {
        let text = String::from_utf8_lossy(&self.bytes);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("ASCII"))
    }
}

fn values(memory: Memory, now: Timestamp, constants: &Constants) -> Values {
    let database = Builder::new().create_with_backend(memory).expect("the file again");
    let transaction = database.begin_read().expect("a snapshot");
    let table = transaction.open_table(SHARDS).expect("the table");
    let mut rows: BTreeMap<(String, String, String), Vec<Row>> = BTreeMap::new();
    for entry in table.iter().expect("rows") {
        let (key, value) = entry.expect("a row");
        let (kind, group, name, descending, id) = key.value();
        let expires_us = (!descending ^ (1 << 63)).cast_signed();
        rows.entry((kind.to_owned(), group.to_owned(), name.to_owned())).or_default().push(Row {
            expires_at: Timestamp::from_micros(expires_us),
            mutator_id: MutatorId::new(Uuid::from_u128(id)),
            state: value.value().1.to_vec(),
        });
    }
    let value = |(key, rows): ((String, String, String), Vec<Row>)| {
        let name = |text| Name::new(text).expect("a name");
        let kind = Kind::from_name(&key.0).expect("a kind");
        let address = Key { kind, group: name(&key.1), name: name(&key.2) };
        let limit = rows.len();
        let slice = Slice::new(rows, None, limit).whole().expect("all rows");
        match read::assemble(&address, &slice, now, constants).expect("rows that decode") {
            Reading::Value(reading) => Some((key, reading.state)),
            // A deleted key can still have rows.
            Reading::Absent | Reading::Grave(..) => None,
            Reading::ReadAgain => panic!("{key:?}: the slice begins at the oldest row"),
        }
    };
    rows.into_iter().filter_map(value).collect()
}

/// Both clocks of a machine, which stand still.
#[derive(Debug)]
struct TurnedClock {
    passed_us: AtomicI64,
}

impl TurnedClock {
    fn new() -> TurnedClock {
        TurnedClock { passed_us: AtomicI64::new(0) }
    }
}

impl Clock for TurnedClock {
    fn now(&self) -> Now {
        let passed_us = self.passed_us.load(Ordering::SeqCst);
        let wall = Timestamp::from_micros(1_700_000_000_000_000 + passed_us);
        let boot = Duration::from_micros(1_000_000 + passed_us.cast_unsigned());
        Now { wall, boot }
    }
}

/// A file in memory that outlives the store. Clones share one file.
#[derive(Debug, Clone, Default)]
struct Memory(Arc<Mutex<InMemoryBackend>>);

impl Memory {
    fn with<T>(&self, action: impl FnOnce(&InMemoryBackend) -> T) -> T {
        action(&self.0.lock().expect("lock"))
    }
}

impl StorageBackend for Memory {
    fn len(&self) -> io::Result<u64> {
        self.with(StorageBackend::len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(|memory| memory.read(offset, out))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|memory| memory.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(|memory| memory.write(offset, data))
    }
}
