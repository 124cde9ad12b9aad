//! The latest reset of a store, in a row beside the keys. It shows that the log of resets was lost.
//!
//! Keys remember their resets, and the log has them too, in a table of its own. Suppose the keys were restored, and the
//! log was not, or from an earlier time. A pod that starts then knows nothing of later resets. It would take updates
//! into rows without a stamp, which count nothing. So a reset is stored in this row after the log has it, and before its
//! marker is written. A pod that starts reads this row first and then looks for that reset in the log. If the log does
//! not have it, the pod takes no updates.
//!
//! Most resets are remembered equally long. One that clears an imported row is remembered until that row expires. So there
//! is a second row, with the reset that is remembered longest.

use thiserror::Error;

use super::Timestamp;
use super::high_water::{seal, unseal};

/// The `kind`, `grp` and `name` of the row with the latest reset. No kind has this name, so every scan of the table skips
/// the row.
pub const LATEST: (&str, &str, &str) = ("!reset", "!", "!");

/// The same for the reset that is remembered longest.
pub const LONGEST: (&str, &str, &str) = ("!reset", "!", "until");

/// Two times and a part of the log; their checksum follows.
const BYTES: usize = 2 * TIME_BYTES + 1;

const TIME_BYTES: usize = size_of::<i64>();

/// The row does not hold what [`LatestReset::encode`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the row that stores the latest reset is damaged")]
pub struct Damaged;

/// See the [module documentation](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatestReset {
    /// Its generation.
    pub at: Timestamp,
    /// Pods need it until then, and the log keeps it.
    pub until: Timestamp,
    /// The part of the log that has it.
    pub bucket: u8,
}

impl LatestReset {
    /// Whether the log must still have it.
    #[must_use]
    pub fn is_needed(&self, now: Timestamp) -> bool {
        now <= self.until
    }

    /// Encodes it as the row's state.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let [at, until] = [self.at, self.until].map(|time| time.as_micros().to_be_bytes());
        seal(LATEST.0, &[&at[..], &until, &[self.bucket]].concat())
    }

    /// Decodes it from the row's state.
    ///
    /// # Errors
    /// [`Damaged`] if these are not the bytes of [`LatestReset::encode`].
    pub fn decode(state: &[u8]) -> Result<LatestReset, Damaged> {
        let [times @ .., bucket] = unseal::<BYTES>(LATEST.0, state).ok_or(Damaged)?;
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
    use super::*;
    use crate::crdt::Kind;
    use crate::protocol::high_water;

    #[test]
    fn no_kind_lies_there() {
        assert_eq!(Kind::from_name(LATEST.0), None);
    }

    #[test]
    fn every_flipped_bit_and_every_other_length_is_damage() {
        let (at, until) = (Timestamp::from_micros(1_800_000_000_123_456), Timestamp::NEVER);
        let latest = LatestReset { at, until, bucket: 7 };
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

    #[test]
    fn the_log_need_not_have_it_after_its_time() {
        let at = Timestamp::from_micros(5);
        let latest = LatestReset { at, until: Timestamp::from_micros(9), bucket: 0 };
        assert!(latest.is_needed(Timestamp::from_micros(9)));
        assert!(!latest.is_needed(Timestamp::from_micros(10)));
    }
}
