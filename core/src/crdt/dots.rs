//! The dot kernel: which ops a reader has seen, and how a client sends that back.
//!
//! A [`Dot`](super::Dot) names one op. A [`Context`] is a set of dots in the manner of a version vector
//! (Preguiça et al., "Dotted version vectors", 2010), with one addition that lets it shrink: a dot contains
//! its mutator's expiry, so all mutators that a fold has settled become one number, the fence. Clients hold
//! contexts sealed, as a [`Token`].
//!
//! One number per mutator is enough: a later state of a mutator contains all that an earlier one held
//! (invariant I2), and sequence numbers increase. A reader that saw a mutator's dot n has seen all of its
//! dots below n as well, or saw them removed, or they were never sent and never will be.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Deserializer};
use uuid::Uuid;

use super::item::Item;
use super::varint::{self, Reader};
use super::{DecodeError, OpError};
use crate::protocol::{Key, MutatorId, SPAN_MAX, Timestamp};

/// Maximum length of a token, in bytes: ten thousand mutators above the fence, which is also the maximum that
/// a read merges. An op with so large a token can still be refused for the size of its state.
const TOKEN_BYTES_MAX: usize = 512 * 1024;

/// First byte of a token for every item of a key.
const FOR_ALL: u8 = 1;

/// First byte of a token for one item. The item's name follows the checksum.
const FOR_ONE: u8 = 2;

/// How far an expiry in a token can be beyond what this pod's clock allows.
const SLACK: Duration = Duration::from_secs(24 * 3600);

/// Maximum bytes of one encoded time.
pub(super) const TIME_BYTES_MAX: usize = 10;

/// Maximum bytes of one encoded dot: the expiry, the mutator's id, the sequence number.
pub(super) const DOT_BYTES_MAX: usize = TIME_BYTES_MAX + 16 + 10;

/// A mutator as dots name it, with the expiry first.
pub(super) type Writer = (Timestamp, MutatorId);

/// The newest dot of each mutator. Sequence numbers begin with 1.
pub(super) type Newest = BTreeMap<Writer, u64>;

/// The dots that a reader has seen, or a set of removed dots.
///
/// It covers a dot if the dot's mutator expires at or before the fence, or if the dot's number is at most the
/// one listed for its mutator. It lists no mutator that the fence covers, so equal sets have equal bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Context {
    fence: Option<Timestamp>,
    live: Newest,
}

impl Context {
    /// All dots of mutators that expire at or before `fence`.
    pub(super) fn up_to(fence: Option<Timestamp>) -> Context {
        Context { fence, live: Newest::new() }
    }

    /// The dots seen by a read whose tally has this fence. The fence covers the dots at or below it: the
    /// tally held all that were ever acknowledged there.
    pub(super) fn seen<'a>(
        dots: impl Iterator<Item = (&'a Writer, &'a u64)>,
        fence: Option<Timestamp>,
    ) -> Context {
        let mut context = Context::default();
        for (&writer, &seq) in dots {
            if Some(writer.0) <= fence {
                context.fence = fence;
            } else {
                let newest = context.live.entry(writer).or_default();
                *newest = seq.max(*newest);
            }
        }
        context
    }

    /// Whether it covers this dot.
    pub(super) fn covers(&self, writer: &Writer, seq: u64) -> bool {
        Some(writer.0) <= self.fence || self.live.get(writer).is_some_and(|newest| seq <= *newest)
    }

    /// Whether it covers nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.fence.is_none() && self.live.is_empty()
    }

    /// Also covers everything that `other` covers.
    pub(super) fn join(&mut self, other: &Context) {
        self.fence = self.fence.max(other.fence);
        for (&writer, &seq) in &other.live {
            let newest = self.live.entry(writer).or_default();
            *newest = seq.max(*newest);
        }
        self.live.retain(|writer, _| Some(writer.0) > self.fence);
    }

    /// Leaves out each part that `other` covers completely; the two together still cover the same. Returns
    /// whether there was one.
    pub(super) fn subtract(&mut self, other: &Context) -> bool {
        let (had_fence, had_live) = (self.fence.is_some(), self.live.len());
        self.fence = self.fence.filter(|_| self.fence > other.fence);
        self.live.retain(|writer, seq| !other.covers(writer, *seq));
        (had_fence, had_live) != (self.fence.is_some(), self.live.len())
    }

    /// Maximum bytes of its parts in a payload; 0 if it is empty.
    pub(super) fn parts_bytes(&self) -> usize {
        usize::from(self.fence.is_some()) * TIME_BYTES_MAX + self.live.len() * DOT_BYTES_MAX
    }

    /// Appends the fence and the newest dots.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        encode_fence(self.fence, out);
        encode_newest(&self.live, out);
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Context, DecodeError> {
        let context = Context { fence: decode_fence(reader)?, live: decode_newest(reader)? };
        match context.live.first_key_value() {
            Some((writer, _)) if Some(writer.0) <= context.fence => Err(DecodeError::NotCanonical),
            _ => Ok(context),
        }
    }

    /// The token of this context, valid only for this key and, if there is one, for this item: a byte for
    /// what it is valid for, a checksum, the item's name and the context, as base64url without padding.
    pub(super) fn seal(&self, key: &Key, item: Option<&Item>) -> String {
        let mut sealed = Vec::new();
        if let Some(item) = item {
            sealed.extend_from_slice(&name_of(item));
        }
        self.encode(&mut sealed);
        let version = if item.is_some() { FOR_ONE } else { FOR_ALL };
        let mut bytes = vec![version];
        bytes.extend_from_slice(&checksum(key, version, &sealed).to_le_bytes());
        bytes.extend_from_slice(&sealed);
        URL_SAFE_NO_PAD.encode(bytes)
    }
}

/// A [`Context`] on its way from a read to a later op of the same key, and often of one item. A client gets it
/// as opaque text. The checksum detects accidents; it does not prevent forgery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    /// As the client sent it.
    Sealed(Box<str>),
    /// Checked and decoded.
    Opened(Context),
}

impl Token {
    /// Checks and opens the token in the op's field `field`, for one item or for all.
    ///
    /// A forged token can't cover the far future: its fence must be in the past, and no mutator lives longer
    /// than the longest span that an operator can configure. One day is added for clock differences.
    ///
    /// # Errors
    /// [`OpError::OtherItem`] if the token is of another item, otherwise [`OpError::Invalid`] with the field and
    /// the rule that the token breaks.
    pub(super) fn open(
        &mut self,
        field: &'static str,
        key: &Key,
        item: Option<&Item>,
        now: Timestamp,
    ) -> Result<(), OpError> {
        let Token::Sealed(text) = self else { return Ok(()) };
        let refusal = |rule: &str| OpError::Invalid(format!("`{field}` {rule}"));
        if text.len() > TOKEN_BYTES_MAX {
            let rule = format!("has {} bytes; a token has at most {TOKEN_BYTES_MAX}", text.len());
            return Err(refusal(&rule));
        }
        let bytes = URL_SAFE_NO_PAD.decode(&**text).map_err(|_| {
            refusal("is not base64url without padding; send a token from a read of this key")
        })?;
        let not_a_token = || refusal("is not a token; send one from a read of this key");
        let [version @ (FOR_ALL | FOR_ONE), sealed @ ..] = &bytes[..] else {
            return Err(not_a_token());
        };
        let (stored, sealed) = sealed.split_first_chunk().ok_or_else(not_a_token)?;
        if u32::from_le_bytes(*stored) != checksum(key, *version, sealed) {
            let rule = "is damaged or from another key; send a token from a read of this key";
            return Err(refusal(rule));
        }
        let context = match *version {
            FOR_ALL => sealed,
            _ => {
                let (name, context) = sealed.split_first_chunk().ok_or_else(not_a_token)?;
                if item.map(name_of) != Some(*name) {
                    return Err(OpError::OtherItem { field });
                }
                context
            }
        };
        let mut reader = Reader::new(context);
        let context = Context::decode(&mut reader).map_err(|_| not_a_token())?;
        reader.end().map_err(|_| not_a_token())?;
        // A fence is at least the cutoff before every clock.
        if context.fence > Some(now) {
            return Err(refusal(
                "claims a fence in the future; send a token from a read of this key",
            ));
        }
        let latest = context.live.last_key_value().map(|((expires_at, _), _)| *expires_at);
        if latest > Some(now.plus(SPAN_MAX).plus(SLACK)) {
            let rule =
                "claims an expiry in more than 367 days; send a token from a read of this key";
            return Err(refusal(rule));
        }
        *self = Token::Opened(context);
        Ok(())
    }

    /// The dots that the token in the op's field `field` covers.
    ///
    /// # Errors
    /// [`OpError::Invalid`] if it is not opened yet.
    pub(super) fn context(&self, field: &str) -> Result<&Context, OpError> {
        match self {
            Token::Opened(context) => Ok(context),
            Token::Sealed(_) => Err(OpError::Invalid(format!("`{field}` was not opened"))),
        }
    }

    /// Memory that it holds in addition to itself, in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            Token::Sealed(text) => text.len(),
            Token::Opened(context) => context.live.len() * size_of::<(Writer, u64)>(),
        }
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Token, D::Error> {
        String::deserialize(deserializer).map(|text| Token::Sealed(text.into()))
    }
}

/// The name of an item in its tokens: CRC-32C over its bytes.
fn name_of(item: &Item) -> [u8; 4] {
    let mut bytes = Vec::new();
    item.encode(&mut bytes);
    crc32c::crc32c(&bytes).to_le_bytes()
}

/// CRC-32C (RFC 3720) over the token's first byte, over the key's kind, group and name, each after its length,
/// and over the rest of the token.
fn checksum(key: &Key, version: u8, sealed: &[u8]) -> u32 {
    let mut bytes = vec![version];
    for part in [key.kind.name(), key.group.as_str(), key.name.as_str()] {
        varint::put(part.len() as u128, &mut bytes);
        bytes.extend_from_slice(part.as_bytes());
    }
    crc32c::crc32c_append(crc32c::crc32c(&bytes), sealed)
}

/// Appends `0`, or `1` and the time in microseconds in zigzag form.
pub(super) fn encode_fence(fence: Option<Timestamp>, out: &mut Vec<u8>) {
    out.push(u8::from(fence.is_some()));
    if let Some(fence) = fence {
        encode_time(fence, out);
    }
}

pub(super) fn decode_fence(reader: &mut Reader<'_>) -> Result<Option<Timestamp>, DecodeError> {
    match reader.byte()? {
        0 => Ok(None),
        1 => decode_time(reader).map(Some),
        _ => Err(DecodeError::NotCanonical),
    }
}

/// Appends their number and then, ascending by mutator, the expiry, the 16 bytes of the id and the sequence
/// number of each.
pub(super) fn encode_newest(newest: &Newest, out: &mut Vec<u8>) {
    varint::put(newest.len() as u128, out);
    for ((expires_at, mutator_id), seq) in newest {
        encode_time(*expires_at, out);
        out.extend_from_slice(mutator_id.as_uuid().as_bytes());
        varint::put(u128::from(*seq), out);
    }
}

pub(super) fn decode_newest(reader: &mut Reader<'_>) -> Result<Newest, DecodeError> {
    let mut newest = Newest::new();
    for _ in 0..reader.length()? {
        let expires_at = decode_time(reader)?;
        let id = reader.bytes(16)?.try_into().map_err(|_| DecodeError::NotCanonical)?;
        let writer = (expires_at, MutatorId::new(Uuid::from_bytes(id)));
        let seq = reader.u64()?;
        if seq == 0 || newest.last_key_value().is_some_and(|(last, _)| *last >= writer) {
            return Err(DecodeError::NotCanonical);
        }
        newest.insert(writer, seq);
    }
    Ok(newest)
}

fn encode_time(time: Timestamp, out: &mut Vec<u8>) {
    varint::put_signed(i128::from(time.as_micros()), out);
}

fn decode_time(reader: &mut Reader<'_>) -> Result<Timestamp, DecodeError> {
    let micros = i64::try_from(reader.signed()?).map_err(|_| DecodeError::NotCanonical)?;
    Ok(Timestamp::from_micros(micros))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn context(fence: Option<i64>, live: &[(i64, u128, u64)]) -> Context {
        let writer = |at, id| (Timestamp::from_micros(at), MutatorId::new(Uuid::from_u128(id)));
        Context {
            fence: fence.map(Timestamp::from_micros),
            live: live.iter().map(|&(at, id, seq)| (writer(at, id), seq)).collect(),
        }
    }

    #[test]
    fn sizes_are_those_of_the_largest() {
        let mut bytes = Vec::new();
        encode_time(Timestamp::from_micros(i64::MIN), &mut bytes);
        assert_eq!(bytes.len(), TIME_BYTES_MAX);
        let largest = context(Some(i64::MIN), &[(i64::MAX, u128::MAX, u64::MAX)]);
        bytes.clear();
        encode_newest(&largest.live, &mut bytes);
        assert_eq!(bytes.len(), 1 + DOT_BYTES_MAX);
        assert_eq!(largest.parts_bytes(), TIME_BYTES_MAX + DOT_BYTES_MAX);
        assert_eq!(Context::default().parts_bytes(), 0);
    }

    #[test]
    fn a_context_with_a_dot_below_its_fence_is_not_canonical() {
        let decoded = |fence| {
            let mut bytes = Vec::new();
            context(fence, &[(7, 1, 1)]).encode(&mut bytes);
            Context::decode(&mut Reader::new(&bytes)).map(|context| context.fence)
        };
        assert_eq!(decoded(None), Ok(None));
        assert_eq!(decoded(Some(6)), Ok(Some(Timestamp::from_micros(6))));
        assert_eq!(decoded(Some(7)), Err(DecodeError::NotCanonical));
    }

    #[test]
    fn a_token_weighs_its_text_or_its_dots() {
        assert_eq!(Token::Sealed("abc".into()).heap_bytes(), 3);
        let opened = Token::Opened(context(None, &[(7, 1, 1), (8, 1, 1)]));
        assert_eq!(opened.heap_bytes(), 2 * size_of::<(Writer, u64)>());
    }

    /// A token with the maximum number of mutators that a read merges is accepted.
    #[test]
    fn a_token_of_ten_thousand_mutators_is_opened() {
        let name = crate::protocol::Name::new("n").expect("a name");
        let key = Key { kind: crate::crdt::Kind::OrSet, group: name.clone(), name };
        let (now, day) = (1_795_248_000_000_000, 86_400_000_000);
        let dots: Vec<_> = (0..10_000).map(|id| (now + day, u128::MAX - id, 1 << 20)).collect();
        let seen = context(Some(now - day), &dots);
        let text = seen.seal(&key, None);
        assert!(text.len() > 350_000, "{}", text.len());
        let mut token = Token::Sealed(text.into());
        assert_eq!(token.open("seen", &key, None, Timestamp::from_micros(now)), Ok(()));
        assert_eq!(token, Token::Opened(seen));
        let mut longest = Token::Sealed("A".repeat(TOKEN_BYTES_MAX).into());
        let error = longest.open("seen", &key, None, Timestamp::from_micros(now));
        let error = error.expect_err("no token");
        assert!(error.to_string().contains("is not a token"), "not its length: {error}");
    }

    /// A token with a valid checksum around any bytes.
    pub(in crate::crdt) fn sealed(key: &Key, context: &[u8]) -> String {
        let checksum = checksum(key, FOR_ALL, context).to_le_bytes();
        URL_SAFE_NO_PAD.encode([&[FOR_ALL], &checksum[..], context].concat())
    }
}
