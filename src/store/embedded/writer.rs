//! The writer: one thread that runs all write transactions. All writes that arrive during the sync of one
//! transaction go into the next one, so the busier the store, the fewer syncs per write.
//!
//! Outcomes: `Acked` if and only if the commit, including its sync, succeeded. `Unknown` if a commit began
//! and failed. `Refused` before that: a transaction that is not committed has no effect, now or later.
//!
//! After the first error of the file, the store stays failed until the process is restarted. redb itself
//! answers every later call with an error, and requires closing and opening the file again. But after a
//! failed sync Linux forgets which pages it still had to write. A file that is opened again at once would
//! show writes that a later power cut removes, and new writes would build on them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread::{Builder, JoinHandle};

use orderfree_core::protocol::fold::Fold;
use orderfree_core::protocol::reset::LogRow;
use orderfree_core::protocol::{Key, Now, Row, ShardWrite, Timestamp, WriteError, WriteOutcome};
use redb::{Database, Durability, WriteTransaction};
use tokio::sync::{mpsc, oneshot};

use super::resets;
use super::rows::{self, SHARDS};
use super::{Shared, file};
use crate::limits::{WRITE_BATCH_BYTES_MAX, WRITE_BATCH_MAX, WRITE_QUEUE_MAX};
use crate::runtime::clock::Clock;
use crate::runtime::panics;
use crate::runtime::tasks::{Task, panic_point};
use crate::store::Receipt;

#[derive(Debug)]
pub(super) enum Write {
    Shards(Vec<ShardWrite>),
    Folds(Vec<Fold>),
    /// The log's row, and the markers.
    Reset(Box<(LogRow, Receipt)>, Vec<Fold>),
    Removal(Key, Row),
}

#[derive(Debug)]
enum Message {
    Write(Request),
    /// Write all requests that were queued before, then end.
    Close,
}

#[derive(Debug)]
struct Request {
    write: Write,
    answer: oneshot::Sender<WriteOutcome>,
}

/// The queue to the writer's thread.
#[derive(Debug)]
pub(super) struct Queue(mpsc::Sender<Message>);

impl Queue {
    /// Queues the write and waits for its outcome. The write continues even if the caller goes away.
    pub(super) async fn write(&self, write: Write) -> WriteOutcome {
        let (answer, outcome) = oneshot::channel();
        match self.0.try_send(Message::Write(Request { write, answer })) {
            Ok(()) => outcome.await.unwrap_or_else(|_| {
                Err(WriteError::Unknown(
                    "the store's writer thread ended; restart this process".into(),
                ))
            }),
            Err(mpsc::error::TrySendError::Full(_)) => Err(WriteError::Refused(format!(
                "{WRITE_QUEUE_MAX} writes already wait for the disk; try again later"
            ))),
            Err(mpsc::error::TrySendError::Closed(_)) => {
                Err(WriteError::Refused("the store is closed".into()))
            }
        }
    }

    /// Makes the thread end after the queued writes.
    pub(super) async fn close(&self) {
        // An error means that the thread has already ended.
        let _ = self.0.send(Message::Close).await;
    }
}

/// Starts the thread. It ends at [`Queue::close`], or when the queue is dropped.
pub(super) fn start(
    database: Arc<Database>,
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
) -> io::Result<(Queue, JoinHandle<()>)> {
    let (sender, receiver) = mpsc::channel(WRITE_QUEUE_MAX);
    let writer = Writer { database, shared, clock, pruned_us: AtomicI64::new(i64::MIN) };
    let thread = Builder::new().name("orderfree-writer".into());
    let run = move || {
        // redb panics at an invalid page. Nothing is written after that.
        let run = || {
            panic_point(Task::StoreWriter);
            writer.run(receiver);
        };
        if let Err(panic) = panics::caught(run) {
            writer.shared.fail(&panic);
        }
    };
    Ok((Queue(sender), thread.spawn(run)?))
}

struct Writer {
    database: Arc<Database>,
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
    /// When rows of the log of resets were removed last.
    pruned_us: AtomicI64,
}

/// Why a transaction failed.
enum Failed {
    /// It failed before the commit.
    Before(redb::Error),
    /// The commit failed.
    During(redb::Error),
}

impl Writer {
    fn run(&self, mut queue: mpsc::Receiver<Message>) {
        while let Some(message) = queue.blocking_recv() {
            let mut batch = Batch::default();
            let mut next = Ok(message);
            while let Ok(message) = next {
                match message {
                    Message::Write(request) => batch.push(request),
                    // No new requests are accepted; the queued ones still come.
                    Message::Close => queue.close(),
                }
                if batch.is_full() {
                    break;
                }
                next = queue.try_recv();
            }
            self.execute(batch);
        }
    }

    fn execute(&self, batch: Batch) {
        let Now { wall: now, boot } = self.clock.now();
        let mut requests = batch.requests;
        if let Err(reason) = self.may_write(now, batch.bytes) {
            return requests.into_iter().for_each(|request| request.refuse(&reason));
        }
        let late = requests.extract_if(.., |request| match &request.write {
            Write::Shards(writes) => writes.iter().any(|write| !write.may_be_sent(now)),
            Write::Folds(folds) | Write::Reset(_, folds) => {
                folds.iter().any(|fold| !fold.may_be_sent(boot))
            }
            Write::Removal(..) => false,
        });
        late.for_each(|request| match &request.write {
            Write::Shards(_) => request.refuse("its lease is over"),
            Write::Folds(_) | Write::Reset(..) | Write::Removal(..) => {
                request.refuse("its key was read too long ago");
            }
        });
        if requests.is_empty() {
            return;
        }
        let outcome = match self.commit(&requests, now) {
            Ok(()) => {
                self.shared.commits.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(Failed::Before(error)) => Err(WriteError::Refused(self.shared.fail(&error))),
            Err(Failed::During(error)) => Err(WriteError::Unknown(self.shared.fail(&error))),
        };
        for request in requests {
            request.answer(outcome.clone());
        }
    }

    /// Refuses writes if the clock was set back: folds can have used the later time.
    fn may_write(&self, now: Timestamp, bytes: usize) -> Result<(), String> {
        self.shared.check_file()?;
        self.shared.room.check(bytes)?;
        self.shared.guard.observe(now).map_err(|error| error.to_string())
    }

    fn commit(&self, requests: &[Request], now: Timestamp) -> Result<(), Failed> {
        let mut transaction =
            self.database.begin_write().map_err(|error| Failed::Before(error.into()))?;
        self.fill(&mut transaction, requests, now).map_err(Failed::Before)?;
        transaction.commit().map_err(|error| Failed::During(error.into()))
    }

    fn fill(
        &self,
        transaction: &mut WriteTransaction,
        requests: &[Request],
        now: Timestamp,
    ) -> Result<(), redb::Error> {
        transaction.set_durability(Durability::Immediate)?;
        let mut table = transaction.open_table(SHARDS)?;
        for request in requests {
            match &request.write {
                Write::Shards(writes) => {
                    writes.iter().try_for_each(|write| rows::write_shard(&mut table, write))?;
                }
                Write::Folds(folds) | Write::Reset(_, folds) => {
                    for fold in folds {
                        self.shared.guard.observe_fence(fold.evidence());
                        rows::write_fold(&mut table, fold)?;
                        rows::remove_all(&mut table, fold.key(), fold.leftovers())?;
                    }
                    if let Write::Reset(logged, _) = &request.write {
                        self.prune_resets(transaction, now)?;
                        resets::write(transaction, &logged.0, &logged.1)?;
                    }
                }
                Write::Removal(key, row) => rows::remove(&mut table, key, row)?,
            }
        }
        file::write_highest(transaction, self.shared.guard.highest())
    }

    /// Removes rows of the log that are no longer needed, at the first reset and then each hour: it reads the whole log.
    fn prune_resets(
        &self,
        transaction: &WriteTransaction,
        now: Timestamp,
    ) -> Result<(), redb::Error> {
        let due = now.minus(resets::PRUNE_EVERY).as_micros();
        if self.pruned_us.load(Ordering::Relaxed) <= due {
            resets::prune(transaction, now)?;
            self.pruned_us.store(now.as_micros(), Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Request {
    fn refuse(self, reason: &str) {
        self.answer(Err(WriteError::Refused(reason.to_owned())));
    }

    fn answer(self, outcome: WriteOutcome) {
        // An error means that the caller went away. That cancels nothing.
        let _ = self.answer.send(outcome);
    }
}

/// The writes of one transaction.
#[derive(Default)]
struct Batch {
    requests: Vec<Request>,
    bytes: usize,
}

impl Batch {
    fn push(&mut self, request: Request) {
        let bytes: usize = match &request.write {
            Write::Shards(writes) => writes.iter().map(|write| write.state().len()).sum(),
            Write::Folds(folds) | Write::Reset(_, folds) => {
                folds.iter().map(|fold| fold.tally().len()).sum()
            }
            Write::Removal(..) => 0,
        };
        self.bytes += bytes;
        self.requests.push(request);
    }

    fn is_full(&self) -> bool {
        self.requests.len() >= WRITE_BATCH_MAX || self.bytes >= WRITE_BATCH_BYTES_MAX
    }
}
