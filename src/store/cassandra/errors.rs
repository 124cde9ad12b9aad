//! What a driver error says about a write.
//!
//! A write is *refused* if and only if no part of it can be applied, now or later. Then nothing was sent, or
//! the coordinator found too few live replicas, or a missing permission, before it sent the mutation to
//! replicas. Everything else is *unknown*, including errors that a later driver adds. Cassandra applies a
//! batch over several partitions partition by partition, so [`DbError::Unavailable`] for one says nothing
//! about the others.

use orderfree_core::protocol::{WriteError, WriteOutcome};
use scylla::errors::{BadQuery, DbError, ExecutionError, RequestAttemptError};

use super::reach::Reach;

/// Classifies the failure of one attempt at a write.
fn write_error(error: &ExecutionError, reach: Reach) -> WriteError {
    let reason = error.to_string();
    match is_refusal(error, reach) {
        true => WriteError::Refused(reason),
        false => WriteError::Unknown(reason),
    }
}

/// Whether the attempt was certainly not applied, now or later.
fn is_refusal(error: &ExecutionError, reach: Reach) -> bool {
    use ExecutionError::{
        ConnectionPoolError, EmptyPlan, LastAttemptError, MetadataError, PrepareError,
        RequestTimeout, SchemaAgreementError, UseKeyspaceError,
    };
    match error {
        ExecutionError::BadQuery(error) => is_unbindable(error),
        // No node to send to, or no connection: the driver gave up before it sent anything.
        EmptyPlan | ConnectionPoolError(_) => true,
        LastAttemptError(error) => is_refused_attempt(error, reach),
        RequestTimeout(_) => false,
        // A prepared write should return none of these, so nothing is known about them.
        PrepareError(_) | UseKeyspaceError(_) | SchemaAgreementError(_) | MetadataError(_) => false,
        _ => false,
    }
}

/// The driver rejects values that can't be bound before it sends anything.
fn is_unbindable(error: &BadQuery) -> bool {
    matches!(
        error,
        BadQuery::PartitionKeyExtraction
            | BadQuery::SerializationError(_)
            | BadQuery::ValuesTooLongForKey(..)
            | BadQuery::TooManyQueriesInBatchStatement(_)
    )
}

fn is_refused_attempt(error: &RequestAttemptError, reach: Reach) -> bool {
    use RequestAttemptError::{
        BodyExtensionsParseError, BrokenConnectionError, CqlErrorParseError,
        CqlRequestSerialization, CqlResultParseError, NonfinishedPagingState, RepreparedIdChanged,
        RepreparedIdMissingInBatch, SerializationError, UnableToAllocStreamId, UnexpectedResponse,
    };
    match error {
        SerializationError(_) | CqlRequestSerialization(_) | UnableToAllocStreamId => true,
        RequestAttemptError::DbError(error, _) => is_refused_answer(error, reach),
        BrokenConnectionError(_)
        | BodyExtensionsParseError(_)
        | CqlResultParseError(_)
        | CqlErrorParseError(_)
        | UnexpectedResponse(_)
        | RepreparedIdChanged { .. }
        | RepreparedIdMissingInBatch
        | NonfinishedPagingState => false,
        _ => false,
    }
}

/// Only the errors listed with `true` show that no replica got the write. The others are not worth the risk.
fn is_refused_answer(error: &DbError, reach: Reach) -> bool {
    match error {
        DbError::Unavailable { .. } if reach == Reach::OnePartition => true,
        DbError::Unavailable { .. } => false,
        // The coordinator checks the permissions for a whole batch before it sends any part of it.
        DbError::Unauthorized => true,
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
        | DbError::Other(_) => false,
        _ => false,
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
        match write_error(error, reach) {
            WriteError::Refused(reason) => self.refused = Some(reason),
            WriteError::Unknown(reason) => {
                self.unknown.get_or_insert(reason);
            }
        }
    }

    /// Notes an attempt that was sent but did not end in time.
    pub(super) fn left_open(&mut self, reason: &str) {
        self.unknown.get_or_insert_with(|| reason.to_owned());
    }

    /// The outcome if no attempt was acknowledged. `stopped` is the reason if there was no attempt at all.
    pub(super) fn outcome(self, stopped: &str) -> WriteOutcome {
        match (self.unknown, self.refused) {
            (Some(reason), _) => Err(WriteError::Unknown(reason)),
            (None, Some(reason)) => Err(WriteError::Refused(reason)),
            (None, None) => Err(WriteError::Refused(stopped.to_owned())),
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
            assert!(is_refusal(&error, Reach::OnePartition), "{error}");
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
            assert!(!is_refusal(&error, Reach::OnePartition), "{error}");
        }
    }

    #[test]
    fn unavailable_for_several_partitions_is_unknown() {
        assert!(!is_refusal(&unavailable(), Reach::Several));
        let unauthorized = from_node(DbError::Unauthorized);
        assert!(is_refusal(&unauthorized, Reach::Several));
        assert!(is_refusal(&ExecutionError::EmptyPlan, Reach::Several));
    }

    #[test]
    fn several_attempts_are_refused_only_if_all_were() {
        let outcome = |errors: &[ExecutionError]| {
            let mut attempts = Attempts::default();
            errors.iter().for_each(|error| attempts.failed(error, Reach::OnePartition));
            attempts.outcome("never sent")
        };
        assert_eq!(outcome(&[]), Err(WriteError::Refused("never sent".into())));
        assert!(matches!(outcome(&[unavailable(), unavailable()]), Err(WriteError::Refused(_))));
        assert!(matches!(outcome(&[timed_out(), unavailable()]), Err(WriteError::Unknown(_))));
        assert!(matches!(outcome(&[unavailable(), timed_out()]), Err(WriteError::Unknown(_))));
    }
}
