//! The script that breaks nodes: which faults it can cause, and its other questions.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, bail, ensure};
use tokio::process::Command;

use crate::chaos::deck::NodeFault;

/// The faults of nodes that a script knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeFaults {
    /// The faults that it can cause on this machine.
    pub possible: Vec<NodeFault>,
    /// The names of the faults that it cannot cause here.
    pub missing: Vec<String>,
}

impl NodeFaults {
    /// Runs `SCRIPT faults` and reads its answer.
    pub(crate) async fn of(script: &Path) -> anyhow::Result<Self> {
        let lines = ask(script, "faults").await?;
        let mut faults = Self::default();
        for line in &lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                [name, "missing"] => faults.missing.push((*name).to_owned()),
                [name, effect @ ("down" | "up"), nodes @ ..] if !nodes.is_empty() => {
                    let nodes: Result<_, _> = nodes.iter().map(|node| node.parse()).collect();
                    faults.possible.push(NodeFault {
                        name: (*name).to_owned(),
                        is_down: *effect == "down",
                        nodes: nodes.with_context(|| format!("no nodes: `{line}`"))?,
                    });
                }
                _ => bail!("`{} faults` says `{line}`", script.display()),
            }
        }
        Ok(faults)
    }
}

/// Runs `SCRIPT QUESTION` and returns the lines of its output.
pub(super) async fn ask(script: &Path, question: &str) -> anyhow::Result<Vec<String>> {
    let script: PathBuf = script.canonicalize().context("no such script")?;
    let output = Command::new(&script)
        .arg(question)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("cannot run {}", script.display()))?;
    ensure!(output.status.success(), "`{} {question}` failed: {}", script.display(), output.status);
    let text = String::from_utf8(output.stdout).context("not UTF-8")?;
    Ok(text.lines().map(str::to_owned).collect())
}
