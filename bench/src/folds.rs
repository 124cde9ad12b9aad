//! Folds: how many per second, the cost of reads after them, and the space left on disk.
//!
//! The product's own mutators write shards with a clock that is behind, so the shards are final at once. They are
//! flushed to disk before a pod with the right clock folds them. Every value is read before and after.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use futures::future::try_join_all;
use futures::stream::{self, StreamExt, TryStreamExt};
use orderfree::engine::service::Service;
use orderfree::engine::write::Bounds;
use orderfree::pod::config::{StoreArgs, StoreConfig};
use orderfree::pod::node::{Node, Parts};
use orderfree::pod::start;
use orderfree::runtime::clock::{Clock, SystemClock};
use orderfree::runtime::random::Random;
use orderfree::store::Store;
use orderfree::store::cassandra::schema;
use orderfree_core::crdt::{Counter, CounterOp, Kind, Op};
use orderfree_core::protocol::{
    Begin, Constants, Durability, Key, Mutator, Name, Now, ShardWrite, Timestamp,
};
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use tokio::process::Command;

use crate::figures::{spread, thousands};
use crate::machine;
use crate::peers::store_args;
use crate::report::publish;
use crate::server::mark;

/// Concurrent requests.
const AT_ONCE: usize = 64;

/// Keys per group, where keys share one.
const GROUP_KEYS: usize = 100;

/// Numbers of shards per key for which reads are measured.
const SHARDS_OF_READS: [usize; 4] = [1, 10, 100, 1_000];

/// Age of the final shards when they are folded.
const FINAL_SINCE: Duration = Duration::from_secs(3_600);

/// Time until Cassandra may purge a deletion from a table with `gc_grace_seconds = 1`.
const PURGEABLE_AFTER: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Args)]
#[command(args_override_self = true)]
pub(crate) struct FoldsArgs {
    /// Cassandra's contact points.
    #[arg(long, value_delimiter = ',', required = true, value_name = "HOST:PORT")]
    cassandra: Vec<String>,
    /// The script tests/cassandra/cluster, which flushes and compacts the nodes.
    #[arg(long, value_name = "SCRIPT")]
    nodes: PathBuf,
    /// A description of the store's configuration, shown above the figures.
    #[arg(long, value_name = "TEXT")]
    mode: String,
    /// Keys to fold per round.
    #[arg(long, default_value_t = 4_000, value_name = "COUNT")]
    keys: usize,
    /// Shards per key.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(2..), value_name = "COUNT")]
    shards: u16,
    /// Rounds per measurement.
    #[arg(long, default_value_t = 3, value_name = "COUNT")]
    rounds: usize,
    /// Time for which each read is repeated in a round.
    #[arg(long, default_value = "4s", value_parser = humantime::parse_duration, value_name = "TIME")]
    length: Duration,
    /// Length of reads and folds before the first round. The JVM takes minutes to compile hot code.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration, value_name = "TIME")]
    warm_up: Duration,
    /// File for the tables, which are also printed.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// A clock that is behind, so that shards written with it are already final.
struct Behind(Duration);

impl Clock for Behind {
    fn now(&self) -> Now {
        let Now { wall, boot } = SystemClock.now();
        Now { wall: wall.minus(self.0), boot }
    }
}

/// A keyspace of its own.
struct Place<'a> {
    args: &'a FoldsArgs,
    store: StoreArgs,
    constants: Constants,
    /// For statements that the product never sends.
    session: Session,
}

/// # Errors
/// If the store can't be used, or a value changed.
pub(crate) async fn run(args: FoldsArgs) -> anyhow::Result<()> {
    let place = Place::new(&args).await?;
    let mut text = format!("## Folds: {}\n\n{}\n", args.mode, machine::describe());
    let measured = place.measure(&mut text).await;
    let drop = format!("DROP KEYSPACE {}", place.store.keyspace);
    place.session.query_unpaged(drop, ()).await?;
    // Print what was measured even if a later step failed.
    publish(&text, args.output.as_deref())?;
    measured
}

impl Place<'_> {
    async fn new(args: &FoldsArgs) -> anyhow::Result<Place<'_>> {
        let store = store_args(&args.cassandra, &format!("bench_{}", mark()), Path::new(""))?;
        let constants = store.constants()?;
        let StoreConfig::Cassandra(config) = store.resolve()? else {
            unreachable!("invariant: contact points are required")
        };
        schema::apply(&config, None, true).await?;
        let session = SessionBuilder::new().known_nodes(&args.cassandra).build().await?;
        session.use_keyspace(&store.keyspace, false).await?;
        Ok(Place { args, store, constants, session })
    }

    async fn measure(&self, text: &mut String) -> anyhow::Result<()> {
        self.warm_up().await?;
        self.folds(text).await?;
        self.reads(text).await?;
        self.disk(text).await
    }

    async fn open(&self, clock: Arc<dyn Clock>) -> anyhow::Result<Arc<dyn Store>> {
        start::open_store(self.store.resolve()?, self.constants, clock).await
    }

    /// A pod that folds only when the benchmark calls it.
    async fn pod(&self) -> anyhow::Result<(Arc<dyn Store>, Node)> {
        let clock = Arc::new(SystemClock);
        let store = self.open(clock.clone()).await?;
        let node = Node::new(Parts {
            bounds: Bounds::awake(1),
            ..Parts::new(Arc::clone(&store), self.constants, clock)
        });
        Ok((store, node))
    }

    /// Writes `shards` final shards per key, each of which counts one, and flushes them to disk.
    async fn fill(&self, keys: &[Key], shards: usize) -> anyhow::Result<()> {
        let behind = self.constants.lifetime() + self.constants.cutoff() + FINAL_SINCE;
        let clock = Arc::new(Behind(behind));
        let store = self.open(clock.clone()).await?;
        let rows_max = store.request_limits().rows_max;
        let writes = keys.iter().map(|key| {
            let (store, now) = (&store, clock.now());
            async move {
                let shards: Vec<_> =
                    (0..shards).map(|_| shard(key, now, &self.constants)).collect();
                for part in shards.chunks(rows_max) {
                    let outcome = store.write_shards(part).await;
                    ensure!(outcome.is_ok(), "{key}: {outcome:?}");
                }
                anyhow::Ok(())
            }
        });
        stream::iter(writes).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
        store.close().await;
        self.nodetool_all(&["flush", &self.store.keyspace]).await
    }

    /// Warms up with folds, and with reads before and after them.
    async fn warm_up(&self) -> anyhow::Result<()> {
        let (begun, mut round) = (Instant::now(), 0);
        while begun.elapsed() < self.args.warm_up {
            eprintln!("warm-up: folds and reads");
            let keys = keys(&format!("warm-{round}"), 1_000, GROUP_KEYS);
            self.fill(&keys, 10).await?;
            let (store, node) = self.pod().await?;
            let reads = Reads::OfStore(Arc::clone(&store), None);
            reads_a_second(reads.clone(), &keys[0], Duration::from_secs(2)).await?;
            node.folder().sweep_once().await?;
            reads_a_second(reads, &keys[0], Duration::from_secs(2)).await?;
            store.close().await;
            round += 1;
        }
        Ok(())
    }

    /// The number of keys per second that one pod's sweep folds.
    async fn folds(&self, text: &mut String) -> anyhow::Result<()> {
        let (count, shards) = (self.args.keys, usize::from(self.args.shards));
        let kinds = [
            ("each in a group of its own".to_owned(), 1),
            (format!("{GROUP_KEYS} in each group"), GROUP_KEYS),
        ];
        let mut rates = [Vec::new(), Vec::new()];
        for round in 0..self.args.rounds {
            for ((title, group_keys), rates) in kinds.iter().zip(&mut rates) {
                let keys = keys(&format!("folds-{round}-{group_keys}"), count, *group_keys);
                self.fill(&keys, shards).await?;
                let (store, node) = self.pod().await?;
                check(&node, &keys, shards).await?;
                machine::quiet().await?;
                let begun = Instant::now();
                let report = node.folder().sweep_once().await?;
                let seconds = begun.elapsed().as_secs_f64();
                ensure!(report.folded == count, "not all {count} keys were folded: {report:?}");
                check(&node, &keys, shards).await?;
                store.close().await;
                let rate = count as f64 / seconds;
                eprintln!("{round} {title}: {rate:.0} folds/s");
                rates.push(rate);
            }
        }
        writeln!(
            text,
            "\n### {} keys of {shards} final shards, one pod's sweep\n",
            thousands(count as f64)
        )?;
        writeln!(text, "| | folds/s |\n| --- | --- |")?;
        for ((title, _), rates) in kinds.iter().zip(rates) {
            writeln!(text, "| {title} | {} |", spread(&rates))?;
        }
        Ok(())
    }

    /// The cost of reading a key with this many shards, before and after its fold: from the store (without HTTP,
    /// merging and shared reads), and from a pod (without HTTP).
    async fn reads(&self, text: &mut String) -> anyhow::Result<()> {
        let mut rates = SHARDS_OF_READS.map(|_| [const { Vec::new() }; 5]);
        for round in 0..self.args.rounds {
            for (shards, rates) in SHARDS_OF_READS.into_iter().zip(&mut rates) {
                let found = self.reads_of(round, shards).await?;
                eprintln!("{round} {shards} shards: {found:.0?} reads/s");
                found.into_iter().zip(rates).for_each(|(rate, rates)| rates.push(rate));
            }
        }
        writeln!(text, "\n### Reads of one key in a second, {AT_ONCE} at once\n")?;
        writeln!(
            text,
            "| shards | before their fold | after it, from its fence | after it, from the start | \
             deleted one by one instead | after it, by a pod, whose clients share reads |\n\
             | --- | --- | --- | --- | --- | --- |"
        )?;
        for (shards, rates) in SHARDS_OF_READS.into_iter().zip(rates) {
            let cells = rates.map(|rates| spread(&rates)).join(" | ");
            writeln!(text, "| {} | {cells} |", thousands(shards as f64))?;
        }
        Ok(())
    }

    async fn reads_of(&self, round: usize, shards: usize) -> anyhow::Result<[f64; 5]> {
        let both = keys(&format!("reads-{round}-{shards}"), 2, 1);
        let [folded, deleted] = both.as_slice() else { unreachable!("invariant: two keys") };
        self.fill(&both, shards).await?;
        let (store, node) = self.pod().await?;
        check(&node, &both, shards).await?;
        let rate = async |key: &Key, after| {
            machine::quiet().await?;
            let reads = Reads::OfStore(Arc::clone(&store), after);
            reads_a_second(reads, key, self.args.length).await
        };
        let before = rate(folded, None).await?;
        let fold = node.service().fold(folded, false).await?;
        let fence = fold.fence.context("a folded key has a fence")?;
        self.delete_one_by_one(&store, folded, deleted).await?;
        self.nodetool_all(&["flush", &self.store.keyspace]).await?;
        let ways = [(folded, Some(fence)), (folded, None), (deleted, None)];
        let mut after = [0.0; 3];
        // The order of reads is reversed in every other round.
        for turn in 0..ways.len() {
            let at = (turn + round) % ways.len();
            let (key, fence) = ways[at];
            after[at] = rate(key, fence).await?;
        }
        let [from_fence, from_start, one_by_one] = after;
        machine::quiet().await?;
        let by_pod = Reads::OfPod(Arc::clone(node.service()));
        let by_pod = reads_a_second(by_pod, folded, self.args.length).await?;
        check(&node, &both, shards).await?;
        store.close().await;
        Ok([before, from_fence, from_start, one_by_one, by_pod])
    }

    /// The cost of folds without range deletions: the tally as in `folded`, and one tombstone per shard.
    async fn delete_one_by_one(
        &self,
        store: &Arc<dyn Store>,
        folded: &Key,
        key: &Key,
    ) -> anyhow::Result<()> {
        let level = store.levels().read;
        let tally = store.read_key(folded, None, level).await?;
        let tally = tally.tally().context("a folded key has a tally")?;
        let delete = "DELETE FROM shards USING TIMESTAMP ? \
                      WHERE kind = ? AND grp = ? AND name = ? AND expires_at = ? AND mutator_id = ?";
        let delete = self.session.prepare(delete).await?;
        let (kind, group, name) = (key.kind.name(), key.group.as_str(), key.name.as_str());
        let above = SystemClock.now().wall.as_micros();
        for row in store.read_key(key, None, level).await?.shards() {
            let (expires_at, id) = (row.expires_at.as_micros(), row.mutator_id.as_uuid());
            let values = (above, kind, group, name, expires_at, id);
            self.session.execute_unpaged(&delete, values).await?;
        }
        let insert = "INSERT INTO shards (kind, grp, name, expires_at, mutator_id, state) \
                      VALUES (?, ?, ?, ?, ?, ?) USING TIMESTAMP ?";
        let (expires_at, id) = (tally.expires_at.as_micros(), tally.mutator_id.as_uuid());
        let values = (kind, group, name, expires_at, id, &tally.state, above);
        self.session.query_unpaged(insert, values).await?;
        Ok(())
    }

    /// Bytes on disk per key after everything is folded and compacted, compared with native counters that got one
    /// increment per shard.
    async fn disk(&self, text: &mut String) -> anyhow::Result<()> {
        let (session, keyspace) = (&self.session, self.store.keyspace.as_str());
        let native =
            "CREATE TABLE native (grp text, name text, c counter, PRIMARY KEY (grp, name))";
        session.query_unpaged(native, ()).await?;
        let add = session.prepare("UPDATE native SET c = c + 1 WHERE grp = ? AND name = ?").await?;
        let (count, shards) = (self.args.keys, usize::from(self.args.shards));
        let all: Vec<Key> = [1, GROUP_KEYS]
            .into_iter()
            .flat_map(|group_keys| keys(&format!("disk-{group_keys}"), count, group_keys))
            .collect();
        session.query_unpaged("TRUNCATE shards", ()).await?;
        self.fill(&all, shards).await?;
        self.nodetool_all(&["compact", keyspace]).await?;
        let each = all.len() as f64;
        let shard = self.live_bytes("shards").await? / (each * shards as f64);
        let (store, node) = self.pod().await?;
        let report = node.folder().sweep_once().await?;
        ensure!(report.folded == all.len(), "not all keys were folded: {report:?}");
        store.close().await;
        let adds = all.iter().flat_map(|key| {
            let values = (key.group.as_str(), key.name.as_str());
            (0..shards).map(move |_| values)
        });
        let adds = adds.map(|values| session.execute_unpaged(&add, values));
        stream::iter(adds).buffer_unordered(AT_ONCE).try_collect::<Vec<_>>().await?;
        for table in ["shards", "native"] {
            let purge_soon = format!("ALTER TABLE {table} WITH gc_grace_seconds = 1");
            session.query_unpaged(purge_soon, ()).await?;
        }
        tokio::time::sleep(PURGEABLE_AFTER).await;
        self.nodetool_all(&["flush", keyspace]).await?;
        self.nodetool_all(&["compact", keyspace]).await?;
        let (ours, native) =
            (self.live_bytes("shards").await? / each, self.live_bytes("native").await? / each);
        writeln!(
            text,
            "\n### Bytes on disk of a key on one node, folded and compacted, {} keys\n\n\
             | a shard before | ours | native | ours against it |\n| --- | --- | --- | --- |\n\
             | {shard:.1} | {ours:.1} | {native:.1} | {:.2}× |",
            thousands(each),
            ours / native
        )?;
        Ok(())
    }

    async fn nodetool(&self, node: usize, words: &[&str]) -> anyhow::Result<String> {
        let node = node.to_string();
        let mut command = Command::new(&self.args.nodes);
        let said = command.args(["nodetool", &node]).args(words).output().await?;
        let trouble = String::from_utf8_lossy(&said.stderr);
        ensure!(said.status.success(), "nodetool {} failed: {trouble}", words.join(" "));
        Ok(String::from_utf8_lossy(&said.stdout).into_owned())
    }

    async fn nodetool_all(&self, words: &[&str]) -> anyhow::Result<()> {
        for node in 1..=self.args.cassandra.len() {
            self.nodetool(node, words).await?;
        }
        Ok(())
    }

    /// Live bytes of a table on node 1.
    async fn live_bytes(&self, table: &str) -> anyhow::Result<f64> {
        let table = format!("{}.{table}", self.store.keyspace);
        let said = self.nodetool(1, &["tablestats", &table]).await?;
        let line = said.lines().find_map(|line| line.trim().strip_prefix("Space used (live): "));
        line.and_then(|bytes| bytes.trim().parse().ok())
            .with_context(|| format!("tablestats has no line for live space:\n{said}"))
    }
}

/// Keys with this prefix, a fixed number per group.
fn keys(mark: &str, count: usize, group_keys: usize) -> Vec<Key> {
    let name = |text: String| Name::new(&text).expect("invariant: a plain name");
    (0..count)
        .map(|at| Key {
            kind: Kind::Counter,
            group: name(format!("{mark}-{}", at / group_keys)),
            name: name(format!("k{at}")),
        })
        .collect()
}

/// The only write of a new mutator, which counts one.
fn shard(key: &Key, now: Now, constants: &Constants) -> ShardWrite {
    let id = Random::system().mutator_id();
    let mut mutator = Mutator::born(key.clone(), id, None, now, constants);
    let ops = vec![Op::Counter(CounterOp::Add { by: 1 })];
    mutator.accept(ops, Durability::Stored, now).expect("invariant: a new mutator takes one");
    match mutator.begin_write(now) {
        Begin::Write(write) => write,
        other => unreachable!("invariant: a new mutator has something to write, not {other:?}"),
    }
}

/// Checks that every key has this value.
async fn check(node: &Node, keys: &[Key], expected: usize) -> anyhow::Result<()> {
    let reads = keys.iter().map(|key| async move {
        let value = node.service().read(key, None).await?.context("a key is gone")?;
        let total = Counter::try_from(value.state.clone()).ok().context("no counter")?.total();
        ensure!(total == expected as i128, "{key} is {total} instead of {expected}");
        anyhow::Ok(())
    });
    stream::iter(reads).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await.map(drop)
}

/// A reader whose reads are counted.
#[derive(Clone)]
enum Reads {
    /// Reads the rows above a fence from the store.
    OfStore(Arc<dyn Store>, Option<Timestamp>),
    OfPod(Arc<Service>),
}

impl Reads {
    async fn once(&self, key: &Key) -> anyhow::Result<()> {
        match self {
            Reads::OfStore(store, after) => {
                store.read_key(key, *after, store.levels().read).await?;
            }
            Reads::OfPod(service) => {
                service.read(key, None).await?.context("a key is gone")?;
            }
        }
        Ok(())
    }
}

/// Reads of one key per second.
async fn reads_a_second(reads: Reads, key: &Key, length: Duration) -> anyhow::Result<f64> {
    let (count, begun) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let lanes = (0..AT_ONCE).map(|_| {
        let (reads, key, count) = (reads.clone(), key.clone(), Arc::clone(&count));
        tokio::spawn(async move {
            while begun.elapsed() < length {
                reads.once(&key).await?;
                count.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        })
    });
    for lane in try_join_all(lanes).await? {
        lane?;
    }
    Ok(count.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64())
}
