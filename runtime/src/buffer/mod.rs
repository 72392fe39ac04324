//! Buffers that the network, the cache and the disks share (Wu's Unifier).
//!
//! A [`Buffer`] is aligned for direct disk transfers, has one owner who may write, and becomes
//! shared and read-only as [`Bytes`]. A [`SharedBuffer`] hands out slices without a copy and is
//! copied only for a write while slices are still out.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;

use self::slabs::{SLAB_BYTES, SlabMemory, SlabSlot, Slabs};

mod slabs;

/// Every buffer starts at a multiple of this, as direct disk transfers ask.
pub const ALIGNMENT: usize = 4096;

/// Of the buffers that are not cut from slabs longer ones are not kept: they come in all lengths,
/// and the allocator cuts what comes back to measure.
const KEPT_LENGTH_MAX: usize = 128 << 10;

/// What [`Pool::take_spare`] leaves to others, unless the limit is small.
pub const LEFT_BYTES: usize = 64 << 20;

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct MemoryPage([u8; ALIGNMENT]);

/// A pool of aligned buffers with a limit in bytes. Cheap to clone; may be used by all threads.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<PoolInner>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("limit_bytes", &self.inner.limit_bytes)
            .field("used_bytes", &self.used_bytes())
            .finish_non_exhaustive()
    }
}

struct PoolInner {
    limit_bytes: usize,
    used_bytes: AtomicUsize,
    copied_bytes: AtomicU64,
    bounced_bytes: AtomicU64,
    kept: Mutex<FreeMemory>,
    /// Buffers that were lent, by where they begin.
    lent: Mutex<BTreeMap<usize, Weak<Buffer>>>,
}

/// Where the bytes of a buffer are.
enum BufferMemory {
    /// Of the allocator.
    Own(Box<[MemoryPage]>),
    /// Of a slab of the pool.
    SlabSlot(SlabSlot),
}

impl BufferMemory {
    fn pages(&self) -> &[MemoryPage] {
        match self {
            Self::Own(pages) => pages,
            Self::SlabSlot(slot) => slot.pages(),
        }
    }

    fn pages_mut(&mut self) -> &mut [MemoryPage] {
        match self {
            Self::Own(pages) => pages,
            Self::SlabSlot(slot) => slot.pages_mut(),
        }
    }
}

/// Unused memory. To use it again saves the page faults of new memory, which cost more than to fill
/// it.
#[derive(Default)]
struct FreeMemory {
    /// Memory of the allocator, by its length in pages.
    by_pages: BTreeMap<usize, Vec<Box<[MemoryPage]>>>,
    bytes: usize,
    slabs: Slabs,
}

impl FreeMemory {
    fn bytes(&self) -> usize {
        self.bytes + self.slabs.kept_bytes()
    }

    fn take(&mut self, pages: usize) -> Option<BufferMemory> {
        if let Some(slot) = self.slabs.take_warm(pages) {
            return Some(BufferMemory::SlabSlot(slot));
        }
        let taken = self.by_pages.get_mut(&pages)?.pop()?;
        self.bytes -= pages * ALIGNMENT;
        Some(BufferMemory::Own(taken))
    }

    fn keep(&mut self, memory: BufferMemory) {
        match memory {
            BufferMemory::SlabSlot(slot) => self.slabs.put_back(slot),
            BufferMemory::Own(pages) => {
                self.bytes += pages.len() * ALIGNMENT;
                self.by_pages.entry(pages.len()).or_default().push(pages);
            }
        }
    }

    /// Frees the largest until at most `bytes_max` are kept.
    fn shrink(&mut self, bytes_max: usize) {
        while self.bytes() > bytes_max {
            let Some(mut largest) = self.by_pages.last_entry() else { break };
            match largest.get_mut().pop() {
                Some(pages) => self.bytes -= pages.len() * ALIGNMENT,
                None => drop(largest.remove()),
            }
        }
        self.slabs.shrink(bytes_max.saturating_sub(self.bytes));
    }
}

impl Pool {
    /// A pool that hands out at most `limit_bytes` at a time.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            inner: Arc::new(PoolInner {
                limit_bytes,
                used_bytes: AtomicUsize::new(0),
                copied_bytes: AtomicU64::new(0),
                bounced_bytes: AtomicU64::new(0),
                kept: Mutex::default(),
                lent: Mutex::default(),
            }),
        }
    }

    /// A buffer of `length` bytes with undefined (but initialised) content; `None` if the limit is
    /// reached: the caller answers `Busy`, or waits.
    pub fn take(&self, length: usize) -> Option<Buffer> {
        let size = length.next_multiple_of(ALIGNMENT);
        let limit = self.inner.limit_bytes;
        self.inner
            .used_bytes
            .fetch_update(Relaxed, Relaxed, |used| {
                Some(used + size).filter(|&after| after <= limit)
            })
            .ok()?;
        Some(self.counted(length))
    }

    /// As [`take`](Self::take), for what can be done without: the limit must leave a quarter of it,
    /// or [`LEFT_BYTES`], to others.
    pub fn take_spare(&self, length: usize) -> Option<Buffer> {
        let limit = self.inner.limit_bytes;
        let left = limit.checked_sub(self.used_bytes() + length.next_multiple_of(ALIGNMENT))?;
        (left >= LEFT_BYTES.min(limit / 4)).then(|| self.take(length)).flatten()
    }

    /// A buffer of `length` bytes, also if the limit is reached. For what a transfer that has begun
    /// cannot do without: the number of transfers is the limit.
    pub fn take_beyond(&self, length: usize) -> Buffer {
        self.inner.used_bytes.fetch_add(length.next_multiple_of(ALIGNMENT), Relaxed);
        self.counted(length)
    }

    /// A buffer whose pages are counted as used already.
    fn counted(&self, length: usize) -> Buffer {
        let pages = length.div_ceil(ALIGNMENT);
        let kept = self.kept().take(pages);
        let found = kept.or_else(|| self.take_new(pages).map(BufferMemory::SlabSlot));
        let is_new = found.is_none();
        let memory = Some(found.unwrap_or_else(|| BufferMemory::Own(new_pages(pages))));
        Buffer { memory, length, is_new, pool: self.clone() }
    }

    /// New memory of a slab, if buffers of this many pages are cut from one.
    fn take_new(&self, pages: usize) -> Option<SlabSlot> {
        let mut kept = self.kept();
        let left = self.left_for(&mut kept);
        if !Slabs::have(pages) {
            return None;
        }
        if let Some(bare) = kept.slabs.take_bare(pages) {
            return Some(bare);
        }
        drop(kept);
        if left + pages * ALIGNMENT < SLAB_BYTES {
            return None;
        }
        let ground = SlabMemory::find()?;
        let mut kept = self.kept();
        let slot = kept.slabs.take_new(ground, pages);
        // Others may have done the same.
        self.left_for(&mut kept);
        slot
    }

    /// Has the host find memory now for buffers of `length` bytes, `bytes` of it together at most,
    /// so that their first user does not wait for page faults. Nothing happens where the pool has
    /// no slabs for this length.
    pub fn prefault(&self, length: usize, bytes: usize) {
        let pages = length.div_ceil(ALIGNMENT);
        if !Slabs::have(pages) {
            return;
        }
        for _ in 0..bytes / SLAB_BYTES {
            if self.left_for(&mut self.kept()) < SLAB_BYTES {
                return;
            }
            let Some(ground) = SlabMemory::find() else { return };
            self.kept().slabs.keep_new(ground, pages);
        }
    }

    /// Bytes of new memory that the limit leaves beside what is used and kept; what is kept makes
    /// room for what is used.
    fn left_for(&self, kept: &mut FreeMemory) -> usize {
        let left = self.inner.limit_bytes.saturating_sub(self.used_bytes());
        kept.shrink(left);
        left.saturating_sub(kept.bytes())
    }

    /// Bytes in use, in whole pages.
    pub fn used_bytes(&self) -> usize {
        self.inner.used_bytes.load(Relaxed)
    }

    /// Bytes that may be in use.
    pub fn limit_bytes(&self) -> usize {
        self.inner.limit_bytes
    }

    /// Bytes that were copied between buffers so far, by those who count (see
    /// [`count_copy`](Self::count_copy)).
    pub fn copied_bytes(&self) -> u64 {
        self.inner.copied_bytes.load(Relaxed)
    }

    /// Adds to the count of copied bytes: each copy of bulk data in the layers is counted here, so
    /// that a test can prove how many there are.
    pub fn count_copy(&self, bytes: usize) {
        self.inner.copied_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Bytes that had to be copied into an aligned buffer on their way to a disk.
    pub fn bounced_bytes(&self) -> u64 {
        self.inner.bounced_bytes.load(Relaxed)
    }

    /// Adds to the count of bytes that were copied to be aligned.
    pub(crate) fn count_bounce(&self, bytes: usize) {
        self.inner.bounced_bytes.fetch_add(bytes as u64, Relaxed);
    }

    fn lent(&self) -> MutexGuard<'_, BTreeMap<usize, Weak<Buffer>>> {
        self.inner.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> MutexGuard<'_, FreeMemory> {
        self.inner.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that are kept for later, beside those in use: both together stay within the limit.
    pub fn kept_bytes(&self) -> usize {
        self.kept().bytes()
    }

    fn put_back(&self, memory: BufferMemory) {
        let size = size_of_val::<[MemoryPage]>(memory.pages());
        let used = self.inner.used_bytes.fetch_sub(size, Relaxed) - size;
        if size > KEPT_LENGTH_MAX && matches!(memory, BufferMemory::Own(_)) {
            return;
        }
        let mut kept = self.kept();
        kept.keep(memory);
        kept.shrink(self.inner.limit_bytes.saturating_sub(used));
    }
}

/// Pages of zeros, which the host finds when they are first touched.
fn new_pages(count: usize) -> Box<[MemoryPage]> {
    // SAFETY: a page is plain bytes, for which zeros are a value.
    #[allow(unsafe_code, reason = "the buffer module makes pages of zeros without writing them")]
    unsafe {
        Box::new_zeroed_slice(count).assume_init()
    }
}

/// An aligned buffer with one owner. Goes back to its pool when dropped.
pub struct Buffer {
    /// Present until dropped.
    memory: Option<BufferMemory>,
    length: usize,
    /// The host may not have found its memory yet.
    is_new: bool,
    pool: Pool,
}

impl Buffer {
    /// Most of it is about to be written: the host finds its memory at once, which costs half of
    /// what it costs to find page after page when they are touched.
    pub fn find_memory(&mut self) {
        if !std::mem::take(&mut self.is_new) {
            return;
        }
        if let Some(memory) = &mut self.memory {
            let pages = memory.pages_mut();
            let bytes = size_of_val::<[MemoryPage]>(pages);
            // Where the host cannot do that, it finds memory page by page.
            // SAFETY: the pages are ours, and their content stays as it is.
            #[allow(unsafe_code, reason = "the buffer module has the host find its memory")]
            let _ = unsafe {
                let advice = rustix::mm::Advice::LinuxPopulateWrite;
                rustix::mm::madvise(pages.as_mut_ptr().cast(), bytes, advice)
            };
        }
    }

    /// Shares the buffer, read-only and without a copy.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// As [`freeze`](Self::freeze); the receiver of all of it can [adopt](SharedBuffer::adopt) it.
    pub fn lend(self) -> Bytes {
        let (pool, place) = (self.pool.clone(), self.as_ptr().addr());
        let buffer = Arc::new(self);
        pool.lent().insert(place, Arc::downgrade(&buffer));
        Bytes::from_owner(Lent(buffer))
    }

    fn pages(&self) -> &[MemoryPage] {
        self.memory.as_ref().map(BufferMemory::pages).unwrap_or_default()
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffer").field("length", &self.length).finish_non_exhaustive()
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `MemoryPage` is plain initialised bytes without padding (asserted below), so a
        // slice of pages is a slice of that many bytes; `length` is at most their sum
        // (`Pool::take`).
        #[allow(unsafe_code, reason = "the buffer module views its aligned pages as bytes")]
        unsafe {
            std::slice::from_raw_parts(self.pages().as_ptr().cast(), self.length)
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let length = self.length;
        let pages = self.memory.as_mut().map(BufferMemory::pages_mut).unwrap_or_default();
        // SAFETY: as above, and the exclusive borrow of `self` covers the pages.
        #[allow(unsafe_code, reason = "the buffer module views its aligned pages as bytes")]
        unsafe {
            std::slice::from_raw_parts_mut(pages.as_mut_ptr().cast(), length)
        }
    }
}

const _: () =
    assert!(size_of::<MemoryPage>() == ALIGNMENT && align_of::<MemoryPage>() == ALIGNMENT);

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.pool.put_back(memory);
        }
    }
}

/// A buffer that can no longer be adopted once this is dropped.
struct Lent(Arc<Buffer>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.0.pool.lent().remove(&self.0.as_ptr().addr());
    }
}

/// A buffer that many may read while one may still write: slices are handed out without a copy,
/// and a write copies the buffer first if slices are out.
#[derive(Debug)]
pub struct SharedBuffer {
    buffer: Arc<Buffer>,
    /// All of it, from the first slice to the next write: a slice is a clone of this, no
    /// allocation.
    view: Option<Bytes>,
}

struct SharedOwner(Arc<Buffer>);

impl AsRef<[u8]> for SharedOwner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl SharedBuffer {
    /// Shares `buffer`.
    pub fn new(buffer: Buffer) -> Self {
        Self { buffer: Arc::new(buffer), view: None }
    }

    /// Shares the buffer that was [lent](Buffer::lend) as `bytes`, all of it and without a copy;
    /// nothing if they are not a whole buffer of `pool`, which would keep more memory in use than
    /// they are.
    pub fn adopt(bytes: &Bytes, pool: &Pool) -> Option<Self> {
        let buffer = pool.lent().get(&bytes.as_ptr().addr())?.upgrade()?;
        (buffer.len() == bytes.len()).then(|| Self { buffer, view: Some(bytes.clone()) })
    }

    /// A slice that stays as it is now, whatever is written later.
    pub fn slice(&mut self, range: Range<usize>) -> Bytes {
        let owner = || Bytes::from_owner(SharedOwner(self.buffer.clone()));
        self.view.get_or_insert_with(owner).slice(range)
    }

    /// The content.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// As [`Buffer::find_memory`], if there is no other reader.
    pub fn find_memory(&mut self) {
        if let Some(buffer) = Arc::get_mut(&mut self.buffer) {
            buffer.find_memory();
        }
    }

    /// The content, to be changed. Copies it (and counts the copy) if slices are out; `None` if the
    /// pool has no room for that.
    pub fn make_mut(&mut self) -> Option<&mut [u8]> {
        // It holds the buffer too; slices that are out still do.
        self.view = None;
        if Arc::get_mut(&mut self.buffer).is_none() {
            let mut copy = self.buffer.pool.take(self.buffer.length)?;
            copy.copy_from_slice(&self.buffer);
            self.buffer.pool.count_copy(copy.len());
            self.buffer = Arc::new(copy);
        }
        Arc::get_mut(&mut self.buffer).map(|buffer| &mut **buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_keeps_its_limit_and_reuses_what_came_back() {
        let pool = Pool::new(3 * ALIGNMENT);
        let first = pool.take(1).unwrap();
        let second = pool.take(2 * ALIGNMENT).unwrap();
        assert_eq!(first.as_ptr() as usize % ALIGNMENT, 0);
        assert!(pool.take(1).is_none());
        let address = second.as_ptr();
        drop(second.freeze().slice(5..6));
        assert_eq!(pool.used_bytes(), ALIGNMENT);
        assert_eq!(pool.take(2 * ALIGNMENT).unwrap().as_ptr(), address);
    }

    #[test]
    fn what_is_used_and_what_is_kept_stay_within_the_limit_together() {
        let pool = Pool::new(8 * ALIGNMENT);
        drop((pool.take(4 * ALIGNMENT).unwrap(), pool.take(4 * ALIGNMENT).unwrap()));
        assert_eq!((pool.used_bytes(), pool.kept_bytes()), (0, 8 * ALIGNMENT));
        let other = pool.take(3 * ALIGNMENT).unwrap();
        assert_eq!(pool.kept_bytes(), 4 * ALIGNMENT, "one had to go for the new one");
        let again = pool.take(4 * ALIGNMENT).unwrap();
        assert_eq!((pool.used_bytes(), pool.kept_bytes()), (7 * ALIGNMENT, 0));
        let beyond = pool.take_beyond(4 * ALIGNMENT);
        drop((again, other));
        assert_eq!((pool.used_bytes(), pool.kept_bytes()), (4 * ALIGNMENT, 3 * ALIGNMENT));
        drop(beyond);
        assert!(pool.kept_bytes() <= pool.limit_bytes());
    }

    /// The usual stripe.
    const STRIPE: usize = 64 << 10;

    #[test]
    fn stripes_lie_side_by_side_and_keep_their_content() {
        let pool = Pool::new(8 * SLAB_BYTES);
        let mut all: Vec<Buffer> = (0..40).map(|_| pool.take(STRIPE).unwrap()).collect();
        for (at, buffer) in all.iter_mut().enumerate() {
            assert_eq!((buffer.len(), buffer.as_ptr() as usize % STRIPE), (STRIPE, 0));
            buffer.fill(at as u8);
        }
        assert_eq!(pool.used_bytes() + pool.kept_bytes(), 2 * SLAB_BYTES);
        all.swap_remove(7);
        all.push(pool.take(STRIPE).unwrap());
        all[40 - 1].fill(7);
        all.sort_by_key(|buffer| buffer[0]);
        for (at, buffer) in all.iter().enumerate() {
            assert!(buffer.iter().all(|byte| usize::from(*byte) == at));
        }
        assert_eq!(pool.used_bytes() + pool.kept_bytes(), 2 * SLAB_BYTES);
        drop(all);
        assert_eq!((pool.used_bytes(), pool.kept_bytes()), (0, 2 * SLAB_BYTES));
    }

    #[test]
    fn a_lent_buffer_is_adopted_and_written_once_it_has_no_reader() {
        let pool = Pool::new(4 * ALIGNMENT);
        let mut buffer = pool.take(ALIGNMENT).unwrap();
        buffer.fill(1);
        let bytes = buffer.lend();
        assert!(
            SharedBuffer::adopt(&bytes.slice(..ALIGNMENT - 1), &pool).is_none(),
            "a part of it"
        );
        assert!(SharedBuffer::adopt(&bytes, &Pool::new(1)).is_none(), "of another pool");
        let mut first = SharedBuffer::adopt(&bytes, &pool).unwrap();
        let mut second = SharedBuffer::adopt(&bytes, &pool).unwrap();
        let slice = first.slice(0..4);
        drop(bytes);
        first.make_mut().unwrap().fill(2);
        assert_eq!((&slice[..], second.bytes()[0], pool.copied_bytes()), (&[1; 4][..], 1, 4096));
        drop(slice);
        second.make_mut().unwrap().fill(3);
        assert_eq!((first.bytes()[0], pool.copied_bytes()), (2, 4096), "it is alone: no copy");
        drop((first, second));
        assert_eq!((pool.used_bytes(), pool.lent().len()), (0, 0));
    }

    #[test]
    fn who_can_do_without_leaves_some() {
        let pool = Pool::new(8 * ALIGNMENT);
        let _six = pool.take_spare(6 * ALIGNMENT).unwrap();
        assert!(pool.take_spare(1).is_none());
        assert!(pool.take(2 * ALIGNMENT).is_some());
    }

    #[test]
    fn a_slice_does_not_change_when_the_buffer_is_written() {
        let pool = Pool::new(1 << 20);
        let mut shared = SharedBuffer::new(pool.take(8).unwrap());
        shared.make_mut().unwrap().fill(1);
        let slice = shared.slice(2..4);
        shared.make_mut().unwrap().fill(2);
        assert_eq!(&slice[..], [1, 1]);
        assert_eq!(pool.copied_bytes(), 8);
        shared.make_mut().unwrap().fill(3);
        assert_eq!(pool.copied_bytes(), 8, "no slice is out, nothing is copied");
    }
}
