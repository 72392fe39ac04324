//! How disks are driven, and the bounds of a transfer.

use std::io;

/// The environment variable that [`DiskAccess::from_environment`] reads.
pub const DISK_ACCESS_VARIABLE: &str = "MDFS_DISK_ACCESS";

/// How the disks of the host are driven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskAccess {
    /// Direct where the host allows it, cached elsewhere; the log says why.
    #[default]
    Best,
    /// By io_uring, past the page cache. A disk for which the host refuses that does not open.
    Direct,
    /// Through the page cache, by threads.
    Cached,
    /// The same, with files that are opened to be read only: not even a bug can write.
    ReadOnly,
}

impl DiskAccess {
    /// What the user chose in [`DISK_ACCESS_VARIABLE`]: `best`, `direct` or `cached`.
    pub fn from_environment() -> io::Result<Self> {
        match std::env::var(DISK_ACCESS_VARIABLE).as_deref() {
            Err(std::env::VarError::NotPresent) | Ok("best") => Ok(Self::Best),
            Ok("direct") => Ok(Self::Direct),
            Ok("cached") => Ok(Self::Cached),
            other => {
                let why = format!(
                    "{DISK_ACCESS_VARIABLE} is {other:?}: set it to best, direct or cached"
                );
                Err(io::Error::new(io::ErrorKind::InvalidInput, why))
            }
        }
    }
}

/// Refuses what is not on a disk of `disk_length` bytes: a file would grow.
pub(super) fn check(offset: u64, length: u64, disk_length: u64) -> io::Result<()> {
    if offset.checked_add(length).is_none_or(|end| end > disk_length) {
        let why = format!("bytes {offset}+{length} of a disk of {disk_length} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(())
}
