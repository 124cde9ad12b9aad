//! Variable-length integers: LEB128, least significant group first, and zigzag for signed numbers (as in
//! Protocol Buffers). Only the shortest form is accepted, so equal numbers have equal bytes.

use num_bigint::{BigInt, Sign};

use super::DecodeError;

/// Bytes of the longest encoding of a `u128`.
pub(crate) const U128_BYTES_MAX: usize = 19;

/// Appends `value`.
pub(crate) fn put(mut value: u128, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}

/// Number of bytes that [`put`] appends for `value`.
pub(crate) fn bytes(value: u128) -> usize {
    let bits = 128 - value.leading_zeros() as usize;
    bits.div_ceil(7).max(1)
}

/// Appends `value` in zigzag form.
pub(crate) fn put_signed(value: i128, out: &mut Vec<u8>) {
    put(((value << 1) ^ (value >> 127)).cast_unsigned(), out);
}

/// Appends a number of any size: twice the length of its magnitude, plus one if it is negative, then the
/// magnitude's bytes, least significant first.
pub(crate) fn put_big(value: &BigInt, out: &mut Vec<u8>) {
    let (sign, magnitude) = value.to_bytes_le();
    let magnitude = if sign == Sign::NoSign { &[][..] } else { &magnitude };
    put(2 * magnitude.len() as u128 + u128::from(sign == Sign::Minus), out);
    out.extend_from_slice(magnitude);
}

/// Reads a number that starts at `*at`, and moves `*at` after it.
pub(crate) fn get(bytes: &[u8], at: &mut usize) -> Result<u128, DecodeError> {
    let mut value: u128 = 0;
    for index in 0..U128_BYTES_MAX {
        let byte = *bytes.get(*at).ok_or(DecodeError::Framing { at: *at })?;
        *at += 1;
        let group = u128::from(byte & 0x7f);
        let shift = 7 * index;
        if shift == 126 && group > 0b11 {
            return Err(DecodeError::NotCanonical);
        }
        value |= group << shift;
        if byte & 0x80 == 0 {
            // If the last group is zero, there is a shorter form.
            return if group == 0 && index > 0 {
                Err(DecodeError::NotCanonical)
            } else {
                Ok(value)
            };
        }
    }
    Err(DecodeError::NotCanonical)
}

/// Reads a zigzag number.
pub(crate) fn get_signed(bytes: &[u8], at: &mut usize) -> Result<i128, DecodeError> {
    let raw = get(bytes, at)?;
    Ok((raw >> 1).cast_signed() ^ -((raw & 1).cast_signed()))
}

/// Reads a number that must fit a `u64`.
pub(crate) fn get_u64(bytes: &[u8], at: &mut usize) -> Result<u64, DecodeError> {
    u64::try_from(get(bytes, at)?).map_err(|_| DecodeError::NotCanonical)
}

/// Reads a length that must not exceed the rest of `bytes`.
pub(crate) fn get_length(bytes: &[u8], at: &mut usize) -> Result<usize, DecodeError> {
    let length = usize::try_from(get(bytes, at)?).map_err(|_| DecodeError::Framing { at: *at })?;
    if length > bytes.len() - *at { Err(DecodeError::Framing { at: *at }) } else { Ok(length) }
}

/// Reads a payload from start to end.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    pub(crate) fn byte(&mut self) -> Result<u8, DecodeError> {
        Ok(self.bytes(1)?[0])
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let rest = &self.bytes[self.at..];
        let bytes = rest.get(..length).ok_or(DecodeError::Framing { at: self.at })?;
        self.at += length;
        Ok(bytes)
    }

    pub(crate) fn u128(&mut self) -> Result<u128, DecodeError> {
        get(self.bytes, &mut self.at)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        get_u64(self.bytes, &mut self.at)
    }

    pub(crate) fn signed(&mut self) -> Result<i128, DecodeError> {
        get_signed(self.bytes, &mut self.at)
    }

    /// A length in bytes, or a number of things of at least one byte each. It must not exceed the remaining
    /// bytes.
    pub(crate) fn length(&mut self) -> Result<usize, DecodeError> {
        get_length(self.bytes, &mut self.at)
    }

    /// A number of any size whose magnitude has at most `bytes_max` bytes.
    pub(crate) fn big(&mut self, bytes_max: usize) -> Result<BigInt, DecodeError> {
        let head = self.u64()?;
        let length = usize::try_from(head >> 1).unwrap_or(usize::MAX);
        if length > bytes_max {
            return Err(DecodeError::NotCanonical);
        }
        let magnitude = self.bytes(length)?;
        let is_negative = head & 1 == 1;
        if magnitude.last().map_or(is_negative, |last| *last == 0) {
            return Err(DecodeError::NotCanonical);
        }
        let sign = if is_negative { Sign::Minus } else { Sign::Plus };
        Ok(BigInt::from_bytes_le(sign, magnitude))
    }

    /// The bytes not read yet.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        let rest = &self.bytes[self.at..];
        self.at = self.bytes.len();
        rest
    }

    /// Checks that no bytes are left.
    pub(crate) fn end(&self) -> Result<(), DecodeError> {
        if self.at == self.bytes.len() { Ok(()) } else { Err(DecodeError::Framing { at: self.at }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_number_may_have_all_bytes_that_are_allowed() {
        for value in [BigInt::from((1_i64 << 40) - 1), BigInt::from(-(1_i64 << 32))] {
            let mut bytes = Vec::new();
            put_big(&value, &mut bytes);
            assert_eq!(Reader::new(&bytes).big(5), Ok(value));
            assert_eq!(Reader::new(&bytes).big(4), Err(DecodeError::NotCanonical));
        }
    }

    proptest! {
        #[test]
        fn signed_numbers_round_trip(value: i128) {
            let mut bytes = Vec::new();
            put_signed(value, &mut bytes);
            let mut at = 0;
            prop_assert_eq!(get_signed(&bytes, &mut at), Ok(value));
            prop_assert_eq!(at, bytes.len());
            prop_assert!(bytes.len() <= U128_BYTES_MAX);
        }

        #[test]
        fn the_length_is_known_before(value: u128, shift in 0..128u32) {
            let mut written = Vec::new();
            put(value >> shift, &mut written);
            prop_assert_eq!(bytes(value >> shift), written.len());
        }

        #[test]
        fn what_is_read_is_written_back_the_same(bytes in prop::collection::vec(any::<u8>(), 0..22)) {
            let mut at = 0;
            if let Ok(value) = get(&bytes, &mut at) {
                let mut again = Vec::new();
                put(value, &mut again);
                prop_assert_eq!(&again[..], &bytes[..at]);
            }
        }
    }

    #[test]
    fn extremes_round_trip() {
        for value in [i128::MIN, -1, 0, 1, i128::MAX] {
            let mut bytes = Vec::new();
            put_signed(value, &mut bytes);
            assert_eq!(get_signed(&bytes, &mut 0), Ok(value));
        }
    }

    #[test]
    fn a_longer_form_is_refused() {
        assert_eq!(get(&[0x80, 0x00], &mut 0), Err(DecodeError::NotCanonical));
        assert_eq!(get(&[0x80], &mut 0), Err(DecodeError::Framing { at: 1 }));
    }

    #[test]
    fn a_length_must_fit_what_is_left() {
        assert_eq!(get_length(&[9, 2, 0, 0], &mut 1), Ok(2));
        assert_eq!(get_length(&[9, 3, 0, 0], &mut 1), Err(DecodeError::Framing { at: 2 }));
    }
}
