//! Strict parsing of numbers in ops.

use std::fmt;

use serde::de::{self, Deserializer, Visitor};

/// Reads a finite double. JSON has no NaN and no infinities; in quotes they are refused. Negative zero
/// becomes zero.
pub(super) fn finite<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    struct Finite;

    impl Visitor<'_> for Finite {
        type Value = f64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("`value` as a finite JSON number")
        }

        fn visit_f64<E: de::Error>(self, value: f64) -> Result<f64, E> {
            positive_zero(value)
                .ok_or_else(|| E::invalid_value(de::Unexpected::Float(value), &self))
        }

        #[allow(clippy::cast_precision_loss, reason = "a value is a double: rounded once, here")]
        fn visit_i64<E>(self, value: i64) -> Result<f64, E> {
            Ok(value as f64)
        }

        #[allow(clippy::cast_precision_loss, reason = "a value is a double: rounded once, here")]
        fn visit_u64<E>(self, value: u64) -> Result<f64, E> {
            Ok(value as f64)
        }
    }

    deserializer.deserialize_any(Finite)
}

/// A finite number without negative zero; none if it is not finite.
fn positive_zero(value: f64) -> Option<f64> {
    // IEEE 754: -0.0 + 0.0 is 0.0, and nothing else changes.
    value.is_finite().then_some(value + 0.0)
}

/// Reads how often a value was met: a whole number from 1 to 2^63 - 1.
pub(super) fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    positive(deserializer, "`count` as a whole number from 1 to 9223372036854775807")
}

/// Reads a positive weight, from 1 to 2^63 - 1.
pub(super) fn weight<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    positive(deserializer, "`by` as a whole number from 1 to 9223372036854775807")
}

/// The count of a value that comes without one.
pub(super) fn once() -> u64 {
    1
}

fn positive<'de, D: Deserializer<'de>>(
    deserializer: D,
    rule: &'static str,
) -> Result<u64, D::Error> {
    struct Positive(&'static str);

    impl Visitor<'_> for Positive {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_i64<E: de::Error>(self, value: i64) -> Result<u64, E> {
            match u64::try_from(value) {
                Ok(positive) if positive > 0 => Ok(positive),
                _ => Err(E::invalid_value(de::Unexpected::Signed(value), &self)),
            }
        }

        fn visit_u64<E: de::Error>(self, value: u64) -> Result<u64, E> {
            match i64::try_from(value) {
                Ok(1..) => Ok(value),
                _ => Err(E::invalid_value(de::Unexpected::Unsigned(value), &self)),
            }
        }

        fn visit_str<E: de::Error>(self, value: &str) -> Result<u64, E> {
            match value.parse() {
                Ok(number) => self.visit_u64(number),
                Err(_) => Err(E::invalid_value(de::Unexpected::Str(value), &self)),
            }
        }
    }

    deserializer.deserialize_any(Positive(rule))
}

#[cfg(test)]
mod tests {
    use serde::de::value::{Error, I64Deserializer, U64Deserializer};

    use super::*;

    #[test]
    fn zero_has_one_sign() {
        assert_eq!(positive_zero(-0.0).map(f64::to_bits), Some(0));
        assert_eq!(positive_zero(-1.5), Some(-1.5));
        assert_eq!(positive_zero(f64::NAN), None);
    }

    /// JSON passes whole numbers as unsigned where it can; other formats may not.
    #[test]
    fn counts_are_positive_however_they_come() {
        let signed = |number| count(I64Deserializer::<Error>::new(number));
        let unsigned = |number| count(U64Deserializer::<Error>::new(number));
        for number in [1, i64::MAX] {
            assert_eq!(signed(number), Ok(number.cast_unsigned()));
            assert_eq!(unsigned(number.cast_unsigned()), Ok(number.cast_unsigned()));
        }
        for bad in [0, -1, i64::MIN] {
            assert!(signed(bad).is_err(), "{bad}");
        }
        assert!(unsigned(0).is_err() && unsigned(1 << 63).is_err());
    }
}
