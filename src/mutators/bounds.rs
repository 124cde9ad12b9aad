//! How much memory the mutators of a pod may take.

use orderfree_core::protocol::RestFlaw;

use crate::limits;

/// How many mutators a pod may have, awake and at rest.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Most mutators that are awake.
    pub mutators_max: usize,
    /// Most bytes of those at rest.
    pub resting_bytes: usize,
    /// For the simulator alone: a rule of resting that is broken.
    #[doc(hidden)]
    pub flaw: Option<RestFlaw>,
}

impl Bounds {
    /// So many awake, and the default at rest.
    #[must_use]
    pub fn awake(mutators_max: usize) -> Bounds {
        Bounds { mutators_max, ..Bounds::default() }
    }
}

impl Default for Bounds {
    fn default() -> Bounds {
        let (mutators_max, resting_bytes) = (limits::MUTATORS_MAX, limits::RESTING_BYTES);
        Bounds { mutators_max, resting_bytes, flaw: None }
    }
}
