//! What goes over the wire: ops in, values out.

use std::fmt;

use chrono::{DateTime, SecondsFormat, Utc};
use orderfree_core::crdt::{CounterOp, Kind, Op, Value};
use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::{Key, Timestamp};
use serde::{Serialize, Serializer};
use serde_json::Value as Json;
use utoipa::openapi::schema::{OneOfBuilder, Schema, Type};
use utoipa::openapi::{ObjectBuilder, RefOr};
use utoipa::{PartialSchema, ToSchema};

use super::catalog::ProblemType;
use super::extract;
use super::json::Fields;
use super::problem::Problem;
use crate::limits;
use crate::service::KeyValue;

/// Reads one op, or `{"ops":[…]}`, of a kind.
pub(super) fn ops(kind: Kind, body: Json) -> Result<Vec<Op>, Problem> {
    let is_list = body.as_object().is_some_and(|fields| fields.contains_key("ops"));
    if !is_list {
        return Ok(vec![op(kind, &body)?]);
    }
    let mut fields = Fields::of(body, kind.example_op())?;
    let ops = op_list(kind, &mut fields)?;
    fields.end()?;
    Ok(ops)
}

/// The update of one batch item: `{"kind","group","name","op"}`, or with `"ops"`.
pub(super) fn update(item: Json) -> Result<(Key, Vec<Op>), Problem> {
    const EXAMPLE: &str = r#"{"kind":"counter","group":"site","name":"home","op":{"op":"add"}}"#;
    let mut fields = Fields::of(item, EXAMPLE)?;
    let key = key_fields(&mut fields)?;
    let ops = match fields.take("op") {
        Some(body) => vec![op(key.kind, &body)?],
        None => op_list(key.kind, &mut fields).map_err(|problem| {
            problem.within(&format!("An update needs `op` or `ops`, such as {EXAMPLE}"))
        })?,
    };
    fields.end()?;
    Ok((key, ops))
}

/// The key of `{"kind","group","name"}`.
pub(super) fn key(item: Json) -> Result<Key, Problem> {
    const EXAMPLE: &str = r#"{"kind":"counter","group":"site","name":"home"}"#;
    let mut fields = Fields::of(item, EXAMPLE)?;
    let key = key_fields(&mut fields)?;
    fields.end()?;
    Ok(key)
}

fn key_fields(fields: &mut Fields) -> Result<Key, Problem> {
    let (kind, group) = (fields.text("kind")?, fields.text("group")?);
    extract::key(&kind, &group, &fields.text("name")?)
}

fn op_list(kind: Kind, fields: &mut Fields) -> Result<Vec<Op>, Problem> {
    let items = fields.list("ops", limits::OPS_MAX)?;
    let at = |(index, item)| op(kind, item).map_err(|p| p.within(&format!("ops[{index}]")));
    items.iter().enumerate().map(at).collect()
}

fn op(kind: Kind, body: &Json) -> Result<Op, Problem> {
    let example = kind.example_op();
    if !body.is_object() {
        let detail = format!("An op is a JSON object; one of kind {kind} looks like {example}.");
        return Err(Problem::new(ProblemType::BadOp, detail));
    }
    kind.parse_op(body).map_err(|error| {
        let detail = format!("This is no op of kind {kind}: {error}. One looks like {example}.");
        Problem::new(ProblemType::BadOp, detail)
    })
}

/// The op of an empty body.
pub(super) fn empty_op(kind: Kind) -> Result<Op, Problem> {
    match kind {
        Kind::Counter => Ok(Op::Counter(CounterOp::Add { by: 1 })),
    }
}

/// The op of a `text/plain` body.
pub(super) fn text_op(kind: Kind, body: &[u8]) -> Result<Op, Problem> {
    let text = std::str::from_utf8(body).unwrap_or("(not UTF-8)").trim();
    match kind {
        Kind::Counter => text.parse().map(|by| Op::Counter(CounterOp::Add { by })).map_err(|_| {
            let shown: String = text.chars().take(40).collect();
            let detail = format!(
                "{shown:?} is not a whole number from {} to {}. For a JSON op, send the header \
                 content-type: application/json.",
                i64::MIN,
                i64::MAX
            );
            Problem::new(ProblemType::BadOp, detail)
        }),
    }
}

/// Reads a value of a kind, as `?default=` gives it.
pub(super) fn value(kind: Kind, text: &str) -> Result<Value, String> {
    match kind {
        Kind::Counter => text
            .parse()
            .map(Value::Counter)
            .map_err(|_| format!("{text:?} is not a whole number of at most 128 bits")),
    }
}

/// A value as clients see it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shown {
    /// A JSON integer of any length: exact, if the client's parser is.
    Integer(i128),
    /// The same in quotes, for parsers that keep only 53 bits.
    Digits(i128),
}

impl Shown {
    pub(super) fn new(value: &Value, as_digits: bool) -> Shown {
        match value {
            Value::Counter(total) if as_digits => Shown::Digits(*total),
            Value::Counter(total) => Shown::Integer(*total),
        }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shown::Integer(total) | Shown::Digits(total) => total.fmt(f),
        }
    }
}

impl Serialize for Shown {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Shown::Integer(total) => serializer.serialize_i128(*total),
            Shown::Digits(total) => serializer.collect_str(total),
        }
    }
}

impl PartialSchema for Shown {
    fn schema() -> RefOr<Schema> {
        let integer = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .description(Some("A counter's total: an integer of up to 128 bits."));
        let digits = ObjectBuilder::new()
            .schema_type(Type::String)
            .pattern(Some("^-?[0-9]+$"))
            .description(Some("The same in quotes, with ?numbers=string."));
        OneOfBuilder::new().item(integer).item(digits).into()
    }
}

impl ToSchema for Shown {
    fn name() -> std::borrow::Cow<'static, str> {
        "Value".into()
    }
}

/// A key as clients see it.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(super) struct KeyView {
    /// Data type.
    #[schema(example = "counter")]
    kind: &'static str,
    /// What is read together.
    #[schema(example = "site")]
    group: String,
    /// One value of the group.
    #[schema(example = "home")]
    name: String,
}

impl From<&Key> for KeyView {
    fn from(key: &Key) -> KeyView {
        KeyView { kind: key.kind.name(), group: key.group.to_string(), name: key.name.to_string() }
    }
}

/// What a read answers about a value.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(super) struct ValueView {
    /// Everything merged.
    pub(super) value: Shown,
    /// The key does not exist, and this is the `?default=`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) absent: bool,
    /// Whether the value is exact, not an estimate.
    exact: bool,
    /// Every update acknowledged before this time is in the value.
    #[schema(example = "2026-11-21T08:00:00.123456Z", format = DateTime)]
    as_of: String,
    /// The consistency level of the read.
    #[schema(example = "local_quorum")]
    consistency: &'static str,
    /// Shards that were merged.
    shards: usize,
    /// Up to when shards have been folded into one; null if none were.
    #[schema(example = "2026-11-20T07:11:02.000417Z", format = DateTime)]
    folded_through: Option<String>,
}

impl ValueView {
    pub(super) fn new(read: &KeyValue, as_digits: bool) -> ValueView {
        ValueView {
            value: Shown::new(&read.value, as_digits),
            absent: false,
            exact: is_exact(&read.value),
            as_of: rfc3339(read.as_of),
            consistency: read.level.name(),
            shards: read.shards,
            folded_through: read.folded_through.map(rfc3339),
        }
    }

    pub(super) fn absent(
        default: &Value,
        as_digits: bool,
        as_of: Timestamp,
        level: Level,
    ) -> ValueView {
        ValueView {
            value: Shown::new(default, as_digits),
            absent: true,
            exact: is_exact(default),
            as_of: rfc3339(as_of),
            consistency: level.name(),
            shards: 0,
            folded_through: None,
        }
    }

    /// The same without its time, which changes with every read: what an entity tag stands for.
    pub(super) fn timeless(&self) -> ValueView {
        ValueView { as_of: String::new(), ..self.clone() }
    }
}

fn is_exact(value: &Value) -> bool {
    match value {
        Value::Counter(_) => true,
    }
}

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(super) struct KeyValueView {
    #[serde(flatten)]
    pub(super) key: KeyView,
    #[serde(flatten)]
    pub(super) value: ValueView,
}

impl KeyValueView {
    pub(super) fn new(read: &KeyValue, as_digits: bool) -> KeyValueView {
        KeyValueView { key: (&read.key).into(), value: ValueView::new(read, as_digits) }
    }
}

/// RFC 3339 in UTC with microseconds. Times beyond the calendar, which only a forged row can hold,
/// become its last.
pub(super) fn rfc3339(time: Timestamp) -> String {
    let time =
        DateTime::from_timestamp_micros(time.as_micros()).unwrap_or(DateTime::<Utc>::MAX_UTC);
    time.to_rfc3339_opts(SecondsFormat::Micros, true)
}

/// Reads the `numbers` parameter: whether values are written as strings.
pub(super) fn numbers(query: &extract::QueryParams<'_>) -> Result<bool, Problem> {
    let numbers = query.read("numbers", |text| match text {
        "number" => Ok(false),
        "string" => Ok(true),
        other => Err(format!("{other:?} is neither number nor string")),
    })?;
    Ok(numbers.unwrap_or(false))
}

/// Reads a consistency level.
pub(super) fn level(text: &str) -> Result<Level, String> {
    text.parse()
        .map_err(|error: orderfree_core::protocol::consistency::UnknownLevel| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn add(by: i64) -> Op {
        Op::Counter(CounterOp::Add { by })
    }

    #[test]
    fn ops_come_alone_or_as_a_list() {
        let read = |body| ops(Kind::Counter, body);
        assert_eq!(read(json!({"op": "add", "by": 5})), Ok(vec![add(5)]));
        let list = json!({"ops": [{"op": "add"}, {"op": "add", "by": "-2"}]});
        assert_eq!(read(list), Ok(vec![add(1), add(-2)]));
        for (body, says) in [
            (json!(5), "JSON object"),
            (json!({"ops": []}), "1 to 1000"),
            (json!({"ops": {}}), "array"),
            (json!({"ops": [{"op": "add"}, {"op": "sub"}]}), "ops[1]"),
            (json!({"ops": [{"op": "add"}], "by": 1}), "Unknown field `by`"),
            (json!({"op": "add", "by": 1.5}), "whole number"),
            (json!({"op": "add", "unit": 1}), "unknown field"),
        ] {
            let problem = read(body.clone()).expect_err(&body.to_string());
            assert!(problem.detail().contains(says), "{body}: {}", problem.detail());
        }
    }

    #[test]
    fn numbers_are_written_exactly() {
        let write = |total, as_digits| {
            let shown = Shown::new(&Value::Counter(total), as_digits);
            serde_json::to_string(&shown).expect("JSON")
        };
        assert_eq!(write(i128::MAX, false), "170141183460469231731687303715884105727");
        assert_eq!(write(i128::MIN, true), "\"-170141183460469231731687303715884105728\"");
    }

    #[test]
    fn large_numbers_survive_flattening() {
        let key = extract::key("counter", "site", "home").expect("key");
        let read = KeyValue {
            key,
            value: Value::Counter(1 << 100),
            shards: 7,
            folded_through: None,
            as_of: Timestamp::from_micros(1_795_248_000_123_456),
            level: Level::LocalQuorum,
        };
        let text = serde_json::to_string(&KeyValueView::new(&read, false)).expect("JSON");
        assert_eq!(
            text,
            r#"{"kind":"counter","group":"site","name":"home","value":1267650600228229401496703205376,"exact":true,"as_of":"2026-11-21T08:00:00.123456Z","consistency":"local_quorum","shards":7,"folded_through":null}"#
        );
    }

    #[test]
    fn times_have_microseconds_and_an_end() {
        assert_eq!(rfc3339(Timestamp::from_micros(1)), "1970-01-01T00:00:00.000001Z");
        assert!(rfc3339(Timestamp::NEVER).ends_with('Z'));
    }
}
