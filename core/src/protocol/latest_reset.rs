//! The latest resets of a store, in rows beside the keys. They show that the log of resets was lost.
//!
//! Keys remember their resets, and the log has them too, in a table of its own. Suppose the keys were restored, and the
//! log was not, or from an earlier time. A pod that starts then knows nothing of later resets. It would take updates
//! into rows without a stamp, which count nothing. So a reset is stored beside the keys after the log has it, and before
//! its marker is written. A pod that starts reads these rows first and then looks for their resets in the log. If the
//! log lacks one of them, the pod takes no updates.
//!
//! Most resets are needed equally long, but one that clears an imported row is needed until that row expires. So time is
//! divided into slots of half a day. For each slot, each part of the log has a row of its own, with the latest reset of
//! that part that pods need until a time in the slot. Suppose a part lacks a reset that pods need. Then the part is from
//! before that reset, so it also lacks the latest one of the same slot. (Two resets of the same minute can be logged in
//! either order.) The log keeps a reset for a day longer than pods need it. So the latest one must be in the log as long
//! as any reset of its slot is needed, with half a day to spare.

use std::time::Duration;

use thiserror::Error;

use super::Timestamp;
use super::high_water::{seal, unseal};

/// The `kind` and `grp` of the rows. No kind has this name, so every scan of the table skips them.
pub const PLACE: (&str, &str) = ("!reset", "!");

/// The length of a slot.
pub const SLOT: Duration = Duration::from_secs(12 * 3600);

/// Two times and a part of the log; their checksum follows.
const BYTES: usize = 2 * TIME_BYTES + 1;

const TIME_BYTES: usize = size_of::<i64>();

/// The row does not hold what [`LatestReset::encode`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a row that stores the latest reset is damaged")]
pub struct Damaged;

/// The number of the slot that has this time, since the epoch.
#[must_use]
pub fn slot(time: Timestamp) -> i64 {
    let slot_us = i64::try_from(SLOT.as_micros()).expect("invariant: a slot is short");
    time.as_micros().div_euclid(slot_us)
}

/// See the [module documentation](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatestReset {
    /// Its generation.
    pub at: Timestamp,
    /// Pods need it until then.
    pub until: Timestamp,
    /// The part of the log that has it.
    pub bucket: u8,
}

impl LatestReset {
    /// The `name` of its row.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", slot(self.until), self.bucket)
    }

    /// Whether pods may need a reset of its slot. The log must have this one as long.
    #[must_use]
    pub fn is_needed(&self, now: Timestamp) -> bool {
        now <= self.until.plus(SLOT)
    }

    /// Encodes it as the row's state.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let [at, until] = [self.at, self.until].map(|time| time.as_micros().to_be_bytes());
        seal(PLACE.0, &[&at[..], &until, &[self.bucket]].concat())
    }

    /// Decodes it from the row's state.
    ///
    /// # Errors
    /// [`Damaged`] if these are not the bytes of [`LatestReset::encode`].
    pub fn decode(state: &[u8]) -> Result<LatestReset, Damaged> {
        let [times @ .., bucket] = unseal::<BYTES>(PLACE.0, state).ok_or(Damaged)?;
        let time = |bytes: &[u8]| {
            let bytes = bytes.try_into().map_err(|_| Damaged)?;
            Ok(Timestamp::from_micros(i64::from_be_bytes(bytes)))
        };
        let (at, until) = times.split_at(TIME_BYTES);
        Ok(LatestReset { at: time(at)?, until: time(until)?, bucket: *bucket })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::crdt::Kind;
    use crate::protocol::high_water;

    #[test]
    fn no_kind_lies_there() {
        assert_eq!(Kind::from_name(PLACE.0), None);
    }

    #[test]
    fn every_flipped_bit_and_every_other_length_is_damage() {
        let at = Timestamp::from_micros(1_800_000_000_123_456);
        let latest = LatestReset { at, until: Timestamp::NEVER, bucket: 7 };
        let mut state = latest.encode();
        assert_eq!(LatestReset::decode(&state), Ok(latest));
        for bit in 0..state.len() * 8 {
            state[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(LatestReset::decode(&state), Err(Damaged), "bit {bit}");
            state[bit / 8] ^= 1 << (bit % 8);
        }
        for length in 0..state.len() {
            assert_eq!(LatestReset::decode(&state[..length]), Err(Damaged), "{length} bytes");
        }
        assert_eq!(LatestReset::decode(&[state, vec![0]].concat()), Err(Damaged));
        assert_eq!(LatestReset::decode(&high_water::encode(at)), Err(Damaged));
    }

    proptest! {
        /// Whatever each part of the log has lost, a row shows it as long as a lost reset is needed.
        #[test]
        fn a_needed_reset_that_the_log_lacks_is_always_noticed(
            resets in proptest::collection::vec((0_i64..100, 1_i64..100, 0_u8..2), 1..30),
            lost_after in [0_i64..100, 0..100],
            now in 0_i64..250,
        ) {
            let hours = |count: i64| Timestamp::from_micros(count * 60 * 60 * 1_000_000);
            let reset = |&(at, length, bucket): &(i64, i64, u8)| {
                LatestReset { at: hours(at), until: hours(at + length), bucket }
            };
            let resets: Vec<_> = resets.iter().map(reset).collect();
            let is_stored = |reset: &&LatestReset| {
                let others = resets.iter().filter(|other| other.name() == reset.name());
                others.map(|other| other.at).max() == Some(reset.at)
            };
            let is_lost =
                |reset: &LatestReset| reset.at > hours(lost_after[usize::from(reset.bucket)]);
            let is_missed = resets.iter().any(|reset| is_lost(reset) && hours(now) <= reset.until);
            let mut rows = resets.iter().filter(is_stored);
            let is_noticed = rows.any(|row| is_lost(row) && row.is_needed(hours(now)));
            prop_assert!(is_noticed || !is_missed);
        }
    }
}
