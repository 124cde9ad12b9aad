//! The length of keys and the granularity of clocks. They decide whether keys are read and folded in parts, and whether
//! their shards share expiries.

use std::time::Duration;

use orderfree::limits::AnswerBounds;
use orderfree_core::protocol::prefix::PartSize;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// More rows than any key has here.
pub(crate) const ROWS_MAX: usize = 10_000;

/// See the module documentation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lengths {
    /// Maximum number of rows of a slice, and of a fold's slice; `None` if no key is long.
    pub(crate) slices: Option<(usize, usize)>,
    /// How many shards a fold collects in parts before it is written, and how many the first part has.
    step_rows: usize,
    part_rows: usize,
    /// The wall clocks of pods show multiples of this.
    pub(crate) tick: Duration,
}

impl Lengths {
    /// Draws from its own random numbers, so that the rest of a schedule does not change.
    pub(crate) fn of(seed: u64) -> Lengths {
        let mut dice = StdRng::seed_from_u64(seed ^ 0x6C65_6E67_7468);
        Lengths {
            slices: dice
                .random_bool(0.5)
                .then(|| (dice.random_range(1..=5), dice.random_range(1..=4))),
            step_rows: dice.random_range(1..=5),
            part_rows: dice.random_range(1..=3),
            tick: Duration::from_millis(if dice.random_bool(0.3) { 400 } else { 0 }),
        }
    }

    pub(crate) fn bounds(&self) -> AnswerBounds {
        let (look_rows, fold_rows) = self.slices.unwrap_or((ROWS_MAX, ROWS_MAX));
        let part = PartSize { rows: (self.part_rows, 3), bytes: 300, expiry_rows: ROWS_MAX };
        let slice = (look_rows, usize::MAX);
        AnswerBounds { look_rows, slice, fold_rows, fold_step: (self.step_rows, usize::MAX), part }
    }
}
