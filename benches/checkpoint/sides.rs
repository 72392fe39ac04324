//! The sides: files with numbers, in a volume of ours or in a directory of the host.

use std::fs;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use benches::{BenchVolumeShape, Scratch};
use bytes::Bytes;
use client::OpenOptions;
use client::blocking::Volume;
use rustix::fs::{Advice, OFlags, fadvise};
use tempfile::TempDir;

use crate::works::CheckpointScale;

/// Which side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CheckpointFileKind {
    Ours,
    /// The host's file system, through its page cache.
    Disk,
    Memory,
    /// The host's file system, read past its page cache (`O_DIRECT`).
    Direct,
    /// Another file system, mounted.
    Peer,
}

impl CheckpointFileKind {
    pub(crate) const ALL: [Self; 5] =
        [Self::Ours, Self::Disk, Self::Memory, Self::Direct, Self::Peer];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Disk => "disk",
            Self::Memory => "memory",
            Self::Direct => "direct",
            Self::Peer => "peer",
        }
    }
}

/// Names a directory of another mounted file system, which becomes a side.
const PEER_VARIABLE: &str = "MDFS_PEER";

/// Where a host keeps files in memory.
const MEMORY: &str = "/dev/shm";

/// One side with its files.
pub(crate) enum CheckpointSide {
    Ours { scratch: Box<Scratch> },
    Host { kind: CheckpointFileKind, directory: TempDir },
}

/// An open file of a side, for any thread.
#[derive(Clone)]
pub(crate) enum CheckpointFile {
    Ours(client::blocking::BlockingFile),
    Host(Arc<fs::File>),
}

impl CheckpointSide {
    /// All of them; that in memory only where there is one.
    pub(crate) fn all(scale: &CheckpointScale) -> Vec<Self> {
        let target = env!("CARGO_TARGET_TMPDIR");
        let shape = BenchVolumeShape {
            disk_bytes: scale.disk_bytes(),
            cache_bytes: scale.cache_bytes(),
            threads: 0,
            prefault: true,
        };
        let ours = Self::Ours { scratch: Box::new(Scratch::new(target, shape)) };
        let host = |kind, parent: &Path| {
            let directory = tempfile::tempdir_in(parent).ok()?;
            Some(Self::Host { kind, directory })
        };
        let disk = host(CheckpointFileKind::Disk, target.as_ref());
        let memory = host(CheckpointFileKind::Memory, MEMORY.as_ref());
        let direct = host(CheckpointFileKind::Direct, target.as_ref());
        let peer = std::env::var_os(PEER_VARIABLE);
        let peer = peer.and_then(|directory| host(CheckpointFileKind::Peer, directory.as_ref()));
        [Some(ours), disk, memory, direct, peer].into_iter().flatten().collect()
    }

    pub(crate) fn kind(&self) -> CheckpointFileKind {
        match self {
            Self::Ours { .. } => CheckpointFileKind::Ours,
            Self::Host { kind, .. } => *kind,
        }
    }

    /// Opens the file with this number; it is made if it does not exist.
    pub(crate) fn open(&self, number: usize) -> CheckpointFile {
        match self {
            Self::Ours { scratch } => {
                let options = OpenOptions::new().read(true).write(true).create(true);
                let opened = scratch.volume().open(format!("/file{number}"), options);
                CheckpointFile::Ours(opened.expect("there is room"))
            }
            Self::Host { directory, .. } => {
                let path = path_of(directory, number);
                let mut options = fs::File::options();
                options.read(true).write(true).create(true).truncate(false);
                CheckpointFile::Host(Arc::new(options.open(path).expect("there is room")))
            }
        }
    }

    /// As [`open`](Self::open), to read all of it by whole blocks into aligned memory.
    pub(crate) fn open_to_read(&self, number: usize) -> CheckpointFile {
        match self {
            Self::Host { kind: CheckpointFileKind::Direct, directory } => {
                let mut options = fs::File::options();
                options.read(true).custom_flags(OFlags::DIRECT.bits().cast_signed());
                let opened = options.open(path_of(directory, number));
                CheckpointFile::Host(Arc::new(
                    opened.expect("the disk's file system does direct reads"),
                ))
            }
            _ => self.open(number),
        }
    }

    /// The file with this number was made.
    pub(crate) fn has(&self, number: usize) -> bool {
        match self {
            Self::Ours { scratch } => scratch.volume().metadata(format!("/file{number}")).is_ok(),
            Self::Host { directory, .. } => path_of(directory, number).exists(),
        }
    }

    /// A file that does not exist yet.
    pub(crate) fn make(&self, number: usize) -> CheckpointFile {
        match self {
            Self::Ours { scratch } => remove_ours(&scratch.volume(), number),
            Self::Host { directory, .. } => drop(fs::remove_file(path_of(directory, number))),
        }
        self.open(number)
    }

    /// Drops all files from memory; false if memory is where they are stored.
    pub(crate) fn chill(&mut self) -> bool {
        match self {
            Self::Ours { scratch } => {
                scratch.reopen();
                scratch.disk_files().iter().for_each(|path| forget_pages(path));
                true
            }
            Self::Host { kind: CheckpointFileKind::Memory, .. } => false,
            Self::Host { directory, .. } => {
                let entries = fs::read_dir(directory.path()).expect("it is ours");
                entries.flatten().for_each(|entry| forget_pages(&entry.path()));
                true
            }
        }
    }

    /// Removes all files.
    pub(crate) fn clear(&mut self) {
        match self {
            Self::Ours { scratch } => {
                let volume = scratch.volume();
                (0..CheckpointScale::FILES_MAX).for_each(|number| remove_ours(&volume, number));
            }
            Self::Host { directory, .. } => {
                let entries = fs::read_dir(directory.path()).expect("it is ours");
                entries.flatten().for_each(|entry| drop(fs::remove_file(entry.path())));
            }
        }
    }
}

fn path_of(directory: &TempDir, number: usize) -> PathBuf {
    directory.path().join(format!("file{number}"))
}

fn remove_ours(volume: &Volume, number: usize) {
    // It need not be there.
    let _ = volume.remove_file(format!("/file{number}"));
}

fn forget_pages(path: &Path) {
    let file = fs::File::options().read(true).open(path).expect("it was made");
    file.sync_all().expect("it can be synced");
    fadvise(&file, 0, None, Advice::DontNeed).expect("the host forgets on demand");
}

impl CheckpointFile {
    pub(crate) fn write_at(&self, offset: u64, data: &Bytes) {
        match self {
            Self::Ours(file) => file.write_at(offset, data.clone()).expect("there is room"),
            Self::Host(file) => file.write_all_at(data, offset).expect("there is room"),
        }
    }

    pub(crate) fn read_at(&self, offset: u64, out: &mut [u8]) {
        match self {
            Self::Ours(file) => {
                let read = file.read_at(offset, out).expect("it was written");
                assert_eq!(read, out.len(), "it was written up to here");
            }
            Self::Host(file) => file.read_exact_at(out, offset).expect("it was written"),
        }
    }

    pub(crate) fn sync(&self) {
        match self {
            Self::Ours(file) => file.sync().expect("the disks are there"),
            Self::Host(file) => file.sync_all().expect("the disk is there"),
        }
    }
}
