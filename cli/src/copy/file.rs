//! One file on its way: into a part with a name of its own, which gets the final name when it is
//! whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use client::Kind;
use parking_lot::Mutex;

use super::{CopyItem, CopyWorkers, TreeCopy};
use crate::exit::CommandFailure;
use crate::tree::{CHUNK, FileInfo, TreeFile, beside, joined, split};

/// Size of a piece, in bytes: several workers copy a larger file, one piece each at a time.
const PIECE: u64 = 16 * CHUNK;

/// Attempts to make a file durable whose writes are lost by restarts of servers.
const SYNC_TRIES_MAX: u32 = 16;

/// The names of parts begin with this.
pub(crate) const PART_PREFIX: &str = ".mdfs-part-";

/// A file that is being copied. The worker that copies its last piece finishes it.
pub(super) struct FileCopy {
    item: CopyItem,
    source: Box<dyn TreeFile>,
    target: Box<dyn TreeFile>,
    part: Vec<u8>,
    /// The part was there: an earlier copy was interrupted.
    resumed: bool,
    /// What is there already is compared, and not written again.
    compares: AtomicBool,
    /// Pieces that are not copied yet.
    left: AtomicUsize,
    /// The first failure.
    failed: Mutex<Option<CommandFailure>>,
}

/// The name of the part beside `to`: the same for the same version of the same original only, so
/// that what an interrupted copy has left can be taken up.
pub(super) fn part_name(to: &[u8], of: &FileInfo) -> Vec<u8> {
    let mut version = split(to).1.to_vec();
    version.extend(of.size.to_le_bytes());
    version.extend(of.mtime.seconds.to_le_bytes());
    version.extend(of.mtime.nanos.to_le_bytes());
    let name = format!("{PART_PREFIX}{:016x}", runtime::hash::xxh3(&version));
    beside(to, name.as_bytes())
}

/// Copies `item`, unless its copy is there. What is large is shared among the workers.
pub(super) fn copy(
    copy: &TreeCopy<'_>,
    item: CopyItem,
    workers: &CopyWorkers,
) -> Result<(), CommandFailure> {
    if copy.is_there(&item)? {
        return Ok(());
    }
    let part = part_name(&item.to, &item.node);
    let source = copy.from.open(&item.from)?;
    let (target, resumed) = copy.to.part(&part)?;
    let (left, failed, compares) =
        (AtomicUsize::new(1), Mutex::new(None), AtomicBool::new(resumed));
    let mut transfer = FileCopy { item, source, target, part, resumed, compares, left, failed };
    if transfer.item.node.size <= PIECE {
        return transfer.piece(copy, 0);
    }
    let pieces = transfer.pieces()?;
    transfer.left = AtomicUsize::new(pieces.len());
    workers.share(Arc::new(transfer), pieces.into_iter());
    Ok(())
}

impl FileCopy {
    /// Where the pieces start that have data; one, if there is none.
    fn pieces(&self) -> Result<Vec<u64>, CommandFailure> {
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < self.item.node.size {
            let (data, _) = self.extent(at)?;
            if data < self.item.node.size {
                pieces.push(data - data % PIECE);
            }
            at = (data / PIECE + 1) * PIECE;
        }
        if pieces.is_empty() {
            pieces.push(0);
        }
        Ok(pieces)
    }

    /// Copies the piece from `start` on; finishes the file if it is the last one.
    pub(super) fn piece(&self, copy: &TreeCopy<'_>, start: u64) -> Result<(), CommandFailure> {
        if self.failed.lock().is_none()
            && let Err(failure) = self.copy_piece(copy, start)
        {
            self.failed.lock().get_or_insert(failure);
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return Ok(());
        }
        let failed = self.failed.lock().take();
        let done = failed.map_or(Ok(()), Err).and_then(|()| self.finish(copy));
        match done {
            Ok(()) => {
                copy.totals.copied();
                Ok(())
            }
            // The next copy takes it up.
            Err(stopped @ CommandFailure::Stopped { .. }) => Err(stopped),
            Err(failure) => {
                // If it stays, it is only in the way.
                let _ = copy.to.remove(&self.part);
                Err(failure)
            }
        }
    }

    fn copy_piece(&self, copy: &TreeCopy<'_>, start: u64) -> Result<(), CommandFailure> {
        let end = self.item.node.size.min(start + PIECE);
        let mut at = start;
        while at < end {
            let (data, hole) = self.extent(at)?;
            at = data.min(end);
            while at < hole.min(end) {
                copy.check_stop()?;
                let length = (CHUNK - at % CHUNK).min(hole.min(end) - at);
                self.chunk(copy, at, length)?;
                copy.progress.moved(length);
                at += length;
            }
        }
        Ok(())
    }

    /// The next data of the original, from its start to the hole after it.
    fn extent(&self, at: u64) -> Result<(u64, u64), CommandFailure> {
        let FileInfo { size, used, .. } = self.item.node;
        if used >= size {
            return Ok((at, size));
        }
        Ok(self.source.data(at)?.unwrap_or((size, size)))
    }

    fn chunk(&self, copy: &TreeCopy<'_>, offset: u64, length: u64) -> Result<(), CommandFailure> {
        let parts = self.source.read(offset, length)?;
        if parts.iter().map(|part| part.len() as u64).sum::<u64>() < length {
            return Err(self.changed(copy));
        }
        let data = joined(parts);
        if self.compares.load(Ordering::Relaxed)
            && joined(self.target.read(offset, length)?) == data
        {
            return Ok(());
        }
        self.target.write(offset, data)?;
        copy.totals.moved(length);
        Ok(())
    }

    /// Whole and, if so wished, durable and read back: only then it gets its time, which says so,
    /// and its name.
    fn finish(&self, copy: &TreeCopy<'_>) -> Result<(), CommandFailure> {
        let CopyItem { from: _, to, node, .. } = &self.item;
        if self.resumed || node.used < node.size {
            self.target.set_size(node.size)?;
        }
        if copy.options.sync {
            self.make_durable(copy)?;
        }
        if copy.options.verify && !same(copy, &*self.source, &*self.target, node)? {
            let why =
                "what was read back differs from the original; copy it again, and check the disks";
            return Err(copy.to.refuse("verify", to, why));
        }
        let now = self.source.node()?;
        if (now.size, now.mtime) != (node.size, node.mtime) {
            return Err(self.changed(copy));
        }
        self.target.keep(node)?;
        copy.to.rename(&self.part, to)
    }

    /// Makes the copy durable. What a restart of a server has lost of it before is copied again.
    fn make_durable(&self, copy: &TreeCopy<'_>) -> Result<(), CommandFailure> {
        for _ in 1..SYNC_TRIES_MAX {
            match self.target.sync() {
                Err(failure) if failure.is_lost_write() => {}
                done => return done,
            }
            self.compares.store(true, Ordering::Relaxed);
            self.target.set_size(self.item.node.size)?;
            self.pieces()?.into_iter().try_for_each(|start| self.copy_piece(copy, start))?;
        }
        self.target.sync()
    }

    fn changed(&self, copy: &TreeCopy<'_>) -> CommandFailure {
        let why = "it was changed meanwhile; copy it again when no program writes to it";
        copy.from.refuse("copy", &self.item.from, why)
    }
}

/// Do both have the bytes of a file like `node`? Reads all of them, but no holes that both have.
pub(super) fn same(
    copy: &TreeCopy<'_>,
    a: &dyn TreeFile,
    b: &dyn TreeFile,
    node: &FileInfo,
) -> Result<bool, CommandFailure> {
    let size = node.size;
    let mut at = 0;
    while at < size {
        copy.check_stop()?;
        let next = |content: &dyn TreeFile| {
            Ok::<u64, CommandFailure>(content.data(at)?.map_or(size, |(start, _)| start))
        };
        let data = if node.used >= size { at } else { next(a)?.min(next(b)?) };
        if data >= size {
            break;
        }
        let length = (CHUNK - data % CHUNK).min(size - data);
        if joined(a.read(data, length)?) != joined(b.read(data, length)?) {
            return Ok(false);
        }
        at = data + length;
    }
    Ok(true)
}

impl TreeCopy<'_> {
    /// Is the copy of `item` there already? Then only what is known of it is set right.
    fn is_there(&self, item: &CopyItem) -> Result<bool, CommandFailure> {
        let Some(there) = self.find(item)? else { return Ok(false) };
        let CopyItem { from, to, node, .. } = item;
        let by_time = there.is_copy_of(node);
        let comparable = there.kind == Kind::File {} && there.size == node.size;
        if self.options.all || !comparable || !(by_time || self.options.checksum) {
            return Ok(false);
        }
        if self.options.checksum || self.options.verify {
            // Its own holes are as good as the original's.
            let used = node.used.min(there.used);
            let (source, target) = (self.from.open(from)?, self.to.open(to)?);
            if !same(self, &*source, &*target, &FileInfo { used, ..*node })? {
                if self.options.checksum {
                    return Ok(false);
                }
                let why = "it differs from the original, although size and time are the same; copy it \
                           again with --checksum";
                return Err(self.to.refuse("verify", to, why));
            }
        }
        if !by_time || there.mode != node.mode || self.wished(there).owner != node.owner {
            self.to.keep(to, node)?;
        }
        self.totals.kept();
        self.progress.moved(node.data());
        Ok(true)
    }

    /// What is at the destination of `item`, if it may be replaced.
    pub(super) fn find(&self, item: &CopyItem) -> Result<Option<FileInfo>, CommandFailure> {
        if item.fresh {
            return Ok(None);
        }
        let there = self.to.lookup(&item.to)?;
        let refuse = |why| Err(self.to.refuse("replace", &item.to, why));
        match there {
            Some(there) if self.one_tree && there.id == item.node.id => {
                refuse("it is the original itself")
            }
            Some(there) => match there.kind {
                Kind::File {} | Kind::Symlink {} => Ok(Some(there)),
                Kind::Directory {} => refuse("it is a directory; remove it first"),
                _ => refuse("it is neither a file nor a link; for a pipe use `mdfs get ... -`"),
            },
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {

    use bytes::Bytes;

    use super::super::{CopyOptions, CopyTotals};
    use super::*;
    use crate::progress::Progress;
    use crate::tree::{FileTree as _, HostTree};

    /// A disk that stores one byte wrongly.
    struct WrongContent(Box<dyn TreeFile>);

    impl TreeFile for WrongContent {
        fn write(&self, offset: u64, data: Bytes) -> Result<(), CommandFailure> {
            let mut bytes = data.to_vec();
            bytes[0] ^= 1;
            self.0.write_from(offset, &bytes)
        }

        fn write_from(&self, offset: u64, data: &[u8]) -> Result<(), CommandFailure> {
            self.write(offset, Bytes::copy_from_slice(data))
        }

        fn read_into(&self, offset: u64, out: &mut [u8]) -> Result<usize, CommandFailure> {
            self.0.read_into(offset, out)
        }

        fn node(&self) -> Result<FileInfo, CommandFailure> {
            self.0.node()
        }

        fn data(&self, from: u64) -> Result<Option<(u64, u64)>, CommandFailure> {
            self.0.data(from)
        }

        fn read(&self, offset: u64, length: u64) -> Result<Vec<Bytes>, CommandFailure> {
            self.0.read(offset, length)
        }

        fn set_size(&self, size: u64) -> Result<(), CommandFailure> {
            self.0.set_size(size)
        }

        fn sync(&self) -> Result<(), CommandFailure> {
            self.0.sync()
        }

        fn keep(&self, of: &FileInfo) -> Result<(), CommandFailure> {
            self.0.keep(of)
        }
    }

    #[test]
    fn what_is_stored_wrongly_is_verified_before_it_gets_its_name_and_what_was_changed_gets_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).into_os_string().into_encoded_bytes();
        let (from, to, part) = (path("from"), path("to"), path("part"));
        std::fs::write(directory.path().join("from"), vec![9; 10_000]).unwrap();
        let node = HostTree.lookup(&from).unwrap().unwrap();
        let transfer = |node, wrong| {
            let (target, _) = HostTree.part(&part).unwrap();
            FileCopy {
                item: CopyItem { from: from.clone(), to: to.clone(), node, fresh: true },
                source: HostTree.open(&from).unwrap(),
                target: if wrong { Box::new(WrongContent(target)) } else { target },
                part: part.clone(),
                resumed: false,
                compares: AtomicBool::new(false),
                left: AtomicUsize::new(1),
                failed: Mutex::new(None),
            }
        };
        let copied = |transfer: FileCopy, verify| {
            let (progress, totals) = (Progress::of_transfer(), CopyTotals::default());
            let (options, stop) =
                (CopyOptions { verify, ..CopyOptions::default() }, AtomicBool::new(false));
            let (progress, totals, stop) = (&progress, &totals, &stop);
            let copy = TreeCopy {
                from: &HostTree,
                to: &HostTree,
                one_tree: true,
                options,
                progress,
                totals,
                stop,
            };
            transfer.piece(&copy, 0).map_err(|failure| failure.to_string())
        };
        let exists = |name| directory.path().join(name).exists();
        let text = copied(transfer(node, true), true).unwrap_err();
        assert!(text.contains("to: what was read back differs"), "{text}");
        assert!(!exists("to") && !exists("part"));
        let text =
            copied(transfer(FileInfo { mtime: node.atime, size: 9999, ..node }, false), true);
        assert!(text.unwrap_err().contains("from: it was changed meanwhile"));
        assert!(!exists("to") && !exists("part"));
        copied(transfer(node, false), true).unwrap();
        assert!(exists("to") && !exists("part"));
    }
}
