//! The times of ops for kinds in which the last writer wins.

use std::fmt;

use serde::de::{self, Deserializer, Visitor};

use super::json;
use crate::protocol::Timestamp;

/// The time of an op without a stamp yet: before all others.
pub(super) fn unstamped() -> Timestamp {
    Timestamp::from_micros(0)
}

/// JSON Schema of `after`.
macro_rules! after_schema {
    () => {
        r#""after":{"description":"The `timestamp` of an answer that this op must come after, in µs.",
            "oneOf":[{"type":"integer","minimum":0,"maximum":9223372036854775807},
            {"type":"string","pattern":"^[0-9]{1,18}$"}]}"#
    };
}
pub(super) use after_schema;

/// Reads `after`: the `timestamp` of an earlier answer, in µs since 1970.
pub(super) fn after<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Timestamp>, D::Error> {
    struct Wanted;

    impl Visitor<'_> for Wanted {
        type Value = Option<Timestamp>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("`after` as the `timestamp` of an earlier answer, in µs since 1970")
        }

        fn visit_u64<E: de::Error>(self, value: u64) -> Result<Option<Timestamp>, E> {
            i64::try_from(value)
                .map(|micros| Some(Timestamp::from_micros(micros)))
                .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(value), &self))
        }

        fn visit_f64<E: de::Error>(self, value: f64) -> Result<Option<Timestamp>, E> {
            json::whole_of_double(value, &self).and_then(|micros| self.visit_u64(micros))
        }

        fn visit_str<E: de::Error>(self, value: &str) -> Result<Option<Timestamp>, E> {
            match value.parse() {
                Ok(micros) => self.visit_u64(micros),
                Err(_) => Err(E::invalid_value(de::Unexpected::Str(value), &self)),
            }
        }

        fn visit_bytes<E: de::Error>(self, token: &[u8]) -> Result<Option<Timestamp>, E> {
            json::whole_of_bytes(token, &self).and_then(|micros| self.visit_u64(micros))
        }
    }

    deserializer.deserialize_any(Wanted)
}
