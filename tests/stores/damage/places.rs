//! Finds the bytes of a file that are in use, and chooses the bits to flip.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use orderfree::runtime::clock::SystemClock;
use orderfree::store::Store;
use orderfree::store::embedded::{EmbeddedStore, SHARDS};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use redb::{Builder, ReadableDatabase, ReadableTable, StorageBackend};

use crate::file::constants;

/// The first page of a file: its format, and where everything else is.
const HEADER_BYTES: u64 = 4_096;

/// Maximum number of bits that are flipped in one copy.
const FLIPS_MAX: usize = 3;

/// The header is damaged in the first copies and in one of this many, because random places rarely hit it.
const HEADER_FIRST: usize = 3;
const HEADER_EVERY: usize = 20;

/// A byte's mark: not used yet, read first, or written first.
const UNUSED: u8 = 0;
const READ: u8 = 1;
const WRITTEN: u8 = 2;

/// A disk in memory that records which bytes are read. Clones share one disk.
#[derive(Clone)]
struct Recorder(Arc<Mutex<Recording>>);

struct Recording {
    bytes: Vec<u8>,
    marks: Vec<u8>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorder")
    }
}

impl Recorder {
    fn holding(bytes: Vec<u8>) -> Recorder {
        let marks = vec![UNUSED; bytes.len()];
        Recorder(Arc::new(Mutex::new(Recording { bytes, marks })))
    }

    fn recording(&self) -> MutexGuard<'_, Recording> {
        self.0.lock().expect("no panic while it is held")
    }
}

impl Recording {
    /// The bytes of a span, which must exist. Marks them if they were not used before.
    fn part(&mut self, offset: u64, len: usize, mark: u8) -> io::Result<&mut [u8]> {
        let from = index(offset);
        let beyond = || io::Error::other("beyond the end");
        let marks = self.marks.get_mut(from..from + len).ok_or_else(beyond)?;
        marks.iter_mut().filter(|old| **old == UNUSED).for_each(|old| *old = mark);
        Ok(&mut self.bytes[from..from + len])
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("a test's file fits in memory")
}

impl StorageBackend for Recorder {
    fn len(&self) -> io::Result<u64> {
        Ok(self.recording().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        out.copy_from_slice(self.recording().part(offset, out.len(), READ)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut recording = self.recording();
        recording.bytes.resize(index(len), 0);
        recording.marks.resize(index(len), WRITTEN);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.recording().part(offset, data.len(), WRITTEN)?.copy_from_slice(data);
        Ok(())
    }
}

/// The places of a file that are in use.
#[derive(Debug, PartialEq)]
pub(crate) struct Places {
    /// The begin and end of each run of them, in ascending order.
    runs: Vec<(u64, u64)>,
}

impl Places {
    /// Everything that is read of an intact file when a pod opens it, when it is checked, and when all rows are read.
    pub(crate) async fn of(path: &Path) -> Places {
        let bytes = fs::read(path).expect("the file");
        let len = bytes.len();
        let [opened, checked] = [(); 2].map(|()| Recorder::holding(bytes.clone()));
        let clock = Arc::new(SystemClock);
        let store = EmbeddedStore::open_backend(opened.clone(), constants(), clock);
        store.expect("it is intact").close().await;
        let mut file = Builder::new().create_with_backend(checked.clone()).expect("it is intact");
        assert!(file.check_integrity().expect("it is intact"));
        let rows = file.begin_read().expect("begun").open_table(SHARDS).expect("the rows");
        for row in rows.iter().expect("readable") {
            row.expect("readable");
        }
        drop((rows, file));
        let marks = [opened, checked].map(|recorder| recorder.recording().marks.clone());
        let is_read = |at: usize| marks.iter().any(|marks| marks.get(at) == Some(&READ));
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for at in (0..len).filter(|&at| is_read(at)).map(|at| at as u64) {
            match runs.last_mut() {
                Some((_, end)) if *end == at => *end += 1,
                _ => runs.push((at, at + 1)),
            }
        }
        Places { runs }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.runs.iter().map(|(start, end)| end - start).sum()
    }

    fn in_header(&self) -> Places {
        let runs = self.runs.iter().map(|&(start, end)| (start, end.min(HEADER_BYTES)));
        Places { runs: runs.filter(|(start, end)| start < end).collect() }
    }

    fn draw(&self, dice: &mut StdRng) -> u64 {
        let mut left = dice.random_range(0..self.bytes());
        for (start, end) in &self.runs {
            if left < end - start {
                return start + left;
            }
            left -= end - start;
        }
        unreachable!("it was drawn below their sum")
    }
}

/// The damage of a copy: the flipped bits.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Damage {
    flips: Vec<(u64, u8)>,
}

impl Damage {
    /// The damage of a copy. It depends only on the seed and the copy's number.
    pub(crate) fn draw(places: &Places, seed: u64, copy: usize) -> Damage {
        let mut dice = StdRng::seed_from_u64(seed ^ (copy as u64).rotate_right(16));
        let is_header = copy < HEADER_FIRST || copy.is_multiple_of(HEADER_EVERY);
        let header = is_header.then(|| places.in_header());
        let places = header.as_ref().unwrap_or(places);
        let flips = dice.random_range(1..=FLIPS_MAX);
        let flip = |_| (places.draw(&mut dice), dice.random_range(0..8));
        Damage { flips: (0..flips).map(flip).collect() }
    }

    /// Writes a damaged copy.
    pub(crate) fn copy(&self, from: &Path, to: &Path) {
        fs::copy(from, to).expect("there is room for a copy");
        let file = OpenOptions::new().read(true).write(true).open(to).expect("the copy");
        for &(offset, bit) in &self.flips {
            let mut byte = [0];
            file.read_exact_at(&mut byte, offset).expect("a byte");
            file.write_all_at(&[byte[0] ^ 1 << bit], offset).expect("written");
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flips = self.flips.iter().map(|(offset, bit)| format!("bit {bit} of byte {offset}"));
        f.write_str(&flips.collect::<Vec<_>>().join(", "))
    }
}
