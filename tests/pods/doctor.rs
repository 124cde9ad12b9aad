//! `orderfree doctor` accepts a healthy setup, and reports each fault on one line.

#[path = "operations/pod.rs"]
mod pod;
#[path = "operations/wire.rs"]
mod wire;

use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use orderfree::engine::write::Bounds;
use orderfree::limits;
use orderfree::pod::config::Switch;
use orderfree::pod::node::{Node, Parts};
use orderfree::runtime::clock::SystemClock;
use orderfree::store::embedded::{EmbeddedStore, SHARDS};
use orderfree_core::crdt::Kind;
use orderfree_core::crdt::envelope::{KeySeal, decode_state, encode_shard};
use orderfree_core::protocol::{Constants, Durability, Key, MutatorId, Name, Overrides, Timestamp};
use pod::{Setup, run};
use redb::{Database, ReadableTable};
use serde_json::json;
use tokio::net::TcpListener;
use uuid::Uuid;

/// The exit and the output of a run, which ignores the environment.
async fn doctor(args: &[&str]) -> (Output, String) {
    let output = run(&[&["doctor"][..], args].concat(), &[]).await;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

async fn count_on(file: &Path) {
    let constants = Constants::resolve(Overrides::default()).expect("defaults");
    let clock = Arc::new(SystemClock);
    let store = EmbeddedStore::open(file, constants, clock.clone()).expect("a store");
    let node = Node::new(Parts {
        bounds: Bounds::awake(1_000),
        fold: Switch::Off,
        ..Parts::new(Arc::new(store), constants, clock)
    });
    for kind in Kind::ALL {
        let name = |text| Name::new(text).expect("a name");
        let key = Key { kind: *kind, group: name("g"), name: name("n") };
        let op = kind.read_bare_op("5").expect("an op");
        node.service().update(&key, vec![op], Durability::Stored).await.expect("acked");
    }
    assert_eq!(node.stop(Duration::from_secs(10)).await, 0);
}

/// The row of a counter: group, name, expiry and id, time and state.
type Counter = ((String, String, u64, u128), (i64, Vec<u8>));

/// Replaces the row of the only counter by these rows.
fn rewrite(file: &Path, rows: impl FnOnce(Counter) -> Vec<Counter>) {
    let database = Database::open(file).expect("the file");
    let transaction = database.begin_write().expect("a transaction");
    {
        let mut table = transaction.open_table(SHARDS).expect("the table");
        let found = table.iter().expect("rows").filter_map(Result::ok).find_map(|(key, value)| {
            let (kind, group, name, expiry, id) = key.value();
            let (at, state) = value.value();
            let place = (group.to_owned(), name.to_owned(), expiry, id);
            (kind == "counter").then(|| (place, (at, state.to_vec())))
        });
        for ((group, name, expiry, id), (at, state)) in rows(found.expect("a counter")) {
            let key = ("counter", group.as_str(), name.as_str(), expiry, id);
            table.insert(key, (at, state.as_slice())).expect("written");
        }
    }
    transaction.commit().expect("committed");
}

/// Changes one byte of a counter's state.
fn damage(file: &Path) {
    rewrite(file, |(place, (at, mut state))| {
        state[0] ^= 0xff;
        vec![(place, (at, state))]
    });
}

/// Gives the counter's group this many names.
fn grow(file: &Path, names: usize) {
    rewrite(file, |((group, _, expiry, id), value)| {
        let name = |index| match index {
            0 => "n".to_owned(),
            _ => format!("n{index:06}"),
        };
        let expires_at = Timestamp::from_micros((!expiry ^ (1 << 63)).cast_signed());
        let seal = |name: &str| {
            let mutator_id = MutatorId::new(Uuid::from_u128(id));
            KeySeal::of_parts("counter", &group, name).row(expires_at, mutator_id)
        };
        let state = decode_state(seal("n"), Kind::Counter, &value.1).expect("decodable");
        let row = |index| {
            let name = name(index);
            let sealed = encode_shard(seal(&name), &state, 1);
            ((group.clone(), name, expiry, id), (value.0, sealed))
        };
        (0..names).map(row).collect()
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_reports_health_and_each_fault() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("orderfree.redb");
    let data = ["--data", file.to_str().expect("UTF-8")];
    count_on(&file).await;
    let (output, text) = doctor(&data).await;
    assert!(output.status.success(), "{text}");
    for says in
        ["ok    configuration", "ok    store", "ok    clock", "ok    folding", "ok    keys: 13 in"]
    {
        let says = says.replace("13", &Kind::ALL.len().to_string());
        assert!(text.contains(&says), "{says}: {text}");
    }
    assert!(!text.contains("WRONG"));
    damage(&file);
    let (output, text) = doctor(&data).await;
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("WRONG keys: counter/g/n: row (expires_at"), "{text}");
    assert!(text.contains("undecodable"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sample_is_taken_where_the_keys_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("orderfree.redb");
    let data = ["--data", file.to_str().expect("UTF-8")];
    count_on(&file).await;
    let kinds = Kind::ALL.len();
    for (names, sample, seen) in
        [(40, 100, kinds + 39), (40, 30, 30), (40, 2, 2), (3_000, 100, 100)]
    {
        grow(&file, names);
        let (output, text) =
            doctor(&[&data[..], &["--sample", &sample.to_string()]].concat()).await;
        let says = format!("ok    keys: {seen} in {} groups keep the rules", kinds.min(seen));
        assert!(output.status.success() && text.contains(&says), "{says}: {text}");
    }
    let (_, text) = doctor(&[&data[..], &["--sample", "2000"]].concat()).await;
    assert!(text.contains("ok    keys: 2000 in"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_has_outgrown_one_partition_is_warned_of() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("orderfree.redb");
    let data = ["--data", file.to_str().expect("UTF-8")];
    count_on(&file).await;
    grow(&file, limits::GROUP_NAMES_ALERT);
    let (output, text) = doctor(&data).await;
    assert!(output.status.success() && !text.contains("groups:"), "{text}");
    grow(&file, limits::GROUP_NAMES_ALERT + 1);
    let (output, text) = doctor(&data).await;
    assert!(text.contains("warn  groups: more than 100000 names in counter/g;"), "{text}");
    assert!(output.status.success() && !text.contains("WRONG"), "it works: {text}");
}

#[tokio::test]
async fn an_unreachable_store_is_reported_on_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("orderfree.redb");
    let data = ["--data", file.to_str().expect("UTF-8")];
    let (output, text) = doctor(&data).await;
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("WRONG configuration: the file "), "{text}");
    for tool in [&["export"][..], &["fold", "--once"]] {
        let output = run(&[tool, &data].concat(), &[]).await;
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("is missing or empty"),
            "{output:?}"
        );
    }
    assert!(!file.exists(), "the tool creates no file");
    std::fs::write(&file, "").expect("an empty file");
    let (_, text) = doctor(&data).await;
    assert!(text.starts_with("WRONG configuration: the file "), "{text}");
    assert!(file.metadata().is_ok_and(|file| file.len() == 0), "the tool writes nothing");
    std::fs::remove_file(&file).expect("removed");
    count_on(&file).await;
    let (output, text) = doctor(&[&data[..], &["--url", "http://127.0.0.1:1"]].concat()).await;
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("WRONG pod: http://127.0.0.1:1/"), "{text}");
    let (output, text) = doctor(&["--cassandra", "nowhere"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(text.starts_with("WRONG configuration: `nowhere` is not a contact point"), "{text}");
    let (output, text) = doctor(&["--cassandra", "127.0.0.1:1"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("WRONG store: no Cassandra node answers"), "{text}");
}

#[tokio::test]
async fn folds_that_are_switched_off_are_off_for_a_job_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("orderfree.redb");
    count_on(&file).await;
    let args = ["fold", "--once", "--data", file.to_str().expect("UTF-8")];
    let output = run(&args, &[("ORDERFREE_FOLD", "off")]).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("folding is switched off") && output.stdout.is_empty(), "{output:?}");
    assert_eq!(output.status.code(), Some(1), "a job that did nothing must not succeed");
    // The advice for pods if a job folds. `secured` has a job that folds.
    let output = run(&args, &[("ORDERFREE_FOLD", "manual")]).await;
    assert!(output.status.success(), "{output:?}");
}

#[tokio::test]
async fn a_job_that_folds_reads_the_policy_and_a_purge_needs_a_repair() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, policy) = (folder.path().join("orderfree.redb"), folder.path().join("policy.toml"));
    count_on(&file).await;
    let data = ["--data", file.to_str().expect("UTF-8")];
    let says = async |args: &[&str], code: i32, said: &str| {
        let output = run(&[args, &data].concat(), &[]).await;
        let all = [output.stdout, output.stderr].concat();
        let all = String::from_utf8_lossy(&all);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {all}");
        assert!(all.contains(said), "{args:?}: {all}");
    };
    let fold = ["fold", "--once", "--policy", policy.to_str().expect("UTF-8")];
    let lifecycle =
        |idle_ttl| format!("[[lifecycle]]\ngroup_prefix = ''\nidle_ttl = '{idle_ttl}'\n");
    std::fs::write(&policy, lifecycle("24h")).expect("written");
    says(&fold, 1, "it must be at least 90180s").await;
    std::fs::write(&policy, lifecycle("30d")).expect("written");
    says(&fold, 0, "0 keys nominated: 0 folded, 0 forgotten,").await;
    let purge = |since| ["purge", "--repaired-since", since];
    says(&purge("yesterday"), 2, "it is not a time such as").await;
    says(&purge("2999-01-01T00:00:00Z"), 1, "lies in the future").await;
    says(&purge("2020-01-01T00:00:00Z"), 1, "an embedded store removes old graves itself").await;
}

/// A server that answers like a pod of a version, ready or not.
async fn stub(version: &'static str, ready: bool) -> String {
    let probe = match ready {
        true => (StatusCode::OK, Json(json!({"status": "ready"}))),
        false => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"detail": "Not now: it drains."}))),
    };
    let routes = Router::new()
        .route("/readyz", get(async move || probe))
        .route("/version", get(async move || Json(json!({"version": version}))));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("bound"));
    tokio::spawn(async move { axum::serve(listener, routes).await });
    url
}

#[tokio::test]
async fn a_pod_is_asked_whether_it_is_ready_and_for_its_version() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("orderfree.redb");
    let data = ["--data", file.to_str().expect("UTF-8")];
    count_on(&file).await;
    let pod = Setup::new().start().await;
    let url = format!("http://127.0.0.1:{}", pod.port());
    let (output, text) = doctor(&[&data[..], &["--url", &url]].concat()).await;
    let version = env!("CARGO_PKG_VERSION");
    let ready = format!("ok    pod: {url}/ is ready, version {version}\n");
    assert!(text.ends_with(&ready), "{text}");
    assert!(output.status.success() && !text.contains("WRONG"), "{text}");
    drop(pod);
    // A pod with an admin address serves its version only there.
    let pod = Setup::new().arg("--admin-listen", "127.0.0.1:0").start().await;
    let url = format!("http://127.0.0.1:{}", pod.port());
    let (output, text) = doctor(&[&data[..], &["--url", &url]].concat()).await;
    assert_eq!(output.status.code(), Some(1), "{text}");
    let says = "it does not serve its version here; if it has an admin address, use that one";
    assert!(text.ends_with(&format!("WRONG pod: {url}/: {says}\n")), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_two_versions_are_a_roll_that_is_not_finished() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("orderfree.redb");
    let data = ["--data", file.to_str().expect("UTF-8")];
    count_on(&file).await;
    let (old, new) = (stub("0.1.0", true).await, stub("0.2.0", true).await);
    let (other, ending) = (stub("0.1.0", true).await, stub("0.1.0", false).await);
    let ask = async |urls: &[&String]| {
        let urls = urls.iter().flat_map(|url| ["--url", url.as_str()]);
        doctor(&data.into_iter().chain(urls).collect::<Vec<_>>()).await
    };
    let (output, text) = ask(&[&new, &old, &other]).await;
    assert_eq!(output.status.code(), Some(1), "{text}");
    for (url, version) in [(&old, "0.1.0"), (&new, "0.2.0"), (&other, "0.1.0")] {
        let says = format!("ok    pod: {url} is ready, version {version}\n");
        assert!(text.contains(&says), "{says}: {text}");
    }
    assert!(text.ends_with("WRONG pods: they run 0.1.0 and 0.2.0; finish the roll\n"), "{text}");
    let (output, text) = ask(&[&old, &other]).await;
    assert!(output.status.success() && !text.contains("WRONG"), "{text}");
    let (output, text) = ask(&[&old, &ending]).await;
    assert_eq!(output.status.code(), Some(1), "{text}");
    let says = format!("WRONG pod: {ending}: not ready: Not now: it drains.\n");
    assert!(text.ends_with(&says), "{text}");
}
