//! Tests against a pod that lies on request: the load test must fail when a server miscounts.
//!
//! The pod speaks just enough HTTP/1.1 for the client of this crate, over a plain socket.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Client;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::args::tests::parse;
use crate::checker::Fault;
use crate::client::PodClient;
use crate::ids::Ids;
use crate::report::Report;
use crate::run::Run;
use crate::session::Session;
use crate::soak::report::SoakReport;
use crate::soak::state::Soak;
use crate::soak::{checks, service};
use crate::workload::Workload;

/// How a stub treats the n-th update. The answer and the count can differ.
type Manners = fn(u64) -> Treatment;

struct Treatment {
    counted: i128,
    status: u16,
    outcome: &'static str,
    /// Whether the id of the update is forgotten, so that another copy counts as well.
    forgets: bool,
    /// What happens to the next reset.
    reset: Fate,
}

/// How a stub treats a reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fate {
    /// The key begins again, and the answer says what it had.
    #[default]
    Honest,
    /// The key begins again, and the answer says too little.
    Short,
    /// The answer says what the key had, and the key keeps it.
    Kept,
    /// The ids of the key's updates are forgotten.
    Forgetful,
}

const fn treatment(counted: i128, status: u16, outcome: &'static str) -> Treatment {
    Treatment { counted, status, outcome, forgets: false, reset: Fate::Honest }
}

const HONEST: Treatment = treatment(1, 200, "acked");

/// Acknowledges most updates and refuses some. Some get an unknown outcome, and half of these count.
fn honest(number: u64) -> Treatment {
    match number % 1_000 {
        1 => treatment(0, 503, "refused"),
        2 => treatment(0, 504, "unknown"),
        3 => treatment(1, 504, "unknown"),
        _ => HONEST,
    }
}

struct Stub {
    manners: Manners,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of updates so far.
    updates: u64,
    values: BTreeMap<String, i128>,
    /// The ids that were counted, each with its path.
    ids: BTreeSet<(String, String)>,
    /// The answers to resets that were done, by their ids.
    resets: BTreeMap<String, Value>,
    fate: Fate,
}

/// The weight of an update of any kind.
fn weight(op: &Value) -> i128 {
    let weight = op["by"].as_i64().or(op["count"].as_i64()).or(op["item"].as_i64());
    i128::from(weight.expect("a weight"))
}

/// A value of the kind in a path.
fn shown(path: &str, total: i128) -> Value {
    let digits = total.to_string();
    match path.split('/').nth(2).expect("a kind") {
        "stats" | "histogram" => json!({"count": digits}),
        "topk" => json!({"total": digits}),
        "gset" | "lww_set" => json!({"items": [digits]}),
        "or_set" => json!({"items": [{"item": digits}]}),
        _ => json!(digits),
    }
}

impl Stub {
    fn update(&self, path: &str, body: &Value, id: Option<&str>) -> (u16, Value) {
        let mut state = self.state.lock().expect("the state of the stub");
        state.updates += 1;
        let treatment = (self.manners)(state.updates);
        state.fate = treatment.reset;
        let is_new = match id {
            Some(id) if treatment.counted > 0 && !treatment.forgets => {
                state.ids.insert((path.to_owned(), id.to_owned()))
            }
            _ => true,
        };
        if is_new {
            let value = state.values.entry(path.to_owned()).or_default();
            *value += treatment.counted * weight(body);
        }
        let problem = (treatment.status == 422).then_some("/problems/id-expired");
        (treatment.status, json!({"outcome": treatment.outcome, "type": problem}))
    }

    /// The first request for a reset is told that it runs, and the next one what it cleared.
    fn reset(&self, path: &str, id: &str) -> (u16, Value) {
        let mut state = self.state.lock().expect("the state of the stub");
        if let Some(answer) = state.resets.get(id) {
            return (200, answer.clone());
        }
        let fate = state.fate;
        let total = match fate {
            Fate::Kept => state.values.get(path).copied(),
            _ => state.values.remove(path),
        };
        let Some(total) = total else {
            return (404, json!({"type": "/problems/key-absent", "outcome": "refused"}));
        };
        if fate == Fate::Forgetful {
            state.ids.retain(|(of, _)| of != path);
        }
        let told = total - i128::from(fate == Fate::Short);
        let answer = json!({"outcome": "acked", "cleared": {"value": shown(path, told)}});
        state.resets.insert(id.to_owned(), answer);
        (202, json!({"outcome": "accepted"}))
    }

    fn answer(&self, method: &str, path: &str, body: &str, id: Option<&str>) -> (u16, Value) {
        let path = path.split('?').next().expect("a path");
        let parsed = || serde_json::from_str::<Value>(body).expect("a JSON body");
        match (method, path) {
            ("GET", "/readyz") => (200, json!({})),
            ("GET", _) => {
                match self.state.lock().expect("the state of the stub").values.get(path) {
                    Some(value) => (200, json!({"value": shown(path, *value)})),
                    None => (404, json!({"title": "absent"})),
                }
            }
            ("POST", "/v1/batch") => {
                let updates = parsed()["updates"].as_array().expect("updates").clone();
                let results = updates.iter().map(|update| {
                    let part = |name: &str| update[name].as_str().expect("a name").to_owned();
                    let path = format!("/v1/{}/{}/{}", part("kind"), part("group"), part("name"));
                    self.update(&path, &update["op"], update["id"].as_str()).1
                });
                (200, json!({"results": results.collect::<Vec<_>>()}))
            }
            ("DELETE", _) => self.reset(path, id.expect("an id")),
            ("POST", _) if path.ends_with("/reset") => {
                self.reset(path.trim_end_matches("/reset"), id.expect("an id"))
            }
            ("POST", _) if path.ends_with("/fold") => (200, json!({"kept": 0})),
            ("POST", _) => self.update(path, &parsed(), id),
            _ => (405, json!({"outcome": "refused"})),
        }
    }

    /// Serves one connection until the client closes it.
    async fn serve(self: Arc<Self>, socket: TcpStream) -> std::io::Result<()> {
        let mut socket = BufReader::new(socket);
        loop {
            let mut head = Vec::new();
            let mut length = 0;
            loop {
                let mut line = String::new();
                if socket.read_line(&mut line).await? == 0 {
                    return Ok(());
                }
                let line = line.trim_end().to_ascii_lowercase();
                if line.is_empty() {
                    break;
                }
                if let Some(value) = line.strip_prefix("content-length:") {
                    length = value.trim().parse().expect("a length");
                }
                head.push(line);
            }
            let mut body = vec![0; length];
            socket.read_exact(&mut body).await?;
            let mut words = head[0].split(' ');
            let method = words.next().expect("a method").to_ascii_uppercase();
            let path = words.next().expect("a path");
            let body = String::from_utf8(body).expect("text");
            let id = head.iter().find_map(|line| line.strip_prefix("idempotency-key: "));
            let has_window = head.iter().any(|line| line.starts_with("idempotency-window: "));
            let (status, answer) = match has_window && id.is_none() && path != "/v1/batch" {
                true => (422, json!({"outcome": "refused"})),
                false => self.answer(&method, path, &body, id),
            };
            let answer = answer.to_string();
            let length = answer.len();
            let text = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n{answer}");
            socket.write_all(text.as_bytes()).await?;
        }
    }
}

/// Serves a stub until `what` is done with its address.
async fn beside<T>(manners: Manners, what: impl AsyncFnOnce(String) -> T) -> T {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let stub = Arc::new(Stub { manners, state: Mutex::default() });
    let mut connections = JoinSet::new();
    let serve = async {
        loop {
            let (socket, _) = listener.accept().await.expect("a connection");
            connections.spawn(Arc::clone(&stub).serve(socket));
        }
    };
    tokio::select! {
        biased;
        result = what(format!("http://{address}")) => result,
        never = serve => never,
    }
}

/// Runs the load test against a stub and returns its report.
async fn report(manners: Manners, flags: &str) -> Report {
    beside(manners, async |url| {
        let line = format!("--url {url} --keys 200 --connections 8 {flags}");
        let args = parse(&line).expect("arguments");
        args.check(&|_| Ok(Client::builder())).expect("sensible arguments");
        let session = Session::new(args, &|_| Ok(Client::builder()));
        session.run().await.expect("a report")
    })
    .await
}

/// Sends a thousand audited updates to a stub and returns the failures of the soak.
async fn soaked(manners: Manners) -> Vec<String> {
    beside(manners, async |url| {
        let args = parse("--pods 1").expect("arguments");
        let pod = PodClient::new(&url, &|_| Ok(Client::builder()), Duration::from_secs(5));
        let pod = pod.expect("a client");
        let workload = Workload::new(&args.mix(), "g", 1);
        let bases = vec![0; workload.keys().len()];
        let soak = Some(Soak::new("g", 1, 1));
        let stop = CancellationToken::new();
        let (ids, level) = (Ids::new(Vec::new()), "quorum".to_owned());
        let run = Run::new(workload, vec![pod], level, &bases, ids, soak, stop);
        let soak = run.soak.as_ref().expect("a soak");
        for _ in 0..1_000 {
            service::try_audited(soak, &run.pods[0]).await;
        }
        checks::check_audited_keys(&run, soak, "quorum", true).await;
        SoakReport::new(&args.soak, &args.workload, (Vec::new(), Vec::new()), soak).failures()
    })
    .await
}

#[tokio::test]
async fn an_honest_pod_passes() {
    let flags =
        "--duration 1s --read-every 10ms --fold-check --settle 10ms --settled-consistency one";
    let report = report(honest, flags).await;
    assert_eq!(report.failures(), Vec::<String>::new());
    assert_eq!(report.passes.len(), 4);
    assert_eq!(report.passes[3].name, "folded; at one");
    assert_eq!(report.passes[0].keys(), 201);
    assert_eq!(report.folds.iter().map(|folds| folds.done).sum::<usize>(), 402);
    assert!(report.reads > 0 && report.acked > 100);
    assert!(report.refused > 0 && report.unknown > 0);
}

#[tokio::test]
async fn an_honest_pod_passes_in_batches_and_on_schedule() {
    let begun = Instant::now();
    let report = report(honest, "--duration 1s --rate 2000 --batch 20 --workload zipf").await;
    assert_eq!(report.failures(), Vec::<String>::new());
    // A machine that stalls sends late, and the report counts what was never sent. Nothing is early.
    let due = report.attempted + 20 * u64::try_from(report.overdue).expect("a count");
    let most = 2_000.0 * begun.elapsed().as_secs_f64() + 20.0;
    assert!(due >= 1_000 && due as f64 <= most, "{due} updates were due, at most {most}");
}

#[tokio::test]
async fn every_lie_turns_the_run_red() {
    let lies: [(&str, Manners); 5] = [
        ("lost", |n| if n == 500 { treatment(0, 200, "acked") } else { honest(n) }),
        ("doubled", |n| if n == 500 { treatment(2, 200, "acked") } else { honest(n) }),
        ("refused, counted", |n| if n == 500 { treatment(1, 503, "refused") } else { honest(n) }),
        ("unknown, doubled", |n| if n == 500 { treatment(2, 504, "unknown") } else { honest(n) }),
        ("refused, undone", |n| if n == 500 { treatment(-1, 503, "refused") } else { honest(n) }),
    ];
    for (lie, manners) in lies {
        let report = report(manners, "--duration 1s --workload uniform").await;
        assert_eq!(report.passes[0].wrong, 1, "{lie}: {report}");
        assert!(!report.failures().is_empty(), "{lie}");
    }
}

#[tokio::test]
async fn updates_with_ids_are_repeated_until_none_is_unknown() {
    for batch in ["1", "20"] {
        let flags = format!("--duration 2s --ids minute,short --batch {batch} --read-every 10ms");
        let report = report(honest, &flags).await;
        assert_eq!(report.failures(), Vec::<String>::new());
        assert_eq!((report.unknown, report.refused), (0, 0), "{report}");
        let ids = report.ids.expect("ids");
        assert_eq!(ids.ids, report.acked);
        assert!(ids.repeats > 0 && ids.repeats_after_ack > ids.ids / 20, "{ids:?}");
        assert_eq!(ids.sent, ids.ids + ids.repeats + ids.repeats_after_ack);
    }
}

#[tokio::test]
async fn a_pod_that_counts_copies_turns_the_run_red() {
    let copies: Manners = |n| Treatment { forgets: n % 100 == 7, ..honest(n) };
    let report = report(copies, "--duration 2s --ids minute").await;
    assert!(report.passes[0].wrong > 0, "{report}");
    assert_eq!(report.passes[0].findings[0].fault, Some(Fault::Excess));
}

#[tokio::test]
async fn updates_that_come_after_their_window_turn_the_run_red() {
    let late: Manners =
        |n| if (500..600).contains(&n) { treatment(0, 422, "unknown") } else { honest(n) };
    let report = report(late, "--duration 1s --ids minute").await;
    let (failures, ids) = (report.failures(), report.ids.as_ref().expect("ids"));
    assert!(!failures.is_empty() && failures.iter().all(|one| one.contains("with an id")));
    assert!(ids.expired > 0 && ids.expired == ids.unknown + ids.refused, "{ids:?}");
    assert_eq!(report.passes[0].wrong, 0, "{report}");
}

#[tokio::test]
async fn keys_of_all_kinds_are_reset_and_their_parts_are_the_sum() {
    for batch in ["1", "10"] {
        let flags = "--duration 2s --ids none,minute --reset-every 10ms --read-every 10ms --rate 2000 --batch";
        let report = report(honest, &format!("{flags} {batch}")).await;
        assert_eq!(report.failures(), Vec::<String>::new());
        let (resets, ids) =
            (report.resets.as_ref().expect("resets"), report.ids.as_ref().expect("ids"));
        assert!(resets.done > 50 && resets.deletions > 10, "{report}");
        assert!(resets.requests > resets.done, "{report}");
        assert!(resets.keys > 40 && resets.keys_in_doubt == 0, "{report}");
        assert!(ids.repeats_after_reset > 10 && report.acked > 1_000, "{report}");
        assert_eq!((report.passes[0].right, report.passes[0].wrong), (201, 0), "{report}");
    }
}

/// The readers of a load would find most of these lies as well, and end it.
#[tokio::test]
async fn resets_that_lie_turn_the_run_red() {
    let short: Manners = |n| Treatment { reset: Fate::Short, ..honest(n) };
    let kept: Manners = |n| Treatment { reset: Fate::Kept, ..honest(n) };
    let forgetful: Manners = |n| Treatment { reset: Fate::Forgetful, ..honest(n) };
    for (lie, manners) in [("short", short), ("kept", kept), ("forgetful", forgetful)] {
        let flags = "--duration 2s --ids none,minute --reset-every 10ms --rate 2000 --batch 10";
        let report = report(manners, flags).await;
        let wrong = report.passes[0].wrong;
        assert!(wrong > 0 || !report.sightings.is_empty(), "{lie}: {report}");
        assert!(!report.failures().is_empty(), "{lie}");
    }
}

#[tokio::test]
async fn readers_stop_the_load_at_the_first_wrong_value() {
    // Losses add up until the updates in flight no longer hide them.
    let lossy: Manners = |n| if n % 10 == 0 { treatment(0, 200, "acked") } else { HONEST };
    let report = report(lossy, "--workload hot --duration 30s --read-every 10ms").await;
    assert!(!report.sightings.is_empty());
    assert!(report.seconds < 10.0, "stopped after {} s", report.seconds);
}

#[tokio::test]
async fn a_soak_tells_lost_doubled_and_phantom_updates_apart() {
    let cases: [(Manners, &[&str]); 5] = [
        (honest, &[]),
        (
            |n| if n == 500 { treatment(0, 200, "acked") } else { honest(n) },
            &["1 updates were acknowledged and lost"],
        ),
        (
            |n| if n == 500 { treatment(2, 504, "unknown") } else { honest(n) },
            &["1 updates were counted twice"],
        ),
        (
            |n| if n == 500 { treatment(1, 503, "refused") } else { honest(n) },
            &["1 updates were refused or never sent, and counted"],
        ),
        (
            |n| match n {
                500 => treatment(0, 200, "acked"),
                600 | 700 => treatment(2, 200, "acked"),
                _ => honest(n),
            },
            &["1 updates were acknowledged and lost", "2 updates were counted twice"],
        ),
    ];
    for (manners, failures) in cases {
        assert_eq!(soaked(manners).await, failures);
    }
}
