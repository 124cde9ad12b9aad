//! Audited keys: keys whose updates can be checked one by one.
//!
//! Each update of an audited key adds a power of eight that no other update of that key adds. So the
//! value of a counter, written in base eight, has one digit per update. The digit is compared with
//! the outcome that the client got: 0 for an acknowledged update is a loss, 2 or more is a double
//! count, and 1 or more for an update that was refused or never sent is a phantom. The digits alone
//! show which of the three happened, and no unknown update can hide another. For each audited counter
//! there is an audited set, and the same requests add the same numbers to it as items. So a second
//! kind of data meets the same faults, and the same rules say which items it must have.
//!
//! Except for a lock, this module is pure.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};

use serde::Serialize;

use crate::checker::Outcome;
use crate::locked::locked;
use crate::workload::{Key, Kind};

/// Updates of one key. The greatest weight is 8^19 = 2^57, which is within the limit of a request.
pub(super) const DIGITS: usize = 20;
/// Bits of a digit. An update that was counted up to seven times stays within its digit.
const DIGIT_BITS: usize = 3;
/// Keys that get updates in turn. With twenty updates per second, each key gets one every five seconds
/// and is used for 100 s. So a shard takes several updates, and a key gets several shards.
const IN_TURN: usize = 100;
/// Groups that the keys are spread over.
const GROUPS: usize = 16;

/// The audited keys of a kind, and what clients know about their updates.
#[derive(Debug)]
pub(crate) struct AuditedKeys {
    kind: Kind,
    group: String,
    /// The n-th entry belongs to the n-th update.
    known: Mutex<Vec<Known>>,
}

/// What clients know about one update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It was never sent.
    Unsent,
    /// It was sent and has no outcome yet.
    InFlight,
    /// It has this outcome.
    Outcome(Outcome),
}

/// The kind of an audited key, and the number of an update or of a key.
type Id = (Kind, usize);

/// The wrong updates that values have shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Wrongs {
    /// Updates that were acknowledged but are not in the value.
    pub lost: BTreeSet<Id>,
    /// Updates that are in the value more than once.
    pub doubled: BTreeSet<Id>,
    /// Updates that were refused or never sent but are in the value.
    pub phantom: BTreeSet<Id>,
    /// Keys whose values differ between pods although no update is in doubt, and keys with a value
    /// that no set of updates gives.
    pub unexplained: BTreeSet<Id>,
}

impl AuditedKeys {
    /// Audited keys of a kind. The names of their groups begin with `group`.
    pub(super) fn new(kind: Kind, group: &str) -> Self {
        Self { kind, group: format!("{group}-audited"), known: Mutex::default() }
    }

    /// Records that the next update is about to be sent, and returns its number.
    pub(super) fn begin(&self) -> usize {
        let mut updates = self.locked();
        updates.push(Known::InFlight);
        updates.len() - 1
    }

    /// Records the outcome of an update.
    pub(super) fn finish(&self, number: usize, outcome: Outcome) {
        self.locked()[number] = Known::Outcome(outcome);
    }

    /// The key of an update, and the number that the update adds.
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
        let (group, name) = (format!("{}-{}", self.group, index % GROUPS), format!("a{index}"));
        Key { kind: self.kind, group, name }
    }

    /// The number of updates that were begun.
    pub(super) fn updates(&self) -> usize {
        self.locked().len()
    }

    /// The number of updates that were acknowledged.
    pub(super) fn acked(&self) -> u64 {
        let is_acked = |known: &&Known| **known == Known::Outcome(Outcome::Acked);
        self.locked().iter().filter(is_acked).count() as u64
    }

    /// The number of keys that may hold an update.
    pub(super) fn len(&self) -> usize {
        let per_turn = IN_TURN * DIGITS;
        let updates = self.updates();
        updates / per_turn * IN_TURN + IN_TURN.min(updates % per_turn)
    }

    /// What is known about the updates of a key now.
    pub(super) fn known(&self, key: usize) -> [Known; DIGITS] {
        let updates = self.locked();
        let of = |digit| updates.get(number(key, digit)).copied();
        std::array::from_fn(|digit| of(digit).unwrap_or(Known::Unsent))
    }

    /// Judges a value of a key, given what was known before the read began and after it ended.
    pub(super) fn judge(
        &self,
        key: usize,
        value: i128,
        before: &[Known; DIGITS],
        after: &[Known; DIGITS],
    ) -> Wrongs {
        let mut wrongs = Wrongs::default();
        if !(0..1_i128 << (DIGIT_BITS * DIGITS)).contains(&value) {
            wrongs.unexplained.insert((self.kind, key));
            return wrongs;
        }
        for digit in 0..DIGITS {
            let counted = value >> (DIGIT_BITS * digit) & ((1 << DIGIT_BITS) - 1);
            let update = (self.kind, number(key, digit));
            let is_refused = after[digit] == Known::Outcome(Outcome::Refused);
            let _ = match counted {
                0 if before[digit] == Known::Outcome(Outcome::Acked) => wrongs.lost.insert(update),
                0 => false,
                _ if is_refused || after[digit] == Known::Unsent => wrongs.phantom.insert(update),
                1 => false,
                _ => wrongs.doubled.insert(update),
            };
        }
        wrongs
    }

    /// The wrong key when pods still differ although no update is in doubt.
    pub(super) fn differ(&self, key: usize) -> Wrongs {
        Wrongs { unexplained: BTreeSet::from([(self.kind, key)]), ..Wrongs::default() }
    }

    fn locked(&self) -> MutexGuard<'_, Vec<Known>> {
        locked(&self.known)
    }
}

/// The key and the digit of an update. The keys of a turn take one update each, then the next.
fn place(number: usize) -> (usize, usize) {
    let (turn, rest) = (number / (IN_TURN * DIGITS), number % (IN_TURN * DIGITS));
    (turn * IN_TURN + rest % IN_TURN, rest / IN_TURN)
}

/// The number of the update that has this digit of this key.
fn number(key: usize, digit: usize) -> usize {
    let (turn, rest) = (key / IN_TURN, key % IN_TURN);
    turn * IN_TURN * DIGITS + digit * IN_TURN + rest
}

impl Wrongs {
    /// The number of wrong updates and keys.
    pub(super) fn count(&self) -> usize {
        self.lost.len() + self.doubled.len() + self.phantom.len() + self.unexplained.len()
    }

    /// Adds the wrong updates of another reading. Each update is counted once.
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

    fn counters() -> AuditedKeys {
        AuditedKeys::new(Kind::Counter, "g")
    }

    /// Audited keys. The first updates of key 0 have these outcomes.
    fn audited(outcomes: &[Outcome]) -> AuditedKeys {
        let keys = counters();
        for outcome in outcomes {
            let number = keys.begin();
            assert_eq!(place(number).0, 0);
            keys.finish(number, *outcome);
            // The other keys of the turn.
            for _ in 1..IN_TURN {
                keys.begin();
            }
        }
        keys
    }

    fn judged(outcomes: &[Outcome], value: i128) -> Wrongs {
        let keys = audited(outcomes);
        let known = keys.known(0);
        keys.judge(0, value, &known, &known)
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
        let keys = counters();
        for begun in 0..2 * IN_TURN * DIGITS + 7 {
            assert_eq!(keys.len(), (0..begun).map(|n| place(n).0 + 1).max().unwrap_or(0));
            keys.begin();
        }
    }

    #[test]
    fn lost_doubled_and_phantom_are_told_apart() {
        use Outcome::{Acked, Refused, Unknown};
        let outcomes = [Acked, Acked, Refused, Unknown];
        for right in [0o0011, 0o1011] {
            assert_eq!(judged(&outcomes, right), Wrongs::default(), "{right:o}");
        }
        let only = |update: usize| BTreeSet::from([(Kind::Counter, update * IN_TURN)]);
        assert_eq!(judged(&outcomes, 0o0010), Wrongs { lost: only(0), ..Wrongs::default() });
        assert_eq!(judged(&outcomes, 0o0021), Wrongs { doubled: only(1), ..Wrongs::default() });
        assert_eq!(judged(&outcomes, 0o2011), Wrongs { doubled: only(3), ..Wrongs::default() });
        assert_eq!(judged(&outcomes, 0o0111), Wrongs { phantom: only(2), ..Wrongs::default() });
        assert_eq!(judged(&outcomes, 0o10011), Wrongs { phantom: only(4), ..Wrongs::default() });
        for value in [-1, 1 << 60] {
            assert_eq!(judged(&outcomes, value).unexplained, BTreeSet::from([(Kind::Counter, 0)]));
        }
        // A loss and a double would cancel out in a sum. Here they do not.
        let both = judged(&outcomes, 0o0020);
        assert_eq!((both.lost, both.doubled), (only(0), only(1)));
    }

    #[test]
    fn what_is_in_flight_may_be_counted_or_not() {
        let keys = counters();
        let unsent = keys.known(0);
        let number = keys.begin();
        let begun = keys.known(0);
        keys.finish(number, Outcome::Acked);
        let acked = keys.known(0);
        for value in [0, 1] {
            assert_eq!(keys.judge(0, value, &unsent, &begun), Wrongs::default());
            assert_eq!(keys.judge(0, value, &begun, &acked), Wrongs::default());
        }
        let wrongs = keys.judge(0, 0, &acked, &acked);
        assert_eq!(wrongs.lost, BTreeSet::from([(Kind::Counter, 0)]));
    }
}
