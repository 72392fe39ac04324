//! The state that moves with a node to another process: open files, locks, leases.

use crate::protocol::{DELEGATION_LEASE, FileLock, Handle, LEASE};

runtime::record! {
    /// A client that has files of a node open.
    pub struct ClientHandover {
        /// Its number.
        client: u64,
        /// Its lease.
        lease: u64,
        /// The files that it has open, each with the number of the call that opened it last.
        files: Vec<(u64, u64)>,
    }
}

runtime::record! {
    /// What a user may do with a file that is open.
    #[derive(Copy)]
    pub struct RightHandover {
        /// The file.
        file: Handle,
        /// The user.
        uid: u32,
        /// The client that has it open.
        client: u64,
        /// What was granted.
        access: u32,
    }
}

runtime::record! {
    /// Bytes of a file that were changed since a loss.
    #[derive(Copy)]
    pub struct RangeHandover {
        /// The first byte.
        start: u64,
        /// The one after the last.
        end: u64,
        /// The number under which the change was answered first.
        order: u64,
        /// The number under which it was installed.
        sequence: u64,
        /// It is an append.
        is_append: bool,
        /// The bytes were cut off.
        is_cut: bool,
    }
}

runtime::record! {
    /// A file that was changed since a loss.
    pub struct FileReplayHandover {
        /// The file.
        ino: u64,
        /// Changes with higher numbers are known.
        since: u64,
        /// What is left of the time for which they are.
        left_ms: u64,
        /// The changes.
        ranges: Vec<RangeHandover>,
    }
}

runtime::record! {
    /// The numbers of changes of content, and what came since the last loss.
    #[derive(Default)]
    pub struct ReplayHandover {
        /// The first one of this life of the node.
        begin: u64,
        /// The next one.
        next: u64,
        /// What is left of the time in which clients write again what was lost before.
        grace_left_ms: u64,
        /// Files that were changed since a loss.
        files: Vec<FileReplayHandover>,
    }
}

runtime::record! {
    /// What one holder has of the files of a node.
    pub struct DelegationHandover {
        /// Its number.
        holder: u64,
        /// Its lease.
        lease: u64,
        /// The highest number of its requests under that.
        last: u64,
        /// The files, each with the holder's number of the request.
        files: Vec<(Handle, u64)>,
    }
}

runtime::record! {
    /// What the file server of a node passes to its successor.
    #[derive(Default)]
    pub struct FilesHandover {
        /// Clients that have files open.
        clients: Vec<ClientHandover>,
        /// The locks, with the files that they are on.
        locks: Vec<(u64, FileLock)>,
        /// What is left of the grace period for clients of an earlier start, in milliseconds.
        grace_left_ms: u64,
        /// The numbers of changes.
        replays: ReplayHandover,
        /// What was granted when files were opened.
        rights: Vec<RightHandover>,
        /// Who may keep what it has read.
        delegations: Vec<DelegationHandover>,
        /// What is left of the time for which changes wait for those who had files before an
        /// earlier start, in milliseconds.
        delay_left_ms: u64,
    }
}

impl FilesHandover {
    /// It is not known which files are open.
    #[must_use]
    pub fn without_holders(&self) -> Self {
        let grace_left_ms = LEASE.as_millis() as u64;
        let delay_left_ms = DELEGATION_LEASE.as_millis() as u64;
        Self { grace_left_ms, delay_left_ms, replays: self.replays.clone(), ..Self::default() }
    }
}
