//! The program as processes on the real cluster: pods that start before their store, pods that end during an outage or
//! during folds, proxies that repeat
//! updates, and tools that move keys.

#[path = "../../cassandra/mod.rs"]
mod cassandra;
#[path = "../clock/mod.rs"]
mod clock;
#[path = "../../stores/contract/mod.rs"]
mod contract;
mod ends;
#[path = "../operations/haproxy.rs"]
mod haproxy;
#[path = "../operations/pod.rs"]
mod pod;
mod proxies;
#[path = "../operations/relay.rs"]
mod relay;
mod starts;
mod transfers;
#[path = "../operations/wire.rs"]
mod wire;

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cassandra::connect;
use clock::ShiftedClock;
use contract::{Subject, next_write};
use humantime::format_duration;
use orderfree::runtime::clock::Clock;
use orderfree::store::cassandra::CassandraConfig;
use orderfree_core::protocol::{Constants, Key, Mutator, MutatorId, Overrides, ShardWrite};
use pod::{Pod, Setup};
use tokio::net::TcpStream;
use tokio::time::sleep;
use uuid::Uuid;

/// Longest time until a pod serves after what it waits for is there: the longest pause between two checks, and the
/// check itself.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// The grace period of pods in these tests.
const GRACE: Duration = Duration::from_millis(100);

/// The default constants of pods.
fn defaults() -> Constants {
    Constants::resolve(Overrides::default()).expect("defaults")
}

/// The setup of pods with a keyspace.
fn pods(config: &CassandraConfig) -> Setup {
    let constants = config.constants;
    Setup::new()
        .arg("--cassandra", config.contact_points.join(","))
        .arg("--keyspace", &config.keyspace)
        .arg("--unready-grace", format_duration(GRACE))
        .arg("--lifetime", format_duration(constants.lifetime()))
        .arg("--drain-margin", format_duration(constants.drain_margin()))
        .arg("--cutoff", format_duration(constants.cutoff()))
        .arg("--request-budget", format_duration(constants.request_budget()))
        .arg("--clock-offset-max", format_duration(constants.clock_offset_max()))
}

/// Waits until a pod serves and is ready.
async fn ready(pod: &mut Pod) {
    pod.logs("listening on", READY_WITHIN).await;
    let began = Instant::now();
    while pod.get("/readyz").await.status != 200 {
        assert!(began.elapsed() < READY_WITHIN, "{}", pod.get("/readyz?verbose").await.text());
        sleep(Duration::from_millis(50)).await;
    }
}

async fn is_refused(port: u16) -> bool {
    let connected = TcpStream::connect(("127.0.0.1", port)).await;
    connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// Writes final shards, as pods that died long ago would have left them: one shard for each pair of a key and an
/// amount.
async fn write_final(config: &CassandraConfig, adds: impl Iterator<Item = (Key, i64)>) {
    let constants = config.constants;
    let ago = constants.lifetime() + constants.cutoff() + Duration::from_secs(10);
    let clock = Arc::new(ShiftedClock::default());
    clock.set_ahead(-i64::try_from(ago.as_secs()).expect("short"));
    let writes: Vec<ShardWrite> = adds
        .map(|(key, by)| {
            let (id, now) = (MutatorId::new(Uuid::new_v4()), clock.now());
            next_write(&mut Mutator::born(key, id, None, now, &constants), by, now)
        })
        .collect();
    let store = connect(config, clock).await;
    let then = Subject { store, clock: Arc::default(), constants };
    then.write_all(writes).await;
    then.store.close().await;
}
