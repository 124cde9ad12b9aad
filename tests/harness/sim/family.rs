//! The kinds of a schedule's keys: one of each family. The value of a key shows for each op whether it was lost,
//! counted once, or counted again.
//!
//! Every kind is read as the number that a counter would have: one digit of base 8 per op.

use orderfree::engine::service::{KeyValue, Sight};
use orderfree_core::crdt::item::Item;
use orderfree_core::crdt::{Effect, Kind, Question, Value};
use orderfree_core::protocol::{Key, Name};
use serde_json::json;

use crate::oracle::{DIGIT_BITS, Oracle, Stage, weight};
use crate::plan::OPS_MAX;
use crate::sabotage::Sabotage;
use crate::store::name;

/// Decimal places of the amounts of a `sum`.
const SCALE: u32 = 6;

/// A kind of each family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// Exact sums: each op adds a digit.
    Counter,
    Sum,
    /// Order-canonical: each op adds 1 to its own item.
    TopK,
    /// Sketches: each op adds its own item.
    Distinct,
    /// The last writer wins: each op sets its own number.
    Register,
    /// A set with removal. Of three ops, the first adds an item, the second removes it if a read shows it, and the
    /// third adds it again if the removal was acked.
    OrSet,
}

impl Family {
    /// Every other schedule has counters. A broken rule is searched for with one family only.
    pub(crate) fn of(seed: u64, sabotage: Option<Sabotage>) -> Family {
        const OTHERS: [Family; 5] =
            [Family::Sum, Family::TopK, Family::Distinct, Family::Register, Family::OrSet];
        if let Some(sabotage) = sabotage {
            return sabotage.family();
        }
        if seed.is_multiple_of(2) {
            return Family::Counter;
        }
        OTHERS[usize::try_from(seed / 2 % 5).expect("below 5")]
    }

    pub(crate) fn kind(self) -> Kind {
        match self {
            Family::Counter => Kind::Counter,
            Family::Sum => Kind::Sum,
            Family::TopK => Kind::TopK,
            Family::Distinct => Kind::Distinct,
            Family::Register => Kind::Register,
            Family::OrSet => Kind::OrSet,
        }
    }

    /// The key with this index.
    pub(crate) fn key(self, at: u8) -> Key {
        key_of(self.kind(), at)
    }

    /// The op whose item this op removes.
    pub(crate) fn removes(self, op: usize) -> Option<usize> {
        (self == Family::OrSet && op % 3 == 1).then(|| op - 1)
    }

    /// The removal whose item this op adds again. Without an ack of the removal, nothing shows which op added the item.
    pub(crate) fn follows(self, op: usize) -> Option<usize> {
        (self == Family::OrSet && op % 3 == 2).then(|| op - 1)
    }

    /// The op that first added this op's item.
    fn adds(self, op: usize) -> usize {
        if self == Family::OrSet { op - op % 3 } else { op }
    }

    /// Whether its ops have amounts, so that a value shows which version of an op counted.
    pub(crate) fn has_amounts(self) -> bool {
        matches!(self, Family::Counter | Family::Sum | Family::TopK)
    }

    /// An op as JSON, with its amount this many times. `seen` is the token of the item that it removes.
    pub(crate) fn op(self, op: usize, times: u8, seen: Option<&str>) -> serde_json::Value {
        let by = weight(op) * i64::from(times);
        match (self, seen) {
            (Family::Counter, _) => json!({"op": "add", "by": by}),
            (Family::Sum, _) => {
                let one = 10_i64.pow(SCALE);
                json!({"op": "add", "by": format!("{}.{:06}", by / one, by % one)})
            }
            (Family::Register, _) => json!({"op": "set", "value": op}),
            (Family::OrSet, Some(seen)) => json!({"op": "remove", "item": op - 1, "seen": seen}),
            (Family::TopK, _) => json!({"op": "add", "item": op, "by": times}),
            (Family::Distinct | Family::OrSet, _) => {
                json!({"op": "add", "item": self.adds(op)})
            }
        }
    }

    /// The token of an op's item, if a read shows it.
    pub(crate) fn seen(self, found: &KeyValue, op: usize) -> Option<String> {
        let question = Question { key: Some(found.key.clone()), ..Question::default() };
        let value = found.state.value(&question);
        let Some(Value::List(items)) = value.field("items") else { return None };
        let item = items.iter().find(|item| item.field("item") == Some(&item_of(op)))?;
        match item.field("seen") {
            Some(Value::Text(token)) => Some(token.clone()),
            _ => None,
        }
    }

    /// A key's value as a counter would show it.
    pub(crate) fn digits(self, found: Option<&KeyValue>, at: u8, oracle: &Oracle) -> i128 {
        let Some(found) = found else { return 0 };
        let value = found.state.value(&Question::default());
        let of = |is_counted: &dyn Fn(usize) -> bool| -> i128 {
            let counted = (0..OPS_MAX).filter(|op| is_counted(*op));
            counted.map(|op| i128::from(weight(op))).sum()
        };
        match (self, &value) {
            (Family::Counter, Value::Integer(total)) => *total,
            (Family::Sum, Value::Text(text)) => text.replace('.', "").parse().expect("digits"),
            (Family::TopK, value) => {
                let Some(Value::List(items)) = value.field("items") else { return -1 };
                let digit = |item: &Value| match (item.field("item"), item.field("at_least")) {
                    (Some(Value::Item(Item::Number(op))), Some(Value::Integer(times))) => {
                        times << (i64::try_from(DIGIT_BITS).expect("three") * op)
                    }
                    _ => -1,
                };
                items.iter().map(digit).sum()
            }
            (Family::Distinct, _) => of(&|op| {
                let add = Kind::Distinct.parse_op(&self.op(op, 1, None)).expect("an op");
                found.state.clone().apply(&add) == Ok(Effect::Unchanged)
            }),
            // An acked op with an earlier time was overwritten, not lost.
            (Family::Register, value) => {
                let (Some(Value::Json(shown)), Some(Value::Integer(micros))) =
                    (value.field("value"), value.field("timestamp"))
                else {
                    return -1;
                };
                let shown = shown.parse::<usize>().ok();
                let time = |op| oracle.time(at, op).map(|time| i128::from(time.as_micros()));
                // An acked op has the time that its client was told.
                if shown.and_then(time).is_some_and(|time| time != *micros) {
                    return -1;
                }
                of(&|op| {
                    let time = time(op);
                    shown == Some(op) || time.is_some_and(|time| time <= *micros)
                })
            }
            // A missing item may have been removed by an unknown removal, unless it was added again.
            (Family::OrSet, value) => {
                let Some(Value::List(items)) = value.field("items") else { return -1 };
                let is_there = |op: usize| items.contains(&item_of(op));
                let may_apply =
                    |op: usize| matches!(oracle.stage(at, op), Stage::Open | Stage::Acked);
                of(&|op| {
                    let first = self.adds(op);
                    let later = |at: usize| first + at < OPS_MAX && may_apply(first + at);
                    let (is_there, is_removed, is_again) = (is_there(first), later(1), later(2));
                    match op % 3 {
                        0 => (is_there && !is_again) || (is_removed && may_apply(op)),
                        1 => may_apply(op) && (!is_there || is_again),
                        _ => is_there && may_apply(op),
                    }
                })
            }
            (_, value) => panic!("{self:?} has the value {value:?}"),
        }
    }
}

/// The item of an op.
fn item_of(op: usize) -> Value {
    Value::Item(Item::Number(i64::try_from(op).expect("few")))
}

/// The key with this name.
pub(crate) fn key_of(kind: Kind, at: u8) -> Key {
    Key { kind, group: Name::new("group").expect("a name"), name: name(at) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::AMOUNTS;
    use orderfree_core::crdt::State;
    use orderfree_core::protocol::Timestamp;
    use orderfree_core::protocol::consistency::Level;

    /// Items of a sketch must not share a coupon, because one would hide the other.
    #[test]
    fn each_family_tells_its_ops_apart() {
        for family in (0..11).map(|seed| Family::of(seed, None)) {
            let (mut oracle, mut state) =
                (Oracle::new(1, |_| &AMOUNTS[..1]), State::new(family.kind(), None));
            let mut expected = 0;
            let is_first = |op: &usize| family.adds(*op) == *op;
            for op in (0..OPS_MAX).filter(is_first) {
                let mut change = family.kind().parse_op(&family.op(op, 1, None)).expect("an op");
                let time = Timestamp::from_micros(i64::try_from(op).expect("small") + 1);
                let expires_at = time.plus(std::time::Duration::from_secs(1));
                let mutator_id = orderfree_core::protocol::MutatorId::TALLY;
                change.stamp(time);
                change.assign(&mut || orderfree_core::crdt::Dot { expires_at, mutator_id, seq: 1 });
                oracle.sent(0, op, 0);
                assert_eq!(state.apply(&change), Ok(Effect::Changed), "{family:?} {op}");
                oracle.acked(0, op, 0, 0, Some(time));
                expected += i128::from(weight(op));
                let found = KeyValue {
                    is_full: false,
                    key: family.key(0),
                    state: state.clone(),
                    shards: 1,
                    bytes: 0,
                    folded_through: None,
                    as_of: time,
                    level: Level::All,
                    sight: Sight::All,
                };
                assert_eq!(family.digits(Some(&found), 0, &oracle), expected, "{family:?}");
            }
        }
    }
}
