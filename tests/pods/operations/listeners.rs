//! Two addresses: operators' routes are not on the users' address, nor the reverse.

use crate::pod::{Setup, free_port, token};
use crate::wire::{self, Answer, bearer, request};

const KEY: &str = "/v1/counter/shop/n";

/// Routes for operators only: method, path, and the status for a token with the right.
const OPERATORS: [(&str, &str, u16); 7] = [
    ("GET", "/metrics", 200),
    ("GET", "/version", 200),
    ("GET", "/v1/counter/shop/n/shards", 200),
    ("POST", "/v1/counter/shop/n/fold", 200),
    ("POST", "/v1/counter/shop/n/fold?dry_run=true", 200),
    (
        "POST",
        "/v1/counter/shop/n/discard?mutator_id=5f0c4f5e-2a0b-4b6f-9d53-3f4d3a9c1e77",
        404, // There is no such row.
    ),
    ("GET", "/v1/counter", 200),
];

/// Routes for users: method, path, body.
const USERS: [(&str, &str, &str); 6] = [
    ("POST", KEY, r#"{"op":"add"}"#),
    ("GET", KEY, ""),
    ("GET", "/v1/counter/shop", ""),
    (
        "POST",
        "/v1/batch",
        r#"{"updates":[{"kind":"counter","group":"shop","name":"n","op":{"op":"add"}}]}"#,
    ),
    ("POST", "/v1/query", r#"{"keys":[{"kind":"counter","group":"shop","name":"n"}]}"#),
    ("POST", "/v1/merge", r#"{"kind":"counter","group":"shop","names":["n"]}"#),
];

/// Routes for everyone, on both addresses.
const PROBES: [&str; 3] = ["/livez", "/readyz", "/openapi.json"];

async fn ask(port: u16, token: Option<&str>, method: &str, path: &str, body: &str) -> Answer {
    let bearer = token.map(bearer);
    let mut headers = vec![("content-type", "application/json")];
    headers.extend(bearer.as_deref().map(|bearer| ("authorization", bearer)));
    let answer = wire::ask(port, &request(method, path, &headers, body)).await;
    answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn users_and_operators_have_an_address_each() {
    let (all, lines) = token("all", &[("", &["read", "write", "admin"])], "");
    let (user, more) = token("user", &[("", &["read", "write"])], "");
    let (admins, setup) = (free_port(), Setup::new().policy(&(lines + &more)));
    let setup = setup.arg("--admin-listen", format!("127.0.0.1:{admins}"));
    let pod = setup.arg("--page", "off").start().await;
    let users = pod.port();

    for (method, path, body) in USERS {
        let answer = ask(users, Some(&all), method, path, body).await;
        assert_eq!(answer.status, 200, "{method} {path}: {}", answer.text());
        assert_eq!(ask(users, None, method, path, body).await.status, 401, "{method} {path}");
        // Even with a token that has all rights.
        let answer = ask(admins, Some(&all), method, path, body).await;
        let is_none = matches!(answer.status, 404 | 405);
        assert!(is_none, "operators' {method} {path}: {} {}", answer.status, answer.text());
    }
    for (method, path, status) in OPERATORS {
        let answer = ask(users, Some(&all), method, path, "").await;
        let told = (answer.status, answer.problem());
        assert_eq!(told, (404, "unknown-route".to_owned()), "users' {method} {path}");
        let answer = ask(admins, Some(&all), method, path, "").await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
        assert_ne!(answer.problem(), "unknown-route", "{method} {path}");
        if path.starts_with("/v1/") {
            assert_eq!(ask(admins, None, method, path, "").await.status, 401, "{method} {path}");
            let answer = ask(admins, Some(&user), method, path, "").await;
            assert_eq!(answer.status, 403, "{method} {path}: {}", answer.text());
        }
    }
    for port in [users, admins] {
        for path in PROBES {
            assert_eq!(ask(port, None, "GET", path, "").await.status, 200, "{path} of {port}");
        }
    }
    let value = ask(users, Some(&all), "GET", KEY, "").await.json();
    assert_eq!(value["value"], 2, "what operators asked for counted nothing");
}

/// Shows that the second address makes the difference in the test above.
#[tokio::test(flavor = "multi_thread")]
async fn one_address_alone_has_every_route() {
    let (all, lines) = token("all", &[("", &["read", "write", "admin"])], "");
    let (user, more) = token("user", &[("", &["read", "write"])], "");
    let pod = Setup::new().policy(&(lines + &more)).start().await;
    assert_eq!(ask(pod.port(), Some(&all), "POST", KEY, r#"{"op":"add"}"#).await.status, 200);
    for (method, path, status) in OPERATORS {
        let answer = ask(pod.port(), Some(&all), method, path, "").await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
        if path != "/version" {
            assert_eq!(ask(pod.port(), None, method, path, "").await.status, 401, "{path}");
            assert_eq!(ask(pod.port(), Some(&user), method, path, "").await.status, 403, "{path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_port_is_reported_in_one_sentence() {
    let pod = Setup::new().start().await;
    for taken in [&["--listen"][..], &["--admin-listen"]] {
        let setup = Setup::new();
        let address = format!("127.0.0.1:{}", pod.port());
        // Giving an argument twice would be another error.
        let data = setup.path("rows.redb").display().to_string();
        let mut arguments = vec!["serve", "--data", &data, taken[0], &address];
        if taken[0] == "--admin-listen" {
            arguments.extend(["--listen", "127.0.0.1:0"]);
        }
        let output = crate::pod::run(&arguments, &[]).await;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("can't listen on {address}")), "{said}");
    }
}
