//! Reset and delete: a key begins again, and what it had is returned. Keeps invariants I8 and I15.
//!
//! An update never reads, so a pod can't see that a key was reset. Instead, all pods look at a short *log of
//! resets*, once a second. A look lets a pod take and acknowledge updates for ℓ after it began. A reset of a key
//! takes these steps:
//!
//! 1. It looks at the log, reads the key, and chooses its *generation* g: its clock, above all earlier ones.
//! 2. It writes g to the log, at a level that every later look meets.
//! 3. It waits for ℓ. From then on, no pod acknowledges anything without having seen g.
//! 4. It reads the whole key as a fold does. What counts is the *cleared* value.
//! 5. It writes its *marker*, a tally without a state whose fence is g, and deletes every row up to g. This is
//!    the same batch as that of a fold, at g + 1.
//!
//! **Which rows count.** A mutator that is born while its pod remembers resets of the key has the greatest of
//! their generations as its *stamp*. The tally of a reset g does not count rows with a lower stamp or none,
//! unless they expire after `until`: see [`Remembered::counts`]. So a row is always on the same side of a
//! reset, whole, whenever it arrives. Rows that expire after `until` were born when all pods had forgotten g.
//!
//! **Which acks stand.** A pod acknowledges a write only if, after the store's answer, less than ℓ has passed
//! since the last look that showed no newer generation than the row's stamp: see [`Log::fate`]. A reset that
//! was logged at time a is seen by every look that begins after a. So after a + ℓ nothing is acknowledged in a
//! row that the reset clears, and the read of step 4 sees everything that was.
//!
//! **Why folds lose no side.** A fold that does not know of g has read before the marker was sent, so within M
//! of step 1. C > M + R + 2ε + Δ, so its fence is below g, and it loses against g + 1. A fold that reads later finds
//! the marker, ignores the same rows, and carries the reset on until its own fence has passed `until`.
//!
//! **Ops with ids.** The id of a cleared op may come again, at any pod. So the marker lists the cleared ids whose
//! expiry is above g, folds and later resets carry the list on until their fence passes that expiry, and a listed
//! id counts nothing. The retry is acknowledged, which is right: its op was counted, and cleared. Ids of
//! running totals, and of kinds that ignore ids, can't be listed. Their ops are refused if the id's time does not tell on which
//! side of the reset all copies lie: see [`Side`].
//!
//! **Resets that end early.** If no marker was sent, the reset had no effect: a generation in the log alone makes
//! pods use new mutators, nothing else. If the marker was sent and not acknowledged, the reset takes effect as
//! of g or never: a fold over other tallies settles it, or another reset.
//!
//! **Two resets at once** of one key may both return the same ops.
//!
//! **A process that is alone** with its store needs no looks and no ℓ. It waits only for writes of the key that are under
//! way. Then it acknowledges nothing more in a row with a lower stamp, and reads the key after that. It still needs the log,
//! which it writes with the marker and reads when it starts: see [`Log::alone`].

use std::collections::HashMap;
use std::time::Duration;

use sha2::{Digest, Sha256};
use thiserror::Error;
use uuid::Uuid;

use super::fold::{Fold, Report};
use super::generation::{AHEAD_SLACK, Generation, Remembered, evidence};
use super::row_reader::{RowError, RowReader};
use super::united::{Counting, Counts};
use super::{Constants, FullRead, Key, Name, Now, Row, Timestamp};
use crate::crdt::pack::OpId;
use crate::crdt::{Kind, State, envelope};

/// Number of parts of the log. A pod looks at each of them by a query of its own.
pub const BUCKETS: u8 = 8;

/// Most ids that a marker lists. A key with more is reset when folds have taken some.
pub const CLEARED_IDS_MAX: usize = 100_000;

/// Names in one row of the log.
pub const LOG_NAMES_MAX: usize = 1_000;

/// How much longer than ℓ a reset waits, as a divisor: clocks of two machines run at different speeds.
const WAIT_SLACK: u32 = 1_000;

/// A look after this time reads all rows. Their number is bounded, because each row ends by itself. A bound by time
/// would miss some: a reset is remembered until the last row that it clears has expired, whatever the lifetime of
/// the pod that wrote that row.
pub const ALL_ROWS: Timestamp = Timestamp::from_micros(0);

/// The least that a later look reaches back. A row can be acknowledged some time after it was made.
const LOOK_BACK_MIN: Duration = Duration::from_secs(120);

/// The time between two looks of a running pod at all rows, which also count what is left of them. Old rows can appear when a
/// backup is restored.
const ALL_ROWS_EVERY: Duration = Duration::from_secs(600);

/// The part of the log in which resets of this group's keys are.
#[must_use]
pub fn bucket(kind: Kind, group: &Name) -> u8 {
    let hash = Sha256::new().chain_update(kind.name()).chain_update([0u8]);
    hash.chain_update(group.as_str()).finalize()[0] % BUCKETS
}

/// One row of the log: a reset of names of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRow {
    /// The id under which its client finds it again. With the kind, the group and the generation it is the row's
    /// address.
    pub id: Uuid,
    /// The kind of the keys.
    pub kind: Kind,
    /// Their group.
    pub group: Name,
    /// Their names, at most [`LOG_NAMES_MAX`].
    pub names: Vec<Name>,
    /// The reset's generation.
    pub generation: Generation,
    /// Until when pods remember it.
    pub until: Timestamp,
    /// The keys are absent afterwards.
    pub is_deletion: bool,
}

impl LogRow {
    /// The keys that are reset.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        let of =
            |name: &Name| Key { kind: self.kind, group: self.group.clone(), name: name.clone() };
        self.names.iter().map(of)
    }
}

/// Why a pod can't take updates of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Shut {
    /// Its last look at the log is too old.
    #[error(
        "this pod could not read the log of resets for {0:?} and tries again; send the update again in a second"
    )]
    Unread(Duration),
    /// It has not looked at the whole log yet, or not since its clock was found wrong.
    #[error(
        "this pod has not read the log of resets yet and tries again; send the update again in a second"
    )]
    NeverRead,
    /// The key was reset at a time that this pod's clock has not reached.
    #[error("the key was reset in this clock's future: a clock has moved; check NTP")]
    Ahead,
    /// A row that takes updates now is on another [side](Side) than these ops may be.
    #[error("the key was reset, and these ops may be counted before the reset")]
    OtherSide,
}

/// On which sides of resets ops may be. It is compared with the stamp of the very row that takes them: a pod can learn
/// of a reset at any moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Side {
    /// On any: resets list their ids, or they have none.
    #[default]
    Any,
    /// They have an id of this time, which no reset can list (R8). If it is not well after a reset, copies can lie on
    /// both sides of it.
    OfId(Timestamp),
    /// They may be stored already, in a row with this stamp.
    Stored(Option<Generation>),
}

impl Side {
    /// Whether a row with this stamp may hold them.
    fn has(self, stamp: Option<Generation>, constants: &Constants) -> bool {
        match self {
            Side::Any => true,
            Side::OfId(time) => stamp.is_none_or(|of| time > of.0.plus(constants.reset_blur())),
            Side::Stored(before) => stamp <= before,
        }
    }
}

/// Whether ops in a row can be acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// They can, now.
    Stands,
    /// They can again after the next look, if it shows no reset of the key.
    Waits,
    /// They never can: the row may be cleared already.
    Over,
}

/// What a pod remembers of the log of resets.
#[derive(Debug, Clone, Default)]
pub struct Log {
    /// The last look at each part; none before the first.
    looks: [Option<Look>; BUCKETS as usize],
    resets: HashMap<Key, Vec<Entry>>,
    /// Number of entries.
    count: usize,
    /// How often the log was distrusted.
    distrusts: u64,
    /// This process alone has the store, so its own memory is the log.
    is_alone: bool,
    flaw: Option<ResetFlaw>,
}

/// A rule of resets that a simulation breaks, to show that it is needed. Nothing else uses this.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetFlaw {
    /// Updates are taken and acknowledged without a look at the log (R1, R4).
    NoLease,
    /// After an acknowledgement, no pod asks when the last look was (R4).
    NoLookAfterAck,
    /// Mutators from before a reset take further ops, and acknowledge them (R3, R4).
    OldMutators,
    /// A reset is forgotten at once (R2).
    ForgetsEarly,
    /// A reset does not wait until all pods know of it (R5).
    NoWait,
    /// A marker is sent at any time, over any fence (R5).
    NoDeadline,
    /// A reset does not look for newer stamps (R5).
    IgnoresNewer,
    /// A reset does not look for rows that expire after it is forgotten (R5).
    IgnoresLonger,
    /// A reset does not carry the list of the one before on (R7).
    DropsIds,
    /// Ids that can't be listed are taken whatever their time (R8).
    TakesOldIds,
    /// Resets are forgotten although the clock can't be trusted.
    ForgetsWhileShut,
    /// The first look reads no more than Λ (R2).
    ShortFirstLook,
    /// After the acknowledgement of a marker, no pod asks whether it came in time (R5).
    NoLookAfterMarker,
    /// A reset is called done if a read finds its marker (R5).
    TrustsRead,
    /// A reset does not look for another one with its id (R5).
    NoLookForRivals,
}

/// A look at a part of the log.
#[derive(Debug, Clone, Copy)]
struct Look {
    began: Now,
    /// It asked for rows above this time.
    after: Timestamp,
    /// When a look at all rows was begun last, by the boot-time clock.
    all_rows: Duration,
    /// What the last look at all rows showed, and newer rows since.
    size: Size,
    newest: Option<Generation>,
}

/// A look that begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// It asks for rows above this time.
    pub after: Timestamp,
    distrusts: u64,
}

/// What a part of the log has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Size {
    /// Number of rows.
    pub rows: usize,
    /// Number of names in them.
    pub names: usize,
}

impl Size {
    fn with(self, row: &LogRow) -> Size {
        Size { rows: self.rows + 1, names: self.names + row.names.len() }
    }
}

/// A reset of one key. A later generation can have been seen before an earlier one.
#[derive(Debug, Clone, Copy)]
struct Entry {
    generation: Generation,
    until: Timestamp,
    /// When the last look began that asked for it and did not show it. None if there is none, or if its ℓ is over.
    unseen: Option<Duration>,
    /// A mutator with this stamp has begun to write.
    has_birth: bool,
    /// The log has it, as far as is known. Otherwise only a tally has shown it.
    is_logged: bool,
}

impl Entry {
    fn logged(LogRow { generation, until, .. }: &LogRow, unseen: Option<Duration>) -> Entry {
        Entry { generation: *generation, until: *until, unseen, has_birth: false, is_logged: true }
    }

    /// Whether nothing depends on the other entry: this one has a later stamp, is remembered as long, and lets no ack stand
    /// that the other one forbids.
    fn replaces(&self, other: &Entry) -> bool {
        self.generation > other.generation && self.until >= other.until && self.unseen.is_none()
    }
}

impl Log {
    /// What the next look at a part, which begins now, must ask for.
    #[must_use]
    pub fn look_after(&mut self, bucket: u8, now: Now, constants: &Constants) -> Asked {
        let after = match &mut self.looks[usize::from(bucket)] {
            // If that look fails, the next one asks for less.
            Some(last) if now.boot.saturating_sub(last.all_rows) >= ALL_ROWS_EVERY => {
                last.all_rows = now.boot;
                ALL_ROWS
            }
            Some(last) => last.began.wall.minus(LOOK_BACK_MIN.max(constants.reset_blur())),
            None if self.flaw == Some(ResetFlaw::ShortFirstLook) => {
                now.wall.minus(constants.reset_memory())
            }
            None => ALL_ROWS,
        };
        Asked { after, distrusts: self.distrusts }
    }

    /// A look at a part has shown this row, and can show more.
    pub fn saw(&mut self, bucket: u8, row: &LogRow) {
        // A look that did not ask for a row does not tell that it was not there.
        let last = self.looks[usize::from(bucket)].filter(|last| row.generation.0 > last.after);
        for key in row.keys() {
            self.learn(key, Entry::logged(row, last.map(|last| last.began.boot)));
        }
    }

    /// A look at a part, which began at this time and was answered by a quorum, showed these rows, all of which this pod
    /// [has seen](Log::saw) if pods still need them. The clock gate was open when it began and when it ended. Returns
    /// whether the look counts: what was asked for before the log was distrusted does not.
    pub fn looked(&mut self, bucket: u8, began: Now, asked: Asked, rows: &[LogRow]) -> bool {
        let last = self.looks[usize::from(bucket)];
        if asked.distrusts != self.distrusts
            || last.is_some_and(|last| last.began.boot >= began.boot)
        {
            return false;
        }
        let known = last.filter(|_| asked.after != ALL_ROWS);
        let newest = known.and_then(|known| known.newest);
        let newer = || rows.iter().filter(|row| Some(row.generation) > newest);
        self.looks[usize::from(bucket)] = Some(Look {
            began,
            after: asked.after,
            all_rows: last.map_or(began.boot, |last| last.all_rows),
            size: newer().fold(known.map(|known| known.size).unwrap_or_default(), Size::with),
            newest: newer().map(|row| row.generation).max().or(newest),
        });
        true
    }

    /// What a part has, as far as looks have shown.
    #[must_use]
    pub fn size(&self, bucket: u8) -> Size {
        self.looks[usize::from(bucket)].map(|look| look.size).unwrap_or_default()
    }

    fn learn(&mut self, key: Key, new: Entry) {
        let of_key = self.resets.entry(key).or_default();
        if let Some(known) = of_key.iter_mut().find(|known| known.generation == new.generation) {
            known.until = known.until.max(new.until);
            known.is_logged |= new.is_logged;
            return;
        }
        // A key that is reset each minute would have more entries than a lock may be held for.
        if of_key.iter().any(|known| known.replaces(&new)) {
            return;
        }
        let before = of_key.len();
        of_key.retain(|known| !new.replaces(known));
        of_key.push(new);
        self.count = self.count + of_key.len() - before;
    }

    /// The log of a process that is alone with its store, with all rows that the store has.
    #[must_use]
    pub fn alone(rows: &[LogRow]) -> Log {
        let mut log = Log { is_alone: true, ..Log::default() };
        for row in rows {
            row.keys().for_each(|key| log.learn(key, Entry::logged(row, None)));
        }
        log
    }

    /// This process, which is alone with its store, begins a reset: from now on, mutators with a lower stamp take no further
    /// ops. Until the reset is [closed](Log::close), and for at most ℓ, acks of what they have taken stand.
    pub fn begin(&mut self, row: &LogRow, boot: Duration) {
        for key in row.keys() {
            self.learn(key, Entry::logged(row, Some(boot)));
        }
    }

    /// From now on, this process acknowledges nothing in a row with a lower stamp.
    pub fn close(&mut self, row: &LogRow) {
        for key in row.keys() {
            let Some(of_key) = self.resets.get_mut(&key) else { continue };
            let is_it = |entry: &Entry| entry.generation == row.generation;
            if let Some(at) = of_key.iter().position(is_it) {
                let entry = of_key.swap_remove(at);
                self.count -= 1;
                self.learn(key, Entry { unseen: None, ..entry });
            }
        }
    }

    /// A read found that a tally remembers this reset. Returns a row for the log if a look shows that the log has lost it:
    /// it began when the row must have been there. The row has the generation of now, so that every pod sees it at its next
    /// look. Rows with that stamp count after the reset, too.
    pub fn met(
        &mut self,
        key: &Key,
        reset: &Remembered,
        now: Timestamp,
        constants: &Constants,
    ) -> Option<LogRow> {
        let (generation, until) = (reset.generation, reset.until);
        let has = |entry: &Entry| {
            // A later entry can have replaced it.
            (entry.generation == generation && entry.is_logged)
                || (entry.generation > generation && entry.until >= until)
        };
        let is_known = self.resets.get(key).is_some_and(|of_key| of_key.iter().any(has));
        if is_known || now > until {
            return None;
        }
        let logged = generation.0.plus(constants.reset_blur());
        let look = self.looks[usize::from(bucket(key.kind, &key.group))];
        let is_lost = self.is_alone || look.is_some_and(|look| look.began.wall > logged);
        let new = Entry { generation, until, unseen: None, has_birth: false, is_logged: is_lost };
        self.learn(key.clone(), new);
        if !is_lost {
            return None;
        }
        let (kind, group, names) = (key.kind, key.group.clone(), vec![key.name.clone()]);
        // Other names of the same reset must not have the same address.
        let hash = Sha256::digest(key.name.as_str());
        let id = Uuid::from_slice(&hash[..16]).expect("invariant: a UUID has 16 bytes");
        let (generation, is_deletion) = (Generation(now.max(generation.0.next())), false);
        Some(LogRow { id, kind, group, names, generation, until, is_deletion })
    }

    /// Forgets resets whose time is over by this clock. Only while the clock gate is open: a clock that ran ahead
    /// would forget resets that other rows still depend on. If a key has several resets, only the last is kept once no
    /// ack relies on a look from before it.
    pub fn forget(&mut self, now: Now, constants: &Constants) {
        let is_early = self.flaw == Some(ResetFlaw::ForgetsEarly);
        let mut count = 0;
        self.resets.retain(|_, of_key| {
            of_key.retain(|entry| {
                now.wall <= if is_early { entry.generation.0 } else { entry.until }
            });
            for entry in of_key.iter_mut() {
                entry.unseen =
                    entry.unseen.filter(|unseen| now.boot < *unseen + constants.reset_lease());
            }
            if of_key.len() > 1 {
                let all = of_key.clone();
                of_key.retain(|entry| !all.iter().any(|other| other.replaces(entry)));
            }
            count += of_key.len();
            !of_key.is_empty()
        });
        self.count = count;
    }

    /// The clock gate was shut by a measurement: what was not read may have been missed. No update is taken until
    /// the whole log was read again.
    pub fn distrust(&mut self) {
        self.looks = [None; BUCKETS as usize];
        self.distrusts += 1;
    }

    fn last_look(&self, key: &Key) -> Option<Duration> {
        self.looks[usize::from(bucket(key.kind, &key.group))].map(|look| look.began.boot)
    }

    /// Breaks the rule `flaw`, for the simulator.
    #[doc(hidden)]
    #[must_use]
    pub fn with_flaw(self, flaw: Option<ResetFlaw>) -> Log {
        Log { flaw, ..self }
    }

    /// Whether a mutator with this stamp is the first one of its key since that reset. Only the first call says so.
    pub fn is_first_birth(&mut self, key: &Key, stamp: Option<Generation>) -> bool {
        let mut of_key = self.resets.get_mut(key).into_iter().flatten();
        let entry = of_key.find(|entry| Some(entry.generation) == stamp);
        entry.is_some_and(|entry| !std::mem::replace(&mut entry.has_birth, true))
    }

    /// Number of resets.
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.count
    }

    /// The time since the oldest last look at a part began; none if a part was never read.
    #[must_use]
    pub fn age(&self, boot: Duration) -> Option<Duration> {
        if self.is_alone {
            return Some(Duration::ZERO);
        }
        let oldest = self.looks.iter().map(|look| look.map(|look| look.began.boot)).min().flatten();
        oldest.map(|look| boot.saturating_sub(look))
    }

    /// Whether a mutator with this stamp may take further ops (R3).
    #[must_use]
    pub fn takes(&self, key: &Key, stamp: Option<Generation>) -> bool {
        self.flaw == Some(ResetFlaw::OldMutators) || stamp >= self.stamp(key)
    }

    /// The stamp of a mutator of this key that is born now (R2).
    #[must_use]
    pub fn stamp(&self, key: &Key) -> Option<Generation> {
        self.resets.get(key)?.iter().map(|entry| entry.generation).max()
    }

    /// Whether an update of the key with ops of this side can be taken now, in a row that expires at this time if that
    /// follows from an id (R1). Returns the least stamp that its mutator must have.
    ///
    /// # Errors
    /// [`Shut`]; then nothing may be taken.
    pub fn admit(
        &self,
        key: &Key,
        expires_at: Option<Timestamp>,
        side: Side,
        now: Now,
        constants: &Constants,
    ) -> Result<Option<Generation>, Shut> {
        if !self.is_alone && self.flaw != Some(ResetFlaw::NoLease) {
            let look = self.last_look(key).ok_or(Shut::NeverRead)?;
            let age = now.boot.saturating_sub(look);
            if age >= constants.reset_lease() {
                return Err(Shut::Unread(age));
            }
        }
        let stamp = self.stamp(key);
        // A row that expires up to g is below the marker's fence, whatever its stamp.
        let latest = now.wall.plus(2 * constants.clock_offset_max() + AHEAD_SLACK);
        let is_ahead = |stamp: Generation| {
            stamp.0 > latest || expires_at.is_some_and(|expires_at| expires_at <= stamp.0)
        };
        match stamp {
            Some(stamp) if is_ahead(stamp) => Err(Shut::Ahead),
            stamp => self.check_side(side, stamp, constants).map(|()| stamp),
        }
    }

    /// Whether a row with this stamp may hold ops of this side (R8). The row of the mutator that takes them can have a
    /// later stamp than [`Log::admit`] has returned.
    ///
    /// # Errors
    /// [`Shut::OtherSide`].
    pub fn check_side(
        &self,
        side: Side,
        stamp: Option<Generation>,
        constants: &Constants,
    ) -> Result<(), Shut> {
        let takes_all = self.flaw == Some(ResetFlaw::TakesOldIds);
        match takes_all || side.has(stamp, constants) {
            true => Ok(()),
            false => Err(Shut::OtherSide),
        }
    }

    /// Whether a write of a row with this stamp, which the store has acknowledged, can be acknowledged to clients
    /// (R4). `boot` must have been read after the store's answer.
    #[must_use]
    pub fn fate(
        &self,
        key: &Key,
        stamp: Option<Generation>,
        boot: Duration,
        constants: &Constants,
    ) -> Fate {
        let stands =
            |look: Option<Duration>| look.is_some_and(|look| boot < look + constants.reset_lease());
        let newer = self.resets.get(key).into_iter().flatten();
        let newer = newer.filter(|entry| Some(entry.generation) > stamp);
        let unseen = match self.flaw {
            Some(ResetFlaw::NoLease | ResetFlaw::NoLookAfterAck | ResetFlaw::OldMutators) => {
                return Fate::Stands;
            }
            // Whichever of them was seen first: the earliest decides.
            _ => newer.map(|entry| entry.unseen).min(),
        };
        match unseen {
            Some(unseen) if stands(unseen) => Fate::Stands,
            Some(_) => Fate::Over,
            None if self.is_alone || stands(self.last_look(key)) => Fate::Stands,
            None => Fate::Waits,
        }
    }
}

/// Why a key was not reset. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ResetError {
    /// The key has nothing to reset.
    #[error("the key does not exist")]
    Absent,
    /// A row can't be decoded, so it is not known what would be cleared.
    #[error(transparent)]
    Row(#[from] RowError),
    /// Too many ids would have to be listed.
    #[error(
        "the key has more than {CLEARED_IDS_MAX} ops with ids that can come again; reset it when the windows of \
         these ids have ended"
    )]
    TooManyIds,
    /// Something newer than this reset is in the key.
    #[error("another reset, a fold or a clock came before this reset; reset the key again")]
    Overtaken,
    /// The key was reset at a time that no right clock has reached. Another reset would have a fence that shuts the
    /// clock gate of every pod.
    #[error("the key was reset in this clock's future: a clock has moved; check NTP")]
    Ahead,
}

/// A reset that has chosen its generation: of one key, or of several keys of a group, with one row of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    row: LogRow,
    begun: Duration,
    flaw: Option<ResetFlaw>,
}

/// The keys of a reset that begins. They are of one group.
#[derive(Debug, Clone)]
pub struct Draft {
    begun: Now,
    keys: Option<(Kind, Name)>,
    names: Vec<Name>,
    newest: Option<Generation>,
    latest: Option<Timestamp>,
    flaw: Option<ResetFlaw>,
}

/// A planned reset: its batch, and what the batch clears.
#[derive(Debug, Clone, PartialEq)]
pub struct Reset {
    /// The marker and the deletion. It may be sent only for a time.
    pub fold: Fold,
    /// The value that is cleared.
    pub cleared: State,
    /// Number of rows that are cleared, without the tally.
    pub shards: usize,
}

impl Draft {
    /// A reset begins. The time was read before the log was.
    #[must_use]
    pub fn begin(now: Now) -> Draft {
        let (keys, names, newest, latest) = (None, Vec::new(), None, None);
        Draft { begun: now, keys, names, newest, latest, flaw: None }
    }

    /// Breaks the rule `flaw`, for the simulator.
    #[doc(hidden)]
    #[must_use]
    pub fn with_flaw(self, flaw: Option<ResetFlaw>) -> Draft {
        Draft { flaw, ..self }
    }

    /// Adds a key. `known` is its latest generation in the log, and the whole key was read after the log.
    ///
    /// # Errors
    /// [`ResetError`]; then the key is left out.
    ///
    /// # Panics
    /// If the keys are of several groups, or more than [`LOG_NAMES_MAX`].
    pub fn add(
        &mut self,
        read: &FullRead,
        known: Option<Generation>,
        constants: &Constants,
    ) -> Result<(), ResetError> {
        let Key { kind, group, name } = read.key();
        let seen = Seen::of(read, None)?;
        if seen.is_absent(read) {
            return Err(ResetError::Absent);
        }
        let newest = seen.newest.max(known);
        let ahead = self.begun.wall.plus(2 * constants.clock_offset_max() + AHEAD_SLACK);
        if newest.is_some_and(|newest| newest.0 > ahead) {
            return Err(ResetError::Ahead);
        }
        let (of_kind, of_group) = self.keys.get_or_insert_with(|| (*kind, group.clone()));
        assert!((*of_kind, &*of_group) == (*kind, group), "invariant: keys of one group");
        assert!(self.names.len() < LOG_NAMES_MAX, "invariant: an entry of the log has few names");
        self.names.push(name.clone());
        self.newest = self.newest.max(newest);
        self.latest = self.latest.max(seen.latest).max(seen.remembered_until());
        Ok(())
    }

    /// Chooses the generation. None without keys. `id` is drawn, or chosen by the client.
    #[must_use]
    pub fn attempt(self, id: Uuid, is_deletion: bool, constants: &Constants) -> Option<Attempt> {
        let Draft { begun, keys, names, newest, latest, flaw } = self;
        let (kind, group) = keys?;
        let newest = newest.filter(|_| flaw != Some(ResetFlaw::IgnoresNewer));
        let latest = latest.filter(|_| flaw != Some(ResetFlaw::IgnoresLonger));
        let time = newest.map_or(begun.wall, |newest| begun.wall.max(newest.0.next()));
        // Pods must remember this reset for as long as a tally does. Otherwise they would give stamps of the
        // reset before to rows that this one clears.
        let until = latest.unwrap_or(time).max(time.plus(constants.reset_memory()));
        let row =
            LogRow { id, kind, group, names, generation: Generation(time), until, is_deletion };
        Some(Attempt { row, begun: begun.boot, flaw })
    }
}

impl Attempt {
    /// The row to write to the log. A row that was sent may be sent again, with the same bytes.
    #[must_use]
    pub fn row(&self) -> &LogRow {
        &self.row
    }

    /// When the key may be read, if the log's row was acknowledged at `logged`, both by the boot-time clock.
    #[must_use]
    pub fn read_from(&self, logged: Duration, constants: &Constants) -> Duration {
        match self.flaw {
            Some(ResetFlaw::NoWait) => logged,
            _ => logged + constants.reset_lease() + constants.reset_lease() / WAIT_SLACK,
        }
    }

    /// When its marker may be sent for the last time, by the boot-time clock.
    #[must_use]
    pub fn send_until(&self, constants: &Constants) -> Duration {
        match self.flaw {
            Some(ResetFlaw::NoDeadline) => Duration::MAX,
            _ => self.begun + constants.reset_budget(),
        }
    }

    /// Plans the marker of one of the keys. `read` began at [`Attempt::read_from`] or later.
    ///
    /// # Errors
    /// [`ResetError`]; then nothing may be sent for this key.
    ///
    /// # Panics
    /// If the key is not one of those.
    pub fn plan(&self, read: &FullRead, constants: &Constants) -> Result<Reset, ResetError> {
        let LogRow { generation, until, is_deletion, .. } = self.row;
        let key = read.key();
        assert!(self.row.keys().any(|of| of == *key), "invariant: the log says that it is reset");
        let seen = Seen::of(read, Some(generation))?;
        let is_overtaken = [
            (ResetFlaw::IgnoresNewer, seen.newest > Some(generation)),
            (ResetFlaw::NoDeadline, seen.fence >= Some(generation.0)),
            (ResetFlaw::IgnoresLonger, seen.latest > Some(until)),
            (ResetFlaw::IgnoresLonger, seen.remembered_until() > Some(until)),
        ];
        if is_overtaken.iter().any(|(flaw, is)| *is && self.flaw != Some(*flaw)) {
            return Err(ResetError::Overtaken);
        }
        let carries = self.flaw != Some(ResetFlaw::DropsIds);
        let carried = seen.reset.iter().filter(|_| carries).flat_map(|reset| &reset.ids).copied();
        let mut ids: Vec<_> = seen.ids.into_iter().chain(carried).collect();
        ids.retain(|(expires_at, _)| *expires_at > generation.0);
        ids.sort_unstable();
        ids.dedup();
        if ids.len() > CLEARED_IDS_MAX {
            return Err(ResetError::TooManyIds);
        }
        let reset = Remembered { generation, until, ids };
        let fence = generation.0;
        let is_left = |row: &&Row| {
            row.expires_at > fence && !reset.counts(envelope::stamp(&row.state), row.expires_at)
        };
        let leftovers = read.slice().shards().filter(is_left);
        let leftovers = leftovers.map(|row| (row.expires_at, row.mutator_id)).collect();
        let (seal, kind) = (RowReader::of(key).seal(), key.kind);
        let tally = match is_deletion {
            true => envelope::encode_grave(seal, kind, fence, Some(&reset)),
            false => {
                let empty = State::identity(kind);
                envelope::encode_reset_tally(seal, &empty, fence, false, Some(&reset))
            }
        };
        let kept = seen.rows - seen.shards;
        let report = Report {
            fence_before: seen.fence,
            cleared: seen.shards,
            zombies: seen.zombies,
            kept,
            ..Report::default()
        };
        let evidence = evidence(fence, Some(generation), constants);
        let send_until = Some(self.send_until(constants));
        let fold =
            Fold::of_reset(key.clone(), fence, tally, evidence, send_until, leftovers, report);
        Ok(Reset { fold, cleared: seen.state, shards: seen.shards })
    }
}

/// The marker of a reset as it lies in the key, to be written again. Once this is acknowledged in time (see
/// [`Fold::ack_stands`]), the reset has taken effect. None if the key has no such marker, or if it is too late: a fold that
/// does not know of the reset can have a fence above it C after the reset, less 2ε and the head start of a grave. If the
/// marker was never acknowledged, that fold wins over it, however many replicas have it by then.
#[must_use]
pub fn marker_again(
    read: &FullRead,
    generation: Generation,
    now: Now,
    constants: &Constants,
) -> Option<Fold> {
    let row = read.slice().tally()?;
    let (fence, _) = RowReader::of(read.key()).tally(row).ok()?;
    let reset = envelope::reset(&row.state)?;
    if reset.generation != generation || fence != generation.0 {
        return None;
    }
    let slack = 2 * constants.clock_offset_max() + constants.grave_head_start();
    let acked_by = fence.plus(constants.cutoff()).minus(slack);
    let left = acked_by.since(now.wall).checked_sub(constants.request_budget())?;
    let evidence = evidence(fence, Some(generation), constants);
    let (tally, send_until) = (row.state.clone(), Some(now.boot + left));
    let (key, leftovers) = (read.key().clone(), Vec::new());
    Some(Fold::of_reset(key, fence, tally, evidence, send_until, leftovers, Report::default()))
}

/// What a whole key holds that counts and that a reset clears.
struct Seen {
    fence: Option<Timestamp>,
    /// The reset that the tally remembers.
    reset: Option<Remembered>,
    state: State,
    /// The ids in it, without those of the tally's state.
    ids: Vec<(Timestamp, OpId)>,
    /// Number of rows in it.
    shards: usize,
    /// The latest expiry of them.
    latest: Option<Timestamp>,
    /// The newest generation of the tally and of all stamps above its fence.
    newest: Option<Generation>,
    /// Rows above the fence.
    rows: usize,
    zombies: usize,
}

impl Seen {
    fn is_absent(&self, read: &FullRead) -> bool {
        let slice = read.slice();
        self.shards == 0 && (slice.has_grave() || slice.tally().is_none())
    }

    fn remembered_until(&self) -> Option<Timestamp> {
        self.reset.as_ref().map(|reset| reset.until)
    }

    /// With `before`, only rows with lower stamps or none are cleared.
    fn of(read: &FullRead, before: Option<Generation>) -> Result<Seen, RowError> {
        let (reader, tally) = (RowReader::of(read.key()), read.slice().tally());
        let counting = Counting::of(tally).before(before);
        let (fence, state) = match tally.map(|row| reader.tally(row)).transpose()? {
            None => (None, State::identity(read.key().kind)),
            Some((fence, state)) => (Some(fence), state),
        };
        let (zombies, above): (Vec<&Row>, Vec<&Row>) =
            read.slice().shards().partition(|row| Some(row.expires_at) <= fence);
        zombies.iter().try_for_each(|row| reader.check(row))?;
        let mut seen = Seen {
            fence,
            newest: counting.reset().map(Remembered::generation),
            reset: counting.reset().cloned(),
            state,
            ids: Vec::new(),
            shards: 0,
            latest: None,
            rows: above.len(),
            zombies: zombies.len(),
        };
        for of_expiry in above.chunk_by(|a, b| a.expires_at == b.expires_at) {
            let mut ids = Vec::new();
            let Counts { shards, .. } =
                counting.merge(reader, &mut seen.state, of_expiry, Some(&mut ids))?;
            let expires_at = of_expiry[0].expires_at;
            seen.ids.extend(ids.into_iter().map(|id| (expires_at, id)));
            seen.shards += shards;
            if shards > 0 {
                seen.latest = Some(expires_at);
            }
            let stamps = of_expiry.iter().map(|row| envelope::stamp(&row.state));
            seen.newest = seen.newest.max(stamps.max().flatten());
        }
        Ok(seen)
    }
}

#[cfg(test)]
mod tests;
