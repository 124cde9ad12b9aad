//! Sums of doubles without rounding, and results of such sums that are rounded once.
//!
//! A finite double is a whole multiple of 2^-1074 and its square one of 2^-2148 (IEEE 754-2019), so a sum of
//! them is a whole number times a power of two. Addition of whole numbers is commutative and associative;
//! addition of doubles is not. That makes kinds with sums exact.

use num_bigint::{BigInt, BigUint, Sign};

use super::DecodeError;
use super::varint::{self, Reader};

/// Bits of a double's significand, including the one that is not stored.
const SIGNIFICAND_BITS: i64 = 53;
/// The smallest positive double is two to this power.
const EXPONENT_MIN: i64 = -1074;
/// Every double is smaller than two to this power.
const EXPONENT_END: i64 = 1024;
/// The number of terms of a sum has this many bits.
const COUNT_BITS: i64 = 128;

/// The magnitude of a finite double as `significand * 2^exponent`.
pub(crate) fn parts(value: f64) -> (u64, i32) {
    let bits = value.to_bits();
    let fraction = bits & ((1 << 52) - 1);
    // Subnormals have the exponent of the smallest normal doubles, and no hidden bit.
    match ((bits >> 52) & 0x7ff) as i32 {
        0 => (fraction, -1074),
        exponent => (fraction | 1 << 52, exponent - 1075),
    }
}

/// The terms of a sum, which limit its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Terms {
    /// Doubles.
    Doubles,
    /// Squares of doubles.
    Squares,
}

/// An exact dyadic number, `mantissa * 2^exponent`. The mantissa is odd, or both are zero, so equal numbers
/// have equal bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ExactSum {
    mantissa: BigInt,
    exponent: i64,
}

impl ExactSum {
    /// A finite double.
    pub(crate) fn of(value: f64) -> ExactSum {
        let mut sum = ExactSum::default();
        sum.add(value, 1);
        sum
    }

    /// Adds a finite double `count` times.
    pub(crate) fn add(&mut self, value: f64, count: u64) {
        let (significand, exponent) = parts(value);
        // 53 bits times 64 bits.
        let magnitude = i128::from(significand) * i128::from(count);
        let signed = if value < 0.0 { -magnitude } else { magnitude };
        self.plus(BigInt::from(signed), i64::from(exponent));
    }

    /// Adds the square of a finite double `count` times.
    pub(crate) fn add_square(&mut self, value: f64, count: u64) {
        let (significand, exponent) = parts(value);
        let square = u128::from(significand) * u128::from(significand);
        self.plus(BigInt::from(square) * count, 2 * i64::from(exponent));
    }

    /// Adds another sum.
    pub(crate) fn merge(&mut self, other: &ExactSum) {
        self.plus(other.mantissa.clone(), other.exponent);
    }

    /// This number times a whole number.
    pub(crate) fn times(&self, factor: u128) -> ExactSum {
        ExactSum::new(&self.mantissa * factor, self.exponent)
    }

    /// This number times itself.
    pub(crate) fn squared(&self) -> ExactSum {
        ExactSum::new(&self.mantissa * &self.mantissa, 2 * self.exponent)
    }

    /// This number minus another.
    pub(crate) fn minus(mut self, other: &ExactSum) -> ExactSum {
        self.plus(-other.mantissa.clone(), other.exponent);
        self
    }

    /// Whether it is less than zero.
    pub(crate) fn is_negative(&self) -> bool {
        self.mantissa.sign() == Sign::Minus
    }

    /// The nearest double, ties to even. None if that is infinite, or if it is 0 and the number is not.
    pub(crate) fn to_f64(&self) -> Option<f64> {
        self.signed(round(self.mantissa.magnitude(), self.exponent, false))
    }

    /// The double nearest to the quotient, rounded as in [`ExactSum::to_f64`]. The divisor must not be zero.
    pub(crate) fn over(&self, divisor: &BigUint) -> Option<f64> {
        let magnitude = self.mantissa.magnitude();
        // A quotient of at least 65 bits, so that a remainder only breaks ties.
        let shift = (divisor.bits() + 66).saturating_sub(magnitude.bits());
        let dividend = magnitude << shift;
        let quotient = &dividend / divisor;
        let has_rest = &quotient * divisor != dividend;
        self.signed(round(&quotient, self.exponent - shift.cast_signed(), has_rest))
    }

    /// The double nearest to the square root of the quotient, rounded as in [`ExactSum::to_f64`]. This number
    /// must not be negative, and the divisor must not be zero.
    pub(crate) fn root_over(&self, divisor: &BigUint) -> Option<f64> {
        let magnitude = self.mantissa.magnitude();
        // A root of at least 65 bits, times an even power of two.
        let mut shift = (divisor.bits() + 132).saturating_sub(magnitude.bits());
        shift += (self.exponent.cast_unsigned() ^ shift) & 1;
        let dividend = magnitude << shift;
        // The root of a number and the root of its whole part have the same whole part.
        let root = (&dividend / divisor).sqrt();
        let has_rest = &root * &root * divisor != dividend;
        round(&root, (self.exponent - shift.cast_signed()) / 2, has_rest)
    }

    /// Appends the length of the magnitude in bytes with the sign of the number, then, unless it is zero, the
    /// exponent in zigzag form and the magnitude, least significant byte first.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let (sign, magnitude) = self.mantissa.to_bytes_le();
        match sign {
            Sign::NoSign => return varint::put_signed(0, out),
            Sign::Plus => varint::put_signed(magnitude.len() as i128, out),
            Sign::Minus => varint::put_signed(-(magnitude.len() as i128), out),
        }
        varint::put_signed(i128::from(self.exponent), out);
        out.extend_from_slice(&magnitude);
    }

    /// Reads what [`ExactSum::encode`] writes, up to the size that a sum of such terms can have: at most 279
    /// bytes of magnitude for doubles, and 541 for their squares.
    pub(crate) fn decode(reader: &mut Reader<'_>, terms: Terms) -> Result<ExactSum, DecodeError> {
        let length = reader.signed()?;
        if length == 0 {
            return Ok(ExactSum::default());
        }
        let malformed = |_| DecodeError::NotCanonical;
        let exponent = i64::try_from(reader.signed()?).map_err(malformed)?;
        let bytes = reader.bytes(usize::try_from(length.unsigned_abs()).map_err(malformed)?)?;
        let is_shortest = bytes.first().is_some_and(|least| least % 2 == 1)
            && bytes.last().is_some_and(|most| *most != 0);
        let power = match terms {
            Terms::Doubles => 1,
            Terms::Squares => 2,
        };
        let bits = 8 * i64::try_from(bytes.len()).map_err(malformed)?;
        // One byte more than the limit needs.
        let end = power * EXPONENT_END + COUNT_BITS + 8;
        let fits = exponent >= power * EXPONENT_MIN && exponent < end - bits;
        if !is_shortest || !fits || (terms == Terms::Squares && length < 0) {
            return Err(DecodeError::NotCanonical);
        }
        let sign = if length < 0 { Sign::Minus } else { Sign::Plus };
        Ok(ExactSum { mantissa: BigInt::from_bytes_le(sign, bytes), exponent })
    }

    fn new(mantissa: BigInt, exponent: i64) -> ExactSum {
        let mut sum = ExactSum { mantissa, exponent };
        sum.normalize();
        sum
    }

    fn plus(&mut self, mantissa: BigInt, exponent: i64) {
        if mantissa == BigInt::ZERO {
            return;
        }
        let shift = exponent - self.exponent;
        if shift >= 0 {
            self.mantissa += mantissa << shift;
        } else {
            self.mantissa <<= -shift;
            self.mantissa += mantissa;
            self.exponent = exponent;
        }
        self.normalize();
    }

    fn normalize(&mut self) {
        match self.mantissa.trailing_zeros() {
            None => self.exponent = 0,
            Some(0) => {}
            Some(zeros) => {
                self.mantissa >>= zeros;
                self.exponent += zeros.cast_signed();
            }
        }
    }

    /// Gives a magnitude the sign of this number.
    fn signed(&self, magnitude: Option<f64>) -> Option<f64> {
        if self.is_negative() { magnitude.map(|magnitude| -magnitude) } else { magnitude }
    }
}

/// The double nearest to `magnitude * 2^exponent`, ties to even. None if that is infinite, or if it is 0 and
/// the number is not. `has_rest` means that the number is a little larger than that, by less than one in the
/// last place of a magnitude of more than 54 bits.
fn round(magnitude: &BigUint, exponent: i64, has_rest: bool) -> Option<f64> {
    if *magnitude == BigUint::ZERO {
        return Some(0.0);
    }
    let end = exponent + magnitude.bits().cast_signed();
    if end > EXPONENT_END {
        return None;
    }
    // One in the last place of the result is two to this power; subnormals have fewer places.
    let last = (end - SIGNIFICAND_BITS).max(EXPONENT_MIN);
    let significand = match (last - exponent).cast_unsigned() {
        0 => magnitude.clone(),
        _ if last < exponent => magnitude << (exponent - last),
        cut => {
            let kept = magnitude >> cut;
            let is_half = magnitude.bit(cut - 1);
            let is_more =
                has_rest || magnitude.trailing_zeros().is_some_and(|zeros| zeros < cut - 1);
            let up = is_half && (is_more || kept.bit(0));
            kept + u8::from(up)
        }
    };
    let significand = u64::try_from(significand).expect("invariant: a double has 53 bits");
    // The bits of a double are its significand plus an exponent that counts from the subnormals'. The hidden
    // bit and a carry from rounding each add one to that exponent, as they should.
    let bits = ((last - EXPONENT_MIN).cast_unsigned() << 52) + significand;
    Some(f64::from_bits(bits)).filter(|double| *double != 0.0 && double.is_finite())
}

#[cfg(test)]
mod tests;
