//! Faults on purpose: pods killed and paused, and whatever a command does to the rest.
//!
//! What happens when is decided before the load starts, from a seed, as a list of steps. The
//! executor owns the fleet while the load runs, carries the steps out, and starts pods again that
//! ended by themselves. At the end it undoes everything: no pod stays paused or down, no fault
//! stays unhealed.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use tokio::process::{Child, Command};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::pods::{Fleet, RESTART_PAUSE, append_to};

/// How often the executor looks after processes.
const SUPERVISE_EVERY: Duration = Duration::from_millis(250);
/// Time for one fault or heal command.
const COMMAND_WITHIN: Duration = Duration::from_secs(180);
/// Entries that the diary keeps; the counts go on.
const DIARY_MAX: usize = 1_000;

/// What is to happen, and how often.
#[derive(Clone, Debug, Default)]
pub struct Menace {
    /// Kill a pod this often.
    pub kill_every: Option<Duration>,
    /// How long a killed pod stays down.
    pub restart_after: Duration,
    /// Pause a pod this often.
    pub pause_every: Option<Duration>,
    /// How long a pause lasts.
    pub pause_for: Duration,
    /// Run the fault command this often.
    pub fault_every: Option<Duration>,
    /// How long until the heal command.
    pub fault_for: Duration,
}

/// One step of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Step {
    /// When, from the start of the load.
    pub at: Duration,
    /// What.
    pub act: Act,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Act {
    /// SIGKILL a pod.
    Kill(usize),
    /// Start a killed pod again.
    Restart(usize),
    /// SIGSTOP a pod.
    Pause(usize),
    /// SIGCONT a pod.
    Resume(usize),
    /// Run the fault command.
    Fault,
    /// Run the heal command.
    Heal,
}

/// The commands that cause and undo a fault.
#[derive(Clone, Debug)]
pub(super) struct Commands {
    /// Causes the fault.
    pub fault: String,
    /// Undoes it.
    pub heal: Option<String>,
    /// Where their output goes.
    pub log: PathBuf,
}

/// What was done, for the report.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Diary {
    /// Pods killed.
    pub kills: u64,
    /// Pods paused.
    pub pauses: u64,
    /// Fault commands that ran.
    pub faults: u64,
    /// Pods that ended by themselves.
    pub exits: u64,
    /// Everything in order.
    pub events: Vec<Event>,
    /// What kept the run from testing what it was asked to test.
    pub problems: Vec<String>,
}

/// One thing that happened.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Event {
    /// Seconds since the load began.
    pub at_s: f64,
    /// What it was.
    pub what: String,
}

/// Decides all steps of a run of this length.
pub(super) fn plan(menace: &Menace, pods: usize, length: Duration, seed: u64) -> Vec<Step> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut steps = Vec::new();
    let mut add = |at, act| steps.push(Step { at, act });
    for at in times(menace.kill_every, length) {
        let pod = rng.random_range(0..pods);
        add(at, Act::Kill(pod));
        add(at + menace.restart_after, Act::Restart(pod));
    }
    for at in times(menace.pause_every, length) {
        let pod = rng.random_range(0..pods);
        add(at, Act::Pause(pod));
        add(at + menace.pause_for, Act::Resume(pod));
    }
    for at in times(menace.fault_every, length) {
        add(at, Act::Fault);
        add(at + menace.fault_for, Act::Heal);
    }
    steps.sort_unstable();
    steps
}

/// The multiples of `every` that lie within `length`.
fn times(every: Option<Duration>, length: Duration) -> impl Iterator<Item = Duration> {
    let first = every.filter(|every| !every.is_zero());
    std::iter::successors(first, move |at| at.checked_add(first?))
        .take_while(move |at| *at < length)
}

/// Carries out a plan.
#[derive(Debug)]
pub(super) struct Executor {
    fleet: Fleet,
    commands: Option<Commands>,
    running: Option<(Child, Instant)>,
    waiting: VecDeque<Act>,
    /// Whether the last command that was started is a fault.
    faulty: bool,
    /// Pods that ended by themselves, and when to start them again.
    returns: Vec<(Instant, usize)>,
    start: Instant,
    diary: Diary,
}

impl Executor {
    /// An executor that takes over the fleet; times count from `start`.
    pub(super) fn new(fleet: Fleet, commands: Option<Commands>, start: Instant) -> Self {
        Self {
            fleet,
            commands,
            running: None,
            waiting: VecDeque::new(),
            faulty: false,
            returns: Vec::new(),
            start,
            diary: Diary::default(),
        }
    }

    /// Carries out the steps until `stop`, then undoes what is still in force and waits until all
    /// pods are ready. What goes wrong on the way is a problem in the diary, never a lost fleet.
    pub(super) async fn run(mut self, plan: Vec<Step>, stop: CancellationToken) -> (Fleet, Diary) {
        let mut ticks = interval(SUPERVISE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut steps = plan.into_iter().peekable();
        loop {
            let next = steps.peek().map(|step| self.start + step.at);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = until(next) => {
                    if let Some(step) = steps.next() {
                        self.act(step.act).await;
                    }
                }
                _ = ticks.tick() => self.supervise(),
            }
        }
        self.undo().await;
        (self.fleet, self.diary)
    }

    async fn act(&mut self, act: Act) {
        if let Err(error) = self.try_act(act).await {
            self.problem(format!("{error:#}"));
        }
    }

    async fn try_act(&mut self, act: Act) -> anyhow::Result<()> {
        match act {
            Act::Kill(pod) => {
                if self.fleet.kill(pod).await? {
                    self.diary.kills += 1;
                    self.note(format!("pod {pod} killed"));
                }
            }
            Act::Restart(pod) => {
                self.fleet.restart(pod)?;
                self.note(format!("pod {pod} started again"));
            }
            Act::Pause(pod) => {
                if self.fleet.pause(pod)? {
                    self.diary.pauses += 1;
                    self.note(format!("pod {pod} paused"));
                }
            }
            Act::Resume(pod) => {
                if self.fleet.resume(pod)? {
                    self.note(format!("pod {pod} runs on"));
                }
            }
            Act::Fault | Act::Heal => self.waiting.push_back(act),
        }
        Ok(())
    }

    /// Looks after pods and commands. Never waits.
    fn supervise(&mut self) {
        if let Err(error) = self.try_supervise() {
            self.problem(format!("{error:#}"));
        }
    }

    fn try_supervise(&mut self) -> anyhow::Result<()> {
        for (pod, status) in self.fleet.reap()? {
            self.diary.exits += 1;
            self.note(format!("pod {pod} ended by itself with {status}"));
            self.returns.push((Instant::now() + RESTART_PAUSE, pod));
        }
        let due = |(at, _): &mut (Instant, usize)| *at <= Instant::now();
        for (_, pod) in self.returns.extract_if(.., due).collect::<Vec<_>>() {
            self.fleet.restart(pod)?;
            self.note(format!("pod {pod} started again"));
        }
        self.supervise_command()
    }

    fn supervise_command(&mut self) -> anyhow::Result<()> {
        if let Some((child, deadline)) = &mut self.running {
            match child.try_wait().context("cannot look after a command")? {
                Some(status) => {
                    self.running = None;
                    self.command_ended(status.success(), &status.to_string());
                }
                None if Instant::now() >= *deadline => {
                    self.running = None;
                    self.command_ended(false, "no end in time");
                }
                None => {}
            }
        }
        if self.running.is_none()
            && let Some(act) = self.waiting.pop_front()
        {
            self.running = self.start_command(act)?;
        }
        Ok(())
    }

    /// Starts a command, if there is one for this act. One runs at a time, so that a heal never
    /// overtakes its fault.
    fn start_command(&mut self, act: Act) -> anyhow::Result<Option<(Child, Instant)>> {
        let Some(commands) = &self.commands else {
            return Ok(None);
        };
        let line = match act {
            Act::Fault => Some(&commands.fault),
            _ => commands.heal.as_ref(),
        };
        let Some(line) = line.cloned() else {
            return Ok(None);
        };
        let log = append_to(&commands.log)?;
        let child = Command::new("sh")
            .args(["-c", &line])
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot share the log of a command")?)
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("cannot run sh")?;
        self.faulty = act == Act::Fault;
        self.diary.faults += u64::from(self.faulty);
        self.note(format!("{}: {line}", if self.faulty { "fault" } else { "heal" }));
        Ok(Some((child, Instant::now() + COMMAND_WITHIN)))
    }

    fn command_ended(&mut self, well: bool, how: &str) {
        self.note(format!("command ended: {how}"));
        if !well {
            let log = self.commands.as_ref().map(|commands| commands.log.display().to_string());
            let log = log.unwrap_or_default();
            self.problem(format!("a fault or heal command failed ({how}); see {log}"));
        }
    }

    async fn undo(&mut self) {
        // Paused pods first: updates wait for their answers.
        if let Err(error) = self.fleet.resume_all() {
            self.problem(format!("{error:#}"));
        }
        self.waiting.clear();
        if self.faulty {
            self.waiting.push_back(Act::Heal);
        }
        while self.running.is_some() || !self.waiting.is_empty() {
            if let Some((child, deadline)) = &mut self.running {
                // The result is read by the supervisor, which also knows the deadline.
                let _ = timeout_at(*deadline, child.wait()).await;
            }
            self.supervise();
        }
        match self.fleet.make_whole().await {
            Ok(()) if self.diary.events.is_empty() => {}
            Ok(()) => self.note("all pods are ready".to_owned()),
            Err(error) => self.problem(format!("{error:#}")),
        }
    }

    fn note(&mut self, what: String) {
        if self.diary.events.len() < DIARY_MAX {
            let at_s = self.start.elapsed().as_secs_f64();
            self.diary.events.push(Event { at_s, what });
        }
    }

    fn problem(&mut self, problem: String) {
        self.note(problem.clone());
        if self.diary.problems.len() < DIARY_MAX {
            self.diary.problems.push(problem);
        }
    }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn menace() -> Menace {
        Menace {
            kill_every: Some(secs(7)),
            restart_after: secs(1),
            pause_every: Some(secs(11)),
            pause_for: secs(4),
            fault_every: Some(secs(20)),
            fault_for: secs(10),
        }
    }

    #[test]
    fn a_plan_follows_from_its_seed() {
        let once = plan(&menace(), 10, secs(60), 1);
        assert_eq!(once, plan(&menace(), 10, secs(60), 1));
        assert_ne!(once, plan(&menace(), 10, secs(60), 2));
    }

    #[test]
    fn a_plan_undoes_what_it_does_and_keeps_its_times() {
        let steps = plan(&menace(), 3, secs(60), 5);
        assert!(steps.is_sorted());
        let count = |wanted: fn(&Act) -> bool| steps.iter().filter(|s| wanted(&s.act)).count();
        assert_eq!(count(|act| matches!(act, Act::Kill(_))), 8);
        assert_eq!(count(|act| matches!(act, Act::Restart(_))), 8);
        assert_eq!(count(|act| matches!(act, Act::Pause(_))), 5);
        assert_eq!(count(|act| matches!(act, Act::Resume(_))), 5);
        assert_eq!(count(|act| matches!(act, Act::Fault)), 2);
        assert_eq!(count(|act| matches!(act, Act::Heal)), 2);
        let heals = steps.iter().filter(|step| step.act == Act::Heal);
        assert_eq!(heals.map(|step| step.at).collect::<Vec<_>>(), [secs(30), secs(50)]);
    }

    #[test]
    fn nothing_asked_for_is_nothing_done() {
        assert_eq!(plan(&Menace::default(), 1, secs(60), 1), []);
    }

    fn executor(commands: Commands) -> Executor {
        let nobody = Fleet::given(Vec::new(), secs(1));
        Executor::new(nobody, Some(commands), Instant::now())
    }

    fn commands(name: &str, fault: &str, heal: &str) -> (Commands, PathBuf) {
        let log = std::env::temp_dir().join(format!("{name}-{}.log", uuid::Uuid::new_v4()));
        let commands =
            Commands { fault: fault.to_owned(), heal: Some(heal.to_owned()), log: log.clone() };
        (commands, log)
    }

    #[tokio::test]
    async fn a_fault_in_force_is_healed_at_the_end() {
        let (commands, log) = commands("heal", "echo broken", "echo healed");
        let stop = CancellationToken::new();
        let fault = Step { at: Duration::ZERO, act: Act::Fault };
        let ending = stop.clone();
        let end = async move {
            tokio::time::sleep(secs(1)).await;
            ending.cancel();
        };
        let run = executor(commands).run(vec![fault], stop);
        let ((_, diary), ()) = tokio::join!(run, end);
        let written = std::fs::read_to_string(&log).expect("the log of the commands");
        std::fs::remove_file(&log).expect("the log of the commands");
        assert_eq!(written, "broken\nhealed\n");
        assert_eq!((diary.faults, diary.problems), (1, vec![]));
    }

    #[tokio::test]
    async fn a_command_that_fails_is_a_problem() {
        let (commands, log) = commands("fail", "exit 3", "true");
        let stop = CancellationToken::new();
        let mut executor = executor(commands);
        executor.act(Act::Fault).await;
        executor.supervise();
        stop.cancel();
        let (_, diary) = executor.run(Vec::new(), stop).await;
        std::fs::remove_file(&log).expect("the log of the commands");
        assert_eq!(diary.problems.len(), 1, "{:?}", diary.problems);
        assert!(diary.problems[0].contains("exit status: 3"));
    }
}
