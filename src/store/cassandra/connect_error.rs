//! Why a pod can't use a cluster at start: one sentence per cause that says what to do, and whether waiting
//! can help.

use orderfree_core::protocol::consistency::NoOverlap;
use orderfree_core::protocol::latest_reset;
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
        contact_points: String,
        /// From the last node that was tried.
        reason: String,
    },
    /// A node answers, but the TLS handshake fails.
    #[error(
        "no TLS with the Cassandra node at {contact_points} ({reason}); check that --cassandra-ca is the \
         authority that signed the nodes' certificates, that each certificate is valid for its node's \
         address, and that the nodes use TLS"
    )]
    Tls {
        contact_points: String,
        /// From the last node that was tried.
        reason: String,
    },
    /// A node closes the connection before it asks for credentials.
    #[error("the Cassandra node at {contact_points} hung up at once; {advice}")]
    HungUp {
        contact_points: String,
        /// What the node can have expected.
        advice: &'static str,
    },
    /// The role lacks a permission that it needs.
    #[error(
        "the role lacks a right ({reason}); a pod's role needs SELECT and MODIFY on the keyspace, and the \
         role that applies the schema needs CREATE"
    )]
    Rights {
        /// From the node.
        reason: String,
    },
    /// The user is unknown, the password is wrong, or credentials are missing where the cluster needs them.
    #[error("Cassandra refused the credentials ({reason}); check user and password")]
    Credentials {
        /// From the node.
        reason: String,
    },
    /// The replicas of Cassandra's own table of roles do not answer.
    #[error(
        "Cassandra can't read its roles now ({reason}); check that its nodes are up, and that the keyspace \
         system_auth has replicas in every data centre"
    )]
    Roles {
        /// From the node.
        reason: String,
    },
    /// The name would need quotes in CQL, or could inject CQL.
    #[error(
        "`{0}` is not a valid keyspace name; use a lower case letter, then up to 47 lower case letters, \
         digits and underscores"
    )]
    KeyspaceName(String),
    #[error("keyspace {0} is missing; run `orderfree schema apply`")]
    KeyspaceMissing(String),
    #[error("table {0}.shards is missing; run `orderfree schema apply`")]
    TableMissing(String),
    /// The table breaks rules that counting or resets rely on.
    #[error(
        "table {keyspace}.{table} can't be used: {rules}; alter the table, or choose another keyspace and \
         run `orderfree schema apply`"
    )]
    Table {
        keyspace: String,
        table: &'static str,
        /// Each broken rule.
        rules: String,
    },
    /// The replication does not work for counting.
    #[error(
        "keyspace {keyspace} can't be used: {rule}; docs/operate/regions.md says how to alter its replication"
    )]
    Replication {
        keyspace: String,
        /// The broken rule.
        rule: String,
    },
    /// Acknowledged writes would only be in the nodes' memory, and lost when the nodes stop.
    #[error(
        "keyspace {0} has durable_writes = false, so acked updates could be lost; set durable_writes = true"
    )]
    NotDurable(String),
    /// The consistency levels do not fit the replication, or each other.
    #[error(transparent)]
    Levels(#[from] NoOverlap),
    /// No node is in the configured data centre, or in the only one with replicas.
    #[error(
        "no node is in data centre {name}; the cluster has {known}; set ORDERFREE_LOCAL_DC to one of these that has \
         replicas, or alter the keyspace's replication"
    )]
    UnknownDatacenter {
        /// The data centre.
        name: String,
        /// The cluster's data centres.
        known: String,
    },
    /// Several data centres have replicas, and none is configured.
    #[error(
        "the keyspace has replicas in more than one data centre; set ORDERFREE_LOCAL_DC to one of {known}"
    )]
    WhichDatacenter {
        /// The data centres with replicas.
        known: String,
    },
    /// The configured data centre has no replica.
    #[error(
        "the keyspace has no replica in data centre {name}; configure one of {known}, or alter its replication"
    )]
    NoReplica {
        /// As configured.
        name: String,
        /// The data centres with replicas.
        known: String,
    },
    /// ScyllaDB refuses this level for reads.
    #[error(
        "ScyllaDB has no reads at each_quorum; set ORDERFREE_FOLD_CONSISTENCY and ORDERFREE_READ_CONSISTENCY to other levels, such as all and local_quorum"
    )]
    NoEachQuorumReads,
    /// A node runs a release that does not work.
    #[error("a node runs Cassandra {0}; upgrade it to Apache Cassandra 4.1 or later")]
    EngineTooOld(String),
    /// The requested release has no schema.
    #[error("there is no schema for `{name}`; choose {names}")]
    UnknownRelease {
        /// The requested release.
        name: String,
        /// The releases that have a schema.
        names: String,
    },
    /// The requested replication is malformed.
    #[error("`{0}` is not a valid replication; write `dc1:3,dc2:3`, or `3` for each data centre")]
    ReplicationText(String),
    /// The row that keeps pods with a moved clock from serving can't be read.
    #[error(
        "{0}: kind '!fence', grp '!' and name '!' of the table shards; see OrderfreeClockMoved in \
         docs/operate/alerts.md"
    )]
    HighWater(String),
    /// A row that stores the latest reset is damaged.
    #[error(
        "{error}: kind '!reset', grp '!' and name '{name}' of the table shards; see OrderfreeResetLogLost in \
         docs/operate/alerts.md"
    )]
    LatestReset {
        /// The row's name.
        name: String,
        /// What is wrong with it.
        error: latest_reset::Damaged,
    },
    /// Keys were reset, and there is no log of resets.
    #[error(
        "the keyspace {keyspace} has keys that were reset, and no table resets; restore it, or run `orderfree schema apply` \
         (without ORDERFREE_RESETS=off) and then `orderfree export > /dev/null`, which logs lost resets again"
    )]
    LogMissing {
        /// The keyspace.
        keyspace: String,
    },
    /// A query at start failed.
    #[error("Cassandra did not answer a query at start: {0}")]
    Question(String),
}

impl ConnectError {
    /// Whether waiting can help: nodes start, and another process can apply the schema.
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
                | ConnectError::LogMissing { .. }
                | ConnectError::UnknownDatacenter { .. }
        )
    }

    pub(super) fn question(error: impl std::fmt::Display) -> ConnectError {
        ConnectError::Question(error.to_string())
    }

    /// The error of a statement that needs a permission.
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

/// What a node means by a refusal: it sends the same error code if it could not look up the role. Only the
/// text differs: Cassandra's `PasswordAuthenticator`, `Roles`, `CassandraAuthorizer` and `ClientState` begin
/// it like this.
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
    fn only_a_failed_lookup_of_a_role_is_waited_for() {
        let credentials =
            |reason: &str| denied(reason.to_owned(), |reason| ConnectError::Credentials { reason });
        // The texts of Cassandra 5.0.6.
        let away = "Unable to perform authentication: Cannot achieve consistency level LOCAL_ONE";
        assert!(credentials(away).may_pass(), "{}", credentials(away));
        let wrong = "Provided username pod and/or password are incorrect";
        assert!(!credentials(wrong).may_pass(), "{}", credentials(wrong));
    }
}
