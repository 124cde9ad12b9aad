//! Work that takes much memory for each request takes turns: a pod under any load does some of it at a
//! time, lets a few wait for a moment, and sheds the others.

use std::sync::Arc;

use orderfree_core::crdt::Kind;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::catalog::ProblemType;
use super::problem::Problem;
use crate::limits;

/// Turns of all listeners.
#[derive(Clone)]
pub(super) struct Turns {
    /// Of batches.
    batches: Arc<Semaphore>,
    /// Of answers with many values, by their weight.
    pages: Arc<Semaphore>,
    /// Of answers with one value that may be large.
    keys: Arc<Semaphore>,
}

/// Whose turn it is, until it is dropped.
#[must_use]
pub(super) struct Turn(
    #[allow(dead_code, reason = "its drop is what counts")] OwnedSemaphorePermit,
);

impl Default for Turns {
    fn default() -> Turns {
        Turns {
            batches: Arc::new(Semaphore::new(limits::BATCHES_AT_ONCE)),
            pages: Arc::new(Semaphore::new(limits::PAGES_AT_ONCE as usize)),
            keys: Arc::new(Semaphore::new(limits::LARGE_KEYS_AT_ONCE)),
        }
    }
}

impl Turns {
    /// For a batch.
    pub(super) async fn batch(&self) -> Result<Turn, Problem> {
        turn(&self.batches, 1).await
    }

    /// For an answer with the value of one key, if that may be large.
    pub(super) async fn key(&self, kind: Kind) -> Result<Option<Turn>, Problem> {
        if kind.about().is_small() {
            return Ok(None);
        }
        turn(&self.keys, 1).await.map(Some)
    }

    /// For an answer with values of so many keys that a client named, of this kind or smaller ones.
    pub(super) async fn keys(&self, kind: Kind, keys: usize) -> Result<Option<Turn>, Problem> {
        if kind.about().is_small() && keys <= limits::KEYS_WITHOUT_TURN {
            return Ok(None);
        }
        self.page(kind, keys).await.map(Some)
    }

    /// For an answer with the values of up to so many keys of a kind.
    pub(super) async fn page(&self, kind: Kind, keys: usize) -> Result<Turn, Problem> {
        let weight = match kind.about().is_small() {
            true => 1 + u32::try_from(keys / limits::PAGE_KEYS_LIGHT).unwrap_or(u32::MAX),
            false => limits::PAGES_AT_ONCE / limits::LARGE_PAGES_AT_ONCE,
        };
        turn(&self.pages, weight.min(limits::PAGES_AT_ONCE)).await
    }
}

async fn turn(turns: &Arc<Semaphore>, weight: u32) -> Result<Turn, Problem> {
    let permit = Arc::clone(turns).acquire_many_owned(weight);
    match timeout(limits::TURN_WAIT_MAX, permit).await {
        Ok(permit) => Ok(Turn(permit.expect("invariant: the semaphore is never closed"))),
        Err(_) => {
            let detail = "Too many large requests are in progress here; send it again in a second.";
            Err(Problem::new(ProblemType::Overloaded, detail))
        }
    }
}
