//! The pods under load: given by address, or started here as processes of this program.
//!
//! A fleet has one owner, which alone starts, signals and ends its processes. Clients know a pod
//! by its address only, and the address stays the same across restarts.

use std::fs::{File, OpenOptions};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use futures::future::try_join_all;
use rand::Rng;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout_at};

use super::client::PodClient;

/// Ports of started pods lie below those that the kernel gives to outgoing connections (32768 and
/// above). A pod that is down could otherwise lose its port to a connection of its neighbours,
/// or a client that dials the dead port could meet itself.
const PORTS: std::ops::Range<u16> = 18_000..32_000;
/// Ports tried before giving up.
const PORT_TRIES_MAX: usize = 1_000;
/// Time between two looks at `/readyz`.
const READY_POLL: Duration = Duration::from_millis(100);
/// Pause before a pod that ended by itself is started again.
pub(super) const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// Time for a pod to end after SIGTERM: it serves on for 5 s and drains for up to 25 s.
const STOP_WITHIN: Duration = Duration::from_secs(45);
/// Bytes at the end of a log that a failed start quotes.
const LOG_TAIL_MAX: usize = 2_000;

/// How pods are started.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    /// The program: `orderfree`.
    pub program: PathBuf,
    /// Contact points of Cassandra; `None` for the embedded store.
    pub cassandra: Option<String>,
    /// The file of the embedded store.
    pub embedded_file: PathBuf,
    /// Where each pod's output goes.
    pub log_dir: PathBuf,
    /// Time for a pod to become ready.
    pub ready_within: Duration,
    /// Whether the clocks of pods are to be set off by [`Fleet::shift_clock`].
    pub shifts_clocks: bool,
}

/// All pods of a run.
#[derive(Debug)]
pub(super) struct Fleet {
    pods: Vec<Pod>,
    ready_within: Duration,
}

#[derive(Debug)]
struct Pod {
    client: PodClient,
    process: Option<Process>,
}

/// A pod that was started here. Dropping it kills what still runs.
#[derive(Debug)]
struct Process {
    command: Launch,
    number: usize,
    port: u16,
    child: Option<Child>,
    /// Whether it got SIGTERM during the load, and should end cleanly.
    told_to_end: bool,
}

impl Fleet {
    /// A fleet of pods that somebody else runs.
    pub(super) fn given(clients: Vec<PodClient>, ready_within: Duration) -> Self {
        let pods = clients.into_iter().map(|client| Pod { client, process: None });
        Self { pods: pods.collect(), ready_within }
    }

    /// Starts pods on free ports of 127.0.0.1. `client` makes the client for an address.
    pub(super) fn start(
        launch: &Launch,
        count: usize,
        client: impl Fn(&str) -> anyhow::Result<PodClient>,
    ) -> anyhow::Result<Self> {
        let mut fleet = Self { pods: Vec::with_capacity(count), ready_within: launch.ready_within };
        for (number, port) in free_ports(count)?.into_iter().enumerate() {
            let mut process =
                Process { command: launch.clone(), number, port, child: None, told_to_end: false };
            process.spawn()?;
            fleet.pods.push(Pod {
                client: client(&format!("http://127.0.0.1:{port}"))?,
                process: Some(process),
            });
        }
        Ok(fleet)
    }

    /// How many pods there are.
    pub(super) fn len(&self) -> usize {
        self.pods.len()
    }

    /// A client for each pod.
    pub(super) fn clients(&self) -> Vec<PodClient> {
        self.pods.iter().map(|pod| pod.client.clone()).collect()
    }

    /// Waits until every pod is ready. Pods that were started here and ended are an error.
    pub(super) async fn wait_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + self.ready_within;
        try_join_all(self.pods.iter_mut().map(|pod| pod.wait_ready(deadline))).await?;
        Ok(())
    }

    /// Ends a pod with SIGKILL, as a lost machine would. `false` where it does not run.
    pub(super) async fn kill(&mut self, number: usize) -> anyhow::Result<bool> {
        let process = self.process(number)?;
        let Some(mut child) = process.child.take() else {
            return Ok(false);
        };
        child.kill().await.with_context(|| format!("cannot kill pod {number}"))?;
        Ok(true)
    }

    /// Starts a pod again on its port, if it does not run.
    pub(super) fn restart(&mut self, number: usize) -> anyhow::Result<()> {
        let process = self.process(number)?;
        match process.child {
            None => process.spawn(),
            Some(_) => Ok(()),
        }
    }

    /// Stops a pod in its tracks, as a long pause of its machine would. `false` where it does not
    /// run.
    pub(super) fn pause(&mut self, number: usize) -> anyhow::Result<bool> {
        self.process(number)?.signal(Signal::STOP)
    }

    /// Lets a paused pod run on. `false` where it does not run.
    pub(super) fn resume(&mut self, number: usize) -> anyhow::Result<bool> {
        self.process(number)?.signal(Signal::CONT)
    }

    /// Asks a pod to drain and end. `false` where it does not run.
    pub(super) fn terminate(&mut self, number: usize) -> anyhow::Result<bool> {
        let process = self.process(number)?;
        process.told_to_end = process.signal(Signal::TERM)?;
        Ok(process.told_to_end)
    }

    /// Whether a pod that ended had been asked to; asked once for each end.
    pub(super) fn was_told_to_end(&mut self, number: usize) -> bool {
        self.process(number).is_ok_and(|process| std::mem::take(&mut process.told_to_end))
    }

    /// Sets the wall clock of a pod off by so many ms, also across restarts.
    pub(super) fn shift_clock(&mut self, number: usize, millis: i64) -> anyhow::Result<()> {
        let path = self.process(number)?.clock_path();
        // Whole or not at all: the pod reads it any time.
        let fresh = path.with_extension("new");
        std::fs::write(&fresh, millis.to_string())
            .and_then(|()| std::fs::rename(&fresh, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Sets every clock right that may have been set off.
    pub(super) fn set_clocks_right(&mut self) -> anyhow::Result<()> {
        for number in 0..self.pods.len() {
            let process = self.pods[number].process.as_ref();
            if process.is_some_and(|process| process.command.shifts_clocks) {
                self.shift_clock(number, 0)?;
            }
        }
        Ok(())
    }

    /// The process id of each pod that runs here.
    pub(super) fn process_ids(&self) -> Vec<Option<u32>> {
        let id = |pod: &Pod| pod.process.as_ref()?.child.as_ref()?.id();
        self.pods.iter().map(id).collect()
    }

    /// Lets every paused pod run on.
    pub(super) fn resume_all(&mut self) -> anyhow::Result<()> {
        for process in self.pods.iter_mut().filter_map(|pod| pod.process.as_mut()) {
            process.signal(Signal::CONT)?;
        }
        Ok(())
    }

    /// Finds the pods that ended by themselves since the last look. They stay down until they are
    /// restarted.
    pub(super) fn reap(&mut self) -> anyhow::Result<Vec<(usize, ExitStatus)>> {
        let mut ended = Vec::new();
        for (number, pod) in self.pods.iter_mut().enumerate() {
            if let Some(status) = pod.process.as_mut().map_or(Ok(None), Process::reap)? {
                ended.push((number, status));
            }
        }
        Ok(ended)
    }

    /// Brings every pod back, whatever was done to it, and waits until all are ready.
    ///
    /// A pod that ends while it starts is started again, as an orchestrator would: its store may
    /// need a moment to be whole again. It has until the deadline.
    pub(super) async fn make_whole(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + self.ready_within;
        self.resume_all()?;
        let back = self.pods.iter_mut().map(|pod| pod.bring_back(deadline));
        try_join_all(back).await?;
        Ok(())
    }

    /// Ends all processes: SIGTERM first, SIGKILL where that does not help. The answer names the
    /// pods that did not end cleanly.
    pub(super) async fn stop(mut self) -> Vec<String> {
        let deadline = Instant::now() + STOP_WITHIN;
        let processes = self.pods.iter_mut().filter_map(|pod| pod.process.as_mut());
        let ends = processes.map(|process| process.stop(deadline));
        futures::future::join_all(ends).await.into_iter().flatten().collect()
    }

    fn process(&mut self, number: usize) -> anyhow::Result<&mut Process> {
        let pod = self.pods.get_mut(number).and_then(|pod| pod.process.as_mut());
        pod.with_context(|| format!("pod {number} was not started here"))
    }
}

impl Pod {
    async fn wait_ready(&mut self, deadline: Instant) -> anyhow::Result<()> {
        loop {
            if self.client.is_ready().await {
                return Ok(());
            }
            if let Some(process) = &mut self.process
                && let Some(status) = process.reap()?
            {
                bail!("pod {} ended with {status}; {}", process.number, process.log_tail());
            }
            if Instant::now() >= deadline {
                return Err(self.not_ready());
            }
            sleep(READY_POLL).await;
        }
    }

    async fn bring_back(&mut self, deadline: Instant) -> anyhow::Result<()> {
        loop {
            if let Some(process) = &mut self.process
                && process.child.is_none()
            {
                process.spawn()?;
            }
            match self.wait_ready(deadline).await {
                Err(_) if Instant::now() < deadline => sleep(RESTART_PAUSE).await,
                result => return result,
            }
        }
    }

    fn not_ready(&self) -> anyhow::Error {
        let base = self.client.shown();
        match &self.process {
            None => anyhow::anyhow!("{base} is not ready: GET {base}/readyz is not 200"),
            Some(process) => {
                anyhow::anyhow!("{base} does not get ready; {}", process.log_tail())
            }
        }
    }
}

impl Process {
    fn spawn(&mut self) -> anyhow::Result<()> {
        let launch = &self.command;
        let log = append_to(&self.log_path())?;
        let mut command = Command::new(&launch.program);
        command
            .arg("serve")
            .env("ORDERFREE_LISTEN", format!("127.0.0.1:{}", self.port))
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot share the log of a pod")?)
            .stderr(log)
            // Ctrl-C in a terminal reaches its whole process group: the pods must live on, or
            // nothing could be checked.
            .process_group(0)
            .kill_on_drop(true);
        match &launch.cassandra {
            Some(contact_points) => command.env("ORDERFREE_CASSANDRA", contact_points),
            None => command
                .env_remove("ORDERFREE_CASSANDRA")
                .env("ORDERFREE_DATA", &launch.embedded_file),
        };
        if launch.shifts_clocks {
            command.env("ORDERFREE_CLOCK_SHIFT_FILE", self.clock_path());
        }
        let program = launch.program.display();
        self.child = Some(command.spawn().with_context(|| format!("cannot start {program}"))?);
        Ok(())
    }

    /// Signals the process. The id is that of our own child, which is not reaped yet, so it cannot
    /// have passed on to somebody else.
    fn signal(&mut self, signal: Signal) -> anyhow::Result<bool> {
        let id = self.child.as_ref().and_then(Child::id);
        let pid = id.and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        match pid {
            None => Ok(false),
            Some(pid) => {
                kill_process(pid, signal)
                    .with_context(|| format!("cannot signal pod {}", self.number))?;
                Ok(true)
            }
        }
    }

    fn reap(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        let Some(child) = &mut self.child else {
            return Ok(None);
        };
        let status = child.try_wait().context("cannot look after a pod")?;
        if status.is_some() {
            self.child = None;
        }
        Ok(status)
    }

    async fn stop(&mut self, deadline: Instant) -> Option<String> {
        let number = self.number;
        if let Err(error) = self.signal(Signal::TERM) {
            return Some(format!("{error:#}"));
        }
        let mut child = self.child.take()?;
        match timeout_at(deadline, child.wait()).await {
            Ok(Ok(status)) if status.success() => None,
            Ok(Ok(status)) => Some(format!("pod {number} ended with {status} after SIGTERM")),
            Ok(Err(error)) => Some(format!("pod {number} cannot be waited for: {error}")),
            Err(_) => match child.kill().await {
                Ok(()) => Some(format!("pod {number} did not end after SIGTERM; killed")),
                Err(error) => Some(format!("pod {number} cannot be killed: {error}")),
            },
        }
    }

    fn log_path(&self) -> PathBuf {
        self.command.log_dir.join(format!("pod-{}.log", self.number))
    }

    fn clock_path(&self) -> PathBuf {
        self.command.log_dir.join(format!("pod-{}.clock", self.number))
    }

    fn log_tail(&self) -> String {
        let path = self.log_path();
        let log = std::fs::read(&path).unwrap_or_default();
        let tail = &log[log.len().saturating_sub(LOG_TAIL_MAX)..];
        let tail = String::from_utf8_lossy(tail);
        format!("its log {} ends:\n{}", path.display(), tail.trim_end())
    }
}

/// Opens a file to add to, so that the log of a pod that is killed is continued.
pub(super) fn append_to(path: &Path) -> anyhow::Result<File> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.with_context(|| format!("cannot write {}", path.display()))
}

/// Finds ports that nobody listens on. All are held until the last is found, so they differ.
fn free_ports(count: usize) -> anyhow::Result<Vec<u16>> {
    let mut rng = rand::rng();
    let mut held = Vec::with_capacity(count);
    for _ in 0..PORT_TRIES_MAX {
        if held.len() == count {
            break;
        }
        let port = rng.random_range(PORTS);
        held.extend(TcpListener::bind(("127.0.0.1", port)).map(|listener| (port, listener)));
    }
    ensure!(held.len() == count, "no {count} free ports on 127.0.0.1 in {PORTS:?}");
    Ok(held.into_iter().map(|(port, _)| port).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::connect::ConnectArgs;

    #[test]
    fn free_ports_differ_and_are_free() {
        let mut ports = free_ports(20).expect("ports");
        for port in &ports {
            TcpListener::bind(("127.0.0.1", *port)).expect("a free port");
        }
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 20);
    }

    #[tokio::test]
    async fn a_given_pod_is_never_signalled() {
        let client =
            PodClient::new("http://127.0.0.1:1", &ConnectArgs::default(), Duration::from_secs(1));
        let clients = vec![client.expect("a client")];
        let mut fleet = Fleet::given(clients, Duration::from_secs(1));
        assert!(fleet.kill(0).await.is_err());
        assert!(fleet.pause(0).is_err());
        assert!(fleet.restart(0).is_err());
    }

    /// One pod whose program is a shell script, in a folder of its own.
    fn scripted(script: &str) -> (Fleet, PathBuf) {
        let folder = std::env::temp_dir().join(format!("pods-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&folder).expect("a folder");
        let program = folder.join("program");
        // Written by another process: a file that this one has open for writing cannot be executed
        // by the children that other tests start meanwhile.
        let written = std::process::Command::new("sh")
            .args(["-c", r#"printf '#!/bin/sh\n%s\n' "$1" >"$0" && chmod 755 "$0""#])
            .arg(&program)
            .arg(script)
            .status();
        assert!(written.expect("sh").success());
        let launch = Launch {
            program,
            cassandra: None,
            embedded_file: folder.join("pod-0.redb"),
            log_dir: folder.clone(),
            ready_within: Duration::from_secs(10),
            shifts_clocks: false,
        };
        let client =
            |base: &str| PodClient::new(base, &ConnectArgs::default(), Duration::from_secs(1));
        (Fleet::start(&launch, 1, client).expect("a pod"), folder)
    }

    #[tokio::test]
    async fn a_pod_that_does_not_start_is_quoted() {
        let (mut fleet, folder) = scripted("echo \"$1: no such keyspace\"; exit 3");
        let error = fleet.wait_ready().await.expect_err("no pod").to_string();
        assert!(error.contains("exit status: 3"), "{error}");
        assert!(error.contains("serve: no such keyspace"), "{error}");
        std::fs::remove_dir_all(folder).expect("the folder");
    }

    #[tokio::test]
    async fn a_pod_is_killed_paused_and_started_again() {
        let (mut fleet, folder) = scripted("exec sleep 60");
        assert!(fleet.pause(0).expect("a pause"));
        assert!(fleet.kill(0).await.expect("a kill"), "also a paused pod is killed");
        assert!(!fleet.kill(0).await.expect("no kill"));
        assert!(!fleet.resume(0).expect("no signal"));
        assert!(fleet.reap().expect("a look").is_empty(), "a killed pod did not end by itself");
        fleet.restart(0).expect("a restart");
        assert!(fleet.resume(0).expect("a signal"));
        assert!(fleet.reap().expect("a look").is_empty());
        let complaints = fleet.stop().await;
        assert_eq!(complaints, ["pod 0 ended with signal: 15 (SIGTERM) after SIGTERM"]);
        std::fs::remove_dir_all(folder).expect("the folder");
    }

    #[tokio::test]
    async fn a_pod_that_ends_by_itself_is_found() {
        let (mut fleet, folder) = scripted("exit 7");
        let ended = loop {
            let ended = fleet.reap().expect("a look");
            if !ended.is_empty() {
                break ended;
            }
            sleep(READY_POLL).await;
        };
        assert_eq!((ended[0].0, ended[0].1.code()), (0, Some(7)));
        assert!(fleet.stop().await.is_empty());
        std::fs::remove_dir_all(folder).expect("the folder");
    }
}
