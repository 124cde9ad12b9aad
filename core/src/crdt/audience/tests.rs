use datasketches::theta::{ThetaANotB, ThetaIntersection, ThetaSketch};
use proptest::prelude::*;

use super::*;
use crate::crdt::item::tests::items;
use crate::crdt::sketch::SEED_HASH;
use crate::crdt::sketch::tests::{check_refused, mutated, relative_errors};
use crate::crdt::{Kind, laws};

/// Consecutive numbers, in one op or as a foreign sketch.
fn add(from: i64, n: i64) -> SketchOp<Audience> {
    SketchOp::Add { items: (from..from + n).map(Item::Number).collect() }
}

fn foreign(lg_k: u8, from: i64, n: i64) -> ThetaSketch {
    let mut sketch = ThetaSketchBuilder::default().lg_k(lg_k).build().expect("a sketch");
    (from..from + n).for_each(|number| sketch.update(number));
    sketch
}

fn merge(image: &[u8]) -> SketchOp<Audience> {
    SketchOp::Merge { sketch: Audience::import(image).expect("a sketch").into() }
}

pub(super) fn of_numbers(lg_k: u16, from: i64, n: i64) -> Audience {
    let mut state = Audience::with_precision(lg_k);
    for start in (from..from + n).step_by(1_000) {
        state.apply(&add(start, (from + n - start).min(1_000))).expect("items");
    }
    state
}

/// Ordered or not, compressed or not.
fn images(lg_k: u8, from: i64, n: i64) -> impl Strategy<Value = Vec<u8>> {
    (any::<bool>(), any::<bool>()).prop_map(move |(is_ordered, is_compressed)| {
        let compact = foreign(lg_k, from, n).compact(is_ordered);
        if is_compressed { compact.serialize_compressed() } else { compact.serialize() }
    })
}

/// Foreign sketches of low precision have a theta, so the states of other ops get one too.
fn ops() -> impl Strategy<Value = SketchOp<Audience>> {
    let from = || prop_oneof![0..300_i64, any::<i32>().prop_map(i64::from)];
    prop_oneof![
        8 => prop::collection::vec(items(), 1..5).prop_map(|items| SketchOp::Add { items }),
        1 => (from(), 1..60_i64).prop_map(|(from, n)| add(from, n)),
        3 => (from(), prop_oneof![0..2_i64, 0..300_i64])
            .prop_flat_map(|(from, n)| images(5, from, n))
            .prop_map(|image| merge(&image)),
    ]
}

laws::suite!(Audience, ops());

/// States of every precision, empty, below k and above.
fn states() -> impl Strategy<Value = Audience> {
    let n = prop_oneof![2 => Just(0), 2 => 1..40_i64, 2 => 0..500_i64];
    (prop_oneof![3 => 5..=7_u16, 1 => 5..=15_u16], 0..100_i64, n)
        .prop_map(|(lg_k, from, n)| of_numbers(lg_k, from, n))
}

proptest! {
    #[test]
    fn states_of_any_precision_merge_to_the_coarser(a in states(), b in states(), c in states()) {
        use laws::{bytes, merged, stored};
        let both = merged(&a, &b);
        prop_assert_eq!(both.precision(), a.precision().min(b.precision()));
        prop_assert_eq!(&both, &merged(&b, &a));
        prop_assert_eq!(bytes(&merged(&both, &c)), bytes(&merged(&a, &merged(&stored(&b), &c))));
        prop_assert_eq!(&merged(&Audience::default(), &a), &a);
        prop_assert_eq!(&merged(&a, &Audience::default()), &a);
    }

    /// The definition: the k smallest hashes of all items, and the next one as theta, however the items were
    /// spread.
    #[test]
    fn the_state_is_a_function_of_the_set(
        parts in prop::collection::vec((5..=7_u16, 0..300_i64, 0..200_i64), 1..6),
    ) {
        let (mut all, mut state) = (std::collections::BTreeSet::new(), Audience::default());
        for (lg_k, from, n) in &parts {
            state.merge(&of_numbers(*lg_k, *from, *n)).expect("a merge");
            let numbers: Vec<Item> = (*from..from + n).map(Item::Number).collect();
            hash(&numbers, |hash| { all.insert(hash); });
        }
        let size = 1 << parts.iter().map(|(lg_k, ..)| *lg_k).min().expect("parts");
        let smallest: Vec<u64> = all.into_iter().collect();
        prop_assert_eq!(state.sample.theta, smallest.get(size).copied().unwrap_or(THETA_MAX));
        let kept: Vec<u64> = state.sample.hashes.into_iter().collect();
        prop_assert_eq!(&kept[..], &smallest[..size.min(smallest.len())]);
    }

    /// A foreign sketch counts the same as its items, as long as it keeps the same number of hashes.
    #[test]
    fn a_merged_sketch_is_its_items(
        (lg_k, n, image) in (5..=9_u8, 0..3_000_i64)
            .prop_flat_map(|(lg_k, n)| (Just(lg_k), Just(n), images(lg_k, 0, n))),
    ) {
        let of_items = of_numbers(u16::from(lg_k), 0, n);
        let mut of_sketch = Audience::with_precision(u16::from(lg_k));
        of_sketch.apply(&merge(&image)).expect("a sketch");
        prop_assert_eq!(&of_sketch, &of_items);
        let own = merge(&of_items.to_datasketches());
        prop_assert_eq!(of_sketch.apply(&own), Ok(Effect::Unchanged));
    }

    /// The library's operators give the same result.
    #[test]
    fn set_algebra_is_that_of_the_library(a in states(), b in states()) {
        let sketch = |state: &Audience| state.sample.to_compact();
        let (left, right) = (sketch(&a), sketch(&b));
        let mut intersection = ThetaIntersection::default();
        intersection.update(&left).expect("a sketch");
        intersection.update(&right).expect("a sketch");
        let expected = intersection.to_sketch(true).expect("a result");
        let lookup = |name: &str| Some(if name == "a" { &a } else { &b });
        let evaluate = |json: &str| {
            let expression: Expression = serde_json::from_str(json).expect(json);
            expression.evaluate(&lookup).expect(json)
        };
        let both = evaluate(r#"{"and":["a","b"]}"#);
        prop_assert_eq!(both.to_datasketches(), expected.serialize());
        let difference = ThetaANotB::default().compute(&left, &right, true).expect("a sketch");
        let only_a = evaluate(r#"{"and":["a",{"not":"b"}]}"#);
        prop_assert_eq!(only_a.to_datasketches(), difference.serialize());
        let mut either = a.sample.clone();
        either.unite(&b.sample);
        let any = evaluate(r#"{"or":["a","b"]}"#);
        prop_assert_eq!(any.to_datasketches(), either.to_compact().serialize());
    }

    /// Any bytes give an answer, not a panic, and a state that can be stored and read.
    #[test]
    fn hostile_sketches_are_refused_or_counted(image in mutants()) {
        let state = of_numbers(6, 0, 50);
        let mut after = state.clone();
        let Ok(sketch) = Audience::import(&image) else { return Ok(()) };
        let effect = after.apply(&SketchOp::Merge { sketch: sketch.into() });
        prop_assert_eq!(effect, Ok(Effect::of(after != state)));
        laws::stored(&after);
        check_value(&after.value(&Question::default()));
    }

    #[test]
    fn any_sample_has_a_value(
        theta in prop_oneof![1..=300_u64, any::<u64>().prop_map(|theta| theta % THETA_MAX + 1)],
        hashes in prop::collection::btree_set(prop_oneof![1..300_u64, any::<u64>()], 0..200),
    ) {
        let hashes = hashes.into_iter().filter(|hash| (1..theta).contains(hash)).collect();
        check_value(&Sample { theta, hashes }.value(5));
    }
}

#[test]
fn who_knows_nothing_says_so() {
    for theta in [1, 500, THETA_MAX >> 40] {
        let value = Sample { theta, ..Sample::default() }.value(5);
        let Some(Value::Real(upper)) = value.field("upper") else { panic!("{value:?}") };
        assert!(*upper > 1e12, "theta {theta}: {value:?}");
    }
}

/// Checks that the bounds enclose the estimate and that all are finite.
fn check_value(value: &Value) {
    let [lower, estimate, upper] =
        ["lower", "estimate", "upper"].map(|field| match value.field(field) {
            Some(Value::Real(real)) if real.is_finite() => *real,
            other => panic!("{field}: {other:?}"),
        });
    assert!(0.0 <= lower && lower <= estimate && estimate <= upper, "{value:?}");
}

/// Images with a few changed bytes or a changed tail.
fn mutants() -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<prop::sample::Index>(), any::<u8>());
    let header_change = (0..24_usize, prop_oneof![0..8_u8, any::<u8>()]);
    (
        (5..=8_u8, prop_oneof![0..64_i64, 0..2_000_i64])
            .prop_flat_map(|(lg_k, n)| images(lg_k, 0, n)),
        prop::collection::vec(change, 0..4),
        prop::collection::vec(header_change, 0..2),
        prop::option::of((8..40_usize, prop::collection::vec(any::<u8>(), 0..256))),
    )
        .prop_map(|(image, changes, header_changes, tail)| {
            mutated(image, tail, changes, header_changes)
        })
}

#[test]
fn bad_sketches_are_refused_with_the_reason() {
    let image = foreign(6, 0, 1_000).compact(true).serialize();
    let with = |at: usize, byte: u8| {
        let mut bad = image.clone();
        bad[at] = byte;
        bad
    };
    let mut seeded = ThetaSketchBuilder::default().seed(1).build().expect("a sketch");
    seeded.update(1);
    let mut repeated = image.clone();
    repeated.copy_within(24..32, 32);
    let mut huge = image[..24].to_vec();
    huge[8..12].fill(0xFF);
    let long = [&image[..], &[0; 8]].concat();
    for (bad, says) in [
        (Vec::new(), "`sketch` is corrupt: it has 0 bytes"),
        (with(2, 16), "`sketch` is of another family: its family byte is 16"),
        (seeded.compact(true).serialize(), "`sketch` has another hash seed"),
        (with(1, 2), "`sketch` has serial version 2"),
        (with(5, FLAGS_OF_AN_UPDATE_SKETCH), "`sketch` is not compact"),
        (with(0, 9), "`sketch` is corrupt"),
        (with(23, 0xFF), "`sketch` is corrupt: corrupted: theta must be in"),
        (with(31, 0xFF), "`sketch` is corrupt: corrupted: invalid retained hash value"),
        (image[..image.len() - 8].to_vec(), "`sketch` is corrupt"),
        (huge, "`sketch` is corrupt"),
        (long, "`sketch` is corrupt: it is shorter or longer"),
        (repeated, "`sketch` is corrupt: its hashes repeat or are not in order"),
    ] {
        check_refused::<Audience>(&bad, says);
    }
    assert_eq!(of_numbers(6, 0, 50).apply(&merge(&image)), Ok(Effect::Changed));
}

/// Neither compact nor ordered.
const FLAGS_OF_AN_UPDATE_SKETCH: u8 = 0;

/// An item in the sample, above theta, or equal to theta.
#[test]
fn an_item_seen_again_changes_nothing() {
    let mut state = of_numbers(5, 0, 100);
    for number in 0..100 {
        assert_eq!(state.apply(&add(number, 1)), Ok(Effect::Unchanged), "{number}");
    }
}

/// The weight of waiting ops.
#[test]
fn memory_is_that_of_the_hashes() {
    let bytes = |n| {
        let image = foreign(12, 0, n).compact(true).serialize();
        Audience::import(&image).expect("a sketch").memory_bytes()
    };
    assert_eq!(bytes(0), size_of::<Audience>());
    assert_eq!(bytes(1_000), size_of::<Audience>() + 16_000);
}

#[test]
fn empty_sketches_change_nothing() {
    // As Java and Rust write it, without the hash of a seed, and as C++ and Python do.
    for seed in [[0, 0], SEED_HASH] {
        let image = [1, 3, 3, 0, 0, 0x1E, seed[0], seed[1]];
        let mut state = of_numbers(5, 0, 100);
        assert_eq!(state.apply(&merge(&image)), Ok(Effect::Unchanged));
    }
    assert_eq!(Audience::default().to_datasketches(), [1, 3, 3, 0, 0, 0x1E, 0, 0]);
}

#[test]
fn undecodable_payloads() {
    let state = of_numbers(5, 0, 100);
    let bytes = laws::bytes(&state);
    assert_eq!(Audience::decode(1, Some(5), &bytes), Ok(state.clone()));
    assert_eq!(Audience::decode(1, None, &bytes), Err(DecodeError::NotCanonical));
    assert_eq!(Audience::decode(2, Some(5), &bytes), Err(DecodeError::Format(2)));
    let decode = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut payload = Vec::new();
        write(&mut payload);
        Audience::decode(1, Some(5), &payload)
    };
    let put = |numbers: &[u64], out: &mut Vec<u8>| {
        numbers.iter().for_each(|number| varint::put(u128::from(*number), out));
    };
    assert!(decode(&|out| put(&[0, 2, 5, 1], out)).is_ok());
    // More than k hashes; the same hash twice; theta itself; a theta of zero.
    let too_many = [&[0, 33][..], &[1; 33]].concat();
    for bad in [&too_many[..], &[0, 2, 5, 0], &[THETA_MAX - 5, 1, 5], &[THETA_MAX, 0]] {
        assert_eq!(decode(&|out| put(bad, out)), Err(DecodeError::NotCanonical), "{bad:?}");
    }
}

/// The largest state: the maximum number of hashes, with the largest differences that fit.
#[test]
fn no_payload_passes_the_limit() {
    let mut state = Audience::with_precision(15);
    let mut last = 0;
    for index in 0..1_u64 << 15 {
        last += if index < (1 << 14) - 200 { 1 << 49 } else { 1 << 42 };
        assert!(last < THETA_MAX);
        state.add(last);
    }
    state.sample.theta = last + 1;
    assert!(laws::bytes(&state).len() <= super::super::STATE_BYTES_MAX);
}

/// One mutator or five: the same bytes, and so the same value.
#[test]
fn the_value_does_not_depend_on_the_number_of_mutators() {
    let one = of_numbers(11, 0, 30_000);
    let mut five = Audience::default();
    for mutator in 0..5 {
        let mut own = Audience::with_precision(11);
        for number in (0..30_000).filter(|number| number % 5 == mutator) {
            own.apply(&add(number, 1)).expect("an item");
        }
        five.merge(&laws::stored(&own)).expect("a merge");
    }
    assert_eq!(five.value(&Question::default()), one.value(&Question::default()));
    assert_eq!(five, one);
}

/// With theta the (k+1)th smallest of n hashes, k/theta is unbiased, and its relative standard
/// error below 1/sqrt(k-1) (Dasgupta et al. 2016, section 3; Bar-Yossef et al., "Counting Distinct
/// Elements in a Data Stream", 2002), which is 2.2 % at k = 2,048.
#[test]
fn the_error_is_what_theory_says() {
    for (lg_k, n) in [(11, 10_000), (11, 100_000), (8, 10_000)] {
        let (mean, rms) = relative_errors(Kind::Audience, lg_k, n);
        let theory = 1.0 / f64::from((1_u32 << lg_k) - 1).sqrt();
        assert!(rms <= 1.2 * theory, "lg_k {lg_k}, n {n}: {rms} against {theory}");
        assert!(mean.abs() <= 3.0 * rms / 200_f64.sqrt(), "lg_k {lg_k}, n {n}: bias {mean}");
    }
}
