//! Intents of operations that touch several nodes, and stored replies to calls (ADR 7, 9, 13).

use std::time::Duration;

pub use runtime::CallId;

/// Replies of one node, at most: some 100 bytes each in memory, 50 on disk.
pub const REPLIES_MAX: usize = 4096;
/// A reply is kept this long from its record or from the mount on, unless too many others come: a
/// client retries when its server is back.
pub const REPLY_AGE_MAX: Duration = Duration::from_hours(1);

runtime::record! {
    /// Effects at other nodes that a durable record of one node has decided.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct IntentId {
        /// The node that decided.
        node: u32,
        /// Which of its intents: a number that it never gives twice.
        number: u64,
    }
}

runtime::record! {
    /// What a node has applied of an intent.
    pub struct AppliedIntent {
        /// The boot ID of the node: if it restarts before the effects are durable, they are lost.
        boot_id: u64,
        /// Inodes that are gone.
        gone: Vec<u64>,
    }
}

runtime::record! {
    /// A record of one node that must be durable before a record of another node that depends on
    /// it. Position 0 is no dependency.
    #[derive(Copy, PartialOrd, Ord, Hash, Default)]
    pub struct CommitDependency {
        /// The node that has the earlier record.
        node: u32,
        /// The LSN of the record: its place in the order of that node's commits.
        position: u64,
    }
}

runtime::choice! {
    /// What came of a call that changed something: as much of its reply as the volume itself does
    /// not tell.
    #[derive(Copy)]
    pub enum CallOutcome {
        /// It was done.
        1 Done {},
        /// It has made this inode.
        2 Made {
            /// The inode.
            ino: u64,
            /// Its incarnation.
            generation: u64,
        },
        /// It was appended to a file.
        3 Appended {
            /// Where it begins.
            offset: u64,
        },
    }
}

runtime::record! {
    /// The reply to a call, as it is stored with the record that did what was asked.
    #[derive(Copy)]
    pub struct StoredReply {
        /// Replies of a node are counted, in the order of their records.
        sequence: u64,
        /// The call.
        call: CallId,
        /// What came of it.
        outcome: CallOutcome,
    }
}

runtime::record! {
    /// What was found in a part of what a node has.
    #[derive(Default)]
    pub struct ScrubPart {
        /// Where to go on; `None` at the end.
        next: Option<Vec<u8>>,
        /// Keys of metadata that were looked at.
        keys: u64,
        /// Bytes that were read.
        read_bytes: u64,
        /// What is wrong.
        flaws: Vec<ScrubFlaw>,
    }
}

runtime::record! {
    /// Something that does not match its checksum.
    pub struct ScrubFlaw {
        /// The file whose data it is; 0 for metadata. Clients of a subtree never see it: they have
        /// no handle of the root directory, with which a scrub is asked for.
        inode: u64,
        /// Where in the file.
        offset: u64,
        /// The disk node of a copy of data that is bad, if another one is good.
        disk_node: Option<u32>,
        /// It had a good copy, and is written anew.
        is_mended: bool,
        /// What is wrong.
        what: String,
    }
}
