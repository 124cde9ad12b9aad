//! The envelope: how a state, of a shard or of a tally, is stored in the one `state` cell of a row.
//!
//! ```text
//! u8      magic 0xCF
//! varint  kind code
//! varint  payload format
//! u8      flags, below
//! varint  the tally's fence, or the shard's write number
//! varint  length of the configuration, then its bytes: the precision as a varint, for kinds with one
//! varint  length of the payload, then its bytes
//! u32     CRC-32C (RFC 3720) of the row's address and of everything before, little endian
//! ```
//!
//! | flag | set for | what follows the fence or the write number |
//! | --- | --- | --- |
//! | bit 0 | a tally | |
//! | bit 1 | a [pack](super::pack): a shard whose payload holds ops by their ids | |
//! | bit 2 | a shard born on a key that was reset | varint: the reset's generation |
//! | bit 3 | the tally of a reset | varint: its generation; varint: for how long it is remembered |
//! | bit 4 | a *grave*: the tally of a forgotten or deleted key, whose state is the identity | |
//! | bit 5 | a tally that takes no further shard, because it would grow beyond its limit | |
//!
//! Bits 2 and 3 are reserved so that resets need no second format. This release writes none of them, and reads
//! a row with one of them as [undecodable](DecodeError::Feature). The flags come before everything else that
//! can differ between two tallies with the same fence. So the tally with bit 5 has the greater bytes, and
//! wins.
//!
//! The checksum begins with the row's address, which is not part of these bytes: see [`RowSeal`]. So a row
//! that appears at another key, expiry or mutator is as undecodable as a row with a flipped bit.
//!
//! There is no room for fields that an older release could skip. Bytes that a reader does not know are
//! [undecodable](DecodeError): an error for readers, and a fold stops at them.

use super::pack::{Pack, StoredPack};
use super::varint::{self, Reader};
use super::{DecodeError, Kind, State};
use crate::protocol::{Key, MutatorId, Timestamp};

const MAGIC: u8 = 0xCF;
const FLAG_TALLY: u8 = 0b1;
const FLAG_PACK: u8 = 0b10;
const FLAG_GRAVE: u8 = 0b1_0000;
const FLAG_FULL: u8 = 0b10_0000;
const FLAGS_FULL_TALLY: u8 = FLAG_TALLY | FLAG_FULL;
const FLAGS_GRAVE: u8 = FLAG_TALLY | FLAG_GRAVE;
/// Flags with a meaning that this release does not support.
const FEATURES: [(u8, &str); 2] = [(0b100, "a reset"), (0b1000, "a reset")];
const CHECKSUM_BYTES: usize = 4;

/// The start of the checksums of a key's rows: CRC-32C of its kind's name, its group and its name, each after
/// its length as a little-endian u16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeySeal(u32);

/// The start of the checksum of one row: its [`KeySeal`], continued over the expiry as a little-endian i64 in
/// µs and the 16 bytes of the mutator's id. A writer keeps it, so that names are not hashed again at each
/// write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowSeal(u32);

impl KeySeal {
    /// For rows that belong to no key yet: those of an export.
    pub const NOWHERE: KeySeal = KeySeal(0);

    /// For a key.
    #[must_use]
    pub fn of(key: &Key) -> KeySeal {
        KeySeal::of_parts(key.kind.name(), key.group.as_str(), key.name.as_str())
    }

    /// For a key as a store has it, with a kind that this release may not know.
    #[must_use]
    pub fn of_parts(kind: &str, group: &str, name: &str) -> KeySeal {
        let seal = [kind, group, name].into_iter().fold(0, |crc, text| {
            // Names have at most 256 bytes. If a damaged name has more, any number is fine.
            #[allow(clippy::cast_possible_truncation, reason = "only the lengths of names matter")]
            let length = (text.len() as u16).to_le_bytes();
            crc32c::crc32c_append(crc32c::crc32c_append(crc, &length), text.as_bytes())
        });
        KeySeal(seal)
    }

    /// For one of the key's rows.
    #[must_use]
    pub fn row(self, expires_at: Timestamp, mutator_id: MutatorId) -> RowSeal {
        let seal = crc32c::crc32c_append(self.0, &expires_at.as_micros().to_le_bytes());
        RowSeal(crc32c::crc32c_append(seal, mutator_id.as_uuid().as_bytes()))
    }

    /// For the key's tally.
    #[must_use]
    pub fn tally(self) -> RowSeal {
        self.row(Timestamp::NEVER, MutatorId::TALLY)
    }
}

impl RowSeal {
    /// Checks that these bytes were written to this row, whatever they mean.
    ///
    /// # Errors
    /// [`DecodeError::Magic`], [`DecodeError::Checksum`] or [`DecodeError::Framing`].
    pub fn check(self, bytes: &[u8]) -> Result<(), DecodeError> {
        self.opened(bytes).map(|_| ())
    }

    /// The bytes before the checksum, if the checksum is right.
    fn opened(self, bytes: &[u8]) -> Result<&[u8], DecodeError> {
        let magic = *bytes.first().ok_or(DecodeError::Framing { at: 0 })?;
        if magic != MAGIC {
            return Err(DecodeError::Magic(magic));
        }
        let (body, checksum) = bytes
            .split_last_chunk::<CHECKSUM_BYTES>()
            .ok_or(DecodeError::Framing { at: bytes.len() })?;
        let (stored, computed) = (u32::from_le_bytes(*checksum), self.checksum(body));
        if stored != computed {
            return Err(DecodeError::Checksum { stored, computed });
        }
        Ok(body)
    }

    fn checksum(self, body: &[u8]) -> u32 {
        crc32c::crc32c_append(self.0, body)
    }
}

/// What the row of a shard holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Shard<'a> {
    /// The state of a mutator.
    Plain(State),
    /// Ops by their ids.
    Pack(StoredPack<'a>),
}

/// Encodes a shard. `write` is the number of the mutator's writes so far, starting at 1.
#[must_use]
pub fn encode_shard(seal: RowSeal, state: &State, write: u64) -> Vec<u8> {
    encode_state(seal, state, 0, write)
}

/// Encodes a shard that holds ops by their ids. `write` is as in [`encode_shard`].
#[must_use]
pub fn encode_pack(seal: RowSeal, pack: &Pack, write: u64) -> Vec<u8> {
    let mut payload = Vec::new();
    pack.encode(&mut payload);
    encode(seal, pack.kind(), pack.precision(), &payload, FLAG_PACK, write)
}

/// Encodes the tally of a key, which includes every shard with `expires_at <= fence`.
///
/// # Panics
/// If `fence` is before 1970. A fence is a wall-clock time minus the cutoff.
#[must_use]
pub fn encode_tally(key: KeySeal, state: &State, fence: Timestamp) -> Vec<u8> {
    tally(key, state, FLAG_TALLY, fence)
}

/// As [`encode_tally`], for a tally that takes no further shard.
///
/// # Panics
/// As [`encode_tally`].
#[must_use]
pub fn encode_full_tally(key: KeySeal, state: &State, fence: Timestamp) -> Vec<u8> {
    tally(key, state, FLAGS_FULL_TALLY, fence)
}

/// Encodes the grave of a forgotten key: nothing with `expires_at <= fence` counts any more.
///
/// # Panics
/// As [`encode_tally`].
#[must_use]
pub fn encode_grave(key: KeySeal, kind: Kind, fence: Timestamp) -> Vec<u8> {
    tally(key, &State::identity(kind), FLAGS_GRAVE, fence)
}

fn tally(key: KeySeal, state: &State, flags: u8, fence: Timestamp) -> Vec<u8> {
    let fence = u64::try_from(fence.as_micros()).expect("invariant: a fence is after 1970");
    encode_state(key.tally(), state, flags, fence)
}

/// Whether these are the bytes of a tally that takes no further shard. The row must be decodable.
#[must_use]
pub fn is_full(bytes: &[u8]) -> bool {
    flags_of(bytes).is_some_and(|flags| flags & FLAG_FULL != 0)
}

/// Whether these are the bytes of a grave. The row must be decodable.
#[must_use]
pub fn is_grave(bytes: &[u8]) -> bool {
    flags_of(bytes).is_some_and(|flags| flags & FLAG_GRAVE != 0)
}

fn flags_of(bytes: &[u8]) -> Option<u8> {
    let mut at = 1;
    varint::get_u64(bytes, &mut at).ok()?;
    varint::get_u64(bytes, &mut at).ok()?;
    bytes.get(at).copied()
}

/// Decodes a shard of a key of kind `expected`.
///
/// # Errors
/// [`DecodeError`] for any bytes other than those that [`encode_shard`] or [`encode_pack`] writes with this
/// seal.
pub fn decode_shard(seal: RowSeal, expected: Kind, bytes: &[u8]) -> Result<Shard<'_>, DecodeError> {
    let frame = Frame::decode(seal, expected, bytes)?;
    match frame.flags {
        0 => frame.state().map(Shard::Plain),
        FLAG_PACK if frame.format != frame.kind.format() => Err(DecodeError::Format(frame.format)),
        FLAG_PACK => StoredPack::decode(frame.precision, frame.payload).map(Shard::Pack),
        _ => Err(DecodeError::Role { expected: "shard", found: "tally" }),
    }
}

/// Decodes the state of a shard of a key of kind `expected` that is no pack.
///
/// # Errors
/// [`DecodeError`] for any bytes other than those that [`encode_shard`] writes with this seal.
pub fn decode_state(seal: RowSeal, expected: Kind, bytes: &[u8]) -> Result<State, DecodeError> {
    match decode_shard(seal, expected, bytes)? {
        Shard::Plain(state) => Ok(state),
        Shard::Pack(_) => Err(DecodeError::Role { expected: "state", found: "pack" }),
    }
}

/// Decodes the fence and the state of the tally of a key of kind `expected`.
///
/// # Errors
/// [`DecodeError`] for any bytes other than those that [`encode_tally`] or [`encode_grave`] writes.
pub fn decode_tally(
    key: KeySeal,
    expected: Kind,
    bytes: &[u8],
) -> Result<(Timestamp, State), DecodeError> {
    let frame = Frame::decode(key.tally(), expected, bytes)?;
    if frame.flags & FLAG_TALLY == 0 {
        return Err(DecodeError::Role { expected: "tally", found: "shard" });
    }
    let fence = i64::try_from(frame.mark).map_err(|_| DecodeError::NotCanonical)?;
    let state = frame.state()?;
    if frame.flags & FLAG_GRAVE != 0 && state != State::identity(expected) {
        return Err(DecodeError::NotCanonical);
    }
    Ok((Timestamp::from_micros(fence), state))
}

fn encode_state(seal: RowSeal, state: &State, flags: u8, mark: u64) -> Vec<u8> {
    let mut payload = Vec::new();
    state.encode_payload(&mut payload);
    encode(seal, state.kind(), state.precision(), &payload, flags, mark)
}

fn encode(
    seal: RowSeal,
    kind: Kind,
    precision: Option<u16>,
    payload: &[u8],
    flags: u8,
    mark: u64,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(payload.len() + 24);
    out.push(MAGIC);
    varint::put(u128::from(kind.code()), &mut out);
    varint::put(u128::from(kind.format()), &mut out);
    out.push(flags);
    varint::put(u128::from(mark), &mut out);
    let mut configuration = Vec::new();
    if let Some(precision) = precision {
        varint::put(u128::from(precision), &mut configuration);
    }
    varint::put(configuration.len() as u128, &mut out);
    out.extend_from_slice(&configuration);
    varint::put(payload.len() as u128, &mut out);
    out.extend_from_slice(payload);
    out.extend_from_slice(&seal.checksum(&out).to_le_bytes());
    out
}

/// An envelope whose payload is not decoded yet.
struct Frame<'a> {
    kind: Kind,
    format: u64,
    flags: u8,
    /// The tally's fence, or the shard's write number.
    mark: u64,
    precision: Option<u16>,
    payload: &'a [u8],
}

impl<'a> Frame<'a> {
    fn decode(seal: RowSeal, expected: Kind, bytes: &'a [u8]) -> Result<Frame<'a>, DecodeError> {
        let body = seal.opened(bytes)?;
        let mut at = 1;
        let code = varint::get_u64(body, &mut at)?;
        let kind = Kind::from_code(code).ok_or(DecodeError::Kind(code))?;
        if kind != expected {
            return Err(DecodeError::KindMismatch {
                expected: expected.name(),
                found: kind.name(),
            });
        }
        let format = varint::get_u64(body, &mut at)?;
        let flags = *body.get(at).ok_or(DecodeError::Framing { at })?;
        at += 1;
        if let Some((_, feature)) = FEATURES.iter().find(|(flag, _)| flags & flag != 0) {
            return Err(DecodeError::Feature(feature));
        }
        if !matches!(flags, 0 | FLAG_PACK | FLAG_TALLY | FLAGS_FULL_TALLY | FLAGS_GRAVE) {
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
        Ok(Frame { kind, format, flags, mark, precision, payload })
    }

    fn state(&self) -> Result<State, DecodeError> {
        State::decode_payload(self.kind, self.format, self.precision, self.payload)
    }
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
    use crate::protocol::Name;
    use proptest::prelude::*;
    use uuid::Uuid;

    fn key(kind: Kind) -> Key {
        let name = |text| Name::new(text).expect("a name");
        Key { kind, group: name("site"), name: name("home") }
    }

    fn row_of(key: &Key) -> RowSeal {
        let mutator_id = MutatorId::new(Uuid::from_u128(7));
        KeySeal::of(key).row(Timestamp::from_micros(9_000_000), mutator_id)
    }

    fn row() -> RowSeal {
        row_of(&key(Kind::Counter))
    }

    fn tally() -> KeySeal {
        KeySeal::of(&key(Kind::Counter))
    }

    fn shard_of(bytes: &[u8]) -> Result<State, DecodeError> {
        decode_state(row(), Kind::Counter, bytes)
    }

    fn tally_of(bytes: &[u8]) -> Result<(Timestamp, State), DecodeError> {
        decode_tally(tally(), Kind::Counter, bytes)
    }

    fn counter(total: i128) -> State {
        State::Counter(Counter::from_total(total))
    }

    /// Kept permanently: a release that can't read these bytes loses data.
    #[test]
    fn golden_bytes() {
        let shard = encode_shard(row(), &counter(42), 3);
        let tally = encode_tally(tally(), &counter(-42), Timestamp::from_micros(2_000_000));
        assert_eq!(hex(&shard), "cf01010003000154124fdd1f");
        assert_eq!(hex(&tally), "cf01010180897a00015386212abd");
    }

    /// A grave is as canonical as every row: it has one form, and its state is the identity.
    #[test]
    fn a_grave_is_a_tally_without_a_state() {
        let fence = Timestamp::from_micros(2_000_000);
        let grave = encode_grave(tally(), Kind::Counter, fence);
        assert_eq!(hex(&grave), "cf01011180897a00010007f20463");
        assert_eq!(tally_of(&grave), Ok((fence, counter(0))));
        assert!(is_grave(&grave) && !is_full(&grave));
        assert!(grave > encode_tally(tally(), &counter(-42), fence), "at one fence the grave wins");
        assert!(!is_grave(&encode_full_tally(tally(), &counter(0), fence)));
        assert!(!is_grave(&encode_tally(tally(), &counter(0), fence)));
        let full = super::tally(tally(), &counter(1), FLAGS_GRAVE, fence);
        assert_eq!(tally_of(&full), Err(DecodeError::NotCanonical));
        for kind in Kind::ALL {
            let key = KeySeal::of(&key(*kind));
            let grave = encode_grave(key, *kind, fence);
            assert_eq!(decode_tally(key, *kind, &grave), Ok((fence, State::identity(*kind))));
        }
    }

    #[test]
    fn a_precision_that_the_kind_does_not_have_is_refused() {
        let seal = row_of(&key(Kind::Distinct));
        let distinct = encode_shard(seal, &Distinct::with_precision(4).into(), 1);
        let body = distinct.len() - 4;
        // Magic, kind, format, flags, mark, length of the configuration; then the precision.
        for (lg_k, is_there) in [(3, false), (4, true), (15, false)] {
            let mut bytes = distinct[..body].to_vec();
            assert_eq!(std::mem::replace(&mut bytes[6], lg_k), 4);
            bytes.extend(seal.checksum(&bytes).to_le_bytes());
            let refused = decode_state(seal, Kind::Distinct, &bytes) == Err(DecodeError::Flags);
            assert_eq!(refused, !is_there, "{lg_k}");
        }
    }

    /// A row belongs to one address: at any other, the same bytes are damaged.
    #[test]
    fn a_row_at_another_address_is_undecodable() {
        let key = key(Kind::Counter);
        let (expires_at, id) =
            (Timestamp::from_micros(9_000_000), MutatorId::new(Uuid::from_u128(7)));
        let (shard, folded) =
            (encode_shard(row(), &counter(1), 1), encode_tally(tally(), &counter(1), expires_at));
        assert_eq!(row().check(&shard), Ok(()));
        let parts = |kind, group, name| KeySeal::of_parts(kind, group, name);
        let keys = [
            parts("sum", "site", "home"),
            parts("counter", "sitf", "home"),
            parts("counter", "site", "homf"),
            parts("counter", "siteh", "ome"),
            parts("counter", "sit", "ehome"),
            parts("counter", "home", "site"),
            KeySeal::NOWHERE,
        ];
        let moved = |seal: RowSeal| matches!(seal.check(&shard), Err(DecodeError::Checksum { .. }));
        for other in keys {
            assert!(moved(other.row(expires_at, id)), "{other:?}");
            assert!(decode_tally(other, Kind::Counter, &folded).is_err(), "{other:?}");
        }
        for bit in 0..64 {
            let expires_at = Timestamp::from_micros(expires_at.as_micros() ^ (1 << bit));
            assert!(moved(KeySeal::of(&key).row(expires_at, id)), "bit {bit} of the expiry");
        }
        for bit in 0..128 {
            let id = MutatorId::new(Uuid::from_u128(7 ^ (1 << bit)));
            assert!(moved(KeySeal::of(&key).row(expires_at, id)), "bit {bit} of the mutator");
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    proptest! {
        #[test]
        fn shards_and_tallies_round_trip(total: i128, mark in 0..i64::MAX) {
            let state = counter(total);
            let shard = encode_shard(row(), &state, mark.cast_unsigned());
            prop_assert_eq!(shard_of(&shard), Ok(state.clone()));
            let fence = Timestamp::from_micros(mark);
            let tally = encode_tally(tally(), &state, fence);
            prop_assert_eq!(tally_of(&tally), Ok((fence, state)));
            prop_assert!(shard_of(&tally).is_err());
            prop_assert!(tally_of(&shard).is_err());
        }

        #[test]
        fn every_cut_is_detected(total: i128, mark: u64) {
            let bytes = encode_shard(row(), &counter(total), mark);
            for length in 0..bytes.len() {
                prop_assert!(shard_of(&bytes[..length]).is_err());
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = shard_of(&bytes);
            let _ = tally_of(&bytes);
        }
    }

    /// With a valid checksum, so that the checks after it are reached.
    #[test]
    fn the_unknown_is_undecodable_and_named() {
        let sealed = |mut body: Vec<u8>| {
            body.extend_from_slice(&row().checksum(&body).to_le_bytes());
            shard_of(&body).expect_err("undecodable")
        };
        assert_eq!(sealed(vec![0xCF, 99, 1, 0, 1, 0, 1, 2]), DecodeError::Kind(99));
        assert_eq!(sealed(vec![0xCF, 1, 9, 0, 1, 0, 1, 2]), DecodeError::Format(9));
        assert_eq!(sealed(vec![0xCF, 1, 1, 0x20, 1, 0, 1, 2]), DecodeError::Flags);
        let pack_tally = FLAG_PACK | FLAG_TALLY;
        assert_eq!(sealed(vec![0xCF, 1, 1, pack_tally, 1, 0, 1, 2]), DecodeError::Flags);
        assert_eq!(sealed(vec![0xCF, 1, 9, FLAG_PACK, 1, 0, 1, 0]), DecodeError::Format(9));
        for flags in [FLAG_GRAVE, FLAG_GRAVE | FLAG_PACK, FLAGS_GRAVE | FLAG_FULL] {
            assert_eq!(sealed(vec![0xCF, 1, 1, flags, 1, 0, 1, 2]), DecodeError::Flags);
        }
        for (flag, feature) in [(4, "a reset"), (8, "a reset")] {
            for flags in [flag, flag | FLAG_PACK, flag | FLAG_TALLY] {
                let error = sealed(vec![0xCF, 1, 1, flags, 1, 9, 0, 1, 2]);
                assert!(error == DecodeError::Feature(feature) && error.may_be_newer());
            }
        }
        assert_eq!(sealed(vec![0xCF, 1, 1, 0, 1, 1, 7, 1, 2]), DecodeError::Flags);
        assert_eq!(sealed(vec![0xCF, 1, 1, 0, 1, 0, 1, 2, 0]), DecodeError::Framing { at: 8 });
        assert_eq!(sealed(vec![0xCF, 1, 1, 0, 1, 0, 2, 0x80, 0]), DecodeError::NotCanonical);
        assert_eq!(sealed(vec![0xC7, 1]), DecodeError::Magic(0xC7));
    }
}
