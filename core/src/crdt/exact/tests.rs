use std::cmp::Ordering;

use super::*;
use crate::crdt::span::tests::doubles;
use proptest::collection::vec;
use proptest::prelude::*;

fn sum(values: &[f64]) -> ExactSum {
    let mut sum = ExactSum::default();
    values.iter().for_each(|value| sum.add(*value, 1));
    sum
}

fn bytes(sum: &ExactSum) -> Vec<u8> {
    let mut out = Vec::new();
    sum.encode(&mut out);
    out
}

fn read(bytes: &[u8], terms: Terms) -> Result<ExactSum, DecodeError> {
    let mut reader = Reader::new(bytes);
    let sum = ExactSum::decode(&mut reader, terms)?;
    reader.end().map(|()| sum)
}

/// The number in units of 2^-4400, for comparisons using only whole numbers.
fn units(sum: &ExactSum) -> BigInt {
    sum.mantissa.clone() << (sum.exponent + 4400)
}

/// The midpoint between a positive double and the next one.
fn midpoint(value: f64) -> ExactSum {
    let mut twice = ExactSum::of(value);
    twice.plus(BigInt::from(1), i64::from(parts(value).1));
    twice.merge(&ExactSum::of(value));
    ExactSum::new(twice.mantissa, twice.exponent - 1)
}

/// Checks that `result`, which is not negative, is the nearest double to a number, or none if that is infinite
/// or wrongly 0; `compare` compares that number with others.
fn check_nearest(
    result: Option<f64>,
    compare: impl Fn(&ExactSum) -> Ordering,
) -> Result<(), TestCaseError> {
    let Some(result) = result else {
        let is_large = compare(&midpoint(f64::MAX)) != Ordering::Less;
        let is_small = compare(&ExactSum::default()) == Ordering::Greater
            && compare(&midpoint(0.0)) != Ordering::Greater;
        prop_assert!(is_large || is_small, "a double is near");
        return Ok(());
    };
    let is_even = result.to_bits().is_multiple_of(2);
    match compare(&midpoint(result)) {
        Ordering::Less => {}
        Ordering::Equal => prop_assert!(is_even, "{result:e}: a tie"),
        Ordering::Greater => prop_assert!(false, "{result:e}: the next double is nearer"),
    }
    if result == 0.0 {
        prop_assert_eq!(compare(&ExactSum::default()), Ordering::Equal);
    } else {
        match compare(&midpoint(result.next_down())) {
            Ordering::Greater => {}
            Ordering::Equal => prop_assert!(is_even, "{result:e}: a tie"),
            Ordering::Less => prop_assert!(false, "{result:e}: the double before is nearer"),
        }
    }
    Ok(())
}

/// The midpoint between two doubles, and a little more.
#[test]
fn a_rest_breaks_a_tie() {
    let (even, tie, odd) = (2_f64.powi(53), (1_u64 << 53) + 1, 2_f64.powi(53) + 2.0);
    for divisor in [1_u64, 3, 10] {
        let product = BigInt::from(tie) * divisor;
        let over = |number| ExactSum::new(number, 0).over(&divisor.into());
        let quotients = (over(product.clone()), over(product + 1));
        assert_eq!(quotients, (Some(even), Some(odd)), "over {divisor}");
        for exponent in [0, 2, 4] {
            let square = BigInt::from(tie) * tie * divisor;
            let root = |number| ExactSum::new(number, exponent).root_over(&divisor.into());
            let scale = 2_f64.powi(i32::try_from(exponent / 2).expect("small"));
            let roots = (root(square.clone()), root(square + 1));
            let expected = (Some(even * scale), Some(odd * scale));
            assert_eq!(roots, expected, "the root over {divisor}");
        }
    }
}

#[test]
fn the_largest_doubles_are_themselves() {
    for value in [1e308, f64::MAX, 2_f64.powi(1023), -1e308] {
        assert_eq!(ExactSum::of(value).to_f64().map(f64::to_bits), Some(value.to_bits()));
    }
    assert_eq!(sum(&[f64::MAX, f64::MAX]).to_f64(), None);
}

proptest! {
    #[test]
    fn the_order_does_not_matter(
        terms in vec((doubles(), 1..u64::MAX), 0..40), by in any::<prop::sample::Index>(),
    ) {
        let add = |terms: &[(f64, u64)]| {
            let (mut sum, mut squares) = (ExactSum::default(), ExactSum::default());
            for (value, count) in terms {
                sum.add(*value, *count);
                squares.add_square(*value, *count);
            }
            (sum, squares)
        };
        let mut turned = terms.clone();
        turned.reverse();
        let (left, right) = turned.split_at(by.index(terms.len() + 1));
        let ((mut sum, mut squares), (more, more_squares)) = (add(right), add(left));
        sum.merge(&more);
        squares.merge(&more_squares);
        prop_assert_eq!((sum, squares), add(&terms));
    }

    #[test]
    fn sums_are_those_of_whole_numbers(terms in vec((doubles(), 1..u64::MAX), 0..20)) {
        let (mut sum, mut squares) = (ExactSum::default(), ExactSum::default());
        let (mut whole, mut whole_squares) = (BigInt::ZERO, BigInt::ZERO);
        for (value, count) in terms {
            sum.add(value, count);
            squares.add_square(value, count);
            let (significand, exponent) = parts(value);
            let unit = BigInt::from(significand) << (exponent + 1074);
            let unit = if value < 0.0 { -unit } else { unit };
            whole += &unit * count;
            whole_squares += &unit * &unit * count;
        }
        prop_assert_eq!(units(&sum), whole.clone() << (4400 - 1074));
        prop_assert_eq!(units(&squares), whole_squares.clone() << (4400 - 2148));
        prop_assert_eq!(units(&sum.times(7)), (whole.clone() * 7) << (4400 - 1074));
        prop_assert_eq!(units(&sum.squared()), (&whole * &whole) << (4400 - 2148));
        let less = squares.clone().minus(&sum.squared());
        prop_assert_eq!(units(&less), (whole_squares - &whole * &whole) << (4400 - 2148));
        for (sum, terms) in [(sum, Terms::Doubles), (squares, Terms::Squares)] {
            prop_assert_eq!(read(&bytes(&sum), terms), Ok(sum));
        }
    }

    #[test]
    fn whatever_decodes_is_canonical(bytes in vec(any::<u8>(), 0..24)) {
        for terms in [Terms::Doubles, Terms::Squares] {
            if let Ok(sum) = read(&bytes, terms) {
                prop_assert_eq!(self::bytes(&sum), bytes.clone());
                let again = ExactSum::new(sum.mantissa.clone(), sum.exponent);
                prop_assert_eq!(sum, again);
            }
        }
    }

    #[test]
    fn one_double_comes_back(value in doubles()) {
        prop_assert_eq!(ExactSum::of(value).to_f64().map(f64::to_bits), Some(value.to_bits()));
    }

    #[test]
    fn two_doubles_add_as_the_processor_adds_them(left in doubles(), right in doubles()) {
        let rounded = Some(left + right).filter(|sum| sum.is_finite());
        prop_assert_eq!(sum(&[left, right]).to_f64(), rounded);
    }

    #[test]
    fn quotients_are_as_the_processor_divides(value in doubles(), divisor in 1..1_u64 << 53) {
        let quotient = ExactSum::of(value).over(&BigUint::from(divisor));
        let expected = Some(value / divisor as f64).filter(|it| *it != 0.0 || value == 0.0);
        prop_assert_eq!(quotient, expected);
    }

    #[test]
    fn roots_are_as_the_processor_takes_them(value in doubles()) {
        let value = value.abs();
        prop_assert_eq!(ExactSum::of(value).root_over(&BigUint::from(1_u8)), Some(value.sqrt()));
    }

    #[test]
    fn results_are_rounded_once(
        values in vec(doubles().prop_map(f64::abs), 1..6), divisor: u128, short in 0..128_u32,
    ) {
        let (number, divisor) = (sum(&values), (divisor >> short).max(1));
        let big = BigUint::from(divisor);
        check_nearest(number.to_f64(), |other| units(&number).cmp(&units(other)))?;
        check_nearest(number.over(&big), |other| {
            units(&number).cmp(&units(&other.times(divisor)))
        })?;
        check_nearest(number.root_over(&big), |other| {
            units(&number).cmp(&units(&other.squared().times(divisor)))
        })?;
    }
}

#[test]
fn hard_sums() {
    let of = |values: &[f64]| sum(values).to_f64().expect("a double");
    assert_eq!(of(&[1e300, 1e-300, -1e300]), 1e-300);
    assert_eq!(of(&[0.1; 10]), 1.0, "1 + 2^-54, where the processor says 1 - 2^-53");
    assert_eq!(of(&[1e16, 1.0, -1e16]), 1.0);
    assert_eq!(of(&[f64::MAX, f64::MAX, -f64::MAX]), f64::MAX);
    assert_eq!(of(&[5e-324, 5e-324]), 1e-323);
    assert_eq!(sum(&[5e-324, -5e-324]), ExactSum::default());
    assert_eq!(of(&[-1.5, 0.5]), -1.0);
}

#[test]
fn ties_go_to_even() {
    let ulp = f64::EPSILON;
    assert_eq!(sum(&[1.0, ulp / 2.0]).to_f64(), Some(1.0));
    assert_eq!(sum(&[1.0 + ulp, ulp / 2.0]).to_f64(), Some(1.0 + 2.0 * ulp));
    assert_eq!(sum(&[1.0, ulp / 2.0, 5e-324]).to_f64(), Some(1.0 + ulp));
    let half = |value: f64| ExactSum::of(value).over(&BigUint::from(2_u8));
    assert_eq!(half(1.5e-323), Some(1e-323));
    // Digits beyond those of the quotient break a tie.
    let (large, divisor) = (2_f64.powi(153), BigUint::from(1_u8) << 100);
    let tie = sum(&[large, 2_f64.powi(100)]);
    assert_eq!(tie.over(&divisor), Some(2_f64.powi(53)));
    let more = sum(&[large, 2_f64.powi(100), 1.0]);
    assert_eq!(more.over(&divisor), Some(2_f64.powi(53) + 2.0));
    // A carry out of the subnormals.
    assert_eq!(half(2.0 * f64::MIN_POSITIVE - 5e-324), Some(f64::MIN_POSITIVE));
    assert_eq!(ExactSum::of(1.0).over(&BigUint::from(3_u8)), Some(1.0 / 3.0));
}

#[test]
fn what_is_beyond_the_doubles_has_none() {
    let mut sum = ExactSum::of(f64::MAX);
    sum.add(2_f64.powi(969), 1);
    assert_eq!(sum.to_f64(), Some(f64::MAX), "rounded down");
    sum.add(2_f64.powi(969), 1);
    assert_eq!(sum.to_f64(), None, "a tie that rounds up to 2^1024");
    sum.add(f64::MAX, u64::MAX);
    assert_eq!(sum.to_f64(), None);
    assert_eq!(sum.times(1).minus(&sum.times(2)).to_f64(), None);
    let half = |value: f64| ExactSum::of(value).over(&BigUint::from(2_u8));
    assert_eq!((half(5e-324), half(-5e-324)), (None, None), "a tie that rounds to 0");
    assert_eq!(half(0.0).map(f64::to_bits), Some(0), "zero has one sign");
    assert_eq!(ExactSum::of(5e-324).squared().to_f64(), None);
}

#[test]
fn only_the_shortest_form_of_a_possible_sum_is_decodable() {
    let encode = |length: i128, exponent: i128, magnitude: &[u8]| {
        let mut out = Vec::new();
        varint::put_signed(length, &mut out);
        varint::put_signed(exponent, &mut out);
        out.extend_from_slice(magnitude);
        out
    };
    assert_eq!(bytes(&ExactSum::of(-5.0)), encode(-1, 0, &[5]));
    assert_eq!(bytes(&ExactSum::of(768.0)), encode(1, 8, &[3]));
    assert_eq!(bytes(&ExactSum::default()), [0]);
    let largest = [0xFF; 279];
    for (terms, bytes, is_good) in [
        (Terms::Doubles, encode(1, -1074, &[1]), true),
        (Terms::Doubles, encode(1, -1075, &[1]), false),
        (Terms::Squares, encode(1, -2148, &[1]), true),
        (Terms::Squares, encode(1, -2149, &[1]), false),
        (Terms::Squares, encode(-1, 0, &[1]), false),
        (Terms::Doubles, encode(1, 0, &[2]), false),
        (Terms::Doubles, encode(2, 0, &[1, 0]), false),
        (Terms::Doubles, encode(279, -1074, &largest), true),
        (Terms::Doubles, encode(279, -1000, &largest), false),
        (Terms::Doubles, encode(1, 1200, &[1]), false),
        (Terms::Doubles, encode(1, i128::MAX, &[1]), false),
        (Terms::Doubles, encode(i128::MIN, 0, &[1]), false),
        (Terms::Doubles, encode(2, 0, &[1]), false),
    ] {
        assert_eq!(read(&bytes, terms).is_ok(), is_good, "{terms:?} {bytes:x?}");
    }
}
