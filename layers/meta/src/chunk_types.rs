//! Records of the blocks of a file.

use blockio::geometry::{BLOCK_SIZE, STRIPE_SIZE_MAX};
use blockio::protocol::Unsynced;
use runtime::seed::Rng;
use runtime::wire::{Decoder, Encoder, Malformed, Wire};

/// The largest logical block is a whole stripe.
const UNIT_LOG2_MAX: u8 = (STRIPE_SIZE_MAX / BLOCK_SIZE as u32).ilog2() as u8;

/// What all blocks of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunForm {
    /// Named by a record that is or will be durable: the blocks may not be rewritten.
    pub sealed: bool,
    unit_log2: u8,
}

impl RunForm {
    /// Logical blocks of `unit` blocks each, a power of two.
    pub fn new(unit: u32, sealed: bool) -> Self {
        debug_assert!(unit.is_power_of_two(), "logical blocks of {unit} blocks");
        Self { sealed, unit_log2: unit.trailing_zeros() as u8 }
    }

    /// Blocks of a logical block.
    pub fn unit(self) -> u32 {
        1 << self.unit_log2
    }
}

/// One byte: bit 0 is set if the run is sealed, the others are the logarithm of the unit.
impl Wire for RunForm {
    fn put(&self, out: &mut Encoder) {
        out.bytes(&[u8::from(self.sealed) | self.unit_log2 << 1]);
    }

    fn take(input: &mut Decoder) -> Result<Self, Malformed> {
        let byte = u8::take(input)?;
        let form = Self { sealed: byte & 1 == 1, unit_log2: byte >> 1 };
        let fits = form.unit_log2 <= UNIT_LOG2_MAX;
        fits.then_some(form).ok_or(Malformed("a logical block is no larger than a stripe"))
    }

    fn sample(rng: &mut Rng) -> Self {
        let unit_log2 = rng.below(u64::from(UNIT_LOG2_MAX) + 1) as u8;
        Self { sealed: bool::sample(rng), unit_log2 }
    }
}

runtime::record! {
    /// A run of blocks of a chunk: whole logical blocks.
    pub struct BlockRun {
        /// The first block, counted within the chunk.
        at: u16,
        /// The first block on the logical disk. A run stays within one stripe.
        start: u64,
        /// The CRC-32C of each logical block.
        checksums: Vec<u32>,
        /// Whether they may be rewritten, and how many blocks a logical block has.
        form: RunForm,
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
