//! Protocol rules that are broken on purpose. The pods run the shipped code. A broken rule is put between them and
//! the replicas, with the effect that code without the rule would have. A resting mutator never reaches the replicas,
//! so its rules are broken by a hook of the core.

use orderfree_core::protocol::RestFlaw;
use orderfree_core::protocol::reset::ResetFlaw;

use crate::family::Family;

macro_rules! sabotages {
    ($($name:ident $cap:literal $text:literal)*) => {
        /// A rule to break.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Sabotage { $($name),* }

        impl Sabotage {
            pub(crate) const ALL: &[Sabotage] = &[$(Sabotage::$name),*];

            pub(crate) fn text(self) -> &'static str {
                match self { $(Sabotage::$name => $text),* }
            }

            /// The number of schedules within which it must be found.
            pub(crate) fn cap(self) -> u64 {
                match self { $(Sabotage::$name => $cap),* }
            }

            pub(crate) fn name(self) -> &'static str {
                match self { $(Sabotage::$name => stringify!($name)),* }
            }
        }
    };
}

sabotages! {
    FenceIgnored 1_000 "the fence is ignored"
    BlockingRepair 1_000 "blocking read repair, and a query that omits the tally"
    KeyPages 1_000 "a key is read by driver pages"
    GroupPages 100_000 "a group is read by driver pages"
    ListedKeys 100_000 "a group has the keys that a limited query found"
    CutFold 1_000 "a fold from an answer cut by its limit"
    NewestFirst 100_000 "a slice with a low limit begins with the newest row"
    QuorumParts 100_000 "parts of a key are read at a quorum"
    OneLook 1_000 "the tally is not looked at again after the parts"
    NoRecheck 1_000 "the rows of a long key are not looked at again"
    SplitExpiry 1_000 "a part divides the rows of one expiry"
    CutPart 1_000 "a part that was cut by its limit is taken for complete"
    CutList 1_000 "folds of several keys from an answer cut by one limit"
    OlderFence 100_000 "a fold writes an older fence over zombies"
    CachedFenceTrusted 1_000 "the cached fence is not compared with the tally"
    SharedTooLate 1_000 "a read is shared by those who ask after it began"
    NoCheckAfterAck 1_000 "no look at the clocks after the acknowledgement"
    FolderAhead 1_000 "the folder's clock is ahead, unchecked"
    PodBehind 1_000 "a pod's clock is behind, unchecked"
    ShortCutoff 1_000 "the cutoff is 1 s, and ε 4 s"
    FallingTimestamps 1_000 "a mutator's timestamps follow its clock, also back"
    CoordinatorTimestamps 1_000 "timestamps are left to the coordinator"
    FoldSkipsRow 1_000 "a fold skips a final row"
    LowFoldTimestamp 1_000 "a fold's timestamp is two lifetimes too low"
    QuorumFoldOneWrite 1_000 "folds at quorum with writes at one"
    AckBeforeWrite 1_000 "acknowledged before the write"
    Rollback 1_000 "the state is rolled back after an unknown outcome, which is called refused"
    IdReused 1_000 "a mutator's row is used by another"
    UndecodableSkipped 1_000 "a row that can't be decoded is skipped"
    AddressUnchecked 1_000 "a row's checksum does not cover its address"
    SplitTally 100_000 "the tally lies in two cells"
    WakesWithoutTimestamp 1_000 "a woken mutator forgets its last timestamp"
    WakesWithoutDots 1_000 "a woken mutator draws its dots from 1 again"
    RestsUnclean 1_000 "a mutator rests whose last write has an unknown outcome"
    WakesWithNewLease 1_000 "a woken mutator begins a new lease"
    PartsTakenForOne 100_000 "an error about several partitions is taken for one about all"
    ExpiryOfPod 1_000 "the expiry of an id follows from the pod's clock"
    WindowsDiffer 1_000 "pods disagree on the length of a window"
    ReadsCountCopies 1_000 "a read counts every copy of an id"
    FoldsCountCopies 1_000 "a fold counts every copy of an id"
    TimeOfAttempt 1_000 "a client sends another time with its id at each attempt"
    TakenTooLate 1_000 "an id is taken after its window, and acknowledged after its expiry"
    NoCheckAfterPackAck 1_000 "no look at the clocks after the acknowledgement of a pack"
    LastRowWins 1_000 "of several copies of an id the one in the last row counts"
    FoldSplitsPacks 1_000 "a fold takes one of the packs of an expiry"
    IdOverwritten 1_000 "an id that comes again with another amount overwrites the first"
    DotsOfPod 1_000 "the dots of an op with an id are those of the pod"
    TimeOfPod 1_000 "the time of an op with an id is that of the pod"
    IdsIgnored 1_000 "ids of a kind that counts copies are ignored"
    UpdatesWithoutLook 1_000 "updates are taken and acknowledged without a look at the log of resets"
    NoLookAfterAck 1_000 "after an acknowledgement no pod asks when the last look at the log was"
    OldMutatorsGoOn 1_000 "mutators from before a reset take further updates and acknowledge them"
    ResetWithoutWait 1_000 "a reset does not wait until all pods know of it"
    MarkerAnyTime 100_000 "a marker is sent at any time, over any fence"
    MarkerAckedLate 100_000 "after the acknowledgement of a marker no pod asks whether it came in time"
    ReadIsProof 100_000 "a reset is called done if a read finds its marker"
    OrdersApart 10_000 "a reset does not look for another one with its id"
    MarkerAtCut 10_000 "a marker has the fence of an ordinary fold"
    NewerIgnored 100_000 "a reset does not look for stamps that are newer"
    LoggedAtOne 10_000 "a reset is logged at one replica"
    LookedAtOne 10_000 "pods look at one replica of the log"
    NoStamps 1_000 "rows have no stamps"
    ReadsIgnoreStamps 1_000 "reads count rows that a reset cleared"
    FoldsIgnoreStamps 1_000 "folds count rows that a reset cleared"
    FoldsDropResets 10_000 "a fold drops the reset from the tally"
    FoldsDropIds 10_000 "a fold drops the cleared ids from the tally"
    ResetsDropIds 10_000 "a reset drops the cleared ids of the one before"
    OldTotalsTaken 10_000 "running totals from before a reset are taken"
    ResetForgotten 10_000 "pods forget a reset at once"
    RowsOutlive 10_000 "a reset clears rows that expire after it is forgotten"
    LogNotReadAtStart 10_000 "a pod that starts does not read the log of earlier resets"
    FirstLookIsShort 10_000 "a pod that starts reads no resets that are older than its own rows can be"
    DeletionHasHeadStart 10_000 "the grave of a deleted key has the timestamp of that of an idle key"
    ExpiryIgnoresReset 100_000 "an idle key is forgotten although it needs its reset"
    PodWithoutLooks 1_000 "one pod does not know the log of resets"
    ForgottenWhileShut 10_000 "resets are forgotten and looks count while the clock is not trusted"
    LoggedHere 10_000 "a reset is logged at a quorum of one data centre"
    FoldWrittenHere 100_000 "the marker of a reset is written at a quorum of one data centre"
    QuorumFoldTwoSides 10_000 "folds at a quorum of all replicas in two data centres"
    AgeOfTallyAlone 1_000 "a key is forgotten by the age of its tally, whatever lies above it"
    NoGrave 1_000 "a forgotten key leaves no grave"
    GraveOnce 1_000 "a grave is written once"
    LowGraveTimestamp 1_000 "a grave has the timestamp of an ordinary fold"
}

impl Sabotage {
    /// Whether it breaks a rule of ids.
    pub(crate) fn is_about_ids(self) -> bool {
        matches!(
            self,
            Sabotage::ExpiryOfPod
                | Sabotage::WindowsDiffer
                | Sabotage::ReadsCountCopies
                | Sabotage::FoldsCountCopies
                | Sabotage::TimeOfAttempt
                | Sabotage::TakenTooLate
                | Sabotage::NoCheckAfterPackAck
                | Sabotage::LastRowWins
                | Sabotage::FoldSplitsPacks
                | Sabotage::IdOverwritten
                | Sabotage::DotsOfPod
                | Sabotage::TimeOfPod
                | Sabotage::IdsIgnored
        )
    }

    /// Whether it breaks a rule of resets.
    pub(crate) fn is_about_resets(self) -> bool {
        let first = Sabotage::UpdatesWithoutLook as usize;
        (first..=Sabotage::FoldWrittenHere as usize).contains(&(self as usize))
    }

    /// Whether only two data centres show it.
    pub(crate) fn is_about_datacenters(self) -> bool {
        let all = [Sabotage::LoggedHere, Sabotage::FoldWrittenHere, Sabotage::QuorumFoldTwoSides];
        all.contains(&self)
    }

    /// Whether ops with ids show it.
    pub(crate) fn needs_ids(self) -> bool {
        let of_resets = [
            Sabotage::FoldsDropIds,
            Sabotage::ResetsDropIds,
            Sabotage::OldTotalsTaken,
            Sabotage::ForgottenWhileShut,
        ];
        self.is_about_ids() || of_resets.contains(&self)
    }

    /// The rule of resets that it breaks in the core.
    pub(crate) fn reset_flaw(self) -> Option<ResetFlaw> {
        match self {
            Sabotage::UpdatesWithoutLook => Some(ResetFlaw::NoLease),
            Sabotage::NoLookAfterAck => Some(ResetFlaw::NoLookAfterAck),
            Sabotage::OldMutatorsGoOn => Some(ResetFlaw::OldMutators),
            Sabotage::ResetWithoutWait => Some(ResetFlaw::NoWait),
            Sabotage::MarkerAnyTime => Some(ResetFlaw::NoDeadline),
            Sabotage::NewerIgnored => Some(ResetFlaw::IgnoresNewer),
            Sabotage::ResetsDropIds => Some(ResetFlaw::DropsIds),
            Sabotage::OldTotalsTaken => Some(ResetFlaw::TakesOldIds),
            Sabotage::ResetForgotten => Some(ResetFlaw::ForgetsEarly),
            Sabotage::RowsOutlive => Some(ResetFlaw::IgnoresLonger),
            Sabotage::ForgottenWhileShut => Some(ResetFlaw::ForgetsWhileShut),
            Sabotage::FirstLookIsShort => Some(ResetFlaw::ShortFirstLook),
            Sabotage::MarkerAckedLate => Some(ResetFlaw::NoLookAfterMarker),
            Sabotage::ReadIsProof => Some(ResetFlaw::TrustsRead),
            Sabotage::OrdersApart => Some(ResetFlaw::NoLookForRivals),
            _ => None,
        }
    }

    /// Whether it breaks a rule of forgetting.
    pub(crate) fn is_about_forgetting(self) -> bool {
        matches!(
            self,
            Sabotage::AgeOfTallyAlone
                | Sabotage::NoGrave
                | Sabotage::GraveOnce
                | Sabotage::LowGraveTimestamp
                | Sabotage::ExpiryIgnoresReset
        )
    }

    /// The rule that it breaks in resting mutators.
    pub(crate) fn flaw(self) -> Option<RestFlaw> {
        match self {
            Sabotage::WakesWithoutTimestamp => Some(RestFlaw::ForgetsLastTimestamp),
            Sabotage::WakesWithoutDots => Some(RestFlaw::DrawsDotsAgain),
            Sabotage::RestsUnclean => Some(RestFlaw::RestsUnclean),
            Sabotage::WakesWithNewLease => Some(RestFlaw::RenewsLease),
            _ => None,
        }
    }

    /// The kinds for the search: counters show doubled and lost ops, but have no dots and no times.
    pub(crate) fn family(self) -> Family {
        match self {
            Sabotage::WakesWithoutDots | Sabotage::DotsOfPod => Family::OrSet,
            Sabotage::TimeOfPod => Family::Register,
            _ => Family::Counter,
        }
    }
}
