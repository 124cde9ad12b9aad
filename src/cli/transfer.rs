//! `export`, `import` and `convert`: they move keys between installations and from other systems. Each key is
//! one line of JSON, a [parcel](orderfree_core::protocol::transfer). A line can be imported any number of
//! times and counts once.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet};
use std::io::{self, BufRead, Write};
use std::mem;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::{Arg, Args};
use futures::{StreamExt, stream};
use orderfree_core::crdt::{Kind, Question, State};
use orderfree_core::protocol::fold::proves_moved_clock;
use orderfree_core::protocol::generation::{Remembered, evidence};
use orderfree_core::protocol::transfer::Parcel;
use orderfree_core::protocol::{Constants, Key, MutatorId, Name, Timestamp, WriteError};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::output::{note, say};
use super::{input, key};
use crate::engine::service::{GroupQuery, KeyValue, ReadError};
use crate::limits;
use crate::pod::config::{StoreArgs, StoreConfig, Switch};
use crate::pod::node::Node;
use crate::pod::start;
use crate::runtime::clock::{Clock, SystemClock};
use crate::runtime::random::Random;
use crate::runtime::telemetry;
use crate::store::{LogGap, Store, StoreError};

/// Lines that are imported concurrently.
const LINES_AT_ONCE: usize = 64;

/// Lines whose error is shown.
const REFUSALS_SHOWN_MAX: usize = 100;

/// Arguments of `export`.
#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Export only keys of this kind.
    #[arg(long, value_parser = key::kind_of)]
    kind: Option<Kind>,
    /// Export only keys of groups that begin with this text.
    #[arg(long, default_value = "", value_name = "TEXT")]
    group_prefix: String,
    /// How long the lines can be imported, up to 90 days, and up to 7 days for an lww_set. Each imported key
    /// has one more row until then.
    #[arg(long, default_value = "7days", value_parser = valid_for, value_name = "DURATION")]
    valid_for: Duration,
}

/// Arguments of `import`.
#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Also add to keys that exist. A line that was imported before never counts twice.
    #[arg(long)]
    into_living: bool,
}

/// Arguments of `convert`.
#[derive(Debug, Args)]
pub(super) struct ConvertArgs {
    /// Add up the amounts of a key that is in several lines. Without this option such a key is an error.
    #[arg(long)]
    sum_duplicates: bool,
    /// Accept groups and names with backslashes, and take them literally. Without this option they are an
    /// error, as `cqlsh` doubles backslashes and writes codes such as `\xa0` for characters that it can't
    /// show.
    #[arg(long)]
    literal_backslashes: bool,
    /// Kind of the new keys: `counter` or `sum`.
    #[arg(long, default_value = "counter", value_parser = amount_kind)]
    kind: Kind,
    /// How long the lines can be imported, up to 90 days.
    #[arg(long, default_value = "7days", value_parser = valid_for, value_name = "DURATION")]
    valid_for: Duration,
}

/// Settings of the store that an import does not use.
const NOT_OF_IMPORT: &[&str] =
    &["read_consistency", "lifetime", "drain_margin", "batch_rows", "batch_groups", "hint_window"];

/// Settings of the store that an export does not use either.
const NOT_OF_EXPORT: &[&str] = &["write_consistency", "request_budget"];

/// Hides options that an import does not use. It takes them nevertheless, as variables are often shared with
/// pods.
pub(super) fn hide_from_import(argument: Arg) -> Arg {
    let is_used = !NOT_OF_IMPORT.contains(&argument.get_id().as_str());
    argument.hide(!is_used)
}

/// Hides options that an export does not use.
pub(super) fn hide_from_export(argument: Arg) -> Arg {
    let is_used = !NOT_OF_EXPORT.contains(&argument.get_id().as_str());
    if is_used { hide_from_import(argument) } else { argument.hide(true) }
}

/// The line of one key.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// Version of this format.
    version: u32,
    kind: String,
    group: String,
    name: String,
    /// For people: the value of `state`.
    value: serde_json::Value,
    /// Time of the export and of the imported row, in µs since 1970. The state has every update that was
    /// acknowledged before it.
    as_of_us: i64,
    /// For people: the fence of the tally in the state, in µs since 1970; null without a tally.
    folded_through_us: Option<i64>,
    /// For people: the number of shards in the state; null for a converted line.
    shards: Option<usize>,
    /// Id of the row that an import writes.
    id: String,
    /// Time until which the line can be imported, in µs since 1970.
    expires_at_us: i64,
    /// The envelope, in base64. Its checksum covers the id and the expiry, but neither group nor name, so a
    /// line can be imported under another key.
    state: String,
}

const VERSION: u32 = 2;

/// Longest time for which a line can be imported. Until its expiry, the imported key has one more row.
const VALID_MAX: Duration = Duration::from_secs(90 * 24 * 3600);

/// Parses how long lines can be imported.
fn valid_for(text: &str) -> Result<Duration, String> {
    let span = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let fits = (Duration::from_millis(1)..=VALID_MAX).contains(&span);
    fits.then_some(span).ok_or_else(|| "write a time from 1ms to 90days, such as 7days".to_owned())
}

impl Line {
    fn new(key: &Key, state: &State, now: Timestamp, valid_for: Duration, random: &Random) -> Line {
        let parcel = Parcel::pack(key.clone(), random.mutator_id(), state, now, valid_for);
        let write = parcel.write();
        Line {
            version: VERSION,
            kind: key.kind.name().to_owned(),
            group: key.group.to_string(),
            name: key.name.to_string(),
            // Numbers as digits, as whole numbers can exceed the precision of a double.
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
            "its version is {}, but this release reads version {VERSION}; export and import with the same release",
            self.version
        );
        let kind = key::kind_of(&self.kind).map_err(anyhow::Error::msg)?;
        let key = key_of(kind, &self.group, &self.name)?;
        let bytes = STANDARD.decode(&self.state).context("its state is not base64")?;
        ensure!(bytes.len() <= limits::IMPORT_BYTES_MAX, "its state is too large to be imported");
        let time = Timestamp::from_micros;
        let id = Uuid::parse_str(&self.id).context("its id is not a UUID")?;
        let (id, expires_at) = (MutatorId::new(id), time(self.expires_at_us));
        let parcel = Parcel::arrive(key, id, expires_at, time(self.as_of_us), &bytes);
        // Its message has its cause.
        parcel.map_err(anyhow::Error::msg)
    }
}

fn key_of(kind: Kind, group: &str, name: &str) -> anyhow::Result<Key> {
    let named =
        |what, text| Name::requested(text).map_err(|error| anyhow::anyhow!("its {what} {error}"));
    Ok(Key { kind, group: named("group", group)?, name: named("name", name)? })
}

/// Reads the kind of a converted key.
fn amount_kind(text: &str) -> Result<Kind, String> {
    match key::kind_of(text)? {
        kind @ (Kind::Counter | Kind::Sum) => Ok(kind),
        kind => Err(format!("amounts become a counter or a sum, not a {kind}")),
    }
}

/// Opens the store and makes a pod that neither serves nor folds.
async fn open(config: StoreConfig, constants: Constants) -> anyhow::Result<(Arc<dyn Store>, Node)> {
    let (clock, constants) = (Arc::new(SystemClock), constants.assumed());
    let store = start::open_store(config.for_tools(), constants, clock.clone()).await?;
    let node = Node::for_tool(&store, constants, clock, Switch::Off);
    Ok((store, node))
}

pub(super) async fn export(args: ExportArgs) -> anyhow::Result<ExitCode> {
    let _telemetry = telemetry::start();
    let kinds = match args.kind {
        Some(kind) => vec![kind],
        None => Kind::ALL.to_vec(),
    };
    let constants = args.store.constants()?;
    let (store, node) = open(args.store.resolve()?.existing()?, constants).await?;
    let is_whole = args.kind.is_none() && args.group_prefix.is_empty();
    if let (true, Some(gap)) = (is_whole, store.log_gap(SystemClock.now().wall)) {
        wait_until_logged(&gap, &constants).await;
    }
    // The walk compares with this look what the tallies of keys remember.
    let looked = SystemClock.now().wall;
    node.resetter().look_for_lost().await;
    let gap = store.log_gap(looked);
    let known = node.resetter().check_log();
    if gap.is_some() && known.is_err() {
        bail!("the log of resets can't be read now; export again when enough nodes answer");
    }
    let mut export = Export {
        args: &args,
        node: &node,
        random: Random::system(),
        gap,
        logged: 0,
        keys: 0,
        unreadable: 0,
        missed: 0,
        full: 0,
    };
    for kind in kinds {
        let mut behind = None;
        loop {
            let list = node.service().groups(kind, behind.as_ref(), limits::PAGE_DEFAULT).await;
            let list = match list {
                Err(StoreError::Corrupt(error)) => {
                    export.missed += 1;
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
    let not_logged = export.log_lost().await;
    let Export { gap, logged, keys, unreadable, missed, full, .. } = export;
    let closed = match gap {
        None => None,
        Some(_) if is_whole && missed + not_logged == 0 => Some(store.close_log_gap(looked).await),
        Some(_) => {
            let why = match is_whole {
                false => "not all keys were read; export all kinds and groups".to_owned(),
                true => format!(
                    "{missed} entries could not be read, and {not_logged} resets could not be logged; see above, \
                     and export again"
                ),
            };
            Some(Err(WriteError::Refused(why)))
        }
    };
    store.close().await;
    if let Err(unread) = known {
        note(format_args!("orderfree: lost resets were not looked for: {unread}"));
    }
    if logged + not_logged > 0 {
        note(format_args!(
            "orderfree: the log of resets had lost {} resets of these keys; {logged} are logged again",
            logged + not_logged
        ));
    }
    match &closed {
        None => {}
        Some(Ok(())) => note("orderfree: the log of resets is whole again"),
        Some(Err(why)) => {
            note(format_args!(
                "orderfree: the log of resets is not whole, and pods take no updates: {why}"
            ));
        }
    }
    if full > 0 {
        note(format_args!(
            "orderfree: {full} keys are so large that nothing can be added to them; they were exported, but spread \
             their items over more keys"
        ));
    }
    note(format_args!("{keys} keys exported, {unreadable} could not be read"));
    let is_done = unreadable + not_logged == 0 && !matches!(closed, Some(Err(_)));
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A reset of the last moments looks like one that is not logged yet.
async fn wait_until_logged(gap: &LogGap, constants: &Constants) {
    let from = gap.at.plus(constants.reset_blur() + Duration::from_secs(1));
    let wait = from.since(SystemClock.now().wall);
    if !wait.is_zero() {
        note(format_args!(
            "orderfree: a reset was just made; waiting for {} s",
            wait.as_secs() + 1
        ));
        tokio::time::sleep(wait).await;
    }
}

struct Export<'a> {
    args: &'a ExportArgs,
    node: &'a Node,
    random: Random,
    /// What the log of resets lacks.
    gap: Option<LogGap>,
    /// Lost resets that are in the log again.
    logged: usize,
    keys: usize,
    unreadable: usize,
    /// Entries of which it is not known whether they were reset.
    missed: usize,
    full: usize,
}

impl Export<'_> {
    async fn group(&mut self, kind: Kind, group: &Name) -> anyhow::Result<()> {
        let mut query = GroupQuery::all(kind, group.clone(), limits::PAGE_MAX);
        loop {
            let (node, mut lines, mut written) = (self.node, Vec::new(), Ok(()));
            let next = node.service().read_group(&query, |name, value| {
                match value {
                    Ok(value) if written.is_ok() => written = self.line(&value, &mut lines),
                    Ok(_) => {}
                    Err(error) => self.unread(Key { kind, group: group.clone(), name }, &error),
                }
                lines.len()
            });
            let next = match next.await {
                Err(ReadError::Store(StoreError::Corrupt(error))) => {
                    self.missed += 1;
                    self.skip(&format!("keys of {kind}/{group}: {error}"));
                    None
                }
                next => next?,
            };
            written?;
            io::stdout().write_all(&lines).context("the lines could not be written")?;
            self.log_lost().await;
            match next {
                Some(next) => query.behind = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Logs the lost resets that were found since the last call. Returns how many could not be logged.
    async fn log_lost(&mut self) -> usize {
        let (logged, not_logged) = self.node.resetter().log_lost().await;
        self.logged += logged;
        not_logged
    }

    /// Skips a key that can't be read.
    fn unread(&mut self, key: Key, error: &ReadError) {
        match error {
            ReadError::Store(StoreError::Unavailable(_)) | ReadError::Overloaded(_) => {
                self.missed += 1;
            }
            _ if self.gap.is_some() => {
                // Longer than any row lives.
                let until = SystemClock.now().wall.plus(2 * VALID_MAX);
                self.node.resetter().log_in_doubt(&key, until);
            }
            _ => {}
        }
        self.skip(&error.to_string());
    }

    /// Skips an entry that can't be read, and counts it.
    fn skip(&mut self, what: &str) {
        self.unreadable += 1;
        note(format_args!("orderfree: {what}"));
    }

    fn line(&mut self, read: &KeyValue, lines: &mut Vec<u8>) -> anyhow::Result<()> {
        let valid_for = self.args.valid_for;
        let mut line = Line::new(&read.key, &read.state, read.as_of, valid_for, &self.random);
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

/// The outcome of a line.
enum Imported {
    Now,
    Before,
    Refused(String),
    Unknown(String),
}

pub(super) async fn import(args: ImportArgs) -> anyhow::Result<ExitCode> {
    let _telemetry = telemetry::start();
    let (store, node) = open(args.store.resolve()?, args.store.constants()?).await?;
    let constants = args.store.constants()?.assumed();
    let mut is_broken = false;
    // After an error the input has nothing more.
    let lines = input::open()?.split(b'\n');
    let lines = lines.take_while(move |line| !mem::replace(&mut is_broken, line.is_err()));
    let lines = lines.enumerate();
    let lines = lines.filter(|(_, line)| !matches!(line, Ok(line) if line.trim_ascii().is_empty()));
    let mut keys = HashSet::new();
    let deliveries = lines.map(|(index, line)| {
        let (store, node, constants, into_living) = (&store, &node, &constants, args.into_living);
        let parcel = parcel_of(line).and_then(|parcel| {
            // Which of two lines comes first would be chance.
            let is_new = keys.insert(parcel.write().key().clone());
            ensure!(is_new, "{} is in an earlier line too", parcel.write().key());
            Ok(parcel)
        });
        async move {
            let result = match parcel {
                Ok(parcel) => deliver(store, node, &parcel, constants, into_living).await,
                Err(error) => Imported::Refused(format!("this line can't be imported: {error:#}")),
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
        note("orderfree: import the same file again; each line counts once");
    }
    Ok(if refused + unknown == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn parcel_of(line: io::Result<Vec<u8>>) -> anyhow::Result<Parcel> {
    serde_json::from_slice::<Line>(&line?)?.parcel()
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
        return refused("the line has expired; export the key again");
    }
    // Times of a clock that was ahead would win against all writes here until this clock reaches them.
    let clocks = 2 * constants.clock_offset_max();
    if write.timestamp() > now.wall.plus(clocks) {
        return refused("the line is from the future: a clock differs; check both clocks");
    }
    // The times of its last writers must not be ahead either: nothing set here would show until then.
    if let Some(latest) = parcel.latest()
        && latest > now.wall.plus(clocks)
    {
        return Imported::Refused(format!(
            "one of its times is {:?} ahead of this clock, so nothing set here would show until then; if the \
             source's clock was wrong, run `orderfree repair` on the source's file and export again",
            latest.since(now.wall)
        ));
    }
    if write.expires_at() > now.wall.plus(VALID_MAX + clocks) {
        return refused(
            "the line is valid for over 90 days, but exports are not; export the key again",
        );
    }
    if let Err(error) = store.check_clock(now) {
        return Imported::Refused(error.to_string());
    }
    let resetter = node.resetter();
    resetter.look_if_due().await;
    if let Err(why) = resetter.check_log() {
        return Imported::Refused(why);
    }
    let found = match node.service().shards(write.key()).await {
        Ok(found) => found,
        Err(error) => return Imported::Refused(error.to_string()),
    };
    let reset = found.tally.as_ref().and_then(|tally| tally.reset.as_ref());
    if reset.is_some_and(|reset| !reset.counts(None, write.expires_at()))
        || resetter.was_reset(write.key())
    {
        return Imported::Refused(format!(
            "{} was reset lately, so the line would count nothing; import it under another name",
            write.key()
        ));
    }
    let evidence = |fence| evidence(fence, reset.map(Remembered::generation), constants);
    match found.tally.as_ref().map(|tally| &tally.content) {
        Some(Err(error)) => return Imported::Refused(error.to_string()),
        Some(Ok((fence, _)))
            if *fence >= write.expires_at()
                || proves_moved_clock(evidence(*fence), now.wall, constants) =>
        {
            return refused("the key's fence is in the future: a clock has moved");
        }
        _ => {}
    }
    let was_there = found.shards.iter().any(|shard| shard.mutator_id == write.mutator_id());
    // A key that was forgotten is absent, also with rows that its grave covers.
    let exists = found.tally.is_some_and(|tally| !tally.is_grave)
        || found.shards.iter().any(|shard| !shard.is_zombie);
    if !was_there && !into_living && exists {
        return Imported::Refused(format!(
            "{} exists; if this line is from another installation, set --into-living to add to the key",
            write.key()
        ));
    }
    if let Some(latest) = parcel.latest() {
        store.note_stamp(latest);
    }
    // Also write a row that was seen: only some replicas may have it, and it is the same row each time.
    match store.write_shard(write).await {
        Ok(()) if !parcel.ack_stands(SystemClock.now()) => {
            Imported::Unknown("the line expired during the import".to_owned())
        }
        Ok(()) if !resetter.parcel_stands(write.key(), SystemClock.now()) => {
            Imported::Unknown("the key may be reset during the import; read it".to_owned())
        }
        Ok(()) if was_there => Imported::Before,
        Ok(()) => Imported::Now,
        Err(WriteError::Refused(why)) => Imported::Refused(why),
        Err(WriteError::Unknown(why)) => Imported::Unknown(why),
    }
}

/// Converts rows of `group,name,amount` to lines for `import`.
pub(super) fn convert(args: &ConvertArgs) -> anyhow::Result<ExitCode> {
    let (kind, random, now) = (args.kind, Random::system(), SystemClock.now().wall);
    let mut rows = csv::ReaderBuilder::new().has_headers(false).from_reader(input::open()?);
    let mut keys: BTreeMap<Key, State> = BTreeMap::new();
    for (index, row) in rows.records().enumerate() {
        let place = || format!("line {}", index + 1);
        let (key, state) = converted(kind, &row.with_context(place)?).with_context(place)?;
        ensure!(
            args.literal_backslashes || !format!("{}{}", key.group, key.name).contains('\\'),
            "{}: {key} has a backslash; cqlsh doubles backslashes, and writes codes for characters that it can't \
             show, so write the name as it is and set --literal-backslashes",
            place()
        );
        match keys.entry(key) {
            Entry::Vacant(new) => {
                new.insert(state);
            }
            Entry::Occupied(old) if !args.sum_duplicates => bail!(
                "{}: {} is in an earlier line too; set --sum-duplicates if both count",
                place(),
                old.key()
            ),
            Entry::Occupied(mut old) => old.get_mut().merge(&state).with_context(place)?,
        }
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    for (key, state) in &keys {
        serde_json::to_writer(&mut out, &Line::new(key, state, now, args.valid_for, &random))?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn converted(kind: Kind, row: &csv::StringRecord) -> anyhow::Result<(Key, State)> {
    let [group, name, amount] = row.iter().collect::<Vec<_>>()[..] else {
        bail!("it has {} columns; write group,name,amount", row.len());
    };
    let key = key_of(kind, group, name)?;
    let mut state = State::new(kind, None);
    let op = kind.read_bare_op(amount);
    state.apply(&op.map_err(|error| anyhow::anyhow!("{amount:?} is not an amount: {error}"))?)?;
    Ok((key, state))
}
