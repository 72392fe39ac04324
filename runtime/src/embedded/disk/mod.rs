//! Disk files and block devices of the host, by one of two ways.
//!
//! | way | file | transfers |
//! | --- | --- | --- |
//! | direct | `direct.rs`, `ring.rs` | between our buffers and the disk, by the thread's io_uring |
//! | cached | `cached.rs` | through the host's page cache, by blocking calls on a pool of threads |
//!
//! Both keep the same promises, and `tests/disks.rs` asks both the same questions.

mod access;
mod cached;
mod direct;
mod growth;
mod ring;
mod writes;

use std::fs::{File, TryLockError};
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Once;
use std::time::Duration;

use rustix::fs::OFlags;

pub use self::access::{DISK_ACCESS_VARIABLE, DiskAccess};
pub(super) use self::ring::Ring;
use crate::buffer::{ALIGNMENT, Pool};
use crate::disk::Disk;

/// Attempts to open a disk that another process holds, with this pause.
const LOCK_TRIES_MAX: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Opens the disk at `path`, for this process alone. `ring` is that of the thread.
pub(super) async fn open(
    path: PathBuf,
    pool: Pool,
    access: DiskAccess,
    ring: io::Result<Rc<Ring>>,
) -> io::Result<Rc<dyn Disk>> {
    let opened = path.clone();
    let is_writable = access != DiskAccess::ReadOnly;
    let (file, length) = cached::blocking(move || open_file(&opened, is_writable)).await?;
    let refused = match access {
        DiskAccess::Cached | DiskAccess::ReadOnly => None,
        DiskAccess::Best | DiskAccess::Direct => {
            match try_direct(&path, &file, length, &pool, ring).await {
                Ok(disk) => return Ok(Rc::new(disk)),
                Err(why) => Some(why),
            }
        }
    };
    if let Some(why) = refused {
        if access == DiskAccess::Direct {
            return Err(why);
        }
        tell_refusal(&path, &why);
    }
    Ok(Rc::new(cached::CachedDisk::new(path, file, length, pool)))
}

/// By a second handle of the same open file, so that the lock stays if nothing comes of it.
async fn try_direct(
    path: &Path,
    file: &File,
    length: u64,
    pool: &Pool,
    ring: io::Result<Rc<Ring>>,
) -> io::Result<direct::DirectDisk> {
    let ring = ring?;
    if !length.is_multiple_of(ALIGNMENT as u64) {
        let why = format!("its {length} bytes are not whole blocks of {ALIGNMENT} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    direct::DirectDisk::open(path, &ring, file.try_clone()?, length, pool.clone()).await
}

fn tell_refusal(path: &Path, why: &io::Error) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        tracing::warn!(
            disk = %path.display(),
            %why,
            "the host refuses direct transfers by io_uring: such disks go through its page cache"
        );
    });
}

/// Does what fails as long as another process holds the disk. The host ends the ring of a process
/// that was killed a little later than the process, and only then closes its files: so this waits
/// a little.
#[allow(clippy::disallowed_methods, reason = "the machine itself does the blocking work")]
fn once_free<T>(attempt: impl Fn() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..LOCK_TRIES_MAX {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                std::thread::sleep(LOCK_PAUSE);
            }
            done => return done,
        }
    }
    attempt()
}

/// Locks the file for this process alone.
fn lock(file: &File) -> io::Result<()> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => io::ErrorKind::ResourceBusy.into(),
        TryLockError::Error(error) => error,
    })
}

/// The file and its length in bytes.
fn open_file(path: &Path, is_writable: bool) -> io::Result<(File, u64)> {
    let mut options = File::options();
    options.read(true).write(is_writable);
    if std::fs::metadata(path)?.file_type().is_block_device() {
        // The host refuses a device that it has mounted or that is part of another one, and
        // refuses to mount it as long as it is open.
        options.custom_flags(OFlags::EXCL.bits().cast_signed());
    }
    let mut file = once_free(|| options.open(path))?;
    once_free(|| lock(&file))?;
    // A block device has no length in its metadata, but an end to seek to.
    let length = file.seek(SeekFrom::End(0))?;
    Ok((file, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
    }

    #[test]
    fn without_io_uring_a_disk_works_through_the_page_cache() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        std::fs::write(&path, vec![0; 8192]).unwrap();
        let pool = Pool::new(1 << 20);
        let forbidden = || Err(io::ErrorKind::PermissionDenied.into());
        run(async {
            let opened = open(path.clone(), pool.clone(), DiskAccess::Best, forbidden()).await;
            let disk = opened.unwrap();
            assert!(!disk.is_direct());
            disk.write(4095, vec!["ab".into()]).await.unwrap();
            disk.sync().await.unwrap();
            assert_eq!(disk.read(4094, 4).await.unwrap(), &b"\0ab\0"[..]);
            let second = open(path.clone(), pool.clone(), DiskAccess::Best, forbidden()).await;
            assert_eq!(second.err().unwrap().kind(), io::ErrorKind::ResourceBusy);
            drop(disk);
            let insisted = open(path, pool, DiskAccess::Direct, forbidden()).await;
            assert_eq!(insisted.err().unwrap().kind(), io::ErrorKind::PermissionDenied);
        });
    }
}
