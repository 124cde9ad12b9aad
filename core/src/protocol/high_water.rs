//! The highest fence of a store, in one row that outlives every pod. Keeps invariant I12.
//!
//! A pod remembers the fences it has seen, and forgets them when it restarts. Suppose a clock ran ahead, a
//! fold used it, and then it was set back. A pod that starts afterwards would take updates for a key whose
//! fence is in the future. Their row would expire at or below that fence and never count. So a fold's fence
//! is stored in this row before the fold is written, and every pod reads the row before it serves.

use std::time::Duration;

use thiserror::Error;

use super::{Constants, Timestamp};

/// The row's `kind`, `grp` and `name`. No kind has this name, so every scan of the table skips the row, also
/// in releases that do not know it.
pub const PLACE: (&str, &str, &str) = ("!fence", "!", "!");

/// Bytes of the fence; its checksum follows.
const FENCE_BYTES: usize = size_of::<i64>();

/// The row does not hold what [`encode`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the row that stores the highest fence is damaged")]
pub struct Damaged;

/// How far a fence can be above the stored one without being stored itself. So a pod writes the row only
/// every minute or two, however much it folds.
///
/// An update is lost only if its row expires at or below the fence. A mutator is born a lifetime before that,
/// and one of ops with ids takes its last op R + 2ε before it. So the fence is above the pod's clock, and the
/// stored one above the clock minus C: it also proves a moved clock.
#[must_use]
pub fn quantum(constants: &Constants) -> Duration {
    let minute = Duration::from_secs(60);
    constants.fence_quantum().max(minute).min(constants.lifetime() / 2).min(constants.cutoff())
}

/// Encodes a fence as the row's state.
#[must_use]
pub fn encode(fence: Timestamp) -> Vec<u8> {
    seal(PLACE.0, &fence.as_micros().to_be_bytes())
}

/// Decodes the fence from the row's state.
///
/// # Errors
/// [`Damaged`] if these are not the bytes of [`encode`].
pub fn decode(state: &[u8]) -> Result<Timestamp, Damaged> {
    let fence = unseal::<FENCE_BYTES>(PLACE.0, state).ok_or(Damaged)?;
    Ok(Timestamp::from_micros(i64::from_be_bytes(*fence)))
}

/// Adds a checksum to the value of a row. It covers the row's kind too, as the checksum of every other row does.
pub(super) fn seal(kind: &str, value: &[u8]) -> Vec<u8> {
    [value, &checksum(kind, value).to_be_bytes()].concat()
}

/// The value of a row; none if its checksum is wrong.
pub(super) fn unseal<'a, const BYTES: usize>(
    kind: &str,
    state: &'a [u8],
) -> Option<&'a [u8; BYTES]> {
    let (value, found) = state.split_first_chunk::<BYTES>()?;
    (found == checksum(kind, value).to_be_bytes()).then_some(value)
}

fn checksum(kind: &str, value: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(kind.as_bytes()), value)
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

    /// With the default constants, with short ones, with a long quantum and with a short cutoff.
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
        let short_cutoff = Overrides { cutoff: seconds(21), ..Overrides::default() };
        for overrides in [Overrides::default(), short, long_quantum, short_cutoff] {
            let constants = Constants::resolve(overrides).expect("consistent");
            let now = Timestamp::from_micros(1_800_000_000_000_000);
            // The lowest fences that hide a mutator born now, and one that takes an op with an id now. For each,
            // the lowest fence that can be stored.
            for left in [constants.lifetime(), constants.id_drain_margin()] {
                let stored = now.plus(left).minus(quantum(&constants));
                assert!(fold::proves_moved_clock(stored, now, &constants), "{constants:?}");
            }
        }
    }
}
