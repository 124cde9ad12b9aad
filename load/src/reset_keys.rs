//! Resets and deletions of keys under load. A client repeats such a request, with its id and to random pods, until one
//! says what became of it. `resets` keeps what is known of them.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::client::{PodClient, ResetReply};
use crate::ids::{Repeat, uuid_v7};
use crate::resets::Resets;
use crate::run::Run;
use crate::workload::Key;

/// How long a reset is repeated. Faults of nodes are over by then.
const PATIENCE: Duration = Duration::from_secs(120);
/// Pause before a reset with an unknown outcome is sent again. It doubles each time, so that resets that wait for a node
/// that is down do not add to the load of the others.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(8);
/// Keys that are drawn until one is found that is not being reset.
const DRAWS_MAX: usize = 20;

/// Resets a key in use at each interval, until the load stops and every reset has an answer.
pub(crate) async fn reset_keys(run: &Arc<Run>, mut rng: SmallRng) {
    let Some(resets) = &run.resets else { return };
    let mut ticks = interval(resets.every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = run.stop.cancelled() => break,
            _ = ticks.tick() => {}
        }
        while let Some(ended) = tasks.try_join_next() {
            ended.expect("invariant: no reset panics");
        }
        let (run, rng) = (Arc::clone(run), SmallRng::from_rng(&mut rng));
        tasks.spawn(async move {
            if let Some(resets) = &run.resets {
                reset_one(&run, resets, rng).await;
            }
        });
    }
    tasks.join_all().await;
}

/// Resets a random key, or deletes it.
async fn reset_one(run: &Run, resets: &Resets, mut rng: SmallRng) {
    let drawn = (0..DRAWS_MAX).find_map(|_| {
        let index = run.workload.draw_in_use(run.elapsed(), &mut rng);
        let known = run.ledger(index).begin_reset()?;
        Some((index, known))
    });
    // So many keys are being reset that one more would prove nothing new.
    let Some((index, known)) = drawn else { return };
    let key = &run.workload.keys()[index];
    let acked = resets.keys().get(key).and_then(|times| times.acked.clone());
    let is_deletion = rng.random_bool(0.5);
    let begun = Instant::now();
    let end = insist(run, resets, key, is_deletion, &mut rng).await;
    let took_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    let mut figures = resets.figures();
    figures.report.ordered += 1;
    figures.report.deletions += u64::from(is_deletion);
    let cleared = match end {
        ResetReply::Done(cleared) => {
            figures.report.done += 1;
            cleared
        }
        ResetReply::Absent => {
            figures.report.absent += 1;
            0
        }
        ResetReply::Refused(_) => {
            figures.report.refused += 1;
            run.ledger(index).refuse_reset();
            return;
        }
        ResetReply::Running | ResetReply::Unknown(_) => {
            figures.report.unknown += 1;
            return;
        }
    };
    figures.latency.saturating_record(took_us);
    drop(figures);
    let judged = run.ledger(index).finish_reset(&known, cleared);
    if let Err(right) = judged {
        let Key { group, name, .. } = key;
        let (least, greatest) = right.into_inner();
        run.sight(format!(
            "a reset of {group}/{name} returned {cleared} while it had to lie between {least} and {greatest}"
        ));
    }
    resets.keys().entry(key.clone()).or_default().answered = Some(Instant::now());
    if let Some(acked) = acked {
        run.ids.repeat(Repeat { due: Instant::now(), ..acked });
    }
}

/// Sends a reset to random pods until one says what became of it.
async fn insist(
    run: &Run,
    resets: &Resets,
    key: &Key,
    is_deletion: bool,
    rng: &mut SmallRng,
) -> ResetReply {
    let (id, begun, mut is_in_doubt) = (uuid_v7(rng), Instant::now(), false);
    let mut pause = RETRY_PAUSE;
    loop {
        let reply = pod(run, rng).reset(key, id, is_deletion).await;
        let reason = match &reply {
            ResetReply::Done(_) | ResetReply::Absent => None,
            ResetReply::Running => Some("running"),
            ResetReply::Refused(why) | ResetReply::Unknown(why) => Some(why.as_str()),
        };
        resets.record_request(reason);
        if reason.is_none() {
            return reply;
        }
        is_in_doubt |= !matches!(reply, ResetReply::Refused(_));
        if begun.elapsed() > PATIENCE {
            let last = format!("{reply:?}");
            return if is_in_doubt { ResetReply::Unknown(last) } else { reply };
        }
        if reply != ResetReply::Running {
            sleep(pause.mul_f64(rng.random_range(0.5..1.5))).await;
            pause = (2 * pause).min(RETRY_PAUSE_MAX);
        }
    }
}

/// A random pod. In a soak it is one that is ready, if there is one.
fn pod<'a>(run: &'a Run, rng: &mut SmallRng) -> &'a PodClient {
    let is_ready = |pod: &usize| run.soak.as_ref().is_none_or(|soak| soak.is_ready(*pod));
    let ready: Vec<usize> = (0..run.pods.len()).filter(is_ready).collect();
    let any = rng.random_range(0..run.pods.len());
    &run.pods[ready.choose(rng).copied().unwrap_or(any)]
}
