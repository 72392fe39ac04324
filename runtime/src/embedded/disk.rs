//! Disk files and block devices of the host, by blocking calls on a pool of threads.
//! (io_uring and direct transfers come with the speed issue.)

use std::fs::{File, TryLockError};
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;

use crate::buffer::Pool;
use crate::disk::Disk;

/// Opens the disk at `path`, for this process alone.
pub(super) fn open(path: &str, pool: Pool) -> LocalBoxFuture<'static, io::Result<Rc<dyn Disk>>> {
    let path = path.to_owned();
    blocking(move || {
        let mut file = File::options().read(true).write(true).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::ResourceBusy.into()),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // A block device has no length in its metadata, but an end to seek to.
        let length = file.seek(SeekFrom::End(0))?;
        Ok((file, length))
    })
    .map(|opened| {
        let (file, length) = opened?;
        let disk: Rc<dyn Disk> = Rc::new(FileDisk { file: Arc::new(file), length, pool });
        Ok(disk)
    })
    .boxed_local()
}

struct FileDisk {
    file: Arc<File>,
    length: u64,
    pool: Pool,
}

impl Disk for FileDisk {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, length: usize) -> LocalBoxFuture<'static, io::Result<Bytes>> {
        let file = self.file.clone();
        let Some(mut buffer) = self.pool.take(length) else {
            return futures::future::ready(Err(io::ErrorKind::OutOfMemory.into())).boxed_local();
        };
        blocking(move || {
            file.read_exact_at(&mut buffer, offset)?;
            Ok(buffer.freeze())
        })
    }

    fn write(&self, offset: u64, data: Vec<Bytes>) -> LocalBoxFuture<'static, io::Result<()>> {
        let file = self.file.clone();
        let length = data.iter().map(|piece| piece.len() as u64).sum::<u64>();
        if offset.checked_add(length).is_none_or(|end| end > self.length) {
            // A file would grow.
            return futures::future::ready(Err(io::ErrorKind::InvalidInput.into())).boxed_local();
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
}

#[allow(clippy::disallowed_methods, reason = "the machine itself does the blocking work")]
fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> LocalBoxFuture<'static, io::Result<T>> {
    let running = tokio::task::spawn_blocking(work);
    async move { running.await.unwrap_or_else(|lost| Err(io::Error::other(lost))) }.boxed_local()
}
