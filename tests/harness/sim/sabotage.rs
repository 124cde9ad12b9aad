//! Protocol rules that are broken on purpose. The pods run the shipped code. A broken rule is put between them and
//! the replicas, with the effect that code without the rule would have. A resting mutator never reaches the replicas,
//! so its rules are broken by a hook of the core.

use orderfree_core::protocol::RestFlaw;

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

    /// Whether it breaks a rule of forgetting.
    pub(crate) fn is_about_forgetting(self) -> bool {
        matches!(
            self,
            Sabotage::AgeOfTallyAlone
                | Sabotage::NoGrave
                | Sabotage::GraveOnce
                | Sabotage::LowGraveTimestamp
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
