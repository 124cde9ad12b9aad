//! The measured server, in a process of its own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::Context;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use uuid::Uuid;

/// A running `serve`. Dropping it ends the process and deletes the file of its embedded store.
pub(crate) struct Server {
    process: Child,
    pub pid: u32,
    /// The address on which it listens.
    pub address: SocketAddr,
    _data: Temporary,
}

/// A file that is deleted when this is dropped.
struct Temporary(PathBuf);

impl Server {
    /// Starts a server. `mark` distinguishes its file from others; `arguments` and `environment` are passed to `serve`.
    ///
    /// # Errors
    /// If it does not print the address on which it listens.
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
        let address = address.with_context(|| format!("`{line}` is not an address"))?;
        let pid = process.id().context("the server ended at once")?;
        Ok(Server { process, pid, address, _data: data })
    }

    /// Ends the server and waits for its end.
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

/// A text that no other run has.
pub(crate) fn mark() -> String {
    Uuid::new_v4().simple().to_string()[..8].to_owned()
}

/// The arguments of `serve` that name the stores.
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
