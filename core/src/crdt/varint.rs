//! Variable-length integers: LEB128, least significant group first, and zigzag for signed ones (the
//! wire form of Protocol Buffers). Only the shortest form is accepted, so that equal numbers have
//! equal bytes.

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

/// Appends `value` in zigzag form.
pub(crate) fn put_signed(value: i128, out: &mut Vec<u8>) {
    put(((value << 1) ^ (value >> 127)).cast_unsigned(), out);
}

/// Reads a number that starts at `*at` and moves `*at` behind it.
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
            // A last group of zero means that a shorter form exists.
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

/// Reads a length that must fit what is left of `bytes`.
pub(crate) fn get_length(bytes: &[u8], at: &mut usize) -> Result<usize, DecodeError> {
    let length = usize::try_from(get(bytes, at)?).map_err(|_| DecodeError::Framing { at: *at })?;
    if length > bytes.len() - *at { Err(DecodeError::Framing { at: *at }) } else { Ok(length) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
