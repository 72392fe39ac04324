//! The files of a volume.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use client::blocking::{File, Volume};
use client::{Attributes, Change, Kind, OpenOptions, SetTime};
use futures::executor::block_on;

use super::host::OWNER_BITS;
use super::{Content, Each, Node, Owner, Tree};
use crate::exit::Failure;

/// Only the owner may use what is not yet whole.
const PART_MODE: u32 = 0o600;

/// A volume and its directory.
pub(crate) struct Inside {
    pub(crate) volume: Volume,
    pub(crate) directory: PathBuf,
}

struct InsideFile {
    file: File,
    directory: PathBuf,
}

fn node(of: &Attributes) -> Node {
    Node {
        kind: of.kind,
        mode: of.mode,
        size: of.size,
        used: of.used_bytes,
        links: of.links,
        id: (of.ino, of.generation),
        atime: of.atime,
        mtime: of.mtime,
        owner: Some(Owner { uid: of.uid, gid: of.gid }),
    }
}

fn kept(of: &Node) -> Change {
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

impl Inside {
    fn failed(&self, error: client::Error) -> Failure {
        Failure::inside(&self.directory, error)
    }

    fn found(&self, looked: Result<Attributes, client::Error>) -> Result<Option<Node>, Failure> {
        match looked {
            Ok(found) => Ok(Some(node(&found))),
            Err(error) if error.cause.is_not_found() => Ok(None),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn file(&self, opened: Result<File, client::Error>) -> Result<Box<dyn Content>, Failure> {
        let file = opened.map_err(|error| self.failed(error))?;
        Ok(Box::new(InsideFile { file, directory: self.directory.clone() }))
    }
}

impl Tree for Inside {
    fn volume(&self) -> Option<&Path> {
        Some(&self.directory)
    }

    fn look(&self, path: &[u8]) -> Result<Option<Node>, Failure> {
        self.found(self.volume.symlink_metadata(path))
    }

    fn list(&self, path: &[u8], each: Each<'_>) -> Result<(), Failure> {
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

    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>, Failure> {
        self.volume.read_link(path).map_err(|error| self.failed(error))
    }

    fn open(&self, path: &[u8]) -> Result<Box<dyn Content>, Failure> {
        self.file(self.volume.open(path, OpenOptions::new().read(true)))
    }

    fn part(&self, path: &[u8]) -> Result<(Box<dyn Content>, bool), Failure> {
        let options = OpenOptions::new().read(true).write(true).mode(PART_MODE);
        match self.volume.open(path, options.create_new(true)) {
            Err(error) if error.cause.is_exists() => {
                let ours = self.look(path)?;
                match ours {
                    Some(node) if node.kind == (Kind::File {}) && node.links == 1 => {}
                    _ => return Err(self.failed(error)),
                }
                Ok((self.file(self.volume.open(path, options))?, true))
            }
            opened => Ok((self.file(opened)?, false)),
        }
    }

    fn make_directory(&self, path: &[u8]) -> Result<bool, Failure> {
        let (found, new) = match self.volume.mkdir(path) {
            Err(error) if error.cause.is_exists() => match self.volume.metadata(path) {
                Ok(found) if found.kind == Kind::Directory {} => (found, false),
                _ => return Err(self.failed(error)),
            },
            made => (made.map_err(|error| self.failed(error))?, true),
        };
        if found.mode & OWNER_BITS != OWNER_BITS {
            let opened = self.volume.set_mode(path, found.mode | OWNER_BITS);
            opened.map_err(|error| self.failed(error))?;
        }
        Ok(new)
    }

    fn make_symlink(&self, target: &[u8], path: &[u8]) -> Result<(), Failure> {
        self.volume.symlink(target, path).map(drop).map_err(|error| self.failed(error))
    }

    fn make_link(&self, original: &[u8], path: &[u8]) -> Result<(), Failure> {
        self.volume.hard_link(original, path).map(drop).map_err(|error| self.failed(error))
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), Failure> {
        self.volume.rename(from, to).map_err(|error| {
            // What the caller asked for, not the name that only this copy knows.
            let path = String::from_utf8_lossy(to).into_owned();
            self.failed(client::Error { operation: "create", path, ..error })
        })
    }

    fn remove(&self, path: &[u8]) -> Result<(), Failure> {
        self.volume.remove_file(path).map_err(|error| self.failed(error))
    }

    fn remove_directory(&self, path: &[u8]) -> Result<(), Failure> {
        self.volume.remove_dir(path).map_err(|error| self.failed(error))
    }

    fn keep(&self, path: &[u8], of: &Node) -> Result<(), Failure> {
        self.volume.set_attributes(path, kept(of)).map(drop).map_err(|error| self.failed(error))
    }

    fn give_link(&self, path: &[u8], to: Owner) -> Result<(), Failure> {
        let change = Change { uid: Some(to.uid), gid: Some(to.gid), ..Change::default() };
        let given = self.volume.set_symlink_attributes(path, change);
        given.map(drop).map_err(|error| self.failed(error))
    }

    fn sync(&self, path: &[u8]) -> Result<(), Failure> {
        self.volume.sync_directory(path).map_err(|error| self.failed(error))
    }
}

impl InsideFile {
    fn done<T>(&self, done: Result<T, client::Error>) -> Result<T, Failure> {
        done.map_err(|error| Failure::inside(&self.directory, error))
    }
}

impl Content for InsideFile {
    fn node(&self) -> Result<Node, Failure> {
        self.done(self.file.metadata()).map(|found| node(&found))
    }

    fn data(&self, from: u64) -> Result<Option<(u64, u64)>, Failure> {
        let Some(start) = self.done(self.file.seek_data(from))? else { return Ok(None) };
        Ok(self.done(self.file.seek_hole(start))?.map(|end| (start, end)))
    }

    fn read(&self, offset: u64, length: u64) -> Result<Vec<Bytes>, Failure> {
        self.done(self.file.read_bytes_at(offset, length as usize))
    }

    fn read_into(&self, offset: u64, out: &mut [u8]) -> Result<usize, Failure> {
        self.done(self.file.read_at(offset, out))
    }

    fn write(&self, offset: u64, data: Bytes) -> Result<(), Failure> {
        self.done(self.file.write_at(offset, data))
    }

    fn write_from(&self, offset: u64, data: &[u8]) -> Result<(), Failure> {
        self.write(offset, Bytes::copy_from_slice(data))
    }

    fn set_size(&self, size: u64) -> Result<(), Failure> {
        self.done(self.file.set_len(size))
    }

    fn sync(&self) -> Result<(), Failure> {
        self.done(self.file.sync())
    }

    fn keep(&self, of: &Node) -> Result<(), Failure> {
        self.done(self.file.set_attributes(kept(of))).map(drop)
    }
}
