//! One endpoint: everything that a process does with one provider.

#![allow(unsafe_code, reason = "calls through the tables of a C library")]

use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::Duration;

use super::memory::FabricBuffer;
use super::objects::{Info, Objects, check, failed, no_operation};
use super::operations::{
    BufferSegment, OpenOperations, OperationGroup, PIECES_MAX, RemoteSegment, RmaOperation, inject,
    post_receive, post_send,
};
use super::options::{EndpointOptions, Limits, Provider};
use super::regions::{Exposure, RegionCache, RegionOwner};
use crate::FabricError;
use crate::sys::{self, fi_cq_data_entry};

/// Completions that are read in one call.
const READ_AT_ONCE: usize = 16;
/// How long a wait without anything to sleep on polls before it naps, and its longest nap.
const POLLS_BEFORE_NAP: u32 = 2000;
const NAP_MAX: Duration = Duration::from_micros(500);

/// A peer in the address vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerAddress(u64);

/// What an operation was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// A send: its buffer comes back.
    Send,
    /// A receive: its buffer comes back, as long as what arrived.
    Receive,
    /// Reads of remote memory.
    Read,
    /// Writes of remote memory. On TCP they need not be visible there yet.
    Write,
    /// A peer has written into memory here and sent this number along.
    Immediate(u64),
}

/// One completion.
#[derive(Debug)]
pub struct Completion {
    /// As given with the operation.
    pub cookie: u64,
    /// What it was.
    pub what: OperationKind,
    /// Bytes of a receive, or why it failed.
    pub result: Result<usize, FabricError>,
    /// The buffer that was given with it.
    pub buffer: Option<FabricBuffer>,
}

/// An endpoint of one provider, with its addresses, completions and registered memory.
pub struct Fabric {
    // Closed in the order of `drop`.
    objects: Objects,
    operations: OpenOperations,
    regions: RegionCache,
    limits: Limits,
    provider: Provider,
    /// In shared memory: the name of the file that stands for the endpoint.
    name: String,
    /// Some operation may have failed before it began.
    unposted: bool,
    _info: Info,
}

impl std::fmt::Debug for Fabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fabric")
            .field("name", &self.name)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Fabric {
    /// Opens an endpoint.
    pub fn open(options: &EndpointOptions) -> Result<Self, FabricError> {
        // Loaded on its own: its guard of signals is the same.
        sys::Library::get()?;
        sys::signals::kept(|| Self::open_unkept(options))
    }

    fn open_unkept(options: &EndpointOptions) -> Result<Self, FabricError> {
        let name = crate::shared_names::new_name();
        if options.provider == Provider::Shm {
            crate::shared_names::sweep();
        }
        let info = Info::find(options, &name)?;
        let mut limits = info.limits();
        if !limits.chooses_keys && info.key_size() < 6 {
            let cause = "its keys are too short to be secret".into();
            return Err(FabricError::NoProvider { provider: options.provider.name(), cause });
        }
        let objects = Objects::open(&info, options.operations)?;
        limits.can_wait = objects.wait_fd.is_some();
        limits.pieces = limits.pieces.min(PIECES_MAX);
        limits.remote_pieces = limits.remote_pieces.min(PIECES_MAX);
        Ok(Self {
            objects,
            // Shared memory does remote reads and writes while they are posted.
            operations: OpenOperations::new(options.operations, options.provider == Provider::Shm),
            regions: RegionCache::default(),
            limits,
            provider: options.provider,
            name,
            unposted: false,
            _info: info,
        })
    }

    /// Major and minor version of the library.
    pub fn library_version() -> Result<(u32, u32), FabricError> {
        Ok(sys::Library::get()?.version())
    }

    /// What the provider can do.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The provider.
    pub fn provider(&self) -> Provider {
        self.provider
    }

    /// The endpoint's own address: what peers insert.
    pub fn address(&self) -> Result<Vec<u8>, FabricError> {
        self.objects.name()
    }

    /// Adds a peer by its address.
    pub fn insert(&mut self, address: &[u8]) -> Result<PeerAddress, FabricError> {
        let mut padded = address.to_vec();
        // Providers read as many bytes as their addresses have: a short one must not end early.
        padded.resize(address.len().max(256), 0);
        let mut peer = u64::MAX;
        // SAFETY: the vector is open; the address outlives the call, and `peer` takes one number.
        let count = unsafe {
            let addresses = self.objects.addresses;
            let insert = (*(*addresses).ops).insert.ok_or_else(no_operation)?;
            insert(addresses, padded.as_ptr().cast(), 1, &raw mut peer, 0, null_mut())
        };
        check("fi_av_insert", count)?;
        if count != 1 || peer == u64::MAX {
            let cause = "the provider does not take it".into();
            return Err(FabricError::Malformed { what: "the address of a peer", cause });
        }
        Ok(PeerAddress(peer))
    }

    /// Forgets a peer. Operations that are still open keep their buffers until they complete.
    ///
    /// `net` of 1.17 crashes in a later poll if the peer was killed amid transfers, or never
    /// completes them (both seen): there address and buffers stay until the endpoint is closed.
    pub fn remove(&mut self, peer: PeerAddress) -> Result<(), FabricError> {
        if self.provider == Provider::Net && sys::Library::get()?.version() <= (1, 17) {
            return Ok(());
        }
        let mut number = peer.0;
        // SAFETY: as in `insert`.
        let code = unsafe {
            let addresses = self.objects.addresses;
            let remove = (*(*addresses).ops).remove.ok_or_else(no_operation)?;
            remove(addresses, &raw mut number, 1, 0)
        };
        check("fi_av_remove", code)
    }

    /// Lets one message of at most the buffer's length arrive in `buffer`.
    pub fn receive(
        &mut self,
        buffer: FabricBuffer,
        cookie: u64,
    ) -> Result<(), (FabricError, FabricBuffer)> {
        self.post(OperationKind::Receive, buffer, cookie, |objects, buffer, descriptor, context| {
            post_receive(objects, buffer, descriptor, context)
        })
    }

    /// Sends the bytes of `buffer`.
    pub fn send(
        &mut self,
        to: PeerAddress,
        buffer: FabricBuffer,
        cookie: u64,
    ) -> Result<(), (FabricError, FabricBuffer)> {
        self.post(OperationKind::Send, buffer, cookie, |objects, buffer, descriptor, context| {
            post_send(objects, to.0, buffer, descriptor, context)
        })
    }

    fn post(
        &mut self,
        what: OperationKind,
        buffer: FabricBuffer,
        cookie: u64,
        call: impl Fn(
            &Objects,
            &FabricBuffer,
            *mut std::ffi::c_void,
            *mut std::ffi::c_void,
        ) -> Result<(), FabricError>,
    ) -> Result<(), (FabricError, FabricBuffer)> {
        if buffer.len() > self.limits.message {
            return Err((too_long(buffer.len(), self.limits.message), buffer));
        }
        let descriptor = match self.regions.descriptor(&self.objects, &self.limits, &buffer) {
            Ok(descriptor) => descriptor,
            Err(error) => return Err((error, buffer)),
        };
        let Some((context, index)) = self.operations.context(0) else {
            return Err((FabricError::Busy { what: "the table of operations" }, buffer));
        };
        let result = call(&self.objects, &buffer, descriptor, context);
        if let Err(error) = result {
            self.operations.give_back(index);
            return Err((error, buffer));
        }
        // The buffer now belongs to the operation: it has no other user until it has completed.
        self.operations.attach(index, OperationGroup::of_one(cookie, what, buffer));
        Ok(())
    }

    /// Sends at most [`Limits::inject`] bytes, which are copied before this returns. Nothing
    /// completes.
    pub fn inject(&mut self, to: PeerAddress, bytes: &[u8]) -> Result<(), FabricError> {
        if bytes.len() > self.limits.inject {
            return Err(too_long(bytes.len(), self.limits.inject));
        }
        inject(&self.objects, to.0, bytes)
    }

    /// Reads the remote pieces one after the other into `into`, from byte `at` on. They complete
    /// as one.
    pub fn read(
        &mut self,
        from: PeerAddress,
        remote: &[RemoteSegment],
        into: &mut FabricBuffer,
        at: usize,
        cookie: u64,
    ) -> Result<(), FabricError> {
        let total: u64 = remote.iter().map(|piece| piece.length).sum();
        assert!(at as u64 + total <= into.len() as u64, "a read ends within its buffer");
        let descriptor = self.regions.descriptor(&self.objects, &self.limits, into)?;
        let mut posts = Vec::new();
        let mut next = into.chunk().pointer().wrapping_add(at);
        for pieces in remote.chunks(self.limits.remote_pieces) {
            let mut post = RmaOperation::new(from.0);
            let length: u64 = pieces.iter().map(|piece| piece.length).sum();
            self.fits(length as usize)?;
            post.add_local(next, length as usize, descriptor);
            for piece in pieces {
                post.add_remote(piece.address, piece.length as usize, piece.key);
            }
            next = next.wrapping_add(length as usize);
            posts.push(post);
        }
        self.begin(OperationKind::Read, posts, cookie, |holds| holds.push(into.hold_to_write()))
    }

    /// Writes the local pieces one after the other to `remote`, and sends `immediate` along with
    /// the last byte. They complete as one.
    ///
    /// More pieces than [`Limits::pieces`] are several operations, and the number comes with the
    /// last: only where the provider keeps their order it tells of all of them.
    pub fn write(
        &mut self,
        to: PeerAddress,
        local: &[BufferSegment<'_>],
        remote: RemoteSegment,
        immediate: Option<u64>,
        cookie: u64,
    ) -> Result<(), FabricError> {
        let total: usize = local.iter().map(|piece| piece.length).sum();
        assert!(total as u64 <= remote.length, "a write ends within its target");
        let mut posts = Vec::new();
        let mut next = remote.address;
        for pieces in local.chunks(self.limits.pieces) {
            let mut post = RmaOperation::new(to.0);
            for piece in pieces {
                let end = piece.at + piece.length;
                assert!(end <= piece.buffer.len(), "a piece lies within its buffer");
                let descriptor =
                    self.regions.descriptor(&self.objects, &self.limits, piece.buffer)?;
                let at = piece.buffer.chunk().pointer().wrapping_add(piece.at);
                post.add_local(at, piece.length, descriptor);
            }
            let length: usize = pieces.iter().map(|piece| piece.length).sum();
            self.fits(length)?;
            post.add_remote(next, length, remote.key);
            next += length as u64;
            posts.push(post);
        }
        if let Some(last) = posts.last_mut() {
            last.immediate = immediate;
        }
        self.begin(OperationKind::Write, posts, cookie, |holds| {
            holds.extend(local.iter().map(|piece| piece.buffer.hold_to_read()));
        })
    }

    fn fits(&self, length: usize) -> Result<(), FabricError> {
        let limit = self.limits.message;
        if length > limit { Err(too_long(length, limit)) } else { Ok(()) }
    }

    fn begin(
        &mut self,
        what: OperationKind,
        mut posts: Vec<RmaOperation>,
        cookie: u64,
        hold: impl FnOnce(&mut Vec<super::memory::Hold>),
    ) -> Result<(), FabricError> {
        assert!(!posts.is_empty(), "an operation moves something");
        if !self.operations.has_room(posts.len()) {
            return Err(FabricError::Busy { what: "the table of operations" });
        }
        if let Some(last) = posts.last_mut() {
            last.more = false;
        }
        let mut group = OperationGroup::empty(cookie, what, posts.len() as u32);
        hold(&mut group.holds);
        let id = self.operations.begin(group);
        self.unposted |= self.operations.post_all(&self.objects, id, posts);
        Ok(())
    }

    /// Lets the peer that `owner` stands for read `buffer` until [`Fabric::conceal`].
    pub fn expose_to_read(
        &mut self,
        owner: RegionOwner,
        buffer: &FabricBuffer,
    ) -> Result<Exposure, FabricError> {
        self.regions.expose_to_read(&self.objects, &self.limits, owner, buffer)
    }

    /// Lets the peer that `owner` stands for write `buffer` until [`Fabric::conceal`].
    pub fn expose_to_write(
        &mut self,
        owner: RegionOwner,
        buffer: &mut FabricBuffer,
    ) -> Result<Exposure, FabricError> {
        self.regions.expose_to_write(&self.objects, &self.limits, owner, buffer)
    }

    /// Ends an exposure that the peer said to be done with.
    pub fn conceal(&mut self, exposure: Exposure) {
        self.regions.conceal(exposure);
    }

    /// Closes all regions of `owner`: when it is dead, or its epoch over. Says how many there were.
    pub fn close_regions(&mut self, owner: RegionOwner) -> usize {
        self.regions.close_owner(owner)
    }

    /// How often memory was registered, and how often it already was.
    pub fn registrations(&self) -> (u64, u64) {
        (self.regions.registrations, self.regions.hits)
    }

    /// Operations that have not completed, receives included.
    pub fn open_operations(&self) -> usize {
        self.operations.open()
    }

    /// Takes what has completed, at most some at a time, and lets the provider make progress.
    pub fn poll(&mut self, out: &mut Vec<Completion>) -> Result<(), FabricError> {
        // SAFETY: entries are plain numbers and pointers, for which zero is a value.
        let mut entries: [fi_cq_data_entry; READ_AT_ONCE] = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is open; there is room for as many entries as are asked for.
        let count = unsafe {
            let queue = self.objects.completions;
            let read = (*(*queue).ops).read.ok_or_else(no_operation)?;
            read(queue, entries.as_mut_ptr().cast(), READ_AT_ONCE)
        };
        if count == -(sys::FI_EAVAIL as isize) {
            self.take_error(out)?;
        } else if count < 0 && count != -(sys::FI_EAGAIN as isize) {
            return Err(failed("fi_cq_read", count as c_int));
        }
        for entry in &entries[..usize::try_from(count).unwrap_or(0)] {
            self.take(entry, out);
        }
        self.unposted |= self.operations.post_backlog(&self.objects);
        if std::mem::take(&mut self.unposted) {
            self.operations.take_unposted(out);
        }
        Ok(())
    }

    fn take(&mut self, entry: &fi_cq_data_entry, out: &mut Vec<Completion>) {
        let by_peer = entry.flags & (sys::FI_REMOTE_WRITE | sys::FI_REMOTE_CQ_DATA);
        let ours = entry.flags & (sys::FI_WRITE | sys::FI_READ | sys::FI_SEND | sys::FI_RECV);
        if by_peer != 0 && ours == 0 {
            let what = OperationKind::Immediate(entry.data);
            out.push(Completion { cookie: 0, what, result: Ok(0), buffer: None });
            return;
        }
        out.extend(self.operations.complete(entry.op_context, Ok(entry.len)));
    }

    fn take_error(&mut self, out: &mut Vec<Completion>) -> Result<(), FabricError> {
        // SAFETY: as in `poll`; the provider's own data is not asked for (its size is zero).
        let mut entry: sys::fi_cq_err_entry = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is open; one entry is filled.
        let count = unsafe {
            let queue = self.objects.completions;
            let readerr = (*(*queue).ops).readerr.ok_or_else(no_operation)?;
            readerr(queue, &raw mut entry, 0)
        };
        if count <= 0 {
            return Ok(());
        }
        // Some providers of 1.17 give the number with its sign.
        let error = failed("an operation", -entry.err.abs());
        out.extend(self.operations.complete(entry.op_context, Err(error)));
        Ok(())
    }

    /// What gets readable when something completes, if the provider has it; ask
    /// [`Fabric::may_sleep`] before.
    pub fn wait_fd(&self) -> Option<c_int> {
        self.objects.wait_fd
    }

    /// A descriptor of its own of what [`Fabric::wait_fd`] names, to sleep on beside others.
    pub fn waitable(&self) -> Option<std::os::fd::OwnedFd> {
        let fd = self.objects.wait_fd?;
        // SAFETY: libfabric keeps it open as long as the queue, which outlives this call.
        let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
        borrowed.try_clone_to_owned().ok()
    }

    /// Whether nothing has completed already, so that one may sleep on [`Fabric::wait_fd`].
    pub fn may_sleep(&self) -> bool {
        if self.objects.wait_fd.is_none() {
            return false;
        }
        // SAFETY: the fabric and its queue are open.
        unsafe {
            let fabric = self.objects.fabric;
            let mut object = &raw mut (*self.objects.completions).fid;
            (*(*fabric).ops).trywait.is_some_and(|trywait| trywait(fabric, &raw mut object, 1) == 0)
        }
    }

    /// Sleeps until something may have completed, at most for `at_most`. A provider that one cannot
    /// sleep on is polled: call it in a loop with [`Fabric::poll`], `idle` counting the polls in
    /// vain.
    pub fn wait(&self, idle: u32, at_most: Duration) {
        let Some(fd) = self.objects.wait_fd else {
            if idle < POLLS_BEFORE_NAP {
                std::hint::spin_loop();
            } else {
                nap(at_most.min(NAP_MAX));
            }
            return;
        };
        if !self.may_sleep() {
            return;
        }
        let mut waiting = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let milliseconds = at_most.as_millis().min(i32::MAX as u128) as c_int;
        // SAFETY: one record, as is said; it lives for the call.
        unsafe { libc::poll(&raw mut waiting, 1, milliseconds) };
    }
}

#[allow(clippy::disallowed_methods, reason = "the machine itself gives the time")]
fn nap(duration: Duration) {
    std::thread::sleep(duration);
}

fn too_long(length: usize, limit: usize) -> FabricError {
    FabricError::TooLong { what: "an operation", length, limit }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        if self.limits.binds_regions {
            self.regions.close_all();
        }
        self.objects.close_endpoint();
        self.operations.clear();
        self.regions.close_all();
    }
}
