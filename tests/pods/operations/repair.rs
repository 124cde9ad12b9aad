//! `orderfree repair`: a pod once ran while the machine's clock was 74 years ahead, and must be able to count again.

use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use orderfree::store::embedded::{RowKey, SHARDS};
use redb::{Database, ReadableDatabase, ReadableTable};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::pod::{Pod, Setup, run};

/// 74 years in days.
const DAYS_AHEAD: i64 = 74 * 365;

/// Short times, so that a fold does not need a day.
const CONSTANTS: [(&str, &str); 4] = [
    ("ORDERFREE_LIFETIME", "2m"),
    ("ORDERFREE_DRAIN_MARGIN", "20s"),
    ("ORDERFREE_CUTOFF", "30s"),
    ("ORDERFREE_UNREADY_GRACE", "0s"),
];

/// Time from an update until its row may be folded.
const FOLDABLE_AFTER: Duration = Duration::from_secs(200);

const KEYS: [&str; 5] = [
    "/v1/counter/site/home",
    "/v1/counter/site/folded",
    "/v1/register/site/theme",
    "/v1/lww_set/site/tags",
    "/v1/or_set/site/cart",
];

/// A file, and the clock of its pods.
struct Place {
    setup: Setup,
}

impl Place {
    fn new() -> Place {
        let mut setup = Setup::new().env("ORDERFREE_FOLD", "manual");
        for (name, value) in CONSTANTS {
            setup = setup.env(name, value);
        }
        Place { setup: setup.with_shifted_clock() }
    }

    fn file(&self) -> PathBuf {
        self.setup.path("rows.redb")
    }

    fn copy(&self) -> PathBuf {
        self.setup.path("copy.redb")
    }

    /// Sets how far the clock of its pods is ahead of the machine's.
    fn set_clock(&self, days: i64, and: Duration) {
        self.setup.shift_clock(days * 86_400 + i64::try_from(and.as_secs()).expect("a short time"));
    }

    async fn repair(&self) -> Output {
        let (file, copy) = (self.file().display().to_string(), self.copy().display().to_string());
        run(&["repair", "--data", &file, "--into", &copy], &CONSTANTS[..3]).await
    }

    /// Checks that the program made no copy, and said why.
    async fn refuses(&self, why: &str) {
        let output = self.repair().await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        // The line after those of the log.
        let sentence = said.lines().last().unwrap_or_default();
        assert!(sentence.starts_with("orderfree: ") && sentence.contains(why), "{said}");
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

async fn update(pod: &Pod, path: &str, op: &Value) -> (u16, String) {
    let headers = [("content-type", "application/json")];
    let answer = pod.ask("POST", path, &headers, &op.to_string()).await;
    (answer.status, answer.text())
}

async fn acked(pod: &Pod, path: &str, op: Value) {
    let (status, text) = update(pod, path, &op).await;
    assert_eq!(status, 200, "{path}: {text}");
}

async fn fold(pod: &Pod, path: &str) -> Value {
    let answer = pod.ask("POST", &format!("{path}/fold"), &[], "").await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()
}

/// The values of the keys, without times and tokens.
async fn values(pod: &Pod) -> Vec<Value> {
    let mut values = Vec::new();
    for path in KEYS {
        let mut value = pod.get(path).await.json()["value"].take();
        if let Some(items) = value.get_mut("items").and_then(Value::as_array_mut) {
            for item in items.iter_mut().filter(|item| item.is_object()) {
                *item = item["item"].take();
            }
        }
        if let Some(fields) = value.as_object_mut() {
            fields.retain(|name, _| name != "timestamp" && name != "context");
        }
        values.push(value);
    }
    values
}

async fn stop(mut pod: Pod) {
    pod.signal(Signal::TERM);
    assert_eq!(pod.ended(Duration::from_secs(20)).await.0, Some(0), "{}", pod.log());
}

/// All rows of a file as bytes.
fn rows(file: &PathBuf) -> Vec<String> {
    let database = Database::open(file).expect("a file");
    let table = database.begin_read().expect("begun").open_table(SHARDS).expect("rows");
    let entries = table.range::<RowKey>(..).expect("rows").map(|entry| {
        let (key, value) = entry.expect("a row");
        format!("{:?} {:?}", key.value(), value.value())
    });
    entries.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repaired_file_continues_from_the_old_values() {
    let place = Place::new();
    let [home, folded, theme, tags, cart] = KEYS;
    // Before the clock was wrong.
    place.set_clock(0, Duration::ZERO);
    let pod = place.setup.start().await;
    acked(&pod, home, json!({"op": "add", "by": 1})).await;
    acked(&pod, folded, json!({"op": "add", "by": 10})).await;
    acked(&pod, tags, json!({"op": "add", "items": ["a", "b"]})).await;
    acked(&pod, cart, json!({"op": "add", "items": ["pen", "ink"]})).await;
    stop(pod).await;
    // While the clock is wrong.
    place.set_clock(DAYS_AHEAD, Duration::ZERO);
    let pod = place.setup.start().await;
    acked(&pod, home, json!({"op": "add", "by": 2})).await;
    acked(&pod, folded, json!({"op": "add", "by": 20})).await;
    acked(&pod, theme, json!({"op": "set", "value": "dark"})).await;
    acked(&pod, tags, json!({"op": "remove", "item": "a"})).await;
    let seen = pod.get(cart).await.json()["value"]["items"][0].take();
    acked(&pod, cart, json!({"op": "remove", "item": seen["item"], "seen": seen["seen"]})).await;
    acked(&pod, cart, json!({"op": "add", "item": "paper"})).await;
    place.set_clock(DAYS_AHEAD, FOLDABLE_AFTER);
    assert_eq!(fold(&pod, folded).await["folded"], json!(2));
    acked(&pod, folded, json!({"op": "add", "by": 40})).await;
    let before = values(&pod).await;
    assert_eq!((&before[0], &before[1]), (&json!(3), &json!(70)));
    stop(pod).await;

    // The clock is right again.
    place.set_clock(0, Duration::ZERO);
    let pod = place.setup.start().await;
    let (status, refusal) = update(&pod, home, &json!({"op": "add", "by": 4})).await;
    assert_eq!(status, 503, "{refusal}");
    assert!(refusal.contains("run `orderfree repair`"), "{refusal}");
    place.refuses("is in use by another process").await;
    stop(pod).await;
    let old = rows(&place.file());
    let output = place.repair().await;
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    for part in [
        "has seen a time 73years 11months ahead",
        "rows that were written ahead of it: 5, by up to 73years 11months\n",
        "folds by a clock ahead of it: 1, by up to 73years 11months\n",
        "times of last writers ahead of it: 2, by up to 73years 11months\n",
        // One row of `home`, `theme` and `tags`, both of `cart`, and the tally of `folded` too.
        "repaired: 5 keys, in which 7 rows became 5",
        "next: keep",
        "if clients send ids: start the pod after 2",
        "may count twice",
    ] {
        assert!(said.contains(part), "{part:?} in {said}");
    }
    assert_eq!(rows(&place.file()), old, "the file is as it was");
    place.refuses("exists already").await;

    fs::rename(place.file(), place.setup.path("old.redb")).expect("kept");
    fs::rename(place.copy(), place.file()).expect("put in its place");
    let pod = place.setup.start().await;
    assert_eq!(values(&pod).await, before);
    for path in [home, folded] {
        acked(&pod, path, json!({"op": "add", "by": 4})).await;
    }
    acked(&pod, theme, json!({"op": "set", "value": "light"})).await;
    acked(&pod, tags, json!({"op": "add", "item": "a"})).await;
    acked(&pod, cart, json!({"op": "add", "item": "glue"})).await;
    let mut expected = before;
    (expected[0], expected[1]) = (json!(7), json!(74));
    expected[2]["value"] = json!("light");
    expected[3] = json!({"size": 2, "items": ["a", "b"]});
    let cart_now = expected[4]["items"].as_array_mut().expect("items");
    cart_now.insert(0, json!("glue"));
    expected[4]["size"] = json!(3);
    assert_eq!(values(&pod).await, expected);
    place.set_clock(0, FOLDABLE_AFTER);
    for path in KEYS {
        let report = fold(&pod, path).await;
        assert_eq!(report["kept"], json!(0), "{path}: {report}");
    }
    assert_eq!(values(&pod).await, expected, "after a fold of all");
    stop(pod).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_with_nothing_ahead_gets_no_copy() {
    let place = Place::new();
    place.set_clock(0, Duration::ZERO);
    let pod = place.setup.start().await;
    acked(&pod, KEYS[0], json!({"op": "add", "by": 1})).await;
    acked(&pod, KEYS[2], json!({"op": "set", "value": "dark"})).await;
    stop(pod).await;
    let output = place.repair().await;
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    assert!(said.contains("there is nothing to repair and no copy was made"), "{said}");
    assert!(!place.copy().exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repair_refuses_what_it_can_not_do() {
    let place = Place::new();
    place.refuses("is missing or empty").await;
    place.set_clock(DAYS_AHEAD, Duration::ZERO);
    let pod = place.setup.start().await;
    acked(&pod, KEYS[0], json!({"op": "add", "by": 1})).await;
    stop(pod).await;
    let file = place.file().display().to_string();
    let cassandra = ["repair", "--data", &file, "--into", "copy", "--cassandra", "127.0.0.1:1"];
    let output = run(&cassandra, &[]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("this store is Cassandra"), "{output:?}");

    let database = Database::open(place.file()).expect("a file");
    let transaction = database.begin_write().expect("begun");
    let mut table = transaction.open_table(SHARDS).expect("rows");
    let (key, at, mut state) = {
        let (key, value) = table.first().expect("readable").expect("a row");
        let (kind, group, name, expiry, id) = key.value();
        let key = (kind.to_owned(), group.to_owned(), name.to_owned(), expiry, id);
        (key, value.value().0, value.value().1.to_vec())
    };
    state[3] ^= 1;
    let (kind, group, name, expiry, id) = &key;
    table
        .insert((&**kind, &**group, &**name, *expiry, *id), (at, state.as_slice()))
        .expect("written");
    drop(table);
    transaction.commit().expect("committed");
    drop(database);
    place.refuses("1 of its rows are damaged; restore it from a backup").await;
    assert!(!place.copy().exists());
    let files = fs::read_dir(place.file().parent().expect("a folder")).expect("a folder");
    let names = files.map(|file| file.expect("a file").file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().ends_with(".new")));
}
