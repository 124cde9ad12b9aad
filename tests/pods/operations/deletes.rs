//! A key that is deleted and counted again, many times over, is read as fast as a new one, and leaves only a line of the
//! log of resets each time.
//!
//! `DELETES` is how many times, and `make deletes` sets it for a release build.

use std::sync::Arc;
use std::time::{Duration, Instant};

use orderfree::runtime::clock::SystemClock;
use orderfree::store::embedded::EmbeddedStore;
use orderfree::store::{ResetLog, Store};
use orderfree_core::protocol::{Constants, Overrides};
use rustix::process::Signal;
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::machine;
use crate::pod::{MIB, Pod, Setup};
use crate::wire::{Connection, request};

const DELETED: &str = "/v1/counter/site/deleted";
const NEW: &str = "/v1/counter/site/new";

/// Lifetime, drain margin and cutoff in seconds: as short as resets allow.
const TIMES: [u64; 3] = [20, 6, 20];

/// Rows of the key right after the last deletion. Rows from before it may wait for their fold.
const ROWS_MAX: usize = 250;

/// Requests of each key that are timed, in turn.
const TIMED: usize = 1_000;

/// How much longer the median read of the key may take than that of a new one.
const RATIO_MAX: f64 = 2.0;

/// Bytes of the file, and for each deletion.
const FILE_BYTES_MAX: usize = 16 * MIB;
const LINE_BYTES_MAX: usize = 2 * 1024;

/// How long after their expiry rows are folded at the latest.
const FOLDED_WITHIN: Duration = Duration::from_secs(60);

fn deletions() -> usize {
    std::env::var("DELETES").map_or(60, |times| times.parse().expect("a number of deletions"))
}

async fn rows(pod: &Pod, path: &str) -> usize {
    let answer = pod.get(&format!("{path}/shards")).await;
    let rows = answer.json();
    let shards = rows["shards"].as_array().unwrap_or_else(|| panic!("{}", answer.text())).len();
    shards + usize::from(!rows["tally"].is_null())
}

/// The median time of a request to each of the keys, and their ratio. Each was sent in turn.
async fn times(connection: &mut Connection<TcpStream>, method: &str) -> ([Duration; 2], f64) {
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..TIMED {
        for (path, times) in [DELETED, NEW].into_iter().zip(&mut times) {
            let began = Instant::now();
            let answer = connection.ask(&request(method, path, &[], "")).await.expect("an answer");
            times.push(began.elapsed());
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    }
    let medians = times.map(|mut times| {
        times.sort();
        times[TIMED / 2]
    });
    (medians, medians[0].as_secs_f64() / medians[1].as_secs_f64())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_deleted_often_is_as_fast_as_a_new_one() {
    let _alone = machine::alone().await;
    let [lifetime, drain_margin, cutoff] = TIMES.map(Duration::from_secs);
    let mut setup = Setup::new();
    for (flag, seconds) in ["--lifetime", "--drain-margin", "--cutoff"].into_iter().zip(TIMES) {
        setup = setup.arg(flag, format!("{seconds}s"));
    }
    let (mut pod, deletions) = (setup.start().await, deletions());
    let mut connection = Connection::open(pod.port()).await.expect("a connection");
    let add = request("POST", DELETED, &[], "");
    let delete = request("DELETE", DELETED, &[("prefer", "wait=60")], "");
    let began = Instant::now();
    for time in 0..deletions {
        let added = connection.ask(&add).await.expect("an answer");
        assert_eq!(added.status, 200, "{time}: {}", added.text());
        let deleted = connection.ask(&delete).await.expect("an answer");
        assert_eq!(deleted.status, 200, "{time}: {}", deleted.text());
        assert_eq!(deleted.json()["cleared"]["value"], 1, "{time}: {}", deleted.text());
    }
    let at_once = rows(&pod, DELETED).await;
    println!("{deletions} deletions took {:.1?} and left {at_once} rows", began.elapsed());
    assert_eq!(pod.get(DELETED).await.status, 404);
    assert!(at_once <= ROWS_MAX, "{at_once} rows");

    for path in [DELETED, NEW] {
        assert_eq!(pod.ask("POST", path, &[], "").await.status, 200);
    }
    sleep(lifetime + cutoff).await;
    let began = Instant::now();
    for path in [DELETED, NEW] {
        while rows(&pod, path).await > 1 {
            assert!(began.elapsed() < FOLDED_WITHIN, "{path} is not folded");
            pod.ask("POST", &format!("{path}/fold"), &[], "").await;
            sleep(Duration::from_millis(500)).await;
        }
        assert_eq!(pod.count(path).await, 1);
    }
    let mut connection = Connection::open(pod.port()).await.expect("a connection");
    let (reads, ratio) = times(&mut connection, "GET").await;
    let (updates, of_updates) = times(&mut connection, "POST").await;
    let counted = 1 + TIMED as u64;
    println!(
        "reads of this key and of a new one: {reads:?}, {ratio:.2} times; updates: {updates:?}, {of_updates:.2} times"
    );
    println!("memory: {} MiB", pod.memory() / MIB);
    assert!(ratio <= RATIO_MAX, "{reads:?}");
    assert_eq!((pod.count(DELETED).await, pod.count(NEW).await), (counted, counted));

    pod.signal(Signal::TERM);
    pod.ended(Duration::from_secs(30)).await;
    let file = setup.path("rows.redb");
    let bytes = usize::try_from(file.metadata().expect("a file").len()).expect("small");
    let constants = Constants::resolve(Overrides {
        lifetime: Some(lifetime),
        drain_margin: Some(drain_margin),
        cutoff: Some(cutoff),
        ..Overrides::default()
    });
    let clock = Arc::new(SystemClock);
    let store = EmbeddedStore::open(&file, constants.expect("consistent"), clock).expect("a store");
    let lines = store.own_resets().expect("the only process").len();
    store.close().await;
    println!("the file has {bytes} bytes, and the log {lines} lines");
    assert_eq!(lines, deletions);
    assert!(bytes <= FILE_BYTES_MAX + deletions * LINE_BYTES_MAX, "{bytes} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_without_folds_or_resets_refuses_them_and_says_why() {
    for (setting, why) in [("ORDERFREE_RESETS", "switched off"), ("ORDERFREE_FOLD", "folds are")] {
        let pod = Setup::new().env(setting, "off").start().await;
        assert_eq!(pod.ask("POST", NEW, &[], "").await.status, 200);
        for (method, path) in [("POST", format!("{NEW}/reset")), ("DELETE", NEW.to_owned())] {
            let refused = pod.ask(method, &path, &[], "").await;
            assert_eq!((refused.status, refused.problem().as_str()), (503, "reset-paused"));
            assert!(refused.text().contains(why), "{setting}: {}", refused.text());
            assert!(refused.text().contains(&format!("{setting}=off")), "{}", refused.text());
        }
        assert_eq!(pod.count(NEW).await, 1, "nothing was changed");
    }
}
