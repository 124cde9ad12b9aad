//! `extrema`: the smallest and the largest observed double, with the label of each.

use std::cmp::Ordering;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use super::number::finite;
use super::span::{get_double, put_double};
use super::varint::{self, Reader};
use super::{
    About, BareValue, Class, Crdt, DecodeError, Effect, MergeError, OpError, Question, Size, Value,
    check_format, json,
};

/// Longest label, in bytes of UTF-8.
pub const LABEL_BYTES_MAX: usize = 1024;

/// The smallest and the largest observation; both are none without observations. Among equal observations,
/// one with a label wins, and then the one with the smallest label by bytes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Extrema {
    min: Option<Extreme>,
    max: Option<Extreme>,
}

#[derive(Debug, Clone, PartialEq)]
struct Extreme {
    value: f64,
    label: Option<Box<str>>,
}

/// A change of [`Extrema`].
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum ExtremaOp {
    /// Observes a value.
    Observe {
        /// The value: finite, and not the negative zero.
        #[serde(deserialize_with = "finite")]
        value: f64,
        /// What it was observed on: 1 to [`LABEL_BYTES_MAX`] bytes, or nothing.
        #[serde(default, deserialize_with = "label")]
        label: Option<Box<str>>,
    },
}

impl Extreme {
    /// Replaces `held` by an observation that is beyond it on the side of `side`, or equal with a label that
    /// wins. Returns whether it did.
    fn offer(held: &mut Option<Extreme>, side: Ordering, value: f64, label: Option<&str>) -> bool {
        let wins = held.as_ref().is_none_or(|held| match value.total_cmp(&held.value) {
            Ordering::Equal => match (label, held.label.as_deref()) {
                (Some(label), Some(held)) => label < held,
                (label, held) => label.is_some() && held.is_none(),
            },
            order => order == side,
        });
        if wins {
            *held = Some(Extreme { value, label: label.map(Into::into) });
        }
        wins
    }

    fn show(&self) -> Value {
        let label = self.label.as_deref().map_or(Value::Null, Value::text);
        Value::Record(vec![("value", Value::Real(self.value)), ("label", label)])
    }

    /// Appends the value, the length of the label (0 if there is none), and the label.
    fn encode(&self, out: &mut Vec<u8>) {
        put_double(self.value, out);
        let label = self.label.as_deref().unwrap_or_default();
        varint::put(label.len() as u128, out);
        out.extend_from_slice(label.as_bytes());
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Extreme, DecodeError> {
        let value = get_double(reader)?;
        let length = reader.length()?;
        if length > LABEL_BYTES_MAX {
            return Err(DecodeError::NotCanonical);
        }
        let label = std::str::from_utf8(reader.bytes(length)?);
        let label = label.map_err(|_| DecodeError::NotCanonical)?;
        Ok(Extreme { value, label: (length > 0).then(|| label.into()) })
    }
}

impl Extrema {
    fn offer(&mut self, value: f64, label: Option<&str>) -> Effect {
        let is_min = Extreme::offer(&mut self.min, Ordering::Less, value, label);
        let is_max = Extreme::offer(&mut self.max, Ordering::Greater, value, label);
        Effect::of(is_min || is_max)
    }
}

impl Crdt for Extrema {
    const NAME: &'static str = "extrema";
    const CODE: u64 = 4;
    const FORMAT: u64 = 1;
    const ABOUT: About = About {
        summary: "The smallest and the largest double observed, each with the label of its \
            observation.",
        class: Class::Exact,
        is_exact: true,
        size: Size::Large { memory_factor: 10 },
        bound: "Exact; 18 bytes and the two labels.",
        is_idempotent: true,
        has_totals: false,
        bare: ("observe", "value"),
        bare_value: BareValue::Nothing,
        example_op: r#"{"op":"observe","value":9,"label":"eu-1"}"#,
        example_value: r#"{"min":{"value":9.0,"label":"eu-1"},"max":{"value":9.0,"label":"eu-1"}}"#,
        op_schema: r#"{"title":"ExtremaOp","description":"Observes `value`.",
            "type":"object","required":["op","value"],"additionalProperties":false,"properties":{
            "op":{"type":"string","enum":["observe"]},
            "value":{"description":"A whole number must equal a double. Any other number means the nearest double: 1e-400 is 0. 1e400 is beyond the doubles and refused.",
                "type":"number","format":"double"},
            "label":{"description":"What it was observed on: 1 to 1,024 bytes of UTF-8.",
                "type":["string","null"],"minLength":1,"maxLength":1024}}}"#,
        value_schema: r#"{"type":"object","required":["min","max"],
            "description":"Of equal observations the one with the smallest label, if one has a label.",
            "properties":{
            "min":{"type":["object","null"],"required":["value","label"],"properties":{
                "value":{"type":"number"},"label":{"type":["string","null"]}}},
            "max":{"type":["object","null"],"required":["value","label"],"properties":{
                "value":{"type":"number"},"label":{"type":["string","null"]}}}}}"#,
        parameters: &[],
    };
    type Op = ExtremaOp;

    fn heap_bytes(op: &ExtremaOp) -> usize {
        let ExtremaOp::Observe { label, .. } = op;
        label.as_ref().map_or(0, |label| label.len())
    }

    fn apply(&mut self, op: &ExtremaOp) -> Result<Effect, OpError> {
        let ExtremaOp::Observe { value, label } = op;
        Ok(self.offer(*value, label.as_deref()))
    }

    fn merge(&mut self, other: &Extrema) -> Result<(), MergeError> {
        for extreme in other.min.iter().chain(&other.max) {
            self.offer(extreme.value, extreme.label.as_deref());
        }
        Ok(())
    }

    fn value(&self, _question: &Question) -> Value {
        let show = |extreme: &Option<Extreme>| extreme.as_ref().map_or(Value::Null, Extreme::show);
        Value::Record(vec![("min", show(&self.min)), ("max", show(&self.max))])
    }

    /// Appends nothing without observations; otherwise the smallest and the largest.
    fn encode(&self, out: &mut Vec<u8>) {
        for extreme in self.min.iter().chain(&self.max) {
            extreme.encode(out);
        }
    }

    fn decode(format: u64, _: Option<u16>, payload: &[u8]) -> Result<Extrema, DecodeError> {
        check_format::<Extrema>(format)?;
        if payload.is_empty() {
            return Ok(Extrema::default());
        }
        let mut reader = Reader::new(payload);
        let (min, max) = (Extreme::decode(&mut reader)?, Extreme::decode(&mut reader)?);
        reader.end()?;
        // If both are equal, then all observations were equal, and the same label won twice.
        if min.value > max.value || (min.value == max.value && min.label != max.label) {
            return Err(DecodeError::NotCanonical);
        }
        Ok(Extrema { min: Some(min), max: Some(max) })
    }
}

/// Reads a label, or null.
fn label<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<str>>, D::Error> {
    struct Label;

    impl Visitor<'_> for Label {
        type Value = Option<Box<str>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "`label` as a string of 1 to {LABEL_BYTES_MAX} bytes, or null")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_str<E: de::Error>(self, label: &str) -> Result<Self::Value, E> {
            match label.len() {
                1..=LABEL_BYTES_MAX => Ok(Some(label.into())),
                length => Err(E::invalid_length(length, &self)),
            }
        }

        fn visit_bytes<E: de::Error>(self, token: &[u8]) -> Result<Self::Value, E> {
            Err(E::invalid_value(de::Unexpected::Other(json::token_text(token)), &self))
        }
    }

    deserializer.deserialize_any(Label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crdt::span::tests::doubles;
    use crate::crdt::{Kind, Op, laws};
    use proptest::prelude::*;

    fn ops() -> impl Strategy<Value = ExtremaOp> {
        let label =
            prop_oneof![Just(None), "[a-c]{1,2}".prop_map(Some), "\\PC{1,9}".prop_map(Some)];
        (doubles(), label).prop_map(|(value, label)| observe(value, label.as_deref()))
    }

    laws::suite!(Extrema, ops());

    fn observe(value: f64, label: Option<&str>) -> ExtremaOp {
        ExtremaOp::Observe { value, label: label.map(Into::into) }
    }

    fn shown(extrema: &Extrema) -> String {
        extrema.value(&Question::default()).to_string()
    }

    fn parse(json: &str) -> Result<Op, OpError> {
        Kind::Extrema.parse_op(&serde_json::from_str(json).expect("JSON"))
    }

    #[test]
    fn ops_are_read_from_json() {
        let good = |value, label| Ok(Op::Extrema(observe(value, label)));
        assert_eq!(parse(r#"{"op":"observe","value":9,"label":"eu-1"}"#), good(9.0, Some("eu-1")));
        assert_eq!(parse(r#"{"op":"observe","value":-0.5}"#), good(-0.5, None));
        assert_eq!(parse(r#"{"op":"observe","value":1,"label":null}"#), good(1.0, None));
        let longest = "x".repeat(LABEL_BYTES_MAX);
        let op = parse(&format!(r#"{{"op":"observe","value":1,"label":"{longest}"}}"#));
        assert_eq!(op.map(|op| op.heap_bytes()), Ok(LABEL_BYTES_MAX));
    }

    #[test]
    fn bad_ops_are_refused_with_the_rule() {
        let long = format!(r#"{{"op":"observe","value":1,"label":"{}"}}"#, "ü".repeat(513));
        for (json, says) in [
            (r#"{"op":"observe"}"#, "missing field `value`"),
            (r#"{"op":"observe","value":"9"}"#, "`value` as a finite JSON number"),
            (r#"{"op":"observe","value":1,"label":""}"#, "`label` as a string of 1 to 1024 bytes"),
            (r#"{"op":"observe","value":1,"label":7}"#, "`label` as a string of 1 to 1024 bytes"),
            (&long, "invalid length 1026, expected `label` as a string of 1 to 1024 bytes"),
            (r#"{"op":"observe","value":1,"count":2}"#, "unknown field"),
            (r#"{"op":"record","value":1}"#, "unknown variant"),
        ] {
            let error = parse(json).expect_err(json).to_string();
            assert!(error.contains(says), "{json}: {error}");
        }
    }

    #[test]
    fn ties_go_to_the_smallest_label_and_none_loses() {
        let mut extrema = Extrema::default();
        assert_eq!(shown(&extrema), r#"{"min":null,"max":null}"#);
        for (value, label, effect) in [
            (1.0, Some("b"), Effect::Changed),
            (1.0, Some("c"), Effect::Unchanged),
            (1.0, Some("a"), Effect::Changed),
            (1.0, None, Effect::Unchanged),
            (2.0, None, Effect::Changed),
            (1.5, None, Effect::Unchanged),
            (2.0, None, Effect::Unchanged),
            (2.0, Some("z"), Effect::Changed),
            (2.0, Some("zz"), Effect::Unchanged),
            (2.0, None, Effect::Unchanged),
        ] {
            assert_eq!(extrema.apply(&observe(value, label)), Ok(effect), "{value} {label:?}");
        }
        let value = r#"{"min":{"value":1.0,"label":"a"},"max":{"value":2.0,"label":"z"}}"#;
        assert_eq!(shown(&extrema), value);
    }

    /// Kept permanently: a release that can't read these bytes loses data.
    #[test]
    fn golden_payload_of_format_1() {
        let extrema: Extrema = laws::accumulate(&[observe(-1.0, Some("eu")), observe(-0.5, None)]);
        let golden = [0, 0, 0, 0, 0, 0, 0xF0, 0xBF, 2, b'e', b'u', 0, 0, 0, 0, 0, 0, 0xE0, 0xBF, 0];
        assert_eq!(laws::bytes(&extrema), golden);
        assert_eq!(Extrema::decode(1, None, &golden), Ok(extrema));
    }

    #[test]
    fn impossible_states_are_undecodable() {
        let extreme = |value, label: &str| {
            Some(Extreme { value, label: (!label.is_empty()).then(|| label.into()) })
        };
        let long = "x".repeat(LABEL_BYTES_MAX + 1);
        for (min, max) in [
            (extreme(2.0, ""), extreme(1.0, "")),
            (extreme(1.0, "a"), extreme(1.0, "b")),
            (extreme(1.0, "a"), extreme(1.0, "")),
            (extreme(f64::NAN, ""), extreme(1.0, "")),
            (extreme(-0.0, ""), extreme(1.0, "")),
            (extreme(1.0, &long), extreme(2.0, "")),
        ] {
            let bad = laws::bytes(&Extrema { min, max });
            assert_eq!(Extrema::decode(1, None, &bad), Err(DecodeError::NotCanonical), "{bad:x?}");
        }
        let longest = extreme(1.0, &long[1..]);
        let good = Extrema { min: longest.clone(), max: longest };
        assert_eq!(Extrema::decode(1, None, &laws::bytes(&good)), Ok(good));
        let not_text = [0, 0, 0, 0, 0, 0, 0, 0, 1, 0xFF];
        assert_eq!(Extrema::decode(1, None, &not_text), Err(DecodeError::NotCanonical));
        assert_eq!(Extrema::decode(2, None, &[]), Err(DecodeError::Format(2)));
    }
}
