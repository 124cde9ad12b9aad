//! A large file takes time to check. Meanwhile the pod answers that it is alive, and what it waits for.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use orderfree::runtime::clock::{Clock, SystemClock};
use orderfree::store::Store;
use orderfree::store::embedded::{EmbeddedStore, SHARDS};
use orderfree_core::crdt::envelope::{KeySeal, encode_shard};
use orderfree_core::crdt::item::Item;
use orderfree_core::crdt::{GSetOp, Kind, Op, State};
use orderfree_core::protocol::{Constants, MutatorId, Overrides, Timestamp};
use redb::Database;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use uuid::Uuid;

use crate::pod::Setup;
use crate::wire;

/// Enough keys for the wait to be seen on a fast machine.
const KEYS: usize = 1_200;
const ITEMS: usize = 200;

/// Sets of 200 KB each.
async fn fill(file: &Path) {
    let constants = Constants::resolve(Overrides::default()).expect("defaults");
    let store = EmbeddedStore::open(file, constants, Arc::new(SystemClock)).expect("a new file");
    store.close().await;
    let items = (0..ITEMS).map(|at| Item::text(&format!("{at:0>1000}")).expect("an item"));
    let mut set = State::new(Kind::GSet, None);
    set.apply(&Op::GSet(GSetOp::Add { items: items.collect() })).expect("room");
    let now_us = SystemClock.now().wall.as_micros();
    let expires_us = now_us + 1_000_000;
    let database = Database::create(file).expect("opened");
    let transaction = database.begin_write().expect("begun");
    let mut table = transaction.open_table(SHARDS).expect("there");
    for at in 0..KEYS {
        let (name, id) = (format!("{at:06}"), Uuid::new_v4());
        let seal = KeySeal::of_parts("gset", "g", &name);
        let seal = seal.row(Timestamp::from_micros(expires_us), MutatorId::new(id));
        let descending = !(expires_us.cast_unsigned() ^ (1 << 63));
        let state = encode_shard(seal, &set, 1);
        let row = ("gset", "g", name.as_str(), descending, id.as_u128());
        table.insert(row, (now_us, state.as_slice())).expect("inserted");
    }
    drop(table);
    transaction.commit().expect("committed");
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_are_answered_while_a_file_is_verified() {
    let setup = Setup::new();
    fill(&setup.path("rows.redb")).await;
    let mut pod = setup.spawn();
    // A request that never ends must not keep the pod from serving.
    let slow = async {
        loop {
            if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", setup.port)).await {
                stream.write_all(b"GET /livez HT").await.expect("sent");
                return stream;
            }
        }
    };
    let _slow = tokio::time::timeout(Duration::from_secs(20), slow).await.expect("it listens");
    let began = Instant::now();
    let mut waits = Vec::new();
    loop {
        assert!(began.elapsed() < Duration::from_secs(30), "{}", pod.log());
        let ask = async |method: &str, path: &str| {
            wire::ask(pod.port(), &wire::request(method, path, &[], "")).await
        };
        // The pod may not listen yet.
        let Ok(ready) = ask("GET", "/readyz").await else { continue };
        if ready.status == 200 {
            break;
        }
        assert_eq!((ready.status, ready.problem().as_str()), (503, "not-ready"));
        waits.push(ready.json()["detail"].as_str().expect("a reason").to_owned());
        // Either request can reach the pod after it has started.
        if let Ok(alive) = ask("GET", "/livez").await {
            assert_eq!(alive.status, 200, "{}", alive.text());
        }
        if let Ok(update) = ask("POST", "/v1/counter/site/home").await {
            let is_refused = update.status == 503 && update.json()["outcome"] == "refused";
            assert!(is_refused || update.status == 200, "{}", update.text());
        }
    }
    assert!(!waits.is_empty(), "no request was told to wait for {KEYS} keys");
    let says = |wait: &String| wait.contains("verifying the store's file");
    assert!(waits.iter().all(says), "{waits:?}");
    pod.logs(&format!("the file holds {KEYS} keys"), Duration::from_secs(5)).await;
}
