//! Files whose content follows from their number: written by many writers, and checked.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use client::blocking::Volume;
use client::stream::BadMode;
use runtime::hash::Crc32c;
use runtime::seed::Rng;

use crate::exit::CommandFailure;

/// Bytes made at a time.
const PIECE_BYTES: usize = 1 << 20;

/// A set of files in one directory.
pub(super) struct DemoCheckpoint {
    directory: &'static str,
    files: u64,
    file_bytes: u64,
    chunk_bytes: usize,
}

impl DemoCheckpoint {
    /// `files` files of `file_bytes`, read and written in pieces of `chunk_bytes`.
    pub(super) fn new(
        directory: &'static str,
        files: u64,
        file_bytes: u64,
        chunk_bytes: usize,
    ) -> Self {
        Self { directory, files, file_bytes, chunk_bytes }
    }

    /// Bytes in all files.
    pub(super) fn bytes(&self) -> u64 {
        self.files * self.file_bytes
    }

    /// Bytes of each file.
    pub(super) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Calls of fwrite or fread that move all files once.
    pub(super) fn operations(&self) -> u64 {
        self.files * self.file_bytes.div_ceil(self.chunk_bytes as u64)
    }

    /// The names of the files in their directory.
    pub(super) fn names(&self) -> Vec<String> {
        (0..self.files).map(|file| format!("rank-{file}")).collect()
    }

    fn path(&self, file: u64) -> String {
        format!("{}/rank-{file}", self.directory)
    }

    /// Does `work` on all files, by `workers` threads that open the volume each for themselves.
    #[allow(clippy::disallowed_methods, reason = "the demo is a program with threads")]
    fn by_many(
        &self,
        volume: &Path,
        workers: u64,
        work: impl Fn(&Volume, u64) -> Result<(), CommandFailure> + Sync,
    ) -> Result<(), CommandFailure> {
        let work = &work;
        std::thread::scope(|scope| {
            let running: Vec<_> = (0..workers)
                .map(|worker| {
                    scope.spawn(move || {
                        let opened = client::volume::open(volume)?;
                        let mut mine = (worker..self.files).step_by(workers as usize);
                        mine.try_for_each(|file| work(&opened, file))
                    })
                })
                .collect();
            let outcomes = running.into_iter().map(|worker| {
                worker.join().unwrap_or_else(|_| {
                    Err(CommandFailure::Wrong("a worker of the demo panicked".to_owned()))
                })
            });
            outcomes.collect::<Vec<_>>().into_iter().collect()
        })
    }

    /// Writes all files through the stdio-like API and syncs each.
    pub(super) fn write(&self, volume: &Path, workers: u64) -> Result<(), CommandFailure> {
        let failed = |error| CommandFailure::inside(&volume.into(), error);
        client::volume::open(volume)?.mkdir(self.directory).map_err(failed)?;
        self.by_many(volume, workers, |opened, file| {
            let mode =
                "w".parse().map_err(|error: BadMode| CommandFailure::Wrong(error.to_string()))?;
            let mut stream = opened.stream(self.path(file), mode).map_err(failed)?;
            self.content(file, |piece| {
                piece.chunks(self.chunk_bytes).try_for_each(|chunk| stream.write(chunk))
            })
            .map_err(failed)?;
            stream.sync().map_err(failed)?;
            stream.close().map_err(failed)
        })
    }

    /// Reads all files through the stdio-like API and compares their checksums.
    pub(super) fn verify(&self, volume: &Path, workers: u64) -> Result<(), CommandFailure> {
        self.by_many(volume, workers, |opened, file| {
            self.verify_stream(volume, opened, file, &self.path(file))
        })
    }

    /// The file `path` of the volume is the file `file`.
    pub(super) fn verify_as(
        &self,
        volume: &Path,
        file: u64,
        path: &str,
    ) -> Result<(), CommandFailure> {
        self.verify_stream(volume, &client::volume::open(volume)?, file, path)
    }

    fn verify_stream(
        &self,
        volume: &Path,
        opened: &Volume,
        file: u64,
        path: &str,
    ) -> Result<(), CommandFailure> {
        let failed = |error| CommandFailure::inside(&volume.into(), error);
        let mode =
            "r".parse().map_err(|error: BadMode| CommandFailure::Wrong(error.to_string()))?;
        let mut stream = opened.stream(path, mode).map_err(failed)?;
        let mut found = Crc32c::new();
        let mut chunk = vec![0; self.chunk_bytes];
        let mut bytes = 0;
        loop {
            let length = stream.read(&mut chunk).map_err(failed)?;
            if length == 0 {
                break;
            }
            bytes += length as u64;
            found.update(&chunk[..length]);
        }
        self.compare(file, path, bytes, found)
    }

    /// The file `copy` of this computer is the file `file`.
    pub(super) fn verify_local(&self, file: u64, copy: &Path) -> Result<(), CommandFailure> {
        let failed = |error| CommandFailure::local("read", copy, error);
        #[allow(clippy::disallowed_methods, reason = "a program of the host reads its files")]
        let mut opened = File::open(copy).map_err(failed)?;
        let mut found = Crc32c::new();
        let mut piece = vec![0; PIECE_BYTES];
        let mut bytes = 0;
        loop {
            let length = opened.read(&mut piece).map_err(failed)?;
            if length == 0 {
                break;
            }
            bytes += length as u64;
            found.update(&piece[..length]);
        }
        self.compare(file, &copy.display().to_string(), bytes, found)
    }

    /// These bytes are the file `file`.
    pub(super) fn verify_bytes(&self, file: u64, bytes: &[u8]) -> Result<(), CommandFailure> {
        let mut found = Crc32c::new();
        found.update(bytes);
        self.compare(file, &format!("what nfs-cat shows of file {file}"), bytes.len() as u64, found)
    }

    fn compare(
        &self,
        file: u64,
        what: &str,
        bytes: u64,
        found: Crc32c,
    ) -> Result<(), CommandFailure> {
        let mut expected = Crc32c::new();
        let Ok(()) = self.content(file, |piece| {
            expected.update(piece);
            Ok::<(), std::convert::Infallible>(())
        });
        let (found, expected) = (found.finish(), expected.finish());
        if bytes == self.file_bytes && found == expected {
            return Ok(());
        }
        let text = format!(
            "{what} has {bytes} bytes with checksum {found:08x}, written were {} with {expected:08x}",
            self.file_bytes
        );
        Err(CommandFailure::Wrong(text))
    }

    /// Makes the content of a file, piece by piece.
    fn content<E>(&self, file: u64, mut each: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut rng = Rng::new(file ^ self.file_bytes);
        let mut piece = vec![0; PIECE_BYTES];
        let mut left = self.file_bytes;
        while left > 0 {
            let length = left.min(PIECE_BYTES as u64);
            rng.fill(&mut piece[..length as usize]);
            each(&piece[..length as usize])?;
            left -= length;
        }
        Ok(())
    }
}
