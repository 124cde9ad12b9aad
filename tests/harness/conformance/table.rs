//! The product's table, written and read by hand, through a chosen node.

use std::net::SocketAddr;

use scylla::client::session::Session;
use scylla::errors::ExecutionError;
use scylla::policies::load_balancing::{NodeIdentifier, SingleTargetLoadBalancingPolicy};
use scylla::policies::retry::FallthroughRetryPolicy;
use scylla::response::query_result::QueryResult;
use scylla::serialize::row::SerializeRow;
use scylla::statement::Consistency;
use scylla::statement::unprepared::Statement;
use uuid::Uuid;

use crate::cassandra::{cql, datacenter, drop_keyspace, fresh, fresh_on_own, session};
use crate::contract::short_constants;
use orderfree::store::cassandra::CassandraConfig;

/// The position of the tally among the rows of its name.
pub(crate) const TALLY: i64 = i64::MAX;

/// The group of most tests.
pub(crate) const GROUP: &str = "g";

/// A row as a query returns it: `(expires_at, state)`.
pub(crate) type Row = (i64, Vec<u8>);

/// A new table with three replicas on three nodes.
pub(crate) struct Table {
    pub(crate) config: CassandraConfig,
    session: Session,
}

impl Table {
    /// On the cluster that `CASSANDRA_CONTACT_POINTS` names, or else on the repository's own.
    pub(crate) async fn fresh() -> Table {
        Table::of(fresh(short_constants()).await).await
    }

    /// On the repository's own cluster, for tests that break nodes.
    pub(crate) async fn fresh_on_own() -> Table {
        Table::of(fresh_on_own(short_constants()).await).await
    }

    async fn of(config: CassandraConfig) -> Table {
        let session = session(&config).await;
        Table { config, session }
    }

    /// A new table with other properties.
    pub(crate) async fn with(properties: &str) -> Table {
        let table = Table::fresh_on_own().await;
        table.alter(properties).await;
        table
    }

    /// A new table with one replica of each row, so that a row is on one node only.
    pub(crate) async fn with_one_replica() -> Table {
        let table = Table::fresh_on_own().await;
        let statement = format!(
            "ALTER KEYSPACE {} WITH replication = {{'class': 'NetworkTopologyStrategy', '{}': 1}}",
            table.config.keyspace,
            datacenter(&table.config).await,
        );
        cql(&table.config, &statement).await;
        table
    }

    pub(crate) async fn alter(&self, properties: &str) {
        let statement = format!("ALTER TABLE {}.shards WITH {properties}", self.config.keyspace);
        cql(&self.config, &statement).await;
    }

    pub(crate) async fn drop(self) {
        drop_keyspace(&self.config).await;
    }

    /// Runs one statement on node `node`, the contact point with this number, without retries.
    pub(crate) async fn run(
        &self,
        node: u8,
        level: Consistency,
        text: &str,
        values: impl SerializeRow,
    ) -> Result<QueryResult, ExecutionError> {
        let node: SocketAddr = self.config.contact_points[usize::from(node) - 1]
            .parse()
            .expect("an address and a port");
        let only = SingleTargetLoadBalancingPolicy::new(NodeIdentifier::NodeAddress(node), None);
        let keyspace = &self.config.keyspace;
        let mut statement = Statement::new(text.replace("shards", &format!("{keyspace}.shards")));
        statement.set_consistency(level);
        statement.set_load_balancing_policy(Some(only));
        statement.set_retry_policy(Some(std::sync::Arc::new(FallthroughRetryPolicy::new())));
        self.session.query_unpaged(statement, values).await
    }

    /// Writes one shard row (or the tally, at [`TALLY`]) at a timestamp.
    pub(crate) async fn write(
        &self,
        node: u8,
        level: Consistency,
        name: &str,
        (expires_at, state): (i64, &[u8]),
        timestamp: i64,
    ) {
        self.run(
            node,
            level,
            "INSERT INTO shards (kind, grp, name, expires_at, mutator_id, state) \
             VALUES ('counter', ?, ?, ?, ?, ?) USING TIMESTAMP ?",
            (GROUP, name, expires_at, Uuid::nil(), state, timestamp),
        )
        .await
        .expect("the row is written");
    }

    /// Deletes the rows of a name up to a fence.
    pub(crate) async fn delete_up_to(&self, name: &str, fence: i64, timestamp: i64) {
        self.run(
            1,
            Consistency::All,
            "DELETE FROM shards USING TIMESTAMP ? \
             WHERE kind = 'counter' AND grp = ? AND name = ? AND expires_at <= ?",
            (timestamp, GROUP, name, fence),
        )
        .await
        .expect("deleted");
    }

    /// Writes a fold as the store does: tally and deletion in one batch at `fence + 1`.
    pub(crate) async fn fold(
        &self,
        node: u8,
        level: Consistency,
        name: &str,
        fence: i64,
        state: &[u8],
    ) {
        let place = format!("kind = 'counter' AND grp = '{GROUP}' AND name = '{name}'");
        self.run(
            node,
            level,
            &format!(
                "BEGIN UNLOGGED BATCH USING TIMESTAMP {} \
                 INSERT INTO shards (kind, grp, name, expires_at, mutator_id, state) \
                 VALUES ('counter', '{GROUP}', '{name}', {TALLY}, {}, 0x{}); \
                 DELETE FROM shards WHERE {place} AND expires_at <= {fence}; \
                 APPLY BATCH",
                fence + 1,
                Uuid::nil(),
                state.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
            ),
            (),
        )
        .await
        .expect("the fold is written");
    }

    /// All rows of a name, newest first.
    pub(crate) async fn rows(&self, node: u8, level: Consistency, name: &str) -> Vec<Row> {
        self.select(node, level, name, "").await
    }

    /// The rows of a name that meet one more condition.
    pub(crate) async fn select(
        &self,
        node: u8,
        level: Consistency,
        name: &str,
        condition: &str,
    ) -> Vec<Row> {
        let text = format!(
            "SELECT expires_at, state FROM shards \
             WHERE kind = 'counter' AND grp = ? AND name = ? {condition}"
        );
        let answer = self.run(node, level, &text, (GROUP, name)).await.expect("an answer");
        let rows = answer.into_rows_result().expect("rows");
        rows.rows::<Row>().expect("typed").map(|row| row.expect("a row")).collect()
    }
}
