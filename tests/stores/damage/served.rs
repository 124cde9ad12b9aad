//! A pod with a damaged file: it ends with a sentence, or every key that it shows is right and updates are possible.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use orderfree::limits::DRAIN_MAX;
use orderfree_core::crdt::{Kind, Question, State};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::process::Child;
use tokio::time::{sleep, timeout};

use crate::file::{Keys, Right};
use crate::pod::free_port;
use crate::tools::{Ended, program};
use crate::verdict::{Class, Seen};
use crate::wire::{Answer, Connection, request};

/// Longest time until a pod is ready or has ended.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Longest time of an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Longest time until a pod has ended that does not answer or was told to end.
const ENDED_WITHIN: Duration = Duration::from_secs(DRAIN_MAX.as_secs() + 10);

/// Longest time of all reads and updates.
const LOOK_WITHIN: Duration = Duration::from_secs(180);

/// Longest time for which a pod may refuse updates, or reads of a key, while it says that it is ready.
const REFUSES_WITHIN: Duration = Duration::from_secs(5);

/// Pause after an update before it is read again: a pod whose store has failed ends half a second later.
const LEFT_ALONE: Duration = Duration::from_millis(700);

/// Keys per page.
const PAGE: usize = 1_000;

/// How many keys of unreadable pages are read one by one.
const SINGLES_MAX: usize = 2_000;

/// Kinds of new keys, in turn. An update without an ack may be counted, so each attempt has its own key.
const NEW: [Kind; 4] = [Kind::Counter, Kind::GSet, Kind::Sum, Kind::TopK];

/// The pod does not answer, perhaps because it has ended.
struct Gone;

struct Pod {
    child: Child,
    port: u16,
    log: PathBuf,
    connection: Option<Connection<TcpStream>>,
}

/// Runs a pod on the file. `nth` chooses the place of the update.
pub(crate) async fn serve(file: &Path, keys: &Keys, nth: usize) -> Seen {
    let mut seen = Seen::default();
    let mut pod = Pod::start(file);
    let looked = timeout(LOOK_WITHIN, async {
        pod.ready(&mut seen).await?;
        pod.list_groups(keys, &mut seen).await?;
        pod.read_all(keys, &mut seen).await?;
        pod.update(keys, nth, &mut seen).await
    });
    match looked.await {
        Ok(Ok(())) => pod.stop(file, &mut seen).await,
        Ok(Err(Gone)) => pod.ended_by_itself(file, &mut seen).await,
        Err(_) => {
            seen.note(Class::Stuck, format!("not read within {LOOK_WITHIN:?}"));
            pod.kill(&mut seen).await;
        }
    }
    seen
}

impl Pod {
    fn start(file: &Path) -> Pod {
        let (port, log) = (free_port(), file.with_extension("log"));
        let child = program("serve", file)
            .args(["--listen", &format!("127.0.0.1:{port}"), "--unready-grace", "0s"])
            .stdout(File::create(file.with_extension("out")).expect("a file"))
            .stderr(File::create(&log).expect("a log"))
            .spawn();
        Pod { child: child.expect("the program runs"), port, log, connection: None }
    }

    async fn ready(&mut self, seen: &mut Seen) -> Result<(), Gone> {
        let began = Instant::now();
        loop {
            let answer = self.once("GET", "/readyz", "").await;
            if answer.is_ok_and(|answer| answer.status == 200) {
                return Ok(());
            }
            if self.child.try_wait().expect("a child").is_some() {
                return Err(Gone);
            }
            if began.elapsed() > READY_WITHIN {
                seen.note(Class::Stuck, format!("neither ready nor ended within {READY_WITHIN:?}"));
                return Err(Gone);
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Sends a request on the keep-alive connection.
    async fn once(&mut self, method: &str, path: &str, body: &str) -> io::Result<Answer> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(self.port).await?,
        };
        let connection = self.connection.insert(connection);
        let text = [("content-type", "text/plain")];
        let headers = if body.is_empty() { &[][..] } else { &text[..] };
        let request = request(method, path, headers, body);
        let answer = timeout(ANSWER_WITHIN, connection.ask(&request)).await;
        let answer = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        if answer.as_ref().map_or(true, |answer| answer.header("connection") == "close") {
            self.connection = None;
        }
        answer
    }

    async fn ask(&mut self, method: &str, path: &str, body: &str) -> Result<Answer, Gone> {
        self.once(method, path, body).await.map_err(|_| Gone)
    }

    /// Compares the lists of groups. The keys of an unknown group are unknown too.
    async fn list_groups(&mut self, keys: &Keys, seen: &mut Seen) -> Result<(), Gone> {
        for kind in Kind::ALL {
            let answer = self.ask("GET", &format!("/v1/{kind}?limit={PAGE}"), "").await?;
            if answer.status != 200 {
                seen.note(Class::SomeKeys, format!("groups of {kind}: {}", answer.text()));
                continue;
            }
            let listed: BTreeSet<String> = strings(&answer.json()["groups"]);
            let of_kind = keys.0.keys().filter(|(known, _)| known == kind.name());
            let known: BTreeSet<String> = of_kind.map(|(_, group)| group.clone()).collect();
            for group in known.symmetric_difference(&listed) {
                let what = if known.contains(group) { "is missing" } else { "was never written" };
                seen.wrong(format!("group {kind}/{group} {what}"));
            }
        }
        Ok(())
    }

    async fn read_all(&mut self, keys: &Keys, seen: &mut Seen) -> Result<(), Gone> {
        let mut singles_left = SINGLES_MAX;
        for ((kind, group), names) in &keys.0 {
            let group = format!("{kind}/{group}");
            let mut left: BTreeMap<&str, &Right> =
                names.iter().map(|(name, right)| (name.as_str(), right)).collect();
            if self.read_pages(&group, names, &mut left, seen).await? {
                left.keys().for_each(|name| seen.wrong(format!("{group}/{name} is missing")));
                continue;
            }
            for (name, right) in left.into_iter().take(singles_left) {
                singles_left -= 1;
                self.read_one(&format!("{group}/{name}"), &right.value, seen).await?;
            }
        }
        Ok(())
    }

    /// Reads a group, and removes the keys that it read from `left`. Returns false if a page could not be read.
    async fn read_pages(
        &mut self,
        group: &str,
        names: &BTreeMap<String, Right>,
        left: &mut BTreeMap<&str, &Right>,
        seen: &mut Seen,
    ) -> Result<bool, Gone> {
        let mut path = format!("/v1/{group}?limit={PAGE}&numbers=string");
        // Pages that link to each other would never end.
        for _ in 0..names.len() / PAGE + 50 {
            let answer = self.ask("GET", &path, "").await?;
            if answer.status != 200 {
                seen.note(Class::SomeKeys, format!("{group}: {}", answer.text()));
                return Ok(false);
            }
            let page = answer.json();
            for entry in page["keys"].as_array().into_iter().flatten() {
                let name = entry["name"].as_str().unwrap_or_default();
                let key = format!("{group}/{name}");
                match left.remove(name) {
                    None if names.contains_key(name) => seen.wrong(format!("{key} comes twice")),
                    None => seen.wrong(format!("{key} was never written: {entry}")),
                    Some(_) if !entry["problem"].is_null() => {
                        seen.note(Class::SomeKeys, &entry["problem"]["detail"]);
                    }
                    Some(right) => compare(&key, &entry["value"], &right.value, seen),
                }
            }
            let Some(next) = page["next"].as_str() else { return Ok(true) };
            path = format!("/v1/{group}?limit={PAGE}&numbers=string&cursor={next}");
        }
        seen.wrong(format!("the pages of {group} do not end"));
        Ok(true)
    }

    /// Reads one key. Returns false if it can't be read.
    async fn read_one(&mut self, key: &str, right: &Value, seen: &mut Seen) -> Result<bool, Gone> {
        let answer = self.ask("GET", &format!("/v1/{key}?numbers=string"), "").await?;
        match answer.status {
            200 => compare(key, &answer.json()["value"], right, seen),
            404 => seen.wrong(format!("{key} is missing")),
            _ => seen.note(Class::SomeKeys, format!("{key}: {}", answer.text())),
        }
        Ok(answer.status < 500)
    }

    /// Updates a new key among others, and reads it at once and a while later. Some attempts may fail; a pod that
    /// stays ready must accept one.
    async fn update(&mut self, keys: &Keys, nth: usize, seen: &mut Seen) -> Result<(), Gone> {
        let kind = NEW[nth % NEW.len()];
        let groups = keys.0.keys().filter(|(known, _)| known == kind.name());
        let groups: Vec<&str> = groups.map(|(_, group)| group.as_str()).collect();
        let group = groups.get(nth / NEW.len() % groups.len().max(1)).unwrap_or(&"readers");
        let right = value_of(kind, "7");
        let began = Instant::now();
        for attempt in 0.. {
            // Anywhere among the existing names.
            let place = nth.wrapping_mul(7_919) % keys.len().max(1);
            let key = format!("{kind}/{group}/articles-{place:06}-new-{attempt}");
            let answer = self.ask("POST", &format!("/v1/{key}"), "7").await?;
            if answer.status == 200 {
                return self.stays(&key, &right, seen).await;
            }
            if began.elapsed() > REFUSES_WITHIN {
                self.stuck(format!("no update is acked: {}", answer.text()), seen).await?;
                return Ok(());
            }
            sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    /// Reads an acked update at once and a while later.
    async fn stays(&mut self, key: &str, right: &Value, seen: &mut Seen) -> Result<(), Gone> {
        for pause in [Duration::ZERO, LEFT_ALONE] {
            sleep(pause).await;
            let began = Instant::now();
            while !self.read_one(key, right, seen).await? {
                if began.elapsed() > REFUSES_WITHIN {
                    return self.stuck(format!("{key} was acked and can't be read"), seen).await;
                }
                sleep(Duration::from_millis(200)).await;
            }
        }
        Ok(())
    }

    /// Records what a pod does for too long while it says that it is ready.
    async fn stuck(&mut self, what: String, seen: &mut Seen) -> Result<(), Gone> {
        if self.ask("GET", "/readyz", "").await?.status != 200 {
            return Err(Gone);
        }
        seen.note(Class::Stuck, format!("ready, but {what}"));
        Ok(())
    }

    /// Stops the pod with SIGTERM, as a roll does.
    async fn stop(mut self, file: &Path, seen: &mut Seen) {
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // The pod may have just ended by itself.
            let _ = kill_process(pid, Signal::TERM);
        }
        let Some(ended) = self.ended(seen).await else { return };
        if !ended.status.success() {
            ended.look_for_sentence(file, seen);
        }
    }

    async fn ended_by_itself(mut self, file: &Path, seen: &mut Seen) {
        if let Some(ended) = self.ended(seen).await {
            ended.look_for_sentence(file, seen);
        }
    }

    /// Waits for the pod's end; `None` if it does not end.
    async fn ended(&mut self, seen: &mut Seen) -> Option<Ended> {
        let Ok(status) = timeout(ENDED_WITHIN, self.child.wait()).await else {
            seen.note(Class::Stuck, format!("not ended within {ENDED_WITHIN:?}"));
            self.kill(seen).await;
            return None;
        };
        let ended = self.words(status.expect("a child"));
        ended.look_for_bugs(seen);
        Some(ended)
    }

    async fn kill(&mut self, seen: &mut Seen) {
        // An error means that the pod has ended.
        let _ = self.child.start_kill();
        let status = self.child.wait().await.expect("a child");
        let mut ended = self.words(status);
        // The pod is not to blame.
        ended.status = ExitStatus::default();
        ended.look_for_bugs(seen);
    }

    fn words(&self, status: ExitStatus) -> Ended {
        let stderr = String::from_utf8_lossy(&fs::read(&self.log).expect("a log")).into_owned();
        Ended { status, stdout: String::new(), stderr }
    }
}

fn compare(key: &str, found: &Value, right: &Value, seen: &mut Seen) {
    if found != right {
        seen.wrong(format!("{key} is {found}, not {right}"));
    }
}

fn strings(list: &Value) -> BTreeSet<String> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The value of a key after this one op.
fn value_of(kind: Kind, bare: &str) -> Value {
    let mut state = State::new(kind, None);
    let op = kind.read_bare_op(bare).expect("an op");
    state.apply(&op).expect("applied");
    json!(state.value(&Question::default()).shown(true))
}
