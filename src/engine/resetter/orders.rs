//! Resets that clients order. They go on when the client goes away. This pod remembers its own for a while, and the
//! log has a receipt of each, so any pod can say what became of one.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use orderfree_core::crdt::{Kind, State};
use orderfree_core::protocol::fold::Fold;
use orderfree_core::protocol::generation::Generation;
use orderfree_core::protocol::reset::{
    Attempt, Fate, LOG_NAMES_MAX, LogRow, ResetFlaw, bucket, marker_again,
};
use orderfree_core::protocol::{Key, Name, Now, Timestamp};
use tokio::sync::{OwnedSemaphorePermit, watch};
use uuid::Uuid;

use super::{Done, End, LeftOut, ResetFailure, Resetter, batches, lock, receipt};
use crate::engine::metrics::ResetEnd;
use crate::limits;
use crate::runtime::tasks::Task;
use crate::store::{RESET_KEPT_FOR, Receipt, StoreError};

/// The least time before the log drops a row, in which no id is taken that could be in it.
const KEPT_SLACK: Duration = Duration::from_secs(60);

/// What a client orders.
#[derive(Debug, Clone)]
pub struct Order {
    /// Keys of one group, at most [`LOG_NAMES_MAX`].
    pub keys: Vec<Key>,
    pub is_deletion: bool,
    /// The order's id and the id's time, if the client chose one.
    pub id: Option<(Uuid, Timestamp)>,
}

/// A reset that this pod makes or has made.
#[derive(Debug, Clone)]
pub struct Ticket {
    pub row: Arc<LogRow>,
    /// Keys of the order that are not reset, and why.
    pub left_out: Arc<Vec<LeftOut>>,
    ends: watch::Receiver<Option<Ends>>,
    /// Whether other pods can find it.
    is_logged: watch::Receiver<bool>,
}

type Ends = Arc<Result<Vec<End>, ResetFailure>>;

/// A reset that was ordered.
#[derive(Debug, Clone)]
pub enum Ordered {
    /// By this pod.
    Here(Ticket),
    /// By any pod, as the log says.
    Logged(Logged),
}

/// What the log says of a reset.
#[derive(Debug, Clone)]
pub struct Logged {
    pub row: LogRow,
    receipt: Receipt,
    /// The time before the log was asked, if this clock can be trusted. What the log did not say then, it may say now.
    asked: Option<Timestamp>,
}

/// What became of a reset.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    Running,
    /// Its keys begin again. What they had, unless it was too much to be kept.
    Done(Option<Vec<(Key, State)>>),
    /// Nothing was changed.
    Refused,
    /// Its keys begin again or not.
    Unknown,
}

/// An order has an id that another order had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdReused;

impl Ticket {
    /// How the reset ended; none while it runs.
    #[must_use]
    pub fn ends(&self) -> Option<Ends> {
        self.ends.borrow().clone()
    }

    /// Whether it has certainly changed nothing.
    fn was_refused(&self) -> bool {
        self.ends().as_deref().is_some_and(are_refused)
    }

    /// Whether it has ended, and may have changed something or not.
    fn is_unknown(&self) -> bool {
        self.ends().as_deref().is_some_and(|ends| match ends {
            Err(failure) => is_unknown(failure),
            Ok(ends) => ends.iter().any(|(_, end)| end.as_ref().is_err_and(is_unknown)),
        })
    }

    /// Waits until the reset has ended.
    pub async fn wait(&mut self) {
        // An error means that its task is gone, and then its end is not known.
        let _ = self.ends.wait_for(Option::is_some).await;
    }

    /// Waits until other pods can find the reset, or until it has ended.
    pub async fn wait_until_logged(&mut self) {
        if self.is_logged.wait_for(|is_logged| *is_logged).await.is_err() {
            self.wait().await;
        }
    }
}

impl Logged {
    /// What was cleared, unless it was too much to be kept.
    fn cleared(&self) -> Option<Vec<(Key, State)>> {
        receipt::decode(&self.row, self.receipt.cleared.as_deref()?)
    }
}

impl Resetter {
    /// Finds the order that has this id, or begins it.
    ///
    /// # Errors
    /// [`ResetFailure`] if nothing was changed.
    pub async fn order(
        self: &Arc<Self>,
        order: Order,
    ) -> Result<Result<Ordered, IdReused>, ResetFailure> {
        // Until this order can be found, no other one with its id may look for it.
        let _in_turn = match order.id {
            Some((id, _)) => Some(self.turn_of(id).lock().await),
            None => None,
        };
        let since = match order.id {
            Some((id, time)) => {
                let since = self.check_id(time)?;
                if let Some(found) = self.ordered(&order, id, since).await? {
                    return Ok(found);
                }
                Some(since)
            }
            None => None,
        };
        let turn = self.turn(&order.keys);
        let turn = turn.inspect_err(|_| self.metrics.count_reset(ResetEnd::Limited))?;
        let id = order.id.map(|(id, _)| id);
        let begun = self.begin(&order.keys, id, order.is_deletion).await;
        let (attempt, left_out) =
            begun.inspect_err(|_| self.metrics.count_reset(ResetEnd::Refused))?;
        let ((ended, ends), (kept, kept_ends)) = (watch::channel(None), watch::channel(None));
        let (logged, is_logged) = watch::channel(false);
        let (row, left_out) = (Arc::new(attempt.row().clone()), Arc::new(left_out));
        let ticket = Ticket { row, left_out, ends, is_logged };
        let place = (ticket.row.kind, ticket.row.group.clone(), ticket.row.id);
        lock(&self.tickets).put(place, Ticket { ends: kept_ends, ..ticket.clone() });
        let this = Arc::clone(self);
        self.tasks.spawn(Task::Reset, async move {
            let ends = this.make(&attempt, since, || _ = logged.send(true)).await;
            // An error means that no request waits for it. Only this one gets a large value without the log.
            let _ = kept.send(Some(Arc::new(without_large(&ends))));
            let _ = ended.send(Some(Arc::new(ends)));
            drop(turn);
        });
        Ok(Ok(Ordered::Here(ticket)))
    }

    fn turn_of(&self, id: Uuid) -> &tokio::sync::Mutex<()> {
        let at = id.as_u128() % self.ids.len() as u128;
        &self.ids[usize::try_from(at).expect("invariant: it is below a usize")]
    }

    /// The time from which the log can have a reset with an id of this time.
    fn check_id(&self, time: Timestamp) -> Result<Timestamp, ResetFailure> {
        let (now, slack) = (self.open()?.wall, 2 * self.constants.clock_offset_max());
        if time > now.plus(slack) {
            return Err(ResetFailure::IdAhead { by: time.since(now) });
        }
        let kept = self.constants.reset_memory() + RESET_KEPT_FOR;
        match time < now.minus(kept).plus(2 * slack + KEPT_SLACK) {
            true => Err(ResetFailure::IdExpired),
            false => Ok(time.minus(slack)),
        }
    }

    /// Lets an order of these keys begin.
    fn turn(&self, keys: &[Key]) -> Result<OwnedSemaphorePermit, ResetFailure> {
        let remembered = self.resets.log().remembered() + keys.len();
        let part = keys.first().map(|key| bucket(key.kind, &key.group));
        let size = part.map(|part| self.resets.log().size(part)).unwrap_or_default();
        let names = remembered.max(size.names + keys.len());
        if names > limits::RESETS_REMEMBERED_MAX || size.rows >= limits::LOG_ROWS_MAX {
            return Err(ResetFailure::TooManyRemembered);
        }
        let turn = Arc::clone(&self.turns).try_acquire_owned();
        let turn = turn.map_err(|_| ResetFailure::TooManyAtOnce)?;
        let keys = u32::try_from(keys.len()).ok().and_then(NonZeroU32::new);
        // No other process reads the log of one that is alone.
        if let Some(keys) = keys.filter(|_| !self.is_alone)
            && let Ok(Err(not_until)) = self.pace.check_n(keys)
        {
            let wait = not_until.wait_time_from(DefaultClock::default().now());
            return Err(ResetFailure::TooFast { wait });
        }
        Ok(turn)
    }

    async fn make(
        &self,
        attempt: &Attempt,
        since: Option<Timestamp>,
        logged: impl FnOnce() + Send,
    ) -> Result<Vec<End>, ResetFailure> {
        let run = self.tasks.contain(Task::Reset, self.finish(attempt, since, logged)).await;
        let ends = run.unwrap_or_else(|panic| Err(ResetFailure::Unknown(panic)));
        if since.is_some() && !self.is_alone && are_refused(&ends) {
            let void = Receipt { done: Some(false), ..Receipt::default() };
            // Without it, other pods say so when its time is over.
            if let Err(error) = self.store.write_reset(attempt.row(), &void).await {
                tracing::debug!(%error, "a reset was not noted as void");
            }
        }
        let count = |failure: Option<&ResetFailure>| {
            self.metrics.count_reset(match failure {
                None => ResetEnd::Done,
                Some(ResetFailure::Unknown(_)) => ResetEnd::Unknown,
                Some(_) => ResetEnd::Refused,
            });
        };
        match &ends {
            Ok(ends) => ends.iter().for_each(|(_, end)| count(end.as_ref().err())),
            Err(failure) => count(Some(failure)),
        }
        ends
    }

    /// The reset that was ordered under this id; none if the order can begin. If there are several, the first
    /// that can have an effect: the others give way to it.
    async fn ordered(
        &self,
        order: &Order,
        id: Uuid,
        since: Timestamp,
    ) -> Result<Option<Result<Ordered, IdReused>>, ResetFailure> {
        let Some(first) = order.keys.first() else { return Ok(None) };
        let is_same = |row: &LogRow| {
            row.is_deletion == order.is_deletion && row.keys().eq(order.keys.iter().cloned())
        };
        let here = self.ticket(first.partition(), id);
        let refused = here.as_ref().filter(|ticket| ticket.was_refused());
        let refused = refused.map(|ticket| ticket.row.generation);
        match here {
            Some(ticket) if !is_same(&ticket.row) => return Ok(Some(Err(IdReused))),
            // The log and the keys can tell more of an end that is unknown. One that was refused can begin again, unless
            // another pod has made it.
            Some(ticket) if refused.is_none() && !ticket.is_unknown() => {
                return Ok(Some(Ok(Ordered::Here(ticket))));
            }
            _ => {}
        }
        for generation in self.named(first.partition(), id, since).await? {
            if refused == Some(generation) {
                continue;
            }
            match self.logged(first.partition(), generation, id).await? {
                Some(logged) if !is_same(&logged.row) => return Ok(Some(Err(IdReused))),
                Some(logged) if !self.is_refused(&logged) => {
                    return Ok(Some(Ok(Ordered::Logged(logged))));
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// Whether another pod may reset the keys under the same id. Two pods that log their resets at once can't both miss the
    /// other's row: each looks when its own is stored.
    pub(super) async fn has_rival(
        &self,
        row: &LogRow,
        since: Timestamp,
    ) -> Result<bool, ResetFailure> {
        if self.flaw == Some(ResetFlaw::NoLookForRivals) {
            return Ok(false);
        }
        let partition = (row.kind, &row.group);
        for generation in self.named(partition, row.id, since).await? {
            if generation != row.generation
                && let Some(other) = self.logged(partition, generation, row.id).await?
                && !self.is_refused(&other)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The generations of a group's resets with this id, at this time or later, in ascending order.
    async fn named(
        &self,
        (kind, group): (Kind, &Name),
        id: Uuid,
        since: Timestamp,
    ) -> Result<Vec<Generation>, StoreError> {
        let rows = self.store.read_resets(bucket(kind, group), since.shifted(-1)).await?;
        let is_it = |row: &&LogRow| (row.kind, &row.group, row.id) == (kind, group, id);
        let mut found: Vec<_> = rows.iter().filter(is_it).map(|row| row.generation).collect();
        found.sort_unstable();
        Ok(found)
    }

    async fn logged(
        &self,
        partition: (Kind, &Name),
        generation: Generation,
        id: Uuid,
    ) -> Result<Option<Logged>, StoreError> {
        let asked = self.open().ok().map(|now| now.wall);
        let found = self.store.read_receipt(partition, generation, id).await?;
        Ok(found.map(|(row, receipt)| Logged { row, receipt, asked }))
    }

    /// Finds a reset by its generation and its id.
    ///
    /// # Errors
    /// [`ResetFailure`] if the log can't be read.
    pub async fn find(
        &self,
        key: &Key,
        generation: Generation,
        id: Uuid,
    ) -> Result<Option<Ordered>, ResetFailure> {
        let has = |row: &LogRow| row.keys().any(|of| of == *key);
        let is_it = |row: &LogRow| row.generation == generation && row.id == id && has(row);
        let here = self.ticket(key.partition(), id);
        if let Some(ticket) = here.filter(|ticket| is_it(&ticket.row) && !ticket.is_unknown()) {
            return Ok(Some(Ordered::Here(ticket)));
        }
        let logged = self.logged(key.partition(), generation, id).await?;
        Ok(logged.filter(|logged| is_it(&logged.row)).map(Ordered::Logged))
    }

    fn ticket(&self, (kind, group): (Kind, &Name), id: Uuid) -> Option<Ticket> {
        lock(&self.tickets).get(&(kind, group.clone(), id)).cloned()
    }

    /// What a reset cleared, as the log has it; none if that was too much to be kept.
    ///
    /// # Errors
    /// [`StoreError`] if the log can't be read.
    pub async fn cleared(&self, row: &LogRow) -> Result<Option<Vec<(Key, State)>>, StoreError> {
        let logged = self.logged((row.kind, &row.group), row.generation, row.id).await?;
        Ok(logged.and_then(|logged| logged.cleared()))
    }

    /// Forgets the ends of resets that the log has dropped: what was erased must not stay here.
    pub(super) fn forget_tickets(&self, now: Now) {
        let mut tickets = lock(&self.tickets);
        let is_over = |ticket: &Ticket| ticket.row.until.plus(RESET_KEPT_FOR) < now.wall;
        let over = tickets.iter().filter(|(_, ticket)| is_over(ticket));
        let over: Vec<_> = over.map(|(place, _)| place.clone()).collect();
        for place in over {
            tickets.pop(&place);
        }
    }

    /// What became of a reset that the log has.
    pub async fn progress(&self, logged: &Logged) -> Progress {
        let Logged { row, receipt, .. } = logged;
        if receipt.done == Some(true) {
            return Progress::Done(logged.cleared());
        }
        if self.is_refused(logged) {
            return Progress::Refused;
        }
        // Its pod may have died after it has sent the markers. While it lives, it tells the end itself.
        let may_settle = receipt.cleared.is_some() && self.is_past(logged, Duration::ZERO);
        if may_settle && self.settle(row, receipt).await {
            return Progress::Done(logged.cleared());
        }
        match self.is_over(logged) {
            true => Progress::Unknown,
            false => Progress::Running,
        }
    }

    /// Whether a reset has taken effect, whose markers its pod may have sent. That a read finds them is not enough: they
    /// can lie on one replica alone. So they are written again, while an acknowledgement still proves it.
    async fn settle(&self, row: &LogRow, receipt: &Receipt) -> bool {
        if self.is_alone || self.check().is_err() {
            return false;
        }
        let keys: Vec<Key> = row.keys().collect();
        let until = self.gate.now().boot + self.constants.request_budget();
        for some in keys.chunks(self.list_max(&keys)) {
            let room = self.room().await;
            let mut markers = Vec::with_capacity(some.len());
            for (_, read) in self.read(some, until).await {
                let (Ok(read), Ok(now)) = (read, self.open()) else { return false };
                let marker = marker_again(&read, row.generation, now, &self.constants);
                let Some(marker) = marker else { return false };
                markers.push(marker);
            }
            drop(room);
            for batch in batches(&markers) {
                let is_stored = match self.flaw {
                    Some(ResetFlaw::TrustsRead) => true,
                    _ => self.store.write_folds(batch).await.is_ok(),
                };
                let now = self.gate.now();
                let stands = |marker: &Fold| {
                    // A later reset of the key may have read before this, and clear the same ops.
                    let fate = self.resets.fate(marker.key(), Some(row.generation), now);
                    marker.ack_stands(now.boot, &self.constants) && fate == Fate::Stands
                };
                if !is_stored || !batch.iter().all(stands) {
                    return false;
                }
            }
        }
        self.note_done(row, receipt.clone()).await;
        true
    }

    /// Whether its markers were certainly never sent, and never will be.
    fn is_refused(&self, logged: &Logged) -> bool {
        let Receipt { cleared, done } = &logged.receipt;
        *done == Some(false) || (cleared.is_none() && done.is_none() && self.is_over(logged))
    }

    /// Whether its time was over by every right clock when the log was asked.
    fn is_over(&self, logged: &Logged) -> bool {
        let (budget, offset) = (self.constants.request_budget(), self.constants.clock_offset_max());
        self.is_past(logged, budget + 2 * offset)
    }

    /// Whether the log was asked more than `span` after the last moment at which its markers could be sent.
    fn is_past(&self, logged: &Logged, span: Duration) -> bool {
        let last = logged.row.generation.time().plus(self.constants.reset_budget() + span);
        logged.asked.is_some_and(|asked| asked > last)
    }
}

/// Whether nothing was changed, and nothing will be.
fn are_refused(ends: &Result<Vec<End>, ResetFailure>) -> bool {
    let refused = |failure: &ResetFailure| !is_unknown(failure);
    match ends {
        Err(failure) => refused(failure),
        Ok(ends) => ends.iter().all(|(_, end)| end.as_ref().is_err_and(refused)),
    }
}

fn is_unknown(failure: &ResetFailure) -> bool {
    matches!(failure, ResetFailure::Unknown(_))
}

/// These results without large values, which the log keeps, and without those that are too large for it.
fn without_large(ends: &Result<Vec<End>, ResetFailure>) -> Result<Vec<End>, ResetFailure> {
    let is_small = |done: &Done| (1..=limits::RESET_TICKET_BYTES_MAX).contains(&done.kept_bytes);
    let without = |done: &Done| Done {
        cleared: done.cleared.as_ref().filter(|_| is_small(done)).cloned(),
        ..*done
    };
    let kept = |(key, end): &End| (key.clone(), end.as_ref().map(without).map_err(Clone::clone));
    ends.as_ref().map(|ends| ends.iter().map(kept).collect()).map_err(Clone::clone)
}

const _: () = assert!(
    LOG_NAMES_MAX <= limits::RESETS_REMEMBERED_MAX
        && LOG_NAMES_MAX <= limits::RESETS_BURST_MAX.get() as usize
);

#[cfg(test)]
mod tests {
    use orderfree_core::crdt::Counter;

    use super::*;

    #[test]
    fn a_ticket_keeps_small_values_that_the_log_keeps_too() {
        let name = |text| Name::new(text).expect("a name");
        let key = Key { kind: Kind::Counter, group: name("g"), name: name("n") };
        let end = |kept_bytes| {
            let generation = Generation::at(Timestamp::from_micros(9));
            let cleared = Some(State::Counter(Counter::from_total(5)));
            (key.clone(), Ok(Done { generation, cleared, kept_bytes, shards: 1 }))
        };
        let most = limits::RESET_TICKET_BYTES_MAX;
        let left = without_large(&Ok(vec![end(most), end(most + 1), end(0)])).expect("ends");
        let cleared = |end: &End| end.1.as_ref().expect("done").cleared.is_some();
        assert_eq!(left.iter().map(cleared).collect::<Vec<_>>(), [true, false, false]);
    }
}
