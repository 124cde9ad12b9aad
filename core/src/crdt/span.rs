//! The smallest and the largest of some doubles.

use super::DecodeError;
use super::exact::ExactSum;
use super::varint::Reader;

/// Appends a finite double: the eight bytes of its IEEE 754 form, least significant first.
pub(crate) fn put_double(value: f64, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.to_bits().to_le_bytes());
}

/// Reads a finite double, without negative zero.
pub(crate) fn get_double(reader: &mut Reader<'_>) -> Result<f64, DecodeError> {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(reader.bytes(8)?);
    let value = f64::from_bits(u64::from_le_bytes(bytes));
    let is_negative_zero = value == 0.0 && value.is_sign_negative();
    if value.is_finite() && !is_negative_zero { Ok(value) } else { Err(DecodeError::NotCanonical) }
}

/// The smallest and the largest of at least one finite double.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Span {
    /// The smallest.
    pub(crate) min: f64,
    /// The largest, not less than `min`.
    pub(crate) max: f64,
}

impl Span {
    /// The span of one double.
    pub(crate) fn of(value: f64) -> Span {
        Span { min: value, max: value }
    }

    /// The span of the doubles of both.
    pub(crate) fn join(left: Option<Span>, right: Option<Span>) -> Option<Span> {
        match (left, right) {
            (Some(left), Some(right)) => {
                Some(Span { min: left.min.min(right.min), max: left.max.max(right.max) })
            }
            (one, other) => one.or(other),
        }
    }

    /// Whether `count` doubles of this span can have this sum.
    pub(crate) fn allows(&self, sum: &ExactSum, count: u128) -> bool {
        let least = ExactSum::of(self.min).times(count);
        let most = ExactSum::of(self.max).times(count);
        !sum.clone().minus(&least).is_negative() && !most.minus(sum).is_negative()
    }

    /// Appends both doubles.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_double(self.min, out);
        put_double(self.max, out);
    }

    /// Reads what [`Span::encode`] writes.
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Span, DecodeError> {
        let span = Span { min: get_double(reader)?, max: get_double(reader)? };
        if span.min <= span.max { Ok(span) } else { Err(DecodeError::NotCanonical) }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    const ODD: [f64; 8] = [0.0, 5e-324, -5e-324, f64::MIN_POSITIVE, f64::MAX, f64::MIN, 1.0, -1.0];

    /// All sizes: common values, values with few bits, and special values.
    pub(crate) fn doubles() -> impl Strategy<Value = f64> {
        let value = prop_oneof![
            any::<f64>(),
            any::<u64>().prop_map(|bits| f64::from_bits(bits >> 12)),
            -1e3..1e3,
            (-9..10i32).prop_map(f64::from),
            prop::sample::select(&ODD[..]),
        ];
        value.prop_map(|value| if value.is_finite() { value + 0.0 } else { 0.0 })
    }

    #[test]
    fn only_finite_doubles_with_one_zero_are_decodable() {
        let read = |value: f64| get_double(&mut Reader::new(&value.to_bits().to_le_bytes()));
        assert_eq!(read(-1.5), Ok(-1.5));
        assert_eq!(read(0.0), Ok(0.0));
        for value in [-0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(read(value), Err(DecodeError::NotCanonical), "{value}");
        }
        let mut bytes = Vec::new();
        Span { min: 2.0, max: 1.0 }.encode(&mut bytes);
        assert_eq!(Span::decode(&mut Reader::new(&bytes)), Err(DecodeError::NotCanonical));
    }

    #[test]
    fn a_sum_is_between_its_terms() {
        let span = Span { min: 1.0, max: 2.0 };
        for (sum, is_possible) in [(2.9, false), (3.0, true), (6.0, true), (6.1, false)] {
            assert_eq!(span.allows(&ExactSum::of(sum), 3), is_possible, "{sum}");
        }
    }
}
