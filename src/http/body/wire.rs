//! The wire format: it reads bare ops and questions, and writes values.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use orderfree_core::crdt::{Kind, Op, State, Value};
use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::{Key, Name, Timestamp};
use serde::{Serialize, Serializer};
use utoipa::openapi::schema::Schema;
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use crate::engine::service::{KeyValue, Sight};
use crate::http::body::parameters::ValueParams;
use crate::http::catalog::ProblemType;
use crate::http::problem::Problem;
use crate::http::time::rfc3339;

/// The op of an empty body.
pub(crate) fn empty_op(kind: Kind) -> Result<Op, Problem> {
    kind.empty_op().ok_or_else(|| {
        let example = kind.about().example_op;
        let detail = format!("An empty body is not an op of kind {kind}. Example: {example}.");
        Problem::new(ProblemType::BadOp, detail)
    })
}

/// The op of a `text/plain` body.
pub(crate) fn text_op(kind: Kind, body: &[u8]) -> Result<Op, Problem> {
    let text = std::str::from_utf8(body).map_err(|_| {
        Problem::new(ProblemType::BadOp, "The text is not UTF-8; send UTF-8, or a JSON op.")
    })?;
    kind.read_bare_op(text).map_err(|error| {
        let detail = format!(
            "The text is not an op of kind {kind}: {error}. To send a JSON op, set the header \
             content-type: application/json."
        );
        Problem::new(ProblemType::BadOp, detail)
    })
}

/// A value as clients see it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Shown {
    value: Value,
    /// Writes whole numbers in quotes, for parsers that keep only 53 bits.
    as_digits: bool,
}

impl Shown {
    /// The value of a key's whole state, or of one row of it.
    pub(crate) fn of(state: &State, key: Option<&Key>, params: &ValueParams) -> Shown {
        Shown::new(state.value(&params.question(key)), params.as_digits)
    }

    pub(crate) fn new(value: Value, as_digits: bool) -> Shown {
        Shown { value, as_digits }
    }

    pub(crate) fn is_exact(&self, kind: Kind) -> bool {
        kind.about().is_exact && self.value.is_exact()
    }

    /// The bare text of a value of this kind, if it has one.
    pub(crate) fn bare(&self, kind: Kind) -> Option<String> {
        self.value.bare(kind.about().bare_value)
    }
}

impl Serialize for Shown {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.shown(self.as_digits).serialize(serializer)
    }
}

impl PartialSchema for Shown {
    fn schema() -> RefOr<Schema> {
        // `schemas::of_kinds` defines it from the values of all kinds.
        Ref::from_schema_name("Value").into()
    }
}

impl ToSchema for Shown {
    fn name() -> std::borrow::Cow<'static, str> {
        "Value".into()
    }
}

/// A key as clients see it.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct KeyView {
    /// Data type.
    #[schema(example = "counter")]
    kind: &'static str,
    /// The group of the key. The keys of a group can be read together.
    #[schema(example = "site", value_type = String)]
    #[serde(serialize_with = "as_text")]
    group: Name,
    /// The name of the key within its group.
    #[schema(example = "home", value_type = String)]
    #[serde(serialize_with = "as_text")]
    name: Name,
}

fn as_text<S: Serializer>(name: &Name, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(name.as_str())
}

impl From<&Key> for KeyView {
    fn from(key: &Key) -> KeyView {
        KeyView { kind: key.kind.name(), group: key.group.clone(), name: key.name.clone() }
    }
}

/// A value, and what is known about it.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct ValueView {
    /// The value of all shards together.
    pub(crate) value: Shown,
    /// True if the key does not exist. The value is then the one of `?default=`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) absent: bool,
    /// True if the value is exact. False if it is an estimate, if a result in it is null because no double is near it,
    /// or if a read at this level can miss acknowledged updates.
    exact: bool,
    /// The value includes every update that was acknowledged before this time, by pods of `datacenter` if that is there. At
    /// a level that does not overlap that of updates, such as `one`, updates can be missing.
    #[schema(example = "2026-11-21T08:00:00.123456Z", format = DateTime)]
    pub(crate) as_of: String,
    /// The consistency level of the read.
    #[schema(example = "local_quorum")]
    consistency: &'static str,
    /// The data centre of this pod. Present only if the read is guaranteed to see the updates of this data centre but not
    /// those of others. Updates of others are included as far as they have arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    datacenter: Option<String>,
    /// The number of shards that were merged.
    shards: usize,
    /// Shards that expired up to this time are folded into one. Null if none are.
    #[schema(example = "2026-11-20T07:11:02.000417Z", format = DateTime)]
    folded_through: Option<String>,
}

/// The value, if the request asks for it.
#[derive(ToSchema)]
#[allow(dead_code, reason = "it only describes")]
pub(crate) struct MaybeValue {
    #[schema(nullable = false)]
    value: Option<Shown>,
    #[schema(nullable = false)]
    exact: Option<bool>,
    #[schema(nullable = false, format = DateTime)]
    as_of: Option<String>,
    #[schema(nullable = false)]
    consistency: Option<String>,
    #[schema(nullable = false)]
    datacenter: Option<String>,
    #[schema(nullable = false)]
    shards: Option<usize>,
    #[schema(format = DateTime)]
    folded_through: Option<String>,
}

impl ValueView {
    pub(crate) fn new(read: &KeyValue, params: &ValueParams) -> ValueView {
        let value = Shown::of(&read.state, Some(&read.key), params);
        ValueView {
            exact: value.is_exact(read.key.kind) && read.sight == Sight::All,
            value,
            absent: false,
            as_of: rfc3339(read.as_of),
            consistency: read.level.name(),
            datacenter: datacenter(&read.sight),
            shards: read.shards,
            folded_through: read.folded_through.map(rfc3339),
        }
    }

    /// The value of a key that a read at this level did not find.
    pub(crate) fn absent(
        kind: Kind,
        value: Shown,
        as_of: Timestamp,
        (level, sight): (Level, Sight),
    ) -> ValueView {
        ValueView {
            value,
            absent: true,
            exact: kind.about().is_exact && sight == Sight::All,
            as_of: rfc3339(as_of),
            consistency: level.name(),
            datacenter: datacenter(&sight),
            shards: 0,
            folded_through: None,
        }
    }
}

/// The data centre whose updates a read surely saw, if those of others are not among them.
pub(crate) fn datacenter(sight: &Sight) -> Option<String> {
    match sight {
        Sight::Local(name) => Some(name.clone()),
        Sight::All | Sight::Nothing => None,
    }
}

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct KeyValueView {
    #[serde(flatten)]
    pub(crate) key: KeyView,
    #[serde(flatten)]
    pub(crate) value: ValueView,
}

impl KeyValueView {
    pub(crate) fn new(read: &KeyValue, params: &ValueParams) -> KeyValueView {
        KeyValueView { key: (&read.key).into(), value: ValueView::new(read, params) }
    }
}

/// An answer as JSON of about `bytes` bytes. `axum::Json` would start with a small buffer and grow it.
pub(crate) fn json(view: &impl Serialize, bytes: usize) -> Response {
    let mut text = Vec::with_capacity(bytes);
    write_json(&mut text, view);
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// Appends a view as JSON.
pub(crate) fn write_json(text: &mut Vec<u8>, view: &(impl Serialize + ?Sized)) {
    serde_json::to_writer(text, view).expect("invariant: a view is JSON");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Caller, Verb};
    use orderfree_core::crdt::Counter;

    #[test]
    fn large_numbers_survive_flattening() {
        let key = Caller::anonymous().to(Verb::Read).key("counter", "site", "home").expect("key");
        let read = KeyValue {
            is_full: false,
            key,
            state: Counter::from_total(1 << 100).into(),
            shards: 7,
            bytes: 15,
            folded_through: None,
            as_of: Timestamp::from_micros(1_795_248_000_123_456),
            level: Level::LocalQuorum,
            sight: Sight::All,
        };
        let text = serde_json::to_string(&KeyValueView::new(&read, &ValueParams::default()))
            .expect("JSON");
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
