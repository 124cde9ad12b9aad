//! `add` and `take` send an update until it is acknowledged, and it counts once.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

use crate::pod::{Pod, Setup};
use crate::relay::{Relay, answered};

const ENDS_WITHIN: Duration = Duration::from_secs(60);

async fn add(url: &str, arguments: &[&str], input: &str) -> (Option<i32>, String, String) {
    run(url, &[&["add"], arguments].concat(), input).await
}

async fn take(url: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    run(url, &[&["take"], arguments].concat(), "").await
}

/// Runs a command against this address. Returns its exit code and both outputs.
async fn run(url: &str, arguments: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_orderfree"))
        .args(arguments)
        .env_clear()
        .env("ORDERFREE_URL", url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the program runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    // A command that refuses its arguments reads nothing.
    let _ = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
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
            0 => {
                request.to(port).await;
                None
            }
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
        assert!(err.contains("sent again with the same id"), "{key}: {err}");
        assert_eq!(pod.count(&format!("/v1/{key}")).await, counted, "{key}");
        let ids: Vec<_> = relay.seen().iter().map(|request| request.id().expect("an id")).collect();
        assert!(ids.len() >= 6 && ids[..6].iter().all(|id| *id == ids[0]), "{key}: {ids:?}");
        if key.ends_with("given") {
            assert_eq!(ids[0], r#""order \"1\"""#);
        }
    }
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
            2 => {
                request.to(port).await;
                None
            }
            _ => Some(answered(401, "", refused)),
        }
    });
    let relay = relay.await;
    let (code, out, err) = take(&relay.url(), &[key, "-o", "json"]).await;
    let answer: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, &answer["outcome"]), (Some(4), &Value::from("unknown")), "{answer} {err}");
    add(&url(&pod), &[key, "3"], "").await;
    let resumed = resumption(&err);
    assert_eq!([&answer["id"], &answer["amount"]], [resumed[1], resumed[2]]);
    for _ in 0..2 {
        let arguments = [&[key][..], &resumed].concat();
        let (code, out, err) = take(&url(&pod), &arguments).await;
        assert_eq!((code, &*out), (Some(0), "12\n"), "{err}");
        assert_eq!(pod.count("/v1/counter/g/bill").await, 3);
    }
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
        (&["counter/g/absent"], 3, "does not exist"),
        (&["counter/g/n", "--resume", uuid], 2, "2 values"),
        (&["counter/g/n", "--resume", "order-1", "5"], 2, "not an id that `take` printed"),
        (&["counter/g/n", "--resume", uuid, "5.5"], 2, "not an amount of a counter"),
        // Its window is over.
        (&["counter/g/n", "--resume", uuid, "5"], 4, "The time to send this id ended"),
    ] {
        let (ended, out, err) = take(&url(&pod), arguments).await;
        assert_eq!((ended, &*out), (Some(code), ""), "{arguments:?}: {err}");
        assert!(err.contains(says), "{arguments:?}: {err}");
    }
    let (code, out, err) = take(&url(&pod), &["counter/g/zero"]).await;
    assert_eq!((code, &*out, &*err), (Some(0), "0\n", ""));
    assert_eq!(pod.count("/v1/counter/g/n").await, 5);
}
