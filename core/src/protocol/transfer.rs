//! Moves a key's whole state to another place: an export, or counts of another system.
//!
//! A parcel is the one write of its own mutator, whose id, expiry, timestamp and bytes are fixed when it is
//! packed. So it can be delivered any number of times, by anyone, and counts once (invariants I1, I2 and I6):
//! before its expiry it is the same row each time, which folds treat like any other, and after its expiry no
//! delivery is acknowledged (I3, I4). For the same reason everything in it counts as added by that mutator.
//! What other mutators added or removed elsewhere has no meaning at the key where it arrives, and a fence
//! from elsewhere would remove what is already there.
//!
//! **Kinds that forget.** Their rows hold no op older than [`OP_AGE_MAX`] before the expiry. Otherwise a fold
//! could have dropped the removal that such an op lost against, and the item would come back. A state can be
//! years old, so a parcel raises its older adds to that time. That time is before the packing, because a
//! parcel of such a kind is valid for at most [`FORGETTING_VALID_MAX`]. Raising changes no value at a key
//! where nothing was written by then. At the place of arrival, everything written since the day before the
//! packing still wins. An item that was removed there earlier, and is in the parcel, comes back into the set.
//! Without the raising, it would come back only where folds have forgotten the removal.

use std::time::Duration;

use thiserror::Error;

use super::{Key, MutatorId, Now, OP_AGE_MAX, ShardWrite, Timestamp};
use crate::crdt::envelope::{self, KeySeal};
use crate::crdt::{DecodeError, Dot, State};

/// The longest time that a parcel of a kind that forgets is valid.
pub const FORGETTING_VALID_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

const _: () = assert!(FORGETTING_VALID_MAX.as_secs() < OP_AGE_MAX.as_secs());

/// A parcel; see the [module documentation](self).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parcel {
    write: ShardWrite,
    /// The state as it travels. It is sealed for its row but not for a key, so a line can be imported under
    /// another name.
    packed: Vec<u8>,
    latest: Option<Timestamp>,
}

/// Why something is not a valid parcel.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ParcelError {
    /// Its state is damaged or from a newer release.
    #[error("its state can't be decoded: {0}")]
    State(#[from] DecodeError),
    /// Its times are impossible for a mutator.
    #[error("its times are invalid: the write must be after 1970 and the expiry after the write")]
    Impossible,
    /// Rows are ordered by their ids, and stores agree only on the order of random ids.
    #[error("its id {0} is not a random UUID (version 4); export it again")]
    Id(MutatorId),
    /// It could bring back items that were removed after it was packed.
    #[error("a parcel of this kind is valid for at most 7 days; export it again")]
    TooLong,
    /// Its state mentions other mutators than its own.
    #[error("its state was not packed for an import; export it again")]
    NotPacked,
}

impl Parcel {
    /// Packs a state for delivery within `valid_for`, which is at most [`FORGETTING_VALID_MAX`] for a kind
    /// that forgets. Each parcel needs a random id that was never used.
    ///
    /// # Panics
    /// If the id is not random.
    #[must_use]
    pub fn pack(
        key: Key,
        id: MutatorId,
        state: &State,
        now: Timestamp,
        valid_for: Duration,
    ) -> Parcel {
        let longest = if key.kind.forgets() { FORGETTING_VALID_MAX } else { Duration::MAX };
        let expires_at = now.plus(valid_for.min(longest));
        let mut state = state.clone();
        state.attribute_to(Parcel::dot(id, expires_at));
        let parcel = Parcel::check(key, id, expires_at, now, &state);
        parcel.expect("invariant: a random id, and an expiry after the packing")
    }

    /// A parcel that arrives with the bytes of its [`Parcel::packed`] state.
    ///
    /// # Errors
    /// [`ParcelError`] if no key can take it.
    pub fn arrive(
        key: Key,
        id: MutatorId,
        expires_at: Timestamp,
        written_at: Timestamp,
        packed: &[u8],
    ) -> Result<Parcel, ParcelError> {
        if !id.is_random() {
            return Err(ParcelError::Id(id));
        }
        let seal = KeySeal::NOWHERE.row(expires_at, id);
        let state = envelope::decode_state(seal, key.kind, packed)?;
        let mut attributed = state.clone();
        attributed.attribute_to(Parcel::dot(id, expires_at));
        // Parcels of earlier releases did not raise times.
        if attributed != state && !key.kind.forgets() {
            return Err(ParcelError::NotPacked);
        }
        Parcel::check(key, id, expires_at, written_at, &attributed)
    }

    /// The dot of everything in the parcel.
    fn dot(mutator_id: MutatorId, expires_at: Timestamp) -> Dot {
        Dot { expires_at, mutator_id, seq: 1 }
    }

    fn check(
        key: Key,
        id: MutatorId,
        expires_at: Timestamp,
        written_at: Timestamp,
        state: &State,
    ) -> Result<Parcel, ParcelError> {
        if !id.is_random() {
            return Err(ParcelError::Id(id));
        }
        let is_possible = expires_at < Timestamp::NEVER
            && Timestamp::from_micros(0) < written_at
            && written_at < expires_at;
        if !is_possible {
            return Err(ParcelError::Impossible);
        }
        if key.kind.forgets() && expires_at > written_at.plus(FORGETTING_VALID_MAX) {
            return Err(ParcelError::TooLong);
        }
        let packed = envelope::encode_shard(KeySeal::NOWHERE.row(expires_at, id), state, 1);
        let bytes = envelope::encode_shard(KeySeal::of(&key).row(expires_at, id), state, 1);
        let write = ShardWrite::fixed(key, expires_at, id, written_at, bytes);
        Ok(Parcel { write, packed, latest: state.times().into_iter().max() })
    }

    /// The state as an export carries it.
    #[must_use]
    pub fn packed(&self) -> &[u8] {
        &self.packed
    }

    /// The write that delivers it, always the same.
    #[must_use]
    pub fn write(&self) -> &ShardWrite {
        &self.write
    }

    /// The latest time of a last writer in it; none for kinds without times.
    #[must_use]
    pub fn latest(&self) -> Option<Timestamp> {
        self.latest
    }

    /// Whether a delivery acknowledged before this time counts: its row can't have been folded without it.
    #[must_use]
    pub fn ack_stands(&self, now: Now) -> bool {
        now.wall < self.write.expires_at()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crdt::{Counter, Kind, Op};
    use crate::protocol::Name;
    use uuid::{Builder, Uuid};

    fn key() -> Key {
        let name = |text| Name::new(text).expect("a name");
        Key { kind: Kind::Counter, group: name("g"), name: name("n") }
    }

    fn random_id(of: u128) -> MutatorId {
        MutatorId::new(Builder::from_random_bytes(of.to_be_bytes()).into_uuid())
    }

    const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    #[test]
    fn a_parcel_arrives_as_it_was_packed() {
        let (id, state) = (random_id(7), State::Counter(Counter::from_total(-5)));
        let day = Duration::from_secs(86_400);
        let packed = Parcel::pack(key(), id, &state, NOW, day);
        let write = packed.write();
        let (expires_at, at, bytes) = (write.expires_at(), write.timestamp(), packed.packed());
        assert_eq!(Parcel::arrive(key(), id, expires_at, at, bytes), Ok(packed.clone()));
        let renamed = Key { name: Name::new("m").expect("a name"), ..key() };
        let moved = Parcel::arrive(renamed.clone(), id, expires_at, at, bytes).expect("a parcel");
        let seal = KeySeal::of(&renamed).row(expires_at, id);
        assert_eq!(envelope::decode_state(seal, Kind::Counter, moved.write().state()), Ok(state));
        assert_ne!(moved.write().state(), write.state(), "it is sealed for where it went");
        let at = |wall| Now { wall, boot: Duration::ZERO };
        assert!(packed.ack_stands(at(NOW)) && write.may_be_sent(NOW));
        assert!(!packed.ack_stands(at(NOW.plus(day))) && !write.may_be_sent(NOW.plus(day)));
    }

    /// What a fence at the place of departure would remove, and what folds at the place of arrival settle.
    #[test]
    fn a_set_arrives_whole_removes_nothing_and_outlasts_folds() {
        let time = Timestamp::from_micros;
        let add = |state: &mut State, item: &str, id, expires_at| {
            let mut op = Kind::OrSet.read_bare_op(item).expect("an op");
            let mutator_id = MutatorId::new(Uuid::from_u128(id));
            Op::assign(&mut op, &mut || Dot { expires_at: time(expires_at), mutator_id, seq: 1 });
            state.apply(&op).expect("applied");
        };
        let items = |state: &State| state.value(&crate::crdt::Question::default()).to_string();
        let mut here = State::identity(Kind::OrSet);
        add(&mut here, "folded", 1, 100);
        here.settle(time(150));
        add(&mut here, "young", 2, 300);
        let key = Key { kind: Kind::OrSet, ..key() };
        let (id, span) = (random_id(3), Duration::from_micros(800));
        let parcel = Parcel::pack(key.clone(), id, &here, time(200), span);
        let write = parcel.write();
        let nowhere = KeySeal::NOWHERE.row(write.expires_at(), id);
        let bytes = parcel.packed();
        let arrived = envelope::decode_state(nowhere, Kind::OrSet, bytes).expect("a state");

        let mut there = State::identity(Kind::OrSet);
        add(&mut there, "there", 4, 90);
        there.settle(time(140));
        for fence in [140, 350, 999, 1_000, 2_000] {
            there.merge(&arrived).expect("merged");
            there.settle(time(fence));
            assert_eq!(
                items(&there),
                r#"{"size":3,"items":["folded","there","young"]}"#,
                "{fence}"
            );
        }
        let raw = envelope::encode_shard(nowhere, &here, 1);
        let unpacked = Parcel::arrive(key.clone(), id, write.expires_at(), time(200), &raw);
        assert_eq!(unpacked, Err(ParcelError::NotPacked));
        assert!(Parcel::arrive(key, id, write.expires_at(), time(200), bytes).is_ok());
    }

    /// An add of last year would come back wherever folds have forgotten the removal that beat it.
    #[test]
    fn adds_too_old_for_the_row_are_raised_in_any_parcel() {
        let day = Duration::from_secs(86_400);
        let key = Key { kind: Kind::LwwSet, ..key() };
        let change = |state: &mut State, op: &str, item: &str, time| {
            let json = format!(r#"{{"op":"{op}","item":"{item}"}}"#);
            let json = serde_json::from_str(&json).expect("JSON");
            let mut op = Kind::LwwSet.parse_op(&json).expect("an op");
            op.stamp(time);
            state.apply(&op).expect("applied");
        };
        let mut here = State::identity(Kind::LwwSet);
        for (op, item, age) in [("add", "a", 300), ("add", "b", 1), ("remove", "c", 300)] {
            change(&mut here, op, item, NOW.minus(age * day));
        }
        let (id, valid_for) = (random_id(7), 30 * day);
        let parcel = Parcel::pack(key.clone(), id, &here, NOW, valid_for);
        let write = parcel.write();
        let expires_at = write.expires_at();
        assert_eq!(expires_at, NOW.plus(7 * day), "at most the allowed time");
        let times = [expires_at.minus(OP_AGE_MAX), NOW.minus(day), NOW.minus(300 * day)];
        let seal = KeySeal::of(&key).row(expires_at, id);
        let packed = envelope::decode_state(seal, Kind::LwwSet, write.state()).expect("a state");
        assert_eq!(packed.times(), times, "removals keep their times");

        let nowhere = KeySeal::NOWHERE.row(expires_at, id);
        let raw = envelope::encode_shard(nowhere, &here, 1);
        let arrive = |at, bytes: &[u8]| Parcel::arrive(key.clone(), id, expires_at, at, bytes);
        assert_eq!(arrive(NOW, parcel.packed()), Ok(parcel.clone()));
        assert_eq!(arrive(NOW, &raw), Ok(parcel.clone()), "as an earlier release packed it");
        assert_eq!(arrive(NOW.minus(day), &raw), Err(ParcelError::TooLong));

        // What was removed after the packing stays removed, whatever folds forget while the row is there.
        let (mut at_once, mut folded) = (packed, State::identity(Kind::LwwSet));
        for state in [&mut at_once, &mut folded] {
            change(state, "remove", "a", NOW);
        }
        folded.settle(expires_at.shifted(-1));
        let arrived = envelope::decode_state(seal, Kind::LwwSet, write.state()).expect("a state");
        folded.merge(&arrived).expect("merged");
        let question = crate::crdt::Question::default();
        assert_eq!(folded.value(&question), at_once.value(&question));
        assert_eq!(folded.value(&question).to_string(), r#"{"size":1,"items":["b"]}"#);
    }

    #[test]
    fn what_no_mutator_could_have_written_is_refused() {
        let (id, state) = (random_id(7), State::Counter(Counter::from_total(1)));
        let packed = |id, expires_at| {
            envelope::encode_shard(KeySeal::NOWHERE.row(expires_at, id), &state, 1)
        };
        let arrive =
            |id, expires_at, at, bytes: &[u8]| Parcel::arrive(key(), id, expires_at, at, bytes);
        let later = NOW.next();
        let good = packed(id, later);
        assert!(arrive(id, later, NOW, &good).is_ok());
        for (expires_at, at) in
            [(NOW, NOW), (Timestamp::NEVER, NOW), (later, Timestamp::from_micros(0)), (NOW, later)]
        {
            let refused = arrive(id, expires_at, at, &packed(id, expires_at));
            assert_eq!(refused, Err(ParcelError::Impossible));
        }
        for version in (0..16).filter(|version| *version != 4) {
            let id = MutatorId::new(Uuid::from_u128(7 | version << 76 | 0b10 << 62));
            let refused = arrive(id, later, NOW, &packed(id, later));
            assert_eq!(refused, Err(ParcelError::Id(id)), "version {version}");
        }
        let tally = envelope::encode_tally(KeySeal::NOWHERE, &state, NOW);
        let placed = envelope::encode_shard(KeySeal::of(&key()).row(later, id), &state, 1);
        for bytes in [&good[1..], &tally, &placed, b""] {
            assert!(matches!(arrive(id, later, NOW, bytes), Err(ParcelError::State(_))));
        }
        let other_row = arrive(id, later.next(), NOW, &good);
        assert!(matches!(other_row, Err(ParcelError::State(DecodeError::Checksum { .. }))));
    }
}
