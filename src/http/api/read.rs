//! `GET`: reads one key, or the keys of a group.

use std::hash::{DefaultHasher, Hasher};
use std::mem;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use orderfree_core::crdt::{self, Kind, Value};
use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::{Key, Name};
use serde::Serialize;
use utoipa::ToSchema;

use crate::engine::service::{GroupQuery, KeyValue, ReadError, Sight};
use crate::http::body::extract::{self, BYTES, JSON, NDJSON, TEXT};
use crate::http::body::parameters::{
    self, CONSISTENCY, DEFAULT, IfNoneMatch, Parameter, Query, ValueParams, Values, params,
};
use crate::http::body::schemas::text;
use crate::http::body::wire::{KeyValueView, KeyView, Shown, ValueView, write_json};
use crate::http::catalog::ProblemType;
use crate::http::guard::access::{GroupPath, KeyPath};
use crate::http::problem::{Problem, ProblemBody};
use crate::http::state::AppState;
use crate::http::state::Served;
use crate::http::state::Shared;
use crate::limits;
use crate::policy::Verb;

params! {
    /// Query parameters of a read.
    struct ReadParams {
        level: Option<Level> = CONSISTENCY,
        max_staleness: Duration = MAX_STALENESS,
        default: Option<String> = DEFAULT,
        value: ValueParams,
    }
}

const MAX_STALENESS: Parameter<Duration> = Parameter {
    name: "max_staleness",
    description: "How old the answer can be, up to `1h`, such as `500ms` or `5s`. Cheaper for values that \
                  many clients read",
    example: Some("5s"),
    values: Values::Text {
        schema: || text().pattern(Some("^(0|[0-9]{1,6}ms|[0-9]{1,3}s|[1-5]?[0-9]m|1h)$")),
        parse: staleness,
    },
    absent: Some(Duration::ZERO),
};

fn staleness(text: &str) -> Result<Duration, String> {
    let rule = || format!("{text:?} is not a duration up to 1h, such as 500ms or 5s");
    let span = humantime::parse_duration(text).map_err(|_| rule())?;
    if span <= limits::STALENESS_MAX { Ok(span) } else { Err(rule()) }
}

/// What a read at this level, which found nothing, can have missed: nothing, or a sentence after a space.
pub(super) fn what_is_missed(app: &AppState, level: Option<Level>) -> String {
    match app.service.sight(level) {
        (_, Sight::All) => String::new(),
        (level, Sight::Local(name)) => format!(
            " A read at {level} sees what pods in data centre {name} counted; one at each_quorum sees \
             all."
        ),
        (level, Sight::Nothing) => {
            format!(" A read at {level} can miss updates; one at all sees every update.")
        }
    }
}

/// Read a key
///
/// At a consistency level that overlaps the write level, the value includes every update that was
/// acknowledged before the read began. If the answer has a `datacenter`, it includes those that pods of this
/// data centre acknowledged, and can lack some of the others. `as_of` is the time when the read began. With `max_staleness`, the
/// server can return the result of an earlier read that began no longer ago than that. The entity tag
/// covers everything in the answer except `as_of`. As `application/octet-stream`, a `distinct` or an
/// `audience` is its sketch in the format of Apache DataSketches.
#[utoipa::path(
    get, path = "/v1/{kind}/{group}/{name}", tag = "keys",
    params(KeyPath, ReadParams, IfNoneMatch),
    responses(
        (status = 200, description = "The value", content(
            (KeyValueView = "application/json"),
            (String = "text/plain", example = json!("1234\n")),
            (Vec<u8> = "application/octet-stream"),
        ), headers(("ETag" = String, description = "Entity tag"))),
        (status = 304, description = "The answer has not changed"),
    )
)]
pub(crate) async fn read(
    State(served): State<Served>,
    path: KeyPath,
    Query(params): Query<ReadParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let app = &served.app;
    extract::of_read(&headers)?;
    let (key, _) = path.to(Verb::Read)?;
    params.value.check(&[key.kind])?;
    let media = extract::negotiate_value(&headers, &[JSON, TEXT, BYTES], key.kind)?;
    let substitute = Substitute::given(params.default.as_deref(), key.kind)?;
    // Take the time before the read: the answer includes every update acknowledged before it.
    let as_of = app.service.now().wall.minus(params.max_staleness);
    let read = match params.max_staleness {
        Duration::ZERO => app.service.read(&key, params.level).await,
        stale => app.service.read_recent(&key, params.level, stale).await,
    };
    let read = read.map_err(|error| problem_of(error, &key.to_string()))?;
    let (state, value) = match (&read, &substitute) {
        (Some(read), _) => (Some(&read.state), ValueView::new(read, &params.value)),
        (None, Some(substitute)) => {
            let sight = app.service.sight(params.level);
            let value = substitute.shown(Some(&key), &params.value);
            (substitute.state(), ValueView::absent(key.kind, value, as_of, sight))
        }
        (None, None) => {
            let missed = what_is_missed(app, params.level);
            let detail =
                format!("{key} does not exist; POST to it, or read with ?default=empty.{missed}");
            return Err(Problem::new(ProblemType::KeyAbsent, detail));
        }
    };
    if media == BYTES
        && let Some(bytes) = state.and_then(crdt::State::export)
    {
        return Ok(respond_bytes(bytes));
    }
    let text = if media == TEXT { value.value.bare(key.kind) } else { None };
    let view = KeyValueView { key: (&key).into(), value };
    Ok(respond(&view, text, &headers))
}

/// What `?default=` shows for a key that does not exist.
pub(crate) enum Substitute {
    /// The state of a key without ops.
    Empty(crdt::State),
    /// The value that the client wrote.
    Bare(Value),
}

impl Substitute {
    /// Reads the parameter for a key of this kind, if it is given.
    pub(crate) fn given(text: Option<&str>, kind: Kind) -> Result<Option<Substitute>, Problem> {
        let Some(text) = text else { return Ok(None) };
        if text == "empty" {
            return Ok(Some(Substitute::Empty(crdt::State::new(kind, None))));
        }
        let value = kind.parse_value(text).ok_or_else(|| {
            let rule = format!("{text:?} is neither `empty` nor a bare value of kind {kind}");
            parameters::refuse(DEFAULT.name, &rule)
        })?;
        Ok(Some(Substitute::Bare(value)))
    }

    fn state(&self) -> Option<&crdt::State> {
        match self {
            Substitute::Empty(state) => Some(state),
            Substitute::Bare(_) => None,
        }
    }

    pub(crate) fn shown(&self, key: Option<&Key>, params: &ValueParams) -> Shown {
        match self {
            Substitute::Empty(state) => Shown::of(state, key, params),
            Substitute::Bare(value) => Shown::new(value.clone(), params.as_digits),
        }
    }
}

/// The problem of a read. Adds the key if the error does not name it.
pub(crate) fn problem_of(error: ReadError, key: &str) -> Problem {
    match error {
        ReadError::Store(error) => Problem::from(error).within(key),
        ReadError::TooLarge | ReadError::TooLargeToWatch => Problem::from(error).within(key),
        ReadError::Overloaded(_) | ReadError::Bug | ReadError::Row { .. } => error.into(),
    }
}

/// The state in the format of another library.
fn respond_bytes(bytes: Vec<u8>) -> Response {
    let no_cache = (header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    let vary = (header::VARY, HeaderValue::from_static("accept"));
    let media = (header::CONTENT_TYPE, HeaderValue::from_static(BYTES));
    ([media, vary, no_cache], bytes).into_response()
}

/// Answers with the text of the value, if there is one, or with the view.
fn respond(view: &KeyValueView, text: Option<String>, headers: &HeaderMap) -> Response {
    let (media, body, tag) = match text {
        Some(text) => {
            let tag = format!("W/\"t{:016x}\"", hash_of(&[text.as_bytes()]));
            ("text/plain; charset=utf-8", text.into_bytes(), tag)
        }
        None => {
            let body = serde_json::to_vec(view).expect("invariant: a view is JSON");
            let tag = json_tag(&body, &view.value.as_of);
            (JSON, body, tag)
        }
    };
    let common = [
        (header::ETAG, HeaderValue::from_str(&tag).expect("invariant: hexadecimal digits")),
        (header::VARY, HeaderValue::from_static("accept")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    if matches_tag(headers, &tag) {
        (StatusCode::NOT_MODIFIED, common).into_response()
    } else {
        (common, [(header::CONTENT_TYPE, HeaderValue::from_static(media))], body).into_response()
    }
}

/// The entity tag of the JSON of a read.
pub(crate) fn tag_of(body: &str, as_of: &str) -> String {
    json_tag(body.as_bytes(), as_of)
}

/// The tag leaves out `as_of`, which changes with every read. All tags are weak, because the same value has
/// other bytes when it is compressed.
fn json_tag(body: &[u8], as_of: &str) -> String {
    const FIELD: &[u8] = b"\"as_of\":\"";
    // The value, which can have such a field too, comes before the answer's own.
    let at = body.windows(FIELD.len()).rposition(|part| part == FIELD);
    let (before, rest) = body.split_at(at.expect("invariant: answers have this field"));
    format!("W/\"j{:016x}\"", hash_of(&[before, &rest[FIELD.len() + as_of.len()..]]))
}

fn hash_of(parts: &[&[u8]]) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.iter().for_each(|part| hasher.write(part));
    hasher.finish()
}

/// Uses the weak comparison, as `If-None-Match` requires.
pub(crate) fn matches_tag(headers: &HeaderMap, tag: &str) -> bool {
    let opaque = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    let given =
        headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    given.flat_map(|value| value.split(',')).any(|given| {
        let given = opaque(given);
        given == "*" || given == opaque(tag)
    })
}

params! {
    /// Query parameters of a group's read.
    struct GroupParams {
        prefix: Option<Name> = parameters::name("prefix", "Only names with this prefix"),
        from: Option<Name> = parameters::name(
            "from",
            "Only this name and those after it, in the order of UTF-8 bytes",
        ),
        to: Option<Name> = parameters::name("to", "Only names before this one"),
        limit: usize = parameters::limit("Maximum number of keys"),
        behind: Option<Name> = parameters::cursor(read_cursor),
        level: Option<Level> = CONSISTENCY,
        value: ValueParams,
    }
}

/// A page of the keys of a group.
#[derive(Debug, ToSchema)]
#[allow(dead_code, reason = "described, and written by `Page`")]
pub(crate) struct GroupView {
    #[schema(example = "counter")]
    kind: &'static str,
    #[schema(example = "site")]
    group: String,
    /// The keys, sorted by the UTF-8 bytes of their names.
    keys: Vec<NameValueView>,
    /// The `cursor` of the next page. Null on the last page.
    next: Option<String>,
}

/// A name in the group, with its value or with the problem of the read.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NameValueView {
    #[schema(example = "home")]
    name: String,
    #[serde(flatten)]
    value: ValueOrProblem,
}

/// A key with its value, or with the problem of the read.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeyLine {
    #[serde(flatten)]
    key: KeyView,
    #[serde(flatten)]
    value: ValueOrProblem,
}

/// The result of one of several reads.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum ValueOrProblem {
    /// The value.
    Value(ValueView),
    /// Why there is no value.
    Problem {
        #[schema(value_type = ProblemBody)]
        problem: Problem,
    },
}

impl ValueOrProblem {
    fn of(read: Result<KeyValue, ReadError>, key: &Key, params: &ValueParams) -> ValueOrProblem {
        match read {
            Ok(read) => ValueOrProblem::Value(ValueView::new(&read, params)),
            Err(error) => ValueOrProblem::Problem { problem: problem_of(error, &key.to_string()) },
        }
    }
}

/// Read the keys of a group
///
/// Each value is as in a read of its key, but the page is not a snapshot. If several data centres have replicas,
/// names that only pods of another one have counted can be missing: `consistency=each_quorum` lists all of them. The
/// `Link` header and `next` lead to the next page. A page has fewer keys if they are large, and can be empty if many
/// keys of the group were forgotten. A key that can't be read has a `problem` instead of a value and does not affect
/// the other keys.
#[utoipa::path(
    get, path = "/v1/{kind}/{group}", tag = "keys",
    params(GroupPath, GroupParams),
    responses(
        (status = 200, description = "A page of keys. As NDJSON, one key per line", content(
            (GroupView = "application/json", example = json!({"kind": "counter", "group": "site",
                "keys": [{"name": "about", "problem": {"type": "/problems/undecodable",
                        "title": "A row can't be decoded", "status": 500, "detail": "The key \
                        counter/site/about can't be read: row (expires_at 1795248000123456, mutator \
                        6f9619ff-8b86-4011-b42d-00c04fc964ff) is undecodable: unknown magic byte 0x00."}},
                    {"name": "home", "value": 1234, "exact": true,
                    "as_of": "2026-11-21T08:00:00.123456Z", "consistency": "local_quorum",
                    "shards": 7, "folded_through": null}],
                "next": null})),
            (KeyLine = "application/x-ndjson"),
        ), headers(("Link" = String, description = "rel=\"next\", if there is a next page"))),
    )
)]
pub(crate) async fn read_group(
    State(served): State<Served>,
    path: GroupPath,
    Query(params): Query<GroupParams>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    extract::of_read(&headers)?;
    let Shared { app, turns, .. } = &*served;
    let (kind, group) = path.to(Verb::Read)?;
    params.value.check(&[kind])?;
    let query = GroupQuery {
        kind,
        group: group.clone(),
        prefix: params.prefix,
        from: params.from,
        to: params.to,
        behind: params.behind,
        limit: params.limit,
        level: params.level,
    };
    let _turn = turns.page(kind, query.limit).await?;
    let is_lines = extract::negotiate(&headers, &[JSON, NDJSON]) == NDJSON;
    let mut page = Page::new(kind, &group, is_lines);
    let next = app.service.read_group(&query, |name, value| {
        let key = Key { kind, group: group.clone(), name };
        let value = ValueOrProblem::of(value, &key, &params.value);
        page.add(&key, value)
    });
    let next = next.await.map_err(|error| problem_of(error, &format!("{kind}/{group}")))?;
    let next = next.as_ref().map(cursor);
    let media = if is_lines { NDJSON } else { JSON };
    let mut response = ([(header::CONTENT_TYPE, media)], page.end(next.as_deref())).into_response();
    let link = next.and_then(|next| HeaderValue::from_str(&link(&uri, &next)).ok());
    response.headers_mut().extend(link.map(|link| (header::LINK, link)));
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
    Ok(response)
}

/// The text of a page. It is written key by key, so that the page does not hold all values in memory.
struct Page {
    text: Vec<u8>,
    is_lines: bool,
    is_empty: bool,
}

impl Page {
    fn new(kind: Kind, group: &Name, is_lines: bool) -> Page {
        let mut text = Vec::new();
        if !is_lines {
            text.extend_from_slice(b"{\"kind\":");
            write_json(&mut text, kind.name());
            text.extend_from_slice(b",\"group\":");
            write_json(&mut text, group.as_str());
            text.extend_from_slice(b",\"keys\":[");
        }
        Page { text, is_lines, is_empty: true }
    }

    /// Appends a key. Returns the size of the text.
    fn add(&mut self, key: &Key, value: ValueOrProblem) -> usize {
        if self.is_lines {
            write_json(&mut self.text, &KeyLine { key: key.into(), value });
            self.text.push(b'\n');
        } else {
            if !mem::take(&mut self.is_empty) {
                self.text.push(b',');
            }
            write_json(&mut self.text, &NameValueView { name: key.name.to_string(), value });
        }
        self.text.len()
    }

    fn end(mut self, next: Option<&str>) -> Vec<u8> {
        if !self.is_lines {
            self.text.extend_from_slice(b"],\"next\":");
            write_json(&mut self.text, &next);
            self.text.push(b'}');
        }
        self.text
    }
}

/// The cursor after a page: the page's last name, encoded so that clients do not treat it as a name.
fn cursor(last: &Name) -> String {
    URL_SAFE_NO_PAD.encode(last.as_str())
}

fn read_cursor(text: &str) -> Result<Option<Name>, String> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok();
    let name = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    match name.and_then(|name| Name::new(&name).ok()) {
        Some(name) => Ok(Some(name)),
        None => Err(format!("{text:?} is not the `next` of an earlier page")),
    }
}

/// A link to the next page, relative to the request: the request's query with another cursor.
fn link(uri: &Uri, cursor: &str) -> String {
    let kept = uri.query().unwrap_or("").split('&');
    let mut query: Vec<&str> =
        kept.filter(|pair| !pair.is_empty() && pair.split('=').next() != Some("cursor")).collect();
    let cursor = format!("cursor={cursor}");
    query.push(&cursor);
    format!("<?{}>; rel=\"next\"", query.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_round_trip_and_forged_ones_are_refused() {
        let name = Name::new("page:home ☃/2026").expect("name");
        assert_eq!(read_cursor(&cursor(&name)), Ok(Some(name)));
        for forged in ["", "=", "a", "AAAA", "ÄÄ"] {
            assert!(read_cursor(forged).is_err(), "{forged}");
        }
    }

    #[test]
    fn the_next_page_keeps_the_query() {
        let uri: Uri = "/v1/counter/g?limit=2&cursor=old&prefix=a%20b".parse().expect("URI");
        assert_eq!(link(&uri, "new"), "<?limit=2&prefix=a%20b&cursor=new>; rel=\"next\"");
    }

    #[test]
    fn a_tag_covers_the_value_and_not_the_time_of_the_answer() {
        let tag = |inner: &str, as_of: &str| {
            let body = format!(r#"{{"value":{{"as_of":"{inner}"}},"as_of":"{as_of}","shards":1}}"#);
            json_tag(body.as_bytes(), as_of)
        };
        assert_eq!(tag("a", "1"), tag("a", "2"));
        assert_ne!(tag("a", "1"), tag("b", "1"));
    }

    #[test]
    fn entity_tags_are_compared_weakly() {
        let given = |text: &'static str| {
            let value = HeaderValue::from_static(text);
            HeaderMap::from_iter([(header::IF_NONE_MATCH, value)])
        };
        assert!(matches_tag(&given("\"x\", \"a\""), "W/\"a\""));
        assert!(matches_tag(&given("W/\"a\""), "\"a\""));
        assert!(matches_tag(&given("*"), "\"a\""));
        assert!(!matches_tag(&given("\"b\""), "\"a\""));
        assert!(!matches_tag(&HeaderMap::new(), "\"a\""));
    }
}
