//! Keeps the highest fence in the cluster, so that a restarted pod knows what clocks have done (invariant
//! I12). [`orderfree_core::protocol::high_water`] decides what the row means.
//!
//! A node that is down stops only the folds of its own keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use orderfree_core::protocol::clock::ClockError;
use orderfree_core::protocol::fold::proves_moved_clock;
use orderfree_core::protocol::high_water::{self, PLACE};
use orderfree_core::protocol::{Constants, Timestamp, WriteOutcome};

use super::connect_error::ConnectError;
use super::own_rows::OwnRows;
use crate::store::StoreError;

/// See the [module documentation](self).
pub(super) struct HighWater {
    rows: Arc<OwnRows>,
    constants: Constants,
    /// The highest fence that this pod has seen, in µs.
    seen_us: AtomicI64,
    /// The highest fence whose write was acknowledged to this pod, in µs. A fence that was only seen can be
    /// on too few replicas for other pods to see it.
    stored_us: AtomicI64,
}

impl HighWater {
    /// Reads the row. A pod must not serve before it has read it.
    pub(super) async fn open(
        rows: &Arc<OwnRows>,
        constants: Constants,
    ) -> Result<Arc<HighWater>, ConnectError> {
        let opened = HighWater {
            rows: Arc::clone(rows),
            constants,
            seen_us: AtomicI64::new(i64::MIN),
            stored_us: AtomicI64::new(i64::MIN),
        };
        match opened.look().await {
            Ok(()) => Ok(Arc::new(opened)),
            Err(error @ StoreError::Corrupt(_)) => Err(ConnectError::HighWater(error.to_string())),
            Err(error) => Err(ConnectError::question(error)),
        }
    }

    /// Reads the row again: other pods write to it.
    pub(super) async fn look(&self) -> Result<(), StoreError> {
        if let Some(state) = self.rows.read(PLACE).await? {
            let fence = high_water::decode(&state);
            self.note(fence.map_err(|error| StoreError::Corrupt(error.to_string()))?);
        }
        Ok(())
    }

    /// Stores the fence of a fold before the fold is written, unless the stored fence is already high enough.
    /// The fold must not be written unless this is acknowledged.
    pub(super) async fn raise(&self, fence: Timestamp) -> WriteOutcome {
        let stored = Timestamp::from_micros(self.stored_us.load(Ordering::SeqCst));
        if fence <= stored.plus(high_water::quantum(&self.constants)) {
            return Ok(());
        }
        let outcome = self.rows.raise(PLACE, high_water::encode(fence), fence, None).await;
        if outcome.is_ok() {
            self.note(fence);
            self.stored_us.fetch_max(fence.as_micros(), Ordering::SeqCst);
        }
        outcome
    }

    /// Fails while the highest fence proves that a clock has moved.
    pub(super) fn check(&self, now: Timestamp) -> Result<(), ClockError> {
        let seen = Timestamp::from_micros(self.seen_us.load(Ordering::SeqCst));
        let is_moved = proves_moved_clock(seen, now, &self.constants);
        if is_moved { Err(ClockError::Moved) } else { Ok(()) }
    }

    fn note(&self, fence: Timestamp) {
        self.seen_us.fetch_max(fence.as_micros(), Ordering::SeqCst);
    }

    /// Reads the row again. If this fails, the next round tries again. Returns whether a quorum has answered.
    pub(super) async fn look_within(&self, limit: Duration) -> bool {
        match tokio::time::timeout(limit, self.look()).await {
            Ok(Ok(())) => true,
            Ok(Err(error @ StoreError::Corrupt(_))) => {
                tracing::error!(%error, "the highest fence can't be read");
                true
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "the highest fence was not read");
                false
            }
            Err(_) => {
                tracing::debug!("the highest fence was not read in time");
                false
            }
        }
    }
}
