//! The files of this computer.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{
    FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
    chown, fchown, lchown,
};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use client::{Kind, Time};
use rustix::fs::{AtFlags, CWD, OFlags, SeekFrom, Timespec, Timestamps};

use super::{Content, Each, Node, Owner, Tree, into};
use crate::exit::Failure;

/// Bytes of the unit of `st_blocks`, as POSIX has it.
const STAT_UNIT: u64 = 512;

/// Only the owner may use what is not yet whole.
const PART_MODE: u32 = 0o600;

/// While a tree is copied its directories can be written, whatever their own bits say.
pub(super) const OWNER_BITS: u32 = 0o700;

/// All files of this computer.
pub(crate) struct Host;

struct HostFile {
    file: fs::File,
    path: PathBuf,
}

fn path_of(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

fn node(metadata: &fs::Metadata) -> Node {
    let time = |seconds, nanos| Time { seconds, nanos: u32::try_from(nanos).unwrap_or(0) };
    let of = metadata.file_type();
    Node {
        kind: match () {
            () if of.is_dir() => Kind::Directory {},
            () if of.is_symlink() => Kind::Symlink {},
            () if of.is_file() => Kind::File {},
            () if of.is_fifo() => Kind::Fifo {},
            () if of.is_socket() => Kind::Socket {},
            () if of.is_block_device() => Kind::BlockDevice {},
            () => Kind::CharDevice {},
        },
        mode: metadata.mode() & 0o7777,
        size: metadata.size(),
        used: metadata.blocks() * STAT_UNIT,
        links: u32::try_from(metadata.nlink()).unwrap_or(u32::MAX),
        id: (metadata.dev(), metadata.ino()),
        atime: time(metadata.atime(), metadata.atime_nsec()),
        mtime: time(metadata.mtime(), metadata.mtime_nsec()),
        owner: Some(Owner { uid: metadata.uid(), gid: metadata.gid() }),
    }
}

fn times(of: &Node) -> Timestamps {
    let time = |time: Time| Timespec { tv_sec: time.seconds, tv_nsec: time.nanos.into() };
    Timestamps { last_access: time(of.atime), last_modification: time(of.mtime) }
}

impl Tree for Host {
    fn volume(&self) -> Option<&Path> {
        None
    }

    fn look(&self, path: &[u8]) -> Result<Option<Node>, Failure> {
        match fs::symlink_metadata(path_of(path)) {
            Ok(metadata) => Ok(Some(node(&metadata))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::local("look up", path_of(path), error)),
        }
    }

    fn list(&self, path: &[u8], each: Each<'_>) -> Result<(), Failure> {
        let failed = |error| Failure::local("list", path_of(path), error);
        for entry in fs::read_dir(path_of(path)).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            // What was removed meanwhile is not there.
            if let Some(node) = self.look(&into(path, name.as_bytes()))? {
                each(name.as_bytes(), node)?;
            }
        }
        Ok(())
    }

    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>, Failure> {
        let target = fs::read_link(path_of(path))
            .map_err(|error| Failure::local("read symbolic link", path_of(path), error))?;
        Ok(target.into_os_string().as_bytes().to_vec())
    }

    fn open(&self, path: &[u8]) -> Result<Box<dyn Content>, Failure> {
        let path = path_of(path);
        Ok(Box::new(HostFile { file: crate::local::open(path)?, path: path.to_owned() }))
    }

    fn part(&self, path: &[u8]) -> Result<(Box<dyn Content>, bool), Failure> {
        let path = path_of(path);
        let failed = |error| Failure::local("create", path, error);
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).mode(PART_MODE);
        let whole = |file| Box::new(HostFile { file, path: path.to_owned() });
        match options.clone().create_new(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let no_follow = OFlags::NOFOLLOW.bits().cast_signed();
                let file = options.custom_flags(no_follow).open(path).map_err(failed)?;
                let metadata = file.metadata().map_err(failed)?;
                if !metadata.is_file() || metadata.nlink() != 1 {
                    return Err(failed(io::ErrorKind::AlreadyExists.into()));
                }
                Ok((whole(file), true))
            }
            made => Ok((whole(made.map_err(failed)?), false)),
        }
    }

    fn make_directory(&self, path: &[u8]) -> Result<bool, Failure> {
        let path = path_of(path);
        let failed = |error| Failure::local("make directory", path, error);
        match fs::create_dir(path) {
            Err(_) if path.is_dir() => {
                let mode = fs::metadata(path).map_err(failed)?.mode();
                if mode & OWNER_BITS != OWNER_BITS {
                    let opened = fs::Permissions::from_mode(mode & 0o7777 | OWNER_BITS);
                    fs::set_permissions(path, opened).map_err(failed)?;
                }
                Ok(false)
            }
            made => made.map(|()| true).map_err(failed),
        }
    }

    fn make_symlink(&self, target: &[u8], path: &[u8]) -> Result<(), Failure> {
        std::os::unix::fs::symlink(path_of(target), path_of(path))
            .map_err(|error| Failure::local("make symbolic link", path_of(path), error))
    }

    fn make_link(&self, original: &[u8], path: &[u8]) -> Result<(), Failure> {
        fs::hard_link(path_of(original), path_of(path))
            .map_err(|error| Failure::local("make link", path_of(path), error))
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), Failure> {
        fs::rename(path_of(from), path_of(to))
            .map_err(|error| Failure::local("create", path_of(to), error))
    }

    fn remove(&self, path: &[u8]) -> Result<(), Failure> {
        fs::remove_file(path_of(path))
            .map_err(|error| Failure::local("remove", path_of(path), error))
    }

    fn remove_directory(&self, path: &[u8]) -> Result<(), Failure> {
        fs::remove_dir(path_of(path))
            .map_err(|error| Failure::local("remove directory", path_of(path), error))
    }

    fn keep(&self, path: &[u8], of: &Node) -> Result<(), Failure> {
        let path = path_of(path);
        let failed = |error| Failure::local("change", path, error);
        // First: it takes bits of the mode away.
        if let Some(Owner { uid, gid }) = of.owner {
            chown(path, Some(uid), Some(gid)).map_err(failed)?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(of.mode)).map_err(failed)?;
        let kept = rustix::fs::utimensat(CWD, path, &times(of), AtFlags::empty());
        kept.map_err(|error| failed(error.into()))
    }

    fn give_link(&self, path: &[u8], to: Owner) -> Result<(), Failure> {
        let path = path_of(path);
        lchown(path, Some(to.uid), Some(to.gid))
            .map_err(|error| Failure::local("change", path, error))
    }

    fn sync(&self, path: &[u8]) -> Result<(), Failure> {
        let path = path_of(path);
        let synced = crate::local::open(path)?.sync_all();
        synced.map_err(|error| Failure::local("sync directory", path, error))
    }
}

impl HostFile {
    fn failed(&self, operation: &'static str) -> impl FnOnce(io::Error) -> Failure {
        move |error| Failure::local(operation, &self.path, error)
    }

    /// The next place of one sort; none before the end of the file.
    fn seek(&self, to: SeekFrom) -> Result<Option<u64>, Failure> {
        match rustix::fs::seek(&self.file, to) {
            Ok(offset) => Ok(Some(offset)),
            Err(rustix::io::Errno::NXIO) => Ok(None),
            Err(error) => Err(self.failed("seek in")(error.into())),
        }
    }
}

impl Content for HostFile {
    fn node(&self) -> Result<Node, Failure> {
        self.file.metadata().map(|metadata| node(&metadata)).map_err(self.failed("look up"))
    }

    fn data(&self, from: u64) -> Result<Option<(u64, u64)>, Failure> {
        let Some(start) = self.seek(SeekFrom::Data(from))? else { return Ok(None) };
        Ok(self.seek(SeekFrom::Hole(start))?.map(|end| (start, end)))
    }

    fn read(&self, offset: u64, length: u64) -> Result<Vec<Bytes>, Failure> {
        let mut bytes = vec![0; length as usize];
        let count = self.read_into(offset, &mut bytes)?;
        bytes.truncate(count);
        Ok(vec![bytes.into()])
    }

    fn read_into(&self, offset: u64, out: &mut [u8]) -> Result<usize, Failure> {
        let mut done = 0;
        while done < out.len() {
            match self.file.read_at(&mut out[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed("read")(error)),
            }
        }
        Ok(done)
    }

    fn write(&self, offset: u64, data: Bytes) -> Result<(), Failure> {
        self.write_from(offset, &data)
    }

    fn write_from(&self, offset: u64, data: &[u8]) -> Result<(), Failure> {
        self.file.write_all_at(data, offset).map_err(self.failed("write"))
    }

    fn set_size(&self, size: u64) -> Result<(), Failure> {
        self.file.set_len(size).map_err(self.failed("cut"))
    }

    fn sync(&self) -> Result<(), Failure> {
        self.file.sync_data().map_err(self.failed("sync"))
    }

    fn keep(&self, of: &Node) -> Result<(), Failure> {
        if let Some(Owner { uid, gid }) = of.owner {
            fchown(&self.file, Some(uid), Some(gid)).map_err(self.failed("change"))?;
        }
        let mode = fs::Permissions::from_mode(of.mode);
        self.file.set_permissions(mode).map_err(self.failed("change"))?;
        let kept = rustix::fs::futimens(&self.file, &times(of));
        kept.map_err(|error| self.failed("change")(error.into()))
    }
}
