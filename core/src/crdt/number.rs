//! Strict parsing of numbers in ops.

use std::fmt;

use serde::de::{self, Deserializer, Visitor};

use super::json;

/// Every whole number up to here is a double.
const WHOLE_MAX: u64 = 1 << 53;

/// Reads a finite double. JSON has no NaN and no infinities; in quotes they are refused. Negative zero
/// becomes zero. A number with a fraction means the nearest double. A whole number means itself, so it is refused
/// unless a double equals it. Written with a point or an exponent, it is also taken if programs print the nearest
/// double so.
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

        #[allow(clippy::cast_precision_loss, reason = "no precision is lost up to 2^53")]
        fn visit_i64<E: de::Error>(self, value: i64) -> Result<f64, E> {
            match value.unsigned_abs() {
                0..=WHOLE_MAX => Ok(value as f64),
                _ => whole(&value.to_string()),
            }
        }

        #[allow(clippy::cast_precision_loss, reason = "no precision is lost up to 2^53")]
        fn visit_u64<E: de::Error>(self, value: u64) -> Result<f64, E> {
            match value {
                0..=WHOLE_MAX => Ok(value as f64),
                _ => whole(&value.to_string()),
            }
        }

        fn visit_bytes<E: de::Error>(self, token: &[u8]) -> Result<f64, E> {
            let text = json::token_text(token);
            if json::is_whole(text) {
                return whole(text);
            }
            let nearest = text.parse().ok().and_then(positive_zero);
            let nearest =
                nearest.ok_or_else(|| E::invalid_value(de::Unexpected::Other(text), &self))?;
            match json::digits_of_whole(text) {
                Some(digits) if !json::is_printed(text, nearest) => whole(&digits),
                _ => Ok(nearest),
            }
        }
    }

    deserializer.deserialize_any(Finite)
}

/// The double that equals a whole number.
fn whole<E: de::Error>(text: &str) -> Result<f64, E> {
    let nearest: f64 = text.parse().map_err(E::custom)?;
    // All digits before the point.
    let digits = format!("{nearest:.0}");
    if digits == text {
        return Ok(nearest);
    }
    let magnitude = |text: &str| {
        let digits = text.trim_start_matches('-');
        (digits.len(), digits.to_owned())
    };
    // A magnitude ascends with the bits of its double.
    let is_below = magnitude(&digits) < magnitude(text);
    let bits = nearest.to_bits();
    let other = f64::from_bits(if is_below { bits + 1 } else { bits - 1 });
    Err(E::custom(format!(
        "`value` would be rounded: no double equals {text}, and the nearest two are {nearest:.0} and \
         {other:.0}; send one of them, or keep the number in a counter, a sum or a string"
    )))
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

        fn visit_f64<E: de::Error>(self, value: f64) -> Result<u64, E> {
            json::whole_of_double(value, &self).and_then(|number| self.visit_i64(number))
        }

        fn visit_bytes<E: de::Error>(self, token: &[u8]) -> Result<u64, E> {
            json::whole_of_bytes(token, &self).and_then(|number| self.visit_i64(number))
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
    use serde::de::value::{BytesDeserializer, Error, I64Deserializer, U64Deserializer};

    use super::*;

    #[test]
    fn a_whole_number_is_a_double_or_refused_with_the_nearest_two() {
        let read = |text: &str| match text.parse() {
            Ok(number) => finite(I64Deserializer::<Error>::new(number)),
            Err(_) => finite(BytesDeserializer::<Error>::new(text.as_bytes())),
        };
        for (text, double) in [
            ("9007199254740992", 2_f64.powi(53)),
            ("-9007199254740994", -2_f64.powi(53) - 2.0),
            ("1180591620717411303424", 2_f64.powi(70)),
            ("100000000000000000000", 1e20),
            ("0.1000000000000000055511151231257827", 0.1),
            ("1e-400", 0.0),
            ("-1e-400", 0.0),
            ("-0e5", 0.0),
            ("0.000", 0.0),
            ("9007199254740992.00", 2_f64.powi(53)),
            ("1.180591620717411303424e21", 2_f64.powi(70)),
            // As Python prints it, as most languages print it, and as `%.17g` does.
            ("1.7956900381749821e+18", 1_795_690_038_174_982_144.0),
            ("1e23", 1e23),
            ("9.9999999999999992e+22", 1e23),
            ("1.7976931348623157e308", f64::MAX),
            ("-5E-324", -5e-324),
        ] {
            assert_eq!(read(text), Ok(double), "{text}");
        }
        for (text, near, other) in [
            ("9007199254740993", "9007199254740992", "9007199254740994"),
            ("-9007199254740995", "-9007199254740996", "-9007199254740994"),
            ("1795690038174982123", "1795690038174982144", "1795690038174981888"),
            ("99999999999999999999", "100000000000000000000", "99999999999999983616"),
            ("100000000000000000000000", "99999999999999991611392", "100000000000000008388608"),
        ] {
            let error = read(text).expect_err(text).to_string();
            let says = format!("{text}, and the nearest two are {near} and {other};");
            assert!(error.contains(&says), "{error}");
        }
        for text in ["1795690038174982123.0", "1.795690038174982123e18", "17956900381749821230e-1"]
        {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains("1795690038174982123, and the nearest two are"), "{error}");
        }
        let error = finite(U64Deserializer::<Error>::new(u64::MAX)).expect_err("2^64 - 1");
        assert!(error.to_string().contains("18446744073709551616 and"), "{error}");
    }

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
