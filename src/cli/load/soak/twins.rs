//! Twins: keys in which every single update can be told from every other.
//!
//! An update of a twin adds a power of eight that no other update of that key adds. So the value of
//! a counter, written in base eight, has one digit for each update, next to an exact list of what
//! clients were told: 0 where it was acknowledged is a loss, 2 or more a double count, 1 where it was
//! refused or never sent a phantom. No other keys are needed to say which of the three it was, and no
//! unknown update can hide another. Each has a set as its twin, to which the same numbers are added
//! in the same requests: another kind of data under the same faults, whose items have to be there
//! by the same rules.
//!
//! This module is pure, but for its lock.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use super::super::checker::Outcome;
use super::super::workload::{Key, Kind};

/// Updates of one key. Its greatest weight is 8^19 = 2^57, as one request may add.
pub(super) const DIGITS: usize = 20;
/// Bits of a digit: an update that counts up to seven times stays within its own.
const DIGIT_BITS: usize = 3;
/// Keys that are updated in turn. With twenty updates a second, each gets one every five seconds
/// and is used for 100 s: a shard takes several, and there is more than one generation of them.
const IN_TURN: usize = 100;
/// Groups over which the keys are spread.
const GROUPS: usize = 16;

/// What clients know about all twins of a kind: the n-th entry is the n-th update.
#[derive(Debug)]
pub(in super::super) struct Twins {
    kind: Kind,
    group: String,
    told: Mutex<Vec<Told>>,
}

/// What is known of one update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// It was never sent.
    Unsent,
    /// It has no outcome yet.
    InFlight,
    /// Its outcome.
    Outcome(Outcome),
}

/// The number of an update, or of a key, of the twins of a kind.
type Id = (Kind, usize);

/// Single updates that a value shows to be wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(in super::super) struct Wrongs {
    /// Acknowledged, but not in the value.
    pub lost: BTreeSet<Id>,
    /// More than once in the value.
    pub doubled: BTreeSet<Id>,
    /// Refused or never sent, but in the value.
    pub phantom: BTreeSet<Id>,
    /// Keys of which two pods gave values that differ although no update is in doubt, and keys with
    /// a value that no updates could give.
    pub unexplained: BTreeSet<Id>,
}

impl Twins {
    /// Twins of a kind, in groups whose names begin like this.
    pub(super) fn new(kind: Kind, group: &str) -> Self {
        Self { kind, group: format!("{group}-twins"), told: Mutex::default() }
    }

    /// The number of the next update, which is about to be sent.
    pub(super) fn begin(&self) -> usize {
        let mut told = self.told();
        told.push(Told::InFlight);
        told.len() - 1
    }

    /// Records the outcome of an update that was begun.
    pub(super) fn finish(&self, number: usize, outcome: Outcome) {
        self.told()[number] = Told::Outcome(outcome);
    }

    /// The key of an update, and what it adds.
    pub(super) fn op(&self, number: usize) -> (Key, u64) {
        let (key, digit) = place(number);
        (self.key(key), 1 << (DIGIT_BITS * digit))
    }

    /// All keys that may hold an update.
    pub(super) fn keys(&self) -> Vec<Key> {
        (0..self.len()).map(|index| self.key(index)).collect()
    }

    /// The key of this index.
    pub(super) fn key(&self, index: usize) -> Key {
        let (group, name) = (format!("{}-{}", self.group, index % GROUPS), format!("t{index}"));
        Key { kind: self.kind, group, name }
    }

    /// How many updates were begun.
    pub(super) fn updates(&self) -> usize {
        self.told().len()
    }

    /// How many were acknowledged.
    pub(super) fn acked(&self) -> u64 {
        let is_acked = |told: &&Told| **told == Told::Outcome(Outcome::Acked);
        self.told().iter().filter(is_acked).count() as u64
    }

    /// How many keys may hold an update.
    pub(super) fn len(&self) -> usize {
        let per_turn = IN_TURN * DIGITS;
        let updates = self.updates();
        updates / per_turn * IN_TURN + IN_TURN.min(updates % per_turn)
    }

    /// What is known about the updates of a key now.
    pub(super) fn known(&self, key: usize) -> [Told; DIGITS] {
        let told = self.told();
        std::array::from_fn(|digit| told.get(number(key, digit)).copied().unwrap_or(Told::Unsent))
    }

    /// Judges a value of a key, given what was known before its read began and after it ended.
    pub(super) fn judge(
        &self,
        key: usize,
        value: i128,
        before: &[Told; DIGITS],
        after: &[Told; DIGITS],
    ) -> Wrongs {
        let mut wrongs = Wrongs::default();
        if !(0..1_i128 << (DIGIT_BITS * DIGITS)).contains(&value) {
            wrongs.unexplained.insert((self.kind, key));
            return wrongs;
        }
        for digit in 0..DIGITS {
            let counted = value >> (DIGIT_BITS * digit) & ((1 << DIGIT_BITS) - 1);
            let update = (self.kind, number(key, digit));
            let is_refused = after[digit] == Told::Outcome(Outcome::Refused);
            let _ = match counted {
                0 if before[digit] == Told::Outcome(Outcome::Acked) => wrongs.lost.insert(update),
                0 => false,
                _ if is_refused || after[digit] == Told::Unsent => wrongs.phantom.insert(update),
                1 => false,
                _ => wrongs.doubled.insert(update),
            };
        }
        wrongs
    }

    /// What is wrong if pods still differ although no update is in doubt.
    pub(super) fn differ(&self, key: usize) -> Wrongs {
        Wrongs { unexplained: BTreeSet::from([(self.kind, key)]), ..Wrongs::default() }
    }

    fn told(&self) -> MutexGuard<'_, Vec<Told>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The key and the digit of an update: the keys of a turn take one after the other, then again.
fn place(number: usize) -> (usize, usize) {
    let (turn, rest) = (number / (IN_TURN * DIGITS), number % (IN_TURN * DIGITS));
    (turn * IN_TURN + rest % IN_TURN, rest / IN_TURN)
}

/// The update of a digit of a key.
fn number(key: usize, digit: usize) -> usize {
    let (turn, rest) = (key / IN_TURN, key % IN_TURN);
    turn * IN_TURN * DIGITS + digit * IN_TURN + rest
}

impl Wrongs {
    /// All of them.
    pub(super) fn count(&self) -> usize {
        self.lost.len() + self.doubled.len() + self.phantom.len() + self.unexplained.len()
    }

    /// Adds those of another reading; each update is counted once.
    pub(super) fn merge(&mut self, other: Self) {
        self.lost.extend(other.lost);
        self.doubled.extend(other.doubled);
        self.phantom.extend(other.phantom);
        self.unexplained.extend(other.unexplained);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters() -> Twins {
        Twins::new(Kind::Counter, "g")
    }

    /// Twins of which the first updates of key 0 had these outcomes.
    fn twins(outcomes: &[Outcome]) -> Twins {
        let twins = counters();
        for outcome in outcomes {
            let number = twins.begin();
            assert_eq!(place(number).0, 0);
            twins.finish(number, *outcome);
            // The other keys of the turn.
            for _ in 1..IN_TURN {
                twins.begin();
            }
        }
        twins
    }

    fn judged(outcomes: &[Outcome], value: i128) -> Wrongs {
        let twins = twins(outcomes);
        let known = twins.known(0);
        twins.judge(0, value, &known, &known)
    }

    #[test]
    fn every_update_has_a_digit_of_its_own() {
        let mut places: Vec<_> = (0..3 * IN_TURN * DIGITS).map(place).collect();
        for (update, (key, digit)) in places.iter().enumerate() {
            assert_eq!(number(*key, *digit), update);
            assert!(*digit < DIGITS);
        }
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 3 * IN_TURN * DIGITS);
        assert!(counters().op(IN_TURN * DIGITS - 1).1 < 1 << 60);
    }

    #[test]
    fn all_keys_with_updates_are_counted() {
        let twins = counters();
        for begun in 0..2 * IN_TURN * DIGITS + 7 {
            assert_eq!(twins.len(), (0..begun).map(|n| place(n).0 + 1).max().unwrap_or(0));
            twins.begin();
        }
    }

    #[test]
    fn lost_doubled_and_phantom_are_told_apart() {
        use Outcome::{Acked, Refused, Unknown};
        let told = [Acked, Acked, Refused, Unknown];
        for right in [0o0011, 0o1011] {
            assert_eq!(judged(&told, right), Wrongs::default(), "{right:o}");
        }
        let only = |update: usize| BTreeSet::from([(Kind::Counter, update * IN_TURN)]);
        assert_eq!(judged(&told, 0o0010), Wrongs { lost: only(0), ..Wrongs::default() });
        assert_eq!(judged(&told, 0o0021), Wrongs { doubled: only(1), ..Wrongs::default() });
        assert_eq!(judged(&told, 0o2011), Wrongs { doubled: only(3), ..Wrongs::default() });
        assert_eq!(judged(&told, 0o0111), Wrongs { phantom: only(2), ..Wrongs::default() });
        assert_eq!(judged(&told, 0o10011), Wrongs { phantom: only(4), ..Wrongs::default() });
        for value in [-1, 1 << 60] {
            assert_eq!(judged(&told, value).unexplained, BTreeSet::from([(Kind::Counter, 0)]));
        }
        // A loss and a double that cancel out in a sum do not here.
        let both = judged(&told, 0o0020);
        assert_eq!((both.lost, both.doubled), (only(0), only(1)));
    }

    #[test]
    fn what_is_in_flight_may_be_counted_or_not() {
        let twins = counters();
        let unsent = twins.known(0);
        let number = twins.begin();
        let begun = twins.known(0);
        twins.finish(number, Outcome::Acked);
        let acked = twins.known(0);
        for value in [0, 1] {
            assert_eq!(twins.judge(0, value, &unsent, &begun), Wrongs::default());
            assert_eq!(twins.judge(0, value, &begun, &acked), Wrongs::default());
        }
        let wrongs = twins.judge(0, 0, &acked, &acked);
        assert_eq!(wrongs.lost, BTreeSet::from([(Kind::Counter, 0)]));
    }
}
