//! Ops that their clients named, so that a retry counts once.
//!
//! A client sends an op with an id, a time and a [`Window`], the same at each retry. From these and from the
//! group alone follows one expiry, at which every row lies that can hold the op:
//!
//! ```text
//! expires_at = (floor((time + phase) / window) + 2) * window - phase
//! phase      = the first 8 bytes of SHA-256(group) as a big-endian number, modulo the window in µs
//! ```
//!
//! This is the end of the window after the op's own. So a client has between one and two windows for its
//! retries. No pod's clock, configuration or memory is a part of it. That is why all copies of an op are folded
//! together, and never beside one another: with an expiry from the clock of a pod, nearly every retry at
//! another pod would count twice. The phase spreads the expiries of groups over the window.
//!
//! A pod takes an op only while no honest clock can see that expiry as final; see [`NamedOp::expiry`]. So a
//! copy that arrives later is refused, and one that was written earlier lies below the fence.

use std::time::Duration;

use sha2::{Digest, Sha256};
use thiserror::Error;
use uuid::{Builder, Uuid, Variant};

use super::{Constants, MutatorId, Name, OP_AGE_MAX, Timestamp};
use crate::crdt::pack::{IdOp, OpId};
use crate::crdt::{Dot, Kind, Op, OpError};

/// Longest id, in bytes.
pub const ID_BYTES_MAX: usize = 255;

/// The last writer wins by times that follow from ids, which lie in their window: see [`OP_AGE_MAX`].
const _: () = assert!(2 * Window::Long.length().as_secs() < OP_AGE_MAX.as_secs());

const SECOND_US: i64 = 1_000_000;
const MILLISECOND_US: i64 = 1_000;

/// How long a client can repeat an op. The lengths are fixed: pods that disagreed on one would count twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Window {
    /// One minute.
    Minute,
    /// 15 minutes.
    #[default]
    Short,
    /// 24 hours.
    Long,
}

/// Times inside ids are before this one, in ms since 1970: the year 2109. Ids that claim a later time are
/// not ids with a time, but, for example, 26 digits that look like a ULID.
const INNER_MILLIS_END: u64 = 1 << 42;

/// The id of a client, and what can be read from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientId {
    bytes: [u8; 16],
    /// The time inside it, if it has one, in whole milliseconds.
    time: Option<Timestamp>,
    /// The part of a millisecond that a UUID of version 7 adds to its time, in µs.
    fraction_us: i64,
}

/// A client's name for its op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedOp {
    id: OpId,
    /// In whole milliseconds.
    time: Timestamp,
    fraction_us: i64,
    window: Window,
    sequence: u64,
    /// The number of ops before it in its request.
    ops_before: u32,
}

/// Why a text is not an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BadId {
    /// It is empty.
    #[error("is empty; give it 1 to {ID_BYTES_MAX} bytes")]
    Empty,
    /// It is too long.
    #[error("has {0} bytes; at most {ID_BYTES_MAX} are allowed")]
    TooLong(usize),
    /// It contains a control character.
    #[error("has a control character; leave it out")]
    Control,
}

/// Why an op is not taken under its id. This request wrote nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum IdRefusal {
    /// Its time is further ahead than two honest clocks can differ.
    #[error("the id's time is {}.{:03} s ahead of this server's clock", .by.as_secs(), .by.subsec_millis())]
    Ahead {
        /// How far.
        by: Duration,
    },
    /// Its window is over. An earlier request with the id may be counted, and no later one can be.
    #[error("the id's window ended at {}", .until.as_micros())]
    Expired {
        /// The end of its window.
        until: Timestamp,
    },
}

impl Window {
    /// Every window, the shortest first.
    pub const ALL: [Window; 3] = [Window::Minute, Window::Short, Window::Long];

    /// Its name in requests.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Window::Minute => "minute",
            Window::Short => "short",
            Window::Long => "long",
        }
    }

    /// The window with this name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Window> {
        Window::ALL.into_iter().find(|window| window.name() == name)
    }

    /// Its length.
    #[must_use]
    pub const fn length(self) -> Duration {
        Duration::from_micros(self.micros().unsigned_abs())
    }

    const fn micros(self) -> i64 {
        match self {
            Window::Minute => 60 * SECOND_US,
            Window::Short => 15 * 60 * SECOND_US,
            Window::Long => 24 * 3600 * SECOND_US,
        }
    }

    /// The expiry of all rows that can hold an op of this time in this group.
    #[must_use]
    pub fn expires_at(self, time: Timestamp, group: &Name) -> Timestamp {
        let (length, phase) = (self.micros(), self.phase(group));
        let number = time.as_micros().saturating_add(phase).div_euclid(length);
        Timestamp::from_micros(
            number.saturating_add(2).saturating_mul(length).saturating_sub(phase),
        )
    }

    fn phase(self, group: &Name) -> i64 {
        let digest = Sha256::digest(group.as_str().as_bytes());
        let (first, _) = digest.split_first_chunk().expect("invariant: 32 bytes");
        let phase = u64::from_be_bytes(*first) % self.micros().unsigned_abs();
        phase.cast_signed()
    }
}

/// Whether a row of this group with this expiry holds ops by their ids. One in sixty million other rows
/// looks like one.
#[must_use]
pub(super) fn is_expiry_of_ids(expires_at: Timestamp, group: &Name) -> bool {
    // The other windows are whole minutes, and their phases differ from this one by whole minutes.
    let shortest = Window::Minute;
    let since_phase = expires_at.as_micros().checked_add(shortest.phase(group));
    since_phase.is_some_and(|since| since.rem_euclid(shortest.micros()) == 0)
}

impl ClientId {
    /// Reads an id. A UUID in its usual form and a ULID stay as they are, in upper or lower case. Any other text
    /// becomes the first 16 bytes of its SHA-256.
    ///
    /// # Errors
    /// [`BadId`].
    pub fn parse(text: &str) -> Result<ClientId, BadId> {
        if text.is_empty() {
            return Err(BadId::Empty);
        }
        if text.len() > ID_BYTES_MAX {
            return Err(BadId::TooLong(text.len()));
        }
        if text.chars().any(char::is_control) {
            return Err(BadId::Control);
        }
        let hyphenated = || Uuid::try_parse(text).ok().filter(|_| text.len() == 36);
        Ok(match (hyphenated(), ulid(text)) {
            (Some(uuid), _) => ClientId::of_uuid(uuid),
            (None, Some((ulid, time))) => {
                ClientId { bytes: ulid.to_be_bytes(), time: Some(time), fraction_us: 0 }
            }
            (None, None) => ClientId::hashed(text.as_bytes()),
        })
    }

    /// The id of an event, as [CloudEvents](https://github.com/cloudevents/spec) has it: the pair of its
    /// source and its id is unique.
    ///
    /// # Errors
    /// [`BadId`] if the source or the id could not be an id.
    pub fn of_event(source: &str, id: &str) -> Result<ClientId, BadId> {
        ClientId::parse(source)?;
        let ClientId { time, fraction_us, .. } = ClientId::parse(id)?;
        let both = [source.as_bytes(), &[0], id.as_bytes()].concat();
        Ok(ClientId { time, fraction_us, ..ClientId::hashed(&both) })
    }

    /// The time inside it: UUIDs of versions 1, 6 and 7 and ULIDs have one.
    #[must_use]
    pub fn time(&self) -> Option<Timestamp> {
        self.time
    }

    fn hashed(text: &[u8]) -> ClientId {
        ClientId { bytes: hash(b"orderfree id", text), time: None, fraction_us: 0 }
    }

    fn of_uuid(uuid: Uuid) -> ClientId {
        let bytes = *uuid.as_bytes();
        // Only this variant has versions. `uuid` has no times before 1970: they wrap.
        let is_rfc = uuid.get_variant() == Variant::RFC4122;
        let time = uuid.get_timestamp().filter(|_| is_rfc).and_then(|time| {
            let (seconds, nanos) = time.to_unix();
            inner_time(seconds.checked_mul(1_000)?.checked_add(u64::from(nanos) / 1_000_000)?)
        });
        let fraction_us = match uuid.get_version_num() {
            // The 12 bits after the version, as RFC 9562 suggests to use them (section 6.2, method 3).
            7 if time.is_some() => {
                i64::from(u16::from_be_bytes([bytes[6], bytes[7]]) & 0xfff) * MILLISECOND_US / 4096
            }
            _ => 0,
        };
        ClientId { bytes, time, fraction_us }
    }
}

impl NamedOp {
    /// Names the op at a place of a request. `time` is what the client sent with the id, or the time inside
    /// the id; it is rounded down to a millisecond. An id with another time than its own is another id, in
    /// all windows alike.
    #[must_use]
    pub fn new(id: ClientId, index: u32, time: Timestamp, window: Window) -> NamedOp {
        let time = time.floor_to(Duration::from_millis(1));
        let (id, fraction_us) = if id.time == Some(time) {
            (id.bytes, id.fraction_us)
        } else {
            let both = [&id.bytes[..], &time.as_micros().to_be_bytes()].concat();
            (hash(b"orderfree id and time", &both), 0)
        };
        NamedOp { id: OpId { id, index }, time, fraction_us, window, sequence: 0, ops_before: 0 }
    }

    /// This name for an op that follows `ops_before` others of its request.
    #[must_use]
    pub fn after_ops(self, ops_before: u32) -> NamedOp {
        NamedOp { ops_before, ..self }
    }

    /// This name for a sender's running total; see [`IdOp::sequence`].
    #[must_use]
    pub fn with_sequence(self, sequence: u64) -> NamedOp {
        NamedOp { sequence, ..self }
    }

    /// The expiry of the rows that can hold the op.
    ///
    /// # Errors
    /// [`IdRefusal`] if the op must not be taken now.
    pub fn expiry(
        &self,
        group: &Name,
        now: Timestamp,
        constants: &Constants,
    ) -> Result<Timestamp, IdRefusal> {
        if self.time > now.plus(2 * constants.clock_offset_max()) {
            return Err(IdRefusal::Ahead { by: self.time.since(now) });
        }
        let until = self.retry_until(group, constants);
        if now >= until {
            return Err(IdRefusal::Expired { until });
        }
        Ok(self.window.expires_at(self.time, group))
    }

    /// The time that belongs to its id.
    #[must_use]
    pub fn time(&self) -> Timestamp {
        self.time
    }

    /// The op's id within its key.
    #[must_use]
    pub fn id(&self) -> OpId {
        self.id
    }

    /// Whether it names a sender's running total.
    #[must_use]
    pub fn is_total(&self) -> bool {
        self.sequence > 0
    }

    /// Until when the op can be repeated.
    #[must_use]
    pub fn retry_until(&self, group: &Name, constants: &Constants) -> Timestamp {
        self.window.expires_at(self.time, group).minus(constants.id_drain_margin())
    }

    /// The time of the first op in kinds in which the last writer wins. Each further op of a list is a
    /// microsecond later, as are those of the next items of a request with one id, so that their order holds.
    #[must_use]
    pub fn op_time(&self) -> Timestamp {
        self.time.shifted(self.fraction_us).shifted(self.ops_before.into())
    }

    /// Prepares the ops for storing: gives them their times and dots, which follow from the name as well.
    ///
    /// # Errors
    /// [`OpError`] if an op is not valid, or comes after a time that the name's own time is not later than.
    pub fn prepare(&self, kind: Kind, group: &Name, ops: &mut [Op]) -> Result<IdOp, OpError> {
        let time = self.op_time();
        if kind.is_timed() {
            for (place, op) in (0..).zip(ops.iter_mut()) {
                if op.after().is_some_and(|after| after >= time) {
                    let rule = "`after` must be before the time of the op's id; make the id after the read";
                    return Err(OpError::Invalid(rule.to_owned()));
                }
                op.stamp(time.shifted(place));
            }
        }
        let expires_at = self.window.expires_at(self.time, group);
        let (mutator_id, mut seq) = (self.writer(), 0);
        let mut next_dot = || {
            seq += 1;
            Dot { expires_at, mutator_id, seq }
        };
        ops.iter_mut().for_each(|op| op.assign(&mut next_dot));
        IdOp::new(kind, self.id, self.sequence, ops)
    }

    /// The writer that its dots name.
    fn writer(&self) -> MutatorId {
        let id = [&self.id.id[..], &self.id.index.to_be_bytes()].concat();
        let bytes = hash(b"orderfree dot", &id);
        MutatorId::new(Builder::from_custom_bytes(bytes).into_uuid())
    }
}

/// The number in a [ULID](https://github.com/ulid/spec), 26 letters of Crockford's base 32, and its time.
fn ulid(text: &str) -> Option<(u128, Timestamp)> {
    const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    if text.len() != 26 {
        return None;
    }
    let number = text.bytes().try_fold(0u128, |number, byte| {
        let letter = byte.to_ascii_uppercase();
        let value = ALPHABET.iter().position(|known| *known == letter)?;
        number.checked_mul(32)?.checked_add(value as u128)
    })?;
    Some((number, inner_time(u64::try_from(number >> 80).expect("invariant: 48 bits"))?))
}

fn inner_time(millis: u64) -> Option<Timestamp> {
    let millis = Some(millis).filter(|millis| *millis < INNER_MILLIS_END)?;
    Some(Timestamp::from_micros(millis.cast_signed() * MILLISECOND_US))
}

fn hash(domain: &[u8], text: &[u8]) -> [u8; 16] {
    let digest = Sha256::new().chain_update(domain).chain_update(text).finalize();
    let (first, _) = digest.split_first_chunk().expect("invariant: 32 bytes");
    *first
}

#[cfg(test)]
mod tests;
