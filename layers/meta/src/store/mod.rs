//! The metadata store: one ordered map of keys to values per logical node, on the logical disk.
//!
//! # Guarantees
//!
//! - A batch is applied whole or not at all, also across a crash; once [`Store::durable`] has
//!   answered for it, it survives any crash.
//! - Reads see every batch committed before them, durable or not.
//! - No block that anything committed refers to is written again, and a block is handed out again
//!   only once the batch that freed it is durable.
//! - What a disk returns is checked against checksums and identity before it is believed; the log
//!   and each page have two copies on different disks, the root up to three.
//! - A full volume still takes batches that free space, and checkpoints.
//!
//! # Interface
//!
//! | call | what for |
//! | --- | --- |
//! | [`Store::format`], [`Store::mount`] | the store of one node |
//! | [`Store::commit`] | applies a [`Batch`]: reads see it from now on |
//! | [`Store::durable`], [`Store::flushed`], [`Store::checkpoint`] | wait until it is durable |
//! | [`Store::get`], [`Store::scan`], and `try_..._now` | read keys |
//! | [`Store::space`] | [`StoreSpace`]: blocks and allocation groups |
//! | [`Batch::after`], [`Store::set_flush_dependency`] | dependencies on records of other nodes |
//! | [`Store::audit`], [`StoreImage`] | read everything, to check it |
//! | [`PageCopies::of`] | looks at both copies of pages |
//!
//! # Depends on
//!
//! [`blockio::Stripes`], one logical disk; time, tasks and random numbers of the node's context;
//! and the leaf modules [`memory`](crate::memory) and [`operations`](crate::operations). It knows
//! neither files nor requests, and nothing of the stores of other nodes.
//!
//! # How it works
//!
//! ```text
//! commit --> overlay (in memory, seen at once)
//!        \-> log buffer --group commit--> segments, two copies
//! checkpoint: overlay --merge--> fresh tree pages, space map --> root slot; log and old pages free
//! mount:      newest root --> space map, log replayed into the overlay --> checkpoint
//! ```
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `batch.rs` | batches, and the records they become |
//! | `state.rs` | all that changes, and the rules by which it may |
//! | `limits.rs` | how large each part may become |
//! | `allocate.rs` | the interface of allocation |
//! | `space.rs`, `bits.rs`, `groups.rs` | the block allocator and its groups |
//! | `log.rs`, `log/` | segments, entries, replay |
//! | `writer.rs` | group commit |
//! | `blocked_records.rs` | records that wait for records of other nodes |
//! | `recent.rs` | what records change that are not durable yet |
//! | `page.rs`, `page_cache.rs` | pages in bytes and in memory |
//! | `bad_pages.rs`, `page_copies.rs` | pages that lack a good copy, and get one |
//! | `tree.rs`, `rewrite.rs` | reading the tree; merging changes into it |
//! | `overlay.rs` | changes not yet in the tree |
//! | `checkpoint.rs`, `map.rs`, `root.rs` | a new root and what it names |
//! | `emptying.rs` | pages that move out of groups that shall be given away |
//! | `loss.rs` | whether all has a copy elsewhere than on one disk |
//! | `open.rs` | format and mount |
//! | `to_read.rs` | the mount of a store that is only read |
//! | `audit.rs`, `image.rs` | reading everything, to check it: of a running store, of one at rest |
//! | `scrub.rs` | comparing pages and log of a running store with their checksums |
//! | `device.rs` | the logical disk, by block number |
//!
//! The bytes on disk are specified in `docs/format.md`.

mod allocate;
mod audit;
mod bad_pages;
mod batch;
mod bits;
mod blocked_records;
mod checkpoint;
mod device;
mod emptying;
mod error;
mod groups;
mod image;
mod limits;
mod log;
mod loss;
mod map;
mod open;
mod overlay;
mod page;
mod page_cache;
mod page_copies;
mod recent;
mod rewrite;
mod root;
mod scrub;
mod space;
mod state;
mod to_read;
mod tree;
mod writer;

use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Bound;
use std::rc::{Rc, Weak};
use std::time::Duration;

use bytes::Bytes;
use runtime::Context;
use runtime::sync::Event;

pub use self::allocate::{SpaceStatus, StoreSpace};
pub use self::audit::Audit;
pub use self::bad_pages::BadCopy;
pub use self::batch::{BATCH_BYTES_MAX, Batch};
pub use self::blocked_records::FlushDependency;
pub(crate) use self::device::WritePauses;
pub use self::error::{StoreError, StoreResult};
pub use self::groups::{GroupLayout, Run};
pub use self::image::{Examination, ImagePart, ImageSpace, ImageWalk, StoreImage};
pub use self::limits::{
    LOG_BYTES_CHECKPOINT, LOG_BYTES_MAX, kept_blocks, smallest_share, stripes_min, suitable_nodes,
};
pub use self::loss::LossObstacle;
pub use self::open::ALONE_BYTES;
pub(crate) use self::open::has_at_rest;
pub use self::page::{FORMAT_VERSION, KEY_BYTES_MAX, VALUE_BYTES_MAX};
pub use self::page_copies::{CopiesReport, PageCopies};
pub use self::root::roots_survive;
pub(crate) use self::scrub::{ScrubbedKeys, scrub_keys, scrub_log, scrub_map, scrub_roots};
pub use self::space::MoveReason;
pub(crate) use self::space::{CopyWishes, StripeKind};
pub use self::state::PENDING_BYTES_MAX;
pub(crate) use self::to_read::{mount_to_read, refuse_changes};

use self::overlay::{Changes, Merged};
use self::page::TreePage;
use self::page_copies::CopySearch;
use self::state::{ChangeMode, CommitRefusal, NUMBERS_AHEAD, StoreState};
use self::tree::TreeReader;

/// A batch that no caller waits for is written after this time.
pub const LOG_DELAY: Duration = Duration::from_secs(1);

/// Attempts to write again what was written and lost before it was durable.
const LOSSES_MAX: u32 = 16;

/// The position of a batch in the order of commits: its log sequence number (LSN).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(u64);

impl Position {
    /// Its number (LSN) for other nodes: counted from 1, and 0 for what was durable from the start.
    pub fn number(self) -> u64 {
        self.0
    }

    /// The position with that number.
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }
}

/// The store of one logical node. One thread; calls interleave at awaits only.
pub struct Store {
    me: Weak<Self>,
    ctx: Context,
    pages: TreeReader,
    state: RefCell<StoreState>,
    /// A group commit has ended.
    written: Event,
    /// A checkpoint has ended.
    checkpointed: Event,
    /// How to make records of other nodes durable.
    flush_dependency: RefCell<Option<FlushDependency>>,
    copying: CopySearch,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("owner", &self.pages.owner).finish_non_exhaustive()
    }
}

impl Store {
    fn new(ctx: Context, pages: TreeReader, state: StoreState) -> Rc<Self> {
        let store = Rc::new_cyclic(|me: &Weak<Self>| Self {
            me: me.clone(),
            ctx,
            pages,
            state: RefCell::new(state),
            written: Event::default(),
            checkpointed: Event::default(),
            flush_dependency: RefCell::default(),
            copying: CopySearch::default(),
        });
        let me = store.me.clone();
        store.pages.device.pauses.on_begin(Box::new(move || {
            if let Some(store) = me.upgrade() {
                store.written.tell();
                store.checkpointed.tell();
            }
        }));
        store
    }

    /// The value of `key`.
    pub async fn get(&self, key: &[u8]) -> StoreResult<Option<Bytes>> {
        loop {
            let root = {
                let state = self.state.borrow();
                if let Some(value) = state.changed(key) {
                    return Ok(value.clone());
                }
                state.root
            };
            match self.pages.find(root.tree, key).await {
                // The pages of that tree were given back while they were read.
                Err(_) if self.generation() != root.generation => {}
                answer => return answer,
            }
        }
    }

    /// As [`get`](Self::get), if nothing has to be read from the disk; else `None`.
    pub fn try_get_now(&self, key: &[u8]) -> Option<StoreResult<Option<Bytes>>> {
        let state = self.state.borrow();
        match state.changed(key) {
            Some(value) => Some(Ok(value.clone())),
            None => self.pages.try_find_now(state.root.tree, key),
        }
    }

    /// Sets how to make [dependencies](Batch::after) durable; no batch with any may be committed
    /// before.
    pub fn set_flush_dependency(&self, flush: FlushDependency) {
        *self.flush_dependency.borrow_mut() = Some(flush);
    }

    /// The position of the last change of the keys from `from` on and before `to`, deletions too;
    /// the start, which is durable, if nothing is in flight.
    pub fn last_change(&self, from: &[u8], to: &[u8]) -> Position {
        Position(self.state.borrow().recent.last_change(from, to))
    }

    /// Does everything up to `position` survive a crash?
    pub fn is_durable(&self, position: Position) -> bool {
        self.state.borrow().log.durable >= position.0
    }

    /// Does everything survive a crash?
    pub fn is_settled(&self) -> bool {
        let state = self.state.borrow();
        state.log.durable >= state.log.last
    }

    /// Resolves once the changes of all keys from `from` on and before `to`, deletions too, survive
    /// a crash. Changes that are made later do not matter. At once if nothing is in flight.
    pub async fn flushed(&self, from: &[u8], to: &[u8]) -> StoreResult<()> {
        self.durable(self.last_change(from, to)).await
    }

    /// Up to `limit` keys after `from` and before `to`, with their values, in order.
    ///
    /// What is committed while the scan runs may be seen or not, but a batch never by halves within
    /// one leaf of the tree, and no key twice.
    pub async fn scan(
        &self,
        from: Bound<&[u8]>,
        to: &[u8],
        limit: usize,
    ) -> StoreResult<Vec<(Bytes, Bytes)>> {
        let mut found = Vec::new();
        let mut from = from.map(Bytes::copy_from_slice);
        while found.len() < limit {
            let root = self.state.borrow().root;
            let leaf = match &from {
                Bound::Included(key) | Bound::Excluded(key) => {
                    self.pages.leaf(root.tree, key).await
                }
                Bound::Unbounded => self.pages.leaf(root.tree, &[]).await,
            };
            // With another root part of the overlay is gone: it is in the new tree.
            if self.generation() != root.generation {
                continue;
            }
            let (leaf, end) = leaf?.unzip();
            let end = end.flatten().filter(|end| &end[..] < to);
            let part_to = end.as_ref().map_or(to, |end| &end[..]);
            let from_slice = from.as_ref().map(|key| &key[..]);
            self.merge(leaf.as_deref(), from_slice, part_to, limit, &mut found);
            let Some(end) = end else { break };
            from = Bound::Included(end);
        }
        Ok(found)
    }

    /// As [`scan`](Self::scan), if nothing has to be read from the disk; else `None`.
    pub fn try_scan_now(
        &self,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Option<StoreResult<Vec<(Bytes, Bytes)>>> {
        let tree = self.state.borrow().root.tree;
        let mut found = Vec::new();
        let mut from = Cow::Borrowed(from);
        while found.len() < limit {
            let (leaf, end) = match self.pages.try_leaf_now(tree, &from)? {
                Ok(leaf) => leaf.unzip(),
                Err(error) => return Some(Err(error)),
            };
            let end = end.flatten().filter(|end| &end[..] < to);
            let part_to = end.as_ref().map_or(to, |end| &end[..]);
            self.merge(leaf.as_deref(), Bound::Included(&from), part_to, limit, &mut found);
            let Some(end) = end else { break };
            from = Cow::Owned(end.into());
        }
        Some(Ok(found))
    }

    /// Merges the overlays and one leaf of the tree.
    fn merge(
        &self,
        leaf: Option<&TreePage>,
        from: Bound<&[u8]>,
        to: &[u8],
        limit: usize,
        found: &mut Vec<(Bytes, Bytes)>,
    ) {
        let state = self.state.borrow();
        let mut lists: Vec<Changes<'_>> = vec![Box::new(state.active.range(from, to))];
        if let Some(frozen) = &state.frozen {
            lists.push(Box::new(frozen.range(from, to)));
        }
        if let Some(leaf) = leaf {
            lists.push(Box::new(leaf.range(from, to)));
        }
        let missing = limit - found.len();
        found.extend(Merged::new(lists).take(missing));
    }

    /// Evicts pages beyond the node's share of the memory, and starts a checkpoint if changes take
    /// too much. Called regularly.
    pub(crate) fn give_back(&self) {
        self.pages.shed();
        if self.pages.bad.borrow().are_new() {
            self.start_checkpoint();
        }
        if let Some(me) = self.me.upgrade() {
            PageCopies::of(&me).keep_whole();
        }
        self.checkpoint_if_due();
    }

    fn generation(&self) -> u64 {
        self.state.borrow().root.generation
    }

    /// Applies a batch: reads see it from now on, [`durable`](Self::durable) makes it last.
    ///
    /// An error means that nothing was changed. With [`StoreError::Busy`] the remedy has been
    /// started. While a disk takes no writes all batches are refused.
    pub fn commit(&self, batch: Batch) -> StoreResult<Position> {
        self.pages.device.pauses.check()?;
        let changes = self.state.borrow().changes;
        match changes {
            ChangeMode::Logged => {}
            ChangeMode::InMemory => {
                let mut state = self.state.borrow_mut();
                state.apply_in_memory(batch);
                // It will never be more durable than this.
                return Ok(Position(state.log.durable));
            }
            ChangeMode::Refused => return Err(StoreError::ReadOnly),
        }
        let admitted = self.state.borrow().admit(&batch);
        match admitted {
            Ok(()) => {
                let position = self.state.borrow_mut().apply(batch);
                self.write_later();
                Ok(Position(position))
            }
            Err(CommitRefusal::LogBehind) => {
                self.write_now();
                Err(StoreError::Busy)
            }
            Err(CommitRefusal::TreeBehind) => {
                self.write_now();
                self.start_checkpoint();
                Err(StoreError::Busy)
            }
            Err(CommitRefusal::Error(error)) => Err(error),
        }
    }

    /// Bytes of one batch, at most (see [`Batch::length_bytes`]): [`BATCH_BYTES_MAX`], less with
    /// stripes below 64 KiB.
    pub fn batch_bytes_max(&self) -> usize {
        limits::batch_bytes_max(&self.pages.device.geometry)
    }

    /// Its space: the interface of allocation.
    pub fn space(&self) -> StoreSpace<'_> {
        StoreSpace(self)
    }

    /// A number that was never given before on this node, from 16 on.
    ///
    /// A number that no durable batch has named may be given again after a crash only if more than
    /// a thousand were given without any commit.
    pub fn next_number(&self) -> u64 {
        let (number, unrecorded) = {
            let mut state = self.state.borrow_mut();
            state.counter += 1;
            (state.counter - 1, state.counter - state.recorded)
        };
        if unrecorded >= NUMBERS_AHEAD / 2 {
            // Every record holds the counter. If this one is refused, the next will do.
            let _ = self.commit(Batch::new());
        }
        number
    }

    /// Keys in the tree of the newest root (changes since then are not counted).
    pub fn keys(&self) -> u64 {
        self.state.borrow().root.tree.keys
    }
}
