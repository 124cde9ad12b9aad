//! Ten times the load that a pod can do. It sheds the rest, stays correct in bounded memory, and is soon as fast as
//! before.
//!
//! `OVERLOAD_SECONDS` makes the load longer, and `make overload` sets it for a release build.
//! `OVERLOAD_CASSANDRA=HOST:PORT,…` makes the pod use these nodes instead of the embedded store. Their keyspace must exist.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::machine;
use crate::pod::{MIB, Pod, Setup, cpu_of, memory_of, token};
use crate::pressure::{GROUP, Mix, Pressure, Tally};

/// Statuses of answers under overload.
const ALLOWED: [u16; 3] = [200, 429, 503];

/// Sockets of the load.
const SOCKETS: usize = 4_000;

/// Fewer sockets, so that the other requests wait in the system's queue.
const CONNECTIONS_MAX: usize = 3_000;

/// Memory of a pod under a load of small requests.
const MEMORY: usize = 512 * MIB;

/// Maximum memory of a pod: the manifests in `k8s/` allow it for this number of connections.
const MEMORY_MAX: usize = 896 * MIB;

/// The least share of a pod's CPU time that goes into updates that are done, calculated from the CPU time per update
/// before. (With small updates it can be more than 1, because more of them are written together.)
const USEFUL_SHARE: f64 = 0.28;

/// The least share of the updates that a pod can do that is done under overload, unless the pod is fully busy: the load
/// takes CPU time too, even for requests that are shed.
const DONE_SHARE: f64 = 0.25;

/// A pod is fully busy from this share of its CPU use at capacity.
const BUSY_SHARE: f64 = 0.6;

/// The load, as a multiple of the pod's capacity.
const TIMES: f64 = 10.0;

/// The least load that must be sent. If each socket waits for its answer, the pod gets no more than it answers.
/// Batches are refused at once, so all of them are sent.
const fn least_sent(mix: Mix) -> f64 {
    match mix {
        Mix::Usual => 0.8,
        Mix::Batches => 4.0,
    }
}

/// Measurements of which one must be right.
const MEASUREMENTS_MAX: usize = 3;

const CALIBRATE: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_secs(2);
const BACK_WITHIN: Duration = Duration::from_secs(30);

/// A p99 below this is fast on a machine that has other work too.
const FAST: Duration = Duration::from_millis(15);

fn load_span() -> Duration {
    let seconds = std::env::var("OVERLOAD_SECONDS").ok().map(|text| text.parse());
    Duration::from_secs(seconds.map_or(15, |seconds| seconds.expect("a number of seconds")))
}

/// Measures a pod's memory until it is dropped.
struct Highest {
    bytes: Arc<AtomicUsize>,
    enough: Arc<AtomicBool>,
}

impl Highest {
    fn of(process: u32) -> Highest {
        let (bytes, enough) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let highest = Highest { bytes: Arc::clone(&bytes), enough: Arc::clone(&enough) };
        tokio::spawn(async move {
            while !enough.load(Ordering::Relaxed) {
                bytes.fetch_max(memory_of(process), Ordering::Relaxed);
                sleep(Duration::from_millis(50)).await;
            }
        });
        highest
    }

    fn end(self) -> usize {
        self.enough.store(true, Ordering::Relaxed);
        self.bytes.load(Ordering::Relaxed)
    }
}

/// The total of all keys of the load.
async fn total(pod: &Pod, bearer: &str) -> u64 {
    let path = format!("{GROUP}?limit=10000");
    let answer = pod.ask("GET", &path, &[("authorization", bearer)], "").await;
    let items = answer.json()["keys"].as_array().cloned();
    let items = items.unwrap_or_else(|| panic!("{}", answer.text()));
    items.iter().map(|item| item["value"].as_u64().expect("a number")).sum()
}

fn shown(what: &str, tally: &mut Tally, span: Duration) {
    println!(
        "{what}: {:.0} answers/s, p50 {:?}, p99 {:?}, max {:?}, statuses {:?} and within batches {:?}, acked {}, unknown {}, resets {:?}, \
         unanswered {}, not connected {}, dropped {}",
        tally.answers() as f64 / span.as_secs_f64(),
        tally.percentile(50),
        tally.percentile(99),
        tally.percentile(100),
        tally.statuses,
        tally.within,
        tally.acked,
        tally.unknown,
        tally.resets,
        tally.unanswered,
        tally.not_connected,
        tally.dropped
    );
}

struct Overload {
    mix: Mix,
    /// The rate of the token, if it has one.
    rate: Option<u32>,
    connections_max: usize,
    memory: usize,
}

/// Measures until the figures that depend on the machine's speed are right, because it may do something else meanwhile.
/// Everything else must be right each time.
async fn overload(overload: Overload) -> Tally {
    let _alone = machine::alone().await;
    let mut slow = Vec::new();
    for _ in 0..MEASUREMENTS_MAX {
        let load;
        (load, slow) = measure(&overload).await;
        if slow.is_empty() {
            return load;
        }
        println!("again: {slow:#?}");
    }
    panic!("{slow:#?}");
}

/// Returns which figures are wrong that depend on the machine's speed.
async fn measure(overload: &Overload) -> (Tally, Vec<String>) {
    let Overload { mix, rate, connections_max, memory } = *overload;
    machine::allow_files(SOCKETS as u64 + 1_000);
    let all: &[(&str, &[&str])] = &[("", &["read", "write"])];
    let (loaded, lines) =
        token("loaded", all, &rate.map_or(String::new(), |rate| format!("rate = {rate}")));
    let (quiet, more) = token("quiet", all, "");
    let setup = match std::env::var("OVERLOAD_CASSANDRA") {
        Ok(nodes) => Setup::without_store().arg("--cassandra", nodes),
        Err(_) => Setup::new(),
    };
    let setup = setup.policy(&(lines + &more)).arg("--connections-max", connections_max);
    let pod = setup.start().await;
    let (loaded, quiet) = (crate::wire::bearer(&loaded), crate::wire::bearer(&quiet));
    let calm = Pressure::on(pod.port(), &quiet, Mix::Usual);
    let pressure = Pressure::on(pod.port(), &loaded, mix);

    let earlier = total(&pod, &quiet).await;
    let taken = || cpu_of(pod.process());
    let idle = taken();
    let mut first =
        Pressure::on(pod.port(), &quiet, mix).closed(64, Duration::ZERO, CALIBRATE).await;
    let calibrated = taken();
    assert!(first.acked > 0, "nothing was counted before the overload");
    #[allow(clippy::cast_precision_loss, reason = "a count of some thousands")]
    let per_second = |count: u64, span: Duration| count as f64 / span.as_secs_f64();
    let capacity = per_second(first.answers(), CALIBRATE);
    shown("calibration", &mut first, CALIBRATE);
    let mut before = calm.closed(8, Duration::from_millis(10), LOOK).await;
    shown("before", &mut before, LOOK);
    let allowed = (3 * before.percentile(99)).max(FAST);

    let (span, highest) = (load_span(), Highest::of(pod.process()));
    let begun = taken();
    let mut load = pressure.open(SOCKETS, TIMES * capacity, span).await;
    let (ended, loaded_time) = (Instant::now(), taken() - begun);
    shown("overload", &mut load, span);
    println!("answered {:.1} times what it can do", per_second(load.answers(), span) / capacity);
    #[allow(clippy::cast_precision_loss, reason = "a count of some millions")]
    let useful =
        (calibrated - idle).div_duration_f64(loaded_time) * load.acked as f64 / first.acked as f64;
    let busy = loaded_time.div_duration_f64(span) / (calibrated - idle).div_duration_f64(CALIBRATE);
    println!(
        "busy for {loaded_time:?}, {busy:.2} times as much as before, {useful:.2} of it for what it did"
    );
    let mut after;
    let mut looks = Tally::default();
    loop {
        after = calm.closed(8, Duration::from_millis(10), LOOK).await;
        looks.acked += after.acked;
        looks.unknown += after.unknown;
        if after.percentile(99) <= allowed || ended.elapsed() > BACK_WITHIN {
            break;
        }
    }
    let (took, most) = (ended.elapsed(), highest.end());
    shown("after", &mut after, LOOK);
    println!("back after {took:?}; most memory {} MiB", most / MIB);

    let known: u64 = [&first, &before, &load, &looks].iter().map(|tally| tally.acked).sum();
    let perhaps: u64 = [&first, &before, &load, &looks].iter().map(|tally| tally.unknown).sum();
    let value = total(&pod, &quiet).await - earlier;
    println!("acked {known}, unknown {perhaps}, counted {value}");
    let strange =
        load.statuses.iter().chain(&load.within).filter(|(status, _)| !ALLOWED.contains(status));
    let strange: Vec<_> = strange.collect();
    let silent = load.resets.values().sum::<u64>() + load.unanswered + load.not_connected;
    let least = least_sent(mix) * capacity;
    let sent = per_second(load.answers() + silent, span);
    let (could, did) = (per_second(first.acked, CALIBRATE), per_second(load.acked, span));
    let failures = |all: &[(bool, String)]| -> Vec<String> {
        all.iter().filter(|(is_well, _)| !is_well).map(|(_, otherwise)| otherwise.clone()).collect()
    };
    // All figures of a run are shown, because they belong together.
    let wrong = failures(&[
        (
            (known..=known + perhaps).contains(&value),
            format!("{value} were counted, {known} acked and {perhaps} are unknown"),
        ),
        (strange.is_empty(), format!("answers with other statuses: {strange:?}")),
        (
            load.statuses.contains_key(&200) && rate.is_some() == load.statuses.contains_key(&429),
            format!("{:?} with a rate of {rate:?}", load.statuses),
        ),
        (
            silent <= load.answers() / 1_000,
            format!(
                "without an answer: {:?}, {} unanswered, {} not connected",
                load.resets, load.unanswered, load.not_connected
            ),
        ),
        (most <= memory, format!("{} MiB of memory, {} are allowed", most / MIB, memory / MIB)),
    ]);
    assert!(wrong.is_empty(), "{wrong:#?}");
    let slow = failures(&[
        (sent >= least, format!("only {sent:.0} requests/s were sent, of {least:.0} or more")),
        (
            took <= BACK_WITHIN,
            format!("p99 {:?} after {took:?}, {allowed:?} is allowed", after.percentile(99)),
        ),
        (
            rate.is_some()
                || useful >= USEFUL_SHARE && (did >= could * DONE_SHARE || busy >= BUSY_SHARE),
            format!(
                "{did:.0} updates a second were acked, and {could:.0} before the overload, by {useful:.2} \
                 of the processor time, which was {busy:.2} times the one before"
            ),
        ),
    ]);
    (load, slow)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_sheds_overload_and_recovers() {
    let (mix, connections_max) = (Mix::Usual, CONNECTIONS_MAX);
    overload(Overload { mix, rate: None, connections_max, memory: MEMORY }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn overload_of_one_token_is_held_to_its_rate() {
    let (mix, connections_max) = (Mix::Usual, CONNECTIONS_MAX);
    overload(Overload { mix, rate: Some(500), connections_max, memory: MEMORY }).await;
}

/// Each request has a thousand updates, and all together have more than a pod holds.
#[tokio::test(flavor = "multi_thread")]
async fn overload_by_batches_is_shed_as_well() {
    let (mix, connections_max) = (Mix::Batches, SOCKETS);
    let memory = MEMORY_MAX;
    let load = overload(Overload { mix, rate: None, connections_max, memory }).await;
    let is_shed = load.statuses.contains_key(&503) || load.within.contains_key(&503);
    assert!(is_shed, "nothing was shed: {:?}", load.statuses);
}
