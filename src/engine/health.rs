//! Whether this pod is ready for traffic. Readiness does not follow the store's momentary state, or all
//! pods would become unready at once. If the store is down, ready pods answer with 503.

use std::sync::atomic::{AtomicBool, Ordering};

use orderfree_core::protocol::clock::ClockError;
use tokio_util::sync::CancellationToken;

/// Set by the server, read by `/readyz`.
///
/// A pod is ready if and only if it has started, is not shutting down, its clock gate was open at least
/// once, its clock is not *measured* to be wrong, and it has read the log of resets. If it needs a quorum,
/// one of its data centre must also have answered lately.
#[derive(Debug, Default)]
pub struct Health {
    needs_quorum: bool,
    started: AtomicBool,
    draining: CancellationToken,
    gate_was_open: AtomicBool,
}

/// The text of a check that passes.
pub const OK: &str = "ok";

/// The readiness checks and their results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readiness {
    /// The name of each check, and what it says if it passes, or why it fails.
    pub checks: [(&'static str, Result<String, String>); 5],
}

impl Health {
    /// With `needs_quorum`, the pod is ready only while a quorum of its data centre answers.
    #[must_use]
    pub fn new(needs_quorum: bool) -> Health {
        Health { needs_quorum, ..Health::default() }
    }

    /// Marks the pod as started.
    pub fn set_started(&self) {
        self.started.store(true, Ordering::SeqCst);
    }

    /// Marks the pod as shutting down, so that it gets no more traffic.
    pub fn set_draining(&self) {
        self.draining.cancel();
    }

    #[must_use]
    pub fn is_started(&self) -> bool {
        self.started.load(Ordering::SeqCst)
    }

    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Cancelled when the pod shuts down. Long-running work watches it.
    #[must_use]
    pub fn draining(&self) -> &CancellationToken {
        &self.draining
    }

    /// Checks whether the pod should get requests, given the current result of the clock gate, what it knows of the log of
    /// resets, and whether a quorum of its data centre answers.
    #[must_use]
    pub fn readiness(
        &self,
        clock: Result<(), ClockError>,
        resets: Result<String, String>,
        quorum: Result<(), String>,
    ) -> Readiness {
        if clock.is_ok() {
            self.gate_was_open.store(true, Ordering::SeqCst);
        }
        let gate_was_open = self.gate_was_open.load(Ordering::SeqCst);
        let clock = match clock {
            Err(error) if error.is_measured() || !gate_was_open => Err(error.to_string()),
            Ok(()) | Err(_) => Ok(OK.to_owned()),
        };
        let quorum = match quorum {
            Ok(()) => Ok(OK.to_owned()),
            Err(why) if self.needs_quorum => Err(why),
            Err(why) => Ok(format!("{why}; set ORDERFREE_READY_NEEDS_QUORUM to make this count")),
        };
        let passes = |is_so, why: &str| if is_so { Ok(OK.to_owned()) } else { Err(why.to_owned()) };
        Readiness {
            checks: [
                ("started", passes(self.is_started(), "still starting")),
                ("serving", passes(!self.is_draining(), "shutting down")),
                ("clock", clock),
                ("resets", resets),
                ("quorum", quorum),
            ],
        }
    }
}

impl Readiness {
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.checks.iter().all(|(_, check)| check.is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(clippy::unnecessary_wraps, reason = "the type of a check")]
    fn read() -> Result<String, String> {
        Ok(OK.to_owned())
    }

    fn unmeasured() -> Result<(), ClockError> {
        Err(ClockError::Unmeasured { datacenter: "a".to_owned(), fresh: 0, nodes: 3 })
    }

    #[test]
    fn ready_once_started_until_draining() {
        let health = Health::default();
        assert!(!health.readiness(Ok(()), read(), Ok(())).is_ready(), "not started");
        health.set_started();
        assert!(health.readiness(Ok(()), read(), Ok(())).is_ready());
        assert!(
            !health.readiness(Ok(()), Err("unread".to_owned()), Ok(())).is_ready(),
            "the log was not read"
        );
        health.set_draining();
        assert!(!health.readiness(Ok(()), read(), Ok(())).is_ready(), "draining");
    }

    #[test]
    fn only_a_measured_offset_makes_a_ready_pod_unready() {
        let health = Health::default();
        health.set_started();
        assert!(
            !health.readiness(unmeasured(), read(), Ok(())).is_ready(),
            "the gate was never open"
        );
        assert!(health.readiness(Ok(()), read(), Ok(())).is_ready());
        assert!(
            health.readiness(unmeasured(), read(), Ok(())).is_ready(),
            "a dead node is not an outage"
        );
        let moved = health.readiness(Err(ClockError::Moved), read(), Ok(()));
        assert!(!moved.is_ready());
        assert!(moved.checks[2].1.as_ref().is_err_and(|why| why.contains("NTP")));
        assert!(health.readiness(Ok(()), read(), Ok(())).is_ready(), "ready again");
    }

    #[test]
    fn a_missing_quorum_counts_only_where_it_is_asked_for() {
        let missing = || Err("none answers".to_owned());
        for needs_quorum in [false, true] {
            let health = Health::new(needs_quorum);
            health.set_started();
            let readiness = health.readiness(Ok(()), read(), missing());
            assert_eq!(readiness.is_ready(), !needs_quorum);
            let said = match &readiness.checks[4].1 {
                Ok(text) | Err(text) => text.clone(),
            };
            assert!(said.contains("none answers"), "{said}");
            assert!(health.readiness(Ok(()), read(), Ok(())).is_ready());
        }
    }
}
