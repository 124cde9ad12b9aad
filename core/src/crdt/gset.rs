//! `gset`: a set that only grows (Shapiro et al., "A comprehensive study of convergent and
//! commutative replicated data types", 2011, section 3.3.1).

use std::collections::BTreeSet;

use serde::Deserialize;

use super::item::{self, Item};
use super::varint::Reader;
use super::{
    About, BareValue, Class, Crdt, DecodeError, Effect, MergeError, OpError, Question, Size, Value,
    check_format, check_size,
};

/// All items so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GSet {
    items: BTreeSet<Item>,
    /// Maximum bytes of the items in a payload.
    bytes: usize,
}

/// A change of a [`GSet`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Body")]
pub enum GSetOp {
    /// Adds items.
    Add {
        /// The items, in any order.
        items: Vec<Item>,
    },
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
enum Body {
    Add { item: Option<Item>, items: Option<Vec<Item>> },
}

impl TryFrom<Body> for GSetOp {
    type Error = OpError;

    fn try_from(body: Body) -> Result<GSetOp, OpError> {
        let Body::Add { item, items } = body;
        Ok(GSetOp::Add { items: item::one_or_many(item, items)? })
    }
}

impl GSet {
    fn insert(&mut self, item: &Item) {
        if self.items.insert(item.clone()) {
            self.bytes += item.encoded_bytes();
        }
    }
}

impl Crdt for GSet {
    const NAME: &'static str = "gset";
    const CODE: u64 = 8;
    const FORMAT: u64 = 1;
    const ABOUT: About = About {
        summary: "A set of strings and whole numbers that only grows.",
        class: Class::Exact,
        is_exact: true,
        size: Size::Large { memory_factor: 10 },
        bound: "Exact. A pod takes up to 1 MiB of items for a key in a mutator's lifetime.",
        is_idempotent: true,
        has_totals: false,
        bare: ("add", "item"),
        bare_value: BareValue::Items,
        example_op: r#"{"op":"add","item":"a"}"#,
        example_value: r#"{"size":1,"items":["a"]}"#,
        op_schema: item::ADD_SCHEMA,
        value_schema: item::SET_SCHEMA,
        parameters: &["contains"],
    };
    type Op = GSetOp;

    fn is_refused_when_full(_: &GSetOp) -> bool {
        true
    }

    fn heap_bytes(op: &GSetOp) -> usize {
        let GSetOp::Add { items } = op;
        item::heap_bytes(items)
    }

    fn apply(&mut self, op: &GSetOp) -> Result<Effect, OpError> {
        let GSetOp::Add { items } = op;
        let new: BTreeSet<&Item> = items.iter().filter(|item| !self.items.contains(item)).collect();
        let bytes: usize = new.iter().map(|item| item.encoded_bytes()).sum();
        check_size(self.bytes + bytes)?;
        new.iter().for_each(|item| self.insert(item));
        Ok(Effect::of(!new.is_empty()))
    }

    fn merge(&mut self, other: &GSet) -> Result<(), MergeError> {
        other.items.iter().for_each(|item| self.insert(item));
        Ok(())
    }

    fn value(&self, question: &Question) -> Value {
        let contains = question.contains.as_ref().map(|item| (item, self.items.contains(item)));
        item::show_set(self.items.iter(), contains)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        item::encode_set(&self.items, out);
    }

    fn decode(format: u64, _: Option<u16>, payload: &[u8]) -> Result<GSet, DecodeError> {
        check_format::<GSet>(format)?;
        let mut reader = Reader::new(payload);
        let items = item::decode_set(&mut reader)?;
        reader.end()?;
        let bytes = items.iter().map(Item::encoded_bytes).sum();
        Ok(GSet { items, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crdt::item::tests::items;
    use crate::crdt::{Kind, Op, STATE_BYTES_MAX, laws};
    use proptest::prelude::*;

    fn ops() -> impl Strategy<Value = GSetOp> {
        prop::collection::vec(items(), 1..4).prop_map(|items| GSetOp::Add { items })
    }

    laws::suite!(GSet, ops());

    fn parse(json: &str) -> Result<Op, OpError> {
        Kind::GSet.parse_op(&serde_json::from_str(json).expect("JSON"))
    }

    #[test]
    fn bad_ops_are_refused_with_the_rule() {
        for (json, says) in [
            (r#"{"op":"add"}"#, "either `item` or `items`"),
            (r#"{"op":"add","item":"a","items":["b"]}"#, "either `item` or `items`"),
            (r#"{"op":"add","items":[]}"#, "1 to 1000"),
            (r#"{"op":"add","items":["a",""]}"#, "`item` has 0 bytes"),
            (r#"{"op":"add","item":1.5}"#, "`item` as a string or a whole number"),
            (r#"{"op":"remove","item":"a"}"#, "unknown variant `remove`"),
            (r#"{"op":"add","item":"a","by":1}"#, "unknown field `by`"),
        ] {
            let error = parse(json).expect_err(json).to_string();
            assert!(error.contains(says), "{json}: {error}");
        }
    }

    #[test]
    fn a_full_set_refuses_what_is_new_and_takes_what_it_has() {
        let item = |n: usize| Item::Text(format!("{n:0>1000}").into());
        let mut set = GSet::default();
        let mut count = 0;
        while set.apply(&GSetOp::Add { items: vec![item(count)] }).is_ok() {
            count += 1;
        }
        assert_eq!(count, STATE_BYTES_MAX / 1_003);
        let before = set.clone();
        let more = GSetOp::Add { items: vec![item(0), item(count)] };
        assert_eq!(set.apply(&more), Err(OpError::TooLarge));
        assert_eq!(set, before);
        assert_eq!(set.apply(&GSetOp::Add { items: vec![item(0)] }), Ok(Effect::Unchanged));
        assert!(laws::bytes(&set).len() <= STATE_BYTES_MAX);
    }

    #[test]
    fn a_set_can_be_asked_for_one_item() {
        let mut set = GSet::default();
        let items = vec![Item::Number(7), Item::Text("a".into())];
        set.apply(&GSetOp::Add { items }).expect("room");
        let ask = |item| {
            let question = Question { contains: Some(item), ..Question::default() };
            set.value(&question).field("contains").cloned()
        };
        assert_eq!(ask(Item::Number(7)), Some(Value::Bool(true)));
        assert_eq!(ask(Item::Text("7".into())), Some(Value::Bool(false)));
    }
}
