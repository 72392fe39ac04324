//! The files of a volume.

use bytes::Bytes;
use client::blocking::{BlockingFile, Volume};
use client::{Attributes, Change, Kind, OpenOptions, SetTime, VolumeAddress};
use futures::executor::block_on;

use super::host::OWNER_BITS;
use super::{EntryVisitor, FileInfo, FileOwner, FileTree, TreeFile};
use crate::exit::CommandFailure;

/// Only the owner may use what is not yet whole.
const PART_MODE: u32 = 0o600;

/// A volume and its address.
pub(crate) struct VolumeFileTree {
    pub(crate) volume: Volume,
    pub(crate) address: VolumeAddress,
}

struct VolumeFile {
    file: BlockingFile,
    address: VolumeAddress,
}

fn node(of: &Attributes) -> FileInfo {
    FileInfo {
        kind: of.kind,
        mode: of.mode,
        size: of.size,
        used: of.used_bytes,
        links: of.links,
        id: (of.ino, of.generation),
        atime: of.atime,
        mtime: of.mtime,
        owner: Some(FileOwner { uid: of.uid, gid: of.gid }),
    }
}

fn kept(of: &FileInfo) -> Change {
    let time = |time| Some(SetTime::To { time });
    Change {
        mode: Some(of.mode),
        atime: time(of.atime),
        mtime: time(of.mtime),
        uid: of.owner.map(|owner| owner.uid),
        gid: of.owner.map(|owner| owner.gid),
        ..Change::default()
    }
}

impl VolumeFileTree {
    fn failed(&self, error: client::Error) -> CommandFailure {
        CommandFailure::inside(&self.address, error)
    }

    fn found(
        &self,
        looked: Result<Attributes, client::Error>,
    ) -> Result<Option<FileInfo>, CommandFailure> {
        match looked {
            Ok(found) => Ok(Some(node(&found))),
            Err(error) if error.cause.is_not_found() => Ok(None),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn file(
        &self,
        opened: Result<BlockingFile, client::Error>,
    ) -> Result<Box<dyn TreeFile>, CommandFailure> {
        let file = opened.map_err(|error| self.failed(error))?;
        Ok(Box::new(VolumeFile { file, address: self.address.clone() }))
    }
}

impl FileTree for VolumeFileTree {
    fn volume(&self) -> Option<&VolumeAddress> {
        Some(&self.address)
    }

    fn lookup(&self, path: &[u8]) -> Result<Option<FileInfo>, CommandFailure> {
        self.found(self.volume.symlink_metadata(path))
    }

    fn list(&self, path: &[u8], each: EntryVisitor<'_>) -> Result<(), CommandFailure> {
        let system = self.volume.file_system();
        let failed = |error| self.failed(error);
        let mut pages = block_on(system.read_dir(path)).map_err(failed)?.with_attributes();
        while let Some(page) = block_on(pages.next_page()).map_err(failed)? {
            for entry in page {
                // What was removed meanwhile has no attributes any more.
                if let Some(attributes) = entry.attributes {
                    each(entry.name.as_bytes(), node(&attributes))?;
                }
            }
        }
        Ok(())
    }

    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>, CommandFailure> {
        self.volume.read_link(path).map_err(|error| self.failed(error))
    }

    fn open(&self, path: &[u8]) -> Result<Box<dyn TreeFile>, CommandFailure> {
        self.file(self.volume.open(path, OpenOptions::new().read(true)))
    }

    fn part(&self, path: &[u8]) -> Result<(Box<dyn TreeFile>, bool), CommandFailure> {
        let options = OpenOptions::new().read(true).write(true).mode(PART_MODE);
        match self.volume.open(path, options.create_new(true)) {
            Err(error) if error.cause.is_exists() => {
                let ours = self.lookup(path)?;
                match ours {
                    Some(node) if node.kind == (Kind::File {}) && node.links == 1 => {}
                    _ => return Err(self.failed(error)),
                }
                Ok((self.file(self.volume.open(path, options))?, true))
            }
            opened => Ok((self.file(opened)?, false)),
        }
    }

    fn make_directory(&self, path: &[u8]) -> Result<bool, CommandFailure> {
        let (found, new) = match self.volume.mkdir(path) {
            Err(error) if error.cause.is_exists() => match self.volume.metadata(path) {
                Ok(found) if found.kind == Kind::Directory {} => (found, false),
                _ => return Err(self.failed(error)),
            },
            made => (made.map_err(|error| self.failed(error))?, true),
        };
        if found.mode & OWNER_BITS != OWNER_BITS {
            let mode = Some(found.mode | OWNER_BITS);
            let opened = self.volume.set_attributes(path, Change { mode, ..Change::default() });
            opened.map_err(|error| self.failed(error))?;
        }
        Ok(new)
    }

    fn make_symlink(&self, target: &[u8], path: &[u8]) -> Result<(), CommandFailure> {
        self.volume.symlink(target, path).map(drop).map_err(|error| self.failed(error))
    }

    fn make_link(&self, original: &[u8], path: &[u8]) -> Result<(), CommandFailure> {
        self.volume.hard_link(original, path).map(drop).map_err(|error| self.failed(error))
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), CommandFailure> {
        self.volume.rename(from, to).map_err(|error| {
            // What the caller asked for, not the name that only this copy knows.
            let path = String::from_utf8_lossy(to).into_owned();
            self.failed(client::Error { operation: "create", path, ..error })
        })
    }

    fn remove(&self, path: &[u8]) -> Result<(), CommandFailure> {
        self.volume.remove_file(path).map_err(|error| self.failed(error))
    }

    fn remove_directory(&self, path: &[u8]) -> Result<(), CommandFailure> {
        self.volume.remove_dir(path).map_err(|error| self.failed(error))
    }

    fn keep(&self, path: &[u8], of: &FileInfo) -> Result<(), CommandFailure> {
        self.volume.set_attributes(path, kept(of)).map(drop).map_err(|error| self.failed(error))
    }

    fn give_link(&self, path: &[u8], to: FileOwner) -> Result<(), CommandFailure> {
        let change = Change { uid: Some(to.uid), gid: Some(to.gid), ..Change::default() };
        let given = self.volume.set_symlink_attributes(path, change);
        given.map(drop).map_err(|error| self.failed(error))
    }

    fn sync(&self, path: &[u8]) -> Result<(), CommandFailure> {
        self.volume.sync_directory(path).map_err(|error| self.failed(error))
    }
}

impl VolumeFile {
    fn done<T>(&self, done: Result<T, client::Error>) -> Result<T, CommandFailure> {
        done.map_err(|error| CommandFailure::inside(&self.address, error))
    }
}

impl TreeFile for VolumeFile {
    fn node(&self) -> Result<FileInfo, CommandFailure> {
        self.done(self.file.metadata()).map(|found| node(&found))
    }

    fn data(&self, from: u64) -> Result<Option<(u64, u64)>, CommandFailure> {
        let Some(start) = self.done(self.file.seek_data(from))? else { return Ok(None) };
        Ok(self.done(self.file.seek_hole(start))?.map(|end| (start, end)))
    }

    fn read(&self, offset: u64, length: u64) -> Result<Vec<Bytes>, CommandFailure> {
        self.done(self.file.read_bytes_at(offset, length as usize))
    }

    fn read_into(&self, offset: u64, out: &mut [u8]) -> Result<usize, CommandFailure> {
        self.done(self.file.read_at(offset, out))
    }

    fn write(&self, offset: u64, data: Bytes) -> Result<(), CommandFailure> {
        self.done(self.file.write_at(offset, data))
    }

    fn write_from(&self, offset: u64, data: &[u8]) -> Result<(), CommandFailure> {
        self.write(offset, Bytes::copy_from_slice(data))
    }

    fn set_size(&self, size: u64) -> Result<(), CommandFailure> {
        self.done(self.file.set_len(size))
    }

    fn sync(&self) -> Result<(), CommandFailure> {
        self.done(self.file.sync())
    }

    fn keep(&self, of: &FileInfo) -> Result<(), CommandFailure> {
        self.done(self.file.set_attributes(kept(of))).map(drop)
    }
}
