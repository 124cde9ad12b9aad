//! `counter`: a sum of signed 64-bit amounts, exact in 128 bits.

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use super::varint::{self, Reader};
use super::{
    About, BareValue, Class, Crdt, DecodeError, Effect, MergeError, OpError, Question, Size, Value,
    check_format, json,
};

/// The running total. 2^63 adds of the largest amount fit into its range, so only a forged state can
/// overflow. Overflow is still checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counter {
    total: i128,
}

/// A change of a [`Counter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum CounterOp {
    /// Adds `by`, which may be negative. Without `by`, adds one.
    Add {
        /// The amount: a JSON number or a decimal string.
        #[serde(default = "one", deserialize_with = "amount")]
        by: i64,
    },
}

impl Counter {
    /// A counter with this total.
    #[must_use]
    pub fn from_total(total: i128) -> Counter {
        Counter { total }
    }

    /// The total.
    #[must_use]
    pub fn total(&self) -> i128 {
        self.total
    }
}

impl Crdt for Counter {
    const NAME: &'static str = "counter";
    const CODE: u64 = 1;
    const FORMAT: u64 = 1;
    const ABOUT: About = About {
        summary: "A total of whole amounts, each from -2^63 to 2^63-1.",
        class: Class::Exact,
        is_exact: true,
        size: Size::Small,
        bound: "Exact: the total has 128 bits, in 1 to 19 bytes.",
        is_idempotent: false,
        has_totals: true,
        bare: ("add", "by"),
        bare_value: BareValue::Whole,
        example_op: r#"{"op":"add","by":5}"#,
        example_value: "5",
        op_schema: r#"{"title":"CounterOp","description":"Adds `by`, or 1 without it.",
            "type":"object","required":["op"],"additionalProperties":false,"properties":{
            "op":{"type":"string","enum":["add"]},
            "by":{"description":"In quotes for languages without 64-bit integers.","default":1,"oneOf":[
                {"type":"integer","minimum":-9223372036854775808,"maximum":9223372036854775807},
                {"type":"string","pattern":"^[+-]?[0-9]{1,18}$"}]}}}"#,
        value_schema: r#"{"type":"integer","description":"The total: up to 128 bits."}"#,
        parameters: &[],
    };
    type Op = CounterOp;

    fn empty_op() -> Option<CounterOp> {
        Some(CounterOp::Add { by: 1 })
    }

    fn parse_value(text: &str) -> Option<Value> {
        text.parse().ok().map(Value::Integer)
    }

    fn apply(&mut self, op: &CounterOp) -> Result<Effect, OpError> {
        let CounterOp::Add { by } = *op;
        let overflow = OpError::Overflow { kind: Self::NAME };
        self.total = self.total.checked_add(i128::from(by)).ok_or(overflow)?;
        Ok(if by == 0 { Effect::Unchanged } else { Effect::Changed })
    }

    fn merge(&mut self, other: &Counter) -> Result<(), MergeError> {
        let overflow = MergeError::Overflow { kind: Self::NAME };
        self.total = self.total.checked_add(other.total).ok_or(overflow)?;
        Ok(())
    }

    fn value(&self, _question: &Question) -> Value {
        Value::Integer(self.total)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        varint::put_signed(self.total, out);
    }

    fn decode(format: u64, _: Option<u16>, payload: &[u8]) -> Result<Counter, DecodeError> {
        check_format::<Counter>(format)?;
        let mut reader = Reader::new(payload);
        let total = reader.signed()?;
        reader.end()?;
        Ok(Counter { total })
    }
}

fn one() -> i64 {
    1
}

/// Accepts whole JSON numbers and decimal strings, because JavaScript can't write every i64 as a number.
fn amount<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    struct Amount;

    impl Visitor<'_> for Amount {
        type Value = i64;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("`by` as a whole number from -9223372036854775808 to 9223372036854775807")
        }

        fn visit_i64<E: de::Error>(self, value: i64) -> Result<i64, E> {
            Ok(value)
        }

        fn visit_u64<E: de::Error>(self, value: u64) -> Result<i64, E> {
            i64::try_from(value)
                .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(value), &self))
        }

        fn visit_f64<E: de::Error>(self, value: f64) -> Result<i64, E> {
            json::whole_of_double(value, &self)
        }

        fn visit_str<E: de::Error>(self, value: &str) -> Result<i64, E> {
            value.parse().map_err(|_| E::invalid_value(de::Unexpected::Str(value), &self))
        }

        fn visit_bytes<E: de::Error>(self, token: &[u8]) -> Result<i64, E> {
            json::whole_of_bytes(token, &self)
        }
    }

    deserializer.deserialize_any(Amount)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crdt::{Kind, Op, State, laws};
    use proptest::prelude::*;

    fn ops() -> impl Strategy<Value = CounterOp> {
        let by = prop_oneof![any::<i64>(), -9..10i64, Just(i64::MIN), Just(i64::MAX), Just(0)];
        by.prop_map(|by| CounterOp::Add { by })
    }

    laws::suite!(Counter, ops());

    fn parse(json: &str) -> Result<Op, OpError> {
        Kind::Counter.parse_op(&serde_json::from_str(json).expect("JSON"))
    }

    #[test]
    fn ops_are_read_from_json() {
        let add = |by| Ok(Op::Counter(CounterOp::Add { by }));
        assert_eq!(parse(r#"{"op":"add","by":-5}"#), add(-5));
        assert_eq!(parse(r#"{"op":"add"}"#), add(1));
        assert_eq!(parse(r#"{"op":"add","by":"-9223372036854775808"}"#), add(i64::MIN));
    }

    #[test]
    fn bad_ops_are_refused_with_the_rule() {
        for (json, says) in [
            (r#"{"op":"add","by":1.5}"#, "whole number"),
            (r#"{"op":"add","by":9223372036854775808}"#, "whole number"),
            (r#"{"op":"add","by":"1e3"}"#, "whole number"),
            (r#"{"op":"add","by":null}"#, "whole number"),
            (r#"{"op":"add","by":1,"unit":"x"}"#, "unknown field"),
            (r#"{"op":"set","by":1}"#, "unknown variant"),
            (r#"{"by":1}"#, "missing field `op`"),
            ("5", "internally tagged"),
        ] {
            let error = parse(json).expect_err(json).to_string();
            assert!(error.contains(says), "{json}: {error}");
        }
    }

    #[test]
    fn overflow_leaves_the_state_untouched() {
        let mut counter = Counter::from_total(i128::MAX);
        let refused = counter.apply(&CounterOp::Add { by: 1 });
        assert_eq!(refused, Err(OpError::Overflow { kind: "counter" }));
        assert_eq!(counter, Counter::from_total(i128::MAX));
        let mut state = State::Counter(counter);
        assert!(state.merge(&State::Counter(Counter::from_total(1))).is_err());
    }
}
