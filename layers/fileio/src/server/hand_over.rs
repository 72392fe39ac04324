//! A node that moves to another process by plan: what was written is committed, and who has which files
//! open, with which locks, goes along.

use std::rc::Rc;

use meta::protocol::GetDirty;

use super::FileServer;
use crate::protocol::{Error, FileIo, FileLock, LEASE};

runtime::record! {
    /// A client that holds files of a node.
    pub struct ClientHandover {
        /// Its number.
        client: u64,
        /// Its lease.
        lease: u64,
        /// The files that it holds, each with the number of the call that held it last.
        files: Vec<(u64, u64)>,
    }
}

runtime::record! {
    /// What the file server of a node tells the one that takes its place.
    #[derive(Default)]
    pub struct FilesHandover {
        /// Those who have files open.
        clients: Vec<ClientHandover>,
        /// The locks, with the files that they are on.
        locks: Vec<(u64, FileLock)>,
        /// What is left of the grace period for clients of an earlier start, in milliseconds.
        grace_left_ms: u64,
    }
}

impl FilesHandover {
    /// Nothing is known of who has files open.
    pub fn unknown() -> Self {
        Self { grace_left_ms: LEASE.as_millis() as u64, ..Self::default() }
    }
}

impl FileServer {
    /// Lets nothing in any more, ends what was begun and commits what was written. After an error it
    /// may be called again.
    pub async fn hand_over(&self) -> Result<FilesHandover, Error> {
        self.context.close::<FileIo>(|_| false);
        loop {
            self.context.drained::<FileIo>().await;
            self.commit_dirty(0).await?;
            let dirty = self.meta_here(GetDirty { age_ms: 0 }).await?;
            if dirty.is_empty() && self.context.is_drained::<FileIo>() {
                return Ok(self.leases.handed(self.context.now()));
            }
        }
    }

    /// Goes on where the server before this one stopped. To be called before this one serves.
    pub fn resume(self: &Rc<Self>, handed: FilesHandover) {
        self.leases.resume(handed, self.context.now());
        self.orphan_all_remote_locks();
        self.expire_leases_later();
    }
}
