//! The values that reads may return. Each op adds its own digit of base 8 to its key, so a value shows for each op
//! whether it was lost, counted once, or counted again. `family` reads other kinds as such numbers.

use std::fmt;

use orderfree_core::protocol::Timestamp;

use crate::plan::OPS_MAX;

pub(crate) const DIGIT_BITS: usize = 3;

/// Most data centres of a schedule.
const DATACENTERS_MAX: usize = 2;

/// What a client can send under one id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) sequence: u64,
    /// How many times the op's amount. So the digit shows which version counted.
    pub(crate) times: u8,
}

/// Most versions of an op.
pub(crate) const VERSIONS_MAX: usize = 3;

/// A version counts before those that stand before it: a greater sequence number first, and then greater bytes.
pub(crate) const AMOUNTS: &[Version] =
    &[Version { sequence: 0, times: 1 }, Version { sequence: 0, times: 3 }];

/// A sender's running totals. No two of them add up to another.
pub(crate) const TOTALS: &[Version] = &[
    Version { sequence: 1, times: 1 },
    Version { sequence: 2, times: 3 },
    Version { sequence: 3, times: 7 },
];

/// What is known about an op.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Stage {
    #[default]
    NotSent,
    /// Sent, unanswered, unknown, or acknowledged from memory: counted once or not at all.
    Open,
    /// Certainly not counted.
    Refused,
    /// Acked: counted once, in every read that begins from now on.
    Acked,
}

/// A wrong answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Violation {
    Lost {
        name: u8,
        op: usize,
    },
    Doubled {
        name: u8,
        op: usize,
        times: u8,
    },
    /// Counted, although it was never sent or was refused.
    Phantom {
        name: u8,
        op: usize,
    },
    /// Two attempts of one op with an id got different times.
    TwoTimes {
        name: u8,
        op: usize,
    },
    /// Acked before a reset began that was answered before the read began, and counted.
    Resurrected {
        name: u8,
        op: usize,
    },
    /// In the value and in what a reset cleared, or in what two resets cleared.
    OnBothSides {
        name: u8,
        op: usize,
    },
    /// Acked, and neither in the value nor in what a reset cleared.
    OnNoSide {
        name: u8,
        op: usize,
    },
    /// One order to reset a key was answered with different values.
    TwoAnswers {
        name: u8,
    },
    /// A value that is not a sum of ops.
    Nonsense {
        name: u8,
        value: i128,
    },
    /// The key can't be read after all faults have ended.
    Unreadable {
        name: u8,
        error: String,
    },
    /// A key was forgotten for certain, and shows an earlier op.
    Revived {
        name: u8,
        op: usize,
    },
    /// Shards are left after all faults have ended and everything was folded.
    Leftover {
        name: u8,
        rows: usize,
    },
    /// The product panicked.
    Panicked {
        panic: String,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Lost { name, op } => write!(f, "LOST: op {op} of key {name}"),
            Violation::Doubled { name, op, times } => {
                write!(f, "DOUBLED: op {op} of key {name}, {times} times")
            }
            Violation::Phantom { name, op } => write!(f, "PHANTOM: op {op} of key {name}"),
            Violation::TwoTimes { name, op } => write!(f, "TWO TIMES: op {op} of key {name}"),
            Violation::Resurrected { name, op } => write!(f, "RESURRECTED: op {op} of key {name}"),
            Violation::OnBothSides { name, op } => {
                write!(f, "ON BOTH SIDES: op {op} of key {name}")
            }
            Violation::TwoAnswers { name } => write!(f, "TWO ANSWERS: to one reset of key {name}"),
            Violation::OnNoSide { name, op } => write!(f, "ON NO SIDE: op {op} of key {name}"),
            Violation::Nonsense { name, value } => write!(f, "NONSENSE: key {name} reads {value}"),
            Violation::Unreadable { name, error } => write!(f, "UNREADABLE: key {name}: {error}"),
            Violation::Panicked { panic } => write!(f, "PANICKED: {panic}"),
            Violation::Revived { name, op } => write!(f, "REVIVED: op {op} of key {name}"),
            Violation::Leftover { name, rows } => write!(f, "LEFTOVER: key {name}: {rows} rows"),
        }
    }
}

/// What was known of one key at one time.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    /// What was acked of its ops.
    acked: [Acked; OPS_MAX],
    /// For each data centre, when the ops were acked that are gone for certain: up to this, in µs.
    forgotten_us: [i64; DATACENTERS_MAX],
    at: u64,
}

/// A reset of a key.
#[derive(Debug, Clone, Copy)]
struct Clearing {
    began: u64,
    /// When it was answered.
    ended: Option<u64>,
    /// The value that it returned.
    cleared: i128,
    /// It has certainly changed nothing.
    failed: bool,
}

/// The greatest version of an op that a pod of each data centre acked.
pub(crate) type Acked = [Option<usize>; DATACENTERS_MAX];

/// All ops and their answers.
#[derive(Debug)]
pub(crate) struct Oracle {
    keys: Vec<[Op; OPS_MAX]>,
    /// The versions of each op.
    versions: [&'static [Version]; OPS_MAX],
    /// The resets of each key.
    resets: Vec<Vec<Clearing>>,
    /// Counts what happens, so that it has an order.
    now: u64,
    /// For each key, when the ops were sent that may have been forgotten: up to this, in µs.
    may_be_gone_us: Vec<i64>,
    /// For each key, as in [`Snapshot::forgotten_us`].
    forgotten_us: Vec<[i64; DATACENTERS_MAX]>,
    /// For each key, the acked ops that a read missed, which had to see them unless they were forgotten, after
    /// everything idle was forgotten.
    gone: Vec<[bool; OPS_MAX]>,
    /// Everything idle was forgotten on a healthy cluster.
    pub(crate) is_settled: bool,
    pub(crate) violation: Option<Violation>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Op {
    /// When the last acked attempt was sent, in µs, and when it was acked.
    sent_us: i64,
    acked_us: i64,
    stage: Stage,
    acked: Acked,
    /// The time that an acked op got, if its kind has times.
    time: Option<Timestamp>,
    /// Attempts with each version that may have written something.
    attempts: [u32; VERSIONS_MAX],
    /// When each version was sent first.
    sent_at: [Option<u64>; VERSIONS_MAX],
    /// When it was acked first.
    acked_at: Option<u64>,
}

/// The amount that op number `op` adds.
pub(crate) fn weight(op: usize) -> i64 {
    1 << (DIGIT_BITS * op)
}

impl Oracle {
    pub(crate) fn new(names: u8, versions: impl Fn(usize) -> &'static [Version]) -> Oracle {
        let keys = vec![[Op::default(); OPS_MAX]; usize::from(names)];
        let names = usize::from(names);
        Oracle {
            keys,
            versions: std::array::from_fn(versions),
            resets: vec![Vec::new(); names],
            now: 0,
            may_be_gone_us: vec![i64::MIN; names],
            forgotten_us: vec![[i64::MIN; DATACENTERS_MAX]; names],
            gone: vec![[false; OPS_MAX]; names],
            is_settled: false,
            violation: None,
        }
    }

    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    pub(crate) fn sent(&mut self, name: u8, op: usize, version: usize) {
        let now = self.tick();
        let op = self.op(name, op);
        op.sent_at[version].get_or_insert(now);
        op.attempts[version] += 1;
        if op.stage != Stage::Acked {
            op.stage = Stage::Open;
        }
    }

    /// One attempt wrote nothing.
    pub(crate) fn refused(&mut self, name: u8, op: usize, version: usize) {
        let op = self.op(name, op);
        op.attempts[version] -= 1;
        if op.attempts == [0; VERSIONS_MAX] && op.stage == Stage::Open {
            op.stage = Stage::Refused;
        }
    }

    pub(crate) fn acked(
        &mut self,
        name: u8,
        op: usize,
        version: usize,
        datacenter: usize,
        time: Option<Timestamp>,
    ) {
        let now = self.tick();
        let of = self.op(name, op);
        of.acked_at.get_or_insert(now);
        of.acked[datacenter] = of.acked[datacenter].max(Some(version));
        if of.stage != Stage::Acked {
            (of.stage, of.time) = (Stage::Acked, time);
        } else if of.time != time {
            self.report(Violation::TwoTimes { name, op });
        }
    }

    /// The last acked attempt of an op was sent and acked at these times.
    pub(crate) fn timed(&mut self, name: u8, op: usize, sent_us: i64, acked_us: i64) {
        let op = self.op(name, op);
        (op.sent_us, op.acked_us) = (op.sent_us.max(sent_us), op.acked_us.max(acked_us));
    }

    /// A key is about to be forgotten: ops that were sent up to this time may be gone from now on.
    pub(crate) fn forgets(&mut self, name: u8, until_us: i64) {
        let of = &mut self.may_be_gone_us[usize::from(name)];
        *of = (*of).max(until_us);
    }

    /// A key was forgotten for certain: ops that were acked up to this time are gone, in this data centre.
    pub(crate) fn forgot(&mut self, name: u8, until_us: i64, datacenter: usize) {
        let of = &mut self.forgotten_us[usize::from(name)][datacenter];
        *of = (*of).max(until_us);
    }

    /// Whether a version of an op was acked, or one that counts before it.
    pub(crate) fn is_acked(&self, name: u8, op: usize, version: usize) -> bool {
        self.keys[usize::from(name)][op].acked.iter().any(|acked| *acked >= Some(version))
    }

    /// The stage of an op.
    pub(crate) fn stage(&self, name: u8, op: usize) -> Stage {
        self.keys[usize::from(name)][op].stage
    }

    /// The time of an acked op.
    pub(crate) fn time(&self, name: u8, op: usize) -> Option<Timestamp> {
        self.keys[usize::from(name)][op].time
    }

    /// What was acked before a read began.
    pub(crate) fn snapshot(&mut self, name: u8) -> Snapshot {
        let acked = self.keys[usize::from(name)].map(|op| op.acked);
        Snapshot { acked, forgotten_us: self.forgotten_us[usize::from(name)], at: self.tick() }
    }

    /// A reset of a key begins. Returns its number.
    pub(crate) fn reset_began(&mut self, name: u8) -> usize {
        let began = self.tick();
        let of_key = &mut self.resets[usize::from(name)];
        of_key.push(Clearing { began, ended: None, cleared: 0, failed: false });
        of_key.len() - 1
    }

    /// Whether a reset of the key has begun.
    pub(crate) fn was_reset(&self, name: u8) -> bool {
        !self.resets[usize::from(name)].is_empty()
    }

    /// A reset that has changed nothing is ordered again.
    pub(crate) fn reset_goes_on(&mut self, name: u8, number: usize) {
        self.resets[usize::from(name)][number].failed = false;
    }

    /// A reset has certainly changed nothing.
    pub(crate) fn reset_failed(&mut self, name: u8, number: usize) {
        self.resets[usize::from(name)][number].failed = true;
    }

    /// A reset was answered with the value that it cleared. It must hold everything that was acked before it began,
    /// and that no other reset returned.
    pub(crate) fn reset_done(&mut self, name: u8, number: usize, cleared: i128) {
        let now = self.tick();
        let reset = &mut self.resets[usize::from(name)][number];
        (reset.ended, reset.cleared) = (Some(now), cleared);
        let began = reset.began;
        if cleared < 0 || cleared >> (DIGIT_BITS * OPS_MAX) != 0 {
            return self.report(Violation::Nonsense { name, value: cleared });
        }
        for op in 0..OPS_MAX {
            let times = digit(cleared, op);
            let known = self.versions[op].iter().position(|version| version.times == times);
            let Op { attempts, sent_us, acked_at, .. } = self.keys[usize::from(name)][op];
            if times > 0 && known.is_none() {
                return self.report(Violation::Doubled { name, op, times });
            }
            if known.is_some_and(|version| attempts[version] == 0) {
                return self.report(Violation::Phantom { name, op });
            }
            let Some(sides) = self.cleared_by(name, op) else { continue };
            if sides > 1 {
                return self.report(Violation::OnBothSides { name, op });
            }
            let may_be_gone = sent_us <= self.may_be_gone_us[usize::from(name)];
            if sides == 0 && acked_at.is_some_and(|acked| acked < began) && !may_be_gone {
                return self.report(Violation::OnNoSide { name, op });
            }
        }
    }

    /// How many resets returned an op; `None` if a reset of the key is not answered, or if two of them overlapped.
    fn cleared_by(&self, name: u8, op: usize) -> Option<usize> {
        let mut resets = self.resets[usize::from(name)].iter().filter(|reset| !reset.failed);
        let mut last = 0;
        // In the order in which they began.
        let are_apart = resets.clone().all(|reset| {
            let is_after = reset.began > last;
            last = reset.ended.unwrap_or(u64::MAX);
            is_after && reset.ended.is_some()
        });
        are_apart.then(|| resets.by_ref().filter(|reset| digit(reset.cleared, op) > 0).count())
    }

    /// Checks a read. It must see the acks of the data centres in `must_see`.
    pub(crate) fn judge(
        &mut self,
        name: u8,
        value: i128,
        before: &Snapshot,
        must_see: impl Fn(usize) -> bool,
    ) {
        if value < 0 || value >> (DIGIT_BITS * OPS_MAX) != 0 {
            return self.report(Violation::Nonsense { name, value });
        }
        for (op, acked) in before.acked.iter().enumerate() {
            let times = digit(value, op);
            let seen = (0..DATACENTERS_MAX).filter(|datacenter| must_see(*datacenter));
            let least = seen.filter_map(|datacenter| acked[datacenter]).max();
            let counted = self.versions[op].iter().position(|version| version.times == times);
            if times > 0 && counted.is_none() {
                return self.report(Violation::Doubled { name, op, times });
            }
            let attempts = self.keys[usize::from(name)][op].attempts;
            if counted.is_some_and(|version| attempts[version] == 0) {
                return self.report(Violation::Phantom { name, op });
            }
            let at = usize::from(name);
            let Op { sent_us, acked_us, stage, sent_at, acked_at, .. } = self.keys[at][op];
            let resets = self.resets[at].iter().filter(|reset| !reset.failed);
            let (is_sure, was_before) =
                (must_see(0), |at: u64| acked_at.is_some_and(|acked| acked < at));
            let has_cleared = |reset: &Clearing| {
                reset.ended.is_some_and(|ended| ended < before.at) && was_before(reset.began)
            };
            let is_over = |reset: &Clearing| reset.ended.is_some_and(|ended| ended < before.at);
            // A total is more than the earlier ones of its id, and counts as a new op. Other versions are repeats.
            let is_total = |version: usize| self.versions[op][version].sequence > 0;
            let sent_at = match least {
                Some(version) if is_total(version) => sent_at[version],
                _ => sent_at.into_iter().flatten().min(),
            };
            let is_after =
                |reset: &Clearing| reset.ended.is_some_and(|ended| sent_at > Some(ended));
            let is_cleared = resets.clone().any(has_cleared);
            let has_sides = resets.clone().next().is_some() && resets.clone().all(is_over);
            let is_after_all = resets.clone().all(is_after);
            if is_sure && counted.is_some() && is_cleared {
                return self.report(Violation::Resurrected { name, op });
            }
            let is_gone = |datacenter: usize| {
                must_see(datacenter) && acked_us <= before.forgotten_us[datacenter]
            };
            if counted.is_some() && stage == Stage::Acked && (0..DATACENTERS_MAX).any(is_gone) {
                return self.report(Violation::Revived { name, op });
            }
            let is_back = self.is_settled && self.gone[at][op] && counted.is_some();
            if is_back && stage == Stage::Acked {
                return self.report(Violation::Revived { name, op });
            }
            // A read of another data centre can miss an op that no fold has taken.
            self.gone[at][op] |= self.is_settled && counted.is_none() && least.is_some();
            if counted.is_none() && sent_us <= self.may_be_gone_us[at] {
                continue;
            }
            if counted < least && is_after_all {
                return self.report(Violation::Lost { name, op });
            }
            if !has_sides || !is_sure {
                continue;
            }
            match self.cleared_by(name, op).map(|cleared| cleared + usize::from(counted.is_some()))
            {
                Some(0) if least.is_some() => {
                    return self.report(Violation::OnNoSide { name, op });
                }
                Some(2..) => return self.report(Violation::OnBothSides { name, op }),
                _ => {}
            }
        }
    }

    /// Keeps the first violation.
    pub(crate) fn report(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }

    fn op(&mut self, name: u8, op: usize) -> &mut Op {
        &mut self.keys[usize::from(name)][op]
    }
}

/// The digit of an op in a value.
fn digit(value: i128, op: usize) -> u8 {
    let digit = (value >> (DIGIT_BITS * op)) & ((1 << DIGIT_BITS) - 1);
    u8::try_from(digit).expect("three bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wrong_answer_has_its_name() {
        let judge = |value: i128| {
            let totals = |op| if op == 4 { TOTALS } else { &AMOUNTS[..1] };
            let mut oracle = Oracle::new(1, totals);
            for op in 0..5 {
                oracle.sent(0, op, 0);
            }
            oracle.acked(0, 0, 0, 0, None);
            oracle.acked(0, 1, 0, 1, None);
            oracle.refused(0, 2, 0);
            oracle.sent(0, 4, 1);
            oracle.acked(0, 4, 1, 1, None);
            oracle.acked(0, 4, 0, 0, None);
            let before = oracle.snapshot(0);
            oracle.judge(0, value, &before, |datacenter| datacenter == 0);
            oracle.violation
        };
        let digits = |ops: &[usize]| ops.iter().map(|&op| i128::from(weight(op))).sum::<i128>();
        let (lost, phantom) = (
            |op| Some(Violation::Lost { name: 0, op }),
            |op| Some(Violation::Phantom { name: 0, op }),
        );
        let doubled = |op, times| Some(Violation::Doubled { name: 0, op, times });
        assert_eq!(judge(digits(&[0, 4])), None);
        assert_eq!(judge(digits(&[0, 1, 3, 4])), None);
        assert_eq!(judge(digits(&[1, 4])), lost(0));
        assert_eq!(judge(digits(&[0, 3, 3])), doubled(3, 2));
        assert_eq!(judge(digits(&[0, 2])), phantom(2));
        assert_eq!(judge(digits(&[0, 4, 9])), phantom(9));
        assert_eq!(judge(-1), Some(Violation::Nonsense { name: 0, value: -1 }));
        let total = |times: i128| judge(digits(&[0]) + times * digits(&[4]));
        assert_eq!(total(0), lost(4));
        assert_eq!(total(3), None);
        assert_eq!(total(4), doubled(4, 4));
        assert_eq!(total(7), phantom(4));
    }

    /// Ops 0 and 1 were acked before the reset, op 2 while it ran, op 3 afterwards.
    #[test]
    fn an_answered_reset_has_two_sides() {
        let judge = |cleared: &[usize], shown: &[usize]| {
            let mut oracle = Oracle::new(1, |_| &AMOUNTS[..1]);
            let sum = |ops: &[usize]| ops.iter().map(|&op| i128::from(weight(op))).sum::<i128>();
            let ack = |oracle: &mut Oracle, op| {
                oracle.sent(0, op, 0);
                oracle.acked(0, op, 0, 0, None);
            };
            ack(&mut oracle, 0);
            ack(&mut oracle, 1);
            let failed = oracle.reset_began(0);
            oracle.reset_failed(0, failed);
            let reset = oracle.reset_began(0);
            ack(&mut oracle, 2);
            oracle.reset_done(0, reset, sum(cleared));
            ack(&mut oracle, 3);
            let before = oracle.snapshot(0);
            oracle.judge(0, sum(shown), &before, |_| true);
            oracle.violation
        };
        assert_eq!(judge(&[0, 1], &[2, 3]), None);
        assert_eq!(judge(&[0, 1, 2], &[3]), None);
        let (name, on_no_side) = (0, |op| Some(Violation::OnNoSide { name: 0, op }));
        assert_eq!(judge(&[0], &[2, 3]), on_no_side(1));
        assert_eq!(judge(&[0, 1], &[3]), on_no_side(2));
        assert_eq!(judge(&[0, 1], &[2]), Some(Violation::Lost { name, op: 3 }));
        assert_eq!(judge(&[0, 1], &[1, 2, 3]), Some(Violation::Resurrected { name, op: 1 }));
        assert_eq!(judge(&[0, 1, 2], &[2, 3]), Some(Violation::OnBothSides { name, op: 2 }));
        assert_eq!(judge(&[0, 1, 3], &[2, 3]), Some(Violation::Phantom { name, op: 3 }));
    }

    #[test]
    fn an_op_of_a_forgotten_key_may_go_and_then_must_not_come_back() {
        let mut oracle = Oracle::new(1, |_| &AMOUNTS[..1]);
        for (op, sent_us) in [(0, 10), (1, 30)] {
            oracle.sent(0, op, 0);
            oracle.acked(0, op, 0, 0, None);
            oracle.timed(0, op, sent_us, sent_us + 5);
        }
        let [first, second] = [0, 1].map(|op| i128::from(weight(op)));
        oracle.forgets(0, 20);
        let before = oracle.snapshot(0);
        for value in [second, first + second] {
            oracle.judge(0, value, &before, |_| true);
            assert_eq!(oracle.violation, None, "it is forgotten at some time");
        }
        oracle.judge(0, first, &before, |_| true);
        assert_eq!(oracle.violation.take(), Some(Violation::Lost { name: 0, op: 1 }));
        oracle.forgot(0, 20, 0);
        let after = oracle.snapshot(0);
        oracle.judge(0, first + second, &before, |_| true);
        oracle.judge(0, second, &after, |_| true);
        assert_eq!(oracle.violation, None);
        oracle.judge(0, first + second, &after, |_| true);
        assert_eq!(oracle.violation.take(), Some(Violation::Revived { name: 0, op: 0 }));
    }

    /// A total that is sent after a reset must count, although an earlier one of its id was cleared.
    #[test]
    fn a_total_of_after_a_reset_is_an_op_of_its_own() {
        for (versions, violation) in
            [(TOTALS, Some(Violation::Lost { name: 0, op: 0 })), (AMOUNTS, None)]
        {
            let mut oracle = Oracle::new(1, |_| versions);
            oracle.sent(0, 0, 0);
            oracle.acked(0, 0, 0, 0, None);
            let reset = oracle.reset_began(0);
            oracle.reset_done(0, reset, 1);
            oracle.sent(0, 0, 1);
            oracle.acked(0, 0, 1, 0, None);
            let before = oracle.snapshot(0);
            oracle.judge(0, 0, &before, |_| true);
            assert_eq!(oracle.violation, violation);
        }
    }

    #[test]
    fn an_op_that_a_read_need_not_see_is_not_gone() {
        let mut oracle = Oracle::new(1, |_| &AMOUNTS[..1]);
        oracle.sent(0, 0, 0);
        oracle.acked(0, 0, 0, 1, None);
        oracle.timed(0, 0, 10, 15);
        oracle.forgets(0, 20);
        oracle.is_settled = true;
        let (snapshot, value) = (oracle.snapshot(0), i128::from(weight(0)));
        oracle.judge(0, 0, &snapshot, |datacenter| datacenter == 0);
        oracle.judge(0, value, &snapshot, |_| true);
        assert_eq!(oracle.violation, None);
        oracle.judge(0, 0, &snapshot, |_| true);
        oracle.judge(0, value, &snapshot, |_| true);
        assert_eq!(oracle.violation.take(), Some(Violation::Revived { name: 0, op: 0 }));
    }

    /// Of several acked versions the greatest counts, and every attempt gets the time of the id.
    #[test]
    fn an_acked_version_replaces_those_before_it() {
        let mut oracle = Oracle::new(1, |_| TOTALS);
        (0..3).for_each(|version| oracle.sent(0, 0, version));
        oracle.acked(0, 0, 1, 0, None);
        oracle.acked(0, 0, 0, 0, None);
        assert!(oracle.is_acked(0, 0, 1) && !oracle.is_acked(0, 0, 2));
        let before = oracle.snapshot(0);
        oracle.judge(0, 3, &before, |_| true);
        oracle.judge(0, 7, &before, |_| true);
        assert_eq!(oracle.violation, None);
        oracle.judge(0, 1, &before, |_| true);
        assert_eq!(oracle.violation, Some(Violation::Lost { name: 0, op: 0 }));
        oracle.violation = None;
        oracle.acked(0, 0, 0, 0, Some(Timestamp::from_micros(1)));
        assert_eq!(oracle.violation, Some(Violation::TwoTimes { name: 0, op: 0 }));
    }
}
