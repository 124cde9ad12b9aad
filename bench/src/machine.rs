//! The state of the machine: CPU time of each process, and whether other work keeps it busy.
//! Source: proc(5), `/proc/stat` and `/proc/[pid]/stat`.

use std::fs;
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

/// Ticks of `/proc` per second: 100 on every current Linux (`getconf CLK_TCK`).
const TICKS_PER_SECOND: f64 = 100.0;

/// How long each check for a quiet machine lasts, and how long the checks go on.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_MAX: Duration = Duration::from_secs(20);

/// The machine is quiet below this share of CPU time. Idle nodes take up to a tenth.
const QUIET_SHARE: f64 = 0.3;

/// CPU time of several processes together.
#[derive(Debug, Clone)]
pub(crate) struct Processes {
    /// Their name, for tables.
    pub name: String,
    pids: Vec<u32>,
}

/// The CPU time of one group of processes during a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Spent {
    /// The name of the group.
    pub name: String,
    /// CPU seconds of all threads in user and kernel mode.
    pub cpu_seconds: f64,
}

impl Processes {
    /// The processes with these ids.
    pub(crate) fn new(name: &str, pids: Vec<u32>) -> Processes {
        Processes { name: name.to_owned(), pids }
    }

    /// CPU seconds so far. A process that has ended counts as zero.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.pids.iter().filter_map(|pid| cpu_ticks(*pid)).sum::<f64>() / TICKS_PER_SECOND
    }
}

/// Resident memory of a process in bytes (`VmRSS`).
pub(crate) fn resident_bytes(pid: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib * 1024.0)
}

/// Ticks in user and kernel mode: fields 14 and 15, counted after the name in brackets.
fn cpu_ticks(pid: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some(ticks()? + ticks()?)
}

/// Ticks in which the machine was busy, and all ticks.
fn machine_ticks() -> anyhow::Result<(f64, f64)> {
    let text = fs::read_to_string("/proc/stat").context("no /proc/stat: this needs Linux")?;
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<f64> =
        line.split_ascii_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    let idle: f64 = ticks.iter().skip(3).take(2).sum();
    // Guest time, the last two fields, is also part of user time.
    let all: f64 = ticks.iter().take(8).sum();
    Ok((all - idle, all))
}

/// Waits until the machine is quiet or the checks end. Returns the last share that was busy.
pub(crate) async fn quiet() -> anyhow::Result<f64> {
    let began = Instant::now();
    loop {
        let before = machine_ticks()?;
        sleep(LOOK).await;
        let after = machine_ticks()?;
        let busy = (after.0 - before.0) / (after.1 - before.1).max(1.0);
        if busy <= QUIET_SHARE || began.elapsed() > LOOK_MAX {
            return Ok(busy);
        }
    }
}

/// The CPU, its number of cores, the memory and the kernel, on one line.
#[must_use]
pub(crate) fn describe() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
    };
    let (cpu, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    let model = field(&cpu, "model name").unwrap_or_else(|| "unknown processor".into());
    let kib = field(&memory, "MemTotal").unwrap_or_default();
    let kib: f64 = kib.trim_end_matches(" kB").parse().unwrap_or(0.0);
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{cores} × {model}, {:.0} GiB, Linux {}", kib / 1024.0 / 1024.0, kernel.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_busy_process_is_measured() {
        let this = Processes::new("this", vec![std::process::id()]);
        let before = this.cpu_seconds();
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_millis(300) {
            std::hint::spin_loop();
        }
        let spent = this.cpu_seconds() - before;
        assert!((0.05..2.0).contains(&spent), "{spent}");
        assert!(cpu_ticks(u32::MAX).is_none() && resident_bytes(u32::MAX).is_none());
        assert!(resident_bytes(std::process::id()).is_some_and(|bytes| bytes > 1e6));
    }

    #[test]
    fn the_machine_has_processors() {
        let (busy, all) = machine_ticks().expect("Linux");
        assert!(0.0 < busy && busy < all, "{busy} of {all}");
        assert!(describe().contains('×'));
    }
}
