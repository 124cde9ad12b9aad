//! The highest fence of a store, as one row that outlives every pod. Keeps invariant I12.
//!
//! A pod remembers the fences that it met, and forgets them when it restarts. One that starts after a
//! clock was ahead, folded and was set back would take updates for a key whose fence lies in the future.
//! Its row would expire at or below that fence and never count. So no fold is written before its fence is
//! in this row, and every pod reads the row before it serves.

use std::time::Duration;

use thiserror::Error;

use super::{Constants, Timestamp};

/// Where the row lies, as `kind`, `grp` and `name`. No kind has such a name, so whatever walks the table
/// passes the row over, also in releases that do not know it.
pub const PLACE: (&str, &str, &str) = ("!fence", "!", "!");

/// Bytes of the fence, which the checksum follows.
const FENCE_BYTES: usize = size_of::<i64>();

/// The row does not hold what [`encode`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the row of the highest fence is damaged")]
pub struct Damaged;

/// How far a fence may lie above the stored one without being stored itself: so a pod writes the row once
/// in a minute or two, however much it folds.
///
/// An update is lost only if its row expires at or below the fence, which then lies a lifetime or more above
/// the pod's clock. The stored fence is at most half a lifetime lower, and so proves a moved clock as well.
#[must_use]
pub fn quantum(constants: &Constants) -> Duration {
    let minute = Duration::from_secs(60);
    constants.fence_quantum().max(minute).min(constants.lifetime() / 2)
}

/// The row's state.
#[must_use]
pub fn encode(fence: Timestamp) -> Vec<u8> {
    let fence = fence.as_micros().to_be_bytes();
    [fence.as_slice(), &checksum(&fence).to_be_bytes()].concat()
}

/// The fence of a row's state.
///
/// # Errors
/// [`Damaged`].
pub fn decode(state: &[u8]) -> Result<Timestamp, Damaged> {
    let (fence, found) = state.split_first_chunk::<FENCE_BYTES>().ok_or(Damaged)?;
    if found != checksum(fence).to_be_bytes() {
        return Err(Damaged);
    }
    Ok(Timestamp::from_micros(i64::from_be_bytes(*fence)))
}

/// Also of the row's place, as that of every other row.
fn checksum(fence: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(PLACE.0.as_bytes()), fence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crdt::Kind;
    use crate::protocol::{Overrides, fold};

    #[test]
    fn no_kind_lies_there() {
        assert_eq!(Kind::from_name(PLACE.0), None);
    }

    #[test]
    fn every_flipped_bit_and_every_other_length_is_damage() {
        let fence = Timestamp::from_micros(1_800_000_000_123_456);
        let mut state = encode(fence);
        assert_eq!(decode(&state), Ok(fence));
        for bit in 0..state.len() * 8 {
            state[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&state), Err(Damaged), "bit {bit}");
            state[bit / 8] ^= 1 << (bit % 8);
        }
        for length in 0..state.len() {
            assert_eq!(decode(&state[..length]), Err(Damaged), "{length} bytes");
        }
        assert_eq!(decode(&[state, vec![0]].concat()), Err(Damaged));
    }

    /// With the default constants and with short ones.
    #[test]
    fn a_fence_that_is_not_stored_itself_loses_no_update() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let short = Overrides {
            lifetime: seconds(20),
            drain_margin: seconds(10),
            cutoff: seconds(30),
            ..Overrides::default()
        };
        let long_quantum = Overrides { fence_quantum: seconds(90_000), ..Overrides::default() };
        for overrides in [Overrides::default(), short, long_quantum] {
            let constants = Constants::resolve(overrides).expect("consistent");
            let now = Timestamp::from_micros(1_800_000_000_000_000);
            // The lowest fence that a mutator which is born now is behind, and the lowest that is stored for it.
            let fence = now.plus(constants.lifetime());
            let stored = fence.minus(quantum(&constants));
            assert!(fold::proves_moved_clock(stored, now, &constants), "{constants:?}");
        }
    }
}
