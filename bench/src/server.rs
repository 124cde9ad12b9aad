//! The server under measurement: a process of its own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::Context;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use uuid::Uuid;

/// A running `serve`, which ends when this is dropped; the file of its embedded store goes then.
pub(crate) struct Server {
    process: Child,
    /// The id of its process.
    pub pid: u32,
    /// Where it listens.
    pub address: SocketAddr,
    _data: Temporary,
}

/// A file that goes when this is dropped.
struct Temporary(PathBuf);

impl Server {
    /// Starts one: `mark` sets its file apart from others, `arguments` and `environment` are for `serve`.
    ///
    /// # Errors
    /// If it does not say where it listens.
    pub(crate) async fn start(
        mark: &str,
        arguments: &[String],
        environment: &[(&str, &str)],
    ) -> anyhow::Result<Server> {
        let data = Temporary(std::env::temp_dir().join(format!("orderfree-bench-{mark}.redb")));
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").arg("--data").arg(&data.0).args(arguments);
        command.envs(environment.iter().copied());
        let mut process = command.stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let output = process.stdout.take().context("invariant: piped")?;
        let mut lines = BufReader::new(output).lines();
        let line = lines.next_line().await?.context("the server ended; its reason is above")?;
        let address = line.trim_start_matches("http://").parse();
        let address = address.with_context(|| format!("`{line}` is no address"))?;
        let pid = process.id().context("the server ended at once")?;
        Ok(Server { process, pid, address, _data: data })
    }

    /// Ends it and waits until it is gone.
    ///
    /// # Errors
    /// If it can't be killed.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill().await.context("cannot stop the server")
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Sets one run apart from others.
pub(crate) fn mark() -> String {
    Uuid::new_v4().simple().to_string()[..8].to_owned()
}

/// What tells `serve` where the stores are.
pub(crate) fn stores(cassandra: &[String], redis: Option<&String>) -> Vec<String> {
    let mut arguments = Vec::new();
    if !cassandra.is_empty() {
        arguments.extend(["--cassandra".to_owned(), cassandra.join(",")]);
    }
    if let Some(url) = redis {
        arguments.extend(["--redis".to_owned(), url.clone()]);
    }
    arguments
}
