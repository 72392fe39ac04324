//! Dispatches operations to workers.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use client::hash;
use client::protocol::Name;
use fuser::{Errno, FileHandle, FopenFlags, INodeNo, OpenFlags, ReplyOpen, Request};
use futures::channel::oneshot;
use runtime::{NodeId, NodeKind, Spawn};

use super::request::entry_name;
use crate::caller::CallerProcess;
use crate::inode_table::InodeTable;
use crate::operations::{EntryName, MountOperations, OpenedNumber, WriteSource};
use crate::volume_client::OpenTarget;
use crate::worker::Worker;
use crate::write_behind::Collected;

/// Flags of an open file. Without `FOPEN_KEEP_CACHE` the kernel drops its pages, so that a reader
/// sees all earlier writes of other clients.
pub(super) fn open_flags(opened: OpenedNumber) -> FopenFlags {
    if opened.keeps_pages { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() }
}

/// The FUSE file operations that the kernel sends requests to.
#[derive(Debug)]
pub(crate) struct FuseFilesystem<S> {
    pub(super) workers: Vec<Worker<S>>,
    fs_nodes: u32,
    /// How long the kernel may keep names and attributes.
    pub(super) cache: Duration,
    /// Sequential writes are collected.
    collecting: Arc<AtomicBool>,
    /// Dropped when the mount has ended.
    pub(super) ended: Option<oneshot::Sender<Infallible>>,
}

impl<S: Spawn> FuseFilesystem<S> {
    /// The file operations of a volume with `fs_nodes` nodes; there is at least one worker.
    pub(crate) fn new(
        workers: Vec<Worker<S>>,
        fs_nodes: u32,
        cache: Duration,
        collecting: Arc<AtomicBool>,
        ended: oneshot::Sender<Infallible>,
    ) -> Self {
        Self { workers, fs_nodes, cache, collecting, ended: Some(ended) }
    }

    /// The worker on the thread of `node`: node `i` and worker `i` are on thread `i mod threads`.
    fn worker(&self, node: NodeId) -> &Worker<S> {
        let (NodeKind::Fs(index) | NodeKind::Disk(index) | NodeKind::Application(index)) =
            node.kind();
        &self.workers[index as usize % self.workers.len()]
    }

    pub(super) fn inodes(&self) -> &InodeTable {
        self.workers[0].inodes()
    }

    /// Dispatches an operation on a file. It is dropped, with its reply, if its caller is killed.
    pub(super) fn dispatch_inode<F>(
        &self,
        request: &Request,
        ino: INodeNo,
        work: impl FnOnce(Rc<MountOperations<S>>, u64) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + 'static,
    {
        let caller = CallerProcess::of(request);
        self.dispatch_to_end(ino, move |operations, ino| async move {
            let work = pin!(async {
                operations.volume.send_collected(ino).await;
                work(operations.clone(), ino).await;
            });
            operations.callers.until_killed(caller, work).await;
        });
    }

    /// Collects a write that need not be sent at once; false if it must.
    pub(super) fn collect(
        &self,
        (ino, file): (INodeNo, FileHandle),
        offset: u64,
        data: &[u8],
        source: WriteSource,
        flags: OpenFlags,
    ) -> bool {
        const AT_ONCE: i32 = libc::O_APPEND | libc::O_SYNC | libc::O_DSYNC;
        let collects = self.collecting.load(Relaxed);
        if !collects || source != WriteSource::CachedWrite || flags.0 & AT_ONCE != 0 {
            return false;
        }
        let is_full = match self.inodes().collect(file.0, offset, data) {
            Collected::No => return false,
            Collected::Yes => return true,
            Collected::Untimed => false,
            Collected::Full => true,
        };
        let node = hash::ino_node(ino.0, self.fs_nodes);
        self.worker(node).submit(move |operations| async move {
            if is_full {
                operations.volume.send_collected(ino.0).await;
            } else {
                let machine = &operations.volume.machine;
                operations.volume.collected.send_in_time(machine, file.0).await;
            }
        });
        true
    }

    /// Dispatches an operation on a file that runs to its end. Writes that are
    /// collected are not sent before.
    pub(super) fn dispatch_to_end<F>(
        &self,
        ino: INodeNo,
        work: impl FnOnce(Rc<MountOperations<S>>, u64) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + 'static,
    {
        let ino = ino.0;
        self.worker(hash::ino_node(ino, self.fs_nodes))
            .submit(move |operations| work(operations, ino));
    }

    /// Opens a file or directory. If the caller is killed, what was opened for it is closed.
    pub(super) fn dispatch_open(
        &self,
        request: &Request,
        ino: INodeNo,
        target: OpenTarget,
        reply: ReplyOpen,
    ) {
        let caller = CallerProcess::of(request);
        self.dispatch_to_end(ino, move |operations, ino| async move {
            let mut opening = pin!(operations.open(caller, ino, target));
            match operations.callers.until_killed(caller, &mut opening).await {
                Some(Ok(opened)) => reply.opened(FileHandle(opened.number), open_flags(opened)),
                Some(Err(error)) => reply.error(error.into()),
                None => {
                    reply.error(Errno::EINTR);
                    if let Ok(opened) = opening.await {
                        operations.close(opened.number).await;
                    }
                }
            }
        });
    }

    /// Dispatches an operation on a name. It is dropped, with its reply, if its caller is killed.
    pub(super) fn dispatch_name<F>(
        &self,
        request: &Request,
        directory: INodeNo,
        name: &OsStr,
        work: impl FnOnce(Rc<MountOperations<S>>, EntryName) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + 'static,
    {
        let caller = CallerProcess::of(request);
        self.dispatch_name_to_end(directory, name, move |operations, entry_name| async move {
            let work = pin!(work(operations.clone(), entry_name));
            operations.callers.until_killed(caller, work).await;
        });
    }

    /// Dispatches an operation on a name that runs to its end.
    pub(super) fn dispatch_name_to_end<F>(
        &self,
        directory: INodeNo,
        name: &OsStr,
        work: impl FnOnce(Rc<MountOperations<S>>, EntryName) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + 'static,
    {
        let entry_name = entry_name(directory, name);
        // Any worker refuses an invalid name.
        let node = Name::new(entry_name.name.clone()).map_or(NodeId::fs(0), |name| {
            hash::name_node(entry_name.directory, &name, self.fs_nodes)
        });
        self.worker(node).submit(move |operations| work(operations, entry_name));
    }
}
