//! Operations in flight: what each holds, and how several complete as one.
//!
//! Many operations of the provider may belong to one [`OperationGroup`], which completes once, when
//! the last of them has (the Single Event Associated Multiple RDMA of the PVFS2-over-Quadrics
//! paper, section 5.3, with a count in place of the card's event).

#![allow(unsafe_code, reason = "posts operations to a C library")]

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};

use super::endpoint::{Completion, OperationKind};
use super::memory::{FabricBuffer, Hold};
use super::objects::{Objects, check, failed, no_operation};
use crate::FabricError;
use crate::sys::{self, fi_rma_iov, iovec};

/// Pieces of one operation of ours, at most, whatever more a provider takes.
pub(super) const PIECES_MAX: usize = 4;
/// Operations that wait until the provider's queue has room, at most.
const BACKLOG_MAX: usize = 4096;

/// Memory of a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteSegment {
    /// Its address, as the peer told it.
    pub address: u64,
    /// The key of its region.
    pub key: u64,
    /// Its bytes.
    pub length: u64,
}

/// A part of a buffer.
#[derive(Clone, Copy, Debug)]
pub struct BufferSegment<'a> {
    /// The buffer.
    pub buffer: &'a FabricBuffer,
    /// The first byte.
    pub at: usize,
    /// How many bytes.
    pub length: usize,
}

/// The provider's own words for each operation (`FI_CONTEXT2`).
type OperationContext = UnsafeCell<[u64; 8]>;

/// Several operations that complete as one.
pub(super) struct OperationGroup {
    pub(super) cookie: u64,
    pub(super) what: OperationKind,
    /// Operations that have not completed.
    pub(super) left: u32,
    /// The buffer that comes back with the completion.
    pub(super) buffer: Option<FabricBuffer>,
    /// Buffers of others that must stay.
    pub(super) holds: Vec<Hold>,
    /// Bytes of the last one.
    pub(super) length: usize,
    pub(super) error: Option<FabricError>,
}

impl OperationGroup {
    pub(super) fn empty(cookie: u64, what: OperationKind, left: u32) -> Self {
        Self { cookie, what, left, buffer: None, holds: Vec::new(), length: 0, error: None }
    }

    pub(super) fn of_one(cookie: u64, what: OperationKind, buffer: FabricBuffer) -> Self {
        Self { buffer: Some(buffer), ..Self::empty(cookie, what, 1) }
    }
}

/// An operation on remote memory, ready to be posted.
pub(super) struct RmaOperation {
    pub(super) to: u64,
    pub(super) local: [iovec; PIECES_MAX],
    pub(super) descriptors: [*mut c_void; PIECES_MAX],
    pub(super) local_count: usize,
    pub(super) remote: [fi_rma_iov; PIECES_MAX],
    pub(super) remote_count: usize,
    pub(super) immediate: Option<u64>,
    pub(super) more: bool,
    group: u32,
}

impl RmaOperation {
    pub(super) fn new(to: u64) -> Self {
        Self {
            to,
            local: [iovec { iov_base: null_mut(), iov_len: 0 }; PIECES_MAX],
            descriptors: [null_mut(); PIECES_MAX],
            local_count: 0,
            remote: [fi_rma_iov { addr: 0, len: 0, key: 0 }; PIECES_MAX],
            remote_count: 0,
            immediate: None,
            more: true,
            group: 0,
        }
    }

    pub(super) fn add_local(&mut self, at: *mut u8, length: usize, descriptor: *mut c_void) {
        self.local[self.local_count] = iovec { iov_base: at.cast(), iov_len: length };
        self.descriptors[self.local_count] = descriptor;
        self.local_count += 1;
    }

    pub(super) fn add_remote(&mut self, address: u64, length: usize, key: u64) {
        self.remote[self.remote_count] = fi_rma_iov { addr: address, len: length, key };
        self.remote_count += 1;
    }
}

/// All operations that have not completed.
pub(super) struct OpenOperations {
    contexts: NonNull<[OperationContext]>,
    group_of: Vec<u32>,
    free: Vec<u32>,
    groups: Vec<Option<OperationGroup>>,
    free_groups: Vec<u32>,
    backlog: VecDeque<RmaOperation>,
    /// The provider does reads and writes of remote memory in order, while they are posted. Those
    /// that have not completed, if so: shm of 1.17 does not say which one has failed.
    in_order: Option<VecDeque<u32>>,
}

impl OpenOperations {
    pub(super) fn new(limit: usize, in_order: bool) -> Self {
        let contexts: Box<[OperationContext]> =
            (0..limit).map(|_| UnsafeCell::new([0; 8])).collect();
        Self {
            contexts: NonNull::from(Box::leak(contexts)),
            group_of: vec![0; limit],
            free: (0..limit as u32).rev().collect(),
            groups: (0..limit + BACKLOG_MAX).map(|_| None).collect(),
            free_groups: (0..(limit + BACKLOG_MAX) as u32).rev().collect(),
            backlog: VecDeque::new(),
            in_order: in_order.then(VecDeque::new),
        }
    }

    /// Operations of the provider that are open.
    pub(super) fn open(&self) -> usize {
        self.group_of.len() - self.free.len() + self.backlog.len()
    }

    /// Whether `count` more operations, in one group, have room.
    pub(super) fn has_room(&self, count: usize) -> bool {
        self.backlog.len() + count <= BACKLOG_MAX
    }

    /// Adds a group. There is room: each has an open operation or one in the backlog, and the table
    /// has a place for all of both.
    pub(super) fn begin(&mut self, group: OperationGroup) -> u32 {
        let id = self.free_groups.pop().unwrap_or_else(|| unreachable!("a place per operation"));
        self.groups[id as usize] = Some(group);
        id
    }

    /// Gives a posted operation, whose context is `index`, the group of which it is the only one.
    pub(super) fn attach(&mut self, index: u32, group: OperationGroup) {
        self.group_of[index as usize] = self.begin(group);
    }

    /// A context for one operation of the group `id`.
    pub(super) fn context(&mut self, id: u32) -> Option<(*mut c_void, u32)> {
        let index = self.free.pop()?;
        self.group_of[index as usize] = id;
        // SAFETY: the index is one of the table's.
        let context = unsafe { self.contexts.cast::<OperationContext>().add(index as usize) };
        Some((context.as_ptr().cast(), index))
    }

    pub(super) fn give_back(&mut self, index: u32) {
        self.free.push(index);
    }

    /// Posts the operations of the group `id`, or as many as the provider takes now; the others
    /// follow by [`OpenOperations::post_backlog`].
    pub(super) fn post_all(
        &mut self,
        objects: &Objects,
        id: u32,
        posts: Vec<RmaOperation>,
    ) -> bool {
        for mut post in posts {
            post.group = id;
            self.backlog.push_back(post);
        }
        self.post_backlog(objects)
    }

    /// Posts what waits, in order, until the provider takes no more. True if one was refused for
    /// good: then [`OpenOperations::take_unposted`] may have something.
    pub(super) fn post_backlog(&mut self, objects: &Objects) -> bool {
        let mut refused = false;
        while let Some(post) = self.backlog.pop_front() {
            let Some((context, index)) = self.context(post.group) else {
                self.backlog.push_front(post);
                return refused;
            };
            let reads = self.groups[post.group as usize]
                .as_ref()
                .is_some_and(|g| g.what == OperationKind::Read);
            match post_one(objects, &post, reads, context) {
                Ok(()) => self.in_order.iter_mut().for_each(|order| order.push_back(index)),
                Err(code) => {
                    self.give_back(index);
                    if code == -sys::FI_EAGAIN {
                        self.backlog.push_front(post);
                        return refused;
                    }
                    // It never began: it completes with the error, next time the queue is read.
                    let call = if reads { "fi_readmsg" } else { "fi_writemsg" };
                    self.fail_unposted(post.group, failed(call, code));
                    refused = true;
                }
            }
        }
        refused
    }

    fn fail_unposted(&mut self, id: u32, error: FabricError) {
        if let Some(group) = &mut self.groups[id as usize] {
            group.left -= 1;
            group.error.get_or_insert(error);
        }
    }

    /// Groups whose operations all failed to be posted: nothing of the provider completes them.
    pub(super) fn take_unposted(&mut self, out: &mut Vec<Completion>) {
        for id in 0..self.groups.len() as u32 {
            if self.groups[id as usize].as_ref().is_some_and(|group| group.left == 0) {
                out.extend(self.finish(id));
            }
        }
    }

    /// One operation completed; the group's completion, if it was the last.
    pub(super) fn complete(
        &mut self,
        context: *mut c_void,
        result: Result<usize, FabricError>,
    ) -> Option<Completion> {
        let index = self.index_of(context).or_else(|| self.oldest_failed(&result))?;
        if let Some(order) = &mut self.in_order {
            order.retain(|posted| *posted != index);
        }
        let id = self.group_of[index as usize];
        self.free.push(index);
        let group = self.groups[id as usize].as_mut()?;
        group.left -= 1;
        match result {
            Ok(length) => group.length = length,
            Err(error) => group.error = Some(error),
        }
        if group.left == 0 { self.finish(id) } else { None }
    }

    /// Which operation a failure without a name is of, if the provider works in order.
    fn oldest_failed(&self, result: &Result<usize, FabricError>) -> Option<u32> {
        let oldest = self.in_order.as_ref()?.front().copied();
        if result.is_err() { oldest } else { None }
    }

    fn finish(&mut self, id: u32) -> Option<Completion> {
        let group = self.groups[id as usize].take()?;
        self.free_groups.push(id);
        let result = group.error.map_or(Ok(group.length), Err);
        Some(Completion { cookie: group.cookie, what: group.what, result, buffer: group.buffer })
    }

    fn index_of(&self, context: *mut c_void) -> Option<u32> {
        let start = self.contexts.cast::<OperationContext>().as_ptr() as usize;
        let offset = (context as usize).checked_sub(start)?;
        let index = offset / size_of::<OperationContext>();
        let is_one = offset % size_of::<OperationContext>() == 0 && index < self.group_of.len();
        is_one.then_some(index as u32)
    }

    /// Drops all buffers; the endpoint must be closed.
    pub(super) fn clear(&mut self) {
        self.backlog.clear();
        self.groups.iter_mut().for_each(|group| *group = None);
    }
}

impl Drop for OpenOperations {
    fn drop(&mut self) {
        // SAFETY: leaked by `new`, and taken back once; the endpoint is closed by now.
        drop(unsafe { Box::from_raw(self.contexts.as_ptr()) });
    }
}

/// The error is the provider's negative number.
fn post_one(
    objects: &Objects,
    post: &RmaOperation,
    reads: bool,
    context: *mut c_void,
) -> Result<(), c_int> {
    let mut descriptors = post.descriptors;
    let message = sys::fi_msg_rma {
        msg_iov: post.local.as_ptr(),
        desc: descriptors.as_mut_ptr(),
        iov_count: post.local_count,
        addr: post.to,
        rma_iov: post.remote.as_ptr(),
        rma_iov_count: post.remote_count,
        context,
        data: post.immediate.unwrap_or_default(),
    };
    let mut flags = sys::FI_COMPLETION;
    if post.more {
        flags |= sys::FI_MORE;
    }
    if post.immediate.is_some() {
        flags |= sys::FI_REMOTE_CQ_DATA;
    }
    let missing = -sys::FI_ENOSYS;
    // SAFETY: the endpoint is open; the local pieces belong to buffers that the group holds until
    // the operation has completed; the message itself is read during the call only.
    let code = unsafe {
        let table = (*objects.endpoint).rma;
        if reads {
            let readmsg = (*table).readmsg.ok_or(missing)?;
            readmsg(objects.endpoint, &raw const message, flags)
        } else {
            let writemsg = (*table).writemsg.ok_or(missing)?;
            writemsg(objects.endpoint, &raw const message, flags)
        }
    };
    if code == 0 { Ok(()) } else { Err(code as c_int) }
}

/// Sends `length` bytes at `at`; they must stay until `context` completes.
pub(super) fn post_send(
    objects: &Objects,
    to: u64,
    buffer: &FabricBuffer,
    descriptor: *mut c_void,
    context: *mut c_void,
) -> Result<(), FabricError> {
    // SAFETY: the endpoint is open; the buffer is held by its group until it has completed.
    let code = unsafe {
        let send = (*(*objects.endpoint).msg).send.ok_or_else(no_operation)?;
        let at = buffer.chunk().pointer().cast_const().cast();
        send(objects.endpoint, at, buffer.len(), descriptor, to, context)
    };
    checked("fi_send", code)
}

/// Lets one message arrive in `buffer`.
pub(super) fn post_receive(
    objects: &Objects,
    buffer: &FabricBuffer,
    descriptor: *mut c_void,
    context: *mut c_void,
) -> Result<(), FabricError> {
    // SAFETY: as in `post_send`; only the group, which owns the buffer, sees it.
    let code = unsafe {
        let recv = (*(*objects.endpoint).msg).recv.ok_or_else(no_operation)?;
        let at = buffer.chunk().pointer().cast();
        recv(objects.endpoint, at, buffer.len(), descriptor, u64::MAX, context)
    };
    checked("fi_recv", code)
}

/// Sends bytes that the provider has copied when this returns.
pub(super) fn inject(objects: &Objects, to: u64, bytes: &[u8]) -> Result<(), FabricError> {
    // SAFETY: the endpoint is open; the bytes are read during the call only.
    let code = unsafe {
        let inject = (*(*objects.endpoint).msg).inject.ok_or_else(no_operation)?;
        inject(objects.endpoint, bytes.as_ptr().cast(), bytes.len(), to)
    };
    checked("fi_inject", code)
}

fn checked(call: &'static str, code: isize) -> Result<(), FabricError> {
    if code == -(sys::FI_EAGAIN as isize) {
        return Err(FabricError::Busy { what: "the provider's queue" });
    }
    check(call, code as c_int)
}
