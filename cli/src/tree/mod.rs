//! A tree of files, for what works on both: the host's ([`HostTree`]), or a volume's
//! ([`VolumeFileTree`]).

mod host;
mod volume_tree;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use bytes::Bytes;
use client::{Kind, Time, VolumeAddress};

pub(crate) use self::host::HostTree;
pub(crate) use self::volume_tree::VolumeFileTree;
use crate::exit::CommandFailure;
use crate::volume_path::join;

/// Bytes that are moved at a time.
pub(crate) const CHUNK: u64 = crate::local::CHUNK as u64;

/// Symbolic links on the way to a destination, at most.
const LINKS_MAX: usize = 40;

/// What a copy keeps of a file, and what it decides by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileInfo {
    pub(crate) kind: Kind,
    /// Permission bits, `0o7777`.
    pub(crate) mode: u32,
    pub(crate) size: u64,
    /// Bytes of disk space: fewer than the size if there may be holes.
    pub(crate) used: u64,
    /// Its names.
    pub(crate) links: u32,
    /// Two names in one tree with the same identity are one file.
    pub(crate) id: (u64, u64),
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    /// None if it need not be kept.
    pub(crate) owner: Option<FileOwner>,
}

/// Whose a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileOwner {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl FileInfo {
    pub(crate) fn is_directory(&self) -> bool {
        self.kind == Kind::Directory {}
    }

    /// Bytes that are to be moved, about: holes are not.
    pub(crate) fn data(&self) -> u64 {
        self.size.min(self.used)
    }

    /// Whether size and time suggest the same content. A copy gets its time of the last change
    /// only when all of it is there.
    pub(crate) fn is_copy_of(&self, other: &Self) -> bool {
        self.kind == other.kind && self.size == other.size && self.mtime == other.mtime
    }
}

/// What is done with each name and node of a directory.
pub(crate) type EntryVisitor<'a> = &'a mut dyn FnMut(&[u8], FileInfo) -> Result<(), CommandFailure>;

/// Files by their paths. Used by many threads at once.
pub(crate) trait FileTree: Sync {
    /// Where the volume is; none for the host.
    fn volume(&self) -> Option<&VolumeAddress>;

    /// What is at `path`, of a symbolic link itself; none if nothing is.
    fn lookup(&self, path: &[u8]) -> Result<Option<FileInfo>, CommandFailure>;

    /// Visits the entries of a directory, in any order.
    fn list(&self, path: &[u8], each: EntryVisitor<'_>) -> Result<(), CommandFailure>;

    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>, CommandFailure>;

    /// Opens a file for reading.
    fn open(&self, path: &[u8]) -> Result<Box<dyn TreeFile>, CommandFailure>;

    /// Makes a file that only its owner may use, or opens the one that an earlier copy has left
    /// there. Never goes through a link. True if it was there.
    fn part(&self, path: &[u8]) -> Result<(Box<dyn TreeFile>, bool), CommandFailure>;

    /// Makes a directory that its owner can write, unless it is there. True if it is new.
    fn make_directory(&self, path: &[u8]) -> Result<bool, CommandFailure>;

    fn make_symlink(&self, target: &[u8], path: &[u8]) -> Result<(), CommandFailure>;

    fn make_link(&self, original: &[u8], path: &[u8]) -> Result<(), CommandFailure>;

    /// Gives a file another name, in the place of what has it.
    fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), CommandFailure>;

    fn remove(&self, path: &[u8]) -> Result<(), CommandFailure>;

    /// Removes an empty directory.
    fn remove_directory(&self, path: &[u8]) -> Result<(), CommandFailure>;

    /// Gives a directory the permissions and times of `of`, and its owner if that is known.
    fn keep(&self, path: &[u8], of: &FileInfo) -> Result<(), CommandFailure>;

    /// Changes the owner of a symbolic link.
    fn give_link(&self, path: &[u8], to: FileOwner) -> Result<(), CommandFailure>;

    /// Makes the names of a directory durable.
    fn sync(&self, path: &[u8]) -> Result<(), CommandFailure>;

    /// A failure with this path for which no system call is to blame.
    fn refuse(&self, operation: &'static str, path: &[u8], why: &'static str) -> CommandFailure {
        let path = Path::new(OsStr::from_bytes(path)).display();
        let thing = match self.volume() {
            Some(volume) => format!("{volume}:{path}"),
            None => path.to_string(),
        };
        CommandFailure::Refused { operation, thing, why }
    }
}

/// The bytes of an open file. Used by many threads at once.
pub(crate) trait TreeFile: Send + Sync {
    fn node(&self) -> Result<FileInfo, CommandFailure>;

    /// The next piece of data at or after `from`: its start, and the start of the hole after it.
    fn data(&self, from: u64) -> Result<Option<(u64, u64)>, CommandFailure>;

    /// The bytes from `offset`, at most `length` and fewer at the end of the file only.
    fn read(&self, offset: u64, length: u64) -> Result<Vec<Bytes>, CommandFailure>;

    /// The same into memory of the caller; how many.
    fn read_into(&self, offset: u64, out: &mut [u8]) -> Result<usize, CommandFailure>;

    fn write(&self, offset: u64, data: Bytes) -> Result<(), CommandFailure>;

    /// The same from memory that stays the caller's.
    fn write_from(&self, offset: u64, data: &[u8]) -> Result<(), CommandFailure>;

    fn set_size(&self, size: u64) -> Result<(), CommandFailure>;

    fn sync(&self) -> Result<(), CommandFailure>;

    /// Gives it the permissions and times of `of`, and its owner if that is known.
    fn keep(&self, of: &FileInfo) -> Result<(), CommandFailure>;
}

/// All parts as one.
pub(crate) fn joined(mut parts: Vec<Bytes>) -> Bytes {
    match parts.len() {
        1 => parts.remove(0),
        _ => parts.concat().into(),
    }
}

/// The directory and the last name of a path.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let path = &path[..end];
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..=slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

/// A path beside `path`.
pub(crate) fn beside(path: &[u8], name: &[u8]) -> Vec<u8> {
    [split(path).0, name].concat()
}

/// Where `path` leads if it is a symbolic link, and what is there.
pub(crate) fn resolve(
    tree: &dyn FileTree,
    mut path: Vec<u8>,
) -> Result<(Vec<u8>, Option<FileInfo>), CommandFailure> {
    for _ in 0..LINKS_MAX {
        match tree.lookup(&path)? {
            Some(node) if node.kind == (Kind::Symlink {}) => {
                let target = tree.read_link(&path)?;
                path = if target.starts_with(b"/") { target } else { beside(&path, &target) };
            }
            found => return Ok((path, found)),
        }
    }
    Err(tree.refuse("follow", &path, "too many symbolic links on the way; look where they point"))
}

/// The names in `path` from its root on, without `.` and empty ones: `.` and `..` have no name.
pub(crate) fn last_name(path: &[u8]) -> Option<&[u8]> {
    let (_, name) = split(path);
    (!matches!(name, b"" | b"." | b"..")).then_some(name)
}

/// `path` in the directory `above`.
pub(crate) fn into(above: &[u8], name: &[u8]) -> Vec<u8> {
    if above.is_empty() { name.to_vec() } else { join(above, name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_split_before_its_last_name() {
        assert_eq!(split(b"/a/b"), (&b"/a/"[..], &b"b"[..]));
        assert_eq!(split(b"a//"), (&b""[..], &b"a"[..]));
        assert_eq!(split(b"/"), (&b""[..], &b""[..]));
        assert_eq!(beside(b"d/x/", b"y"), b"d/y");
        assert_eq!(last_name(b"a/.."), None);
        assert_eq!(last_name(b"a/b/"), Some(&b"b"[..]));
    }
}
