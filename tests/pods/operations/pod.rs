//! The program as a process: start it, send requests and signals, and observe it from outside.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use orderfree::policy::NewToken;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::wire::{self, Answer, request};

const STARTED_WITHIN: Duration = Duration::from_secs(30);
const COMMAND_WITHIN: Duration = Duration::from_secs(40);

/// A mebibyte.
pub(crate) const MIB: usize = 1024 * 1024;

/// A port that no other test has.
pub(crate) fn free_port() -> u16 {
    // Below the ports that the kernel gives to outgoing connections, of which there are thousands here, and never the
    // same twice.
    static NEXT_PORT: AtomicU16 = AtomicU16::new(20_000);
    let port = std::iter::repeat_with(|| NEXT_PORT.fetch_add(1, Ordering::Relaxed))
        .take_while(|port| *port < 32_000)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    port.expect("a free port")
}

/// How to start pods one after the other, in one folder and on one port.
#[derive(Clone)]
pub(crate) struct Setup {
    folder: Arc<TempDir>,
    pub(crate) port: u16,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    /// A program that starts the pod, if it is not this process.
    within: Vec<String>,
}

impl Setup {
    pub(crate) fn new() -> Setup {
        let setup = Setup::without_store();
        let data = setup.path("rows.redb").display().to_string();
        setup.arg("--data", data)
    }

    pub(crate) fn without_store() -> Setup {
        let (folder, port) = (TempDir::new().expect("a folder"), free_port());
        let setup = Setup {
            folder: Arc::new(folder),
            port,
            arguments: Vec::new(),
            environment: Vec::new(),
            within: Vec::new(),
        };
        setup.arg("--listen", format!("127.0.0.1:{port}"))
    }

    #[must_use]
    pub(crate) fn arg(mut self, name: &str, value: impl ToString) -> Setup {
        self.arguments.extend([name.to_owned(), value.to_string()]);
        self
    }

    /// The same with these arguments alone.
    #[must_use]
    pub(crate) fn only(mut self, arguments: &[&str]) -> Setup {
        self.arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        self
    }

    #[must_use]
    pub(crate) fn env(mut self, name: &str, value: impl ToString) -> Setup {
        self.environment.push((name.to_owned(), value.to_string()));
        self
    }

    /// A setup in which another program starts the pods.
    #[must_use]
    pub(crate) fn within(mut self, words: &[&str]) -> Setup {
        self.within = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// A setup whose wall clock [`Setup::shift_clock`] can shift. It is right at first.
    #[must_use]
    pub(crate) fn with_shifted_clock(self) -> Setup {
        let faketime = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faketime");
        let found = std::process::Command::new(faketime).output().expect("a script");
        assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
        self.shift_clock(0);
        let library = String::from_utf8(found.stdout).expect("a path");
        let clock = self.path("clock").display().to_string();
        self.env("LD_PRELOAD", library.trim())
            .env("FAKETIME_TIMESTAMP_FILE", clock)
            // Each look at the clock reads the file, so a shift takes effect at once.
            .env("FAKETIME_NO_CACHE", 1)
            .env("FAKETIME_DONT_FAKE_MONOTONIC", 1)
    }

    /// Shifts the wall clock, also that of a pod that runs.
    pub(crate) fn shift_clock(&self, seconds: i64) {
        // The pod may read the file at any time, so it is replaced as a whole.
        let new = self.write("clock.new", format!("{seconds:+}\n"));
        fs::rename(new, self.path("clock")).expect("renamed");
    }

    /// A setup with these lines as the policy.
    #[must_use]
    pub(crate) fn policy(self, lines: &str) -> Setup {
        let file = self.write("policy.toml", lines);
        self.arg("--policy", file.display())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file into the pod's folder.
    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).expect("a file can be written");
        path
    }

    /// Starts a pod and returns at once.
    pub(crate) fn spawn(&self) -> Pod {
        static LOGS: AtomicUsize = AtomicUsize::new(0);
        let log = self.path(&format!("log-{}", LOGS.fetch_add(1, Ordering::Relaxed)));
        let file = File::create(&log).expect("a log");
        let mut words = self.within.iter().map(String::as_str).collect::<Vec<_>>();
        words.extend([env!("CARGO_BIN_EXE_orderfree"), "serve"]);
        let path = self.within.first().and_then(|_| std::env::var_os("PATH"));
        let child = Command::new(words[0])
            .args(&words[1..])
            .args(&self.arguments)
            .env_clear()
            .envs(path.map(|path| ("PATH", path)))
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("the same log"))
            .stderr(file)
            .kill_on_drop(true)
            .spawn();
        Pod { setup: self.clone(), child: child.expect("the program runs"), log }
    }

    /// Starts a pod and waits until it listens.
    pub(crate) async fn start(&self) -> Pod {
        let mut pod = self.spawn();
        pod.logs("listening on", STARTED_WITHIN).await;
        pod
    }
}

/// A pod's process.
pub(crate) struct Pod {
    pub(crate) setup: Setup,
    child: Child,
    log: PathBuf,
}

impl Pod {
    pub(crate) fn port(&self) -> u16 {
        self.setup.port
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.id()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, signal).expect("it runs");
    }

    /// Waits for its end. Returns the exit code and the time it took.
    pub(crate) async fn ended(&mut self, within: Duration) -> (Option<i32>, Duration) {
        let began = Instant::now();
        let status = timeout(within, self.child.wait()).await;
        let status = status.unwrap_or_else(|_| panic!("not ended within {within:?}"));
        (status.expect("a child").code(), began.elapsed())
    }

    /// All its output.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).expect("a log")).into_owned()
    }

    /// The lines of its log.
    pub(crate) fn lines(&self) -> Vec<Value> {
        self.log().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits until its log contains this text.
    pub(crate) async fn logs(&mut self, text: &str, within: Duration) {
        let began = Instant::now();
        while !self.log().contains(text) {
            let ended = self.child.try_wait().expect("a child");
            assert!(ended.is_none(), "{ended:?} without {text:?}: {}", self.log());
            assert!(began.elapsed() < within, "no {text:?} within {within:?}: {}", self.log());
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Its current memory in bytes.
    pub(crate) fn memory(&self) -> usize {
        memory_of(self.id())
    }

    /// Its maximum memory in bytes.
    pub(crate) fn most_memory(&self) -> usize {
        status_of(self.id(), "VmHWM:")
    }

    pub(crate) fn process(&self) -> u32 {
        self.id()
    }

    pub(crate) async fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let answer = wire::ask(self.port(), &request(method, path, headers, body)).await;
        answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], "").await
    }

    /// A counter's value; 0 if it was never counted.
    pub(crate) async fn count(&self, path: &str) -> u64 {
        let answer = self.get(&format!("{path}?default=0")).await;
        answer.json()["value"].as_u64().unwrap_or_else(|| panic!("{}", answer.text()))
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!(
                "the pod's last lines:\n{}",
                lines[lines.len().saturating_sub(15)..].join("\n")
            );
        }
    }
}

/// The number behind this name and these labels in a page of metrics.
pub(crate) fn metric(metrics: &str, name: &str) -> u64 {
    let line = format!("{name} ");
    let found = metrics.lines().find_map(|text| text.strip_prefix(&line));
    found.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{line} in {metrics}"))
}

/// Current memory of a process in bytes.
pub(crate) fn memory_of(process: u32) -> usize {
    status_of(process, "VmRSS:")
}

/// The bytes in a line of a process's status (proc(5)).
fn status_of(process: u32, name: &str) -> usize {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<usize>().ok());
    kib.expect("a number of KiB") * 1024
}

/// CPU time of a process (proc(5), `/proc/[pid]/stat`, in ticks of 10 ms).
pub(crate) fn cpu_of(process: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
    // The name of the program can contain anything, and ends at the last parenthesis.
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let ticks = |field: usize| -> u64 {
        let text = fields.split_whitespace().nth(field - 3);
        text.and_then(|text| text.parse().ok()).expect("ticks")
    };
    Duration::from_millis(10 * (ticks(14) + ticks(15)))
}

/// Runs a command of the program to its end.
pub(crate) async fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_orderfree"))
        .args(arguments)
        .env_clear()
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = timeout(COMMAND_WITHIN, output).await;
    output.unwrap_or_else(|_| panic!("{arguments:?} does not end")).expect("the program runs")
}

/// A token, and the lines of a policy that give it access.
pub(crate) fn token(name: &str, grants: &[(&str, &[&str])], rest: &str) -> (String, String) {
    let NewToken { token, sha256 } = NewToken::draw();
    let mut lines = format!("[[token]]\nname = {name:?}\nsha256 = {sha256:?}\n{rest}\n");
    for (prefix, verbs) in grants {
        lines += &format!("[[token.grant]]\ngroup_prefix = {prefix:?}\nverbs = {verbs:?}\n");
    }
    (token, lines)
}
