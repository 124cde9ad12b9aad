//! The lease: the time in which a mutator can write. Keeps invariants I3 and I4.
//!
//! A mutator is *writable* if and only if both of its own clocks are before `expires_at - D`. A shard is
//! *final* if and only if `expires_at <= now - C` on the folder's clock. Since C > 2ε + R and D >= R + 2ε, no
//! two clocks within ε of true time see one mutator writable and final at the same time. Nor can an op be
//! acknowledged once any folder can see its shard as final.

use std::time::Duration;

use super::{Constants, Now, Timestamp};

/// When a mutator can take ops and have them acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    born: Now,
    expires_at: Timestamp,
    lifetime: Duration,
    drain_margin: Duration,
}

/// The phase of a shard, as one clock sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Its mutator can take ops.
    Live,
    /// Its mutator takes no more ops but can still write the ones it has.
    Draining,
    /// Its mutator is dead, but by some clocks a late acknowledgement is still possible.
    Expired,
    /// No write to it can be acknowledged any more, so a fold can take it.
    Final,
}

impl Lease {
    /// A lease of this lifetime that begins now.
    #[must_use]
    pub fn begin(now: Now, lifetime: Duration, constants: &Constants) -> Lease {
        let expires_at = now.wall.plus(lifetime);
        Lease { born: now, expires_at, lifetime, drain_margin: constants.drain_margin() }
    }

    /// A lease that begins now, of a mutator whose expiry follows from the ids of its ops. Its drain margin is
    /// the shortest that invariant I4 allows.
    pub(super) fn until(expires_at: Timestamp, now: Now, constants: &Constants) -> Lease {
        let lifetime = expires_at.since(now.wall);
        Lease { born: now, expires_at, lifetime, drain_margin: constants.id_drain_margin() }
    }

    /// The lease of a mutator that rested. It ends when it would have ended without the rest.
    pub(super) fn resumed(
        expires_at: Timestamp,
        born_boot: Duration,
        lifetime: Duration,
        constants: &Constants,
    ) -> Lease {
        let born = Now { wall: expires_at.minus(lifetime), boot: born_boot };
        Lease { born, expires_at, lifetime, drain_margin: constants.drain_margin() }
    }

    /// As [`Lease::resumed`], for a lease that was begun by [`Lease::until`].
    pub(super) fn resumed_until(
        expires_at: Timestamp,
        born_boot: Duration,
        lifetime: Duration,
        constants: &Constants,
    ) -> Lease {
        let born = Now { wall: expires_at.minus(lifetime), boot: born_boot };
        Lease { born, expires_at, lifetime, drain_margin: constants.id_drain_margin() }
    }

    /// The birth, on the boot-time clock.
    pub(super) fn born_boot(&self) -> Duration {
        self.born.boot
    }

    /// The time from birth to expiry.
    #[must_use]
    pub fn lifetime(&self) -> Duration {
        self.lifetime
    }

    /// When the mutator expires. This never changes.
    #[must_use]
    pub fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    /// Whether the mutator can take another op. Its age on the boot-time clock is checked as well as the wall
    /// clock, because a wall clock can be set back.
    #[must_use]
    pub fn is_writable(&self, now: Now) -> bool {
        now.wall < self.expires_at.minus(self.drain_margin)
            && self.age(now) < self.lifetime.saturating_sub(self.drain_margin)
    }

    /// Whether a write that the store has *already* acknowledged can be acknowledged to the client (I3).
    /// `now` must have been read after the store answered. So a pause between the check and the write can't
    /// lose an acknowledged update.
    #[must_use]
    pub fn ack_stands(&self, now: Now) -> bool {
        now.wall < self.expires_at && self.age(now) < self.lifetime
    }

    fn age(&self, now: Now) -> Duration {
        now.boot.saturating_sub(self.born.boot)
    }
}

impl Phase {
    /// The phase of a shard that is no pack, from its expiry alone, as folds and inspections see it.
    #[must_use]
    pub fn of(expires_at: Timestamp, now: Timestamp, constants: &Constants) -> Phase {
        Phase::by_margin(constants.drain_margin(), expires_at, now, constants)
    }

    /// The phase of a pack.
    #[must_use]
    pub fn of_pack(expires_at: Timestamp, now: Timestamp, constants: &Constants) -> Phase {
        Phase::by_margin(constants.id_drain_margin(), expires_at, now, constants)
    }

    fn by_margin(
        drain_margin: Duration,
        expires_at: Timestamp,
        now: Timestamp,
        constants: &Constants,
    ) -> Phase {
        if expires_at <= now.minus(constants.cutoff()) {
            Phase::Final
        } else if now >= expires_at {
            Phase::Expired
        } else if now >= expires_at.minus(drain_margin) {
            Phase::Draining
        } else {
            Phase::Live
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Overrides;
    use proptest::prelude::*;

    const SECOND_US: i64 = 1_000_000;

    fn constants() -> impl Strategy<Value = Constants> {
        let ms = |range: std::ops::Range<u64>| range.prop_map(|ms| Some(Duration::from_millis(ms)));
        (ms(2..200_000), ms(1..100_000), ms(1..100_000), ms(1..20_000), ms(1..40_000))
            .prop_filter_map(
                "rules broken",
                |(lifetime, drain_margin, cutoff, request_budget, clock_offset_max)| {
                    let fence_quantum = Some(Duration::from_millis(1));
                    Constants::resolve(Overrides {
                        lifetime,
                        drain_margin,
                        cutoff,
                        request_budget,
                        clock_offset_max,
                        fence_quantum,
                        ..Overrides::default()
                    })
                    .ok()
                },
            )
    }

    /// A clock whose distance from true time is this share of ε, from -1 to 1.
    fn clock(true_us: i64, share: f64, constants: &Constants) -> Timestamp {
        let epsilon_us = constants.clock_offset_max().as_micros() as f64;
        #[allow(clippy::cast_possible_truncation, reason = "a test's share of a small number")]
        Timestamp::from_micros(true_us + (epsilon_us * share) as i64)
    }

    proptest! {
        /// Invariant I4 for any two clocks within the offset limit, at any time of a mutator's life.
        #[test]
        fn never_writable_or_acked_on_one_clock_and_final_on_another(
            constants in constants(),
            (birth, pod, folder) in (-1.0..=1.0, -1.0..=1.0, -1.0..=1.0),
            life_share in 0.0..3.0f64,
        ) {
            let born_us = 1_000_000 * SECOND_US;
            let lifetime_us = constants.lifetime().as_micros() as f64;
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "test data")]
            let age_us = (lifetime_us * life_share) as u64;
            let boot = Duration::from_secs(77);
            let lease = Lease::begin(
                Now { wall: clock(born_us, birth, &constants), boot },
                constants.lifetime(),
                &constants,
            );
            let true_us = born_us + i64::try_from(age_us).unwrap();
            let pod_now = Now {
                wall: clock(true_us, pod, &constants),
                boot: boot + Duration::from_micros(age_us),
            };
            let folder_now = clock(true_us, folder, &constants);
            let phase = Phase::of(lease.expires_at(), folder_now, &constants);
            prop_assert!(!(lease.is_writable(pod_now) && phase == Phase::Final));
            prop_assert!(!(lease.ack_stands(pod_now) && phase == Phase::Final));
            // A write sent at the last writable moment ends within R, still in time.
            if lease.is_writable(pod_now) {
                let later = Now {
                    wall: clock(true_us, 1.0, &constants).plus(constants.request_budget()),
                    boot: pod_now.boot + constants.request_budget(),
                };
                prop_assert!(lease.ack_stands(later));
            }
        }
    }

    #[test]
    fn a_wall_clock_set_back_does_not_prolong_a_life() {
        let constants = Constants::resolve(Overrides::default()).unwrap();
        let wall = Timestamp::from_micros(1_000_000 * SECOND_US);
        let born = Now { wall, boot: Duration::from_secs(5) };
        let lease = Lease::begin(born, constants.lifetime(), &constants);
        let later = Now { wall, boot: born.boot + constants.lifetime() };
        assert!(!lease.is_writable(later));
        assert!(!lease.ack_stands(later));
    }

    #[test]
    fn ops_are_taken_until_the_drain_margin_by_both_clocks() {
        let constants = Constants::resolve(Overrides::default()).unwrap();
        let born = Now {
            wall: Timestamp::from_micros(1_000_000 * SECOND_US),
            boot: Duration::from_secs(5),
        };
        let lease = Lease::begin(born, constants.lifetime(), &constants);
        let taking = constants.lifetime() - constants.drain_margin();
        let tick = Duration::from_micros(1);
        let (wall, boot) = (born.wall.plus(taking), born.boot + taking);
        assert!(lease.is_writable(Now { wall: wall.minus(tick), boot: boot - tick }));
        assert!(!lease.is_writable(Now { wall, boot: boot - tick }));
        assert!(!lease.is_writable(Now { wall: wall.minus(tick), boot }));
    }

    #[test]
    fn phases_follow_each_other_at_exact_bounds() {
        let constants = Constants::resolve(Overrides::default()).unwrap();
        let expires_at = Timestamp::from_micros(1_000_000 * SECOND_US);
        let phase = |now| Phase::of(expires_at, now, &constants);
        let drains_at = expires_at.minus(constants.drain_margin());
        assert_eq!(phase(drains_at.shifted(-1)), Phase::Live);
        assert_eq!(phase(drains_at), Phase::Draining);
        assert_eq!(phase(expires_at.shifted(-1)), Phase::Draining);
        assert_eq!(phase(expires_at), Phase::Expired);
        let final_at = expires_at.plus(constants.cutoff());
        assert_eq!(phase(final_at.shifted(-1)), Phase::Expired);
        assert_eq!(phase(final_at), Phase::Final);
    }
}
