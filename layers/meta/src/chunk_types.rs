//! Records of the blocks of a file.

use blockio::geometry::{BLOCK_SIZE, Run, STRIPE_SIZE_MAX};
use blockio::protocol::Unsynced;
use blockio::redundancy::{DATA_SHARDS_MAX, METADATA_COPIES_MAX, PARITY_SHARDS_MAX};
use runtime::seed::Rng;
use runtime::wire::{Decoder, Encoder, Malformed, Wire};

/// The largest logical block is a whole stripe.
const UNIT_LOG2_MAX: u8 = (STRIPE_SIZE_MAX / BLOCK_SIZE as u32).ilog2() as u8;

/// Further copies that a block may have besides its first one, at most.
pub const MIRRORS_MAX: usize = METADATA_COPIES_MAX as usize - 1;

/// The further copies of a logical block: where each begins on the logical disk. All have its
/// content, and each is on another disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mirrors {
    /// Those after the first `count` are zeros.
    starts: [u64; MIRRORS_MAX],
    count: u8,
}

impl Mirrors {
    /// Adds one. What is more than [`MIRRORS_MAX`] is left out.
    pub fn push(&mut self, start: u64) {
        if let Some(place) = self.starts.get_mut(usize::from(self.count)) {
            *place = start;
            self.count += 1;
        }
    }

    fn take_starts(count: u8, input: &mut Decoder) -> Result<Self, Malformed> {
        if usize::from(count) > MIRRORS_MAX {
            return Err(Malformed("a block has no more copies than this program knows"));
        }
        let mut mirrors = Self::default();
        for _ in 0..count {
            mirrors.push(u64::take(input)?);
        }
        Ok(mirrors)
    }

    /// Where they begin.
    pub fn starts(&self) -> &[u64] {
        &self.starts[..usize::from(self.count)]
    }

    /// Where they begin, to be changed.
    pub fn starts_mut(&mut self) -> &mut [u64] {
        &mut self.starts[..usize::from(self.count)]
    }

    /// Those of a block that comes `blocks` blocks later in the same run.
    #[must_use]
    pub fn after(mut self, blocks: u64) -> Self {
        self.starts_mut().iter_mut().for_each(|start| *start += blocks);
        self
    }
}

/// How many there are, in one byte, and where they begin.
impl Wire for Mirrors {
    fn put(&self, out: &mut Encoder) {
        out.bytes(&[self.count]);
        self.starts().iter().for_each(|start| start.put(out));
    }

    fn take(input: &mut Decoder) -> Result<Self, Malformed> {
        let count = u8::take(input)?;
        Self::take_starts(count, input)
    }

    fn sample(rng: &mut Rng) -> Self {
        let mut mirrors = Self::default();
        (0..rng.below(MIRRORS_MAX as u64 + 1)).for_each(|_| mirrors.push(rng.bits()));
        mirrors
    }
}

/// In the place of the number of mirrors: the run is a part of a wide stripe.
const COVERED: u8 = 7;
/// The same: their number comes behind, and they have no content. Never in the store.
const DEFERRED: u8 = 6;

/// What all blocks of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunForm {
    /// Named by a record that is or will be durable: the blocks may not be rewritten.
    pub sealed: bool,
    /// In a data shard of the wide stripe of the chunk, to which the blocks belong: they stay in
    /// use when the run is replaced.
    pub covered: bool,
    /// Its mirrors have places, and no content: the next commit writes them, or makes a wide stripe
    /// of the chunk instead.
    pub deferred: bool,
    unit_log2: u8,
}

impl RunForm {
    /// Logical blocks of `unit` blocks each, a power of two.
    pub fn new(unit: u32, sealed: bool) -> Self {
        debug_assert!(unit.is_power_of_two(), "logical blocks of {unit} blocks");
        Self { sealed, covered: false, deferred: false, unit_log2: unit.trailing_zeros() as u8 }
    }

    /// The same of a run in a wide stripe.
    pub fn covered(unit: u32) -> Self {
        Self { covered: true, ..Self::new(unit, true) }
    }

    /// Blocks of a logical block.
    pub fn unit(self) -> u32 {
        1 << self.unit_log2
    }
}

/// A run of blocks of a chunk: whole logical blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRun {
    /// The first block, counted within the chunk.
    pub at: u16,
    /// The first block on the logical disk. A run stays within one stripe.
    pub start: u64,
    /// The CRC-32C of each logical block.
    pub checksums: Vec<u32>,
    /// Whether they may be rewritten, and how many blocks a logical block has.
    pub form: RunForm,
    /// Further copies of the run, each within one stripe, too.
    pub mirrors: Mirrors,
}

/// The fields in order, and in one byte the form: bit 0 is set if the run is sealed, bits 1 to 4
/// are the logarithm of the unit, the others the number of mirrors, or 7 if the run is covered, or
/// 6 if it is deferred, with their number in the next byte. The starts of the mirrors come last.
impl Wire for BlockRun {
    fn put(&self, out: &mut Encoder) {
        self.at.put(out);
        self.start.put(out);
        self.checksums.put(out);
        let RunForm { sealed, covered, deferred, unit_log2 } = self.form;
        let mirrors = match (covered, deferred) {
            (true, _) => COVERED,
            (_, true) => DEFERRED,
            _ => self.mirrors.count,
        };
        out.bytes(&[u8::from(sealed) | unit_log2 << 1 | mirrors << 5]);
        if deferred && !covered {
            out.bytes(&[self.mirrors.count]);
        }
        self.mirrors.starts().iter().for_each(|start| start.put(out));
    }

    fn take(input: &mut Decoder) -> Result<Self, Malformed> {
        let (at, start) = (u16::take(input)?, u64::take(input)?);
        let (checksums, form) = (Vec::take(input)?, u8::take(input)?);
        let (covered, deferred) = (form >> 5 == COVERED, form >> 5 == DEFERRED);
        let mirrors = match form >> 5 {
            COVERED => 0,
            DEFERRED => u8::take(input)?,
            count => count,
        };
        let mirrors = Mirrors::take_starts(mirrors, input)?;
        let form = RunForm { sealed: form & 1 == 1, covered, deferred, unit_log2: form >> 1 & 15 };
        if covered && !form.sealed {
            return Err(Malformed("what is in a wide stripe is not rewritten"));
        }
        if form.unit_log2 > UNIT_LOG2_MAX {
            return Err(Malformed("a logical block is no larger than a stripe"));
        }
        Ok(Self { at, start, checksums, form, mirrors })
    }

    fn sample(rng: &mut Rng) -> Self {
        let unit_log2 = rng.below(u64::from(UNIT_LOG2_MAX) + 1) as u8;
        let covered = rng.chance(1, 4);
        let mirrors = if covered { Mirrors::default() } else { Mirrors::sample(rng) };
        let deferred = !covered && rng.chance(1, 4);
        Self {
            at: u16::sample(rng),
            start: u64::sample(rng),
            checksums: Vec::sample(rng),
            form: RunForm { sealed: covered || bool::sample(rng), covered, deferred, unit_log2 },
            mirrors,
        }
    }
}

impl BlockRun {
    /// Blocks of a logical block.
    pub fn unit(&self) -> u32 {
        self.form.unit()
    }

    /// Blocks of the run.
    pub fn count(&self) -> u32 {
        (self.checksums.len() as u32).saturating_mul(self.unit())
    }

    /// Where its blocks are, without its mirrors.
    pub fn first_place(&self) -> Run {
        Run { start: self.start, count: self.count() }
    }

    /// Where its blocks are: the run itself, and its mirrors.
    pub fn places(&self) -> impl Iterator<Item = Run> + '_ {
        let count = self.count();
        let starts = std::iter::once(self.start).chain(self.mirrors.starts().iter().copied());
        starts.map(move |start| Run { start, count })
    }

    /// Where its content is: in all of its places, unless it is deferred.
    pub fn written_places(&self) -> impl Iterator<Item = Run> + '_ {
        self.places().take(if self.form.deferred { 1 } else { 1 + MIRRORS_MAX })
    }

    /// Does it have further copies?
    pub fn is_mirrored(&self) -> bool {
        self.mirrors.count > 0
    }

    /// The first block after the run, counted within the chunk.
    pub fn end(&self) -> u32 {
        u32::from(self.at).saturating_add(self.count())
    }
}

runtime::record! {
    /// A chunk: the blocks of one stripe-sized piece of a file. What no run covers is a hole.
    #[derive(Default)]
    pub struct Chunk {
        /// In order, without overlap.
        runs: Vec<BlockRun>,
    }
}

runtime::record! {
    /// A chunk whose new content is in the cache.
    pub struct ChunkUpdate {
        /// Which chunk of the file.
        index: u64,
        /// Its blocks now.
        chunk: Chunk,
        /// The stripes that have the new content, and the boot IDs with which they took it.
        written: Vec<Unsynced>,
        /// What the next commit can make of this chunk and the next ones, if they are as in it
        /// then: the parity is in the place of one of their mirrors.
        wide: Option<WideStripe>,
    }
}

runtime::record! {
    /// A chunk of a file that has blocks.
    pub struct IndexedChunk {
        /// Which chunk of the file.
        index: u64,
        /// Its blocks.
        chunk: Chunk,
    }
}

runtime::record! {
    /// Chunks of a file that have blocks.
    pub struct ChunkPage {
        /// In the order of their indices.
        chunks: Vec<IndexedChunk>,
        /// The index from which on others may follow; `None` if there are no more.
        next: Option<u64>,
    }
}

runtime::record! {
    /// A stripe of a wide stripe.
    pub struct StripeShard {
        /// Its first block on the logical disk.
        start: u64,
        /// The CRC-32C of each logical block, of dead ones, too.
        checksums: Vec<u32>,
    }
}

/// Chunks in a row, and their parity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WideStripe {
    /// Of each chunk.
    pub data: Vec<StripeShard>,
    /// The parity, as `ErasureCode` defines it: each byte of the first one is the exclusive or of
    /// the same byte of all chunks.
    pub parity: Vec<StripeShard>,
}

/// One number (u32): that of the data shards, and from bit 16 on that of the parity shards less
/// one. Then the data shards, and the parity shards.
impl Wire for WideStripe {
    fn put(&self, out: &mut Encoder) {
        let more_parity = (self.parity.len() as u32).saturating_sub(1);
        (self.data.len() as u32 | more_parity << 16).put(out);
        self.data.iter().chain(&self.parity).for_each(|shard| shard.put(out));
    }

    fn take(input: &mut Decoder) -> Result<Self, Malformed> {
        let counts = u32::take(input)?;
        let (data, parity) = (counts & 0xffff, (counts >> 16) + 1);
        if data > DATA_SHARDS_MAX || parity > PARITY_SHARDS_MAX {
            return Err(Malformed("the shards of a wide stripe"));
        }
        let mut take = |count| (0..count).map(|_| StripeShard::take(input)).collect();
        let data: Result<_, Malformed> = take(data);
        let parity: Result<_, Malformed> = take(parity);
        Ok(Self { data: data?, parity: parity? })
    }

    fn sample(rng: &mut Rng) -> Self {
        let shards = |count, rng: &mut Rng| (0..count).map(|_| StripeShard::sample(rng)).collect();
        let (data, parity) = (rng.below(5), 1 + rng.below(PARITY_SHARDS_MAX.into()));
        Self { data: shards(data, rng), parity: shards(parity, rng) }
    }
}

runtime::record! {
    /// A wide stripe of a file.
    pub struct PlacedWideStripe {
        /// Its first chunk.
        first: u64,
        /// What it is.
        wide: WideStripe,
    }
}
