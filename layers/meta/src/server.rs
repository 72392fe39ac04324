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
use runtime::{Caller, Context, NodeId, NodeKind, Server};

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
use crate::protocol::{Error, Flush, Meta, Reply, Request};
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
        if self.recovering.get() && !is_for_recovery(&request) {
            return ready(Undelivered::Busy.into()).boxed_local();
        }
        match request {
            // On the way of each write: the future of all requests together is many times as large.
            Request::Install(r) => {
                async move { Reply::Install(self.install(r).await) }.boxed_local()
            }
            Request::AddFile(r) => {
                async move { Reply::AddFile(self.add_file(r).await) }.boxed_local()
            }
            request => async move { self.answer(caller.node, request).await }.boxed_local(),
        }
    }
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

    async fn answer(self: Rc<Self>, by: NodeId, request: Request) -> Reply {
        match request {
            Request::LockDirShared(r) => Reply::LockDirShared(self.begin(&r, by).await),
            Request::UnlockDirShared(r) => Reply::UnlockDirShared(self.end(&r, by).await),
            Request::GetInode(r) => Reply::GetInode(self.get_inode(r).await),
            Request::ChangeInode(r) => Reply::ChangeInode(self.change_inode(r).await),
            Request::FindName(r) => Reply::FindName(self.find_name(r).await),
            Request::ScanNames(r) => Reply::ScanNames(self.scan_names(r).await),
            Request::AddFile(r) => Reply::AddFile(self.add_file(r).await),
            Request::Execute(r) => Reply::Execute(self.execute(r).await),
            Request::ApplyIntent(r) => Reply::ApplyIntent(self.apply_intent(r).await),
            Request::FlushApplied(r) => Reply::FlushApplied(self.flush_applied(r).await),
            Request::FinishIntents(_) => Reply::FinishIntents(self.finish_intents().await),
            Request::EndRecovery(_) => Reply::EndRecovery(self.end_recovery().await),
            Request::ListUntrimmed(_) => Reply::ListUntrimmed(Ok(self.find_gone().await)),
            Request::LockName(r) => Reply::LockName(self.claim_name(by, r).await),
            Request::UnlockName(r) => {
                self.unclaim_name(&r, by);
                Reply::UnlockName(Ok(()))
            }
            Request::Trim(r) => Reply::Trim(self.trim(r.ino).await),
            Request::LockDirExclusive(r) => Reply::LockDirExclusive(self.freeze(r, by).await),
            Request::UnlockDirExclusive(r) => {
                self.thaw(&r, by);
                Reply::UnlockDirExclusive(Ok(()))
            }
            Request::HasNames(r) => Reply::HasNames(self.has_names(by, &r).await),
            Request::GetOccupancy(r) => Reply::GetOccupancy(self.get_occupancy(r).await),
            Request::SetOccupancy(r) => Reply::SetOccupancy(self.learn_occupancy(r).await),
            Request::Map(r) => Reply::Map(self.map(r).await),
            Request::FindChunks(r) => Reply::FindChunks(self.find_chunks(r).await),
            Request::Allocate(r) => Reply::Allocate(self.allocate(&r).await),
            Request::Release(r) => Reply::Release(self.release(r.runs).await),
            Request::Install(r) => Reply::Install(self.install(r).await),
            Request::Seal(r) => Reply::Seal(self.seal(&r).await),
            Request::Commit(r) => Reply::Commit(self.commit(r.ino).await),
            Request::Truncate(r) => Reply::Truncate(self.truncate(r).await),
            Request::GetDirty(r) => Reply::GetDirty(Ok(self.dirty(r.age_ms))),
            Request::RequestGroups(r) => Reply::RequestGroups(self.request_groups(r).await),
            Request::AckGroups(r) => Reply::AckGroups(self.ack_groups(r).await),
            Request::ConfirmGroups(r) => Reply::ConfirmGroups(self.confirm_groups(r.donor).await),
            Request::GetSpace(_) => Reply::GetSpace(Ok(self.get_space())),
            Request::LockRename(r) => {
                let lock = RemoteLock { node: by, number: r.lock };
                Reply::LockRename(self.directories.lock_tree(lock).await)
            }
            Request::UnlockRename(r) => {
                self.directories.unlock_tree(RemoteLock { node: by, number: r.lock });
                Reply::UnlockRename(Ok(()))
            }
            Request::RollBack(r) => Reply::RollBack(self.roll_back(r.ino).await),
            Request::GetXattr(r) => Reply::GetXattr(self.get_xattr(r).await),
            Request::ChangeXattr(r) => Reply::ChangeXattr(self.change_xattr(r).await),
            Request::ListXattrs(r) => Reply::ListXattrs(self.list_xattrs(r).await),
            Request::GetVerifier(r) => Reply::GetVerifier(Ok(self.verifiers.get(r.ino))),
            Request::Flush(Flush {}) => Reply::Flush(self.flush().await),
            Request::FindReply(r) => Reply::FindReply(self.find_reply(&r).await),
            Request::OpenHandle(r) => Reply::OpenHandle(self.hold_file(r).await),
            Request::CloseHandle(r) => Reply::CloseHandle(self.close_handle(r.ino).await),
            Request::GraceBelow(_) => Reply::GraceBelow(Ok(self.grace_below())),
            Request::EndGrace(_) => Reply::EndGrace(self.end_grace().await),
            Request::Rejoin(_) => Reply::Rejoin(self.rejoin().await),
            Request::NodeRestarted(r) => Reply::NodeRestarted(self.node_restarted(r).await),
            Request::FinalCheckpoint(_) => Reply::FinalCheckpoint(self.final_checkpoint().await),
            Request::FlushTo(r) => Reply::FlushTo(self.flush_to(r.position).await),
            Request::FlushNames(r) => Reply::FlushNames(self.flush_names(r.directory).await),
            Request::SyncNames(r) => Reply::SyncNames(self.sync_names(r).await),
            Request::ReleaseOrphanedLocks(r) => {
                Reply::ReleaseOrphanedLocks(self.release_orphaned_locks(by, r.below, &r.keep).await)
            }
            Request::WaitForIntents(r) => Reply::WaitForIntents(self.all_applied(r.node).await),
        }
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

/// What nodes ask one another, and whoever brings them up, before all promises are kept.
fn is_for_recovery(request: &Request) -> bool {
    matches!(
        request,
        Request::ApplyIntent(_)
            | Request::FlushApplied(_)
            | Request::FinishIntents(_)
            | Request::EndRecovery(_)
            | Request::Rejoin(_)
            | Request::NodeRestarted(_)
            | Request::UnlockName(_)
            | Request::UnlockDirExclusive(_)
            | Request::UnlockRename(_)
            | Request::ReleaseOrphanedLocks(_)
            | Request::WaitForIntents(_)
            | Request::Release(_)
            | Request::RequestGroups(_)
            | Request::AckGroups(_)
            // A node that comes back may wait for one whose log leans on its own.
            | Request::FlushTo(_)
    )
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
