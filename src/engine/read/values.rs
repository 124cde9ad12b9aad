//! Memory of values. A value can be many times larger than its rows, so a read reserves memory before it
//! decodes. The reservation lives as long as the value. Values of kinds with small states need none, but their
//! packs do until they are merged.

use std::ops::Deref;

use orderfree_core::crdt::Kind;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::{KeyValue, ReadError};
use crate::engine::memory::{MemoryBudget, MemoryPermit};
use crate::limits;

/// Approximate memory in which the packs of kinds with small states are merged, for each of their bytes: the
/// rows and their decoded entries.
const PACKS_MEMORY_FACTOR: usize = 4;

/// A value and its memory reservation.
#[derive(Debug)]
pub struct ReservedValue {
    value: KeyValue,
    room: ValueMemory,
}

impl ReservedValue {
    /// Shrinks the reservation to the size of the merged value: rows can have much in common.
    pub(super) fn new(value: KeyValue, mut room: ValueMemory, rows: usize) -> ReservedValue {
        if value.key.kind.about().is_small() {
            room.room = None;
        } else if room.room.is_some() && rows > 1 {
            room.shrink(value.state.memory_bytes());
        }
        ReservedValue { value, room }
    }

    /// Approximate size of the value in memory, in bytes. 0 for kinds with small states.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.room.bytes
    }
}

impl Deref for ReservedValue {
    type Target = KeyValue;

    fn deref(&self) -> &KeyValue {
        &self.value
    }
}

/// The memory reservation of a value, returned on drop.
#[derive(Debug)]
pub(super) struct ValueMemory {
    bytes: usize,
    /// `None` for a small value.
    room: Option<MemoryPermit>,
}

impl ValueMemory {
    fn shrink(&mut self, bytes: usize) {
        self.bytes = self.bytes.min(bytes);
        if let Some(room) = &mut self.room {
            room.shrink(self.bytes);
        }
    }
}

/// The limits of all reads of a pod.
#[derive(Debug)]
pub(super) struct Values {
    turns: Semaphore,
    long_turns: Semaphore,
    waiting_rows: MemoryBudget,
    /// Memory of values in use and of cached values.
    all: MemoryBudget,
    kept: MemoryBudget,
}

impl Default for Values {
    fn default() -> Values {
        Values {
            turns: Semaphore::new(limits::LARGE_KEYS_AT_ONCE),
            long_turns: Semaphore::new(limits::LONG_KEYS_AT_ONCE),
            waiting_rows: MemoryBudget::new(limits::WAITING_ROWS_BYTES_MAX),
            all: MemoryBudget::new(limits::VALUES_BYTES_MAX + limits::RECENT_BYTES_MAX),
            kept: MemoryBudget::new(limits::RECENT_BYTES_MAX),
        }
    }
}

impl Values {
    /// Waits for a turn to read the rows of a key of a kind that can be large.
    pub(super) async fn turn(&self, kind: Kind) -> Result<Option<SemaphorePermit<'_>>, ReadError> {
        if kind.about().is_small() {
            return Ok(None);
        }
        match timeout(limits::TURN_WAIT_MAX, self.turns.acquire()).await {
            Ok(turn) => Ok(Some(turn.expect("invariant: the semaphore is never closed"))),
            Err(_) => {
                Err(ReadError::Overloaded("this pod is reading too many keys that can be large"))
            }
        }
    }

    /// Waits for a turn to read a key with many rows.
    pub(super) async fn long_turn(&self) -> Result<SemaphorePermit<'_>, ReadError> {
        const FULL: ReadError =
            ReadError::Overloaded("this pod is reading too many keys with many rows");
        let turn = timeout(limits::LONG_KEY_TURN_WAIT_MAX, self.long_turns.acquire())
            .await
            .map_err(|_| FULL)?;
        Ok(turn.expect("invariant: the semaphore is never closed"))
    }

    /// Reserves memory for the value of rows of this size, and waits for it if it must. Before a wait, `let_go`
    /// must release the memory that the caller holds.
    pub(super) async fn room(
        &self,
        kind: Kind,
        rows_bytes: usize,
        let_go: impl FnOnce(),
    ) -> Result<ValueMemory, ReadError> {
        const FULL: ReadError = ReadError::Overloaded("this pod is reading too many large values");
        let bytes = kind.about().memory_bytes(rows_bytes);
        let needed = match kind.about().is_small() {
            true => PACKS_MEMORY_FACTOR * rows_bytes,
            false => bytes,
        };
        if needed <= limits::VALUE_SMALL_BYTES {
            return Ok(ValueMemory { bytes, room: None });
        }
        // Cached values leave this much.
        let needed = needed.min(limits::VALUES_BYTES_MAX);
        if let Some(room) = self.all.take(needed) {
            return Ok(ValueMemory { bytes, room: Some(room) });
        }
        let_go();
        // Rows larger than the budget wait too, but alone.
        let waiting = self.waiting_rows.take(rows_bytes.min(limits::WAITING_ROWS_BYTES_MAX));
        let _waiting = waiting.ok_or(FULL)?;
        match timeout(limits::READ_MEMORY_WAIT_MAX, self.all.wait(needed)).await {
            Ok(room) => Ok(ValueMemory { bytes, room: Some(room) }),
            Err(_) => Err(FULL),
        }
    }

    /// Reserves memory to cache a value. `let_go` drops cached values one by one until there is room. Returns
    /// `None` if the value is too large, or if no cached value is left to drop.
    pub(super) fn keep(
        &self,
        bytes: usize,
        mut let_go: impl FnMut() -> bool,
    ) -> Option<MemoryPermit> {
        if bytes > limits::RECENT_VALUE_BYTES_MAX {
            return None;
        }
        loop {
            let room = self.kept.take(bytes);
            if room.is_some() || !let_go() {
                return room;
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::future::pending;
    use std::iter::repeat_with;
    use std::pin::pin;
    use std::sync::Arc;
    use std::time::Duration;

    use futures::FutureExt;
    use orderfree_core::crdt::State;
    use orderfree_core::protocol::consistency::Level;
    use orderfree_core::protocol::{Key, Name, Timestamp};
    use tokio::time::Instant;

    use super::*;
    use crate::store::Sight;

    const KIND: Kind = Kind::OrSet;

    /// A value of this size in memory.
    pub(crate) fn held(state: State, bytes: usize) -> Arc<ReservedValue> {
        let name = |text| Name::new(text).expect("a name");
        let key = Key { kind: state.kind(), group: name("g"), name: name("n") };
        let room = ValueMemory { bytes, room: None };
        let (as_of, level) = (Timestamp::from_micros(1), Level::One);
        let (shards, folded_through) = (1, None);
        let (is_full, sight) = (false, Sight::All);
        let value =
            KeyValue { key, state, shards, bytes, folded_through, is_full, as_of, level, sight };
        Arc::new(ReservedValue { value, room })
    }

    /// The size of rows whose value has about this size in memory.
    fn rows(memory_bytes: usize) -> usize {
        memory_bytes / KIND.about().memory_bytes(1)
    }

    fn whole(values: &Values) -> bool {
        let spaces = [&values.all, &values.kept, &values.waiting_rows];
        spaces.iter().all(|space| space.free() == space.units())
            && values.turns.available_permits() == limits::LARGE_KEYS_AT_ONCE
    }

    #[tokio::test(start_paused = true)]
    async fn values_wait_for_room_and_their_rows_have_a_bound() {
        let values = Values::default();
        let room = |memory_bytes| values.room(KIND, rows(memory_bytes), || ());
        let large = limits::VALUES_BYTES_MAX / 2;
        let held: Vec<_> =
            repeat_with(|| room(large).now_or_never()).map_while(|room| room).collect();
        assert_eq!(held.len(), 3, "values, and as much as can be cached");
        assert!(held.iter().all(Result::is_ok));
        room(limits::VALUE_SMALL_BYTES).now_or_never().expect("it needs none").map(drop).expect("");
        let waiting_max = limits::WAITING_ROWS_BYTES_MAX / rows(large);
        let mut waiting: Vec<_> = (0..=waiting_max).map(|_| Box::pin(room(large))).collect();
        let answers = waiting.iter_mut().map(|room| room.as_mut().now_or_never());
        let refused: Vec<_> = answers.flatten().collect();
        assert!(matches!(refused[..], [Err(ReadError::Overloaded(_))]), "{refused:?}");
        drop(waiting);
        // A value and rows larger than the budgets wait for all of the budget and no more.
        let mut largest = pin!(room(20 * large));
        assert!(rows(20 * large) > limits::WAITING_ROWS_BYTES_MAX);
        assert!(largest.as_mut().now_or_never().is_none());
        drop(held);
        drop(largest.now_or_never().expect("all is free").expect("room"));
        assert!(whole(&values));
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_waited_for_long_is_refused_and_leaves_nothing_behind() {
        let values = Values::default();
        let until = Instant::now() + limits::READ_MEMORY_WAIT_MAX;
        let everything = limits::VALUES_BYTES_MAX + limits::RECENT_BYTES_MAX;
        let held = values.all.take(everything).expect("room");
        let mut has_let_go = false;
        let refused = values.room(KIND, 10_000, || has_let_go = true).await;
        assert!(matches!(refused, Err(ReadError::Overloaded(_))), "{refused:?}");
        assert!(has_let_go && Instant::now() >= until);
        let turns = (0..limits::LARGE_KEYS_AT_ONCE).map(|_| values.turn(KIND).now_or_never());
        let turns: Vec<_> = turns.collect();
        assert!(turns.iter().all(|turn| matches!(turn, Some(Ok(Some(_))))));
        assert!(values.turn(Kind::Counter).await.is_ok_and(|turn| turn.is_none()));
        let refused = values.turn(KIND).await;
        assert!(matches!(refused, Err(ReadError::Overloaded(_))), "{refused:?}");
        let gone = tokio::time::timeout(Duration::from_millis(1), async {
            let _room = values.room(KIND, 10_000, || ()).await;
            pending::<()>().await;
        });
        gone.await.expect_err("its reader is gone");
        drop((held, turns));
        assert!(whole(&values));
    }

    #[test]
    fn what_is_kept_makes_room_for_what_comes_later() {
        let values = Values::default();
        let bytes = limits::RECENT_VALUE_BYTES_MAX;
        assert!(values.keep(bytes + 1, || panic!("it is too large")).is_none());
        let mut kept: Vec<_> =
            repeat_with(|| values.keep(bytes, || false)).map_while(|room| room).collect();
        assert_eq!(kept.len(), limits::RECENT_BYTES_MAX / bytes);
        assert!(values.keep(1, || kept.pop().is_some()).is_some());
        assert_eq!(kept.len(), limits::RECENT_BYTES_MAX / bytes - 1);
        drop(kept);
        assert!(whole(&values));
    }

    /// Ten thousand ids have 230 kB, and their counter has a few bytes.
    #[tokio::test(start_paused = true)]
    async fn packs_have_room_until_they_are_merged() {
        let (values, bytes) = (Values::default(), 230_000);
        let room = || values.room(Kind::Counter, bytes, || ());
        let most = (limits::VALUES_BYTES_MAX + limits::RECENT_BYTES_MAX) / bytes;
        let mut held: Vec<_> =
            repeat_with(|| room().now_or_never()).take(most).map_while(|room| room).collect();
        assert!((20..most).contains(&held.len()), "{} at once", held.len());
        let state = State::new(Kind::Counter, None);
        let of_one = held.pop().expect("one").expect("room");
        let value = ReservedValue::new(KeyValue::clone(&super::tests::held(state, 0)), of_one, 20);
        assert_eq!(value.memory_bytes(), 0);
        assert!(room().now_or_never().is_some_and(|room| room.is_ok()), "its room is free again");
        drop(held);
        assert!(whole(&values));
    }

    #[test]
    fn a_value_has_no_more_room_than_it_takes() {
        let values = Values::default();
        let state = State::new(KIND, None);
        for (rows, expected) in [(1, 250_000), (2, state.memory_bytes())] {
            let room = values.room(KIND, 10_000, || ()).now_or_never();
            let room = room.expect("it is free").expect("room");
            let value = KeyValue::clone(&held(state.clone(), 0));
            let held = ReservedValue::new(value, room, rows);
            assert_eq!(held.memory_bytes(), expected);
            let taken = expected.div_ceil(limits::ROOM_UNIT_BYTES);
            assert_eq!(values.all.free() + taken, values.all.units());
            drop(held);
            assert!(whole(&values));
        }
    }
}
