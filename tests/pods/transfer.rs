//! Moves keys with `export`, `import` and `convert`: each value arrives exactly, and counts once, however often its
//! line is imported.

mod clock;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use clock::ShiftedClock;
use flate2::Compression;
use flate2::write::GzEncoder;
use orderfree::engine::write::Bounds;
use orderfree::pod::node::{Node, Parts};
use orderfree::policy::{Policies, Policy};
use orderfree::runtime::clock::{Clock, SystemClock};
use orderfree::store::embedded::EmbeddedStore;
use orderfree_core::crdt::{Kind, Question, State};
use orderfree_core::protocol::{Constants, Durability, Key, Name, Overrides};
use redb::{Database, TableHandle};
use serde_json::json;
use std::sync::Arc;
use tempfile::TempDir;

struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Place {
        Place { folder: tempfile::tempdir().expect("a folder") }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("orderfree.redb")
    }

    /// A pod on the file, which no other process may have open.
    fn open(&self) -> Node {
        self.open_after(0)
    }

    /// A pod whose clock is off by this many days.
    fn open_after(&self, days: i64) -> Node {
        self.open_with(days, Policies::default())
    }

    fn open_with(&self, days: i64, policies: Policies) -> Node {
        let constants = Constants::resolve(Overrides::default()).expect("defaults");
        let clock = Arc::new(ShiftedClock::default());
        clock.set_ahead(days * 24 * 3_600);
        let store = EmbeddedStore::open(&self.file(), constants, clock.clone()).expect("a store");
        Node::new(Parts {
            bounds: Bounds::awake(1_000),
            policies,
            ..Parts::new(Arc::new(store), constants, clock)
        })
    }

    fn run(&self, command: &str, more: &[&str], input: &[u8]) -> Output {
        run(command, &[&["--data", path(&self.file())], more].concat(), input)
    }
}

fn path(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn run(command: &str, args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_orderfree"))
        .arg(command)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        // If its arguments are refused, the program reads nothing.
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().expect("ended");
    writer.join().expect("written");
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn key(kind: Kind, group: &str, name: &str) -> Key {
    let parse = |text| Name::new(text).expect("a name");
    Key { kind, group: parse(group), name: parse(name) }
}

async fn add(pod: &Node, key: &Key, bare: &str) {
    let op = key.kind.read_bare_op(bare).expect("an op");
    pod.service().update(key, vec![op], Durability::Stored).await.expect("acked");
}

async fn update(pod: &Node, key: &Key, op: &serde_json::Value) {
    let op = key.kind.parse_op(op).expect("an op");
    pod.service().update(key, vec![op], Durability::Stored).await.expect("acked");
}

async fn state(pod: &Node, key: &Key) -> Option<State> {
    pod.service().read(key, None).await.expect("readable").map(|read| read.state.clone())
}

async fn shown(pod: &Node, key: &Key) -> Option<String> {
    let state = state(pod, key).await?;
    Some(state.value(&Question::default()).to_string())
}

/// Closes a pod, so that another process can open its file.
async fn close(pod: Node) {
    assert_eq!(pod.stop(std::time::Duration::from_secs(10)).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_arrives_exactly_and_once() {
    let (from, to) = (Place::new(), Place::new());
    let keys: Vec<Key> = Kind::ALL.iter().map(|&kind| key(kind, "g☃/1", "n")).collect();
    let large = key(Kind::Counter, "g☃/1", "large");
    let pod = from.open();
    for key in &keys {
        for amount in ["5", "7", "7"] {
            add(&pod, key, amount).await;
        }
    }
    for _ in 0..3 {
        add(&pod, &large, "9223372036854775807").await;
    }
    let mut values = Vec::new();
    for key in keys.iter().chain([&large]) {
        values.push(shown(&pod, key).await.expect("a value"));
    }
    assert_eq!(values.last().expect("one").as_str(), "27670116110564327421");
    close(pod).await;
    let exported = from.run("export", &[], b"");
    assert!(exported.status.success(), "{}", text(&exported.stderr));
    let lines = exported.stdout;
    assert_eq!(lines.iter().filter(|byte| **byte == b'\n').count(), keys.len() + 1);
    for again in 0..3 {
        let imported = to.run("import", &[], &lines);
        assert!(imported.status.success(), "{}", text(&imported.stderr));
        let says = text(&imported.stdout);
        let count = if again == 0 {
            "14 keys imported, 0 were there"
        } else {
            "0 keys imported, 14 were there"
        };
        assert!(says.contains(&count.replace("14", &(keys.len() + 1).to_string())), "{says}");
    }
    let pod = to.open();
    for (key, value) in keys.iter().chain([&large]).zip(values) {
        assert_eq!(shown(&pod, key).await, Some(value), "{key}");
    }
    // The key continues to count.
    add(&pod, &keys[0], "1").await;
    close(pod).await;
}

/// Moves a folded key to one that is in use. A fold on either side, before the import or with it, must not lose what
/// arrived or what was there.
#[tokio::test(flavor = "multi_thread")]
async fn imported_values_survive_folds_on_both_sides() {
    let (from, to) = (Place::new(), Place::new());
    let keys: Vec<Key> = Kind::ALL.iter().map(|&kind| key(kind, "g", "n")).collect();
    for (place, days, amount) in [(&from, -4, "5"), (&from, -2, "7"), (&to, -4, "6")] {
        let pod = place.open_after(days);
        for key in &keys {
            add(&pod, key, amount).await;
        }
        close(pod).await;
    }
    for place in [&from, &to] {
        let pod = place.open_after(-1);
        for key in &keys {
            let result = pod.service().fold(key, false).await.expect("folded");
            assert!(result.report.folded > 0, "{key}");
        }
        close(pod).await;
    }
    let pod = from.open();
    for key in &keys {
        add(&pod, key, "8").await;
    }
    close(pod).await;
    let lines = from.run("export", &[], b"").stdout;
    let imported = to.run("import", &["--into-living"], &lines);
    assert!(imported.status.success(), "{}", text(&imported.stderr));

    // The value of one key that had all updates.
    let (all, mut expected) = (Place::new(), Vec::new());
    for (days, amount) in [(-4, "5"), (-4, "6"), (-2, "7"), (0, "8"), (2, "9")] {
        let pod = all.open_after(days);
        expected.clear();
        for key in &keys {
            add(&pod, key, amount).await;
            expected.push(shown(&pod, key).await.expect("a value"));
        }
        close(pod).await;
    }
    for (days, shards_left) in [(2, 2), (4, 1), (6, 1), (9, 0)] {
        let pod = to.open_after(days);
        for (key, expected) in keys.iter().zip(&expected) {
            if days == 2 {
                add(&pod, key, "9").await;
            }
            pod.service().fold(key, false).await.expect("folded");
            let found = shown(&pod, key).await.expect("a value");
            // Each place has its own time of the last update.
            let but_time = |text: &str| text.split(",\"timestamp\"").next().map(str::to_owned);
            assert_eq!(but_time(&found), but_time(expected), "{key}, day {days}");
            let shards = pod.service().shards(key).await.expect("a report").shards;
            assert_eq!(shards.len(), shards_left, "{key}, day {days}");
        }
        close(pod).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_living_key_is_added_to_only_on_request() {
    let (from, to) = (Place::new(), Place::new());
    let key = key(Kind::Counter, "g", "n");
    for (place, amount) in [(&from, "100"), (&to, "1")] {
        let pod = place.open();
        add(&pod, &key, amount).await;
        close(pod).await;
    }
    let lines = from.run("export", &["--group-prefix", "g"], b"").stdout;
    assert!(from.run("export", &["--group-prefix", "h"], b"").stdout.is_empty());
    assert!(from.run("export", &["--kind", "sum"], b"").stdout.is_empty());
    let refused = to.run("import", &[], &lines);
    assert!(!refused.status.success());
    assert!(
        text(&refused.stderr).contains("line 1: counter/g/n exists"),
        "{}",
        text(&refused.stderr)
    );
    for _ in 0..2 {
        assert!(to.run("import", &["--into-living"], &lines).status.success());
    }
    let pod = to.open();
    assert_eq!(shown(&pod, &key).await.as_deref(), Some("101"));
    close(pod).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_key_is_not_exported_and_can_be_imported() {
    let (from, to) = (Place::new(), Place::new());
    let key = key(Kind::Counter, "g", "n");
    for (pod, amount) in [(from.open(), "100"), (to.open_after(-40), "1")] {
        add(&pod, &key, amount).await;
        close(pod).await;
    }
    let policy = "[[lifecycle]]\ngroup_prefix = ''\nidle_ttl = '30d'\n";
    let pod = to.open_with(0, policy.parse::<Policy>().expect("a policy").into());
    assert!(pod.folder().fold(&key, false).await.expect("folded").report.forgotten);
    close(pod).await;
    assert!(to.run("export", &[], b"").stdout.is_empty());
    let lines = from.run("export", &[], b"").stdout;
    for _ in 0..2 {
        assert!(to.run("import", &[], &lines).status.success());
    }
    let pod = to.open();
    assert_eq!(shown(&pod, &key).await.as_deref(), Some("100"));
    close(pod).await;
}

/// The row of an import has no stamp, so it would not count.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_is_refused_by_a_key_that_was_reset_lately() {
    let (from, to, later) = (Place::new(), Place::new(), Place::new());
    let [reset, deleted] = ["reset", "deleted"].map(|name| key(Kind::Counter, "g", name));
    for (place, amount) in [(&from, "100"), (&to, "1")] {
        let pod = place.open();
        for key in [&reset, &deleted] {
            add(&pod, key, amount).await;
        }
        close(pod).await;
    }
    let lines = from.run("export", &[], b"").stdout;
    let pod = to.open();
    for (key, is_deletion) in [(&reset, false), (&deleted, true)] {
        pod.resetter().reset(key, is_deletion).await.expect("reset");
    }
    add(&pod, &reset, "2").await;
    close(pod).await;
    for more in [&[][..], &["--into-living"]] {
        let imported = to.run("import", more, &lines);
        let says = text(&imported.stderr);
        assert!(!imported.status.success(), "{says}");
        let refusals =
            says.matches(" was reset lately, so the line would count nothing; import it under");
        assert_eq!(refusals.count(), 2, "{says}");
    }
    // A deleted key is not exported. Of one that was reset, an export has what came since.
    assert!(later.run("import", &[], &to.run("export", &[], b"").stdout).status.success());
    for place in [&to, &later] {
        let pod = place.open();
        assert_eq!(shown(&pod, &reset).await.as_deref(), Some("2"));
        assert_eq!(shown(&pod, &deleted).await, None);
        close(pod).await;
    }
}

/// A restore can lack the log of resets, or have an older one than that of the keys. Until a pod reads such a key, it
/// acknowledges updates that do not count.
#[tokio::test(flavor = "multi_thread")]
async fn an_export_logs_resets_that_the_log_has_lost() {
    for exports in [false, true] {
        let place = Place::new();
        let [reset, deleted] = ["reset", "deleted"].map(|name| key(Kind::Counter, "g", name));
        let pod = place.open();
        for (key, is_deletion) in [(&reset, false), (&deleted, true)] {
            add(&pod, key, "1").await;
            pod.resetter().reset(key, is_deletion).await.expect("reset");
        }
        add(&pod, &reset, "2").await;
        close(pod).await;
        lose_the_log(&place.file());
        if exports {
            let exported = place.run("export", &[], b"");
            let says = "had lost 2 resets of these keys; 2 are logged again";
            assert!(exported.status.success(), "{exported:?}");
            assert!(text(&exported.stderr).contains(says), "{exported:?}");
            assert!(!text(&place.run("export", &[], b"").stderr).contains("had lost"));
        }
        let pod = place.open();
        for key in [&reset, &deleted] {
            add(&pod, key, "7").await;
        }
        let of_reset = if exports { "9" } else { "2" };
        assert_eq!(shown(&pod, &reset).await.as_deref(), Some(of_reset));
        assert_eq!(shown(&pod, &deleted).await.as_deref(), exports.then_some("7"));
        close(pod).await;
    }
}

fn lose_the_log(file: &Path) {
    let file = Database::create(file).expect("opened");
    let transaction = file.begin_write().expect("begun");
    let mut tables = transaction.list_tables().expect("tables");
    let log = tables.find(|table| table.name() == "resets").expect("the log");
    drop(tables);
    assert!(transaction.delete_table(log).expect("deleted"));
    transaction.commit().expect("committed");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_or_damaged_line_is_refused_and_the_others_arrive() {
    let (from, to) = (Place::new(), Place::new());
    let pod = from.open();
    for name in ["a", "b", "c"] {
        add(&pod, &key(Kind::Counter, "g", name), "1").await;
    }
    close(pod).await;
    let lines = text(&from.run("export", &[], b"").stdout);
    let mut lines: Vec<String> = lines.lines().map(str::to_owned).collect();
    lines[1] = lines[1].replace("\"version\":2", "\"version\":3");
    let state = lines[2].find("\"state\":\"").expect("a state") + 12;
    let other = if lines[2].as_bytes()[state] == b'A' { "B" } else { "A" };
    lines[2].replace_range(state..state + 1, other);
    let short = text(&from.run("export", &["--valid-for", "1ms"], b"").stdout);
    lines.extend(short.lines().map(str::to_owned));
    lines.push("nonsense".to_owned());
    let imported = to.run("import", &[], lines.join("\n").as_bytes());
    assert_eq!(imported.status.code(), Some(1));
    let (out, err) = (text(&imported.stdout), text(&imported.stderr));
    assert!(out.contains("1 keys imported, 0 were there, 6 refused, 0 unknown"), "{out}{err}");
    for says in [
        "line 2: this line can't be imported",
        "its version is 3",
        "line 3: this line can't be imported",
        "line 4: this line can't be imported: counter/g/a is in an earlier line too",
        "line 5: the line has expired",
        "line 7:",
    ] {
        assert!(err.contains(says), "{says}: {err}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_with_a_byte_order_mark_or_gzip_are_imported() {
    let from = Place::new();
    let pod = from.open();
    add(&pod, &key(Kind::Counter, "g", "n"), "5").await;
    close(pod).await;
    let lines = from.run("export", &[], b"").stdout;
    let mut zipped = GzEncoder::new(Vec::new(), Compression::fast());
    zipped.write_all(&lines).expect("memory");
    let zipped = zipped.finish().expect("memory");
    let cut = &zipped[..zipped.len() - 20];
    for (input, code, says) in [
        ([b"\xef\xbb\xbf", &lines[..]].concat(), 0, "1 keys imported"),
        (zipped.clone(), 0, "1 keys imported"),
        (cut.to_vec(), 1, "1 refused"),
    ] {
        let imported = Place::new().run("import", &[], &input);
        assert_eq!(imported.status.code(), Some(code), "{}", text(&imported.stderr));
        assert!(text(&imported.stdout).contains(says), "{}", text(&imported.stdout));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_names_its_cause_once() {
    let from = Place::new();
    let pod = from.open();
    add(&pod, &key(Kind::Counter, "g", "n"), "5").await;
    close(pod).await;
    let mut line: serde_json::Value =
        serde_json::from_slice(&from.run("export", &[], b"").stdout).expect("a line");
    line["state"] = json!("AAAA");
    let imported = Place::new().run("import", &[], line.to_string().as_bytes());
    let said = text(&imported.stderr);
    let (_, cause) = said.split_once("its state can't be decoded: ").expect(&said);
    let cause = cause.lines().next().expect("a cause");
    assert!(!cause.contains(": "), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_native_counters_arrive() {
    let to = Place::new();
    let csv = "site,home,40\nsite,home,2\n\"a, \"\"quoted\"\" group\",n,-7\nsite,max,9223372036854775807\n";
    let twice = run("convert", &[], csv.as_bytes());
    assert_eq!(twice.status.code(), Some(1));
    assert!(text(&twice.stderr).contains("line 2: counter/site/home is in an earlier line too"));
    assert!(twice.stdout.is_empty());
    let lines = run("convert", &["--sum-duplicates"], csv.as_bytes());
    assert!(lines.status.success(), "{}", text(&lines.stderr));
    for _ in 0..2 {
        assert!(to.run("import", &[], &lines.stdout).status.success());
    }
    let pod = to.open();
    for (group, name, value) in [
        ("site", "home", "42"),
        ("a, \"quoted\" group", "n", "-7"),
        ("site", "max", "9223372036854775807"),
    ] {
        assert_eq!(shown(&pod, &key(Kind::Counter, group, name)).await.as_deref(), Some(value));
    }
    close(pod).await;
    for (csv, says) in [
        ("site,home\n", "line 1: it has 2 columns"),
        ("site,home,1\nsite,home,x\n", "line 2: \"x\" is not an amount"),
        (",home,1\n", "line 1: its group"),
        ("site,..,1\n", "line 1: its name can't be `.` or `..`"),
    ] {
        let refused = run("convert", &[], csv.as_bytes());
        assert!(!refused.status.success());
        assert!(text(&refused.stderr).contains(says), "{says}: {}", text(&refused.stderr));
    }
    assert!(text(&run("convert", &["--kind", "gset"], b"").stderr).contains("counter or a sum"));
}

/// A register or a set by time from a clock that is ahead would hide everything that is set here.
#[tokio::test(flavor = "multi_thread")]
async fn times_that_are_ahead_are_not_imported() {
    for kind in [Kind::Register, Kind::LwwSet] {
        let (from, to) = (Place::new(), Place::new());
        let key = key(kind, "g", "n");
        let pod = from.open_after(1);
        add(&pod, &key, "5").await;
        close(pod).await;
        let lines = from.run("export", &[], b"").stdout;
        let imported = to.run("import", &[], &lines);
        assert_eq!(imported.status.code(), Some(1), "{}", text(&imported.stdout));
        let says = text(&imported.stderr);
        assert!(says.contains("ahead of this clock") && says.contains("repair"), "{says}");
        let pod = to.open();
        assert_eq!(shown(&pod, &key).await, None, "nothing of it is there");
        close(pod).await;
    }
}

/// Stores order rows by their ids, and only agree on the order of random ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_whose_id_is_not_random_is_refused() {
    let (from, to) = (Place::new(), Place::new());
    let pod = from.open();
    add(&pod, &key(Kind::Counter, "g", "n"), "5").await;
    close(pod).await;
    let line = text(&from.run("export", &[], b"").stdout);
    let id = line.find("\"id\":\"").expect("an id") + "\"id\":\"".len();
    let mut other = line.clone();
    // The digit of the UUID's version.
    other.replace_range(id + 14..id + 15, "1");
    assert_ne!(line, other);
    let imported = to.run("import", &[], other.as_bytes());
    assert_eq!(imported.status.code(), Some(1));
    assert!(text(&imported.stderr).contains("is not a random UUID"), "{}", text(&imported.stderr));
    assert!(to.run("import", &[], line.as_bytes()).status.success());
}

/// A line is not part of a key until it is imported: then its row is sealed for its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_may_be_imported_under_another_name() {
    let (from, to) = (Place::new(), Place::new());
    let pod = from.open();
    add(&pod, &key(Kind::Counter, "g", "old"), "5").await;
    close(pod).await;
    let lines = text(&from.run("export", &[], b"").stdout).replace("\"old\"", "\"new\"");
    for _ in 0..2 {
        assert!(to.run("import", &[], lines.as_bytes()).status.success());
    }
    let pod = to.open();
    assert_eq!(shown(&pod, &key(Kind::Counter, "g", "new")).await.as_deref(), Some("5"));
    assert_eq!(shown(&pod, &key(Kind::Counter, "g", "old")).await, None);
    close(pod).await;
}

/// No client can use `.` and `..`, but rows with these names stay readable.
#[tokio::test(flavor = "multi_thread")]
async fn keys_that_no_client_can_name_are_folded_and_exported() {
    let (from, to) = (Place::new(), Place::new());
    let keys = [(".", "n"), ("g", ".."), ("g", "n")];
    let keys = keys.map(|(group, name)| key(Kind::Counter, group, name));
    for days in [-4, -2] {
        let pod = from.open_after(days);
        for key in &keys {
            add(&pod, key, "5").await;
        }
        close(pod).await;
    }
    let pod = from.open();
    for key in &keys {
        assert_eq!(pod.service().fold(key, false).await.expect("folded").report.folded, 2, "{key}");
        assert_eq!(shown(&pod, key).await.as_deref(), Some("10"), "{key}");
    }
    close(pod).await;
    let exported = from.run("export", &[], b"");
    assert!(exported.status.success(), "{}", text(&exported.stderr));
    let imported = to.run("import", &[], &exported.stdout);
    assert_eq!(imported.status.code(), Some(1));
    assert!(text(&imported.stdout).contains("1 keys imported, 0 were there, 2 refused"));
    let said = text(&imported.stderr);
    for says in ["its group can't be `.` or `..`", "its name can't be `.` or `..`"] {
        assert!(said.contains(says), "{says}: {said}");
    }
    let renamed = text(&exported.stdout).replace("\"..\"", "\"a\"").replace("\".\"", "\"b\"");
    assert!(to.run("import", &["--into-living"], renamed.as_bytes()).status.success());
    let pod = to.open();
    for (group, name) in [("b", "n"), ("g", "a"), ("g", "n")] {
        let key = key(Kind::Counter, group, name);
        assert_eq!(shown(&pod, &key).await.as_deref(), Some("10"), "{key}");
    }
    close(pod).await;
}

/// Each process used to start a new hybrid clock, so that an older set could win over an acknowledged one.
#[tokio::test(flavor = "multi_thread")]
async fn a_set_after_a_restart_wins_over_one_before() {
    let place = Place::new();
    let constants = Constants::resolve(Overrides::default()).expect("defaults");
    let ahead = constants.clock_offset_max().as_micros();
    for (kind, before, after, value) in [
        (
            Kind::Register,
            json!({"op": "set", "value": "old"}),
            json!({"op": "set", "value": "new"}),
            "new",
        ),
        (
            Kind::LwwSet,
            json!({"op": "add", "item": "a"}),
            json!({"op": "remove", "item": "a"}),
            "\"size\":0",
        ),
    ] {
        let key = key(kind, "g", "n");
        let pod = place.open();
        let mut before = before;
        // As far ahead as the time that a client sends may be.
        let seen = SystemClock.now().wall.as_micros() + i64::try_from(ahead).expect("small");
        before["after"] = json!(seen);
        update(&pod, &key, &before).await;
        close(pod).await;
        let pod = place.open();
        update(&pod, &key, &after).await;
        let shown = shown(&pod, &key).await.expect("a value");
        assert!(shown.contains(value), "{shown}");
        close(pod).await;
    }
}

/// Rows that do not fit into a tally stay beside it, but go into the same line.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_more_than_a_tally_arrives_whole() {
    let (from, to) = (Place::new(), Place::new());
    let key = key(Kind::GSet, "g", "n");
    // A pod takes up to a megabyte of a key.
    for pod_number in 0..6 {
        let pod = from.open();
        for batch in 0..3 {
            let item = |at| format!("{pod_number}-{batch}-{at:0>1000}");
            let items: Vec<String> = (0..250).map(item).collect();
            update(&pod, &key, &json!({"op": "add", "items": items})).await;
        }
        close(pod).await;
    }
    let exported = from.run("export", &[], b"");
    assert!(exported.status.success(), "{}", text(&exported.stderr));
    let imported = to.run("import", &[], &exported.stdout);
    assert!(imported.status.success(), "{}", text(&imported.stderr));
    let pod = to.open();
    let read = pod.service().read(&key, None).await.expect("readable").expect("a value");
    assert!(read.bytes > orderfree_core::protocol::fold::TALLY_BYTES_MAX, "{}", read.bytes);
    let value = serde_json::to_value(read.state.value(&Question::default()).shown(false));
    assert_eq!(value.expect("JSON")["size"], 6 * 3 * 250);
    close(pod).await;
}
