//! What disks say of themselves, read before a machine runs.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use blockio::{BLOCK_SIZE, Superblock};
use runtime::Epoch;

/// The folder of the disks in the directory of a volume.
pub(crate) const DISKS: &str = "disks";

/// A disk that was formatted.
#[derive(Clone, Debug)]
pub(crate) struct FoundDisk {
    pub(crate) path: PathBuf,
    pub(crate) superblock: Superblock,
}

/// The superblock of a disk, or of its copy at the end; `None` if neither is one.
#[allow(clippy::disallowed_methods, reason = "disks are looked at before there is a machine")]
pub(crate) fn read_superblock(path: &Path) -> io::Result<Option<Superblock>> {
    let file = File::open(path)?;
    let length = io::Seek::seek(&mut &file, io::SeekFrom::End(0))?;
    let block = BLOCK_SIZE as u64;
    let copy_at = (length / block).saturating_sub(1) * block;
    let read = |at| {
        let mut bytes = vec![0; BLOCK_SIZE];
        (length >= block && file.read_exact_at(&mut bytes, at).is_ok()).then_some(bytes)
    };
    let blocks: Vec<Vec<u8>> = [0, copy_at].into_iter().filter_map(read).collect();
    Ok(Superblock::newest(blocks.iter().map(Vec::as_slice)))
}

/// The formatted disks in the directory of a process, or of a volume. Those that cannot be read are
/// left out: opening them tells why.
pub(crate) fn formatted_disks(directory: &Path) -> Vec<FoundDisk> {
    let places = std::fs::read_dir(directory.join(DISKS)).into_iter().flatten().flatten();
    let found = places.filter_map(|place| {
        let path = place.path();
        let superblock = read_superblock(&path).ok()??;
        Some(FoundDisk { path, superblock })
    });
    let mut found: Vec<FoundDisk> = found.collect();
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

/// The highest epoch in which any of the disks was opened, 0 without disks.
pub(crate) fn newest_epoch(directory: &Path) -> Epoch {
    let epochs = formatted_disks(directory).into_iter().map(|disk| disk.superblock.epoch);
    epochs.max().unwrap_or_default()
}

/// The newest version of the volume's record that any of the disks knows, 0 without disks.
pub(crate) fn newest_version(directory: &Path) -> u64 {
    let disks = formatted_disks(directory).into_iter().map(|disk| disk.superblock.decided);
    disks.filter(|decided| decided.is_decided).map(|decided| decided.version).max().unwrap_or(0)
}
