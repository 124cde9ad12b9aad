//! Random schedules against a reference that knows nothing of dots.
//!
//! The reference is a set of events. A remove holds the adds that its token's reader had seen, and an item is
//! in the set if at least one of its adds is in no remove. The world around it is the protocol's: mutators
//! are born and die, folds take the shards of dead mutators up to a fence, replicas answer from an old tally
//! and from old or missing shards, folded shards come back, and clients keep tokens for any time.

use super::tests::key;
use super::*;
use crate::crdt::laws::{bytes, merged, stored};
use crate::protocol::MutatorId;

/// Number of schedules to play. `ORSET_SCHEDULES=20000` plays more.
const SCHEDULES: u64 = 2_000;

/// Actions of one schedule.
const ACTIONS: usize = 60;

/// The set to play: the shipped one, or one that is broken on purpose.
#[derive(Clone, Copy, PartialEq)]
enum Variant {
    Shipped,
    /// A fold drops tombstones up to five steps above the fence.
    OffByFive,
    /// A merge keeps an item's tombstones that the tombstones for all items cover.
    Unsubsumed,
}

#[derive(Debug, PartialEq)]
enum Violation {
    /// A read has one item too many, or one too few.
    Value,
    /// Two ways to fold the same ops give different bytes.
    Bytes,
    /// Merging something again that a tally already holds changes it.
    Zombie,
}

type Events = BTreeSet<usize>;

enum Event {
    Add(Item),
    Remove {
        /// What the token's reader had seen, removed or not.
        seen: Events,
        /// The part of it that was in the set in the reader's own answer.
        present: Events,
    },
}

struct Shard {
    expires_at: i64,
    id: u128,
    /// Number of dots drawn.
    dots: u64,
    ops: Vec<OrSetOp>,
    events: Vec<usize>,
    /// The state after each op, and the number of events in it.
    versions: Vec<(OrSet, usize)>,
}

/// A tally, or a complete reading.
#[derive(Clone)]
struct Reading {
    /// The step of the fence.
    fence: i64,
    state: OrSet,
    events: Events,
}

/// What a client keeps of a reading, for one item or for all items.
struct Memory {
    item: Option<Item>,
    token: String,
    seen: Events,
    present: Events,
}

struct World {
    variant: Variant,
    random: u64,
    now: i64,
    shards: Vec<Shard>,
    events: Vec<Event>,
    tallies: Vec<Reading>,
    memories: Vec<Memory>,
}

fn time(step: i64) -> Timestamp {
    Timestamp::from_micros((1_000_000 + step) * 1_000_000)
}

impl World {
    fn new(variant: Variant, seed: u64) -> World {
        let nothing = Reading { fence: 0, state: OrSet::default(), events: Events::new() };
        World {
            variant,
            random: seed,
            now: 1,
            shards: Vec::new(),
            events: Vec::new(),
            tallies: vec![nothing],
            memories: Vec::new(),
        }
    }

    /// A number below `end`, by SplitMix64 (Steele, Lea and Flood, 2014).
    fn below(&mut self, end: usize) -> usize {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((mixed ^ (mixed >> 31)) % end as u64).expect("below a usize")
    }

    fn item(&mut self) -> Item {
        [Item::Number(7), Item::Text("a".into()), Item::Text("b".into())][self.below(3)].clone()
    }

    fn merge(&self, into: &OrSet, other: &OrSet) -> OrSet {
        let mut out = merged(into, other);
        if self.variant == Variant::Unsubsumed {
            let settled = Context::up_to(out.fence);
            for (item, entry) in into.entries.iter().chain(&other.entries) {
                let mut kept = out.entries.remove(item).unwrap_or_default();
                kept.removed.join(&entry.removed);
                kept.removed.subtract(&settled);
                if !kept.is_empty() {
                    out.entries.insert(item.clone(), kept);
                }
            }
        }
        out
    }

    fn settle(&self, state: &mut OrSet, fence: i64) {
        if self.variant == Variant::Unsubsumed {
            // Otherwise its settling would still drop what is covered.
            state.fence = Some(time(fence));
            let settled = Context::up_to(state.fence);
            state.entries.retain(|_, entry| {
                entry.normalize(&Context::default(), &settled);
                !entry.is_empty()
            });
            state.cleared.subtract(&settled);
            return;
        }
        state.settle(time(fence));
        if self.variant == Variant::OffByFive {
            let too_far = Context::up_to(Some(time(fence + 5)));
            state.entries.retain(|_, entry| {
                entry.removed.subtract(&too_far);
                !entry.is_empty()
            });
            state.cleared.subtract(&too_far);
            state.normalize();
        }
    }

    fn act(&mut self) -> Result<(), Violation> {
        match self.below(10) {
            0 => self.now += 1,
            1..=3 => self.add(),
            4 | 5 => self.remove(),
            6 => self.remember(true),
            7 | 8 => self.remember(false),
            _ => self.fold(),
        }
        self.check()
    }

    /// A mutator that can take ops, sometimes a new one.
    fn writer(&mut self) -> usize {
        let live: Vec<usize> =
            (0..self.shards.len()).filter(|&at| self.shards[at].expires_at > self.now).collect();
        if !live.is_empty() && (live.len() > 4 || self.below(4) > 0) {
            return live[self.below(live.len())];
        }
        let life = i64::try_from(self.below(9)).expect("small") + 1;
        self.shards.push(Shard {
            expires_at: self.now + life,
            id: self.shards.len() as u128 + 1,
            dots: 0,
            ops: Vec::new(),
            events: Vec::new(),
            versions: vec![(OrSet::default(), 0)],
        });
        self.shards.len() - 1
    }

    fn apply(&mut self, mut op: OrSetOp, events: Vec<Event>) {
        let at = self.writer();
        let shard = &mut self.shards[at];
        let mut next = || {
            shard.dots += 1;
            Dot {
                expires_at: time(shard.expires_at),
                mutator_id: MutatorId::new(uuid::Uuid::from_u128(shard.id)),
                seq: shard.dots,
            }
        };
        OrSet::assign(&mut op, &mut next);
        for event in events {
            shard.events.push(self.events.len());
            self.events.push(event);
        }
        let (mut state, _) = shard.versions.last().expect("the empty one").clone();
        state.apply(&op).expect("it fits");
        shard.versions.push((state, shard.events.len()));
        shard.ops.push(op);
    }

    fn add(&mut self) {
        let mut items = BTreeSet::from([self.item()]);
        if self.below(4) == 0 {
            items.insert(self.item());
        }
        let events = items.iter().cloned().map(Event::Add).collect();
        self.apply(OrSetOp::Add { items, dot: None }, events);
    }

    /// Removes with a token of any age; sometimes an item with the token for all items.
    fn remove(&mut self) {
        if self.memories.is_empty() {
            return;
        }
        let (at, item) = (self.below(self.memories.len()), self.item());
        let by_all = self.below(3) == 0;
        let memory = &self.memories[at];
        let item = memory.item.clone().or(by_all.then_some(item));
        let (seen, present) = match &item {
            Some(item) => {
                [&memory.seen, &memory.present].map(|events| self.of(item, events)).into()
            }
            None => (memory.seen.clone(), memory.present.clone()),
        };
        let token = Token::Sealed(memory.token.as_str().into());
        let mut op = match item {
            Some(item) => OrSetOp::Remove { item, seen: token },
            None => OrSetOp::Clear { context: token },
        };
        OrSet::open(&mut op, &key("a"), time(self.now)).expect("a token of a read");
        self.apply(op, vec![Event::Remove { seen, present }]);
    }

    /// The adds of this item among `events`.
    fn of(&self, item: &Item, events: &Events) -> Events {
        let adds = |at: &&usize| matches!(&self.events[**at], Event::Add(added) if added == item);
        events.iter().filter(adds).copied().collect()
    }

    /// The adds among `events` that are in no remove's set.
    fn left(&self, events: &Events, set: impl Fn(&Event) -> Option<&Events>) -> Events {
        let removed: Events =
            events.iter().filter_map(|&at| set(&self.events[at])).flatten().copied().collect();
        let is_add = |at: &usize| matches!(self.events[*at], Event::Add(_));
        events.difference(&removed).copied().filter(is_add).collect()
    }

    /// Reads like a quorum, or like a replica that is stale in any way.
    fn read(&mut self, is_stale: bool) -> Reading {
        let last = self.tallies.len() - 1;
        let tally = if is_stale { self.below(last + 1) } else { last };
        let mut reading = self.tallies[tally].clone();
        let mut states = vec![reading.state];
        for at in 0..self.shards.len() {
            if self.shards[at].expires_at <= reading.fence {
                continue;
            }
            let newest = self.shards[at].versions.len() - 1;
            let version = if is_stale { self.below(newest + 1) } else { newest };
            let (state, events) = &self.shards[at].versions[version];
            states.push(state.clone());
            reading.events.extend(&self.shards[at].events[..*events]);
        }
        reading.state = OrSet::default();
        while !states.is_empty() {
            let next = states.swap_remove(self.below(states.len()));
            reading.state = self.merge(&reading.state, &next);
        }
        reading
    }

    /// Keeps the tokens of a read.
    fn remember(&mut self, is_stale: bool) {
        let reading = self.read(is_stale);
        let seen: Events = reading.events.iter().copied().collect();
        let present = self.left(&seen, |event| match event {
            Event::Remove { seen, .. } => Some(seen),
            Event::Add(_) => None,
        });
        let question = Question { key: Some(key("a")), ..Question::default() };
        let value = reading.state.value(&question);
        let text = |value: &Value, field| match value.field(field) {
            Some(Value::Text(text)) => text.clone(),
            other => panic!("not a token: {other:?}"),
        };
        let Some(Value::List(shown)) = value.field("items") else { panic!("no items: {value:?}") };
        for ((item, _), shown) in reading.state.members().zip(shown) {
            let (seen, present) = (self.of(item, &seen), self.of(item, &present));
            let token = text(shown, "seen");
            self.memories.push(Memory { item: Some(item.clone()), token, seen, present });
        }
        let token = text(&value, "context");
        self.memories.push(Memory { item: None, token, seen, present });
    }

    /// Folds the shards of dead mutators up to a fence.
    fn fold(&mut self) {
        let before = self.tallies.last().expect("the empty one").fence;
        let most = usize::try_from(self.now - before).expect("a fence is in the past");
        let fence = before + i64::try_from(self.below(most + 1)).expect("small");
        let mut tally = self.tallies.last().expect("the empty one").clone();
        for shard in &self.shards {
            if before < shard.expires_at && shard.expires_at <= fence {
                let (state, _) = shard.versions.last().expect("the empty one");
                tally.state = self.merge(&tally.state, state);
                tally.events.extend(&shard.events);
            }
        }
        self.settle(&mut tally.state, fence);
        tally.fence = fence;
        // A state in which covered tombstones are kept would not decode, so there would be no bytes to
        // compare.
        if self.variant == Variant::Shipped {
            tally.state = stored(&tally.state);
        }
        self.tallies.push(tally);
    }

    /// A complete read has the reference's items. The read of a stale replica may lack a remove that its own
    /// removes rely on, so what a token's reader had seen and what it still had are bounds.
    fn check(&mut self) -> Result<(), Violation> {
        for is_stale in [false, true] {
            let reading = self.read(is_stale);
            let least = self.left(&reading.events, |event| match event {
                Event::Remove { seen, .. } => Some(seen),
                Event::Add(_) => None,
            });
            let most = self.left(&reading.events, |event| match event {
                Event::Remove { present, .. } => Some(present),
                Event::Add(_) => None,
            });
            let items = |adds: &Events| -> BTreeSet<&Item> {
                let item = |at: &usize| match &self.events[*at] {
                    Event::Add(item) => item,
                    Event::Remove { .. } => unreachable!("only adds are left"),
                };
                adds.iter().map(item).collect()
            };
            let (least, most) = (items(&least), items(&most));
            assert!(is_stale || least == most, "the reference contradicts itself");
            let members = reading.state.members().map(|(item, _)| item).collect();
            if !(least.is_subset(&members) && most.is_superset(&members)) {
                return Err(Violation::Value);
            }
        }
        self.check_zombie()
    }

    /// Not even merging an older tally or a folded shard, old or new, would change the tally.
    fn check_zombie(&mut self) -> Result<(), Violation> {
        let tally = self.tallies.last().expect("the empty one").clone();
        let folded: Vec<usize> = (0..self.shards.len())
            .filter(|&at| self.shards[at].expires_at <= tally.fence)
            .collect();
        if folded.is_empty() || self.variant != Variant::Shipped {
            return Ok(());
        }
        let at = folded[self.below(folded.len())];
        let version = self.below(self.shards[at].versions.len());
        let older = self.below(self.tallies.len());
        for known in [&self.shards[at].versions[version].0, &self.tallies[older].state] {
            let both_ways = [merged(&tally.state, known), merged(known, &tally.state)];
            if both_ways.iter().any(|both| *both != tally.state) {
                return Err(Violation::Zombie);
            }
        }
        Ok(())
    }

    /// The chain of folds, one fold of everything, and one mutator that took every op give the same bytes.
    fn check_bytes(&self) -> Result<(), Violation> {
        let tally = self.tallies.last().expect("the empty one");
        let (mut at_once, mut by_one) = (OrSet::default(), OrSet::default());
        for shard in self.shards.iter().filter(|shard| shard.expires_at <= tally.fence) {
            let (state, _) = shard.versions.last().expect("the empty one");
            at_once = self.merge(&at_once, state);
            for op in &shard.ops {
                by_one.apply(op).expect("it fits");
            }
        }
        self.settle(&mut at_once, tally.fence);
        self.settle(&mut by_one, tally.fence);
        let wanted = bytes(&tally.state);
        let is_same = bytes(&at_once) == wanted && bytes(&by_one) == wanted;
        if is_same { Ok(()) } else { Err(Violation::Bytes) }
    }
}

fn play(variant: Variant, seed: u64) -> Result<(), Violation> {
    let mut world = World::new(variant, seed);
    for _ in 0..ACTIONS {
        world.act()?;
    }
    world.fold();
    world.check()?;
    world.check_bytes()
}

/// The first schedule, from 1, in which this variant commits this violation.
fn caught(variant: Variant, by: &Violation) -> Option<u64> {
    (1..=SCHEDULES).find(|&seed| play(variant, seed).as_ref() == Err(by))
}

#[test]
fn no_schedule_gives_a_wrong_value_or_other_bytes() {
    let schedules = std::env::var("ORSET_SCHEDULES").ok();
    let schedules = schedules.map_or(SCHEDULES, |number| number.parse().expect("a number"));
    for seed in 1..=schedules {
        assert_eq!(play(Variant::Shipped, seed), Ok(()), "schedule {seed}");
    }
}

#[test]
fn the_schedules_catch_a_compaction_that_is_off_by_five() {
    let caught = caught(Variant::OffByFive, &Violation::Value);
    println!("caught by a value in schedule {caught:?}");
    assert!(caught.is_some());
}

#[test]
fn the_schedules_catch_a_merge_without_subsumption() {
    let caught = caught(Variant::Unsubsumed, &Violation::Bytes);
    println!("caught by bytes in schedule {caught:?}");
    assert!(caught.is_some());
}
