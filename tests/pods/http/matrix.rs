//! Every verb of every route, tried by tokens that have the right and tokens that do not. No documented route is left
//! out.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::http::StatusCode;
use orderfree::http::openapi;
use orderfree::policy::Verb;
use serde_json::{Value, json};

use crate::access::{Guarded, grant};
use crate::pod::{Answer, Fault};

/// The tokens and groups of the matrix.
const MANY: usize = 20;

/// Routes that need no token.
pub(crate) const OPEN_ROUTES: [&str; 10] = [
    "/",
    "/page/app.js",
    "/page/app.css",
    "/livez",
    "/readyz",
    "/version",
    "/openapi.json",
    "/docs",
    "/problems",
    "/problems/{slug}",
];

/// Routes that need a token but name no group. The last two are for tokens with `admin` on some group.
pub(crate) const TOKEN_ROUTES: [(&str, &str); 4] =
    [("POST", "/v1/ids"), ("GET", "/v1/kinds"), ("GET", "/v1/hottest"), ("GET", "/metrics")];

const KEY: &str = "/v1/{kind}/{group}/{name}";

/// How an answer shows that a request was allowed, unless it is a problem of its own.
#[derive(Clone, Copy)]
enum Shown {
    /// By its status.
    Status,
    /// By the one item of a batch or a query.
    Item,
    /// By the one line of a stream.
    Line,
    /// By the group in a list.
    List,
    /// By a 404: the key was looked for.
    Absence,
}

/// A request about one group.
pub(crate) struct Asked {
    pub(crate) method: &'static str,
    /// The path in the document.
    route: &'static str,
    pub(crate) path: String,
    /// The type of the body; `None` without a body.
    pub(crate) media: Option<&'static str>,
    pub(crate) body: String,
    /// The rights that it needs.
    verbs: &'static [Verb],
    shown: Shown,
}

impl Asked {
    /// A request without a body that needs the right to read.
    pub(crate) fn plain(method: &'static str, route: &'static str, path: String) -> Asked {
        let (verbs, body) = (&[Verb::Read], String::new());
        Asked { method, route, path, media: None, body, verbs, shown: Shown::Status }
    }

    fn takes(self, verbs: &'static [Verb]) -> Asked {
        Asked { verbs, ..self }
    }

    fn with(self, media: &'static str, body: impl ToString) -> Asked {
        Asked { media: Some(media), body: body.to_string(), ..self }
    }

    fn shows(self, shown: Shown) -> Asked {
        Asked { shown, ..self }
    }

    /// Whether it adds 1 to the key `n`.
    fn adds(&self) -> bool {
        self.verbs.contains(&Verb::Write)
    }

    /// Whether it was allowed.
    fn is_allowed(&self, answer: &Answer, group: &str) -> bool {
        if answer.status == StatusCode::FORBIDDEN {
            answer.problem(403, "forbidden");
            return false;
        }
        if let (Shown::Absence, StatusCode::NOT_FOUND) = (self.shown, answer.status) {
            let is_reset = self.route.ends_with("/resets/{id}");
            answer.problem(404, if is_reset { "reset-absent" } else { "key-absent" });
            return true;
        }
        assert_eq!(answer.status, StatusCode::OK, "{} {}", self.path, answer.text);
        match self.shown {
            Shown::Status | Shown::Absence => true,
            Shown::Item => match answer.json()["results"][0]["problem"]["type"].as_str() {
                Some("/problems/forbidden") => false,
                None => true,
                Some(other) => panic!("{}: {other}", self.path),
            },
            Shown::Line => {
                let summary = answer.json();
                let is_acked = summary["acked"] == 1;
                let title = &summary["errors"][0]["title"];
                assert!(is_acked || title == "Not allowed", "{summary}");
                is_acked
            }
            Shown::List => {
                let list = answer.json();
                assert!(list["next"].is_null(), "{list}");
                list["groups"].as_array().expect("groups").contains(&json!(group))
            }
        }
    }
}

/// All requests about a group, including a discard of `row`.
pub(crate) fn requests(group: &str, row: &str) -> Vec<Asked> {
    const JSON: &str = "application/json";
    const WRITE: &[Verb] = &[Verb::Write];
    const ADMIN: &[Verb] = &[Verb::Admin];
    const RESET: &[Verb] = &[Verb::Reset];
    const BOTH: &[Verb] = &[Verb::Write, Verb::Read];
    let of = |kind: &str, rest: Value| {
        let mut whole = json!({"kind": kind, "group": group});
        let rest = rest.as_object().expect("an object").clone();
        whole.as_object_mut().expect("an object").extend(rest);
        whole
    };
    let key = |rest: &str| format!("/v1/counter/{group}/{rest}");
    let add = json!({"op": "add"});
    let item = of("counter", json!({"name": "n", "op": add}));
    let update = |query: &str| Asked::plain("POST", KEY, key(&format!("n{query}"))).takes(WRITE);
    let post = |route: &'static str| Asked::plain("POST", route, route.to_owned());
    let expression = of("audience", json!({"expression": {"and": ["a", {"not": "b"}]}}));
    vec![
        Asked::plain("GET", KEY, key("n")),
        Asked::plain("GET", "/v1/{kind}/{group}/{name}/badge.svg", key("n/badge.svg")),
        Asked::plain("GET", "/v1/{kind}/{group}", format!("/v1/counter/{group}")),
        post("/v1/query")
            .with(JSON, json!({"keys": [of("counter", json!({"name": "n"}))]}))
            .shows(Shown::Item),
        post("/v1/watch").with(JSON, json!({"keys": [of("counter", json!({"name": "n"}))]})),
        Asked::plain("GET", "/v1/watch", format!("/v1/watch?key=counter/{group}/n")),
        post("/v1/merge").with(JSON, of("counter", json!({"names": ["n"]}))),
        post("/v1/merge").with(JSON, expression).shows(Shown::Absence),
        update(""),
        update("").with(JSON, &add),
        update("").with("text/plain", "1"),
        update("?return=value").with(JSON, &add).takes(BOTH),
        post("/v1/batch").takes(WRITE).with(JSON, json!({"updates": [item]})).shows(Shown::Item),
        post("/v1/batch").takes(WRITE).with("application/x-ndjson", &item).shows(Shown::Line),
        Asked::plain("GET", "/v1/{kind}/{group}/{name}/shards", key("n/shards")).takes(ADMIN),
        Asked::plain("POST", "/v1/{kind}/{group}/{name}/fold", key("n/fold?dry_run")).takes(ADMIN),
        Asked::plain("POST", "/v1/{kind}/{group}/{name}/fold", key("n/fold")).takes(ADMIN),
        Asked::plain("POST", "/v1/{kind}/{group}/{name}/discard", {
            key(&format!("home/discard?mutator_id={row}"))
        })
        .takes(ADMIN),
        Asked::plain("GET", "/v1/{kind}", "/v1/counter".to_owned()).takes(ADMIN).shows(Shown::List),
        Asked::plain("POST", "/v1/{kind}/{group}/{name}/reset", key("absent/reset"))
            .takes(RESET)
            .shows(Shown::Absence),
        Asked::plain("DELETE", KEY, key("absent")).takes(RESET).shows(Shown::Absence),
        Asked::plain("DELETE", "/v1/{kind}/{group}", {
            format!("/v1/counter/{group}?prefix=absent")
        })
        .takes(RESET),
        Asked::plain("GET", "/v1/{kind}/{group}/{name}/resets/{id}", {
            key("n/resets/1-00000000000000000000000000000000")
        })
        .takes(RESET)
        .shows(Shown::Absence),
    ]
}

/// The rights of group owners: each combination of verbs, in turn.
fn verbs_of(index: usize) -> Vec<Verb> {
    let bits = index % 15 + 1;
    let chosen = Verb::ALL.iter().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1);
    chosen.map(|(_, verb)| *verb).collect()
}

fn group_of(index: usize) -> String {
    format!("g{index:02}")
}

/// Some may also read everything with this prefix.
fn prefix_of(index: usize) -> Option<&'static str> {
    index.is_multiple_of(5).then(|| ["g0", "g1"][index / 5 % 2])
}

/// Twenty tokens that each own a group, and one with all rights. Each group has a final shard of the key `n`, which a
/// fold takes, and a row of the key `home` that can't be decoded.
async fn twenty() -> (Guarded, Vec<String>) {
    let names: Vec<String> = (0..MANY).map(|index| format!("t{index}")).collect();
    let tokens = names.iter().enumerate().map(|(index, name)| {
        let mut lines = grant(&group_of(index), &verbs_of(index));
        lines.extend(prefix_of(index).map(|prefix| grant(prefix, &[Verb::Read])));
        (name.as_str(), lines)
    });
    let guarded = Guarded::new(tokens.chain([("all", grant("", &Verb::ALL))]), "");
    let mut rows = Vec::new();
    for index in 0..MANY {
        let group = format!("/v1/counter/{}", group_of(index));
        for name in ["n", "home"] {
            let path = format!("{group}/{name}");
            let answer = guarded.ask("all", "POST", &path, r#"{"op":"add"}"#).await;
            assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        }
        let shards = guarded.ask("all", "GET", &format!("{group}/home/shards"), "").await.json();
        rows.push(shards["shards"][0]["mutator_id"].as_str().expect("an id").to_owned());
    }
    // The lifetime is 60 s, and the cutoff is 30 s.
    guarded.pod.advance(Duration::from_secs(95));
    guarded.pod.set(Fault::Damaged);
    (guarded, rows)
}

#[tokio::test]
async fn a_matrix_of_tokens_groups_and_verbs_has_no_leak() {
    let (guarded, rows) = twenty().await;
    let mut added = vec![1; MANY];
    let mut allowed = vec![0; requests("g", "id").len()];
    for index in 0..MANY {
        let token = format!("t{index}");
        for (other, row) in rows.iter().enumerate() {
            let group = group_of(other);
            let mut verbs = if other == index { verbs_of(index) } else { Vec::new() };
            let by_prefix = prefix_of(index).is_some_and(|prefix| group.starts_with(prefix));
            verbs.extend(by_prefix.then_some(Verb::Read));
            for (asked, allowed) in requests(&group, row).iter().zip(&mut allowed) {
                let may = asked.verbs.iter().all(|verb| verbs.contains(verb));
                let answer = guarded.send(&token, asked).await;
                let Asked { method, path, body, .. } = asked;
                let is_allowed = asked.is_allowed(&answer, &group);
                assert_eq!(is_allowed, may, "{token} {method} {path} {body}: {}", answer.text);
                *allowed += usize::from(may);
                added[other] += usize::from(may && asked.adds());
            }
        }
        let [ids, kinds, hottest, metrics] = TOKEN_ROUTES;
        for (method, path) in [ids, kinds] {
            assert_eq!(guarded.ask(&token, method, path, "").await.status, StatusCode::OK);
        }
        for (method, path) in [hottest, metrics] {
            let answer = guarded.ask(&token, method, path, "").await;
            if verbs_of(index).contains(&Verb::Admin) {
                assert_eq!(answer.status, StatusCode::OK, "{token}");
            } else {
                answer.problem(403, "forbidden");
            }
        }
    }
    assert!(allowed.iter().all(|count| (5..MANY * MANY / 2).contains(count)), "{allowed:?}");
    nothing_is_left_of_what_was_denied(&guarded, &added).await;
}

/// Each group has the effects of the allowed requests, and no others.
async fn nothing_is_left_of_what_was_denied(guarded: &Guarded, added: &[usize]) {
    for (index, added) in added.iter().enumerate() {
        let group = format!("/v1/counter/{}", group_of(index));
        let ask =
            async |rest: &str| guarded.ask("all", "GET", &format!("{group}/{rest}"), "").await;
        assert_eq!(ask("n").await.json()["value"], json!(added), "{group}");
        let shards = ask("n/shards").await.json();
        let home = ask("home/shards").await;
        if verbs_of(index).contains(&Verb::Admin) {
            assert!(!shards["tally"].is_null(), "{group} is not folded: {shards}");
            home.problem(404, "key-absent");
        } else {
            assert!(shards["tally"].is_null(), "{group} is folded: {shards}");
            assert_eq!(home.status, StatusCode::OK, "{group}: a row is gone");
        }
    }
}

/// Each method of each route, with each type of body.
#[test]
fn the_matrix_has_every_route_of_the_document() {
    let document = serde_json::to_value(openapi()).expect("JSON");
    let no_body = serde_json::Map::from_iter([(String::new(), Value::Null)]);
    let mut documented = BTreeSet::new();
    for (route, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("methods") {
            let bodies = operation["requestBody"]["content"].as_object().unwrap_or(&no_body);
            for media in bodies.keys() {
                documented.insert((method.to_uppercase(), route.clone(), media.clone()));
            }
        }
    }
    let asked = requests("g", "id");
    let asked = asked.iter().map(|asked| (asked.method, asked.route, asked.media.unwrap_or("")));
    let open = OPEN_ROUTES.iter().map(|route| ("GET", *route, ""));
    // `pictures` tries it: the policy decides instead of a token.
    let open = open.chain([("GET", "/hit/{group}/{file}", "")]);
    let others = open.chain(TOKEN_ROUTES.map(|(method, route)| (method, route, "")));
    let covered: BTreeSet<_> = asked
        .chain(others)
        // An update can also have no body.
        .filter(|one| *one != ("POST", KEY, ""))
        .map(|(method, route, media)| (method.to_owned(), route.to_owned(), media.to_owned()))
        .collect();
    let apart: Vec<_> = covered.symmetric_difference(&documented).collect();
    assert!(apart.is_empty(), "in the matrix or in the document alone: {apart:#?}");
}
