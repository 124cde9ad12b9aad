//! `add` and `take` send an update until it is acknowledged, and it counts once. `reset` and `delete` send theirs until
//! it has ended.

use std::process::Stdio;
use std::time::{Duration, Instant};

use orderfree::runtime::clock::{Clock, SystemClock};
use orderfree::runtime::random::update_id;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::pod::{Pod, Setup};
use crate::relay::{Relay, Request, answered};

const ENDS_WITHIN: Duration = Duration::from_secs(60);

async fn add(url: &str, arguments: &[&str], input: &str) -> (Option<i32>, String, String) {
    run(url, &[&["add"], arguments].concat(), input).await
}

async fn take(url: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    run(url, &[&["take"], arguments].concat(), "").await
}

/// Runs a command against this address. Returns its exit code and both outputs.
async fn run(url: &str, arguments: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut child = started(url, arguments);
    let mut stdin = child.stdin.take().expect("a pipe");
    // A command that refuses its arguments reads nothing.
    let _ = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    end_of(child, arguments).await
}

fn started(url: &str, arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_orderfree"))
        .args(arguments)
        .env_clear()
        .env("ORDERFREE_URL", url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the program runs")
}

async fn end_of(child: Child, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = timeout(ENDS_WITHIN, child.wait_with_output()).await;
    let output = output.unwrap_or_else(|_| panic!("{arguments:?} does not end")).expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn url(pod: &Pod) -> String {
    format!("http://127.0.0.1:{}", pod.port())
}

fn unknown() -> Vec<u8> {
    let body = br#"{"type":"/problems/outcome-unknown","detail":"It may be counted.","outcome":"unknown"}"#;
    answered(504, "", body)
}

/// A relay to the pod in which the first five tries of an update fail, each in another way.
async fn troubled(pod: &Pod) -> Relay {
    let port = pod.port();
    Relay::start(move |number, request| async move {
        match number {
            // It is counted, and its client does not learn that.
            0 => unanswered(request, port).await,
            1 => None,
            2 => Some(answered(503, "retry-after: 1\r\n", b"<h1>a proxy's page</h1>")),
            3 => {
                request.to(port).await;
                Some(unknown())
            }
            4 => Some(answered(502, "", b"")),
            _ => request.to(port).await,
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_is_sent_until_it_is_acked_and_counts_once() {
    let pod = Setup::new().start().await;
    let lines = "1\n".repeat(2_500);
    for (key, arguments, input, counted) in [
        ("counter/g/one", &["5"][..], "", 5),
        ("counter/g/lines", &["-"], &*lines, 2_500),
        ("counter/g/given", &["5", "--id", "order \"1\"", "--time", "NOW"], "", 5),
    ] {
        let relay = troubled(&pod).await;
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs();
        let now = now.to_string();
        let arguments = arguments.iter().map(|word| if *word == "NOW" { &*now } else { word });
        let arguments: Vec<&str> = [key].into_iter().chain(arguments).collect();
        let (code, out, err) = add(&relay.url(), &arguments, input).await;
        assert_eq!((code, &*out), (Some(0), "acked\n"), "{key}: {err}");
        assert!(err.contains("trying again with the same id"), "{key}: {err}");
        assert_eq!(pod.count(&format!("/v1/{key}")).await, counted, "{key}");
        let ids: Vec<_> = relay.seen().iter().map(|request| request.id().expect("an id")).collect();
        assert!(ids.len() >= 6 && ids[..6].iter().all(|id| *id == ids[0]), "{key}: {ids:?}");
        if key.ends_with("given") {
            assert_eq!(ids[0], r#""order \"1\"""#);
        }
    }
}

/// Twice counts as once for them. Pods refuse their ids for a minute after a reset.
#[tokio::test(flavor = "multi_thread")]
async fn kinds_for_which_twice_counts_as_once_get_no_id() {
    let pod = Setup::new().start().await;
    let port = pod.port();
    for kind in ["extrema", "distinct", "audience", "gset"] {
        let relay = Relay::start(move |number, request| async move {
            let answer = request.to(port).await;
            if number == 0 { Some(unknown()) } else { answer }
        });
        let (key, relay) = (format!("{kind}/g/n"), relay.await);
        let (code, out, err) = add(&relay.url(), &[&key, "5"], "").await;
        assert_eq!((code, &*out), (Some(0), "acked\n"), "{kind}: {err}");
        assert!(err.contains("trying again for up to 60 s"), "{kind}: {err}");
        assert_eq!(relay.lines(), [format!("POST /v1/{key}"), format!("POST /v1/{key}")]);
        assert!(relay.seen().iter().all(|request| request.id().is_none()), "{kind}");
        let (_, had, _) = run(&url(&pod), &["get", &key], "").await;
        assert_eq!(run(&url(&pod), &["reset", &key], "").await.0, Some(0), "{kind}");
        let id = update_id(SystemClock.now().wall).to_string();
        let (code, _, err) = add(&url(&pod), &[&key, "5", "--id", &id], "").await;
        let says = "with a new id at least a minute after the reset, or now without an id";
        assert!(code == Some(4) && err.contains(says), "{kind}: {err}");
        let (code, out, err) = add(&url(&pod), &[&key, "5"], "").await;
        assert_eq!((code, &*out), (Some(0), "acked\n"), "{kind}: {err}");
        assert_eq!(run(&url(&pod), &["get", &key], "").await.1, had, "{kind}");
    }
    let relay = Relay::start(|_, _| async { Some(unknown()) }).await;
    let (code, _, err) = add(&relay.url(), &["gset/g/n", "5", "--no-retry"], "").await;
    assert!(code == Some(4) && err.contains("twice counts as once"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_outcome_is_shown_on_request() {
    let pod = Setup::new().start().await;
    let relay = troubled(&pod).await;
    let (code, out, err) = add(&relay.url(), &["counter/g/n", "5", "--no-retry"], "").await;
    assert_eq!((code, &*out, relay.seen().len()), (Some(4), "", 1), "{err}");
    assert!(err.contains("may or may not be counted"), "{err}");
    let (_, id) = err.split_once("add --id '").expect("how to send it again");
    let (id, _) = id.split_once('\'').expect("an end");
    let (code, out, err) = add(&url(&pod), &["counter/g/n", "5", "--id", id], "").await;
    assert_eq!((code, &*out), (Some(0), "acked\n"), "{err}");
    assert_eq!(pod.count("/v1/counter/g/n").await, 5);
}

/// The first try may be counted, so a refusal of the second one does not make the update refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_after_an_unknown_outcome_is_unknown() {
    let refused = br#"{"type":"/problems/unauthenticated","detail":"No.","outcome":"refused"}"#;
    let relay = Relay::start(move |number, _| async move {
        Some(match number % 2 {
            0 => unknown(),
            _ => answered(401, "", refused),
        })
    });
    let relay = relay.await;
    let (code, _, err) = add(&relay.url(), &["counter/g/n"], "").await;
    assert!(code == Some(4) && err.contains("It may be counted."), "{code:?} {err}");
    assert_eq!(relay.seen().len(), 2);
    let (code, out, err) = add(&relay.url(), &["counter/g/n", "-", "-o", "json"], "1\n2\n").await;
    let answer: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, &answer["unknown"]), (Some(4), &Value::from(2)), "{answer} {err}");
}

/// A machine with a wrong clock can count, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_clock_gets_ids_from_the_server() {
    for shift in [-600, 3_600] {
        let setup = Setup::new().with_shifted_clock();
        setup.shift_clock(shift);
        let pod = setup.start().await;
        let port = pod.port();
        let relay = Relay::start(move |_, request| async move { request.to(port).await }).await;
        let (code, out, err) = add(&relay.url(), &["counter/g/n", "5"], "").await;
        assert_eq!((code, &*out), (Some(0), "acked\n"), "{shift}: {err}");
        let path = "POST /v1/counter/g/n";
        assert_eq!(relay.lines(), [path, "POST /v1/ids", path], "{shift}");
        assert_eq!(pod.count("/v1/counter/g/n").await, 5);
        let (code, _, err) = add(&url(&pod), &["counter/g/n", "--no-retry"], "").await;
        let outcome = if shift < 0 { 1 } else { 4 };
        assert_eq!(code, Some(outcome), "{err}");
    }
}

/// Their order is that of their times, so these are a server's.
#[tokio::test(flavor = "multi_thread")]
async fn kinds_whose_order_counts_get_ids_from_the_server() {
    let pod = Setup::new().start().await;
    let port = pod.port();
    for kind in ["register", "lww_set", "or_set"] {
        // Without its first answer, the id was not given.
        let relay = Relay::start(move |number, request| async move {
            let answer = request.to(port).await;
            answer.filter(|_| !matches!(number, 0 | 2))
        });
        let relay = relay.await;
        let (key, path) = (format!("{kind}/g/n"), format!("POST /v1/{kind}/g/n"));
        let (code, out, err) = add(&relay.url(), &[&key, "x"], "").await;
        assert_eq!((code, &*out), (Some(0), "acked\n"), "{kind}: {err}");
        assert_eq!(relay.lines(), ["POST /v1/ids", "POST /v1/ids", &path, &path]);
        assert_eq!(relay.seen()[2].id(), relay.seen()[3].id());
    }
}

/// A proxy that repeats every update, as some do.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_repeats_updates_changes_nothing() {
    let pod = Setup::new().start().await;
    let port = pod.port();
    let proxy = Relay::start(move |number, request| async move {
        for _ in 0..number % 3 {
            request.to(port).await;
        }
        request.to(port).await
    });
    let proxy = proxy.await;
    for (key, what, input) in [("sum/g/n", "0.5", ""), ("counter/g/n", "-", "2\n3\n")] {
        for _ in 0..6 {
            let (code, _, err) = add(&proxy.url(), &[key, what], input).await;
            assert_eq!(code, Some(0), "{err}");
        }
    }
    assert_eq!(pod.get("/v1/sum/g/n").await.json()["value"], "3.0");
    assert_eq!(pod.count("/v1/counter/g/n").await, 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_id_is_told_and_nothing_is_sent() {
    let relay = Relay::start(|_, _| async { None }).await;
    let long = "x".repeat(256);
    let uuid = "019ac3ee-6e80-7abc-8def-0123456789ab";
    for (arguments, says) in [
        (&["--id", ""][..], "the id is empty"),
        (&["--id", &long], "the id has 256 bytes"),
        (&["--id", "a\nb"], "control character"),
        (&["--id", "order-1"], "no time inside it; set --time"),
        (&["--id", "919108f7-52d1-4320-9bac-f847db4148a8"], "no time inside it"),
        (&["--id", "order-1", "--time", "yesterday"], "Unix time of 10, 13 or 16 digits"),
        (&["--id", "order-1", "--time", "12345"], "Unix time of 10, 13 or 16 digits"),
        (&["--id", "order-1", "--time", ""], "Unix time"),
        (&["--time", "1795752000"], "--id"),
        (&["--id", uuid, "-"], "each batch of lines has an id of its own"),
    ] {
        let arguments = [&["counter/g/n"], arguments].concat();
        let (code, out, err) = add(&relay.url(), &arguments, "1\n").await;
        assert_eq!((code, &*out), (Some(2), ""), "{arguments:?}: {err}");
        assert!(err.contains(says), "{arguments:?}: {err}");
    }
    assert!(relay.seen().is_empty());
}

/// The value after `--resume` in the words of a run, as arguments.
fn resumption(err: &str) -> [&str; 3] {
    let (_, rest) = err.split_once("--resume ").expect("how to go on");
    let mut words = rest.split_whitespace();
    let mut word = || words.next().expect("an id and an amount");
    ["--resume", word(), word()]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_total_is_taken_once_and_later_updates_stay() {
    let pod = Setup::new().start().await;
    let port = pod.port();
    let large = i64::MAX.to_string();
    for (key, added, total) in [
        ("counter/g/bill", &["5", "7"][..], "12"),
        ("counter/g/credit", &["-5"], "-5"),
        ("counter/g/large", &[&large, &large], "18446744073709551614"),
        ("sum/g/bill", &["12.30", "-0.01"], "12.29"),
    ] {
        for amount in added {
            assert_eq!(add(&url(&pod), &[key, amount], "").await.0, Some(0), "{key}");
        }
        // Another client counts between the read and the subtraction, whose first tries get no answer or a bad one.
        let relay = Relay::start(move |number, request| async move {
            match number {
                0 | 1 => request.to(port).await,
                2 => {
                    let other = format!("http://127.0.0.1:{port}");
                    assert_eq!(add(&other, &[key, "3"], "").await.0, Some(0));
                    request.to(port).await;
                    None
                }
                3 => Some(answered(502, "", b"")),
                _ => request.to(port).await,
            }
        });
        let relay = relay.await;
        let (code, out, err) = take(&relay.url(), &[key]).await;
        assert_eq!((code, out.trim()), (Some(0), total), "{key}: {err}");
        let (_, left, _) = run(&url(&pod), &["get", key], "").await;
        assert!(["3", "3.00"].contains(&left.trim()), "{key}: {left}");
        let tried =
            [&["POST /v1/ids".to_owned()], &vec![format!("POST /v1/{key}"); 3][..]].concat();
        assert_eq!(relay.lines()[1..], tried, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_take_goes_on_after_a_crash() {
    let pod = Setup::new().start().await;
    let (port, key) = (pod.port(), "counter/g/bill");
    add(&url(&pod), &[key, "12"], "").await;
    // The update is counted, and then refused for good: a client that ends here does not know what happened.
    let refused = br#"{"type":"/problems/unauthenticated","detail":"No.","outcome":"refused"}"#;
    let relay = Relay::start(move |number, request| async move {
        match number {
            0 | 1 => request.to(port).await,
            2 => unanswered(request, port).await,
            _ => Some(answered(401, "", refused)),
        }
    });
    let relay = relay.await;
    let (code, out, err) = take(&relay.url(), &[key, "-o", "json"]).await;
    let answer: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, &answer["outcome"]), (Some(4), &Value::from("unknown")), "{answer} {err}");
    add(&url(&pod), &[key, "3"], "").await;
    let command = format!(" take {key} -o json --url {} --resume ", relay.url());
    assert_eq!(err.matches(&command).count(), 2, "before the first try and at the end: {err}");
    let resumed = resumption(&err);
    assert_eq!([&answer["id"], &answer["amount"]], [resumed[1], resumed[2]]);
    for _ in 0..2 {
        let arguments = [&[key][..], &resumed].concat();
        let (code, out, err) = take(&url(&pod), &arguments).await;
        assert_eq!((code, &*out), (Some(0), "12\n"), "{err}");
        assert_eq!(pod.count("/v1/counter/g/bill").await, 3);
    }
    let (code, out, err) = take(&url(&pod), &[key, "--resume", resumed[1], "13"]).await;
    let says = "orderfree: this id was used with another amount; use the amount that was printed\n";
    assert_eq!((code, &*out, &*err), (Some(1), "", says));
    assert_eq!(pod.count("/v1/counter/g/bill").await, 3);
}

/// The update is counted, and its client is killed before it learns that.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_says_how_to_go_on_before_it_subtracts() {
    let pod = Setup::new().start().await;
    let (port, key) = (pod.port(), "counter/g/bill");
    add(&url(&pod), &[key, "12"], "").await;
    let relay = Relay::start(move |number, request| async move {
        let answer = request.to(port).await;
        if number < 2 { answer } else { std::future::pending().await }
    });
    let relay = relay.await;
    let arguments = ["take", key];
    let mut child = started(&relay.url(), &arguments);
    let subtracted = async {
        while pod.count("/v1/counter/g/bill").await != 0 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(ENDS_WITHIN, subtracted).await.expect("the total is subtracted");
    child.start_kill().expect("it runs");
    let (code, out, err) = end_of(child, &arguments).await;
    assert_eq!((code, &*out), (None, ""), "{err}");
    add(&url(&pod), &[key, "3"], "").await;
    let (code, out, err) = take(&url(&pod), &[&[key][..], &resumption(&err)].concat()).await;
    assert_eq!((code, &*out, pod.count("/v1/counter/g/bill").await), (Some(0), "12\n", 3), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_taken_is_told_and_nothing_changes() {
    let pod = Setup::new().start().await;
    for (key, what) in [("gset/g/n", "x"), ("counter/g/zero", "0"), ("counter/g/n", "5")] {
        assert_eq!(add(&url(&pod), &[key, what], "").await.0, Some(0));
    }
    let uuid = "019ac3ee-6e80-7abc-8def-0123456789ab";
    for (arguments, code, says) in [
        (&["gset/g/n"][..], 2, "needs a counter or a sum"),
        (&["counter/g/absent"], 3, "counter/g/absent does not exist; nothing was taken\n"),
        (&["counter/g/n", "--resume", uuid], 2, "2 values"),
        (&["counter/g/n", "--resume", "order-1", "5"], 2, "not an id that `take` printed"),
        (&["counter/g/n", "--resume", uuid, "5.5"], 2, "not an amount of a counter"),
        (&["counter/g/n", "--resume", uuid, "0"], 2, "the amount can't be 0"),
        (&["sum/g/n", "--resume", uuid, "0.00"], 2, "the amount can't be 0"),
        // Its window is over.
        (&["counter/g/n", "--resume", uuid, "5"], 4, "This id could be sent until"),
    ] {
        let (ended, out, err) = take(&url(&pod), arguments).await;
        assert_eq!((ended, &*out), (Some(code), ""), "{arguments:?}: {err}");
        assert!(err.contains(says), "{arguments:?}: {err}");
    }
    let (code, out, err) = take(&url(&pod), &["counter/g/zero"]).await;
    assert_eq!((code, &*out, &*err), (Some(0), "0\n", ""));
    assert_eq!(pod.count("/v1/counter/g/n").await, 5);
}

fn problem(status: u16, slug: &str, headers: &str) -> Vec<u8> {
    let body =
        format!(r#"{{"type":"/problems/{slug}","detail":"It is {slug}.","outcome":"refused"}}"#);
    answered(status, headers, body.as_bytes())
}

fn running() -> Vec<u8> {
    let body = br#"{"outcome":"accepted","kind":"counter","group":"g","name":"n","id":"1-1","deleted":false}"#;
    answered(202, "location: /v1/counter/g/n/resets/1-1\r\n", body)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_is_sent_until_it_has_ended_and_is_one_reset() {
    let pod = Setup::new().start().await;
    let port = pod.port();
    for (command, line) in
        [("reset", "POST /v1/counter/g/n/reset"), ("delete", "DELETE /v1/counter/g/n")]
    {
        assert_eq!(add(&url(&pod), &["counter/g/n", "5"], "").await.0, Some(0));
        let relay = Relay::start(move |number, request| async move {
            match number {
                // It is made, and its client does not learn that.
                0 => unanswered(request, port).await,
                1 | 5 => Some(running()),
                2 => Some(problem(503, "store-unavailable", "retry-after: 3\r\n")),
                3 => Some(problem(409, "reset-overtaken", "")),
                4 => Some(answered(502, "", b"<h1>a proxy's page</h1>")),
                _ => {
                    // What comes meanwhile stays.
                    let other = format!("http://127.0.0.1:{port}");
                    assert_eq!(add(&other, &["counter/g/n", "3"], "").await.0, Some(0));
                    request.to(port).await
                }
            }
        });
        let (relay, begun) = (relay.await, Instant::now());
        let (code, out, err) = run(&relay.url(), &[command, "counter/g/n"], "").await;
        assert_eq!((code, &*out), (Some(0), "5\n"), "{command}: {err}");
        // The pauses: three of a second each, and the one of Retry-After.
        let took = begun.elapsed();
        assert!(took >= Duration::from_secs(6), "{took:?}");
        assert_eq!(relay.lines(), [line; 7]);
        // The log keeps no large value, so the request waits for the end itself.
        let waits = |request: &Request| request.header("prefer").as_deref() == Some("wait=60");
        assert!(relay.seen().iter().all(waits), "{:?}", relay.seen());
        let ids: Vec<_> = relay.seen().iter().map(|request| request.id().expect("an id")).collect();
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        let id = ids[0].trim_matches('"');
        let resumption = format!(" {command} counter/g/n --url {} --id {id}\n", relay.url());
        for says in ["It is store-unavailable.", "It is reset-overtaken.", "as proxies send it"] {
            assert!(err.contains(says), "{says}: {err}");
        }
        // Twice after a 202, and on a busy machine after each five seconds of waiting.
        let most = 2 + took.as_secs() / 5;
        let said = err.matches("still running after ").count();
        assert!((2..=usize::try_from(most).expect("few")).contains(&said), "{err}");
        assert_eq!(err.matches(&resumption).count(), 1, "{err}");
        assert_eq!(pod.count("/v1/counter/g/n").await, 3, "{command}");
        // The command can be run again, as it said.
        let (code, out, err) = run(&url(&pod), &[command, "counter/g/n", "--id", id], "").await;
        assert_eq!((code, &*out), (Some(0), "5\n"), "{command}: {err}");
        assert_eq!(run(&url(&pod), &["reset", "counter/g/n"], "").await.1, "3\n");
    }
}

/// A request can wait for a minute, longer than other commands wait for theirs.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_that_takes_long_says_that_it_runs() {
    let pod = Setup::new().start().await;
    let port = pod.port();
    for name in ["a", "b"] {
        assert_eq!(add(&url(&pod), &[&format!("counter/g/{name}"), "5"], "").await.0, Some(0));
    }
    let relay = Relay::start(move |_, request| async move {
        sleep(Duration::from_secs(32)).await;
        request.to(port).await
    });
    let relay = relay.await;
    let (url, reset) = (relay.url(), ["reset", "counter/g/a"]);
    let delete = ["delete", "counter/g", "--prefix", "b"];
    let (one, many) = tokio::join!(run(&url, &reset, ""), run(&url, &delete, ""));
    for ((code, out, err), printed, lines) in [(one, "5\n", 7), (many, "1\n", 6)] {
        assert_eq!((code, &*out), (Some(0), printed), "{err}");
        assert_eq!(err.lines().count(), lines, "{err}");
        assert!(err.starts_with("orderfree: still running after 5 s\n"), "{err}");
    }
    assert_eq!(relay.seen().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_of_many_keys_is_sent_until_it_has_ended() {
    let pod = Setup::new().start().await;
    let port = pod.port();
    for name in ["a", "b", "c"] {
        assert_eq!(add(&url(&pod), &[&format!("counter/g/{name}")], "").await.0, Some(0));
    }
    let some = br#"{"kind":"counter","group":"g","deleted":1000,"failed":[],"more":true}"#;
    let relay = Relay::start(move |number, request| async move {
        match number {
            0 => None,
            1 => Some(problem(429, "resets-too-fast", "retry-after: 1\r\n")),
            2 => Some(answered(200, "", some)),
            3 => Some(problem(503, "overloaded", "")),
            _ => request.to(port).await,
        }
    });
    let relay = relay.await;
    let (code, out, err) = run(&relay.url(), &["delete", "counter/g", "--all"], "").await;
    assert_eq!((code, &*out), (Some(0), "1003\n"), "{err}");
    assert!(err.contains("deleted 1000 keys so far"), "{err}");
    assert_eq!(relay.lines(), ["DELETE /v1/counter/g?all=true"; 5]);
    assert!(relay.seen().iter().all(|request| request.id().is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_that_can_not_pass_soon_is_sent_once() {
    for (status, slug, code) in [
        (503, "reset-paused", 1),
        (429, "too-many-resets", 1),
        (429, "too-many-ids", 1),
        (409, "not-resettable", 1),
        (404, "key-absent", 3),
    ] {
        let answer = problem(status, slug, "retry-after: 60\r\n");
        let relay = Relay::start(move |_, _| std::future::ready(Some(answer.clone())));
        let relay = relay.await;
        for command in ["reset", "delete"] {
            let (ended, out, err) = run(&relay.url(), &[command, "counter/g/n"], "").await;
            assert_eq!((ended, &*out), (Some(code), ""), "{slug}: {err}");
            assert_eq!(err, format!("orderfree: It is {slug}.\n"));
        }
        assert_eq!(relay.seen().len(), 2, "{slug}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_about_a_reset_is_printed_once() {
    let pod = Setup::new().start().await;
    let port = pod.port();
    assert_eq!(add(&url(&pod), &["counter/g/n", "5"], "").await.0, Some(0));
    let relay = Relay::start(move |number, request| async move {
        match number {
            0..3 => Some(problem(503, "store-unavailable", "")),
            _ => request.to(port).await,
        }
    });
    let relay = relay.await;
    let (code, out, err) = run(&relay.url(), &["reset", "counter/g/n"], "").await;
    assert_eq!((code, &*out, relay.seen().len()), (Some(0), "5\n", 4), "{err}");
    let says = "orderfree: It is store-unavailable.\norderfree: trying again for up to 120 s\n";
    assert_eq!(err, says);
}

/// The server gets the request, and its client no answer.
async fn unanswered(request: Request, port: u16) -> Option<Vec<u8>> {
    request.to(port).await;
    None
}

/// The rest of `err` after the command that tells the outcome: its id.
fn id_of_outcome<'a>(command: &str, err: &'a str) -> &'a str {
    let (_, run) = err
        .split_once(" is unknown; to finish it, or to learn what it cleared, run: ")
        .expect("a command");
    // The next shell can have no ORDERFREE_URL.
    let (_, run) = run
        .split_once(&format!(" {command} counter/g/n --url http://127.0.0.1:"))
        .expect("a command");
    let (_, id) = run.split_once(" --id ").expect("an id");
    id.trim_end()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_without_an_answer_says_how_to_learn_its_outcome() {
    let pod = Setup::new().start().await;
    let port = pod.port();
    for command in ["reset", "delete"] {
        assert_eq!(add(&url(&pod), &["counter/g/n", "5"], "").await.0, Some(0));
        // It is made, its answer is lost, and the next try is refused for good.
        let relay = Relay::start(move |number, request| async move {
            match number {
                0 => unanswered(request, port).await,
                _ => Some(problem(401, "unauthenticated", "")),
            }
        });
        let relay = relay.await;
        let (code, out, err) = run(&relay.url(), &[command, "counter/g/n"], "").await;
        assert_eq!((code, &*out), (Some(4), ""), "{command}: {err}");
        let id = id_of_outcome(command, &err);
        let (code, out, err) = run(&url(&pod), &[command, "counter/g/n", "--id", id], "").await;
        assert_eq!((code, &*out), (Some(0), "5\n"), "{command}: {err}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_that_is_interrupted_says_how_to_learn_its_outcome() {
    let pod = Setup::new().start().await;
    let port = pod.port();
    for signal in [Signal::INT, Signal::TERM] {
        assert_eq!(add(&url(&pod), &["counter/g/n", "5"], "").await.0, Some(0));
        let relay = Relay::start(move |_, request| async move {
            request.to(port).await;
            std::future::pending().await
        });
        let relay = relay.await;
        let arguments = ["reset", "counter/g/n"];
        let child = started(&relay.url(), &arguments);
        let made = async {
            while pod.count("/v1/counter/g/n").await != 0 {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(ENDS_WITHIN, made).await.expect("the key is reset");
        let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        kill_process(id.expect("it runs"), signal).expect("it runs");
        let (code, out, err) = end_of(child, &arguments).await;
        assert_eq!((code, &*out), (Some(4), ""), "{err}");
        assert!(err.starts_with("orderfree: interrupted\n"), "{err}");
        let id = id_of_outcome("reset", &err);
        let (code, out, err) = run(&url(&pod), &["reset", "counter/g/n", "--id", id], "").await;
        assert_eq!((code, &*out), (Some(0), "5\n"), "{err}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_another_sort_is_asked_once() {
    let page = || Some(answered(501, "", b"<h1>Unsupported method</h1>"));
    let relay = Relay::start(move |_, _| std::future::ready(page())).await;
    for arguments in [
        &["reset", "counter/g/n"][..],
        &["delete", "counter/g/n"],
        &["delete", "counter/g", "--all"],
        &["add", "counter/g/n"],
    ] {
        let (code, out, err) = run(&relay.url(), arguments, "").await;
        assert_eq!((code, &*out), (Some(4), ""), "{arguments:?}: {err}");
        assert!(err.contains("is not JSON; check that --url names"), "{arguments:?}: {err}");
    }
    assert_eq!(relay.seen().len(), 4);
}
