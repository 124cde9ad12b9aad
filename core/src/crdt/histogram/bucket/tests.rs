use std::cmp::Ordering;

use num_bigint::BigInt;
use proptest::prelude::*;

use super::*;
use crate::crdt::span::tests::doubles;

/// Two to a power from -1074 to 1023.
pub(crate) fn power(exponent: i32) -> f64 {
    match exponent {
        -1022.. => 2_f64.powi(exponent),
        _ => f64::from_bits(1 << (exponent + 1074)),
    }
}

/// Compares a positive double with 2^(index / 2^scale), using whole numbers.
fn compare(magnitude: f64, index: i32, scale: u16) -> Ordering {
    // m * 2^e against 2^(i / r): m^r * 2^(e * r) against 2^i.
    let (significand, exponent) = parts(magnitude);
    let roots = 1_i32 << scale;
    let (left, right) = (BigInt::from(significand).pow(1 << scale), BigInt::from(1));
    match exponent * roots - index {
        more @ 0.. => (left << more).cmp(&right),
        less => left.cmp(&(right << -less)),
    }
}

fn check(magnitude: f64) {
    for scale in 0..=SCALE_MAX {
        let Bucket::Positive(index) = Bucket::of(magnitude, scale) else {
            panic!("{magnitude:e} is positive")
        };
        assert_eq!(compare(magnitude, index, scale), Ordering::Greater, "{magnitude:e} {scale}");
        assert_ne!(
            compare(magnitude, index + 1, scale),
            Ordering::Greater,
            "{magnitude:e} {scale}"
        );
        let bucket = Bucket::Positive(index);
        let (lower, upper) = bucket.bounds(scale);
        assert!(lower < magnitude && magnitude <= upper, "{lower:e} {magnitude:e} {upper:e}");
        assert_ne!(compare(upper, index + 1, scale), Ordering::Greater, "the bound is beyond");
        assert_eq!(Bucket::at(i128::from(bucket.position(scale)), scale), Some(bucket));
        let negative = Bucket::of(-magnitude, scale);
        assert_eq!(negative, Bucket::Negative(Reverse(index)));
        assert_eq!(negative.bounds(scale), (-upper, -lower));
        assert_eq!(negative.position(scale), -bucket.position(scale));
        assert_eq!(Bucket::at(-i128::from(bucket.position(scale)), scale), Some(negative));
        assert!(negative < Bucket::Zero && Bucket::Zero < bucket);
        let estimate = bucket.estimate(scale);
        let off = (estimate - magnitude).abs();
        let is_subnormal = magnitude < f64::MIN_POSITIVE;
        let grid = if is_subnormal { 5e-324 } else { 0.0 };
        assert!(off <= magnitude * relative_error(scale) + grid, "{estimate:e} {magnitude:e}");
        assert!(lower < estimate && estimate <= upper, "{lower:e} {estimate:e} {upper:e}");
    }
}

proptest! {
    #[test]
    fn every_double_is_in_its_bucket(value in doubles()) {
        if value != 0.0 {
            check(value.abs());
        }
    }

    #[test]
    fn boundaries_belong_to_the_bucket_below(index in -1074 << 8..1024 << 8, scale in 0..=8_u16) {
        let upper = boundary(index >> (8 - scale), scale);
        if upper > 0.0 {
            check(upper);
            prop_assume!(upper < f64::MAX);
            check(upper.next_up());
            let above = boundary((index >> (8 - scale)) + 1, scale);
            prop_assert!(Bucket::of(upper, scale) < Bucket::of(upper.next_up(), scale)
                || above == upper);
        }
    }

    #[test]
    fn buckets_are_in_the_order_of_values(a in doubles(), b in doubles(), scale in 0..=8_u16) {
        let (low, high) = (a.min(b), a.max(b));
        let (low, high) = (Bucket::of(low, scale), Bucket::of(high, scale));
        prop_assert!(low <= high);
        prop_assert_eq!(low.position(scale).cmp(&high.position(scale)), low.cmp(&high));
    }

    #[test]
    fn coarser_buckets_are_unions_of_finer_ones(
        value in doubles(), scale in 0..=8_u16, by in 0..9_u16,
    ) {
        let by = by.min(scale);
        prop_assert_eq!(Bucket::of(value, scale).coarser(by), Bucket::of(value, scale - by));
    }

    #[test]
    fn no_position_panics(position: i128, scale in 0..=8_u16, short in 0..128) {
        if let Some(bucket) = Bucket::at(position >> short, scale) {
            prop_assert_eq!(i128::from(bucket.position(scale)), position >> short);
        }
    }
}

#[test]
fn odd_doubles_are_in_their_buckets() {
    for value in [5e-324, 1e-323, 1.5e-323, f64::MIN_POSITIVE, f64::MIN_POSITIVE.next_down(), 1.0] {
        check(value);
        check(value.next_up());
    }
    check(f64::MAX);
    check(f64::MAX.next_down());
    (-1074..1024).for_each(|exponent| check(power(exponent)));
    assert_eq!(Bucket::of(0.0, 3), Bucket::Zero);
}

#[test]
fn boundaries_of_the_definition() {
    for (value, scale, index) in [
        (1.0, 0, -1),
        (1.0_f64.next_up(), 0, 0),
        (2.0, 0, 0),
        (4.0, 0, 1),
        (4.0, 1, 3),
        (3.0, 1, 3),
        (2.0, 8, 255),
        (5e-324, 0, -1075),
        (f64::MAX, 0, 1023),
    ] {
        assert_eq!(Bucket::of(value, scale), Bucket::Positive(index), "{value:e}");
    }
}

/// At scale 0 there are fewer buckets than a histogram can have.
#[test]
fn buckets_without_doubles_have_no_position() {
    let met = |scale, positions: std::ops::RangeInclusive<i128>| {
        positions.filter(|position| Bucket::at(*position, scale).is_some()).count()
    };
    assert_eq!(met(0, -5000..=5000), 2 * 2099 + 1);
    assert!(met(0, -5000..=5000) <= super::super::BUCKETS_MAX);
    // 2^-1074 and 2 * 2^-1074 are neighbours, with 256 boundaries between them.
    assert_eq!(met(8, 1..=257), 2);
    assert_eq!(Bucket::at((1024 + 1074) << 8, 8), Some(Bucket::Positive((1024 << 8) - 2)));
    assert!(Bucket::at(((1024 + 1074) << 8) + 1, 8).is_some());
    assert_eq!(Bucket::at(((1024 + 1074) << 8) + 2, 8), None);
    assert_eq!(Bucket::at(i128::MIN, 8), None);
}
/// The boundary b has b^256 <= (2^52)^256 * 2^j < (b + 1)^256.
#[test]
fn boundaries_are_exact() {
    for (j, boundary) in BOUNDARIES.iter().enumerate() {
        let power = BigUint::from(1_u8) << (52 * 256 + j);
        assert!(BigUint::from(*boundary).pow(256) <= power, "{j}");
        assert!(BigUint::from(boundary + 1).pow(256) > power, "{j}");
    }
}
