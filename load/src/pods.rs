//! The pods under load. They run already, or are started here as processes of this program.
//!
//! A fleet has one owner. Only the owner starts, signals and ends its processes. Clients know a pod
//! only by its address, which stays the same after a restart.

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

use crate::client::PodClient;

/// Ports of started pods. They lie below the ports that the kernel gives to outgoing connections
/// (32768 and above). Otherwise a pod that is down could lose its port to a connection of another
/// pod, or a client that connects to the free port could connect to itself.
const PORTS: std::ops::Range<u16> = 18_000..32_000;
/// Maximum number of ports that are tried.
const PORT_TRIES_MAX: usize = 1_000;
/// Time between two requests for `/readyz`.
const READY_POLL: Duration = Duration::from_millis(100);
/// Pause before a pod that ended is started again.
pub(crate) const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// Time limit for a pod to end after SIGTERM. It still serves for 5 s and drains for up to 25 s.
const STOP_WITHIN: Duration = Duration::from_secs(45);
/// Bytes from the end of the log that the error of a failed start quotes.
const LOG_TAIL_MAX: usize = 2_000;

/// How pods are started.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    /// The program: `orderfree`.
    pub program: PathBuf,
    /// Contact points of Cassandra; `None` for the embedded store.
    pub cassandra: Option<String>,
    /// The file of the embedded store.
    pub embedded_file: PathBuf,
    /// Folder for the output of the pods.
    pub log_dir: PathBuf,
    /// Time limit for all pods to become ready.
    pub ready_within: Duration,
    /// The libfaketime by which [`Fleet::shift_clock`] sets the clocks of the pods off.
    pub faketime: Option<PathBuf>,
}

/// All pods of a run.
#[derive(Debug)]
pub(crate) struct Fleet {
    pods: Vec<Pod>,
    ready_within: Duration,
}

#[derive(Debug)]
struct Pod {
    client: PodClient,
    process: Option<Process>,
}

/// A pod that was started here. Dropping this value kills the process.
#[derive(Debug)]
struct Process {
    command: Launch,
    number: usize,
    port: u16,
    child: Option<Child>,
    /// Whether it got SIGTERM during the load and should end cleanly.
    told_to_end: bool,
}

impl Fleet {
    /// A fleet of pods that were not started here.
    pub(crate) fn given(clients: Vec<PodClient>, ready_within: Duration) -> Self {
        let pods = clients.into_iter().map(|client| Pod { client, process: None });
        Self { pods: pods.collect(), ready_within }
    }

    /// Starts pods on free ports of 127.0.0.1. `client` creates the client for an address.
    pub(crate) fn start(
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

    /// The number of pods.
    pub(crate) fn len(&self) -> usize {
        self.pods.len()
    }

    /// A client for each pod.
    pub(crate) fn clients(&self) -> Vec<PodClient> {
        self.pods.iter().map(|pod| pod.client.clone()).collect()
    }

    /// Waits until every pod is ready. Returns an error if a started pod has ended.
    pub(crate) async fn wait_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + self.ready_within;
        try_join_all(self.pods.iter_mut().map(|pod| pod.wait_ready(deadline))).await?;
        Ok(())
    }

    /// Kills a pod with SIGKILL, like the loss of its machine. Returns `false` if it does not run.
    pub(crate) async fn kill(&mut self, number: usize) -> anyhow::Result<bool> {
        let process = self.process(number)?;
        let Some(mut child) = process.child.take() else {
            return Ok(false);
        };
        child.kill().await.with_context(|| format!("cannot kill pod {number}"))?;
        Ok(true)
    }

    /// Starts a pod again on the same port, if it does not run.
    pub(crate) fn restart(&mut self, number: usize) -> anyhow::Result<()> {
        let process = self.process(number)?;
        match process.child {
            None => process.spawn(),
            Some(_) => Ok(()),
        }
    }

    /// Pauses a pod with SIGSTOP, like a long pause of its machine. Returns `false` if it does not
    /// run.
    pub(crate) fn pause(&mut self, number: usize) -> anyhow::Result<bool> {
        self.process(number)?.signal(Signal::STOP)
    }

    /// Continues a paused pod. Returns `false` if it does not run.
    pub(crate) fn resume(&mut self, number: usize) -> anyhow::Result<bool> {
        self.process(number)?.signal(Signal::CONT)
    }

    /// Tells a pod to drain and end. Returns `false` if it does not run.
    pub(crate) fn terminate(&mut self, number: usize) -> anyhow::Result<bool> {
        let process = self.process(number)?;
        process.told_to_end = process.signal(Signal::TERM)?;
        Ok(process.told_to_end)
    }

    /// Whether a pod that ended was told to. Call this once per end: it resets the answer.
    pub(crate) fn was_told_to_end(&mut self, number: usize) -> bool {
        self.process(number).is_ok_and(|process| std::mem::take(&mut process.told_to_end))
    }

    /// Sets the wall clock of a pod off by this number of ms. The shift outlasts restarts.
    pub(crate) fn shift_clock(&mut self, number: usize, millis: i64) -> anyhow::Result<()> {
        self.process(number)?.shift_clock(millis)
    }

    /// Sets all clocks right again.
    pub(crate) fn set_clocks_right(&mut self) -> anyhow::Result<()> {
        for number in 0..self.pods.len() {
            let process = self.pods[number].process.as_ref();
            if process.is_some_and(|process| process.command.faketime.is_some()) {
                self.shift_clock(number, 0)?;
            }
        }
        Ok(())
    }

    /// The process id of each pod, or `None` for pods that do not run here.
    pub(crate) fn process_ids(&self) -> Vec<Option<u32>> {
        let id = |pod: &Pod| pod.process.as_ref()?.child.as_ref()?.id();
        self.pods.iter().map(id).collect()
    }

    /// Continues every paused pod.
    pub(crate) fn resume_all(&mut self) -> anyhow::Result<()> {
        for process in self.pods.iter_mut().filter_map(|pod| pod.process.as_mut()) {
            process.signal(Signal::CONT)?;
        }
        Ok(())
    }

    /// Finds the pods that ended since the last call and were not killed here. They stay down until
    /// they are restarted.
    pub(crate) fn reap(&mut self) -> anyhow::Result<Vec<(usize, ExitStatus)>> {
        let mut ended = Vec::new();
        for (number, pod) in self.pods.iter_mut().enumerate() {
            if let Some(status) = pod.process.as_mut().map_or(Ok(None), Process::reap)? {
                ended.push((number, status));
            }
        }
        Ok(ended)
    }

    /// Continues or restarts every pod, and waits until all are ready.
    ///
    /// A pod that ends during its start is started again until the deadline, as an orchestrator would
    /// do it: the store may need some time to recover.
    pub(crate) async fn make_whole(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + self.ready_within;
        self.resume_all()?;
        let back = self.pods.iter_mut().map(|pod| pod.bring_back(deadline));
        try_join_all(back).await?;
        Ok(())
    }

    /// Ends all processes with SIGTERM, and with SIGKILL if that does not help. Returns a sentence for
    /// each pod that did not end cleanly.
    pub(crate) async fn stop(mut self) -> Vec<String> {
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
            // Ctrl-C in a terminal reaches the whole process group. The pods must survive it, or
            // nothing could be checked.
            .process_group(0)
            .kill_on_drop(true);
        match &launch.cassandra {
            Some(contact_points) => command.env("ORDERFREE_CASSANDRA", contact_points),
            None => command
                .env_remove("ORDERFREE_CASSANDRA")
                .env("ORDERFREE_DATA", &launch.embedded_file),
        };
        if let Some(library) = &launch.faketime {
            if !self.clock_path().exists() {
                self.shift_clock(0)?;
            }
            command
                .env("LD_PRELOAD", library)
                .env("FAKETIME_TIMESTAMP_FILE", self.clock_path())
                // Each look at the clock reads the file, so a shift takes effect at once.
                .env("FAKETIME_NO_CACHE", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        let program = launch.program.display();
        self.child = Some(command.spawn().with_context(|| format!("cannot start {program}"))?);
        Ok(())
    }

    /// Tells libfaketime how far the wall clock of the process is off.
    fn shift_clock(&self, millis: i64) -> anyhow::Result<()> {
        let (path, sign) = (self.clock_path(), if millis < 0 { '-' } else { '+' });
        let (seconds, rest) = (millis.unsigned_abs() / 1_000, millis.unsigned_abs() % 1_000);
        // The pod may read the file at any time, so it is replaced as a whole.
        let fresh = path.with_extension("new");
        std::fs::write(&fresh, format!("{sign}{seconds}.{rest:03}\n"))
            .and_then(|()| std::fs::rename(&fresh, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Signals the process. It is a child that was not reaped yet, so its id cannot belong to another
    /// process.
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
        let status = child.try_wait().context("cannot check a pod")?;
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

/// Opens a file to append to. The log of a restarted pod continues in the same file.
pub(crate) fn append_to(path: &Path) -> anyhow::Result<File> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.with_context(|| format!("cannot write {}", path.display()))
}

/// Finds free ports. Each port is held until the last one is found, so they differ.
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
    use reqwest::Client;

    use super::*;

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
        let second = Duration::from_secs(1);
        let client = PodClient::new("http://127.0.0.1:1", &|_| Ok(Client::builder()), second);
        let clients = vec![client.expect("a client")];
        let mut fleet = Fleet::given(clients, Duration::from_secs(1));
        assert!(fleet.kill(0).await.is_err());
        assert!(fleet.pause(0).is_err());
        assert!(fleet.restart(0).is_err());
    }

    /// One pod in a new folder, whose program is a shell script.
    fn scripted(script: &str) -> (Fleet, PathBuf) {
        let folder = std::env::temp_dir().join(format!("pods-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&folder).expect("a folder");
        let program = folder.join("program");
        // Another process writes the file. Otherwise a child that another test starts at this moment
        // could inherit the open file, and a file that is open for writing cannot be executed.
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
            faketime: None,
        };
        let second = Duration::from_secs(1);
        let client = |base: &str| PodClient::new(base, &|_| Ok(Client::builder()), second);
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
