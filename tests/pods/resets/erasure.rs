//! What was deleted or removed leaves the files of all nodes, once its rows are folded and the files compacted: what keys
//! had, the text of removed items, and, with the graves, the names of keys. The test first finds each text in the files.
//!
//! The log of resets keeps names and what was cleared for three days, so its files are not looked at.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::join_all;
use orderfree::store::cassandra::CassandraConfig;
use orderfree_core::crdt::{Kind, Question, State};
use orderfree_core::protocol::Key;
use serde_json::{Value, json};
use tokio::time::sleep;
use uuid::Uuid;

use crate::cassandra::{CLUSTER, cql, drop_keyspace, eventually, fresh_on_own, script};
use crate::contract::{Subject, name};
use crate::pod::{Pod, constants, until_final};

const NODES: [&str; 3] = ["1", "2", "3"];

/// Longer than an `lww_set` keeps the text of a removed item.
const REMOVALS_KEPT: Duration = Duration::from_secs(9 * 24 * 3_600);

/// Longer than graves are kept. The test knows that all replicas have them.
const GRAVES_KEPT: Duration = Duration::from_secs(5 * 24 * 3_600);

/// Time until a deletion can be purged from a table with `gc_grace_seconds = 1`.
const PURGEABLE_AFTER: Duration = Duration::from_secs(3);

/// A text of 16 bytes that is nowhere else.
fn mark() -> String {
    Uuid::new_v4().simple().to_string()[..16].to_owned()
}

/// An op of a kind that has this text, if ops of that kind have some.
fn op(kind: Kind, text: &str) -> Value {
    match kind {
        Kind::Counter => json!({"op": "add"}),
        Kind::Sum => json!({"op": "add", "by": "1.5"}),
        Kind::Stats | Kind::Histogram => json!({"op": "record", "value": 1}),
        Kind::Extrema => json!({"op": "observe", "value": 1, "label": text}),
        Kind::Register => json!({"op": "set", "value": text}),
        Kind::Distinct | Kind::Audience | Kind::TopK | Kind::LwwSet | Kind::GSet | Kind::OrSet => {
            json!({"op": "add", "item": text})
        }
    }
}

/// Whether rows of this kind have the text of its ops.
fn keeps_text(kind: Kind) -> bool {
    !matches!(
        kind,
        Kind::Counter | Kind::Sum | Kind::Stats | Kind::Histogram | Kind::Distinct | Kind::Audience
    )
}

/// All files of the table of shards on a node.
fn files(config: &CassandraConfig, node: &str) -> Vec<PathBuf> {
    let home = std::env::var("ORDERFREE_CASSANDRA_HOME")
        .map_or_else(|_| Path::new(env!("CARGO_MANIFEST_DIR")).join(".cassandra"), PathBuf::from);
    let keyspace = home.join(format!("node{node}/data/{}", config.keyspace));
    let tables = fs::read_dir(&keyspace);
    let tables = tables.unwrap_or_else(|error| panic!("{}: {error}", keyspace.display()));
    let table = tables.map(|entry| entry.expect("a readable entry").path()).find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("shards-"))
    });
    let entries = fs::read_dir(table.expect("the table's folder")).expect("a readable folder");
    let files = entries.map(|entry| entry.expect("a readable entry").path());
    files.filter(|path| path.is_file()).collect()
}

/// Which of these texts are in the files of a node.
fn found<'text>(
    config: &CassandraConfig,
    node: &str,
    texts: &'text [String],
) -> BTreeSet<&'text str> {
    let mut found = BTreeSet::new();
    for file in files(config, node) {
        // A compaction can remove it at any time.
        let Ok(bytes) = fs::read(&file) else { continue };
        for text in texts {
            if bytes.windows(text.len()).any(|window| window == text.as_bytes()) {
                found.insert(text.as_str());
            }
        }
    }
    found
}

/// Writes everything that the nodes have in memory into files.
fn flush(config: &CassandraConfig) {
    for node in NODES {
        script(&["nodetool", node, "flush", &config.keyspace, "shards"]);
    }
}

/// Rewrites the files of all nodes.
async fn compact(config: &CassandraConfig) {
    sleep(PURGEABLE_AFTER).await;
    flush(config);
    for node in NODES {
        script(&["nodetool", node, "compact", &config.keyspace, "shards"]);
    }
}

/// Each text is in a file of each node.
async fn all_are_found(config: &CassandraConfig, texts: &[String]) {
    eventually("all texts are in the files", async || {
        flush(config);
        for node in NODES {
            let missing = texts.len() - found(config, node, texts).len();
            if missing > 0 {
                return Err(format!("{missing} of {} are not on node {node}", texts.len()));
            }
        }
        Ok(())
    })
    .await;
}

/// None of these texts is in a file of a node. Files that were compacted are removed a little later.
async fn none_is_found(config: &CassandraConfig, texts: &[String]) {
    compact(config).await;
    eventually("no text is in the files", async || {
        for node in NODES {
            let found = found(config, node, texts);
            if !found.is_empty() {
                return Err(format!("{} of {} are on node {node}", found.len(), texts.len()));
            }
        }
        Ok(())
    })
    .await;
}

/// What a client sees.
fn shown(state: &State, question: &Question) -> Value {
    serde_json::to_value(state.value(question).shown(false)).expect("JSON")
}

/// The token with which a client removes the only item of an `or_set`.
fn token(key: &Key, state: &State) -> Value {
    let question = Question { key: Some(key.clone()), ..Question::default() };
    shown(state, &question)["items"][0]["seen"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_deleted_or_removed_leaves_the_files_of_all_nodes() {
    let _others_too = CLUSTER.read().await;
    let config = fresh_on_own(constants()).await;
    let readable = format!(
        "ALTER TABLE {}.shards WITH compression = {{'enabled': 'false'}} AND gc_grace_seconds = 1",
        config.keyspace
    );
    cql(&config, &readable).await;
    let pods = [Pod::start(&config).await, Pod::start(&config).await];

    // Keys of every kind, each with a name and perhaps a text. Two pods write, so that rows are merged.
    let (mut keys, mut names, mut texts) = (Vec::new(), Vec::new(), Vec::new());
    for &kind in Kind::ALL {
        let (its_name, text) = (mark(), mark());
        let key = Key { kind, group: name("deleted"), name: name(&its_name) };
        for pod in &pods {
            pod.update(&key, &op(kind, &text)).await;
        }
        keys.push(key);
        names.push(its_name);
        texts.extend(keeps_text(kind).then_some(text));
    }
    // Items that are removed one by one. Their keys stay.
    let [register, or_set, lww_set] = [Kind::Register, Kind::OrSet, Kind::LwwSet].map(|kind| Key {
        kind,
        group: name("kept"),
        name: name("n"),
    });
    let (removed, removed_late) = ([mark(), mark()].to_vec(), [mark()].to_vec());
    pods[0].update(&register, &op(Kind::Register, &removed[0])).await;
    pods[0].update(&or_set, &op(Kind::OrSet, &removed[1])).await;
    pods[0].update(&lww_set, &op(Kind::LwwSet, &removed_late[0])).await;
    for all in [&names, &texts, &removed, &removed_late] {
        all_are_found(&config, all).await;
    }

    let before = join_all(keys.iter().map(|key| pods[1].state(key))).await;
    let cleared = join_all(keys.iter().map(|key| pods[0].delete(key))).await;
    for ((key, before), cleared) in keys.iter().zip(before).zip(cleared) {
        // A fold in between changes the state, and not the value.
        let value = |state: &State| shown(state, &Question::default());
        assert_eq!(Some(value(&cleared)), before.as_ref().map(value), "{key}");
    }
    pods[1].update(&register, &op(Kind::Register, "another value")).await;
    let state = pods[1].state(&or_set).await.expect("it is there");
    let seen = token(&or_set, &state);
    pods[1].update(&or_set, &json!({"op": "remove", "item": removed[1], "seen": seen})).await;
    pods[1].update(&lww_set, &json!({"op": "remove", "item": removed_late[0]})).await;
    for key in &keys {
        assert_eq!(pods[1].state(key).await, None, "{key}");
    }

    sleep(until_final()).await;
    for key in keys.iter().chain([&register, &or_set, &lww_set]) {
        pods[0].fold(key).await;
    }
    none_is_found(&config, &texts).await;
    none_is_found(&config, &removed).await;
    println!("{} texts of deleted keys and {} removed items are gone", texts.len(), removed.len());
    for pod in pods {
        pod.stop().await;
    }

    // The names go with the graves.
    all_are_found(&config, &names).await;
    let tool = Pod::idle(&config).await;
    let repaired_since = tool.now().plus(GRAVES_KEPT);
    let purged = tool.folder.purge(repaired_since, false).await.expect("purged");
    assert_eq!((purged.graves, purged.removed), (keys.len(), keys.len()), "{purged:?}");
    tool.stop().await;
    none_is_found(&config, &names).await;
    println!("{} names of deleted keys are gone", names.len());

    // The text of an item that was removed from an `lww_set` goes with a row that expires 8 days later. After that, the
    // clocks of pods are behind the fence, so this comes last.
    all_are_found(&config, &removed_late).await;
    let subject = Subject::on_cluster(&config).await;
    subject.clock.advance(REMOVALS_KEPT);
    subject.put(&lww_set, 5).await;
    subject.fold(&lww_set, subject.when_final()).await;
    subject.store.close().await;
    none_is_found(&config, &removed_late).await;
    println!("the item of the lww_set is gone");
    drop_keyspace(&config).await;
}
