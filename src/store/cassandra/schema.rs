//! Creates the keyspace and the tables. Only `schema.cql` defines the tables; this module removes the lines
//! that an engine doesn't know.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use orderfree_core::protocol::consistency::Replication;
use scylla::client::session::Session;
use scylla::errors::{DbError, ExecutionError, RequestAttemptError};
use scylla::policies::load_balancing::{NodeIdentifier, SingleTargetLoadBalancingPolicy};
use scylla::statement::unprepared::Statement;

use super::CassandraConfig;
use super::checks::Engine;
use super::connect_error::ConnectError;
use super::session;

const SCHEMA: &str = include_str!("../../../schema.cql");

/// The beginning of a statement in the file, before the table's name.
const CREATE: &str = "CREATE TABLE IF NOT EXISTS ";

/// The tables, in the order of the file.
const TABLES: [&str; 2] = ["shards", "resets"];

/// Default number of replicas per data centre; fewer if the data centre has fewer nodes.
const REPLICAS: usize = 3;

/// How long a node can lag behind another one that has the keyspace already.
const BEHIND_MAX: Duration = Duration::from_secs(10);

/// The pause before such a node gets the statement again.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// Returns the statements that [`apply`] runs on an engine, for people and their own tools. `engine` is a release of
/// Apache Cassandra, such as `5.0` or `5.0.6`, or `scylla`. Without `with_resets`, the table of resets is left out.
///
/// # Errors
/// [`ConnectError::KeyspaceName`], [`ConnectError::ReplicationText`] and [`ConnectError::UnknownRelease`].
pub fn print(
    keyspace: &str,
    replication: &str,
    with_resets: bool,
    engine: &str,
) -> Result<String, ConnectError> {
    session::check_keyspace_name(keyspace)?;
    let engine = Engine::of_name(engine).ok_or_else(|| ConnectError::UnknownRelease {
        name: engine.to_owned(),
        names: Engine::names(),
    })?;
    let keyspace_statement = create_keyspace(keyspace, &parse(replication)?);
    let mut all = format!("{keyspace_statement};\n");
    for table in &TABLES[..if with_resets { 2 } else { 1 }] {
        let _ = write!(all, "\n{};\n", create_table(keyspace, table, engine));
    }
    Ok(all)
}

/// Creates the keyspace and the tables if they are missing, and checks existing tables. An existing keyspace keeps its
/// replication. `replication` is as in [`print()`]; `None` means up to three replicas in every data centre. The table of
/// resets is made only `with_resets`, and if keys can be reset with these time constants and data centres. Returns the
/// replication of the keyspace.
pub async fn apply(
    config: &CassandraConfig,
    replication: Option<&str>,
    with_resets: bool,
) -> Result<Replication, ConnectError> {
    let wanted = replication.map(parse).transpose()?;
    let session = session::open(config).await?;
    let engine = session::engine(&session).await?;
    // If the keyspace exists, the role needs no permission to define anything. Ask once: another node may not know yet what
    // another pod has just defined.
    let datacenters = session::datacenters(&session);
    let replication = match session::replication(&session, &config.keyspace).await? {
        None => {
            let wanted = wanted.unwrap_or_else(|| everywhere(&session));
            define(&session, create_keyspace(&config.keyspace, &wanted)).await?;
            wanted.replication(&datacenters)
        }
        Some(found) => {
            let wanted = wanted.map(|wanted| wanted.replication(&datacenters));
            if let Some(wanted) = wanted.filter(|wanted| *wanted != found) {
                tracing::warn!(%found, %wanted, "the keyspace exists and keeps its replication");
            }
            found
        }
    };
    apply_shards(&session, config, engine).await?;
    session::check_resets(&session, &config.keyspace).await?;
    if !with_resets || session::has_table(&session, &config.keyspace, "resets").await? {
        return Ok(replication);
    }
    // With these constants no key can be reset, so pods would look at the table for nothing.
    if let Err(why) = config.constants.check_resets() {
        tracing::warn!(%why, "the table of resets is not made");
        return Ok(replication);
    }
    define(&session, create_table(&config.keyspace, "resets", engine)).await?;
    Ok(replication)
}

async fn apply_shards(
    session: &Session,
    config: &CassandraConfig,
    engine: Engine,
) -> Result<(), ConnectError> {
    let Err(seen) = session::check_shards(session, &config.keyspace, engine).await else {
        return Ok(());
    };
    // The table is missing, or wrong, or incomplete: a node takes over another pod's definition piece by
    // piece. Defining it again changes nothing that exists, and waits until the nodes agree.
    match define(session, create_table(&config.keyspace, "shards", engine)).await {
        Ok(()) => session::check_shards(session, &config.keyspace, engine).await,
        Err(_) if matches!(seen, ConnectError::Table { .. }) => Err(seen),
        Err(error) => Err(error),
    }
}

/// Runs one definition, and waits until the nodes that are up agree on it. All pods send their definitions to
/// the same node: two nodes that create the same table at the same time would give it two ids, which older
/// releases can't undo.
async fn define(session: &Session, cql: String) -> Result<(), ConnectError> {
    let cluster = session.get_cluster_state();
    let nodes = cluster.get_nodes_info();
    let connected = nodes.iter().filter(|node| node.is_connected());
    let mut statement = Statement::new(cql);
    if let Some(node) = connected.min_by_key(|node| node.host_id) {
        let target = NodeIdentifier::Node(Arc::clone(node));
        let only = SingleTargetLoadBalancingPolicy::new(target, None);
        statement.set_load_balancing_policy(Some(only));
    }
    let begun = Instant::now();
    while let Err(error) = session.query_unpaged(statement.clone(), ()).await {
        if !is_behind(&error) || begun.elapsed() > BEHIND_MAX {
            return Err(ConnectError::answer(error));
        }
        tokio::time::sleep(RETRY_AFTER).await;
    }
    session.await_schema_agreement().await.map_err(ConnectError::question)?;
    Ok(())
}

/// Whether the node does not know a keyspace that another node has already. This was seen on Cassandra 6.0.
fn is_behind(error: &ExecutionError) -> bool {
    matches!(
        error,
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(DbError::Invalid, reason))
            if reason.starts_with("Keyspace ") && reason.ends_with("doesn't exist")
    )
}

/// The replication of a new keyspace.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    /// As many replicas in each data centre that the cluster has now.
    Each(usize),
    Datacenters(BTreeMap<String, usize>),
}

impl Wanted {
    fn replication(&self, datacenters: &[String]) -> Replication {
        match self {
            Wanted::Each(factor) => {
                Replication::new(datacenters.iter().map(|name| (name.clone(), *factor)))
            }
            Wanted::Datacenters(factors) => Replication::new(factors.clone()),
        }
    }
}

/// Parses `dc1:3,dc2:3` or `3`.
fn parse(text: &str) -> Result<Wanted, ConnectError> {
    let malformed = || ConnectError::ReplicationText(text.to_owned());
    let factor = |text: &str| {
        text.trim().parse::<usize>().ok().filter(|factor| *factor > 0).ok_or_else(malformed)
    };
    if !text.contains(':') {
        return factor(text).map(Wanted::Each);
    }
    let mut factors = BTreeMap::new();
    for part in text.split(',') {
        let (name, count) = part.rsplit_once(':').ok_or_else(malformed)?;
        let name = name.trim();
        if name.is_empty() || factors.insert(name.to_owned(), factor(count)?).is_some() {
            return Err(malformed());
        }
    }
    Ok(Wanted::Datacenters(factors))
}

fn everywhere(session: &Session) -> Wanted {
    let mut factors = BTreeMap::new();
    let cluster = session.get_cluster_state();
    // A joining node can be without a data centre.
    for name in cluster.get_nodes_info().iter().filter_map(|node| node.datacenter.clone()) {
        let nodes = factors.entry(name).or_insert(0);
        *nodes = REPLICAS.min(*nodes + 1);
    }
    Wanted::Datacenters(factors)
}

fn create_keyspace(keyspace: &str, wanted: &Wanted) -> String {
    let mut options = "'class': 'NetworkTopologyStrategy'".to_owned();
    match wanted {
        Wanted::Each(factor) => {
            let _ = write!(options, ", 'replication_factor': {factor}");
        }
        Wanted::Datacenters(factors) => {
            for (name, factor) in factors {
                let _ = write!(options, ", '{}': {factor}", name.replace('\'', "''"));
            }
        }
    }
    format!("CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {{{options}}}")
}

/// Returns the file's statement for a table with the keyspace's name, without comments and without the lines that
/// the engine doesn't know.
fn create_table(keyspace: &str, table: &str, engine: Engine) -> String {
    let knows = |line: &&str| {
        let has = |property| line.contains(property);
        (engine.has_read_repair() || !has("read_repair"))
            && (engine.has_hybrid_speculation() || !has("speculative_retry"))
            && (engine.has_unified_compaction() || !has("UnifiedCompactionStrategy"))
    };
    let code = SCHEMA.lines().map(|line| line.split("--").next().unwrap_or_default().trim_end());
    let all: Vec<&str> = code.filter(|line| !line.is_empty()).collect();
    let (all, beginning) = (all.join("\n"), format!("{CREATE}{table} "));
    let mut statements = all.split(';').map(str::trim_start);
    let statement = statements.find(|statement| statement.starts_with(&beginning));
    let statement = statement.expect("invariant: the file has both tables");
    let statement: Vec<&str> = statement.lines().filter(knows).collect();
    let statement = statement.join("\n");
    statement.replacen(&beginning, &format!("{CREATE}{keyspace}.{table} "), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_two_statements_with_one_option_a_line() {
        assert_eq!(SCHEMA.matches(CREATE).count(), TABLES.len());
        let table = create_table("counts", "shards", Engine::Cassandra((5, 0)));
        assert!(table.starts_with("CREATE TABLE IF NOT EXISTS counts.shards ("), "{table}");
        assert!(table.ends_with("AND read_repair = 'NONE'"), "{table}");
        assert!(!table.contains("--") && !table.contains(';'), "{table}");
        assert!(table.contains("UnifiedCompactionStrategy"), "{table}");
        let log = create_table("counts", "resets", Engine::Cassandra((5, 0)));
        assert!(log.starts_with("CREATE TABLE IF NOT EXISTS counts.resets ("), "{log}");
        assert!(log.contains("PRIMARY KEY (bucket, at, kind, grp, id)"), "{log}");
        assert!(log.ends_with("speculative_retry = 'MIN(99p,500ms)'"), "{log}");
        assert!(!log.contains("--") && !log.contains(';'), "{log}");
        let all = print("counts", "3", true, "5.0").expect("valid");
        assert!(all.ends_with(&format!("{table};\n\n{log};\n")), "{all}");
        assert!(!print("counts", "3", false, "5.0").expect("valid").contains("resets"));
    }

    #[test]
    fn what_an_engine_does_not_know_is_left_out() {
        let old = create_table("counts", "shards", Engine::Cassandra((4, 1)));
        assert!(!old.contains("compaction") && old.contains("read_repair"), "{old}");
        assert!(old.contains("speculative_retry = 'MIN("), "{old}");
        let scylla = create_table("counts", "shards", Engine::Scylla);
        assert!(!scylla.contains("read_repair") && !scylla.contains("compaction"), "{scylla}");
        assert!(!scylla.contains("speculative_retry"), "{scylla}");
        assert!(scylla.contains("default_time_to_live = 0"), "{scylla}");
    }

    #[test]
    fn the_schema_is_printed_for_the_engine_that_is_named() {
        let of = |engine| print("counts", "3", true, engine).expect("valid");
        assert!(of("5.0.9").contains("UnifiedCompaction") && of("5.0.9") == of("6.0-alpha2"));
        assert!(!of("4.1").contains("UnifiedCompaction") && of("4.1").contains("read_repair"));
        assert!(!of("scylla").contains("read_repair"), "{}", of("scylla"));
        let error = print("counts", "3", true, "4.0").expect_err("too old").to_string();
        assert_eq!(error, "there is no schema for `4.0`; choose 4.1, 5.0, 6.0 or scylla");
    }

    #[test]
    fn replication_is_written_in_two_ways() {
        assert_eq!(
            print("counts", "dc1:3, dc2:2", true, "5.0")
                .expect("valid")
                .lines()
                .next()
                .expect("a line"),
            "CREATE KEYSPACE IF NOT EXISTS counts WITH replication = \
             {'class': 'NetworkTopologyStrategy', 'dc1': 3, 'dc2': 2};"
        );
        let each = print("counts", "3", true, "5.0").expect("valid");
        assert!(each.contains("{'class': 'NetworkTopologyStrategy', 'replication_factor': 3}"));
        let odd = print("counts", "d'Or:3,Zürich 1:2", true, "5.0").expect("valid");
        assert!(odd.contains(", 'Zürich 1': 2, 'd''Or': 3}"), "{odd}");
        for bad in ["", "0", "-1", "x", "dc1:", ":3", "dc1:3,", "dc1:0", "a:1,a:2", "a:1,3"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let quoted = print("Counts", "3", true, "5.0");
        assert!(matches!(quoted, Err(ConnectError::KeyspaceName(_))));
    }

    #[test]
    fn a_plain_number_is_for_each_data_centre() {
        let datacenters = ["east".to_owned(), "west".to_owned()];
        let of = |text| parse(text).expect("valid").replication(&datacenters).to_string();
        assert_eq!((of("3"), of("east:2")), ("east:3,west:3".to_owned(), "east:2".to_owned()));
    }
}
