//! How the outcome of a write reaches the clients that wait for it.

use orderfree_core::crdt::OpError;
use orderfree_core::protocol::{Rejected, Ticket};

use super::{Refused, UpdateError};
use crate::runtime::sync::{Mutex, MutexGuard, PoisonError, SetOnce};

/// The op lists of one write of a mutator, with one outcome for all waiters.
#[derive(Debug, Default)]
pub(super) struct Completion {
    outcome: SetOnce<Result<(), UpdateError>>,
    /// Op lists that could not be applied again after a refused write. Almost always empty.
    rejected: Mutex<Vec<Rejected>>,
}

impl Completion {
    /// The outcome of one of its op lists.
    pub(super) async fn outcome(&self, ticket: Ticket) -> Result<(), UpdateError> {
        self.outcome.wait().await;
        self.outcome_now(ticket).expect("invariant: it was just set")
    }

    /// The outcome of one of its op lists, if it is known.
    pub(super) fn outcome_now(&self, ticket: Ticket) -> Option<Result<(), UpdateError>> {
        let outcome = self.outcome.get()?;
        Some(match self.rejection(ticket) {
            Some(error) => Err(Refused::Op(error).into()),
            None => outcome.clone(),
        })
    }

    pub(super) fn resolve(&self, outcome: Result<(), UpdateError>) {
        self.outcome.set(outcome).expect("invariant: a write is resolved once");
    }

    pub(super) fn reject(&self, rejected: Vec<Rejected>) {
        if !rejected.is_empty() {
            self.rejections().extend(rejected);
        }
    }

    pub(super) fn rejection(&self, ticket: Ticket) -> Option<OpError> {
        let rejections = self.rejections();
        rejections.iter().find(|list| list.ticket == ticket).map(|list| list.error.clone())
    }

    fn rejections(&self) -> MutexGuard<'_, Vec<Rejected>> {
        self.rejected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
