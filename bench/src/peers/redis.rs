//! Redis over one multiplexed connection.

use anyhow::Context;
use redis::aio::MultiplexedConnection;

use super::{Counters, Key};

/// `INCRBY`, pipelined with other requests that wait for the connection.
pub(super) struct Redis(MultiplexedConnection);

impl Redis {
    pub(super) async fn connect(url: &str) -> anyhow::Result<Redis> {
        let client = redis::Client::open(url)?;
        let connection = client.get_multiplexed_async_connection().await;
        Ok(Redis(connection.with_context(|| format!("no Redis answers at {url}"))?))
    }
}

fn name(key: &Key) -> String {
    format!("{}/{}", key.group, key.name)
}

impl Counters for Redis {
    async fn add(&self, key: Key, by: i64) -> anyhow::Result<()> {
        let mut connection = self.0.clone();
        Ok(redis::cmd("INCRBY").arg(name(&key)).arg(by).exec_async(&mut connection).await?)
    }

    async fn add_many(&self, adds: Vec<(Key, i64)>) -> anyhow::Result<()> {
        let mut connection = self.0.clone();
        let mut pipe = redis::pipe();
        for (key, by) in &adds {
            pipe.cmd("INCRBY").arg(name(key)).arg(*by).ignore();
        }
        Ok(pipe.exec_async(&mut connection).await?)
    }

    async fn value(&self, key: Key) -> anyhow::Result<i64> {
        let mut connection = self.0.clone();
        let value: Option<i64> =
            redis::cmd("GET").arg(name(&key)).query_async(&mut connection).await?;
        Ok(value.unwrap_or(0))
    }
}
