//! The metadata server of one node: its mount, and one `match` that passes each request to the
//! component that answers it. A component owns its state, and knows only components below it:
//!
//! ```text
//! flush   intents/   find_reply   housekeeping   scrub
//! open_files   names
//! effects   content/
//! space/   locks/
//! xattrs   inodes
//! base: record_log, inode_cache, open_file_table, replies
//! ```

mod audit;
mod base;
mod content;
mod delegation_mark;
mod effects;
mod find_reply;
mod flush;
mod hand_over;
mod housekeeping;
mod inode_cache;
mod inodes;
mod intents;
mod locks;
mod lost;
mod names;
mod open_file_table;
mod open_files;
pub(crate) mod partition_use;
mod periodic_scrub;
mod record_log;
mod replies;
mod scrub;
mod space;
pub(crate) mod verifiers;
mod wide_stripe_table;
mod xattrs;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use blockio::Stripes;
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, ready};
use runtime::protocol::Undelivered;
use runtime::{Caller, Context, NodeKind, RequestInfo as _, Server};

pub use self::hand_over::MetaHandover;

use self::base::NodeBase;
use self::content::FileContent;
use self::delegation_mark::DelegationMark;
use self::effects::Effects;
use self::find_reply::ReplyLookup;
use self::flush::{Flusher, flush_dependency};
use self::housekeeping::Housekeeping;
pub use self::inodes::RootOwner;
use self::inodes::{InodeRequests, root_inode};
use self::intents::IntentManager;
use self::locks::LockManager;
use self::locks::owner::RemoteLockId;
pub use self::lost::LostMetadata;
use self::names::NameRequests;
use self::open_files::OpenFileRequests;
use self::periodic_scrub::PeriodicScrub;
pub use self::periodic_scrub::SCRUB_INTERVAL;
use self::scrub::Scrubber;
use self::space::SpaceManager;
use self::space::encode_queue::EncodeQueue;
use self::space::reclaim::Reclaim;
use self::verifiers::WriteVerifiers;
use self::xattrs::Xattrs;
use crate::information::{FileInformation, FileLocks};
use crate::memory::{MemoryBudget, MemoryShare};
use crate::move_pace::MovePace;
use crate::protocol::{
    AckGroups, AddFile, AdoptRecord, Allocate, AllocateMirrors, ApplyIntent, ChangeInode,
    ChangeXattr, CheckLoss, CloseHandle, Commit, ConfirmGroups, DelegatedBelow, EndGrace,
    EndRecovery, Execute, FinalCheckpoint, FindChunks, FindName, FindReply, FindWideStripe,
    FinishIntents, Flush, FlushApplied, FlushNames, FlushTo, GetDirty, GetInode, GetMoves,
    GetOccupancy, GetSpace, GetVerifier, GetXattr, GraceBelow, GroupUrgency, HasNames, HealChunk,
    Install, ListUntrimmed, ListXattrs, LockDirExclusive, LockDirShared, LockName, LockRename, Map,
    Meta, NodeRestarted, NoteDelegations, OpenHandle, Rejoin, Release, ReleaseOrphanedLocks, Reply,
    Request, RequestGroups, RollBack, ScanNames, Scrub, Seal, SetOccupancy, SyncNames, Trim,
    Truncate, UnlockDirExclusive, UnlockDirShared, UnlockName, UnlockRename, WaitForIntents,
};
use crate::shared_attrs::SharedAttrCache;
use crate::store::{Batch, Store, StoreError, mount_to_read, refuse_changes};

/// The metadata of one node. State is borrowed for a statement, never across an await.
pub struct MetaServer {
    base: Rc<NodeBase>,
    inodes: InodeRequests,
    names: NameRequests,
    locks: LockManager,
    content: Rc<FileContent>,
    file_locks: FileLocks,
    space: SpaceManager,
    intents: IntentManager,
    replies: ReplyLookup,
    open_files: Rc<OpenFileRequests>,
    delegations: DelegationMark,
    verifiers: Rc<WriteVerifiers>,
    xattrs: Rc<Xattrs>,
    flusher: Flusher,
    housekeeping: Housekeeping,
    scrubs: Rc<PeriodicScrub>,
}

impl std::fmt::Debug for MetaServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetaServer").field("node", &self.base.node).finish_non_exhaustive()
    }
}

impl Server<Meta> for MetaServer {
    fn try_now(self: Rc<Self>, caller: Caller, request: &Request) -> Option<Reply> {
        if self.intents.recovery.is_recovering() {
            return None;
        }
        if !self.base.owns(request) {
            return Some(Undelivered::ProtocolMismatch.into());
        }
        let by = caller.node;
        match request {
            Request::GetInode(r) => {
                self.inodes.try_inode_now(r).map(|inode| Reply::GetInode(Ok(inode)))
            }
            Request::FindName(r) => self.names.try_find_name_now(r).map(Reply::FindName),
            Request::ScanNames(r) => self.names.try_scan_names_now(r).map(Reply::ScanNames),
            Request::Allocate(r) => {
                self.space.allocator.try_allocate_now(r).map(|runs| Reply::Allocate(Ok(runs)))
            }
            Request::Install(r) => {
                self.content.installer.try_install_now(r).map(|done| Reply::Install(Ok(done)))
            }
            Request::GetVerifier(r) => Some(Reply::GetVerifier(Ok(self.verifiers.get(r.ino)))),
            // Round each new name. They do nothing before they wait, if they have to.
            Request::LockDirShared(r) if self.base.inodes.contains(r.directory) => {
                self.locks.directories.lock_shared(r, by).now_or_never().map(Reply::LockDirShared)
            }
            Request::UnlockDirShared(r) if self.base.inodes.contains(r.directory) => self
                .locks
                .directories
                .unlock_shared(r, by)
                .now_or_never()
                .map(Reply::UnlockDirShared),
            Request::FindReply(r) => {
                self.replies.find_reply(r).now_or_never().map(Reply::FindReply)
            }
            _ => None,
        }
    }

    fn handle(self: Rc<Self>, caller: Caller, request: Request) -> LocalBoxFuture<'static, Reply> {
        if self.intents.recovery.is_recovering() && !request.is_for_recovery() {
            return ready(Undelivered::Busy.into()).boxed_local();
        }
        if !self.base.owns(&request) {
            return ready(Undelivered::ProtocolMismatch.into()).boxed_local();
        }
        request.dispatch(self, caller)
    }
}

runtime::handlers! { MetaServer;
    LockDirShared => |server, caller, request| {
        server.locks.directories.lock_shared(&request, caller.node).await
    };
    UnlockDirShared => |server, caller, request| {
        server.locks.directories.unlock_shared(&request, caller.node).await
    };
    GetInode => |server, _, request| server.inodes.get_inode(request).await;
    ChangeInode => |server, _, request| server.inodes.change_inode(request).await;
    FindName => |server, _, request| server.names.find_name(request).await;
    ScanNames => |server, _, request| server.names.scan_names(request).await;
    AddFile => |server, _, request| server.intents.executor.add_file(request).await;
    Execute => |server, _, request| server.intents.executor.execute(request).await;
    ApplyIntent => |server, _, request| server.intents.applier.apply_intent(request).await;
    FlushApplied => |server, _, request| server.intents.applier.flush_applied(request).await;
    FinishIntents => |server, _, _request| server.intents.recovery.finish_intents().await;
    EndRecovery => |server, _, _request| server.intents.recovery.end_recovery().await;
    ListUntrimmed => |server, _, _request| Ok(server.space.reclaim.list_untrimmed().await);
    LockName => |server, caller, request| {
        server.locks.name_requests.lock_name(caller.node, request).await
    };
    UnlockName => |server, caller, request| {
        server.locks.name_requests.unlock_name(&request, caller.node);
        Ok(())
    };
    Trim => |server, _, request| server.space.reclaim.trim(request.ino).await;
    LockDirExclusive => |server, caller, request| {
        server.locks.directories.lock_exclusive(request, caller.node).await
    };
    UnlockDirExclusive => |server, caller, request| {
        server.locks.directories.unlock_exclusive(&request, caller.node);
        Ok(())
    };
    HasNames => |server, caller, request| server.names.has_names(caller.node, &request).await;
    GetOccupancy => |server, _, request| server.locks.directories.get_occupancy(request).await;
    SetOccupancy => |server, _, request| server.locks.directories.set_occupancy(request).await;
    Map => |server, _, request| server.content.chunks.map(request).await;
    FindChunks => |server, _, request| server.content.chunks.find_chunks(request).await;
    FindWideStripe => |server, _, request| {
        server.space.wide_stripes.find(request.ino, request.index).await
    };
    Allocate => |server, _, request| server.space.allocator.allocate(&request).await;
    AllocateMirrors => |server, _, request| {
        server.space.allocator.allocate_mirrors(&request).await
    };
    Release => |server, _, request| server.space.allocator.release(request.runs).await;
    Install => |server, _, request| server.content.installer.install(request).await;
    Seal => |server, _, request| server.content.installer.seal(&request).await;
    Commit => |server, _, request| server.content.commits.commit(request.ino).await;
    Truncate => |server, _, request| server.content.truncation.truncate(request).await;
    GetDirty => |server, _, request| {
        if request.age_ms < u64::MAX {
            // Files are changed, and all nodes are there.
            server.space.encoder.look_at_all_once();
            server.scrubs.tick();
        }
        Ok(server.housekeeping.dirty(request.age_ms))
    };
    RequestGroups => |server, _, request| server.space.groups.request_groups(request).await;
    AckGroups => |server, _, request| server.space.groups.ack_groups(request).await;
    ConfirmGroups => |server, _, request| server.space.groups.confirm_groups(request.donor).await;
    GetSpace => |server, _, request| server.space.allocator.get_space(request.unit);
    AdoptRecord => |server, _, request| {
        server.space.disks.adopt_record(&request.record).await?;
        server.space.encoder.look_at_all();
        Ok(())
    };
    GetMoves => |server, _, _request| {
        Ok(server.space.disks.get_moves(server.space.encoder.waiting(), server.scrubs.report()))
    };
    CheckLoss => |server, _, request| server.space.disks.check_loss(&request).await;
    LockRename => |server, caller, request| {
        let lock = RemoteLockId { node: caller.node, number: request.lock };
        server.locks.renames.lock(lock).await
    };
    UnlockRename => |server, caller, request| {
        server.locks.renames.unlock(RemoteLockId { node: caller.node, number: request.lock });
        Ok(())
    };
    RollBack => |server, _, request| server.content.commits.roll_back(request.ino).await;
    GetXattr => |server, _, request| server.xattrs.get_xattr(request).await;
    ChangeXattr => |server, _, request| server.xattrs.change_xattr(request).await;
    ListXattrs => |server, _, request| server.xattrs.list_xattrs(request).await;
    GetVerifier => |server, _, request| Ok(server.verifiers.get(request.ino));
    Flush => |server, _, _request| server.flusher.flush().await;
    FindReply => |server, _, request| server.replies.find_reply(&request).await;
    OpenHandle => |server, _, request| server.open_files.open_handle(request).await;
    CloseHandle => |server, _, request| server.open_files.close_handle(request.ino).await;
    GraceBelow => |server, _, _request| Ok(server.open_files.grace_below());
    EndGrace => |server, _, _request| server.open_files.end_grace().await;
    NoteDelegations => |server, _, request| server.delegations.note(request.may_be).await;
    DelegatedBelow => |server, _, _request| Ok(server.delegations.below());
    Rejoin => |server, _, _request| server.intents.recovery.rejoin().await;
    NodeRestarted => |server, _, request| server.intents.recovery.node_restarted(request).await;
    FinalCheckpoint => |server, _, _request| server.flusher.final_checkpoint().await;
    FlushTo => |server, _, request| server.flusher.flush_to(request.position).await;
    FlushNames => |server, _, request| server.flusher.flush_names(request.directory).await;
    SyncNames => |server, _, request| server.flusher.sync_names(request).await;
    ReleaseOrphanedLocks => |server, caller, request| {
        server.locks.orphans.release_orphaned(caller.node, request.below, &request.keep).await
    };
    WaitForIntents => |server, _, request| {
        server.intents.sender.wait_for_intents(request.node).await
    };
    HealChunk => |server, _, request| {
        server.scrubs.heal((request.ino, request.index));
        Ok(())
    };
    Scrub => |server, _, request| server.scrubs.scrub(request).await;
}

impl MetaServer {
    /// Makes the metadata of the node of `context` on an empty volume; the root directory, which
    /// belongs to `owner`, if it is there. A node that has its metadata already is refused
    /// ([`StoreError::Formatted`]); one whose format was interrupted gets the rest.
    pub async fn format(
        context: &Context,
        stripes: &Rc<dyn Stripes>,
        owner: RootOwner,
    ) -> Result<(), StoreError> {
        let node = index(context);
        let formatted = Store::format(context.clone(), stripes, node).await;
        let Some(root) = root_inode(context, owner) else { return formatted };
        let key = crate::keys::inode(root.attributes.ino);
        match formatted {
            Ok(()) => {}
            Err(StoreError::Formatted)
                if !crate::store::has_at_rest(context, stripes, node, &key).await? => {}
            refused => return refused,
        }
        let store = Store::mount(context.clone(), stripes.clone(), node).await?;
        let mut batch = Batch::new();
        batch.put(key, root.to_stored());
        batch.put(crate::keys::inode_count(), runtime::wire::to_bytes(&1_u64));
        store.commit(batch)?;
        store.checkpoint().await
    }

    /// Brings up the metadata of the node of `context`: newest root, log tail, what was left half
    /// done here. Its intents for other nodes follow when all of them are up
    /// ([`FinishIntents`](crate::protocol::FinishIntents), then
    /// [`EndRecovery`](crate::protocol::EndRecovery)), or when it comes back to them
    /// ([`Rejoin`](crate::protocol::Rejoin)); until then it answers what is needed for that.
    ///
    /// It shares `memory` and `pace` with the other nodes of its process, and publishes to
    /// `shared_attrs`.
    pub async fn mount(
        context: Context,
        stripes: Rc<dyn Stripes>,
        memory: Arc<MemoryBudget>,
        shared_attrs: Option<Arc<SharedAttrCache>>,
        pace: Arc<MovePace>,
    ) -> Result<Rc<Self>, StoreError> {
        let node = index(&context);
        let share = MemoryShare::new(memory);
        let store =
            Store::mount_within(context.clone(), stripes.clone(), node, share.clone()).await?;
        let base = NodeBase::open(context, node, stripes, store, share, shared_attrs).await?;
        let server = Rc::new(Self::assemble(Rc::new(base), pace));
        let base = &server.base;
        base.store.set_flush_dependency(flush_dependency(&base.context));
        base.replies.load(&base.store, &base.context).await?;
        server.space.reclaim.finish_trims().await?;
        server.intents.recovery.load_intents().await?;
        server.open_files.load_open_files().await?;
        server.delegations.load().await?;
        server.space.groups.retry_offers();
        server.space.disks.start();
        let groups = Rc::downgrade(&server.space.groups);
        base.records.set_refill(Box::new(move || {
            let groups = groups.clone();
            async move {
                let groups = groups.upgrade().ok_or(crate::protocol::Error::NoSpace {})?;
                groups.refill(0, GroupUrgency::Needed {}).await
            }
            .boxed_local()
        }));
        Ok(server)
    }

    /// Brings up the metadata of the node of `context` to be read: nothing is written. Also says
    /// what of it is damaged; an error means that nothing of it can be read ([`LostMetadata`]).
    /// [`recover_to_read`](Self::recover_to_read) follows when all nodes are up, or lost.
    pub async fn mount_to_read(
        context: Context,
        stripes: Rc<dyn Stripes>,
        memory: Arc<MemoryBudget>,
        shared_attrs: Option<Arc<SharedAttrCache>>,
    ) -> Result<(Rc<Self>, Vec<StoreError>), StoreError> {
        let node = index(&context);
        let share = MemoryShare::new(memory);
        let mounted = mount_to_read(context.clone(), stripes.clone(), node, share.clone()).await;
        let (store, mut damage) = mounted?;
        let base = NodeBase::open(context, node, stripes, store, share, shared_attrs).await?;
        let server = Rc::new(Self::assemble(Rc::new(base), Arc::default()));
        server.open_files.open_to_read();
        damage.extend(server.intents.recovery.load_intents().await.err());
        Ok((server, damage))
    }

    /// Applies, in memory, what was decided before a crash, as far as all that it changes can be
    /// read. When all nodes have done so, [`refuse_changes`](Self::refuse_changes) follows.
    pub async fn recover_to_read(&self) {
        self.intents.recovery.finish_to_read().await;
    }

    /// From now on nothing is changed, not even in memory, and requests are answered.
    pub fn refuse_changes(&self) {
        refuse_changes(&self.base.store);
        self.intents.recovery.recovered();
    }

    /// Chunks become wide stripes as soon as they can, also of files that are in use.
    pub fn encode_at_once(&self) {
        self.space.encoder.encode_at_once();
    }

    /// Sets the time between two comparisons of all data with its checksums; zero for never.
    pub fn scrub_every(&self, interval: Duration) {
        self.scrubs.set_interval(interval);
    }

    /// What the file layer of this node may read without a message.
    pub fn information(&self) -> FileInformation {
        let inodes = self.base.inodes.table();
        let (publisher, verifiers) = (self.base.publisher.clone(), self.verifiers.clone());
        let (locks, pace) = (self.file_locks.clone(), self.space.disks.pace());
        let uses = self.base.inodes.uses().clone();
        FileInformation::new(inodes, publisher, verifiers, locks, pace, uses)
    }

    /// Puts the components on one another.
    fn assemble(base: Rc<NodeBase>, pace: Arc<MovePace>) -> Self {
        let verifiers = Rc::new(WriteVerifiers::new(base.context.clone()));
        let boot_id = base.context.random();
        let xattrs = Rc::new(Xattrs::new(&base));
        let queue = Rc::<EncodeQueue>::default();
        let reclaim = &Rc::new(Reclaim::new(&base, xattrs.clone(), queue.clone()));
        let locks = LockManager::new(&base);
        let content = Rc::new(FileContent::new(&base, reclaim, &verifiers, &queue));
        let file_locks = FileLocks::default();
        let space = SpaceManager::new(&base, reclaim, &content, &file_locks, (pace, queue.clone()));
        let effects = Rc::new(Effects::new(
            &base,
            locks.names.clone(),
            locks.directories.clone(),
            reclaim.clone(),
            content.commit_locks.clone(),
        ));
        let open_files =
            Rc::new(OpenFileRequests::new(&base, effects.clone(), content.commit_locks.clone()));
        let intents = IntentManager::new(&base, &locks, effects, reclaim.clone(), boot_id);
        let scrubber = Scrubber::new(&base, space.repairer.clone(), space.wide_stripes.clone());
        Self {
            inodes: InodeRequests::new(&base, (queue, space.disks.clone())),
            names: NameRequests::new(&base, locks.names.clone()),
            replies: ReplyLookup::new(&base, intents.sender.clone()),
            flusher: Flusher::new(&base, locks.directories.clone(), open_files.clone()),
            housekeeping: Housekeeping::new(&base, locks.directories.clone()),
            scrubs: PeriodicScrub::new(&base, scrubber, space.disks.clone()),
            delegations: DelegationMark::new(&base),
            base,
            locks,
            content,
            file_locks,
            space,
            intents,
            open_files,
            verifiers,
            xattrs,
        }
    }
}

fn index(context: &Context) -> u32 {
    let NodeKind::Fs(node) = context.node().kind() else {
        panic!("metadata lives on file-system nodes");
    };
    node
}
