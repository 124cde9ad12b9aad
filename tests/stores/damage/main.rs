//! Damaged files of the embedded store. Copies of an intact file get flipped bits in places that are in use, and every
//! program that reads the file runs on each copy. It must refuse the file with a sentence that names it, or return only
//! right values and name the keys that it can't read. It must never panic, or stay ready without doing its work.
//!
//! `make damage N=200` makes this many copies of a file of 55 MB. `DAMAGE_SEED=3` draws other places, which are the same
//! in every run, because the file depends only on its size and the hour. `DAMAGE_COPY=17` runs that copy alone.

mod file;
mod places;
#[path = "../../pods/operations/pod.rs"]
mod pod;
mod served;
mod tools;
mod verdict;
#[path = "../../pods/operations/wire.rs"]
mod wire;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use file::Keys;
use futures::{StreamExt, stream};
use places::{Damage, Places};
use tempfile::TempDir;
use verdict::{Class, Seen, Table};

/// Size of the file in MB, and the number of copies, in a plain `cargo test`.
const MB: usize = 8;
const COPIES: usize = 20;

/// The programs that run on each copy.
const TOOLS: usize = 3;

/// Copies that are checked at the same time.
const AT_ONCE: usize = 2;

fn number(name: &str) -> Option<usize> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a whole number: {text}")))
}

/// The intact file and its contents.
struct Intact {
    path: PathBuf,
    keys: Keys,
}

/// Runs every tool on its own damaged copy, because a tool may write into the file.
async fn meet(intact: &Intact, damage: &Damage, nth: usize) -> Vec<(&'static str, Seen)> {
    let folder = TempDir::new().expect("a folder");
    let copy = |tool: &str| {
        let copy = folder.path().join(format!("{tool}.redb"));
        damage.copy(&intact.path, &copy);
        copy
    };
    let mut all = Vec::new();
    let served = copy("serve");
    let seen = served::serve(&served, &intact.keys, nth).await;
    if seen.class() == Class::Refused {
        // A file that was refused must not be accepted the next time.
        let again = tools::doctor(&served).await;
        assert_eq!(again.class(), Class::Refused, "copy {nth}, opened again: {again}");
    }
    all.push(("serve", seen));
    fs::remove_file(served).expect("there is room for one of them");
    let exported = copy("export");
    all.push(("export", tools::export(&exported, &intact.keys).await));
    fs::remove_file(exported).expect("there is room for one of them");
    all.push(("doctor", tools::doctor(&copy("doctor")).await));
    all
}

/// Keeps the file for the analysis of a failure.
fn keep(file: &Path) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("damage");
    fs::create_dir_all(&folder).expect("a folder");
    let kept = folder.join("intact.redb");
    fs::copy(file, &kept).expect("there is room for a copy");
    kept
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_is_refused_or_reported_and_never_a_wrong_number() {
    let (mb, copies) = (number("DAMAGE_MB").unwrap_or(MB), number("DAMAGE_N").unwrap_or(COPIES));
    let seed = number("DAMAGE_SEED").unwrap_or_default();
    // One copy or all.
    let only = number("DAMAGE_COPY");
    let chosen = only.map_or(0..copies, |only| only..only + 1);
    let (folder, began) = (TempDir::new().expect("a folder"), Instant::now());
    let path = folder.path().join("intact.redb");
    let keys = file::build(&path, mb).await;
    let places = Places::of(&path).await;
    let (size, in_use) = (path.metadata().expect("a file").len(), places.bytes());
    println!(
        "{} keys in {size} bytes, of which {in_use} are in use, after {:.1?}",
        keys.len(),
        began.elapsed()
    );
    let intact = Arc::new(Intact { path, keys });
    for (tool, seen) in meet(&intact, &Damage::default(), 0).await {
        assert_eq!(seen.class(), Class::Right, "{tool} of the intact file: {seen}");
    }
    println!("each tool has been right about the intact file after {:.1?}", began.elapsed());

    let meetings = chosen.clone().map(|copy| {
        let (intact, damage) = (intact.clone(), Damage::draw(&places, seed as u64, copy));
        tokio::spawn(async move { (copy, meet(&intact, &damage, copy).await, damage) })
    });
    let mut meetings = stream::iter(meetings).buffer_unordered(AT_ONCE);
    let (mut table, mut bad, mut harmless) = (Table::default(), 0, 0);
    while let Some(met) = meetings.next().await {
        let (copy, all, damage) = met.expect("no panic");
        for (tool, seen) in all {
            table.count(tool, seen.class());
            bad += usize::from(seen.class().is_bad());
            match seen.class() {
                Class::Right => harmless += 1,
                _ => println!("{tool}, copy {copy} of seed {seed} ({damage}): {seen}"),
            }
        }
    }
    println!(
        "{} copies of {size} bytes, seed {seed}, after {:.1?}\n{table}",
        chosen.len(),
        began.elapsed()
    );
    let replay = format!("DAMAGE_MB={mb} DAMAGE_SEED={seed}, and DAMAGE_COPY for one of them");
    let kept = || keep(&intact.path).display().to_string();
    assert_eq!(bad, 0, "runs with a forbidden end; replay with {replay}; intact is {}", kept());
    // Damage that no tool notices proves nothing.
    let is_damaged = only.is_some() || harmless < TOOLS * chosen.len();
    assert!(is_damaged, "no tool noticed any damage; replay with {replay}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_file_is_refused_by_a_sentence_that_names_it() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("empty.redb");
    fs::write(&file, "").expect("a file");
    let keys = Keys::default();
    for (tool, seen) in [
        ("export", tools::export(&file, &keys).await),
        ("doctor", tools::doctor(&file).await),
        ("serve", served::serve(&file, &keys, 0).await),
    ] {
        assert_eq!(seen.class(), Class::Refused, "{tool}: {seen}");
    }
    assert_eq!(file.metadata().expect("a file").len(), 0, "it stays as it was");
}
