//! The metadata actor of one node: its store, the inodes in use, and one `match`.

mod allocate;
mod audit;
mod commit_dependency;
mod directories;
mod effects;
mod files;
mod hand_over;
mod in_use;
mod inodes;
mod intents;
mod names;
mod open_files;
mod replies;
mod trims;
mod verifiers;
mod xattrs;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use blockio::Stripes;
use blockio::protocol::Error as DiskError;
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, ready};
use runtime::protocol::Undelivered;
use runtime::sync::KeyedLock;
use runtime::wire::Wire;
use runtime::{Caller, Context, NodeKind, RequestInfo as _, Server};

pub use self::replies::{REPLIES_MAX, REPLY_AGE_MAX};

use self::allocate::Space;
use self::directories::{Directories, RemoteLock};
pub use self::hand_over::MetaHandover;
use self::in_use::Pins;
use self::intents::Intents;
use self::open_files::OpenFiles;
use self::replies::Replies;
use self::trims::Trims;
use self::verifiers::Verifiers;
use crate::information::{FileInformation, Inodes};
use crate::memory::{Memory, Share};
use crate::protocol::{
    AckGroups, AddFile, Allocate, ApplyIntent, ChangeInode, ChangeXattr, CloseHandle, Commit,
    ConfirmGroups, EndGrace, EndRecovery, Error, Execute, FinalCheckpoint, FindChunks, FindName,
    FindReply, FinishIntents, Flush, FlushApplied, FlushNames, FlushTo, GetDirty, GetInode,
    GetOccupancy, GetSpace, GetVerifier, GetXattr, GraceBelow, HasNames, Install, ListUntrimmed,
    ListXattrs, LockDirExclusive, LockDirShared, LockName, LockRename, Map, Meta, NodeRestarted,
    OpenHandle, Rejoin, Release, ReleaseOrphanedLocks, Reply, Request, RequestGroups, RollBack,
    ScanNames, Seal, SetOccupancy, SyncNames, Trim, Truncate, UnlockDirExclusive, UnlockDirShared,
    UnlockName, UnlockRename, WaitForIntents,
};
use crate::shared_attrs::Publisher;
use crate::store::{Batch, Position, Store, StoreError};

/// Chunks of all files that are kept in memory though the store has them too, at most: 256 MiB of
/// content in chunks of 64 KiB, in about 1 MB.
const REMEMBERED_MAX: usize = 4096;

/// A commit that finds the log full is tried again so often.
const LOG_FULL_TRIES_MAX: u32 = 1000;
/// The pause before it.
const LOG_FULL_PAUSE: Duration = Duration::from_millis(5);

/// The metadata of one node. State is borrowed for a statement, never across an await.
pub struct MetaServer {
    context: Context,
    /// This node's index.
    node: u32,
    stripes: Rc<dyn Stripes>,
    store: Rc<Store>,
    inodes: Inodes,
    /// Those that somebody works on.
    pins: Pins,
    /// The inode with which the search for one to let go goes on.
    hand: Cell<u64>,
    /// The part of the memory that this node has.
    share: Rc<Share>,
    /// What it shows to all threads of its process.
    publisher: Rc<Publisher>,
    /// Chunks remembered since all were forgotten.
    remembered: Cell<usize>,
    /// Those of them with changes that no record names.
    dirty: RefCell<BTreeSet<u64>>,
    /// Space that comes back.
    trims: Trims,
    /// One reader of the store per inode.
    loading: KeyedLock<u64>,
    /// One commit or truncation per inode.
    commits: KeyedLock<u64>,
    /// Shared to read the extended attributes of an inode, exclusive to change them.
    xattrs: KeyedLock<u64>,
    directories: Directories,
    intents: Intents,
    open_files: OpenFiles,
    space: Space,
    verifiers: Verifiers,
    /// Inodes of this node.
    inode_count: Cell<u64>,
    replies: Replies,
    /// Drawn at the start: what an earlier life has answered and not made durable is lost (ADR 8).
    boot_id: u64,
    /// Promises of this node and to it are not kept yet: names and inodes may not be what they were.
    recovering: Cell<bool>,
}

impl std::fmt::Debug for MetaServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetaServer").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Server<Meta> for MetaServer {
    fn try_now(self: Rc<Self>, caller: Caller, request: &Request) -> Option<Reply> {
        if self.recovering.get() {
            return None;
        }
        let by = caller.node;
        match request {
            Request::GetInode(r) => self.try_inode_now(r).map(|inode| Reply::GetInode(Ok(inode))),
            Request::FindName(r) => self.try_find_name_now(r).map(Reply::FindName),
            Request::ScanNames(r) => self.try_scan_names_now(r).map(Reply::ScanNames),
            Request::Allocate(r) => self.try_allocate_now(r).map(|runs| Reply::Allocate(Ok(runs))),
            Request::Install(r) => self.try_install_now(r).map(|done| Reply::Install(Ok(done))),
            Request::GetVerifier(r) => Some(Reply::GetVerifier(Ok(self.verifiers.get(r.ino)))),
            // Round each new name. They do nothing before they wait, if they have to.
            Request::LockDirShared(r) if self.is_in_use(r.directory) => {
                self.begin(r, by).now_or_never().map(Reply::LockDirShared)
            }
            Request::UnlockDirShared(r) if self.is_in_use(r.directory) => {
                self.end(r, by).now_or_never().map(Reply::UnlockDirShared)
            }
            Request::FindReply(r) => self.find_reply(r).now_or_never().map(Reply::FindReply),
            _ => None,
        }
    }

    fn handle(self: Rc<Self>, caller: Caller, request: Request) -> LocalBoxFuture<'static, Reply> {
        if self.recovering.get() && !request.is_for_recovery() {
            return ready(Undelivered::Busy.into()).boxed_local();
        }
        request.dispatch(self, caller)
    }
}

runtime::handlers! { MetaServer;
    LockDirShared => |server, caller, request| server.begin(&request, caller.node).await;
    UnlockDirShared => |server, caller, request| server.end(&request, caller.node).await;
    GetInode => |server, _, request| server.get_inode(request).await;
    ChangeInode => |server, _, request| server.change_inode(request).await;
    FindName => |server, _, request| server.find_name(request).await;
    ScanNames => |server, _, request| server.scan_names(request).await;
    AddFile => |server, _, request| server.add_file(request).await;
    Execute => |server, _, request| server.execute(request).await;
    ApplyIntent => |server, _, request| server.apply_intent(request).await;
    FlushApplied => |server, _, request| server.flush_applied(request).await;
    FinishIntents => |server, _, _request| server.finish_intents().await;
    EndRecovery => |server, _, _request| server.end_recovery().await;
    ListUntrimmed => |server, _, _request| Ok(server.find_gone().await);
    LockName => |server, caller, request| server.claim_name(caller.node, request).await;
    UnlockName => |server, caller, request| {
        server.unclaim_name(&request, caller.node);
        Ok(())
    };
    Trim => |server, _, request| server.trim(request.ino).await;
    LockDirExclusive => |server, caller, request| server.freeze(request, caller.node).await;
    UnlockDirExclusive => |server, caller, request| {
        server.thaw(&request, caller.node);
        Ok(())
    };
    HasNames => |server, caller, request| server.has_names(caller.node, &request).await;
    GetOccupancy => |server, _, request| server.get_occupancy(request).await;
    SetOccupancy => |server, _, request| server.learn_occupancy(request).await;
    Map => |server, _, request| server.map(request).await;
    FindChunks => |server, _, request| server.find_chunks(request).await;
    Allocate => |server, _, request| server.allocate(&request).await;
    Release => |server, _, request| server.release(request.runs).await;
    Install => |server, _, request| server.install(request).await;
    Seal => |server, _, request| server.seal(&request).await;
    Commit => |server, _, request| server.commit(request.ino).await;
    Truncate => |server, _, request| server.truncate(request).await;
    GetDirty => |server, _, request| Ok(server.dirty(request.age_ms));
    RequestGroups => |server, _, request| server.request_groups(request).await;
    AckGroups => |server, _, request| server.ack_groups(request).await;
    ConfirmGroups => |server, _, request| server.confirm_groups(request.donor).await;
    GetSpace => |server, _, _request| Ok(server.get_space());
    LockRename => |server, caller, request| {
        let lock = RemoteLock { node: caller.node, number: request.lock };
        server.directories.lock_tree(lock).await
    };
    UnlockRename => |server, caller, request| {
        server.directories.unlock_tree(RemoteLock { node: caller.node, number: request.lock });
        Ok(())
    };
    RollBack => |server, _, request| server.roll_back(request.ino).await;
    GetXattr => |server, _, request| server.get_xattr(request).await;
    ChangeXattr => |server, _, request| server.change_xattr(request).await;
    ListXattrs => |server, _, request| server.list_xattrs(request).await;
    GetVerifier => |server, _, request| Ok(server.verifiers.get(request.ino));
    Flush => |server, _, _request| server.flush().await;
    FindReply => |server, _, request| server.find_reply(&request).await;
    OpenHandle => |server, _, request| server.hold_file(request).await;
    CloseHandle => |server, _, request| server.close_handle(request.ino).await;
    GraceBelow => |server, _, _request| Ok(server.grace_below());
    EndGrace => |server, _, _request| server.end_grace().await;
    Rejoin => |server, _, _request| server.rejoin().await;
    NodeRestarted => |server, _, request| server.node_restarted(request).await;
    FinalCheckpoint => |server, _, _request| server.final_checkpoint().await;
    FlushTo => |server, _, request| server.flush_to(request.position).await;
    FlushNames => |server, _, request| server.flush_names(request.directory).await;
    SyncNames => |server, _, request| server.sync_names(request).await;
    ReleaseOrphanedLocks => |server, caller, request| {
        server.release_orphaned_locks(caller.node, request.below, &request.keep).await
    };
    WaitForIntents => |server, _, request| server.all_applied(request.node).await;
}

impl MetaServer {
    /// Makes the metadata of the node of `context` on an empty volume; the root directory, if it
    /// belongs there.
    pub async fn format(context: &Context, stripes: &Rc<dyn Stripes>) -> Result<(), StoreError> {
        let node = index(context);
        Store::format(context.clone(), stripes, node).await?;
        let store = Store::mount(context.clone(), stripes.clone(), node).await?;
        if let Some(root) = inodes::root_inode(context) {
            let mut batch = Batch::new();
            batch.put(crate::keys::inode(root.attributes.ino), runtime::wire::to_bytes(&root));
            batch.put(crate::keys::inode_count(), runtime::wire::to_bytes(&1_u64));
            store.commit(batch)?;
        }
        store.checkpoint().await
    }

    /// Brings up the metadata of the node of `context`: newest root, log tail, what was left half
    /// done here. What this node has promised to others follows when all of them are up
    /// ([`FinishIntents`](crate::protocol::FinishIntents), then
    /// [`EndRecovery`](crate::protocol::EndRecovery)), or when it comes back to them
    /// ([`Rejoin`](crate::protocol::Rejoin)); until then it answers what is needed for that.
    ///
    /// It shares `memory` with the other nodes of its process.
    pub async fn mount(
        context: Context,
        stripes: Rc<dyn Stripes>,
        memory: Arc<Memory>,
    ) -> Result<Rc<Self>, StoreError> {
        let node = index(&context);
        let share = Share::new(memory);
        let store =
            Store::mount_within(context.clone(), stripes.clone(), node, share.clone()).await?;
        let count = store.get(&crate::keys::inode_count()).await?;
        let count = count.and_then(|count| decode(&count).ok()).unwrap_or(0);
        let verifiers = Verifiers::new(context.clone());
        let boot_id = context.random();
        let publisher = Rc::new(Publisher::new(&context, node, share.clone()));
        let server = Rc::new(Self {
            context,
            node,
            stripes,
            store,
            inodes: Inodes::default(),
            pins: Pins::default(),
            hand: Cell::default(),
            share,
            publisher,
            remembered: Cell::default(),
            dirty: RefCell::default(),
            trims: Trims::default(),
            loading: KeyedLock::default(),
            commits: KeyedLock::default(),
            xattrs: KeyedLock::default(),
            directories: Directories::default(),
            intents: Intents::default(),
            open_files: OpenFiles::default(),
            space: Space::default(),
            verifiers,
            inode_count: Cell::new(count),
            replies: Replies::default(),
            boot_id,
            recovering: Cell::new(true),
        });
        server.store.set_settle_prior(commit_dependency::settle_prior(&server.context));
        server.load_replies().await?;
        server.finish_trims().await?;
        server.load_promises().await?;
        server.load_holds().await?;
        server.retry_offers();
        let information = FileInformation::new(server.inodes.clone(), server.publisher.clone());
        server.context.lend(Rc::new(information));
        Ok(server)
    }

    async fn flush(&self) -> Result<(), Error> {
        self.note_idle().await?;
        Ok(self.store.checkpoint().await?)
    }

    async fn final_checkpoint(&self) -> Result<(), Error> {
        self.record(|| Ok((Batch::new(), ()))).await?;
        Ok(self.store.checkpoint().await?)
    }

    /// Commits a batch; waits while the log is full. `make` is called right before each try, so
    /// that the batch says what is true then.
    async fn record<T>(
        &self,
        mut make: impl FnMut() -> Result<(Batch, T), Error>,
    ) -> Result<(Position, T), Error> {
        for _ in 0..LOG_FULL_TRIES_MAX {
            let (batch, told) = make()?;
            // Before anybody can be told of the change.
            batch.names().for_each(|key| self.publisher.take_down_name(key));
            match self.store.commit(batch) {
                Ok(position) => return Ok((position, told)),
                Err(StoreError::Busy) => self.context.sleep(LOG_FULL_PAUSE).await,
                Err(error) => return Err(error.into()),
            }
        }
        Err(Undelivered::Busy.into())
    }

    /// Waits until the record is durable, if it shall be.
    async fn settle_record(&self, position: Position, durable: bool) -> Result<(), Error> {
        if durable {
            self.store.durable(position).await?;
        }
        Ok(())
    }
}

/// Decodes a value of the store. One that cannot be read was not written by us: damage.
fn decode<T: Wire>(value: &[u8]) -> Result<T, Error> {
    runtime::wire::from_bytes(value).map_err(|_| Error::Damaged {})
}

fn index(context: &Context) -> u32 {
    let NodeKind::Fs(node) = context.node().kind() else {
        panic!("metadata lives on file-system nodes");
    };
    node
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NoSpace => Self::NoSpace {},
            StoreError::Busy => Undelivered::Busy.into(),
            StoreError::TooLarge { .. } => Self::TooLarge {},
            StoreError::Disk(DiskError::Undelivered { why }) => why.into(),
            StoreError::Disk(DiskError::LostWrites { .. }) => Self::LostWrites {},
            other => {
                tracing::error!(error = %other, "the metadata store failed");
                Self::Damaged {}
            }
        }
    }
}
