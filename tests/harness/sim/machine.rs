//! The machine of a simulated pod: its clocks, and a process that can be stopped, resumed and killed.
//!
//! A stopped process sees no time pass. Its timers fire only after it is resumed, and it finds an answer that arrived
//! meanwhile before the timer, as after SIGSTOP and SIGCONT.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use orderfree::runtime::clock::Clock;
use orderfree_core::protocol::{Now, Timestamp};
use tokio::time::Instant;

/// True time at the start of every simulation, in µs: 2026-01-01.
pub(crate) const EPOCH_US: i64 = 1_767_225_600_000_000;

/// True time, which the whole simulation shares.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TrueTime(Instant);

impl TrueTime {
    pub(crate) fn begin() -> TrueTime {
        TrueTime(Instant::now())
    }

    /// Time since the start of the simulation.
    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    pub(crate) fn now_us(self) -> i64 {
        EPOCH_US + micros(self.elapsed())
    }
}

pub(crate) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).expect("a simulation is short")
}

#[derive(Debug, Default)]
enum Process {
    #[default]
    Running,
    Stopped(Vec<Waker>),
    Dead,
}

/// One pod's machine and process.
#[derive(Debug)]
pub(crate) struct Machine {
    time: TrueTime,
    booted: Duration,
    /// Wall clock minus true time.
    skew_us: AtomicI64,
    /// The wall clock shows multiples of this. Zero means every microsecond.
    tick: Duration,
    process: Mutex<Process>,
    /// What the clocks show next instead of the time, to break I3.
    stale: Mutex<Option<Now>>,
}

impl Machine {
    /// Boots `before` the start of the simulation.
    pub(crate) fn boot(
        time: TrueTime,
        before: Duration,
        skew_us: i64,
        tick: Duration,
    ) -> Arc<Machine> {
        Arc::new(Machine {
            time,
            booted: before,
            skew_us: AtomicI64::new(skew_us),
            tick,
            process: Mutex::default(),
            stale: Mutex::default(),
        })
    }

    /// Sets the wall clock.
    pub(crate) fn set_skew(&self, skew_us: i64) {
        self.skew_us.store(skew_us, Ordering::SeqCst);
    }

    /// SIGSTOP.
    pub(crate) fn stop(&self) {
        let mut process = self.process();
        if matches!(*process, Process::Running) {
            *process = Process::Stopped(Vec::new());
        }
    }

    /// SIGCONT. Waiting tasks continue in the order in which they began to wait, or in reverse.
    pub(crate) fn resume(&self, last_first: bool) {
        let mut process = self.process();
        if let Process::Stopped(wakers) = &mut *process {
            if last_first {
                wakers.reverse();
            }
            wakers.drain(..).for_each(Waker::wake);
            *process = Process::Running;
        }
    }

    /// SIGKILL: nothing of the process runs again.
    pub(crate) fn kill(&self) {
        *self.process() = Process::Dead;
    }

    pub(crate) fn is_dead(&self) -> bool {
        matches!(*self.process(), Process::Dead)
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(*self.process(), Process::Running)
    }

    /// Runs a part of the process. It stands still while the process is stopped, and forever after the process was
    /// killed.
    pub(crate) async fn run<F: Future>(&self, part: F) -> F::Output {
        let mut part = pin!(part);
        poll_fn(
            |context| {
                if self.stands(context) { Poll::Pending } else { part.as_mut().poll(context) }
            },
        )
        .await
    }

    /// Makes the clocks show an earlier time once.
    pub(crate) fn show_once(&self, earlier: Now) {
        *self.stale.lock().unwrap_or_else(PoisonError::into_inner) = Some(earlier);
    }

    fn stands(&self, context: &Context<'_>) -> bool {
        match &mut *self.process() {
            Process::Running => false,
            Process::Dead => true,
            Process::Stopped(wakers) => {
                wakers.push(context.waker().clone());
                true
            }
        }
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for Machine {
    fn now(&self) -> Now {
        if let Some(stale) = self.stale.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return stale;
        }
        let wall_us = self.time.now_us() + self.skew_us.load(Ordering::SeqCst);
        let wall = Timestamp::from_micros(wall_us);
        let wall = if self.tick.is_zero() { wall } else { wall.floor_to(self.tick) };
        Now { wall, boot: self.booted + self.time.elapsed() }
    }
}
