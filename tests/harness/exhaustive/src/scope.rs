//! The size of the small world: who lives in it, when, and how much can go wrong.

use std::time::Duration;

use orderfree_core::protocol::{Constants, Now, Overrides, Timestamp};

/// Cassandra replicas of the one key.
pub const REPLICAS: usize = 3;

/// Maximum number of lives in a scope.
pub const LIVES_MAX: usize = 2;

/// Maximum number of folds in a scope.
pub const FOLDS_MAX: usize = 3;

/// Ops per life. Each op adds its own digit of base 8, so a total shows which ops it has.
pub const OPS_MAX: usize = 2;

/// Zero of the wall clock. Fences must be after 1970.
const EPOCH: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// ε in ms.
const OFFSET_MAX_MS: u64 = 1000;

/// C in ms: the shortest that the rules allow.
const CUTOFF_MS: u64 = 2 * OFFSET_MAX_MS + BUDGET_MS + 1;

/// R in ms.
const BUDGET_MS: u64 = 1000;

/// The true times in ms at which events can happen. Clocks err by ε in the worst way (pods behind, folders ahead),
/// and a lifetime is 10 s. The first life is born at the first instant, the second at the second. At the third, the
/// first life is final, and an acknowledgement of the second is still believed, for 1 ms more. At the fourth, both
/// are final. At the last, deletions may be purged. The third and the fourth are less than 2ε apart, so that both can
/// be a folder's "now".
const INSTANTS_MS: [u64; INSTANTS as usize] = [0, 1500, 11_499, 12_600, 60_000];

/// Number of instants.
pub const INSTANTS: u8 = 5;

/// `gc_grace` in ms, counted from the fence.
const GRACE_MS: u64 = 30_000;

/// One mutator's life.
#[derive(Debug, Clone, Copy)]
pub struct LifeScope {
    /// The first and the last instant at which it can be born.
    pub births: (u8, u8),
    /// Ops that it gets, one at a time.
    pub ops: usize,
    /// Maximum number of its writes.
    pub writes: u8,
}

/// The size of a world. Each bound is for a whole history.
#[derive(Debug, Clone)]
pub struct Scope {
    /// The name in reports.
    pub name: &'static str,
    pub lives: Vec<LifeScope>,
    /// Maximum number of planned folds.
    pub folds: usize,
    /// Maximum number of folds that are planned but not sent: the folders.
    pub folders: usize,
    /// Maximum number of messages that arrive at a later instant than they were sent.
    pub late: u8,
    /// Maximum number of folds that are sent again.
    pub resends: u8,
    /// Maximum number of deletions that replicas purge.
    pub purges: u8,
    /// Maximum number of writes that find too few nodes and are refused.
    pub refusals: u8,
    /// How many replicas must acknowledge a write.
    pub write_acks: u32,
    /// How many replicas must answer a read.
    pub reads: u32,
    /// How many replicas must answer a fold's read.
    pub fold_reads: u32,
    /// True time minus a pod's wall clock, and a folder's wall clock minus true time, in ms.
    pub skew_ms: (u64, u64),
    /// All lives get one op under one id, sent to each of them, and hold it in packs with one expiry.
    pub has_id: bool,
    /// Observations for which this scope is too small.
    pub unseen: Vec<&'static str>,
}

impl Scope {
    /// Small enough for every run of the tests.
    #[must_use]
    pub fn quick() -> Scope {
        Scope {
            name: "quick",
            lives: vec![
                LifeScope { births: (0, 0), ops: 1, writes: 1 },
                LifeScope { births: (1, 1), ops: 1, writes: 1 },
            ],
            folds: 2,
            folders: 2,
            late: 1,
            resends: 0,
            purges: 1,
            refusals: 0,
            write_acks: 2,
            reads: 2,
            fold_reads: 3,
            skew_ms: (OFFSET_MAX_MS, OFFSET_MAX_MS),
            has_id: false,
            unseen: Vec::new(),
        }
    }

    /// One mutator with two ops and three writes, refusals, and one fold: everything that a writer can do.
    #[must_use]
    pub fn writer() -> Scope {
        Scope {
            name: "writer",
            lives: vec![LifeScope { births: (0, 1), ops: 2, writes: 3 }],
            folds: 1,
            folders: 1,
            refusals: 1,
            // All of these need two folds or two mutators.
            unseen: vec![
                "two folds with different fences are in hand",
                "two folds have one fence and different tallies",
                "an old fold is about to reach a replica with a newer one",
                "a reader saw a tally and a live shard",
            ],
            ..Scope::quick()
        }
    }

    /// Folds read from a quorum, which is enough as long as no replica forgets.
    #[must_use]
    pub fn quorum() -> Scope {
        Scope { name: "quorum", fold_reads: 2, ..Scope::quick() }
    }

    /// Three folds by three folders.
    #[must_use]
    pub fn folds() -> Scope {
        Scope { name: "folds", folds: 3, folders: 3, ..Scope::quick() }
    }

    /// One op with an id, sent to two pods.
    #[must_use]
    pub fn id() -> Scope {
        Scope {
            name: "id",
            lives: vec![
                LifeScope { births: (0, 0), ops: 1, writes: 1 },
                LifeScope { births: (0, 1), ops: 1, writes: 1 },
            ],
            has_id: true,
            // There is one expiry and one op.
            unseen: vec![
                "two folds have one fence and different tallies",
                "a reader saw a tally and a live shard",
            ],
            ..Scope::quick()
        }
    }

    /// Two mutators, two folds, one of them sent again, and two late messages: everything that a folder can do, in
    /// ten million worlds and one or two minutes.
    #[must_use]
    pub fn full() -> Scope {
        Scope { name: "full", late: 2, resends: 1, ..Scope::quick() }
    }

    /// What a pod's clocks show.
    #[must_use]
    pub fn pod_now(&self, instant: u8) -> Now {
        let boot = Duration::from_millis(INSTANTS_MS[usize::from(instant)]);
        let wall = EPOCH.plus(boot).minus(Duration::from_millis(self.skew_ms.0));
        Now { wall, boot }
    }

    /// The expiry of a mutator that is born at this instant. An id has the expiry of the second life of
    /// [`Scope::quick`], which leaves it the least time between its last acknowledgement and its fold.
    #[must_use]
    pub fn expires_at(&self, born: u8, constants: &Constants) -> Timestamp {
        let born = if self.has_id { 1 } else { born };
        self.pod_now(born).wall.plus(constants.lifetime())
    }

    /// What a folder's clock shows.
    #[must_use]
    pub fn folder_now(&self, instant: u8) -> Timestamp {
        self.true_now(instant).plus(Duration::from_millis(self.skew_ms.1))
    }

    /// Whether a deletion up to `fence` is older than `gc_grace`.
    #[must_use]
    pub fn may_purge(&self, fence: Timestamp, instant: u8) -> bool {
        fence.plus(Duration::from_millis(GRACE_MS)) <= self.true_now(instant)
    }

    fn true_now(&self, instant: u8) -> Timestamp {
        EPOCH.plus(Duration::from_millis(INSTANTS_MS[usize::from(instant)]))
    }
}

/// The tightest constants that the rules allow.
///
/// # Panics
/// If the rules have changed.
#[must_use]
pub fn constants() -> Constants {
    let ms = |ms| Some(Duration::from_millis(ms));
    let overrides = Overrides {
        lifetime: ms(10_000),
        drain_margin: ms(2 * OFFSET_MAX_MS + BUDGET_MS),
        cutoff: ms(CUTOFF_MS),
        request_budget: ms(BUDGET_MS),
        clock_offset_max: ms(OFFSET_MAX_MS),
        fence_quantum: ms(1),
        ..Overrides::default()
    };
    Constants::resolve(overrides).expect("the tightest constants are allowed")
}
