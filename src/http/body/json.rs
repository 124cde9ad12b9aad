//! A strict parser for clients' JSON. It refuses a field that is given twice: a parser that keeps the
//! last one could count something different from what a reader sees.
//!
//! The parsed values borrow from the text, because a batch has hundreds of short strings and each is
//! used once.

use std::borrow::Cow;
use std::fmt;

use serde::de::value::{MapAccessDeserializer, MapDeserializer, SeqDeserializer};
use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess,
    Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Number};

use crate::http::catalog::ProblemType;
use crate::http::problem::Problem;

/// A JSON value. Any deserializable type can be read from it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Tree<'a> {
    Null,
    Bool(bool),
    Number(Number),
    Text(Cow<'a, str>),
    List(Vec<Tree<'a>>),
    /// Sorted by name. Each name occurs once.
    Object(Vec<Field<'a>>),
}

type Field<'a> = (Cow<'a, str>, Tree<'a>);

/// The prefix of names that are special to `serde_json`: when it builds its own values, it would parse the
/// text of such a field again, without the checks in this module.
const PRIVATE: &str = "$serde_json::private::";

pub(crate) fn parse(bytes: &[u8]) -> Result<Tree<'_>, Problem> {
    serde_json::from_slice(bytes).map_err(|error| {
        Problem::new(ProblemType::BadBody, format!("This is not valid JSON: {error}."))
    })
}

/// An object's fields. Each can be taken out once. Those that are left at the end are unknown.
pub(crate) struct Fields<'a>(Vec<Field<'a>>);

impl<'a> Fields<'a> {
    /// The fields of an object. The problem for other values shows `example`.
    pub(crate) fn of(value: Tree<'a>, example: &str) -> Result<Fields<'a>, Problem> {
        match value {
            Tree::Object(fields) => Ok(Fields(fields)),
            _ => Err(bad_body(format!("Send a JSON object, such as {example}."))),
        }
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<Tree<'a>> {
        let at = self.0.iter().position(|(given, _)| given == name)?;
        Some(self.0.remove(at).1)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(given, _)| given == name)
    }

    /// Takes out a field that must be a string.
    pub(crate) fn text(&mut self, name: &str) -> Result<Cow<'a, str>, Problem> {
        let missing = || bad_body(format!("The field `{name}` is missing."));
        self.optional_text(name)?.ok_or_else(missing)
    }

    /// Takes out an optional field. It must be a string.
    pub(crate) fn optional_text(&mut self, name: &str) -> Result<Option<Cow<'a, str>>, Problem> {
        match self.take(name) {
            Some(Tree::Text(text)) => Ok(Some(text)),
            Some(_) => Err(bad_body(format!("The field `{name}` must be a string."))),
            None => Ok(None),
        }
    }

    /// Takes out a field that must be an array of 1 to `items_max` items.
    pub(crate) fn list(&mut self, name: &str, items_max: usize) -> Result<Vec<Tree<'a>>, Problem> {
        let Some(value) = self.take(name) else {
            return Err(bad_body(format!("The field `{name}` is missing.")));
        };
        let Tree::List(items) = value else {
            return Err(bad_body(format!("The field `{name}` must be an array.")));
        };
        if items.is_empty() || items.len() > items_max {
            let count = items.len();
            let detail = format!("`{name}` has {count} items; send 1 to {items_max}.");
            return Err(bad_body(detail));
        }
        Ok(items)
    }

    /// Takes out a field that must be an array of 1 to `items_max` strings.
    pub(crate) fn texts(
        &mut self,
        name: &str,
        items_max: usize,
    ) -> Result<Vec<Cow<'a, str>>, Problem> {
        let text = |(at, item)| match item {
            Tree::Text(text) => Ok(text),
            _ => Err(bad_body(format!(
                "`{name}` must hold strings; `{name}[{at}]` is not a string."
            ))),
        };
        self.list(name, items_max)?.into_iter().enumerate().map(text).collect()
    }

    /// Refuses fields that were not taken out.
    pub(crate) fn end(self) -> Result<(), Problem> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => Err(bad_body(format!("Unknown field `{name}`; leave it out."))),
        }
    }
}

pub(crate) fn bad_body(detail: String) -> Problem {
    Problem::new(ProblemType::BadBody, detail)
}

impl<'de: 'a, 'a> Deserialize<'de> for Tree<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tree<'a>, D::Error> {
        deserializer.deserialize_any(Strict)
    }
}

struct Strict;

impl<'de> Visitor<'de> for Strict {
    type Value = Tree<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Tree<'de>, E> {
        Ok(Tree::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree<'de>, E> {
        Ok(Tree::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree<'de>, E> {
        Ok(Tree::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree<'de>, E> {
        Ok(Tree::Number(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Tree<'de>, E> {
        Number::from_f64(value).map(Tree::Number).ok_or_else(|| E::custom("not a finite number"))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Tree<'de>, E> {
        Ok(Tree::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree<'de>, E> {
        Ok(Tree::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Tree<'de>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree<'de>, A::Error> {
        let mut fields: Vec<Field<'de>> = Vec::new();
        while let Some(name) = map.next_key_seed(FieldName)? {
            if name.starts_with(PRIVATE) {
                return Err(de::Error::custom(format!(
                    "field names must not start with {PRIVATE}"
                )));
            }
            fields.push((name, map.next_value()?));
        }
        fields.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        match fields.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            None => Ok(Tree::Object(fields)),
            Some(twice) => {
                let name = &twice[0].0;
                Err(de::Error::custom(format!("the field `{name}` is given twice")))
            }
        }
    }
}

/// Reads the name of a field. The `Deserialize` of `Cow` never borrows.
struct FieldName;

impl<'de> DeserializeSeed<'de> for FieldName {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Cow<'de, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for FieldName {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(name))
    }

    fn visit_str<E>(self, name: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(name.to_owned()))
    }
}

impl<'de> Deserializer<'de> for &'de Tree<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Tree::Null => visitor.visit_unit(),
            Tree::Bool(value) => visitor.visit_bool(*value),
            Tree::Number(number) => number.deserialize_any(visitor),
            Tree::Text(text) => visitor.visit_borrowed_str(text),
            Tree::List(items) => {
                let mut items = SeqDeserializer::new(items.iter());
                let value = visitor.visit_seq(&mut items)?;
                items.end().map(|()| value)
            }
            Tree::Object(fields) => {
                let mut fields = entries(fields);
                let value = visitor.visit_map(&mut fields)?;
                fields.end().map(|()| value)
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Tree::Null => visitor.visit_none(),
            some => visitor.visit_some(some),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self {
            Tree::Text(text) => visitor.visit_enum(text.as_ref().into_deserializer()),
            Tree::Object(fields) if fields.len() == 1 => {
                visitor.visit_enum(MapAccessDeserializer::new(entries(fields)))
            }
            other => other.deserialize_any(visitor),
        }
    }

    /// Accepts only a name. Derived types would also accept the number of a variant.
    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Tree::Text(name) => visitor.visit_borrowed_str(name),
            _ => Err(de::Error::custom("the name of an op must be a string")),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct ignored_any
    }
}

impl<'de> IntoDeserializer<'de, Error> for &'de Tree<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

fn entries<'de>(
    fields: &'de [Field<'de>],
) -> MapDeserializer<'de, impl Iterator<Item = (&'de str, &'de Tree<'de>)>, Error> {
    MapDeserializer::new(fields.iter().map(|(name, value)| (name.as_ref(), value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_given_twice_is_refused_at_any_depth() {
        let text = r#"{"a":[1,-2,1.5,null,true,"x"]}"#;
        let tree = parse(text.as_bytes()).expect("JSON");
        let value = serde_json::Value::deserialize(&tree).expect("JSON");
        assert_eq!(value.to_string(), text);
        for text in [r#"{"a":1,"a":2}"#, r#"[{"b":{"a":1,"a":1}}]"#] {
            let problem = parse(text.as_bytes()).expect_err(text);
            assert!(problem.detail().contains("given twice"), "{}", problem.detail());
        }
    }

    #[test]
    fn an_op_is_read_as_from_serde_jsons_own_value() {
        let texts = [
            "null",
            "5",
            "[]",
            "{}",
            r#"{"op":"add"}"#,
            r#"{"op":"add","by":1.5}"#,
            r#"{"op":"add","by":-0.0}"#,
            r#"{"op":"add","by":"7"}"#,
            r#"{"op":"add","x":1}"#,
            r#"{"by":1,"op":"add"}"#,
            r#"{"op":"add","item":"\u00e9","by":18446744073709551615}"#,
            r#"{"op":"add","items":["a",1,null]}"#,
            r#"{"op":"record","value":1e300,"count":2}"#,
            r#"{"op":"set","value":{"b":[true,null],"a":{"c":""}},"after":null}"#,
            r#"{"op":"observe","value":9,"label":"eu-1"}"#,
        ];
        for &kind in orderfree_core::crdt::Kind::ALL {
            for text in texts.into_iter().chain([kind.about().example_op]) {
                let value: serde_json::Value = serde_json::from_str(text).expect("JSON");
                let tree = parse(text.as_bytes()).expect("JSON");
                assert_eq!(kind.read_op(&tree), kind.parse_op(&value), "{kind} {text}");
            }
            for text in [r#"{"op":0}"#, r#"{"op":["add"]}"#, r#"{"op":null}"#] {
                let error = kind.read_op(&parse(text.as_bytes()).expect("JSON")).expect_err(text);
                assert!(error.to_string().contains("must be a string"), "{kind} {error}");
            }
        }
    }

    #[test]
    fn every_shape_is_read_from_a_tree() {
        #[derive(Debug, PartialEq, serde::Deserialize)]
        enum Shape {
            Plain,
            Wrapped(Box<Shape>),
            Optional(Option<u8>),
            Named { text: char },
        }
        let shapes = [
            (r#""Plain""#, Some(Shape::Plain)),
            (r#"{"Wrapped":"Plain"}"#, Some(Shape::Wrapped(Shape::Plain.into()))),
            (r#"{"Optional":7}"#, Some(Shape::Optional(Some(7)))),
            (r#"{"Optional":null}"#, Some(Shape::Optional(None))),
            (r#"{"Named":{"text":"x"}}"#, Some(Shape::Named { text: 'x' })),
            (r#"{"Optional":256}"#, None),
            (r#"{"Plain":null,"Optional":7}"#, None),
            ("7", None),
        ];
        for (text, expected) in shapes {
            let tree = parse(text.as_bytes()).expect("JSON");
            assert_eq!(Shape::deserialize(&tree).ok(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_not_one_json_text_is_refused() {
        for text in ["", "{", "1 2", "nul", "{\"a\":\"\u{1}\"}", "[1,]"] {
            let problem = parse(text.as_bytes()).expect_err(text);
            assert_eq!(problem.kind(), ProblemType::BadBody, "{text}");
        }
        assert!(parse(b"\"\xff\"").is_err(), "not UTF-8");
        assert!(parse("[".repeat(100_000).as_bytes()).is_err(), "too deep, but no crash");
    }
}
