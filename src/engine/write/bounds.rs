//! Memory limits for the mutators of a pod.

use orderfree_core::protocol::RestFlaw;

use crate::limits;

/// Limits for mutators, awake and at rest.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Maximum number of awake mutators.
    pub mutators_max: usize,
    /// Maximum memory of mutators at rest.
    pub resting_bytes: usize,
    /// States up to this many bytes are too small for a successor to know about.
    #[doc(hidden)]
    pub little_bytes: usize,
    /// A rule of resting to break. Only for the simulator.
    #[doc(hidden)]
    pub flaw: Option<RestFlaw>,
}

impl Bounds {
    /// This maximum of awake mutators, and the default for mutators at rest.
    #[must_use]
    pub fn awake(mutators_max: usize) -> Bounds {
        Bounds { mutators_max, ..Bounds::default() }
    }
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            mutators_max: limits::MUTATORS_MAX,
            resting_bytes: limits::RESTING_BYTES,
            little_bytes: limits::LITTLE_BYTES,
            flaw: None,
        }
    }
}
