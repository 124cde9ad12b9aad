//! Moves keys into and out of Cassandra: from native counters, by the recipe in `docs/operate/moving-keys.md`, and to a
//! file of the embedded store.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use futures::stream::{self, StreamExt};
use orderfree::pod::config::Switch;
use orderfree::pod::node::Node;
use orderfree::runtime::clock::SystemClock;
use orderfree::store::Store;
use orderfree::store::cassandra::CassandraConfig;
use orderfree::store::embedded::EmbeddedStore;
use orderfree_core::crdt::{Kind, Question};
use orderfree_core::protocol::{Constants, Key};
use scylla::statement::Consistency;
use scylla::value::Counter;
use tempfile::TempDir;

use crate::cassandra::{
    CLUSTER, cql, drop_keyspace, fresh, fresh_on_own, path as cluster_script, session,
};
use crate::contract::{Subject, brief_constants, name, next_write};
use crate::{defaults, pods, ready, write_final};

/// Concurrent increments.
const INCREMENTS_AT_ONCE: usize = 16;

/// Longest time of a command.
const COMMANDS_SECONDS_MAX: &str = "300";

/// Pages with native counters, two metrics each.
const PAGES: usize = 150;

/// Values as every store shows them.
async fn values(store: &Arc<dyn Store>, constants: Constants, keys: &[Key]) -> Vec<Option<String>> {
    let reader = Node::for_tool(store, constants, Arc::new(SystemClock), Switch::Off);
    let mut values = Vec::new();
    for key in keys {
        let read = reader.service().read(key, None).await.expect("readable");
        values.push(read.map(|read| read.state.value(&Question::default()).to_string()));
    }
    values
}

/// A folder with the program, Cassandra's tools and the name of the keyspace, for commands of the recipe.
struct Desk {
    folder: TempDir,
    config: CassandraConfig,
}

impl Desk {
    fn new(config: &CassandraConfig) -> Desk {
        let desk = Desk { folder: TempDir::new().expect("a folder"), config: config.clone() };
        symlink(env!("CARGO_BIN_EXE_orderfree"), desk.path("orderfree")).expect("a link");
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `cqlsh`, which is fetched like other tools of tests, and `nodetool` of node 1.
    fn with_tools(self) -> Desk {
        let pins = repository().join("tests/pods/processes/requirements.txt");
        let venv = Command::new(repository().join("tests/venv")).arg(pins).output();
        let venv = succeeded("tests/venv", venv.expect("the script runs"));
        symlink(Path::new(venv.trim()).join("bin/cqlsh"), self.path("cqlsh")).expect("a link");
        let (nodetool, cluster) = (self.path("nodetool"), cluster_script());
        // The jars of Cassandra are in the home of the user, and these commands have another one.
        let home = std::env::var("HOME").expect("a home");
        let script =
            format!("#!/bin/sh\nHOME='{home}' exec '{}' nodetool 1 \"$@\"\n", cluster.display());
        std::fs::write(&nodetool, script).expect("written");
        std::fs::set_permissions(&nodetool, PermissionsExt::from_mode(0o755)).expect("ours");
        self
    }

    fn sh(&self, lines: &str) -> Output {
        let here = self.folder.path();
        let paths = std::env::var("PATH").expect("a path");
        let (host, _) = self.config.contact_points[0].split_once(':').expect("host:port");
        let output = Command::new("timeout")
            .args([COMMANDS_SECONDS_MAX, "bash", "-euo", "pipefail", "-c", lines])
            .current_dir(here)
            .env("PATH", format!("{}:{paths}", here.display()))
            .env("HOME", here)
            .env("CQLSH_HOST", host)
            .env("ORDERFREE_CASSANDRA", self.config.contact_points.join(","))
            .env("ORDERFREE_KEYSPACE", &self.config.keyspace)
            .output();
        output.expect("bash runs")
    }

    /// Runs a command that must succeed, and returns its output.
    fn sh_well(&self, lines: &str) -> String {
        succeeded(lines, self.sh(lines))
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).expect("a file")
    }
}

fn repository() -> PathBuf {
    env!("CARGO_MANIFEST_DIR").into()
}

fn succeeded(what: &str, output: Output) -> String {
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    let (out, err) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{what}: {out}{err}");
    out
}

/// The lines for import from native counters by the command in the handbook, for a table in this keyspace.
fn recipe(keyspace: &str) -> String {
    let page = repository().join("docs/operate/moving-keys.md");
    let handbook = std::fs::read_to_string(page).expect("there");
    let (_, section) = handbook.split_once("## From native counters").expect("the section");
    let (_, block) = section.split_once("```sh\n").expect("a block of commands");
    let (block, _) = block.split_once("```").expect("its end");
    let lines = block.replace("app.", &format!("{keyspace}."));
    let lines = lines.replace(" app ", &format!(" {keyspace} "));
    for command in ["nodetool repair", "cqlsh -e", "orderfree convert", "orderfree import"] {
        assert!(lines.contains(command), "{command} in {lines}");
    }
    lines
}

/// Increments native counters, some of which go down: up to an end, or until it is dropped.
async fn count_natively(config: &CassandraConfig) -> BTreeMap<(String, String), i64> {
    let table = format!("{}.page_views", config.keyspace);
    let columns = "page text, metric text, views counter, PRIMARY KEY (page, metric)";
    cql(config, &format!("CREATE TABLE {table} ({columns})")).await;
    let mut increments = Vec::new();
    for page in 0..PAGES {
        let by = i64::try_from(page).expect("small");
        for (metric, by) in [("views", by), ("views", 1), ("likes, net", -2 * by)] {
            increments.push((format!("page:{page}"), metric.to_owned(), by));
        }
    }
    for (page, metric, by) in [
        ("most", "n", i64::MAX),
        ("least", "n", i64::MIN),
        ("none", "n", 5),
        ("none", "n", -5),
        ("größe, ☃ 'x'", "a b", 40),
        ("a \"b\"", "c, \"d\"", 3),
        ("größe, ☃ 'x'", "a b", 2),
    ] {
        increments.push((page.to_owned(), metric.to_owned(), by));
    }
    let session = session(config).await;
    let up = format!("UPDATE {table} SET views = views + ? WHERE page = ? AND metric = ?");
    let mut up = session.prepare(up).await.expect("prepared");
    up.set_consistency(Consistency::Quorum);
    let (session, up) = (&session, &up);
    let counted = stream::iter(&increments).map(|(page, metric, by)| async move {
        let counted = session.execute_unpaged(up, (Counter(*by), page, metric)).await;
        counted.unwrap_or_else(|error| panic!("{page} {metric}: {error}"));
    });
    counted.buffer_unordered(INCREMENTS_AT_ONCE).collect::<Vec<()>>().await;
    let mut totals = BTreeMap::new();
    for (page, metric, by) in increments {
        *totals.entry((page, metric)).or_insert(0) += by;
    }
    totals
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn native_counters_arrive_once_by_the_recipe_of_the_handbook() {
    let _others_too = CLUSTER.read().await;
    let config = fresh_on_own(defaults()).await;
    let totals = count_natively(&config).await;
    // The writers were switched before, to a group that also had native counters.
    let mut pod = pods(&config).start().await;
    ready(&mut pod).await;
    assert_eq!(pod.ask("POST", "/v1/counter/page:7/views", &[], "").await.status, 200);
    let (keys, mut expected): (Vec<Key>, Vec<Option<String>>) = totals
        .iter()
        .map(|((group, metric), total)| {
            let key = Key { kind: Kind::Counter, group: name(group), name: name(metric) };
            let living = i64::from((group.as_str(), metric.as_str()) == ("page:7", "views"));
            (key, Some((total + living).to_string()))
        })
        .unzip();

    let (desk, count) = (Desk::new(&config).with_tools(), totals.len());
    let refused = desk.sh(r"echo 'back\\slash,n,1' | orderfree convert");
    let says = String::from_utf8_lossy(&refused.stderr);
    assert!(says.contains("line 1: counter/back\\\\slash/n has a backslash"), "{says}");
    desk.sh_well(r"echo 'back\slash,n,1' | orderfree convert --literal-backslashes");
    let says = desk.sh_well(&recipe(&config.keyspace));
    let imported =
        |now, before| format!("{now} keys imported, {before} were there, 0 refused, 0 unknown\n");
    assert!(says.ends_with(&imported(count, 0)), "{says}");
    assert_eq!(desk.read("counters.csv").lines().count(), count);
    let subject = Subject::on_cluster(&config).await;
    let rows = async || {
        let rows = stream::iter(&keys).then(|key| async { subject.rows(key).await });
        rows.map(|rows| rows.expect("readable")).collect::<Vec<usize>>().await
    };
    assert_eq!(values(&subject.store, config.constants, &keys).await, expected);
    let rows_of_one = rows().await;

    let says = desk.sh_well("orderfree import --into-living < counters.ndjson");
    assert_eq!(says, imported(0, count));
    assert_eq!(values(&subject.store, config.constants, &keys).await, expected);
    assert_eq!(rows().await, rows_of_one);

    // The key continues to count.
    let at = keys.iter().position(|key| key.group.as_str() == "page:7").expect("there");
    assert_eq!(pod.ask("POST", "/v1/counter/page:7/views", &[], "").await.status, 200);
    let views = at + keys[at..].iter().position(|key| key.name.as_str() == "views").expect("there");
    expected[views] = Some((totals[&("page:7".to_owned(), "views".to_owned())] + 2).to_string());
    assert_eq!(values(&subject.store, config.constants, &keys).await, expected);
    subject.store.close().await;
    drop_keyspace(&config).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_a_cluster_arrive_in_a_file_exactly_and_once() {
    let _others_too = CLUSTER.read().await;
    let config = fresh(brief_constants()).await;
    let subject = Subject::on_cluster(&config).await;
    let of = |kind, text| Key { kind, group: name("g☃/1"), name: name(text) };
    let mut keys: Vec<Key> = Kind::ALL.iter().map(|&kind| of(kind, "n")).collect();
    // With a tally where that does not need times: two mutators that died, and one that lives.
    let folded: Vec<Key> = keys.iter().filter(|key| !key.kind.is_timed()).cloned().collect();
    write_final(&config, folded.iter().flat_map(|key| [5, 7].map(|by| (key.clone(), by)))).await;
    for key in &folded {
        subject.fold(key, subject.now().wall).await;
        assert_eq!(subject.rows(key).await.expect("readable"), 1, "{key}");
    }
    for key in &keys {
        subject.write(&next_write(&mut subject.born(key), 9, subject.now())).await;
    }
    keys.push(of(Kind::Counter, "large"));
    for _ in 0..3 {
        subject.put(&keys[keys.len() - 1], i64::MAX).await;
    }
    let there = values(&subject.store, config.constants, &keys).await;
    assert!(there.iter().all(Option::is_some), "{there:?}");
    assert_eq!(there[keys.len() - 1].as_deref(), Some("27670116110564327421"));
    assert_eq!(there[0].as_deref(), Some("21"), "{}", keys[0]);

    let desk = Desk::new(&config);
    desk.sh_well("orderfree export > keys.ndjson");
    assert_eq!(desk.read("keys.ndjson").lines().count(), keys.len());
    for again in [false, true] {
        let says =
            desk.sh_well("env -u ORDERFREE_CASSANDRA orderfree import --data here < keys.ndjson");
        let (now, before) = if again { (0, keys.len()) } else { (keys.len(), 0) };
        let wanted = format!("{now} keys imported, {before} were there, 0 refused, 0 unknown\n");
        assert_eq!(says, wanted);
        let store = EmbeddedStore::open(&desk.path("here"), defaults(), Arc::new(SystemClock));
        let store: Arc<dyn Store> = Arc::new(store.expect("a store"));
        let here = values(&store, defaults(), &keys).await;
        store.close().await;
        drop(store);
        for ((key, there), here) in keys.iter().zip(&there).zip(here) {
            assert_eq!(here, *there, "{key}");
        }
    }
    subject.store.close().await;
    drop_keyspace(&config).await;
}
