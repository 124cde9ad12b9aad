//! Step 5: the client gets the outcome of its update.

use orderfree_core::crdt::OpError;
use orderfree_core::protocol::{Durability, Outcome, Timestamp};

use super::accept::{PendingOps, Receipt};
use super::{Mutators, Refused, UpdateError};
use crate::engine::metrics::IdConflict;
use crate::runtime::sync::{Instant, timeout_at};

impl Mutators {
    /// Waits for the outcome of an op list, until a deadline, and counts its updates.
    pub(super) async fn answer(
        &self,
        accepted: Result<Receipt, UpdateError>,
        updates: usize,
        durability: Durability,
        until: Instant,
    ) -> Result<Option<Timestamp>, UpdateError> {
        let result = match accepted {
            Err(error) => Err(error),
            Ok(Receipt { time, pending: Some(pending) }) if durability == Durability::Stored => {
                self.stored(pending, until).await.map(|()| time)
            }
            Ok(Receipt { time, .. }) => Ok(time),
        };
        let outcome = match &result {
            Ok(_) => Outcome::of(durability),
            Err(error) => error.outcome(),
        };
        self.metrics.count_updates(outcome, updates as u64);
        if let Err(UpdateError::Refused(why)) = &result {
            self.metrics.count_refused(why.reason(), updates as u64);
            if *why == Refused::Op(OpError::IdReused) {
                self.metrics.count_conflicts(IdConflict::Update, updates);
            }
        }
        result
    }

    /// Waits until the ops are stored. After the deadline, withdraws them if they were never sent.
    async fn stored(&self, pending: PendingOps, until: Instant) -> Result<(), UpdateError> {
        let PendingOps { entry, completion, ticket } = pending;
        if let Ok(outcome) = timeout_at(until, completion.outcome(ticket)).await {
            return outcome;
        }
        let budget = self.constants.request_budget();
        let mut state = entry.lock();
        if let Some(outcome) = completion.outcome_now(ticket) {
            return outcome;
        }
        match state.change(&self.totals, |mutator| mutator.withdraw(ticket)) {
            Some(rejected) => {
                self.reject(&entry, &state, rejected);
                Err(Refused::Deadline(budget).into())
            }
            None => match completion.rejection(ticket) {
                Some(error) => Err(Refused::Op(error).into()),
                None => Err(UpdateError::Unknown(format!(
                    "it was sent, but the store did not acknowledge it within {budget:?}"
                ))),
            },
        }
    }
}
