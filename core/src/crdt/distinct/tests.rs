use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;

use super::*;
use crate::crdt::item::Item;
use crate::crdt::item::tests::items;
use crate::crdt::sketch::tests::{check_refused, mutated, relative_errors};
use crate::crdt::{Kind, State, laws};

/// Consecutive numbers, in one op or as a foreign sketch.
fn add(from: i64, n: i64) -> SketchOp<Distinct> {
    SketchOp::Add { items: (from..from + n).map(Item::Number).collect() }
}

fn foreign(lg_k: u8, from: i64, n: i64) -> Vec<u8> {
    let mut sketch = CpcSketch::new(lg_k).expect("a sketch");
    (from..from + n).for_each(|number| sketch.update(number));
    sketch.serialize()
}

fn merge(image: &[u8]) -> SketchOp<Distinct> {
    SketchOp::Merge { sketch: Distinct::import(image).expect("a sketch").into() }
}

/// Small sketches coarsen the state, so that the other ops reach all flavors of the library.
fn ops() -> impl Strategy<Value = SketchOp<Distinct>> {
    let from = || prop_oneof![0..300_i64, any::<i32>().prop_map(i64::from)];
    prop_oneof![
        4 => prop::collection::vec(items(), 1..5).prop_map(|items| SketchOp::Add { items }),
        2 => (from(), 1..1_000_i64).prop_map(|(from, n)| add(from, n)),
        2 => (4..=9_u8, from(), 0..3_000_i64).prop_map(|(lg_k, from, n)| {
            merge(&foreign(lg_k, from, n))
        }),
        1 => (10..=14_u8, from(), 0..2_000_i64).prop_map(|(lg_k, from, n)| {
            merge(&foreign(lg_k, from, n))
        }),
    ]
}

laws::suite!(Distinct, ops());

/// States of every precision, most of them empty or nearly empty.
fn states() -> impl Strategy<Value = Distinct> {
    let n = prop_oneof![3 => Just(0), 2 => 1..5_i64, 1 => 0..1_000_i64];
    (4..=14_u16, 0..100_i64, n).prop_map(|(lg_k, from, n)| {
        let mut state = Distinct::with_precision(lg_k);
        if n > 0 {
            state.apply(&add(from, n)).expect("items");
        }
        state
    })
}

proptest! {
    #[test]
    fn states_of_any_precision_merge_to_the_coarser(a in states(), b in states(), c in states()) {
        use laws::{bytes, merged, stored};
        let both = merged(&a, &b);
        prop_assert_eq!(both.precision(), a.precision().min(b.precision()));
        prop_assert_eq!(bytes(&both), bytes(&merged(&b, &a)));
        prop_assert_eq!(bytes(&merged(&both, &c)), bytes(&merged(&a, &merged(&stored(&b), &c))));
        prop_assert_eq!(bytes(&merged(&Distinct::default(), &a)), bytes(&a));
        prop_assert_eq!(bytes(&merged(&a, &Distinct::default())), bytes(&a));
    }

    /// A foreign sketch counts the same as its items.
    #[test]
    fn a_merged_sketch_is_its_items(lg_k in 4..=14_u8, n in 1..1_000_i64) {
        let mut of_items = Distinct::with_precision(u16::from(lg_k));
        of_items.apply(&add(0, n)).expect("items");
        let mut of_sketch = Distinct::default();
        of_sketch.apply(&merge(&foreign(lg_k, 0, n))).expect("a sketch");
        prop_assert_eq!(&of_sketch, &of_items);
        let own = merge(&of_items.to_datasketches());
        prop_assert_eq!(of_sketch.apply(&own), Ok(Effect::Unchanged));
    }

    /// Any bytes give an answer, not a panic, and a state that can be stored.
    #[test]
    fn hostile_sketches_are_refused_or_counted(image in mutants()) {
        let state = Distinct::with_precision(8);
        let mut after = state.clone();
        let Ok(sketch) = Distinct::import(&image) else { return Ok(()) };
        match after.apply(&SketchOp::Merge { sketch: sketch.into() }) {
            Ok(_) => {
                laws::stored(&after);
            }
            Err(OpError::Invalid(_)) => prop_assert_eq!(after, state),
            Err(other) => panic!("{other}"),
        }
    }
}

/// Images with a few changed bytes or a changed tail.
fn mutants() -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<prop::sample::Index>(), any::<u8>());
    let header_change = (prop::sample::select(vec![0, 3, 4, 5, 8, 9, 12, 13, 16, 20]), any::<u8>());
    (
        4..=8_u8,
        prop_oneof![0..64_i64, 0..100_000_i64],
        prop::collection::vec(change, 0..4),
        prop::collection::vec(header_change, 0..2),
        prop::option::of((8..40_usize, prop::collection::vec(any::<u8>(), 0..256))),
    )
        .prop_map(|(lg_k, n, changes, header_changes, tail)| {
            let image = foreign(lg_k, 0, n);
            mutated(image, tail, changes, header_changes)
        })
}

#[test]
fn bad_sketches_are_refused_with_the_reason() {
    let image = foreign(11, 0, 10_000);
    let with = |at: usize, byte: u8| {
        let mut bad = image.clone();
        bad[at] = byte;
        bad
    };
    let long = [&image[..], &[0; 4]].concat();
    let seeded = CpcSketch::with_seed(11, 1).expect("a sketch").serialize();
    for (bad, says) in [
        (Vec::new(), "`sketch` is corrupt: it has 0 bytes"),
        (image[..7].to_vec(), "`sketch` is corrupt: it has 7 bytes"),
        (with(2, 3), "`sketch` is of another family: its family byte is 3"),
        (seeded, "`sketch` has another hash seed"),
        (with(3, 3), "`sketch` has lg_k 3; build it with 4 to 14"),
        (foreign(15, 0, 1), "`sketch` has lg_k 15; build it with 4 to 14"),
        (with(1, 9), "`sketch` is corrupt"),
        (image[..12].to_vec(), "`sketch` is corrupt: it is cut off within its preamble"),
        (image[..image.len() - 4].to_vec(), "`sketch` is corrupt: it is shorter or longer"),
        (long, "`sketch` is corrupt: it is shorter or longer"),
        (with(8, image[8] ^ 1), "`sketch` is corrupt: its number of coupons is not the one"),
        (with(10, 0xFF), "`sketch` is corrupt: it has more coupons than items can make"),
    ] {
        check_refused::<Distinct>(&bad, says);
    }
    let json = serde_json::json!({"op": "merge", "sketch": STANDARD.encode(&image)});
    let op = Kind::Distinct.parse_op(&json).expect("an op");
    assert_eq!(State::new(Kind::Distinct, None).apply(&op), Ok(Effect::Changed));
}

/// With 736 coupons outside the window; a table of `lg_k` 4 has room for 384.
#[test]
fn an_image_that_the_library_panics_over_is_refused_before() {
    // At lg_k 5 there is room. The rows above 15 have nothing outside the window, so the same pairs are valid
    // at lg_k 4.
    let mut sketch = empty(5);
    for column in 0..26 {
        for row in 0..16 {
            sketch.update(raw_bytes::from_slice(&item_of_coupon(row, 28 + column)));
            if column < 20 {
                sketch.update(raw_bytes::from_slice(&item_of_coupon(16 + row, column)));
            }
        }
    }
    let mut image = united(5, &[&sketch]).serialize();
    image[3] = 4;
    assert!(catch_unwind(|| CpcSketch::deserialize(&image)).is_err(), "the library has improved");
    let says = "more coupons than items can make";
    check_refused::<Distinct>(&image, says);
}

#[test]
fn effects_tell_every_new_coupon() {
    for lg_k in [4, 7, 11] {
        let mut state = Distinct::with_precision(lg_k);
        let mut before = laws::bytes(&state);
        for number in 0..20_000 {
            let effect = state.apply(&add(number, 1)).expect("an item");
            let after = laws::bytes(&state);
            assert_eq!(effect, Effect::of(after != before), "item {number} at lg_k {lg_k}");
            before = after;
        }
    }
}

#[test]
fn the_precision_is_kept_and_part_of_the_bytes() {
    let mut state = Distinct::with_precision(12);
    state.apply(&add(0, 100)).expect("items");
    let bytes = laws::bytes(&state);
    assert_eq!(Distinct::decode(1, Some(12), &bytes), Ok(state));
    for (format, precision) in [(1, Some(11)), (1, None)] {
        let refused = Distinct::decode(format, precision, &bytes);
        assert_eq!(refused, Err(DecodeError::NotCanonical));
    }
    assert_eq!(Distinct::decode(2, Some(12), &bytes), Err(DecodeError::Format(2)));
    // This sketch as its library would write it, with the state of the HIP estimator.
    let foreign = foreign(12, 0, 100);
    assert_eq!(Distinct::decode(1, Some(12), &foreign), Err(DecodeError::NotCanonical));
}

#[test]
fn sketches_are_equal_if_their_coupons_are() {
    let of = |number| {
        let mut state = Distinct::with_precision(11);
        state.apply(&add(number, 1)).expect("an item");
        state
    };
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
    assert_ne!(of(1), Distinct::with_precision(11));
}

/// One mutator or five: the same bytes, and so the same value.
#[test]
fn the_value_does_not_depend_on_the_number_of_mutators() {
    // Empty states are merged and stored too; the result must not depend on that.
    let mut one = laws::stored(&laws::merged(&Distinct::default(), &Distinct::with_precision(11)));
    let mut five = vec![Distinct::with_precision(11); 5];
    assert_eq!(one, five[0]);
    for number in 0..30_000 {
        one.apply(&add(number, 1)).expect("an item");
        let mutator = usize::try_from(number % 5).expect("an index");
        five[mutator].apply(&add(number, 1)).expect("an item");
    }
    let merged = five.iter().fold(Distinct::default(), |all, state| laws::merged(&all, state));
    assert_eq!(merged.value(&Question::default()), one.value(&Question::default()));
    assert_eq!(merged, one);
}

/// The standard error of ICON is ln 2 / sqrt(k) (the library's ICON_ERROR_CONSTANT; Lang 2017, section 5, as
/// n/k grows), which is 1.53 % at k = 2,048.
#[test]
fn the_error_is_what_theory_says() {
    for (lg_k, n) in [(11, 10_000), (11, 100_000), (8, 10_000)] {
        let (mean, rms) = relative_errors(Kind::Distinct, lg_k, n);
        let theory = std::f64::consts::LN_2 / f64::from(1_u32 << lg_k).sqrt();
        assert!(rms <= 1.2 * theory, "lg_k {lg_k}, n {n}: {rms} against {theory}");
        assert!(mean.abs() <= 3.0 * rms / 200_f64.sqrt(), "lg_k {lg_k}, n {n}: bias {mean}");
    }
}

/// An attacker who computes the hash backwards can choose every coupon.
#[test]
fn chosen_coupons_are_refused_before_they_break_the_state() {
    let (rising, falling): (Vec<u32>, Vec<u32>) = ((0..64).collect(), (0..64).rev().collect());
    for columns in [&rising, &falling, &rising[31..]] {
        let mut state = Distinct::with_precision(4);
        let mut refused = 0;
        for &column in columns {
            for row in 0..16 {
                let mut sketch = CpcSketch::new(4).expect("a sketch");
                sketch.update(raw_bytes::from_slice(&item_of_coupon(row, column)));
                match state.apply(&merge(&sketch.serialize())) {
                    Ok(effect) => assert_eq!(effect, Effect::Changed),
                    Err(error) => {
                        assert!(error.to_string().contains("more coupons"), "{error}");
                        refused += 1;
                    }
                }
                laws::stored(&state);
            }
        }
        assert!(refused > 0, "{columns:?}");
    }
}

/// States that are valid alone, but not together: an error of the merge, not a panic.
#[test]
fn states_of_chosen_coupons_may_refuse_to_merge() {
    let of_column = |column| {
        let mut sketch = empty(9);
        for row in 0..150 {
            sketch.update(raw_bytes::from_slice(&item_of_coupon(row, column)));
        }
        assert!(is_sound(&sketch));
        Distinct { sketch }
    };
    let mut state = of_column(60);
    assert_eq!(state.merge(&of_column(61)), Err(MergeError::Implausible { kind: "distinct" }));
}

/// The weight of waiting ops.
#[test]
fn memory_is_that_of_the_window_and_the_table() {
    for (n, least, most) in [(0, 0, 300), (1_000, 2_000, 10_000), (100_000, 4_096, 10_000)] {
        let bytes = Distinct::import(&foreign(12, 0, n)).expect("a sketch").memory_bytes();
        assert!((least..=most).contains(&bytes), "{n}: {bytes}");
    }
}

/// Sixteen bytes whose MurmurHash3 (x64, 128 bits, seed 9001) names this coupon: the hash function run
/// backwards.
fn item_of_coupon(row: u64, column: u32) -> [u8; 16] {
    const SEED: u64 = 9001;
    const C1: u64 = 0x87c3_7b91_1142_53d5;
    const C2: u64 = 0x4cf5_ad43_2745_937f;
    let inverse =
        |odd: u64| (0..6).fold(odd, |x, _| x.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(x))));
    let unmix = |mut x: u64| {
        x ^= x >> 33;
        x = x.wrapping_mul(inverse(0xc4ce_b9fe_1a85_ec53));
        x ^= x >> 33;
        x = x.wrapping_mul(inverse(0xff51_afd7_ed55_8ccd));
        x ^ x >> 33
    };
    let (mut h1, mut h2) = (row, 1_u64 << (63 - column));
    h2 = h2.wrapping_sub(h1);
    h1 = unmix(h1.wrapping_sub(h2));
    h2 = unmix(h2).wrapping_sub(h1);
    h1 = h1.wrapping_sub(h2) ^ 16;
    h2 ^= 16;
    let k2 = h2.wrapping_sub(0x3849_5ab5).wrapping_mul(inverse(5)).wrapping_sub(h1);
    let k1 = h1.wrapping_sub(0x52dc_e729).wrapping_mul(inverse(5)).wrapping_sub(SEED);
    let k1 = (k1.rotate_right(27) ^ SEED).wrapping_mul(inverse(C2)).rotate_right(31);
    let k2 = (k2.rotate_right(31) ^ SEED).wrapping_mul(inverse(C1)).rotate_right(33);
    let mut item = [0; 16];
    item[..8].copy_from_slice(&k1.wrapping_mul(inverse(C1)).to_le_bytes());
    item[8..].copy_from_slice(&k2.wrapping_mul(inverse(C2)).to_le_bytes());
    item
}
