//! Whether the local data centre has a quorum. A pod without one can't serve, and a load balancer may send its clients to
//! another data centre.
//!
//! One row is read at a local quorum. But it has few replicas: if two of its nodes are down in a large data centre, most
//! other keys still have their quorum. So there is none only if most nodes are silent, too.

use std::time::Duration;

use orderfree_core::protocol::clock::is_majority;

/// A busy cluster can miss a look, or two.
const MISSED_MAX: Duration = Duration::from_secs(30);

/// What the looks so far have found.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Quorum {
    /// When the first of the latest looks began that have missed it, by the boot-time clock.
    missed_since: Option<Duration>,
    /// Whether the log says that it is missing.
    was_told: bool,
}

impl Quorum {
    /// Notes a look that began at `began`.
    pub(super) fn note(&mut self, is_there: bool, began: Duration, now: Duration) {
        if is_there {
            let was_told = std::mem::take(self).was_told;
            if was_told {
                tracing::info!("a quorum answers again");
            }
            return;
        }
        self.missed_since.get_or_insert(began);
        if self.check(now).is_err() && !std::mem::replace(&mut self.was_told, true) {
            tracing::warn!("no quorum of this data centre answers: updates and reads fail");
        }
    }

    /// Fails with the time for which it was missing, if that is long.
    pub(super) fn check(&self, now: Duration) -> Result<(), Duration> {
        match self.missed_since.map(|since| now.saturating_sub(since)) {
            Some(missed) if missed >= MISSED_MAX => Err(missed),
            _ => Ok(()),
        }
    }
}

/// Whether a local quorum is there for most keys, as far as a look shows.
pub(super) fn is_there(is_row_read: bool, answered: usize, nodes: usize) -> bool {
    is_row_read || is_majority(answered, nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quorum_is_missed_after_half_a_minute_and_found_at_once() {
        let (mut quorum, at) = (Quorum::default(), Duration::from_secs);
        // Looks are more frequent while the nodes disagree on the schema.
        for began in (100..129).step_by(4) {
            quorum.note(false, at(began), at(began + 1));
            assert_eq!(quorum.check(at(began + 1)), Ok(()), "{began}");
        }
        assert_eq!(quorum.check(at(130)), Err(at(30)));
        quorum.note(true, at(131), at(132));
        assert_eq!(quorum.check(at(1_000)), Ok(()));
        quorum.note(false, at(1_000), at(1_003));
        assert_eq!(quorum.check(at(1_029)), Ok(()), "the half minute starts again");
    }

    #[test]
    fn two_silent_nodes_are_no_lost_quorum_of_a_large_data_centre() {
        assert!(is_there(false, 10, 12) && !is_there(false, 6, 12) && !is_there(false, 0, 12));
        assert!(is_there(true, 1, 3) && !is_there(false, 1, 3));
        assert!(!is_there(false, 1, 2) && !is_there(false, 0, 0));
    }
}
