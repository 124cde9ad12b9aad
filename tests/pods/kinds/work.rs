//! The ops of each kind, and the state that they must lead to.

use std::collections::{BTreeMap, BTreeSet};

use orderfree_core::crdt::{Class, Crdt, Kind, Question, State, TopK, Value as Answer};
use orderfree_core::protocol::{Key, Timestamp};
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

use crate::pods::Pod;

/// Different items of a set: well within a pod's share of a state.
const ITEMS: i64 = 3_000;
/// Different items of an `or_set`. They are fewer, because a tombstone names every mutator whose adds it has seen,
/// and ten pods have about fifty in a lifetime.
const OR_SET_ITEMS: i64 = 100;
/// Maximum number of chunks with an unknown outcome, because every subset of them is tried.
const UNKNOWN_MAX: usize = 8;

/// The ops of one key.
pub(crate) struct Work {
    key: Key,
}

impl Work {
    pub(crate) fn new(key: Key) -> Work {
        Work { key }
    }

    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    pub(crate) fn path(&self) -> String {
        format!("/v1/{}", self.key)
    }

    /// Whether sending an op twice has the same effect as once. With the kinds of the last writer, a later write
    /// replaces an earlier one, and these tests remove nothing that is being added.
    pub(crate) fn is_safe_to_repeat(&self) -> bool {
        let kind = self.key.kind;
        kind.about().is_idempotent || kind.is_timed() || kind == Kind::OrSet
    }

    /// Random ops.
    pub(crate) fn draw(&self, count: usize, dice: &mut SmallRng) -> Vec<Value> {
        (0..count).map(|_| self.draw_one(dice)).collect()
    }

    fn draw_one(&self, dice: &mut SmallRng) -> Value {
        let double = |dice: &mut SmallRng| -> f64 {
            let magnitude = 10_f64.powi(dice.random_range(-9..9));
            dice.random_range(-1.0..1.0) * magnitude
        };
        match self.key.kind {
            Kind::Counter => json!({"op": "add", "by": dice.random::<i64>() >> 8}),
            Kind::Sum => {
                let (whole, fraction) =
                    (dice.random_range(-999_999..999_999), dice.random_range(0..1_000_000));
                json!({"op": "add", "by": format!("{whole}.{fraction}")})
            }
            Kind::Stats | Kind::Histogram => {
                json!({"op": "record", "value": double(dice), "count": dice.random_range(1..4)})
            }
            Kind::Extrema => {
                let label = format!("l{}", dice.random_range(0..9));
                json!({"op": "observe", "value": double(dice), "label": label})
            }
            Kind::Distinct | Kind::Audience => {
                json!({"op": "add", "item": format!("user-{}", dice.random_range(0..50_000))})
            }
            Kind::TopK => {
                let rank = 1.0 / dice.random_range(0.000_5..1.0_f64);
                #[allow(clippy::cast_possible_truncation, reason = "at most 2,000")]
                let item = rank as i64;
                json!({"op": "add", "item": item, "by": dice.random_range(1..9)})
            }
            Kind::Register => json!({"op": "set", "value": dice.random::<u32>()}),
            Kind::LwwSet => {
                let op = if dice.random_bool(0.6) { "add" } else { "remove" };
                json!({"op": op, "item": dice.random_range(0..ITEMS)})
            }
            Kind::GSet => json!({"op": "add", "item": dice.random_range(0..ITEMS)}),
            Kind::OrSet => json!({"op": "add", "item": dice.random_range(0..OR_SET_ITEMS)}),
        }
    }

    /// Removes of items that a pod shows, for the kind whose removes need that.
    pub(crate) async fn removals(&self, pods: &[Pod], dice: &mut SmallRng) -> Vec<Value> {
        if self.key.kind != Kind::OrSet {
            return Vec::new();
        }
        let pod = pods.choose(dice).expect("a pod");
        let shown = pod.value(&format!("{}?default=empty", self.path())).await;
        let items = shown["items"].as_array().cloned().unwrap_or_default();
        let some = items.into_iter().filter(|_| dice.random_bool(0.3));
        some.map(|item| json!({"op": "remove", "item": item["item"], "seen": item["seen"]}))
            .collect()
    }

    /// Checks a reader's value against the reference.
    pub(crate) fn check_value(&self, value: &Value, reference: &Reference) {
        match self.key.kind {
            Kind::Distinct | Kind::Audience => {
                // Three standard errors of a sketch with 2,048 rows or hashes: 1.5 % and 2.2 %.
                let truth = reference.items.len() as f64;
                let estimate = value["estimate"].as_f64().expect("a number");
                assert!((estimate - truth).abs() <= 0.07 * truth, "{value}, in truth {truth}");
            }
            Kind::OrSet => {
                let shown: BTreeSet<String> = value["items"]
                    .as_array()
                    .expect("items")
                    .iter()
                    .map(|item| item["item"].to_string())
                    .collect();
                assert_eq!(shown, reference.items, "{}", self.key);
            }
            _ => {}
        }
    }
}

/// One process that sees every op.
pub(crate) struct Reference {
    state: State,
    ops: usize,
    /// Chunks that may be counted.
    unknown: Vec<Vec<Value>>,
    /// The items that were added and not removed.
    items: BTreeSet<String>,
    weights: BTreeMap<String, u128>,
}

impl Reference {
    pub(crate) fn new(kind: Kind) -> Reference {
        Reference {
            state: State::new(kind, None),
            ops: 0,
            unknown: Vec::new(),
            items: BTreeSet::new(),
            weights: BTreeMap::new(),
        }
    }

    /// How many ops it saw, without removes of seen items.
    pub(crate) fn ops(&self) -> usize {
        self.ops
    }

    /// The reader of these removes sees everything that was acknowledged so far.
    pub(crate) fn will_remove(&mut self, removals: &[Value]) {
        for removal in removals {
            self.items.remove(&removal["item"].to_string());
        }
    }

    /// A chunk was counted, with its last op at this time.
    pub(crate) fn acked(&mut self, ops: &[Value], last: Option<i64>) {
        let drawn = ops.iter().filter(|op| op.get("seen").is_none());
        self.ops += drawn.clone().count();
        for op in drawn.filter(|op| op["op"] == "add") {
            let item = op["item"].to_string();
            if let Some(by) = op["by"].as_u64() {
                *self.weights.entry(item.clone()).or_default() += u128::from(by);
            }
            self.items.insert(item);
        }
        apply(&mut self.state, ops, last);
    }

    /// A chunk may be counted.
    pub(crate) fn unknown(&mut self, ops: Vec<Value>) {
        self.ops += ops.len();
        self.unknown.push(ops);
        assert!(self.unknown.len() <= UNKNOWN_MAX, "too many unknown outcomes to decide");
    }

    /// The state must be that of everything that was counted, with some of the unknown chunks.
    pub(crate) fn check(&self, state: &State, when: &str) {
        let kind = state.kind();
        if kind == Kind::OrSet {
            // Its dots have the names of the mutators, so only its value is compared.
            return;
        }
        if kind.about().class == Class::OrderCanonical {
            return self.check_topk(state, when);
        }
        let found = payload(state);
        let subsets = 0..1_u32 << self.unknown.len();
        let is_right = |subset: u32| {
            let mut expected = self.state.clone();
            for (index, ops) in self.unknown.iter().enumerate() {
                if subset >> index & 1 == 1 {
                    apply(&mut expected, ops, None);
                }
            }
            payload(&expected) == found
        };
        let shown = |state: &State| state.value(&Question::default()).to_string();
        assert!(
            subsets.into_iter().any(is_right),
            "{kind} {when}: {} is not {}",
            shown(state),
            shown(&self.state)
        );
    }

    fn check_topk(&self, state: &State, when: &str) {
        let topk = TopK::try_from(state.clone()).expect("a topk");
        let value = topk.value(&Question::default());
        let integer = |value: &Answer, field: &str| match value.field(field) {
            Some(Answer::Integer(integer)) => u128::try_from(*integer).expect("positive"),
            other => panic!("{field}: {other:?}"),
        };
        let (total, error) = (integer(&value, "total"), integer(&value, "error"));
        let of = |ops: &Vec<Value>| -> u128 {
            ops.iter().map(|op| u128::from(op["by"].as_u64().expect("a weight"))).sum()
        };
        let unknown: u128 = self.unknown.iter().map(of).sum();
        let acked: u128 = self.weights.values().sum();
        assert!((acked..=acked + unknown).contains(&total), "{when}: {total}, acked {acked}");
        assert!(error <= total / 257, "{when}: error {error} of {total}");
        let Some(Answer::List(items)) = value.field("items") else { panic!("{value:?}") };
        let mut listed = BTreeMap::new();
        for item in items {
            let name = item.field("item").expect("an item").to_string();
            listed.insert(name, integer(item, "at_least"));
        }
        for (item, weight) in &self.weights {
            let at_least = listed.get(item).copied().unwrap_or_default();
            assert!(at_least <= weight + unknown, "{when}: {item} {at_least} {weight}");
            assert!(*weight <= at_least + error, "{when}: {item} {at_least} {weight} {error}");
        }
    }
}

/// Applies a chunk as a pod does, with increasing times of its ops.
fn apply(state: &mut State, ops: &[Value], last: Option<i64>) {
    for (index, op) in ops.iter().enumerate() {
        let mut op = state.kind().parse_op(op).expect("an op");
        if let Some(last) = last {
            let behind = i64::try_from(ops.len() - 1 - index).expect("few");
            op.stamp(Timestamp::from_micros(last - behind));
        }
        if state.kind() != Kind::OrSet {
            state.apply(&op).expect("applied");
        }
    }
}

fn payload(state: &State) -> Vec<u8> {
    let mut bytes = Vec::new();
    state.encode_payload(&mut bytes);
    bytes
}
