//! `doctor`: checks an installation from the outside in, and says what to do.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::fold::proves_moved_clock;
use orderfree_core::protocol::{Constants, Key, Phase};
use reqwest::Url;
use serde_json::Value;

use super::connect::{self, ConnectArgs};
use super::output::say;
use crate::clock::{Clock, SystemClock};
use crate::config::{StoreArgs, Switch};
use crate::limits;
use crate::server::{self, Node};
use crate::service::{GroupQuery, Service, ShardsReport};
use crate::store::Store;

/// Longest time of a pod's answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// How many keys to look at: as many of each kind, spread over its groups.
    #[arg(long, default_value_t = 100, value_name = "COUNT")]
    sample: usize,
    /// A pod to ask for its version and whether it is ready: the address of its operators, if it has one.
    /// May be given more than once.
    #[arg(long = "url", value_name = "URL")]
    urls: Vec<Url>,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// What was looked at.
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
            let advice = constants.warning().unwrap_or_else(|| "consistent".into());
            report.say("configuration", Ok(advice));
            let clock = Arc::new(SystemClock);
            // Opening checks reachability, credentials, engine, table properties, replication and levels.
            match server::open_store(config, constants, clock).await {
                Err(error) => report.say("store", Err(format!("{error:#}"))),
                Ok(store) => {
                    look_at_store(&mut report, &store).await;
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

async fn look_at_store(report: &mut Report, store: &Arc<dyn Store>) {
    let clock = SystemClock;
    let levels = store.levels();
    let levels = format!("write {}, read {}, fold {}", levels.write, levels.read, levels.fold);
    report.say("store", Ok(format!("{}, {levels}; the table is as it must be", store.name())));
    report.say("versions", store.versions().await.map_err(|error| error.to_string()));
    let offset = match store.clock_offset_us() {
        Some(offset_us) => {
            let offset = Duration::from_micros(offset_us.unsigned_abs());
            format!("largest measured offset {offset:?}")
        }
        None => "no second clock to compare with".into(),
    };
    let trusted = store.check_clock(clock.now());
    report.say("clock", trusted.map(|()| offset).map_err(|error| error.to_string()));
    let may_fold = store.fold_time(clock.now());
    let may_fold = may_fold.map(|_| "allowed".into()).map_err(|error| error.to_string());
    report.say("folding", may_fold);
}

/// Looks at the rows of some keys, of every kind, whether they keep the rules.
async fn look_at_keys(
    report: &mut Report,
    store: &Arc<dyn Store>,
    constants: Constants,
    sample: usize,
) {
    let node = Node::for_tool(store, constants, Arc::new(SystemClock), Switch::Off);
    let (mut looked_at, mut groups, mut wrong) = (0, 0, Vec::new());
    for &kind in Kind::ALL {
        let most = sample.div_ceil(Kind::ALL.len());
        let result =
            look_at_kind(node.service(), kind, most, &constants, &mut looked_at, &mut wrong);
        match result.await {
            Ok(seen) => groups += seen,
            Err(error) => wrong.push(format!("keys of kind {kind}: {error}")),
        }
    }
    let found = format!("{looked_at} in {groups} groups keep the rules");
    report.say("keys", if wrong.is_empty() { Ok(found) } else { Err(wrong.join("; ")) });
}

/// Returns how many groups it met.
async fn look_at_kind(
    service: &Service,
    kind: Kind,
    most: usize,
    constants: &Constants,
    looked_at: &mut usize,
    wrong: &mut Vec<String>,
) -> anyhow::Result<usize> {
    // One page is a sample: a list of all groups would read every partition.
    let list = service.groups(kind, None, limits::PAGE_DEFAULT).await?;
    let mut left = most;
    for group in &list.groups {
        let query = GroupQuery::all(kind, group.clone(), left.min(most.div_ceil(10)));
        if query.limit == 0 {
            break;
        }
        for entry in service.read_group(&query).await?.keys {
            let key = Key { kind, group: group.clone(), name: entry.name };
            let shards = service.shards(&key).await;
            let rules = shards.map(|shards| broken_rules(&shards, constants));
            for rule in rules.unwrap_or_else(|error| vec![error.to_string()]) {
                wrong.push(format!("{key}: {rule}"));
            }
            left -= 1;
            *looked_at += 1;
        }
    }
    Ok(list.groups.len())
}

/// What the rows of a key show that they must not.
fn broken_rules(report: &ShardsReport, constants: &Constants) -> Vec<String> {
    let mut wrong = Vec::new();
    match report.tally.as_ref().map(|tally| &tally.content) {
        Some(Err(error)) => wrong.push(error.to_string()),
        Some(Ok((fence, _))) if proves_moved_clock(*fence, report.now, constants) => {
            wrong.push("its fence lies in the future: a clock has moved".to_owned());
        }
        _ => {}
    }
    wrong.extend(
        report.shards.iter().filter_map(|shard| Some(shard.state.as_ref().err()?.to_string())),
    );
    // A sweep takes about a cutoff.
    let patience = constants.lifetime() + 10 * constants.cutoff();
    let unfolded = report.shards.iter().filter(|shard| {
        shard.phase == Phase::Final && report.now.since(shard.expires_at) > patience
    });
    match unfolded.count() {
        // One alone waits for a second.
        0 | 1 => {}
        count => wrong.push(format!("{count} shards wait to be folded for long; do folds run?")),
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
    let get = async |path: &str| {
        let request = client.get(url.join(path)?).timeout(ANSWER_TIME_MAX);
        Ok::<_, anyhow::Error>(request.send().await?)
    };
    let ready = get("readyz?verbose").await?;
    if !ready.status().is_success() {
        let problem: Value = ready.json().await?;
        anyhow::bail!("not ready: {}", problem["detail"].as_str().unwrap_or("no reason"));
    }
    let version = get("version").await?;
    anyhow::ensure!(
        version.status().is_success(),
        "it tells its version at its operators' address only"
    );
    let version: Value = version.json().await?;
    Ok(version["version"].as_str().unwrap_or("unknown").to_owned())
}
