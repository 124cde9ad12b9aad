//! The commands that call a pod: keys, pipes, lists and merges, and what they say when something is wrong.

use std::os::unix::process::ExitStatusExt;
use std::process::{Output, Stdio};
use std::time::Duration;

use orderfree::runtime::clock::{Clock, SystemClock};
use orderfree::runtime::random::update_id;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::timeout;

use crate::pod::{Pod, Setup, run, token};
use crate::tls::Guarded;
use crate::wire::Connection;

const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// A run of the program.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Said {
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        let (out, err) = (text(output.stdout), text(output.stderr));
        Said { code: output.status.code(), out, err }
    }
}

/// Runs a command against the pod, with this on its standard input, as another program pipes it.
async fn piped(pod: &Pod, arguments: &[&str], input: &[u8]) -> Said {
    let mut child = Command::new(env!("CARGO_BIN_EXE_orderfree"))
        .args(arguments)
        .env_clear()
        .env("ORDERFREE_URL", url(pod))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the program runs");
    let (mut stdin, input) = (child.stdin.take().expect("a pipe"), input.to_vec());
    let writer = tokio::spawn(async move {
        // A command that refuses its arguments reads nothing.
        let _ = stdin.write_all(&input).await;
    });
    let output = timeout(ENDS_WITHIN, child.wait_with_output()).await;
    writer.await.expect("written");
    output.unwrap_or_else(|_| panic!("{arguments:?} does not end")).expect("it ends").into()
}

/// The same without an input.
async fn call(pod: &Pod, arguments: &[&str]) -> Said {
    run(arguments, &[("ORDERFREE_URL", &url(pod))]).await.into()
}

fn url(pod: &Pod) -> String {
    format!("http://127.0.0.1:{}", pod.port())
}

/// The value of a key, as the command line prints it.
async fn value(pod: &Pod, key: &str) -> String {
    let said = call(pod, &["get", key]).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    said.out.trim_end().to_owned()
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lines_of_a_pipe_are_added() {
    let pod = Setup::new().start().await;
    for (key, input, count, shown) in [
        ("counter/g/many", "1\n".repeat(5_000), 5_000, "5000"),
        ("gset/g/set", "\u{feff}u1\r\n\n  u2\nu2".to_owned(), 3, r#""items":["u1","u2"]"#),
        ("register/g/text", "first\nsecond\n".to_owned(), 1, r#""value":"first\nsecond""#),
        ("sum/g/none", String::new(), 0, ""),
    ] {
        let said = piped(&pod, &["add", key, "-"], input.as_bytes()).await;
        assert_eq!((said.code, said.out.as_str()), (Some(0), "acked\n"), "{key}: {said:?}");
        if count > 0 {
            assert!(value(&pod, key).await.contains(shown), "{key}");
        } else {
            assert_eq!(call(&pod, &["get", key]).await.code, Some(3), "{key}");
        }
    }
    let said = piped(&pod, &["add", "counter/g/many", "-", "-o", "json"], b"1\n2\n").await;
    let answer = json_of(&said.out);
    assert_eq!((&answer["outcome"], &answer["acked"]), (&json!("acked"), &json!(2)), "{answer}");
    let values: Vec<String> = (0..2_500).map(|at| format!("u{at}")).collect();
    let arguments: Vec<&str> = values.iter().map(String::as_str).collect();
    let said = call(&pod, &[&["add", "gset/g/values"], &arguments[..]].concat()).await;
    assert_eq!((said.code, said.out.as_str()), (Some(0), "acked\n"), "{said:?}");
    assert!(value(&pod, "gset/g/values").await.contains(r#""size":2500"#));
    for bad in ["a\nb", "", " "] {
        let said = call(&pod, &[&["add", "gset/g/values", bad], &arguments[..]].concat()).await;
        assert!(said.code == Some(2) && said.err.contains("line break"), "{said:?}");
    }
    let said = piped(&pod, &["add", "counter/g/many", "7", "-"], b"1\n").await;
    assert!(said.code == Some(2) && said.err.contains("leave out the others"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_is_not_added_is_named() {
    let pod = Setup::new().start().await;
    let said = piped(&pod, &["add", "counter/g/n", "-"], b"1\nx\n2\n\xff\n4\n").await;
    assert_eq!((said.code, said.out.as_str()), (Some(1), ""), "{said:?}");
    for says in
        ["line 2: refused: ", "line 4: refused: the line is not UTF-8", "3 lines acked, 2 refused"]
    {
        assert!(said.err.contains(says), "{says}: {said:?}");
    }
    assert_eq!(value(&pod, "counter/g/n").await, "7");

    // A pod takes 1 MiB of a key. Only the pod knows when that is reached.
    let lines: String = (0..1_400).map(|at| format!("{at:0>1000}x\n")).collect();
    let said = piped(&pod, &["add", "gset/g/set", "-", "-o", "json"], lines.as_bytes()).await;
    let answer = json_of(&said.out);
    assert_eq!((said.code, &answer["outcome"]), (Some(1), &json!("refused")), "{answer}");
    let (acked, refused) = (answer["acked"].as_u64(), answer["refused"].as_u64());
    let from = answer["unsent_from_line"].as_u64().expect("some were not sent");
    assert_eq!(
        acked.zip(refused).map(|(acked, refused)| acked + refused + 1),
        Some(from),
        "{answer}"
    );
    let items = json_of(&value(&pod, "gset/g/set").await)["items"].as_array().map(Vec::len);
    assert_eq!(items.map(|count| count as u64), acked);
    let error = &answer["errors"][0];
    assert_eq!((&error["first_line"], &error["outcome"]), (&error["last_line"], &json!("refused")));

    // The first request tells what all others would.
    let (_, lines) = token("reader", &[("", &["read"])], "");
    let guarded = Setup::new().policy(&lines).start().await;
    let said = piped(&guarded, &["add", "counter/g/n", "-"], "1\n".repeat(3_000).as_bytes()).await;
    assert!(said.code == Some(1) && said.err.contains("0 lines acked"), "{said:?}");
    assert!(said.err.contains("and all lines after it were not sent"), "{said:?}");
    assert!(said.err.contains("--token-file") && !said.err.contains("Bearer"), "{said:?}");
    assert_eq!(said.err.lines().count(), 3, "{said:?}");
}

/// Without `-`, the lines would be lost. Jobs and other programs start commands with an empty pipe.
#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_that_nothing_reads_is_an_error_unless_it_is_empty() {
    let pod = Setup::new().start().await;
    let said = piped(&pod, &["add", "counter/g/n"], b"5\n").await;
    assert!(said.code == Some(2) && said.err.contains("write `-` after the key"), "{said:?}");
    assert_eq!(call(&pod, &["get", "counter/g/n"]).await.code, Some(3), "nothing was added");
    let said = piped(&pod, &["add", "gset/g/set"], b"u1\n").await;
    assert!(said.code == Some(2) && said.err.contains("`-`"), "{said:?}");
    assert_eq!(piped(&pod, &["add", "counter/g/n"], b"").await.code, Some(0));
    assert_eq!(piped(&pod, &["add", "counter/g/n", "2"], b"5\n").await.code, Some(0));
    let silent = Command::new(env!("CARGO_BIN_EXE_orderfree"))
        .args(["add", "counter/g/n", "--url", &url(&pod)])
        .env_clear()
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let mut silent = silent.expect("the program runs");
    let _open = silent.stdin.take();
    let status = timeout(ENDS_WITHIN, silent.wait()).await.expect("it does not wait for lines");
    assert!(status.expect("a child").success());
    assert_eq!(value(&pod, "counter/g/n").await, "4");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_listed_page_by_page() {
    let pod = Setup::new().start().await;
    let lines: String = (0..1_500)
        .map(|at| {
            json!({"kind": "counter", "group": "a/b", "name": format!("n{at:04}"), "op": {"op": "add", "by": at}})
                .to_string()
                + "\n"
        })
        .collect();
    let headers = [("content-type", "application/x-ndjson")];
    let answer = pod.ask("POST", "/v1/batch", &headers, &lines).await;
    assert_eq!(answer.json()["acked"], 1_500, "{}", answer.text());
    let all: String = (0..1_500).map(|at| format!("n{at:04}\t{at}\n")).collect();
    for more in [&[][..], &["--param", "limit=700"]] {
        let said = call(&pod, &[&["ls", "counter/a%2Fb"], more].concat()).await;
        assert!(said.code == Some(0) && said.out == all, "{more:?}: {}", said.err);
    }
    let said = call(&pod, &["ls", "counter/a%2Fb", "--prefix", "n149", "-o", "json"]).await;
    let keys: Vec<Value> = said.out.lines().map(json_of).collect();
    assert_eq!(
        (keys.len(), &keys[9]["name"], &keys[9]["value"]),
        (10, &json!("n1499"), &json!(1499))
    );
    assert_eq!(call(&pod, &["ls", "counter/nothing"]).await.out, "");
    let said = call(&pod, &["ls", "counter/a%2Fb", "--param", "no=1"]).await;
    assert!(said.code == Some(1) && said.err.contains("Unknown parameter"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_reset_and_deleted() {
    let pod = Setup::new().start().await;
    let out = async |arguments: &[&str]| {
        let said = call(&pod, arguments).await;
        assert_eq!(said.code, Some(0), "{said:?}");
        said.out
    };
    out(&["add", "counter/g/a/b", "5"]).await;
    assert_eq!(out(&["reset", "counter/g/a/b"]).await, "5\n");
    assert_eq!(value(&pod, "counter/g/a/b").await, "0");
    out(&["add", "counter/g/a/b", "7"]).await;
    let id = update_id(SystemClock.now().wall).to_string();
    let delete = ["delete", "counter/g/a/b", "--id", &id];
    for _ in 0..2 {
        assert_eq!(out(&delete).await, "7\n");
    }
    let deleted = json_of(&out(&[&delete[..], &["-o", "json"]].concat()).await);
    assert_eq!((&deleted["deleted"], &deleted["cleared"]["value"]), (&json!(true), &json!(7)));
    assert_eq!(call(&pod, &["reset", "counter/g/a/b"]).await.code, Some(3));
    for (arguments, says) in [
        (&["delete", "counter/g"][..], "--prefix or --all"),
        (&["delete", "counter/g/n", "--all"], "KIND/GROUP"),
        (&["delete", "counter/g", "--all", "--prefix", "a"], "cannot be used with"),
        (&["delete", "counter/g", "--all", "--id", &id], "cannot be used with"),
        (&["reset", "counter/g"], "KIND/GROUP/NAME"),
        (&["reset", "counter/g/n", "--id", "x"], "no time inside"),
    ] {
        let said = call(&pod, arguments).await;
        assert!(said.code == Some(2) && said.err.contains(says), "{arguments:?}: {said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_deleted_a_thousand_keys_at_a_time() {
    let pod = Setup::new().start().await;
    let line = |at: u32| {
        let op = json!({"op": "add", "by": at});
        json!({"kind": "counter", "group": "a/b", "name": format!("n{at:04}"), "op": op})
            .to_string()
    };
    let lines: Vec<String> = (0..1_600).map(line).collect();
    let headers = [("content-type", "application/x-ndjson")];
    let answer = pod.ask("POST", "/v1/batch", &headers, &(lines.join("\n") + "\n")).await;
    assert_eq!(answer.json()["acked"], 1_600, "{}", answer.text());
    let some = ["delete", "counter/a%2Fb", "--prefix", "n15"];
    for deleted in ["100\n", "0\n"] {
        let said = call(&pod, &some).await;
        assert!(said.code == Some(0) && said.out == deleted, "{said:?}");
    }
    let said = call(&pod, &["delete", "counter/a%2Fb", "--prefix", ""]).await;
    assert!(said.code == Some(1) && !said.err.contains("were deleted"), "{said:?}");
    let said = call(&pod, &["delete", "counter/a%2Fb", "--all", "-o", "json"]).await;
    assert!(said.err.contains("deleted 1000 keys so far"), "{said:?}");
    assert_eq!(json_of(&said.out), json!({"deleted": 1_500, "failed": [], "more": false}));
    assert_eq!(call(&pod, &["ls", "counter/a%2Fb"]).await.out, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_merged_into_one_value() {
    let pod = Setup::new().start().await;
    for (key, what) in [
        ("counter/site/a", &["5"][..]),
        ("counter/site/b", &["7"]),
        ("audience/site/eu", &["u1", "u2"]),
        ("audience/site/bots", &["u2"]),
    ] {
        assert_eq!(call(&pod, &[&["add", key], what].concat()).await.code, Some(0), "{key}");
    }
    assert_eq!(call(&pod, &["merge", "counter/site", "a", "b", "none"]).await.out, "12\n");
    let said =
        call(&pod, &["merge", "counter/site", "a", "-o", "json", "--param", "numbers=string"]);
    assert_eq!(json_of(&said.await.out)["value"], "5");
    let both = r#"{"and":["eu",{"not":"bots"}]}"#;
    let said = call(&pod, &["merge", "audience/site", "--expression", both]).await;
    assert_eq!(json_of(&said.out)["estimate"], 1.0, "{said:?}");
    let said = call(&pod, &["merge", "counter/site", "none"]).await;
    assert!(said.code == Some(3) && said.err.contains("add to them first"), "{said:?}");
    assert_eq!(call(&pod, &["merge", "counter/site"]).await.code, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watched_key_is_printed_until_the_watch_is_interrupted() {
    let mut pod = Setup::new().start().await;
    let mut watch = Command::new(env!("CARGO_BIN_EXE_orderfree"))
        .args(["watch", "counter/site/home", "--url", &url(&pod)])
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the program runs");
    let mut lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
    let mut shown = async || {
        let line = timeout(ENDS_WITHIN, lines.next_line()).await.expect("a line in time");
        line.expect("UTF-8").expect("the watch goes on")
    };
    assert_eq!(shown().await, "absent");
    assert_eq!(call(&pod, &["add", "counter/site/home", "5"]).await.code, Some(0));
    let line = shown().await;
    assert!(line.starts_with("5  +"), "{line}");

    // It says once that the server is away, waits for it, and does not print the same value again.
    pod.signal(Signal::TERM);
    pod.ended(ENDS_WITHIN).await;
    let mut notes = BufReader::new(watch.stderr.take().expect("a pipe")).lines();
    let note = timeout(ENDS_WITHIN, notes.next_line()).await.expect("a note in time");
    let note = note.expect("UTF-8").expect("the watch goes on");
    assert!(note.ends_with("trying again until it works"), "{note}");
    let pod = pod.setup.start().await;
    assert_eq!(call(&pod, &["add", "counter/site/home", "2"]).await.code, Some(0));
    let line = shown().await;
    assert!(line.starts_with("7  +"), "{line}");

    let id = watch.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    kill_process(id.expect("it runs"), Signal::INT).expect("it runs");
    let status = timeout(ENDS_WITHIN, watch.wait()).await.expect("it ends").expect("a child");
    assert_eq!(status.signal(), Some(Signal::INT.as_raw()));
    assert_eq!(lines.next_line().await.expect("UTF-8"), None, "nothing more was printed");
    assert_eq!(notes.next_line().await.expect("UTF-8"), None, "nothing more was said");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_printed_as_the_server_wrote_it() {
    let pod = Setup::new().start().await;
    for by in ["9223372036854775807"; 3] {
        assert_eq!(call(&pod, &["add", "counter/g%2Fh/a/b", by]).await.code, Some(0));
    }
    let total = "27670116110564327421";
    assert_eq!(value(&pod, "counter/g%2fh/a%2Fb").await, total);
    let said = call(&pod, &["get", "counter/g%2Fh/a/b", "-o", "json"]).await;
    let begins = format!(
        r#"{{"kind":"counter","group":"g/h","name":"a/b","value":{total},"exact":true,"as_of":"#
    );
    assert!(said.out.starts_with(&begins), "{}", said.out);
    let quoted = ["get", "counter/g%2Fh/a/b", "-o", "json", "--param", "numbers=string"];
    assert_eq!(json_of(&call(&pod, &quoted).await.out)["value"], total);
    let said = call(&pod, &["add", "counter/g/n", "-o", "json"]).await;
    assert_eq!(
        said.out,
        "{\"outcome\":\"acked\",\"kind\":\"counter\",\"group\":\"g\",\"name\":\"n\"}\n"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_speak_of_the_command_line() {
    let pod = Setup::new().start().await;
    for command in ["add", "get"] {
        for (key, says) in [
            ("counter/a", "KIND/GROUP/NAME"),
            ("counter/a/", "name"),
            ("count/a/b", "the kinds are counter, sum,"),
        ] {
            let said = call(&pod, &[command, key]).await;
            assert!(said.code == Some(2) && said.err.contains(says), "{command} {key}: {said:?}");
        }
    }
    assert_eq!(call(&pod, &["ls", "counter"]).await.code, Some(2));
    assert_eq!(call(&pod, &["export", "--kind", "count"]).await.code, Some(2));
    let said = call(&pod, &["add", "register/g/n", "x", "y"]).await;
    assert!(said.code == Some(2) && said.err.contains("only one value"), "{said:?}");
    assert!(said.err.contains("Usage: orderfree add "), "{said:?}");
    let said = call(&pod, &["get", "counter/g/n", "--url", "127.0.0.1:8080"]).await;
    assert!(said.code == Some(2) && said.err.contains("such as http://127.0.0.1:8080"), "{said:?}");
    let said = call(&pod, &["get", "counter/g/none"]).await;
    assert_eq!(said.code, Some(3), "{said:?}");
    assert_eq!(
        said.err,
        "orderfree: counter/g/none does not exist; add to it, or read it with `get --default empty`.\n"
    );
    for (default, shown) in [("empty", "0\n"), ("-3", "-3\n")] {
        let said = call(&pod, &["get", "counter/g/none", "--default", default]).await;
        assert_eq!((said.code, said.out.as_str()), (Some(0), shown), "{said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http_and_tls_taken_for_each_other_are_told() {
    let (guarded, plain) = (Guarded::start().await, Setup::new().start().await);
    let http = format!("http://127.0.0.1:{}", guarded.pod.port());
    let https = format!("https://127.0.0.1:{}", plain.port());
    for arguments in [
        &["health"][..],
        &["add", "counter/g/n", "1"],
        &["get", "counter/g/n"],
        &["ls", "counter/g"],
        &["merge", "counter/g", "n"],
        &["doctor", "--data", "nowhere"],
        &["load", "--duration", "1s"],
    ] {
        for (url, says) in [
            (&http, "speaks TLS; write https://"),
            (&https, "does not speak TLS, so the request was not sent; write http://"),
        ] {
            let said = Said::from(run(&[arguments, &["--url", url]].concat(), &[]).await);
            let all = format!("{}{}", said.out, said.err);
            // The request in clear text was sent, so its outcome is unknown.
            let code = if arguments[0] == "add" && url == &http { 4 } else { 1 };
            assert!(said.code == Some(code) && all.contains(says), "{arguments:?} {url}: {said:?}");
        }
    }
}

/// Most redirects turn an update into a read. An ingress sends them from `http` to `https`.
#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_not_followed_but_told() {
    let pod = Setup::new().start().await;
    let ingress = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", ingress.local_addr().expect("an address"));
    let to = format!("http://127.0.0.1:{}", pod.port());
    let target = to.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = ingress.accept().await.expect("a connection");
            let mut connection = Connection::over(stream);
            let (head, _) = connection.request().await.expect("a request");
            let path = head.split(' ').nth(1).expect("a path");
            let answer = format!(
                "HTTP/1.1 301 Moved\r\nlocation: {target}{path}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            );
            connection.send(answer.as_bytes()).await.expect("sent");
        }
    });
    for arguments in [
        &["add", "counter/g/n", "1"][..],
        &["get", "counter/g/n"],
        &["health"],
        &["doctor", "--data", "nowhere"],
        &["load", "--duration", "1s"],
    ] {
        let said = Said::from(run(&[arguments, &["--url", &url]].concat(), &[]).await);
        let all = format!("{}{}", said.out, said.err);
        assert_eq!(said.code, Some(1), "{arguments:?}: {said:?}");
        assert!(all.contains("redirects to another address"), "{arguments:?}: {said:?}");
        assert!(all.contains(&to), "{arguments:?}: {said:?}");
    }
    assert_eq!(call(&pod, &["get", "counter/g/n"]).await.code, Some(3), "nothing was counted");
}

#[tokio::test(flavor = "multi_thread")]
async fn help_lists_what_applies_and_shells_complete_it() {
    let help = async |command: &str| Said::from(run(&[command, "--help"], &[]).await).out;
    let (export, import) = (help("export").await, help("import").await);
    for option in ["--batch-rows", "--read-consistency", "--lifetime", "--hint-window"] {
        assert!(!export.contains(option) && !import.contains(option), "{option}");
    }
    assert!(!export.contains("--write-consistency") && import.contains("--write-consistency"));
    assert!(export.contains("--fold-consistency") && export.contains("--cassandra-password-file"));
    // Jobs share their variables with pods.
    let shared = [("ORDERFREE_BATCH_ROWS", "20"), ("ORDERFREE_LISTEN", "0.0.0.0:8080")];
    let said = Said::from(run(&["export", "--data", "nowhere"], &shared).await);
    assert!(said.code == Some(1) && said.err.contains("missing or empty"), "{said:?}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let said = Said::from(run(&["completions", shell], &[]).await);
        assert!(said.code == Some(0) && said.out.contains("orderfree"), "{shell}: {said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn localhost_is_an_address_to_listen_on() {
    let setup = Setup::new();
    let port = setup.port;
    let data = setup.path("other.redb").display().to_string();
    let pod =
        setup.only(&["--listen", &format!("localhost:{port}"), "--data", &data]).start().await;
    assert_eq!(pod.get("/readyz").await.status, 200);
    let said = Said::from(run(&["serve", "--listen", "example.com:80"], &[]).await);
    assert!(
        said.code == Some(2) && said.err.contains("write an IP address and a port"),
        "{said:?}"
    );
}
