//! The check: every key is read from every pod, before and after folds.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::stream::{self, StreamExt};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::checker::{Fault, Verdict};
use crate::client::PodClient;
use crate::run::Run;
use crate::soak::figures::Rows;
use crate::soak::state::Soak;
use crate::workload::Key;

/// Keys that are read or folded at the same time.
const KEYS_AT_ONCE: usize = 16;
/// How long a failed read or fold is tried again. A store that lost a node may need some time to
/// recover. A value that was read is never read again in the hope of a better one.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two tries.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Number of keys that may fail for this long. After that, the rest of a pass is not tried.
const FAILURES_MAX: usize = 100;
/// Findings that are kept with their numbers.
const FINDINGS_MAX: usize = 20;

/// The result of reading everything once.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Pass {
    /// What happened before it, such as a fold.
    pub name: String,
    /// Keys whose value is right at every pod.
    pub right: usize,
    /// Keys within their bounds that have too many unknown updates to say more.
    pub undecided: usize,
    /// Keys within their upper bound that have a reset without an answer.
    pub in_doubt: usize,
    /// Keys with a wrong value.
    pub wrong: usize,
    /// Keys that could not be read from some pod.
    pub unread: usize,
    /// Acknowledged updates of the right keys.
    pub proved: u64,
    /// Right keys whose values differ between pods, because an unknown update is still in doubt.
    pub unsettled: usize,
    /// The first wrong and unread keys.
    pub findings: Vec<Finding>,
}

/// A key that is not right.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    /// Group and name.
    pub key: String,
    /// What is wrong, or `None` if the key could not be read.
    pub fault: Option<Fault>,
    /// The least right value: the base plus the acknowledged sum, less what resets returned.
    pub acked: String,
    /// The part of the value that unknown updates do not explain.
    pub difference: Option<String>,
    /// The answer of each pod, in their order: a value or an error.
    pub answers: Vec<String>,
}

/// The result of folding every key once.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Folds {
    /// Whether all shards should be final.
    pub settled: bool,
    /// Keys that were folded.
    pub done: usize,
    /// Folded keys that still have shards, because these are not final.
    pub unfinished: usize,
    /// Keys that could not be folded.
    pub failed: usize,
    /// The first errors.
    pub errors: Vec<String>,
}

/// Reads every key from every pod at this consistency level and judges the values. With `settled`, all
/// shards are folded and the pods must agree.
pub(crate) async fn read_everything(
    run: &Run,
    name: &str,
    consistency: &str,
    settled: bool,
) -> Pass {
    let keys = run.workload.keys();
    let mut pass = Pass { name: name.to_owned(), ..Pass::default() };
    for (index, answers) in read_all(run, keys, consistency).await {
        pass.record(run, index, &keys[index], &answers, settled);
    }
    pass
}

impl Pass {
    fn record(
        &mut self,
        run: &Run,
        index: usize,
        key: &Key,
        answers: &[Result<i128, String>],
        settled: bool,
    ) {
        // Most values are equal, and to judge one may take a search.
        let values: BTreeSet<i128> = answers.iter().flatten().copied().collect();
        let values: Vec<i128> = values.into_iter().collect();
        let ledger = run.ledger(index);
        let verdict = ledger.judge_all(&values, settled);
        let (acked, acked_count) = (ledger.acked_value(), ledger.acked_count());
        let is_resetting = ledger.is_resetting();
        drop(ledger);

        let wrong = match verdict {
            Verdict::Wrong(wrong) => Some(wrong),
            Verdict::Right | Verdict::Undecided => None,
        };
        match verdict {
            Verdict::Wrong(_) => self.wrong += 1,
            _ if answers.iter().any(Result::is_err) => self.unread += 1,
            Verdict::Undecided if is_resetting => self.in_doubt += 1,
            Verdict::Undecided => self.undecided += 1,
            Verdict::Right => {
                self.right += 1;
                self.proved += acked_count;
                self.unsettled += usize::from(values.len() > 1);
            }
        }
        let is_finding = wrong.is_some() || answers.iter().any(Result::is_err);
        if is_finding && self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding {
                key: format!("{}/{}", key.group, key.name),
                fault: wrong.map(|wrong| wrong.fault),
                acked: acked.to_string(),
                difference: wrong.map(|wrong| wrong.difference.to_string()),
                answers: answers.iter().map(shown).collect(),
            });
        }
    }

    /// The number of keys of the pass.
    pub(crate) fn keys(&self) -> usize {
        self.right + self.undecided + self.in_doubt + self.wrong + self.unread
    }
}

fn shown(answer: &Result<i128, String>) -> String {
    match answer {
        Ok(value) => value.to_string(),
        Err(error) => error.clone(),
    }
}

impl Folds {
    /// Whether every shard of every key is in its tally now.
    pub(crate) fn are_complete(&self) -> bool {
        self.failed == 0 && self.unfinished == 0
    }
}

/// Counts the rows of all ordinary keys. A key that cannot be read is left out.
pub(crate) async fn count_rows(run: &Run) -> Rows {
    let failures = AtomicUsize::new(0);
    let keys = run.workload.keys().iter().enumerate();
    let counts = stream::iter(keys)
        .map(|(index, key)| {
            let pod = &run.pods[index % run.pods.len()];
            patiently(&failures, move || pod.rows(key))
        })
        .buffer_unordered(KEYS_AT_ONCE);
    let mut rows = Rows::default();
    for count in counts.collect::<Vec<_>>().await.into_iter().flatten() {
        rows.keys += 1;
        rows.total += count;
        rows.most = rows.most.max(count);
    }
    rows
}

/// Reads keys from every pod. Returns the index of each key and the answers of all pods.
pub(crate) async fn read_all(
    run: &Run,
    keys: &[Key],
    consistency: &str,
) -> Vec<(usize, Vec<Result<i128, String>>)> {
    let failures = AtomicUsize::new(0);
    let reads = stream::iter(keys.iter().enumerate())
        .map(|(index, key)| {
            let failures = &failures;
            async move { (index, read_from_all(run, key, consistency, failures).await) }
        })
        .buffer_unordered(KEYS_AT_ONCE);
    reads.collect().await
}

/// Folds every key once, audited keys included. The pods take turns.
pub(crate) async fn fold_everything(run: &Run, settled: bool) -> Folds {
    let mut folds = Folds { settled, ..Folds::default() };
    let failures = AtomicUsize::new(0);
    let audited = run.soak.as_ref().map(Soak::audited_keys).unwrap_or_default();
    let keys = run.workload.keys().iter().chain(&audited).enumerate();
    let mut results = stream::iter(keys)
        .map(|(index, key)| {
            let pod = &run.pods[index % run.pods.len()];
            patiently(&failures, move || pod.fold(key))
        })
        .buffer_unordered(KEYS_AT_ONCE);
    while let Some(result) = results.next().await {
        match result {
            Ok(kept) => {
                folds.done += 1;
                folds.unfinished += usize::from(kept > 0);
            }
            Err(error) => {
                folds.failed += 1;
                if folds.errors.len() < FINDINGS_MAX {
                    folds.errors.push(error);
                }
            }
        }
    }
    folds
}

/// Reads the values of all keys before the load.
pub(crate) async fn read_bases(
    pod: &PodClient,
    keys: &[Key],
    consistency: &str,
) -> anyhow::Result<Vec<i128>> {
    let failures = AtomicUsize::new(0);
    let reads =
        stream::iter(keys).map(|key| read(pod, key, consistency, &failures)).buffered(KEYS_AT_ONCE);
    let values: Vec<Result<i128, String>> = reads.collect().await;
    values.into_iter().collect::<Result<_, _>>().map_err(anyhow::Error::msg)
}

async fn read_from_all(
    run: &Run,
    key: &Key,
    consistency: &str,
    failures: &AtomicUsize,
) -> Vec<Result<i128, String>> {
    let mut answers = Vec::with_capacity(run.pods.len());
    for pod in &run.pods {
        answers.push(read(pod, key, consistency, failures).await);
    }
    answers
}

async fn read(
    pod: &PodClient,
    key: &Key,
    consistency: &str,
    failures: &AtomicUsize,
) -> Result<i128, String> {
    let value = patiently(failures, || pod.value(key, consistency)).await?;
    // A key is absent before its first update. Its value is zero then.
    Ok(value.unwrap_or(0))
}

/// Tries until it works, or until it has failed for [`PATIENCE`].
async fn patiently<T, F: Future<Output = anyhow::Result<T>>>(
    failures: &AtomicUsize,
    attempt: impl Fn() -> F,
) -> Result<T, String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if failures.load(Ordering::Relaxed) >= FAILURES_MAX {
            return Err(format!("not tried, after {FAILURES_MAX} failures"));
        }
        match attempt().await {
            Ok(result) => return Ok(result),
            Err(_) if Instant::now() < deadline => sleep(RETRY_PAUSE).await,
            Err(error) => {
                failures.fetch_add(1, Ordering::Relaxed);
                return Err(format!("{error:#}"));
            }
        }
    }
}
