//! Every request of operators about keys leaves one line in the log. Requests of users leave none.

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::pod::{Setup, token};
use crate::wire::{Connection, bearer, request};

const KEY: &str = "/v1/counter/shop%2Fa/n";
const DISCARD: &str = "/v1/counter/g/n/discard?mutator_id=5f0c4f5e-2a0b-4b6f-9d53-3f4d3a9c1e77";

fn audits(lines: &[Value]) -> Vec<&Value> {
    lines.iter().filter(|line| line["target"] == "orderfree::audit").collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_leave_one_line_each_and_users_none() {
    let (ops, lines) = token("ops", &[("", &["read", "write", "admin", "reset"])], "");
    let (user, more) = token("user", &[("", &["read", "write"])], "");
    let pod = Setup::new().policy(&(lines + &more)).start().await;
    let (ops, user) = (bearer(&ops), bearer(&user));
    let stranger = bearer(&token("stranger", &[], "").0);
    let batch = r#"{"updates":[{"kind":"counter","group":"g","name":"n","op":{"op":"add"}}]}"#;
    for caller in [&ops, &user] {
        for (method, path, body) in [
            ("POST", KEY, r#"{"op":"add"}"#),
            ("GET", KEY, ""),
            ("GET", "/v1/counter/g", ""),
            ("POST", "/v1/batch", batch),
            ("GET", "/v1/kinds", ""),
            ("GET", "/livez", ""),
            ("GET", "/v1/nokind/g/n", ""),
        ] {
            let headers =
                [("authorization", caller.as_str()), ("content-type", "application/json")];
            pod.ask(method, path, &headers, body).await;
        }
    }
    assert_eq!(audits(&pod.lines()).len(), 0, "{}", pod.log());

    let shards = format!("{KEY}/shards");
    let fold = format!("{KEY}/fold?dry_run=true");
    let reset = format!("{KEY}/reset");
    let mut expected = Vec::new();
    for (caller, name, method, path, status) in [
        (&ops, "ops", "GET", shards.as_str(), 200),
        (&ops, "ops", "POST", &fold, 200),
        (&ops, "ops", "GET", "/v1/counter?limit=10", 200),
        (&ops, "ops", "POST", DISCARD, 404),
        (&ops, "ops", "GET", "/v1/counter/none/n/shards", 404),
        (&ops, "ops", "POST", &reset, 200),
        (&ops, "ops", "DELETE", KEY, 200),
        (&ops, "ops", "DELETE", "/v1/counter/shop%2Fa?all=true", 200),
        (&user, "user", "POST", &reset, 403),
        (&user, "user", "DELETE", KEY, 403),
        (&user, "user", "GET", &shards, 403),
        (&user, "user", "POST", DISCARD, 403),
        (&stranger, "unauthenticated", "GET", "/v1/counter", 401),
        (&stranger, "unauthenticated", "POST", DISCARD, 401),
    ] {
        let id = format!("req-{}", expected.len());
        let headers = [("authorization", caller.as_str()), ("x-request-id", &id)];
        let answer = pod.ask(method, path, &headers, "").await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
        assert_eq!(answer.header("x-request-id"), id);
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        expected.push((name, method, path, query, status, id));
    }
    let lines = pod.lines();
    let audits = audits(&lines);
    assert_eq!(audits.len(), expected.len(), "{audits:#?}");
    for (line, (name, method, path, query, status, id)) in audits.iter().zip(&expected) {
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["caller"], *name, "{line}");
        assert_eq!(line["method"], *method, "{line}");
        assert_eq!((&line["path"], &line["query"]), (&json!(path), &json!(query)), "{line}");
        assert_eq!(line["status"], *status, "{line}");
        assert_eq!(line["request_id"], **id, "as the answer's header has it: {line}");
    }
}

/// The server drops its work for a client that hangs up. The log must still say that the work began.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hangs_up_leaves_a_line_too() {
    let pod = Setup::new().start().await;
    let ask = request("GET", &format!("{KEY}/shards"), &[], "");
    let is_gone = |line: &&Value| line["status"].is_null() && line["method"] == "GET";
    // If the server sees the end of the connection before the request, it begins nothing.
    for _ in 0..500 {
        let mut connection = Connection::open(pod.port()).await.expect("a connection");
        connection.send(&ask).await.expect("sent");
        connection.stream.shutdown().await.expect("hung up");
        let _ = connection.answer().await;
        if audits(&pod.lines()).into_iter().any(|line| is_gone(&line)) {
            return;
        }
    }
    panic!("no client was gone: {}", pod.log());
}

/// A caller can't forge lines: everything that it sends is inside one.
#[tokio::test(flavor = "multi_thread")]
async fn any_request_is_logged_as_one_line() {
    let pod = Setup::new().start().await;
    pod.get("/v1/counter/a%0A%7B%22target%22:%22orderfree::audit%22%7D/n/shards").await;
    let lines = pod.lines();
    assert_eq!(
        (lines.len(), audits(&lines).len()),
        (pod.log().lines().count(), 1),
        "{}",
        pod.log()
    );
    assert_eq!(audits(&lines)[0]["caller"], "anonymous");
}
