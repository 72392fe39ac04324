//! Files of this computer: the program is a tool, so it opens them itself.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::exit::CommandFailure;

/// Bytes that are moved at a time.
pub const CHUNK: usize = 4 << 20;

/// A file that bytes are written to; a hole stays a hole.
pub struct Target {
    file: fs::File,
    path: PathBuf,
}

/// Opens a file for reading.
#[allow(clippy::disallowed_methods, reason = "the program reads files of this computer")]
pub fn open(path: &Path) -> Result<fs::File, CommandFailure> {
    fs::File::open(path).map_err(|error| CommandFailure::local("read", path, error))
}

/// The text of a file.
pub fn read_text(path: &Path) -> Result<String, CommandFailure> {
    fs::read_to_string(path).map_err(|error| CommandFailure::local("read", path, error))
}

/// The bytes of `source` in chunks with their offsets, to the end or the first error.
pub fn chunks(mut source: impl Read) -> impl Iterator<Item = io::Result<(u64, Bytes)>> {
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

/// Makes a directory unless it is there.
pub fn make_directory(path: &Path) -> Result<(), CommandFailure> {
    match fs::create_dir(path) {
        Err(_) if path.is_dir() => Ok(()),
        result => result.map_err(|error| CommandFailure::local("make directory", path, error)),
    }
}

/// Gives a file its name, in the place of an older one.
pub fn rename(from: &Path, to: &Path) -> Result<(), CommandFailure> {
    fs::rename(from, to).map_err(|error| CommandFailure::local("create", to, error))
}

/// Removes a file that was left unfinished; if it stays, it is only in the way.
pub fn remove(path: &Path) {
    let _ = fs::remove_file(path);
}

impl Target {
    /// Makes or empties the file `path`.
    pub fn create(path: &Path) -> Result<Self, CommandFailure> {
        let file = fs::OpenOptions::new().write(true).create(true).truncate(true).open(path);
        let file = file.map_err(|error| CommandFailure::local("create", path, error))?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Writes `parts` at `offset`.
    pub fn write(&self, mut offset: u64, parts: &[Bytes]) -> Result<(), CommandFailure> {
        for part in parts {
            if !is_zero(part) {
                self.file.write_all_at(part, offset).map_err(|error| self.failed(error))?;
            }
            offset += part.len() as u64;
        }
        Ok(())
    }

    /// The file has `size` bytes, and is on the disk.
    pub fn finish(self, size: u64) -> Result<(), CommandFailure> {
        self.file.set_len(size).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: io::Error) -> CommandFailure {
        CommandFailure::local("write", &self.path, error)
    }
}

/// Nothing but zeros?
pub fn is_zero(bytes: &[u8]) -> bool {
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
