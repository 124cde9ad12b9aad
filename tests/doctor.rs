//! `orderfree doctor`: content with what is well, and one line that says what is not.

use std::process::{Command, Output};
use std::sync::Arc;

use orderfree::chance::Chance;
use orderfree::clock::SystemClock;
use orderfree::config::Switch;
use orderfree::policy::Policies;
use orderfree::server::Node;
use orderfree::store::embedded::{EmbeddedStore, SHARDS};
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::{Constants, Durability, Key, Name, Overrides};
use redb::{Database, ReadableTable};

fn doctor(args: &[&str]) -> (Output, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_orderfree"))
        .arg("doctor")
        .args(args)
        .output()
        .expect("started");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

async fn count_on(file: &std::path::Path) {
    let constants = Constants::resolve(Overrides::default()).expect("defaults");
    let clock = Arc::new(SystemClock);
    let store = EmbeddedStore::open(file, constants, clock.clone()).expect("a store");
    let (chance, policies) = (Chance::system(), Policies::default());
    let node = Node::new(Arc::new(store), constants, clock, chance, 1_000, policies, Switch::Off);
    for kind in Kind::ALL {
        let name = |text| Name::new(text).expect("a name");
        let key = Key { kind: *kind, group: name("g"), name: name("n") };
        let op = kind.parse_op(&kind.bare_op("5")).expect("an op");
        node.service().update(&key, vec![op], Durability::Stored).await.expect("acked");
    }
    assert_eq!(node.stop(std::time::Duration::from_secs(10)).await, 0);
}

/// Changes a byte of the state of a counter.
fn damage(file: &std::path::Path) {
    let database = Database::open(file).expect("the file");
    let transaction = database.begin_write().expect("a transaction");
    {
        let mut table = transaction.open_table(SHARDS).expect("the table");
        let found = table.iter().expect("rows").filter_map(Result::ok).find_map(|(key, value)| {
            let (kind, group, name, expiry, id) = key.value();
            let (at, state) = value.value();
            let place = (group.to_owned(), name.to_owned(), expiry, id);
            (kind == "counter").then(|| (place, at, state.to_vec()))
        });
        let ((group, name, expiry, id), at, mut state) = found.expect("a counter");
        state[0] ^= 0xff;
        let key = ("counter", group.as_str(), name.as_str(), expiry, id);
        table.insert(key, (at, state.as_slice())).expect("written");
    }
    transaction.commit().expect("committed");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_well_is_said_and_what_is_not_as_well() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("orderfree.redb");
    let data = ["--data", file.to_str().expect("UTF-8")];
    count_on(&file).await;
    let (output, text) = doctor(&data);
    assert!(output.status.success(), "{text}");
    for says in
        ["ok    configuration", "ok    store", "ok    clock", "ok    folding", "ok    keys: 13 in"]
    {
        let says = says.replace("13", &Kind::ALL.len().to_string());
        assert!(text.contains(&says), "{says}: {text}");
    }
    assert!(!text.contains("WRONG"));
    damage(&file);
    let (output, text) = doctor(&data);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("WRONG keys: counter/g/n: row (expires_at"), "{text}");
    assert!(text.contains("undecodable"), "{text}");
}

#[test]
fn what_can_not_be_reached_is_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("orderfree.redb");
    let data = ["--data", file.to_str().expect("UTF-8")];
    let (output, text) = doctor(&[&data[..], &["--url", "http://127.0.0.1:1"]].concat());
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("WRONG pod: http://127.0.0.1:1/"), "{text}");
    let (output, text) = doctor(&["--cassandra", "nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.starts_with("WRONG configuration: `nowhere` is no contact point"), "{text}");
    let (output, text) = doctor(&["--cassandra", "127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("WRONG store: no Cassandra node answers"), "{text}");
}
