//! Finds the bucket of a double and the doubles of a bucket, using only whole numbers: a logarithm of the
//! platform's library could differ between two pods in the last place.

use std::cmp::Reverse;
use std::sync::LazyLock;

use num_bigint::BigUint;

use crate::crdt::exact::parts;

/// The finest scale, with 256 buckets for each power of two.
pub(super) const SCALE_MAX: u16 = 8;

/// Buckets for each power of two at the finest scale.
const FINEST: usize = 1 << SCALE_MAX;

const TWO_TO_THE_MINUS_64: f64 = 1.0 / (1_u128 << 64) as f64;

/// The whole part of 2^52 * 2^(j/256) for each j: the boundaries of the finest buckets among the 53-bit
/// significands. They are powers of 2^(1/256), calculated by eight square roots, with enough binary places
/// that the dropped ones do not affect the whole part. The tests check this against the definition.
static BOUNDARIES: LazyLock<[u64; FINEST]> = LazyLock::new(|| {
    const PLACES: u32 = 192;
    let one = BigUint::from(1_u8) << PLACES;
    let root = (0..SCALE_MAX).fold(&one << 1, |power: BigUint, _| (power << PLACES).sqrt());
    let mut power = one;
    std::array::from_fn(|_| {
        let whole = &power >> (PLACES - 52);
        power = (&power * &root) >> PLACES;
        u64::try_from(whole).expect("invariant: less than 2^53")
    })
});

/// A bucket of some scale, in the order of the values. The index is that of the magnitudes: at scale s,
/// bucket i holds magnitudes greater than 2^(i / 2^s) and at most 2^((i + 1) / 2^s).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Bucket {
    /// Negative values; the larger the magnitude, the smaller the value.
    Negative(Reverse<i32>),
    /// Zero.
    Zero,
    /// Positive values.
    Positive(i32),
}

impl Bucket {
    /// The bucket of a finite double.
    pub(super) fn of(value: f64, scale: u16) -> Bucket {
        let bucket = match value {
            0.0 => Bucket::Zero,
            ..0.0 => Bucket::Negative(Reverse(finest_index(-value))),
            _ => Bucket::Positive(finest_index(value)),
        };
        bucket.coarser(SCALE_MAX - scale)
    }

    /// The bucket that contains this one at a scale lower by `by`.
    ///
    /// Let x = log2(magnitude) * 2^s. The index at scale s is i = ceil(x) - 1, and that at scale s - d is
    /// ceil(x / 2^d) - 1 = ceil(ceil(x) / 2^d) - 1 = ceil((i + 1) / 2^d) - 1, which for whole numbers is
    /// floor(i / 2^d): an arithmetic shift, also for negative indexes.
    pub(super) fn coarser(self, by: u16) -> Bucket {
        match self {
            Bucket::Negative(Reverse(index)) => Bucket::Negative(Reverse(index >> by)),
            Bucket::Zero => Bucket::Zero,
            Bucket::Positive(index) => Bucket::Positive(index >> by),
        }
    }

    /// The doubles that enclose its values, in ascending order. Unless both are zero, the one with the
    /// smaller magnitude does not belong to the bucket, and the one with the larger magnitude does.
    pub(super) fn bounds(self, scale: u16) -> (f64, f64) {
        match self {
            Bucket::Negative(Reverse(index)) => {
                (-boundary(index + 1, scale), 0.0 - boundary(index, scale))
            }
            Bucket::Zero => (0.0, 0.0),
            Bucket::Positive(index) => (boundary(index, scale), boundary(index + 1, scale)),
        }
    }

    /// The double with the smallest maximum relative distance from its values: the harmonic mean of the
    /// bounds. With base b it is (b - 1) / (b + 1) off at both ends, see [`relative_error`].
    pub(super) fn estimate(self, scale: u16) -> f64 {
        match self {
            Bucket::Negative(index) => -Bucket::Positive(index.0).estimate(scale),
            Bucket::Zero => 0.0,
            Bucket::Positive(index) => {
                let (lower, upper) = self.bounds(scale);
                // The mean of subnormals is calculated 64 octaves higher, so that it is rounded only once.
                let is_rough = lower < f64::MIN_POSITIVE;
                let (octaves, unit) = if is_rough { (64, TWO_TO_THE_MINUS_64) } else { (0, 1.0) };
                let (low, high) = Bucket::Positive(index + (octaves << scale)).bounds(scale);
                // In this order there is no overflow.
                let mean = high * (low / (low + (high - low) / 2.0)) * unit;
                mean.max(lower.next_up()).min(upper)
            }
        }
    }

    /// A whole number in the order of the buckets: 0 for zero, 1 and -1 for the smallest doubles.
    pub(super) fn position(self, scale: u16) -> i32 {
        match self {
            Bucket::Negative(index) => -Bucket::Positive(index.0).position(scale),
            Bucket::Zero => 0,
            Bucket::Positive(index) => index - smallest_index(scale) + 1,
        }
    }

    /// The bucket at a position, if it contains a double.
    pub(super) fn at(position: i128, scale: u16) -> Option<Bucket> {
        if position == 0 {
            return Some(Bucket::Zero);
        }
        let steps = i32::try_from(position.unsigned_abs()).ok()?;
        let index = steps.checked_add(smallest_index(scale) - 1)?;
        // Subnormals have fewer doubles than buckets, and above the largest double there are none.
        let is_met = index < 1024 << scale && boundary(index, scale) < boundary(index + 1, scale);
        is_met.then_some(match position {
            ..0 => Bucket::Negative(Reverse(index)),
            _ => Bucket::Positive(index),
        })
    }
}

/// Maximum relative distance of a bucket's estimate from any of its values: (b - 1) / (b + 1) for the base b,
/// plus room for the rounding of bounds and estimates. Values below 2^-1022 can be another 2^-1074 off.
pub(super) fn relative_error(scale: u16) -> f64 {
    let base = boundary(1, scale);
    (base - 1.0) / (base + 1.0) + 4.0 * f64::EPSILON
}

/// The index of a positive double at the finest scale.
fn finest_index(magnitude: f64) -> i32 {
    let (significand, exponent) = parts(magnitude);
    // Give subnormals a significand of the same length as the others.
    let shift = significand.leading_zeros().cast_signed() - 11;
    let (significand, exponent) = (significand << shift, exponent + 52 - shift);
    // A whole number is greater than a boundary if it is greater than the boundary's whole part.
    let passed = BOUNDARIES.partition_point(|boundary| *boundary < significand);
    let passed = i32::try_from(passed).expect("invariant: at most 256");
    (exponent << SCALE_MAX) + passed - 1
}

/// The index of the smallest positive double, 2^-1074, which is the upper bound of its bucket.
fn smallest_index(scale: u16) -> i32 {
    -(1074 << scale) - 1
}

/// The largest double that is at most 2^(index / 2^scale). A double is at most that number if it is at most
/// this one.
fn boundary(index: i32, scale: u16) -> f64 {
    let finest = index << (SCALE_MAX - scale);
    let exponent = finest >> SCALE_MAX;
    let significand = BOUNDARIES[(finest & 0xff).unsigned_abs() as usize];
    match exponent {
        1024.. => f64::MAX,
        // The hidden bit adds one to the exponent, which counts from -1023.
        -1022.. => {
            f64::from_bits((u64::from((exponent + 1022).unsigned_abs()) << 52) + significand)
        }
        _ => {
            f64::from_bits(significand.checked_shr((-1022 - exponent).unsigned_abs()).unwrap_or(0))
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
