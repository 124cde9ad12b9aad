//! `POST /v1/merge`: merges several keys of a group into one value.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, TryStreamExt, stream};
use orderfree_core::crdt::{About, Audience, Class, Expression, Kind, State as Merged};
use orderfree_core::protocol::Key;
use orderfree_core::protocol::consistency::Level;
use serde::Serialize;
use utoipa::ToSchema;

use crate::engine::memory::{MemoryBudget, MemoryPermit};
use crate::engine::service::{ReservedValue, Sight};
use crate::http::api::read::{self, Substitute};
use crate::http::body::extract::{self, JSON, MediaType, TEXT};
use crate::http::body::json;
use crate::http::body::parameters::{DEFAULT, Query, ValueParams, params};
use crate::http::body::requests::{ExpressionBody, LevelName, List, MergeBody};
use crate::http::body::wire::{self, Shown};
use crate::http::catalog::ProblemType;
use crate::http::guard::access::Permit;
use crate::http::problem::Problem;
use crate::http::state::AppState;
use crate::http::state::Served;
use crate::http::state::Shared;
use crate::http::time::rfc3339;
use crate::limits;
use crate::policy::{Caller, Verb};

const EXAMPLE: &str = r#"{"kind":"distinct","group":"site","names":["2026-11-20","2026-11-21"]}"#;

params! {
    /// Query parameters of a merge.
    struct MergeParams {
        default: Option<String> = DEFAULT,
        value: ValueParams,
    }
}

/// The answer to a merge.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MergeView {
    #[schema(example = "distinct")]
    kind: &'static str,
    #[schema(example = "site")]
    group: String,
    /// The keys that were read, in the order of the request.
    names: Vec<String>,
    /// The keys that do not exist. They count as empty.
    absent: Vec<String>,
    /// The value of the ops of all keys together, or the value of the expression.
    value: Shown,
    /// True if the value is exact. False if it is an estimate, if a result in it is null because no double is near it,
    /// or if a read at this level can miss acknowledged updates.
    exact: bool,
    /// As in the answer to a read of one key.
    #[schema(example = "2026-11-21T08:00:00.123456Z", format = DateTime)]
    as_of: String,
    /// The consistency level of the reads.
    #[schema(example = "local_quorum")]
    consistency: &'static str,
    /// As in the answer to a read of one key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    datacenter: Option<String>,
    /// The number of shards that were merged, over all keys.
    shards: usize,
}

/// A request body that was checked.
struct Wanted {
    keys: Vec<Key>,
    expression: Option<Expression>,
    level: Option<Level>,
}

/// Merge keys into one value
///
/// Returns the value as if every op of these keys had gone to one key, for example the monthly uniques of
/// daily sketches, or the total of many counters. Kind `audience` has set algebra: send `expression`
/// instead of `names`, such as `{"and": ["a", {"or": ["b", "c"]}, {"not": "d"}]}`. A merge writes nothing.
/// It reads each key separately, so the keys together are not a snapshot. The server refuses sets that
/// together would take more than 64 MiB of memory, which is about 800,000 short items, or 80,000 of an
/// `or_set`.
#[utoipa::path(
    post, path = "/v1/merge", tag = "many keys",
    params(MergeParams),
    request_body(description = "Keys of one group", content(
        (MergeBody = "application/json", examples(
            ("names" = (value = json!({"kind": "counter", "group": "site", "names": ["home", "about"]}))),
            ("set algebra" = (value = json!({"kind": "audience", "group": "site",
                "expression": {"and": ["mobile", {"not": "bots"}]}})))
        )))),
    responses(
        (status = 200, description = "The merged value", content(
            (MergeView = "application/json",
                example = json!({"kind": "counter", "group": "site", "names": ["home", "about"],
                    "absent": [], "value": 1240, "exact": true,
                    "as_of": "2026-11-21T08:00:00.123456Z", "consistency": "local_quorum",
                    "shards": 9})),
            (String = "text/plain", example = json!("1240\n")),
        )),
    )
)]
pub(crate) async fn merge(
    State(served): State<Served>,
    caller: Caller,
    Query(params): Query<MergeParams>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Problem> {
    let Shared { app, bodies, turns, merged, .. } = &*served;
    extract::of_read(&headers)?;
    match MediaType::of(&headers) {
        MediaType::Json => {}
        media => return Err(media.refuse("application/json")),
    }
    let body = bodies.read(&headers, request.into_body(), limits::BODY_BYTES_MAX).await?;
    let body = json::read(json::text(&body)?, EXAMPLE)?;
    let Wanted { keys, expression, level } = wanted(caller.to(Verb::Read), body)?;
    caller.pass_or_refuse(keys.len() - 1)?;
    let (kind, group) = (keys[0].kind, keys[0].group.to_string());
    params.value.check(&[kind])?;
    let substitute = Substitute::given(params.default.as_deref(), kind)?;
    let media = extract::negotiate_value(&headers, &[JSON, TEXT], kind)?;
    let _turn = turns.keys(kind, keys.len()).await?;
    // Take the time before the reads: the answer includes every update acknowledged before it.
    let as_of = app.service.now().wall;
    let names: Vec<String> = keys.iter().map(|key| key.name.to_string()).collect();
    let reads = keys.into_iter().enumerate().map(|(at, key)| read_one(app, at, key, level));
    let (reads, at_once) = (stream::iter(reads), limits::LARGE_READS_AT_ONCE);
    // A large value must not wait for another one, because it holds memory that the other can be waiting for.
    let mut reads = match kind.about() {
        about if about.is_small() => reads.buffered(at_once).boxed(),
        About { class: Class::Exact, .. } => reads.buffer_unordered(at_once).boxed(),
        About { class: Class::OrderCanonical, .. } => reads.buffered(1).boxed(),
    };
    let mut found = Found::new(kind, expression.is_some(), merged);
    while let Some((at, key, read)) = reads.try_next().await? {
        found.take(at, &key, read)?;
    }
    let is_absent = found.absent.len() == names.len();
    let value = match (&expression, substitute) {
        (_, Some(substitute)) if is_absent => substitute.shown(None, &params.value),
        (_, None) if is_absent => {
            let missed = read::what_is_missed(app, level);
            let detail = format!(
                "None of these keys of {kind}/{group} exists; POST to them first, or merge with \
                 ?default=empty.{missed}"
            );
            return Err(Problem::new(ProblemType::KeyAbsent, detail));
        }
        (None, _) => Shown::of(&found.merged, None, &params.value),
        (Some(expression), _) => found.select(expression, &params.value)?,
    };
    if media == TEXT
        && let Some(text) = value.bare(kind)
    {
        return Ok(text.into_response());
    }
    let Found { mut absent, shards, .. } = found;
    absent.sort_unstable();
    let absent = absent.into_iter().map(|at| names[at].clone()).collect();
    let (level, sight) = app.service.sight(level);
    let view = MergeView {
        kind: kind.name(),
        group,
        names,
        absent,
        exact: value.is_exact(kind) && sight == Sight::All,
        value,
        as_of: rfc3339(as_of),
        consistency: level.name(),
        datacenter: wire::datacenter(&sight),
        shards,
    };
    Ok(Json(view).into_response())
}

async fn read_one(
    app: &AppState,
    at: usize,
    key: Key,
    level: Option<Level>,
) -> Result<(usize, Key, Option<Arc<ReservedValue>>), Problem> {
    let read = app.service.read(&key, level).await;
    match read {
        Ok(read) => Ok((at, key, read)),
        Err(error) => Err(read::problem_of(error, &key.to_string())),
    }
}

/// Checks what the types of the body can't say.
fn wanted(permit: Permit<'_>, body: MergeBody<'_>) -> Result<Wanted, Problem> {
    let (kind, group) = (body.kind.0, body.group.0);
    let level = body.consistency.map(|LevelName(level)| level);
    let key = |name: &str| permit.key(&kind, &group, name);
    match (body.names, body.expression) {
        (Some(List(names)), None) => {
            let mut sorted: Vec<&str> = names.iter().map(|name| name.0.as_ref()).collect();
            sorted.sort_unstable();
            if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
                let detail = format!("`names` has {:?} twice; give each key once.", pair[0]);
                return Err(json::bad_body(detail));
            }
            let keys = names.iter().map(|name| key(&name.0)).collect::<Result<_, _>>()?;
            Ok(Wanted { keys, expression: None, level })
        }
        (None, Some(ExpressionBody(expression))) => {
            if Kind::from_name(&kind).is_some_and(|kind| kind != Kind::Audience) {
                let detail =
                    format!("`expression` is for kind audience; give keys of {kind} as `names`.");
                return Err(json::bad_body(detail));
            }
            let keys = expression.names().into_iter().map(|name| key(name.as_str()));
            Ok(Wanted {
                keys: keys.collect::<Result<_, _>>()?,
                expression: Some(expression),
                level,
            })
        }
        _ => {
            let detail = "Give either `names` or, for audience, `expression`.";
            Err(json::bad_body(detail.to_owned()))
        }
    }
}

/// The merge so far. States are merged as they arrive, because there can be a thousand large ones.
struct Found {
    /// The places of keys that do not exist.
    absent: Vec<usize>,
    shards: usize,
    /// The state of all ops of all keys.
    merged: Merged,
    /// An upper bound on its memory.
    bytes: usize,
    /// `bytes` when the memory was last measured.
    seen_bytes: usize,
    room: MemoryPermit,
    /// The keys' separate states, for an expression.
    apart: Option<BTreeMap<String, Audience>>,
}

impl Found {
    fn new(kind: Kind, is_apart: bool, merged: &MemoryBudget) -> Found {
        Found {
            absent: Vec::new(),
            shards: 0,
            merged: Merged::identity(kind),
            bytes: 0,
            seen_bytes: 0,
            room: merged.take(0).expect("invariant: nothing always fits"),
            apart: is_apart.then(BTreeMap::new),
        }
    }

    fn take(
        &mut self,
        at: usize,
        key: &Key,
        read: Option<Arc<ReservedValue>>,
    ) -> Result<(), Problem> {
        let Some(read) = read else {
            self.absent.push(at);
            return Ok(());
        };
        self.make_room(read.memory_bytes())?;
        self.shards += read.shards;
        match (&mut self.apart, &read.state) {
            (Some(apart), Merged::Audience(audience)) => {
                apart.insert(key.name.to_string(), audience.clone());
                Ok(())
            }
            (_, state) => self.merged.merge_key(state).map_err(|error| {
                let detail = format!("{key}: {error}; merge fewer keys.");
                Problem::new(ProblemType::OutOfRange, detail)
            }),
        }
    }

    /// Reserves `more` bytes, and refuses a merge that would be too large: sets have no size limit.
    fn make_room(&mut self, more: usize) -> Result<(), Problem> {
        if self.bytes + more > 2 * self.seen_bytes + limits::MERGE_LOOK_BYTES {
            self.look();
        }
        if self.room.grow(self.bytes + more).is_none() {
            self.look();
            if self.bytes + more > limits::MERGED_BYTES_MAX {
                let detail = "These keys together are too large for one merge; merge fewer keys.";
                return Err(Problem::new(ProblemType::AnswerFull, detail));
            }
            self.room.grow(self.bytes + more).ok_or_else(|| {
                let detail =
                    "Too many large merges are in progress here; send the request again in a second.";
                Problem::new(ProblemType::Overloaded, detail)
            })?;
        }
        self.bytes += more;
        Ok(())
    }

    /// Measures the memory. Keys can have much in common, so the merged state can be smaller than the states
    /// that were read. A measurement costs as much as a write.
    fn look(&mut self) {
        if self.apart.is_none() && self.bytes > self.seen_bytes {
            self.bytes = self.merged.memory_bytes();
            self.room.shrink(self.bytes);
        }
        self.seen_bytes = self.bytes;
    }

    /// The value of an expression. Keys that do not exist are empty.
    fn select(&self, expression: &Expression, params: &ValueParams) -> Result<Shown, Problem> {
        let empty = Audience::default();
        let find = |name: &str| self.apart.as_ref().and_then(|apart| apart.get(name));
        let selection = expression.evaluate(&|name| Some(find(name).unwrap_or(&empty)))?;
        Ok(Shown::new(selection.value(), params.as_digits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::read::held;
    use serde_json::json;

    #[test]
    fn bad_requests_are_refused_with_the_rule() {
        for (body, says) in [
            (json!([]), "JSON object"),
            (json!({"kind": "counter", "group": "g"}), "either `names` or"),
            (
                json!({"kind": "audience", "group": "g", "names": ["a"], "expression": "a"}),
                "either `names` or",
            ),
            (json!({"kind": "counter", "group": "g", "names": []}), "1 to 1000"),
            (json!({"kind": "counter", "group": "g", "names": ["a", "b", "a"]}), "\"a\" twice"),
            (json!({"kind": "counter", "group": "g", "names": ["a", 1]}), "`names[1]`: invalid"),
            (json!({"kind": "counter", "group": "g", "names": [""]}), "empty"),
            (json!({"kind": "count", "group": "g", "names": ["a"]}), "count"),
            (json!({"kind": "counter", "group": "g", "names": ["a"], "by": 1}), "Unknown field"),
            (
                json!({"kind": "counter", "group": "g", "names": ["a"], "consistency": "most"}),
                "consistency",
            ),
            (json!({"kind": "counter", "group": "g", "expression": "a"}), "for kind audience"),
            (json!({"kind": "audience", "group": "g", "expression": {"xor": ["a"]}}), "expression"),
        ] {
            let text = body.to_string();
            let permit = Caller::anonymous();
            let read =
                json::read(&text, EXAMPLE).and_then(|body| wanted(permit.to(Verb::Read), body));
            let problem = read.err().expect("a bad request");
            assert!(problem.detail().contains(says), "{body}: {}", problem.detail());
        }
    }

    /// Checks the memory of a merged state and of the separate states of an expression.
    #[test]
    fn what_is_read_takes_room_until_the_merge_ends() {
        let (unit, caller) = (limits::ROOM_UNIT_BYTES, Caller::anonymous());
        let key = caller.to(Verb::Read).key("audience", "g", "a").expect("a key");
        let mut state = Merged::new(Kind::Audience, None);
        let items: Vec<usize> = (0..1_000).collect();
        let op = Kind::Audience.parse_op(&json!({"op": "add", "items": items})).expect("an op");
        state.apply(&op).expect("room");
        let size = state.memory_bytes();
        for (is_apart, fit) in [(true, 3), (false, usize::MAX)] {
            let space = MemoryBudget::new(3 * size.next_multiple_of(unit));
            let mut found = Found::new(Kind::Audience, is_apart, &space);
            let mut take = |at| found.take(at, &key, Some(held(state.clone(), size)));
            let refused = (0..10).find_map(|at| take(at).err().map(|problem| (at, problem.kind())));
            let expected = (fit < 10).then_some((fit, ProblemType::Overloaded));
            assert_eq!(refused, expected, "the same audience: merged, it is there once");
            assert!(space.free() < 3 * size / unit);
            drop(found);
            assert!(space.free() >= 3 * size / unit);
        }
        let space = MemoryBudget::new(limits::MERGED_BYTES_MAX);
        let mut found = Found::new(Kind::Audience, false, &space);
        let large = held(state, limits::MERGED_BYTES_MAX + 1);
        let refused = found.take(0, &key, Some(large)).expect_err("it has no room");
        assert_eq!(refused.kind(), ProblemType::AnswerFull);
        assert_eq!(found.merged, Merged::identity(Kind::Audience), "it is refused before");
    }

    #[test]
    fn the_keys_of_an_expression_are_those_that_it_names() {
        let body = json!({"kind": "audience", "group": "g",
            "expression": {"and": ["a", {"or": ["b", "a"]}, {"not": "c"}]}});
        let text = body.to_string();
        let body = json::read(&text, EXAMPLE).expect("a body");
        let wanted = wanted(Caller::anonymous().to(Verb::Read), body).expect("a request");
        let names: Vec<&str> = wanted.keys.iter().map(|key| key.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c"]);
    }
}
