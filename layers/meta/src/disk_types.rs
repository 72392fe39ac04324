//! What one node has on the disks of a volume.

runtime::record! {
    /// What one node has on a disk.
    #[derive(Copy)]
    pub struct DiskShare {
        /// The disk node.
        disk_node: u32,
        /// The disk within the node.
        disk: u32,
        /// Blocks in use.
        used_blocks: u64,
        /// All blocks in groups of this node.
        blocks: u64,
        /// It holds roots of this node.
        has_roots: bool,
        /// What is free on it may be used.
        is_open: bool,
    }
}

runtime::record! {
    /// What one node has on the disks, and what it moves.
    pub struct NodeMoves {
        /// The version of the record that it follows.
        version: u64,
        /// Disks of which it has something.
        disks: Vec<DiskShare>,
        /// Blocks that it has moved since it started.
        moved_blocks: u64,
        /// It moves data from fuller disks to emptier ones.
        balancing: bool,
        /// Why it could not move something, the last time.
        trouble: String,
        /// Pieces of files that wait to become wide stripes, or to be stored as the class of their
        /// file wants, as far as they are known.
        waiting_pieces: u64,
        /// What scrubs found.
        scrubs: Vec<DiskScrub>,
        /// What the scrub under way has read.
        scrubbed_bytes: Option<u64>,
    }
}

runtime::record! {
    /// What one node has found on a disk.
    #[derive(Copy)]
    pub struct DiskScrub {
        /// The disk node.
        disk_node: u32,
        /// The disk within the node.
        disk: u32,
        /// When a scrub of it ended last: seconds since 1970; 0 for never.
        scrubbed: u64,
        /// Blocks that were made anew.
        repairs: u64,
        /// Of these, in the last 24 hours.
        repairs_in_day: u64,
        /// Blocks that the last scrub could not make anew.
        damaged: u64,
    }
}
