//! Why a cluster can't be used at start: one sentence each that says what to do, and whether waiting may
//! help.

use orderfree_core::protocol::consistency::NoOverlap;
use scylla::errors::{DbError, ExecutionError, RequestAttemptError};
use thiserror::Error;

/// Why a cluster can't be used.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// No contact point answers.
    #[error(
        "no Cassandra node answers at {contact_points} ({reason}); check the addresses, the \
         network, and that the nodes are up"
    )]
    Unreachable {
        /// As configured.
        contact_points: String,
        /// Of the last node tried.
        reason: String,
    },
    /// Something answers, but no TLS comes about with it.
    #[error(
        "no TLS with the Cassandra node at {contact_points} ({reason}); check that --cassandra-ca is the \
         authority of the nodes' certificates, that these are for the addresses of the nodes, and that the nodes \
         speak TLS"
    )]
    Tls {
        /// As configured.
        contact_points: String,
        /// Of the last node tried.
        reason: String,
    },
    /// A node ends the connection before it asks who is there.
    #[error("the Cassandra node at {contact_points} hung up at once; {advice}")]
    HungUp {
        /// As configured.
        contact_points: String,
        /// What it may have missed.
        advice: &'static str,
    },
    /// The role may not do what it is needed for.
    #[error(
        "the role lacks a right ({reason}); a pod needs SELECT and MODIFY on the keyspace, and whoever applies \
         the schema CREATE"
    )]
    Rights {
        /// By the node's word.
        reason: String,
    },
    /// The user is unknown, the password is wrong, or none was given where one is needed.
    #[error("Cassandra refused the credentials ({reason}); check user and password")]
    Credentials {
        /// By the node's word.
        reason: String,
    },
    /// The nodes that hold Cassandra's own roles do not answer it.
    #[error(
        "Cassandra can't read its roles now ({reason}); check its nodes, and that the keyspace system_auth has \
         replicas in every data centre"
    )]
    Roles {
        /// By the node's word.
        reason: String,
    },
    /// The keyspace's name would need quotes, or worse.
    #[error(
        "`{0}` is no keyspace name; use a lower case letter, then up to 47 lower case letters, \
         digits and underscores"
    )]
    KeyspaceName(String),
    /// There is no such keyspace.
    #[error("keyspace {0} is missing; run `orderfree schema apply`")]
    KeyspaceMissing(String),
    /// The keyspace has no table `shards`.
    #[error("table {0}.shards is missing; run `orderfree schema apply`")]
    TableMissing(String),
    /// The table breaks rules that the counting rests on.
    #[error(
        "table {keyspace}.shards can't be used: {rules}; alter it, or choose another keyspace and \
         run `orderfree schema apply`"
    )]
    Table {
        /// The keyspace.
        keyspace: String,
        /// What is wrong.
        rules: String,
    },
    /// The keyspace is replicated in a way that can't work.
    #[error("keyspace {keyspace} can't be used: {rule}; alter its replication")]
    Replication {
        /// The keyspace.
        keyspace: String,
        /// What is wrong.
        rule: String,
    },
    /// Acknowledged writes would die with the nodes' memory.
    #[error("keyspace {0} has durable_writes = false, so acked updates could be lost; alter it")]
    NotDurable(String),
    /// The consistency levels don't fit the replication, or each other.
    #[error(transparent)]
    Levels(#[from] NoOverlap),
    /// No node is in the configured data centre.
    #[error("no node is in data centre {name}; the cluster has {known}")]
    UnknownDatacenter {
        /// As configured.
        name: String,
        /// The data centres there are.
        known: String,
    },
    /// The local data centre can't be told from the contact points.
    #[error(
        "none of the contact points is a node's own address; name the local data centre, one of {known}"
    )]
    WhichDatacenter {
        /// The data centres there are.
        known: String,
    },
    /// A node runs a release that doesn't work.
    #[error("a node runs Cassandra {0}; Apache Cassandra 4.1 or later is needed")]
    EngineTooOld(String),
    /// A replication that was asked for is malformed.
    #[error("`{0}` is no replication; write `dc1:3,dc2:3`, or `3` for one data centre")]
    ReplicationText(String),
    /// The row that keeps pods from serving by a moved clock can't be read.
    #[error(
        "{0}: kind '!fence', grp '!' and name '!' of the table shards; see OrderfreeClockMoved in docs/operate/alerts.md"
    )]
    HighWater(String),
    /// A question at start went wrong.
    #[error("Cassandra did not answer a question at start: {0}")]
    Question(String),
}

impl ConnectError {
    /// Whether it may be over by itself: nodes start, and somebody else applies the schema.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            ConnectError::Unreachable { .. }
                | ConnectError::HungUp { .. }
                | ConnectError::Roles { .. }
                | ConnectError::Question(_)
                | ConnectError::KeyspaceMissing(_)
                | ConnectError::TableMissing(_)
                | ConnectError::UnknownDatacenter { .. }
        )
    }

    pub(super) fn question(error: impl std::fmt::Display) -> ConnectError {
        ConnectError::Question(error.to_string())
    }

    /// Of a statement that asks for a right.
    pub(super) fn answer(error: ExecutionError) -> ConnectError {
        match error {
            ExecutionError::LastAttemptError(RequestAttemptError::DbError(
                DbError::Unauthorized,
                reason,
            )) => denied(reason, |reason| ConnectError::Rights { reason }),
            error => ConnectError::question(error),
        }
    }
}

/// What a node means by no: it says the same of one whose role it could not look up. Only its words tell (its
/// `PasswordAuthenticator`, `Roles`, `CassandraAuthorizer` and `ClientState` begin so).
pub(super) fn denied(reason: String, means: impl FnOnce(String) -> ConnectError) -> ConnectError {
    match reason.starts_with("Unable to perform auth") {
        true => ConnectError::Roles { reason },
        false => means(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_that_could_not_be_looked_up_is_waited_for_and_a_wrong_password_is_not() {
        let credentials =
            |reason: &str| denied(reason.to_owned(), |reason| ConnectError::Credentials { reason });
        // As Cassandra 5.0.6 says.
        let away = "Unable to perform authentication: Cannot achieve consistency level LOCAL_ONE";
        assert!(credentials(away).may_pass(), "{}", credentials(away));
        let wrong = "Provided username pod and/or password are incorrect";
        assert!(!credentials(wrong).may_pass(), "{}", credentials(wrong));
    }
}
