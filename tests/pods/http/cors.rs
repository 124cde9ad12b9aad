//! Pages of other origins: what browsers are told (CORS). It never changes what the server does.

use axum::http::{HeaderMap, StatusCode};
use orderfree::policy::{Policies, Verb};
use orderfree_core::protocol::{Constants, Overrides};

use crate::access::{Guarded, grant};
use crate::pod::{Answer, Pod, request};

const PAGE: &str = "https://example.org";
const ADMIN: &str = "https://admin.example.org";
const OTHER: &str = "https://other.example";

const POLICY: &str = r#"
[[cors]]
group_prefix = "site:"
origins = ["https://example.org"]

[[cors]]
group_prefix = "public:"
origins = ["*"]

[[cors]]
group_prefix = ""
origins = ["https://admin.example.org"]
"#;

fn guarded() -> Guarded {
    Guarded::new([("a", grant("", &Verb::ALL))], POLICY)
}

async fn preflight(pod: &Pod, origin: &str, path: &str) -> Answer {
    let headers = [("origin", origin), ("access-control-request-method", "POST")];
    pod.send(request("OPTIONS", path, &headers, "")).await
}

/// The names of the headers that a browser reads.
fn of_cors(headers: &HeaderMap) -> Vec<&str> {
    let names = headers.keys().map(|name| name.as_str());
    names.filter(|name| name.starts_with("access-control-")).collect()
}

fn vary(answer: &Answer) -> String {
    let values = answer.headers.get_all("vary").iter();
    values.map(|value| value.to_str().expect("ASCII")).collect::<Vec<_>>().join(", ")
}

#[tokio::test]
async fn an_origin_gets_what_the_policy_gives_it_and_no_more() {
    let Guarded { pod, .. } = guarded();
    for (path, origin, allowed) in [
        ("/v1/counter/site:a/n", PAGE, Some(PAGE)),
        ("/v1/counter/site%3Aa/n", PAGE, Some(PAGE)),
        ("/v1/counter/site:a", PAGE, Some(PAGE)),
        ("/v1/counter/public:a/n", PAGE, Some("*")),
        ("/v1/counter/public:a/n", "null", Some("*")),
        ("/v1/counter/site:a/n", ADMIN, Some(ADMIN)),
        ("/v1/counter/shop/n", ADMIN, Some(ADMIN)),
        ("/v1/batch", ADMIN, Some(ADMIN)),
        ("/v1/query", ADMIN, Some(ADMIN)),
        ("/v1/merge", ADMIN, Some(ADMIN)),
        ("/v1/kinds", ADMIN, Some(ADMIN)),
        // Requests about any groups need the empty prefix.
        ("/v1/batch", PAGE, None),
        ("/v1/query", PAGE, None),
        ("/v1/merge", PAGE, None),
        ("/v1/kinds", PAGE, None),
        ("/v1/counter/shop/n", PAGE, None),
        ("/v1/counter/site/n", PAGE, None),
        ("/v1/counter/%FF/n", PAGE, None),
        ("/v1/counter/site:a/n", OTHER, None),
        ("/v1/counter/site:a/n", "http://example.org", None),
        ("/v1/counter/site:a/n", "null", None),
        // Operators' routes, and those that are not for clients.
        ("/v1/counter", ADMIN, None),
        ("/v1/counter/site:a/n/shards", ADMIN, None),
        ("/v1/counter/site:a/n/fold", ADMIN, None),
        ("/v1/counter/public:a/n/discard", ADMIN, None),
        ("/metrics", ADMIN, None),
        ("/version", ADMIN, None),
        ("/openapi.json", ADMIN, None),
        ("/nonsense", ADMIN, None),
    ] {
        let answer = preflight(&pod, origin, path).await;
        let Some(allowed) = allowed else {
            assert!(answer.status.is_client_error(), "{origin} {path}: as without an origin");
            assert!(of_cors(&answer.headers).is_empty(), "{origin} {path}: {:?}", answer.headers);
            continue;
        };
        assert_eq!((answer.status, answer.text.as_str()), (StatusCode::NO_CONTENT, ""), "{path}");
        assert_eq!(answer.header("access-control-allow-origin"), allowed, "{origin} {path}");
        assert_eq!(answer.header("access-control-allow-methods"), "DELETE, GET, HEAD, POST");
        let headers = answer.header("access-control-allow-headers");
        for header in ["authorization", "content-type", "if-none-match", "prefer", "x-request-id"] {
            assert!(headers.split(", ").any(|allowed| allowed == header), "{header}: {headers}");
        }
        assert_eq!(answer.header("access-control-max-age"), "7200");
        assert_eq!(of_cors(&answer.headers).len(), 4, "no credentials: {:?}", answer.headers);
        assert_eq!(vary(&answer), "origin");
        assert!(!answer.header("x-request-id").is_empty());
    }
    // Only a browser's question has an answer of its own.
    let headers = [("origin", PAGE)];
    let path = "/v1/counter/site:a/n";
    let answer = pod.send(request("OPTIONS", path, &headers, "")).await;
    answer.problem(401, "unauthenticated");
}

#[tokio::test]
async fn a_page_can_read_its_answers_and_their_problems() {
    let guarded = guarded();
    let (key, add) = ("/v1/counter/site:a/n", r#"{"op":"add"}"#);
    let bearer = format!("Bearer {}", guarded.tokens["a"]);
    let ask = async |method, path: &str, origin: &str, body: &str| {
        let headers = [
            ("origin", origin),
            ("authorization", bearer.as_str()),
            ("content-type", "application/json"),
        ];
        guarded.pod.send(request(method, path, &headers, body.to_owned())).await
    };
    for (method, path, body, status) in [
        ("GET", key, "", 404),
        ("POST", key, "{", 400),
        ("PUT", key, "", 405),
        ("POST", key, add, 200),
        ("GET", key, "", 200),
        ("HEAD", key, "", 200),
        ("GET", "/v1/counter/site:a?limit=1", "", 200),
    ] {
        let answer = ask(method, path, PAGE, body).await;
        assert_eq!(answer.status.as_u16(), status, "{method} {path}: {}", answer.text);
        assert_eq!(answer.header("access-control-allow-origin"), PAGE);
        let exposed = answer.header("access-control-expose-headers");
        assert_eq!(exposed, "etag, link, location, retry-after, x-request-id");
        assert_eq!(of_cors(&answer.headers).len(), 2, "no credentials: {:?}", answer.headers);
        assert!(vary(&answer).ends_with("origin"), "{}", vary(&answer));
    }
    let tag = ask("GET", key, PAGE, "").await.header("etag").to_owned();
    let headers = [("origin", PAGE), ("authorization", &bearer), ("if-none-match", &tag)];
    let same = guarded.pod.send(request("GET", key, &headers, "")).await;
    assert_eq!((same.status, vary(&same).as_str()), (StatusCode::NOT_MODIFIED, "accept, origin"));
    assert_eq!(same.header("access-control-allow-origin"), PAGE);
    let stranger = guarded.pod.send(request("GET", key, &[("origin", PAGE)], "")).await;
    stranger.problem(401, "unauthenticated");
    assert_eq!(stranger.header("access-control-allow-origin"), PAGE);

    // The browser hides this answer from the page. The update counts like any other.
    let answer = ask("POST", key, OTHER, add).await;
    assert_eq!((answer.status.as_u16(), of_cors(&answer.headers).len()), (200, 0));
    let read = guarded.ask("a", "GET", key, "").await;
    assert_eq!((&read.json()["value"], vary(&read).as_str()), (&2.into(), "accept, origin"));
    let answer = guarded.ask("a", "POST", key, add).await;
    assert_eq!(vary(&answer), "", "no cache keeps it");
    assert_eq!(of_cors(&answer.headers).len(), 0);
}

#[tokio::test]
async fn without_a_policy_no_answer_depends_on_the_origin() {
    let pod = Pod::new();
    let key = "/v1/counter/site:a/n";
    preflight(&pod, PAGE, key).await.problem(405, "method-not-allowed");
    let answer = pod.send(request("POST", key, &[("origin", PAGE)], "")).await;
    assert_eq!((answer.status, vary(&answer).as_str()), (StatusCode::OK, ""));
    let answer = pod.send(request("GET", key, &[("origin", PAGE)], "")).await;
    assert_eq!((answer.status, vary(&answer).as_str()), (StatusCode::OK, "accept"));
    assert!(of_cors(&answer.headers).is_empty());
}

#[tokio::test]
async fn origins_follow_a_reload_and_wrong_ones_do_not_replace_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.toml");
    let write = |origin: &str| {
        let text = format!("[[cors]]\ngroup_prefix = \"\"\norigins = [{origin:?}]\n");
        std::fs::write(&file, text).expect("written");
    };
    write(PAGE);
    let constants = Constants::resolve(Overrides::default()).expect("defaults");
    let policies = Policies::open(Some(&file), constants).expect("a policy");
    let pod = Pod::with(policies.clone());
    let allowed = async || {
        let mut allowed = Vec::new();
        for origin in [PAGE, OTHER] {
            let answer = preflight(&pod, origin, "/v1/batch").await;
            allowed.push(answer.status == StatusCode::NO_CONTENT);
        }
        allowed
    };
    assert_eq!(allowed().await, [true, false]);
    write("https://other.example/page");
    let error = format!("{:#}", policies.reload().expect_err("no browser sends it"));
    assert!(error.contains("write \"https://other.example\""), "{error}");
    assert_eq!(allowed().await, [true, false], "the old one stays");
    write(OTHER);
    policies.reload().expect("a policy");
    assert_eq!(allowed().await, [false, true]);
}
