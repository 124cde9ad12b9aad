//! Step 1: the key's mutator takes the ops of an update.

use std::sync::Arc;
use std::time::Duration;

use orderfree_core::crdt::{Op, OpError};
use orderfree_core::protocol::generation::Generation;
use orderfree_core::protocol::op_id::NamedOp;
use orderfree_core::protocol::reset::{Shut, Side};
use orderfree_core::protocol::{
    Accepted, Change, Durability, Key, Mutator, Now, Refusal, Ticket, Timestamp,
};

use super::completion::Completion;
use super::entry::{Entry, QueueId};
use super::table::{Former, Found};
use super::writer::{RowSize, Writer};
use super::{Mutators, Refused, Update, UpdateError, Updates};
use crate::limits;
use crate::policy::{Arrival, QuotaPermit};
use crate::runtime::sync::{Ordering, PoisonError};
use crate::runtime::tasks::Task;

/// An accepted op list.
pub(super) struct Receipt {
    /// The time of the last op, for last-writer-wins kinds.
    pub(super) time: Option<Timestamp>,
    /// What to wait for, unless the ops are stored already.
    pub(super) pending: Option<PendingOps>,
}

/// Ops for a mutator, and how their client waits for them.
pub(super) struct Offer {
    pub(super) change: Change,
    pub(super) side: Side,
    pub(super) durability: Durability,
}

/// An accepted op list that is not stored yet.
pub(super) struct PendingOps {
    pub(super) entry: Arc<Entry>,
    /// The completion of the write that sends the ops.
    pub(super) completion: Arc<Completion>,
    pub(super) ticket: Ticket,
}

impl Mutators {
    /// Accepts updates of one key as one op list, so many updates of a hot key cost one update of its
    /// mutator. Accepts each update alone if an op is bad, because a bad op must fail only its own update,
    /// for last-writer-wins kinds, because each update returns its own time, and if any of them has an id.
    /// Appends each result with the number of updates that it covers.
    ///
    /// If an update meets a limit of this pod, the later ones of the key are not tried: one of them could get
    /// in, and the first would come after it when it is sent again. With `leaves`, returns these updates
    /// without a result. Otherwise all of them are refused.
    pub(super) fn accept_all(
        self: &Arc<Self>,
        updates: Updates,
        durability: Durability,
        leaves: bool,
        accepted: &mut Vec<(Result<Receipt, UpdateError>, usize)>,
    ) -> Option<Updates> {
        let Updates { key, lists } = updates;
        let has_name = lists.iter().any(|update| update.name.is_some());
        if lists.len() > 1 && !key.kind.is_timed() && !has_name {
            let ops: Vec<Op> = lists.iter().flat_map(|update| &update.ops).cloned().collect();
            match self.accept(&key, ops.into(), durability) {
                Err(UpdateError::Refused(Refused::Op(_))) => {}
                Err(UpdateError::Refused(Refused::Overloaded(_))) if leaves => {
                    return Some(Updates { key, lists });
                }
                together => {
                    accepted.push((together, lists.len()));
                    return None;
                }
            }
        }
        let mut lists = lists.into_iter();
        while let Some(update) = lists.next() {
            let again = leaves.then(|| update.clone());
            let result = self.accept(&key, update, durability);
            if !matches!(result, Err(UpdateError::Refused(Refused::Overloaded(_)))) {
                accepted.push((result, 1));
                continue;
            }
            let Some(update) = again else {
                accepted.push((result, 1 + lists.len()));
                return None;
            };
            let lists = std::iter::once(update).chain(lists).collect();
            return Some(Updates { key, lists });
        }
        None
    }

    /// Accepts an op list, unless the pod is stopping.
    pub(super) fn accept(
        self: &Arc<Self>,
        key: &Key,
        update: Update,
        durability: Durability,
    ) -> Result<Receipt, UpdateError> {
        let Update { mut ops, name } = update;
        // Held until a flusher runs, so `close` waits for all updates that passed this check.
        let _pending = self.flushers.token();
        if self.closed.load(Ordering::SeqCst) {
            return Err(Refused::Stopping.into());
        }
        let now = self.gate.open().map_err(Refused::from)?;
        if ops.iter().any(Op::is_refused_when_full)
            && self.gate.is_full(key, || self.resets.last(key))
        {
            return Err(Refused::from(OpError::TallyFull).into());
        }
        ops.iter_mut().try_for_each(|op| op.open(key, now.wall)).map_err(Refused::from)?;
        let until = match name {
            Some(name) => Some(name.expiry(&key.group, now.wall, &self.constants)?),
            None => None,
        };
        let is_unlisted = |name: &&NamedOp| name.is_total() || key.kind.about().is_idempotent;
        let unlisted = name.as_ref().filter(is_unlisted);
        let side = unlisted.map_or(Side::Any, |name| Side::OfId(name.time()));
        // Sending an op of an idempotent kind again changes nothing, so there is nothing to remember.
        let name = name.filter(|_| !key.kind.about().is_idempotent);
        let (time, change) = match name {
            None => (self.timestamp(key, &mut ops, now.wall)?, Change::Ops(ops)),
            Some(name) => (self.named_time(key, &name, ops.len()), {
                let named = name.prepare(key.kind, &key.group, &mut ops).map_err(Refused::from)?;
                Change::Named(named)
            }),
        };
        let writer = Writer { key: key.clone(), until: until.filter(|_| name.is_some()) };
        let permit = |arrival| match arrival {
            Arrival::Born if self.table.is_born_too_often(&writer, now) => Err(writer
                .until
                .map_or(Refused::BornTooOften, |until| Refused::TooManyIds { until })),
            Arrival::Born if writer.until.is_some() && self.table.is_known(key, now) => {
                Ok(self.policies.permit(&key.group, Arrival::Next)?)
            }
            arrival => Ok(self.policies.permit(&key.group, arrival)?),
        };
        // Vital: a panic here would leave a mutator that no task writes.
        let offer = Offer { change, side, durability };
        let admit = || self.admit(&writer, offer, now, None, permit);
        let pending = self.flushers.vital(Task::Update, admit);
        let pending = pending.map_err(|refused| match refused {
            Refused::Resets(Shut::OtherSide) => UpdateError::IdBeforeReset,
            refused => refused.into(),
        });
        Ok(Receipt { time, pending: pending? })
    }

    /// The time of the last of these ops with an id, which later ops without one must follow.
    fn named_time(&self, key: &Key, name: &NamedOp, ops: usize) -> Option<Timestamp> {
        let first = Some(name.op_time()).filter(|_| key.kind.is_timed())?;
        let time = first.plus(Duration::from_micros(ops.saturating_sub(1) as u64));
        self.hybrid.lock().unwrap_or_else(PoisonError::into_inner).note(time);
        self.store.note_stamp(time);
        Some(time)
    }

    /// Gives the ops of a last-writer-wins kind their times. Returns the last one.
    fn timestamp(
        &self,
        key: &Key,
        ops: &mut [Op],
        wall: Timestamp,
    ) -> Result<Option<Timestamp>, Refused> {
        if !key.kind.is_timed() {
            return Ok(None);
        }
        let mut hybrid = self.hybrid.lock().unwrap_or_else(PoisonError::into_inner);
        let mut last = None;
        for op in ops {
            let time = hybrid.tick(wall, op.after());
            let time = time.map_err(|ahead| OpError::Invalid(ahead.to_string()))?;
            op.stamp(time);
            last = Some(time);
        }
        if let Some(last) = last {
            self.store.note_stamp(last);
        }
        Ok(last)
    }

    /// Gives the ops to the writer's mutator: the awake one, one that wakes, or a new one. Queues the mutator,
    /// unless a task has it already. `former` is a retired entry of the writer.
    pub(super) fn admit(
        self: &Arc<Self>,
        writer: &Writer,
        Offer { mut change, side, durability }: Offer,
        now: Now,
        mut former: Option<Former>,
        permit: impl Fn(Arrival) -> Result<QuotaPermit, Refused>,
    ) -> Result<Option<PendingOps>, Refused> {
        if self.totals.waiting() >= limits::WAITING_OPS_MAX {
            return Err(Refused::Overloaded("too many updates waiting"));
        }
        if writer.row_size() != RowSize::Small {
            let (moves, has_room) = self.table.shed(now);
            self.count_moves(moves);
            if !has_room {
                return Err(Refused::Overloaded("too much memory in states with open writes"));
            }
        }
        loop {
            let stamp = self.resets.admit(&writer.key, writer.until, side, now)?;
            let entry = self.live_entry(writer, stamp, now, former.as_ref(), &permit)?;
            let mut state = entry.lock();
            if !state.retired && !self.resets.takes(&writer.key, state.mutator().stamp()) {
                (state.retired, state.hands_permit_on) = (true, true);
            }
            if state.retired {
                let legacy = state.mutator().legacy();
                let permit = state.permit.clone().filter(|_| state.hands_permit_on);
                drop(state);
                // Replace a retired entry at once, whichever task retired it. A wait for that task would
                // spin.
                former = Some(Former { entry, legacy, permit });
                continue;
            }
            // Another task can have learned of a reset since, and the mutator that it made is after that reset.
            self.resets.check_side(side, state.mutator().stamp())?;
            let is_repeat = state.mutator().has_id_of(&change);
            if writer.until.is_some() && !is_repeat && self.gate.has_too_many_ids(&writer.key) {
                return Err(Refused::KeyHasTooManyIds);
            }
            let ops = change.count();
            let taken =
                state.change(&self.totals, |mutator| mutator.accept(change, durability, now));
            if taken.is_ok() {
                entry.count_ops(ops);
            }
            if taken.is_ok() && writer.until.is_some() {
                self.metrics.id_updates.inc();
                self.metrics.id_repeats.inc_by(u64::from(is_repeat));
            }
            match taken {
                Ok(Accepted::Stored) => return Ok(None),
                Ok(Accepted::Queued(ticket)) => {
                    let completion = Arc::clone(&state.next_write);
                    let must_queue = state.begin_flushing(&self.totals);
                    entry.note_pack_bytes(state.mutator().pack_bytes());
                    drop(state);
                    if must_queue {
                        self.enqueue(Arc::clone(&entry));
                    }
                    return Ok(Some(PendingOps { entry, completion, ticket }));
                }
                Err(Refusal::Op(error)) => return Err(error.into()),
                Err(Refusal::Unacked) => return Err(Refused::Unacked),
                Err(Refusal::QueueFull) => {
                    return Err(Refused::Overloaded("too many updates of this key waiting"));
                }
                Err(Refusal::Draining(back)) => {
                    change = back;
                    state.retired = true;
                }
                Err(Refusal::Full(back)) => {
                    if !state.mutator().leaves_room(now.wall, &self.constants) {
                        return Err(match writer.until {
                            None => OpError::KeyFull.into(),
                            Some(until) => Refused::TooManyIds { until },
                        });
                    }
                    change = back;
                    (state.retired, state.hands_permit_on) = (true, true);
                }
            }
        }
    }

    fn live_entry(
        &self,
        writer: &Writer,
        stamp: Option<Generation>,
        now: Now,
        former: Option<&Former>,
        permit: impl Fn(Arrival) -> Result<QuotaPermit, Refused>,
    ) -> Result<Arc<Entry>, Refused> {
        let Writer { key, until } = writer;
        let born = || {
            let (precision, id) = (self.policies.precision(key), self.random.mutator_id());
            let constants = &self.constants;
            match *until {
                None => Mutator::born_after(stamp, key.clone(), id, precision, now, constants),
                Some(until) => {
                    let key = key.clone();
                    Mutator::born_until(key, id, precision, until, now, constants).stamped(stamp)
                }
            }
        };
        let queue = || QueueId::of(self.store.first_replica(key), writer);
        let found = self.table.find_or_insert(writer, now, former, permit, born, queue)?;
        let Found { entry, arrival, moves } = found;
        self.count_moves(moves);
        match arrival {
            Some(Arrival::Born | Arrival::Next) => drop(self.metrics.births.inc()),
            Some(Arrival::Woken) => drop(self.metrics.wakes.inc()),
            None => {}
        }
        Ok(entry)
    }
}
