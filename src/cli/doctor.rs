//! `doctor`: checks an installation from the outside in. Each line that is wrong says what to do.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::consistency::{Level, Levels};
use orderfree_core::protocol::fold::proves_moved_clock;
use orderfree_core::protocol::generation::{Remembered, evidence};
use orderfree_core::protocol::{Constants, Key, Name, Phase};
use reqwest::Url;
use serde_json::Value;

use super::connect::{self, ConnectArgs};
use super::output::say;
use crate::engine::service::{GroupQuery, Service, ShardsReport};
use crate::limits;
use crate::pod::config::{StoreArgs, Switch};
use crate::pod::node::Node;
use crate::pod::start;
use crate::runtime::clock::{Clock, SystemClock};
use crate::runtime::random::Random;
use crate::store::cassandra::scrub_loses_rows;
use crate::store::{GroupCursor, Operators, Store};

/// Longest time for a pod's answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// Names that `doctor` counts in all to find groups that are too large. The sweep, which meets every group,
/// finds the others.
const NAMES_COUNTED_MAX: usize = 1_000_000;

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Number of keys to check. They are spread evenly over the kinds and their groups.
    #[arg(long, default_value_t = 100, value_name = "COUNT")]
    sample: usize,
    /// Base URL of a pod to check: whether it is ready, and its version. Use the pod's admin address if it
    /// has one. Can be repeated.
    #[arg(long = "url", value_name = "URL")]
    urls: Vec<Url>,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// The result of all checks.
struct Report {
    is_well: bool,
}

impl Report {
    fn say(&mut self, what: &str, result: Result<String, String>) {
        self.is_well &= result.is_ok();
        match result {
            Ok(found) => say(format_args!("ok    {what}: {found}")),
            Err(wrong) => say(format_args!("WRONG {what}: {wrong}")),
        }
    }

    /// Prints a warning, which does not change the exit code.
    fn warn(&self, what: &str, why: &str) {
        say(format_args!("warn  {what}: {why}"));
    }

    /// Prints advice. It does not mean that something is wrong.
    fn note(&self, what: &str, advice: &str) {
        say(format_args!("note  {what}: {advice}"));
    }
}

pub(super) async fn run(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    let mut report = Report { is_well: true };
    let resolved = args
        .store
        .constants()
        .and_then(|constants| Ok((args.store.resolve()?.existing()?, constants)));
    match resolved {
        Err(error) => report.say("configuration", Err(error.to_string())),
        Ok((config, constants)) => {
            match constants.warning() {
                Some(advice) => report.warn("configuration", &advice),
                None => report.say("configuration", Ok("consistent".into())),
            }
            let clock = Arc::new(SystemClock);
            // Opening checks reachability, credentials, engine, table properties, replication and levels.
            let constants = constants.assumed();
            match start::open_store(config.for_tools(), constants, clock).await {
                Err(error) => report.say("store", Err(format!("{error:#}"))),
                Ok(store) => {
                    look_at_store(&mut report, &store, args.store.read_consistency).await;
                    match store.contents().map_or(0, |contents| contents.broken_rows) {
                        0 => {}
                        rows => {
                            let what = "damaged; run `orderfree export` to see their keys";
                            report.say("rows", Err(format!("{rows} rows of the file are {what}")));
                        }
                    }
                    look_at_keys(&mut report, &store, constants, args.sample).await;
                    store.close().await;
                }
            }
        }
    }
    if !args.urls.is_empty() {
        look_at_pods(&mut report, &args).await;
    }
    Ok(if report.is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Looks at the store. Pods read at `read`; the sample of keys is read at the level of folds.
async fn look_at_store(report: &mut Report, store: &Arc<dyn Store>, read: Level) {
    let clock = SystemClock;
    let levels = Levels { read, ..store.levels() };
    let Levels { write, fold, .. } = levels;
    let placement = store.placement();
    let place = placement.as_ref().map_or_else(String::new, |placement| format!("; {placement}"));
    let named = format!("write {write}, read {read}, fold {fold}");
    report.say("store", Ok(format!("{}, {named}{place}; the table is correct", store.name())));
    // Opening the store has checked the level at which it is read here.
    let checked = placement.map(|placement| placement.check(levels));
    if let Some(Err(error)) = checked {
        report.say("levels", Err(error.to_string()));
    }
    match store.versions().await {
        Ok(nodes) => {
            match upgrade(&nodes) {
                Err(unfinished) => report.warn("versions", &unfinished),
                found => report.say("versions", found),
            }
            if let Some(advice) = scrub(&nodes) {
                report.note("scrub", &advice);
            }
        }
        Err(error) => report.say("versions", Err(error.to_string())),
    }
    let offset = match store.clock_offset_us() {
        Some(offset_us) => {
            let offset = Duration::from_micros(offset_us.unsigned_abs());
            format!("largest measured offset {offset:?}")
        }
        None => "there is no second clock to compare with".into(),
    };
    let trusted = store.check_clock(clock.now());
    report.say("clock", trusted.map(|()| offset).map_err(|error| error.to_string()));
    let may_fold = store.fold_time(clock.now());
    let may_fold = may_fold.map(|_| "allowed".into()).map_err(|error| error.to_string());
    report.say("folding", may_fold);
    if let Some(gap) = store.log_gap(clock.now().wall) {
        report.say("resets", Err(gap.to_string()));
    }
}

/// The number of nodes per release. An error if they run several, as during an upgrade.
fn upgrade(nodes: &BTreeMap<String, usize>) -> Result<String, String> {
    let each = nodes.iter().map(|(release, count)| format!("{count} × {release}"));
    let all = each.collect::<Vec<_>>().join(", ");
    match nodes.len() {
        0 => Ok("the embedded store of this program".to_owned()),
        1 => Ok(all),
        _ => Err(format!("{all}; finish the upgrade before anything else")),
    }
}

/// Advice against `nodetool scrub`, if a node has a release whose scrub loses rows. Scrub ends with exit code 0 then, so
/// operators do not notice the loss.
fn scrub(nodes: &BTreeMap<String, usize>) -> Option<String> {
    let loses = nodes.keys().find(|release| scrub_loses_rows(release))?;
    Some(format!(
        "do not run `nodetool scrub` or `sstablescrub` on these tables: on Cassandra {loses} it drops every group in \
         which keys were folded; docs/operate/cassandra.md says what to do if it happened"
    ))
}

/// Checks the rows of some keys of every kind, and the size of their groups.
async fn look_at_keys(
    report: &mut Report,
    store: &Arc<dyn Store>,
    constants: Constants,
    sample: usize,
) {
    let node = Node::for_tool(store, constants, Arc::new(SystemClock), Switch::Off);
    let mut look = Look::new(store.as_ref(), node.service(), constants);
    let mut kinds = Vec::new();
    for &kind in Kind::ALL {
        let start = store.groups_somewhere(&Random::system());
        match groups_from(node.service(), kind, start).await {
            Ok(groups) if groups.is_empty() => {}
            Ok(groups) => {
                let all = groups.into_iter().map(|group| GroupQuery::all(kind, group, 0));
                kinds.push(all.collect::<VecDeque<_>>());
            }
            Err(error) => look.wrong.push(format!("keys of kind {kind}: {error}")),
        }
    }
    // The other kinds get the share of the sample that one kind does not need.
    let mut left = sample;
    while left > 0 && !kinds.is_empty() {
        let share = left.div_ceil(kinds.len());
        for groups in &mut kinds {
            left -= look.at_kind(groups, share.min(left)).await;
        }
        kinds.retain(|groups| !groups.is_empty());
    }
    look.tell(report, sample - left);
}

/// A page of groups of a kind. If the list ends, the page goes on at its beginning. One page is a sample: a
/// list of all groups would read every partition.
async fn groups_from(
    service: &Service,
    kind: Kind,
    start: Option<GroupCursor>,
) -> anyhow::Result<Vec<Name>> {
    let list = service.groups(kind, start.as_ref(), limits::PAGE_DEFAULT).await?;
    let mut groups = list.groups;
    if start.is_some() && list.next.is_none() {
        let first = service.groups(kind, None, limits::PAGE_DEFAULT).await?.groups;
        let seen: HashSet<Name> = groups.iter().cloned().collect();
        groups.extend(first.into_iter().filter(|group| !seen.contains(group)));
    }
    Ok(groups)
}

/// Checks keys and their groups.
struct Look<'a> {
    store: &'a dyn Operators,
    service: &'a Service,
    constants: Constants,
    /// Groups that were checked.
    groups: usize,
    /// Names that were counted, over all groups.
    names: usize,
    large: Vec<String>,
    wrong: Vec<String>,
}

impl<'a> Look<'a> {
    fn new(store: &'a dyn Operators, service: &'a Service, constants: Constants) -> Look<'a> {
        let (groups, names, large, wrong) = (0, 0, Vec::new(), Vec::new());
        Look { store, service, constants, groups, names, large, wrong }
    }

    /// Checks up to `most` keys of a kind and returns how many it found. Removes groups without further keys.
    async fn at_kind(&mut self, groups: &mut VecDeque<GroupQuery>, most: usize) -> usize {
        let share = most.div_ceil(groups.len()).min(limits::PAGE_MAX);
        let mut left = most;
        while left > 0
            && let Some(mut query) = groups.pop_front()
        {
            query.limit = share.min(left);
            match self.at_group(&query).await {
                Ok((seen, behind)) => {
                    left -= seen;
                    if behind.is_some() {
                        groups.push_back(GroupQuery { behind, ..query });
                    }
                }
                Err(error) => {
                    self.wrong.push(format!("keys of {}/{}: {error}", query.kind, query.group));
                    // A store that does not answer is not asked again for each group.
                    groups.clear();
                }
            }
        }
        most - left
    }

    /// Checks keys of a group. Returns how many it found, and the last of them if the group has more.
    async fn at_group(&mut self, query: &GroupQuery) -> anyhow::Result<(usize, Option<Name>)> {
        let mut names = Vec::new();
        let taken = self.service.read_group(query, |name, _| {
            names.push(name);
            0
        });
        let next = taken.await?;
        let seen = names.len();
        if query.behind.is_none() {
            self.groups += 1;
            if next.is_some() {
                self.at_size(query).await?;
            }
        }
        for name in names {
            let key = Key { kind: query.kind, group: query.group.clone(), name };
            let shards = self.service.shards(&key).await;
            let rules = shards.map(|shards| broken_rules(&shards, &self.constants));
            for rule in rules.unwrap_or_else(|error| vec![error.to_string()]) {
                self.wrong.push(format!("{key}: {rule}"));
            }
        }
        Ok((seen, next))
    }

    /// Counts the names of a group, until it is clear that there are too many.
    async fn at_size(&mut self, query: &GroupQuery) -> anyhow::Result<()> {
        const TOO_MANY: usize = limits::GROUP_NAMES_ALERT + 1;
        if self.names < NAMES_COUNTED_MAX {
            let names = self.store.count_names(query.kind, &query.group, TOO_MANY).await?;
            self.names += names;
            if names == TOO_MANY {
                self.large.push(format!("{}/{}", query.kind, query.group));
            }
        }
        Ok(())
    }

    fn tell(self, report: &mut Report, keys: usize) {
        let found = format!("{keys} in {} groups keep the rules", self.groups);
        report.say(
            "keys",
            if self.wrong.is_empty() { Ok(found) } else { Err(self.wrong.join("; ")) },
        );
        if !self.large.is_empty() {
            let (large, most) = (self.large.join(", "), limits::GROUP_NAMES_ALERT);
            let why =
                format!("more than {most} names in {large}; count new names under more groups");
            report.warn("groups", &why);
        }
    }
}

/// The rules that the rows of a key break.
fn broken_rules(report: &ShardsReport, constants: &Constants) -> Vec<String> {
    let mut wrong = Vec::new();
    let reset = report.tally.as_ref().and_then(|tally| tally.reset.as_ref());
    let evidence = |fence| evidence(fence, reset.map(Remembered::generation), constants);
    match report.tally.as_ref().map(|tally| &tally.content) {
        Some(Err(error)) => wrong.push(error.to_string()),
        Some(Ok((fence, _))) if proves_moved_clock(evidence(*fence), report.now, constants) => {
            wrong.push("its fence is in the future: a clock has moved".to_owned());
        }
        _ => {}
    }
    wrong.extend(
        report.shards.iter().filter_map(|shard| Some(shard.state.as_ref().err()?.to_string())),
    );
    // Ten sweeps have passed.
    let patience = constants.lifetime() + constants.cutoff() + 10 * constants.sweep_every();
    let unfolded = report.shards.iter().filter(|shard| {
        shard.phase == Phase::Final && report.now.since(shard.expires_at) > patience
    });
    match unfolded.count() {
        // A single shard waits for a second one.
        0 | 1 => {}
        count => wrong
            .push(format!("{count} shards have waited long to be folded; check that folds run")),
    }
    if report.shards.len() > limits::ROWS_ALERT {
        let rows = report.shards.len();
        wrong.push(format!("it has {rows} shards: pods restart too often, or folds lag"));
    }
    wrong
}

async fn look_at_pods(report: &mut Report, args: &DoctorArgs) {
    let mut versions = Vec::new();
    for url in &args.urls {
        let shown = connect::shown(url);
        match look_at_pod(url, &args.connect).await {
            Ok(version) => {
                report.say("pod", Ok(format!("{shown} is ready, version {version}")));
                versions.push(version);
            }
            Err(error) => report.say("pod", Err(format!("{shown}: {error:#}"))),
        }
    }
    versions.sort();
    versions.dedup();
    if versions.len() > 1 {
        let all = versions.join(" and ");
        report.say("pods", Err(format!("they run {all}; finish the roll")));
    }
}

async fn look_at_pod(url: &Url, connect: &ConnectArgs) -> anyhow::Result<String> {
    let client = connect.client(url)?;
    let get = async |path: &str| match client
        .get(url.join(path)?)
        .timeout(ANSWER_TIME_MAX)
        .send()
        .await
    {
        Ok(answer) => Ok::<_, anyhow::Error>(answer),
        Err(error) => Err(connect::explain(url, error).await.error),
    };
    let ready = get("readyz?verbose").await?;
    if !ready.status().is_success() {
        let problem: Value = ready.json().await?;
        anyhow::bail!("not ready: {}", problem["detail"].as_str().unwrap_or("no reason"));
    }
    let version = get("version").await?;
    anyhow::ensure!(
        version.status().is_success(),
        "it does not serve its version here; if it has an admin address, use that one"
    );
    let version: Value = version.json().await?;
    Ok(version["version"].as_str().unwrap_or("unknown").to_owned())
}

#[cfg(test)]
mod tests {
    use orderfree_core::protocol::{Durability, Overrides};

    use super::*;
    use crate::store::embedded::EmbeddedStore;

    #[tokio::test]
    async fn a_list_that_begins_in_between_goes_on_at_the_beginning() {
        let folder = tempfile::tempdir().expect("a folder");
        let constants = Constants::resolve(Overrides::default()).expect("defaults");
        let clock = Arc::new(SystemClock);
        let store = EmbeddedStore::open(&folder.path().join("file"), constants, clock.clone());
        let store: Arc<dyn Store> = Arc::new(store.expect("a store"));
        let node = Node::for_tool(&store, constants, clock, Switch::Off);
        let name = |text: &str| Name::new(text).expect("a name");
        let kind = Kind::Counter;
        for group in ["a", "b", "c"] {
            let key = Key { kind, group: name(group), name: name("n") };
            let op = kind.read_bare_op("5").expect("an op");
            node.service().update(&key, vec![op], Durability::Stored).await.expect("acked");
        }
        for (start, order) in [(None, "abc"), (Some(0), "abc"), (Some(1), "bca"), (Some(3), "abc")]
        {
            let groups = groups_from(node.service(), kind, start.map(GroupCursor)).await;
            let groups: String = groups.expect("a list").iter().map(Name::as_str).collect();
            assert_eq!(groups, order, "{start:?}");
        }
    }

    #[test]
    fn nodes_of_two_releases_are_an_upgrade_that_is_not_finished() {
        let nodes = |releases: &[(&str, usize)]| {
            let named = releases.iter().map(|(name, count)| ((*name).to_owned(), *count));
            upgrade(&named.collect())
        };
        assert_eq!(nodes(&[]), Ok("the embedded store of this program".to_owned()));
        assert_eq!(nodes(&[("5.0.6", 3)]), Ok("3 × 5.0.6".to_owned()));
        let mixed = "1 × 4.1.7, 2 × 5.0.6; finish the upgrade before anything else";
        assert_eq!(nodes(&[("4.1.7", 1), ("5.0.6", 2)]), Err(mixed.to_owned()));
    }

    #[test]
    fn scrub_is_warned_of_where_it_loses_rows() {
        let nodes = |releases: &[&str]| {
            scrub(&releases.iter().map(|name| ((*name).to_owned(), 3)).collect())
        };
        assert_eq!(nodes(&[]), None);
        assert_eq!(nodes(&["4.1.10", "unknown"]), None);
        let advice = nodes(&["4.1.10", "5.0.6"]).expect("advice");
        assert!(advice.contains("nodetool scrub") && advice.contains("5.0.6"), "{advice}");
    }
}
