//! `topk`: the items with the largest total weight, after Misra and Gries ("Finding repeated
//! elements", 1982), merged as by Agarwal et al. ("Mergeable summaries", 2012, section 2).
//!
//! A read lists at most k items, and four times as many have a counter: otherwise a list with a few more items
//! than k, all about as heavy, would keep none of them. When there are more counters than that, the same
//! amount is subtracted from every counter until a quarter is free; the sum of these amounts is the error e. A
//! counter is never too high, and is too low by at most e. Each amount is that of the k + 1 largest counters or
//! more, so it is subtracted at least k + 1 times.
//!
//! The error that a read shows is e plus the largest counter that it does not list. So it bounds the weight of
//! every item that is not listed. The k + 1 largest counters together are at most the total less (k + 1) e,
//! and each is at least the largest one not listed. So the shown error is at most the total divided by k + 1,
//! and every item that is heavier than that is listed.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::item::{self, Item};
use super::varint::{self, Reader};
use super::{
    About, BareValue, Class, Crdt, DecodeError, Effect, MergeError, OpError, Precision, Question,
    Size, Value, check_format, check_size, number,
};

/// The heavy items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopK {
    k: u16,
    /// Weight of all ops.
    total: u128,
    /// Maximum amount by which an item's counter can be too low.
    error: u128,
    counters: BTreeMap<Item, u128>,
    /// Maximum bytes of the counters in a payload.
    bytes: usize,
}

/// Maximum bytes of the total, the error and the number of counters.
const HEADER_BYTES_MAX: usize = 2 * varint::U128_BYTES_MAX + 2;

/// Counters for each item of the list.
const COUNTERS_PER_ITEM: usize = 4;

/// Maximum counters, unless k is larger. With the longest items they fit into a tally.
const COUNTERS_MAX: usize = 4_000;

/// Maximum bytes of one counter.
fn counter_bytes(item: &Item) -> usize {
    item.encoded_bytes() + varint::U128_BYTES_MAX
}

/// A change of a [`TopK`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum TopKOp {
    /// Adds weight to an item.
    Add {
        /// The item.
        item: Item,
        /// The weight, from 1 to 2^63 - 1.
        #[serde(default = "number::once", deserialize_with = "number::weight")]
        by: u64,
    },
}

impl TopK {
    fn overflow() -> OpError {
        OpError::Overflow { kind: TopK::NAME }
    }

    /// The maximum number of counters, not less than k.
    fn counters_max(&self) -> usize {
        (usize::from(self.k) * COUNTERS_PER_ITEM).min(COUNTERS_MAX).max(self.k.into())
    }

    /// How many of `count` counters stay at most when an op finds no room: three quarters, but not less than
    /// k. The next ops then find room.
    fn kept(&self, count: usize) -> usize {
        (count / 4 * 3).max(self.k.into())
    }

    /// Subtracts from every counter the largest amount that is not among the `kept` largest, which leaves at
    /// most `kept` counters.
    fn shrink(&mut self, kept: usize) {
        if self.counters.len() <= kept {
            return;
        }
        let mut counts: Vec<u128> = self.counters.values().copied().collect();
        let (_, &mut off, _) = counts.select_nth_unstable_by(kept, |a, b| b.cmp(a));
        let bytes = &mut self.bytes;
        self.counters.retain(|item, count| {
            *count = count.saturating_sub(off);
            if *count == 0 {
                *bytes -= counter_bytes(item);
            }
            *count > 0
        });
        self.error += off;
    }

    /// Adds to an existing or new counter.
    fn count(&mut self, item: &Item, by: u128) {
        match self.counters.get_mut(item) {
            Some(count) => *count += by,
            None => {
                self.bytes += counter_bytes(item);
                self.counters.insert(item.clone(), by);
            }
        }
    }
}

impl Default for TopK {
    fn default() -> TopK {
        TopK { k: PRECISION.max, total: 0, error: 0, counters: BTreeMap::new(), bytes: 0 }
    }
}

const PRECISION: Precision = Precision { name: "k", min: 1, max: 4096, default: 256 };

impl Crdt for TopK {
    const NAME: &'static str = "topk";
    const CODE: u64 = 12;
    const FORMAT: u64 = 1;
    const ABOUT: About = About {
        summary: "The items with the largest total weight.",
        class: Class::OrderCanonical,
        is_exact: false,
        size: Size::Large { memory_factor: 12 },
        bound: "An item's true weight is between `at_least` and `at_most`, and that of any other item \
                is at most `error`. They differ by at most `error`, which is at most total / (k + 1), and \
                mostly far less. k is 256 unless configured.",
        is_idempotent: false,
        has_totals: true,
        bare: ("add", "item"),
        bare_value: BareValue::Nothing,
        example_op: r#"{"op":"add","item":"x","by":3}"#,
        example_value: r#"{"total":3,"error":0,"k":256,
            "items":[{"item":"x","at_least":3,"at_most":3}]}"#,
        op_schema: concat!(
            r#"{"title":"TopKOp","description":"Adds the weight `by`, or 1, to `item`.",
            "type":"object","required":["op","item"],"additionalProperties":false,"properties":{
            "op":{"type":"string","enum":["add"]},
            "item":{"#,
            item::one_schema!(),
            r#"},"by":{"default":1,"oneOf":[
                {"type":"integer","minimum":1,"maximum":9223372036854775807},
                {"type":"string","pattern":"^[1-9][0-9]{0,17}$"}]}}}"#
        ),
        value_schema: r#"{"type":"object","required":["total","error","k","items"],"properties":{
            "total":{"type":"integer","description":"Weight of all items together, exact."},
            "error":{"type":"integer","description":"An item that is not listed weighs at most this, and no `at_least` is too low by more."},
            "k":{"type":"integer"},
            "items":{"type":"array","description":"At most k, the heaviest first. Empty if all items weigh about the same and are many more than k.","items":{"type":"object",
                "required":["item","at_least","at_most"],"properties":{
                "item":{"type":["string","integer"]},
                "at_least":{"type":"integer"},"at_most":{"type":"integer"}}}}}}"#,
        parameters: &[],
    };
    const PRECISION: Option<Precision> = Some(PRECISION);
    type Op = TopKOp;

    fn with_precision(k: u16) -> TopK {
        TopK { k, ..TopK::default() }
    }

    fn precision(&self) -> Option<u16> {
        Some(self.k)
    }

    fn heap_bytes(op: &TopKOp) -> usize {
        let TopKOp::Add { item, .. } = op;
        item.heap_bytes()
    }

    fn apply(&mut self, op: &TopKOp) -> Result<Effect, OpError> {
        let TopKOp::Add { item, by } = op;
        let by = u128::from(*by);
        // No counter is larger than the total.
        let total = self.total.checked_add(by).ok_or_else(TopK::overflow)?;
        let bytes = HEADER_BYTES_MAX + self.bytes + counter_bytes(item);
        if self.counters.contains_key(item) || check_size(bytes).is_ok() {
            self.count(item, by);
            if self.counters.len() > self.counters_max() {
                self.shrink(self.kept(self.counters_max()));
            }
        } else {
            // It fits only if it replaces other counters.
            let mut next = self.clone();
            next.count(item, by);
            while check_size(HEADER_BYTES_MAX + next.bytes).is_err()
                && next.counters.len() > next.k.into()
            {
                next.shrink(next.kept(next.counters.len()));
            }
            check_size(HEADER_BYTES_MAX + next.bytes)?;
            *self = next;
        }
        self.total = total;
        Ok(Effect::Changed)
    }

    fn merge(&mut self, other: &TopK) -> Result<(), MergeError> {
        let overflow = MergeError::Overflow { kind: TopK::NAME };
        self.total = self.total.checked_add(other.total).ok_or(overflow)?;
        self.error += other.error;
        self.k = self.k.min(other.k);
        other.counters.iter().for_each(|(item, count)| self.count(item, *count));
        self.shrink(self.counters_max());
        Ok(())
    }

    fn value(&self, _question: &Question) -> Value {
        let mut items: Vec<(&Item, u128)> = self.counters.iter().map(|(i, n)| (i, *n)).collect();
        items.sort_by(|(item, a), (other, b)| b.cmp(a).then_with(|| item.cmp(other)));
        let unlisted = items.get(usize::from(self.k)).map_or(0, |(_, count)| *count);
        items.truncate(self.k.into());
        let item = |(item, count): (&Item, u128)| {
            Value::Record(vec![
                ("item", item.into()),
                ("at_least", Value::count(count)),
                ("at_most", Value::count(count + self.error)),
            ])
        };
        Value::Record(vec![
            ("total", Value::count(self.total)),
            ("error", Value::count(self.error + unlisted)),
            ("k", Value::count(self.k)),
            ("items", Value::List(items.into_iter().map(item).collect())),
        ])
    }

    /// The total, the error, the number of counters, and each item with its count, by item.
    fn encode(&self, out: &mut Vec<u8>) {
        varint::put(self.total, out);
        varint::put(self.error, out);
        varint::put(self.counters.len() as u128, out);
        for (item, count) in &self.counters {
            item.encode(out);
            varint::put(*count, out);
        }
    }

    fn decode(format: u64, k: Option<u16>, payload: &[u8]) -> Result<TopK, DecodeError> {
        check_format::<TopK>(format)?;
        let k = k.ok_or(DecodeError::Flags)?;
        let mut reader = Reader::new(payload);
        let (total, error) = (reader.u128()?, reader.u128()?);
        let mut counters = BTreeMap::new();
        // Each amount was subtracted from k counters and at least one more.
        let mut counted = error.saturating_mul(u128::from(k) + 1);
        for _ in 0..reader.length()? {
            let (item, count) = (Item::decode(&mut reader)?, reader.u128()?);
            let is_next = counters.last_key_value().is_none_or(|(last, _)| *last < item);
            counted = counted.saturating_add(count);
            if !is_next || count == 0 {
                return Err(DecodeError::NotCanonical);
            }
            counters.insert(item, count);
        }
        reader.end()?;
        let bytes = counters.keys().map(counter_bytes).sum();
        let state = TopK { k, total, error, counters, bytes };
        if state.counters.len() > state.counters_max() || counted > total {
            return Err(DecodeError::NotCanonical);
        }
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crdt::item::tests::items;
    use crate::crdt::{Kind, Op, STATE_BYTES_MAX, laws};
    use proptest::prelude::*;

    fn ops() -> impl Strategy<Value = TopKOp> {
        let by = prop_oneof![1..10u64, 1..1u64 << 63];
        (items(), by).prop_map(|(item, by)| TopKOp::Add { item, by })
    }

    laws::common!(TopK, ops());

    fn parse(json: &str) -> Result<Op, OpError> {
        Kind::TopK.parse_op(&serde_json::from_str(json).expect("JSON"))
    }

    #[test]
    fn bad_ops_are_refused_with_the_rule() {
        for by in ["0", "-1", "1.5", "null", "9223372036854775808", "\"x\"", "\"0\""] {
            let json = format!(r#"{{"op":"add","item":"x","by":{by}}}"#);
            let error = parse(&json).expect_err(by).to_string();
            assert!(
                error.contains("`by` as a whole number from 1 to 9223372036854775807"),
                "{error}"
            );
        }
        assert!(parse(r#"{"op":"add","item":""}"#).is_err());
        assert!(parse(r#"{"op":"add"}"#).expect_err("none").to_string().contains("item"));
        assert_eq!(
            parse(r#"{"op":"add","item":"x"}"#),
            Ok(Op::TopK(TopKOp::Add { item: Item::Text("x".into()), by: 1 }))
        );
    }

    /// Adds to an item of the maximum length.
    fn long(n: usize, by: u64) -> TopKOp {
        TopKOp::Add { item: Item::Text(format!("{n:0>1024}").into()), by }
    }

    /// How many of them fit: each takes 1,024 bytes of text, 3 for its frame and 19 for its count.
    fn long_items_max() -> usize {
        (STATE_BYTES_MAX - HEADER_BYTES_MAX) / 1_046
    }

    #[test]
    fn a_state_of_long_items_refuses_what_does_not_fit() {
        let mut state = TopK::with_precision(4_096);
        let count = (0..).take_while(|n| state.apply(&long(*n, 2)).is_ok()).count();
        assert_eq!(count, long_items_max());
        let before = state.clone();
        assert_eq!(state.apply(&long(count, 2)), Err(OpError::TooLarge));
        assert_eq!(state, before);
        assert_eq!(state.apply(&long(0, 2)), Ok(Effect::Changed));
        assert!(laws::bytes(&state).len() <= STATE_BYTES_MAX);
        // With k such counters it replaces others.
        let mut full = TopK::with_precision(u16::try_from(count).expect("few"));
        (0..count).for_each(|n| assert_eq!(full.apply(&long(n, 2)), Ok(Effect::Changed)));
        assert_eq!(full.apply(&long(count, 3)), Ok(Effect::Changed));
        assert_eq!(full.counters.len(), 1);
    }

    #[test]
    fn a_full_state_keeps_what_stays_when_a_newcomer_takes_a_place() {
        let count = long_items_max();
        let mut full = TopK::with_precision(u16::try_from(count).expect("few"));
        full.apply(&long(0, 1)).expect("room");
        (1..count).for_each(|n| assert_eq!(full.apply(&long(n, 3)), Ok(Effect::Changed)));
        assert_eq!(full.apply(&long(count, 1)), Ok(Effect::Changed));
        assert_eq!((full.counters.len(), full.error), (count - 1, 1));
        assert!(full.counters.values().all(|count| *count == 2));
    }

    proptest! {
        /// The running count equals a recount, and is never below the written size.
        #[test]
        fn the_count_of_bytes_is_right(k in 1..6u16, ops in prop::collection::vec(ops(), 0..60)) {
            let mut state = TopK::with_precision(k);
            for op in &ops {
                state.apply(op).expect("room");
            }
            prop_assert_eq!(state.bytes, state.counters.keys().map(counter_bytes).sum::<usize>());
            let bytes = laws::bytes(&state);
            prop_assert!(bytes.len() <= HEADER_BYTES_MAX + state.bytes);
            prop_assert_eq!(TopK::decode(1, Some(k), &bytes), Ok(state));
        }
    }

    #[test]
    fn the_largest_header_has_the_expected_bytes() {
        let mut header = Vec::new();
        for number in [u128::MAX, u128::MAX, PRECISION.max.into()] {
            varint::put(number, &mut header);
        }
        assert_eq!(header.len(), HEADER_BYTES_MAX);
    }

    #[test]
    fn errors_add_up() {
        let shrunk = |items: std::ops::Range<i64>, by| {
            let mut state = TopK::with_precision(2);
            let item = |item| TopKOp::Add { item: Item::Number(item), by };
            items.for_each(|n| assert_eq!(state.apply(&item(n)), Ok(Effect::Changed)));
            state
        };
        // The ninth item replaces the others: everything is in the error.
        let (one, two) = (shrunk(0..9, 1), shrunk(9..18, 2));
        assert_eq!((one.error, two.error, one.counters.len()), (1, 2, 0));
        let both = laws::merged(&one, &two);
        assert_eq!((both.total, both.error), (27, 3));
    }

    #[test]
    fn a_read_lists_k_items_and_bounds_all_others() {
        let mut state = TopK::with_precision(2);
        for (item, by) in [(1, 9), (2, 8), (3, 7), (4, 7)] {
            state.apply(&TopKOp::Add { item: Item::Number(item), by }).expect("room");
        }
        let value = state.value(&Question::default()).to_string();
        let items = r#"[{"item":1,"at_least":9,"at_most":9},{"item":2,"at_least":8,"at_most":8}]"#;
        assert_eq!(value, format!(r#"{{"total":31,"error":7,"k":2,"items":{items}}}"#));
        let counters = |k: u16| {
            let mut state = TopK::with_precision(k);
            let item = |item| TopKOp::Add { item: Item::Number(item), by: 1 };
            let most = i64::try_from(state.counters_max()).expect("few");
            (0..most).for_each(|n| assert_eq!(state.apply(&item(n)), Ok(Effect::Changed)));
            assert_eq!(TopK::decode(1, Some(k), &laws::bytes(&state)), Ok(state.clone()));
            let full = state.counters.len();
            state.apply(&TopKOp::Add { item: Item::Number(0), by: 2 }).expect("room");
            state.apply(&item(most)).expect("room");
            (full, state.counters.len(), state.error)
        };
        assert_eq!([1, 256, 1_024].map(counters), [(4, 1, 1), (1_024, 1, 1), (4_000, 1, 1)]);
        assert_eq!(counters(4_096), (4_096, 1, 1), "never fewer than k");
    }

    /// Items of 300 bytes: 1,024 of them do not fit, and the list goes on.
    #[test]
    fn items_of_any_length_keep_at_least_k_counters() {
        let mut state = TopK::with_precision(256);
        for n in 0..5_000_u64 {
            let item = Item::Text(format!("{:0>300}", n % 2_000).into());
            state.apply(&TopKOp::Add { item, by: 1 + n % 7 }).expect("room");
            assert!(laws::bytes(&state).len() <= STATE_BYTES_MAX);
        }
        assert!(state.error <= state.total / 257);
    }

    #[test]
    fn what_ops_can_not_count_is_undecodable() {
        // With k = 2, an error of 1 means that 1 was subtracted from three counters.
        let state = |total, error, counts: &[u128]| {
            let items = (0..).map(Item::Number);
            let counters: BTreeMap<Item, u128> = items.zip(counts.iter().copied()).collect();
            let bytes = counters.keys().map(counter_bytes).sum();
            TopK { k: 2, total, error, counters, bytes }
        };
        let decoded = |state: &TopK| TopK::decode(1, Some(2), &laws::bytes(state));
        for good in
            [state(10, 1, &[2, 5]), state(8, 0, &[1; 8]), state(3, 1, &[]), state(0, 0, &[])]
        {
            assert_eq!(decoded(&good), Ok(good));
        }
        for bad in [
            state(9, 1, &[2, 5]),
            state(10, 0, &[5, 6]),
            state(2, 1, &[]),
            state(30, 0, &[1; 9]),
            state(10, 0, &[5, 0]),
        ] {
            assert_eq!(decoded(&bad), Err(DecodeError::NotCanonical), "{bad:?}");
        }
        // Items out of order, and a repeated item.
        for items in [[2, 1], [1, 1]] {
            let mut bytes = vec![10, 0, 2];
            for item in items {
                Item::Number(item).encode(&mut bytes);
                bytes.push(1);
            }
            assert_eq!(TopK::decode(1, Some(2), &bytes), Err(DecodeError::NotCanonical));
        }
    }

    #[test]
    fn states_of_different_k_merge_to_the_smaller() {
        let full = |k: u16| {
            let mut state = TopK::with_precision(k);
            for item in 0..4 * i64::from(k) {
                let by = 100 + item.cast_unsigned();
                state.apply(&TopKOp::Add { item: Item::Number(item), by }).expect("room");
            }
            state
        };
        let merged = laws::merged(&full(20), &full(5));
        assert_eq!((merged.k, merged.counters.len()), (5, 20));
        assert_eq!(merged, laws::merged(&full(5), &full(20)));
    }
}
