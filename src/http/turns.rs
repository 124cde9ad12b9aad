//! Work that takes much memory for each request takes turns: a pod under any load does some of it at a
//! time, lets some wait for a moment, and sheds the others.

use std::sync::Arc;

use orderfree_core::crdt::Kind;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::catalog::ProblemType;
use super::problem::Problem;
use crate::limits;

/// Turns of all listeners.
pub(super) struct Turns {
    /// Of batches.
    batches: Arc<Semaphore>,
    /// Places for batches that wait for one.
    waiting_batches: Semaphore,
    /// Of answers with many values, by their weight.
    pages: Arc<Semaphore>,
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
            waiting_batches: Semaphore::new(limits::BATCHES_WAITING_MAX),
            pages: Arc::new(Semaphore::new(limits::PAGES_AT_ONCE as usize)),
        }
    }
}

impl Turns {
    /// Refuses a batch that would hardly get its turn, before its body takes time and memory that others
    /// need: under overload, nearly all that a pod does would be for batches that it sheds.
    pub(super) fn expect_batch(&self) -> Result<(), Problem> {
        match self.waiting_batches.available_permits() {
            0 => Err(overloaded()),
            _ => Ok(()),
        }
    }

    /// For a batch whose body is there.
    pub(super) async fn batch(&self) -> Result<Turn, Problem> {
        let _place = self.waiting_batches.try_acquire().map_err(|_| overloaded())?;
        turn(&self.batches, 1).await
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
        Err(_) => Err(overloaded()),
    }
}

fn overloaded() -> Problem {
    let detail = "Too many large requests are in progress here; send it again in a second.";
    Problem::new(ProblemType::Overloaded, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream::FuturesUnordered;
    use futures::{FutureExt, StreamExt};

    #[tokio::test(start_paused = true)]
    async fn few_batches_wait_and_no_further_body_is_read() {
        let turns = Turns::default();
        let mut held = Vec::new();
        for _ in 0..limits::BATCHES_AT_ONCE {
            held.push(turns.batch().await.expect("a turn"));
        }
        let wait = async |_| turns.batch().await.map(drop);
        let mut waiting: FuturesUnordered<_> = (0..limits::BATCHES_WAITING_MAX).map(wait).collect();
        turns.expect_batch().expect("nobody waits yet");
        assert!(waiting.next().now_or_never().is_none(), "all of them wait");
        let refused = turns.expect_batch().expect_err("all places are taken");
        assert_eq!(refused.kind(), ProblemType::Overloaded);
        turns.batch().now_or_never().expect("it does not wait").map(drop).expect_err("no place");
        // Who has a turn gives it on, and who has waited for long is refused.
        held.truncate(limits::BATCHES_AT_ONCE - 1);
        let got: Vec<_> = waiting.collect().await;
        assert!(got.len() == limits::BATCHES_WAITING_MAX && got.iter().all(Result::is_ok));
        held.push(turns.batch().await.expect("a turn"));
        turns.batch().await.map(drop).expect_err("it has waited for long");
        turns.expect_batch().expect("nobody waits");
    }
}
