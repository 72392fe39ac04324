//! The file actor of one node: answers the applications interface out of metadata and cache.

mod append;
mod attributes;
mod calls;
mod commit;
mod create;
mod directory;
mod hand_over;
mod leases;
mod link;
mod list;
mod locks;
mod lookup;
mod name_locks;
mod open;
mod partial_block_cache;
mod read;
mod readahead;
mod remote_locks;
mod remove;
mod rename;
mod space;
mod sync;
mod write;
mod xattrs;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use blockio::{Geometry, Stripes};
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, join_all, ready};
use meta::hash::ino_node;
use meta::protocol::{
    CommitDependency, Effect, Execute, GetInode, Inode, InodeChange, LockDirShared, UnlockDirShared,
};
use meta::{FileInformation, SharedAttrCache};
use runtime::protocol::Undelivered;
use runtime::sync::KeyedLock;
use runtime::{Call, Caller, Context, NodeId, RequestInfo as _, Senders, Server, Spawn as _};

use self::append::Appends;
use self::calls::CallTable;
pub use self::hand_over::{ClientHandover, FilesHandover};
use self::leases::LeaseTable;
use self::partial_block_cache::PartialBlockCache;
use self::readahead::ReadAhead;
use self::remote_locks::RemoteLocks;
use crate::protocol::{Attributes, Error, FileIo, GetSpace, Handle, Reply, Request, Space, Time};

/// How often a node looks for files to commit.
const COMMIT_INTERVAL: Duration = Duration::from_millis(500);
/// The age at which a change is made durable without a request, in milliseconds.
const COMMIT_AGE_MS: u64 = 2_000;
/// Commits of one node that run at a time without being asked for.
const COMMITS_MAX: usize = 16;

/// Rollbacks after lost writes that one request retries, at most.
const LOSSES_MAX: u32 = 8;

/// Attempts of an operation on a name that others change at the same time, at most.
const RACES_MAX: usize = 64;

/// The files of one node. Of clients it knows, for a while, which files they have open.
pub struct FileServer {
    context: Context,
    stripes: Rc<dyn Stripes>,
    geometry: Geometry,
    /// Of the metadata server of this node.
    information: FileInformation,
    /// What all nodes of this process show.
    shared_attrs: Option<Arc<SharedAttrCache>>,
    /// Shared by reads and writes of a file; exclusive to cut, seal or free it.
    files: KeyedLock<u64>,
    /// Shared by reads of a chunk, exclusive to write it.
    chunks: KeyedLock<(u64, u64)>,
    readahead: ReadAhead,
    partial_blocks: PartialBlockCache,
    calls: CallTable,
    appends: Appends,
    leases: LeaseTable,
    remote_locks: Rc<RemoteLocks>,
}

impl std::fmt::Debug for FileServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileServer").field("node", &self.context.node()).finish_non_exhaustive()
    }
}

/// A directory whose names are about to change.
#[derive(Clone, Copy)]
struct ParentDir {
    attributes: Attributes,
    /// The record that made it.
    made: CommitDependency,
    /// The epoch before anybody was told of the change: should a node restart, it may have forgotten.
    since: u64,
}

impl Server<FileIo> for FileServer {
    fn try_now(self: Rc<Self>, _: Caller, request: &Request) -> Option<Reply> {
        match request {
            Request::Read(r) => self.try_read_now(r).map(|read| Reply::Read(Ok(read))),
            Request::GetAttributes(r) => {
                let Handle { ino, generation } = r.file;
                let known = self.information.attributes(ino, generation)?;
                self.information.show(ino);
                Some(Reply::GetAttributes(Ok(known)))
            }
            Request::Lookup(r) => self.try_look_up_now(r).map(Reply::Lookup),
            _ => None,
        }
    }

    fn handle(self: Rc<Self>, caller: Caller, request: Request) -> LocalBoxFuture<'static, Reply> {
        if caller.is_client() && request.senders() == Senders::Servers {
            return ready(request.refused(Error::NotPermitted {})).boxed_local();
        }
        request.dispatch(self, caller)
    }
}

runtime::handlers! { FileServer;
    GetSpace => |server, _, _request| server.get_space().await;
}

impl FileServer {
    /// The files of the node of `context`; their content is on `stripes`, and what the metadata
    /// server of the node has of them in memory is in `information`.
    pub fn new(
        context: Context,
        stripes: Rc<dyn Stripes>,
        information: FileInformation,
    ) -> Rc<Self> {
        let geometry = stripes.geometry();
        let shared_attrs = context.extension();
        let server = Rc::new(Self {
            context,
            stripes,
            geometry,
            information,
            shared_attrs,
            files: KeyedLock::default(),
            chunks: KeyedLock::default(),
            readahead: ReadAhead::default(),
            partial_blocks: PartialBlockCache::default(),
            calls: CallTable::default(),
            appends: Appends::default(),
            leases: LeaseTable::default(),
            remote_locks: Rc::default(),
        });
        let committing = server.clone();
        server.context.task(async move { committing.commit_loop().await });
        let waiting = server.clone();
        server.context.task(async move { waiting.wait_for_grace_end().await });
        let telling = server.clone();
        server.context.task(async move { telling.release_orphaned_locks().await });
        server
    }

    /// Asks the metadata of `node`.
    async fn meta<C>(&self, node: NodeId, call: C) -> Result<C::Reply, Error>
    where
        C: Call<Protocol = meta::protocol::Meta> + Clone,
    {
        Ok(meta::client::ask(&self.context, node, call).await?)
    }

    /// Asks the metadata of this node.
    async fn meta_here<C>(&self, call: C) -> Result<C::Reply, Error>
    where
        C: Call<Protocol = meta::protocol::Meta> + Clone,
    {
        self.meta(self.context.node(), call).await
    }

    fn node_of(&self, ino: u64) -> NodeId {
        ino_node(ino, self.context.fs_nodes())
    }

    fn now(&self) -> Time {
        Time::from_unix(self.context.unix_time())
    }

    /// The attributes of an inode, wherever it is; without a message if it is of this node and in use.
    async fn attributes(&self, handle: Handle) -> Result<Attributes, Error> {
        match self.information.attributes(handle.ino, handle.generation) {
            Some(known) => Ok(known),
            None => Ok(self.inode(handle).await?.attributes),
        }
    }

    /// An inode, wherever it is.
    async fn inode(&self, handle: Handle) -> Result<Inode, Error> {
        let call = GetInode { ino: handle.ino, generation: handle.generation };
        self.meta(self.node_of(handle.ino), call).await
    }

    /// Does `work`, which changes names of `directory` at this node, while the directory is kept
    /// from being removed; then notes the time of the change at the directory.
    async fn with_dir_locked<T>(
        &self,
        directory: Handle,
        work: impl AsyncFnOnce(&ParentDir) -> Result<(T, Option<Time>), Error>,
    ) -> Result<T, Error> {
        self.with_dir_locked_at(directory, self.context.node(), work).await
    }

    /// As [`with_dir_locked`](Self::with_dir_locked), for names at another node.
    async fn with_dir_locked_at<T>(
        &self,
        directory: Handle,
        names_at: NodeId,
        work: impl AsyncFnOnce(&ParentDir) -> Result<(T, Option<Time>), Error>,
    ) -> Result<T, Error> {
        let since = self.context.epoch().0;
        let node = self.node_of(directory.ino);
        let Handle { ino, generation } = directory;
        let begin = |lock| LockDirShared { directory: ino, generation, node: names_at.0, lock };
        let ((inode, made), change) = self.lock_remote(node, begin).await?;
        let outcome = work(&ParentDir { attributes: inode.attributes, made, since }).await;
        let time = outcome.as_ref().ok().and_then(|(_, time)| *time);
        self.release_lock(change, |lock| UnlockDirShared {
            directory: ino,
            time,
            node: names_at.0,
            lock,
        })
        .await?;
        outcome.map(|(value, _)| value)
    }

    /// Does what `work` says or nothing; then lets go of files that are gone.
    async fn execute(self: &Rc<Self>, work: Execute) -> Result<(), Error> {
        for ino in self.meta_here(work).await? {
            let node = self.node_of(ino);
            if node == self.context.node() {
                self.trim_later(ino);
            } else {
                // Should this be lost, the node finds the file by itself.
                self.context.notify(node, crate::protocol::Trim { ino });
            }
        }
        Ok(())
    }

    async fn get_space(&self) -> Result<Space, Error> {
        let nodes = (0..self.context.fs_nodes()).map(NodeId::fs);
        let asked = nodes.map(|node| self.meta(node, meta::protocol::GetSpace {}));
        let mut space = Space::default();
        for answer in join_all(asked).await {
            let part = answer?;
            space.total_bytes += part.total_blocks * blockio::BLOCK_SIZE as u64;
            space.free_bytes += part.free_blocks * blockio::BLOCK_SIZE as u64;
            space.inodes += part.inodes;
        }
        Ok(space)
    }
}

/// The outcome of `work`. When a node has lost what was not committed it is done again, after
/// `roll_back` has brought the file back to what is.
async fn retry_after_rollback<T>(
    work: impl AsyncFn() -> Result<T, Error>,
    roll_back: impl AsyncFn() -> Result<(), Error>,
) -> Result<T, Error> {
    for _ in 0..LOSSES_MAX {
        match work().await {
            Err(Error::LostWrites {}) => roll_back().await?,
            outcome => return outcome,
        }
    }
    Err(Error::LostWrites {})
}

/// Was it decided, or may it have been, though it could not be done to its end?
fn is_in_doubt(error: Error) -> bool {
    matches!(error, Error::Undelivered { why: Undelivered::Lost })
}

/// A directory has `links` more subdirectories (or fewer).
fn count_directories(directory: Handle, links: i64, time: Time) -> Effect {
    let Handle { ino, generation } = directory;
    let change =
        InodeChange { mtime: Some(time), ctime: Some(time), links, ..InodeChange::default() };
    Effect::ChangeParts { ino, generation, change }
}

impl From<meta::protocol::Error> for Error {
    fn from(error: meta::protocol::Error) -> Self {
        use meta::protocol::Error as Meta;
        match error {
            Meta::Undelivered { why } => why.into(),
            Meta::Stale {} => Self::Stale {},
            Meta::Exists {} => Self::Exists {},
            Meta::Changed {} => Self::Changed {},
            Meta::NotDirectory {} => Self::NotDirectory {},
            Meta::NoSpace {} => Self::NoSpace {},
            Meta::Damaged {} => Self::Damaged {},
            Meta::TooLarge {} => Self::TooLarge {},
            Meta::LostWrites {} => Self::LostWrites {},
            Meta::NoXattr {} => Self::NoXattr {},
        }
    }
}

impl From<blockio::protocol::Error> for Error {
    fn from(error: blockio::protocol::Error) -> Self {
        match error {
            blockio::protocol::Error::Undelivered { why } => why.into(),
            blockio::protocol::Error::LostWrites { .. } => Self::LostWrites {},
            other => {
                tracing::error!(error = %other, "file data cannot be read or written");
                Self::Damaged {}
            }
        }
    }
}
