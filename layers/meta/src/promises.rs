//! Words about what nodes promise one another, and what they remember of calls (ADR 7, 9, 13, 17).

pub use runtime::CallId;

runtime::record! {
    /// Effects that a durable record of one node promises to others.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct IntentId {
        /// The node that promised.
        node: u32,
        /// Which of its intents: a number that it never gives twice.
        number: u64,
    }
}

runtime::record! {
    /// What a node has done of a promise.
    pub struct AppliedIntent {
        /// The life of the node in which it did so: if that is over before the effects were durable,
        /// they are lost.
        boot_id: u64,
        /// Inodes that are gone.
        gone: Vec<u64>,
    }
}

runtime::record! {
    /// A record of one node that must be durable before a record of another node may be, for that one
    /// leans on it. A node that needs no such thing is told of position 0.
    #[derive(Copy, PartialOrd, Ord, Hash, Default)]
    pub struct CommitDependency {
        /// The node that has the earlier record.
        node: u32,
        /// The place of the record in the order of that node's commits.
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
