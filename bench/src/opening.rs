//! The time to open an embedded file, which includes checking it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use orderfree::runtime::clock::{Clock, SystemClock};
use orderfree::store::Store;
use orderfree::store::embedded::{EmbeddedStore, SHARDS};
use orderfree_core::crdt::envelope::{KeySeal, encode_shard};
use orderfree_core::crdt::item::Item;
use orderfree_core::crdt::{GSetOp, Kind, Op, State};
use orderfree_core::protocol::{Constants, MutatorId, Overrides, Timestamp};
use redb::Database;
use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;
use tokio::time::Instant;
use uuid::Uuid;

use crate::figures::thousands;

/// Rows per transaction.
const ROWS_AT_ONCE: usize = 50_000;

#[derive(Debug, Clone, Args)]
pub(crate) struct OpeningArgs {
    /// Sizes of the files in GB.
    #[arg(long, value_delimiter = ',', default_value = "1,10", value_name = "GB")]
    sizes: Vec<usize>,
    /// Bytes of a row's state.
    #[arg(long, default_value_t = 1_000, value_name = "BYTES")]
    state: usize,
    /// Folder for the files.
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

pub(crate) async fn run(args: OpeningArgs) -> anyhow::Result<()> {
    println!("| GB | keys | opened from the disk | from the system's cache |");
    println!("| --: | --: | --: | --: |");
    for &size in &args.sizes {
        let folder = match &args.folder {
            Some(folder) => TempDir::new_in(folder)?,
            None => TempDir::new()?,
        };
        let path = folder.path().join("opening.redb");
        let keys = fill(&path, size * 1_000_000_000, args.state).await?;
        let mut took = Vec::new();
        for from_disk in [true, false] {
            if from_disk {
                let file = File::open(&path)?;
                file.sync_all()?;
                fadvise(&file, 0, None, Advice::DontNeed)?;
            }
            let began = Instant::now();
            let store = open(&path)?;
            took.push(began.elapsed().as_secs_f64());
            let found = store.contents().map(|contents| contents.keys);
            anyhow::ensure!(found == Some(keys as u64), "it lost keys");
            store.close().await;
        }
        let bytes = path.metadata()?.len() as f64 / 1e9;
        println!(
            "| {bytes:.1} | {} | {:.1} s | {:.1} s |",
            thousands(keys as f64),
            took[0],
            took[1]
        );
    }
    Ok(())
}

fn open(path: &Path) -> anyhow::Result<EmbeddedStore> {
    let constants = Constants::resolve(Overrides::default()).context("the defaults")?;
    Ok(EmbeddedStore::open(path, constants, Arc::new(SystemClock))?)
}

/// One row per key, as pods write them.
async fn fill(path: &Path, bytes: usize, state_bytes: usize) -> anyhow::Result<usize> {
    open(path)?.close().await;
    let item = Item::text(&"x".repeat(state_bytes)).context("an item")?;
    let mut set = State::new(Kind::GSet, None);
    set.apply(&Op::GSet(GSetOp::Add { items: vec![item] }))?;
    let now_us = SystemClock.now().wall.as_micros();
    let expires_us = now_us + 1_000_000;
    let descending = !(expires_us.cast_unsigned() ^ (1 << 63));
    let database = Database::create(path)?;
    let mut keys = 0;
    while path.metadata()?.len() < bytes as u64 {
        let transaction = database.begin_write()?;
        let mut table = transaction.open_table(SHARDS)?;
        for _ in 0..ROWS_AT_ONCE {
            let (name, id) = (format!("{keys:010}"), Uuid::new_v4());
            let seal = KeySeal::of_parts("gset", "group", &name);
            let seal = seal.row(Timestamp::from_micros(expires_us), MutatorId::new(id));
            let state = encode_shard(seal, &set, 1);
            let row = ("gset", "group", name.as_str(), descending, id.as_u128());
            table.insert(row, (now_us, state.as_slice()))?;
            keys += 1;
        }
        drop(table);
        transaction.commit()?;
    }
    Ok(keys)
}
