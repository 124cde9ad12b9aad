//! `lww_set`: a set in which, for each item, the last add or remove by the pods' hybrid clocks wins (Shapiro
//! et al., "A comprehensive study of convergent and commutative replicated data types", 2011, section 3.3.3).
//!
//! A remove needs no earlier read. It is kept with its time, because an older add may still arrive.
//!
//! **Forgetting.** A fold drops the removals that are at least [`OP_AGE_MAX`] older than its fence.
//! Everything merged later is in a row that expires after the fence, and no row holds an add that is more
//! than [`OP_AGE_MAX`] older than the row's expiry. So each such add is later than every dropped removal, and
//! would have won against it. Rows are made in two places, and both keep this limit:
//!
//! * a mutator takes no older op. A new op is never too old, because the time constants leave room; only an
//!   op that waited in memory for a week, while the store took no writes, can be;
//! * a [parcel](crate::protocol::transfer) raises older adds to the limit. Removals need no raising: one that
//!   is too old removes only older adds, and the next fold drops it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::item::{self, Item};
use super::varint::{self, Reader};
use super::{
    About, BareValue, Class, Crdt, DecodeError, Dot, Effect, MergeError, OpError, Question, Size,
    Value, check_format, check_size, time,
};
use crate::protocol::{OP_AGE_MAX, Timestamp};

/// Maximum bytes of one time and of what happened then.
const MARK_BYTES_MAX: usize = 11;

/// The last change of each item.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LwwSet {
    marks: BTreeMap<Item, Mark>,
    /// Maximum bytes of the marks in a payload.
    bytes: usize,
}

/// A later time is greater. At the same time, which only two pods can have, the remove wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Mark {
    time: Timestamp,
    is_removed: bool,
}

/// A change of an [`LwwSet`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Body")]
pub struct LwwSetOp {
    is_removal: bool,
    items: Vec<Item>,
    after: Option<Timestamp>,
    time: Timestamp,
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
enum Body {
    Add {
        item: Option<Item>,
        items: Option<Vec<Item>>,
        #[serde(default, deserialize_with = "time::after")]
        after: Option<Timestamp>,
    },
    Remove {
        item: Option<Item>,
        items: Option<Vec<Item>>,
        #[serde(default, deserialize_with = "time::after")]
        after: Option<Timestamp>,
    },
}

impl TryFrom<Body> for LwwSetOp {
    type Error = OpError;

    fn try_from(body: Body) -> Result<LwwSetOp, OpError> {
        let (is_removal, item, items, after) = match body {
            Body::Add { item, items, after } => (false, item, items, after),
            Body::Remove { item, items, after } => (true, item, items, after),
        };
        let items = item::one_or_many(item, items)?;
        Ok(LwwSetOp { is_removal, items, after, time: time::unstamped() })
    }
}

impl LwwSet {
    fn join(&mut self, item: &Item, mark: Mark) {
        match self.marks.get_mut(item) {
            Some(last) => *last = mark.max(*last),
            None => {
                self.bytes += bytes(item);
                self.marks.insert(item.clone(), mark);
            }
        }
    }

    fn items(&self) -> impl Iterator<Item = &Item> {
        self.marks.iter().filter(|(_, mark)| !mark.is_removed).map(|(item, _)| item)
    }
}

fn bytes(item: &Item) -> usize {
    item.encoded_bytes() + MARK_BYTES_MAX
}

impl Crdt for LwwSet {
    const NAME: &'static str = "lww_set";
    const CODE: u64 = 9;
    const FORMAT: u64 = 1;
    const ABOUT: About = About {
        summary: "A set with removal: for each item, the last add or remove wins.",
        class: Class::Exact,
        is_exact: true,
        size: Size::Large { memory_factor: 10 },
        bound: "Exact: of concurrent changes of an item, the last one by the pods' clocks wins. A \
                removed item takes space for 8 days, and then until the next fold. A pod takes up \
                to 1 MiB in a mutator's lifetime.",
        is_idempotent: false,
        has_totals: false,
        bare: ("add", "item"),
        bare_value: BareValue::Items,
        example_op: r#"{"op":"add","item":"a"}"#,
        example_value: r#"{"size":1,"items":["a"]}"#,
        op_schema: concat!(
            r#"{"title":"LwwSetOp","description":"Adds or removes `item`, or all of `items`.",
            "type":"object","required":["op"],"additionalProperties":false,
            "oneOf":[{"required":["item"]},{"required":["items"]}],"properties":{
            "op":{"type":"string","enum":["add","remove"]},"#,
            item::one_or_many_schema!(),
            ",",
            time::after_schema!(),
            "}}"
        ),
        value_schema: item::SET_SCHEMA,
        parameters: &["contains"],
    };
    const IS_TIMED: bool = true;
    const FORGETS: bool = true;
    type Op = LwwSetOp;

    fn is_refused_when_full(op: &LwwSetOp) -> bool {
        !op.is_removal
    }

    fn heap_bytes(op: &LwwSetOp) -> usize {
        item::heap_bytes(&op.items)
    }

    fn after(op: &LwwSetOp) -> Option<Timestamp> {
        op.after
    }

    fn time(op: &LwwSetOp) -> Option<Timestamp> {
        Some(op.time)
    }

    fn stamp(op: &mut LwwSetOp, now: Timestamp) {
        op.time = now;
    }

    fn apply(&mut self, op: &LwwSetOp) -> Result<Effect, OpError> {
        let mark = Mark { time: op.time, is_removed: op.is_removal };
        let is_news = |item: &&Item| self.marks.get(item).is_none_or(|last| mark > *last);
        let news: BTreeSet<&Item> = op.items.iter().filter(is_news).collect();
        let new = news.iter().filter(|item| !self.marks.contains_key(item));
        check_size(self.bytes + new.map(|item| bytes(item)).sum::<usize>())?;
        news.iter().for_each(|item| self.join(item, mark));
        Ok(Effect::of(!news.is_empty()))
    }

    fn merge(&mut self, other: &LwwSet) -> Result<(), MergeError> {
        other.marks.iter().for_each(|(item, mark)| self.join(item, *mark));
        Ok(())
    }

    fn settle(&mut self, fence: Timestamp) {
        let forgotten = fence.minus(OP_AGE_MAX);
        self.marks.retain(|_, mark| !mark.is_removed || mark.time > forgotten);
        self.bytes = self.marks.keys().map(bytes).sum();
    }

    /// Removals are not merged: folds decide whether a key still has an old one.
    fn merge_key(&mut self, other: &LwwSet) -> Result<(), MergeError> {
        let added = other.marks.iter().filter(|(_, mark)| !mark.is_removed);
        added.for_each(|(item, mark)| self.join(item, *mark));
        Ok(())
    }

    fn attribute_to(&mut self, dot: Dot) {
        let oldest = dot.expires_at.minus(OP_AGE_MAX);
        for mark in self.marks.values_mut().filter(|mark| !mark.is_removed) {
            mark.time = mark.time.max(oldest);
        }
    }

    fn times(&self) -> Vec<Timestamp> {
        self.marks.values().map(|mark| mark.time).collect()
    }

    fn retime(&mut self, new: &dyn Fn(Timestamp) -> Timestamp) {
        self.marks.values_mut().for_each(|mark| mark.time = new(mark.time));
    }

    fn supersedes(&self, op: &LwwSetOp, time: Timestamp) -> bool {
        op.items.iter().filter_map(|item| self.marks.get(item)).any(|mark| mark.time > time)
    }

    fn value(&self, question: &Question) -> Value {
        let items: Vec<&Item> = self.items().collect();
        let is_in = |item| self.marks.get(item).is_some_and(|mark| !mark.is_removed);
        let contains = question.contains.as_ref().map(|item| (item, is_in(item)));
        item::show_set(items.into_iter(), contains)
    }

    /// Appends the number of marks, and for each its item, its time in µs, and 0 for added or 1 for removed.
    fn encode(&self, out: &mut Vec<u8>) {
        varint::put(self.marks.len() as u128, out);
        for (item, mark) in &self.marks {
            item.encode(out);
            varint::put_signed(i128::from(mark.time.as_micros()), out);
            out.push(u8::from(mark.is_removed));
        }
    }

    fn decode(format: u64, _: Option<u16>, payload: &[u8]) -> Result<LwwSet, DecodeError> {
        check_format::<LwwSet>(format)?;
        let mut reader = Reader::new(payload);
        let mut set = LwwSet::default();
        for _ in 0..reader.length()? {
            let item = Item::decode(&mut reader)?;
            let micros = i64::try_from(reader.signed()?).map_err(|_| DecodeError::NotCanonical)?;
            let is_removed = match reader.byte()? {
                0 => false,
                1 => true,
                _ => return Err(DecodeError::NotCanonical),
            };
            if set.marks.last_key_value().is_some_and(|(last, _)| *last >= item) {
                return Err(DecodeError::NotCanonical);
            }
            set.join(&item, Mark { time: Timestamp::from_micros(micros), is_removed });
        }
        reader.end()?;
        Ok(set)
    }
}

#[cfg(test)]
mod month;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crdt::item::tests::items;
    use crate::crdt::{Kind, Op, STATE_BYTES_MAX, laws};
    use proptest::prelude::*;

    fn op(is_removal: bool, items: Vec<Item>, micros: i64) -> LwwSetOp {
        LwwSetOp { is_removal, items, after: None, time: Timestamp::from_micros(micros) }
    }

    fn ops() -> impl Strategy<Value = LwwSetOp> {
        let times = prop_oneof![0..5i64, any::<i64>()];
        (any::<bool>(), prop::collection::vec(items(), 1..4), times)
            .prop_map(|(is_removal, items, micros)| op(is_removal, items, micros))
    }

    laws::suite!(LwwSet, ops());

    fn parse(json: &str) -> Result<Op, OpError> {
        Kind::LwwSet.parse_op(&serde_json::from_str(json).expect("JSON"))
    }

    #[test]
    fn the_last_change_wins_and_a_tie_removes() {
        let mut set = LwwSet::default();
        let a = || vec![Item::Text("a".into())];
        for (change, effect, size) in [
            (op(true, a(), 5), Effect::Changed, 0),
            (op(false, a(), 4), Effect::Unchanged, 0),
            (op(false, a(), 5), Effect::Unchanged, 0),
            (op(false, a(), 6), Effect::Changed, 1),
            (op(true, a(), 6), Effect::Changed, 0),
            (op(true, a(), 6), Effect::Unchanged, 0),
        ] {
            assert_eq!(set.apply(&change), Ok(effect), "{change:?}");
            assert_eq!(set.items().count(), size, "{change:?}");
        }
    }

    #[test]
    fn a_fold_forgets_what_no_row_can_need_any_more() {
        let fence = Timestamp::from_micros(0).plus(3 * OP_AGE_MAX);
        let oldest = fence.minus(OP_AGE_MAX).as_micros();
        let item = |number| vec![Item::Number(number)];
        let mut set = LwwSet::default();
        for change in [
            op(true, item(1), oldest),
            op(true, item(2), oldest + 1),
            op(false, item(3), oldest - 1),
        ] {
            set.apply(&change).expect("room");
        }
        set.settle(fence);
        assert_eq!(set.marks.keys().cloned().collect::<Vec<_>>(), [item(2), item(3)].concat());
        assert_eq!(set.bytes, bytes(&Item::Number(2)) + bytes(&Item::Number(3)));
        // The oldest add of a row that expires after the fence still wins as it would have before.
        set.apply(&op(false, item(1), oldest + 1)).expect("room");
        set.apply(&op(false, item(2), oldest + 1)).expect("room");
        assert_eq!(set.items().cloned().collect::<Vec<_>>(), [item(1), item(3)].concat());
    }

    /// A removal that folds forget must not decide what several keys contain together.
    #[test]
    fn keys_have_together_what_one_of_them_has() {
        let set = |is_removal, micros| {
            let mut set = LwwSet::default();
            set.apply(&op(is_removal, vec![Item::Number(1)], micros)).expect("room");
            set
        };
        for keys in [[set(false, 1), set(true, 2)], [set(true, 2), set(false, 1)]] {
            let mut merged = LwwSet::default();
            keys.iter().for_each(|key| merged.merge_key(key).expect("sets merge"));
            assert_eq!(merged.items().count(), 1);
        }
    }

    #[test]
    fn reads_answer_whether_an_item_is_in() {
        let mut set = LwwSet::default();
        let items = |numbers: &[i64]| numbers.iter().copied().map(Item::Number).collect();
        set.apply(&op(false, items(&[1, 2]), 1)).expect("room");
        set.apply(&op(true, items(&[2]), 2)).expect("room");
        for (item, is_in) in [(1, true), (2, false), (3, false)] {
            let contains = Some(Item::Number(item));
            let value = set.value(&Question { contains, ..Question::default() });
            let expected = serde_json::json!({"size": 1, "item": item, "contains": is_in});
            assert_eq!(serde_json::to_value(value.shown(false)).expect("JSON"), expected);
        }
    }

    #[test]
    fn an_op_has_the_time_it_was_given_and_the_one_it_comes_after() {
        let mut op = parse(r#"{"op":"add","item":"a","after":7}"#).expect("an op");
        assert_eq!(op.after(), Some(Timestamp::from_micros(7)));
        op.stamp(Timestamp::from_micros(8));
        let Op::LwwSet(op) = op else { panic!("of this kind") };
        assert_eq!(op.time, Timestamp::from_micros(8));
    }

    #[test]
    fn bad_ops_are_refused_with_the_rule() {
        for (json, says) in [
            (r#"{"op":"remove"}"#, "either `item` or `items`"),
            (r#"{"op":"remove","item":""}"#, "`item` has 0 bytes"),
            (r#"{"op":"add","item":"a","time":1}"#, "unknown field `time`"),
            (r#"{"op":"add","item":"a","after":1.5}"#, "`after` as the `timestamp`"),
            (r#"{"op":"clear"}"#, "unknown variant `clear`"),
        ] {
            let error = parse(json).expect_err(json).to_string();
            assert!(error.contains(says), "{json}: {error}");
        }
    }

    #[test]
    fn a_full_set_refuses_what_is_new_and_still_removes() {
        let item = |n: i64| Item::Text(format!("{n:0>1000}").into());
        let mut set = LwwSet::default();
        let count = (0..).take_while(|n| set.apply(&op(false, vec![item(*n)], 1)).is_ok()).count();
        assert_eq!(count, STATE_BYTES_MAX / 1_014);
        let before = set.clone();
        assert_eq!(set.apply(&op(false, vec![item(0), item(-1)], 2)), Err(OpError::TooLarge));
        assert_eq!(set, before);
        assert_eq!(set.apply(&op(true, vec![item(0); 300], 2)), Ok(Effect::Changed));
        assert!(laws::bytes(&set).len() <= STATE_BYTES_MAX);
    }
}
