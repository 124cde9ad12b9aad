//! The op lists of one write, and the requests that wait for it.

use orderfree_core::crdt::OpError;
use orderfree_core::protocol::{Rejected, Ticket};

use super::{Refused, UpdateError};
use crate::runtime::sync::{Mutex, MutexGuard, PoisonError, SetOnce};

/// The outcome of a write.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Verdict {
    Acked,
    Refused(Refused),
    Unknown(String),
}

/// The op lists of one write of a mutator, with one completion for all waiters.
#[derive(Debug, Default)]
pub(super) struct Completion {
    verdict: SetOnce<Verdict>,
    /// Op lists that could not be applied again after a refused write. Almost always empty.
    rejected: Mutex<Vec<Rejected>>,
}

impl Completion {
    pub(super) async fn verdict(&self) -> &Verdict {
        self.verdict.wait().await
    }

    pub(super) fn verdict_now(&self) -> Option<&Verdict> {
        self.verdict.get()
    }

    pub(super) fn resolve(&self, verdict: Verdict) {
        self.verdict.set(verdict).expect("invariant: a write is resolved once");
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

    /// The outcome of one of its op lists.
    pub(super) fn of(&self, ticket: Ticket, verdict: &Verdict) -> Result<(), UpdateError> {
        if let Some(error) = self.rejection(ticket) {
            return Err(Refused::Op(error).into());
        }
        match verdict {
            Verdict::Acked => Ok(()),
            Verdict::Refused(refused) => Err(refused.clone().into()),
            Verdict::Unknown(reason) => Err(UpdateError::Unknown(reason.clone())),
        }
    }

    fn rejections(&self) -> MutexGuard<'_, Vec<Rejected>> {
        self.rejected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
