//! Records of the blocks of a file.

use blockio::protocol::Unsynced;

runtime::record! {
    /// A run of blocks of a chunk.
    pub struct BlockRun {
        /// The first block, counted within the chunk.
        at: u16,
        /// The first block on the logical disk. A run stays within one stripe.
        start: u64,
        /// The CRC-32C of each block: its length is the run's.
        checksums: Vec<u32>,
        /// Named by a record that is or will be durable: the blocks may not be rewritten.
        sealed: bool,
    }
}

impl BlockRun {
    /// Blocks of the run.
    pub fn count(&self) -> u32 {
        self.checksums.len() as u32
    }

    /// The first block after the run, counted within the chunk.
    pub fn end(&self) -> u32 {
        u32::from(self.at) + self.count()
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
