//! Descriptions for the OpenAPI document: request bodies, and a few parts of parameters and answers. The code
//! that reads bodies, in `wire`, gives better errors. A test keeps the bodies consistent with it.

use orderfree_core::crdt::Kind;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::openapi::schema::{AdditionalProperties, ArrayBuilder, OneOfBuilder, Schema, Type};
use utoipa::openapi::{ObjectBuilder, Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use crate::http::body::wire::Shown;
use crate::limits;

/// The body of an update: one op, or a list of ops. Either all ops of a list are applied or none.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum UpdateBody {
    One(OpBody),
    Many(OpsBody),
}

/// A list of ops.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OpsBody {
    #[schema(min_items = 1, max_items = 1000)]
    ops: Vec<OpBody>,
}

/// An op of the key's kind. The kind describes it.
#[derive(Deserialize)]
pub(crate) struct OpBody(#[allow(dead_code, reason = "described, and read by the kind")] Value);

impl PartialSchema for OpBody {
    fn schema() -> RefOr<Schema> {
        Ref::from_schema_name("Op").into()
    }
}

impl ToSchema for OpBody {
    fn name() -> std::borrow::Cow<'static, str> {
        "Op".into()
    }
}

/// The kinds' descriptions of their ops and values, as components of the document: `Op`, `Value`, and one
/// of each for every kind. The same op can be valid for several kinds, so `anyOf` joins them.
pub(crate) fn of_kinds() -> Vec<(String, Value)> {
    let mut components = Vec::new();
    for (what, read) in [("Op", op_schema as fn(Kind) -> Value), ("Value", value_schema)] {
        let mut any_of = Vec::new();
        for &kind in Kind::ALL {
            let name = format!("{}{what}", camel_case(kind.name()));
            any_of.push(json!({"$ref": format!("#/components/schemas/{name}")}));
            components.push((name, read(kind)));
        }
        components.push((what.to_owned(), json!({"anyOf": any_of})));
    }
    components
}

fn op_schema(kind: Kind) -> Value {
    serde_json::from_str(kind.about().op_schema).expect("invariant: a test reads it")
}

/// Whole numbers can also be strings, for `?numbers=string`.
fn value_schema(kind: Kind) -> Value {
    fn quoted_too(schema: &mut Value) {
        match schema {
            Value::Object(fields) => {
                if fields.get("type") == Some(&json!("integer")) {
                    fields.insert("type".to_owned(), json!(["integer", "string"]));
                }
                fields.values_mut().for_each(quoted_too);
            }
            Value::Array(items) => items.iter_mut().for_each(quoted_too),
            _ => {}
        }
    }
    let schema = serde_json::from_str(kind.about().value_schema);
    let mut schema = schema.expect("invariant: a test reads it");
    quoted_too(&mut schema);
    schema
}

fn camel_case(name: &str) -> String {
    let capital = |part: &str| part[..1].to_uppercase() + &part[1..];
    name.split('_').map(capital).collect()
}

/// A bare op: an amount for a `counter` or a `sum`, or an item for a set.
#[derive(ToSchema)]
#[schema(pattern = "^[+-]?[0-9]{1,18}$", example = "5")]
pub(crate) struct BareText(String);

/// Keys of one group, or an expression over them.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum MergeBody {
    Names(MergeNames),
    Expression(MergeExpression),
}

/// Keys of one group.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MergeNames {
    kind: KindText,
    group: NameText,
    #[schema(schema_with = unique_names)]
    names: Vec<NameText>,
    /// Consistency level of the read. The default is the server's setting.
    #[serde(default)]
    consistency: LevelName,
}

/// Set algebra over keys of one group.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MergeExpression {
    kind: AudienceName,
    group: NameText,
    expression: ExpressionBody,
    /// Consistency level of the read. The default is the server's setting.
    #[serde(default)]
    consistency: LevelName,
}

/// The only kind with set algebra.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AudienceName {
    Audience,
}

/// A name, `{"and":[…]}`, `{"or":[…]}` or, within `and`, `{"not":…}`.
#[derive(Deserialize)]
pub(crate) struct ExpressionBody(
    #[allow(dead_code, reason = "described, and read by the kind")] Value,
);

impl PartialSchema for ExpressionBody {
    fn schema() -> RefOr<Schema> {
        let parts = |name| {
            let names = name_array().min_items(Some(1)).max_items(Some(8));
            let one = ObjectBuilder::new().property(name, names).required(name);
            one.additional_properties(Some(AdditionalProperties::FreeForm(false)))
        };
        OneOfBuilder::new().item(name()).item(parts("and")).item(parts("or")).into()
    }
}

impl ToSchema for ExpressionBody {}

fn unique_names() -> ArrayBuilder {
    let most = Some(limits::MERGE_KEYS_MAX);
    let each = name_array().min_items(Some(1)).max_items(most).unique_items(true);
    each.description(Some("Names without duplicates."))
}

fn name_array() -> ArrayBuilder {
    ArrayBuilder::new().items(name())
}

/// Updates of any keys.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchBody {
    #[schema(min_items = 1, max_items = 1000)]
    updates: Vec<UpdateItem>,
}

/// One update: a key, and an op or a list of ops. Also one line of an NDJSON stream.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum UpdateItem {
    One(OneItem),
    Many(ManyItem),
}

/// A key and an op.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OneItem {
    kind: KindText,
    group: NameText,
    name: NameText,
    op: OpBody,
}

/// A key and a list of ops. Either all of them are applied or none.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ManyItem {
    kind: KindText,
    group: NameText,
    name: NameText,
    #[schema(min_items = 1, max_items = 1000)]
    ops: Vec<OpBody>,
}

/// Keys to read.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct QueryBody {
    #[schema(min_items = 1, max_items = 1000)]
    keys: Vec<KeyBody>,
    /// Consistency level of the read. The default is the server's setting.
    #[serde(default)]
    consistency: LevelName,
}

/// A key.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyBody {
    kind: KindText,
    group: NameText,
    name: NameText,
}

/// The name of a kind.
#[derive(Deserialize)]
pub(crate) struct KindText(String);

/// A group or a name.
#[derive(Deserialize)]
pub(crate) struct NameText(String);

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

/// The consistency level: which replicas must answer.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LevelName {
    One,
    LocalOne,
    #[default]
    LocalQuorum,
    Quorum,
    All,
}

/// The key, if the request's item names a valid one.
#[derive(ToSchema)]
pub(crate) struct MaybeKey {
    #[schema(nullable = false)]
    kind: Option<String>,
    #[schema(nullable = false)]
    group: Option<String>,
    #[schema(nullable = false)]
    name: Option<String>,
}

/// The value, if the request asks for it.
#[derive(ToSchema)]
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
    shards: Option<usize>,
    #[schema(format = DateTime)]
    folded_through: Option<String>,
}

pub(crate) fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

pub(crate) fn one_of(values: Vec<&'static str>) -> ObjectBuilder {
    text().enum_values(Some(values))
}

pub(crate) fn kind() -> ObjectBuilder {
    one_of(Kind::ALL.iter().map(|kind| kind.name()).collect())
}

pub(crate) fn name() -> ObjectBuilder {
    let pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$";
    text().min_length(Some(1)).max_length(Some(256)).pattern(Some(pattern))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::body::json::{self, Tree};
    use crate::http::body::wire;
    use crate::policy::{Caller, Verb};
    use orderfree_core::protocol::consistency::Level;

    fn parse(text: &str) -> Tree<'_> {
        json::parse(text.as_bytes()).expect("JSON")
    }

    #[test]
    fn what_is_described_is_what_is_read() {
        for body in [json!({"op": "add"}), json!({"ops": [{"op": "add"}, {"op": "add", "by": 2}]})]
        {
            assert!(serde_json::from_value::<UpdateBody>(body.clone()).is_ok(), "{body}");
            let text = body.to_string();
            assert!(wire::ops(Kind::Counter, parse(&text)).is_ok());
        }
        let anybody = Caller::anybody();
        let is_update = |text: &str| {
            wire::update(anybody.to(Verb::Write), parse(text), &mut Vec::new()).is_ok()
        };
        let key = json!({"kind": "counter", "group": "g", "name": "n"});
        for field in [json!({"op": {"op": "add"}}), json!({"ops": [{"op": "add"}]}), json!({})] {
            let mut item = key.clone();
            let fields = field.as_object().expect("object").clone();
            item.as_object_mut().expect("object").extend(fields);
            let described = serde_json::from_value::<UpdateItem>(item.clone()).is_ok();
            let text = item.to_string();
            assert_eq!(described, is_update(&text), "{item}");
        }
        let text = key.to_string();
        let is_key = wire::key(anybody.to(Verb::Read), parse(&text)).is_ok();
        assert!(serde_json::from_value::<KeyBody>(key).is_ok() && is_key);
    }

    #[test]
    fn a_key_in_a_body_is_described_as_in_a_path() {
        let document = crate::http::openapi();
        let schemas = &document["components"]["schemas"];
        let path = &document["paths"]["/v1/{kind}/{group}/{name}"]["get"]["parameters"];
        for (body, schema) in [("kind", "KindText"), ("group", "NameText"), ("name", "NameText")] {
            let in_path = path.as_array().expect("parameters").iter();
            let in_path = in_path.clone().find(|parameter| parameter["name"] == body);
            let mut described = schemas[schema].clone();
            assert!(described["description"].take().is_string(), "{described}");
            described.as_object_mut().expect("an object").remove("description");
            assert_eq!(described, in_path.expect("a parameter")["schema"]);
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
