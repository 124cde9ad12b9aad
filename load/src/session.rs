//! One run of the load test, from its start to its end.

use std::io::Write as _;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use reqwest::{ClientBuilder, Url};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::args::{LoadArgs, Output};
use crate::chaos::cards::Soaked;
use crate::chaos::deck::FaultDeck;
use crate::chaos::executor::{Commands, Executor};
use crate::chaos::log::FaultLog;
use crate::client::{self, Connect, PodClient};
use crate::drive::{self, Drive};
use crate::ids::Ids;
use crate::latency::Latency;
use crate::pods::{Fleet, Launch};
use crate::progress::{self, note};
use crate::report::{Report, Setup};
use crate::resets::Resets;
use crate::run::Run;
use crate::soak::checks;
use crate::soak::faults::NodeFaults;
use crate::soak::page::page;
use crate::soak::report::SoakReport;
use crate::soak::state::Soak;
use crate::verify::{self, Folds, Pass};
use crate::workload::{Pace, Schedule, Workload};

/// Exit code for arguments that make no sense.
const UNUSABLE: u8 = 2;

/// Runs the load test and prints its report. `connect` makes the HTTP client builder for the address
/// of a pod, with the token and the certificate authority that the pod needs.
///
/// # Errors
/// One sentence that says why nothing could be proved.
pub async fn run(
    args: LoadArgs,
    connect: impl Fn(&Url) -> anyhow::Result<ClientBuilder>,
) -> anyhow::Result<ExitCode> {
    if let Err(unusable) = args.check(&connect) {
        note(format_args!("orderfree load: {unusable:#}"));
        return Ok(ExitCode::from(UNUSABLE));
    }
    let session = Session::new(args, &connect);
    let report = tokio::select! {
        biased;
        report = session.run() => report?,
        interrupted = session.abandoned() => {
            interrupted?;
            anyhow::bail!("abandoned: nothing is proved");
        }
    };
    let passed = report.failures().is_empty();
    let text = match session.args.check.output {
        Output::Text => report.to_string(),
        Output::Json => report.to_json()? + "\n",
    };
    std::io::stdout().write_all(text.as_bytes()).context("cannot write the report")?;
    session.clean_up(passed);
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One run of the load test.
pub(crate) struct Session<'a> {
    args: LoadArgs,
    connect: Connect<'a>,
    seed: u64,
    group: String,
    log_dir: PathBuf,
    stop: CancellationToken,
    loading: AtomicBool,
}

/// The load, after its end.
struct Load {
    seconds: f64,
    overdue: usize,
    fleet: Fleet,
    fault_log: FaultLog,
    /// The kinds of faults in the deck.
    kinds: Vec<String>,
    /// The kinds of faults that this machine cannot cause.
    missing: Vec<String>,
}

impl<'a> Session<'a> {
    /// A session with these arguments, which [`LoadArgs::check`] has accepted.
    pub(crate) fn new(args: LoadArgs, connect: Connect<'a>) -> Self {
        let id = Uuid::new_v4().simple().to_string();
        let name = format!("load-{}", &id[..12]);
        let log_dir = match &args.target.log_dir {
            Some(folder) => folder.clone(),
            None => std::env::temp_dir().join(format!("orderfree-{name}")),
        };
        Self {
            seed: args.workload.seed.unwrap_or_else(rand::random),
            group: args.workload.group.clone().unwrap_or(name),
            log_dir,
            args,
            connect,
            stop: CancellationToken::new(),
            loading: AtomicBool::new(false),
        }
    }

    /// Runs the load and the check, and stops the started pods.
    pub(crate) async fn run(&self) -> anyhow::Result<Report> {
        let node_faults = match &self.args.soak.soak {
            Some(script) => NodeFaults::of(script).await?,
            None => NodeFaults::default(),
        };
        let mut fleet = self.fleet()?;
        tell(&format!("seed {}; waiting for {} pods", self.seed, fleet.len()));
        fleet.wait_ready().await?;
        let run = Arc::new(self.prepare(&fleet).await?);
        let load = self.load(&run, fleet, node_faults).await?;
        if let (Some(soak), Some(script)) = (&run.soak, &self.args.soak.soak) {
            checks::scrape_once(&run, soak).await;
            checks::count_tombstones(soak, script).await?;
            checks::count_rows(&run, soak, false).await;
        }
        let (passes, folds) = self.check(&run).await;
        if let Some(soak) = &run.soak {
            checks::count_rows(&run, soak, true).await;
        }
        let mut report = self.report(&run, &load, passes, folds);
        tell("stopping the started pods");
        report.chaos.problems.extend(load.fleet.stop().await);
        self.write_soak_report(&report)?;
        Ok(report)
    }

    fn fleet(&self) -> anyhow::Result<Fleet> {
        let target = &self.args.target;
        let timeout = self.args.workload.request_timeout;
        let client = |base: &str| PodClient::new(base, self.connect, timeout);
        let Some(count) = target.pods else {
            let clients: anyhow::Result<Vec<_>> =
                target.urls.iter().map(|url| client(url)).collect();
            return Ok(Fleet::given(clients?, target.ready_within));
        };
        self.create_log_dir()?;
        let launch = Launch {
            program: match &target.program {
                Some(program) => program.clone(),
                None => std::env::current_exe().context("cannot find the file of this program")?,
            },
            cassandra: target.contact_points().map(str::to_owned),
            embedded_file: match &target.embedded_file {
                Some(file) => file.clone(),
                None => self.log_dir.join("pod-0.redb"),
            },
            log_dir: self.log_dir.clone(),
            ready_within: target.ready_within,
            faketime: self.args.soak.faketime.clone(),
        };
        Fleet::start(&launch, count, client)
    }

    /// Lays out the keys. The keys of a new group are absent. The keys of a given group may have
    /// values, which count.
    async fn prepare(&self, fleet: &Fleet) -> anyhow::Result<Run> {
        let workload = Workload::new(&self.args.mix(), &self.group, self.args.workload.groups);
        let pods = fleet.clients();
        let level = &self.args.check.consistency;
        let bases = match &self.args.workload.group {
            None => vec![0; workload.keys().len()],
            Some(_) => verify::read_bases(&pods[0], workload.keys(), level)
                .await
                .context("cannot read the values that the keys already have")?,
        };
        let rate = self.args.workload.rate.map_or(1, NonZeroU32::get);
        let soak = self.args.soak.soak.is_some().then(|| Soak::new(&self.group, pods.len(), rate));
        let ids = Ids::new(self.args.workload.ids.clone());
        let resets = self.args.workload.reset_every.map(Resets::new);
        let stop = self.stop.clone();
        let run = Run::new(workload, pods, level.clone(), &bases, ids, soak, stop);
        Ok(run.with_resets(resets))
    }

    /// Sends updates while things break, then undoes all faults.
    async fn load(
        &self,
        run: &Arc<Run>,
        fleet: Fleet,
        node_faults: NodeFaults,
    ) -> anyhow::Result<Load> {
        let work = &self.args.workload;
        let start = Instant::now();
        let drive = Drive {
            connections: work.connections,
            batch: work.batch,
            read_every: self.args.check.read_every,
            seed: self.seed,
        };
        let pace = match work.rate {
            None => Pace::Closed,
            Some(rate) => {
                let batch = u32::try_from(work.batch).context("a batch beyond its limit")?;
                Pace::Open(Schedule::new(start, rate.get(), batch))
            }
        };
        let steps = self.args.fault_plan().steps(fleet.len(), work.duration, self.seed);
        let soaked = self.args.soak.soak.as_ref().map(|script| Soaked {
            deck: FaultDeck::new(node_faults.possible, SmallRng::seed_from_u64(self.seed)),
            script: script.clone(),
            hold: self.args.chaos.fault_for,
            pause_for: self.args.chaos.pause_for,
            restart_after: self.args.chaos.restart_after,
            length: work.duration,
            busy: vec![Duration::ZERO; fleet.len()],
            paused: Duration::ZERO,
            weighed: None,
            run: Arc::clone(run),
        });
        let missing = node_faults.missing;
        let kinds = soaked.as_ref().map(|soaked| soaked.deck.names()).unwrap_or_default();
        let executor = Executor::new(fleet, self.commands()?, soaked, start);
        self.loading.store(true, Ordering::SeqCst);
        let (driven, (fleet, fault_log), seconds, ()) = tokio::join!(
            drive::drive(run, pace, drive),
            executor.run(steps, self.stop.clone()),
            self.end_after(work.duration),
            progress::show(run, work.duration),
        );
        self.loading.store(false, Ordering::SeqCst);
        Ok(Load { overdue: driven?.overdue(), seconds, fleet, fault_log, kinds, missing })
    }

    /// Ends the load after its time, unless something else ends it before. Returns its length.
    async fn end_after(&self, length: Duration) -> f64 {
        let start = Instant::now();
        tokio::select! {
            biased;
            () = sleep(length) => self.stop.cancel(),
            () = self.stop.cancelled() => {}
        }
        tell("the load is over; waiting for the last answers and for every pod");
        start.elapsed().as_secs_f64()
    }

    /// Reads everything, folds, and reads everything again. Stops at the first pass with a wrong
    /// value. Ids of long windows are not folded in the end, so the last reads then ask all replicas.
    async fn check(&self, run: &Run) -> (Vec<Pass>, Vec<Folds>) {
        let check = &self.args.check;
        let keys = run.workload.keys().len();
        tell(&format!("reading {keys} keys from {} pods", run.pods.len()));
        let level = run.consistency.as_str();
        let mut passes = vec![verify::read_everything(run, "after the load", level, false).await];
        check_audited(run, level, false).await;
        let is_wrong = |passes: &[Pass]| passes.iter().any(|pass| pass.wrong > 0);
        if !check.fold_check || is_wrong(&passes) {
            return (passes, Vec::new());
        }
        tell(&format!("folding {keys} keys"));
        let mut folds = vec![verify::fold_everything(run, false).await];
        passes.push(verify::read_everything(run, "after a fold", level, false).await);
        check_audited(run, level, false).await;
        let Some(settle) = check.settle else {
            return (passes, folds);
        };
        if is_wrong(&passes) {
            return (passes, folds);
        }
        let are_final = !run.ids.outlive_the_check();
        let which = if are_final { "all shards" } else { "all but ids of long windows" };
        tell(&format!("waiting {settle:?} until {which} are final"));
        sleep(settle).await;
        tell(&format!("folding {keys} keys again"));
        let last = verify::fold_everything(run, are_final).await;
        // A shard outside the tally may be an unknown write on a minority of replicas.
        let settled = last.are_complete();
        folds.push(last);
        let (name, level) = match are_final {
            true => ("after all is folded", level),
            false => ("folded; read at all", "all"),
        };
        passes.push(verify::read_everything(run, name, level, settled).await);
        check_audited(run, level, settled).await;
        if let Some(level) = &check.settled_consistency {
            tell(&format!("reading {keys} keys at {level}"));
            let name = format!("folded; at {level}");
            passes.push(verify::read_everything(run, &name, level, settled).await);
            check_audited(run, level, settled).await;
        }
        (passes, folds)
    }

    /// Writes the report of a soak to the folder of `--report`.
    fn write_soak_report(&self, report: &Report) -> anyhow::Result<()> {
        let (Some(folder), Some(soak)) = (&self.args.soak.report, &report.soak) else {
            return Ok(());
        };
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(folder.join("report.md"), page(report, soak)))
            .and_then(|()| {
                std::fs::write(folder.join("report.json"), report.to_json().unwrap_or_default())
            })
            .with_context(|| format!("cannot write to {}", folder.display()))
    }

    fn report(&self, run: &Run, load: &Load, passes: Vec<Pass>, folds: Vec<Folds>) -> Report {
        let figures = run.figures();
        let work = &self.args.workload;
        Report {
            setup: Setup {
                seed: self.seed,
                group: self.group.clone(),
                workload: work.workload,
                keys: run.workload.keys().len(),
                pods: run.pods.len(),
                store: self.store(),
                connections: work.connections,
                batch: work.batch,
                rate: work.rate.map(NonZeroU32::get),
            },
            seconds: load.seconds,
            attempted: figures.attempted(),
            acked: figures.acked,
            refused: figures.refused,
            unknown: figures.unknown,
            overdue: load.overdue,
            acked_per_second: figures.acked as f64 / load.seconds,
            latency: Latency::of(&figures.latency),
            ids: run.ids.report(),
            resets: run.resets.as_ref().map(|resets| resets.report(run.keys_reset())),
            reasons: figures.reasons.clone(),
            reads: figures.reads,
            reads_failed: figures.reads_failed,
            sightings: figures.sightings.clone(),
            chaos: load.fault_log.clone(),
            passes,
            folds,
            soak: run.soak.as_ref().map(|soak| {
                let (kinds, missing) = (load.kinds.clone(), load.missing.clone());
                SoakReport::new(&self.args.soak, work, (kinds, missing), soak)
            }),
        }
    }

    fn store(&self) -> String {
        let target = &self.args.target;
        match (target.pods, target.contact_points()) {
            (None, _) => {
                let shown: Vec<&str> = target.urls.iter().map(|url| client::shown(url)).collect();
                format!("at {}", shown.join(", "))
            }
            (Some(_), Some(contact_points)) => format!("Cassandra at {contact_points}"),
            (Some(_), None) => "embedded store".to_owned(),
        }
    }

    fn commands(&self) -> anyhow::Result<Option<Commands>> {
        let chaos = &self.args.chaos;
        let fault = chaos.fault_command.clone();
        if fault.is_none() && self.args.soak.soak.is_none() {
            return Ok(None);
        }
        self.create_log_dir()?;
        Ok(Some(Commands {
            fault,
            heal: chaos.heal_command.clone(),
            log: self.log_dir.join("faults.log"),
        }))
    }

    fn create_log_dir(&self) -> anyhow::Result<()> {
        std::fs::create_dir_all(&self.log_dir)
            .with_context(|| format!("cannot create {}", self.log_dir.display()))
    }

    /// Removes the temporary log folder, unless the logs may explain a failure.
    fn clean_up(&self, passed: bool) {
        let folder: &Path = &self.log_dir;
        if !folder.exists() || self.args.target.log_dir.is_some() {
            return;
        }
        if !passed {
            tell(&format!("the logs are in {}", folder.display()));
        } else if let Err(error) = std::fs::remove_dir_all(folder) {
            tell(&format!("cannot remove {}: {error}", folder.display()));
        }
    }

    /// Resolves when the user gives up. While updates are sent, the first signal only ends the load:
    /// the check can still run. Any other signal ends everything.
    async fn abandoned(&self) -> anyhow::Result<()> {
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot hear Ctrl-C")?;
        let mut terminate = signal(SignalKind::terminate()).context("cannot hear SIGTERM")?;
        loop {
            tokio::select! {
                biased;
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if !self.loading.load(Ordering::SeqCst) || self.stop.is_cancelled() {
                return Ok(());
            }
            tell(
                "stopping the load; the check still runs. Another signal ends it without a result",
            );
            self.stop.cancel();
        }
    }
}

async fn check_audited(run: &Run, level: &str, settled: bool) {
    if let Some(soak) = &run.soak {
        checks::check_audited_keys(run, soak, level, settled).await;
    }
}

/// Prints what happens now to standard error. The report goes to standard output.
fn tell(what: &str) {
    note(format_args!("orderfree load: {what}"));
}
