//! Memory that requests share. A request reserves units before it uses memory; dropping a permit returns
//! them.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits;

/// A shared amount of memory.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    free: Arc<Semaphore>,
    units: usize,
}

/// A part of a budget, reserved until dropped.
#[derive(Debug)]
pub(crate) struct MemoryPermit(OwnedSemaphorePermit);

impl MemoryBudget {
    /// A budget of this many bytes.
    pub(crate) fn new(bytes: usize) -> MemoryBudget {
        let units = bytes / limits::ROOM_UNIT_BYTES;
        MemoryBudget { free: Arc::new(Semaphore::new(units)), units }
    }

    /// Reserves this many bytes. Returns `None` if less is free.
    pub(crate) fn take(&self, bytes: usize) -> Option<MemoryPermit> {
        take(&self.free, units(bytes))
    }

    /// Waits until this many bytes are free and reserves them; for more than the budget, reserves all of it.
    /// Callers are served in order. To avoid deadlock, a waiting caller must hold no permit of this budget.
    pub(crate) async fn wait(&self, bytes: usize) -> MemoryPermit {
        let units = permits(units(bytes).min(self.units));
        let room = Arc::clone(&self.free).acquire_many_owned(units).await;
        MemoryPermit(room.expect("invariant: the semaphore is never closed"))
    }

    /// Whether this many bytes are free now.
    pub(crate) fn has(&self, bytes: usize) -> bool {
        self.free.available_permits() >= units(bytes)
    }

    #[cfg(test)]
    pub(crate) fn units(&self) -> usize {
        self.units
    }

    /// Free units.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.free.available_permits()
    }
}

impl MemoryPermit {
    /// Grows the permit to at least this many bytes. Returns `None` if too little is free.
    pub(crate) fn grow(&mut self, bytes: usize) -> Option<()> {
        let more = units(bytes).saturating_sub(self.0.num_permits());
        if more > 0 {
            let more = take(self.0.semaphore(), more)?;
            self.0.merge(more.0);
        }
        Some(())
    }

    /// Shrinks the permit to this many bytes.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let spare = self.0.num_permits().saturating_sub(units(bytes));
        drop(self.0.split(spare));
    }
}

fn take(space: &Arc<Semaphore>, units: usize) -> Option<MemoryPermit> {
    Arc::clone(space).try_acquire_many_owned(permits(units)).ok().map(MemoryPermit)
}

fn permits(units: usize) -> u32 {
    u32::try_from(units).expect("invariant: no limit is near 4 TiB")
}

/// The number of units that hold this many bytes.
fn units(bytes: usize) -> usize {
    bytes.div_ceil(limits::ROOM_UNIT_BYTES)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt;

    use super::*;

    const UNIT: usize = limits::ROOM_UNIT_BYTES;

    #[test]
    fn room_is_taken_in_units_and_given_back() {
        for (bytes, expected) in [(0, 0), (1, 1), (UNIT, 1), (UNIT + 1, 2)] {
            let space = MemoryBudget::new(4 * UNIT);
            let mut room = space.take(bytes).expect("room");
            assert_eq!(space.free(), 4 - expected);
            room.grow(3 * UNIT).expect("room");
            assert_eq!(space.free(), 1);
            assert!(room.grow(5 * UNIT).is_none());
            drop(room);
            assert_eq!(space.free(), 4);
        }
    }

    #[tokio::test]
    async fn who_waits_is_served_in_turn_and_gets_no_more_than_there_is() {
        let space = MemoryBudget::new(4 * UNIT);
        let held = space.take(2 * UNIT).expect("room");
        let mut large = pin!(space.wait(100 * UNIT));
        let mut small = pin!(space.wait(UNIT));
        assert!(large.as_mut().now_or_never().is_none(), "half of it is taken");
        assert!(small.as_mut().now_or_never().is_none(), "another caller waits already");
        assert!(space.take(UNIT).is_none(), "free memory is for waiting callers");
        drop(held);
        let all = large.now_or_never().expect("all of it is free");
        assert_eq!(space.free(), 0);
        drop(all);
        let _one = small.now_or_never().expect("room");
        assert_eq!(space.free(), 3);
    }
}
