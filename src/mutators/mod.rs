//! stub
use orderfree_core::crdt::{Op, OpError};
use orderfree_core::protocol::clock::ClockError;
use orderfree_core::protocol::{Durability, Key};
use std::time::Duration;
use thiserror::Error;

/// The live mutators of this pod.
pub struct Mutators {}

/// Why an update was not acked.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum UpdateError {
    /// Certainly not counted.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// May be counted, now or later. Sending it again may count it twice.
    #[error("the store did not answer in time, so the update may or may not be counted: {0}")]
    Unknown(String),
}

/// Why an update was refused: it is certainly not counted and may be sent again.
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
    /// The store took no write.
    #[error("the store took no write: {0}")]
    Store(String),
    /// The update waited for its turn until its time was over, and was never sent.
    #[error("the update waited {0:?} for its turn and was taken out unsent; send it again")]
    Deadline(Duration),
    /// The pod is shutting down.
    #[error("this pod is shutting down; send the update to another one")]
    Stopping,
}

impl Mutators {
    /// x
    pub async fn update(&self, _: &Key, _: Vec<Op>, _: Durability) -> Result<(), UpdateError> {
        Err(Refused::Stopping.into())
    }
}
