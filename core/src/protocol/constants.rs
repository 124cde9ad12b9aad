//! The protocol's time constants and the rules between them, checked at start.

use std::time::Duration;

use thiserror::Error;

use super::op_id::Window;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Write attempts that fit into one request budget.
const ATTEMPTS_PER_BUDGET: u32 = 5;

/// The longest span of any constant: far longer than useful, far below the range of a timestamp.
pub(crate) const SPAN_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// The longest time between an op and the expiry of its row, for kinds that
/// [forget](crate::crdt::Crdt::FORGETS). Every release must use the same value: it decides what folds drop.
pub const OP_AGE_MAX: Duration = Duration::from_secs(8 * 24 * 3600);

/// A consistent set of time constants. All pods of an installation should have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Constants {
    lifetime: Duration,
    drain_margin: Duration,
    cutoff: Duration,
    request_budget: Duration,
    clock_offset_max: Duration,
    fence_quantum: Duration,
    sweep_every: Duration,
    reset_memory: Option<Duration>,
    is_assumed: bool,
}

/// The operator's choices. The rest follows from the formulas of [`Constants::resolve`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overrides {
    /// L: from a mutator's birth to its expiry. Default 24 h, at most about 8 days.
    pub lifetime: Option<Duration>,
    /// D: how long before its expiry a mutator stops taking ops. Default 1 h.
    pub drain_margin: Option<Duration>,
    /// C: how long after its expiry a shard becomes final. Default 3 min.
    pub cutoff: Option<Duration>,
    /// R: no write takes longer than this. Default min(10 s, D/5).
    pub request_budget: Option<Duration>,
    /// ε: the largest measured clock offset at which a pod serves. Default min(5 s, 2D/5).
    pub clock_offset_max: Option<Duration>,
    /// Fences are rounded down to a multiple of this. Default min(60 s, C/30).
    pub fence_quantum: Option<Duration>,
    /// The time from one sweep of a pod over all keys to the next. Default min(1 h, L/2). No rule depends on
    /// it: a sweep reads every primary key of the table, and finds the keys that are not read.
    pub sweep_every: Option<Duration>,
    /// The longest time from an id to its expiry, for a simulation that has only short windows. See
    /// [`Constants::reset_memory`].
    #[doc(hidden)]
    pub reset_memory: Option<Duration>,
    /// For write consistency below a quorum: the cluster's `max_hint_window`.
    pub hint_window: Option<Duration>,
}

/// A rule between constants that the chosen values break.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConstantsError {
    /// A span is zero or longer than 366 days.
    #[error("{name} is {value:?}; it must be longer than zero and at most 366 days")]
    Range {
        /// Which constant.
        name: &'static str,
        /// Its value.
        value: Duration,
    },
    /// D >= L: a mutator would be born draining.
    #[error("drain margin {drain_margin:?} must be shorter than lifetime {lifetime:?}")]
    Lifetime {
        /// D.
        drain_margin: Duration,
        /// L.
        lifetime: Duration,
    },
    /// L + R + 2ε > [`OP_AGE_MAX`]: a fold could forget a removal before it has folded every older add.
    #[error(
        "lifetime {lifetime:?} must be at most 8 days minus request budget {request_budget:?} and \
         twice the clock offset limit {clock_offset_max:?}, as folds forget older removals"
    )]
    OpAge {
        /// L.
        lifetime: Duration,
        /// R.
        request_budget: Duration,
        /// ε.
        clock_offset_max: Duration,
    },
    /// D < R + 2ε: a write could still be under way at the expiry.
    #[error(
        "drain margin {drain_margin:?} must be at least request budget {request_budget:?} plus \
         twice the clock offset limit {clock_offset_max:?}"
    )]
    DrainMargin {
        /// D.
        drain_margin: Duration,
        /// R.
        request_budget: Duration,
        /// ε.
        clock_offset_max: Duration,
    },
    /// C <= 2ε + R: a shard could be folded before its last acknowledgement.
    #[error(
        "cutoff {cutoff:?} must be longer than request budget {request_budget:?} plus twice the \
         clock offset limit {clock_offset_max:?}"
    )]
    Cutoff {
        /// C.
        cutoff: Duration,
        /// R.
        request_budget: Duration,
        /// ε.
        clock_offset_max: Duration,
    },
    /// Writes below a quorum reach the other replicas by hints, so the cutoff must be longer than the hint
    /// window.
    #[error(
        "with a write consistency below a quorum, cutoff {cutoff:?} must be longer than the hint \
         window {hint_window:?} plus one hour"
    )]
    HintWindow {
        /// C.
        cutoff: Duration,
        /// The cluster's `max_hint_window`.
        hint_window: Duration,
    },
    /// C <= M + R + 2ε + Δ: a fold that was planned before a reset could have a fence above it.
    #[error(
        "keys can be reset only if cutoff {cutoff:?} is longer than {least:?} (time for a reset, request \
         budget, twice the clock offset limit and the head start of a grave); choose a longer cutoff"
    )]
    ResetCutoff {
        /// C.
        cutoff: Duration,
        /// M + R + 2ε + Δ.
        least: Duration,
    },
    /// C <= R + 2ε + Δ: an update of a key that is being forgotten could lie below the grave.
    #[error(
        "keys can be forgotten only if cutoff {cutoff:?} is longer than {least:?} (request budget plus twice \
         the clock offset limit plus the head start of a grave); choose a longer cutoff"
    )]
    ForgetCutoff {
        /// C.
        cutoff: Duration,
        /// R + 2ε + Δ.
        least: Duration,
    },
    /// A key that is in use can be without a final row for L + C.
    #[error(
        "idle_ttl {idle_ttl:?} is too short: with this lifetime and cutoff it must be at least {least:?}"
    )]
    IdleTtl {
        /// The chosen time.
        idle_ttl: Duration,
        /// L + C + 1 h.
        least: Duration,
    },
}

impl Constants {
    /// Fills in the defaults and checks every rule.
    ///
    /// # Errors
    /// The first [`ConstantsError`] found.
    pub fn resolve(overrides: Overrides) -> Result<Constants, ConstantsError> {
        let lifetime = overrides.lifetime.unwrap_or(24 * HOUR);
        let drain_margin = overrides.drain_margin.unwrap_or(HOUR);
        let cutoff = overrides.cutoff.unwrap_or(3 * MINUTE);
        let request_budget =
            overrides.request_budget.unwrap_or((10 * SECOND).min(drain_margin / 5));
        // Saturating, because nothing is checked yet.
        let clock_offset_max = overrides
            .clock_offset_max
            .unwrap_or((5 * SECOND).min(drain_margin.saturating_mul(2) / 5));
        let fence_quantum = overrides.fence_quantum.unwrap_or(MINUTE.min(cutoff / 30));
        let sweep_every = overrides.sweep_every.unwrap_or(HOUR.min(lifetime / 2));
        for (name, value) in [
            ("lifetime", lifetime),
            ("drain margin", drain_margin),
            ("cutoff", cutoff),
            ("request budget", request_budget),
            ("clock offset limit", clock_offset_max),
            ("fence quantum", fence_quantum),
            ("time between sweeps", sweep_every),
        ] {
            if value < Duration::from_millis(1) || value > SPAN_MAX {
                return Err(ConstantsError::Range { name, value });
            }
        }
        if drain_margin >= lifetime {
            return Err(ConstantsError::Lifetime { drain_margin, lifetime });
        }
        let slack = request_budget + 2 * clock_offset_max;
        if lifetime + slack > OP_AGE_MAX {
            return Err(ConstantsError::OpAge { lifetime, request_budget, clock_offset_max });
        }
        if drain_margin < slack {
            return Err(ConstantsError::DrainMargin {
                drain_margin,
                request_budget,
                clock_offset_max,
            });
        }
        if cutoff <= slack {
            return Err(ConstantsError::Cutoff { cutoff, request_budget, clock_offset_max });
        }
        if let Some(hint_window) = overrides.hint_window
            && cutoff <= hint_window.saturating_add(HOUR)
        {
            return Err(ConstantsError::HintWindow { cutoff, hint_window });
        }
        Ok(Constants {
            lifetime,
            drain_margin,
            cutoff,
            request_budget,
            clock_offset_max,
            fence_quantum,
            sweep_every,
            reset_memory: overrides.reset_memory,
            is_assumed: false,
        })
    }

    /// For tools that do not fold: the pods may have other constants. So the cutoff proves nothing about their clocks.
    #[must_use]
    pub fn assumed(self) -> Constants {
        Constants { is_assumed: true, ..self }
    }

    /// C, or zero if the pods can have another one.
    #[must_use]
    pub fn known_cutoff(&self) -> Duration {
        if self.is_assumed { Duration::ZERO } else { self.cutoff }
    }

    /// L: from a mutator's birth to its expiry.
    #[must_use]
    pub fn lifetime(&self) -> Duration {
        self.lifetime
    }

    /// From birth to expiry of a mutator that is born while its pod remembers a reset of the key: D and an hour, and at
    /// most L. Each reset gives the key new rows, so folds must be able to take the earlier rows soon.
    #[must_use]
    pub fn lifetime_after_reset(&self) -> Duration {
        self.lifetime.min(self.drain_margin + HOUR)
    }

    /// D: how long before its expiry a mutator stops taking ops.
    #[must_use]
    pub fn drain_margin(&self) -> Duration {
        self.drain_margin
    }

    /// R + 2ε: how long before its expiry a mutator of ops with ids stops taking them. This is the shortest
    /// drain margin that the rules allow, because clients wait for the window between.
    #[must_use]
    pub fn id_drain_margin(&self) -> Duration {
        self.request_budget + 2 * self.clock_offset_max
    }

    /// C: how long after its expiry a shard becomes final.
    #[must_use]
    pub fn cutoff(&self) -> Duration {
        self.cutoff
    }

    /// R: no write takes longer than this.
    #[must_use]
    pub fn request_budget(&self) -> Duration {
        self.request_budget
    }

    /// The maximum duration of one write attempt.
    #[must_use]
    pub fn attempt_budget(&self) -> Duration {
        self.request_budget / ATTEMPTS_PER_BUDGET
    }

    /// ε: the largest measured clock offset at which a pod serves.
    #[must_use]
    pub fn clock_offset_max(&self) -> Duration {
        self.clock_offset_max
    }

    /// Fences are rounded down to a multiple of this, so that concurrent folds write the same bytes.
    #[must_use]
    pub fn fence_quantum(&self) -> Duration {
        self.fence_quantum
    }

    /// The time from one sweep of a pod over all keys to the next.
    #[must_use]
    pub fn sweep_every(&self) -> Duration {
        self.sweep_every
    }

    /// ℓ: how long a look at the log of resets lets a pod take and acknowledge updates.
    #[must_use]
    pub fn reset_lease(&self) -> Duration {
        (10 * SECOND).min(self.cutoff / 15)
    }

    /// The time from one look at the log of resets to the next.
    #[must_use]
    pub fn reset_poll(&self) -> Duration {
        SECOND.min(self.reset_lease() / 4)
    }

    /// M: the time that a reset has, from its first look at the log to the last sending of its marker.
    #[must_use]
    pub fn reset_budget(&self) -> Duration {
        self.reset_lease() * 5 / 2 + self.request_budget
    }

    /// Λ: how long a reset is remembered. A row that was born before all pods knew of it expires before that.
    #[must_use]
    pub fn reset_memory(&self) -> Duration {
        let rows = self.reset_memory.unwrap_or(2 * Window::Long.length()).max(self.lifetime);
        rows + self.reset_budget() + 2 * self.reset_lease() + 4 * self.clock_offset_max
    }

    /// M + 4ε: for this long after a reset, an id's time does not tell on which side of the reset its copies lie.
    #[must_use]
    pub fn reset_blur(&self) -> Duration {
        self.reset_budget() + 4 * self.clock_offset_max
    }

    /// Δ: how far above its fence a grave is written. Folds that were planned before it, by any right clock, lie
    /// below that; see [`fold::plan_or_forget`](super::fold::plan_or_forget).
    #[must_use]
    pub fn grave_head_start(&self) -> Duration {
        2 * self.clock_offset_max + self.request_budget + 2 * self.fence_quantum
    }

    /// For how long a grave is written again: until every replica that is up has it.
    #[must_use]
    pub fn grave_repeats_for(&self) -> Duration {
        self.cutoff + DAY
    }

    /// Checks that keys can be reset. Folds that do not know of a reset were planned before its marker was sent.
    /// Their fences, and those of graves with their head start, must lie below the reset.
    ///
    /// # Errors
    /// [`ConstantsError::ResetCutoff`].
    pub fn check_resets(&self) -> Result<(), ConstantsError> {
        let slack = self.request_budget + 2 * self.clock_offset_max;
        let least = self.reset_budget() + slack + self.grave_head_start();
        match self.cutoff <= least {
            true => Err(ConstantsError::ResetCutoff { cutoff: self.cutoff, least }),
            false => Ok(()),
        }
    }

    /// Checks that keys can be forgotten after being idle for this long.
    ///
    /// # Errors
    /// [`ConstantsError::ForgetCutoff`] or [`ConstantsError::IdleTtl`].
    pub fn check_idle_ttl(&self, idle_ttl: Duration) -> Result<(), ConstantsError> {
        let least = self.request_budget + 2 * self.clock_offset_max + self.grave_head_start();
        if self.cutoff <= least {
            return Err(ConstantsError::ForgetCutoff { cutoff: self.cutoff, least });
        }
        let least = self.lifetime + self.cutoff + HOUR;
        match idle_ttl < least {
            true => Err(ConstantsError::IdleTtl { idle_ttl, least }),
            false => Ok(()),
        }
    }

    /// A warning for the log if mutators take ops for less than an hour, because each birth leaves a row.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        (self.lifetime < self.drain_margin + HOUR).then(|| {
            format!(
                "mutators take ops for only {:?}; short lives leave many shards to fold",
                self.lifetime - self.drain_margin
            )
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Option<Duration> {
        Some(Duration::from_secs(seconds))
    }

    fn short() -> Overrides {
        Overrides {
            lifetime: seconds(60),
            drain_margin: seconds(10),
            cutoff: seconds(30),
            ..Overrides::default()
        }
    }

    /// A lifetime of a minute.
    pub(in crate::protocol) fn constants() -> Constants {
        Constants::resolve(short()).expect("consistent")
    }

    #[test]
    fn defaults_are_consistent() {
        let constants = Constants::resolve(Overrides::default()).expect("consistent");
        assert_eq!(constants.request_budget(), 10 * SECOND);
        assert_eq!(constants.clock_offset_max(), 5 * SECOND);
        assert_eq!(constants.cutoff(), 3 * MINUTE);
        assert_eq!(constants.fence_quantum(), 6 * SECOND);
        assert_eq!(constants.sweep_every(), HOUR);
        assert_eq!(constants.attempt_budget(), 2 * SECOND);
        assert_eq!(constants.warning(), None);
    }

    #[test]
    fn three_values_alone_make_a_short_profile() {
        let constants = constants();
        assert_eq!(constants.request_budget(), 2 * SECOND);
        assert_eq!(constants.clock_offset_max(), 4 * SECOND);
        assert_eq!(constants.fence_quantum(), SECOND);
        assert_eq!(constants.sweep_every(), 30 * SECOND);
        assert!(constants.warning().is_some());
    }

    #[test]
    fn taking_ops_for_less_than_an_hour_is_worth_a_warning() {
        let warning = |lifetime| {
            let lifetime = Some(lifetime);
            let chosen = Overrides { lifetime, ..Overrides::default() };
            Constants::resolve(chosen).expect("consistent").warning()
        };
        assert_eq!(warning(2 * HOUR), None);
        let short = warning(2 * HOUR - SECOND).expect("a second too short");
        assert!(short.contains("for only 3599s"), "{short}");
    }

    #[test]
    fn each_rule_is_named_when_broken() {
        let base = short();
        let broken = |overrides| Constants::resolve(overrides).expect_err("broken").to_string();
        let range = broken(Overrides { lifetime: seconds(0), ..base });
        assert!(range.starts_with("lifetime is 0ns"), "{range}");
        let born = broken(Overrides { lifetime: seconds(10), ..base });
        assert!(born.contains("must be shorter than lifetime"), "{born}");
        let margin = broken(Overrides { clock_offset_max: seconds(5), ..base });
        assert!(margin.starts_with("drain margin 10s must be at least"), "{margin}");
        let cutoff = broken(Overrides { cutoff: seconds(10), ..base });
        assert!(cutoff.starts_with("cutoff 10s must be longer"), "{cutoff}");
        let hints = broken(Overrides { hint_window: seconds(3 * 3600), ..base });
        assert!(hints.contains("hint window 10800s"), "{hints}");
    }

    #[test]
    fn keys_are_reset_only_with_a_cutoff_that_allows_it() {
        let defaults = Constants::resolve(Overrides::default()).expect("defaults");
        assert_eq!((defaults.reset_lease(), defaults.reset_poll()), (10 * SECOND, SECOND));
        assert_eq!(defaults.reset_budget(), 35 * SECOND);
        assert_eq!(defaults.reset_memory(), 48 * HOUR + 75 * SECOND);
        assert_eq!(defaults.reset_blur(), 55 * SECOND);
        assert_eq!(defaults.check_resets(), Ok(()));
        let short = constants();
        assert_eq!((short.reset_lease(), short.reset_poll()), (2 * SECOND, SECOND / 2));
        assert_eq!(short.reset_budget(), 7 * SECOND);
        assert_eq!(short.check_resets(), Ok(()), "30 s, and 29 s are needed");
        let longer = Overrides { fence_quantum: Some(3 * SECOND / 2), ..self::short() };
        let error = Constants::resolve(longer).expect("consistent").check_resets();
        let (cutoff, least) = (30 * SECOND, 30 * SECOND);
        assert_eq!(error, Err(ConstantsError::ResetCutoff { cutoff, least }));
    }

    #[test]
    fn keys_are_forgotten_only_with_times_that_allow_it() {
        let defaults = Constants::resolve(Overrides::default()).expect("defaults");
        assert_eq!(defaults.grave_head_start(), Duration::from_secs(2 * 5 + 10 + 2 * 6));
        let least = 25 * HOUR + 3 * MINUTE;
        assert_eq!(defaults.check_idle_ttl(least), Ok(()));
        let idle_ttl = least - SECOND;
        let error = ConstantsError::IdleTtl { idle_ttl, least };
        assert_eq!(defaults.check_idle_ttl(idle_ttl), Err(error));
        let of = |cutoff| {
            let chosen = Overrides { cutoff: seconds(cutoff), ..Overrides::default() };
            Constants::resolve(chosen).expect("consistent").check_idle_ttl(100 * HOUR)
        };
        // R + 2ε + Δ is 40 s and two quanta of C/30.
        let least = Duration::from_micros(42_800_000);
        assert_eq!(
            of(42),
            Err(ConstantsError::ForgetCutoff { cutoff: Duration::from_secs(42), least })
        );
        assert_eq!(of(43), Ok(()));
    }

    #[test]
    fn a_span_is_a_leap_year_at_most() {
        let waiting = |cutoff| {
            let cutoff = Some(cutoff);
            Constants::resolve(Overrides { cutoff, ..Overrides::default() })
        };
        assert!(waiting(366 * 24 * HOUR).is_ok());
        let error = waiting(366 * 24 * HOUR + Duration::from_nanos(1)).expect_err("too long");
        assert!(matches!(error, ConstantsError::Range { name: "cutoff", .. }), "{error}");
    }

    #[test]
    fn no_mutator_lives_so_long_that_folds_forget_before_it_ends() {
        let living = |lifetime| {
            let lifetime = Some(lifetime);
            Constants::resolve(Overrides { lifetime, ..Overrides::default() })
        };
        // The default request budget and twice the default offset limit.
        let longest = 8 * 24 * HOUR - 20 * SECOND;
        assert!(living(longest).is_ok());
        let error = living(longest + Duration::from_nanos(1)).expect_err("too long").to_string();
        assert!(error.contains("must be at most 8 days minus request budget 10s"), "{error}");
    }

    #[test]
    fn absurdly_long_spans_are_refused_as_well() {
        let longest = Some(Duration::MAX);
        for (overrides, says) in [
            (Overrides { drain_margin: longest, ..Overrides::default() }, "drain margin"),
            (Overrides { cutoff: longest, ..Overrides::default() }, "cutoff"),
            (Overrides { hint_window: longest, ..Overrides::default() }, "with a write"),
        ] {
            let error = Constants::resolve(overrides).expect_err(says).to_string();
            assert!(error.starts_with(says), "{error}");
        }
    }
}
