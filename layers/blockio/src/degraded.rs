//! Disks of a volume that is only read, as far as they are there: some are missing, some have lost
//! their superblocks or their end. Nothing is written to any.
//!
//! What such a disk returns need not be trusted: everything on it has a checksum that is known
//! elsewhere. Only a disk that is known to be another one, or of another time, is left out: its
//! logs and roots could be taken for those of today.

use std::io;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, ready};
use runtime::disk::Disk;

use crate::geometry::BLOCK_SIZE;
use crate::open::{DiskError, ExpectedDisk, check_disk, check_first};

/// What is wrong with a disk of a volume that is opened all the same.
#[derive(Debug)]
pub struct DiskTrouble {
    /// The disk within its node.
    pub disk: u32,
    /// What is wrong.
    pub why: DiskFlaw,
    /// Nothing of it is used.
    pub is_left_out: bool,
}

/// What can be wrong with a disk.
#[derive(Debug, thiserror::Error)]
pub enum DiskFlaw {
    /// It cannot be opened.
    #[error("it cannot be opened: {0}")]
    Unopened(io::Error),
    /// It is not what it should be.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// One of its superblocks is good.
    #[error("one of its two superblocks is missing, damaged or old")]
    Superblock,
}

/// Looks at a disk, or at why there is none: what is used in its place, and what is wrong with it.
pub(crate) async fn find(
    opened: io::Result<Rc<dyn Disk>>,
    expected: &ExpectedDisk,
) -> (Rc<dyn Disk>, Option<DiskTrouble>) {
    let disk = expected.disk.disk;
    let trouble = |why, is_left_out| Some(DiskTrouble { disk, why, is_left_out });
    let device = match opened {
        Ok(device) => device,
        Err(error) => return (Rc::new(NoDisk), trouble(DiskFlaw::Unopened(error), true)),
    };
    let error = match check_disk(&*device, expected).await {
        Ok(found) if found.needs_repair() => return (device, trouble(DiskFlaw::Superblock, false)),
        Ok(_) => return (device, None),
        Err(error) => error,
    };
    let is_usable = match &error {
        DiskError::Unformatted | DiskError::Damaged | DiskError::Io(_) => true,
        // Its first superblock may still tell that it is another disk.
        DiskError::Truncated { .. } => match check_first(&*device, expected).await {
            Ok(()) => true,
            Err(other) => return (Rc::new(NoDisk), trouble(other.into(), true)),
        },
        _ => false,
    };
    if !is_usable {
        return (Rc::new(NoDisk), trouble(error.into(), true));
    }
    let length = expected.map.disk_length(expected.disk);
    let whole: Rc<dyn Disk> =
        if device.length() < length { Rc::new(CutDisk { disk: device, length }) } else { device };
    (whole, trouble(error.into(), false))
}

/// In the place of a disk that is left out.
struct NoDisk;

fn nothing<T: 'static>() -> LocalBoxFuture<'static, io::Result<T>> {
    ready(Err(io::ErrorKind::NotFound.into())).boxed_local()
}

impl Disk for NoDisk {
    fn length(&self) -> u64 {
        0
    }
    fn read(&self, _: u64, _: usize) -> LocalBoxFuture<'static, io::Result<Bytes>> {
        nothing()
    }
    fn write(&self, _: u64, _: Vec<Bytes>) -> LocalBoxFuture<'static, io::Result<()>> {
        nothing()
    }
    fn sync(&self) -> LocalBoxFuture<'static, io::Result<()>> {
        nothing()
    }
}

/// A disk whose end is missing: it reads as zeros, so that what lies before it in the same stripe
/// can be read. Checksums tell the zeros from what was there.
struct CutDisk {
    disk: Rc<dyn Disk>,
    length: u64,
}

impl Disk for CutDisk {
    fn length(&self) -> u64 {
        self.length
    }
    fn read(&self, offset: u64, length: usize) -> LocalBoxFuture<'static, io::Result<Bytes>> {
        let real = self.disk.length();
        let end = real - real % BLOCK_SIZE as u64;
        let there = end.saturating_sub(offset).min(length as u64) as usize;
        if there == length {
            return self.disk.read(offset, length);
        }
        let reading = (there > 0).then(|| self.disk.read(offset, there));
        async move {
            let mut all = BytesMut::with_capacity(length);
            if let Some(reading) = reading {
                all.extend_from_slice(&reading.await?);
            }
            all.resize(length, 0);
            Ok(all.freeze())
        }
        .boxed_local()
    }
    fn write(&self, _: u64, _: Vec<Bytes>) -> LocalBoxFuture<'static, io::Result<()>> {
        ready(Err(io::ErrorKind::ReadOnlyFilesystem.into())).boxed_local()
    }
    fn sync(&self) -> LocalBoxFuture<'static, io::Result<()>> {
        ready(Ok(())).boxed_local()
    }
    fn name(&self) -> String {
        self.disk.name()
    }
    fn is_direct(&self) -> bool {
        self.disk.is_direct()
    }
}
