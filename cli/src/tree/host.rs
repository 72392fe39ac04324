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

use super::{EntryVisitor, FileInfo, FileOwner, FileTree, TreeFile, into};
use crate::exit::CommandFailure;

/// Bytes of the unit of `st_blocks`, as POSIX has it.
const STAT_UNIT: u64 = 512;

/// Only the owner may use what is not yet whole.
const PART_MODE: u32 = 0o600;

/// While a tree is copied its directories can be written, whatever their own bits say.
pub(super) const OWNER_BITS: u32 = 0o700;

/// All files of this computer.
pub(crate) struct HostTree;

struct HostFile {
    file: fs::File,
    path: PathBuf,
}

fn path_of(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

fn node(metadata: &fs::Metadata) -> FileInfo {
    let time = |seconds, nanos| Time { seconds, nanos: u32::try_from(nanos).unwrap_or(0) };
    let of = metadata.file_type();
    FileInfo {
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
        owner: Some(FileOwner { uid: metadata.uid(), gid: metadata.gid() }),
    }
}

fn times(of: &FileInfo) -> Timestamps {
    let time = |time: Time| Timespec { tv_sec: time.seconds, tv_nsec: time.nanos.into() };
    Timestamps { last_access: time(of.atime), last_modification: time(of.mtime) }
}

impl FileTree for HostTree {
    fn volume(&self) -> Option<&client::VolumeAddress> {
        None
    }

    fn lookup(&self, path: &[u8]) -> Result<Option<FileInfo>, CommandFailure> {
        match fs::symlink_metadata(path_of(path)) {
            Ok(metadata) => Ok(Some(node(&metadata))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(CommandFailure::local("look up", path_of(path), error)),
        }
    }

    fn list(&self, path: &[u8], each: EntryVisitor<'_>) -> Result<(), CommandFailure> {
        let failed = |error| CommandFailure::local("list", path_of(path), error);
        for entry in fs::read_dir(path_of(path)).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            // What was removed meanwhile is not there.
            if let Some(node) = self.lookup(&into(path, name.as_bytes()))? {
                each(name.as_bytes(), node)?;
            }
        }
        Ok(())
    }

    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>, CommandFailure> {
        let target = fs::read_link(path_of(path))
            .map_err(|error| CommandFailure::local("read symbolic link", path_of(path), error))?;
        Ok(target.into_os_string().as_bytes().to_vec())
    }

    fn open(&self, path: &[u8]) -> Result<Box<dyn TreeFile>, CommandFailure> {
        let path = path_of(path);
        Ok(Box::new(HostFile { file: crate::local::open(path)?, path: path.to_owned() }))
    }

    fn part(&self, path: &[u8]) -> Result<(Box<dyn TreeFile>, bool), CommandFailure> {
        let path = path_of(path);
        let failed = |error| CommandFailure::local("create", path, error);
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

    fn make_directory(&self, path: &[u8]) -> Result<bool, CommandFailure> {
        let path = path_of(path);
        let failed = |error| CommandFailure::local("make directory", path, error);
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

    fn make_symlink(&self, target: &[u8], path: &[u8]) -> Result<(), CommandFailure> {
        std::os::unix::fs::symlink(path_of(target), path_of(path))
            .map_err(|error| CommandFailure::local("make symbolic link", path_of(path), error))
    }

    fn make_link(&self, original: &[u8], path: &[u8]) -> Result<(), CommandFailure> {
        fs::hard_link(path_of(original), path_of(path))
            .map_err(|error| CommandFailure::local("make link", path_of(path), error))
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), CommandFailure> {
        fs::rename(path_of(from), path_of(to))
            .map_err(|error| CommandFailure::local("create", path_of(to), error))
    }

    fn remove(&self, path: &[u8]) -> Result<(), CommandFailure> {
        fs::remove_file(path_of(path))
            .map_err(|error| CommandFailure::local("remove", path_of(path), error))
    }

    fn remove_directory(&self, path: &[u8]) -> Result<(), CommandFailure> {
        fs::remove_dir(path_of(path))
            .map_err(|error| CommandFailure::local("remove directory", path_of(path), error))
    }

    fn keep(&self, path: &[u8], of: &FileInfo) -> Result<(), CommandFailure> {
        let path = path_of(path);
        let failed = |error| CommandFailure::local("change", path, error);
        // First: it takes bits of the mode away.
        if let Some(FileOwner { uid, gid }) = of.owner {
            chown(path, Some(uid), Some(gid)).map_err(failed)?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(of.mode)).map_err(failed)?;
        let kept = rustix::fs::utimensat(CWD, path, &times(of), AtFlags::empty());
        kept.map_err(|error| failed(error.into()))
    }

    fn give_link(&self, path: &[u8], to: FileOwner) -> Result<(), CommandFailure> {
        let path = path_of(path);
        lchown(path, Some(to.uid), Some(to.gid))
            .map_err(|error| CommandFailure::local("change", path, error))
    }

    fn sync(&self, path: &[u8]) -> Result<(), CommandFailure> {
        let path = path_of(path);
        let synced = crate::local::open(path)?.sync_all();
        synced.map_err(|error| CommandFailure::local("sync directory", path, error))
    }
}

impl HostFile {
    fn failed(&self, operation: &'static str) -> impl FnOnce(io::Error) -> CommandFailure {
        move |error| CommandFailure::local(operation, &self.path, error)
    }

    /// The next place of one sort; none before the end of the file.
    fn seek(&self, to: SeekFrom) -> Result<Option<u64>, CommandFailure> {
        match rustix::fs::seek(&self.file, to) {
            Ok(offset) => Ok(Some(offset)),
            Err(rustix::io::Errno::NXIO) => Ok(None),
            Err(error) => Err(self.failed("seek in")(error.into())),
        }
    }
}

impl TreeFile for HostFile {
    fn node(&self) -> Result<FileInfo, CommandFailure> {
        self.file.metadata().map(|metadata| node(&metadata)).map_err(self.failed("look up"))
    }

    fn data(&self, from: u64) -> Result<Option<(u64, u64)>, CommandFailure> {
        let Some(start) = self.seek(SeekFrom::Data(from))? else { return Ok(None) };
        Ok(self.seek(SeekFrom::Hole(start))?.map(|end| (start, end)))
    }

    fn read(&self, offset: u64, length: u64) -> Result<Vec<Bytes>, CommandFailure> {
        let mut bytes = vec![0; length as usize];
        let count = self.read_into(offset, &mut bytes)?;
        bytes.truncate(count);
        Ok(vec![bytes.into()])
    }

    fn read_into(&self, offset: u64, out: &mut [u8]) -> Result<usize, CommandFailure> {
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

    fn write(&self, offset: u64, data: Bytes) -> Result<(), CommandFailure> {
        self.write_from(offset, &data)
    }

    fn write_from(&self, offset: u64, data: &[u8]) -> Result<(), CommandFailure> {
        self.file.write_all_at(data, offset).map_err(self.failed("write"))
    }

    fn set_size(&self, size: u64) -> Result<(), CommandFailure> {
        self.file.set_len(size).map_err(self.failed("cut"))
    }

    fn sync(&self) -> Result<(), CommandFailure> {
        self.file.sync_data().map_err(self.failed("sync"))
    }

    fn keep(&self, of: &FileInfo) -> Result<(), CommandFailure> {
        if let Some(FileOwner { uid, gid }) = of.owner {
            fchown(&self.file, Some(uid), Some(gid)).map_err(self.failed("change"))?;
        }
        let mode = fs::Permissions::from_mode(of.mode);
        self.file.set_permissions(mode).map_err(self.failed("change"))?;
        let kept = rustix::fs::futimens(&self.file, &times(of));
        kept.map_err(|error| self.failed("change")(error.into()))
    }
}
