//! `export`, `import` and `convert`: keys between installations, and from other systems. One line of JSON
//! for each key, a [parcel](orderfree_core::protocol::transfer), which may be imported any number of times
//! and counts once.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet};
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
use orderfree_core::protocol::fold::proves_moved_clock;
use orderfree_core::protocol::transfer::Parcel;
use orderfree_core::protocol::{Constants, Key, MutatorId, Name, Timestamp, WriteOutcome};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::output::{note, say};
use crate::chance::Chance;
use crate::clock::{Clock, SystemClock};
use crate::config::{StoreArgs, StoreConfig, Switch};
use crate::limits;
use crate::server::{self, Node};
use crate::service::{GroupQuery, KeyValue, ReadError};
use crate::store::{Store, StoreError};
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
    /// For how long the lines can be imported, but never longer than 7 days for an lww_set; until then each key
    /// of them has a row more.
    #[arg(long, default_value = "7days", value_parser = valid_for, value_name = "DURATION")]
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
    /// Add up the amounts of a key that stands in more than one line; else that is an error.
    #[arg(long)]
    sum_duplicates: bool,
    /// Take backslashes in groups and names as they are. `cqlsh` writes each twice, and what it can't show by codes
    /// such as `\xa0`, so that names with one are refused without this.
    #[arg(long)]
    literal_backslashes: bool,
    /// What the amounts become: `counter` or `sum`.
    #[arg(long, default_value = "counter")]
    kind: String,
    /// For how long the lines can be imported.
    #[arg(long, default_value = "7days", value_parser = valid_for, value_name = "DURATION")]
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
    /// For people: the fence of the tally that is in it, in µs since 1970; null without one.
    folded_through_us: Option<i64>,
    /// For people: how many shards are in it; null of what was no key here.
    shards: Option<usize>,
    /// The row that an import writes.
    id: String,
    /// Until when it can be imported, in µs since 1970.
    expires_at_us: i64,
    /// The envelope, in base64. Its checksum covers the id and the expiry, and neither group nor name,
    /// so that a line may be imported under others.
    state: String,
}

const VERSION: u32 = 2;

/// Longest time for which a line can be imported: until then its key has a row more.
const VALID_MAX: Duration = Duration::from_secs(90 * 24 * 3600);

/// Reads for how long lines can be imported.
fn valid_for(text: &str) -> Result<Duration, String> {
    let span = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let fits = (Duration::from_millis(1)..=VALID_MAX).contains(&span);
    fits.then_some(span).ok_or_else(|| "give a time of up to 90 days".to_owned())
}

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
            shards: None,
            id: write.mutator_id().to_string(),
            expires_at_us: write.expires_at().as_micros(),
            state: STANDARD.encode(parcel.packed()),
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
        Ok(Parcel::arrive(key, id, expires_at, time(self.as_of_us), &bytes)?)
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
async fn open(config: StoreConfig, constants: Constants) -> anyhow::Result<(Arc<dyn Store>, Node)> {
    let clock = Arc::new(SystemClock);
    let store = server::open_store(config, constants, clock.clone()).await?;
    let node = Node::for_tool(&store, constants, clock, Switch::Off);
    Ok((store, node))
}

pub(super) async fn export(args: ExportArgs) -> anyhow::Result<ExitCode> {
    let _telemetry = telemetry::start();
    let kinds = match &args.kind {
        Some(kind) => vec![kind_of(kind)?],
        None => Kind::ALL.to_vec(),
    };
    let (store, node) = open(args.store.resolve()?.existing()?, args.store.constants()?).await?;
    let mut export = Export {
        args: &args,
        node: &node,
        chance: Chance::system(),
        keys: 0,
        unreadable: 0,
        full: 0,
    };
    for kind in kinds {
        let mut behind = None;
        loop {
            let list = node.service().groups(kind, behind.as_ref(), limits::PAGE_DEFAULT).await;
            let list = match list {
                Err(StoreError::Corrupt(error)) => {
                    export.skip(&format!("groups of kind {kind}: {error}"));
                    break;
                }
                list => list?,
            };
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
    let Export { keys, unreadable, full, .. } = export;
    store.close().await;
    if full > 0 {
        note(format_args!(
            "orderfree: {full} keys are so large that nothing can be added to them; they were exported, \
             but spread their items over more keys"
        ));
    }
    note(format_args!("{keys} keys exported, {unreadable} could not be read"));
    Ok(if unreadable == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Export<'a> {
    args: &'a ExportArgs,
    node: &'a Node,
    chance: Chance,
    keys: usize,
    unreadable: usize,
    full: usize,
}

impl Export<'_> {
    async fn group(&mut self, kind: Kind, group: &Name) -> anyhow::Result<()> {
        let mut query = GroupQuery::all(kind, group.clone(), limits::PAGE_MAX);
        loop {
            let (node, mut lines, mut written) = (self.node, Vec::new(), Ok(()));
            let next = node.service().read_group_to(&query, |_, value| {
                match value {
                    Ok(value) if written.is_ok() => written = self.line(&value, &mut lines),
                    Ok(_) => {}
                    Err(error) => {
                        self.unreadable += 1;
                        note(format_args!("orderfree: {error}"));
                    }
                }
                lines.len()
            });
            let next = match next.await {
                Err(ReadError::Store(StoreError::Corrupt(error))) => {
                    self.skip(&format!("keys of {kind}/{group}: {error}"));
                    None
                }
                next => next?,
            };
            written?;
            io::stdout().write_all(&lines).context("the lines could not be written")?;
            match next {
                Some(next) => query.behind = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Goes on without what can't be read.
    fn skip(&mut self, what: &str) {
        self.unreadable += 1;
        note(format_args!("orderfree: {what}"));
    }

    fn line(&mut self, read: &KeyValue, lines: &mut Vec<u8>) -> anyhow::Result<()> {
        let valid_for = self.args.valid_for;
        let mut line = Line::new(&read.key, &read.state, read.as_of, valid_for, &self.chance);
        if line.state.len() > limits::IMPORT_BYTES_MAX.div_ceil(3) * 4 {
            self.skip(&format!("{}: its state is too large to be imported", read.key));
            return Ok(());
        }
        self.full += usize::from(read.is_full);
        line.shards = Some(read.shards);
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
    let (store, node) = open(args.store.resolve()?, args.store.constants()?).await?;
    let constants = args.store.constants()?;
    let lines = io::stdin().lock().lines().enumerate();
    let lines = lines.filter(|(_, line)| !matches!(line, Ok(line) if line.trim().is_empty()));
    let mut keys = HashSet::new();
    let deliveries = lines.map(|(index, line)| {
        let (store, node, constants, into_living) = (&store, &node, &constants, args.into_living);
        let parcel = parcel_of(line).and_then(|parcel| {
            // Which of two were first would be chance.
            let is_new = keys.insert(parcel.write().key().clone());
            ensure!(is_new, "{} stands in an earlier line as well", parcel.write().key());
            Ok(parcel)
        });
        async move {
            let result = match parcel {
                Ok(parcel) => deliver(store, node, &parcel, constants, into_living).await,
                Err(error) => Imported::Refused(format!("it is no line to import: {error:#}")),
            };
            (index + 1, result)
        }
    });
    let mut deliveries = stream::iter(deliveries).buffered(LINES_AT_ONCE);
    let (mut now, mut before, mut refused, mut unknown) = (0, 0, 0, 0);
    while let Some((line, result)) = deliveries.next().await {
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
            note(format_args!("orderfree: line {line}: {why}"));
        }
    }
    store.close().await;
    say(format_args!(
        "{now} keys imported, {before} were there, {refused} refused, {unknown} unknown"
    ));
    if unknown > 0 {
        note("orderfree: import the same file again: what is there counts once");
    }
    Ok(if refused + unknown == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn parcel_of(line: io::Result<String>) -> anyhow::Result<Parcel> {
    serde_json::from_str::<Line>(&line?)?.parcel()
}

async fn deliver(
    store: &Arc<dyn Store>,
    node: &Node,
    parcel: &Parcel,
    constants: &Constants,
    into_living: bool,
) -> Imported {
    let refused = |why: &str| Imported::Refused(why.to_owned());
    let (write, now) = (parcel.write(), SystemClock.now());
    if !write.may_be_sent(now.wall) {
        return refused("it has expired; export again");
    }
    // Times of a clock that was ahead would win against all that is written here for as long.
    let clocks = 2 * constants.clock_offset_max();
    if write.timestamp() > now.wall.plus(clocks) {
        return refused("it is from the future: a clock differs");
    }
    // So would the times by which its last writers won: no set here would show until then.
    if let Some(latest) = parcel.latest()
        && latest > now.wall.plus(clocks)
    {
        return Imported::Refused(format!(
            "one of its times is {:?} ahead of this clock, so that nothing set here would show until then; \
             if a clock was wrong where it comes from, `orderfree repair` mends that file",
            latest.since(now.wall)
        ));
    }
    if write.expires_at() > now.wall.plus(VALID_MAX + clocks) {
        return refused("it is valid for over 90 days, which no export is");
    }
    if let Err(error) = store.check_clock(now) {
        return Imported::Refused(error.to_string());
    }
    let found = match node.service().shards(write.key()).await {
        Ok(found) => found,
        Err(error) => return Imported::Refused(error.to_string()),
    };
    match found.tally.as_ref().map(|tally| &tally.content) {
        Some(Err(error)) => return Imported::Refused(error.to_string()),
        Some(Ok((fence, _)))
            if *fence >= write.expires_at() || proves_moved_clock(*fence, now.wall, constants) =>
        {
            return refused("the key's fence lies in the future: a clock has moved");
        }
        _ => {}
    }
    let was_there = found.shards.iter().any(|shard| shard.mutator_id == write.mutator_id());
    if !was_there && !into_living && (found.tally.is_some() || !found.shards.is_empty()) {
        return Imported::Refused(format!(
            "{} exists; if this is from elsewhere, say --into-living to add to it",
            write.key()
        ));
    }
    if let Some(latest) = parcel.latest() {
        store.note_stamp(latest);
    }
    // Also where it was seen: by some replicas, perhaps, and it is the same row each time.
    match store.write_shard(write).await {
        WriteOutcome::Acked if !parcel.ack_stands(SystemClock.now()) => {
            Imported::Unknown("it expired meanwhile".to_owned())
        }
        WriteOutcome::Acked if was_there => Imported::Before,
        WriteOutcome::Acked => Imported::Now,
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
    let mut keys: BTreeMap<Key, State> = BTreeMap::new();
    for (index, row) in rows.records().enumerate() {
        let place = || format!("line {}", index + 1);
        let (key, state) = converted(kind, &row.with_context(place)?).with_context(place)?;
        ensure!(
            args.literal_backslashes || !format!("{}{}", key.group, key.name).contains('\\'),
            "{}: {key} has a backslash, which cqlsh writes twice, or for what it can't show; write the name as it \
             is, and say --literal-backslashes",
            place()
        );
        match keys.entry(key) {
            Entry::Vacant(new) => {
                new.insert(state);
            }
            Entry::Occupied(old) if !args.sum_duplicates => bail!(
                "{}: {} stands in an earlier line as well; say --sum-duplicates if both count",
                place(),
                old.key()
            ),
            Entry::Occupied(mut old) => old.get_mut().merge(&state).with_context(place)?,
        }
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    for (key, state) in &keys {
        serde_json::to_writer(&mut out, &Line::new(key, state, now, args.valid_for, &chance))?;
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
