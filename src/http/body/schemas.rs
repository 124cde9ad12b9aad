//! Descriptions for the OpenAPI document: ops and values of the kinds, and a few parts of parameters and answers.
//! Query parameters describe themselves in `parameters`, request bodies in `requests`.

use orderfree_core::crdt::Kind;
use orderfree_core::protocol::op_id::ID_BYTES_MAX;
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa::openapi::ObjectBuilder;
use utoipa::openapi::schema::Type;

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

pub(crate) fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

pub(crate) fn one_of(values: Vec<&'static str>) -> ObjectBuilder {
    text().enum_values(Some(values))
}

pub(crate) fn kind() -> ObjectBuilder {
    one_of(Kind::ALL.iter().map(|kind| kind.name()).collect())
}

/// A group or a name.
pub(crate) fn name() -> ObjectBuilder {
    // `.` and `..` are the texts that none of the three beginnings fits.
    let begin = format!("[^.{CONTROL}]|[.][^.{CONTROL}]|[.][.][^{CONTROL}]");
    name_part().pattern(Some(format!("^({begin})[^{CONTROL}]*$")))
}

/// The beginning of a name, or a text between names.
pub(crate) fn name_part() -> ObjectBuilder {
    text().min_length(Some(1)).max_length(Some(256)).pattern(Some(format!("^[^{CONTROL}]+$")))
}

/// An id that a client chose.
pub(crate) fn id() -> ObjectBuilder {
    name_part().max_length(Some(ID_BYTES_MAX))
}

/// Control characters, inside the brackets of a regular expression.
const CONTROL: &str = r"\u0000-\u001f\u007f-\u009f";

#[cfg(test)]
mod tests {
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
            for item in ["UpdateItem", "KeyBody"] {
                let reference = &schemas[item]["properties"][body]["$ref"];
                assert_eq!(*reference, format!("#/components/schemas/{schema}"), "{item}");
            }
        }
    }
}
