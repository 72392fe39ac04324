//! Files of this computer: the program is a tool, so it opens them itself.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use client::{Attributes, Change, SetTime, Time};

use crate::exit::Failure;

/// Bytes that are moved at a time.
pub(crate) const CHUNK: usize = 4 << 20;

/// Something of a tree on this computer.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    pub(crate) metadata: fs::Metadata,
}

/// A file that bytes are written to; a hole stays a hole.
pub(crate) struct Target {
    file: fs::File,
    path: PathBuf,
}

/// Opens a file for reading.
#[allow(clippy::disallowed_methods, reason = "the program reads files of this computer")]
pub(crate) fn open(path: &Path) -> Result<fs::File, Failure> {
    fs::File::open(path).map_err(|error| Failure::local("read", path, error))
}

/// The text of a file.
pub(crate) fn read_text(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| Failure::local("read", path, error))
}

/// What is known of a file; of a symbolic link itself.
pub(crate) fn metadata(path: &Path) -> Result<fs::Metadata, Failure> {
    fs::symlink_metadata(path).map_err(|error| Failure::local("read", path, error))
}

/// All that is in a directory.
pub(crate) fn list(path: &Path) -> Result<Vec<Found>, Failure> {
    let failed = |error| Failure::local("list", path, error);
    let mut all = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        all.push(Found { metadata: metadata(&entry.path())?, path: entry.path() });
    }
    Ok(all)
}

/// The bytes of `source` in chunks with their offsets, to the end or the first error.
pub(crate) fn chunks(mut source: impl Read) -> impl Iterator<Item = io::Result<(u64, Bytes)>> {
    let mut offset = 0;
    let mut ended = false;
    std::iter::from_fn(move || {
        if ended {
            return None;
        }
        let mut chunk = Vec::with_capacity(CHUNK);
        match source.by_ref().take(CHUNK as u64).read_to_end(&mut chunk) {
            Ok(count) => {
                ended = count < CHUNK;
                let start = offset;
                offset += count as u64;
                (count > 0).then(|| Ok((start, chunk.into())))
            }
            Err(error) => {
                ended = true;
                Some(Err(error))
            }
        }
    })
}

/// Permissions and time of the last change, for the copy in a volume.
pub(crate) fn kept(metadata: &fs::Metadata) -> Change {
    let nanos = u32::try_from(metadata.mtime_nsec()).unwrap_or(0);
    let time = Time { seconds: metadata.mtime(), nanos };
    Change {
        mode: Some(metadata.permissions().mode() & 0o7777),
        mtime: Some(SetTime::To { time }),
        ..Change::default()
    }
}

/// Gives the copy on this computer the permissions and the time of the last change.
pub(crate) fn keep(path: &Path, of: &Attributes) -> Result<(), Failure> {
    let failed = |error| Failure::local("change", path, error);
    fs::set_permissions(path, fs::Permissions::from_mode(of.mode)).map_err(failed)?;
    // A time before 1970 is rare, and nothing that a copy should fail for.
    let Ok(seconds) = u64::try_from(of.mtime.seconds) else { return Ok(()) };
    let time = UNIX_EPOCH.checked_add(Duration::new(seconds, of.mtime.nanos));
    let Some(time) = time else { return Ok(()) };
    let times = fs::FileTimes::new().set_modified(time);
    // Reading is enough to set the times of one's own file, and works for directories too.
    open(path)?.set_times(times).map_err(failed)
}

/// Makes a directory unless it is there.
pub(crate) fn make_directory(path: &Path) -> Result<(), Failure> {
    match fs::create_dir(path) {
        Err(_) if path.is_dir() => Ok(()),
        result => result.map_err(|error| Failure::local("make directory", path, error)),
    }
}

/// Gives a file its name, in the place of an older one.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::rename(from, to).map_err(|error| Failure::local("create", to, error))
}

/// Removes a file that was left unfinished; if it stays, it is only in the way.
pub(crate) fn remove(path: &Path) {
    let _ = fs::remove_file(path);
}

/// Makes a symbolic link, in the place of an older one.
pub(crate) fn make_symlink(target: &Path, path: &Path) -> Result<(), Failure> {
    if fs::symlink_metadata(path).is_ok_and(|old| old.is_symlink()) {
        fs::remove_file(path).map_err(|error| Failure::local("replace", path, error))?;
    }
    std::os::unix::fs::symlink(target, path)
        .map_err(|error| Failure::local("make symbolic link", path, error))
}

impl Target {
    /// Makes or empties the file `path`.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let file = fs::OpenOptions::new().write(true).create(true).truncate(true).open(path);
        let file = file.map_err(|error| Failure::local("create", path, error))?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Writes `parts` at `offset`.
    pub(crate) fn write(&self, mut offset: u64, parts: &[Bytes]) -> Result<(), Failure> {
        for part in parts {
            if !is_zero(part) {
                self.file.write_all_at(part, offset).map_err(|error| self.failed(error))?;
            }
            offset += part.len() as u64;
        }
        Ok(())
    }

    /// The file has `size` bytes, and is on the disk.
    pub(crate) fn finish(self, size: u64) -> Result<(), Failure> {
        self.file.set_len(size).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: io::Error) -> Failure {
        Failure::local("write", &self.path, error)
    }
}

/// Nothing but zeros?
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    // In blocks of a size that the compiler can compare at once.
    let mut blocks = bytes.chunks_exact(64);
    blocks.all(|block| block == [0; 64]) && blocks.remainder().iter().all(|&byte| byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_whole_but_the_last() {
        let lengths = |length: usize| {
            let chunks = chunks(io::repeat(1).take(length as u64));
            chunks.map(|chunk| chunk.unwrap().1.len()).collect::<Vec<_>>()
        };
        assert_eq!(lengths(0), [0; 0]);
        assert_eq!(lengths(CHUNK), [CHUNK]);
        assert_eq!(lengths(CHUNK + 3), [CHUNK, 3]);
    }

    #[test]
    fn zeros_are_told_from_anything_else() {
        let mut bytes = vec![0; 1000];
        assert!(is_zero(&bytes) && is_zero(&[]));
        for place in [0, 63, 64, 999] {
            bytes[place] = 1;
            assert!(!is_zero(&bytes), "{place}");
            bytes[place] = 0;
        }
    }
}
