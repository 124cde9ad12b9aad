//! The ids of updates: what clients do with them, and which acknowledged updates they send again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use rand::Rng;
use rand::rngs::SmallRng;
use serde::Serialize;
use tokio::time::Instant;
use uuid::{Builder, Uuid};

use crate::client::Add;
use crate::locked::locked;
use crate::workload::{Key, Window};

/// One in this number of acknowledged updates is sent again.
const REPEATED_ONE_IN: u32 = 10;
/// Repeats that wait until they are due, at about 200 bytes each. Half of them can be for later, so that repeats
/// at once always find room.
const WAITING_MAX: usize = 200_000;
/// Updates in one request of repeats.
const REPEATS_AT_ONCE: usize = 100;

/// The ids of a run: the windows that they use, what clients did with them, and what is to be repeated.
#[derive(Debug)]
pub(crate) struct Ids {
    windows: Vec<Window>,
    figures: Mutex<IdFigures>,
    waiting: Mutex<BinaryHeap<Reverse<Repeat>>>,
}

/// What clients did with ids.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct IdFigures {
    /// Distinct ids, each of one update.
    pub ids: u64,
    /// Updates that were sent with an id: the first time, and each repeat.
    pub sent: u64,
    /// Repeats of updates that were not acknowledged yet.
    pub repeats: u64,
    /// Repeats of acknowledged updates.
    pub repeats_after_ack: u64,
    /// Repeats of acknowledged updates whose key was reset since.
    pub repeats_after_reset: u64,
    /// Repeats of acknowledged updates that came too late for their window.
    pub expired_after_ack: u64,
    /// Updates whose window ended before a pod acknowledged them.
    pub expired: u64,
    /// Updates with an id whose outcome is unknown at the end. The expired ones are among them, unless all
    /// their requests were refused.
    pub unknown: u64,
    /// Updates with an id of which every request was refused.
    pub refused: u64,
    /// Answers that said that an id belongs to another update.
    pub conflicts: u64,
}

/// An acknowledged update to send again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Repeat {
    pub(crate) due: Instant,
    /// When it was acknowledged.
    pub(crate) acked: Instant,
    pub(crate) id: Uuid,
    pub(crate) window: Window,
    pub(crate) key: Key,
    pub(crate) weight: u64,
}

impl Ids {
    /// The ids of a run whose requests draw one of these windows. Without any, there are no ids.
    pub(crate) fn new(windows: Vec<Window>) -> Self {
        Self { windows, figures: Mutex::default(), waiting: Mutex::default() }
    }

    /// What clients did with ids; `None` if there are none.
    pub(crate) fn report(&self) -> Option<IdFigures> {
        (!self.windows.is_empty()).then(|| self.figures().clone())
    }

    /// Whether some ids are not folded within minutes.
    pub(crate) fn outlive_the_check(&self) -> bool {
        self.windows.iter().any(|window| *window > Window::Minute)
    }

    /// Draws the window of a request.
    pub(crate) fn draw(&self, rng: &mut SmallRng) -> Window {
        match self.windows.len() {
            0 => Window::None,
            count => self.windows[rng.random_range(0..count)],
        }
    }

    /// Makes the id of a new update.
    pub(crate) fn make(&self, window: Window, rng: &mut SmallRng) -> Option<Uuid> {
        if window == Window::None {
            return None;
        }
        let mut figures = self.figures();
        figures.ids += 1;
        figures.sent += 1;
        Some(uuid_v7(rng))
    }

    pub(crate) fn figures(&self) -> MutexGuard<'_, IdFigures> {
        locked(&self.figures)
    }

    fn waiting(&self) -> MutexGuard<'_, BinaryHeap<Reverse<Repeat>>> {
        locked(&self.waiting)
    }

    /// Plans the repeats of an acknowledged update, if it gets any.
    pub(crate) fn plan(&self, window: Window, op: &Add<'_>, rng: &mut SmallRng) {
        let Some(repeat) = Repeat::now(window, op).filter(|_| rng.random_ratio(1, REPEATED_ONE_IN))
        else {
            return;
        };
        let later = repeat.due + rng.random_range(Duration::ZERO..window.longest());
        self.push(Repeat { due: later, ..repeat.clone() }, WAITING_MAX / 2);
        self.repeat(repeat);
    }

    /// Plans one repeat of an acknowledged update.
    pub(crate) fn repeat(&self, repeat: Repeat) {
        self.push(repeat, WAITING_MAX);
    }

    fn push(&self, repeat: Repeat, room: usize) {
        let mut waiting = self.waiting();
        if waiting.len() < room {
            waiting.push(Reverse(repeat));
        }
    }

    /// Takes repeats of one window that are due.
    pub(crate) fn take_due(&self) -> Vec<Repeat> {
        let (now, mut waiting) = (Instant::now(), self.waiting());
        let mut taken: Vec<Repeat> = Vec::new();
        while taken.len() < REPEATS_AT_ONCE
            && waiting.peek().is_some_and(|Reverse(next)| {
                next.due <= now && taken.first().is_none_or(|first| first.window == next.window)
            })
        {
            taken.extend(waiting.pop().map(|Reverse(repeat)| repeat));
        }
        taken
    }
}

impl Repeat {
    /// The repeat of an update that was acknowledged now, if it has an id.
    pub(crate) fn now(window: Window, op: &Add<'_>) -> Option<Self> {
        let (now, key, weight) = (Instant::now(), op.key.clone(), op.weight);
        op.id.map(|id| Self { due: now, acked: now, id, window, key, weight })
    }
}

/// A UUID of version 7 by the wall clock of this machine.
pub(crate) fn uuid_v7(rng: &mut SmallRng) -> Uuid {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let millis = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    Builder::from_unix_timestamp_millis(millis, &rng.random()).into_uuid()
}

impl IdFigures {
    /// Why a run with these figures does not pass.
    pub(crate) fn failures(&self) -> Vec<String> {
        [
            (
                self.unknown,
                "updates with an id are unknown: their window ended before they were acknowledged",
            ),
            (self.refused, "updates with an id were refused until their window ended"),
            (self.conflicts, "answers said that an id belongs to another update"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;
    use crate::workload::Kind;

    #[test]
    fn repeats_are_taken_when_due_and_by_window() {
        let (ids, mut rng) = (Ids::new(vec![Window::Minute]), SmallRng::seed_from_u64(1));
        let key = Key { kind: Kind::Counter, group: "g".to_owned(), name: "k".to_owned() };
        for number in 0..1_000 {
            let window = if number < 500 { Window::Minute } else { Window::Short };
            let op = Add { key: &key, weight: 1, id: Some(uuid_v7(&mut rng)) };
            ids.plan(window, &op, &mut rng);
        }
        let planned = ids.waiting().len();
        assert!((120..280).contains(&planned), "two of each tenth: {planned}");
        let mut taken = Vec::new();
        loop {
            let due = ids.take_due();
            let Some(first) = due.first() else { break };
            assert!(due.iter().all(|repeat| repeat.window == first.window));
            taken.extend(due);
        }
        assert!((planned / 2..planned / 2 + 10).contains(&taken.len()), "the later ones stay");
    }

    #[test]
    fn ids_have_the_time_of_this_machine_inside() {
        let id = uuid_v7(&mut SmallRng::seed_from_u64(1));
        let (seconds, _) = id.get_timestamp().expect("version 7").to_unix();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        assert!(now.as_secs().abs_diff(seconds) <= 1, "{id}");
    }
}
