//! Room on the disk: writes stop while there is little of it, and go on by themselves.
//!
//! A commit that meets a full disk half-way leaves redb unusable until the file is opened again. So a
//! transaction begins only where the disk has room for it and for what else may come.

use std::path::{Path, PathBuf};

use rustix::fs::statvfs;

use crate::limits::DISK_RESERVE_BYTES;

/// The disk of a file.
#[derive(Debug)]
pub(super) struct DiskSpace {
    /// None where the store is on no disk.
    file: Option<PathBuf>,
}

impl DiskSpace {
    /// Of a store that is on no disk.
    pub(super) const ANY: DiskSpace = DiskSpace { file: None };

    pub(super) fn beside(file: &Path) -> DiskSpace {
        DiskSpace { file: Some(file.to_owned()) }
    }

    /// Whether states of so many bytes may be written.
    ///
    /// # Errors
    /// One sentence that says what to do.
    pub(super) fn check(&self, bytes: usize) -> Result<(), String> {
        let Some(file) = &self.file else { return Ok(()) };
        // A disk that can't be asked is written to: it will say so itself.
        let Ok(disk) = statvfs(file) else { return Ok(()) };
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        // A row takes a copy of its page and of the pages above it, and more than one row has them.
        let wanted = DISK_RESERVE_BYTES + 4 * bytes as u64;
        if free >= wanted {
            return Ok(());
        }
        Err(format!(
            "the disk of {} has {} MiB left, and a write needs {}; make room, and writing goes on",
            file.display(),
            free >> 20,
            wanted.div_ceil(1 << 20)
        ))
    }
}
