//! The values that reads return, and the questions that reads can ask.

use std::fmt;

use serde::de::IgnoredAny;
use serde::ser::{Error, SerializeMap};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::item::Item;
use super::json;
use crate::protocol::Key;

/// The value that a read returns, as a tree that is written as JSON.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// No value, such as the maximum of no observations.
    Null,
    /// A result that no double tells: beyond their range, or not 0 and nearer to 0 than to any other double.
    /// It is written as null, and the value that it is in is [not exact](Value::is_exact).
    OutOfRange,
    /// Yes or no.
    Bool(bool),
    /// An exact whole number: a JSON number of any length or, on request, a string of digits.
    Integer(i128),
    /// An item of a set. Because 7 and "7" are two items, it is put in quotes on request only if JavaScript
    /// would take it for another number.
    Item(Item),
    /// A finite double.
    Real(f64),
    /// Text that is written as it is: labels, tokens, the decimals of a `sum`.
    Text(String),
    /// A list of values.
    List(Vec<Value>),
    /// Named values, in the order in which they are shown.
    Record(Vec<(&'static str, Value)>),
    /// The text of JSON that a client stored. On request, the numbers are put in quotes that JavaScript would
    /// change.
    Json(Box<str>),
}

/// What a read asks for in addition to the value: the query parameters that only some kinds have (see
/// [`About::parameters`](super::About::parameters)), and the key.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Question {
    /// The key of the value. Tokens in the answer are valid only for this key; without it there are no
    /// tokens.
    pub key: Option<Key>,
    /// `q`: quantiles, each from 0 to 1.
    pub quantiles: Vec<f64>,
    /// `buckets`: include the buckets of a histogram.
    pub buckets: bool,
    /// `as`: show the value in the format of another system.
    pub form: Option<Form>,
    /// `contains`: whether a set contains this item.
    pub contains: Option<Item>,
}

/// The part of a kind's value that is its bare text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BareValue {
    /// The value itself, which is a number. A key that does not exist has 0.
    Whole,
    /// This field.
    Field(&'static str),
    /// The items of a set; or whether it contains one, if the read asks that.
    Items,
    /// No part of the value stands for all of it.
    Nothing,
}

/// A format in which other systems exchange histograms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `opentelemetry`: an `ExponentialHistogramDataPoint` in OTLP/JSON.
    OpenTelemetry,
    /// `prometheus`: a native histogram as in the answers of Prometheus' HTTP API.
    Prometheus,
}

impl Value {
    /// A count, as a whole number.
    #[must_use]
    pub fn count(count: impl TryInto<i128>) -> Value {
        Value::Integer(count.try_into().unwrap_or(i128::MAX))
    }

    /// Text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Value {
        Value::Text(text.into())
    }

    /// A double, or null.
    #[must_use]
    pub fn real(real: Option<f64>) -> Value {
        real.map_or(Value::Null, Value::Real)
    }

    /// The double next to a result. `None` is a result that no double tells.
    #[must_use]
    pub(super) fn nearest_double(result: Option<f64>) -> Value {
        result.map_or(Value::OutOfRange, Value::Real)
    }

    /// Whether every result in it has a double.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        match self {
            Value::OutOfRange => false,
            Value::List(values) => values.iter().all(Value::is_exact),
            Value::Record(fields) => fields.iter().all(|(_, value)| value.is_exact()),
            _ => true,
        }
    }

    /// The field of a record with this name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Value> {
        match self {
            Value::Record(fields) => {
                fields.iter().find(|(field, _)| *field == name).map(|(_, value)| value)
            }
            _ => None,
        }
    }

    /// The value as lines of bare text: as [`Kind::bare_op`](super::Kind::bare_op) reads them. A set has a line
    /// for each item, all others have one. `None` for a kind without a bare value.
    #[must_use]
    pub fn bare(&self, part: BareValue) -> Option<String> {
        let whole = [self];
        let lines: &mut dyn Iterator<Item = &Value> = match part {
            BareValue::Nothing => return None,
            BareValue::Whole => &mut whole.into_iter(),
            BareValue::Field(name) => &mut self.field(name).into_iter(),
            BareValue::Items => match (self.field("contains"), self.field("items")) {
                (None, Some(Value::List(items))) => {
                    &mut items.iter().map(|item| item.field("item").unwrap_or(item))
                }
                (contains, _) => &mut contains.into_iter(),
            },
        };
        Some(lines.map(|line| format!("{line}\n")).collect())
    }

    /// The value as JSON. `as_digits` writes whole numbers in quotes, for parsers that keep only 53 bits.
    #[must_use]
    pub fn shown(&self, as_digits: bool) -> ValueJson<'_> {
        ValueJson { value: self, as_digits }
    }
}

/// One line. A scalar is bare text, anything else is JSON.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Integer(integer) => integer.fmt(f),
            Value::Text(text) => text.fmt(f),
            Value::Item(item) => item.fmt(f),
            Value::Json(text) => match serde_json::from_str::<String>(text) {
                Ok(string) => {
                    let is_json = serde_json::from_str::<IgnoredAny>(&string).is_ok();
                    json::bare(&string, !is_json).fmt(f)
                }
                Err(_) => text.fmt(f),
            },
            other => {
                let json = serde_json::to_string(&other.shown(false)).map_err(|_| fmt::Error)?;
                f.write_str(&json)
            }
        }
    }
}

/// A value that serializes to JSON.
#[derive(Debug, Clone, Copy)]
pub struct ValueJson<'a> {
    value: &'a Value,
    as_digits: bool,
}

impl Serialize for ValueJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let as_digits = self.as_digits;
        match self.value {
            Value::Null | Value::OutOfRange => serializer.serialize_unit(),
            Value::Bool(bool) => serializer.serialize_bool(*bool),
            Value::Integer(integer) if as_digits => serializer.collect_str(integer),
            Value::Integer(integer) => serializer.serialize_i128(*integer),
            Value::Item(Item::Number(number))
                if as_digits && !json::is_held_by_javascript(*number) =>
            {
                serializer.collect_str(number)
            }
            Value::Item(item) => item.serialize(serializer),
            Value::Real(real) => serializer.serialize_f64(*real),
            Value::Text(text) => serializer.serialize_str(text),
            Value::List(values) => {
                serializer.collect_seq(values.iter().map(|value| value.shown(as_digits)))
            }
            Value::Record(fields) => {
                let mut map = serializer.serialize_map(Some(fields.len()))?;
                for (name, value) in fields {
                    map.serialize_entry(name, &value.shown(as_digits))?;
                }
                map.end()
            }
            Value::Json(text) if as_digits => write_json(&json::quoted(text), serializer),
            Value::Json(text) => write_json(text, serializer),
        }
    }
}

/// Writes the text of JSON as it is.
fn write_json<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serde_json::from_str::<&RawValue>(text).map_err(S::Error::custom)?.serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_exactly() {
        let write = |value: &Value, as_digits| {
            serde_json::to_string(&value.shown(as_digits)).expect("JSON")
        };
        let large = Value::Integer(i128::MAX);
        assert_eq!(write(&large, false), "170141183460469231731687303715884105727");
        assert_eq!(write(&large, true), "\"170141183460469231731687303715884105727\"");
        let record = Value::Record(vec![
            ("size", Value::count(2_usize)),
            ("items", Value::List(vec![Value::Item(Item::Number(7)), Value::Integer(7)])),
            ("max", Value::real(Some(0.5))),
            ("min", Value::real(None)),
        ]);
        assert_eq!(write(&record, false), r#"{"size":2,"items":[7,7],"max":0.5,"min":null}"#);
        assert_eq!(write(&record, true), r#"{"size":"2","items":[7,"7"],"max":0.5,"min":null}"#);
        let (item, json) = (Value::Item(Item::Number(1 << 53)), Value::Json("[1e999,7]".into()));
        let list = Value::List(vec![item, json, Value::OutOfRange]);
        assert_eq!(write(&list, false), "[9007199254740992,[1e999,7],null]");
        assert_eq!(write(&list, true), r#"["9007199254740992",[1e999,7],null]"#);
    }

    #[test]
    fn a_result_without_a_double_makes_a_value_inexact() {
        assert!(Value::List(vec![Value::Null, Value::Real(0.0)]).is_exact());
        let record = Value::Record(vec![("list", Value::List(vec![Value::OutOfRange]))]);
        assert!(!record.is_exact());
    }

    #[test]
    fn scalars_are_shown_bare() {
        assert_eq!(Value::Integer(-5).to_string(), "-5");
        assert_eq!(Value::text("12.30").to_string(), "12.30");
        assert_eq!(Value::Real(1.5).to_string(), "1.5");
        assert_eq!(Value::List(vec![Value::Bool(true)]).to_string(), "[true]");
        for (json, line) in [
            (r#""dark""#, "dark"),
            (r#""7""#, r#""7""#),
            (r#""a\nb""#, r#""a\nb""#),
            (r#""""#, r#""""#),
            ("{\"a\":[1]}", "{\"a\":[1]}"),
            ("1e999", "1e999"),
        ] {
            assert_eq!(Value::Json(json.into()).to_string(), line);
        }
    }
}
