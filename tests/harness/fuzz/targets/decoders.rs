//! Stored data and names: envelopes, payloads, ops, names. Each decoder is compared with a second implementation of its
//! rule.

use orderfree_core::crdt::envelope::{
    KeySeal, RowSeal, Shard, decode_shard, decode_state, decode_tally, encode_grave,
    encode_reset_tally, encode_shard, encode_stamped_pack, encode_stamped_shard, is_full, is_grave,
    reset, stamp,
};
use orderfree_core::crdt::pack::Pack;
use orderfree_core::crdt::{CounterOp, Kind, Op, OpError, Question, State, Value};
use orderfree_core::protocol::{Key, MutatorId, Name, Timestamp};
use serde::Deserialize;
use serde_json::Value as Json;
use serde_json::value::RawValue;
use uuid::Uuid;

const MAGIC: u8 = 0xCF;

/// The flag of a pack.
const PACK: u8 = 2;

/// Any bytes as a shard and as a tally, also with a valid checksum, which mutations would not find.
pub(super) fn envelope(input: &[u8]) {
    for &kind in Kind::ALL {
        check_envelope(kind, input);
        check_envelope(kind, &sealed(kind, input.to_vec()));
        check_envelope(kind, &sealed(kind, [&[MAGIC], input].concat()));
        let known = [MAGIC, code(kind), format(kind)];
        check_envelope(kind, &sealed(kind, [&known, input].concat()));
    }
}

fn code(kind: Kind) -> u8 {
    u8::try_from(kind.code()).expect("one byte so far")
}

fn format(kind: Kind) -> u8 {
    u8::try_from(kind.format()).expect("one byte so far")
}

/// All rows of the targets belong to one key, with one expiry and one mutator.
pub(crate) fn key(kind: Kind) -> KeySeal {
    let name = |text| Name::new(text).expect("a name");
    KeySeal::of(&Key { kind, group: name(GROUP), name: name(NAME) })
}

pub(crate) fn row(kind: Kind) -> RowSeal {
    key(kind).row(EXPIRES_AT, MutatorId::new(Uuid::from_u128(MUTATOR)))
}

const GROUP: &str = "g";
const NAME: &str = "name";
const EXPIRES_AT: Timestamp = Timestamp::from_micros(1_700_000_060_000_000);
const MUTATOR: u128 = 1;

/// A shard's body with its checksum, which begins with the address of its row.
fn sealed(kind: Kind, mut body: Vec<u8>) -> Vec<u8> {
    let checksum = checksum(kind, EXPIRES_AT, MUTATOR, &body);
    body.extend_from_slice(&checksum.to_le_bytes());
    body
}

fn checksum(kind: Kind, expires_at: Timestamp, mutator: u128, body: &[u8]) -> u32 {
    let mut all = Vec::new();
    for text in [kind.name(), GROUP, NAME] {
        all.extend_from_slice(&u16::try_from(text.len()).expect("short").to_le_bytes());
        all.extend_from_slice(text.as_bytes());
    }
    all.extend_from_slice(&expires_at.as_micros().to_le_bytes());
    all.extend_from_slice(&mutator.to_be_bytes());
    all.extend_from_slice(body);
    crc32c(&all)
}

/// CRC-32C bit by bit, as RFC 3720 defines it.
fn crc32c(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0x82F6_3B78 } else { crc >> 1 };
    let byte = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), bit);
    !bytes.iter().fold(!0, byte)
}

/// Bytes that decode are a shard or a tally and not both, equal the encoding of their state, and have a correct
/// checksum.
fn check_envelope(kind: Kind, bytes: &[u8]) {
    let shard = decode_state(row(kind), kind, bytes);
    let tally = decode_tally(key(kind), kind, bytes);
    assert!(shard.is_err() || tally.is_err(), "both a shard and a tally: {bytes:x?}");
    let (body, stored) = bytes.split_at(bytes.len().saturating_sub(4));
    if let Ok(Shard::Pack(pack)) = decode_shard(row(kind), kind, bytes) {
        assert!(shard.is_err() && tally.is_err(), "a pack and something else: {bytes:x?}");
        let pack = Pack::resumed(kind, &pack);
        let again = encode_stamped_pack(row(kind), &pack, mark(bytes), stamp(bytes));
        assert_eq!(again, bytes, "not canonical");
        let computed = checksum(kind, EXPIRES_AT, MUTATOR, body);
        assert_eq!(stored, computed.to_le_bytes(), "a wrong checksum was accepted");
        return;
    }
    let (state, computed) = match (shard, tally) {
        (Ok(state), _) => {
            let again = encode_stamped_shard(row(kind), &state, mark(bytes), stamp(bytes));
            assert_eq!(again, bytes, "not canonical");
            (state, checksum(kind, EXPIRES_AT, MUTATOR, body))
        }
        (_, Ok((fence, state))) => {
            assert_eq!(fence.as_micros(), i64::try_from(mark(bytes)).expect("a fence"));
            let reset = reset(bytes);
            let again = match is_grave(bytes) {
                true => encode_grave(key(kind), kind, fence, reset.as_ref()),
                false => {
                    let is_full = is_full(bytes);
                    encode_reset_tally(key(kind), &state, fence, is_full, reset.as_ref())
                }
            };
            assert_eq!(again, bytes, "not canonical");
            (state, checksum(kind, Timestamp::NEVER, 0, body))
        }
        _ => return,
    };
    assert_eq!(state.kind(), kind);
    assert_eq!(stored, computed.to_le_bytes(), "a wrong checksum was accepted");
}

/// The write number or the fence of a valid envelope, which follows magic, code, format and flags.
fn mark(bytes: &[u8]) -> u64 {
    let (_, code) = leb128(&bytes[1..]).expect("a kind's code");
    let (_, format) = leb128(&bytes[1 + code..]).expect("a format");
    let (mark, _) = leb128(&bytes[2 + code + format..]).expect("a mark");
    u64::try_from(mark).expect("64 bits")
}

/// The payload of a valid envelope, which follows the configuration.
pub(crate) fn payload_in(bytes: &[u8]) -> &[u8] {
    let mut at = 1;
    let mut next = || {
        let (number, length) = leb128(&bytes[at..]).expect("a number");
        at += length;
        usize::try_from(number).expect("a length")
    };
    let (_code, _format, _flags, _mark, configuration) = (next(), next(), next(), next(), next());
    at += configuration;
    let (length, digits) = leb128(&bytes[at..]).expect("a length");
    at += digits;
    &bytes[at..at + usize::try_from(length).expect("a length")]
}

/// A number and its length, if it is in its shortest form and has at most 128 bits.
fn leb128(bytes: &[u8]) -> Option<(u128, usize)> {
    let length = 1 + bytes.iter().position(|byte| byte & 0x80 == 0)?;
    let is_shortest = length == 1 || bytes[length - 1] != 0;
    let number = bytes[..length].iter().rev().try_fold(0_u128, |number, byte| {
        number.checked_mul(128)?.checked_add(u128::from(byte & 0x7f))
    });
    number.filter(|_| is_shortest).map(|number| (number, length))
}

/// Any bytes as a payload of each kind: a payload that is not canonical is refused, a canonical one has the right
/// value.
pub(super) fn payload(input: &[u8]) {
    for &kind in Kind::ALL {
        let mut body = vec![MAGIC, code(kind), format(kind), 0, 1];
        body.extend(configuration(kind));
        let mut length = input.len();
        while length >= 0x80 {
            body.push(u8::try_from(length & 0x7f).expect("seven bits") | 0x80);
            length >>= 7;
        }
        body.push(u8::try_from(length).expect("seven bits"));
        body.extend_from_slice(input);
        let mut pack = body.clone();
        pack[3] = PACK;
        check_envelope(kind, &sealed(kind, pack));
        let bytes = sealed(kind, body);
        let decoded = decode_state(row(kind), kind, &bytes);
        if let Ok(state) = &decoded {
            assert_eq!(encode_shard(row(kind), state, 1), bytes, "not canonical");
            assert_eq!(payload_in(&bytes), input);
            let value = state.value(&Question::default());
            assert!(serde_json::to_string(&value.shown(false)).is_ok());
        }
        if kind == Kind::Counter {
            let total = decoded.ok().map(|state| state.value(&Question::default()));
            assert_eq!(total, expected_total(input).map(Value::Integer));
        }
    }
}

/// The default precision and its length. Nothing has length 0.
fn configuration(kind: Kind) -> Vec<u8> {
    let Some(range) = kind.precision() else { return vec![0] };
    match u8::try_from(range.default) {
        Ok(small @ ..0x80) => vec![1, small],
        _ => {
            let low = u8::try_from(range.default & 0x7f).expect("seven bits");
            vec![2, low | 0x80, u8::try_from(range.default >> 7).expect("14 bits in all")]
        }
    }
}

fn expected_total(payload: &[u8]) -> Option<i128> {
    let (zigzag, length) = leb128(payload)?;
    // 0, 1, 2, 3, … stand for 0, -1, 1, -2, …
    let half = i128::try_from(zigzag / 2).expect("127 bits");
    let total = if zigzag % 2 == 0 { half } else { -1 - half };
    (length == payload.len()).then_some(total)
}

/// Any JSON as an op of each kind, both directly and as the amount of an `add`.
pub(super) fn op(input: &[u8]) {
    let amount = [br#"{"op":"add","by":"#, input, b"}"].concat();
    for text in [input, &amount] {
        let Ok(text) = std::str::from_utf8(text) else { continue };
        let Ok(json) = serde_json::from_str::<Json>(text) else { continue };
        for &kind in Kind::ALL {
            let parsed = kind.read_op(text);
            match &parsed {
                Err(error) => assert!(!error.to_string().is_empty()),
                Ok(op) => {
                    assert_eq!(op.kind(), kind);
                    let mut state = State::new(kind, None);
                    let before = state.clone();
                    match state.apply(op) {
                        Ok(_) => {}
                        // Ops that only a mutator can complete.
                        Err(OpError::Invalid(error)) => assert_eq!(state, before, "{error}"),
                        Err(other) => panic!("one op is within any range: {other}"),
                    }
                }
            }
            if kind == Kind::Counter {
                assert_eq!(parsed.ok(), expected_op(text, &json), "{json}");
            }
        }
    }
}

fn expected_op(text: &str, json: &Json) -> Option<Op> {
    /// The texts of the fields. A field that is given twice is refused.
    #[derive(Deserialize)]
    struct Texts<'a> {
        #[serde(borrow, rename = "op")]
        _op: Option<&'a RawValue>,
        #[serde(borrow)]
        by: Option<&'a RawValue>,
    }

    let fields = json.as_object()?;
    let texts: Texts<'_> = serde_json::from_str(text).ok()?;
    let by = match fields.get("by") {
        None => 1,
        Some(Json::String(digits)) => digits.parse().ok()?,
        Some(Json::Number(_)) => whole(texts.by?.get())?,
        Some(_) => return None,
    };
    let others = fields.keys().filter(|name| !matches!(name.as_str(), "op" | "by"));
    let is_add = fields.get("op")? == "add" && others.count() == 0;
    is_add.then_some(Op::Counter(CounterOp::Add { by }))
}

/// The whole number that a JSON number is equal to. Its digits are shifted one at a time.
fn whole(number: &str) -> Option<i64> {
    /// A number that is shifted further is zero, or has a fraction or more than 64 bits.
    const SHIFT_MAX: u64 = 1 << 20;
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut digits = format!("{whole}{fraction}");
    if digits.bytes().all(|byte| matches!(byte, b'0' | b'-')) {
        return Some(0);
    }
    let shift: i64 =
        exponent.parse().ok().filter(|shift: &i64| shift.unsigned_abs() < SHIFT_MAX)?;
    let places = i64::try_from(fraction.len()).expect("short") - shift;
    for _ in 0..places {
        if digits.pop() != Some('0') {
            return None;
        }
    }
    for _ in places..0 {
        digits.push('0');
    }
    digits.parse().ok()
}

/// Any text as a name.
pub(super) fn name(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match Name::new(text) {
        Ok(name) => assert_eq!((name.as_str(), name.to_string().as_str()), (text, text)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    assert_eq!(Name::new(text).is_ok(), is_name(text.as_bytes()), "{text:?}");
}

/// The rule for names, on bytes: C0 is one byte; C1 is 0xC2 and one byte below 0xA0.
pub(super) fn is_name(text: &[u8]) -> bool {
    let c0 = text.iter().any(|&byte| byte < 0x20 || byte == 0x7f);
    let c1 = text.windows(2).any(|pair| pair[0] == 0xC2 && pair[1] < 0xA0);
    (1..=256).contains(&text.len()) && !c0 && !c1 && std::str::from_utf8(text).is_ok()
}
