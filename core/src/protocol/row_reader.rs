//! Decoding the rows of one key.

use thiserror::Error;

use super::{Key, MutatorId, Row, Timestamp};
use crate::crdt::envelope::{self, KeySeal, Shard};
use crate::crdt::{DecodeError, Kind, MergeError, State};

/// Why rows could not become a value. A partial sum would be a wrong sum.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RowError {
    /// A row can't be decoded.
    #[error("row (expires_at {}, mutator {mutator_id}) is undecodable: {error}", .expires_at.as_micros())]
    Undecodable {
        /// The row's expiry.
        expires_at: Timestamp,
        /// The row's mutator.
        mutator_id: MutatorId,
        /// What is wrong with its state.
        error: DecodeError,
    },
    /// The states can't be merged.
    #[error("the rows can't be merged: {0}")]
    Merge(#[from] MergeError),
}

/// Decodes the rows of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowReader {
    kind: Kind,
    seal: KeySeal,
}

impl RowReader {
    /// A reader for the rows of this key.
    #[must_use]
    pub fn of(key: &Key) -> RowReader {
        RowReader { kind: key.kind, seal: KeySeal::of(key) }
    }

    pub(super) fn seal(self) -> KeySeal {
        self.seal
    }

    pub(super) fn kind(self) -> Kind {
        self.kind
    }

    /// Decodes the fence and the state of a tally.
    ///
    /// # Errors
    /// [`RowError::Undecodable`].
    pub fn tally(self, row: &Row) -> Result<(Timestamp, State), RowError> {
        envelope::decode_tally(self.seal, self.kind, &row.state)
            .map_err(|error| self.undecodable(row, error))
    }

    /// Checks that a shard is stored where it was written. A shard with a damaged expiry could look like a
    /// zombie, and zombies are not counted.
    ///
    /// # Errors
    /// [`RowError::Undecodable`].
    pub(super) fn check(self, row: &Row) -> Result<(), RowError> {
        let seal = self.seal.row(row.expires_at, row.mutator_id);
        seal.check(&row.state).map_err(|error| self.undecodable(row, error))
    }

    /// Decodes a shard.
    ///
    /// # Errors
    /// [`RowError::Undecodable`].
    pub fn shard(self, row: &Row) -> Result<Shard<'_>, RowError> {
        envelope::decode_shard(self.seal.row(row.expires_at, row.mutator_id), self.kind, &row.state)
            .map_err(|error| self.undecodable(row, error))
    }

    pub(super) fn undecodable(self, row: &Row, error: DecodeError) -> RowError {
        RowError::Undecodable { expires_at: row.expires_at, mutator_id: row.mutator_id, error }
    }
}
