//! The values that reads may return. Each op adds its own digit of base 8 to its key, so a value shows for each op
//! whether it was lost, counted once, or counted again. `family` reads other kinds as such numbers.

use std::fmt;

use orderfree_core::protocol::Timestamp;

use crate::plan::OPS_MAX;

pub(crate) const DIGIT_BITS: usize = 3;

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
            Violation::Nonsense { name, value } => write!(f, "NONSENSE: key {name} reads {value}"),
            Violation::Unreadable { name, error } => write!(f, "UNREADABLE: key {name}: {error}"),
            Violation::Panicked { panic } => write!(f, "PANICKED: {panic}"),
            Violation::Leftover { name, rows } => write!(f, "LEFTOVER: key {name}: {rows} rows"),
        }
    }
}

/// The stages of one key's ops at one time.
pub(crate) type Snapshot = [Acked; OPS_MAX];

/// Whether a pod of this data centre acked the op.
pub(crate) type Acked = Option<usize>;

/// All ops and their answers.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    keys: Vec<[Op; OPS_MAX]>,
    pub(crate) violation: Option<Violation>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Op {
    stage: Stage,
    /// The data centre whose quorum acked it.
    datacenter: usize,
    /// The time that an acked op got, if its kind has times.
    time: Option<Timestamp>,
    /// Attempts that were not refused.
    attempts: u32,
    /// It was also sent with [`OTHER`] times its amount.
    has_other: bool,
}

/// How many times its amount an op has if its client sends another amount with the same id.
pub(crate) const OTHER: i64 = 3;

/// The amount that op number `op` adds.
pub(crate) fn weight(op: usize) -> i64 {
    1 << (DIGIT_BITS * op)
}

impl Oracle {
    pub(crate) fn new(names: u8) -> Oracle {
        let keys = vec![[Op::default(); OPS_MAX]; usize::from(names)];
        Oracle { keys, violation: None }
    }

    pub(crate) fn sent(&mut self, name: u8, op: usize) {
        let op = self.op(name, op);
        op.attempts += 1;
        if op.stage != Stage::Acked {
            op.stage = Stage::Open;
        }
    }

    pub(crate) fn sent_other(&mut self, name: u8, op: usize) {
        self.op(name, op).has_other = true;
    }

    /// One attempt was refused.
    pub(crate) fn refused(&mut self, name: u8, op: usize) {
        let op = self.op(name, op);
        op.attempts -= 1;
        if op.attempts == 0 && op.stage == Stage::Open {
            op.stage = Stage::Refused;
        }
    }

    pub(crate) fn acked(
        &mut self,
        name: u8,
        op: usize,
        datacenter: usize,
        time: Option<Timestamp>,
    ) {
        let op = self.op(name, op);
        if op.stage != Stage::Acked {
            *op = Op { stage: Stage::Acked, datacenter, time, ..*op };
        }
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
    pub(crate) fn snapshot(&self, name: u8) -> Snapshot {
        self.keys[usize::from(name)].map(|op| (op.stage == Stage::Acked).then_some(op.datacenter))
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
        for (op, acked) in before.iter().enumerate() {
            let digit = (value >> (DIGIT_BITS * op)) & ((1 << DIGIT_BITS) - 1);
            let times = u8::try_from(digit).expect("three bits");
            let Op { stage, has_other, .. } = self.keys[usize::from(name)][op];
            if times > 1 && !(has_other && i64::from(times) == OTHER) {
                return self.report(Violation::Doubled { name, op, times });
            }
            if times > 0 && matches!(stage, Stage::NotSent | Stage::Refused) {
                return self.report(Violation::Phantom { name, op });
            }
            if times == 0 && acked.is_some_and(&must_see) {
                return self.report(Violation::Lost { name, op });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wrong_answer_has_its_name() {
        let judge = |value: i128| {
            let mut oracle = Oracle::new(1);
            for op in 0..4 {
                oracle.sent(0, op);
            }
            oracle.acked(0, 0, 0, None);
            oracle.acked(0, 1, 1, None);
            oracle.refused(0, 2);
            let before = oracle.snapshot(0);
            oracle.judge(0, value, &before, |datacenter| datacenter == 0);
            oracle.violation
        };
        let digits = |ops: &[usize]| ops.iter().map(|&op| i128::from(weight(op))).sum::<i128>();
        assert_eq!(judge(digits(&[0])), None);
        assert_eq!(judge(digits(&[0, 1, 3])), None);
        assert_eq!(judge(digits(&[1])), Some(Violation::Lost { name: 0, op: 0 }));
        assert_eq!(
            judge(digits(&[0, 3, 3])),
            Some(Violation::Doubled { name: 0, op: 3, times: 2 })
        );
        assert_eq!(judge(digits(&[0, 2])), Some(Violation::Phantom { name: 0, op: 2 }));
        assert_eq!(judge(digits(&[0, 9])), Some(Violation::Phantom { name: 0, op: 9 }));
        assert_eq!(judge(-1), Some(Violation::Nonsense { name: 0, value: -1 }));
    }
}
