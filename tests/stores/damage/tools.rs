//! `export` and `doctor` on a damaged file, and the rules for the output of every program.

use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

use crate::file::{Keys, Right};
use crate::verdict::{Class, Seen};

/// Longest time of a tool, which usually takes some seconds.
const TOOL_WITHIN: Duration = Duration::from_secs(90);

/// How many names of keys that an export left out are looked for.
const NAMES_SOUGHT_MAX: usize = 1_000;

/// Output that no user should have to read.
const BUGS: [&str; 3] = ["panicked", "stack backtrace", "RUST_BACKTRACE"];

/// The program with an environment that names only this file.
pub(crate) fn program(command: &str, file: &Path) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_orderfree"));
    program
        .arg(command)
        .env_clear()
        .env("ORDERFREE_DATA", file)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    program
}

/// A program that ended.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// The lines for people on its standard error. Lines of the log are JSON.
    fn sentences(&self) -> Vec<&str> {
        self.stderr.lines().filter(|line| !line.starts_with('{')).collect()
    }

    /// Records everything that no program may do, however it ends.
    pub(crate) fn look_for_bugs(&self, seen: &mut Seen) {
        if let Some(signal) = self.status.signal() {
            seen.note(Class::Panic, format!("signal {signal}"));
        }
        let mut lines = self.stdout.lines().chain(self.stderr.lines());
        let is_bug = |line: &&str| BUGS.iter().any(|bug| line.contains(bug));
        if let Some(line) = lines.find(is_bug) {
            // The panic's message is on the next line.
            let more = lines.next().unwrap_or_default();
            seen.note(Class::Panic, format!("{line}\n{more}"));
        }
    }

    /// Records the end of a program that could not do its work. It must name the file in one sentence.
    pub(crate) fn look_for_sentence(&self, file: &Path, seen: &mut Seen) {
        let file = file.display().to_string();
        match self.sentences()[..] {
            [sentence] if !self.status.success() && sentence.contains(&file) => {
                seen.note(Class::Refused, sentence);
            }
            _ => seen.note(Class::Unclear, format!("{}; {}", self.status, self.last_words())),
        }
    }

    fn last_words(&self) -> String {
        let mut lines = self.sentences();
        if lines.is_empty() {
            lines = self.stderr.lines().collect();
        }
        lines[lines.len().saturating_sub(3)..].join("\n")
    }
}

/// Runs a tool to its end; `None` if it takes too long.
async fn run(command: &str, file: &Path, seen: &mut Seen) -> Option<Ended> {
    let Ok(output) = timeout(TOOL_WITHIN, program(command, file).output()).await else {
        seen.note(Class::Stuck, format!("not ended within {TOOL_WITHIN:?}"));
        return None;
    };
    let output = output.expect("the program runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    let ended = Ended { status: output.status, stdout, stderr };
    ended.look_for_bugs(seen);
    Some(ended)
}

/// The important fields of an exported line.
#[derive(Deserialize)]
struct Line {
    kind: String,
    group: String,
    name: String,
    value: Value,
    shards: Option<usize>,
    folded_through_us: Option<i64>,
}

/// Exports the file.
pub(crate) async fn export(file: &Path, keys: &Keys) -> Seen {
    let mut seen = Seen::default();
    let Some(ended) = run("export", file, &mut seen).await else { return seen };
    let missing = left_out(&ended, keys, &mut seen);
    let exported = keys.len() - missing.len();
    let unreadable = |line: &&str| line.ends_with(" could not be read");
    let says = ended.sentences().into_iter().find(unreadable).unwrap_or_default();
    let right = |unreadable| format!("{exported} keys exported, {unreadable} could not be read");
    if ended.status.success() {
        missing.iter().for_each(|key| seen.wrong(format!("{key} is missing, without an error")));
        if missing.is_empty() && says != right(0) {
            seen.note(Class::Unclear, format!("it says {says:?}"));
        }
    } else if says.is_empty() {
        ended.look_for_sentence(file, &mut seen);
    } else {
        let is_named = |key: &&String| ended.stderr.contains(key.as_str());
        for key in missing.iter().take(NAMES_SOUGHT_MAX).filter(|key| !is_named(key)) {
            seen.wrong(format!("{key} is missing, and not named: {}", ended.last_words()));
        }
        match says == right(missing.len()) {
            true => seen.note(Class::SomeKeys, ended.last_words()),
            false => seen.note(Class::Unclear, format!("{} keys less: {says}", missing.len())),
        }
    }
    seen
}

/// Compares the exported keys, and returns the others.
fn left_out(ended: &Ended, keys: &Keys, seen: &mut Seen) -> Vec<String> {
    let mut met = HashSet::new();
    for line in ended.stdout.lines() {
        let Ok(line) = serde_json::from_str::<Line>(line) else {
            seen.wrong(format!("no line of an export: {line}"));
            continue;
        };
        let Line { kind, group, name, value, shards, folded_through_us } = line;
        let key = format!("{kind}/{group}/{name}");
        let found = Right { value, shards: shards.unwrap_or_default(), folded_through_us };
        match keys.get(&kind, &group, &name) {
            None => seen.wrong(format!("{key} was never written: {found:?}")),
            Some(right) if *right != found => {
                seen.wrong(format!("{key} is {found:?}, not {right:?}"));
            }
            Some(_) => {}
        }
        if let Some(key) = met.replace(key) {
            seen.wrong(format!("{key} comes twice"));
        }
    }
    let all = keys.0.iter().flat_map(|((kind, group), names)| {
        names.keys().map(move |name| format!("{kind}/{group}/{name}"))
    });
    all.filter(|key| !met.contains(key)).collect()
}

/// Examines the file with `doctor`.
pub(crate) async fn doctor(file: &Path) -> Seen {
    let mut seen = Seen::default();
    let Some(ended) = run("doctor", file, &mut seen).await else { return seen };
    let path = file.display().to_string();
    let found: Vec<&str> = ended.stdout.lines().filter(|line| line.starts_with("WRONG")).collect();
    let class = match found[..] {
        [] if ended.status.success() => return seen,
        _ if ended.status.success() => Class::Unclear,
        [one] if one.contains(&path) => Class::Refused,
        // `doctor` looks at a sample, and names the rows in it that it can't read.
        [one] if one.starts_with("WRONG keys: ") => Class::SomeKeys,
        _ => Class::Unclear,
    };
    let words = if found.is_empty() { ended.last_words() } else { found.join("\n") };
    seen.note(class, format!("{}; {words}", ended.status));
    seen
}
