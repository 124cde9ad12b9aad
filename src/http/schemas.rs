//! What clients send, and a little of what they get, described for the OpenAPI document. The code
//! that reads it, in `extract` and `wire`, explains more when it refuses; a test holds the two
//! together.

use orderfree_core::crdt::Kind;
use orderfree_core::protocol::consistency::Level;
use serde::Deserialize;
use serde_json::Value;
use utoipa::openapi::schema::{OneOfBuilder, Schema, Type};
use utoipa::openapi::{ObjectBuilder, RefOr};
use utoipa::{PartialSchema, ToSchema};

use super::wire::Shown;
use crate::limits;

/// The body of an update: one op, or a list of ops that are applied all or none.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub(super) enum UpdateBody {
    One(OpBody),
    Many(OpsBody),
}

/// A list of ops.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OpsBody {
    #[schema(min_items = 1, max_items = 1000)]
    ops: Vec<OpBody>,
}

/// An op of the key's kind.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub(super) enum OpBody {
    /// Of `counter`.
    Add(AddBody),
}

/// Adds `by` to a counter, or one without it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AddBody {
    op: AddName,
    #[serde(default)]
    by: Amount,
}

/// The op's name.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum AddName {
    Add,
}

/// A whole number from -2^63 to 2^63 - 1, as a number or in quotes.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Amount {
    Number(i64),
    Digits(String),
}

impl PartialSchema for Amount {
    fn schema() -> RefOr<Schema> {
        let number = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .minimum(Some(i64::MIN))
            .maximum(Some(i64::MAX));
        let digits = ObjectBuilder::new()
            .schema_type(Type::String)
            .pattern(Some("^[+-]?[0-9]{1,18}$"))
            .description(Some("For languages without 64-bit integers."));
        OneOfBuilder::new().item(number).item(digits).default(Some(1.into())).into()
    }
}

impl ToSchema for Amount {}

/// A bare amount.
#[derive(ToSchema)]
#[schema(pattern = "^[+-]?[0-9]{1,18}$", example = "5")]
pub(super) struct AmountText(String);

impl Default for Amount {
    fn default() -> Amount {
        Amount::Number(1)
    }
}

/// Updates of any keys.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BatchBody {
    #[schema(min_items = 1, max_items = 1000)]
    updates: Vec<UpdateItem>,
}

/// One update: a key, and an op or a list of ops. Also one line of an NDJSON stream.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub(super) enum UpdateItem {
    One(OneItem),
    Many(ManyItem),
}

/// A key and an op.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OneItem {
    kind: KindText,
    group: NameText,
    name: NameText,
    op: OpBody,
}

/// A key and a list of ops, applied all or none.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ManyItem {
    kind: KindText,
    group: NameText,
    name: NameText,
    #[schema(min_items = 1, max_items = 1000)]
    ops: Vec<OpBody>,
}

/// Keys to read.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct QueryBody {
    #[schema(min_items = 1, max_items = 1000)]
    keys: Vec<KeyBody>,
    /// The server's choice without.
    #[serde(default)]
    consistency: LevelName,
}

/// A key.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyBody {
    kind: KindText,
    group: NameText,
    name: NameText,
}

/// A data type's name.
#[derive(Deserialize)]
pub(super) struct KindText(String);

/// A group or a name.
#[derive(Deserialize)]
pub(super) struct NameText(String);

impl PartialSchema for KindText {
    fn schema() -> RefOr<Schema> {
        kind().description(Some("Data type.")).into()
    }
}

impl PartialSchema for NameText {
    fn schema() -> RefOr<Schema> {
        name().description(Some("1 to 256 bytes of UTF-8 without control characters.")).into()
    }
}

impl ToSchema for KindText {}
impl ToSchema for NameText {}

/// How many replicas must answer.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum LevelName {
    One,
    LocalOne,
    #[default]
    LocalQuorum,
    Quorum,
    All,
}

/// A key, if the request's item was one.
#[derive(ToSchema)]
pub(super) struct MaybeKey {
    #[schema(nullable = false)]
    kind: Option<String>,
    #[schema(nullable = false)]
    group: Option<String>,
    #[schema(nullable = false)]
    name: Option<String>,
}

/// A value, if it was asked for.
#[derive(ToSchema)]
pub(super) struct MaybeValue {
    #[schema(nullable = false)]
    value: Option<Shown>,
    #[schema(nullable = false)]
    exact: Option<bool>,
    #[schema(nullable = false, format = DateTime)]
    as_of: Option<String>,
    #[schema(nullable = false)]
    consistency: Option<String>,
    #[schema(nullable = false)]
    shards: Option<usize>,
    #[schema(format = DateTime)]
    folded_through: Option<String>,
}

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

fn one_of(values: Vec<&'static str>) -> ObjectBuilder {
    text().enum_values(Some(values))
}

fn kind() -> ObjectBuilder {
    one_of(Kind::ALL.iter().map(|kind| kind.name()).collect())
}

fn name() -> ObjectBuilder {
    let pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$";
    text().min_length(Some(1)).max_length(Some(256)).pattern(Some(pattern))
}

/// What a parameter of this name may be; none if there is no such parameter.
pub(super) fn parameter(parameter: &str) -> Option<ObjectBuilder> {
    Some(match parameter {
        "kind" => kind(),
        "group" | "name" | "prefix" | "from" | "to" => name(),
        "ack" => one_of(vec!["durable", "memory"]).default(Some("durable".into())),
        "return" => one_of(vec!["none", "value"]).default(Some("none".into())),
        "numbers" => one_of(vec!["number", "string"]).default(Some("number".into())),
        "consistency" => one_of(Level::ALL.iter().map(|level| level.name()).collect()),
        "default" => text().pattern(Some("^[+-]?[0-9]{1,38}$")),
        "cursor" => text().pattern(Some("^[A-Za-z0-9_-]+$")),
        "slug" | "If-None-Match" => text(),
        "limit" => ObjectBuilder::new()
            .schema_type(Type::Integer)
            .minimum(Some(1))
            .maximum(Some(limits::GROUP_PAGE_MAX))
            .default(Some(Value::from(limits::GROUP_PAGE_DEFAULT))),
        "dry_run" | "verbose" => one_of(vec!["", "false", "true"]).default(Some("false".into())),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::wire;
    use serde_json::json;

    #[test]
    fn what_is_described_is_what_is_read() {
        for body in [
            json!({"op": "add"}),
            json!({"op": "add", "by": -5}),
            json!({"op": "add", "by": "5"}),
            json!({"ops": [{"op": "add"}, {"op": "add", "by": 2}]}),
            json!({"op": "add", "unit": 1}),
            json!({"op": "sub"}),
            json!({"ops": [{"op": "add", "by": 1.5}]}),
            json!({"ops": [], "by": 1}),
            json!({}),
            json!(5),
        ] {
            let described = serde_json::from_value::<UpdateBody>(body.clone()).is_ok();
            assert_eq!(described, wire::ops(Kind::Counter, body.clone()).is_ok(), "{body}");
        }
        let key = json!({"kind": "counter", "group": "g", "name": "n"});
        for field in [json!({"op": {"op": "add"}}), json!({"ops": [{"op": "add"}]}), json!({})] {
            let mut item = key.clone();
            let fields = field.as_object().expect("object").clone();
            item.as_object_mut().expect("object").extend(fields);
            let described = serde_json::from_value::<UpdateItem>(item.clone()).is_ok();
            assert_eq!(described, wire::update(item.clone()).is_ok(), "{item}");
        }
        assert!(serde_json::from_value::<KeyBody>(key.clone()).is_ok() && wire::key(key).is_ok());
    }

    #[test]
    fn a_key_in_a_body_is_described_as_in_a_path() {
        let document = serde_json::to_value(crate::http::openapi()).expect("JSON");
        let schemas = &document["components"]["schemas"];
        for (body, schema) in [("kind", "KindText"), ("group", "NameText"), ("name", "NameText")] {
            let path = serde_json::to_value(parameter(body).expect("known").build());
            let mut described = schemas[schema].clone();
            assert!(described["description"].take().is_string(), "{described}");
            described.as_object_mut().expect("an object").remove("description");
            assert_eq!(described, path.expect("JSON"));
            for item in ["OneItem", "ManyItem", "KeyBody"] {
                let reference = &schemas[item]["properties"][body]["$ref"];
                assert_eq!(*reference, format!("#/components/schemas/{schema}"), "{item}");
            }
        }
    }

    #[test]
    fn limits_and_levels_are_the_real_ones() {
        assert_eq!((limits::OPS_MAX, limits::BATCH_ITEMS_MAX), (1000, 1000));
        for level in Level::ALL {
            assert!(serde_json::from_value::<LevelName>(level.name().into()).is_ok(), "{level}");
        }
    }
}
