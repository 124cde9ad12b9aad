//! What rows remember of a [reset](super::reset): its generation, until when it clears rows, and the ids that it
//! cleared.

use std::time::Duration;

use super::{Constants, Timestamp};
use crate::crdt::pack::OpId;

/// A fence that belongs to a reset proves a moved clock only if it is 2ε and this span ahead.
pub(super) const AHEAD_SLACK: Duration = Duration::from_secs(1);

/// The generation of a reset: the time from which it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub(super) Timestamp);

impl Generation {
    /// The generation of a reset at this time.
    #[must_use]
    pub const fn at(time: Timestamp) -> Generation {
        Generation(time)
    }

    /// Its time.
    #[must_use]
    pub const fn time(self) -> Timestamp {
        self.0
    }
}

/// The last reset of a key, as its tally remembers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    pub(super) generation: Generation,
    pub(super) until: Timestamp,
    /// The cleared ids that can come again, each with the expiry of its copies. In ascending order.
    pub(super) ids: Vec<(Timestamp, OpId)>,
}

impl Remembered {
    /// From the parts that a row holds; none if they are not in the only order that is written.
    pub(crate) fn stored(
        generation: Generation,
        until: Timestamp,
        ids: Vec<(Timestamp, OpId)>,
    ) -> Option<Remembered> {
        let is_after = ids.first().is_none_or(|first| first.0 > generation.0);
        let ascends = ids.windows(2).all(|pair| pair[0] < pair[1]);
        (generation.0 < until && is_after && ascends).then_some(Remembered {
            generation,
            until,
            ids,
        })
    }

    /// The generation of the reset.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Until when it is remembered, by pods too: no row that it clears expires later.
    #[must_use]
    pub fn until(&self) -> Timestamp {
        self.until
    }

    /// The ids that count nothing, each with the expiry of its rows. In ascending order.
    #[must_use]
    pub fn ids(&self) -> &[(Timestamp, OpId)] {
        &self.ids
    }

    /// This value without its ids. That breaks a rule; only a simulation uses it.
    #[doc(hidden)]
    #[must_use]
    pub fn without_ids(self) -> Remembered {
        Remembered { ids: Vec::new(), ..self }
    }

    /// Whether a row above the fence counts, by its stamp and its expiry.
    #[must_use]
    pub fn counts(&self, stamp: Option<Generation>, expires_at: Timestamp) -> bool {
        expires_at > self.until || stamp >= Some(self.generation)
    }

    /// Whether the op with this id was cleared.
    #[must_use]
    pub fn has_cleared(&self, expires_at: Timestamp, id: OpId) -> bool {
        self.ids.binary_search(&(expires_at, id)).is_ok()
    }

    /// The part that a tally with this fence must still remember.
    pub(super) fn after(self, fence: Timestamp) -> Option<Remembered> {
        (self.until > fence).then(|| self.without_ids_up_to(fence))
    }

    /// The part that a tally with this fence remembers, even after `until`.
    pub(super) fn without_ids_up_to(mut self, fence: Timestamp) -> Remembered {
        self.ids.retain(|(expires_at, _)| *expires_at > fence);
        self
    }
}

/// The time that a fence proves some clock to have shown, minus C. An ordinary fence was made by a clock that
/// showed C more. The fence of a reset's marker was made by a clock that showed just that.
#[must_use]
pub fn evidence(fence: Timestamp, reset: Option<Generation>, constants: &Constants) -> Timestamp {
    match reset {
        Some(Generation(time)) if time == fence => fence.minus(constants.cutoff() + AHEAD_SLACK),
        _ => fence,
    }
}
