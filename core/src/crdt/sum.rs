//! `sum`: an exact sum of decimal amounts, for money and other quantities that binary fractions can't hold.
//!
//! The state is a whole number of units of 10^-scale, where the scale is the largest of any amount, so it
//! depends only on the amounts. The whole number has no limit: with 128 bits, two states that are each in
//! range could be impossible to merge, and their key impossible to read.

use std::fmt;
use std::num::TryFromIntError;

use num_bigint::BigInt;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use super::varint::{self, Reader};
use super::{
    About, BareValue, Class, Crdt, DecodeError, Effect, MergeError, OpError, Question, Size, Value,
    check_format, json,
};

/// Maximum digits after the point.
const SCALE_MAX: u8 = 18;
/// Maximum digits of one amount.
const DIGITS_MAX: usize = 36;
/// Maximum bytes of the stored number: 2^256 amounts of the largest size and finest scale.
const MAGNITUDE_BYTES_MAX: usize = 64;

/// The running sum.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sum {
    /// In units of 10^-scale.
    units: BigInt,
    scale: u8,
}

/// A change of a [`Sum`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum SumOp {
    /// Adds `by`, which may be negative.
    Add {
        /// The amount.
        by: Decimal,
    },
}

/// A decimal number: up to 36 digits, up to 18 of them after the point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decimal {
    units: i128,
    scale: u8,
}

impl Decimal {
    /// Reads digits with an optional sign and point, such as `-12.30`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Decimal> {
        let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if !is_number(whole) || !is_number(fraction) {
            return None;
        }
        let fraction = if digits.contains('.') { fraction } else { "" };
        let scale = u8::try_from(fraction.len()).ok().filter(|scale| *scale <= SCALE_MAX)?;
        let units = format!("{whole}{fraction}");
        let significant = units.trim_start_matches('0');
        if significant.len() > DIGITS_MAX {
            return None;
        }
        let units: i128 = if significant.is_empty() { 0 } else { significant.parse().ok()? };
        Some(Decimal { units: if text.starts_with('-') { -units } else { units }, scale })
    }
}

impl Sum {
    /// The units at a scale that is at least this one's.
    fn units_at(&self, scale: u8) -> BigInt {
        &self.units * BigInt::from(10).pow(u32::from(scale - self.scale))
    }

    fn add(&mut self, other: &Sum) {
        let scale = self.scale.max(other.scale);
        *self = Sum { units: self.units_at(scale) + other.units_at(scale), scale };
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scale = usize::from(self.scale);
        let digits = format!("{:0>width$}", self.units.magnitude(), width = scale + 1);
        let (whole, fraction) = digits.split_at(digits.len() - scale);
        let sign = if self.units < BigInt::ZERO { "-" } else { "" };
        let point = if scale == 0 { "" } else { "." };
        write!(f, "{sign}{whole}{point}{fraction}")
    }
}

impl Crdt for Sum {
    const NAME: &'static str = "sum";
    const CODE: u64 = 2;
    const FORMAT: u64 = 1;
    const ABOUT: About = About {
        summary: "A sum of decimal amounts with up to 18 digits after the point.",
        class: Class::Exact,
        is_exact: true,
        size: Size::Small,
        bound: "Exact: with all digits of the sum, and as many after the point as the most precise \
                amount.",
        is_idempotent: false,
        has_totals: true,
        bare: ("add", "by"),
        bare_value: BareValue::Whole,
        example_op: r#"{"op":"add","by":"12.34"}"#,
        example_value: r#""12.34""#,
        op_schema: r#"{"title":"SumOp","description":"Adds `by`.",
            "type":"object","required":["op","by"],"additionalProperties":false,"properties":{
            "op":{"type":"string","enum":["add"]},
            "by":{"description":"Up to 36 digits, up to 18 of them after the point.","oneOf":[
                {"type":"string","pattern":"^[+-]?[0-9]{1,18}([.][0-9]{1,18})?$"},
                {"type":"integer","minimum":-9223372036854775808,"maximum":18446744073709551615}]}}}"#,
        value_schema: r#"{"type":"string","pattern":"^-?[0-9]+([.][0-9]+)?$",
            "description":"The sum as a decimal number."}"#,
        parameters: &[],
    };
    type Op = SumOp;

    fn parse_value(text: &str) -> Option<Value> {
        let Decimal { units, scale } = Decimal::parse(text)?;
        Some(Value::text(Sum { units: units.into(), scale }.to_string()))
    }

    fn apply(&mut self, op: &SumOp) -> Result<Effect, OpError> {
        let SumOp::Add { by: Decimal { units, scale } } = *op;
        let is_finer = scale > self.scale;
        self.add(&Sum { units: units.into(), scale });
        Ok(Effect::of(units != 0 || is_finer))
    }

    fn merge(&mut self, other: &Sum) -> Result<(), MergeError> {
        self.add(other);
        Ok(())
    }

    fn value(&self, _question: &Question) -> Value {
        Value::text(self.to_string())
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.scale);
        varint::put_big(&self.units, out);
    }

    fn decode(format: u64, _: Option<u16>, payload: &[u8]) -> Result<Sum, DecodeError> {
        check_format::<Sum>(format)?;
        let mut reader = Reader::new(payload);
        let scale = reader.byte()?;
        if scale > SCALE_MAX {
            return Err(DecodeError::NotCanonical);
        }
        let units = reader.big(MAGNITUDE_BYTES_MAX)?;
        reader.end()?;
        Ok(Sum { units, scale })
    }
}

/// A whole number that needs no quotes, because every parser of 64-bit numbers keeps it.
struct Whole(i128);

impl TryFrom<i128> for Whole {
    type Error = TryFromIntError;

    fn try_from(number: i128) -> Result<Whole, TryFromIntError> {
        let signed = i64::try_from(number).map(i128::from);
        signed.or_else(|_| u64::try_from(number).map(i128::from)).map(Whole)
    }
}

const RULE: &str = "a decimal number such as \"-12.30\", of at most 36 digits, at most 18 of them \
                    after the point";

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Decimal, D::Error> {
        struct Wanted;

        impl Visitor<'_> for Wanted {
            type Value = Decimal;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "`by` as {RULE}; in quotes, unless it is a whole number")
            }

            fn visit_i64<E>(self, value: i64) -> Result<Decimal, E> {
                Ok(Decimal { units: i128::from(value), scale: 0 })
            }

            fn visit_u64<E>(self, value: u64) -> Result<Decimal, E> {
                Ok(Decimal { units: i128::from(value), scale: 0 })
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Decimal, E> {
                json::whole_of_double(value, &self).map(|Whole(units)| Decimal { units, scale: 0 })
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Decimal, E> {
                Decimal::parse(value)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(value), &self))
            }

            fn visit_bytes<E: de::Error>(self, token: &[u8]) -> Result<Decimal, E> {
                json::whole_of_bytes(token, &self).map(|Whole(units)| Decimal { units, scale: 0 })
            }
        }

        deserializer.deserialize_any(Wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crdt::{Kind, Op, laws};
    use proptest::prelude::*;

    fn ops() -> impl Strategy<Value = SumOp> {
        let units = prop_oneof![-99..100i128, -(10i128.pow(36)) + 1..10i128.pow(36)];
        (units, 0..=SCALE_MAX)
            .prop_map(|(units, scale)| SumOp::Add { by: Decimal { units, scale } })
    }

    laws::suite!(Sum, ops());

    fn parse(json: &str) -> Result<Op, OpError> {
        Kind::Sum.parse_op(&serde_json::from_str(json).expect("JSON"))
    }

    #[test]
    fn tenths_add_up() {
        let add = |text| SumOp::Add { by: Decimal::parse(text).expect(text) };
        let mut sum = Sum::default();
        for (text, total) in [
            ("0.1", "0.1"),
            ("0.2", "0.3"),
            ("-1", "-0.7"),
            ("+0.70", "0.00"),
            ("-00.05", "-0.05"),
            ("999999999999999999999999999999999999", "999999999999999999999999999999999998.95"),
            ("0.000000000000000001", "999999999999999999999999999999999998.950000000000000001"),
        ] {
            assert_eq!(sum.apply(&add(text)), Ok(Effect::Changed));
            assert_eq!(sum.value(&Question::default()), Value::text(total));
        }
        assert_eq!(sum.apply(&add("0.0")), Ok(Effect::Unchanged));
    }

    #[test]
    fn ops_are_read_from_json() {
        let add = |units, scale| Ok(Op::Sum(SumOp::Add { by: Decimal { units, scale } }));
        assert_eq!(parse(r#"{"op":"add","by":"-12.30"}"#), add(-1230, 2));
        assert_eq!(parse(r#"{"op":"add","by":7}"#), add(7, 0));
        assert_eq!(parse(r#"{"op":"add","by":18446744073709551615}"#), add(u64::MAX.into(), 0));
        assert_eq!(parse(r#"{"op":"add","by":-1e2}"#), add(-100, 0));
        assert_eq!(parse(r#"{"op":"add","by":1e19}"#), add(10_i128.pow(19), 0));
        assert_eq!(parse(r#"{"op":"add","by":7.0}"#), add(7, 0));
        assert_eq!(Kind::Sum.read_bare_op("-5"), add(-5, 0));
    }

    #[test]
    fn a_zero_changes_nothing_unless_it_is_finer() {
        let mut state = Sum::default();
        for (scale, effect) in [
            (0, Effect::Unchanged),
            (2, Effect::Changed),
            (2, Effect::Unchanged),
            (1, Effect::Unchanged),
        ] {
            let zero = SumOp::Add { by: Decimal { units: 0, scale } };
            assert_eq!(state.apply(&zero), Ok(effect), "{scale} digits");
        }
    }

    #[test]
    fn bad_ops_are_refused_with_the_rule() {
        for by in [
            "12.34",
            "1e20",
            "null",
            "\"\"",
            "\".5\"",
            "\"5.\"",
            "\"1e3\"",
            "\"NaN\"",
            "\"inf\"",
            "\"--1\"",
            "\"1 \"",
            "\"0.1234567890123456789\"",
            "\"1,5\"",
            "\"٣\"",
            "\"1000000000000000000000000000000000000\"",
        ] {
            let error = parse(&format!(r#"{{"op":"add","by":{by}}}"#)).expect_err(by).to_string();
            assert!(error.contains("`by` as a decimal number such as \"-12.30\""), "{by}: {error}");
        }
        assert!(parse(r#"{"op":"add"}"#).expect_err("no amount").to_string().contains("by"));
    }
}
