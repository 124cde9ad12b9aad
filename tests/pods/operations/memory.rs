//! Values that are much larger decoded and shown than as rows: many in one answer, and one by one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use orderfree::limits;
use orderfree::runtime::clock::{Clock, SystemClock};
use orderfree::store::embedded::EmbeddedStore;
use orderfree::store::{Shards, Store};
use orderfree_core::crdt::{Dot, Kind, State};
use orderfree_core::protocol::transfer::Parcel;
use orderfree_core::protocol::{Constants, Key, MutatorId, Name, Overrides, Timestamp};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::bystanders::Bystander;
use crate::machine;
use crate::pod::{MIB, Setup};
use crate::wire::{self, Connection, request};

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

/// How long other clients may wait. Decoding a large value occupies a thread, for a long time in a debug build.
const OTHERS_WAIT: Duration = Duration::from_secs(5);

/// A set of this many short items, or a histogram with the maximum number of buckets.
fn state(kind: Kind, items: usize) -> State {
    let mut state = State::new(kind, None);
    let ops: Vec<Value> = match kind {
        Kind::Histogram => (0..4_200)
            .map(|index| json!({"op": "record", "value": 2_f64.powf(f64::from(index) / 64.0)}))
            .collect(),
        _ => {
            let items: Vec<usize> = (0..items).collect();
            items.chunks(1_000).map(|items| json!({"op": "add", "items": items})).collect()
        }
    };
    for op in ops {
        let mut op = kind.parse_op(&op).expect("an op");
        op.assign(&mut || Dot {
            expires_at: Timestamp::from_micros(1),
            mutator_id: MutatorId::new(Uuid::from_u128(1)),
            seq: 1,
        });
        // Together they can be larger than one mutator allows, because a tally can.
        let mut part = State::new(kind, None);
        part.apply(&op).expect("it fits");
        state.merge(&part).expect("it fits");
    }
    state
}

/// Writes this many keys with one state into a pod's file. Returns the bytes of a row.
async fn write(setup: &Setup, state: &State, group: &str, keys: u128) -> usize {
    let constants = Constants::resolve(Overrides::default()).expect("defaults");
    let clock = Arc::new(SystemClock);
    let now = clock.now().wall;
    let store = EmbeddedStore::open(&setup.path("rows.redb"), constants, clock).expect("a store");
    let name = |text: &str| Name::new(text).expect("a name");
    let mut bytes = 0;
    for index in 0..keys {
        let key =
            Key { kind: state.kind(), group: name(group), name: name(&format!("{index:04}")) };
        let id = MutatorId::new(Uuid::new_v4());
        let parcel = Parcel::pack(key, id, state, now, Duration::from_secs(3_600));
        bytes = parcel.write().state().len();
        assert_eq!(store.write_shard(parcel.write()).await, Ok(()));
    }
    store.close().await;
    bytes
}

/// Pages and queries of values that are many times larger than their rows. Only one value at a time is decoded, while
/// the text of the others is kept.
#[tokio::test(flavor = "multi_thread")]
async fn pages_of_values_that_grow_when_shown_do_not_fill_memory() {
    let _alone = machine::alone().await;
    /// Texts that wait for their readers, and texts in progress with their values.
    const MEMORY: usize = limits::ANSWERS_BYTES_MAX
        + limits::LARGE_PAGES_AT_ONCE as usize * 6 * limits::ANSWER_BYTES_MAX;
    let setup = Setup::new();
    let (sets, buckets) = (state(Kind::OrSet, 5_000), state(Kind::Histogram, 0));
    for (state, keys) in [(sets, 400), (buckets, 2_000)] {
        let bytes = write(&setup, &state, "g", keys).await;
        println!("{keys} keys of kind {} have {bytes} bytes each", state.kind());
    }
    let pod = setup.start().await;
    let mut requests = Vec::new();
    for (kind, keys) in [(Kind::OrSet, 400), (Kind::Histogram, 1_000)] {
        let keys = (0..keys)
            .map(|index| json!({"kind": kind.name(), "group": "g", "name": format!("{index:04}")}));
        let query = json!({"keys": keys.collect::<Vec<_>>()}).to_string();
        for _ in 0..8 {
            let page = format!("/v1/{kind}/g?limit=10000&buckets=true");
            let page =
                page.trim_end_matches(if kind == Kind::OrSet { "&buckets=true" } else { "" });
            requests.push(("pages", request("GET", page, &[], "")));
            requests.push(("queries", request("POST", "/v1/query", &JSON, &query)));
        }
    }
    let before = pod.memory();
    let bystander = Bystander::start(pod.port());
    let port = pod.port();
    let answered = ask_all(port, requests).await;
    let grown = pod.most_memory() - before;
    println!("{} MiB at most, of {}; answered {answered:?} of 16", grown / MIB, MEMORY / MIB);
    assert!(grown <= MEMORY, "{} MiB more", grown / MIB);
    assert!(answered.values().all(|answered| *answered > 0), "{answered:?}");
    bystander.was_served(OTHERS_WAIT).await;
}

/// Keys with values 25 times the size of their rows, all requested concurrently: by reads (some clients hang up), as
/// the value after an update, and by merges. Small keys are read meanwhile and wait for none of them. Then one value
/// takes all the room, and many clients request it repeatedly: each read waits for the room of the last one, so
/// anything that kept some of it would block all.
#[tokio::test(flavor = "multi_thread")]
async fn large_values_that_are_read_one_by_one_do_not_fill_memory() {
    let _alone = machine::alone().await;
    /// The limits of values and texts, and the memory of the threads.
    const MEMORY: usize = limits::VALUES_BYTES_MAX
        + limits::RECENT_BYTES_MAX
        + limits::WAITING_ROWS_BYTES_MAX
        + limits::MERGED_BYTES_MAX
        + limits::ANSWERS_BYTES_MAX
        + limits::EMBEDDED_CACHE_BYTES
        + 192 * MIB;
    const KEYS: u128 = 400;
    let setup = Setup::new();
    let kind = Kind::OrSet;
    let bytes = write(&setup, &state(kind, 5_000), "many", KEYS).await;
    println!("{KEYS} keys have {bytes} bytes each");
    let bytes = write(&setup, &state(kind, 90_000), "hot", 1).await;
    println!("one has {bytes} bytes");
    write(&setup, &state(kind, 5), "few", KEYS).await;
    assert!(kind.about().memory_bytes(bytes) > limits::VALUES_BYTES_MAX, "it is small");
    let pod = setup.start().await;
    let (before, port) = (pod.memory(), pod.port());
    let bystander = Bystander::start(port);
    let mut requests = Vec::new();
    for index in 0..KEYS {
        let path = format!("/v1/{kind}/many/{index:04}");
        requests.push(("reads", request("GET", &path, &[], "")));
        let path = format!("{path}?return=value");
        requests.push(("updates", request("POST", &path, &JSON, r#"{"op":"add","item":"a"}"#)));
        let path = format!("/v1/{kind}/few/{index:04}");
        requests.push(("small", request("GET", &path, &[], "")));
    }
    for index in 0..KEYS {
        let mut gone = Connection::open(port).await.expect("a connection");
        let path = format!("/v1/{kind}/many/{index:04}?consistency=one");
        gone.send(&request("GET", &path, &[], "")).await.expect("sent");
    }
    let mut answered = ask_all(port, requests).await;
    let names: Vec<String> = (0..50).map(|index| format!("{index:04}")).collect();
    let merge = json!({"kind": kind.name(), "group": "many", "names": names}).to_string();
    let merge = ("merges", request("POST", "/v1/merge", &JSON, &merge));
    answered.extend(ask_all(port, vec![merge; 4]).await);
    let path = format!("/v1/{kind}/hot/0000?contains=1");
    let again = (0..4).map(|_| async {
        for _ in 0..4 {
            let answer = wire::ask(port, &request("GET", &path, &[], "")).await.expect("an answer");
            assert_eq!((answer.status, answer.problem()), (200, String::new()));
        }
    });
    join_all(again).await;
    let grown = pod.most_memory() - before;
    println!("{} MiB at most, of {}; answered {answered:?}", grown / MIB, MEMORY / MIB);
    assert!(grown <= MEMORY, "{} MiB more", grown / MIB);
    assert!(answered.values().all(|answered| *answered > 0), "{answered:?}");
    let small = usize::try_from(KEYS).expect("few");
    assert!(answered["small"] >= small / 2, "{answered:?}");
    bystander.was_served(OTHERS_WAIT).await;
}

/// How many requests of each sort were answered. The others were refused because too much was in progress.
async fn ask_all(
    port: u16,
    requests: Vec<(&'static str, Vec<u8>)>,
) -> BTreeMap<&'static str, usize> {
    let asked = requests.into_iter().map(|(what, request)| async move {
        let answer = wire::ask(port, &request).await.expect("an answer");
        match (answer.status, answer.problem().as_str()) {
            (200, _) => (what, answer.json()["read_problem"].is_null()),
            (503, "overloaded") => (what, false),
            (status, problem) => panic!("{what}: {status} {problem}"),
        }
    });
    let mut answered: BTreeMap<&str, usize> = BTreeMap::new();
    for (what, is_answered) in join_all(asked).await {
        *answered.entry(what).or_default() += usize::from(is_answered);
    }
    answered
}
