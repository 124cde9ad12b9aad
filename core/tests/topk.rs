//! The bounds of `topk` on realistic data: few heavy items and a long tail.

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
        assert_eq!(most - least, error);
        listed.insert(item.field("item").expect("an item").to_string(), least);
    }
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
