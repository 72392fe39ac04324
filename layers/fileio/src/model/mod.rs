//! The executable reference of the applications interface: one small file system in memory that
//! answers every request of the table as POSIX has it.
//!
//! It is the oracle that the real layer is compared with, and what clients and gateways are tested
//! against. It is written to be read: plain maps, no speed, no disk, nothing concurrent.
//!
//! # Where POSIX leaves the choice, or a stateless server must deviate
//!
//! - Checks come in this order: the handles exist ([`Error::Stale`]), the directory is one, it may
//!   be searched, the name exists (or not), then the right to change. So making what exists is
//!   [`Error::Exists`] and removing what does not is [`Error::NotFound`], for every caller.
//! - The owner of a file may always read, write and cut it, and who may execute a file may also
//!   read it (RFC 1813 section 4.4): access was checked when the file was opened, and a program may
//!   write a file that it created read-only.
//! - A file is gone with its last name, or when the last client that holds it lets go; requests
//!   with its handle are then [`Error::Stale`]. It gets no name again once it has none. Directories
//!   are never held. Leases do not end here.
//! - Writing, cutting or giving away a file by anybody but root takes its setuid and setgid bits.
//! - Modes that are not given are 0644 for files and other nodes, 0755 for directories; a symbolic
//!   link's is always 0777. A directory's size is one page.
//! - Only root makes devices.
//! - A hole that reaches the end of a file frees its last block too.
//!   [`Allocate`](crate::protocol::Allocate) sets nothing aside and changes nothing but the size.
//! - Extended attributes have two namespaces: `user.`, of files and directories, where the mode
//!   decides (also for owners) and in a sticky directory only owners write; and `trusted.`, which
//!   only root sees. What others have, `security.` and `system.`, is [`Error::Unsupported`]: a
//!   label or an access control list that is kept and not obeyed would be worse than none. Checks
//!   come in this order: the namespace, the right, the length of the value, what the mode asks for,
//!   the sum.
//! - A request that comes again with its [`CallId`] gets the first answer, if that was a success.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `mod.rs` | the server, and one `match` over the requests |
//! | `state.rs` | inodes, and who may do what |
//! | `names.rs` | requests that name an entry of a directory |
//! | `files.rs` | requests by handle |
//! | `xattrs.rs` | extended attributes |
//! | `open_files.rs` | files that clients have open |
//! | `content.rs` | the bytes of a sparse file |
//! | `machine.rs` | a machine to test clients on |

mod content;
mod files;
pub mod machine;
mod names;
mod open_files;
mod state;
#[cfg(test)]
mod tests;
mod xattrs;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use runtime::{Call, Caller, RequestInfo as _, Server};

use crate::protocol::{
    Append, CallId, DirectData, Error, FileIo, PartitionTable, Read, ReadDirect, Reply, Request,
    Time,
};
use state::ModelState;

/// Answers that are kept for requests that come again.
pub const CALLS_KEPT_MAX: usize = 4096;

/// Space of a model without a limit of its own.
pub const CAPACITY_BYTES: u64 = 1 << 40;

/// The reference file system. One may serve all nodes: `context.serve(model.clone())` at each.
pub struct Model {
    clock: Box<dyn Fn() -> Duration>,
    state: RefCell<ModelState>,
    answered: RefCell<AnsweredCalls>,
}

/// Successful answers of requests with a call id, oldest first.
#[derive(Default)]
struct AnsweredCalls {
    replies: BTreeMap<CallId, (Request, Reply)>,
    order: VecDeque<CallId>,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").finish_non_exhaustive()
    }
}

impl Default for Model {
    /// An empty file system whose clock ticks by one millisecond per request.
    fn default() -> Self {
        let ticks = Cell::new(0);
        Self::new(CAPACITY_BYTES, move || {
            ticks.set(ticks.get() + 1);
            Duration::from_millis(1_000_000 + ticks.get())
        })
    }
}

impl Model {
    /// An empty file system of `capacity_bytes`; `clock` gives the time since 1970.
    pub fn new(capacity_bytes: u64, clock: impl Fn() -> Duration + 'static) -> Self {
        let now = Time::from_unix(clock());
        Self {
            clock: Box::new(clock),
            state: RefCell::new(ModelState::new(capacity_bytes, now)),
            answered: RefCell::default(),
        }
    }

    /// The same; files take space in pages of `bytes` bytes.
    #[must_use]
    pub fn with_pages(self, bytes: u64) -> Self {
        self.state.borrow_mut().page_bytes = bytes;
        self
    }

    /// Does `call` at once.
    pub fn ask<C: Call<Protocol = FileIo>>(&self, call: C) -> Result<C::Reply, Error> {
        C::answer(self.answer(&call.into()))
    }

    /// Does any request at once.
    pub fn answer(&self, request: &Request) -> Reply {
        let first_sent;
        let (call, request) = match request {
            Request::Append(r) => {
                first_sent = Request::Append(Append { again: false, acknowledged: 0, ..r.clone() });
                (Some(r.call), &first_sent)
            }
            request => (request.call_id(), request),
        };
        let Some(call) = call else {
            return self.apply(request);
        };
        if let Some((first, reply)) = self.answered.borrow().replies.get(&call)
            && first == request
        {
            return reply.clone();
        }
        let reply = self.apply(request);
        if reply.failure().is_none() {
            self.answered.borrow_mut().keep(call, request.clone(), reply.clone());
        }
        reply
    }

    fn apply(&self, request: &Request) -> Reply {
        let now = Time::from_unix((self.clock)());
        let state = &mut *self.state.borrow_mut();
        let free_bytes = state.free_bytes();
        match request {
            Request::Lookup(r) => Reply::Lookup(state.lookup(r)),
            Request::Parent(r) => Reply::Parent(state.parent(r)),
            Request::GetAttributes(r) => Reply::GetAttributes(state.get_attributes(r)),
            Request::SetAttributes(r) => Reply::SetAttributes(
                state.inode_mut(&r.file).and_then(|inode| inode.set_attributes(r, now)),
            ),
            Request::Create(r) => Reply::Create(state.create(r, now)),
            Request::MakeNode(r) => Reply::MakeNode(state.make_node(r, now)),
            Request::Remove(r) => Reply::Remove(state.remove(r, now)),
            Request::RemoveDirectory(r) => Reply::RemoveDirectory(state.remove_directory(r, now)),
            Request::Rename(r) => Reply::Rename(state.rename(r, now)),
            Request::Link(r) => Reply::Link(state.link(r, now)),
            Request::ReadDirectory(r) => Reply::ReadDirectory(state.read_directory(r, now)),
            Request::ReadLink(r) => {
                Reply::ReadLink(state.inode_mut(&r.file).and_then(|inode| inode.read_link(now)))
            }
            Request::Read(r) => {
                Reply::Read(state.inode_mut(&r.file).and_then(|inode| inode.read(r, now)))
            }
            Request::ReadDirect(r) => {
                let ReadDirect { who, file, offset, length, .. } = r.clone();
                let read = Read { who, file, offset, length };
                let read = state.inode_mut(&file).and_then(|inode| inode.read(&read, now));
                Reply::ReadDirect(read.map(|read| DirectData {
                    read,
                    execution: 0,
                    delivered: Vec::new(),
                }))
            }
            // It has no disks.
            Request::GetDisks(_) => Reply::GetDisks(Err(Error::Invalid {})),
            Request::ChangeDisks(_) => Reply::ChangeDisks(Err(Error::Invalid {})),
            // It has one partition.
            Request::GetPartitions(_) => Reply::GetPartitions(Ok(PartitionTable::default())),
            Request::ChangePartitions(_) => Reply::ChangePartitions(Err(Error::Invalid {})),
            Request::AdoptPartitions(_) => Reply::AdoptPartitions(Err(Error::Invalid {})),
            Request::GetPartitionShare(_) => Reply::GetPartitionShare(Err(Error::Invalid {})),
            Request::ClaimSpace(_) => Reply::ClaimSpace(Err(Error::Invalid {})),
            // Nothing is left anywhere for it.
            Request::WriteDirect(_) => Reply::WriteDirect(Ok(None)),
            Request::Write(r) => Reply::Write(
                state.inode_mut(&r.file).and_then(|inode| inode.write(r, free_bytes, now)),
            ),
            Request::ReadList(r) => {
                Reply::ReadList(state.inode_mut(&r.file).and_then(|inode| inode.read_list(r, now)))
            }
            Request::WriteList(r) => Reply::WriteList(
                state.inode_mut(&r.file).and_then(|inode| inode.write_list(r, free_bytes, now)),
            ),
            Request::Append(r) => Reply::Append(
                state.inode_mut(&r.file).and_then(|inode| inode.append(r, free_bytes, now)),
            ),
            Request::Commit(r) => Reply::Commit(state.commit(r)),
            Request::ReplayWrite(r) => Reply::ReplayWrite(state.replayed(&r.file, r.sequence)),
            Request::ReplayPunch(r) => Reply::ReplayPunch(state.replayed(&r.file, r.sequence)),
            Request::PunchHole(r) => Reply::PunchHole(
                state.inode_mut(&r.file).and_then(|inode| inode.punch_hole(r, now)),
            ),
            Request::Allocate(r) => Reply::Allocate(
                state.inode_mut(&r.file).and_then(|inode| inode.allocate(r, free_bytes, now)),
            ),
            Request::Seek(r) => {
                Reply::Seek(state.inode_mut(&r.file).and_then(|inode| inode.seek(r)))
            }
            Request::GetXattr(r) => {
                Reply::GetXattr(state.inode(&r.file).and_then(|inode| inode.get_xattr(r)))
            }
            Request::SetXattr(r) => {
                Reply::SetXattr(state.inode_mut(&r.file).and_then(|inode| inode.set_xattr(r, now)))
            }
            Request::ListXattrs(r) => {
                Reply::ListXattrs(state.inode(&r.file).map(|inode| inode.list_xattrs(r)))
            }
            Request::RemoveXattr(r) => Reply::RemoveXattr(
                state.inode_mut(&r.file).and_then(|inode| inode.remove_xattr(r, now)),
            ),
            Request::GetSpace(_) => Reply::GetSpace(Ok(state.space())),
            // Nothing is on any disk.
            Request::Scrub(_) => Reply::Scrub(Ok(crate::protocol::ScrubPart::default())),
            Request::Flush(_) => Reply::Flush(Ok(())),
            Request::SyncDirectory(r) => Reply::SyncDirectory(state.sync_directory(r)),
            Request::OpenHandle(r) => Reply::OpenHandle(state.open_handle(r)),
            Request::CloseHandle(r) => {
                state.close_handle(r);
                Reply::CloseHandle(Ok(()))
            }
            Request::Renew(r) => Reply::Renew(Ok(r.lease == open_files::LEASE_ID)),
            Request::Lock(r) => Reply::Lock(state.open_files.lock(r)),
            Request::TestLock(r) => Reply::TestLock(state.open_files.test_lock(r)),
            Request::Unlock(r) => Reply::Unlock(state.open_files.unlock(r)),
            Request::Open(r) => Reply::Open(state.open(r)),
            Request::OpenNew(r) => Reply::OpenNew(state.open_new(r, now)),
            Request::HasOpens(_) => Reply::HasOpens(Ok(state.open_files.has_any())),
            // The model delegates nothing.
            Request::Delegate(_) => Reply::Delegate(Ok(None)),
            Request::ReturnDelegation(_) => Reply::ReturnDelegation(Ok(())),
            Request::GetRecalls(_) => Reply::GetRecalls(Ok(None)),
            Request::BreakDelegations(_) => Reply::BreakDelegations(Ok(())),
            // The model keeps no replies.
            Request::WasDone(_) => Reply::WasDone(Ok(false)),
            // Only nodes say this to each other; the model is one.
            Request::Trim(_) => Reply::Trim(Err(Error::Invalid {})),
        }
    }
}

impl Server<FileIo> for Model {
    fn handle(self: Rc<Self>, _: Caller, request: Request) -> LocalBoxFuture<'static, Reply> {
        async move { self.answer(&request) }.boxed_local()
    }
}

impl AnsweredCalls {
    fn keep(&mut self, call: CallId, request: Request, reply: Reply) {
        if self.replies.insert(call, (request, reply)).is_none() {
            self.order.push_back(call);
        }
        if self.order.len() > CALLS_KEPT_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.replies.remove(&oldest);
        }
    }
}
