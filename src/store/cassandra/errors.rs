//! What a driver error says about a write.
//!
//! A write is *refused* if and only if no part of it can be applied, now or later. Then nothing was sent, or
//! the coordinator found too few live replicas, or a missing permission, before it sent the mutation to
//! replicas. Everything else is *unknown*, including errors that a later driver adds. Cassandra applies a
//! batch over several partitions partition by partition, so [`DbError::Unavailable`] for one says nothing
//! about the others.

use orderfree_core::protocol::WriteOutcome;
use scylla::errors::{BadQuery, DbError, ExecutionError, RequestAttemptError};

use super::reach::Reach;

/// Whether a failed attempt can still be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// Certainly not applied, now or later.
    Refused,
    /// Possibly applied, now or later.
    Unknown,
}

/// Classifies the failure of one attempt at a write.
pub(super) fn failure(error: &ExecutionError, reach: Reach) -> Failure {
    use ExecutionError::{
        ConnectionPoolError, EmptyPlan, LastAttemptError, MetadataError, PrepareError,
        RequestTimeout, SchemaAgreementError, UseKeyspaceError,
    };
    match error {
        ExecutionError::BadQuery(error) => bad_query(error),
        // No node to send to, or no connection: the driver gave up before it sent anything.
        EmptyPlan | ConnectionPoolError(_) => Failure::Refused,
        LastAttemptError(error) => attempt(error, reach),
        RequestTimeout(_) => Failure::Unknown,
        // A prepared write should return none of these, so nothing is known about them.
        PrepareError(_) | UseKeyspaceError(_) | SchemaAgreementError(_) | MetadataError(_) => {
            Failure::Unknown
        }
        _ => Failure::Unknown,
    }
}

/// The driver rejects values that can't be bound before it sends anything.
fn bad_query(error: &BadQuery) -> Failure {
    match error {
        BadQuery::PartitionKeyExtraction
        | BadQuery::SerializationError(_)
        | BadQuery::ValuesTooLongForKey(..)
        | BadQuery::TooManyQueriesInBatchStatement(_) => Failure::Refused,
        _ => Failure::Unknown,
    }
}

fn attempt(error: &RequestAttemptError, reach: Reach) -> Failure {
    use RequestAttemptError::{
        BodyExtensionsParseError, BrokenConnectionError, CqlErrorParseError,
        CqlRequestSerialization, CqlResultParseError, NonfinishedPagingState, RepreparedIdChanged,
        RepreparedIdMissingInBatch, SerializationError, UnableToAllocStreamId, UnexpectedResponse,
    };
    match error {
        SerializationError(_) | CqlRequestSerialization(_) | UnableToAllocStreamId => {
            Failure::Refused
        }
        RequestAttemptError::DbError(error, _) => answer(error, reach),
        BrokenConnectionError(_)
        | BodyExtensionsParseError(_)
        | CqlResultParseError(_)
        | CqlErrorParseError(_)
        | UnexpectedResponse(_)
        | RepreparedIdChanged { .. }
        | RepreparedIdMissingInBatch
        | NonfinishedPagingState => Failure::Unknown,
        _ => Failure::Unknown,
    }
}

/// Only the errors listed as refused show that no replica got the write. The others are not worth the risk.
fn answer(error: &DbError, reach: Reach) -> Failure {
    match error {
        DbError::Unavailable { .. } if reach == Reach::OnePartition => Failure::Refused,
        DbError::Unavailable { .. } => Failure::Unknown,
        // The coordinator checks the permissions for a whole batch before it sends any part of it.
        DbError::Unauthorized => Failure::Refused,
        DbError::SyntaxError
        | DbError::Invalid
        | DbError::AlreadyExists { .. }
        | DbError::FunctionFailure { .. }
        | DbError::AuthenticationError
        | DbError::ConfigError
        | DbError::Overloaded
        | DbError::IsBootstrapping
        | DbError::TruncateError
        | DbError::ReadTimeout { .. }
        | DbError::WriteTimeout { .. }
        | DbError::ReadFailure { .. }
        | DbError::WriteFailure { .. }
        | DbError::Unprepared { .. }
        | DbError::ServerError
        | DbError::ProtocolError
        | DbError::RateLimitReached { .. }
        | DbError::Other(_) => Failure::Unknown,
        _ => Failure::Unknown,
    }
}

/// The combined outcome of several attempts with the same bytes and timestamp: refused only if all were.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// The first reason why the outcome is unknown.
    unknown: Option<String>,
    /// The reason of the last refusal.
    refused: Option<String>,
}

impl Attempts {
    pub(super) fn failed(&mut self, error: &ExecutionError, reach: Reach) {
        match failure(error, reach) {
            Failure::Refused => self.refused = Some(error.to_string()),
            Failure::Unknown => self.left_open(&error.to_string()),
        }
    }

    /// Notes an attempt that was sent but did not end in time.
    pub(super) fn left_open(&mut self, reason: &str) {
        self.unknown.get_or_insert_with(|| reason.to_owned());
    }

    /// The outcome if no attempt was acknowledged. `stopped` is the reason if there was no attempt at all.
    pub(super) fn outcome(self, stopped: &str) -> WriteOutcome {
        match (self.unknown, self.refused) {
            (Some(reason), _) => WriteOutcome::Unknown(reason),
            (None, Some(reason)) => WriteOutcome::Refused(reason),
            (None, None) => WriteOutcome::Refused(stopped.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use scylla::errors::{
        BrokenConnectionErrorKind, ConnectionError, ConnectionPoolError, CqlResponseKind,
        OperationType, PrepareError, SchemaAgreementError, SerializationError, UseKeyspaceError,
        WriteType,
    };
    use scylla::frame::types::Consistency;

    use super::*;

    fn from_node(error: DbError) -> ExecutionError {
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(error, String::new()))
    }

    fn unavailable() -> ExecutionError {
        let consistency = Consistency::LocalQuorum;
        from_node(DbError::Unavailable { consistency, required: 2, alive: 1 })
    }

    fn timed_out() -> ExecutionError {
        ExecutionError::RequestTimeout(Duration::from_secs(2))
    }

    fn serialization() -> SerializationError {
        #[derive(Debug, thiserror::Error)]
        #[error("does not fit")]
        struct DoesNotFit;
        SerializationError::new(DoesNotFit)
    }

    #[test]
    fn errors_before_anything_was_sent_are_refusals() {
        let broken =
            ConnectionPoolError::Broken { last_connection_error: ConnectionError::ConnectTimeout };
        for error in [
            ExecutionError::EmptyPlan,
            ExecutionError::ConnectionPoolError(broken),
            ExecutionError::ConnectionPoolError(ConnectionPoolError::Initializing),
            ExecutionError::ConnectionPoolError(ConnectionPoolError::NodeDisabledByHostFilter),
            ExecutionError::BadQuery(BadQuery::PartitionKeyExtraction),
            ExecutionError::BadQuery(BadQuery::SerializationError(serialization())),
            ExecutionError::BadQuery(BadQuery::ValuesTooLongForKey(70_000, 65_535)),
            ExecutionError::BadQuery(BadQuery::TooManyQueriesInBatchStatement(70_000)),
            RequestAttemptError::SerializationError(serialization()).into(),
            RequestAttemptError::UnableToAllocStreamId.into(),
            unavailable(),
            from_node(DbError::Unauthorized),
        ] {
            assert_eq!(failure(&error, Reach::OnePartition), Failure::Refused, "{error}");
        }
    }

    #[test]
    fn everything_that_may_have_been_sent_is_unknown() {
        let consistency = Consistency::LocalQuorum;
        let (received, required, numfailures) = (1, 2, 1);
        for error in [
            timed_out(),
            RequestAttemptError::BrokenConnectionError(
                BrokenConnectionErrorKind::ChannelError.into(),
            )
            .into(),
            RequestAttemptError::UnexpectedResponse(CqlResponseKind::Ready).into(),
            RequestAttemptError::RepreparedIdMissingInBatch.into(),
            RequestAttemptError::NonfinishedPagingState.into(),
            RequestAttemptError::RepreparedIdChanged {
                statement: String::new(),
                expected_id: vec![],
                reprepared_id: vec![],
            }
            .into(),
            ExecutionError::PrepareError(PrepareError::PreparedStatementIdsMismatch),
            ExecutionError::UseKeyspaceError(UseKeyspaceError::RequestTimeout(Duration::ZERO)),
            ExecutionError::SchemaAgreementError(SchemaAgreementError::Timeout(Duration::ZERO)),
            from_node(DbError::WriteTimeout {
                consistency,
                received,
                required,
                write_type: WriteType::Simple,
            }),
            from_node(DbError::WriteFailure {
                consistency,
                received,
                required,
                numfailures,
                write_type: WriteType::UnloggedBatch,
            }),
            from_node(DbError::ReadTimeout { consistency, received, required, data_present: true }),
            from_node(DbError::ReadFailure {
                consistency,
                received,
                required,
                numfailures,
                data_present: false,
            }),
            from_node(DbError::Overloaded),
            from_node(DbError::IsBootstrapping),
            from_node(DbError::ServerError),
            from_node(DbError::ProtocolError),
            from_node(DbError::TruncateError),
            from_node(DbError::Invalid),
            from_node(DbError::SyntaxError),
            from_node(DbError::ConfigError),
            from_node(DbError::AuthenticationError),
            from_node(DbError::RateLimitReached {
                op_type: OperationType::Write,
                rejected_by_coordinator: true,
            }),
            from_node(DbError::Other(0x1600)),
        ] {
            assert_eq!(failure(&error, Reach::OnePartition), Failure::Unknown, "{error}");
        }
    }

    #[test]
    fn unavailable_for_several_partitions_is_unknown() {
        assert_eq!(failure(&unavailable(), Reach::Several), Failure::Unknown);
        let unauthorized = from_node(DbError::Unauthorized);
        assert_eq!(failure(&unauthorized, Reach::Several), Failure::Refused);
        assert_eq!(failure(&ExecutionError::EmptyPlan, Reach::Several), Failure::Refused);
    }

    #[test]
    fn several_attempts_are_refused_only_if_all_were() {
        let outcome = |errors: &[ExecutionError]| {
            let mut attempts = Attempts::default();
            errors.iter().for_each(|error| attempts.failed(error, Reach::OnePartition));
            attempts.outcome("never sent")
        };
        assert_eq!(outcome(&[]), WriteOutcome::Refused("never sent".into()));
        assert!(matches!(outcome(&[unavailable(), unavailable()]), WriteOutcome::Refused(_)));
        assert!(matches!(outcome(&[timed_out(), unavailable()]), WriteOutcome::Unknown(_)));
        assert!(matches!(outcome(&[unavailable(), timed_out()]), WriteOutcome::Unknown(_)));
    }
}
