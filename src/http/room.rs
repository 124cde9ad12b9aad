//! Memory that requests share: taken in units before it is used, given back by a drop, never waited for.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits;

/// What there is of it.
#[derive(Debug)]
pub(super) struct Space(Arc<Semaphore>);

/// A part of it, until it is dropped.
#[derive(Debug)]
pub(super) struct Room(OwnedSemaphorePermit);

impl Space {
    /// So many bytes in all.
    pub(super) fn new(bytes: usize) -> Space {
        Space(Arc::new(Semaphore::new(bytes / limits::ROOM_UNIT_BYTES)))
    }

    /// Room for so many bytes; none if less is free.
    pub(super) fn take(&self, bytes: usize) -> Option<Room> {
        take(&self.0, units(bytes))
    }

    /// Whether as much is free now.
    pub(super) fn has(&self, bytes: usize) -> bool {
        self.0.available_permits() >= units(bytes)
    }

    /// Units that nobody has.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.0.available_permits()
    }
}

impl Room {
    /// Takes what so many bytes need besides what it has; none if less is free.
    pub(super) fn grow(&mut self, bytes: usize) -> Option<()> {
        let more = units(bytes).saturating_sub(self.0.num_permits());
        if more > 0 {
            let more = take(self.0.semaphore(), more)?;
            self.0.merge(more.0);
        }
        Some(())
    }

    /// Gives back what this many bytes do not need.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let spare = self.0.num_permits().saturating_sub(units(bytes));
        drop(self.0.split(spare));
    }
}

fn take(space: &Arc<Semaphore>, units: usize) -> Option<Room> {
    let units = u32::try_from(units).expect("invariant: no limit is near 4 TiB");
    Arc::clone(space).try_acquire_many_owned(units).ok().map(Room)
}

/// The units that hold this many bytes.
fn units(bytes: usize) -> usize {
    bytes.div_ceil(limits::ROOM_UNIT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: usize = limits::ROOM_UNIT_BYTES;

    #[test]
    fn room_is_taken_in_units_and_given_back() {
        for (bytes, expected) in [(0, 0), (1, 1), (UNIT, 1), (UNIT + 1, 2)] {
            let space = Space::new(4 * UNIT);
            let mut room = space.take(bytes).expect("room");
            assert_eq!(space.free(), 4 - expected);
            room.grow(3 * UNIT).expect("room");
            assert_eq!(space.free(), 1);
            assert!(room.grow(5 * UNIT).is_none());
            drop(room);
            assert_eq!(space.free(), 4);
        }
    }
}
