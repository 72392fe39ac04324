//! Memory of a [`Pool`](super::Pool) in slabs as large as a huge page, cut into slots of one length
//! each.
//!
//! The host finds a huge page in about a third of the time of as many small ones, and the processor
//! translates addresses within it faster. Unused slots are *warm*, with memory, which counts as
//! kept, or *bare*.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::{ALIGNMENT, MemoryPage};

/// A huge page of x86-64, and of arm64 where its small pages have 4 KiB. Slabs begin at a multiple
/// of it.
pub(super) const SLAB_BYTES: usize = 2 << 20;

/// Slots have a power of two of pages in this range: cache lines of the usual stripes. What is
/// shorter is rare, and what is longer comes in all lengths.
const SLOT_PAGES: RangeInclusive<usize> = 8..=256;

/// Pages that belong to one owner; they go back to their slab by [`Slabs::put_back`].
pub(super) struct SlabSlot {
    pages: NonNull<MemoryPage>,
    count: usize,
    /// The number of its slab, and its own there.
    slab: u32,
    number: u16,
}

// SAFETY: a slot is the only owner of its pages, which are plain bytes: as a box of them would be.
#[allow(unsafe_code, reason = "the buffer module owns memory by address")]
unsafe impl Send for SlabSlot {}
// SAFETY: as above; who shares a slot can only read.
#[allow(unsafe_code, reason = "the buffer module owns memory by address")]
unsafe impl Sync for SlabSlot {}

impl SlabSlot {
    pub(super) fn pages(&self) -> &[MemoryPage] {
        // SAFETY: the pages are mapped until the slot is put back (`Slab::drop` is not reached
        // before), and zeros or what was written before are values of plain bytes.
        #[allow(unsafe_code, reason = "the buffer module owns memory by address")]
        unsafe {
            std::slice::from_raw_parts(self.pages.as_ptr(), self.count)
        }
    }

    pub(super) fn pages_mut(&mut self) -> &mut [MemoryPage] {
        // SAFETY: as above, and the slot is borrowed exclusively.
        #[allow(unsafe_code, reason = "the buffer module owns memory by address")]
        unsafe {
            std::slice::from_raw_parts_mut(self.pages.as_ptr(), self.count)
        }
    }
}

/// [`SLAB_BYTES`] of memory at a multiple of them, which the host has found. Unmapped when dropped.
pub(super) struct SlabMemory(NonNull<MemoryPage>);

// SAFETY: it is the only owner of its pages.
#[allow(unsafe_code, reason = "the buffer module owns memory by address")]
unsafe impl Send for SlabMemory {}

impl SlabMemory {
    /// Nothing if the host has none. Takes the host half as long as to fill it: not to be asked for
    /// under a lock.
    pub(super) fn find() -> Option<Self> {
        let memory = map_aligned()?;
        advise(memory, SLAB_BYTES, Advice::LinuxHugepage);
        advise(memory, SLAB_BYTES, Advice::LinuxPopulateWrite);
        Some(Self(memory))
    }
}

impl Drop for SlabMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and unused: a slab is dropped only when all its slots are
        // back (`Slabs`), or with the pool, which each buffer holds.
        #[allow(unsafe_code, reason = "the buffer module owns memory by address")]
        let _ = unsafe { munmap(self.0.as_ptr().cast(), SLAB_BYTES) };
    }
}

/// Ground that is cut into slots.
struct Slab {
    ground: SlabMemory,
    slot_pages: usize,
    /// Unused slots with memory. The last was used last.
    warm: Vec<u16>,
    /// And without.
    bare: Vec<u16>,
}

impl Slab {
    /// With memory for all its slots.
    fn new(ground: SlabMemory, slot_pages: usize) -> Self {
        let slots = (SLAB_BYTES / (slot_pages * ALIGNMENT)) as u16;
        Self { ground, slot_pages, warm: (0..slots).rev().collect(), bare: Vec::new() }
    }

    fn slot_bytes(&self) -> usize {
        self.slot_pages * ALIGNMENT
    }

    fn is_unused(&self) -> bool {
        (self.warm.len() + self.bare.len()) * self.slot_bytes() == SLAB_BYTES
    }

    fn start_of(&self, slot: u16) -> NonNull<MemoryPage> {
        // SAFETY: slots are numbered so that the last ends within the slab.
        #[allow(unsafe_code, reason = "the buffer module owns memory by address")]
        unsafe {
            self.ground.0.add(usize::from(slot) * self.slot_pages)
        }
    }

    /// Gives the memory of an unused slot to the host.
    fn strip_one(&mut self) -> bool {
        let Some(slot) = self.warm.pop() else { return false };
        if self.bare.is_empty() {
            // Else the host would find memory for all slots again where one is asked for.
            advise(self.ground.0, SLAB_BYTES, Advice::LinuxNoHugepage);
        }
        advise(self.start_of(slot), self.slot_bytes(), Advice::LinuxDontNeed);
        self.bare.push(slot);
        true
    }
}

/// [`SLAB_BYTES`] of new memory at a multiple of them.
fn map_aligned() -> Option<NonNull<MemoryPage>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new memory at a place that the host chooses; of it, what is outside of the aligned
    // part is unmapped again, and no pointer to it is left.
    #[allow(unsafe_code, reason = "the buffer module owns memory by address")]
    unsafe {
        let all =
            mmap_anonymous(std::ptr::null_mut(), 2 * SLAB_BYTES, protection, MapFlags::PRIVATE);
        let all = all.ok()?;
        let before = all.align_offset(SLAB_BYTES);
        let aligned = all.byte_add(before);
        if before > 0 {
            let _ = munmap(all, before);
        }
        if before < SLAB_BYTES {
            let _ = munmap(aligned.byte_add(SLAB_BYTES), SLAB_BYTES - before);
        }
        NonNull::new(aligned.cast())
    }
}

/// Hosts that do not know an advice do without.
fn advise(memory: NonNull<MemoryPage>, bytes: usize, advice: Advice) {
    // SAFETY: the memory is of a slab of ours, and of its content an advice changes only that of
    // unused slots.
    #[allow(unsafe_code, reason = "the buffer module owns memory by address")]
    let _ = unsafe { madvise(memory.as_ptr().cast(), bytes, advice) };
}

/// The slabs of a pool.
#[derive(Default)]
pub(super) struct Slabs {
    all: Vec<Option<Slab>>,
    /// Slabs with unused slots, by the pages of their slots.
    open: BTreeMap<usize, Vec<u32>>,
    kept_bytes: usize,
}

impl Slabs {
    /// Are buffers of this many pages cut from slabs?
    pub(super) fn have(pages: usize) -> bool {
        pages.is_power_of_two() && SLOT_PAGES.contains(&pages)
    }

    /// Bytes of unused slots with memory.
    pub(super) fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// A slot with memory, if there is one.
    pub(super) fn take_warm(&mut self, pages: usize) -> Option<SlabSlot> {
        let number = self.find_open(pages, |slab| !slab.warm.is_empty())?;
        self.kept_bytes -= pages * ALIGNMENT;
        self.take_of(number, |slab| slab.warm.pop())
    }

    /// A slot without memory, if there is one.
    pub(super) fn take_bare(&mut self, pages: usize) -> Option<SlabSlot> {
        let number = self.find_open(pages, |slab| !slab.bare.is_empty())?;
        let slot = self.take_of(number, |slab| slab.bare.pop())?;
        advise(slot.pages, pages * ALIGNMENT, Advice::LinuxPopulateWrite);
        Some(slot)
    }

    /// A slot of a new slab, whose others are kept.
    pub(super) fn take_new(&mut self, ground: SlabMemory, pages: usize) -> Option<SlabSlot> {
        self.keep_new(ground, pages);
        self.take_warm(pages)
    }

    /// A new slab, all of whose slots are kept.
    pub(super) fn keep_new(&mut self, ground: SlabMemory, pages: usize) {
        let slab = Slab::new(ground, pages);
        let free = self.all.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.all.push(None);
            self.all.len() - 1
        });
        self.all[at] = Some(slab);
        self.open.entry(pages).or_default().push(at as u32);
        self.kept_bytes += SLAB_BYTES;
    }

    /// The slab that was opened last, of those that have what is asked for.
    fn find_open(&self, pages: usize, has: impl Fn(&Slab) -> bool) -> Option<u32> {
        let has = |number: &&u32| self.slab(**number).is_some_and(&has);
        self.open.get(&pages)?.iter().rev().find(has).copied()
    }

    fn slab(&self, number: u32) -> Option<&Slab> {
        self.all[number as usize].as_ref()
    }

    fn take_of(
        &mut self,
        number: u32,
        from: impl Fn(&mut Slab) -> Option<u16>,
    ) -> Option<SlabSlot> {
        let slab = self.all[number as usize].as_mut()?;
        let slot = from(slab)?;
        let (pages, count) = (slab.start_of(slot), slab.slot_pages);
        if slab.warm.is_empty() && slab.bare.is_empty() {
            self.close(count, number);
        }
        Some(SlabSlot { pages, count, slab: number, number: slot })
    }

    fn close(&mut self, pages: usize, number: u32) {
        if let Some(open) = self.open.get_mut(&pages) {
            open.retain(|other| *other != number);
        }
    }

    /// The slot is no longer used; its memory is kept.
    #[expect(clippy::needless_pass_by_value, reason = "who gives it back has it no longer")]
    pub(super) fn put_back(&mut self, slot: SlabSlot) {
        let SlabSlot { count, slab: at, number, .. } = slot;
        let Some(slab) = self.all[at as usize].as_mut() else { return };
        if slab.warm.is_empty() && slab.bare.is_empty() {
            self.open.entry(count).or_default().push(at);
        }
        slab.warm.push(number);
        self.kept_bytes += slab.slot_bytes();
    }

    /// Gives unused memory to the host until at most `bytes_max` are kept: whole slabs, then slots.
    pub(super) fn shrink(&mut self, bytes_max: usize) {
        for at in 0..self.all.len() {
            if self.kept_bytes <= bytes_max {
                return;
            }
            if let Some(slab) = self.all[at].take_if(|slab| slab.is_unused()) {
                self.kept_bytes -= slab.warm.len() * slab.slot_bytes();
                self.close(slab.slot_pages, at as u32);
            }
        }
        for slab in self.all.iter_mut().flatten() {
            while self.kept_bytes > bytes_max && slab.strip_one() {
                self.kept_bytes -= slab.slot_bytes();
            }
        }
    }
}
