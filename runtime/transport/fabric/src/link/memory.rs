//! Memory that a provider may read and write while Rust code holds other parts of it.
//!
//! A [`FabricBuffer`] is a run of whole pages with one owner. Operations hold it by count: while
//! one writes it, its bytes are not visible; while one reads it, they do not change. It goes back
//! to its [`Arena`] when the owner and the last operation have released it, never before.

#![allow(unsafe_code, reason = "the pages are shared with operations of the provider")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::FabricError;

/// Bytes of a page: buffers begin and end at its multiples.
pub const PAGE: usize = 4096;
/// Bytes of one mapping of an arena; a longer buffer has a mapping of its own.
const SLAB: usize = 4 << 20;

/// One mapping, or bytes of others that stay as they are.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// Never used twice in a process.
    id: u64,
    base: NonNull<u8>,
    length: usize,
    /// Bytes that another owner holds; they are read only.
    held: Option<Bytes>,
    /// Some of it is without access for good.
    sealed: AtomicBool,
}

// SAFETY: the pages are bound to no thread; who may touch them is counted by `BufferChunk`.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn map(length: usize) -> Result<Arc<Self>, FabricError> {
        let length = length.next_multiple_of(PAGE);
        let base = map_pages(std::ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, 0)?;
        // The system finds huge pages in a third of the time; where it has none, small ones as
        // before. SAFETY: advice for a mapping of our own, which changes nothing of what is read
        // there.
        unsafe { libc::madvise(base.as_ptr().cast(), length, libc::MADV_HUGEPAGE) };
        Ok(Arc::new(Self { id: next_id(), base, length, held: None, sealed: false.into() }))
    }

    fn hold(bytes: Bytes) -> Arc<Self> {
        let base = NonNull::new(bytes.as_ptr().cast_mut()).unwrap_or(NonNull::dangling());
        let length = bytes.len();
        Arc::new(Self { id: next_id(), base, length, held: Some(bytes), sealed: false.into() })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Whether another owner holds the bytes: such memory is worth no lasting registration.
    pub(crate) fn is_held(&self) -> bool {
        self.held.is_some()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.held.is_some() {
            return;
        }
        if *self.sealed.get_mut() {
            // A late writer may still mean these addresses: nothing else ever gets them.
            let flags = libc::MAP_FIXED | libc::MAP_NORESERVE;
            let _ = map_pages(self.base.as_ptr().cast(), self.length, libc::PROT_NONE, flags);
            return;
        }
        // SAFETY: mapped by `map` with this length; all chunks hold an `Arc` of it, so none is
        // left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Anonymous pages; at `at` if the flags say so, over pages that are ours.
fn map_pages(
    at: *mut libc::c_void,
    length: usize,
    access: libc::c_int,
    flags: libc::c_int,
) -> Result<NonNull<u8>, FabricError> {
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping; with MAP_FIXED callers pass a range of their own.
    let base = unsafe { libc::mmap(at, length, access, flags, -1, 0) };
    let failed = || FabricError::Failed {
        call: "mmap",
        cause: std::io::Error::last_os_error().to_string(),
        code: std::io::Error::last_os_error().raw_os_error().unwrap_or_default(),
    };
    if base == libc::MAP_FAILED {
        return Err(failed());
    }
    NonNull::new(base.cast()).ok_or_else(failed)
}

/// A part of a memory, and who works on it.
#[derive(Debug)]
pub(crate) struct BufferChunk {
    memory: Arc<Mapping>,
    offset: usize,
    capacity: usize,
    /// Operations, exposures and views that read it.
    readers: AtomicU32,
    /// Operations and exposures that write it.
    writers: AtomicU32,
    sealed: AtomicBool,
    home: Option<Arc<Mutex<FreeLists>>>,
}

impl BufferChunk {
    pub(crate) fn memory(&self) -> &Arc<Mapping> {
        &self.memory
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn pointer(&self) -> *mut u8 {
        // SAFETY: `offset` is within the memory, which is one allocation.
        unsafe { self.memory.base().add(self.offset) }
    }

    /// Takes all access from the pages, for everybody and for good: a write by a process that was
    /// believed dead fails then, also where the provider looks at no key.
    fn seal(&self) {
        if self.memory.is_held() {
            return;
        }
        self.memory.sealed.store(true, Ordering::Release);
        self.sealed.store(true, Ordering::Release);
        let flags = libc::MAP_FIXED | libc::MAP_NORESERVE;
        let sealed = map_pages(self.pointer().cast(), self.capacity, libc::PROT_NONE, flags);
        assert!(sealed.is_ok(), "pages of our own can be replaced: {sealed:?}");
    }
}

impl Drop for BufferChunk {
    fn drop(&mut self) {
        let Some(home) = &self.home else { return };
        let mut free = home.lock().unwrap_or_else(PoisonError::into_inner);
        if self.sealed.load(Ordering::Acquire) {
            free.used -= self.capacity;
        } else {
            free.take_back(self.memory.clone(), self.offset, self.capacity);
        }
    }
}

/// What an arena has at hand, by sizes that are powers of two of pages.
#[derive(Debug, Default)]
struct FreeLists {
    classes: Vec<Vec<(Arc<Mapping>, usize)>>,
    /// Bytes of buffers that are out.
    used: usize,
}

impl FreeLists {
    fn take_back(&mut self, memory: Arc<Mapping>, offset: usize, capacity: usize) {
        self.used -= capacity;
        if capacity > SLAB {
            // Had a mapping of its own: that goes back to the system.
            return;
        }
        self.classes[class_of(capacity)].push((memory, offset));
    }
}

fn class_of(capacity: usize) -> usize {
    (capacity / PAGE).trailing_zeros() as usize
}

/// Where buffers come from: mappings of `SLAB` bytes, cut into powers of two.
#[derive(Clone, Debug)]
pub struct Arena {
    free: Arc<Mutex<FreeLists>>,
    limit: usize,
}

impl Arena {
    /// An arena that never has more than `limit` bytes out.
    pub fn new(limit: usize) -> Self {
        let classes = vec![Vec::new(); class_of(SLAB) + 1];
        Self { free: Arc::new(Mutex::new(FreeLists { classes, ..FreeLists::default() })), limit }
    }

    /// A buffer of `length` bytes, at a page's start. Its bytes are whatever was there.
    pub fn take(&self, length: usize) -> Result<FabricBuffer, FabricError> {
        let capacity = capacity_for(length);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.used + capacity > self.limit {
            return Err(FabricError::Busy { what: "the memory of an arena" });
        }
        let (memory, offset) = find(&mut free, capacity)?;
        free.used += capacity;
        let home = Some(self.free.clone());
        Ok(FabricBuffer {
            chunk: Arc::new(BufferChunk::new(memory, offset, capacity, home)),
            length,
        })
    }

    /// Bytes of buffers that are out now.
    pub fn used(&self) -> usize {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).used
    }
}

fn capacity_for(length: usize) -> usize {
    let pages = length.max(1).div_ceil(PAGE);
    if pages * PAGE > SLAB { pages * PAGE } else { pages.next_power_of_two() * PAGE }
}

fn find(free: &mut FreeLists, capacity: usize) -> Result<(Arc<Mapping>, usize), FabricError> {
    if capacity > SLAB {
        return Ok((Mapping::map(capacity)?, 0));
    }
    let class = class_of(capacity);
    let found = (class..free.classes.len()).find(|class| !free.classes[*class].is_empty());
    let from = if let Some(found) = found {
        found
    } else {
        let last = free.classes.len() - 1;
        free.classes[last].push((Mapping::map(SLAB)?, 0));
        last
    };
    let (memory, offset) =
        free.classes[from].pop().ok_or(FabricError::Busy { what: "the memory of an arena" })?;
    for class in (class..from).rev() {
        free.classes[class].push((memory.clone(), offset + (PAGE << class)));
    }
    Ok((memory, offset))
}

impl BufferChunk {
    fn new(
        memory: Arc<Mapping>,
        offset: usize,
        capacity: usize,
        home: Option<Arc<Mutex<FreeLists>>>,
    ) -> Self {
        Self {
            memory,
            offset,
            capacity,
            readers: 0.into(),
            writers: 0.into(),
            sealed: false.into(),
            home,
        }
    }
}

/// Bytes with one owner, which operations of the provider may work on.
#[derive(Debug)]
pub struct FabricBuffer {
    chunk: Arc<BufferChunk>,
    length: usize,
}

impl FabricBuffer {
    /// Bytes of others as they are, to be sent from where they lie.
    pub fn holding(bytes: Bytes) -> Self {
        let length = bytes.len();
        Self { chunk: Arc::new(BufferChunk::new(Mapping::hold(bytes), 0, length, None)), length }
    }

    /// Bytes in use.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether no byte is in use.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Bytes that there is room for.
    pub fn capacity(&self) -> usize {
        self.chunk.capacity
    }

    /// Makes `length` bytes be in use, at most [`FabricBuffer::capacity`].
    pub fn set_len(&mut self, length: usize) {
        assert!(length <= self.chunk.capacity, "a buffer does not grow");
        self.length = length;
    }

    /// Its bytes. No operation may be writing them: to call this then is a bug.
    pub fn bytes(&self) -> &[u8] {
        assert_eq!(self.chunk.writers.load(Ordering::Acquire), 0, "an operation is writing it");
        assert!(!self.chunk.sealed.load(Ordering::Acquire), "the buffer was sealed");
        // SAFETY: within the memory; no operation writes it, and to begin one takes `&mut self`.
        unsafe { std::slice::from_raw_parts(self.chunk.pointer(), self.length) }
    }

    /// Its bytes, to be changed. No operation may be working on them: to ask then is a bug.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let readers = self.chunk.readers.load(Ordering::Acquire);
        let writers = self.chunk.writers.load(Ordering::Acquire);
        assert_eq!((readers, writers), (0, 0), "an operation is working on it");
        assert!(!self.chunk.memory.is_held(), "bytes of others are not changed");
        assert!(!self.chunk.sealed.load(Ordering::Acquire), "the buffer was sealed");
        // SAFETY: within the memory; this is the only owner, and no operation works on it.
        unsafe { std::slice::from_raw_parts_mut(self.chunk.pointer(), self.length) }
    }

    /// Its bytes as a shared slice; the pages go back when the last clone is gone.
    pub fn into_bytes(self) -> Bytes {
        if self.chunk.memory.is_held() {
            let held = self.chunk.memory.held.clone().unwrap_or_default();
            return held.slice(..self.length);
        }
        Bytes::from_owner(BufferView(self))
    }

    pub(crate) fn chunk(&self) -> &Arc<BufferChunk> {
        &self.chunk
    }

    /// Marks it as read by an operation.
    pub(crate) fn hold_to_read(&self) -> Hold {
        self.chunk.readers.fetch_add(1, Ordering::AcqRel);
        Hold { chunk: self.chunk.clone(), writes: false }
    }

    /// Marks it as written by an operation; needs `&mut`, so that no slice of it is about.
    pub(crate) fn hold_to_write(&mut self) -> Hold {
        assert!(!self.chunk.memory.is_held(), "bytes of others are not changed");
        self.chunk.writers.fetch_add(1, Ordering::AcqRel);
        Hold { chunk: self.chunk.clone(), writes: true }
    }
}

/// A buffer as the owner of shared bytes.
struct BufferView(FabricBuffer);

impl AsRef<[u8]> for BufferView {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// An operation's hold on a buffer.
#[derive(Debug)]
pub(crate) struct Hold {
    chunk: Arc<BufferChunk>,
    writes: bool,
}

impl Hold {
    /// See [`BufferChunk::seal`].
    pub(crate) fn seal(self) {
        self.chunk.seal();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let count = if self.writes { &self.chunk.writers } else { &self.chunk.readers };
        count.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_apart_and_come_back() {
        let arena = Arena::new(64 << 20);
        let lengths = [1, 4096, 5000, 70_000, SLAB, SLAB + 1];
        let mut buffers: Vec<FabricBuffer> = lengths.map(|l| arena.take(l).unwrap()).into();
        for (mark, buffer) in (1..).zip(&mut buffers) {
            assert_eq!(buffer.chunk.pointer() as usize % PAGE, 0);
            buffer.bytes_mut().fill(mark);
        }
        for (mark, buffer) in (1..).zip(&buffers) {
            assert!(buffer.bytes().iter().all(|byte| *byte == mark));
        }
        drop(buffers);
        assert_eq!(arena.used(), 0);
    }

    #[test]
    fn a_buffer_under_an_operation_is_not_handed_out_again() {
        let arena = Arena::new(PAGE);
        let mut buffer = arena.take(10).unwrap();
        let hold = buffer.hold_to_write();
        drop(buffer);
        assert!(matches!(arena.take(1), Err(FabricError::Busy { .. })));
        drop(hold);
        assert!(arena.take(1).is_ok());
    }

    #[test]
    fn bytes_are_not_seen_while_an_operation_writes_them() {
        let mut buffer = Arena::new(PAGE).take(10).unwrap();
        let hold = buffer.hold_to_write();
        assert!(std::panic::catch_unwind(|| buffer.bytes().len()).is_err());
        drop(hold);
        assert_eq!(buffer.bytes().len(), 10);
        let reader = buffer.hold_to_read();
        assert_eq!(buffer.bytes().len(), 10);
        let change = std::panic::AssertUnwindSafe(|| buffer.bytes_mut().fill(1));
        assert!(std::panic::catch_unwind(change).is_err());
        drop(reader);
    }

    #[test]
    fn a_sealed_buffer_leaves_its_arena_for_good() {
        let arena = Arena::new(2 * PAGE);
        let mut buffer = arena.take(10).unwrap();
        let at = buffer.chunk.pointer();
        buffer.hold_to_write().seal();
        drop(buffer);
        assert_eq!(arena.used(), 0);
        let others: Vec<FabricBuffer> = (0..2).map(|_| arena.take(1).unwrap()).collect();
        assert!(others.iter().all(|other| other.chunk.pointer() != at));
    }

    #[test]
    fn shared_bytes_keep_the_pages() {
        let arena = Arena::new(PAGE);
        let mut buffer = arena.take(5).unwrap();
        buffer.bytes_mut().copy_from_slice(b"hello");
        let bytes = buffer.into_bytes();
        let tail = bytes.slice(3..);
        drop(bytes);
        assert_eq!(&tail[..], b"lo");
        assert!(arena.take(1).is_err());
        drop(tail);
        assert!(arena.take(1).is_ok());
    }
}
