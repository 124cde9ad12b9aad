//! `register`: one JSON value; the last writer by the pods' hybrid clocks wins (the LWW register of
//! Shapiro et al., "A comprehensive study of convergent and commutative replicated data types", 2011,
//! section 3.2.1).

use serde::Deserialize;

use super::json::Canonical;
use super::varint::{self, Reader};
use super::{
    About, BareValue, Class, Crdt, DecodeError, Effect, MergeError, OpError, Question, Size, Value,
    check_format, check_size, time,
};
use crate::protocol::Timestamp;

/// The last write; none before the first. A later time is greater. At the same time, which only two pods can
/// have, removing the value wins, and then the greater text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Register {
    last: Option<Write>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Write {
    time: Timestamp,
    content: Content,
}

/// In ascending order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Content {
    /// The value as the text of JSON; see [`Canonical`].
    Set(Canonical),
    Unset,
}

/// A change of a [`Register`].
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum RegisterOp {
    /// Sets the value.
    Set {
        /// Any JSON, including `null`.
        value: Canonical,
        /// The latest time that the client has seen. This write must come after it.
        #[serde(default, deserialize_with = "time::after")]
        after: Option<Timestamp>,
        /// Set by the pod's hybrid clock.
        #[serde(skip, default = "time::unstamped")]
        time: Timestamp,
    },
    /// Removes the value.
    Unset {
        /// The latest time that the client has seen. This write must come after it.
        #[serde(default, deserialize_with = "time::after")]
        after: Option<Timestamp>,
        /// Set by the pod's hybrid clock.
        #[serde(skip, default = "time::unstamped")]
        time: Timestamp,
    },
}

impl Register {
    fn join(&mut self, write: Option<Write>) -> Effect {
        let wins = write > self.last;
        if wins {
            self.last = write;
        }
        Effect::of(wins)
    }
}

impl Crdt for Register {
    const NAME: &'static str = "register";
    const CODE: u64 = 11;
    const FORMAT: u64 = 1;
    const ABOUT: About = About {
        summary: "One JSON value: the last write wins.",
        class: Class::Exact,
        is_exact: true,
        size: Size::Large { memory_factor: 6 },
        bound: "Exact: of concurrent writes, the last one by the pods' clocks wins. Up to 256 KiB.",
        is_idempotent: false,
        has_totals: false,
        bare: ("set", "value"),
        bare_value: BareValue::Field("value"),
        example_op: r#"{"op":"set","value":{"theme":"dark"}}"#,
        example_value: r#"{"value":{"theme":"dark"},"is_set":true,"timestamp":1795248000123456}"#,
        op_schema: concat!(
            r#"{"title":"RegisterOp","description":"Sets the value, or removes it.","oneOf":[
            {"type":"object","required":["op","value"],"additionalProperties":false,"properties":{
                "op":{"type":"string","enum":["set"]},"value":{"description":"Any JSON. Numbers keep all their digits; 1e400 and beyond are refused."},"#,
            time::after_schema!(),
            r#"}},
            {"type":"object","required":["op"],"additionalProperties":false,"properties":{
                "op":{"type":"string","enum":["unset"]},"#,
            time::after_schema!(),
            "}}]}"
        ),
        value_schema: r#"{"type":"object","required":["value","is_set","timestamp"],"properties":{
            "value":{"description":"As it was set, with all digits of its numbers; null if it is not set."},
            "is_set":{"type":"boolean"},
            "timestamp":{"type":["integer","null"],"description":"When, in µs since 1970, by the writing pod's hybrid clock."}}}"#,
        parameters: &[],
    };
    const IS_TIMED: bool = true;
    type Op = RegisterOp;

    fn heap_bytes(op: &RegisterOp) -> usize {
        match op {
            RegisterOp::Set { value, .. } => value.0.len(),
            RegisterOp::Unset { .. } => 0,
        }
    }

    fn after(op: &RegisterOp) -> Option<Timestamp> {
        let (RegisterOp::Set { after, .. } | RegisterOp::Unset { after, .. }) = op;
        *after
    }

    fn time(op: &RegisterOp) -> Option<Timestamp> {
        let (RegisterOp::Set { time, .. } | RegisterOp::Unset { time, .. }) = op;
        Some(*time)
    }

    fn stamp(op: &mut RegisterOp, now: Timestamp) {
        let (RegisterOp::Set { time, .. } | RegisterOp::Unset { time, .. }) = op;
        *time = now;
    }

    fn apply(&mut self, op: &RegisterOp) -> Result<Effect, OpError> {
        let write = match op {
            RegisterOp::Set { value, time, .. } => {
                check_size(value.0.len() + varint::U128_BYTES_MAX)?;
                // For example, nested too deep: then it could never be read again.
                check_json(&value.0).map_err(|error| {
                    OpError::Invalid(format!("the value can't be read back: {error}"))
                })?;
                Write { time: *time, content: Content::Set(value.clone()) }
            }
            RegisterOp::Unset { time, .. } => Write { time: *time, content: Content::Unset },
        };
        Ok(self.join(Some(write)))
    }

    fn merge(&mut self, other: &Register) -> Result<(), MergeError> {
        self.join(other.last.clone());
        Ok(())
    }

    fn times(&self) -> Vec<Timestamp> {
        self.last.iter().map(|write| write.time).collect()
    }

    fn retime(&mut self, new: &dyn Fn(Timestamp) -> Timestamp) {
        if let Some(write) = &mut self.last {
            write.time = new(write.time);
        }
    }

    fn supersedes(&self, _op: &RegisterOp, time: Timestamp) -> bool {
        self.last.as_ref().is_some_and(|last| last.time > time)
    }

    fn value(&self, _question: &Question) -> Value {
        let time = |write: &Write| Value::Integer(i128::from(write.time.as_micros()));
        let set = self.last.as_ref().and_then(|write| match &write.content {
            Content::Set(Canonical(text)) => Some(text.clone()),
            Content::Unset => None,
        });
        Value::Record(vec![
            ("is_set", Value::Bool(set.is_some())),
            ("value", set.map_or(Value::Null, Value::Json)),
            ("timestamp", self.last.as_ref().map_or(Value::Null, time)),
        ])
    }

    /// Appends nothing before the first write; then its time, 0 or 1 for unset or set, and the text.
    fn encode(&self, out: &mut Vec<u8>) {
        let Some(write) = &self.last else { return };
        varint::put_signed(i128::from(write.time.as_micros()), out);
        match &write.content {
            Content::Unset => out.push(0),
            Content::Set(Canonical(text)) => {
                out.push(1);
                out.extend_from_slice(text.as_bytes());
            }
        }
    }

    /// Keeps the text as it is, so that a value stays readable even if a later release of the JSON library
    /// writes it differently.
    fn decode(format: u64, _: Option<u16>, payload: &[u8]) -> Result<Register, DecodeError> {
        check_format::<Register>(format)?;
        if payload.is_empty() {
            return Ok(Register::default());
        }
        let mut reader = Reader::new(payload);
        let micros = i64::try_from(reader.signed()?).map_err(|_| DecodeError::NotCanonical)?;
        let content = match reader.byte()? {
            0 => Content::Unset,
            1 => {
                let text = std::str::from_utf8(reader.rest());
                let text = text.map_err(|_| DecodeError::NotCanonical)?;
                check_json(text).map_err(|_| DecodeError::NotCanonical)?;
                Content::Set(Canonical(text.into()))
            }
            _ => return Err(DecodeError::NotCanonical),
        };
        reader.end()?;
        Ok(Register { last: Some(Write { time: Timestamp::from_micros(micros), content }) })
    }
}

/// Whether a text is JSON that can be read as a tree.
fn check_json(text: &str) -> Result<(), serde_json::Error> {
    serde_json::from_str::<serde_json::Value>(text).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crdt::{Kind, Op, STATE_BYTES_MAX, json, laws};
    use proptest::prelude::*;
    use serde_json::{Value as Json, json};

    fn values() -> impl Strategy<Value = Json> {
        let leaf = prop_oneof![
            Just(Json::Null),
            any::<bool>().prop_map(Json::from),
            any::<i64>().prop_map(Json::from),
            any::<f64>().prop_map(Json::from),
            "\\PC{0,8}".prop_map(Json::from),
        ];
        leaf.prop_recursive(2, 8, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
                prop::collection::btree_map("[a-c]", inner, 0..4)
                    .prop_map(|fields| Json::Object(fields.into_iter().collect())),
            ]
        })
    }

    fn ops() -> impl Strategy<Value = RegisterOp> {
        let times = prop_oneof![0..5i64, any::<i64>()].prop_map(Timestamp::from_micros);
        (prop::option::of(values()), times).prop_map(|(value, time)| match value {
            Some(value) => RegisterOp::Set { value: canonical(&value), after: None, time },
            None => RegisterOp::Unset { after: None, time },
        })
    }

    laws::suite!(Register, ops());

    /// Also with a number that no double equals, in some values.
    fn canonical(value: &Json) -> Canonical {
        let text = value.to_string().replace("7", "77777777777777777777777");
        json::read(&text).unwrap_or_else(|_| Canonical(value.to_string().into()))
    }

    fn parse(json: &str) -> Result<Op, OpError> {
        Kind::Register.parse_op(&serde_json::from_str(json).expect("JSON"))
    }

    fn set(value: Json, micros: i64) -> RegisterOp {
        let value = Canonical::deserialize(value).expect("JSON");
        RegisterOp::Set { value, after: None, time: Timestamp::from_micros(micros) }
    }

    #[test]
    fn what_could_not_be_read_back_is_refused() {
        let mut register = Register::default();
        let nested = |depth| (0..depth).fold(json!(1), |inner, _| json!([inner]));
        assert!(register.apply(&set(nested(127), 1)).is_ok());
        let error = register.apply(&set(nested(128), 2)).expect_err("too deep").to_string();
        assert!(error.contains("can't be read back"), "{error}");
        let mut bytes = Vec::new();
        register.encode(&mut bytes);
        assert_eq!(Register::decode(1, None, &bytes), Ok(register));
    }

    #[test]
    fn the_last_write_wins_and_ties_are_decided() {
        let mut register = Register::default();
        let unset = RegisterOp::Unset { after: None, time: Timestamp::from_micros(5) };
        let steps = [
            (set(json!("a"), 5), Effect::Changed, json!("a")),
            (set(json!("z"), 4), Effect::Unchanged, json!("a")),
            (set(json!("b"), 5), Effect::Changed, json!("b")),
            (set(json!("a"), 5), Effect::Unchanged, json!("b")),
            (unset, Effect::Changed, json!(null)),
            (set(json!("z"), 5), Effect::Unchanged, json!(null)),
            (set(json!(null), 6), Effect::Changed, json!(null)),
        ];
        for (op, effect, value) in steps {
            assert_eq!(register.apply(&op), Ok(effect), "{op:?}");
            let shown = register.value(&Question::default());
            let shown = serde_json::to_value(shown.shown(false)).expect("JSON");
            assert_eq!(shown["value"], value, "{op:?}");
        }
    }

    /// The order of fields and the notation of numbers do not matter, and doubles are kept exactly.
    #[test]
    fn equal_json_is_the_same_state() {
        let state = |text: &str| {
            let mut register = Register::default();
            let value = json::read(text).expect("JSON");
            let time = Timestamp::from_micros(1);
            register.apply(&RegisterOp::Set { value, after: None, time }).expect("room");
            register
        };
        assert_eq!(state(r#"{"b": 1, "a": [1e0]}"#), state(r#"{"a":[1.0],"b":1}"#));
        for text in ["0.30000000000000004", "10769150350006150715113082367", "[1e-400,1]"] {
            let content = Content::Set(Canonical(text.into()));
            let register = state(text);
            assert_eq!(laws::stored(&register), register);
            assert_eq!(register.last.map(|write| write.content), Some(content));
        }
    }

    #[test]
    fn bad_ops_are_refused_with_the_rule() {
        for (json, says) in [
            (r#"{"op":"set"}"#, "missing field `value`"),
            (r#"{"op":"set","value":1,"time":5}"#, "unknown field `time`"),
            (r#"{"op":"set","value":1,"after":-5}"#, "`after` as the `timestamp`"),
            (r#"{"op":"set","value":1,"after":"soon"}"#, "`after` as the `timestamp`"),
            (r#"{"op":"unset","value":1}"#, "unknown field `value`"),
            (r#"{"op":"add","value":1}"#, "unknown variant `add`"),
        ] {
            let error = parse(json).expect_err(json).to_string();
            assert!(error.contains(says), "{json}: {error}");
        }
        let op = parse(r#"{"op":"set","value":1,"after":"1795248000123456"}"#).expect("an op");
        assert_eq!(op.after(), Some(Timestamp::from_micros(1_795_248_000_123_456)));
    }

    #[test]
    fn an_op_weighs_all_that_its_value_holds() {
        for (value, bytes) in [(json!(7), 1), (json!("abcd"), 6), (json!({"name": [7, null]}), 17)]
        {
            assert_eq!(Register::heap_bytes(&set(value, 1)), bytes);
        }
    }

    #[test]
    fn a_value_may_have_all_bytes_but_those_of_its_time() {
        let mut register = Register::default();
        let longest = STATE_BYTES_MAX - varint::U128_BYTES_MAX - "\"\"".len();
        let longest = set(json!("x".repeat(longest)), 1);
        assert_eq!(register.apply(&longest), Ok(Effect::Changed));
        assert!(laws::bytes(&register).len() <= STATE_BYTES_MAX);
    }

    #[test]
    fn a_value_beyond_the_limit_is_refused() {
        let mut register = Register::default();
        register.apply(&set(json!("kept"), 1)).expect("room");
        let before = register.clone();
        let large = set(json!("x".repeat(STATE_BYTES_MAX)), 2);
        assert_eq!(register.apply(&large), Err(OpError::TooLarge));
        assert_eq!(register, before);
    }
}
