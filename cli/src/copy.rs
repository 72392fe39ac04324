//! Bytes and trees between a volume and this computer: several files, and several parts of each, are
//! under way at once.

use std::future::Future;
use std::io::{self, Read};
use std::path::Path;

use bytes::Bytes;
use client::{File, FileSystem, Kind, OpenOptions};
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use runtime::Door;

use crate::exit::Failure;
use crate::local::{self, CHUNK};
use crate::progress::Progress;

/// Files that are copied at once, at most.
const FILES_MAX: usize = 8;

/// Chunks of one file that are under way at once, at most.
const CHUNKS_MAX: usize = 4;

/// A copy between a volume and this computer.
pub(crate) struct Copy<'a> {
    pub(crate) file_system: &'a FileSystem<Door>,
    pub(crate) volume: &'a Path,
    pub(crate) progress: Progress,
}

/// One thing of a tree to copy.
pub(crate) trait Step: Sized {
    /// Makes a directory, with nothing in it, unless it is there.
    async fn make_directory(&self, copy: &Copy<'_>) -> Result<(), Failure>;

    /// Copies anything else.
    async fn copy(self, copy: &Copy<'_>) -> Result<(), Failure>;

    /// Gives a directory the attributes that its original has.
    async fn keep(self, copy: &Copy<'_>) -> Result<(), Failure>;
}

impl Copy<'_> {
    /// The failure of an operation in the volume.
    pub(crate) fn inside(&self, error: client::Error) -> Failure {
        Failure::inside(self.volume, error)
    }

    /// Copies all that `source` gives into the file `to`; `name` is what to call the source.
    pub(crate) async fn put(
        &self,
        (name, source): (&Path, impl Read),
        to: &[u8],
        mode: u32,
    ) -> Result<File<Door>, Failure> {
        let options = OpenOptions::new().write(true).create(true).truncate(true).mode(mode);
        let file = self.file_system.open(to, options).await.map_err(|error| self.inside(error))?;
        let size = self.fill(&file, name, source).await?;
        file.set_len(size).await.map_err(|error| self.inside(error))?;
        Ok(file)
    }

    /// Writes all that `source` gives and returns how much that was.
    async fn fill(
        &self,
        file: &File<Door>,
        name: &Path,
        source: impl Read,
    ) -> Result<u64, Failure> {
        let write = async |chunk: io::Result<(u64, Bytes)>| {
            let (offset, data) = chunk.map_err(|error| Failure::local("read", name, error))?;
            let length = data.len() as u64;
            // What is nothing but zeros stays a hole.
            if !local::is_zero(&data) {
                file.write_at(offset, data).await.map_err(|error| self.inside(error))?;
            }
            self.progress.moved(length);
            Ok(offset + length)
        };
        let written = stream::iter(local::chunks(source)).map(write).buffered(CHUNKS_MAX);
        written.try_fold(0, async |_, end| Ok(end)).await
    }

    /// The bytes of `file`, as many as there are now, in chunks with their offsets.
    pub(crate) async fn read<'f>(
        &'f self,
        file: &'f File<Door>,
    ) -> Result<impl Stream<Item = Result<(u64, Vec<Bytes>), Failure>> + use<'f>, Failure> {
        let size = file.metadata().await.map_err(|error| self.inside(error))?.size;
        let chunks = stream::iter((0..size).step_by(CHUNK));
        Ok(chunks.map(move |offset| self.read_chunk(file, offset)).buffered(CHUNKS_MAX))
    }

    async fn read_chunk(
        &self,
        file: &File<Door>,
        offset: u64,
    ) -> Result<(u64, Vec<Bytes>), Failure> {
        let read = file.read_bytes_at(offset, CHUNK).await;
        let parts = read.map_err(|error| self.inside(error))?;
        self.progress.moved(parts.iter().map(|part| part.len() as u64).sum());
        Ok((offset, parts))
    }

    /// Opens a file of the volume for reading.
    pub(crate) async fn open(&self, path: &[u8]) -> Result<File<Door>, Failure> {
        let options = OpenOptions::new().read(true);
        self.file_system.open(path, options).await.map_err(|error| self.inside(error))
    }

    /// Is there a directory at `path`, or a link to one?
    pub(crate) async fn is_directory(&self, path: &[u8]) -> Result<bool, Failure> {
        match self.file_system.metadata(path).await {
            Ok(found) => Ok(found.kind == Kind::Directory {}),
            Err(error) if error.cause.is_not_found() => Ok(false),
            Err(error) => Err(self.inside(error)),
        }
    }

    /// Copies `directories`, those above first, and everything else. Of a tree each failure is told,
    /// and the rest goes on.
    pub(crate) async fn all<S: Step>(
        &self,
        directories: Vec<S>,
        others: Vec<S>,
    ) -> Result<(), Failure> {
        let single = directories.is_empty();
        let total = directories.len() + others.len();
        for step in &directories {
            step.make_directory(self).await?;
        }
        if single {
            for step in others {
                step.copy(self).await?;
            }
            return self.finish(0, total);
        }
        let mut failed = self.each(others, |step| step.copy(self)).await;
        // Last, because copying into a directory changes its time, and needs its permission.
        for step in directories.into_iter().rev() {
            failed += self.each(vec![step], |step| step.keep(self)).await;
        }
        self.finish(failed, total)
    }

    /// Runs `work` for each of `items`, several at once. Each failure is told; the rest goes on.
    async fn each<T, F>(&self, items: Vec<T>, work: impl Fn(T) -> F) -> usize
    where
        F: Future<Output = Result<(), Failure>>,
    {
        let results = stream::iter(items).map(work).buffer_unordered(FILES_MAX);
        results
            .fold(0, async |failed, result| match result {
                Ok(()) => failed,
                Err(failure) => {
                    self.progress.tell(&format!("mdfs: {failure}"));
                    failed + 1
                }
            })
            .await
    }

    /// The end of a copy of `total` things, of which `failed` were not copied.
    pub(crate) fn finish(&self, failed: usize, total: usize) -> Result<(), Failure> {
        self.progress.finish();
        if failed == 0 { Ok(()) } else { Err(Failure::Some { failed, total }) }
    }
}
