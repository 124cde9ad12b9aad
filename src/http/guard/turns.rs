//! Requests that take much memory take turns. Under any load, a pod runs a limited number of them, lets a
//! limited number wait for a moment, and sheds the rest.

use std::sync::Arc;

use orderfree_core::crdt::Kind;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::http::catalog::ProblemType;
use crate::http::problem::Problem;
use crate::limits;

/// The turns that all listeners share.
pub(crate) struct LargeRequests {
    batches: Arc<Semaphore>,
    /// Places for batches that wait for a turn.
    waiting_batches: Semaphore,
    /// Permits of answers with many values. Each takes permits by its weight.
    pages: Arc<Semaphore>,
}

/// A turn. It ends when it is dropped.
#[must_use]
pub(crate) struct LargeRequestPermit(
    #[allow(dead_code, reason = "its drop is what counts")] OwnedSemaphorePermit,
);

impl Default for LargeRequests {
    fn default() -> LargeRequests {
        LargeRequests {
            batches: Arc::new(Semaphore::new(limits::BATCHES_AT_ONCE)),
            waiting_batches: Semaphore::new(limits::BATCHES_WAITING_MAX),
            pages: Arc::new(Semaphore::new(limits::PAGES_AT_ONCE as usize)),
        }
    }
}

impl LargeRequests {
    /// Refuses a batch that is unlikely to get a turn, before its body takes time and memory that others
    /// need. Otherwise an overloaded pod would spend nearly all its work on batches that it sheds.
    pub(crate) fn expect_batch(&self) -> Result<(), Problem> {
        match self.waiting_batches.available_permits() {
            0 => Err(overloaded()),
            _ => Ok(()),
        }
    }

    /// Waits for the turn of a batch whose body has arrived.
    pub(crate) async fn batch(&self) -> Result<LargeRequestPermit, Problem> {
        let _place = self.waiting_batches.try_acquire().map_err(|_| overloaded())?;
        turn(&self.batches, 1).await
    }

    /// Waits for the turn of an answer with the values of `keys` keys that the client named. `kind` is their
    /// largest kind. Few small keys need no turn.
    pub(crate) async fn keys(
        &self,
        kind: Kind,
        keys: usize,
    ) -> Result<Option<LargeRequestPermit>, Problem> {
        if kind.about().is_small() && keys <= limits::KEYS_WITHOUT_TURN {
            return Ok(None);
        }
        self.page(kind, keys).await.map(Some)
    }

    /// Waits for the turn of an answer with the values of up to `keys` keys of a kind.
    pub(crate) async fn page(
        &self,
        kind: Kind,
        keys: usize,
    ) -> Result<LargeRequestPermit, Problem> {
        let weight = match kind.about().is_small() {
            true => 1 + u32::try_from(keys / limits::PAGE_KEYS_LIGHT).unwrap_or(u32::MAX),
            false => limits::PAGES_AT_ONCE / limits::LARGE_PAGES_AT_ONCE,
        };
        turn(&self.pages, weight.min(limits::PAGES_AT_ONCE)).await
    }
}

async fn turn(turns: &Arc<Semaphore>, weight: u32) -> Result<LargeRequestPermit, Problem> {
    let permit = Arc::clone(turns).acquire_many_owned(weight);
    match timeout(limits::TURN_WAIT_MAX, permit).await {
        Ok(permit) => {
            Ok(LargeRequestPermit(permit.expect("invariant: the semaphore is never closed")))
        }
        Err(_) => Err(overloaded()),
    }
}

fn overloaded() -> Problem {
    let detail =
        "Too many large requests are in progress here; send the request again in a second.";
    Problem::new(ProblemType::Overloaded, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream::FuturesUnordered;
    use futures::{FutureExt, StreamExt};

    #[tokio::test(start_paused = true)]
    async fn few_batches_wait_and_no_further_body_is_read() {
        let turns = LargeRequests::default();
        let mut held = Vec::new();
        for _ in 0..limits::BATCHES_AT_ONCE {
            held.push(turns.batch().await.expect("a turn"));
        }
        let wait = async |_| turns.batch().await.map(drop);
        let mut waiting: FuturesUnordered<_> = (0..limits::BATCHES_WAITING_MAX).map(wait).collect();
        turns.expect_batch().expect("no batch waits yet");
        assert!(waiting.next().now_or_never().is_none(), "all of them wait");
        let refused = turns.expect_batch().expect_err("all places are taken");
        assert_eq!(refused.kind(), ProblemType::Overloaded);
        turns.batch().now_or_never().expect("it does not wait").map(drop).expect_err("no place");
        // A freed turn goes to the next batch, and a batch that waits too long is refused.
        held.truncate(limits::BATCHES_AT_ONCE - 1);
        let got: Vec<_> = waiting.collect().await;
        assert!(got.len() == limits::BATCHES_WAITING_MAX && got.iter().all(Result::is_ok));
        held.push(turns.batch().await.expect("a turn"));
        turns.batch().await.map(drop).expect_err("it has waited too long");
        turns.expect_batch().expect("no batch waits");
    }
}
