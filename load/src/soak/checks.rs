//! What a soak reads from pods and nodes: metrics, audited keys, rows and tombstones.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;

use crate::run::Run;
use crate::soak::faults::ask;
use crate::soak::state::Soak;
use crate::verify;

/// Time between two readings of the metrics of a pod.
const SCRAPE_EVERY: Duration = Duration::from_secs(2);

/// Reads the metrics of all pods until the load stops. The last figures of a killed pod are up to
/// two seconds old.
pub(crate) async fn scrape(run: &Run, soak: &Soak) {
    while !run.stop.is_cancelled() {
        tokio::select! {
            biased;
            () = run.stop.cancelled() => return,
            () = scrape_once(run, soak) => {}
        }
        sleep(SCRAPE_EVERY).await;
    }
}

/// Reads the metrics of all pods now. A pod that does not answer keeps its last figures.
pub(crate) async fn scrape_once(run: &Run, soak: &Soak) {
    for (number, pod) in run.pods.iter().enumerate() {
        if soak.ready[number].load(Ordering::Relaxed)
            && let Ok(text) = pod.metrics().await
        {
            soak.figures().pods[number].scrape(&text);
        }
    }
}

/// Reads every audited key from every pod at this consistency level and records what is wrong. With
/// `settled`, all shards are folded and the pods must agree.
pub(crate) async fn check_audited_keys(run: &Run, soak: &Soak, consistency: &str, settled: bool) {
    for audited in &soak.audited {
        let answers = verify::read_all(run, &audited.keys(), consistency).await;
        let mut figures = soak.figures();
        figures.audited_reads += answers.len();
        for (index, values) in answers {
            let known = audited.known(index);
            for value in values.iter().flatten() {
                figures.wrongs.merge(audited.judge(index, *value, &known, &known));
            }
            figures.audited_unread += values.iter().filter(|value| value.is_err()).count();
            if settled && values.iter().flatten().min() != values.iter().flatten().max() {
                figures.wrongs.merge(audited.differ(index));
            }
        }
    }
}

/// Counts the rows of the ordinary keys, after the load or at the end.
pub(crate) async fn count_rows(run: &Run, soak: &Soak, at_end: bool) {
    let rows = verify::count_rows(run).await;
    let mut figures = soak.figures();
    if at_end { figures.rows_after = rows } else { figures.rows_before = rows }
}

/// Records the tombstones that recent reads of the nodes met.
pub(crate) async fn count_tombstones(soak: &Soak, script: &Path) -> anyhow::Result<()> {
    let lines = ask(script, "tombstones").await?;
    soak.figures().tombstones = lines;
    Ok(())
}
