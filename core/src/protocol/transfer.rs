//! A key's whole state on its way to another place: an export, or what another system counted.
//!
//! A parcel is the one write of a mutator of its own, whose id, expiry, timestamp and bytes are fixed when
//! it is packed. So it may be delivered any number of times, by anyone, and counts once (invariants I1, I2
//! and I6): before its expiry it is the same row each time, which folds treat like any other, and after it
//! no delivery is acknowledged (I3, I4). For the same reason all that it holds counts as added by that
//! mutator: what others added or removed elsewhere has no meaning at the key where it arrives, and a fence
//! of elsewhere would take away what is there.

use std::time::Duration;

use thiserror::Error;

use super::{Key, MutatorId, Now, ShardWrite, Timestamp};
use crate::crdt::{DecodeError, Dot, State, envelope};

/// See the [module documentation](self).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parcel {
    write: ShardWrite,
}

/// Why something is no parcel.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ParcelError {
    /// Its state is damaged, or of a newer release.
    #[error("its state can't be decoded: {0}")]
    State(#[from] DecodeError),
    /// Its times or its id can't be those of a mutator.
    #[error("its id or its times are none of a parcel's")]
    Impossible,
    /// Its state speaks of other mutators than its own.
    #[error("its state was not packed for an import")]
    NotPacked,
}

impl Parcel {
    /// Packs a state that may be delivered for a while. Each one needs an id that was never used.
    ///
    /// # Panics
    /// If the id is the tally's.
    #[must_use]
    pub fn pack(
        key: Key,
        id: MutatorId,
        state: &State,
        now: Timestamp,
        valid_for: Duration,
    ) -> Parcel {
        let expires_at = now.plus(valid_for);
        let mut state = state.clone();
        state.attribute_to(Parcel::dot(id, expires_at));
        let bytes = envelope::encode_shard(&state, 1);
        let parcel = Parcel::check(key, id, expires_at, now, bytes);
        parcel.expect("invariant: a fresh id, and an expiry behind the packing")
    }

    /// A parcel that arrives.
    ///
    /// # Errors
    /// [`ParcelError`] if it can't be delivered to any key.
    pub fn arrive(
        key: Key,
        id: MutatorId,
        expires_at: Timestamp,
        written_at: Timestamp,
        bytes: Vec<u8>,
    ) -> Result<Parcel, ParcelError> {
        let state = envelope::decode_shard(key.kind, &bytes)?;
        let mut packed = state.clone();
        packed.attribute_to(Parcel::dot(id, expires_at));
        if packed != state {
            return Err(ParcelError::NotPacked);
        }
        Parcel::check(key, id, expires_at, written_at, bytes).ok_or(ParcelError::Impossible)
    }

    /// Of all that it holds.
    fn dot(mutator_id: MutatorId, expires_at: Timestamp) -> Dot {
        Dot { expires_at, mutator_id, seq: 1 }
    }

    fn check(
        key: Key,
        id: MutatorId,
        expires_at: Timestamp,
        written_at: Timestamp,
        bytes: Vec<u8>,
    ) -> Option<Parcel> {
        let is_possible = id != MutatorId::TALLY
            && expires_at < Timestamp::NEVER
            && Timestamp::from_micros(0) < written_at
            && written_at < expires_at;
        let write = ShardWrite::fixed(key, expires_at, id, written_at, bytes);
        is_possible.then_some(Parcel { write })
    }

    /// What to write, the same each time.
    #[must_use]
    pub fn write(&self) -> &ShardWrite {
        &self.write
    }

    /// Whether a delivery that was acknowledged before this time counts: its row can't have been folded
    /// without it.
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
    use uuid::Uuid;

    fn key() -> Key {
        let name = |text| Name::new(text).expect("a name");
        Key { kind: Kind::Counter, group: name("g"), name: name("n") }
    }

    const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    #[test]
    fn a_parcel_arrives_as_it_was_packed() {
        let (id, state) =
            (MutatorId::new(Uuid::from_u128(7)), State::Counter(Counter::from_total(-5)));
        let day = Duration::from_secs(86_400);
        let packed = Parcel::pack(key(), id, &state, NOW, day);
        let write = packed.write();
        let (expires_at, at, bytes) =
            (write.expires_at(), write.timestamp(), write.state().to_vec());
        assert_eq!(Parcel::arrive(key(), id, expires_at, at, bytes), Ok(packed.clone()));
        let at = |wall| Now { wall, boot: Duration::ZERO };
        assert!(packed.ack_stands(at(NOW)) && write.may_be_sent(NOW));
        assert!(!packed.ack_stands(at(NOW.plus(day))) && !write.may_be_sent(NOW.plus(day)));
    }

    /// What a fence of the place of departure takes away, and what folds at the place of arrival settle.
    #[test]
    fn a_set_arrives_whole_takes_nothing_away_and_outlasts_every_fold() {
        let time = Timestamp::from_micros;
        let add = |state: &mut State, item: &str, id, expires_at| {
            let mut op = Kind::OrSet.parse_op(&Kind::OrSet.bare_op(item)).expect("an op");
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
        let (id, span) = (MutatorId::new(Uuid::from_u128(3)), Duration::from_micros(800));
        let parcel = Parcel::pack(key.clone(), id, &here, time(200), span);
        let write = parcel.write();
        let bytes = write.state().to_vec();
        let arrived = envelope::decode_shard(Kind::OrSet, &bytes).expect("a state");

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
        let raw = envelope::encode_shard(&here, 1);
        let unpacked = Parcel::arrive(key.clone(), id, write.expires_at(), time(200), raw);
        assert_eq!(unpacked, Err(ParcelError::NotPacked));
        assert!(Parcel::arrive(key, id, write.expires_at(), time(200), bytes).is_ok());
    }

    #[test]
    fn what_no_mutator_could_have_written_is_refused() {
        let id = MutatorId::new(Uuid::from_u128(7));
        let good = envelope::encode_shard(&State::Counter(Counter::from_total(1)), 1);
        let tally = envelope::encode_tally(&State::Counter(Counter::from_total(1)), NOW);
        let later = NOW.next();
        let arrive = |id, expires_at, at, bytes: &[u8]| {
            Parcel::arrive(key(), id, expires_at, at, bytes.to_vec())
        };
        assert!(arrive(id, later, NOW, &good).is_ok());
        for (id, expires_at, at) in [
            (MutatorId::TALLY, later, NOW),
            (id, NOW, NOW),
            (id, Timestamp::NEVER, NOW),
            (id, later, Timestamp::from_micros(0)),
            (id, NOW, later),
        ] {
            assert_eq!(arrive(id, expires_at, at, &good), Err(ParcelError::Impossible));
        }
        for bytes in [&good[1..], &tally, b""] {
            assert!(matches!(arrive(id, later, NOW, bytes), Err(ParcelError::State(_))));
        }
    }
}
