//! Access: bad tokens, addresses that look alike, denied items among others, rates and quotas. `matrix` tries every
//! verb on every route with tokens that have the right and tokens that do not.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::http::StatusCode;
use futures::channel::mpsc::unbounded;
use orderfree::policy::{NewToken, Policies, Policy, Verb};
use serde_json::json;
use tokio::time::sleep;

use crate::matrix::{Asked, OPEN_ROUTES, TOKEN_ROUTES, requests};
use crate::pod::{Answer, Pod, request};

/// A pod, and its tokens by name.
pub(crate) struct Guarded {
    pub(crate) pod: Pod,
    pub(crate) tokens: BTreeMap<String, String>,
}

impl Guarded {
    /// Each token with its grants, as in the file.
    pub(crate) fn new<'a>(
        tokens: impl IntoIterator<Item = (&'a str, String)>,
        rest: &str,
    ) -> Guarded {
        let (mut text, mut known) = (String::new(), BTreeMap::new());
        for (name, lines) in tokens {
            let NewToken { token, sha256 } = NewToken::draw();
            text += &format!("[[token]]\nname = {name:?}\nsha256 = {sha256:?}\n{lines}\n");
            known.insert(name.to_owned(), token);
        }
        text += rest;
        let policy: Policy = text.parse().expect("a policy");
        Guarded { pod: Pod::with(Policies::from(policy)), tokens: known }
    }

    pub(crate) async fn ask(&self, token: &str, method: &str, path: &str, body: &str) -> Answer {
        let bearer = format!("Bearer {}", self.tokens[token]);
        let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
        self.pod.send(request(method, path, &headers, body.to_owned())).await
    }

    /// Sends a request with a body of another type.
    pub(crate) async fn send(&self, token: &str, asked: &Asked) -> Answer {
        let bearer = format!("Bearer {}", self.tokens[token]);
        let mut headers = vec![("authorization", bearer.as_str())];
        headers.extend(asked.media.map(|media| ("content-type", media)));
        let request = request(asked.method, &asked.path, &headers, asked.body.clone());
        self.pod.send(request).await
    }
}

pub(crate) fn grant(prefix: &str, verbs: &[Verb]) -> String {
    let verbs: Vec<&str> = verbs.iter().map(|verb| verb.name()).collect();
    format!("[[token.grant]]\ngroup_prefix = {prefix:?}\nverbs = {verbs:?}\n")
}

#[tokio::test]
async fn without_a_valid_token_only_probes_and_descriptions_answer() {
    let guarded = Guarded::new(
        [("a", grant("", &Verb::ALL)), ("gone", "expires = \"2020-01-01T00:00:00Z\"".to_owned())],
        "",
    );
    let token = &guarded.tokens["a"];
    let gone = format!("Bearer {}", guarded.tokens["gone"]);
    let bad = [
        String::new(),
        "Bearer".to_owned(),
        format!("Basic {token}"),
        format!("Bearer {token}x"),
        format!("Bearer {}", NewToken::draw().token),
        gone,
    ];
    let good = format!("Bearer {token}");
    let alone = TOKEN_ROUTES.map(|(method, path)| Asked::plain(method, path, path.to_owned()));
    for asked in requests("g", "n").iter().chain(&alone) {
        let media = asked.media.unwrap_or("application/json");
        let ask = async |authorization: &[&str]| {
            let mut headers = vec![("content-type", media)];
            headers.extend(authorization.iter().map(|value| ("authorization", *value)));
            let request = request(asked.method, &asked.path, &headers, asked.body.clone());
            guarded.pod.send(request).await
        };
        let answer = ask(&[]).await;
        answer.problem(401, "unauthenticated");
        assert_eq!(answer.header("www-authenticate"), "Bearer realm=\"orderfree\"");
        for header in &bad {
            let answer = ask(&[header]).await;
            answer.problem(401, "unauthenticated");
            assert!(
                !answer.text.contains(token.as_str()),
                "the token is repeated: {}",
                answer.text
            );
        }
        ask(&[&good, &good]).await.problem(401, "unauthenticated");
    }
    for path in OPEN_ROUTES {
        let path = path.replace("{slug}", "forbidden");
        assert_eq!(guarded.pod.get(&path).await.status, StatusCode::OK, "{path}");
    }
    assert_eq!(guarded.ask("a", "GET", "/metrics", "").await.status, StatusCode::OK);
    assert_eq!(guarded.pod.value("/livez").await.as_deref(), Some("{\"status\":\"alive\"}"));
    guarded.ask("a", "GET", "/v1/counter/g/n", "").await.problem(404, "key-absent");
}

#[tokio::test]
async fn metrics_need_the_right_to_admin_some_group() {
    let guarded = Guarded::new([("user", grant("", &[Verb::Read, Verb::Write]))], "");
    guarded.ask("user", "GET", "/metrics", "").await.problem(403, "forbidden");
}

/// However an address is encoded, the right to the stored group decides.
#[tokio::test]
async fn look_alike_addresses_give_no_more_rights_than_plain_ones() {
    let guarded =
        Guarded::new([("a", grant("shop", &Verb::ALL)), ("all", grant("", &Verb::ALL))], "");
    let add = r#"{"op":"add"}"#;
    for mine in ["shop", "%73hop", "shop%2Fsecret", "shop%2F..%2Fsecret", "sho%70"] {
        let answer = guarded.ask("a", "POST", &format!("/v1/counter/{mine}/n"), add).await;
        assert_eq!(answer.status, StatusCode::OK, "{mine}: {}", answer.text);
    }
    for other in [
        "secret",
        "%73ecret",
        "Shop",
        "SHOP",
        "%53hop",
        "%2Fshop",
        "..%2Fshop",
        ".%2Fshop",
        "sh%E2%80%8Bop",
        "%EF%BD%93hop",
        "sh%6F",
        "xshop",
        "%20shop",
        "shop".split_at(3).0,
    ] {
        for tail in ["n", "n/shards", "n/fold"] {
            let method = if tail == "n/shards" { "GET" } else { "POST" };
            let answer =
                guarded.ask("a", method, &format!("/v1/counter/{other}/{tail}"), add).await;
            answer.problem(403, "forbidden");
        }
    }
    // These are other routes or none, never a key of a group that is not named.
    for path in [
        "/v1/counter/shop/../secret/n",
        "/v1/counter//secret/n",
        "/v1//counter/shop/n",
        "/v1/counter/shop/n/",
        "/v1/./counter/shop/n",
        "//v1/counter/secret/n",
        "/V1/counter/secret/n",
        "/v1/counter/shop%00/n",
        "/v1/counter/shop%0Asecret/n",
        "/v1/%2e%2e/secret/n",
    ] {
        let answer = guarded.ask("a", "POST", path, add).await;
        assert!(answer.status.is_client_error(), "{path}: {} {}", answer.status, answer.text);
    }
    guarded.ask("all", "GET", "/v1/counter/secret/n", "").await.problem(404, "key-absent");
}

#[tokio::test]
async fn a_batch_is_judged_item_by_item() {
    let guarded =
        Guarded::new([("w", grant("mine", &[Verb::Write])), ("all", grant("", &Verb::ALL))], "");
    let item =
        |group: &str| json!({"kind": "counter", "group": group, "name": "n", "op": {"op": "add"}});
    let body = json!({"updates": [item("mine"), item("other"), item("mine2")]}).to_string();
    let answer = guarded.ask("w", "POST", "/v1/batch", &body).await.json();
    let outcomes: Vec<&str> = answer["results"]
        .as_array()
        .expect("results")
        .iter()
        .filter_map(|one| one["outcome"].as_str())
        .collect();
    assert_eq!(outcomes, ["acked", "refused", "acked"]);
    assert_eq!(answer["results"][1]["problem"]["status"], 403);

    let lines = [item("mine"), item("other"), item("mine")].map(|line| line.to_string()).join("\n");
    let bearer = format!("Bearer {}", guarded.tokens["w"]);
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/x-ndjson")];
    let answer = guarded.pod.send(request("POST", "/v1/batch", &headers, lines)).await.json();
    assert_eq!((&answer["acked"], &answer["refused"]), (&json!(2), &json!(1)), "{answer}");
    assert_eq!(answer["errors"][0]["first"], 2);

    guarded.ask("all", "GET", "/v1/counter/other/n", "").await.problem(404, "key-absent");
    let value = guarded.ask("all", "GET", "/v1/counter/mine/n", "").await.json();
    assert_eq!(value["value"], 3);
    // Returning the value of an update is a read.
    let add = r#"{"op":"add"}"#;
    guarded
        .ask("w", "POST", "/v1/counter/mine/n?return=value", add)
        .await
        .problem(403, "forbidden");
    assert_eq!(guarded.ask("all", "GET", "/v1/counter/mine/n", "").await.json()["value"], 3);
    let denied = guarded.ask("all", "GET", "/metrics", "").await.text;
    assert!(denied.contains(r#"orderfree_denied_total{reason="forbidden"} 3"#), "{denied}");
}

#[tokio::test]
async fn a_tokens_rate_limits_no_other_token() {
    let slow = format!("rate = 1\n{}", grant("", &[Verb::Write]));
    let guarded = Guarded::new([("slow", slow), ("other", grant("", &[Verb::Write]))], "");
    let item = json!({"kind": "counter", "group": "g", "name": "n", "op": {"op": "add"}});
    let batch = json!({"updates": vec![item; 1_000]}).to_string();
    let answer = guarded.ask("slow", "POST", "/v1/batch", &batch).await;
    assert_eq!(
        answer.status,
        StatusCode::OK,
        "as many as a batch may have at once: {}",
        answer.text
    );
    guarded.ask("slow", "POST", "/v1/counter/g/n", r#"{"op":"add"}"#).await;
    let answer = guarded.ask("slow", "POST", "/v1/counter/g/n", r#"{"op":"add"}"#).await;
    assert_eq!(answer.problem(429, "too-fast").as_deref(), Some("refused"));
    assert_eq!(answer.header("retry-after"), "1");
    let answer = guarded.ask("other", "POST", "/v1/counter/g/n", r#"{"op":"add"}"#).await;
    assert_eq!(answer.status, StatusCode::OK);
}

#[tokio::test]
async fn each_key_of_a_deletion_counts_for_the_rate() {
    let slow = format!("rate = 1\n{}", grant("", &Verb::ALL));
    let guarded = Guarded::new([("slow", slow), ("other", grant("", &Verb::ALL))], "");
    let item = |number| json!({"kind": "counter", "group": "g", "name": format!("n{number}"), "op": {"op": "add"}});
    let batch = json!({"updates": (0..600).map(item).collect::<Vec<_>>()}).to_string();
    let answer = guarded.ask("other", "POST", "/v1/batch", &batch).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let answer = guarded.ask("slow", "POST", "/v1/batch", &batch).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let answer = guarded.ask("slow", "DELETE", "/v1/counter/g?all=true", "").await;
    assert_eq!(answer.problem(429, "too-fast").as_deref(), Some("refused"));
    let answer = guarded.ask("other", "DELETE", "/v1/counter/g?all=true", "").await;
    assert_eq!(answer.json()["deleted"], 600, "{}", answer.text);
}

/// A stream waits for its rate, and gives up if that would take too long.
#[tokio::test(start_paused = true)]
async fn a_stream_that_is_far_too_fast_ends() {
    let slow = format!("rate = 1\n{}", grant("", &Verb::ALL));
    let guarded = Guarded::new([("slow", slow)], "");
    let line = json!({"kind": "counter", "group": "g", "name": "n", "op": {"op": "add"}});
    let lines = vec![line.to_string(); 2_500].join("\n");
    let bearer = format!("Bearer {}", guarded.tokens["slow"]);
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/x-ndjson")];
    let answer = guarded.pod.send(request("POST", "/v1/batch?ack=memory", &headers, lines)).await;
    // Not 429, because clients would then send everything again.
    assert_eq!(answer.problem(504, "outcome-unknown").as_deref(), Some("unknown"));
    let sentence = "Lines 1 to 1000 are done, and the summary names those that were not acknowledged. \
                    Send the lines from line 1001 on in a new stream.";
    assert!(answer.text.contains(sentence), "{}", answer.text);
    let summary = &answer.json()["summary"];
    assert_eq!((&summary["accepted"], &summary["refused"]), (&json!(1_000), &json!(0)));
    assert_eq!((&summary["lines"], &summary["errors"]), (&json!(1_000), &json!([])));
    // The next stream begins too early, so no line of it is applied.
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/x-ndjson")];
    let lines = vec![line.to_string(); 305].join("\n");
    let answer = guarded.pod.send(request("POST", "/v1/batch?ack=memory", &headers, lines)).await;
    assert_eq!(answer.problem(429, "too-fast").as_deref(), Some("refused"));
}

#[tokio::test]
async fn lines_over_a_quota_are_named_in_the_summary() {
    let quota =
        "[[quota]]\ngroup_prefix = \"small\"\nlive_mutators = 100\nnew_keys_per_minute = 3\n";
    let guarded = Guarded::new([("w", grant("", &Verb::ALL))], quota);
    let line = |at| json!({"kind": "counter", "group": "small", "name": format!("{at}"), "op": {"op": "add"}});
    let lines: Vec<String> = (1..=305).map(|at| line(at).to_string()).collect();
    let bearer = format!("Bearer {}", guarded.tokens["w"]);
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/x-ndjson")];
    let answer = guarded.pod.send(request("POST", "/v1/batch", &headers, lines.join("\n"))).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let summary = answer.json();
    assert_eq!((&summary["acked"], &summary["refused"]), (&json!(3), &json!(302)));
    let [range] = &summary["errors"].as_array().expect("errors")[..] else { panic!("{summary}") };
    assert_eq!((&range["first"], &range["last"]), (&json!(4), &json!(305)), "{range}");
    assert!(range["type"].as_str().is_some_and(|kind| kind.ends_with("over-quota")), "{range}");
}

#[tokio::test]
async fn a_stream_applies_no_line_after_its_token_expired() {
    let soon = SystemTime::now() + Duration::from_secs(100);
    let expires = format!("expires = \"{}\"\n", humantime::format_rfc3339_seconds(soon));
    let tokens = [("w", expires + &grant("", &Verb::ALL)), ("r", grant("", &Verb::ALL))];
    let guarded = Guarded::new(tokens, "");
    let line = json!({"kind": "counter", "group": "g", "name": "n", "op": {"op": "add"}});
    let (sender, chunks) = unbounded::<Result<String, std::io::Error>>();
    let bearer = format!("Bearer {}", guarded.tokens["w"]);
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/x-ndjson")];
    let request = request("POST", "/v1/batch", &headers, Body::from_stream(chunks));
    let expire = async {
        sender.unbounded_send(Ok(format!("{line}\n"))).expect("it is being read");
        while guarded.ask("r", "GET", "/v1/counter/g/n", "").await.status != StatusCode::OK {
            sleep(Duration::from_millis(20)).await;
        }
        guarded.pod.advance(Duration::from_secs(200));
        sender.unbounded_send(Ok(format!("\n{line}\n{line}\n"))).expect("it is being read");
        sender.close_channel();
    };
    let (answer, ()) = tokio::join!(guarded.pod.send(request), expire);
    assert_eq!(answer.problem(401, "unauthenticated").as_deref(), Some("unknown"));
    let summary = &answer.json()["summary"];
    assert_eq!((&summary["lines"], &summary["acked"]), (&json!(1), &json!(1)), "{summary}");
    assert!(answer.text.contains("Send the lines from line 2 on"), "{}", answer.text);
}

#[tokio::test]
async fn a_groups_quota_limits_no_other_group() {
    let quota = "[[quota]]\ngroup_prefix = \"small\"\nlive_mutators = 2\nnew_keys_per_minute = 3\n";
    let guarded = Guarded::new([("w", grant("", &Verb::ALL))], quota);
    let add = |group: &'static str, name: usize| {
        let guarded = &guarded;
        async move {
            guarded
                .ask("w", "POST", &format!("/v1/counter/{group}/{name}"), r#"{"op":"add"}"#)
                .await
        }
    };
    for name in 0..3 {
        // The third key evicts the first, which is clean by now.
        assert_eq!(add("small", name).await.status, StatusCode::OK, "{name}");
    }
    let answer = add("small", 3).await;
    assert_eq!(answer.problem(429, "over-quota").as_deref(), Some("refused"));
    assert_eq!(answer.header("retry-after"), "10");
    assert_eq!(add("small", 2).await.status, StatusCode::OK, "an existing key stays usable");
    assert_eq!(add("large", 0).await.status, StatusCode::OK);
    guarded.ask("w", "GET", "/v1/counter/small/3", "").await.problem(404, "key-absent");
}
