//! `or_set`: a set from which a client removes exactly what it has seen.
//!
//! Each add is named by a dot. A remove carries, as a token, the dots that its client had read, and removes
//! only those: an add that the client had not seen survives, whatever arrives first. The state is the
//! optimized observed-remove set of Bieniusa et al. ("An optimized conflict-free replicated set", 2012) with
//! explicit tombstones, because a mutator can remove what it never held.
//!
//! **Fence.** A tally includes each shard with `expires_at <= fence`, and such a shard never counts again. So
//! the tally needs no tombstone for dots that expire there: the dots that such a tombstone covers are already
//! gone from the tally, and a dot at or below the fence that the tally lacks was removed. This makes the
//! merge a join of all states, including settled ones:
//!
//! * a tombstone that is folded before the dots that it covers stays until the fence has passed the mutator
//!   of the dots, so it meets them;
//! * a tombstone that comes after the fold of the dots that it covers drops them from the tally when a read
//!   or a fold merges it, and then has nothing left to do;
//! * the fence in a tombstone is that of a tally which held everything below it. It is dropped once the
//!   state's own fence has passed it.
//!
//! What is left after a fold up to F depends only on the ops of all shards up to F: the dots that no
//! tombstone covers, and the parts of tombstones above F that no other part makes superfluous.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::dots::{self, Context, DOT_BYTES_MAX, Newest, TIME_BYTES_MAX, Token};
use super::item::{self, Item};
use super::varint::{self, Reader};
use super::{
    About, BareValue, Class, Crdt, DecodeError, Dot, Effect, MergeError, OpError, Question, Size,
    Value, check_format, check_size,
};
use crate::protocol::{Key, MutatorId, Timestamp};

/// Maximum bytes of a payload in addition to its entries and the parts of `cleared`: the fence, the number of
/// entries, and the frame of `cleared`.
const HEADER_BYTES_MAX: usize = 1 + TIME_BYTES_MAX + COUNT_BYTES_MAX + CONTEXT_FRAME_BYTES_MAX;

/// Maximum bytes of a context in addition to its parts: whether it has a fence, and the number of dots.
const CONTEXT_FRAME_BYTES_MAX: usize = 1 + COUNT_BYTES_MAX;

/// Maximum bytes of a count of things that fit into a state.
const COUNT_BYTES_MAX: usize = 3;

/// Items with the dots of their adds, and what was removed. The state is always in one normal form, so equal
/// sets have equal bytes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OrSet {
    /// Every shard with `expires_at <= fence` is in this state; none in a mutator's own state.
    fence: Option<Timestamp>,
    /// Items that are in the set or have tombstones.
    entries: BTreeMap<Item, Entry>,
    /// Tombstones for all items.
    cleared: Context,
    /// Maximum bytes of the entries and of the parts of `cleared` in a payload.
    bytes: usize,
}

/// What is known about one item.
#[derive(Debug, Clone, PartialEq, Default)]
struct Entry {
    /// Adds that no tombstone covers. The newest dot of each mutator is enough: contexts cover by expiry or
    /// up to a number, so a context that covers it also covers the older ones. Until then the item is in the
    /// set, whatever happened to the older ones.
    dots: Newest,
    /// Tombstones for this item.
    removed: Context,
}

/// A change of an [`OrSet`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Request")]
pub enum OrSetOp {
    /// Adds items.
    Add {
        /// 1 to [`ITEMS_MAX`](item::ITEMS_MAX) items.
        items: BTreeSet<Item>,
        /// The name of this op; none until a mutator has taken it.
        dot: Option<Dot>,
    },
    /// Removes the adds of one item that a read had seen.
    Remove {
        /// The item.
        item: Item,
        /// What the read had seen: the item's own token, or that of all items of the same key.
        seen: Token,
    },
    /// Removes the adds of all items that a read had seen.
    Clear {
        /// What the read had seen.
        context: Token,
    },
}

/// An op as people write it.
#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    Add { item: Option<Item>, items: Option<Vec<Item>> },
    Remove { item: Item, seen: Option<Token> },
    Clear { context: Option<Token> },
}

impl TryFrom<Request> for OrSetOp {
    type Error = OpError;

    fn try_from(request: Request) -> Result<OrSetOp, OpError> {
        Ok(match request {
            Request::Add { item, items } => {
                let items = item::one_or_many(item, items)?.into_iter().collect();
                OrSetOp::Add { items, dot: None }
            }
            Request::Remove { item, seen } => {
                let rule = "`remove` needs the item's `seen` from a read of this key";
                let seen = seen.ok_or_else(|| OpError::Invalid(rule.to_owned()))?;
                OrSetOp::Remove { item, seen }
            }
            Request::Clear { context } => {
                let rule = "`clear` needs the `context` from a read of this key";
                let context = context.ok_or_else(|| OpError::Invalid(rule.to_owned()))?;
                OrSetOp::Clear { context }
            }
        })
    }
}

impl Entry {
    /// Drops covered dots, then the parts of tombstones that `cleared` or `settled` also covers. Returns
    /// whether there was anything to drop.
    fn normalize(&mut self, cleared: &Context, settled: &Context) -> bool {
        let dots = self.dots.len();
        let removed = &self.removed;
        self.dots.retain(|by, seq| !removed.covers(by, *seq) && !cleared.covers(by, *seq));
        let is_subsumed = self.removed.subtract(cleared);
        let is_settled = self.removed.subtract(settled);
        dots != self.dots.len() || is_subsumed || is_settled
    }

    fn is_empty(&self) -> bool {
        self.dots.is_empty() && self.removed.is_empty()
    }

    /// Maximum bytes in a payload; 0 for an empty entry, which is not written.
    fn bytes(&self, item: &Item) -> usize {
        if self.is_empty() {
            return 0;
        }
        let dots = COUNT_BYTES_MAX + self.dots.len() * DOT_BYTES_MAX;
        item.encoded_bytes() + dots + CONTEXT_FRAME_BYTES_MAX + self.removed.parts_bytes()
    }
}

impl OrSet {
    /// The items in the set.
    fn members(&self) -> impl Iterator<Item = (&Item, &Newest)> {
        let entries = self.entries.iter().map(|(item, entry)| (item, &entry.dots));
        entries.filter(|(_, dots)| !dots.is_empty())
    }

    /// Brings the state into its one normal form: without covered dots, without parts of an item's tombstones
    /// that the tombstones for all items cover, without parts of tombstones at or below the fence, without
    /// empty entries. Returns whether the state has changed.
    ///
    /// The order of merges leaves no trace in it: an item's tombstones, those for all items and the fence
    /// together cover the join of what they covered before.
    fn normalize(&mut self) -> bool {
        let settled = Context::up_to(self.fence);
        let mut is_changed = false;
        self.entries.retain(|_, entry| {
            is_changed |= entry.normalize(&self.cleared, &settled) || entry.is_empty();
            !entry.is_empty()
        });
        // This comes last, because until here it had dots to cover.
        is_changed |= self.cleared.subtract(&settled);
        let entries: usize = self.entries.iter().map(|(item, entry)| entry.bytes(item)).sum();
        self.bytes = entries + self.cleared.parts_bytes();
        is_changed
    }

    fn add(&mut self, items: &BTreeSet<Item>, dot: Dot) -> Result<Effect, OpError> {
        let writer = (dot.expires_at, dot.mutator_id);
        // Only a forged token can cover a dot before it was drawn.
        if Some(dot.expires_at) <= self.fence || self.cleared.covers(&writer, dot.seq) {
            return Ok(Effect::Unchanged);
        }
        let mut changed = Vec::new();
        let mut bytes = self.bytes;
        for item in items {
            let mut entry = self.entries.get(item).cloned().unwrap_or_default();
            let newest = entry.dots.get(&writer).copied().unwrap_or(0);
            if dot.seq > newest && !entry.removed.covers(&writer, dot.seq) {
                bytes -= entry.bytes(item);
                entry.dots.insert(writer, dot.seq);
                bytes += entry.bytes(item);
                changed.push((item.clone(), entry));
            }
        }
        check_size(HEADER_BYTES_MAX + bytes)?;
        let effect = Effect::of(!changed.is_empty());
        self.bytes = bytes;
        self.entries.extend(changed);
        Ok(effect)
    }

    fn remove(&mut self, item: &Item, seen: &Context) -> Result<Effect, OpError> {
        let before = self.entries.get(item).cloned().unwrap_or_default();
        let mut entry = before.clone();
        entry.removed.join(seen);
        entry.normalize(&self.cleared, &Context::up_to(self.fence));
        let bytes = self.bytes - before.bytes(item) + entry.bytes(item);
        check_size(HEADER_BYTES_MAX + bytes)?;
        let effect = Effect::of(entry != before);
        self.bytes = bytes;
        if entry.is_empty() {
            self.entries.remove(item);
        } else {
            self.entries.insert(item.clone(), entry);
        }
        Ok(effect)
    }

    fn clear(&mut self, context: &Context) -> Result<Effect, OpError> {
        let mut next = self.clone();
        next.cleared.join(context);
        next.normalize();
        check_size(HEADER_BYTES_MAX + next.bytes)?;
        let effect = Effect::of(next != *self);
        *self = next;
        Ok(effect)
    }
}

impl Crdt for OrSet {
    const NAME: &'static str = "or_set";
    const CODE: u64 = 10;
    const FORMAT: u64 = 1;
    const ABOUT: About = About {
        summary: "A set from which a client removes exactly what it has seen: adds that it has not \
                  seen survive. The items depend only on the ops; the tokens also show which \
                  mutators added them.",
        class: Class::Exact,
        is_exact: true,
        size: Size::Large { memory_factor: 25 },
        bound: "Exact: an item takes about 40 bytes in addition to itself, and so does each further \
                mutator that added it and each tombstone. Folds remove tombstones.",
        // A repeated add has a new dot, and removes that came in between have not seen it.
        is_idempotent: false,
        has_totals: false,
        bare: ("add", "item"),
        bare_value: BareValue::Items,
        example_op: r#"{"op":"add","item":"a"}"#,
        example_value: r#"{"size":1,
            "items":[{"item":"a","seen":"ArCzwMfE_25xAAGAgNLSm7awBgAAAAAAAAAAAAAAAAAAAAEB"}],
            "context":"Ae-4U0EAAYCA0tKbtrAGAAAAAAAAAAAAAAAAAAAAAQE"}"#,
        op_schema: concat!(
            r#"{"title":"OrSetOp","oneOf":[
            {"type":"object","description":"Adds `item` or `items`.","oneOf":[
                {"required":["op","item"]},{"required":["op","items"]}],
                "additionalProperties":false,"properties":{
                "op":{"type":"string","enum":["add"]},"#,
            item::one_or_many_schema!(),
            r#"}},
            {"type":"object","description":"Removes the adds of `item` that a read had seen.",
                "required":["op","item","seen"],"additionalProperties":false,"properties":{
                "op":{"type":"string","enum":["remove"]},
                "item":{"#,
            item::one_schema!(),
            r#"},
                "seen":{"type":"string","maxLength":524288,
                    "description":"The item's own `seen`, or the `context`, from a read of this key."}}},
            {"type":"object","description":"Removes all adds that a read had seen.",
                "required":["op","context"],"additionalProperties":false,"properties":{
                "op":{"type":"string","enum":["clear"]},
                "context":{"type":"string","maxLength":524288,
                    "description":"The `context` from a read of this key."}}}]}"#
        ),
        value_schema: r##"{"description":"With `contains`, one item instead of all.","oneOf":[
            {"type":"object","required":["size","items"],"additionalProperties":false,
                "properties":{"size":{"type":"integer","minimum":0},
                "items":{"type":"array","items":{"oneOf":[{"type":["string","integer"]},
                    {"type":"object","required":["item","seen"],"additionalProperties":false,
                        "properties":{"item":{"type":["string","integer"]},
                        "seen":{"type":"string","description":"Send it to remove the item."}}}]}},
                "context":{"type":"string","description":"Send it to clear the set."}}},
            {"type":"object","required":["size","item","contains"],"additionalProperties":false,
                "properties":{"size":{"type":"integer","minimum":0},
                "item":{"type":["string","integer"]},
                "contains":{"type":"boolean"},
                "seen":{"oneOf":[{"type":"string"},{"type":"null"}],
                    "description":"Send it to remove the item."}}}]}"##,
        parameters: &["contains"],
    };
    type Op = OrSetOp;

    fn is_refused_when_full(op: &OrSetOp) -> bool {
        matches!(op, OrSetOp::Add { .. })
    }

    fn heap_bytes(op: &OrSetOp) -> usize {
        match op {
            OrSetOp::Add { items, .. } => {
                items.iter().map(|item| size_of::<Item>() + item.heap_bytes()).sum()
            }
            OrSetOp::Remove { item, seen } => item.heap_bytes() + seen.heap_bytes(),
            OrSetOp::Clear { context } => context.heap_bytes(),
        }
    }

    fn open(op: &mut OrSetOp, key: &Key, now: Timestamp) -> Result<(), OpError> {
        match op {
            OrSetOp::Add { .. } => Ok(()),
            OrSetOp::Remove { item, seen } => seen.open("seen", key, Some(item), now),
            OrSetOp::Clear { context } => context.open("context", key, None, now),
        }
    }

    /// An op that a dead mutator hands on gets a dot from its successor.
    fn assign(op: &mut OrSetOp, next: &mut dyn FnMut() -> Dot) {
        if let OrSetOp::Add { dot, .. } = op {
            *dot = Some(next());
        }
    }

    fn apply(&mut self, op: &OrSetOp) -> Result<Effect, OpError> {
        match op {
            OrSetOp::Add { items, dot: Some(dot) } => self.add(items, *dot),
            OrSetOp::Add { dot: None, .. } => Err(OpError::Invalid("the op has no dot".to_owned())),
            OrSetOp::Remove { item, seen } => self.remove(item, seen.context("seen")?),
            OrSetOp::Clear { context } => self.clear(context.context("context")?),
        }
    }

    /// A state knows all dots of the mutators that its fence has passed: a dot that it lacks was removed. So
    /// if both states know a dot, it stays if both have it. If neither knows it, it stays if either has it.
    /// Otherwise the state that knows it decides.
    fn merge(&mut self, other: &OrSet) -> Result<(), MergeError> {
        if other.fence.is_some() {
            for (item, entry) in &mut self.entries {
                let theirs = other.entries.get(item);
                entry.dots.retain(|by, seq| {
                    if Some(by.0) <= other.fence {
                        let newest = theirs.and_then(|theirs| theirs.dots.get(by));
                        *seq = newest.map_or(0, |newest| *newest.min(seq));
                    }
                    *seq > 0
                });
            }
        }
        for (item, theirs) in &other.entries {
            let entry = self.entries.entry(item.clone()).or_default();
            for (&by, &seq) in theirs.dots.iter().filter(|(by, _)| Some(by.0) > self.fence) {
                let newest = entry.dots.entry(by).or_default();
                *newest = seq.max(*newest);
            }
            entry.removed.join(&theirs.removed);
        }
        self.cleared.join(&other.cleared);
        self.fence = self.fence.max(other.fence);
        self.normalize();
        Ok(())
    }

    /// Fences and tombstones have a meaning only for the mutators of one key, and dots are only needed for
    /// tokens. Here one dot stands for all, so that an item that several keys have is counted once.
    fn merge_key(&mut self, other: &OrSet) -> Result<(), MergeError> {
        let dots = Newest::from([((Timestamp::NEVER, MutatorId::TALLY), 1)]);
        for (item, _) in other.members() {
            self.entries.entry(item.clone()).or_default().dots = dots.clone();
        }
        self.normalize();
        Ok(())
    }

    fn attribute_to(&mut self, dot: Dot) {
        let dots = Newest::from([((dot.expires_at, dot.mutator_id), dot.seq)]);
        let items = self.members().map(|(item, _)| item.clone());
        let entry = |item| (item, Entry { dots: dots.clone(), removed: Context::default() });
        *self = OrSet { entries: items.map(entry).collect(), ..OrSet::default() };
        self.normalize();
    }

    fn settle(&mut self, fence: Timestamp) {
        self.fence = self.fence.max(Some(fence));
        self.normalize();
    }

    fn value(&self, question: &Question) -> Value {
        let members: Vec<_> = self.members().collect();
        let size = ("size", Value::count(members.len()));
        let seen = |key, item: &Item, dots: &Newest| {
            let token = Context::seen(dots.iter(), self.fence).seal(key, Some(item));
            ("seen", Value::text(token))
        };
        match (&question.contains, &question.key) {
            (Some(item), key) => {
                let dots = members.iter().find(|(member, _)| *member == item).map(|(_, dots)| dots);
                let contains = ("contains", Value::Bool(dots.is_some()));
                let mut fields = vec![size, ("item", item.into()), contains];
                if let Some(key) = key {
                    fields.push(dots.map_or(("seen", Value::Null), |dots| seen(key, item, dots)));
                }
                Value::Record(fields)
            }
            (None, None) => item::show_set(members.iter().map(|(item, _)| *item), None),
            (None, Some(key)) => {
                let show = |(item, dots): &(&Item, &Newest)| {
                    Value::Record(vec![("item", (*item).into()), seen(key, item, dots)])
                };
                let all = members.iter().flat_map(|(_, dots)| dots.iter());
                let context = Context::seen(all, self.fence).seal(key, None);
                Value::Record(vec![
                    size,
                    ("items", Value::List(members.iter().map(show).collect())),
                    ("context", Value::text(context)),
                ])
            }
        }
    }

    /// Appends the fence; the number of entries and, ascending by item, each item with its dots and
    /// tombstones; the tombstones for all items.
    fn encode(&self, out: &mut Vec<u8>) {
        dots::encode_fence(self.fence, out);
        varint::put(self.entries.len() as u128, out);
        for (item, entry) in &self.entries {
            item.encode(out);
            dots::encode_newest(&entry.dots, out);
            entry.removed.encode(out);
        }
        self.cleared.encode(out);
    }

    fn decode(format: u64, _: Option<u16>, payload: &[u8]) -> Result<OrSet, DecodeError> {
        check_format::<OrSet>(format)?;
        let mut reader = Reader::new(payload);
        let mut state = OrSet { fence: dots::decode_fence(&mut reader)?, ..OrSet::default() };
        for _ in 0..reader.length()? {
            let item = Item::decode(&mut reader)?;
            if state.entries.last_key_value().is_some_and(|(last, _)| *last >= item) {
                return Err(DecodeError::NotCanonical);
            }
            let dots = dots::decode_newest(&mut reader)?;
            let removed = Context::decode(&mut reader)?;
            state.entries.insert(item, Entry { dots, removed });
        }
        state.cleared = Context::decode(&mut reader)?;
        reader.end()?;
        if state.normalize() { Err(DecodeError::NotCanonical) } else { Ok(state) }
    }
}

#[cfg(test)]
mod schedules;
#[cfg(test)]
mod tests;
