//! Words about what a node promises to clients: locks.

runtime::record! {
    /// Bytes of a file. They may lie past its end.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct ByteRange {
        /// The first.
        first: u64,
        /// The last, not before the first; `u64::MAX` for all that follow.
        last: u64,
    }
}

impl ByteRange {
    /// The whole file.
    pub const ALL: Self = Self { first: 0, last: u64::MAX };
}

runtime::choice! {
    /// What a lock allows others.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub enum LockKind {
        /// To lock the same bytes in this way, too.
        1 Shared {},
        /// Nothing.
        2 Exclusive {},
    }
}

runtime::record! {
    /// Whose a lock is.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct LockOwner {
        /// The client: its leases keep the lock.
        client: u64,
        /// Who of the client: a process, or an opening of a file.
        id: u64,
    }
}

runtime::record! {
    /// A lock on a file.
    #[derive(Copy)]
    pub struct FileLock {
        /// Whose it is.
        owner: LockOwner,
        /// What is locked.
        range: ByteRange,
        /// How.
        kind: LockKind,
    }
}

runtime::choice! {
    /// What came of a [`Lock`].
    #[derive(Copy)]
    pub enum LockResult {
        /// The bytes are locked.
        1 Granted {},
        /// Another owner has a lock. Try again later.
        2 Conflict {
            /// This one.
            lock: FileLock,
        },
        /// The client does not hold the file under this lease: it must hold everything again.
        3 Unheld {},
        /// The node has restarted, and only locks from before are granted again. Try again later.
        4 Grace {},
        /// It is too late to get a lock again: others may have had the bytes.
        5 Late {},
    }
}
