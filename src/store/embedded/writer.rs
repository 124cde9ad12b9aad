//! The writer: one thread that owns every write transaction. Whatever arrived while the last one
//! was synced goes into the next, so the busier the store, the fewer syncs a write costs.
//!
//! Outcomes. `Acked` if and only if the commit, with its sync, came back without error. `Unknown`
//! once a commit was begun and failed. `Refused` before that: a transaction that is not committed
//! leaves nothing behind, now or later.
//!
//! The first error of the file is the last: the store stays failed until the process is started
//! again. redb itself answers every later call with an error, and asks for the file to be closed and
//! opened again; but after a failed sync Linux forgets which pages it still had to write, so a file
//! opened again at once would show, and build on, writes that a power cut then takes away.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Builder, JoinHandle};

use orderfree_core::protocol::fold::Fold;
use orderfree_core::protocol::{Key, Row, ShardWrite, Timestamp, WriteOutcome};
use redb::{Database, Durability, WriteTransaction};
use tokio::sync::{mpsc, oneshot};

use super::rows::{self, SHARDS};
use super::{Shared, file};
use crate::limits::{WRITE_BATCH_BYTES_MAX, WRITE_BATCH_MAX, WRITE_QUEUE_MAX};
use crate::runtime::clock::Clock;
use crate::runtime::panics;
use crate::runtime::tasks::{Task, panic_point};

/// What to write.
#[derive(Debug)]
pub(super) enum Write {
    Shards(Vec<ShardWrite>),
    Folds(Vec<Fold>),
    Removal(Key, Row),
}

#[derive(Debug)]
enum Message {
    Write(Request),
    /// Write what was queued before, then end.
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
    /// Waits until the write was committed, or was not. The write goes on if the caller goes away.
    pub(super) async fn write(&self, write: Write) -> WriteOutcome {
        let (answer, outcome) = oneshot::channel();
        match self.0.try_send(Message::Write(Request { write, answer })) {
            Ok(()) => outcome.await.unwrap_or_else(|_| {
                WriteOutcome::Unknown("the store's writer died; start this process again".into())
            }),
            Err(mpsc::error::TrySendError::Full(_)) => WriteOutcome::Refused(format!(
                "{WRITE_QUEUE_MAX} writes wait for the disk already; try again later"
            )),
            Err(mpsc::error::TrySendError::Closed(_)) => {
                WriteOutcome::Refused("the store is closed".into())
            }
        }
    }

    /// Asks the thread to end after the writes that are queued.
    pub(super) async fn close(&self) {
        // An error means that it has ended.
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
    let writer = Writer { database, shared, clock };
    let thread = Builder::new().name("orderfree-writer".into());
    let run = move || {
        // redb panics where a page makes no sense. Nothing is written after that.
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
}

/// How far a transaction came.
enum Failed {
    /// It was never committed.
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
                    // Nothing is taken any more; what was queued before still comes.
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
        let now = self.clock.now().wall;
        let mut requests = batch.requests;
        if let Err(reason) = self.may_write(now, batch.bytes) {
            return requests.into_iter().for_each(|request| request.refuse(&reason));
        }
        let late = requests.extract_if(.., |request| match &request.write {
            Write::Shards(writes) => writes.iter().any(|write| !write.may_be_sent(now)),
            Write::Folds(_) | Write::Removal(..) => false,
        });
        late.for_each(|request| request.refuse("its lease is over"));
        if requests.is_empty() {
            return;
        }
        let outcome = match self.commit(&requests) {
            Ok(()) => {
                self.shared.commits.fetch_add(1, Ordering::Relaxed);
                WriteOutcome::Acked
            }
            Err(Failed::Before(error)) => WriteOutcome::Refused(self.shared.fail(&error)),
            Err(Failed::During(error)) => WriteOutcome::Unknown(self.shared.fail(&error)),
        };
        for request in requests {
            request.answer(outcome.clone());
        }
    }

    /// A clock that was set back writes nothing: folds may have gone by the later time.
    fn may_write(&self, now: Timestamp, bytes: usize) -> Result<(), String> {
        self.shared.check_file()?;
        self.shared.room.check(bytes)?;
        self.shared.guard.observe(now).map_err(|error| error.to_string())
    }

    fn commit(&self, requests: &[Request]) -> Result<(), Failed> {
        let mut transaction =
            self.database.begin_write().map_err(|error| Failed::Before(error.into()))?;
        self.fill(&mut transaction, requests).map_err(Failed::Before)?;
        transaction.commit().map_err(|error| Failed::During(error.into()))
    }

    fn fill(
        &self,
        transaction: &mut WriteTransaction,
        requests: &[Request],
    ) -> Result<(), redb::Error> {
        transaction.set_durability(Durability::Immediate)?;
        let mut table = transaction.open_table(SHARDS)?;
        for request in requests {
            match &request.write {
                Write::Shards(writes) => {
                    writes.iter().try_for_each(|write| rows::write_shard(&mut table, write))?;
                }
                Write::Folds(folds) => {
                    for fold in folds {
                        self.shared.guard.observe_fence(fold.fence());
                        rows::write_fold(&mut table, fold)?;
                    }
                }
                Write::Removal(key, row) => rows::remove(&mut table, key, row)?,
            }
        }
        file::write_highest(transaction, self.shared.guard.highest())
    }
}

impl Request {
    fn refuse(self, reason: &str) {
        self.answer(WriteOutcome::Refused(reason.to_owned()));
    }

    fn answer(self, outcome: WriteOutcome) {
        // An error means that the caller went away, which cancels nothing.
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
            Write::Folds(folds) => folds.iter().map(|fold| fold.tally().len()).sum(),
            Write::Removal(..) => 0,
        };
        self.bytes += bytes;
        self.requests.push(request);
    }

    fn is_full(&self) -> bool {
        self.requests.len() >= WRITE_BATCH_MAX || self.bytes >= WRITE_BATCH_BYTES_MAX
    }
}
