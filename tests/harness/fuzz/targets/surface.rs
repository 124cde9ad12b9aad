//! The HTTP interface: every answer is in the OpenAPI document, errors are complete problems, and refused requests
//! leave no trace.

use std::cell::OnceCell;
use std::sync::LazyLock;

use axum::http::{Method, StatusCode};
use orderfree::http::{ProblemType, openapi};
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_encode};
use serde_json::{Map, Value as Json};

use super::decoders::is_name;
use super::pod::{Answer, Pod, Values};
use super::requests::{self, Sent, Step};

/// Longer inputs only take more time.
const INPUT_BYTES_MAX: usize = 64 * 1024;

static DOCUMENT: LazyLock<Json> =
    LazyLock::new(|| serde_json::to_value(openapi()).expect("the document is JSON"));

/// Sends a sequence of requests to a new pod, and then to another one without the requests that were refused. Both
/// must end with the same values.
pub(super) fn run(input: &[u8]) {
    if input.len() > INPUT_BYTES_MAX {
        return;
    }
    let steps = requests::parse(input);
    let (statuses, values) = play(&steps);
    let is_kept = |(_, status): &(Step, Option<(StatusCode, bool)>)| {
        status.is_none_or(|(_, is_refused)| !is_refused)
    };
    let (kept, kept_statuses): (Vec<_>, Vec<_>) =
        steps.into_iter().zip(statuses.clone()).filter(is_kept).unzip();
    if kept.len() < statuses.len() {
        let (again, without) = play(&kept);
        assert_eq!(again, kept_statuses, "other answers without the refused requests");
        assert_eq!(without, values, "refused requests left a trace");
    }
}

/// Sends all requests. Returns each request's status and whether it was refused, and the stored values at the end.
fn play(steps: &[Step]) -> (Vec<Option<(StatusCode, bool)>>, Values) {
    let pod = Pod::new();
    let play = |step: &Step| match step {
        Step::Advance(seconds) => {
            pod.advance(*seconds);
            None
        }
        Step::Send(sent) => {
            let answer = pod.send(sent.request());
            let is_refused = check(sent, &answer);
            // It is chance whether a reset ends while its request waits.
            let is_reset = answer.header("location").is_some();
            Some((if is_reset { StatusCode::OK } else { answer.status }, is_refused))
        }
    };
    let statuses = steps.iter().map(play).collect();
    (statuses, pod.end())
}

/// Checks an answer. Returns whether it says that nothing was changed.
fn check(sent: &Sent, answer: &Answer) -> bool {
    let status = answer.status.as_u16();
    let shown = || format!("{sent:?}: {status} {}", String::from_utf8_lossy(&answer.bytes));
    assert!(status < 500 || status == 503, "{}", shown());
    assert!(answer.header("x-request-id").is_some_and(|id| !id.is_empty()), "{}", shown());
    let is_error = status >= 400;
    if is_error {
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{}", shown());
    }
    let is_head = sent.method == Method::HEAD;
    let problem = (is_error && !is_head).then(|| problem(answer));
    let slug = problem.as_ref().map(|problem| problem["type"].as_str().expect("text").to_owned());
    let is_anywhere = slug
        .as_deref()
        .and_then(|slug| slug.strip_prefix("/problems/"))
        .is_some_and(|slug| matches!(slug, "bad-address" | "bad-request" | "uri-too-long"));
    match documented(sent.uri.path()) {
        _ if is_anywhere || is_head => {}
        None => assert_eq!(status, 404, "{}", shown()),
        // Methods are case-sensitive.
        Some(item) => match item.get(match sent.method {
            Method::GET => "get",
            Method::POST => "post",
            Method::DELETE => "delete",
            _ => "another",
        }) {
            None => {
                assert_eq!(status, 405, "{}", shown());
                assert!(answer.header("allow").is_some(), "{}", shown());
            }
            Some(operation) => {
                let response = operation["responses"].get(status.to_string());
                let response = response.unwrap_or_else(|| panic!("undocumented: {}", shown()));
                check_content(response, answer, &shown());
            }
        },
    }
    // A stream can be applied in part. Everything else is all or nothing.
    let is_in_part = |problem: Map<String, Json>| {
        problem.contains_key("summary") && problem["outcome"] != "refused"
    };
    is_error && !problem.is_some_and(is_in_part)
}

fn check_content(response: &Json, answer: &Answer, shown: &str) {
    let Some(media) = response["content"].as_object() else {
        assert!(answer.bytes.is_empty(), "a body, but none is documented: {shown}");
        return;
    };
    let given = answer.header("content-type").expect("a content type");
    let essence = given.split(';').next().unwrap_or_default();
    assert!(media.contains_key(essence), "{essence} is not documented: {shown}");
    if essence == "application/x-ndjson" {
        let lines = answer.bytes.split_inclusive(|&byte| byte == b'\n');
        assert!(
            lines.into_iter().all(|line| serde_json::from_slice::<Json>(line).is_ok()),
            "{shown}"
        );
    } else if essence.ends_with("json") {
        answer.json();
    }
}

/// The problem in an error, which must be complete.
fn problem(answer: &Answer) -> Map<String, Json> {
    let json = answer.json();
    let problem = json.as_object().expect("a problem is an object").clone();
    let text = |name: &str| problem[name].as_str().unwrap_or_else(|| panic!("{name}: {json}"));
    let slug = text("type").strip_prefix("/problems/").expect("a page of this server");
    let entry = ProblemType::from_slug(slug).expect("a type of the catalog").entry();
    assert_eq!(entry.status, answer.status, "{json}");
    assert_eq!(problem["status"], answer.status.as_u16());
    assert_eq!(text("title"), entry.title);
    assert!(text("detail").ends_with('.'), "no sentence: {json}");
    assert_eq!(Some(text("instance")), answer.header("x-request-id"));
    let is_unknown = problem.get("outcome").is_some_and(|outcome| outcome == "unknown");
    // An earlier request with the id may be counted. This one is not.
    let is_late = matches!(slug, "id-expired" | "id-before-reset");
    assert!(!is_unknown || is_late || problem.contains_key("summary"), "nothing was torn: {json}");
    problem
}

/// The methods of the route for a path, if there is one.
fn documented(path: &str) -> Option<&'static Json> {
    let parts: Vec<&str> = path.split('/').collect();
    let fits = |template: &str| {
        let template: Vec<&str> = template.split('/').collect();
        let is_same = |(known, part): (&&str, &&str)| known == part || known.starts_with('{');
        template.len() == parts.len()
            && template.iter().zip(&parts).all(is_same)
            && (parts.last() != Some(&"") || path == "/")
    };
    let mut routes = DOCUMENT["paths"].as_object().expect("paths").iter();
    // Literal parts win over parameters, in the order of the document as in the router.
    routes.find(|(template, _)| fits(template)).map(|(_, item)| item)
}

/// Two texts as group and name of an address, with as little and as much percent-encoding as possible.
pub(super) fn address(input: &[u8]) {
    /// Characters that would end a part of a path.
    const LEAST: &AsciiSet = &CONTROLS.add(b'/').add(b'?').add(b'#').add(b'%').add(b' ').add(b'"');
    let mut texts = input.splitn(2, |&byte| byte == b'\n');
    let (group, name) = (texts.next().unwrap_or_default(), texts.next().unwrap_or_default());
    let answers = [LEAST, NON_ALPHANUMERIC].map(|set| {
        let (group, name) = (percent_encode(group, set), percent_encode(name, set));
        let address = format!("/v1/counter/{group}/{name}?default=7");
        // A client can't send something that is not a URI.
        let uri = address.parse::<axum::http::Uri>().ok()?;
        Some((address.len(), with_pod(|pod| pod.get(&uri.to_string()))))
    });
    for (bytes, answer) in answers.into_iter().flatten() {
        let texts = [group, name];
        let status = answer.status.as_u16();
        if bytes > orderfree::limits::URI_BYTES_MAX {
            assert_eq!(status, 414, "{input:?}");
        } else if name.is_empty() {
            assert_eq!(status, 404, "{input:?}");
        } else if texts.iter().all(|text| is_name(text) && !matches!(*text, b"." | b"..")) {
            let json = answer.json();
            assert_eq!((status, &json["value"]), (200, &7.into()), "{json}");
            let given = texts.map(|text| std::str::from_utf8(text).expect("a name is UTF-8"));
            assert_eq!((json["group"].as_str(), json["name"].as_str()), given.map(Some).into());
        } else {
            assert_eq!(status, 400, "{input:?}");
            problem(&answer);
        }
    }
}

/// A shared pod for targets that change nothing that another input could see. Opening one for each input would take
/// longer than the input.
pub(super) fn with_pod<T>(action: impl FnOnce(&Pod) -> T) -> T {
    thread_local! {
        static POD: OnceCell<Pod> = const { OnceCell::new() };
    }
    POD.with(|pod| action(pod.get_or_init(Pod::new)))
}
