//! JSON from clients, strictly: a field given twice is refused, because a parser that keeps the
//! last one would count something else than what a reader sees.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::catalog::ProblemType;
use super::problem::Problem;

/// Parses one whole JSON text.
pub(super) fn parse(bytes: &[u8]) -> Result<Value, Problem> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Strict.deserialize(&mut deserializer);
    value.and_then(|value| deserializer.end().map(|()| value)).map_err(|error| {
        Problem::new(ProblemType::BadBody, format!("This is not valid JSON: {error}."))
    })
}

/// An object's fields, each taken at most once; what is left is unknown.
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    /// The fields of an object; `example` shows what would be right.
    pub(super) fn of(value: Value, example: &str) -> Result<Fields, Problem> {
        match value {
            Value::Object(fields) => Ok(Fields(fields)),
            _ => Err(bad_body(format!("A JSON object is needed, such as {example}."))),
        }
    }

    /// Takes a field out; none if it was not given.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name)
    }

    /// Whether there is a field of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Takes out a field that must be a string.
    pub(super) fn text(&mut self, name: &str) -> Result<String, Problem> {
        let missing = || bad_body(format!("The field `{name}` is missing."));
        self.optional_text(name)?.ok_or_else(missing)
    }

    /// Takes out a field that must be a string if it is there.
    pub(super) fn optional_text(&mut self, name: &str) -> Result<Option<String>, Problem> {
        match self.take(name) {
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(bad_body(format!("The field `{name}` must be a string."))),
            None => Ok(None),
        }
    }

    /// Takes out a field that must be an array of 1 to `items_max` items.
    pub(super) fn list(&mut self, name: &str, items_max: usize) -> Result<Vec<Value>, Problem> {
        let Some(value) = self.take(name) else {
            return Err(bad_body(format!("The field `{name}` is missing.")));
        };
        let Value::Array(items) = value else {
            return Err(bad_body(format!("The field `{name}` must be an array.")));
        };
        if items.is_empty() || items.len() > items_max {
            let count = items.len();
            let detail = format!("`{name}` has {count} items; give it 1 to {items_max}.");
            return Err(bad_body(detail));
        }
        Ok(items)
    }

    /// Takes out a field that must be an array of 1 to `items_max` strings.
    pub(super) fn texts(&mut self, name: &str, items_max: usize) -> Result<Vec<String>, Problem> {
        let text = |item| match item {
            Value::String(text) => Ok(text),
            other => Err(bad_body(format!("`{name}` must hold strings; {other} is none."))),
        };
        self.list(name, items_max)?.into_iter().map(text).collect()
    }

    /// Refuses whatever was not taken.
    pub(super) fn end(self) -> Result<(), Problem> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => Err(bad_body(format!("Unknown field `{name}`; leave it out."))),
        }
    }
}

pub(super) fn bad_body(detail: String) -> Problem {
    Problem::new(ProblemType::BadBody, detail)
}

struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("not a finite number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(Strict)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            let value = map.next_value_seed(Strict)?;
            if fields.contains_key(&name) {
                return Err(de::Error::custom(format!("the field `{name}` is given twice")));
            }
            fields.insert(name, value);
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_field_given_twice_is_refused_at_any_depth() {
        assert_eq!(
            parse(br#"{"a":[1,-2,1.5,null,true,"x"]}"#).expect("JSON"),
            json!({"a": [1, -2, 1.5, null, true, "x"]})
        );
        for text in [r#"{"a":1,"a":2}"#, r#"[{"b":{"a":1,"a":1}}]"#] {
            let problem = parse(text.as_bytes()).expect_err(text);
            assert!(problem.detail().contains("given twice"), "{}", problem.detail());
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
