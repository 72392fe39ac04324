//! The cache of one node: its lines, and one `match` over the requests.

mod boot_ids;
mod flusher;
mod hand_over;
mod lines;
mod list;
mod pace;
mod read;
mod refusals;
mod room;
mod write;
mod write_back;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use blockio::{Stripes, VolumeMap};
use futures::future::LocalBoxFuture;
use runtime::sync::KeyedLock;
use runtime::{Caller, Context};

use crate::hash;
use crate::protocol::{
    Cache, CacheStatus, Error, Forget, Read, ReadList, Reply, Request, Status, Write, WriteBack,
    WriteList, WriteZeros,
};
use crate::sieve::DiskReadCosts;
use boot_ids::BootIds;
use flusher::WriteBehindQueue;
use lines::Lines;
use pace::WriteThrottle;
use refusals::Refusals;

pub use boot_ids::HandedBootId;
pub use flusher::{WRITE_BACK_AGE, WRITE_BACK_INTERVAL};

/// What an operator may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of lines that one node may hold; less than one stripe counts as one.
    pub node_budget_bytes: usize,
}

impl Config {
    /// An equal share for each of the `nodes` of a machine that may hold `machine_budget_bytes` of
    /// lines.
    ///
    /// The machine's pool must be larger than its budget: transfers under way need buffers too.
    pub fn share(machine_budget_bytes: usize, nodes: u32) -> Self {
        Self { node_budget_bytes: machine_budget_bytes / nodes.max(1) as usize }
    }
}

/// The cache of one node (thesis section 2.4.1).
///
/// Reads and writes of bytes that are here never wait. What must wait, waits on its line only:
/// at most one read from the disk and one write-back are under way for each line.
pub struct Server {
    context: Context,
    map: VolumeMap,
    below: Rc<dyn Stripes>,
    lines: RefCell<Lines>,
    boot_ids: BootIds,
    /// Held while a line's missing bytes are read: readers of the same line share one read.
    filling: KeyedLock<u64>,
    /// Held while a change of a line waits: changes of a stripe are done in the order in which they
    /// came. One whose reply was lost is sent again, and must not be done last of all.
    changing: KeyedLock<u64>,
    /// Held while a line is written back, so that an older state never overtakes a newer one.
    writing_back: KeyedLock<u64>,
    /// The periodic write-back is under way.
    ticking: Cell<bool>,
    /// A write-back for want of clean lines is under way.
    draining: Cell<bool>,
    write_behind: RefCell<WriteBehindQueue>,
    refusals: Refusals,
    pace: WriteThrottle,
    counters: CacheCounters,
    /// Of reads of the disks.
    costs: RefCell<DiskReadCosts>,
}

#[derive(Debug, Default)]
struct CacheCounters {
    hits: Cell<u64>,
    misses: Cell<u64>,
    evictions: Cell<u64>,
    write_backs: Cell<u64>,
}

fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("cache::Server").field("context", &self.context).finish_non_exhaustive()
    }
}

impl Server {
    /// The cache of the node of `context`, with `below` as the disks. To be served with
    /// [`Context::serve`].
    pub fn new(
        context: Context,
        map: VolumeMap,
        config: Config,
        below: Rc<dyn Stripes>,
    ) -> Rc<Self> {
        let stripe_size = map.geometry().stripe_size;
        let lines_max = (config.node_budget_bytes / stripe_size as usize).max(1);
        Rc::new(Self {
            boot_ids: BootIds::new(context.clone(), map.clone()),
            context,
            map,
            below,
            lines: RefCell::new(Lines::new(stripe_size, lines_max)),
            filling: KeyedLock::default(),
            changing: KeyedLock::default(),
            writing_back: KeyedLock::default(),
            ticking: Cell::default(),
            draining: Cell::default(),
            write_behind: RefCell::default(),
            refusals: Refusals::default(),
            pace: WriteThrottle::default(),
            counters: CacheCounters::default(),
            costs: RefCell::default(),
        })
    }

    /// What the cache holds and has done.
    fn status(&self) -> CacheStatus {
        let lines = self.lines.borrow();
        CacheStatus {
            lines: lines.count() as u64,
            dirty_lines: lines.dirty_count() as u64,
            hits: self.counters.hits.get(),
            misses: self.counters.misses.get(),
            evictions: self.counters.evictions.get(),
            write_backs: self.counters.write_backs.get(),
        }
    }

    /// The bytes `offset..+length` of `stripe`, if the volume has them and this node caches them.
    fn range(&self, stripe: u64, offset: u32, length: u64) -> Result<Range<u32>, Error> {
        let end = u64::from(offset) + length;
        let is_ours =
            stripe < self.map.stripes() && hash::owner(&self.map, stripe) == self.context.node();
        if is_ours && end <= u64::from(self.map.geometry().stripe_size) {
            return Ok(offset..end as u32);
        }
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        Err(Error::OutOfRange { stripe, offset, length })
    }
}

impl runtime::Server<Cache> for Server {
    fn try_now(self: Rc<Self>, _: Caller, request: &Request) -> Option<Reply> {
        match request {
            Request::Read(request) => self.try_read_now(request).map(Reply::Read),
            Request::Write(request) => self.try_write_now(request).map(Reply::Write),
            Request::ReadList(request) => self.try_read_list_now(request).map(Reply::ReadList),
            Request::WriteList(request) => self.try_write_list_now(request).map(Reply::WriteList),
            Request::WriteZeros(_) | Request::WriteBack(_) => None,
            Request::Forget(request) => Some(Reply::Forget(self.forget(request))),
            Request::Status(_) => Some(Reply::Status(Ok(self.status()))),
        }
    }

    fn handle(self: Rc<Self>, caller: Caller, request: Request) -> LocalBoxFuture<'static, Reply> {
        request.dispatch(self, caller)
    }
}

runtime::handlers! { Server;
    Read => |server, _, request| server.read(request).await;
    Write => |server, _, request| server.write(request).await;
    WriteZeros => |server, _, request| server.write_zeros(request).await;
    WriteBack => |server, _, request| server.write_back(request).await;
    ReadList => |server, _, request| server.read_list(request).await;
    WriteList => |server, _, request| server.write_list(request).await;
    Forget => |server, _, request| server.forget(&request);
    Status => |server, _, _request| Ok(server.status());
}
