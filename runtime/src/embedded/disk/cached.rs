//! Through the host's page cache, by blocking calls on a pool of threads: works on every host.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, ready};

use super::access::check;
use crate::buffer::{Buffer, Pool};
use crate::disk::Disk;

pub(super) struct CachedDisk {
    path: PathBuf,
    /// Also held by each transfer under way, and with it the lock.
    file: Arc<File>,
    length: u64,
    pool: Pool,
}

impl CachedDisk {
    pub(super) fn new(path: PathBuf, file: File, length: u64, pool: Pool) -> Self {
        Self { path, file: Arc::new(file), length, pool }
    }
}

impl Disk for CachedDisk {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, length: usize) -> LocalBoxFuture<'static, io::Result<Bytes>> {
        if let Err(error) = check(offset, length as u64, self.length) {
            return ready(Err(error)).boxed_local();
        }
        let file = self.file.clone();
        let Some(mut buffer) = self.pool.take(length) else {
            return ready(Err(io::ErrorKind::OutOfMemory.into())).boxed_local();
        };
        blocking(move || {
            file.read_exact_at(&mut buffer, offset)?;
            Ok(buffer.lend())
        })
    }

    fn read_pieces(
        &self,
        offset: u64,
        lengths: Vec<usize>,
    ) -> LocalBoxFuture<'static, io::Result<Vec<Bytes>>> {
        let length = lengths.iter().sum::<usize>() as u64;
        if let Err(error) = check(offset, length, self.length) {
            return ready(Err(error)).boxed_local();
        }
        let file = self.file.clone();
        let taken: Option<Vec<_>> = lengths.iter().map(|length| self.pool.take(*length)).collect();
        let Some(buffers) = taken else {
            return ready(Err(io::ErrorKind::OutOfMemory.into())).boxed_local();
        };
        blocking(move || {
            let mut at = offset;
            let read = |mut buffer: Buffer| {
                file.read_exact_at(&mut buffer, at)?;
                at += buffer.len() as u64;
                Ok(buffer.lend())
            };
            buffers.into_iter().map(read).collect()
        })
    }

    fn write(&self, offset: u64, data: Vec<Bytes>) -> LocalBoxFuture<'static, io::Result<()>> {
        let file = self.file.clone();
        let length = data.iter().map(|piece| piece.len() as u64).sum::<u64>();
        if let Err(error) = check(offset, length, self.length) {
            return ready(Err(error)).boxed_local();
        }
        blocking(move || {
            let mut at = offset;
            for piece in data {
                file.write_all_at(&piece, at)?;
                at += piece.len() as u64;
            }
            Ok(())
        })
    }

    fn sync(&self) -> LocalBoxFuture<'static, io::Result<()>> {
        let file = self.file.clone();
        blocking(move || file.sync_data())
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn is_direct(&self) -> bool {
        false
    }
}

/// Begins at once, whether or not the future is ever polled.
#[allow(clippy::disallowed_methods, reason = "the machine itself does the blocking work")]
pub(super) fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> LocalBoxFuture<'static, io::Result<T>> {
    let running = tokio::task::spawn_blocking(work);
    async move { running.await.unwrap_or_else(|lost| Err(io::Error::other(lost))) }.boxed_local()
}
