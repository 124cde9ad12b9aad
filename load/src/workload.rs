//! The updates: their keys, their weights, and when they are sent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use rand::Rng;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::checker::WEIGHT_BITS;

/// The longest sleep of the pacer before it checks whether the load is over.
const PACER_NAP_MAX: Duration = Duration::from_millis(20);

/// How the updates are distributed over the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Shape {
    /// One key gets every update.
    Hot,
    /// All keys are equally likely.
    Uniform,
    /// The probability of the k-th key is proportional to `1 / k^exponent`.
    Zipf,
    /// One hot key gets a share of the updates; the other keys are equally likely.
    Mixed,
    /// The first tenth of the keys gets a share of the updates. Within both parts, all keys are
    /// equally likely.
    Tenth,
}

/// The kinds of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// An update adds its weight.
    Counter,
    /// An update adds its weight.
    Sum,
    /// An update records a value as often as its weight says. A read returns how many there are.
    Stats,
    /// Like `Stats`.
    Histogram,
    /// An update adds its weight to an item. A read returns the weight of all items.
    TopK,
    /// An update adds its weight as an item. A read returns the sum of the items.
    Set,
    /// Like `Set`.
    OrSet,
    /// Like `Set`.
    LwwSet,
}

impl Kind {
    /// The kinds that have an exact total. The other kinds have none.
    pub(crate) const WITH_TOTAL: [Self; 8] = [
        Self::Counter,
        Self::Sum,
        Self::Stats,
        Self::Histogram,
        Self::TopK,
        Self::Set,
        Self::OrSet,
        Self::LwwSet,
    ];

    /// Whether pods ignore the ids of updates. For about a minute after a reset they refuse such updates.
    pub(crate) fn ignores_ids(self) -> bool {
        self == Self::Set
    }

    /// The name of the kind in addresses.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Sum => "sum",
            Self::Stats => "stats",
            Self::Histogram => "histogram",
            Self::TopK => "topk",
            Self::Set => "gset",
            Self::OrSet => "or_set",
            Self::LwwSet => "lww_set",
        }
    }
}

/// The address of one key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// The kind of data.
    pub kind: Kind,
    /// The group, which is one partition.
    pub group: String,
    /// The name in the group.
    pub name: String,
}

/// One update to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    /// Index into the keys of the workload.
    pub key: usize,
    /// The amount to add. It is random, positive and below 2^60.
    pub weight: u64,
}

/// The keys of a run, and how updates choose them.
#[derive(Debug)]
pub(crate) struct Workload {
    keys: Vec<Key>,
    choice: Choice,
    /// How long the same keys are hot.
    turn: Option<Duration>,
}

#[derive(Debug)]
enum Choice {
    Uniform,
    /// For each key, the probability that it or a key before it is chosen.
    Cumulative(Vec<f64>),
    /// With this probability one of the hot keys of the turn, otherwise one of the cold keys. The hot
    /// keys of all turns come first.
    HotFirst {
        hot: usize,
        turns: usize,
        share: f64,
    },
}

impl Workload {
    /// Lays out the keys over at most `groups` groups: key i is in group i modulo `groups`.
    ///
    /// `key_count` is the number of keys, with three exceptions: `Hot` has one key, `Mixed` has one
    /// more, and each turn after the first adds new hot keys.
    pub(crate) fn new(shape: &Mix, group: &str, groups: usize) -> Self {
        let turns = shape.turns.map_or(1, |turns| turns.count);
        let tenth = shape.key_count.div_ceil(10);
        let count = match shape.shape {
            Shape::Hot => 1,
            Shape::Uniform | Shape::Zipf => shape.key_count,
            Shape::Tenth => shape.key_count + tenth * (turns - 1),
            Shape::Mixed => shape.key_count + 1,
        };
        let choice = match shape.shape {
            Shape::Hot | Shape::Uniform => Choice::Uniform,
            Shape::Zipf => Choice::Cumulative(zipf(count, shape.zipf_exponent)),
            Shape::Mixed => Choice::HotFirst { hot: 1, turns: 1, share: shape.hot_share },
            // With a single key there are no cold keys.
            Shape::Tenth if shape.key_count < 2 => Choice::Uniform,
            Shape::Tenth => Choice::HotFirst { hot: tenth, turns, share: shape.hot_share },
        };
        let groups = groups.min(count);
        let keys = (0..count)
            .map(|index| Key {
                kind: shape.kinds[index % shape.kinds.len()],
                group: match groups {
                    1 => group.to_owned(),
                    _ => format!("{group}-{}", index % groups),
                },
                name: format!("k{index}"),
            })
            .collect();
        Self { keys, choice, turn: shape.turns.map(|turns| turns.length) }
    }

    /// All keys, including those that no update chose.
    pub(crate) fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// Draws the next update. `elapsed` is the time since the start.
    pub(crate) fn draw(&self, elapsed: Duration, rng: &mut impl Rng) -> Op {
        Op { key: self.draw_key(elapsed, rng), weight: rng.random_range(1..1 << WEIGHT_BITS) }
    }

    /// Draws one of the keys that get updates now, all of them alike.
    pub(crate) fn draw_in_use(&self, elapsed: Duration, rng: &mut impl Rng) -> usize {
        let last = self.keys.len() - 1;
        match &self.choice {
            Choice::Uniform | Choice::Cumulative(_) => rng.random_range(0..=last),
            Choice::HotFirst { hot, turns, .. } => {
                let cold = hot * turns;
                match rng.random_range(0..hot + last + 1 - cold) {
                    index if index < *hot => hot * self.turn(elapsed, *turns) + index,
                    index => cold + index - hot,
                }
            }
        }
    }

    /// The turn of the hot keys. A load may last slightly longer than planned.
    fn turn(&self, elapsed: Duration, turns: usize) -> usize {
        let passed = self.turn.map_or(0, |turn| elapsed.as_nanos() / turn.as_nanos());
        usize::try_from(passed).unwrap_or(usize::MAX).min(turns - 1)
    }

    /// Draws the key of an update.
    pub(crate) fn draw_key(&self, elapsed: Duration, rng: &mut impl Rng) -> usize {
        let last = self.keys.len() - 1;
        match &self.choice {
            Choice::Uniform => rng.random_range(0..=last),
            Choice::Cumulative(shares) => {
                let point: f64 = rng.random();
                shares.partition_point(|share| *share <= point).min(last)
            }
            Choice::HotFirst { hot, turns, share } if rng.random_bool(*share) => {
                hot * self.turn(elapsed, *turns) + rng.random_range(0..*hot)
            }
            Choice::HotFirst { hot, turns, .. } => rng.random_range(hot * turns..=last),
        }
    }
}

/// A shape and its numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mix {
    /// How the updates are distributed over the keys.
    pub shape: Shape,
    /// Number of keys, or of cold keys for `Mixed`.
    pub key_count: usize,
    /// The exponent of `Zipf`.
    pub zipf_exponent: f64,
    /// The share of the updates for the hot key of `Mixed` or the hot keys of `Tenth`.
    pub hot_share: f64,
    /// The turns of the hot keys of `Tenth`, if they change.
    pub turns: Option<HotPeriods>,
    /// The kinds of the keys, in turn.
    pub kinds: &'static [Kind],
}

/// The turns of the hot keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HotPeriods {
    /// The length of a turn.
    pub length: Duration,
    /// The number of turns, at least one.
    pub count: usize,
}

/// The cumulative probabilities of `count` items, where the probability of the k-th item is
/// proportional to `1 / k^exponent`.
#[must_use]
pub fn zipf(count: usize, exponent: f64) -> Vec<f64> {
    let mut total = 0.0;
    let mut sums: Vec<f64> = (1..=count)
        .map(|rank| {
            total += (rank as f64).powf(-exponent);
            total
        })
        .collect();
    for sum in &mut sums {
        *sum /= total;
    }
    sums
}

/// When the next request is due.
#[derive(Debug)]
pub(crate) enum Pace {
    /// Closed loop: a connection sends its next request when the last one is answered.
    Closed,
    /// Open loop: requests are due at fixed times, regardless of the answers.
    Open(Schedule),
}

impl Pace {
    /// Waits until the next request is due. Returns the instant from which its latency counts.
    pub(crate) async fn next(&self) -> Instant {
        match self {
            Self::Closed => Instant::now(),
            Self::Open(schedule) => schedule.next().await,
        }
    }

    /// The number of requests that were due but not sent, because no connection was free.
    pub(crate) fn overdue(&self) -> usize {
        match self {
            Self::Closed => 0,
            Self::Open(schedule) => schedule.due.available_permits(),
        }
    }
}

/// An open-loop schedule that all connections share.
///
/// The next free connection takes the next request that is due. If no connection is free, requests
/// wait, and the wait is part of their latency: it counts from the scheduled time, not from the time
/// of sending. So a stalled server cannot hide behind the requests that it did not get (coordinated
/// omission).
#[derive(Debug)]
pub struct Schedule {
    start: Instant,
    per_second: u32,
    batch: u32,
    due: Semaphore,
    taken: AtomicU64,
}

impl Schedule {
    /// A schedule of `per_second` updates, sent in requests of `batch` updates each.
    #[must_use]
    pub fn new(start: Instant, per_second: u32, batch: u32) -> Self {
        Self { start, per_second, batch, due: Semaphore::new(0), taken: AtomicU64::new(0) }
    }

    /// Waits for the next request that is due. Returns its scheduled time, from which its latency
    /// counts.
    ///
    /// # Panics
    /// Never: the schedule is not closed.
    pub async fn next(&self) -> Instant {
        let permit = self.due.acquire().await;
        permit.expect("invariant: the schedule is never closed").forget();
        self.start + self.offset(self.taken.fetch_add(1, Ordering::Relaxed))
    }

    /// When the request of this index is due, from the start.
    fn offset(&self, index: u64) -> Duration {
        let nanos = u128::from(index) * u128::from(self.batch) * 1_000_000_000;
        let nanos = nanos / u128::from(self.per_second);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The number of requests that are due after `elapsed`.
    fn due_after(&self, elapsed: Duration) -> usize {
        let step = u128::from(self.batch) * 1_000_000_000;
        let passed = elapsed.as_nanos() * u128::from(self.per_second) / step;
        usize::try_from(passed + 1).unwrap_or(usize::MAX)
    }

    /// Releases requests when they are due, until `stop`. This blocks the thread, because the timer of
    /// the runtime counts in milliseconds, which would show in every latency.
    pub fn release_until(&self, stop: &CancellationToken) {
        let mut released = 0;
        while !stop.is_cancelled() {
            let due = self.due_after(self.start.elapsed());
            self.due.add_permits(due - released);
            released = due;
            let next = self.offset(u64::try_from(due).unwrap_or(u64::MAX));
            let nap = next.saturating_sub(self.start.elapsed());
            std::thread::sleep(nap.min(PACER_NAP_MAX));
        }
    }
}

/// A window in which an id counts once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Window {
    /// No ids.
    None,
    /// A minute.
    Minute,
    /// 15 minutes.
    Short,
    /// 24 hours.
    Long,
}

impl Window {
    /// Its name in requests.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Window::None => "none",
            Window::Minute => "minute",
            Window::Short => "short",
            Window::Long => "long",
        }
    }

    /// The time after which no pod takes an id of this window any more: an id expires at the end of the
    /// window after its own.
    pub(crate) fn longest(self) -> Duration {
        2 * match self {
            Window::None => Duration::ZERO,
            Window::Minute => Duration::from_secs(60),
            Window::Short => Duration::from_secs(900),
            Window::Long => Duration::from_secs(86_400),
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    fn mix(shape: Shape, key_count: usize) -> Mix {
        let kinds = &[Kind::Counter];
        Mix { shape, key_count, zipf_exponent: 0.99, hot_share: 0.5, turns: None, kinds }
    }

    fn draws(mix: &Mix, count: usize) -> Vec<usize> {
        draws_after(Duration::ZERO, mix, count)
    }

    fn draws_after(elapsed: Duration, mix: &Mix, count: usize) -> Vec<usize> {
        let workload = Workload::new(mix, "g", 1);
        let mut rng = SmallRng::seed_from_u64(1);
        let mut drawn = vec![0; workload.keys().len()];
        for _ in 0..count {
            drawn[workload.draw_key(elapsed, &mut rng)] += 1;
        }
        drawn
    }

    #[test]
    fn hot_has_one_key() {
        assert_eq!(draws(&mix(Shape::Hot, 100), 50), [50]);
    }

    #[test]
    fn uniform_reaches_every_key_alike() {
        let drawn = draws(&mix(Shape::Uniform, 10), 10_000);
        assert!(drawn.iter().all(|count| (800..1_200).contains(count)), "{drawn:?}");
    }

    #[test]
    fn zipf_follows_its_ranks() {
        let drawn = draws(&mix(Shape::Zipf, 100), 100_000);
        let ratio = drawn[0] as f64 / drawn[9] as f64;
        assert!((8.0..12.0).contains(&ratio), "first to tenth is {ratio}");
        assert!(drawn[99] > 0);
    }

    #[test]
    fn mixed_gives_the_hot_key_its_share() {
        let drawn = draws(&mix(Shape::Mixed, 10), 10_000);
        assert_eq!(drawn.len(), 11);
        assert!((4_800..5_200).contains(&drawn[0]), "{drawn:?}");
    }

    #[test]
    fn a_tenth_of_the_keys_gets_its_share() {
        let drawn = draws(&mix(Shape::Tenth, 200), 100_000);
        let (hot, cold) = drawn.split_at(20);
        assert!((49_000..51_000).contains(&hot.iter().sum::<usize>()), "{drawn:?}");
        assert!(hot.iter().all(|count| (2_200..2_800).contains(count)), "{hot:?}");
        assert!(cold.iter().all(|count| (190..370).contains(count)), "{cold:?}");
        assert_eq!(draws(&mix(Shape::Tenth, 1), 10), [10]);
    }

    #[test]
    fn hot_keys_take_turns() {
        let turns = Some(HotPeriods { length: Duration::from_secs(10), count: 3 });
        let mix = Mix { turns, ..mix(Shape::Tenth, 20) };
        for (elapsed_s, hot) in [(0, 0..2), (9, 0..2), (10, 2..4), (29, 4..6), (99, 4..6)] {
            let drawn = draws_after(Duration::from_secs(elapsed_s), &mix, 1_000);
            assert_eq!(drawn.len(), 2 * 3 + 18);
            let is_drawn = |index: usize| hot.contains(&index) || index >= 6;
            let as_expected = |(index, count): (usize, &usize)| (*count > 0) == is_drawn(index);
            assert!(drawn.iter().enumerate().all(as_expected), "{elapsed_s} s: {drawn:?}");
        }
    }

    #[test]
    fn resets_reach_every_key_in_use_alike() {
        let turns = Some(HotPeriods { length: Duration::from_secs(10), count: 3 });
        let workload = Workload::new(&Mix { turns, ..mix(Shape::Tenth, 20) }, "g", 1);
        let (mut rng, mut drawn) = (SmallRng::seed_from_u64(1), [0; 2 * 3 + 18]);
        for _ in 0..20_000 {
            drawn[workload.draw_in_use(Duration::from_secs(10), &mut rng)] += 1;
        }
        for (index, count) in drawn.into_iter().enumerate() {
            let is_in_use = (2..4).contains(&index) || index >= 6;
            let expected = if is_in_use { 850..1_150 } else { 0..1 };
            assert!(expected.contains(&count), "{index}: {drawn:?}");
        }
    }

    #[test]
    fn keys_take_the_kinds_in_turn() {
        let workload =
            Workload::new(&Mix { kinds: &Kind::WITH_TOTAL[..5], ..mix(Shape::Uniform, 7) }, "g", 2);
        let kinds: Vec<_> = workload.keys().iter().map(|key| key.kind.name()).collect();
        assert_eq!(kinds, ["counter", "sum", "stats", "histogram", "topk", "counter", "sum"]);
    }

    #[test]
    fn weights_are_positive_and_below_the_limit() {
        let workload = Workload::new(&mix(Shape::Hot, 1), "g", 1);
        let mut rng = SmallRng::seed_from_u64(1);
        for _ in 0..10_000 {
            let weight = workload.draw(Duration::ZERO, &mut rng).weight;
            assert!((1..1 << WEIGHT_BITS).contains(&weight));
        }
    }

    #[test]
    fn keys_are_spread_over_groups() {
        let workload = Workload::new(&mix(Shape::Uniform, 5), "g", 2);
        let groups: Vec<_> = workload.keys().iter().map(|key| key.group.as_str()).collect();
        assert_eq!(groups, ["g-0", "g-1", "g-0", "g-1", "g-0"]);
    }

    #[test]
    fn the_schedule_keeps_its_rate() {
        let schedule = Schedule::new(Instant::now(), 2_000, 1);
        assert_eq!(schedule.offset(2_000), Duration::from_secs(1));
        assert_eq!(schedule.due_after(Duration::ZERO), 1);
        assert_eq!(schedule.due_after(Duration::from_secs(1)), 2_001);
        let batches = Schedule::new(Instant::now(), 2_000, 100);
        assert_eq!(batches.offset(20), Duration::from_secs(1));
        assert_eq!(batches.due_after(Duration::from_secs(1)), 21);
    }

    #[tokio::test]
    async fn latency_starts_at_the_intended_time() {
        let start = Instant::now();
        let schedule = Schedule::new(start, 100, 1);
        schedule.due.add_permits(3);
        schedule.next().await;
        schedule.next().await;
        assert_eq!(schedule.next().await, start + Duration::from_millis(20));
    }
}
