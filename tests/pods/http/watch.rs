//! Streams of the values of watched keys.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::{Request, StatusCode};
use futures::StreamExt;
use futures::future::join_all;
use orderfree::engine::write::Bounds;
use orderfree::limits;
use orderfree::policy::{NewToken, Policies, Verb};
use orderfree_core::protocol::{Constants, Overrides};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::access::{Guarded, grant};
use crate::pod::{Fault, Ground, Pod, request};

const HOME: &str = "/v1/counter/site/home";
const WATCH_HOME: &str = "/v1/watch?key=counter/site/home";

/// Longer than an update of another pod takes to show.
const SOON: Duration = Duration::from_secs(3);

/// A stream that is being read.
struct Events {
    body: BodyDataStream,
    rest: String,
}

#[derive(Debug, PartialEq)]
struct Event {
    id: Option<String>,
    kind: Option<String>,
    data: Value,
}

impl Events {
    async fn open(pod: &Pod, path: &str, headers: &[(&str, &str)]) -> Events {
        Events::of(pod, request("GET", path, headers, "")).await
    }

    async fn of(pod: &Pod, request: Request<Body>) -> Events {
        let answer = pod.answer(request).await;
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        assert_eq!(answer.headers()["cache-control"], "no-cache");
        Events { body: answer.into_body().into_data_stream(), rest: String::new() }
    }

    /// The next event; none at the end of the stream.
    async fn next(&mut self) -> Option<Event> {
        loop {
            while let Some(end) = self.rest.find("\n\n") {
                let text: String = self.rest.drain(..end + 2).collect();
                let field = |name: &str| {
                    let lines = text.lines().filter_map(|line| line.strip_prefix(name));
                    lines.map(str::to_owned).next()
                };
                if let Some(data) = field("data: ") {
                    let data = serde_json::from_str(&data).expect("JSON");
                    return Some(Event { id: field("id: "), kind: field("event: "), data });
                }
            }
            let bytes = self.body.next().await?.expect("a piece");
            self.rest += std::str::from_utf8(&bytes).expect("UTF-8");
        }
    }

    async fn soon(&mut self) -> Event {
        timeout(SOON, self.next()).await.expect("an event in time").expect("an event")
    }

    /// The value of the next event.
    async fn value(&mut self) -> Value {
        self.soon().await.data["value"].clone()
    }

    /// The value of a key of a watched group, which can take longer to show.
    async fn value_of_new_key(&mut self) -> i64 {
        let event = timeout(Duration::from_secs(20), self.next()).await.expect("in time");
        event.expect("an event").data["value"].as_i64().expect("a number")
    }

    /// Waits for this value. Returns the number of events until then.
    async fn until(&mut self, value: i64) -> usize {
        for events in 1.. {
            if self.value().await == value {
                return events;
            }
        }
        unreachable!()
    }
}

/// A request to watch the thousand keys from this one on.
fn a_thousand(from: usize, token: Option<&str>) -> Request<Body> {
    let key = |at| json!({"kind": "counter", "group": "site", "name": format!("{at}")});
    let keys: Vec<Value> = (from..from + 1_000).map(key).collect();
    let bearer = token.map(|token| format!("Bearer {token}"));
    let mut headers = vec![("content-type", "application/json")];
    headers.extend(bearer.iter().map(|bearer| ("authorization", bearer.as_str())));
    request("POST", "/v1/watch", &headers, json!({"keys": keys}).to_string())
}

/// Applies updates, a thousand in a request.
async fn add_all(pod: &Pod, token: Option<&str>, updates: &[Value]) {
    let bearer = token.map(|token| format!("Bearer {token}"));
    let mut headers = vec![("content-type", "application/json")];
    headers.extend(bearer.iter().map(|bearer| ("authorization", bearer.as_str())));
    for updates in updates.chunks(1_000) {
        let body = json!({"updates": updates}).to_string();
        let answer = pod.send(request("POST", "/v1/batch", &headers, body)).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        assert!(!answer.text.contains("problem"), "{}", answer.text);
    }
}

fn count_of(of: &Arc<AtomicUsize>) -> usize {
    of.load(Ordering::SeqCst)
}

/// What the pods of this thread log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("lock").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn lines_with(&self, text: &str) -> usize {
        String::from_utf8_lossy(&self.0.lock().expect("lock")).matches(text).count()
    }
}

#[tokio::test]
async fn a_watched_key_shows_every_change() {
    let pod = Pod::new();
    let mut events = Events::open(&pod, WATCH_HOME, &[]).await;
    let absent =
        json!({"kind": "counter", "group": "site", "name": "home", "absent": true, "exact": true});
    assert_eq!(events.soon().await, Event { id: None, kind: None, data: absent.clone() });
    pod.post(HOME, "text/plain", "5").await;
    let event = events.soon().await;
    let read = pod.get(HOME).await;
    assert_eq!(event.id.as_deref(), Some(read.header("etag")));
    let (mut data, mut read) = (event.data, read.json());
    for view in [&mut data, &mut read] {
        view.as_object_mut().expect("an object").remove("as_of");
    }
    assert_eq!(data, read);
    pod.post(HOME, "text/plain", "-7").await;
    assert_eq!(events.value().await, -2);
    pod.send(request("POST", &format!("{HOME}/reset"), &[], "")).await;
    assert_eq!(events.value().await, 0);
    pod.send(request("DELETE", HOME, &[], "")).await;
    assert_eq!(events.soon().await.data, absent);
}

#[tokio::test]
async fn many_updates_are_few_events_and_the_last_one_shows() {
    let pod = Pod::new();
    let mut events = Events::open(&pod, WATCH_HOME, &[]).await;
    let began = Instant::now();
    let update = async {
        for _ in 0..200 {
            pod.post(HOME, "text/plain", "1").await;
        }
    };
    let (count, ()) = tokio::join!(events.until(200), update);
    let most = began.elapsed().as_millis() / 100 + 2;
    assert!(count as u128 <= most, "{count} events, at most {most}");
}

#[tokio::test]
async fn an_update_of_another_pod_shows_within_a_second() {
    let ground = Ground::new();
    let pod = || Pod::on(&ground, ground.store.clone(), Policies::default(), Bounds::default());
    let (pod, other) = (pod(), pod());
    let mut events = Events::open(&pod, WATCH_HOME, &[]).await;
    events.soon().await;
    for total in 1..=3 {
        other.post(HOME, "text/plain", "1").await;
        let began = Instant::now();
        assert_eq!(events.value().await, total);
        assert!(began.elapsed() < Duration::from_millis(1_300), "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn many_keys_are_one_stream() {
    let pod = Pod::new();
    let key = |at: usize| json!({"kind": "counter", "group": "site", "name": at.to_string()});
    let keys = |count: usize| json!({"keys": (0..count).map(key).collect::<Vec<_>>()}).to_string();
    let post = |count| {
        let json = [("content-type", "application/json")];
        request("POST", "/v1/watch?numbers=string", &json, keys(count))
    };
    let mut events = Events::of(&pod, post(1_000)).await;
    for _ in 0..1_000 {
        assert_eq!(events.soon().await.data["absent"], true);
    }
    pod.post("/v1/counter/site/777", "text/plain", "3").await;
    assert_eq!(events.soon().await.data["value"], "3");
    assert_eq!(pod.send(post(1_001)).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_group_shows_its_keys_and_those_that_come_later() {
    let pod = Pod::new();
    for name in ["a1", "a2", "b"] {
        pod.post(&format!("/v1/counter/site/{name}"), "text/plain", "1").await;
    }
    let path = "/v1/watch?group=counter/site&prefix=a";
    let mut events = Events::open(&pod, path, &[]).await;
    let mut names =
        [events.soon().await, events.soon().await].map(|event| event.data["name"].clone());
    names.sort_by_key(ToString::to_string);
    assert_eq!(names, ["a1", "a2"]);
    pod.post("/v1/counter/site/a3", "text/plain", "1").await;
    let event = timeout(Duration::from_secs(20), events.next()).await.expect("in time");
    assert_eq!(event.expect("an event").data["name"], "a3");
}

#[tokio::test]
async fn streams_of_a_group_share_a_list_and_a_stalled_one_stops_none() {
    const GROUP: &str = "/v1/watch?group=counter/site";
    let pod = Pod::new();
    pod.post(HOME, "text/plain", "1").await;
    // Its client takes nothing.
    let _still = Events::open(&pod, GROUP, &[]).await;
    let before = count_of(&pod.group_reads);
    let mut streams = Vec::new();
    for _ in 0..20 {
        let mut events = Events::open(&pod, GROUP, &[]).await;
        assert_eq!(events.value().await, 1);
        streams.push(events);
    }
    assert_eq!(count_of(&pod.group_reads), before, "each stream reads the names");
    pod.post("/v1/counter/site/new", "text/plain", "5").await;
    let new = streams.iter_mut().map(Events::value_of_new_key);
    assert_eq!(join_all(new).await, vec![5; 20]);
    let reads = count_of(&pod.group_reads) - before;
    assert!(reads <= 2, "{reads} reads of the names in 20 s");
}

#[tokio::test]
async fn events_and_the_end_come_while_the_names_of_a_group_are_read() {
    let pod = Pod::new();
    pod.post(HOME, "text/plain", "1").await;
    let mut events = Events::open(&pod, "/v1/watch?group=counter/site", &[]).await;
    assert_eq!(events.value().await, 1);
    pod.set(Fault::HangingGroups);
    let (before, began) = (count_of(&pod.group_reads), Instant::now());
    while count_of(&pod.group_reads) == before {
        assert!(began.elapsed() < Duration::from_secs(20), "the names are never read again");
        let nothing = timeout(Duration::from_millis(200), events.next()).await;
        assert!(nothing.is_err(), "{nothing:?}");
    }
    pod.post(HOME, "text/plain", "1").await;
    assert_eq!(events.value().await, 2);
    pod.health.set_draining();
    assert_eq!(events.soon().await.kind.as_deref(), Some("end"));
    pod.set(Fault::None);
}

#[tokio::test]
async fn keys_of_a_group_that_are_gone_make_room_for_new_ones() {
    let pod = Pod::new();
    let update = |at: usize| json!({"kind": "counter", "group": "site", "name": at.to_string(), "op": {"op": "add"}});
    let updates: Vec<Value> = (0..limits::BATCH_ITEMS_MAX).map(update).collect();
    add_all(&pod, None, &updates).await;
    let mut events = Events::open(&pod, "/v1/watch?group=counter/site", &[]).await;
    for _ in 0..limits::BATCH_ITEMS_MAX {
        assert_eq!(events.value().await, 1);
    }
    let deleted = pod.send(request("DELETE", "/v1/counter/site?all=true", &[], "")).await;
    assert_eq!(deleted.json()["deleted"], limits::BATCH_ITEMS_MAX, "{}", deleted.text);
    for _ in 0..limits::BATCH_ITEMS_MAX {
        assert_eq!(events.soon().await.data["absent"], true);
    }
    pod.post("/v1/counter/site/new", "text/plain", "5").await;
    assert_eq!(events.value_of_new_key().await, 5);
    // A key that comes back is a new one.
    pod.post("/v1/counter/site/7", "text/plain", "3").await;
    assert_eq!(events.value_of_new_key().await, 3);
}

#[tokio::test]
async fn a_client_that_connects_again_gets_no_event_twice() {
    let pod = Pod::new();
    pod.post(HOME, "text/plain", "5").await;
    let id = Events::open(&pod, WATCH_HOME, &[]).await.soon().await.id.expect("an id");
    let again = [("last-event-id", id.as_str())];
    let mut events = Events::open(&pod, WATCH_HOME, &again).await;
    assert!(timeout(SOON, events.next()).await.is_err(), "nothing has changed");
    pod.post(HOME, "text/plain", "1").await;
    assert_eq!(events.value().await, 6);
    let mut events = Events::open(&pod, WATCH_HOME, &again).await;
    assert_eq!(events.value().await, 6, "it has changed meanwhile");
    pod.post(HOME, "text/plain", "-1").await;
    assert_eq!(events.value().await, 5, "the value that it once had is new to it");
}

#[tokio::test]
async fn a_client_that_reads_late_gets_the_latest_value() {
    let pod = Pod::new();
    let paths = ["/v1/counter/site/a", "/v1/counter/site/b"];
    let mut events =
        Events::open(&pod, "/v1/watch?key=counter/site/a&key=counter/site/b", &[]).await;
    let add = async || {
        for path in paths {
            pod.post(path, "text/plain", "1").await;
        }
        sleep(Duration::from_millis(500)).await;
    };
    events.soon().await;
    events.soon().await;
    add().await;
    assert_eq!(events.value().await, 1);
    add().await;
    let mut values = [events.value().await, events.value().await];
    values.sort_by_key(Value::as_i64);
    assert_eq!(values, [2, 2], "an earlier value was kept for the client");
}

#[tokio::test]
async fn a_large_value_is_not_sent_to_watchers() {
    let pod = Pod::new();
    let add = |at: usize| json!({"op": "add", "item": format!("{at:0200}")});
    let ops: Vec<Value> = (0..200).map(add).collect();
    let body = json!({"ops": ops}).to_string();
    pod.post("/v1/gset/site/large", "application/json", &body).await;
    let path = "/v1/watch?key=gset/site/large&key=counter/site/home";
    let mut events = Events::open(&pod, path, &[]).await;
    let both = [events.soon().await, events.soon().await];
    let large = both.iter().find(|event| event.data["name"] == "large").expect("its event");
    assert_eq!(large.data["problem"]["type"], "/problems/answer-full", "{large:?}");
    pod.post(HOME, "text/plain", "1").await;
    assert_eq!(events.value().await, 1, "other keys show");
}

#[tokio::test]
async fn a_stream_ends_with_a_reason_when_its_pod_stops() {
    let pod = Pod::new();
    let mut events = Events::open(&pod, WATCH_HOME, &[]).await;
    events.soon().await;
    pod.health.set_draining();
    let end = events.soon().await;
    assert_eq!((end.kind.as_deref(), end.data["reason"].is_string()), (Some("end"), true));
    assert_eq!(end.data["status"], 503);
    assert_eq!(timeout(SOON, events.next()).await, Ok(None));
    pod.get(WATCH_HOME).await.problem(503, "stopping");
}

#[tokio::test]
async fn a_key_that_can_not_be_read_says_why_and_comes_back() {
    let pod = Pod::new();
    pod.post(HOME, "text/plain", "5").await;
    pod.set(Fault::Down);
    let mut events = Events::open(&pod, WATCH_HOME, &[]).await;
    let event = events.soon().await;
    assert_eq!(event.data["problem"]["type"], "/problems/store-unavailable");
    assert_eq!((event.id, event.data["name"].as_str()), (None, Some("home")));
    pod.set(Fault::None);
    assert_eq!(events.value().await, 5);
}

#[tokio::test]
async fn every_key_needs_a_grant_as_long_as_it_is_watched() {
    let mine = grant("site", &[Verb::Read, Verb::Write]);
    let guarded = Guarded::new([("mine", mine), ("nothing", String::new())], "");
    let both = "/v1/watch?key=counter/site/home&key=counter/other/home";
    for (token, path) in
        [("mine", both), ("mine", "/v1/watch?group=counter/other"), ("nothing", WATCH_HOME)]
    {
        guarded.ask(token, "GET", path, "").await.problem(403, "forbidden");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.toml");
    let NewToken { token, sha256 } = NewToken::draw();
    let write = |grants: &str| {
        let text = format!("[[token]]\nname = 'mine'\nsha256 = {sha256:?}\n{grants}\n");
        std::fs::write(&file, text).expect("written");
    };
    write(&grant("site", &[Verb::Read]));
    let constants = Constants::resolve(Overrides::default()).expect("defaults");
    let policies = Policies::open(Some(&file), constants).expect("a policy");
    let pod = Pod::with(policies.clone());
    let bearer = format!("Bearer {token}");
    let mut events = Events::open(&pod, WATCH_HOME, &[("authorization", &bearer)]).await;
    events.soon().await;
    write(&grant("other", &[Verb::Read]));
    policies.reload().expect("a policy");
    let end = timeout(Duration::from_secs(10), events.next()).await.expect("in time");
    let end = end.expect("an event");
    assert_eq!(end.kind.as_deref(), Some("end"), "the grant is gone");
    assert_eq!(end.data["status"], 403);
    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn a_pod_watches_up_to_its_limit_and_forgets_unwatched_keys() {
    let pod = Pod::new();
    let mut streams = Vec::new();
    for at in 0..10 {
        streams.push(Events::of(&pod, a_thousand(at * 1_000, None)).await);
    }
    pod.get(WATCH_HOME).await.problem(429, "too-many-watched");
    // A key that is watched already has room.
    Events::open(&pod, "/v1/watch?key=counter/site/5", &[]).await.soon().await;
    let watched = async || {
        let metrics = pod.get("/metrics").await.text;
        let line = metrics.lines().find(|line| line.starts_with("orderfree_watched_keys "));
        line.expect("the metric").rsplit(' ').next().expect("a number").to_owned()
    };
    assert_eq!(watched().await, "10000");
    drop(streams);
    let began = Instant::now();
    while watched().await != "0" {
        assert!(began.elapsed() < Duration::from_secs(30), "{}", watched().await);
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn one_token_watches_half_of_the_keys_that_a_pod_can_watch() {
    let read = || grant("", &[Verb::Read]);
    let guarded = Guarded::new([("many", read()), ("other", read())], "");
    let pod = &guarded.pod;
    let (many, other) = (Some(&*guarded.tokens["many"]), Some(&*guarded.tokens["other"]));
    let mut streams = Vec::new();
    for at in 0..5 {
        streams.push(Events::of(pod, a_thousand(at * 1_000, many)).await);
    }
    let detail = pod.send(a_thousand(5_000, many)).await.detail(429, "too-many-watched");
    assert!(detail.contains("half"), "{detail}");
    assert_eq!(pod.send(a_thousand(0, many)).await.status, StatusCode::OK, "it has these keys");
    // These are the keys of both tokens.
    let both = Events::of(pod, a_thousand(0, other)).await;
    let others = Events::of(pod, a_thousand(5_000, other)).await;
    streams.remove(0);
    streams.push(Events::of(pod, a_thousand(6_000, many)).await);
    pod.send(a_thousand(0, many)).await.problem(429, "too-many-watched");
    drop((both, others));
}

#[tokio::test]
async fn a_pod_bounds_the_watched_keys_of_all_and_of_each_token() {
    let read = || grant("", &[Verb::Read]);
    let guarded = Guarded::new([("many", read()), ("other", read()), ("late", read())], "");
    let pod = &guarded.pod;
    let [many, other, late] = ["many", "other", "late"].map(|name| Some(&*guarded.tokens[name]));
    let mut streams = Vec::new();
    for token in [many, other] {
        for _ in 0..limits::WATCHED_PLACES_MAX / 2_000 {
            streams.push(Events::of(pod, a_thousand(0, token)).await);
        }
        if token == many {
            pod.send(a_thousand(0, many)).await.problem(429, "too-many-watched");
        }
    }
    pod.send(a_thousand(0, late)).await.problem(429, "too-many-watched");
    // A group takes a place, also without keys.
    let empty = "/v1/watch?group=counter/empty";
    guarded.ask("late", "GET", empty, "").await.problem(429, "too-many-watched");
    streams.pop();
    assert_eq!(guarded.ask("late", "GET", empty, "").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_key_has_one_read_however_many_watch_it() {
    let pod = Pod::new();
    pod.post(HOME, "text/plain", "5").await;
    let mut streams = Vec::new();
    for _ in 0..50 {
        let mut events = Events::open(&pod, WATCH_HOME, &[]).await;
        assert_eq!(events.value().await, 5);
        streams.push(events);
    }
    let (before, began) = (count_of(&pod.reads), Instant::now());
    sleep(Duration::from_secs(3)).await;
    let reads = count_of(&pod.reads) - before;
    assert!((1..=began.elapsed().as_secs() + 1).contains(&(reads as u64)), "{reads} reads");
    pod.post(HOME, "text/plain", "1").await;
    for events in &mut streams {
        assert_eq!(events.value().await, 6);
    }
}

/// A watched key is read every second.
#[tokio::test]
async fn a_key_that_can_not_be_decoded_is_logged_once_in_a_while() {
    let log = Log::default();
    let writer = log.clone();
    let logs = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    let _logs = tracing::subscriber::set_default(logs);
    let pod = Pod::new();
    pod.post(HOME, "text/plain", "5").await;
    pod.set(Fault::Damaged);
    let mut events = Events::open(&pod, WATCH_HOME, &[]).await;
    assert!(events.soon().await.data["problem"].is_object());
    let before = count_of(&pod.reads);
    while count_of(&pod.reads) < before + 3 {
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(log.lines_with("a key can't be read"), 1);
    pod.set(Fault::None);
    assert_eq!(events.value().await, 5);
}

#[tokio::test]
async fn a_request_that_names_nothing_or_too_much_says_what_to_do() {
    let pod = Pod::new();
    for (query, says) in [
        ("", "Say what to watch"),
        ("?key=counter/site/home&group=counter/site", "Say what to watch"),
        ("?key=counter/site/home&prefix=a", "prefix is for a group"),
        ("?key=counter/site", "KIND/GROUP/NAME"),
        ("?group=counter/site/home", "KIND/GROUP"),
        ("?key=counter/site/home&numbers=string&numbers=string", "twice"),
    ] {
        let detail = pod.get(&format!("/v1/watch{query}")).await.detail(400, "bad-query");
        assert!(detail.contains(says), "{query}: {detail}");
    }
    pod.get("/v1/watch?key=none/site/home").await.problem(404, "unknown-kind");
    let slash = "/v1/watch?key=counter/a%252Fb/x/y";
    assert_eq!(Events::open(&pod, slash, &[]).await.soon().await.data["group"], "a/b");
}

#[tokio::test]
async fn the_hottest_keys_are_those_with_the_most_ops() {
    let pod = Pod::new();
    for (name, amounts) in [("cold", 1), ("hot", 30), ("warm", 5)] {
        let op = json!({"op": "add"});
        let body = json!({"ops": vec![op; amounts]}).to_string();
        pod.post(&format!("/v1/counter/site/{name}"), "application/json", &body).await;
    }
    assert_eq!(pod.get("/v1/hottest").await.json()["keys"], json!([]), "no period has ended");
    pod.mutators.tidy_once();
    let keys = pod.get("/v1/hottest?limit=2").await.json()["keys"].clone();
    let hot = |name: &str, rate: f64| json!({"kind": "counter", "group": "site", "name": name, "ops_per_second": rate});
    assert_eq!(keys, json!([hot("hot", 3.0), hot("warm", 0.5)]));
}

/// A mutator of updates with ids is full after some dozens of them, and then another one follows.
#[tokio::test]
async fn updates_with_ids_make_a_key_hot() {
    let pod = Pod::new();
    let ids = pod.send(request("POST", "/v1/ids?count=200", &[], "")).await.json()["ids"].clone();
    let update = |id: &Value| json!({"kind": "counter", "group": "site", "name": "hot", "op": {"op": "add"}, "id": id});
    let updates: Vec<Value> = ids.as_array().expect("ids").iter().map(update).collect();
    add_all(&pod, None, &updates).await;
    pod.mutators.tidy_once();
    let keys = pod.get("/v1/hottest").await.json()["keys"].clone();
    assert_eq!(keys[0]["ops_per_second"], 20.0, "{keys}");
}

#[tokio::test]
async fn the_hottest_keys_are_of_the_callers_groups_however_cold() {
    let (admin, read) = (grant("quiet", &[Verb::Admin]), grant("quiet", &[Verb::Read]));
    let tokens = [("quiet", admin), ("none", read), ("all", grant("", &Verb::ALL))];
    let guarded = Guarded::new(tokens, "");
    let add = json!({"op": "add"});
    let loud = |at: usize| json!({"kind": "counter", "group": "loud", "name": at.to_string(), "ops": [add, add]});
    let mut updates: Vec<Value> = (0..=limits::PAGE_MAX).map(loud).collect();
    updates.push(json!({"kind": "counter", "group": "quiet", "name": "n", "op": add}));
    add_all(&guarded.pod, Some(&*guarded.tokens["all"]), &updates).await;
    guarded.pod.mutators.tidy_once();
    let hottest = async |token: &str, limit: usize| {
        guarded.ask(token, "GET", &format!("/v1/hottest?limit={limit}"), "").await
    };
    let hot = |group: &str, name: &str, rate: f64| json!({"kind": "counter", "group": group, "name": name, "ops_per_second": rate});
    let of_quiet = hottest("quiet", 10).await.json()["keys"].clone();
    assert_eq!(of_quiet, json!([hot("quiet", "n", 0.1)]));
    let of_all = hottest("all", 2).await.json()["keys"].clone();
    assert_eq!(of_all, json!([hot("loud", "0", 0.2), hot("loud", "1", 0.2)]));
    hottest("none", 10).await.problem(403, "forbidden");
}
