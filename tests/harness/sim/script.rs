//! The events of a schedule, drawn from its seed: scenes in which several things happen at the same time.

use std::time::Duration;

use orderfree_core::protocol::Timestamp;
use orderfree_core::protocol::clock::SAMPLE_EVERY;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::machine::{EPOCH_US, micros};
use crate::plan::{OFFSET_MAX, OPS_MAX, Plan, SECOND, Step, What, skew};

/// How many ops the scene of a late id needs: one to make their number even, one without an id, and its own.
const LATE_ID_OPS: usize = 3;

/// How many ops of a key are left for scenes of resets.
const RESET_OPS: usize = 10;

/// How many ops of a key may come while it is forgotten, or after that.
const IDLE_OPS: usize = 4;

/// Draws the events.
struct Script<'a> {
    plan: &'a Plan,
    dice: &'a mut StdRng,
    /// Ops drawn so far for each key.
    ops: Vec<usize>,
    /// Ops per key that scenes may draw for now.
    ops_max: usize,
    steps: Vec<Step>,
    /// Resets that were ordered under an id.
    orders: usize,
}

/// Draws the steps of a schedule.
pub(crate) fn steps(plan: &Plan, dice: &mut StdRng) -> Vec<Step> {
    let span = plan.constants.lifetime() * dice.random_range(2..=6) + plan.constants.cutoff();
    let (ops, steps) = (vec![0; usize::from(plan.names)], Vec::new());
    let damage = dice.random_bool(0.05);
    let has_forgotten_fold = plan.forgetful && plan.lengths.slices.is_some();
    let idle_ops = if plan.idle_ttl.is_some() { IDLE_OPS } else { 0 };
    let reserved = idle_ops
        + if has_forgotten_fold { 5 } else { 0 }
        + if plan.has_ids { LATE_ID_OPS } else { 0 }
        + if plan.resets { RESET_OPS } else { 0 };
    let ops_max = OPS_MAX - reserved;
    let mut script = Script { plan, dice, ops, ops_max, steps, orders: 0 };
    for _ in 0..script.dice.random_range(20..=70) {
        let at = span.mul_f64(script.dice.random());
        script.scene(at);
    }
    if damage {
        let at = span.mul_f64(script.dice.random());
        let name = script.name();
        script.add(at, What::Damage { name });
    }
    // From its own random numbers, so that other schedules do not change.
    let mut dice = StdRng::seed_from_u64(plan.seed ^ 0x666F_7267_6574);
    if has_forgotten_fold {
        (script.dice, script.ops_max) = (&mut dice, script.ops_max + 5);
        let at = span.mul_f64(script.dice.random());
        script.forgotten_fold(at);
    }
    let mut dice = StdRng::seed_from_u64(plan.seed ^ 0x72_6573_6574);
    if plan.resets {
        (script.dice, script.ops_max) = (&mut dice, script.ops_max + RESET_OPS);
        if plan.has_longer_rows {
            let at = span.mul_f64(script.dice.random());
            script.longer_row(at);
        }
        if script.dice.random_bool(0.3) {
            let at = span.mul_f64(script.dice.random());
            script.half_logged(at);
        }
        for _ in 0..script.dice.random_range(2..=5) {
            let at = span.mul_f64(script.dice.random());
            script.reset(at);
        }
    }
    let mut dice = StdRng::seed_from_u64(plan.seed ^ 0x6964_6C65);
    if plan.idle_ttl.is_some() {
        (script.dice, script.ops_max) = (&mut dice, script.ops_max + idle_ops);
        script.idleness(span);
    }
    let mut dice = StdRng::seed_from_u64(plan.seed ^ 0x7265_7065_6174);
    script.dice = &mut dice;
    script.repeats();
    if plan.has_ids {
        script.ops_max = OPS_MAX;
        script.late_id();
    }
    script.steps.sort_by_key(|step| step.at);
    script.steps
}

impl Script<'_> {
    /// One event, or several that overlap.
    fn scene(&mut self, at: Duration) {
        let (pod, name, node) = (self.pod(), self.name(), self.node());
        match self.dice.random_range(0..100) {
            0..5 => self.missed_fold(at, name),
            5..11 => self.dying_write(at, name),
            11..15 => self.brink(at, name),
            15..30 => {
                for _ in 0..self.dice.random_range(1..=3) {
                    let soon = self.soon(at);
                    self.update(soon, name);
                }
            }
            30..38 => {
                for _ in 0..self.dice.random_range(1..=2) {
                    let soon = self.soon(at);
                    self.add(soon, What::Read { pod, name });
                }
            }
            38..43 => {
                for name in 0..self.plan.names {
                    let (pod, soon) = (self.pod(), self.within(at, 12_000));
                    self.add(soon, What::Fold { pod, name });
                }
                for _ in 0..2 {
                    let (pod, soon) = (self.pod(), self.within(at, 16_000));
                    self.add(soon, What::ReadGroup { pod });
                }
            }
            43..57 => {
                if self.dice.random_bool(0.2) {
                    let span = self.long(2);
                    self.stop_at_send(pod, at, span);
                }
                self.add(at, What::Fold { pod, name });
                for _ in 0..self.dice.random_range(0..=2) {
                    let (pod, soon) = (self.pod(), self.soon(at));
                    self.add(soon, What::Fold { pod, name });
                }
            }
            57..59 => self.add(at, What::Sweep { pod }),
            59..62 => {
                let nth = self.dice.random_range(0..8);
                self.add(at, What::FoldAgain { nth });
            }
            62..66 => self.add(at, What::Peek { name }),
            66..68 => {
                let span = self.long(2);
                self.add(at, What::Stop { pod, span });
            }
            68..72 => {
                let span = self.long(3);
                self.stop_at_send(pod, at, span);
                self.update_by(pod, at, name);
            }
            72..74 => self.add(at, What::Kill { pod }),
            74..75 => self.add(at, What::Drain { pod }),
            75..77 => {
                let most = OFFSET_MAX * if self.dice.random_bool(0.7) { 1 } else { 4 };
                let skew_us = skew(self.dice, most);
                self.update_by(pod, at, name);
                let soon = at + Duration::from_millis(20);
                self.add(soon, What::SetClock { pod, skew_us });
                self.update_by(pod, soon, name);
            }
            77..81 => {
                let span = self.long(1);
                self.add(at, What::NodeDown { node, span });
            }
            81..89 => {
                let span = self.long(1);
                self.add(at, What::Drops { node, span });
            }
            89..94 => self.add(at, What::Purge { node }),
            94..97 => self.turns(at),
            97 if self.plan.forgetful => self.add(at, What::Sync),
            98 if self.plan.forgetful => self.add(at, What::Forget),
            _ => self.add(at, What::Read { pod, name }),
        }
    }

    /// Some nodes miss a fold. The others purge its deletion as soon as they may, or keep it.
    fn missed_fold(&mut self, at: Duration, name: u8) {
        for node in 0..self.plan.nodes.len() {
            if self.dice.random_bool(0.5) {
                let span = self.plan.gc_grace + SECOND;
                self.add(at, What::Drops { node, span });
            }
        }
        let (folder, reader) = (self.pod(), self.pod());
        self.add(at, What::Fold { pod: folder, name });
        let mut then = at + Duration::from_millis(50);
        if self.dice.random_bool(0.7) {
            then = at + self.plan.gc_grace + self.long(1) / 4;
            for node in 0..self.plan.nodes.len() {
                self.add(then, What::Purge { node });
            }
        }
        if self.dice.random_bool(0.3) {
            then = self.soon(then);
            self.add(then, What::Peek { name });
        }
        for _ in 0..3 {
            then = self.soon(then);
            self.add(then, What::Read { pod: reader, name });
        }
        if self.dice.random_bool(0.5) {
            let pod = self.pod();
            self.add(then, What::Fold { pod, name });
        }
    }

    /// A pod dies while some nodes have its last write.
    fn dying_write(&mut self, at: Duration, name: u8) {
        let pod = self.pod();
        for node in 0..self.plan.nodes.len() {
            if self.dice.random_bool(0.6) {
                self.add(at, What::Drops { node, span: SECOND });
            }
        }
        self.update_by(pod, at, name);
        self.add(at + Duration::from_millis(5), What::Kill { pod });
        // After its row is final, some folds see it and some don't.
        let finals = at + self.plan.constants.lifetime() + self.plan.constants.cutoff();
        let then = finals + self.plan.constants.fence_quantum() + OFFSET_MAX;
        for _ in 0..2 {
            let (pod, span) = (self.pod(), self.plan.constants.fence_quantum() / 2);
            let soon = self.soon(then);
            self.stop_at_send(pod, soon, span);
            self.add(soon, What::Fold { pod, name });
        }
    }

    /// A fold of a key's older rows reaches only the node that loses data, while another pod walks through the key.
    /// The node loses it between two looks of that walk.
    fn forgotten_fold(&mut self, at: Duration) {
        let constants = self.plan.constants;
        let names = 0..self.plan.names;
        let name = names.min_by_key(|&name| self.ops[usize::from(name)]).expect("a name");
        let gap = constants.fence_quantum() + SECOND;
        let mut then = at;
        for group in [self.dice.random_range(2..=3), 2] {
            for _ in 0..group {
                let pod = self.pod();
                self.update_by(pod, then, name);
                then += Duration::from_millis(100);
                self.add(then, What::Kill { pod });
            }
            then += gap;
        }
        let (folder, nth) = (self.pod(), self.dice.random_range(2..=3));
        let walker = (folder + 1) % self.plan.pods.len();
        // First all clocks show that the older rows are final, later the others too.
        let slack = constants.fence_quantum() + OFFSET_MAX;
        let sent = then + constants.lifetime() + constants.cutoff() + slack;
        let planned = sent - gap;
        self.add(planned, What::Kill { pod: folder });
        let span = gap + 8 * SECOND;
        self.add(planned, What::StopAtSend { pod: folder, span, held: None });
        self.add(planned, What::Fold { pod: folder, name });
        self.add(sent, What::Sync);
        for node in 1..self.plan.nodes.len() {
            self.add(sent, What::Drops { node, span: SECOND });
        }
        self.add(sent, What::ForgetFold { folder, name, nth });
        let begun = sent + SECOND / 100;
        match self.dice.random_bool(0.8) {
            true => self.add(begun, What::Fold { pod: walker, name }),
            false => self.add(begun, What::Read { pod: walker, name }),
        }
    }

    /// After the last scene all keys become idle, twice. They are forgotten while nodes miss writes, folds that were
    /// planned before wait, zombies come back, and clients begin to use the keys again.
    fn idleness(&mut self, span: Duration) {
        let constants = self.plan.constants;
        let idle = self.plan.until_idle();
        let mut at = span;
        for _ in 0..2 {
            for name in 0..self.plan.names {
                self.update(at, name);
                if self.plan.resets && self.dice.random_bool(0.3) {
                    let (pod, then) = (self.pod(), self.within(at, 10_000_000));
                    let is_deletion = self.dice.random_bool(0.5);
                    self.add(then, What::Reset { pod, name, is_deletion });
                }
            }
            at += idle + constants.fence_quantum() + 2 * OFFSET_MAX;
            if self.dice.random_bool(0.8) {
                self.part_clocks(at - SAMPLE_EVERY - SECOND);
            }
            for name in 0..self.plan.names {
                self.forget(at, name);
                at += 10 * SECOND;
            }
            at += self.plan.gc_grace + self.long(1);
            for node in 0..self.plan.nodes.len() {
                self.add(at, What::Purge { node });
            }
            for name in 0..self.plan.names {
                for _ in 0..2 {
                    let (pod, soon) = (self.pod(), self.soon(at));
                    self.add(soon, What::Read { pod, name });
                    let (pod, then) = (self.pod(), self.within(at, 8_000_000));
                    self.add(then, What::Fold { pod, name });
                }
            }
            at += 8 * SECOND;
        }
    }

    /// The clocks of two pods are as far apart as is allowed.
    fn part_clocks(&mut self, at: Duration) {
        let most_us = micros(OFFSET_MAX - SECOND / 2);
        for (pod, skew_us) in [(self.plan.slowest(), -most_us), (self.plan.fastest(), most_us)] {
            self.add(at, What::SetClock { pod, skew_us });
        }
    }

    /// A key that may be idle is forgotten, and folded by others that planned before or a little later.
    fn forget(&mut self, at: Duration, name: u8) {
        for node in 0..self.plan.nodes.len() {
            if self.dice.random_bool(0.3) {
                let (then, span) = (self.within(at + SECOND, 6_000_000), self.long(1) / 2);
                self.add(then, What::Drops { node, span });
            }
        }
        // A pod whose clock is ahead folds, and its fold waits until another pod has forgotten the key.
        if self.dice.random_bool(0.8) {
            let (pod, span) = (self.plan.fastest(), 2 * SECOND + self.long(1) / 4);
            self.stop_at_send(pod, at, span);
            self.add(at, What::Fold { pod, name });
            let soon = self.within(at + SECOND / 10, 1_000_000);
            self.add(soon, What::Fold { pod: self.plan.slowest(), name });
        }
        for _ in 0..self.dice.random_range(2..=4) {
            let (pod, then) = (self.pod(), self.within(at, 8_000_000));
            if self.dice.random_bool(0.4) {
                let span = SECOND.mul_f64(8.0 * self.dice.random::<f64>());
                self.stop_at_send(pod, then, span);
            }
            self.add(then, What::Fold { pod, name });
        }
        if self.dice.random_bool(0.6) {
            let then = self.within(at, 10_000_000);
            self.update(then, name);
        }
        if self.plan.resets && self.dice.random_bool(0.3) {
            let (pod, then) = (self.pod(), self.within(at, 10_000_000));
            let is_deletion = self.dice.random_bool(0.5);
            self.add(then, What::Reset { pod, name, is_deletion });
        }
        for _ in 0..3 {
            let (pod, then) = (self.pod(), self.within(at, 20_000_000));
            self.add(then, What::Read { pod, name });
        }
        if self.dice.random_bool(0.5) {
            let (nth, then) = (self.dice.random_range(0..20), self.within(at, 30_000_000));
            self.add(then, What::FoldAgain { nth });
        }
    }

    /// Two keys take turns in one pod, where each may put the other to rest. The clock may be set back between two
    /// turns.
    fn turns(&mut self, at: Duration) {
        let (pod, first) = (self.pod(), self.name());
        let other = (first + 1) % self.plan.names;
        let set_back = self.dice.random_bool(0.3).then(|| self.dice.random_range(1..6));
        let mut then = at;
        for turn in 0..self.dice.random_range(3..=6) {
            if Some(turn) == set_back {
                let behind = OFFSET_MAX.mul_f64(self.dice.random());
                let skew_us = -i64::try_from(behind.as_micros()).expect("short");
                self.add(then, What::SetClock { pod, skew_us });
            }
            self.update_by(pod, then, if turn % 2 == 0 { first } else { other });
            then = self.within(then + Duration::from_millis(10), 60_000);
        }
    }

    /// A pod stops while the first write of a mutator is on its way, and resumes shortly before the end of the lease,
    /// or after the shard is final.
    fn brink(&mut self, at: Duration, name: u8) {
        let (pod, constants) = (self.pod(), self.plan.constants);
        let folder = (pod + 1) % self.plan.pods.len();
        // Without another row there would be nothing to fold.
        self.update_by(folder, at, name);
        self.add(at, What::Kill { pod });
        let mut span = constants.lifetime();
        if self.dice.random_bool(0.5) {
            span -= (OFFSET_MAX / 2).mul_f64(self.dice.random());
            let behind = OFFSET_MAX - SECOND / 2;
            let behind_us = i64::try_from(behind.as_micros()).expect("short");
            self.add(at, What::SetClock { pod, skew_us: -behind_us });
        } else {
            span += constants.cutoff() + constants.fence_quantum();
            span += OFFSET_MAX.mul_f64(1.0 + self.dice.random::<f64>());
        }
        let sent = at + Duration::from_millis(5);
        let held = Some(span - Duration::from_millis(100));
        self.add(sent, What::StopAtSend { pod, span, held });
        self.update_by(pod, sent, name);
        // The folds that were planned before and after the write arrives may be sent in either order.
        let before = sent + span - SECOND / 2;
        if self.dice.random_bool(0.5) {
            self.add(before, What::StopAtSend { pod: folder, span: 2 * SECOND, held: None });
            self.add(sent + span + SECOND / 4, What::Fold { pod, name });
        }
        self.add(before, What::Fold { pod: folder, name });
        self.add(sent + span + SECOND, What::Read { pod: folder, name });
    }

    /// A key is reset while pods update it. Some of them do not look at the log, stop before a send or have a write held by
    /// the network. Sometimes another reset overlaps, the pod dies or nodes miss the marker.
    fn reset(&mut self, at: Duration) {
        let constants = self.plan.constants;
        let (lease, budget) = (constants.reset_lease(), constants.reset_budget());
        let (pod, name) = (self.pod(), self.name());
        let is_deletion = self.dice.random_bool(0.3);
        let early = at.saturating_sub(self.dice_span(lease));
        self.update(early, name);
        for number in 0..self.plan.pods.len() {
            if self.dice.random_bool(0.3) {
                let begun = at.saturating_sub(self.dice_span(lease));
                let span = self.dice_span(3 * lease);
                self.add(begun, What::Deaf { pod: number, span });
            }
        }
        if self.dice.random_bool(0.4) {
            let late = self.pod();
            let then = at.saturating_sub(lease / 4) + self.dice_span(lease);
            let span = self.dice_span(2 * lease);
            let held = self.dice.random_bool(0.5).then(|| span.mul_f64(self.dice.random()));
            self.add(then, What::StopAtSend { pod: late, span, held });
            self.update_by(late, then, name);
        }
        if self.dice.random_bool(0.2) {
            self.half_written(at.saturating_sub(SECOND / 4), name);
        }
        match self.dice.random_bool(0.4) {
            true => self.order(at, pod, name),
            false => self.add(at, What::Reset { pod, name, is_deletion }),
        }
        for _ in 0..self.dice.random_range(1..=4) {
            let then = at + self.dice_span(2 * lease);
            self.update(then, name);
        }
        if self.dice.random_bool(0.25) {
            let (other, then) = (self.pod(), at + self.dice_span(budget));
            self.add(then, What::Reset { pod: other, name, is_deletion: false });
        }
        if self.dice.random_bool(0.1) {
            let then = at + self.dice_span(budget);
            self.add(then, What::Kill { pod });
        }
        if self.dice.random_bool(0.1) {
            let (span, then) = (self.dice_span(budget), at + self.dice_span(lease));
            self.add(then, What::Stop { pod, span });
        }
        if self.dice.random_bool(0.15) {
            self.late_marker(at, pod, name);
        }
        // Without ids, no pod remembers a reset for so long.
        if self.plan.has_ids && self.dice.random_bool(0.3) {
            self.early_clock(at, name);
        }
        if self.dice.random_bool(0.15) {
            self.void_reset(at, pod, name);
        }
        for node in 0..self.plan.nodes.len() {
            if self.dice.random_bool(0.2) {
                let begun = at + self.dice_span(lease);
                let span = self.dice_span(lease);
                self.add(begun, What::Drops { node, span });
            }
        }
        let done = at + budget;
        for _ in 0..3 {
            let (reader, then) = (self.pod(), at + self.dice_span(2 * budget));
            self.add(then, What::Read { pod: reader, name });
        }
        let then = done + self.dice_span(lease);
        self.update(then, name);
        // When the earlier rows are final, and when the reset is forgotten.
        let rows = constants.lifetime() + constants.cutoff() + constants.fence_quantum();
        let memory = constants.reset_memory() + constants.cutoff() + constants.fence_quantum();
        for span in [budget, constants.cutoff(), rows, memory] {
            let then = at + span + self.dice_span(OFFSET_MAX);
            let (folder, reader) = (self.pod(), self.pod());
            self.add(then, What::Fold { pod: folder, name });
            self.add(then + SECOND, What::Read { pod: reader, name });
        }
    }

    /// A pod dies while few nodes have its write. Later reads at a quorum find the row or not.
    fn half_written(&mut self, at: Duration, name: u8) {
        let (pod, kept) = (self.pod(), self.node());
        for node in (0..self.plan.nodes.len()).filter(|node| *node != kept) {
            self.add(at, What::Drops { node, span: SECOND / 8 });
        }
        self.update_by(pod, at, name);
        self.add(at + Duration::from_millis(5), What::Kill { pod });
    }

    /// A reset clears a row of a pod with a longer lifetime. Another pod starts when its own memory of resets would be
    /// over, and takes an update.
    fn longer_row(&mut self, at: Duration) {
        let (constants, name) = (self.plan.constants, self.name());
        self.update_by(1, at, name);
        let begun = at + self.dice_span(2 * SECOND);
        self.add(begun, What::Reset { pod: 0, name, is_deletion: false });
        let late = begun + constants.reset_memory() + SECOND + self.dice_span(10 * SECOND);
        self.add(late, What::Kill { pod: 0 });
        self.update_by(0, late + SECOND / 100, name);
        for _ in 0..2 {
            let (pod, then) = (self.pod(), late + SECOND + self.dice_span(10 * SECOND));
            self.add(then, What::Read { pod, name });
        }
    }

    /// A client orders a reset under an id, and sends it again to any pods: at once, while it runs, and long after it.
    /// Sometimes the pod dies when the marker is sent, or nodes miss it.
    fn order(&mut self, at: Duration, pod: usize, name: u8) {
        let constants = self.plan.constants;
        let (number, budget) = (self.orders, constants.reset_budget());
        self.orders += 1;
        self.add(at, What::Order { pod, name, number });
        for _ in 0..self.dice.random_range(1..=3) {
            let most = [SECOND / 50, constants.reset_lease(), budget, 8 * budget];
            let span = most[self.dice.random_range(0..4)];
            let (other, then) = (self.pod(), at + self.dice_span(span));
            self.add(then, What::Order { pod: other, name, number });
        }
        // Nodes that miss the marker must have what it clears, or no other pod can write it again.
        let marked = at + constants.reset_lease() + self.dice_span(SECOND / 25);
        if self.dice.random_bool(0.4) {
            for node in 0..self.plan.nodes.len() {
                if self.dice.random_bool(0.6) {
                    self.add(marked, What::Drops { node, span: budget });
                }
            }
        }
        if self.dice.random_bool(0.3) {
            let then = marked + self.dice_span(SECOND / 5);
            self.add(then, What::Kill { pod });
        }
    }

    /// The pod that resets a key stops before or after it sends the marker, which arrives when folds of other pods have a
    /// fence above it.
    fn late_marker(&mut self, at: Duration, pod: usize, name: u8) {
        let constants = self.plan.constants;
        // The earlier rows are final.
        let passed =
            constants.lifetime() + constants.cutoff() + constants.fence_quantum() + 2 * OFFSET_MAX;
        let sent = at + constants.reset_lease() * 9 / 10;
        let span = passed + 2 * SECOND;
        let held = self.dice.random_bool(0.5).then(|| span - SECOND);
        self.add(sent, What::StopAtSend { pod, span, held });
        let folder = (pod + 1) % self.plan.pods.len();
        self.add(at + passed, What::Fold { pod: folder, name });
    }

    /// Another reset is logged while the first one runs, and its pod stands still until its time is over.
    fn void_reset(&mut self, at: Duration, pod: usize, name: u8) {
        let constants = self.plan.constants;
        let other = (pod + 1) % self.plan.pods.len();
        let then = at + self.dice_span(constants.reset_lease());
        self.add(then, What::Reset { pod: other, name, is_deletion: false });
        let logged = then + SECOND.mul_f64(0.05 + 0.4 * self.dice.random::<f64>());
        self.add(logged, What::Stop { pod: other, span: 2 * constants.reset_budget() });
    }

    /// A pod whose clock is ahead logs a reset at one node, and dies. Another pod finds it there, and updates the key. Then
    /// a pod whose clock is behind resets the key, and may not find it.
    fn half_logged(&mut self, at: Duration) {
        let (pods, name) = (self.plan.pods.len(), self.name());
        let pod = self.pod();
        let (ahead, finder) = ((pod + 1) % pods, (pod + pods - 1) % pods);
        let most_us = i64::try_from((OFFSET_MAX - SECOND / 2).as_micros()).expect("short");
        let at = at + 2 * SECOND;
        self.update_by(finder, at - SECOND, name);
        for (pod, skew_us) in [(ahead, most_us), (pod, -most_us)] {
            self.add(at - 2 * SECOND, What::SetClock { pod, skew_us });
            self.add(at + 20 * SECOND, What::SetClock { pod, skew_us: 0 });
        }
        for node in 1..self.plan.nodes.len() {
            self.add(at, What::Drops { node, span: SECOND * 7 / 10 });
        }
        self.add(at, What::Reset { pod: ahead, name, is_deletion: false });
        self.add(at + SECOND / 2, What::Kill { pod: ahead });
        for _ in 0..2 {
            let then = at + SECOND * 3 / 2 + self.dice_span(SECOND);
            self.update_by(finder, then, name);
        }
        let then = at + 3 * SECOND + self.dice_span(SECOND);
        self.add(then, What::Reset { pod, name, is_deletion: false });
        let budget = self.plan.constants.reset_budget();
        for _ in 0..2 {
            let then = at + 4 * SECOND + budget + self.dice_span(OFFSET_MAX);
            let reader = self.pod();
            self.add(then, What::Read { pod: reader, name });
        }
    }

    /// The clock of a pod is so far ahead that it would forget a reset, and right again when looks no longer show it.
    fn early_clock(&mut self, at: Duration, name: u8) {
        // Looks reach back two minutes. Forgetting comes every ten seconds.
        let back = at + 122 * SECOND + self.dice_span(OFFSET_MAX);
        let (pod, then) = (self.pod(), back - 12 * SECOND);
        let skew_us = micros(self.plan.constants.reset_memory());
        self.add(then, What::SetClock { pod, skew_us });
        self.add(back, What::SetClock { pod, skew_us: 0 });
        let soon = back + SECOND / 2 + self.dice_span(2 * SECOND);
        self.update_by(pod, soon, name);
    }

    fn dice_span(&mut self, most: Duration) -> Duration {
        most.mul_f64(self.dice.random())
    }

    /// Ops with ids are sent again: at once, within their window, and when a fold may have taken them.
    fn repeats(&mut self) {
        let of_update = |step: &Step| match step.what {
            What::Update { name, op, .. } if self.plan.has_id(op) => Some((step.at, name, op)),
            _ => None,
        };
        let updates: Vec<_> = self.steps.iter().filter_map(of_update).collect();
        let window = self.plan.window().length();
        for (at, name, op) in updates {
            for _ in 0..self.dice.random_range(0..=3) {
                let pod = self.pod();
                let version = match self.plan.is_total(op) {
                    true => self.dice.random_range(0..self.plan.versions(op).len()),
                    false => usize::from(self.dice.random_bool(0.1)),
                };
                let version = version.min(self.plan.versions(op).len() - 1);
                let then = match self.dice.random_range(0..4) {
                    0 => self.soon(at),
                    1 => at + self.long(2),
                    2 => at + (2 * window).mul_f64(self.dice.random()),
                    _ => {
                        let done =
                            at + self.plan.until_final() + self.plan.constants.fence_quantum();
                        let pod = self.pod();
                        self.add(done, What::Fold { pod, name });
                        self.add(done + SECOND, What::Read { pod, name });
                        self.soon(done)
                    }
                };
                self.add(then, What::Repeat { pod, name, op, version });
            }
        }
    }

    /// A client made an id long ago, and sends its op shortly before the window ends. The network holds the write of the
    /// pack until its expiry is folded.
    fn late_id(&mut self) {
        let (constants, window) = (self.plan.constants, self.plan.window());
        let names = 0..self.plan.names;
        let name = names.min_by_key(|&name| self.ops[usize::from(name)]).expect("a name");
        let pod = self.pod();
        let folder = (pod + 1) % self.plan.pods.len();
        let begun = self.dice.random_range(0..micros(2 * window.length()));
        let made = Timestamp::from_micros(EPOCH_US + begun).minus(window.length());
        let group = self.plan.family.key(name).group;
        // By the clock of the pod, which is started again and so has the offset of the plan.
        let by_pod = window.expires_at(made, &group).minus(constants.id_drain_margin());
        let sent_us = by_pod.as_micros() - self.plan.pods[pod].skew_us - EPOCH_US;
        let early = SECOND.mul_f64(self.dice.random());
        let Some(at) = u64::try_from(sent_us).ok().map(Duration::from_micros) else { return };
        let at = at.saturating_sub(early);
        let mut span = constants.lifetime() + constants.cutoff() + constants.fence_quantum();
        span += OFFSET_MAX.mul_f64(1.0 + self.dice.random::<f64>());
        // Without another row there would be nothing to fold.
        if self.plan.has_id(self.ops[usize::from(name)]) {
            self.update_by(folder, at, name);
        }
        self.update_by(folder, at, name);
        let sent = at + Duration::from_millis(5);
        self.add(at, What::Kill { pod });
        let held = Some(span - Duration::from_millis(100));
        self.add(sent, What::StopAtSend { pod, span, held });
        self.update_with(pod, sent, name, Some(made));
        self.add(sent + span - SECOND / 2, What::Fold { pod: folder, name });
        self.add(sent + span + SECOND, What::Read { pod: folder, name });
    }

    fn stop_at_send(&mut self, pod: usize, at: Duration, span: Duration) {
        let is_held = self.dice.random_bool(0.5);
        let held = is_held.then(|| span.mul_f64(self.dice.random()));
        self.add(at, What::StopAtSend { pod, span, held });
    }

    fn update(&mut self, at: Duration, name: u8) {
        let pod = self.pod();
        self.update_by(pod, at, name);
    }

    fn update_by(&mut self, pod: usize, at: Duration, name: u8) {
        self.update_with(pod, at, name, None);
    }

    fn update_with(&mut self, pod: usize, at: Duration, name: u8, made: Option<Timestamp>) {
        let op = self.ops[usize::from(name)];
        if op == self.ops_max {
            return;
        }
        self.ops[usize::from(name)] += 1;
        let in_memory = self.dice.random_bool(0.04);
        let is_gone = self.dice.random_bool(0.04);
        let gone_after = is_gone.then(|| Duration::from_millis(self.dice.random_range(0..100)));
        self.add(at, What::Update { pod, name, op, in_memory, gone_after, made });
    }

    fn add(&mut self, at: Duration, what: What) {
        self.steps.push(Step { at, what });
    }

    /// A moment later, often a very short one.
    fn soon(&mut self, at: Duration) -> Duration {
        let most_us = [2_000, 10_000, 1_000_000][self.dice.random_range(0..3)];
        self.within(at, most_us)
    }

    fn within(&mut self, at: Duration, most_us: u64) -> Duration {
        at + Duration::from_micros(self.dice.random_range(0..most_us))
    }

    /// Up to this many halves of the time from a mutator's birth until its shard is final.
    fn long(&mut self, halves: u32) -> Duration {
        let most = (self.plan.constants.lifetime() + self.plan.constants.cutoff()) * halves / 2;
        most.mul_f64(self.dice.random())
    }

    fn pod(&mut self) -> usize {
        self.dice.random_range(0..self.plan.pods.len())
    }

    fn name(&mut self) -> u8 {
        self.dice.random_range(0..self.plan.names)
    }

    fn node(&mut self) -> usize {
        self.dice.random_range(0..self.plan.nodes.len())
    }
}
