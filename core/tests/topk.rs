//! The bounds of `topk` on realistic data, with few heavy items and a long tail, and on flat data.

use std::collections::BTreeMap;

use orderfree_core::crdt::item::Item;
use orderfree_core::crdt::{Crdt, Question, TopK, TopKOp, Value};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

fn integer(value: &Value, field: &str) -> u128 {
    match value.field(field) {
        Some(Value::Integer(integer)) => u128::try_from(*integer).expect("not negative"),
        other => panic!("{field}: {other:?}"),
    }
}

/// Checks every bound of a state against the true weights.
fn check(state: &TopK, weights: &BTreeMap<i64, u128>, k: u128) {
    let value = state.value(&Question::default());
    let total: u128 = weights.values().sum();
    let error = integer(&value, "error");
    assert_eq!(integer(&value, "total"), total);
    assert!(error <= total / (k + 1), "error {error} of {total}");
    let Some(Value::List(items)) = value.field("items") else { panic!("{value:?}") };
    assert!(items.len() as u128 <= k);
    let mut listed = BTreeMap::new();
    for item in items {
        let (least, most) = (integer(item, "at_least"), integer(item, "at_most"));
        assert!(most - least <= error);
        let item = item.field("item").expect("an item").to_string();
        let weight = weights[&item.parse::<i64>().expect("a number")];
        assert!((least..=most).contains(&weight), "{item}: {weight} is not in {least}..={most}");
        listed.insert(item, least);
    }
    let heavy = weights.iter().filter(|(_, weight)| **weight > total / (k + 1));
    heavy.for_each(|(item, _)| assert!(listed.contains_key(&item.to_string()), "{item}"));
    for (item, weight) in weights {
        let at_least = listed.get(&item.to_string()).copied().unwrap_or_default();
        let bounds = at_least..=at_least + error;
        assert!(bounds.contains(weight), "{item}: {weight} is not in {bounds:?}");
    }
}

fn merged<'a>(states: impl Iterator<Item = &'a TopK>) -> TopK {
    states.fold(TopK::default(), |mut all, state| {
        all.merge(state).expect("a merge");
        all
    })
}

/// Zipf's law with the exponent `s` over many items, split over mutators, merged in a chain and in a tree.
#[test]
fn no_bound_is_broken_on_zipf_data() {
    for (seed, k, s) in [(1, 1, 1.0), (2, 7, 0.8), (3, 64, 1.0), (4, 256, 1.2), (5, 256, 0.5)] {
        let mut dice = SmallRng::seed_from_u64(seed);
        let mut weights = BTreeMap::new();
        let mut shards = vec![TopK::with_precision(k); 7];
        for _ in 0..20_000 {
            let rank = dice.random::<f64>().powf(-1.0 / s).min(100_000.0);
            #[allow(clippy::cast_possible_truncation, reason = "at most 100,000")]
            let item = rank as i64;
            let by = dice.random_range(1..4);
            *weights.entry(item).or_insert(0) += u128::from(by);
            let op = TopKOp::Add { item: Item::Number(item), by };
            shards[dice.random_range(0..7)].apply(&op).expect("room");
        }
        check(&merged(shards.iter()), &weights, u128::from(k));
        let pairs: Vec<TopK> = shards.chunks(2).map(|pair| merged(pair.iter())).collect();
        check(&merged(pairs.iter().rev()), &weights, u128::from(k));
    }
}

const OPS: usize = 300_000;

/// Ops of weight 1 on items whose shares follow Zipf's law with the exponent `s`; 0 is flat.
fn zipf(items: u32, s: f64, dice: &mut SmallRng) -> Vec<i64> {
    let mut sums = Vec::new();
    let mut sum = 0.0;
    for rank in 1..=items {
        sum += f64::from(rank).powf(-s);
        sums.push(sum);
    }
    let draw = |_| {
        let at = dice.random::<f64>() * sum;
        i64::try_from(sums.partition_point(|end| *end < at)).expect("few").min(items.into())
    };
    (0..OPS).map(draw).collect()
}

/// Prints the table of docs/kinds.md.
#[test]
fn no_bound_is_broken_on_flat_data() {
    println!(
        "| items | Zipf | shards | listed | of the 256 heaviest | error | total / 257 | bytes |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for (count, s) in [
        (257, 0.0),
        (1_000, 0.0),
        (2_000, 0.0),
        (100_000, 0.0),
        (1_000, 0.5),
        (100_000, 0.5),
        (1_000, 1.0),
        (100_000, 1.0),
    ] {
        for shards in [1, 10] {
            let mut dice = SmallRng::seed_from_u64(7);
            let mut weights = BTreeMap::new();
            let mut states = vec![TopK::with_precision(256); shards];
            for item in zipf(count, s, &mut dice) {
                *weights.entry(item).or_insert(0) += 1;
                let op = TopKOp::Add { item: Item::Number(item), by: 1 };
                states[dice.random_range(0..shards)].apply(&op).expect("room");
            }
            let state = merged(states.iter());
            check(&state, &weights, 256);
            let backwards = merged(states.iter().rev());
            check(&backwards, &weights, 256);
            let value = state.value(&Question::default());
            let Some(Value::List(items)) = value.field("items") else { panic!("{value:?}") };
            // At least as heavy as the 256th.
            let mut heaviest: Vec<u128> = weights.values().copied().collect();
            heaviest.sort_unstable_by(|a, b| b.cmp(a));
            let least = heaviest[255];
            let is_heavy = |item: &&Value| {
                let item = item.field("item").expect("an item").to_string();
                weights[&item.parse::<i64>().expect("a number")] >= least
            };
            let found = items.iter().filter(is_heavy).count();
            let mut bytes = Vec::new();
            state.encode(&mut bytes);
            println!(
                "| {count} | {s} | {shards} | {} | {found} | {} | {} | {} |",
                items.len(),
                integer(&value, "error"),
                OPS / 257,
                bytes.len()
            );
        }
    }
}
