//! Runs many schedules on all cores and shrinks the first that fails. Also holds the tests.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use crate::coverage::Coverage;
use crate::plan::{Plan, Step};
use crate::run::play;
use crate::sabotage::Sabotage;

/// Schedules in a plain `cargo test`.
const SCHEDULES: u64 = 2_000;

/// Schedules in a run that is long enough to search for every defect from the first seed on.
const LONG_RUN: u64 = 100_000;

/// How many schedules before a known one a short run begins.
const NEAR: u64 = 20;

/// The result of a search.
struct Found {
    /// The lowest failing seed.
    seed: Option<u64>,
    coverage: Coverage,
}

/// Runs the schedules of `count` seeds from `first` on, until one fails.
fn search(first: u64, count: u64, sabotage: Option<Sabotage>) -> Found {
    let (next, failed) = (AtomicU64::new(first), AtomicU64::new(u64::MAX));
    let coverage = Mutex::new(Coverage::default());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let mut mine = Coverage::default();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count || seed > failed.load(Ordering::Relaxed) {
                        break;
                    }
                    let outcome = play(&Plan::draw(seed, sabotage), false);
                    mine.add(outcome.met);
                    if outcome.violation.is_some() {
                        failed.fetch_min(seed, Ordering::Relaxed);
                    }
                }
                coverage.lock().expect("no panic").merge(&mine);
            });
        }
    });
    let seed = failed.into_inner();
    let coverage = coverage.into_inner().expect("no panic");
    Found { seed: (seed < u64::MAX).then_some(seed), coverage }
}

/// How many weathers are tried with fewer steps, because leaving out one step changes the luck of the others.
const WEATHERS: u64 = 12;

/// The fewest steps that still fail, in one data centre if possible. Leaves out halves of the steps, quarters and so on.
fn shrink(plan: &Plan) -> Plan {
    let fails = |plan: &Plan, steps: &[Step]| {
        let plans = (0..WEATHERS).map(|salt| plan.with_steps(steps.to_vec(), salt));
        plans.into_iter().find(|plan| play(plan, false).violation.is_some())
    };
    let mut small = plan.clone();
    let mut size = small.steps.len().div_ceil(2).max(1);
    loop {
        if let Some(plan) = small.in_one_datacenter().and_then(|plan| fails(&plan, &plan.steps)) {
            small = plan;
        }
        let (mut at, before) = (0, small.steps.len());
        while at < small.steps.len() {
            let mut fewer = small.steps.clone();
            fewer.drain(at..(at + size).min(fewer.len()));
            match fails(&small, &fewer) {
                Some(plan) => small = plan,
                None => at += size,
            }
        }
        // In the new weather of a smaller schedule, an earlier step may be left out after all.
        if size == 1 && small.steps.len() == before {
            return small;
        }
        size = size.div_ceil(2);
    }
}

/// A failing schedule as text.
fn story(seed: u64, sabotage: Option<Sabotage>) -> String {
    let mut plan = Plan::draw(seed, sabotage);
    if number("SIM_SHRINK", 1) == 1 {
        plan = shrink(&plan);
    }
    let outcome = play(&plan, true);
    let violation = outcome.violation.map_or("none".into(), |violation| violation.to_string());
    format!(
        "seed {seed}: {violation}\nshrunk to {} steps\n{:?}\n{:?} {:?} {:?}\ngc grace {:?}, nodes {:?}\npods {:?}\n{:?}\n{}",
        plan.steps.len(),
        plan.constants,
        plan.levels,
        plan.mutators_max,
        plan.resting_bytes,
        plan.gc_grace,
        plan.nodes,
        plan.pods,
        plan.weather,
        outcome.timeline
    )
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a whole number"))
    })
}

#[test]
fn no_schedule_gives_a_wrong_number() {
    let (count, first) = (number("SIM_N", SCHEDULES), number("SIM_SEED", 0));
    let began = Instant::now();
    let found = search(first, count, None);
    if let Some(seed) = found.seed {
        panic!("{}", story(seed, None));
    }
    println!("{count} schedules from seed {first} on in {:?}, no violation", began.elapsed());
    println!("{}", found.coverage);
    let rare = found.coverage.rare();
    assert!(count < SCHEDULES || rare.is_empty(), "hardly met: {rare:?}");
}

#[test]
fn every_broken_rule_is_found() {
    let only = std::env::var("SIM_SABOTAGE").ok();
    let mut missed = Vec::new();
    println!("| rule broken | found after |\n| --- | --- |");
    for &sabotage in Sabotage::ALL {
        if only.as_ref().is_some_and(|only| only != sabotage.name()) {
            continue;
        }
        // A long run shows after how many schedules each is found. A short one begins near one that finds it.
        let is_long = number("SIM_N", 0) >= LONG_RUN;
        let known = REGRESSIONS.iter().find(|(_, of)| *of == sabotage).filter(|_| !is_long);
        let first = known.map_or(0, |(seed, _)| seed.saturating_sub(NEAR));
        let found = search(first, sabotage.cap(), Some(sabotage));
        match found.seed {
            Some(seed) => {
                let violation = play(&Plan::draw(seed, Some(sabotage)), false).violation;
                let after = seed + 1 - first;
                println!("| {} | {after} | {} |", sabotage.text(), violation.expect("failed"));
            }
            None => missed.push(sabotage),
        }
        if let (Some(_), Some(seed)) = (&only, found.seed) {
            println!("{}", story(seed, Some(sabotage)));
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// Schedules that find a rare defect. They fail while the defect is put in, and never without it. A change of the
/// generator needs new seeds, which `every_broken_rule_is_found` prints.
const REGRESSIONS: &[(u64, Sabotage)] = &[
    (35_686, Sabotage::ListedKeys),
    (29_900, Sabotage::NewestFirst),
    (249, Sabotage::NoRecheck),
    (9_024, Sabotage::ReadIsProof),
    (2_422, Sabotage::LoggedAtOne),
    (6_112, Sabotage::ExpiryIgnoresReset),
    (2_263, Sabotage::LoggedHere),
];

#[test]
fn schedules_that_find_rare_defects_still_do() {
    for &(seed, defect) in REGRESSIONS {
        let violation = |broken| play(&Plan::draw(seed, broken), false).violation;
        assert!(violation(Some(defect)).is_some(), "seed {seed} no longer finds {defect:?}");
        assert_eq!(violation(None), None, "seed {seed}");
    }
}

#[test]
fn a_failing_schedule_is_shrunk() {
    let sabotage = Some(Sabotage::FenceIgnored);
    let mut next = 0;
    for _ in 0..3 {
        let seed = search(next, 1_000, sabotage).seed.expect("it is found at once");
        next = seed + 1;
        let plan = Plan::draw(seed, sabotage);
        let small = shrink(&plan);
        assert!(play(&small, false).violation.is_some(), "seed {seed}");
        let (steps, before) = (&small.steps, plan.steps.len());
        assert!(steps.len() <= 6 && steps.len() < before, "seed {seed}: {before}, {steps:?}");
    }
}

#[test]
fn shrinking_away_a_data_centre_adds_no_failure() {
    let alone = (0..200).filter_map(|seed| Plan::draw(seed, None).in_one_datacenter());
    let violations = alone.map(|plan| (plan.seed, play(&plan, false).violation));
    let violations: Vec<_> = violations.collect();
    assert!(violations.len() > 20, "{}", violations.len());
    assert!(violations.iter().all(|(_, violation)| violation.is_none()), "{violations:?}");
}

#[test]
fn one_seed_gives_one_history() {
    for seed in 0..200 {
        let plan = Plan::draw(seed, None);
        let (one, other) = (play(&plan, true), play(&plan, true));
        let mut lines = one.timeline.lines().zip(other.timeline.lines());
        let differing = lines.find(|(one, other)| one != other);
        assert_eq!(differing, None, "seed {seed}: the first difference");
        assert!(one == other, "seed {seed}");
        assert!(one.timeline.lines().count() > 20, "{}", one.timeline);
    }
}
