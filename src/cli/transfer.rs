//! `export`, `import` and `convert`: keys between installations, and from other systems. One line of JSON
//! for each key, a [parcel](orderfree_core::protocol::transfer), which may be imported any number of times
//! and counts once.

use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use futures::{StreamExt, stream};
use orderfree_core::crdt::{Kind, Question, State};
use orderfree_core::protocol::transfer::Parcel;
use orderfree_core::protocol::{Key, MutatorId, Name, Timestamp, WriteOutcome};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::chance::Chance;
use crate::clock::{Clock, SystemClock};
use crate::config::{StoreArgs, Switch};
use crate::limits;
use crate::policy::Policies;
use crate::server::{self, Node};
use crate::service::{GroupQuery, KeyValue};
use crate::store::Store;
use crate::telemetry;

/// Lines that are imported at once.
const LINES_AT_ONCE: usize = 64;

/// Lines whose refusal is shown.
const REFUSALS_SHOWN_MAX: usize = 100;

/// Arguments of `export`.
#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Only keys of this kind.
    #[arg(long)]
    kind: Option<String>,
    /// Only keys of groups that begin so.
    #[arg(long, default_value = "", value_name = "TEXT")]
    group_prefix: String,
    /// For how long the lines can be imported; until then each key of them has a row more.
    #[arg(long, default_value = "7days", value_parser = humantime::parse_duration, value_name = "DURATION")]
    valid_for: Duration,
}

/// Arguments of `import`.
#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Add to keys that exist as well. A line that was imported already is known, and never counts twice.
    #[arg(long)]
    into_living: bool,
}

/// Arguments of `convert`.
#[derive(Debug, Args)]
pub(super) struct ConvertArgs {
    /// What the amounts become: `counter` or `sum`.
    #[arg(long, default_value = "counter")]
    kind: String,
    /// For how long the lines can be imported.
    #[arg(long, default_value = "7days", value_parser = humantime::parse_duration, value_name = "DURATION")]
    valid_for: Duration,
}

/// One key.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// Of this form of lines.
    version: u32,
    kind: String,
    group: String,
    name: String,
    /// For people: what `state` holds.
    value: serde_json::Value,
    /// Every update that was acknowledged before is in it, in µs since 1970: also the time of its row.
    as_of_us: i64,
    /// The fence of the key's tally, in µs since 1970; null without one.
    folded_through_us: Option<i64>,
    /// Shards that were merged.
    shards: usize,
    /// The row that an import writes.
    id: String,
    /// Until when it can be imported, in µs since 1970.
    expires_at_us: i64,
    /// The envelope, in base64.
    state: String,
}

const VERSION: u32 = 1;

impl Line {
    fn new(key: &Key, state: &State, now: Timestamp, valid_for: Duration, chance: &Chance) -> Line {
        let parcel = Parcel::pack(key.clone(), chance.mutator_id(), state, now, valid_for);
        let write = parcel.write();
        Line {
            version: VERSION,
            kind: key.kind.name().to_owned(),
            group: key.group.to_string(),
            name: key.name.to_string(),
            // Digits, as whole numbers may be longer than a double.
            value: serde_json::to_value(state.value(&Question::default()).shown(true))
                .expect("invariant: a value is JSON"),
            as_of_us: now.as_micros(),
            folded_through_us: None,
            shards: 0,
            id: write.mutator_id().to_string(),
            expires_at_us: write.expires_at().as_micros(),
            state: STANDARD.encode(write.state()),
        }
    }

    fn parcel(self) -> anyhow::Result<Parcel> {
        ensure!(
            self.version == VERSION,
            "it is of version {}; this release reads {VERSION}",
            self.version
        );
        let key = key(&self.kind, &self.group, &self.name)?;
        let bytes = STANDARD.decode(&self.state).context("its state is no base64")?;
        ensure!(bytes.len() <= limits::IMPORT_BYTES_MAX, "its state is too large");
        let time = Timestamp::from_micros;
        let id = Uuid::parse_str(&self.id).context("its id is no UUID")?;
        let (id, expires_at) = (MutatorId::new(id), time(self.expires_at_us));
        Ok(Parcel::arrive(key, id, expires_at, time(self.as_of_us), bytes)?)
    }
}

fn key(kind: &str, group: &str, name: &str) -> anyhow::Result<Key> {
    let named = |what, text| Name::new(text).map_err(|error| anyhow::anyhow!("its {what} {error}"));
    Ok(Key { kind: kind_of(kind)?, group: named("group", group)?, name: named("name", name)? })
}

fn kind_of(text: &str) -> anyhow::Result<Kind> {
    Kind::from_name(text).with_context(|| format!("there is no kind {text:?}"))
}

/// A pod that serves nobody and folds nothing.
async fn open(args: &StoreArgs) -> anyhow::Result<(Arc<dyn Store>, Node)> {
    let (config, constants) = (args.resolve()?, args.constants()?);
    let clock = Arc::new(SystemClock);
    let store = server::open_store(config, constants, clock.clone()).await?;
    let (chance, policies) = (Chance::system(), Policies::default());
    let node = Node::new(Arc::clone(&store), constants, clock, chance, 1, policies, Switch::Off);
    Ok((store, node))
}

pub(super) async fn export(args: ExportArgs) -> anyhow::Result<ExitCode> {
    let _telemetry = telemetry::start();
    let kinds = match &args.kind {
        Some(kind) => vec![kind_of(kind)?],
        None => Kind::ALL.to_vec(),
    };
    let (store, node) = open(&args.store).await?;
    let mut export =
        Export { args: &args, node: &node, chance: Chance::system(), keys: 0, unreadable: 0 };
    for kind in kinds {
        let mut behind = None;
        loop {
            let list = node.service().groups(kind, behind.as_ref(), limits::GROUPS_MAX).await?;
            for group in list.groups {
                if group.as_str().starts_with(&args.group_prefix) {
                    export.group(kind, &group).await?;
                }
            }
            behind = list.next;
            if behind.is_none() {
                break;
            }
        }
    }
    let Export { keys, unreadable, .. } = export;
    store.close().await;
    eprintln!("{keys} keys exported, {unreadable} could not be read");
    Ok(if unreadable == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Export<'a> {
    args: &'a ExportArgs,
    node: &'a Node,
    chance: Chance,
    keys: usize,
    unreadable: usize,
}

impl Export<'_> {
    async fn group(&mut self, kind: Kind, group: &Name) -> anyhow::Result<()> {
        let mut query = GroupQuery {
            kind,
            group: group.clone(),
            prefix: None,
            from: None,
            to: None,
            behind: None,
            limit: limits::GROUP_PAGE_MAX,
            level: None,
        };
        loop {
            let page = self.node.service().read_group(&query).await?;
            let mut lines = Vec::new();
            for entry in page.keys {
                match entry.value {
                    Ok(value) => self.line(&value, &mut lines)?,
                    Err(error) => {
                        self.unreadable += 1;
                        eprintln!("orderfree: {error}");
                    }
                }
            }
            io::stdout().write_all(&lines).context("the lines could not be written")?;
            match page.next {
                Some(next) => query.behind = Some(next),
                None => return Ok(()),
            }
        }
    }

    fn line(&mut self, read: &KeyValue, lines: &mut Vec<u8>) -> anyhow::Result<()> {
        let valid_for = self.args.valid_for;
        let mut line = Line::new(&read.key, &read.state, read.as_of, valid_for, &self.chance);
        line.shards = read.shards;
        line.folded_through_us = read.folded_through.map(Timestamp::as_micros);
        serde_json::to_writer(&mut *lines, &line)?;
        lines.push(b'\n');
        self.keys += 1;
        Ok(())
    }
}

/// What became of a line.
enum Imported {
    Now,
    Before,
    Refused(String),
    Unknown(String),
}

pub(super) async fn import(args: ImportArgs) -> anyhow::Result<ExitCode> {
    let _telemetry = telemetry::start();
    let (store, node) = open(&args.store).await?;
    let lines = io::stdin().lock().lines().enumerate();
    let deliveries = lines.map(|(index, line)| {
        let (store, node, into_living) = (&store, &node, args.into_living);
        async move {
            let result = match line {
                Ok(line) if line.trim().is_empty() => return None,
                Ok(line) => deliver(store, node, &line, into_living).await,
                Err(error) => Imported::Refused(format!("it can't be read: {error}")),
            };
            Some((index + 1, result))
        }
    });
    let mut deliveries = stream::iter(deliveries).buffered(LINES_AT_ONCE);
    let (mut now, mut before, mut refused, mut unknown) = (0, 0, 0, 0);
    while let Some(delivery) = deliveries.next().await {
        let Some((line, result)) = delivery else { continue };
        let (count, says) = match result {
            Imported::Now => (&mut now, None),
            Imported::Before => (&mut before, None),
            Imported::Refused(why) => (&mut refused, Some(why)),
            Imported::Unknown(why) => (&mut unknown, Some(why)),
        };
        *count += 1;
        if let Some(why) = says
            && refused + unknown <= REFUSALS_SHOWN_MAX
        {
            eprintln!("orderfree: line {line}: {why}");
        }
    }
    store.close().await;
    println!("{now} keys imported, {before} were there, {refused} refused, {unknown} unknown");
    if unknown > 0 {
        eprintln!("orderfree: import the same file again: what is there counts once");
    }
    Ok(if refused + unknown == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn deliver(store: &Arc<dyn Store>, node: &Node, line: &str, into_living: bool) -> Imported {
    let parcel =
        serde_json::from_str::<Line>(line).map_err(anyhow::Error::from).and_then(Line::parcel);
    let parcel = match parcel {
        Ok(parcel) => parcel,
        Err(error) => return Imported::Refused(format!("it is no line of an export: {error:#}")),
    };
    let write = parcel.write();
    let clock = SystemClock;
    if !write.may_be_sent(clock.now().wall) {
        return Imported::Refused("it has expired; export again".to_owned());
    }
    if let Err(error) = store.check_clock(clock.now()) {
        return Imported::Refused(error.to_string());
    }
    match node.service().shards(write.key()).await {
        Err(error) => return Imported::Refused(error.to_string()),
        Ok(found) if found.shards.iter().any(|shard| shard.mutator_id == write.mutator_id()) => {
            return Imported::Before;
        }
        Ok(found) if !into_living && (found.tally.is_some() || !found.shards.is_empty()) => {
            let key = write.key();
            return Imported::Refused(format!("{key} exists; say --into-living to add to it"));
        }
        Ok(_) => {}
    }
    match store.write_shard(write).await {
        WriteOutcome::Acked if parcel.ack_stands(clock.now()) => Imported::Now,
        WriteOutcome::Acked => Imported::Unknown("it expired meanwhile".to_owned()),
        WriteOutcome::Refused(why) => Imported::Refused(why),
        WriteOutcome::Unknown(why) => Imported::Unknown(why),
    }
}

/// From `group,name,amount` to lines for `import`.
pub(super) fn convert(args: &ConvertArgs) -> anyhow::Result<ExitCode> {
    let kind = kind_of(&args.kind)?;
    ensure!(
        matches!(kind, Kind::Counter | Kind::Sum),
        "amounts become a counter or a sum, no {kind}"
    );
    let (chance, now) = (Chance::system(), SystemClock.now().wall);
    let mut rows = csv::ReaderBuilder::new().has_headers(false).from_reader(io::stdin().lock());
    let mut out = io::BufWriter::new(io::stdout().lock());
    for (index, row) in rows.records().enumerate() {
        let row = row.with_context(|| format!("line {}", index + 1))?;
        let line = converted(kind, &row).with_context(|| format!("line {}", index + 1))?;
        let (key, state) = line;
        serde_json::to_writer(&mut out, &Line::new(&key, &state, now, args.valid_for, &chance))?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn converted(kind: Kind, row: &csv::StringRecord) -> anyhow::Result<(Key, State)> {
    let [group, name, amount] = row.iter().collect::<Vec<_>>()[..] else {
        bail!("it has {} columns; write group,name,amount", row.len());
    };
    let key = key(kind.name(), group, name)?;
    let mut state = State::new(kind, None);
    let op = kind.parse_op(&kind.bare_op(amount.trim()));
    state.apply(&op.map_err(|error| anyhow::anyhow!("{amount:?} is no amount: {error}"))?)?;
    Ok((key, state))
}
