//! Reading: rows become a value. Keeps invariants I6, I9 and I10.
//!
//! `value = tally ⊕ { shards with expires_at > fence }`, from one unpaged slice of the key, merged expiry by
//! expiry: first plain shards by mutator, then ops with ids, each id once. Shards and ids that a
//! reset ([`super::reset`]) cleared do not count.

use super::generation::{self, Generation, Remembered};
use super::row_reader::{RowError, RowReader};
use super::united::Counting;
use super::{Constants, Key, MutatorId, Phase, Row, Timestamp, WholeSlice};
use crate::crdt::State;
use crate::crdt::envelope::{self, Shard};
use crate::crdt::pack::United;

/// What a slice says about its key.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "each read makes one, and takes it apart at once")]
pub enum Answer {
    /// The key has no row.
    Absent,
    /// The key was forgotten or deleted, and nothing was added since. It has a grave with this fence, and is
    /// as absent as a key without rows.
    Grave(Timestamp, Option<Remembered>),
    /// The key's value and how it was made.
    Value(Reading),
    /// The slice started after a fence that its own tally has not reached. This replica is older than the
    /// cached fence, so rows may be missing. Read again from the oldest row.
    ReadAgain,
}

/// A key's merged state and how it was made.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// The merged state of all rows that count.
    pub state: State,
    /// The tally's fence; none without a tally.
    pub fence: Option<Timestamp>,
    /// The reset that the tally remembers.
    pub reset: Option<Remembered>,
    /// The tally takes no further shard, because it would grow beyond its limit.
    pub is_full: bool,
    /// Number of merged shards, without the tally.
    pub shards: usize,
    /// Merged shards that are [final](Phase::Final) by this clock, so a fold can take them.
    pub final_shards: usize,
    /// Ignored rows at or below the fence: they are included in the tally.
    pub zombies: usize,
    /// Ignored rows above the fence: a reset cleared them.
    pub cleared: usize,
    /// The ops with ids among the merged shards.
    pub united: United,
}

impl Reading {
    /// What the fence says about clocks; see [`generation::evidence`].
    #[must_use]
    pub fn evidence(&self, constants: &Constants) -> Option<Timestamp> {
        let generation = self.reset.as_ref().map(Remembered::generation);
        self.fence.map(|fence| generation::evidence(fence, generation, constants))
    }
}

/// Merges a key's rows.
///
/// # Errors
/// [`RowError`] if any row above the fence, or the tally, can't be decoded or merged.
pub fn assemble(
    key: &Key,
    slice: &WholeSlice,
    now: Timestamp,
    constants: &Constants,
) -> Result<Answer, RowError> {
    let reader = RowReader::of(key);
    let tally = slice.tally().map(|row| reader.tally(row)).transpose()?;
    let fence = tally.as_ref().map(|(fence, _)| *fence);
    // None < Some: no tally is older than any tally.
    if fence < slice.after() {
        return Ok(Answer::ReadAgain);
    }
    if slice.is_empty() {
        return Ok(Answer::Absent);
    }
    let state = tally.map_or_else(|| State::identity(key.kind), |(_, state)| state);
    let is_full = slice.has_full_tally();
    let (zombies, counted): (Vec<&Row>, Vec<&Row>) =
        slice.shards().partition(|row| Some(row.expires_at) <= fence);
    zombies.iter().try_for_each(|row| reader.check(row))?;
    let is_final = |row: &&&Row| Phase::of(row.expires_at, now, constants) == Phase::Final;
    let counting = Counting::of(slice.tally());
    let mut reading = Reading {
        state,
        fence,
        reset: None,
        is_full,
        shards: 0,
        final_shards: counted.iter().filter(is_final).count(),
        zombies: zombies.len(),
        cleared: counted.len(),
        united: United::default(),
    };
    for of_expiry in counted.chunk_by(|a, b| a.expires_at == b.expires_at) {
        let counts = counting.merge(reader, &mut reading.state, of_expiry, None)?;
        reading.united += counts.united;
        reading.shards += counts.shards;
        reading.cleared -= counts.shards;
    }
    reading.reset = counting.into_reset();
    match fence.filter(|_| slice.has_grave() && reading.shards == 0) {
        Some(fence) => Ok(Answer::Grave(fence, reading.reset)),
        None => Ok(Answer::Value(reading)),
    }
}

/// One shard as it is stored, for inspection.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardView {
    /// The row's expiry.
    pub expires_at: Timestamp,
    /// The row's mutator.
    pub mutator_id: MutatorId,
    /// Its phase by the clock of this look.
    pub phase: Phase,
    /// At or below the fence: included in the tally, and ignored.
    pub is_zombie: bool,
    /// Above the fence, but cleared by a reset: ignored.
    pub is_cleared: bool,
    /// The generation of the reset after which its mutator was born, if it knew of one.
    pub stamp: Option<Generation>,
    /// The merge of what it holds, or why it can't be decoded. Other rows can hold the same ops with ids.
    pub state: Result<State, RowError>,
    /// Number of ops with ids in it; none if it is no pack.
    pub ids: Option<usize>,
}

/// The tally's fence and state, or why it can't be decoded; none if there is no tally.
#[must_use]
pub fn tally(key: &Key, slice: &WholeSlice) -> Option<Result<(Timestamp, State), RowError>> {
    slice.tally().map(|row| RowReader::of(key).tally(row))
}

/// All shards of a slice, in canonical order.
#[must_use]
pub fn shards(
    key: &Key,
    slice: &WholeSlice,
    now: Timestamp,
    constants: &Constants,
) -> Vec<ShardView> {
    let fence = tally(key, slice).and_then(Result::ok).map(|(fence, _)| fence);
    let reader = RowReader::of(key);
    let counting = Counting::of(slice.tally());
    let view = |row: &Row| {
        let shard = reader.shard(row);
        let ids = match &shard {
            Ok(Shard::Pack(pack)) => Some(pack.entries.len()),
            _ => None,
        };
        let phase_of = if ids.is_some() { Phase::of_pack } else { Phase::of };
        let stamp = envelope::stamp(&row.state);
        let is_zombie = Some(row.expires_at) <= fence;
        let is_cleared = shard.is_ok_and(|shard| !counting.has(row, &shard));
        ShardView {
            expires_at: row.expires_at,
            mutator_id: row.mutator_id,
            phase: phase_of(row.expires_at, now, constants),
            is_zombie,
            is_cleared: is_cleared && !is_zombie,
            stamp,
            state: reader.state(row),
            ids,
        }
    };
    slice.shards().map(view).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crdt::envelope::KeySeal;
    use crate::crdt::{Counter, Kind};
    use crate::protocol::{Name, Overrides, Slice};
    use uuid::Uuid;

    fn key() -> Key {
        let name = |text| Name::new(text).expect("a name");
        Key { kind: Kind::Counter, group: name("g"), name: name("n") }
    }

    fn tally(fence: i64, total: i128) -> Row {
        let state = State::Counter(Counter::from_total(total));
        Row {
            expires_at: Timestamp::NEVER,
            mutator_id: MutatorId::TALLY,
            state: envelope::encode_tally(
                KeySeal::of(&key()),
                &state,
                Timestamp::from_micros(fence),
            ),
        }
    }

    fn shard(expires_at: i64, total: i128) -> Row {
        let state = State::Counter(Counter::from_total(total));
        let expires_at = Timestamp::from_micros(expires_at);
        let mutator_id = MutatorId::new(Uuid::from_u128(1));
        let seal = KeySeal::of(&key()).row(expires_at, mutator_id);
        Row { expires_at, mutator_id, state: envelope::encode_shard(seal, &state, 1) }
    }

    fn read(rows: Vec<Row>, after: Option<i64>) -> Result<Answer, RowError> {
        let slice = Slice::new(rows, after.map(Timestamp::from_micros), 100).whole().unwrap();
        let constants = Constants::resolve(Overrides::default()).unwrap();
        let now = Timestamp::from_micros(1000).plus(constants.cutoff());
        assemble(&key(), &slice, now, &constants)
    }

    fn value(rows: Vec<Row>, after: Option<i64>) -> Reading {
        match read(rows, after) {
            Ok(Answer::Value(reading)) => reading,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_value_is_the_tally_and_every_shard_above_its_fence() {
        let rows =
            vec![tally(500, 100), shard(2000, 1), shard(900, 2), shard(800, 8), shard(500, 4)];
        let reading = value(rows, None);
        assert_eq!(reading.state, State::Counter(Counter::from_total(111)));
        assert_eq!((reading.shards, reading.final_shards, reading.zombies), (3, 2, 1));
        assert_eq!(reading.fence, Some(Timestamp::from_micros(500)));
    }

    /// The ancestor's defect 1: after the first fold every later read of the key failed.
    #[test]
    fn regression_1_shards_alone_and_a_tally_alone_are_values() {
        assert_eq!(value(vec![shard(2000, 7)], None).fence, None);
        assert_eq!(value(vec![tally(500, 7)], None).state, State::Counter(Counter::from_total(7)));
        assert_eq!(read(vec![], None), Ok(Answer::Absent));
    }

    #[test]
    fn a_grave_is_absent_until_a_row_above_it_counts() {
        let at = Timestamp::from_micros;
        let mut grave = tally(500, 0);
        grave.state = envelope::encode_grave(KeySeal::of(&key()), Kind::Counter, at(500), None);
        for rows in [vec![grave.clone()], vec![grave.clone(), shard(500, 4)]] {
            assert_eq!(read(rows, None), Ok(Answer::Grave(at(500), None)));
        }
        assert_eq!(read(vec![grave.clone()], Some(501)), Ok(Answer::ReadAgain));
        let reading = value(vec![grave.clone(), shard(900, 7), shard(500, 4)], None);
        assert_eq!(reading.state, State::Counter(Counter::from_total(7)));
        assert_eq!((reading.fence, reading.zombies), (Some(at(500)), 1));
        let mut bad = shard(400, 4);
        bad.state[3] ^= 1;
        assert!(read(vec![grave, bad], None).is_err(), "a damaged row could be one that counts");
    }

    #[test]
    fn an_answer_older_than_the_cached_fence_is_not_believed() {
        assert_eq!(read(vec![], Some(500)), Ok(Answer::ReadAgain));
        assert_eq!(read(vec![shard(900, 1)], Some(500)), Ok(Answer::ReadAgain));
        assert_eq!(read(vec![tally(499, 1)], Some(500)), Ok(Answer::ReadAgain));
        assert_eq!(value(vec![tally(501, 1)], Some(500)).shards, 0);
    }

    #[test]
    fn every_row_is_shown_with_its_place_even_if_it_is_undecodable() {
        let mut bad = shard(900, 1);
        bad.state[3] ^= 1;
        let rows = vec![tally(500, 100), shard(2000, 2), bad, shard(500, 4), shard(400, 8)];
        let slice = Slice::new(rows, None, 100).whole().expect("whole");
        let total = |total| State::Counter(Counter::from_total(total));
        let fence = Timestamp::from_micros(500);
        assert_eq!(super::tally(&key(), &slice), Some(Ok((fence, total(100)))));
        let constants = Constants::resolve(Overrides::default()).expect("defaults");
        let now = Timestamp::from_micros(1000).plus(constants.cutoff());
        let shown: Vec<_> = shards(&key(), &slice, now, &constants)
            .into_iter()
            .map(|view| (view.expires_at.as_micros(), view.phase, view.is_zombie, view.state.ok()))
            .collect();
        let expected = [
            (400, Phase::Final, true, Some(total(8))),
            (500, Phase::Final, true, Some(total(4))),
            (900, Phase::Final, false, None),
            (2000, Phase::Expired, false, Some(total(2))),
        ];
        assert_eq!(shown, expected);
        let without = Slice::new(vec![shard(900, 1)], None, 100).whole().expect("whole");
        assert_eq!(super::tally(&key(), &without), None);
    }

    #[test]
    fn an_undecodable_row_is_an_error_that_names_it() {
        let mut bad = shard(2000, 1);
        bad.state[3] ^= 1;
        let error =
            read(vec![tally(500, 1), bad.clone()], None).expect_err("undecodable").to_string();
        assert!(error.contains("expires_at 2000") && error.contains("checksum"), "{error}");
        let mut moved = shard(2000, 1);
        moved.expires_at = Timestamp::from_micros(400);
        assert!(read(vec![tally(500, 1), moved], None).is_err(), "it is not a zombie");
        assert_eq!(value(vec![tally(500, 1), shard(400, 1)], None).zombies, 1);
    }
}
