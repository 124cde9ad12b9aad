//! Updates with ids. A client repeats such an update to random pods until it is acknowledged, and one in
//! ten also afterwards: at once, and again at a random time until the update's window is over for certain.
//!
//! So no outcome is unknown at the end, and every value must be the sum of the distinct ids. Only an
//! update that no pod acknowledged within its window keeps another outcome. It bounds the value of its key
//! like an update without an id, and fails the run.

use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;
use tokio::time::{Instant, sleep};

use crate::checker::Outcome;
use crate::client::{Add, Reply};
use crate::ids::Repeat;
use crate::run::Run;
use crate::workload::Window;

/// Tasks that repeat acknowledged updates. A paused pod holds up each of them for the time limit of a request.
pub(crate) const REPEATERS: usize = 8;
/// Time between two looks for repeats that are due.
const DUE_POLL: Duration = Duration::from_millis(50);
/// The first pause before a repeat. Each pause is twice as long as the one before.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// The longest pause before a repeat.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long updates are repeated after the end of the load, when all faults are being undone.
const AFTER_STOP_MAX: Duration = Duration::from_secs(120);

/// Repeats the updates that were not acknowledged by `replies`, until they are or their window is over. An update without an id
/// is repeated only if it was refused. Returns what became of each.
pub(crate) async fn insist(
    run: &Run,
    window: Window,
    ops: &[Add<'_>],
    mut replies: Vec<Reply>,
    rng: &mut SmallRng,
) -> Vec<Reply> {
    let may_count = |reply: &Reply| reply.outcome == Outcome::Unknown && !reply.has_expired();
    let mut in_doubt: Vec<bool> = replies.iter().map(may_count).collect();
    let (begun, mut stopped, mut pause) = (Instant::now(), None, PAUSE_MIN);
    loop {
        let is_open = |index: &usize| match ops[*index].id {
            Some(_) => is_open(&replies[*index]),
            None => replies[*index].outcome == Outcome::Refused,
        };
        let open: Vec<usize> = (0..ops.len()).filter(is_open).collect();
        if run.stop.is_cancelled() {
            stopped.get_or_insert_with(Instant::now);
        }
        let is_over = begun.elapsed() > window.longest()
            || stopped.is_some_and(|stopped| stopped.elapsed() > AFTER_STOP_MAX);
        if open.is_empty() || is_over {
            break;
        }
        sleep(pause).await;
        pause = (2 * pause).min(PAUSE_MAX);
        let again: Vec<Add<'_>> = open.iter().map(|index| ops[*index]).collect();
        let count = again.iter().filter(|op| op.id.is_some()).count() as u64;
        {
            let mut figures = run.ids.figures();
            figures.sent += count;
            figures.repeats += count;
        }
        let pod = &run.pods[rng.random_range(0..run.pods.len())];
        for (index, reply) in open.into_iter().zip(pod.add(window, &again).await) {
            in_doubt[index] |= may_count(&reply);
            replies[index] = reply;
        }
    }
    for ((op, reply), in_doubt) in ops.iter().zip(&mut replies).zip(in_doubt) {
        if reply.outcome == Outcome::Acked {
            run.ids.plan(window, op, rng);
            if let (Some(resets), Some(repeat)) = (&run.resets, Repeat::now(window, op)) {
                resets.note_acked(repeat);
            }
            continue;
        }
        reply.outcome = if in_doubt { Outcome::Unknown } else { Outcome::Refused };
        if op.id.is_none() {
            continue;
        }
        let mut figures = run.ids.figures();
        figures.expired += u64::from(reply.has_expired());
        figures.conflicts += u64::from(reply.is_conflict());
        match in_doubt {
            true => figures.unknown += 1,
            false => figures.refused += 1,
        }
    }
    replies
}

/// Whether the update can still be acknowledged.
fn is_open(reply: &Reply) -> bool {
    reply.outcome != Outcome::Acked && !reply.has_expired() && !reply.is_conflict()
}

/// Repeats acknowledged updates when they are due, until the load stops.
pub(crate) async fn repeat_acked(run: &Run, mut rng: SmallRng) {
    while !run.stop.is_cancelled() {
        let due = run.ids.take_due();
        let Some(window) = due.first().map(|repeat| repeat.window) else {
            sleep(DUE_POLL).await;
            continue;
        };
        let ops: Vec<Add<'_>> = due
            .iter()
            .map(|Repeat { key, weight, id, .. }| Add { key, weight: *weight, id: Some(*id) })
            .collect();
        let pod = &run.pods[rng.random_range(0..run.pods.len())];
        let are_reset = run.resets.as_ref().map_or(0, |resets| resets.reset_since_ack(&due));
        let replies = pod.add(window, &ops).await;
        let mut figures = run.ids.figures();
        figures.sent += replies.len() as u64;
        figures.repeats_after_ack += replies.len() as u64;
        figures.repeats_after_reset += are_reset;
        for reply in replies {
            figures.expired_after_ack += u64::from(reply.has_expired());
            figures.conflicts += u64::from(reply.is_conflict());
        }
    }
}
