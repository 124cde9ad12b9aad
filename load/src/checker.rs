//! The judge: which values may a key have, given the outcomes that its clients got?
//!
//! Every update adds a random 60-bit weight, and has one of three outcomes. A value is right if and
//! only if `value − base − acked` is the sum of a subset of the weights whose outcome is unknown.
//! That means: every acknowledged update was counted exactly once, every unknown one once or not at
//! all, and no refused one.
//!
//! Bounds alone would let an unknown update hide a lost one. Random weights make the subset decisive:
//! 40 unknown weights have 2^40 subsets, spread over about 2^65 possible sums. So a wrong value passes
//! as right with a probability of 2^-25. A key with more than 40 unknown weights is reported as
//! undecided, but a value outside its bounds is still wrong.
//!
//! A reset takes a part of the sum away and returns it. So for a key that is reset, the judge adds up the value and
//! everything that resets returned. A reset without an answer may have taken away any part; then only the upper bound
//! is left.
//!
//! This module is pure: it uses no clock, no input and no output.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// Bits of a weight. 2^60 leaves a batch of updates far from the limits of an `i64`.
pub(crate) const WEIGHT_BITS: u32 = 60;

/// Unknown weights of one key that can be decided: two halves of 2^20 sums, 16 MiB each.
pub(crate) const DECIDABLE_UNKNOWN_MAX: usize = 40;

/// The outcome of an update that the client got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// The update was counted and is durable.
    Acked,
    /// The update was certainly not counted.
    Refused,
    /// The update was counted once or not at all.
    Unknown,
}

/// What clients know about one key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    base: i128,
    acked: i128,
    acked_count: u64,
    pending: i128,
    unknown: i128,
    unknown_count: usize,
    /// The first unknown weights. More than can be decided are never needed, so this list stays short.
    unknown_weights: Vec<u64>,
    /// The sum of what resets returned.
    cleared: i128,
    /// The number of resets.
    resets: u64,
    /// Whether the last reset has no answer. No other one begins before that.
    is_resetting: bool,
}

/// What is known about a key at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    acked: i128,
    /// With everything that is in doubt.
    most: i128,
    cleared: i128,
    resets: u64,
    is_resetting: bool,
}

impl Known {
    /// The least and the greatest value that a read may return, if this was known before it began, and `after` when
    /// it ended. The value then lies between them, whichever updates and resets were in flight during the read.
    pub(crate) fn until(&self, after: &Known) -> RangeInclusive<i128> {
        let none_reset = !self.is_resetting && self.resets == after.resets;
        let least = if none_reset { self.acked - self.cleared } else { 0 };
        least..=after.most - self.cleared
    }
}

/// The judgement of a value of a key, after all its updates have an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The unknown updates explain the value exactly.
    Right,
    /// The value is within its bounds, and there are too many unknown updates to say more.
    Undecided,
    /// No subset of the unknown updates explains the value.
    Wrong(Wrong),
}

/// Why a value is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// What must have happened, as far as the value proves it.
    pub fault: Fault,
    /// `value − base − acked`, which the unknown updates would have to explain. For pods that differ,
    /// it is the distance from the least to the greatest value.
    pub difference: i128,
}

/// The kinds of wrong values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Fault {
    /// The value is less than the sum of all acknowledged updates: at least one of them is missing.
    Lost,
    /// The value is more than the sum of all acknowledged and unknown updates: an update was counted
    /// twice, or an update was counted that was refused or never sent.
    Excess,
    /// The value is between these two sums, but no choice of unknown updates gives it: they hide a
    /// loss, a double count or a phantom.
    Unexplained,
    /// The value is possible, but another pod has another one although no update is in doubt any more.
    Differs,
}

impl Ledger {
    /// A ledger of a key whose value was `base` before the first update.
    pub(crate) fn starting_at(base: i128) -> Self {
        Self { base, ..Self::default() }
    }

    /// Records an update that is about to be sent.
    pub(crate) fn begin(&mut self, weight: u64) {
        self.pending += i128::from(weight);
    }

    /// Records the outcome of an update.
    pub(crate) fn finish(&mut self, weight: u64, outcome: Outcome) {
        let amount = i128::from(weight);
        self.pending -= amount;
        match outcome {
            Outcome::Acked => {
                self.acked += amount;
                self.acked_count += 1;
            }
            Outcome::Refused => {}
            Outcome::Unknown => {
                self.unknown += amount;
                self.unknown_count += 1;
                if self.unknown_weights.len() < DECIDABLE_UNKNOWN_MAX {
                    self.unknown_weights.push(weight);
                }
            }
        }
    }

    /// What is known now.
    pub(crate) fn known(&self) -> Known {
        let acked = self.base + self.acked;
        let (cleared, resets, is_resetting) = (self.cleared, self.resets, self.is_resetting);
        Known { acked, most: acked + self.unknown + self.pending, cleared, resets, is_resetting }
    }

    /// The value that a read returns if no unknown update was counted.
    pub(crate) fn acked_value(&self) -> i128 {
        self.base + self.acked - self.cleared
    }

    /// Records that a reset is about to be sent. Returns what is known now; `None` if another one has no answer.
    pub(crate) fn begin_reset(&mut self) -> Option<Known> {
        if self.is_resetting {
            return None;
        }
        let known = self.known();
        self.resets += 1;
        self.is_resetting = true;
        Some(known)
    }

    /// Records what a reset returned. Every update that was acknowledged before it must be in that, and none that was
    /// sent after it. If one is on the wrong side, returns the range of right answers.
    pub(crate) fn finish_reset(
        &mut self,
        began: &Known,
        cleared: i128,
    ) -> Result<(), RangeInclusive<i128>> {
        let right = began.acked - began.cleared..=self.known().most - began.cleared;
        self.cleared += cleared;
        self.is_resetting = false;
        if right.contains(&cleared) { Ok(()) } else { Err(right) }
    }

    /// Records that a reset has certainly changed nothing.
    pub(crate) fn refuse_reset(&mut self) {
        self.is_resetting = false;
    }

    /// Whether the key was reset.
    pub(crate) fn was_reset(&self) -> bool {
        self.resets > 0
    }

    /// Whether a reset has no answer, so that no client knows what it took away.
    pub(crate) fn is_resetting(&self) -> bool {
        self.is_resetting
    }

    /// The number of acknowledged updates.
    pub(crate) fn acked_count(&self) -> u64 {
        self.acked_count
    }

    /// Judges the values of this key from several pods.
    ///
    /// While an update is in doubt, two pods may be right and still differ: some reads see a write
    /// that reached a minority of replicas, and others do not. Once all shards are folded (`settled`),
    /// such a write is either in the tally or gone, and the pods must agree.
    pub(crate) fn judge_all(&self, values: &[i128], settled: bool) -> Verdict {
        let mut worst = Verdict::Right;
        for value in values {
            match self.judge(*value) {
                wrong @ Verdict::Wrong(_) => return wrong,
                Verdict::Undecided => worst = Verdict::Undecided,
                Verdict::Right => {}
            }
        }
        match (values.iter().min(), values.iter().max()) {
            (Some(least), Some(greatest)) if settled && least != greatest => {
                wrong(Fault::Differs, greatest - least)
            }
            _ => worst,
        }
    }

    /// Judges a value that was read after the last update and the last reset got their outcome.
    pub(crate) fn judge(&self, value: i128) -> Verdict {
        let difference = value + self.cleared - self.base - self.acked;
        let in_doubt = self.unknown + self.pending;
        if difference > in_doubt {
            return wrong(Fault::Excess, difference);
        }
        if self.is_resetting {
            return Verdict::Undecided;
        }
        if difference < 0 {
            return wrong(Fault::Lost, difference);
        }
        if difference == 0 || difference == in_doubt {
            return Verdict::Right;
        }
        if self.pending != 0 || self.unknown_count > DECIDABLE_UNKNOWN_MAX {
            return Verdict::Undecided;
        }
        if is_subset_sum(&self.unknown_weights, difference) {
            Verdict::Right
        } else {
            wrong(Fault::Unexplained, difference)
        }
    }
}

fn wrong(fault: Fault, difference: i128) -> Verdict {
    Verdict::Wrong(Wrong { fault, difference })
}

/// Whether some of the weights add up to `target`.
///
/// This meets in the middle: each half of the weights gives a sorted list of sums. The search goes up
/// in one list and down in the other, so it finds every match without trying all pairs.
fn is_subset_sum(weights: &[u64], target: i128) -> bool {
    let (left, right) = weights.split_at(weights.len() / 2);
    let rising = sorted_subset_sums(left);
    let right_sums = sorted_subset_sums(right);
    let mut falling = right_sums.iter().rev().peekable();
    rising.iter().any(|low| {
        while falling.next_if(|high| low + **high > target).is_some() {}
        falling.peek().is_some_and(|high| low + **high == target)
    })
}

/// All subset sums in rising order. Each weight merges the list with the list shifted by the weight,
/// which keeps the order without a sort.
fn sorted_subset_sums(weights: &[u64]) -> Vec<i128> {
    weights.iter().fold(vec![0], |without, weight| {
        let weight = i128::from(*weight);
        let mut sums = Vec::with_capacity(without.len() * 2);
        let mut shifted = without.iter().map(|sum| sum + weight).peekable();
        for sum in &without {
            while let Some(smaller) = shifted.next_if(|other| other < sum) {
                sums.push(smaller);
            }
            sums.push(*sum);
        }
        sums.extend(shifted);
        sums
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;

    fn ledger_of(base: i128, history: &[(u64, Outcome)]) -> Ledger {
        let mut ledger = Ledger::starting_at(base);
        for (weight, _) in history {
            ledger.begin(*weight);
        }
        for (weight, outcome) in history {
            ledger.finish(*weight, *outcome);
        }
        ledger
    }

    fn sum(weights: &[u64]) -> i128 {
        weights.iter().map(|weight| i128::from(*weight)).sum()
    }

    /// Weights like those of a run, from a generator without dependencies.
    fn weights(count: usize, seed: u64) -> Vec<u64> {
        let mut state = seed;
        std::iter::repeat_with(|| {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            ((mixed ^ (mixed >> 31)) >> (64 - WEIGHT_BITS)).max(1)
        })
        .take(count)
        .collect()
    }

    fn fault_of(verdict: Verdict) -> Option<Fault> {
        match verdict {
            Verdict::Wrong(wrong) => Some(wrong.fault),
            Verdict::Right | Verdict::Undecided => None,
        }
    }

    /// Ten acknowledged updates, four refused ones, and `unknown` unknown ones.
    fn history(unknown: usize) -> (Ledger, Vec<u64>, Vec<u64>, Vec<u64>) {
        let drawn = weights(14 + unknown, 7);
        let (acked, rest) = drawn.split_at(10);
        let (refused, in_doubt) = rest.split_at(4);
        let mut entries: Vec<_> = acked.iter().map(|w| (*w, Outcome::Acked)).collect();
        entries.extend(refused.iter().map(|w| (*w, Outcome::Refused)));
        entries.extend(in_doubt.iter().map(|w| (*w, Outcome::Unknown)));
        let ledger = ledger_of(0, &entries);
        (ledger, acked.to_vec(), refused.to_vec(), in_doubt.to_vec())
    }

    #[test]
    fn a_lost_update_is_wrong() {
        let (ledger, acked, ..) = history(0);
        let verdict = ledger.judge(sum(&acked) - i128::from(acked[3]));
        assert_eq!(
            verdict,
            wrong(Fault::Lost, -i128::from(acked[3])),
            "the difference names the weight that is missing"
        );
    }

    #[test]
    fn a_doubled_update_is_wrong() {
        let (ledger, acked, ..) = history(0);
        let verdict = ledger.judge(sum(&acked) + i128::from(acked[3]));
        assert_eq!(fault_of(verdict), Some(Fault::Excess));
    }

    #[test]
    fn a_doubled_update_among_unknown_ones_is_wrong() {
        let (ledger, acked, _, unknown) = history(6);
        let verdict = ledger.judge(sum(&acked) + i128::from(acked[3]) + i128::from(unknown[0]));
        assert_eq!(fault_of(verdict), Some(Fault::Unexplained));
    }

    #[test]
    fn a_phantom_is_wrong() {
        let (ledger, acked, _, unknown) = history(5);
        let total = sum(&acked) + sum(&unknown);
        assert_eq!(fault_of(ledger.judge(total + 1)), Some(Fault::Excess));
        let counted = sum(&acked) + i128::from(unknown[2]);
        let phantom = ledger.judge(counted + 1);
        assert_eq!(fault_of(phantom), Some(Fault::Unexplained));
    }

    #[test]
    fn a_refused_update_that_was_counted_is_wrong() {
        let (ledger, acked, refused, _) = history(0);
        let verdict = ledger.judge(sum(&acked) + i128::from(refused[0]));
        assert_eq!(fault_of(verdict), Some(Fault::Excess));
        let (ledger, acked, refused, _) = history(8);
        let verdict = ledger.judge(sum(&acked) + i128::from(refused[1]));
        assert_eq!(fault_of(verdict), Some(Fault::Unexplained));
    }

    #[test]
    fn a_loss_behind_an_unknown_update_is_wrong() {
        let (ledger, acked, _, unknown) = history(8);
        // Every unknown update was counted, so the value stays above the acknowledged sum although
        // an acknowledged update is missing. Bounds alone would let it pass.
        let verdict = ledger.judge(sum(&acked) + sum(&unknown) - i128::from(acked[0]));
        assert_eq!(fault_of(verdict), Some(Fault::Unexplained));
    }

    #[test]
    fn an_unknown_update_that_counts_twice_is_wrong() {
        let (ledger, acked, _, unknown) = history(8);
        let verdict = ledger.judge(sum(&acked) + 2 * i128::from(unknown[5]));
        assert_eq!(fault_of(verdict), Some(Fault::Unexplained));
    }

    #[test]
    fn the_base_is_part_of_the_value() {
        let ledger = ledger_of(1_000, &[(5, Outcome::Acked)]);
        assert_eq!(ledger.judge(1_005), Verdict::Right);
        assert_eq!(fault_of(ledger.judge(5)), Some(Fault::Lost));
    }

    /// The bounds of a read in a moment without news.
    fn bounds(ledger: &Ledger) -> RangeInclusive<i128> {
        ledger.known().until(&ledger.known())
    }

    #[test]
    fn bounds_hold_what_is_in_flight() {
        let mut ledger = Ledger::starting_at(0);
        ledger.begin(7);
        assert_eq!(bounds(&ledger), 0..=7);
        ledger.finish(7, Outcome::Acked);
        ledger.begin(11);
        assert_eq!(bounds(&ledger), 7..=18);
        ledger.finish(11, Outcome::Refused);
        assert_eq!(bounds(&ledger), 7..=7);
    }

    #[test]
    fn a_value_and_what_was_cleared_are_the_sum() {
        let mut ledger = ledger_of(0, &[(7, Outcome::Acked), (100, Outcome::Unknown)]);
        let before = ledger.known();
        let began = ledger.begin_reset().expect("no other one");
        assert!(ledger.begin_reset().is_none(), "two would overlap");
        assert_eq!((bounds(&ledger), before.until(&ledger.known())), (0..=107, 0..=107));
        ledger.begin(30);
        ledger.finish(30, Outcome::Acked);
        assert_eq!(ledger.finish_reset(&began, 37), Ok(()));
        assert_eq!(bounds(&ledger), 0..=100);
        assert_eq!(began.until(&ledger.known()), 0..=137, "it began before");
        assert_eq!((ledger.judge(0), ledger.judge(100)), (Verdict::Right, Verdict::Right));
        assert_eq!(fault_of(ledger.judge(7)), Some(Fault::Unexplained), "on both sides");
        assert_eq!(fault_of(ledger.judge(137)), Some(Fault::Excess), "nothing was cleared");
        ledger.begin(9);
        ledger.finish(9, Outcome::Acked);
        assert_eq!(fault_of(ledger.judge(0)), Some(Fault::Lost), "on no side");
        let began = ledger.begin_reset().expect("the other one is over");
        ledger.refuse_reset();
        assert_eq!(bounds(&ledger), 9..=109);
        assert_eq!(began.until(&ledger.known()).end(), &109);
    }

    #[test]
    fn a_reset_returns_what_was_acked_before_and_nothing_later() {
        let reset = |cleared| {
            let mut ledger = ledger_of(0, &[(5, Outcome::Acked), (50, Outcome::Unknown)]);
            let began = ledger.begin_reset().expect("no other one");
            ledger.begin(300);
            ledger.finish(300, Outcome::Acked);
            ledger.finish_reset(&began, cleared)
        };
        for right in [5, 55, 305, 355] {
            assert_eq!(reset(right), Ok(()));
        }
        for wrong in [0, 4, 356] {
            assert_eq!(reset(wrong), Err(5..=355));
        }
    }

    #[test]
    fn a_reset_without_an_answer_leaves_the_upper_bound() {
        let mut ledger = ledger_of(0, &[(7, Outcome::Acked)]);
        ledger.begin_reset().expect("no other one");
        assert!(ledger.is_resetting() && ledger.was_reset());
        for value in [0, 3, 7] {
            assert_eq!(ledger.judge(value), Verdict::Undecided);
        }
        assert_eq!(fault_of(ledger.judge(8)), Some(Fault::Excess));
    }

    #[test]
    fn too_many_unknown_updates_are_undecided_but_still_bounded() {
        let (ledger, acked, _, unknown) = history(DECIDABLE_UNKNOWN_MAX + 1);
        let acked = sum(&acked);
        let in_doubt = sum(&unknown);
        assert_eq!(ledger.judge(acked + 1), Verdict::Undecided);
        assert_eq!(fault_of(ledger.judge(acked - 1)), Some(Fault::Lost));
        let above = ledger.judge(acked + in_doubt + 1);
        assert_eq!(fault_of(above), Some(Fault::Excess));
    }

    #[test]
    fn forty_unknown_updates_are_decided_within_a_second() {
        let (ledger, acked, _, unknown) = history(DECIDABLE_UNKNOWN_MAX);
        let counted: i128 = unknown.iter().step_by(3).map(|w| i128::from(*w)).sum();
        let started = Instant::now();
        assert_eq!(ledger.judge(sum(&acked) + counted), Verdict::Right);
        let hidden = ledger.judge(sum(&acked) + counted - i128::from(acked[1]));
        assert!(matches!(hidden, Verdict::Wrong(_)));
        assert!(started.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn pods_may_differ_in_what_is_in_doubt_until_all_is_settled() {
        let (ledger, acked, _, unknown) = history(3);
        let with_one = sum(&acked) + i128::from(unknown[1]);
        let values = [sum(&acked), with_one, sum(&acked)];
        assert_eq!(ledger.judge_all(&values, false), Verdict::Right);
        let settled = ledger.judge_all(&values, true);
        assert_eq!(settled, wrong(Fault::Differs, i128::from(unknown[1])));
        assert_eq!(ledger.judge_all(&[with_one, with_one], true), Verdict::Right);
        let one_wrong = ledger.judge_all(&[with_one, with_one + 1], false);
        assert_eq!(fault_of(one_wrong), Some(Fault::Unexplained));
    }

    #[test]
    fn subset_sums_are_complete_and_sorted() {
        assert_eq!(sorted_subset_sums(&[3, 1, 5]), [0, 1, 3, 4, 5, 6, 8, 9]);
    }

    fn weight() -> impl Strategy<Value = u64> {
        1..1_u64 << WEIGHT_BITS
    }

    fn outcomes() -> impl Strategy<Value = Vec<(u64, Outcome, bool)>> {
        let outcome = prop_oneof![
            3 => Just(Outcome::Acked),
            1 => Just(Outcome::Refused),
            2 => Just(Outcome::Unknown),
        ];
        prop::collection::vec((weight(), outcome, any::<bool>()), 1..40)
    }

    fn honest_value(history: &[(u64, Outcome, bool)]) -> i128 {
        let counted = history.iter().filter(|(_, outcome, applied)| match outcome {
            Outcome::Acked => true,
            Outcome::Refused => false,
            Outcome::Unknown => *applied,
        });
        counted.map(|(weight, ..)| i128::from(*weight)).sum()
    }

    fn ledger_from(base: i128, history: &[(u64, Outcome, bool)]) -> Ledger {
        let entries: Vec<_> = history.iter().map(|(w, o, _)| (*w, *o)).collect();
        ledger_of(base, &entries)
    }

    proptest! {
        #[test]
        fn an_honest_history_is_right(base in any::<i64>(), history in outcomes()) {
            let ledger = ledger_from(i128::from(base), &history);
            let value = i128::from(base) + honest_value(&history);
            prop_assert_eq!(ledger.judge(value), Verdict::Right);
            prop_assert!(bounds(&ledger).contains(&value));
        }

        #[test]
        fn one_update_counted_once_too_often_or_too_rarely_is_wrong(
            history in outcomes(),
            victim in any::<prop::sample::Index>(),
        ) {
            let ledger = ledger_from(0, &history);
            let (weight, outcome, applied) = history[victim.index(history.len())];
            let weight = i128::from(weight);
            let forged = honest_value(&history) + match (outcome, applied) {
                (Outcome::Acked, true) | (Outcome::Refused, _) => weight,
                (Outcome::Acked, false) => -weight,
                // An unknown update may count once or not at all, so here it must count twice.
                (Outcome::Unknown, true) => weight,
                (Outcome::Unknown, false) => 2 * weight,
            };
            prop_assert!(matches!(ledger.judge(forged), Verdict::Wrong(_)));
        }

        #[test]
        fn the_search_agrees_with_trying_every_subset(
            weights in prop::collection::vec(1_u64..12, 0..9),
            target in 0_i128..100,
        ) {
            let tried = (0..1_usize << weights.len()).any(|subset| {
                let chosen = weights.iter().enumerate().filter(|(bit, _)| subset >> bit & 1 == 1);
                chosen.map(|(_, weight)| i128::from(*weight)).sum::<i128>() == target
            });
            prop_assert_eq!(is_subset_sum(&weights, target), tried);
        }
    }
}
