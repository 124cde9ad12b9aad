//! Why updates are not acked.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat};
use orderfree_core::crdt::OpError;
use orderfree_core::protocol::clock::ClockError;
use orderfree_core::protocol::op_id::IdRefusal;
use orderfree_core::protocol::reset::Shut;
use orderfree_core::protocol::{Outcome, Timestamp};
use thiserror::Error;

use crate::limits::{BIRTHS_MAX, KEY_IDS_MAX};
use crate::policy::OverQuota;

/// Why an update was not acked.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum UpdateError {
    /// Not counted by this request, now or later.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// May be counted, now or later. A retry may count it twice, unless it has an id.
    #[error("the update may or may not be counted: {0}")]
    Unknown(String),
    /// The window of the update's id is over. This request wrote nothing, an earlier one may be counted, and no
    /// later one can be.
    #[error(
        "this id could be sent until {}; an earlier request with it may be counted, but this one is not, and no later \
         one will be",
        rfc3339(*.until)
    )]
    IdExpired {
        /// When it ended.
        until: Timestamp,
    },
    /// The key was reset after the time of the update's id, or shortly before. This request wrote nothing, and an
    /// earlier one may be counted, in what the reset cleared or after it.
    #[error(
        "the key was reset at about the time of this id; an earlier request with the id may be counted, before or \
         after the reset. If none was sent, send the update with a new id at least a minute after the reset, or now \
         without an id"
    )]
    IdBeforeReset,
}

impl From<IdRefusal> for UpdateError {
    fn from(refusal: IdRefusal) -> UpdateError {
        match refusal {
            IdRefusal::Ahead { by } => Refused::IdAhead { by }.into(),
            IdRefusal::Expired { until } => UpdateError::IdExpired { until },
        }
    }
}

impl UpdateError {
    /// The outcome of the update.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self {
            UpdateError::Refused(_) => Outcome::Refused,
            UpdateError::Unknown(_)
            | UpdateError::IdExpired { .. }
            | UpdateError::IdBeforeReset => Outcome::Unknown,
        }
    }
}

/// Why an update was refused. It is not counted and can be sent again.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Refused {
    /// The op can't be applied to the key.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The pod's clock can't be trusted.
    #[error(transparent)]
    Clock(#[from] ClockError),
    /// A limit of this pod is reached.
    #[error("this pod has {0}; send the update again later or to another pod")]
    Overloaded(&'static str),
    /// The quota of the key's group is exhausted.
    #[error(transparent)]
    Quota(#[from] OverQuota),
    /// The key has reached its daily limit of births.
    #[error(
        "this pod evicted this key and began a new row for it {BIRTHS_MAX} times today, the maximum; \
         send the update to another pod or again tomorrow, and give this pod more memory for keys at \
         rest (ORDERFREE_RESTING_BYTES)"
    )]
    BornTooOften,
    /// The log of resets was not read lately, or the key was reset in this clock's future.
    #[error(transparent)]
    Resets(#[from] Shut),
    /// The id's time is further ahead than two honest clocks can differ.
    #[error(
        "the time of this id is {:.1} s ahead of this pod's clock; set the client's clock, and only if the \
         update was never sent before, take a new id from POST /v1/ids",
        .by.as_secs_f64()
    )]
    IdAhead {
        /// How far it is ahead.
        by: Duration,
    },
    /// This pod has as many ids of the key for one window as it can have.
    #[error(
        "this pod has as many ids of this key as it can remember for one window; send this update again \
         with the same id to another pod; for later updates, use more keys"
    )]
    TooManyIds {
        /// When the window's ids are folded.
        until: Timestamp,
    },
    /// A read has found too many ids of the key.
    #[error(
        "{KEY_IDS_MAX} ids of this key wait to be folded, the maximum; send this update again with the same id \
         and window in a minute; for later updates, use a shorter window or more keys"
    )]
    KeyHasTooManyIds,
    /// The store refused the write.
    #[error("the store refused the write: {0}")]
    Store(String),
    /// The update requested `ack=memory`, but no write of the key is being acknowledged.
    #[error(
        "no write of this key was acknowledged for over a second, so ack=memory is not available; send \
         the update again later or without ack=memory"
    )]
    Unacked,
    /// The update waited in the queue until its deadline, and was never sent.
    #[error("the update waited {0:?} in the queue and was not sent; send it again")]
    Deadline(Duration),
    /// The pod is shutting down.
    #[error("this pod is shutting down; send the update to another pod")]
    Stopping,
}

fn rfc3339(time: Timestamp) -> String {
    let time = DateTime::from_timestamp_micros(time.as_micros()).unwrap_or(DateTime::UNIX_EPOCH);
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

impl Refused {
    /// The label in the metrics.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Refused::Op(_) => "op",
            Refused::Clock(_) => "clock",
            Refused::Resets(_) => "resets",
            Refused::Overloaded(_) => "limit",
            Refused::Quota(_) => "quota",
            Refused::BornTooOften => "births",
            Refused::IdAhead { .. } | Refused::TooManyIds { .. } | Refused::KeyHasTooManyIds => {
                "ids"
            }
            Refused::Store(_) | Refused::Unacked => "store",
            Refused::Deadline(_) => "unsent",
            Refused::Stopping => "stopping",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same id in another window or of another key is another update.
    #[test]
    fn no_advice_about_ids_makes_a_retry_count_twice() {
        let until = Timestamp::from_micros(1_795_752_000_123_000);
        for refused in [Refused::TooManyIds { until }, Refused::KeyHasTooManyIds] {
            let text = refused.to_string();
            let (now, later) = text.split_once("; for later updates, ").expect("advice for later");
            assert!(now.contains("with the same id"), "{text}");
            assert!(!now.contains("shorter") && !now.contains("more keys"), "{text}");
            assert!(later.contains("more keys"), "{text}");
        }
        let ahead = Refused::IdAhead { by: Duration::from_millis(29_335) }.to_string();
        assert!(ahead.contains(" 29.3 s ahead"), "{ahead}");
        assert!(ahead.contains("only if the update was never sent before"), "{ahead}");
        let expired = UpdateError::IdExpired { until }.to_string();
        assert!(expired.contains(" until 2026-11-27T04:00:00.123Z;"), "{expired}");
    }
}
