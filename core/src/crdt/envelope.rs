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
//! | bit 2 | a shard born on a key that was reset, a pack or not | varint: its *stamp*, the reset's generation |
//! | bit 3 | the tally of a key that was reset | the reset, below |
//! | bit 4 | a *grave*: the tally of a forgotten or deleted key, whose state is the identity | |
//! | bit 5 | a tally that takes no further shard, because it would grow beyond its limit | |
//!
//! The reset that a tally [remembers](Remembered):
//!
//! ```text
//! varint  its generation
//! varint  until when it is remembered, minus the generation
//! varint  number of cleared ids, then for each of them, ascending by expiry, id and index:
//! varint  the expiry, minus that of the id before; the first one minus the generation
//! 16      the id
//! varint  the index
//! ```
//!
//! The flags come before everything else that can differ between two tallies with the same fence. So the tally
//! with bit 5 has the greater bytes, and wins.
//!
//! The checksum begins with the row's address, which is not part of these bytes: see [`RowSeal`]. So a row
//! that appears at another key, expiry or mutator is as undecodable as a row with a flipped bit.
//!
//! There is no room for fields that an older release could skip. Bytes that a reader does not know are
//! [undecodable](DecodeError): an error for readers, and a fold stops at them.

use super::pack::{OpId, Pack, StoredPack};
use super::varint::{self, Reader};
use super::{DecodeError, Kind, State};
use crate::protocol::generation::{Generation, Remembered};
use crate::protocol::{Key, MutatorId, Timestamp};

const MAGIC: u8 = 0xCF;
const FLAG_TALLY: u8 = 0b1;
const FLAG_PACK: u8 = 0b10;
const FLAG_STAMP: u8 = 0b100;
const FLAG_RESET: u8 = 0b1000;
const FLAG_GRAVE: u8 = 0b1_0000;
const FLAG_FULL: u8 = 0b10_0000;
const FLAGS_FULL_TALLY: u8 = FLAG_TALLY | FLAG_FULL;
const FLAGS_GRAVE: u8 = FLAG_TALLY | FLAG_GRAVE;
const CHECKSUM_BYTES: usize = 4;
/// The fewest bytes of a cleared id: its expiry, the id and its index.
const CLEARED_ID_BYTES_MIN: usize = 1 + 16 + 1;

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
    /// The seal for rows that belong to no key yet: those of an export.
    pub const NOWHERE: KeySeal = KeySeal(0);

    /// The seal for a key.
    #[must_use]
    pub fn of(key: &Key) -> KeySeal {
        KeySeal::of_parts(key.kind.name(), key.group.as_str(), key.name.as_str())
    }

    /// The seal for a key as a store has it, with a kind that this release may not know.
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

    /// The seal for one of the key's rows.
    #[must_use]
    pub fn row(self, expires_at: Timestamp, mutator_id: MutatorId) -> RowSeal {
        let seal = crc32c::crc32c_append(self.0, &expires_at.as_micros().to_le_bytes());
        RowSeal(crc32c::crc32c_append(seal, mutator_id.as_uuid().as_bytes()))
    }

    /// The seal for the key's tally.
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
    encode_stamped_shard(seal, state, write, None)
}

/// As [`encode_shard`], for a mutator that was born with this stamp.
#[must_use]
pub fn encode_stamped_shard(
    seal: RowSeal,
    state: &State,
    write: u64,
    stamp: Option<Generation>,
) -> Vec<u8> {
    encode_state(seal, state, Marks { flags: 0, mark: write, stamp, reset: None })
}

/// Encodes a shard that holds ops by their ids. `write` is as in [`encode_shard`].
#[must_use]
pub fn encode_pack(seal: RowSeal, pack: &Pack, write: u64) -> Vec<u8> {
    encode_stamped_pack(seal, pack, write, None)
}

/// As [`encode_pack`], for a mutator that was born with this stamp.
#[must_use]
pub fn encode_stamped_pack(
    seal: RowSeal,
    pack: &Pack,
    write: u64,
    stamp: Option<Generation>,
) -> Vec<u8> {
    let mut payload = Vec::new();
    pack.encode(&mut payload);
    let marks = Marks { flags: FLAG_PACK, mark: write, stamp, reset: None };
    encode(seal, pack.kind(), pack.precision(), &payload, marks)
}

/// Encodes the tally of a key, which includes every shard with `expires_at <= fence`.
///
/// # Panics
/// If `fence` is before 1970. A fence is a wall-clock time minus the cutoff.
#[must_use]
pub fn encode_tally(key: KeySeal, state: &State, fence: Timestamp) -> Vec<u8> {
    tally(key, state, FLAG_TALLY, fence, None)
}

/// As [`encode_tally`], for a tally that takes no further shard.
///
/// # Panics
/// As [`encode_tally`].
#[must_use]
pub fn encode_full_tally(key: KeySeal, state: &State, fence: Timestamp) -> Vec<u8> {
    tally(key, state, FLAGS_FULL_TALLY, fence, None)
}

/// As [`encode_tally`] or, if it `is_full`, [`encode_full_tally`], for a key that was reset.
///
/// # Panics
/// As [`encode_tally`].
#[must_use]
pub fn encode_reset_tally(
    key: KeySeal,
    state: &State,
    fence: Timestamp,
    is_full: bool,
    reset: Option<&Remembered>,
) -> Vec<u8> {
    tally(key, state, if is_full { FLAGS_FULL_TALLY } else { FLAG_TALLY }, fence, reset)
}

/// Encodes the grave of a forgotten or deleted key: nothing with `expires_at <= fence` counts any more, and neither
/// does what a reset cleared.
///
/// # Panics
/// As [`encode_tally`].
#[must_use]
pub fn encode_grave(
    key: KeySeal,
    kind: Kind,
    fence: Timestamp,
    reset: Option<&Remembered>,
) -> Vec<u8> {
    tally(key, &State::identity(kind), FLAGS_GRAVE, fence, reset)
}

fn tally(
    key: KeySeal,
    state: &State,
    flags: u8,
    fence: Timestamp,
    reset: Option<&Remembered>,
) -> Vec<u8> {
    let mark = micros(fence);
    encode_state(key.tally(), state, Marks { flags, mark, stamp: None, reset })
}

fn micros(time: Timestamp) -> u64 {
    u64::try_from(time.as_micros()).expect("invariant: fences and resets are after 1970")
}

/// Whether these are the bytes of a tally that takes no further shard. The row must be decodable.
#[must_use]
pub fn is_full(bytes: &[u8]) -> bool {
    flags_of(bytes).is_some_and(|(flags, _)| flags & FLAG_FULL != 0)
}

/// Whether these are the bytes of a grave. The row must be decodable.
#[must_use]
pub fn is_grave(bytes: &[u8]) -> bool {
    flags_of(bytes).is_some_and(|(flags, _)| flags & FLAG_GRAVE != 0)
}

/// The generation of the reset after which the mutator of a shard was born; none if it knew of none. The row must
/// be decodable.
#[must_use]
pub fn stamp(bytes: &[u8]) -> Option<Generation> {
    let (flags, mut at) = flags_of(bytes).filter(|(flags, _)| flags & FLAG_STAMP != 0)?;
    varint::get_u64(bytes, &mut at).ok()?;
    decode_stamp(flags, bytes, &mut at).ok().flatten()
}

/// The reset that a tally remembers, if there is one. The row must be decodable.
#[must_use]
pub fn reset(bytes: &[u8]) -> Option<Remembered> {
    let (flags, mut at) = flags_of(bytes).filter(|(flags, _)| flags & FLAG_RESET != 0)?;
    varint::get_u64(bytes, &mut at).ok()?;
    decode_reset(flags, bytes, &mut at).ok().flatten()
}

/// The flags, and the place after them.
fn flags_of(bytes: &[u8]) -> Option<(u8, usize)> {
    let mut at = 1;
    varint::get_u64(bytes, &mut at).ok()?;
    varint::get_u64(bytes, &mut at).ok()?;
    bytes.get(at).map(|flags| (*flags, at + 1))
}

/// Decodes a shard of a key of kind `expected`.
///
/// # Errors
/// [`DecodeError`] for any bytes other than those that [`encode_shard`] or [`encode_pack`] writes with this
/// seal.
pub fn decode_shard(seal: RowSeal, expected: Kind, bytes: &[u8]) -> Result<Shard<'_>, DecodeError> {
    let frame = Frame::decode(seal, expected, bytes)?;
    match frame.flags & !FLAG_STAMP {
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
    let (fence, state) = (timestamp(frame.mark)?, frame.state()?);
    if frame.flags & FLAG_GRAVE != 0 && state != State::identity(expected) {
        return Err(DecodeError::NotCanonical);
    }
    Ok((fence, state))
}

/// What comes before the payload.
struct Marks<'a> {
    /// The flags that do not follow from the rest.
    flags: u8,
    /// The tally's fence, or the shard's write number.
    mark: u64,
    stamp: Option<Generation>,
    reset: Option<&'a Remembered>,
}

fn encode_state(seal: RowSeal, state: &State, marks: Marks<'_>) -> Vec<u8> {
    let mut payload = Vec::new();
    state.encode_payload(&mut payload);
    encode(seal, state.kind(), state.precision(), &payload, marks)
}

fn encode(
    seal: RowSeal,
    kind: Kind,
    precision: Option<u16>,
    payload: &[u8],
    Marks { flags, mark, stamp, reset }: Marks<'_>,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(payload.len() + 24);
    out.push(MAGIC);
    varint::put(u128::from(kind.code()), &mut out);
    varint::put(u128::from(kind.format()), &mut out);
    let of_stamp = if stamp.is_some() { FLAG_STAMP } else { 0 };
    let of_reset = if reset.is_some() { FLAG_RESET } else { 0 };
    out.push(flags | of_stamp | of_reset);
    varint::put(u128::from(mark), &mut out);
    if let Some(stamp) = stamp {
        varint::put(u128::from(micros(stamp.time())), &mut out);
    }
    if let Some(reset) = reset {
        encode_reset(reset, &mut out);
    }
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

fn encode_reset(reset: &Remembered, out: &mut Vec<u8>) {
    let mut last = micros(reset.generation().time());
    varint::put(u128::from(last), out);
    varint::put(u128::from(micros(reset.until()) - last), out);
    varint::put(reset.ids().len() as u128, out);
    for (expires_at, id) in reset.ids() {
        varint::put(u128::from(micros(*expires_at) - last), out);
        out.extend_from_slice(&id.id);
        varint::put(u128::from(id.index), out);
        last = micros(*expires_at);
    }
}

fn timestamp(micros: u64) -> Result<Timestamp, DecodeError> {
    i64::try_from(micros).map(Timestamp::from_micros).map_err(|_| DecodeError::NotCanonical)
}

fn decode_stamp(flags: u8, body: &[u8], at: &mut usize) -> Result<Option<Generation>, DecodeError> {
    match flags & FLAG_STAMP {
        0 => Ok(None),
        _ => timestamp(varint::get_u64(body, at)?).map(Generation::at).map(Some),
    }
}

fn decode_reset(flags: u8, body: &[u8], at: &mut usize) -> Result<Option<Remembered>, DecodeError> {
    if flags & FLAG_RESET == 0 {
        return Ok(None);
    }
    let later = |before: u64, by: u64| before.checked_add(by).ok_or(DecodeError::NotCanonical);
    let generation = varint::get_u64(body, at)?;
    let until = timestamp(later(generation, varint::get_u64(body, at)?)?)?;
    let count = varint::get_length(body, at)?;
    let (mut ids, mut last) =
        (Vec::with_capacity(count.min(body.len() / CLEARED_ID_BYTES_MIN)), generation);
    for _ in 0..count {
        last = later(last, varint::get_u64(body, at)?)?;
        let id = body.get(*at..*at + 16).ok_or(DecodeError::Framing { at: *at })?;
        let id = id.try_into().expect("invariant: 16 bytes");
        *at += 16;
        let index =
            u32::try_from(varint::get_u64(body, at)?).map_err(|_| DecodeError::NotCanonical)?;
        ids.push((timestamp(last)?, OpId { id, index }));
    }
    let generation = Generation::at(timestamp(generation)?);
    Remembered::stored(generation, until, ids).ok_or(DecodeError::NotCanonical).map(Some)
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
        let is_known = match flags & FLAG_TALLY {
            0 => flags & !(FLAG_PACK | FLAG_STAMP) == 0,
            _ => matches!(flags & !FLAG_RESET, FLAG_TALLY | FLAGS_FULL_TALLY | FLAGS_GRAVE),
        };
        if !is_known {
            return Err(DecodeError::Flags);
        }
        let mark = varint::get_u64(body, &mut at)?;
        decode_stamp(flags, body, &mut at)?;
        decode_reset(flags, body, &mut at)?;
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

    fn generation(micros: i64) -> Generation {
        Generation::at(Timestamp::from_micros(micros))
    }

    fn remembered(generation_us: i64, until: i64, ids: &[(i64, u8)]) -> Remembered {
        let id = |id: u8| OpId { id: [id; 16], index: u32::from(id) };
        let ids = ids.iter().map(|(at, byte)| (Timestamp::from_micros(*at), id(*byte))).collect();
        let until = Timestamp::from_micros(until);
        Remembered::stored(generation(generation_us), until, ids).expect("in order")
    }

    /// Kept permanently, as the bytes above.
    #[test]
    fn golden_bytes_of_resets() {
        let shard = encode_stamped_shard(row(), &counter(42), 3, Some(generation(1_000_000)));
        assert_eq!(hex(&shard), "cf01010403c0843d000154fad0447c");
        assert_eq!(shard_of(&shard), Ok(counter(42)));
        assert_eq!(stamp(&shard), Some(generation(1_000_000)));
        assert_eq!(stamp(&encode_shard(row(), &counter(42), 3)), None);
        let fence = Timestamp::from_micros(2_000_000);
        let cleared = remembered(2_000_000, 2_000_200, &[(2_000_100, 1), (2_000_100, 2)]);
        let marker = encode_reset_tally(tally(), &counter(0), fence, false, Some(&cleared));
        let grave = encode_grave(tally(), Kind::Counter, fence, Some(&cleared));
        let ids = format!("0264{}0100{}02", "01".repeat(16), "02".repeat(16));
        let reset = format!("80897a80897ac801{ids}");
        assert_eq!(hex(&marker), format!("cf010109{reset}0001004859368e"));
        assert_eq!(hex(&grave), format!("cf010119{reset}00010024d58fce"));
        for bytes in [marker, grave] {
            assert_eq!(tally_of(&bytes), Ok((fence, counter(0))));
            assert_eq!(super::reset(&bytes), Some(cleared.clone()));
            assert_eq!(is_grave(&bytes), bytes[3] & 0x10 != 0);
        }
        let full = encode_reset_tally(tally(), &counter(7), fence, true, Some(&cleared));
        assert!(is_full(&full) && super::reset(&full) == Some(cleared));
        assert_eq!(super::reset(&encode_tally(tally(), &counter(7), fence)), None);
        let grave = encode_grave(tally(), Kind::Counter, fence, None);
        assert_eq!(hex(&grave), "cf01011180897a00010007f20463");
        let with_state = super::tally(tally(), &counter(1), FLAGS_GRAVE, fence, None);
        assert_eq!(tally_of(&with_state), Err(DecodeError::NotCanonical));
    }

    #[test]
    fn a_reset_has_one_form() {
        let time = Timestamp::from_micros;
        let id = |id: u8| OpId { id: [id; 16], index: 0 };
        let stored = |until, ids: Vec<(i64, u8)>| {
            let ids = ids.into_iter().map(|(at, byte)| (time(at), id(byte))).collect();
            Remembered::stored(generation(10), time(until), ids)
        };
        assert!(
            stored(11, vec![]).is_some() && stored(20, vec![(11, 1), (11, 2), (12, 1)]).is_some()
        );
        assert!(stored(10, vec![]).is_none(), "it is remembered for no time");
        for ids in
            [vec![(10, 1)], vec![(11, 2), (11, 1)], vec![(11, 1), (11, 1)], vec![(12, 1), (11, 1)]]
        {
            assert!(stored(20, ids.clone()).is_none(), "{ids:?}");
        }
    }

    /// A grave is as canonical as every row: it has one form, and its state is the identity.
    #[test]
    fn a_grave_is_a_tally_without_a_state() {
        let fence = Timestamp::from_micros(2_000_000);
        let grave = encode_grave(tally(), Kind::Counter, fence, None);
        assert_eq!(hex(&grave), "cf01011180897a00010007f20463");
        assert_eq!(tally_of(&grave), Ok((fence, counter(0))));
        assert!(is_grave(&grave) && !is_full(&grave));
        assert!(grave > encode_tally(tally(), &counter(-42), fence), "at one fence the grave wins");
        assert!(!is_grave(&encode_full_tally(tally(), &counter(0), fence)));
        assert!(!is_grave(&encode_tally(tally(), &counter(0), fence)));
        let full = super::tally(tally(), &counter(1), FLAGS_GRAVE, fence, None);
        assert_eq!(tally_of(&full), Err(DecodeError::NotCanonical));
        for kind in Kind::ALL {
            let key = KeySeal::of(&key(*kind));
            let grave = encode_grave(key, *kind, fence, None);
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
        fn stamps_and_resets_round_trip(
            total: i128,
            mark: u64,
            at in 0..i64::MAX / 2,
            span in 1..i64::MAX / 4,
            mut ids in prop::collection::vec((1..1_000i64, any::<u8>()), 0..20),
        ) {
            let shard = encode_stamped_shard(row(), &counter(total), mark, Some(generation(at)));
            prop_assert_eq!(shard_of(&shard), Ok(counter(total)));
            prop_assert_eq!(stamp(&shard), Some(generation(at)));
            ids.iter_mut().for_each(|(after, _)| *after += at);
            ids.sort_unstable();
            ids.dedup();
            let cleared = remembered(at, at + span, &ids);
            let fence = Timestamp::from_micros(at + 1);
            let tally = encode_reset_tally(tally(), &counter(total), fence, false, Some(&cleared));
            prop_assert_eq!(tally_of(&tally), Ok((fence, counter(total))));
            prop_assert_eq!(super::reset(&tally), Some(cleared));
            for length in 0..tally.len() {
                prop_assert!(tally_of(&tally[..length]).is_err());
            }
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
        let (stamped_tally, reset_shard) = (FLAG_STAMP | FLAG_TALLY, FLAG_RESET);
        let full_grave = FLAGS_GRAVE | FLAG_FULL;
        for flags in [stamped_tally, reset_shard, FLAG_GRAVE, full_grave, 0x40, 0x80] {
            let error = sealed(vec![0xCF, 1, 1, flags, 1, 9, 0, 1, 2]);
            assert!(error == DecodeError::Flags && error.may_be_newer(), "{flags:b}");
        }
        assert_eq!(sealed(vec![0xCF, 1, 1, 0, 1, 1, 7, 1, 2]), DecodeError::Flags);
        assert_eq!(sealed(vec![0xCF, 1, 1, 0, 1, 0, 1, 2, 0]), DecodeError::Framing { at: 8 });
        assert_eq!(sealed(vec![0xCF, 1, 1, 0, 1, 0, 2, 0x80, 0]), DecodeError::NotCanonical);
        assert_eq!(sealed(vec![0xC7, 1]), DecodeError::Magic(0xC7));
    }
}
