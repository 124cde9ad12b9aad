//! The envelope: how a state lies in a row's one `state` cell, shards and tallies alike.
//!
//! ```text
//! u8      magic 0xC7
//! varint  kind code
//! varint  payload format
//! u8      flags: bit 0 set = tally
//! varint  the tally's fence, or the shard's write number
//! varint  length of the configuration, then its bytes: the precision as a varint, for kinds with one
//! varint  length of the payload, then its bytes
//! u32     CRC-32C (RFC 3720) of everything before, little endian
//! ```
//!
//! There is no room for fields that an older release could skip: what a reader does not know is
//! [undecodable](DecodeError), an error for readers and a wall for the fold.

use super::varint::{self, Reader};
use super::{DecodeError, Kind, State};
use crate::protocol::Timestamp;

const MAGIC: u8 = 0xC7;
const FLAG_TALLY: u8 = 0b1;
const CHECKSUM_BYTES: usize = 4;

/// Encodes a shard. `write` counts the mutator's writes, from 1.
#[must_use]
pub fn encode_shard(state: &State, write: u64) -> Vec<u8> {
    encode(state, 0, write)
}

/// Encodes a tally that holds every shard with `expires_at <= fence`.
///
/// # Panics
/// If `fence` is before 1970: a fence is a wall-clock time less the cutoff.
#[must_use]
pub fn encode_tally(state: &State, fence: Timestamp) -> Vec<u8> {
    let fence = u64::try_from(fence.as_micros()).expect("invariant: a fence is after 1970");
    encode(state, FLAG_TALLY, fence)
}

/// Decodes the state of a shard of a key of kind `expected`.
///
/// # Errors
/// [`DecodeError`] for anything but the exact bytes that [`encode_shard`] writes.
pub fn decode_shard(expected: Kind, bytes: &[u8]) -> Result<State, DecodeError> {
    let (flags, _, state) = decode(expected, bytes)?;
    if flags & FLAG_TALLY != 0 {
        return Err(DecodeError::Role { expected: "shard", found: "tally" });
    }
    Ok(state)
}

/// Decodes the fence and the state of the tally of a key of kind `expected`.
///
/// # Errors
/// [`DecodeError`] for anything but the exact bytes that [`encode_tally`] writes.
pub fn decode_tally(expected: Kind, bytes: &[u8]) -> Result<(Timestamp, State), DecodeError> {
    let (flags, fence, state) = decode(expected, bytes)?;
    if flags & FLAG_TALLY == 0 {
        return Err(DecodeError::Role { expected: "tally", found: "shard" });
    }
    let fence = i64::try_from(fence).map_err(|_| DecodeError::NotCanonical)?;
    Ok((Timestamp::from_micros(fence), state))
}

fn encode(state: &State, flags: u8, mark: u64) -> Vec<u8> {
    let mut payload = Vec::new();
    state.encode_payload(&mut payload);
    let mut out = Vec::with_capacity(payload.len() + 24);
    out.push(MAGIC);
    varint::put(u128::from(state.kind().code()), &mut out);
    varint::put(u128::from(state.kind().format()), &mut out);
    out.push(flags);
    varint::put(u128::from(mark), &mut out);
    let mut configuration = Vec::new();
    if let Some(precision) = state.precision() {
        varint::put(u128::from(precision), &mut configuration);
    }
    varint::put(configuration.len() as u128, &mut out);
    out.extend_from_slice(&configuration);
    varint::put(payload.len() as u128, &mut out);
    out.extend_from_slice(&payload);
    out.extend_from_slice(&crc32c::crc32c(&out).to_le_bytes());
    out
}

fn decode(expected: Kind, bytes: &[u8]) -> Result<(u8, u64, State), DecodeError> {
    let magic = *bytes.first().ok_or(DecodeError::Framing { at: 0 })?;
    if magic != MAGIC {
        return Err(DecodeError::Magic(magic));
    }
    let (body, checksum) = bytes
        .split_last_chunk::<CHECKSUM_BYTES>()
        .ok_or(DecodeError::Framing { at: bytes.len() })?;
    let (stored, computed) = (u32::from_le_bytes(*checksum), crc32c::crc32c(body));
    if stored != computed {
        return Err(DecodeError::Checksum { stored, computed });
    }
    let mut at = 1;
    let code = varint::get_u64(body, &mut at)?;
    let kind = Kind::from_code(code).ok_or(DecodeError::Kind(code))?;
    if kind != expected {
        return Err(DecodeError::KindMismatch { expected: expected.name(), found: kind.name() });
    }
    let format = varint::get_u64(body, &mut at)?;
    let flags = *body.get(at).ok_or(DecodeError::Framing { at })?;
    at += 1;
    if flags & !FLAG_TALLY != 0 {
        return Err(DecodeError::Flags);
    }
    let mark = varint::get_u64(body, &mut at)?;
    let configuration = varint::get_length(body, &mut at)?;
    let precision = decode_precision(kind, &body[at..at + configuration])?;
    at += configuration;
    let length = varint::get_length(body, &mut at)?;
    let payload = &body[at..];
    if payload.len() != length {
        return Err(DecodeError::Framing { at: at + length });
    }
    Ok((flags, mark, State::decode_payload(kind, format, precision, payload)?))
}

/// Reads the configuration: the precision, for kinds that have one.
fn decode_precision(kind: Kind, bytes: &[u8]) -> Result<Option<u16>, DecodeError> {
    let mut reader = Reader::new(bytes);
    let precision = match kind.precision() {
        None => None,
        Some(range) => match u16::try_from(reader.u64()?) {
            Ok(precision) if (range.min..=range.max).contains(&precision) => Some(precision),
            _ => return Err(DecodeError::Flags),
        },
    };
    reader.end().map_err(|_| DecodeError::Flags)?;
    Ok(precision)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crdt::{Counter, Crdt, Distinct};
    use proptest::prelude::*;

    fn counter(total: i128) -> State {
        State::Counter(Counter::from_total(total))
    }

    /// The first format, kept for ever: a release that can't read these bytes loses data.
    #[test]
    fn golden_bytes_of_format_1() {
        let shard = encode_shard(&counter(42), 3);
        let tally = encode_tally(&counter(-42), Timestamp::from_micros(2_000_000));
        assert_eq!(hex(&shard), "c7010100030001548bf17c38");
        assert_eq!(hex(&tally), "c701010180897a000153322b7808");
    }

    #[test]
    fn a_precision_that_the_kind_does_not_have_is_refused() {
        let distinct = encode_shard(&Distinct::with_precision(4).into(), 1);
        let body = distinct.len() - 4;
        // Magic, kind, format, flags, mark, length of the configuration: then the precision.
        for (lg_k, is_there) in [(3, false), (4, true), (15, false)] {
            let mut bytes = distinct[..body].to_vec();
            assert_eq!(std::mem::replace(&mut bytes[6], lg_k), 4);
            bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
            let refused = decode_shard(Kind::Distinct, &bytes) == Err(DecodeError::Flags);
            assert_eq!(refused, !is_there, "{lg_k}");
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    proptest! {
        #[test]
        fn shards_and_tallies_round_trip(total: i128, mark in 0..i64::MAX) {
            let state = counter(total);
            let shard = encode_shard(&state, mark.cast_unsigned());
            prop_assert_eq!(decode_shard(Kind::Counter, &shard), Ok(state.clone()));
            let fence = Timestamp::from_micros(mark);
            let tally = encode_tally(&state, fence);
            prop_assert_eq!(decode_tally(Kind::Counter, &tally), Ok((fence, state)));
            prop_assert!(decode_shard(Kind::Counter, &tally).is_err());
            prop_assert!(decode_tally(Kind::Counter, &shard).is_err());
        }

        #[test]
        fn every_cut_is_detected(total: i128, mark: u64) {
            let bytes = encode_shard(&counter(total), mark);
            for length in 0..bytes.len() {
                prop_assert!(decode_shard(Kind::Counter, &bytes[..length]).is_err());
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = decode_shard(Kind::Counter, &bytes);
            let _ = decode_tally(Kind::Counter, &bytes);
        }
    }

    /// With a valid checksum, so that the checks behind it are reached.
    #[test]
    fn the_unknown_is_undecodable_and_named() {
        let sealed = |mut body: Vec<u8>| {
            body.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
            decode_shard(Kind::Counter, &body).expect_err("undecodable")
        };
        assert_eq!(sealed(vec![0xC7, 99, 1, 0, 1, 0, 1, 2]), DecodeError::Kind(99));
        assert_eq!(sealed(vec![0xC7, 1, 9, 0, 1, 0, 1, 2]), DecodeError::Format(9));
        assert_eq!(sealed(vec![0xC7, 1, 1, 2, 1, 0, 1, 2]), DecodeError::Flags);
        assert_eq!(sealed(vec![0xC7, 1, 1, 0, 1, 1, 7, 1, 2]), DecodeError::Flags);
        assert_eq!(sealed(vec![0xC7, 1, 1, 0, 1, 0, 1, 2, 0]), DecodeError::Framing { at: 8 });
        assert_eq!(sealed(vec![0xC7, 1, 1, 0, 1, 0, 2, 0x80, 0]), DecodeError::NotCanonical);
        assert_eq!(sealed(vec![0xC8, 1]), DecodeError::Magic(0xC8));
    }
}
