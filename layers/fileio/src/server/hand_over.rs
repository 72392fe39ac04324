//! A node that moves to another process by plan: what was written is committed, and who has which files
//! open, with which locks, goes along.

use std::collections::BTreeMap;
use std::rc::Rc;

use meta::protocol::GetDirty;

use super::FileServer;
use super::leases::{Client, Leases};
use crate::locks::LockTable;
use crate::protocol::{Error, FileIo, FileLock, LEASE};

runtime::record! {
    /// A client that holds files of a node.
    pub struct HandedClient {
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
    pub struct HandedFiles {
        /// Those who have files open.
        clients: Vec<HandedClient>,
        /// The locks, with the files that they are on.
        locks: Vec<(u64, FileLock)>,
    }
}

impl FileServer {
    /// Lets nothing in any more, ends what was begun and commits what was written. After an error it
    /// may be called again.
    pub async fn hand_over(&self) -> Result<HandedFiles, Error> {
        self.context.close::<FileIo>(|_| false);
        loop {
            self.context.drained::<FileIo>().await;
            self.commit_dirty(0).await?;
            let dirty = self.meta_here(GetDirty { age_ms: 0 }).await?;
            if dirty.is_empty() && self.context.is_drained::<FileIo>() {
                return Ok(self.leases.handed());
            }
        }
    }

    /// Goes on where the server before this one stopped. To be called before this one serves.
    pub fn resume(self: &Rc<Self>, handed: HandedFiles) {
        self.leases.resume(handed, self.context.now());
        self.look_later();
    }
}

impl Leases {
    fn handed(&self) -> HandedFiles {
        let clients = self.clients.borrow();
        let clients = clients.iter().map(|(&client, known)| HandedClient {
            client,
            lease: known.lease,
            files: known.files.iter().map(|(&ino, &number)| (ino, number)).collect(),
        });
        HandedFiles { clients: clients.collect(), locks: self.locks.borrow().all().collect() }
    }

    /// Each lease begins anew: whoever moved the node must not cost a client what it holds.
    fn resume(&self, handed: HandedFiles, now: std::time::Duration) {
        let mut clients = BTreeMap::new();
        for HandedClient { client, lease, files } in handed.clients {
            for (ino, _) in &files {
                self.holds.set(self.holds.get() + 1);
                *self.holders.borrow_mut().entry(*ino).or_default() += 1;
            }
            let files = files.into_iter().collect();
            clients.insert(client, Client { lease, until: now + LEASE, files });
        }
        self.clients.replace(clients);
        let mut locks = LockTable::default();
        for (file, FileLock { owner, range, kind }) in handed.locks {
            // They fitted into the table they come from.
            let _ = locks.lock(file, owner, range, kind);
        }
        self.locks.replace(locks);
    }
}
