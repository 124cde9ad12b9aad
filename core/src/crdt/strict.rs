//! JSON of any shape from a client: a register's value, an expression.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::map::Entry;
use serde_json::{Map, Value as Json};

/// The prefix of names that are special to `serde_json`: when it reads its own values, it parses the text of
/// such a field again.
const PRIVATE: &str = "$serde_json::private::";

/// Any JSON in which no object has a field twice. `serde_json` would keep the last one, and a reader of the
/// request could expect the first.
pub(super) struct Strict(pub(super) Json);

/// For `#[serde(deserialize_with)]`.
pub(super) fn json<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
    Strict::deserialize(deserializer).map(|Strict(json)| json)
}

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Strict, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Json;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_unit<E>(self) -> Result<Json, E> {
                Ok(Json::Null)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
                Ok(value.into())
            }

            fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
                Ok(value.into())
            }

            fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
                Ok(value.into())
            }

            fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
                Ok(value.into())
            }

            fn visit_str<E>(self, value: &str) -> Result<Json, E> {
                Ok(value.into())
            }

            fn visit_string<E>(self, value: String) -> Result<Json, E> {
                Ok(value.into())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
                let mut items = Vec::new();
                while let Some(Strict(item)) = seq.next_element()? {
                    items.push(item);
                }
                Ok(items.into())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
                let mut fields = Map::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name.starts_with(PRIVATE) {
                        let rule = format!("field names must not start with {PRIVATE}");
                        return Err(de::Error::custom(rule));
                    }
                    let Strict(value) = map.next_value()?;
                    match fields.entry(name) {
                        Entry::Vacant(entry) => entry.insert(value),
                        Entry::Occupied(entry) => {
                            let rule = format!("the field `{}` is given twice", entry.key());
                            return Err(de::Error::custom(rule));
                        }
                    };
                }
                Ok(fields.into())
            }
        }

        deserializer.deserialize_any(Any).map(Strict)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Expression, Kind};
    use super::*;

    fn read(text: &str) -> Result<Json, String> {
        let read = json(&mut serde_json::Deserializer::from_str(text));
        read.map_err(|error| error.to_string())
    }

    #[test]
    fn a_value_is_read_as_it_is() {
        for text in [
            "null",
            "[true,false]",
            r#"{"a":{"b":[1,-2,18446744073709551615],"c":1.5},"é":"\"\n"}"#,
            "-0.0",
            "1e300",
            "0.1",
        ] {
            assert_eq!(read(text), Ok(serde_json::from_str(text).expect("JSON")), "{text}");
        }
        assert_eq!(read("-0.0").expect("JSON").to_string(), "-0.0");
        for text in ["\"\\ud800\"", "1e400", &"[".repeat(100_000)] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_field_given_twice_is_refused_at_any_depth() {
        for value in [r#"{"a":1,"a":2}"#, r#"[{"b":{"a":1,"c":0,"a":1}}]"#, r#"{"a":1,"\u0061":2}"#]
        {
            assert!(read(value).is_err_and(|error| error.contains("`a` is given twice")));
            let op = format!(r#"{{"op":"set","value":{value}}}"#);
            let op = Kind::Register.read_op(&mut serde_json::Deserializer::from_str(&op));
            let error = op.expect_err("a field is given twice").to_string();
            assert!(error.contains("`a` is given twice"), "{error}");
        }
        let expression = r#"{"and":["a"],"and":["b"]}"#;
        assert!(serde_json::from_str::<Expression>(expression).is_err());
    }

    #[test]
    fn names_that_are_special_to_the_parser_are_refused() {
        for value in
            [r#"{"$serde_json::private::RawValue":"5"}"#, r#"[{"$serde_json::private::x":1}]"#]
        {
            assert!(read(value).is_err_and(|error| error.contains("must not start with")));
        }
    }
}
