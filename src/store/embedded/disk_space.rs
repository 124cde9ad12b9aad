//! Free space on the disk: writes stop while there is too little, and continue when there is enough.
//!
//! If the disk becomes full during a commit, redb is unusable until the file is opened again. So a
//! transaction begins only if the disk has space for it and a reserve.

use std::path::{Path, PathBuf};

use rustix::fs::statvfs;

use crate::limits::DISK_RESERVE_BYTES;

/// The disk of a file.
#[derive(Debug)]
pub(super) struct DiskSpace {
    /// `None` if the store is not on a disk.
    file: Option<PathBuf>,
}

impl DiskSpace {
    /// For a store that is not on a disk.
    pub(super) const ANY: DiskSpace = DiskSpace { file: None };

    pub(super) fn beside(file: &Path) -> DiskSpace {
        DiskSpace { file: Some(file.to_owned()) }
    }

    /// Checks whether the disk has space for writing states of this many bytes.
    ///
    /// # Errors
    /// One sentence that says what to do.
    pub(super) fn check(&self, bytes: usize) -> Result<(), String> {
        let Some(file) = &self.file else { return Ok(()) };
        // If the free space is unknown, write: the write itself shows whether the disk is full.
        let Ok(disk) = statvfs(file) else { return Ok(()) };
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        // A row needs a copy of its page and of the pages above it, but rows share these pages.
        let wanted = DISK_RESERVE_BYTES + 4 * bytes as u64;
        if free >= wanted {
            return Ok(());
        }
        Err(format!(
            "the disk of {} has {} MiB left, but a write needs {} MiB; make room, then writes continue",
            file.display(),
            free >> 20,
            wanted.div_ceil(1 << 20)
        ))
    }
}
