//! The hazards that schedules meet. A simulator that never meets a hazard proves nothing about it, so each hazard must
//! occur in at least one of a hundred schedules.

use std::fmt;

macro_rules! hazards {
    ($($name:ident $text:literal)*) => {
        /// A hazard that can occur in a schedule.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Hazard { $($name),* }

        impl Hazard {
            pub(crate) const ALL: &[Hazard] = &[$(Hazard::$name),*];

            pub(crate) fn text(self) -> &'static str {
                match self { $(Hazard::$name => $text),* }
            }
        }
    };
}

hazards! {
    FoldInsideGroupRead "a fold landed inside a group read"
    Folded "a fold took shards"
    ZombieRead "rows at or below the fence were read"
    StaleFold "a fold arrived where a later one had been"
    FoldAgain "a fold was sent again later on"
    StaleFoldAgain "a fold was sent again although a later one had been there"
    LateWrite "a shard's write arrived after the fold of its row"
    LateHint "a hint with a shard arrived after the fold of its row"
    UnevenTally "the replicas of one read disagreed on the tally"
    FoldedTogether "keys were folded together"
    FoldedInPart "a fold took a part of a key's final shards"
    ReadInParts "a key was read in parts"
    WalkAgain "a fold changed the tally while a key was read in parts"
    SharedExpiry "shards of one key shared an expiry"
    FoldsAtOnce "a key was folded twice at once"
    SameFence "two folds wrote one fence with different states"
    SweepsAtOnce "two sweeps ran at once"
    FoldUnacked "a fold's write was not acknowledged"
    FoldFailed "a fold could not read at its level"
    ReadAgain "a tally older than the cached fence came back"
    ShortRead "a replica was asked again past its limit"
    Purged "a replica purged a deletion"
    Forgot "a replica forgot what it had not synced"
    NodeDown "a node was down"
    Datacenters "there were two data centres"
    CutOff "the data centres could not reach each other"
    Unknown "an update's outcome was unknown"
    Refused "an update was refused"
    SentAgain "a refused update was sent again"
    ClientGone "a client went away before its answer"
    MemoryOp "an update was answered from memory"
    StoppedAtSend "a pod stopped between its look at the clock and the send"
    TooLate "a write was acknowledged after its lease"
    PodKilled "a pod was killed"
    PodStopped "a pod was paused"
    Drained "a pod was drained"
    Rested "a mutator went to rest"
    Woke "a mutator woke"
    Evicted "a mutator at rest was forgotten"
    ClockSet "a pod's clock was set"
    GateShut "a pod's clock was not trusted"
    Damaged "a row was damaged"
    Misplaced "a row was found at another mutator's place"
    RowDeletes "a fold deleted row by row"
    Together "several keys were written in one request"
    Hedged "a write was sent again while it was out"
    HedgedRead "a read was sent again while it was out"
    SharedRead "a read was shared with others who asked"
    InPart "a request over several partitions was applied in part"
    Repeated "an op with an id was sent again"
    RepeatedAcked "an acknowledged op with an id was sent again"
    OtherAmount "an id was sent with another amount"
    IdReused "a pod found that an id was sent with another amount"
    NewerTotal "a running total was sent that is newer than the acknowledged one"
    OlderTotal "a running total was sent that is older than an acknowledged one"
    IdAhead "the time of an id was ahead of a pod's clock"
    IdExpired "the window of an id was over"
    PackWritten "a pack was written"
    PackTooLate "a pack was acknowledged after its lease"
    ResetDone "a reset was answered"
    ResetFailed "a reset was refused, or was out of time"
    ResetUnknown "a reset's outcome was unknown"
    OrderDone "a reset that was ordered under an id was answered"
    OrderFound "a pod found an order of another pod in the log"
    OrderUnknown "the outcome of an order stayed unknown"
    ResetUnread "an update was refused because the log of resets was not read"
    LateRow "a row from before a reset was stored after its marker was sent"
    ClearedRead "a read ignored rows that a reset had cleared"
    ClearedFolded "a fold deleted rows that a reset had cleared"
    ClearedIdAgain "the id of a cleared op was stored again"
    ResetPassed "a fold passed the time for which a reset is remembered"
    DeletionAgain "the grave of a deleted key was written again"
    Forgotten "an idle key was forgotten"
    ForgottenAfterReset "an idle key that had been reset was forgotten"
    ForgottenInUse "a key was forgotten while an update of it was stored"
    GraveAgain "a grave was written again"
    GraveEnded "an update ended a grave"
    StaleFoldOnGrave "an earlier fold arrived where a grave was, with a greater fence"
}

/// The hazards of one schedule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Met(u128);

impl Met {
    pub(crate) fn note(&mut self, hazard: Hazard) {
        self.0 |= 1 << hazard as u32;
    }

    pub(crate) fn has(self, hazard: Hazard) -> bool {
        self.0 & (1 << hazard as u32) != 0
    }
}

/// The number of schedules with each hazard.
#[derive(Debug, Clone)]
pub(crate) struct Coverage {
    pub(crate) schedules: u64,
    met: Vec<u64>,
}

impl Default for Coverage {
    fn default() -> Coverage {
        Coverage { schedules: 0, met: vec![0; Hazard::ALL.len()] }
    }
}

impl Coverage {
    pub(crate) fn add(&mut self, met: Met) {
        self.schedules += 1;
        for (count, &hazard) in self.met.iter_mut().zip(Hazard::ALL) {
            *count += u64::from(met.has(hazard));
        }
    }

    pub(crate) fn merge(&mut self, other: &Coverage) {
        self.schedules += other.schedules;
        for (count, more) in self.met.iter_mut().zip(&other.met) {
            *count += more;
        }
    }

    /// Hazards that occurred in fewer than one of a hundred schedules.
    pub(crate) fn rare(&self) -> Vec<&'static str> {
        let counts = self.met.iter().zip(Hazard::ALL);
        let rare = counts.filter(|(count, _)| **count * 100 < self.schedules);
        rare.map(|(_, hazard)| hazard.text()).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (count, hazard) in self.met.iter().zip(Hazard::ALL) {
            #[allow(clippy::cast_precision_loss, reason = "a share for people")]
            let share = 100.0 * *count as f64 / self.schedules as f64;
            writeln!(f, "{share:5.1} %  {}", hazard.text())?;
        }
        Ok(())
    }
}
