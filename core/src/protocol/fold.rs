//! Folding: expired rows become a tally. Keeps invariants I5, I6, I7, I8, I10, I11 and I12.
//!
//! [`plan`] decides everything. A store executes the [`Fold`] as one batch at one timestamp: it writes the
//! tally row with the fence F', and deletes every row with `expires_at <= F'` by one range, both at F' + 1.
//! That timestamp is above every write of a deleted row, because each write is below its row's `expires_at`.
//! A greater fence replaces a smaller one as a whole. So any pod can execute a fold, any number of times,
//! after any delay.
//!
//! **Forgetting.** A fold can also forget a key that has been idle for long: it writes a *grave*, an empty
//! tally with an ordinary fence F', at F' + Δ, and deletes the rows up to F' at F' + 1. The grave is above F' + 1
//! because of folds that were planned before it and are sent after it. Their fences can lie above F', by the
//! difference of two clocks (2ε), by the time between the read and the sending of the grave (R), and by the
//! rounding of both fences. Δ is longer than all of that, so no such fold can bring the value back.
//!
//! This loses nothing that was acknowledged while the key was idle. The key is idle if neither its tally's
//! fence nor a row lies above `now - idle_ttl`, so everything that is forgotten was acknowledged before that
//! time + ε. No acknowledged row expires between there and F' + Δ: the read would have seen it, because C > R +
//! 2ε + Δ makes every such row final at the time of the read. And a row acknowledged after the read expires
//! above F' + Δ, so it outlives the grave and every fold of it has a greater timestamp.
//!
//! **Graves of two sorts.** A key that was [deleted](super::reset) has a grave too. Rows that count can expire
//! right above its fence, so it has no head start: it is written at F' + 1, as every fold over it. To tell the
//! two sorts apart, the grave of a deletion remembers its reset for as long as it is there. A key that still
//! needs its reset is not forgotten, and its grave is not removed.

use std::time::Duration;

use thiserror::Error;

use super::gathered::{Fitting, Gathered};
use super::generation::{self, Generation, Remembered};
use super::prefix::PrefixRead;
use super::row_reader::{RowError, RowReader};
use super::{Constants, FullRead, Key, MutatorId, Row, Timestamp};
use crate::crdt::envelope;
use crate::crdt::pack::United;

/// Largest envelope of a tally, in bytes. A larger fold is not executed: Cassandra refuses a batch above half
/// a segment of its commit log (16 MiB by default), and every read carries the tally.
pub const TALLY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What to do with a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// No row is final, and none lies below the fence.
    Nothing(Report),
    /// Execute this.
    Fold(Fold),
}

/// One batch over one key's rows. Only [`plan`] and a reset ([`super::reset`]) make one, from a [`FullRead`], and
/// [`plan_prefix`], from a [`PrefixRead`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fold {
    key: Key,
    fence: Timestamp,
    tally: Vec<u8>,
    evidence: Timestamp,
    /// The timestamp of the tally's write, if it is not that of the deletion.
    tally_timestamp: Option<Timestamp>,
    /// Until when it may be sent, by the boot-time clock; at any time if none.
    send_until: Option<Duration>,
    leftovers: Vec<(Timestamp, MutatorId)>,
    report: Report,
}

/// When a key is forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Idle {
    /// The time without updates after which it is forgotten.
    pub ttl: Duration,
    /// When its read began, by the boot-time clock.
    pub read_at: Duration,
}

/// A grave that can be removed: no row that it covers can come back. Only [`Grave::of`] makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grave {
    key: Key,
    row: Row,
    timestamp: Timestamp,
}

/// What a plan saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// The fence before the fold; none without a tally.
    pub fence_before: Option<Timestamp>,
    /// What that fence says about clocks; see [`generation::evidence`].
    pub evidence_before: Option<Timestamp>,
    /// The last reset that the tally remembers.
    pub reset: Option<Generation>,
    /// Shards that go into the tally, or that are forgotten.
    pub folded: usize,
    /// Shards that are deleted without being counted, because the key was reset.
    pub cleared: usize,
    /// Rows at or below the old fence that are deleted again without being counted.
    pub zombies: usize,
    /// Shards that are not final yet and stay. 0 for a partial fold of a long key, which looks at neither
    /// these nor zombies.
    pub kept: usize,
    /// The fold takes only the oldest final shards of a long key. The next fold takes more.
    pub has_more: bool,
    /// The tally can't take the next final shard: it would be larger than [`TALLY_BYTES_MAX`].
    pub is_full: bool,
    /// The ops with ids among the shards that go into the tally.
    pub united: United,
    /// The fold forgets the key.
    pub forgotten: bool,
    /// The key is forgotten already, and the plan leaves it so.
    pub is_grave: bool,
}

/// Why a key can't be folded. Its rows stay as they are.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FoldError {
    /// A row can't be decoded or merged, so the fold stops (I10).
    #[error(transparent)]
    Row(#[from] RowError),
    /// The key's fence is further ahead than any honest clock could have put it (I12).
    #[error(
        "the key's fence {} lies in this clock's future: a clock has moved; check NTP",
        .fence.as_micros()
    )]
    ClockMoved {
        /// The fence.
        fence: Timestamp,
        /// What it says about clocks; see [`generation::evidence`].
        evidence: Timestamp,
    },
}

/// Whether a fence proves that some clock moved: it is above `now - C + 2ε` (I12). A mutator born by this
/// clock could expire at or below the fence, and its acknowledged updates would be lost.
#[must_use]
pub fn proves_moved_clock(fence: Timestamp, now: Timestamp, constants: &Constants) -> bool {
    fence.plus(constants.known_cutoff()) > now.plus(2 * constants.clock_offset_max())
}

/// The latest expiry at which a shard is final. `now` is the minimum of this pod's clock and every fresh
/// sample.
#[must_use]
pub fn cut(now: Timestamp, constants: &Constants) -> Timestamp {
    now.minus(constants.cutoff()).floor_to(constants.fence_quantum())
}

/// Plans the fold of one key. `now` is the same as for [`cut`].
///
/// # Errors
/// [`FoldError`]; then write nothing.
pub fn plan(read: &FullRead, now: Timestamp, constants: &Constants) -> Result<Plan, FoldError> {
    plan_or_forget(read, None, now, constants)
}

/// Plans the fold of one key, which forgets the key if it is idle; see the [module documentation](self). The
/// constants must pass [`Constants::check_idle_ttl`].
///
/// # Errors
/// [`FoldError`]; then write nothing.
pub fn plan_or_forget(
    read: &FullRead,
    idle: Option<Idle>,
    now: Timestamp,
    constants: &Constants,
) -> Result<Plan, FoldError> {
    let (reader, slice) = (RowReader::of(read.key()), read.slice());
    let mut gathered = Gathered::of(reader, read.key().kind, slice.tally())?;
    let before = gathered.checked_fence(now, constants)?;
    let cut = cut(now, constants);
    // The fence never goes back, not even to delete only zombies (I8).
    let fence = before.map_or(cut, |before| before.max(cut));
    let is_zombie = |row: &&Row| Some(row.expires_at) <= before;
    let is_final = |row: &&Row| Some(row.expires_at) > before && row.expires_at <= fence;
    let finals: Vec<&Row> = slice.shards().filter(is_final).collect();
    let zombies = slice.shards().filter(is_zombie).count();
    let kept = slice.shards().count() - finals.len() - zombies;
    slice.shards().filter(is_zombie).try_for_each(|row| reader.check(row))?;
    for of_expiry in finals.chunk_by(|a, b| a.expires_at == b.expires_at) {
        gathered.take(of_expiry, Some(TALLY_BYTES_MAX))?;
    }
    let report = Report { zombies, kept, ..Report::default() };
    let newest = slice.shards().last().map(|row| row.expires_at).max(before);
    // A row above the fence ends a grave. Some replicas may lack rows that are not final yet, and have only zombies.
    if gathered.is_grave && finals.is_empty() {
        return Ok(gathered.into_grave_again(read.key(), report, zombies > 0, now, constants));
    }
    let needs_reset = gathered.reset_after(cut).is_some();
    if let (Some(idle), Some(newest)) = (idle, newest)
        && newest <= cut.min(now.minus(idle.ttl))
        && !needs_reset
    {
        return Ok(gathered.into_grave(read.key(), cut, report, idle, constants));
    }
    // Right after a key was forgotten, a fold would lose against the grave and delete its rows all the same.
    let is_forgotten = gathered.is_grave && gathered.counting.reset().is_none();
    if is_forgotten && before.is_some_and(|before| fence.next() <= grave_at(before, constants)) {
        let kept = report.kept + finals.len();
        let (fence_before, evidence_before) = (before, gathered.evidence(constants));
        let reset = gathered.last_reset();
        return Ok(Plan::Nothing(Report { fence_before, evidence_before, reset, kept, ..report }));
    }
    Ok(gathered.into_plan(read.key(), fence, report, Zombies::Seen(zombies), constants))
}

impl Grave {
    /// The grave of a key that has no other row, if it was written before `settled`, for the last time too. Since
    /// then every replica must have it, or be the only one.
    #[must_use]
    pub fn of(read: &FullRead, settled: Timestamp, constants: &Constants) -> Option<Grave> {
        let row = read.slice().tally().filter(|_| read.slice().len() == 1)?;
        let (fence, _) = RowReader::of(read.key()).tally(row).ok()?;
        let reset = envelope::reset(&row.state);
        // Rows that a deletion has cleared can expire up to its end.
        let covered = reset.as_ref().map_or(fence, |reset| fence.max(reset.until()));
        let is_settled = covered.plus(constants.grave_repeats_for()) <= settled;
        let timestamp = if reset.is_some() { fence.next() } else { grave_at(fence, constants) };
        (read.slice().has_grave() && is_settled).then(|| Grave {
            key: read.key().clone(),
            row: row.clone(),
            timestamp,
        })
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Its row.
    #[must_use]
    pub fn row(&self) -> &Row {
        &self.row
    }

    /// The timestamp of its write: F + 1 after a deletion, else F + Δ. A tally that was written later has a greater
    /// one.
    #[must_use]
    pub fn timestamp(&self) -> Timestamp {
        self.timestamp
    }
}

/// F + Δ: the timestamp of the grave of an idle key with this fence.
fn grave_at(fence: Timestamp, constants: &Constants) -> Timestamp {
    fence.plus(constants.grave_head_start())
}

/// Plans the fold of a key with more rows than one answer can hold. It also deletes the key's zombies, which
/// the walk did not read.
///
/// # Errors
/// [`FoldError`]; then write nothing.
///
/// # Panics
/// If the walk took shards that are not final.
pub fn plan_prefix(
    read: PrefixRead,
    now: Timestamp,
    constants: &Constants,
) -> Result<Plan, FoldError> {
    let PrefixRead { key, gathered, through, is_complete, .. } = read;
    let before = gathered.checked_fence(now, constants)?;
    let cut = cut(now, constants);
    let final_through = before.map_or(cut, |before| cut.max(before));
    assert!(through <= final_through, "invariant: a fold takes only final shards");
    let report = Report { has_more: !is_complete, ..Report::default() };
    if gathered.is_grave && gathered.shards == 0 {
        return Ok(gathered.into_grave_again(&key, report, true, now, constants));
    }
    Ok(gathered.into_plan(&key, through, report, Zombies::Unseen, constants))
}

/// Rows at or below the earlier fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Zombies {
    /// This many.
    Seen(usize),
    /// Not counted. If the fence does not rise, the fold that wrote it has deleted them already.
    Unseen,
}

impl Gathered {
    /// What the tally's fence says about clocks.
    fn evidence(&self, constants: &Constants) -> Option<Timestamp> {
        self.fence.map(|fence| generation::evidence(fence, self.last_reset(), constants))
    }

    fn last_reset(&self) -> Option<Generation> {
        self.counting.reset().map(Remembered::generation)
    }

    /// The tally's fence, unless it proves that a clock moved.
    fn checked_fence(
        &self,
        now: Timestamp,
        constants: &Constants,
    ) -> Result<Option<Timestamp>, FoldError> {
        match self.fence.zip(self.evidence(constants)) {
            Some((fence, evidence)) if proves_moved_clock(evidence, now, constants) => {
                Err(FoldError::ClockMoved { fence, evidence })
            }
            _ => Ok(self.fence),
        }
    }

    /// Forgets the key: a grave with the fence `cut` covers every row that was gathered.
    fn into_grave(
        self,
        key: &Key,
        cut: Timestamp,
        report: Report,
        idle: Idle,
        constants: &Constants,
    ) -> Plan {
        let report = Report {
            fence_before: self.fence,
            evidence_before: self.evidence(constants),
            reset: self.last_reset(),
            folded: self.shards - self.cleared,
            cleared: self.cleared,
            forgotten: true,
            ..report
        };
        Plan::Fold(Fold {
            key: key.clone(),
            fence: cut,
            tally: envelope::encode_grave(self.reader.seal(), key.kind, cut, None),
            evidence: cut,
            tally_timestamp: Some(grave_at(cut, constants)),
            send_until: Some(idle.read_at + constants.request_budget()),
            leftovers: Vec::new(),
            report,
        })
    }

    /// Writes a grave again as it is, while it is young or if it has zombies. A replica that missed it would
    /// show the forgotten value again. Another pod's cutoff can be shorter, and so can its head start. So this waits
    /// until all rows below its own timestamp are final: if there was one that a fold could take, it has been read.
    fn into_grave_again(
        self,
        key: &Key,
        report: Report,
        has_zombies: bool,
        now: Timestamp,
        constants: &Constants,
    ) -> Plan {
        let fence = self.fence.expect("invariant: a grave has a fence");
        let reset = self.counting.reset();
        let evidence = self.evidence(constants).expect("invariant: a grave has a fence");
        let (fence_before, evidence_before) = (Some(fence), Some(evidence));
        let report = Report {
            fence_before,
            evidence_before,
            reset: reset.map(Remembered::generation),
            is_grave: true,
            ..report
        };
        let is_old = now >= fence.plus(constants.grave_repeats_for());
        // The grave of a deleted key has no head start, and can be written again at any time.
        let is_young = reset.is_none() && grave_at(fence, constants) > cut(now, constants);
        if is_young || (is_old && !has_zombies) {
            return Plan::Nothing(report);
        }
        Plan::Fold(Fold {
            key: key.clone(),
            fence,
            tally: envelope::encode_grave(self.reader.seal(), key.kind, fence, reset),
            evidence,
            tally_timestamp: reset.is_none().then(|| grave_at(fence, constants)),
            send_until: None,
            leftovers: Vec::new(),
            report,
        })
    }

    /// `through` is the fence if the fold takes everything that was gathered.
    fn into_plan(
        mut self,
        key: &Key,
        through: Timestamp,
        report: Report,
        zombies: Zombies,
        constants: &Constants,
    ) -> Plan {
        let (before, evidence_before) = (self.fence, self.evidence(constants));
        let last_reset = self.last_reset();
        let fence_of = |through: Timestamp| before.map_or(through, |before| through.max(before));
        if self.fitting.is_some() {
            // The fence can be far above the last expiry, and then the state forgets more.
            self.measure(fence_of(through), TALLY_BYTES_MAX);
        }
        let is_full = self.fitting.is_some();
        let was_grave = self.is_grave;
        let (shards, cleared, united) = (self.shards, self.cleared, self.united);
        let all = Fitting { state: self.state, shards, cleared, united, through };
        let Fitting { mut state, shards, cleared, united, through } = self.fitting.unwrap_or(all);
        let fence = fence_of(through);
        let report = Report {
            fence_before: before,
            evidence_before,
            reset: last_reset,
            folded: shards - cleared,
            cleared,
            has_more: report.has_more && !is_full,
            is_full,
            united,
            ..report
        };
        // At an equal fence the greater bytes win: those with the "full" flag.
        let says_other = match (self.was_full, is_full) {
            (false, true) => true,
            (true, false) => Some(fence) > before,
            _ => false,
        };
        let has_zombies = match zombies {
            Zombies::Seen(count) => count > 0,
            Zombies::Unseen => before.is_some_and(|before| fence > before),
        };
        if shards == 0 && !has_zombies && !says_other {
            return Plan::Nothing(report);
        }
        state.settle(fence);
        let seal = self.reader.seal();
        // Only rows that count end a grave. Until then it remembers why it is one.
        let is_grave = was_grave && shards == cleared;
        let reset = match (is_grave, self.counting.into_reset()) {
            (true, reset) => reset.map(|reset| reset.without_ids_up_to(fence)),
            (false, reset) => reset.and_then(|reset| reset.after(fence)),
        };
        let generation = reset.as_ref().map(Remembered::generation);
        let tally = match is_grave {
            true => envelope::encode_grave(seal, key.kind, fence, reset.as_ref()),
            false => envelope::encode_reset_tally(seal, &state, fence, is_full, reset.as_ref()),
        };
        let evidence = generation::evidence(fence, generation, constants);
        Plan::Fold(Fold {
            key: key.clone(),
            fence,
            tally,
            evidence,
            tally_timestamp: None,
            send_until: None,
            leftovers: Vec::new(),
            report,
        })
    }
}

impl Plan {
    /// The fold to execute, if there is one.
    #[must_use]
    pub fn fold(&self) -> Option<&Fold> {
        match self {
            Plan::Nothing(_) => None,
            Plan::Fold(fold) => Some(fold),
        }
    }

    /// What the plan saw.
    #[must_use]
    pub fn report(&self) -> &Report {
        match self {
            Plan::Nothing(report) | Plan::Fold(Fold { report, .. }) => report,
        }
    }
}

impl Fold {
    /// The marker of a reset.
    pub(super) fn of_reset(
        key: Key,
        fence: Timestamp,
        tally: Vec<u8>,
        evidence: Timestamp,
        send_until: Option<Duration>,
        leftovers: Vec<(Timestamp, MutatorId)>,
        report: Report,
    ) -> Fold {
        let tally_timestamp = None;
        Fold { key, fence, tally, evidence, tally_timestamp, send_until, leftovers, report }
    }

    /// Rows above the fence that the marker of a reset clears. A store with one copy of each row removes them together with
    /// the marker. Elsewhere a deletion of them could reach a replica without the marker, against I7.
    #[must_use]
    pub fn leftovers(&self) -> &[(Timestamp, MutatorId)] {
        &self.leftovers
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// F': the fold deletes every row of the key with `expires_at <= fence`.
    #[must_use]
    pub fn fence(&self) -> Timestamp {
        self.fence
    }

    /// F' + 1: the timestamp of the deletion.
    #[must_use]
    pub fn timestamp(&self) -> Timestamp {
        self.fence.next()
    }

    /// The time that the stored fence proves some clock to have shown; see [`generation::evidence`].
    #[must_use]
    pub fn evidence(&self) -> Timestamp {
        self.evidence
    }

    /// The timestamp of the tally's write: F' + Δ for the grave of an idle key, else that of the deletion.
    #[must_use]
    pub fn tally_timestamp(&self) -> Timestamp {
        self.tally_timestamp.unwrap_or(self.timestamp())
    }

    /// Whether it may be sent now, by the boot-time clock. A fold that forgets its key, and the marker of a reset,
    /// may be sent only for a time; others at any time.
    #[must_use]
    pub fn may_be_sent(&self, boot: Duration) -> bool {
        self.send_until.is_none_or(|until| boot <= until)
    }

    /// Whether an acknowledgement stands that came at this time: the fold was sent R before, or later. Until then no fold
    /// that was planned without this one has a fence above it.
    #[must_use]
    pub fn ack_stands(&self, boot: Duration, constants: &Constants) -> bool {
        let stands = |until: Duration| boot <= until.saturating_add(constants.request_budget());
        self.send_until.is_none_or(stands)
    }

    /// The tally's envelope.
    #[must_use]
    pub fn tally(&self) -> &[u8] {
        &self.tally
    }

    /// What the plan saw.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }
}

#[cfg(test)]
mod tests;
