//! A disk that is served, for who changes its superblocks meanwhile.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use runtime::disk::Disk;

use super::Manager;
use crate::stripes::BootId;

/// A disk that is served. Its syncs are those of the manager: a sync that fails may lose what the
/// manager has written, and no later one would say so. A write that fails is noted there, too.
pub(crate) struct ServedDisk {
    manager: Rc<Manager>,
    number: u32,
    disk: Rc<dyn Disk>,
    /// That of the last write.
    boot_id: Cell<BootId>,
}

impl Manager {
    /// A disk that is served, to write to it past the queue.
    pub(crate) fn served_disk(self: &Rc<Self>, number: u32) -> Option<ServedDisk> {
        let disk = self.disk(number)?;
        Some(ServedDisk { manager: self.clone(), number, disk, boot_id: Cell::default() })
    }
}

impl Disk for ServedDisk {
    fn length(&self) -> u64 {
        self.disk.length()
    }

    fn read(&self, offset: u64, length: usize) -> LocalBoxFuture<'static, io::Result<Bytes>> {
        self.disk.read(offset, length)
    }

    fn write(&self, offset: u64, data: Vec<Bytes>) -> LocalBoxFuture<'static, io::Result<()>> {
        self.boot_id.set(self.manager.boot_id());
        let (manager, number) = (self.manager.clone(), self.number);
        let written = self.disk.write(offset, data);
        async move {
            let written = written.await;
            if let Err(why) = &written {
                manager.note_failure(number, why);
            }
            written
        }
        .boxed_local()
    }

    fn sync(&self) -> LocalBoxFuture<'static, io::Result<()>> {
        let (manager, number, boot_id) = (self.manager.clone(), self.number, self.boot_id.get());
        async move {
            manager.flush(number as usize).await.map_err(io::Error::other)?;
            if manager.boot_id() == boot_id {
                return Ok(());
            }
            Err(io::Error::other("another sync has failed meanwhile"))
        }
        .boxed_local()
    }

    fn name(&self) -> String {
        self.disk.name()
    }

    fn is_direct(&self) -> bool {
        self.disk.is_direct()
    }
}
