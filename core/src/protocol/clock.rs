//! The clock gate: can this pod's clock be trusted? Keeps invariants I4 and I12.
//!
//! Finality rests on one assumption: every clock that births mutators or plans folds is within ε of true
//! time. A clock can't prove itself, so a pod samples the clocks of the store's nodes and compares.

use std::time::Duration;

use thiserror::Error;

use super::{Constants, Now, Timestamp, fold};

/// How often every node is sampled.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(10);

/// An offset beyond the limit divided by this gets a warning, while there is still time to fix it.
pub const WARN_SHARE: u32 = 10;

/// A sample whose round trip took longer than the limit divided by this is not used: it could be wrong by half
/// of that time, and a busy machine would shut its own gate.
pub const TRIP_SHARE: u32 = 5;

/// How long a sample is used.
pub const SAMPLE_FRESH: Duration = Duration::from_secs(60);

/// One measurement of a node's clock, tied to this pod's boot-time clock. So when this pod's wall clock is
/// set, the offset changes at once, not at the next measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// The node's clock at that moment.
    pub node: Timestamp,
    /// The moment on this pod's boot-time clock: the middle of the round trip.
    pub taken: Duration,
}

impl Sample {
    /// The node's clock minus this pod's wall clock, in µs, at `now`.
    #[must_use]
    pub fn offset_us(&self, now: Now) -> i64 {
        let node_now = self.node.plus(now.boot.saturating_sub(self.taken));
        node_now.as_micros().saturating_sub(now.wall.as_micros())
    }
}

/// A node of the store and its newest sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeClock {
    /// The node's data centre.
    pub datacenter: String,
    /// Its newest sample; none if it never answered.
    pub sample: Option<Sample>,
}

impl NodeClock {
    /// The node's clock minus this pod's wall clock, in µs; none if the sample is not fresh.
    #[must_use]
    pub fn fresh_offset_us(&self, now: Now) -> Option<i64> {
        let sample = self.sample?;
        (now.boot.saturating_sub(sample.taken) < SAMPLE_FRESH).then(|| sample.offset_us(now))
    }
}

/// Why updates and folds must wait.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ClockError {
    /// Too few nodes were measured recently to judge this pod's clock.
    #[error(
        "only {fresh} of {nodes} clocks in data centre {datacenter} were measured lately; waiting for more nodes"
    )]
    Unmeasured {
        /// The data centre.
        datacenter: String,
        /// Nodes measured within [`SAMPLE_FRESH`].
        fresh: usize,
        /// All nodes of the data centre.
        nodes: usize,
    },
    /// No node of this data centre has replicas, so no clock here says anything.
    #[error("no node of data centre {datacenter} has replicas of the keyspace")]
    NoReplica {
        /// The pod's data centre.
        datacenter: String,
    },
    /// This pod's clock differs from most nodes' clocks.
    #[error(
        "this pod's clock differs from most nodes' by more than {limit:?} (at worst by {:?}); check NTP",
        Duration::from_micros(.worst_us.unsigned_abs())
    )]
    Offset {
        /// ε.
        limit: Duration,
        /// The worst fresh offset, in µs.
        worst_us: i64,
    },
    /// A fence in the store is in this clock's future (I12).
    #[error(
        "a fold's fence lies in this clock's future: this clock was set back, or another ran ahead; check NTP"
    )]
    Moved,
    /// The clock is behind the latest time that the store has ever seen.
    #[error(
        "this machine's clock is {behind:?} behind the latest time that the store saw; check NTP, and \
         if this clock is right, stop the pod and run `orderfree repair`"
    )]
    Behind {
        /// By how much.
        behind: Duration,
    },
}

impl ClockError {
    /// Whether a measurement shows that the clock is wrong. Missing samples don't make a pod unready: a dead
    /// node is not an outage.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        !matches!(self, ClockError::Unmeasured { .. } | ClockError::NoReplica { .. })
    }
}

/// Decides whether the pod can take updates: a majority of the local data centre's nodes must have a fresh
/// sample within ε. `nodes` are those of all data centres with replicas.
///
/// # Errors
/// [`ClockError`] says why not.
pub fn check_writes(
    nodes: &[NodeClock],
    local_datacenter: &str,
    now: Now,
    constants: &Constants,
) -> Result<(), ClockError> {
    let local = || nodes.iter().filter(|node| node.datacenter == local_datacenter);
    let count = local().count();
    let offsets = || local().filter_map(|node| node.fresh_offset_us(now));
    let limit = constants.clock_offset_max();
    let within = offsets().filter(|&offset| is_within(offset, limit)).count();
    if is_majority(within, count) {
        return Ok(());
    }
    let fresh = offsets().count();
    // One wrong node says nothing about this pod while the other nodes are silent.
    if let Some(worst_us) = offsets().max_by_key(|offset| offset.unsigned_abs())
        && is_majority(fresh - within, count)
    {
        return Err(ClockError::Offset { limit, worst_us });
    }
    let datacenter = local_datacenter.to_owned();
    Err(match count {
        0 => ClockError::NoReplica { datacenter },
        nodes => ClockError::Unmeasured { datacenter, fresh, nodes },
    })
}

/// The time that a fold can use: the minimum of this pod's clock and every fresh sample. A majority of every
/// data centre must have a fresh sample, because two majorities share a node.
///
/// # Errors
/// [`ClockError`] says why a fold can't be planned.
pub fn fold_time(
    nodes: &[NodeClock],
    local_datacenter: &str,
    now: Now,
    constants: &Constants,
) -> Result<Timestamp, ClockError> {
    check_writes(nodes, local_datacenter, now, constants)?;
    let mut earliest = now.wall;
    for node in nodes {
        let peers = || nodes.iter().filter(|peer| peer.datacenter == node.datacenter);
        let fresh = peers().filter(|peer| peer.fresh_offset_us(now).is_some()).count();
        if !is_majority(fresh, peers().count()) {
            let datacenter = node.datacenter.clone();
            return Err(ClockError::Unmeasured { datacenter, fresh, nodes: peers().count() });
        }
        if let Some(offset_us) = node.fresh_offset_us(now) {
            earliest = earliest.min(now.wall.shifted(offset_us));
        }
    }
    Ok(earliest)
}

/// Remembers the highest fence seen, and says whether it proves that a clock moved (I12).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FenceGuard {
    highest: Option<Timestamp>,
}

impl FenceGuard {
    /// Notes a fence. True if it is the first to prove that a clock moved.
    pub fn observe(&mut self, fence: Timestamp, now: Timestamp, constants: &Constants) -> bool {
        let was_shut = self.check(now, constants).is_err();
        self.highest = self.highest.max(Some(fence));
        !was_shut && self.check(now, constants).is_err()
    }

    /// Shut while the highest fence is in this clock's future. Only time opens it again.
    ///
    /// # Errors
    /// [`ClockError::Moved`] while it is shut.
    pub fn check(&self, now: Timestamp, constants: &Constants) -> Result<(), ClockError> {
        match self.highest {
            Some(fence) if fold::proves_moved_clock(fence, now, constants) => {
                Err(ClockError::Moved)
            }
            _ => Ok(()),
        }
    }
}

fn is_within(offset_us: i64, limit: Duration) -> bool {
    u128::from(offset_us.unsigned_abs()) <= limit.as_micros()
}

/// Whether any two parts of this size share a member.
#[must_use]
pub fn is_majority(part: usize, whole: usize) -> bool {
    2 * part > whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Overrides;

    const WALL: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
    const NOW: Now = Now { wall: WALL, boot: Duration::from_secs(1000) };

    fn constants() -> Constants {
        Constants::resolve(Overrides::default()).expect("defaults")
    }

    fn node(datacenter: &str, offset_us: i64, age_seconds: u64) -> NodeClock {
        let age = Duration::from_secs(age_seconds);
        let sample = Sample { node: WALL.minus(age).shifted(offset_us), taken: NOW.boot - age };
        NodeClock { datacenter: datacenter.into(), sample: Some(sample) }
    }

    fn silent(datacenter: &str) -> NodeClock {
        NodeClock { datacenter: datacenter.into(), sample: None }
    }

    fn writes(nodes: &[NodeClock]) -> Result<(), ClockError> {
        check_writes(nodes, "a", NOW, &constants())
    }

    #[test]
    fn a_majority_of_fresh_near_clocks_opens_the_gate() {
        assert_eq!(writes(&[node("a", 5, 1), node("a", -5, 59), silent("a")]), Ok(()));
        let limit_us = constants().clock_offset_max().as_micros();
        let limit_us = i64::try_from(limit_us).expect("seconds");
        assert_eq!(writes(&[node("a", limit_us, 1)]), Ok(()), "exactly the limit");
        assert!(writes(&[node("a", limit_us + 1, 1)]).is_err());
    }

    #[test]
    fn stale_missing_and_foreign_samples_are_not_measurements() {
        let shut = writes(&[node("a", 0, 1), node("a", 0, 60), silent("a"), node("b", 0, 1)]);
        let error = shut.expect_err("one of three");
        assert_eq!(error, ClockError::Unmeasured { datacenter: "a".into(), fresh: 1, nodes: 3 });
        assert!(!error.is_measured());
    }

    #[test]
    fn a_pod_whose_data_centre_has_no_replica_takes_no_updates() {
        let error = writes(&[node("b", 0, 1)]).expect_err("no node of a");
        assert_eq!(error, ClockError::NoReplica { datacenter: "a".into() });
        assert!(!error.is_measured(), "the clock is not wrong");
    }

    #[test]
    fn a_measured_offset_shuts_the_gate() {
        let error = writes(&[node("a", 30_000_001, 1), node("a", 40_000_000, 1), node("a", 0, 1)]);
        let error = error.expect_err("two of three differ");
        assert!(matches!(error, ClockError::Offset { worst_us: 40_000_000, .. }));
        assert!(error.is_measured());
        let one_bad_and_two_silent = [node("a", -90_000_000, 1), silent("a"), silent("a")];
        assert!(!writes(&one_bad_and_two_silent).expect_err("one of three").is_measured());
        let one_bad_node = [node("a", -90_000_000, 1), node("a", 0, 1), node("a", 0, 1)];
        assert_eq!(writes(&one_bad_node), Ok(()), "the node is wrong, not this pod");
    }

    #[test]
    fn a_wall_clock_set_between_samples_shuts_the_gate_at_once() {
        let nodes = [node("a", 0, 9)];
        let back = Now { wall: WALL.minus(Duration::from_secs(31)), boot: NOW.boot };
        let error = check_writes(&nodes, "a", back, &constants()).expect_err("31 s behind");
        assert!(matches!(error, ClockError::Offset { worst_us: 31_000_000, .. }));
    }

    #[test]
    fn folds_go_by_the_earliest_clock_of_all() {
        let nodes = [node("a", 5, 1), node("a", -7, 1), silent("a"), node("b", -9, 1)];
        assert_eq!(fold_time(&nodes, "a", NOW, &constants()), Ok(WALL.shifted(-9)));
        let ahead = [node("a", 5, 1)];
        assert_eq!(fold_time(&ahead, "a", NOW, &constants()), Ok(WALL), "never ahead of the own");
    }

    #[test]
    fn folds_need_a_majority_of_every_data_centre() {
        let nodes = [node("a", 0, 1), node("b", 0, 1), silent("b")];
        let error = fold_time(&nodes, "a", NOW, &constants()).expect_err("half of b");
        assert_eq!(error, ClockError::Unmeasured { datacenter: "b".into(), fresh: 1, nodes: 2 });
    }

    #[test]
    fn a_fence_from_the_future_shuts_until_time_catches_up() {
        let constants = constants();
        let mut guard = FenceGuard::default();
        let honest = WALL.minus(constants.cutoff()).plus(2 * constants.clock_offset_max());
        assert!(!guard.observe(honest, WALL, &constants));
        assert!(guard.observe(honest.next(), WALL, &constants));
        assert!(!guard.observe(honest.next(), WALL, &constants), "reported once");
        assert_eq!(guard.check(WALL, &constants), Err(ClockError::Moved));
        assert_eq!(guard.check(WALL.next(), &constants), Ok(()));
    }
}
