//! Carries out the steps of a plan, and undoes them.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use tokio::process::{Child, Command};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::chaos::cards::Soaked;
use crate::chaos::log::{Event, FaultLog};
use crate::chaos::plan::{Act, Step};
use crate::pods::{Fleet, RESTART_PAUSE, append_to};

/// Time between two checks of the processes.
const SUPERVISE_EVERY: Duration = Duration::from_millis(250);
/// Time limit of a command.
const COMMAND_WITHIN: Duration = Duration::from_secs(180);
/// Entries that the log keeps. The counts have no limit.
const LOG_ENTRIES_MAX: usize = 1_000;

/// The commands that cause and undo a fault.
#[derive(Clone, Debug)]
pub(crate) struct Commands {
    /// Causes the fault.
    pub fault: Option<String>,
    /// Undoes it.
    pub heal: Option<String>,
    /// The file for their output.
    pub log: PathBuf,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Executor {
    fleet: Fleet,
    commands: Option<Commands>,
    /// The command that runs now, and its deadline.
    running: Option<(Child, Instant)>,
    /// Steps whose commands have not started.
    waiting: VecDeque<Act>,
    /// Steps to come, in their order.
    steps: VecDeque<Step>,
    /// The cards of a soak.
    soaked: Option<Soaked>,
    /// Whether the command that started last is a fault.
    faulty: bool,
    /// Pods that ended, and when to start them again.
    returns: Vec<(Instant, usize)>,
    start: Instant,
    log: FaultLog,
}

impl Executor {
    /// An executor that owns the fleet. Its times count from `start`.
    pub(crate) fn new(
        fleet: Fleet,
        commands: Option<Commands>,
        soaked: Option<Soaked>,
        start: Instant,
    ) -> Self {
        Self {
            fleet,
            commands,
            running: None,
            waiting: VecDeque::new(),
            steps: VecDeque::new(),
            soaked,
            faulty: false,
            returns: Vec::new(),
            start,
            log: FaultLog::default(),
        }
    }

    /// Carries out the steps until `stop`. Then undoes the faults that are still in force, and waits
    /// until all pods are ready. An error becomes a problem in the log; the fleet is always returned.
    pub(crate) async fn run(
        mut self,
        steps: Vec<Step>,
        stop: CancellationToken,
    ) -> (Fleet, FaultLog) {
        let mut ticks = interval(SUPERVISE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.steps = steps.into();
        loop {
            let next = self.steps.front().map(|step| self.start + step.at);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = until(next) => {
                    if let Some(step) = self.steps.pop_front() {
                        self.act(step.act).await;
                    }
                }
                _ = ticks.tick() => self.supervise(),
            }
        }
        self.undo().await;
        (self.fleet, self.log)
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
                    self.log.kills += 1;
                    self.note(format!("pod {pod} killed"));
                }
            }
            Act::Restart(pod) => {
                self.fleet.restart(pod)?;
                self.note(format!("pod {pod} started again"));
            }
            Act::Pause(pod) => {
                if self.fleet.pause(pod)? {
                    self.log.pauses += 1;
                    self.note(format!("pod {pod} paused"));
                }
            }
            Act::Resume(pod) => {
                if self.fleet.resume(pod)? {
                    self.note(format!("pod {pod} continues"));
                }
            }
            Act::Fault | Act::Heal | Act::Break(..) => self.waiting.push_back(act),
            Act::Draw => self.draw(),
            Act::Terminate(pod) => {
                if self.fleet.terminate(pod)? {
                    self.note(format!("pod {pod} got SIGTERM"));
                }
            }
            Act::Shift(pod, millis) => {
                self.fleet.shift_clock(pod, millis)?;
                self.note(format!("pod {pod}: clock off by {millis} ms"));
            }
            Act::ExpectShut(pod) => {
                let Some(soaked) = &self.soaked else { return Ok(()) };
                match soaked.expect_shut(pod).await {
                    Ok(event) => self.note(event),
                    Err(problem) => self.problem(problem),
                }
            }
        }
        Ok(())
    }

    /// Draws the next card that can be played now, and plans its steps.
    fn draw(&mut self) {
        let now = self.start.elapsed();
        let node_is_broken = self.running.is_some() || !self.waiting.is_empty();
        let Some(soaked) = &mut self.soaked else { return };
        let Some(drawn) = soaked.draw(now, node_is_broken) else {
            self.note("no card could be played".to_owned());
            return;
        };
        self.note(format!("card: {}", drawn.name));
        // The fault of a node counts when its command starts: the load may end before that.
        if !drawn.is_of_node {
            *self.log.cards.entry(drawn.name).or_default() += 1;
        }
        for step in drawn.steps {
            let place = self.steps.partition_point(|other| *other <= step);
            self.steps.insert(place, step);
        }
    }

    /// Restarts pods that ended, and supervises commands. Never waits.
    fn supervise(&mut self) {
        if let Err(error) = self.try_supervise() {
            self.problem(format!("{error:#}"));
        }
    }

    fn try_supervise(&mut self) -> anyhow::Result<()> {
        for (pod, status) in self.fleet.reap()? {
            if self.fleet.was_told_to_end(pod) {
                self.note(format!("pod {pod} drained and ended with {status}"));
                if !status.success() {
                    self.problem(format!("pod {pod} ended with {status} after SIGTERM"));
                }
            } else {
                self.log.exits += 1;
                self.note(format!("pod {pod} ended unexpectedly with {status}"));
            }
            self.returns.push((Instant::now() + RESTART_PAUSE, pod));
        }
        let due = |(at, _): &mut (Instant, usize)| *at <= Instant::now();
        for (_, pod) in self.returns.extract_if(.., due).collect::<Vec<_>>() {
            self.fleet.restart(pod)?;
            self.note(format!("pod {pod} started again"));
        }
        if let Some(soaked) = &mut self.soaked {
            soaked.weigh_pods(&self.fleet);
        }
        self.supervise_command()
    }

    fn supervise_command(&mut self) -> anyhow::Result<()> {
        if let Some((child, deadline)) = &mut self.running {
            match child.try_wait().context("cannot check a command")? {
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

    /// Starts the command of a step, if it has one. Only one command runs at a time, so a heal never
    /// overtakes its fault.
    fn start_command(&mut self, act: Act) -> anyhow::Result<Option<(Child, Instant)>> {
        let Some(commands) = &self.commands else {
            return Ok(None);
        };
        let line = match act {
            Act::Fault => commands.fault.clone(),
            Act::Break(kind, node) => {
                self.soaked.as_ref().map(|soaked| soaked.break_command(kind, node))
            }
            _ => commands.heal.clone(),
        };
        let Some(line) = line else {
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
        self.log.faults += u64::from(act != Act::Heal);
        let what = match act {
            Act::Heal => "heal",
            Act::Break(kind, _) => {
                if let Some(soaked) = &self.soaked {
                    *self.log.cards.entry(soaked.begin_node_fault(kind)).or_default() += 1;
                }
                "fault, and its end"
            }
            _ => "fault",
        };
        self.note(format!("{what}: {line}"));
        Ok(Some((child, Instant::now() + COMMAND_WITHIN)))
    }

    fn command_ended(&mut self, well: bool, how: &str) {
        self.note(format!("command ended: {how}"));
        if let Some(soaked) = &self.soaked {
            soaked.end_node_fault();
        }
        if !well {
            let log = self.commands.as_ref().map(|commands| commands.log.display().to_string());
            let log = log.unwrap_or_default();
            self.problem(format!("a fault or heal command failed ({how}); see {log}"));
        }
    }

    async fn undo(&mut self) {
        self.steps.clear();
        if let Err(error) = self.fleet.set_clocks_right() {
            self.problem(format!("{error:#}"));
        }
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
                // `supervise` reads the result, and it also checks the deadline.
                let _ = timeout_at(*deadline, child.wait()).await;
            }
            self.supervise();
        }
        match self.fleet.make_whole().await {
            Ok(()) if self.log.events.is_empty() => {}
            Ok(()) => self.note("all pods are ready".to_owned()),
            Err(error) => self.problem(format!("{error:#}")),
        }
    }

    fn note(&mut self, what: String) {
        if self.log.events.len() < LOG_ENTRIES_MAX {
            let at_s = self.start.elapsed().as_secs_f64();
            self.log.events.push(Event { at_s, what });
        }
    }

    fn problem(&mut self, problem: String) {
        self.note(problem.clone());
        if self.log.problems.len() < LOG_ENTRIES_MAX {
            self.log.problems.push(problem);
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

    fn executor(commands: Commands) -> Executor {
        let no_pods = Fleet::given(Vec::new(), secs(1));
        Executor::new(no_pods, Some(commands), None, Instant::now())
    }

    fn commands(name: &str, fault: &str, heal: &str) -> (Commands, PathBuf) {
        let log = std::env::temp_dir().join(format!("{name}-{}.log", uuid::Uuid::new_v4()));
        let commands = Commands {
            fault: Some(fault.to_owned()),
            heal: Some(heal.to_owned()),
            log: log.clone(),
        };
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
        let ((_, faults), ()) = tokio::join!(run, end);
        let written = std::fs::read_to_string(&log).expect("the log of the commands");
        std::fs::remove_file(&log).expect("the log of the commands");
        assert_eq!(written, "broken\nhealed\n");
        assert_eq!((faults.faults, faults.problems), (1, vec![]));
    }

    #[tokio::test]
    async fn a_command_that_fails_is_a_problem() {
        let (commands, log) = commands("fail", "exit 3", "true");
        let stop = CancellationToken::new();
        let mut executor = executor(commands);
        executor.act(Act::Fault).await;
        executor.supervise();
        stop.cancel();
        let (_, faults) = executor.run(Vec::new(), stop).await;
        std::fs::remove_file(&log).expect("the log of the commands");
        assert_eq!(faults.problems.len(), 1, "{:?}", faults.problems);
        assert!(faults.problems[0].contains("exit status: 3"));
    }
}
