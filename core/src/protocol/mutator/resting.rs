//! Rest: a clean mutator becomes a few bytes, from which the same mutator wakes.
//!
//! A resting mutator keeps only what its next write depends on:
//!
//! | field | why |
//! | --- | --- |
//! | id, expiry | it is the same writer of the same row (I1) |
//! | birth on the boot clock | its lease ends when it would have ended (I4) |
//! | length of the lease | the same; only for packs, as that of other mutators is always the same |
//! | last timestamp | timestamps go on rising (I2) |
//! | number of writes | the envelope holds it |
//! | dots | a dot is never drawn twice |
//! | stamp | its row stays on the same side of a reset; only if it has one |
//! | whether it was persisted | the first op of a key is always written |
//! | predecessors | they bound what this pod has of the key |
//! | state or pack, with its precision | the next write contains all earlier ones (I2) |
//!
//! A mutator that takes no more ops can leave [remains](Mutator::remains): the same fields without state and
//! last timestamp, for its successor. They never wake, also if a later look at a clock finds an earlier time.
//!
//! Only a clean mutator can rest: ops that are in flight, waiting or unresolved are not kept. The bytes never
//! leave the process, so the format can change with any release.

use std::time::Duration;

use uuid::Uuid;

use super::content::MutatorContent;
use super::{Mutator, Predecessors, lifetime_of};
use crate::crdt::pack::{Pack, StoredPack};
use crate::crdt::varint::{self, Reader};
use crate::crdt::{DecodeError, Kind, State};
use crate::protocol::generation::Generation;
use crate::protocol::{Constants, Key, Lease, MutatorId, Now, Timestamp};

/// Offset of the flags: after expiry, birth and id.
const FLAGS_AT: usize = 8 + 8 + 16;

const PERSISTED: u8 = 0b1;
const HAS_WRITTEN: u8 = 0b10;
const HAS_PRECISION: u8 = 0b100;
const HAS_PREDECESSORS: u8 = 0b1000;
const IS_PACK: u8 = 0b1_0000;
const HAS_STAMP: u8 = 0b10_0000;
const HAS_ENDED: u8 = 0b100_0000;

/// A rule of resting that a simulation breaks, to show that it is needed. Nothing else uses this.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestFlaw {
    /// A woken mutator does not know when it last wrote.
    ForgetsLastTimestamp,
    /// A woken mutator counts its dots from 1 again.
    DrawsDotsAgain,
    /// A mutator whose last write has an unknown outcome rests as if that write had never happened.
    RestsUnclean,
    /// A woken mutator gets a full new lease.
    RenewsLease,
}

/// What is kept of a resting mutator.
#[derive(Debug, Clone, PartialEq)]
struct Rested {
    expires_at: Timestamp,
    born_boot: Duration,
    lifetime: Duration,
    id: MutatorId,
    stamp: Option<Generation>,
    persisted: bool,
    last_timestamp: Option<Timestamp>,
    writes: u64,
    dots: u64,
    predecessors: Predecessors,
    held: MutatorContent,
    /// These are remains.
    has_ended: bool,
}

impl Mutator {
    /// The bytes to wake it from later; none unless it is [clean](Mutator::is_clean).
    #[must_use]
    pub fn rest(&self) -> Option<Vec<u8>> {
        self.rest_with(None)
    }

    /// As [`Mutator::rest`], with a rule broken.
    #[doc(hidden)]
    #[must_use]
    pub fn rest_with(&self, flaw: Option<RestFlaw>) -> Option<Vec<u8>> {
        if !self.is_clean() && flaw != Some(RestFlaw::RestsUnclean) {
            return None;
        }
        let forgets = flaw == Some(RestFlaw::ForgetsLastTimestamp);
        let draws_again = flaw == Some(RestFlaw::DrawsDotsAgain);
        // An unclean mutator rests with the state from before everything that is still open.
        let held = if self.is_clean() { self.head.clone() } else { self.head.emptied() };
        let renewed = match flaw {
            Some(RestFlaw::RenewsLease) => self.lease.lifetime(),
            _ => Duration::ZERO,
        };
        let rested = Rested {
            expires_at: self.lease.expires_at().plus(renewed),
            born_boot: self.lease.born_boot() + renewed,
            lifetime: self.lease.lifetime(),
            id: self.id,
            stamp: self.stamp,
            persisted: self.persisted,
            last_timestamp: self.last_timestamp.filter(|_| !forgets),
            writes: self.writes,
            dots: if draws_again { 0 } else { self.dots },
            predecessors: self.predecessors.clone(),
            held,
            has_ended: false,
        };
        Some(rested.encode())
    }

    /// What a mutator that takes no more ops leaves behind, so that its successor knows how much this pod has
    /// of the key. It never wakes. None if that is at most `little` bytes.
    #[must_use]
    pub fn remains(&self, now: Timestamp, constants: &Constants, little: usize) -> Option<Vec<u8>> {
        let legacy = self.legacy().unfolded(now, constants);
        if legacy.bytes() <= little {
            return None;
        }
        let remains = Rested {
            expires_at: self.lease.expires_at(),
            born_boot: self.lease.born_boot(),
            lifetime: self.lease.lifetime(),
            id: self.id,
            stamp: self.stamp,
            persisted: self.persisted,
            last_timestamp: None,
            writes: self.writes,
            dots: self.dots,
            predecessors: legacy,
            held: self.head.emptied(),
            has_ended: true,
        };
        Some(remains.encode())
    }

    /// Whether these bytes are no longer needed: their mutator takes no more ops, and its rows have at most
    /// `little` bytes or a fold can take them.
    ///
    /// # Panics
    /// If the bytes are not those of [`Mutator::rest`] or [`Mutator::remains`].
    #[must_use]
    pub fn is_over_at_rest(bytes: &[u8], now: Now, constants: &Constants, little: usize) -> bool {
        let is_much = bytes.len() > little || bytes[FLAGS_AT] & HAS_PREDECESSORS != 0;
        let expires_at = Mutator::resting_lease(bytes, constants).expires_at();
        let may_be_folded = now.wall >= expires_at.plus(constants.cutoff());
        !Mutator::can_wake(bytes, now, constants) && (may_be_folded || !is_much)
    }

    /// Whether the mutator can take ops when it wakes.
    ///
    /// # Panics
    /// If the bytes are not those of [`Mutator::rest`] or [`Mutator::remains`].
    #[must_use]
    pub fn can_wake(bytes: &[u8], now: Now, constants: &Constants) -> bool {
        bytes[FLAGS_AT] & HAS_ENDED == 0
            && Mutator::resting_lease(bytes, constants).is_writable(now)
    }

    /// Wakes the mutator that went to rest. If it [can't wake](Mutator::can_wake), use only its
    /// [legacy](Mutator::legacy).
    ///
    /// # Panics
    /// If the bytes are not those of [`Mutator::rest`] or [`Mutator::remains`] for a key of this kind.
    #[must_use]
    pub fn wake(key: Key, bytes: &[u8], constants: &Constants) -> Mutator {
        let rested = Rested::decode(key.kind, bytes, constants);
        let rested = rested.expect("invariant: own bytes of this process");
        let lease = Mutator::resting_lease(bytes, constants);
        Mutator {
            stamp: rested.stamp,
            persisted: rested.persisted,
            dots: rested.dots,
            last_timestamp: rested.last_timestamp,
            writes: rested.writes,
            predecessors: rested.predecessors,
            ..Mutator::clean(key, rested.id, lease, rested.held)
        }
    }

    /// The expiry of a resting mutator, read without waking it.
    ///
    /// # Panics
    /// If the bytes are not those of [`Mutator::rest`].
    #[must_use]
    pub fn resting_expiry(bytes: &[u8]) -> Timestamp {
        let (first, _) = bytes.split_first_chunk().expect("invariant: own bytes");
        Timestamp::from_micros(i64::from_le_bytes(*first))
    }

    /// The lease of a resting mutator, read without waking it.
    ///
    /// # Panics
    /// If the bytes are not those of [`Mutator::rest`].
    #[must_use]
    pub fn resting_lease(bytes: &[u8], constants: &Constants) -> Lease {
        let head = Rested::decode_head(&mut Reader::new(bytes)).expect("invariant: own bytes");
        let Head { expires_at, born_boot, lifetime, stamp, .. } = head;
        match lifetime {
            None => {
                let lifetime = lifetime_of(stamp, constants);
                Lease::resumed(expires_at, born_boot, lifetime, constants)
            }
            Some(lifetime) => Lease::resumed_until(expires_at, born_boot, lifetime, constants),
        }
    }
}

/// The parts that can be read without the rest.
struct Head {
    expires_at: Timestamp,
    born_boot: Duration,
    id: MutatorId,
    flags: u8,
    /// Only of a pack.
    lifetime: Option<Duration>,
    stamp: Option<Generation>,
}

impl Rested {
    /// The lease comes first, so that it can be read alone.
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        out.extend_from_slice(&self.expires_at.as_micros().to_le_bytes());
        out.extend_from_slice(&nanos(self.born_boot).to_le_bytes());
        out.extend_from_slice(self.id.as_uuid().as_bytes());
        let mut flags = 0;
        for (flag, is_set) in [
            (PERSISTED, self.persisted),
            (HAS_WRITTEN, self.last_timestamp.is_some()),
            (HAS_PRECISION, self.held.precision().is_some()),
            (HAS_PREDECESSORS, !self.predecessors.is_empty()),
            (IS_PACK, matches!(self.held, MutatorContent::Pack(_))),
            (HAS_STAMP, self.stamp.is_some()),
            (HAS_ENDED, self.has_ended),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        out.push(flags);
        if flags & IS_PACK != 0 {
            varint::put(u128::from(nanos(self.lifetime)), &mut out);
        }
        if let Some(stamp) = self.stamp {
            varint::put_signed(stamp.time().as_micros().into(), &mut out);
        }
        varint::put(u128::from(self.writes), &mut out);
        varint::put(u128::from(self.dots), &mut out);
        if let Some(last) = self.last_timestamp {
            // It is close to the expiry, so the difference is a short number.
            let before = i128::from(self.expires_at.as_micros()) - i128::from(last.as_micros());
            varint::put_signed(before, &mut out);
        }
        if !self.predecessors.is_empty() {
            self.predecessors.encode(&mut out);
        }
        if let Some(precision) = self.held.precision() {
            varint::put(u128::from(precision), &mut out);
        }
        self.held.encode_payload(&mut out);
        out
    }

    fn decode_head(reader: &mut Reader<'_>) -> Result<Head, DecodeError> {
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let expires_at = Timestamp::from_micros(number(reader.bytes(8)?).cast_signed());
        let born_boot = Duration::from_nanos(number(reader.bytes(8)?));
        let id = Uuid::from_slice(reader.bytes(16)?).expect("sixteen bytes");
        let flags = reader.byte()?;
        let lifetime = match flags & IS_PACK {
            0 => None,
            _ => Some(Duration::from_nanos(reader.u64()?)),
        };
        let stamp = match flags & HAS_STAMP {
            0 => None,
            _ => Some(Generation::at(decode_time(reader)?)),
        };
        Ok(Head { expires_at, born_boot, id: MutatorId::new(id), flags, lifetime, stamp })
    }

    fn decode(kind: Kind, bytes: &[u8], constants: &Constants) -> Result<Rested, DecodeError> {
        let mut reader = Reader::new(bytes);
        let Head { expires_at, born_boot, id, flags, lifetime, stamp } =
            Rested::decode_head(&mut reader)?;
        let (writes, dots) = (reader.u64()?, reader.u64()?);
        let last_timestamp = match flags & HAS_WRITTEN {
            0 => None,
            _ => {
                let before = i128::from(expires_at.as_micros()) - reader.signed()?;
                let last = i64::try_from(before).map_err(|_| DecodeError::NotCanonical)?;
                Some(Timestamp::from_micros(last))
            }
        };
        let predecessors = match flags & HAS_PREDECESSORS {
            0 => Predecessors::default(),
            _ => Predecessors::decode(&mut reader)?,
        };
        let precision = match flags & HAS_PRECISION {
            0 => None,
            _ => Some(u16::try_from(reader.u64()?).map_err(|_| DecodeError::NotCanonical)?),
        };
        let payload = reader.rest();
        let held = match flags & IS_PACK {
            0 => MutatorContent::State(State::decode_payload(
                kind,
                kind.format(),
                precision,
                payload,
            )?),
            // A pack without an entry is no pack for readers, but a mutator can have one.
            _ if payload == [0] => MutatorContent::Pack(Pack::new(kind, precision)),
            _ => {
                MutatorContent::Pack(Pack::resumed(kind, &StoredPack::decode(precision, payload)?))
            }
        };
        Ok(Rested {
            expires_at,
            born_boot,
            lifetime: lifetime.unwrap_or(lifetime_of(stamp, constants)),
            id,
            stamp,
            persisted: flags & PERSISTED != 0,
            last_timestamp,
            writes,
            dots,
            predecessors,
            held,
            has_ended: flags & HAS_ENDED != 0,
        })
    }
}

fn decode_time(reader: &mut Reader<'_>) -> Result<Timestamp, DecodeError> {
    let micros = i64::try_from(reader.signed()?).map_err(|_| DecodeError::NotCanonical)?;
    Ok(Timestamp::from_micros(micros))
}

/// The range is 584 years since boot.
fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
