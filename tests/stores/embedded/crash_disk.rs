//! A disk that forgets: a crash loses all writes that were not synced, or a random part of them, as a power failure
//! loses the page cache. `kill -9` can't test that, because the page cache survives it.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use rand::Rng;
use rand::rngs::StdRng;
use redb::StorageBackend;

/// The unit that a disk writes whole.
const SECTOR_BYTES: usize = 512;

/// A handle to a disk. Clones share one disk.
#[derive(Debug, Clone)]
pub(crate) struct CrashDisk(Arc<Mutex<Disk>>);

/// Which of the writes that were not synced survive a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Survives {
    Nothing,
    /// Any of them, and parts of them, in any order that the system chose.
    RandomSubset,
}

struct Disk {
    /// The contents that a crash can't take.
    synced: Vec<u8>,
    /// The contents that a running process sees.
    current: Vec<u8>,
    unsynced: Vec<Change>,
    /// Changes and syncs until the disk crashes by itself.
    fuse: Option<u64>,
    crashed: bool,
    ignores_syncs: bool,
    fails_syncs: bool,
}

#[derive(Debug)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Length(usize),
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Disk({} bytes, {} unsynced)", self.current.len(), self.unsynced.len())
    }
}

impl Change {
    fn apply(&self, image: &mut Vec<u8>) {
        match self {
            Change::Length(length) => image.resize(*length, 0),
            Change::Write { offset, bytes } => {
                let end = offset + bytes.len();
                if image.len() < end {
                    image.resize(end, 0);
                }
                image[*offset..end].copy_from_slice(bytes);
            }
        }
    }
}

impl CrashDisk {
    pub(crate) fn empty() -> CrashDisk {
        CrashDisk::holding(Vec::new())
    }

    fn holding(image: Vec<u8>) -> CrashDisk {
        CrashDisk(Arc::new(Mutex::new(Disk {
            synced: image.clone(),
            current: image,
            unsynced: Vec::new(),
            fuse: None,
            crashed: false,
            ignores_syncs: false,
            fails_syncs: false,
        })))
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().expect("no panic while it is held")
    }

    /// Crashes after this number of changes and syncs.
    pub(crate) fn crash_after(&self, changes: u64) {
        self.disk().fuse = Some(changes);
    }

    /// Confirms syncs without doing them. Such a disk must lose acknowledged writes.
    pub(crate) fn ignore_syncs(&self) {
        self.disk().ignores_syncs = true;
    }

    /// Fails every sync, like a broken disk.
    pub(crate) fn fail_syncs(&self) {
        self.disk().fails_syncs = true;
    }

    /// Cuts the power, if it is still on, and returns the disk as the next boot finds it.
    pub(crate) fn reboot(&self, survives: Survives, random: &mut StdRng) -> CrashDisk {
        let mut disk = self.disk();
        disk.crashed = true;
        let mut image = disk.synced.clone();
        if survives == Survives::RandomSubset {
            let share = random.random_range(0.0..=1.0);
            for change in &disk.unsynced {
                if random.random_bool(share) {
                    torn(change, random).apply(&mut image);
                }
            }
        }
        CrashDisk::holding(image)
    }
}

/// One write in four reaches the disk only up to some sector.
fn torn(change: &Change, random: &mut StdRng) -> Change {
    match change {
        Change::Length(length) => Change::Length(*length),
        Change::Write { offset, bytes } => {
            let mut kept = bytes.len();
            if random.random_bool(0.25) {
                kept = random.random_range(0..=bytes.len() / SECTOR_BYTES) * SECTOR_BYTES;
            }
            Change::Write { offset: *offset, bytes: bytes[..kept].to_vec() }
        }
    }
}

impl Disk {
    fn power(&self) -> io::Result<()> {
        if self.crashed { Err(io::Error::other("the power is cut")) } else { Ok(()) }
    }

    fn burn(&mut self) -> io::Result<()> {
        if let Some(fuse) = &mut self.fuse {
            self.crashed |= *fuse == 0;
            *fuse = fuse.saturating_sub(1);
        }
        self.power()
    }

    /// The change that the power failure interrupts can reach the disk, whole or in part.
    fn change(&mut self, change: Change) -> io::Result<()> {
        self.power()?;
        change.apply(&mut self.current);
        self.unsynced.push(change);
        self.burn()
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("a test's disk fits in memory")
}

impl StorageBackend for CrashDisk {
    fn len(&self) -> io::Result<u64> {
        let disk = self.disk();
        disk.power()?;
        Ok(disk.current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let disk = self.disk();
        disk.power()?;
        let from = index(offset);
        let bytes = disk.current.get(from..from + out.len());
        out.copy_from_slice(bytes.ok_or_else(|| io::Error::other("read beyond the end"))?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk().change(Change::Length(index(len)))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.disk();
        disk.burn()?;
        if disk.fails_syncs {
            return Err(io::Error::other("input/output error"));
        }
        if !disk.ignores_syncs {
            let Disk { synced, unsynced, .. } = &mut *disk;
            unsynced.drain(..).for_each(|change| change.apply(synced));
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.disk().change(Change::Write { offset: index(offset), bytes: data.to_vec() })
    }
}
