//! From a configuration to a checked connection. Checks everything that must be true before the first write.
//! Each failed check has an error that says what to do.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use orderfree_core::protocol::consistency::{Level, Levels, Replication};
use scylla::client::PoolSize;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::cluster::Node;
use scylla::deserialize::row::DeserializeRow;
use scylla::errors::{
    BrokenConnectionErrorKind, ConnectionError, ConnectionPoolError,
    ConnectionSetupRequestErrorKind, DbError, ExecutionError, MetadataError, NewSessionError,
    RequestAttemptError,
};
use scylla::policies::load_balancing::{NodeIdentifier, SingleTargetLoadBalancingPolicy};
use scylla::serialize::row::SerializeRow;
use scylla::statement::unprepared::Statement;
use tokio::time::timeout;
use uuid::Uuid;

use super::CassandraConfig;
use super::checks::{self, Column, Engine};
use super::connect_error::{self, ConnectError};
use super::statements::Statements;
use super::{rows, statements};

/// Time limit for opening one connection.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// Time limit for one query at start.
const QUESTION_TIME_MAX: Duration = Duration::from_secs(10);

/// Time limit for a node's answer about itself. A slower node counts as down.
const RELEASE_TIME_MAX: Duration = Duration::from_secs(3);

/// Time limit for a second look at the cluster, including time spent on dead nodes.
const LOOK_TIME_MAX: Duration = Duration::from_secs(30);

/// How often idle connections are probed, and how long a probe waits for an answer. This finds nodes that
/// went silent.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Connections to each node. One can carry 32,768 requests at once.
const CONNECTIONS_PER_NODE: NonZeroUsize = NonZeroUsize::new(2).expect("not zero");

const KEYSPACE_BYTES_MAX: usize = 48;

/// Asks for the replication of a keyspace.
pub(super) const SELECT_REPLICATION: &str =
    "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?";

/// The columns of a table.
const COLUMNS: &str = "SELECT column_name, kind, position, clustering_order, type \
                       FROM system_schema.columns WHERE keyspace_name = ? AND table_name = ?";

/// An answer to that: name, role, position, order, type.
type ColumnRow = (String, String, i32, String, String);

/// Opens connections to every node.
pub(super) async fn open(config: &CassandraConfig) -> Result<Session, ConnectError> {
    check_keyspace_name(&config.keyspace)?;
    let mut builder = SessionBuilder::new()
        .known_nodes(&config.contact_points)
        .compression(None)
        .tcp_nodelay(true)
        .tcp_keepalive_interval(KEEPALIVE)
        .keepalive_interval(KEEPALIVE)
        .keepalive_timeout(KEEPALIVE)
        .connection_timeout(CONNECT_TIME_MAX)
        .pool_size(PoolSize::PerHost(CONNECTIONS_PER_NODE))
        .keyspaces_to_fetch([&config.keyspace])
        // For queries about the cluster, which any node can answer.
        .default_execution_profile_handle(statements::profile(Level::One, None, QUESTION_TIME_MAX));
    if let Some(login) = config.login.clone() {
        builder = builder.authenticator_provider(login);
    }
    if let Some(tls) = &config.tls {
        builder = builder.tls_context(Some(Arc::clone(tls)));
    }
    let session = builder.build().await.map_err(|error| refusal(config, &error))?;
    if !knows_all_nodes(&session).await? {
        let look = tokio::time::timeout(LOOK_TIME_MAX, session.refresh_metadata()).await;
        look.map_err(ConnectError::question)?.map_err(ConnectError::question)?;
    }
    Ok(session)
}

/// Whether the driver knows all the nodes that one node knows. If the driver's first look at the cluster
/// fails, it continues with a part of the cluster, or with the contact points as nodes without a data centre.
async fn knows_all_nodes(session: &Session) -> Result<bool, ConnectError> {
    let peers: Vec<(Option<Uuid>,)> = ask(session, "SELECT host_id FROM system.peers", ()).await?;
    let cluster = session.get_cluster_state();
    let nodes = cluster.get_nodes_info();
    let knows = |id| nodes.iter().any(|node| node.host_id == id);
    // A joining node can be without an id.
    Ok(nodes.iter().any(|node| node.datacenter.is_some())
        && peers.into_iter().filter_map(|(id,)| id).all(knows))
}

fn refusal(config: &CassandraConfig, error: &NewSessionError) -> ConnectError {
    let contact_points = config.contact_points.join(",");
    if let NewSessionError::MetadataError(MetadataError::ConnectionPoolError(
        ConnectionPoolError::Broken { last_connection_error: last },
    )) = error
    {
        match last {
            ConnectionError::IoError(error) => {
                let inner = error.get_ref();
                if inner.is_some_and(|inner| inner.is::<rustls::Error>()) {
                    return ConnectError::Tls { contact_points, reason: error.to_string() };
                }
            }
            ConnectionError::ConnectionSetupRequestError(setup) => match setup.get_error() {
                ConnectionSetupRequestErrorKind::DbError(DbError::AuthenticationError, reason) => {
                    let reason = reason.clone();
                    return connect_error::denied(reason, |reason| ConnectError::Credentials {
                        reason,
                    });
                }
                ConnectionSetupRequestErrorKind::MissingAuthentication => {
                    return ConnectError::Credentials { reason: "none were given".into() };
                }
                // The driver can have lost the node's reason. A node that stays silent has not hung up.
                ConnectionSetupRequestErrorKind::BrokenConnection(broken)
                    if !matches!(
                        broken.downcast_ref(),
                        Some(BrokenConnectionErrorKind::KeepaliveTimeout(_))
                    ) =>
                {
                    return ConnectError::HungUp { contact_points, advice: advice(config) };
                }
                _ => {}
            },
            _ => {}
        }
    }
    ConnectError::Unreachable { contact_points, reason: error.to_string() }
}

/// What a node that hung up can have expected.
fn advice(config: &CassandraConfig) -> &'static str {
    match &config.tls {
        None => "if it requires TLS, name its certificate authority with --cassandra-ca",
        Some(tls) if !tls.client_auth_cert_resolver.has_certs() => {
            "if it requires a client certificate, set --cassandra-cert and --cassandra-key"
        }
        Some(_) => {
            "check that it trusts the authority that signed the client certificate (--cassandra-cert)"
        }
    }
}

/// Checks that a name needs no quotes: statements contain keyspace names as they are.
pub(super) fn check_keyspace_name(name: &str) -> Result<(), ConnectError> {
    let letter = |byte: u8| byte.is_ascii_lowercase();
    let inner = |byte: u8| letter(byte) || byte.is_ascii_digit() || byte == b'_';
    let fits = name.len() <= KEYSPACE_BYTES_MAX
        && name.bytes().next().is_some_and(letter)
        && name.bytes().all(inner);
    if fits { Ok(()) } else { Err(ConnectError::KeyspaceName(name.to_owned())) }
}

/// The names of the cluster's data centres, in order.
pub(super) fn datacenters(session: &Session) -> Vec<String> {
    let cluster = session.get_cluster_state();
    let names = cluster.get_nodes_info().iter().filter_map(|node| node.datacenter.clone());
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

pub(super) async fn engine(session: &Session) -> Result<Engine, ConnectError> {
    let cluster = session.get_cluster_state();
    if cluster.get_nodes_info().iter().any(|node| node.sharder().is_some()) {
        tracing::warn!(
            "the cluster is ScyllaDB: the same statements should work, but are untested"
        );
        return Ok(Engine::Scylla);
    }
    let releases: Vec<String> = releases(session).await?.into_iter().flatten().collect();
    Engine::of_releases(&releases).map_err(ConnectError::EngineTooOld)
}

/// Returns the release of each node, as the node itself says. If a node does not answer, its peers are asked, which can
/// still have the release from before an upgrade. A joining node can be without a release.
pub(super) async fn releases(session: &Session) -> Result<Vec<Option<String>>, ConnectError> {
    let cql = "SELECT host_id, release_version FROM system.peers";
    let peers: Vec<(Option<Uuid>, Option<String>)> = ask(session, cql, ()).await?;
    let cluster = session.get_cluster_state();
    let nodes = cluster.get_nodes_info();
    let own = join_all(nodes.iter().map(|node| own_release(session, node))).await;
    let mut releases = Vec::new();
    for (node, own) in nodes.iter().zip(own) {
        releases.push(own.unwrap_or_else(|reason| {
            let known = peers.iter().find(|(id, _)| *id == Some(node.host_id));
            let release = known.and_then(|(_, release)| release.clone());
            tracing::debug!(
                node = %node.address, reason, ?release,
                "the node does not say its release; taking what its peers say"
            );
            release
        }));
    }
    // Nodes that the driver does not know.
    let is_known = |id| nodes.iter().any(|node| Some(node.host_id) == id);
    releases.extend(peers.into_iter().filter(|(id, _)| !is_known(*id)).map(|(_, release)| release));
    Ok(releases)
}

/// Returns what one node says about its own release, or why it says nothing.
async fn own_release(session: &Session, node: &Arc<Node>) -> Result<Option<String>, String> {
    let mut question = Statement::new("SELECT release_version FROM system.local");
    let only = SingleTargetLoadBalancingPolicy::new(NodeIdentifier::Node(Arc::clone(node)), None);
    question.set_load_balancing_policy(Some(only));
    let asked = timeout(RELEASE_TIME_MAX, session.query_unpaged(question, ())).await;
    let answer = asked.map_err(|_| "no answer in time")?.map_err(|error| error.to_string())?;
    let found = rows::of_system::<(Option<String>,)>(answer).map_err(|error| error.to_string())?;
    Ok(found.into_iter().next().and_then(|(release,)| release))
}

/// Checks that the keyspace writes to the commit log (`durable_writes`), and that the tables are correct.
pub(super) async fn check(
    session: &Session,
    keyspace: &str,
    engine: Engine,
) -> Result<(), ConnectError> {
    let cql = "SELECT durable_writes FROM system_schema.keyspaces WHERE keyspace_name = ?";
    let durable: Vec<(Option<bool>,)> = ask_settled(session, cql, (keyspace,)).await?;
    match durable.first() {
        Some((Some(false),)) => return Err(ConnectError::NotDurable(keyspace.to_owned())),
        // Without a value, the default applies: durable.
        Some((Some(true) | None,)) => {}
        None => return Err(ConnectError::KeyspaceMissing(keyspace.to_owned())),
    }
    check_shards(session, keyspace, engine).await?;
    check_resets(session, keyspace).await
}

/// Where the replicas of a keyspace are. None if there is no such keyspace.
pub(super) async fn replication(
    session: &Session,
    keyspace: &str,
) -> Result<Option<Replication>, ConnectError> {
    let found: Vec<(BTreeMap<String, String>,)> =
        ask_settled(session, SELECT_REPLICATION, (keyspace,)).await?;
    let Some((options,)) = found.into_iter().next() else { return Ok(None) };
    let replication = checks::replication(&options, &datacenters(session));
    replication
        .map(Some)
        .map_err(|rule| ConnectError::Replication { keyspace: keyspace.to_owned(), rule })
}

/// Whether the keyspace has a table of this name, of any shape.
pub(super) async fn has_table(
    session: &Session,
    keyspace: &str,
    table: &str,
) -> Result<bool, ConnectError> {
    let cql = "SELECT table_name FROM system_schema.tables \
               WHERE keyspace_name = ? AND table_name = ?";
    let found: Vec<(String,)> = ask_settled(session, cql, (keyspace, table)).await?;
    Ok(!found.is_empty())
}

/// Checks that the table of shards exists and is as in `schema.cql`.
pub(super) async fn check_shards(
    session: &Session,
    keyspace: &str,
    engine: Engine,
) -> Result<(), ConnectError> {
    if !has_table(session, keyspace, "shards").await? {
        return Err(ConnectError::TableMissing(keyspace.to_owned()));
    }
    let columns: Vec<ColumnRow> = ask_settled(session, COLUMNS, (keyspace, "shards")).await?;
    // A node takes over a definition piece by piece: this one has the table, and not its columns yet.
    if columns.is_empty() {
        return Err(ConnectError::TableMissing(keyspace.to_owned()));
    }
    let of_table = "FROM system_schema.tables WHERE keyspace_name = ? AND table_name = 'shards'";
    let cql = format!("SELECT default_time_to_live {of_table}");
    let lives: Vec<(Option<i32>,)> = ask_settled(session, &cql, (keyspace,)).await?;
    let default_time_to_live = lives.first().and_then(|(seconds,)| *seconds).unwrap_or(0);
    let read_repair = if engine.has_read_repair() {
        let cql = format!("SELECT read_repair {of_table}");
        let found: Vec<(Option<String>,)> = ask_settled(session, &cql, (keyspace,)).await?;
        found.into_iter().next().and_then(|(property,)| property)
    } else {
        None
    };
    let columns = columns_of(columns);
    let broken = checks::shards(&columns, default_time_to_live, read_repair.as_deref(), engine);
    verdict(keyspace, "shards", &broken)
}

/// Checks that the table of resets is as in `schema.cql`, if there is one. A node has all columns of a table or none.
pub(super) async fn check_resets(session: &Session, keyspace: &str) -> Result<(), ConnectError> {
    let columns: Vec<ColumnRow> = ask(session, COLUMNS, (keyspace, "resets")).await?;
    let broken = match columns.is_empty() {
        true => Vec::new(),
        false => checks::resets(&columns_of(columns)),
    };
    verdict(keyspace, "resets", &broken)
}

fn columns_of(rows: Vec<ColumnRow>) -> Vec<Column> {
    let column = |(name, role, position, order, cql_type): ColumnRow| Column {
        name,
        role,
        position,
        order: order.to_lowercase(),
        cql_type,
    };
    rows.into_iter().map(column).collect()
}

fn verdict(keyspace: &str, table: &'static str, broken: &[String]) -> Result<(), ConnectError> {
    match broken.is_empty() {
        true => Ok(()),
        false => Err(ConnectError::Table {
            keyspace: keyspace.to_owned(),
            table,
            rules: broken.join(", "),
        }),
    }
}

/// Checks that the role may read and write rows. Other errors here are treated as transient: nodes can be
/// down.
///
/// This writes nothing. A node checks the permission for a write before it checks the values, and then
/// refuses invalid values, such as a row without an id. A valid deletion would leave a tombstone with the
/// oldest possible timestamp, and Cassandra would then keep the tombstones of folds near it: it drops a
/// tombstone only if no older data can exist.
pub(super) async fn check_rights(
    session: &Session,
    statements: &Statements,
    levels: Levels,
) -> Result<(), ConnectError> {
    // No key has empty names.
    let read = session.execute_unpaged(statements.key.at(levels.read), ("", "", "", 1));
    // Harmless even if a node accepted it: its timestamp is older than every write.
    let invalid = (1_i64, "", "", "", 0_i64, None::<Uuid>);
    let write = session.execute_unpaged(&statements.remove, invalid);
    let (read, write) = futures::join!(read, write);
    let write = write.err().filter(|error| !is_invalid(error));
    for error in read.err().into_iter().chain(write) {
        match ConnectError::answer(error) {
            error @ ConnectError::Rights { .. } => return Err(error),
            error => tracing::debug!(%error, "the role's permissions could not be checked"),
        }
    }
    Ok(())
}

fn is_invalid(error: &ExecutionError) -> bool {
    matches!(
        error,
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(DbError::Invalid, _))
    )
}

/// Queries a system table. If it finds nothing, it queries again after the nodes agree on the schema: a node
/// can be unaware of something that another pod just defined.
async fn ask_settled<R>(
    session: &Session,
    cql: &str,
    values: impl SerializeRow + Copy,
) -> Result<Vec<R>, ConnectError>
where
    R: for<'frame> DeserializeRow<'frame, 'frame>,
{
    let found = ask(session, cql, values).await?;
    if !found.is_empty() {
        return Ok(found);
    }
    if let Err(error) = session.await_schema_agreement().await {
        tracing::warn!(%error, "the nodes did not agree on the schema in time");
    }
    ask(session, cql, values).await
}

/// Queries a system table once.
async fn ask<R>(
    session: &Session,
    cql: &str,
    values: impl SerializeRow,
) -> Result<Vec<R>, ConnectError>
where
    R: for<'frame> DeserializeRow<'frame, 'frame>,
{
    let statement = session.prepare(cql).await.map_err(ConnectError::question)?;
    let answer = session.execute_unpaged(&statement, values).await;
    rows::of_system(answer.map_err(ConnectError::question)?).map_err(ConnectError::question)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyspace_names_need_no_quotes() {
        for good in ["a", "orderfree", "of_2", &"x".repeat(48)] {
            assert!(check_keyspace_name(good).is_ok(), "{good}");
        }
        for bad in ["", "2a", "_a", "A", "a-b", "a;b", "a b", "é", &"x".repeat(49)] {
            assert!(check_keyspace_name(bad).is_err(), "{bad}");
        }
    }
}
