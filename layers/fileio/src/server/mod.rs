//! The file server of one node, and the table that passes each request to the component that
//! answers it. A component owns its state, and knows only components below it:
//!
//! ```text
//! calls   append   replay   attributes   create   link   remove   rename   open   directory
//! space   list/    locks        lookup   occupancy
//! write/   read     open_files   names
//! readahead   commit   sync   remote_locks   xattrs
//! content   leases   call_requests   replays   rights   delegation_requests
//! delegations   restart_delay
//! base
//! ```

mod append;
mod attributes;
mod base;
mod call_requests;
mod calls;
mod changed_ranges;
mod commit;
mod content;
mod create;
mod degraded;
mod delegation_requests;
mod delegations;
mod direct;
mod directory;
mod errors;
mod hand_over;
mod leases;
mod link;
mod list;
mod locks;
mod lookup;
mod names;
mod occupancy;
mod open;
mod open_files;
mod other_source;
mod partial_block_cache;
mod partition_manager;
mod partitions;
mod read;
mod readahead;
mod remote_locks;
mod remove;
mod rename;
mod replay;
mod replays;
mod reserve;
mod restart_delay;
mod rights;
mod scrub;
mod space;
mod space_claims;
mod store_deposit;
mod sync;
mod write;
mod xattrs;

use std::cell::OnceCell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::disk_types::DiskAdministration;
use blockio::Stripes;
use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::{Either, LocalBoxFuture, ready, select};
use meta::protocol::{GetDirty, ListUntrimmed};
use meta::{FileInformation, SharedAttrCache};
use runtime::delivery::Delivery;
use runtime::{Caller, Context, RequestInfo as _, Senders, Server, Undelivered};

pub use self::degraded::LostFiles;
pub use self::hand_over::{ClientHandover, FilesHandover};

use self::append::Appends;
use self::attributes::FileAttributes;
use self::base::MetadataAccess;
use self::calls::CallTable;
use self::commit::FileCommits;
use self::content::ContentAccess;
use self::direct::BlockSender;
use self::errors::warn_of_retry;
use self::list::{ListReader, ListWriter};
use self::names::Names;
use self::open_files::OpenFiles;
use self::partition_manager::PartitionManager;
use self::read::FileReader;
use self::remote_locks::RemoteLocks;
use self::replay::Replayer;
use self::space::FileSpace;
use self::write::{DirectWriter, FileWriter};
use crate::protocol::{
    AdoptPartitions, Allocate, Append, BreakDelegations, ChangeDisks, ChangePartitions, ClaimSpace,
    CloseHandle, Commit, Create, Credentials, Delegate, DiskList, Error, FileIo, Flush,
    GetAttributes, GetDisks, GetPartitionShare, GetPartitions, GetRecalls, GetSpace, GetXattr,
    Handle, HasOpens, Link, ListXattrs, Lock, Lookup, MakeNode, NewNode, Open, OpenHandle, OpenNew,
    Parent, PartitionRefusal, PunchHole, ROOT, Read, ReadDirect, ReadDirectory, ReadLink, ReadList,
    Remove, RemoveDirectory, RemoveXattr, Rename, Renew, ReplayPunch, ReplayWrite, Reply, Request,
    ReturnDelegation, Scrub, Seek, SetAttributes, SetXattr, SyncDirectory, TestLock, Trim, Unlock,
    WasDone, Write, WriteDirect, WriteList,
};

/// Is this the root directory of the volume, for a request that is about all of it?
fn check_root(root: Handle) -> Result<(), Error> {
    if root == ROOT { Ok(()) } else { Err(Error::Invalid {}) }
}

/// Is it work of users? What moves between disks gives way to that.
fn is_work(request: &Request) -> bool {
    !matches!(request, Request::GetDisks(_) | Request::ChangeDisks(_) | Request::Scrub(_))
}

/// A write that waits for its part of a size limit needs these of all nodes.
fn is_needed_to_end(request: &Request) -> bool {
    matches!(
        request,
        Request::GetPartitions(_)
            | Request::AdoptPartitions(_)
            | Request::GetPartitionShare(_)
            | Request::ClaimSpace(_)
    )
}

/// The time after which a change of the partitions is answered as not ready; it goes on meanwhile.
const PARTITIONS_TIME_MAX: Duration = Duration::from_secs(10);
/// How often a node looks for files to commit.
const COMMIT_INTERVAL: Duration = Duration::from_millis(500);
/// The age at which a change is made durable without a request, in milliseconds.
const COMMIT_AGE_MS: u64 = 2_000;

/// The files of one node. It knows the clients that have them open for a while only.
pub struct FileServer {
    base: MetadataAccess,
    calls: CallTable,
    names: Names,
    remote_locks: Rc<RemoteLocks>,
    attributes: FileAttributes,
    reader: FileReader,
    writer: Rc<FileWriter>,
    direct_writer: DirectWriter,
    list_reader: ListReader,
    list_writer: ListWriter,
    appends: Appends,
    replayer: Replayer,
    space: Rc<FileSpace>,
    commits: Rc<FileCommits>,
    open_files: Rc<OpenFiles>,
    disks: OnceCell<Rc<dyn DiskAdministration>>,
    partitions: Rc<PartitionManager>,
}

impl std::fmt::Debug for FileServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let node = self.base.context.node();
        f.debug_struct("FileServer").field("node", &node).finish_non_exhaustive()
    }
}

impl Server<FileIo> for FileServer {
    fn try_now(self: Rc<Self>, _: Caller, request: &Request) -> Option<Reply> {
        let reply = self.answer_now(request)?;
        if is_work(request) {
            self.base.information.pace().note_answer(self.base.context.now());
        }
        Some(reply)
    }

    fn handle(self: Rc<Self>, caller: Caller, request: Request) -> LocalBoxFuture<'static, Reply> {
        let context = &self.base.context;
        let change = match self.base.begin_change_by(&request) {
            Ok(change) => change,
            Err(busy) => return ready(busy.into()).boxed_local(),
        };
        let begin = || self.base.information.pace().begin_request(context.now());
        let work = is_work(&request).then(begin).flatten();
        if work.is_none() && change.is_none() {
            return self.answer(caller, request);
        }
        let context = context.clone();
        async move {
            let reply = self.answer(caller, request).await;
            if let Some(work) = work {
                work.end(context.now());
            }
            drop(change);
            reply
        }
        .boxed_local()
    }
}

impl FileServer {
    fn answer_now(&self, request: &Request) -> Option<Reply> {
        match request {
            Request::Read(_) | Request::GetAttributes(_) | Request::Lookup(_)
                if !self.base.owns(request.route()) =>
            {
                Some(Undelivered::ProtocolMismatch.into())
            }
            Request::Read(r) => self.reader.try_read_now(r).map(|read| Reply::Read(Ok(read))),
            Request::GetAttributes(r) => {
                let Handle { ino, generation } = r.file;
                let known = self.base.information.attributes(ino, generation)?;
                self.base.information.show(ino);
                Some(Reply::GetAttributes(Ok(known)))
            }
            Request::Lookup(r) => self.names.try_look_up_now(r).map(Reply::Lookup),
            _ => None,
        }
    }

    fn answer(self: Rc<Self>, caller: Caller, request: Request) -> LocalBoxFuture<'static, Reply> {
        if caller.is_client() && request.senders() == Senders::Servers {
            return ready(request.refused(Error::NotPermitted {})).boxed_local();
        }
        if self.base.is_read_only && degraded::is_change(&request) {
            return ready(request.refused(Error::ReadOnly {})).boxed_local();
        }
        if !self.base.owns(request.route()) {
            return ready(Undelivered::ProtocolMismatch.into()).boxed_local();
        }
        request.dispatch(self, caller)
    }
}

runtime::handlers! { FileServer;
    Lookup => |server, _, request| server.names.lookup(request).await;
    Open => |server, _, request| server.names.open(request).await;
    ReadDirectory => |server, _, request| server.names.read_directory(request).await;
    Create => |server, _, request| server.calls.execute(&request, &server.names).await;
    OpenNew => |server, _, request| server.calls.execute(&request, &server.names).await;
    MakeNode => |server, caller, request| {
        let is_root = matches!(request.node, NewNode::PartitionRoot { .. });
        if is_root && caller.is_client() {
            return Err(Error::NotPermitted {});
        }
        server.calls.execute(&request, &server.names).await
    };
    Link => |server, _, request| server.calls.execute(&request, &server.names).await;
    Rename => |server, _, request| server.calls.execute(&request, &server.names).await;
    Remove => |server, _, request| server.calls.execute(&request, &server.names).await;
    RemoveDirectory => |server, _, request| server.calls.execute(&request, &server.names).await;
    SetXattr => |server, _, request| server.calls.execute(&request, &server.base).await;
    RemoveXattr => |server, _, request| server.calls.execute(&request, &server.base).await;
    GetXattr => |server, _, request| server.base.get_xattr(request).await;
    ListXattrs => |server, _, request| server.base.list_xattrs(request).await;
    WasDone => |server, _, request| server.calls.was_done(request.call).await;
    GetAttributes => |server, _, request| server.base.attributes(request.file).await;
    SetAttributes => |server, _, request| server.attributes.set_attributes(request).await;
    Parent => |server, _, request| server.attributes.parent(request).await;
    ReadLink => |server, _, request| server.attributes.read_link(&request).await;
    Read => |server, _, request| server.reader.read(request).await;
    ReadDirect => |server, _, request| server.reader.read_direct(request).await;
    ReadList => |server, _, request| server.list_reader.read_list(request).await;
    Write => |server, _, request| server.writer.write(request).await;
    WriteDirect => |server, _, request| server.direct_writer.write_direct(request).await;
    WriteList => |server, _, request| server.list_writer.write_list(request).await;
    Append => |server, _, request| server.appends.append(request).await;
    ReplayWrite => |server, _, request| server.replayer.replay_write(request).await;
    ReplayPunch => |server, _, request| server.replayer.replay_punch(request).await;
    Allocate => |server, _, request| server.space.allocate(&request).await;
    PunchHole => |server, _, request| server.space.punch_hole(request).await;
    Seek => |server, _, request| server.space.seek(&request).await;
    GetSpace => |server, _, request| server.space.get_space(request.partition).await;
    Commit => |server, _, request| server.commits.commit(&request.file).await;
    Flush => |server, _, _request| server.commits.flush().await;
    SyncDirectory => |server, _, request| server.commits.sync_directory(request.directory).await;
    Trim => |server, _, request| {
        server.commits.trim(request.ino).await;
        Ok(())
    };
    OpenHandle => |server, _, request| server.open_files.open_handle(request).await;
    CloseHandle => |server, _, request| server.open_files.close_handle(request).await;
    Renew => |server, _, request| Ok(server.open_files.renew(&request));
    Lock => |server, _, request| server.open_files.lock(&request);
    TestLock => |server, _, request| server.open_files.test_lock(&request);
    Unlock => |server, _, request| server.open_files.unlock(&request);
    Scrub => |server, _, request| server.attributes.scrub(request).await;
    GetDisks => |server, _, request| server.get_disks(request).await;
    ChangeDisks => |server, _, request| server.change_disks(request).await;
    GetPartitions => |server, _, request| {
        check_root(request.root)?;
        server.partitions.table().await
    };
    ChangePartitions => |server, _, request| server.change_partitions(request).await;
    AdoptPartitions => |server, _, request| {
        server.base.partitions.adopt(Rc::new(request.table));
        Ok(())
    };
    GetPartitionShare => |server, _, request| {
        Ok(server.base.partitions.share(request.partition, request.give_up))
    };
    ClaimSpace => |server, _, request| server.base.partitions.claim(request).await;
    Delegate => |server, _, request| {
        let leases = &server.open_files.leases;
        let is_locked = || leases.is_locked_exclusively(request.file.ino);
        server.base.delegate(&request, is_locked).await
    };
    ReturnDelegation => |server, _, request| {
        server.base.delegations.take_back(&request);
        Ok(())
    };
    HasOpens => |server, _, _request| Ok(server.open_files.leases.has_opens());
    GetRecalls => |server, _, request| {
        Ok(server.base.delegations.recalls(&request, server.base.context.now()))
    };
    BreakDelegations => |server, _, request| {
        let is_broken = server.base.is_broken(&request);
        is_broken.then_some(()).ok_or(Error::from(Undelivered::Busy))
    };
}

impl FileServer {
    /// The files of the node of `context`; their content is on `stripes`, and what the metadata
    /// server of the node has of them in memory is in `information`. What other nodes of the
    /// process publish is in `shared_attrs`, if they share memory.
    pub fn new(
        context: Context,
        stripes: Rc<dyn Stripes>,
        information: FileInformation,
        shared_attrs: Option<Arc<SharedAttrCache>>,
    ) -> Rc<Self> {
        let server =
            Self::assemble(MetadataAccess::new(context, information, shared_attrs), stripes);
        server.start_tasks();
        server
    }

    /// As [`new`](Self::new), of a volume that is only read. What of it cannot be read is an error
    /// that names the disk; listings leave out names that cannot be read.
    pub fn to_read(
        context: Context,
        stripes: Rc<dyn Stripes>,
        information: FileInformation,
        shared_attrs: Option<Arc<SharedAttrCache>>,
    ) -> Rc<Self> {
        let base = MetadataAccess::new(context, information, shared_attrs);
        let server = Self::assemble(base.read_only(), stripes);
        let here = server.base.clone();
        server.base.context.task(async move { here.give_memory_back().await });
        server
    }

    /// From now on a logical block of new content has `unit` blocks: a power of two, a stripe at
    /// most. For tests: files have no block sizes of their own yet.
    pub fn set_unit(&self, unit: u32) {
        self.base.partitions.set_unit(unit);
    }

    /// Puts the components on one another.
    fn assemble(base: MetadataAccess, stripes: Rc<dyn Stripes>) -> Rc<Self> {
        let file_content = Rc::new(ContentAccess::new(base.clone(), stripes));
        let commits = Rc::new(FileCommits::new(base.clone(), file_content.clone()));
        let parts = || (base.clone(), file_content.clone(), commits.clone());
        let writer = Rc::new(FileWriter::new(parts()));
        let open_files = Rc::new(OpenFiles::new(base.clone(), commits.clone()));
        let remote_locks = Rc::new(RemoteLocks::new(base.clone()));
        let space = Rc::new(FileSpace::new(parts(), writer.clone()));
        let partitions = PartitionManager::new(base.clone(), file_content.geometry.stripe_size);
        let server = Rc::new(Self {
            calls: CallTable::new(base.clone(), remote_locks.clone()),
            names: Names::new(base.clone(), remote_locks.clone(), commits.clone()),
            attributes: FileAttributes::new(base.clone(), space.clone()),
            reader: FileReader::new(parts()),
            list_reader: ListReader::new(parts()),
            direct_writer: DirectWriter { writer: writer.clone() },
            list_writer: ListWriter::new(parts(), writer.clone()),
            appends: Appends::new(parts(), writer.clone()),
            replayer: Replayer::new(parts(), writer.clone(), space.clone()),
            base,
            remote_locks,
            writer,
            space,
            commits,
            open_files,
            disks: OnceCell::new(),
            partitions,
        });
        server.base.context.serve::<Delivery>(Rc::new(BlockSender(file_content)));
        server
    }

    /// Who changes the disks of the volume from now on. At the node of the root directory.
    pub fn administrate(&self, disks: Rc<dyn DiskAdministration>) {
        let _ = self.disks.set(disks);
    }

    fn administration(&self, root: Handle) -> Result<&dyn DiskAdministration, Error> {
        check_root(root)?;
        // The node has just come up.
        self.disks.get().map(|disks| &**disks).ok_or(Error::from(Undelivered::Busy))
    }

    async fn get_disks(&self, request: GetDisks) -> Result<DiskList, Error> {
        let mut list = self.administration(request.root)?.list().await?;
        match self.check_operator(&request.who).await {
            Ok(()) => {}
            Err(Error::NotPermitted {}) => list.disks.iter_mut().for_each(|disk| disk.path.clear()),
            Err(error) => return Err(error),
        }
        Ok(list)
    }

    async fn change_disks(&self, request: ChangeDisks) -> Result<(), Error> {
        let disks = self.administration(request.root)?;
        self.check_operator(&request.who).await?;
        disks.change(request.change).await
    }

    async fn change_partitions(&self, request: ChangePartitions) -> Result<(), Error> {
        check_root(request.root)?;
        self.check_operator(&request.who).await?;
        let (reply, changed) = oneshot::channel();
        let partitions = self.partitions.clone();
        // A task of the node: a node that moves does not wait for it, as it would for a request.
        self.base.context.task(async move {
            let _ = reply.send(partitions.change(&request.who, request.change).await);
        });
        match select(changed, pin!(self.base.context.sleep(PARTITIONS_TIME_MAX))).await {
            Either::Left((Ok(changed), _)) => changed,
            Either::Left((Err(_), _)) | Either::Right(_) => {
                Err(PartitionRefusal::NotReady {}.into())
            }
        }
    }

    /// Root and the owner of the root directory may change what the volume is made of.
    async fn check_operator(&self, who: &Credentials) -> Result<(), Error> {
        let owner = self.base.attributes(ROOT).await?.uid;
        if [0, owner].contains(&who.uid) { Ok(()) } else { Err(Error::NotPermitted {}) }
    }

    fn start_tasks(self: &Rc<Self>) {
        let server = self.clone();
        self.base.context.task(async move { server.commit_loop().await });
        if self.base.node_of(ROOT.ino) == self.base.context.node() {
            let partitions = self.partitions.clone();
            self.base.context.task(async move { partitions.resume().await });
        }
        let open_files = self.open_files.clone();
        self.base.restart_delay.begin();
        self.base.context.task(async move {
            open_files.base.load_restart_delay().await;
            open_files.wait_for_grace_end().await;
        });
        let remote_locks = self.remote_locks.clone();
        self.base.context.task(async move { remote_locks.release_orphaned_locks().await });
    }

    /// Commits old changes and frees the blocks of removed files, as long as the node runs.
    async fn commit_loop(&self) {
        loop {
            self.base.context.sleep(COMMIT_INTERVAL).await;
            for ino in self.base.meta_here(ListUntrimmed {}).await.unwrap_or_default() {
                self.commits.trim(ino).await;
            }
            self.open_files.remove_unreferenced().await;
            if let Err(error) = self.commits.commit_dirty(COMMIT_AGE_MS).await {
                warn_of_retry(error, "a commit in the background failed, it will be tried again");
            }
        }
    }

    /// Accepts no more requests but those without which others, here and at nodes that move too, do
    /// not end; finishes those that run and commits what was written. After an error it may be
    /// called again.
    pub async fn hand_over(&self) -> Result<FilesHandover, Error> {
        let context = &self.base.context;
        context.close::<FileIo>(is_needed_to_end);
        loop {
            context.drained::<FileIo>().await;
            self.commits.commit_dirty(0).await?;
            let dirty = self.base.meta_here(GetDirty { age_ms: 0 }).await?;
            if dirty.is_empty() && context.is_drained::<FileIo>() {
                // What it stores for other nodes goes into its cache, which is handed over next.
                context.close::<Delivery>(|_| false);
                context.drained::<Delivery>().await;
                let replays = self.base.replays.hand_over();
                return Ok(FilesHandover { replays, ..self.open_files.hand_over() });
            }
        }
    }

    /// Continues where the predecessor stopped. To be called before this server serves.
    pub fn resume(&self, predecessor: FilesHandover) {
        self.remote_locks.orphan_all();
        self.base.replays.resume(&predecessor.replays);
        self.open_files.resume(predecessor);
    }
}
