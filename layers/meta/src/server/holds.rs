//! Files that somebody has open outlive their last name. Who has them open the layer above knows;
//! here is only which files are held, and a durable mark for each that lives on without a name, so
//! that it goes in the end, whatever happens to those who held it (ADR 10).

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Bound;

use super::MetaServer;
use super::effects::Staged;
use crate::attributes::Kind;
use crate::keys;
use crate::protocol::{Error, Hold, Inode, NoteHolder};
use crate::store::{Batch, StoreError};

/// What of this node is held.
#[derive(Default)]
pub(super) struct Holds {
    /// Files that somebody has open.
    held: RefCell<BTreeSet<u64>>,
    /// Files without a name. Each has its mark in the store.
    unlinked: RefCell<BTreeSet<u64>>,
    /// Clients known when the node started.
    holders: RefCell<BTreeSet<u64>>,
    /// What these hold is not known yet: it may be any file.
    in_grace: Cell<bool>,
}

impl Holds {
    /// Does the file outlive its last name?
    pub(super) fn keeps(&self, ino: u64) -> bool {
        self.in_grace.get() || self.held.borrow().contains(&ino)
    }

    /// Has the file lost its last name?
    pub(super) fn is_unlinked(&self, ino: u64) -> bool {
        self.unlinked.borrow().contains(&ino)
    }

    /// Notes a file whose mark was put into the store just now.
    pub(super) fn marked(&self, ino: u64) {
        self.unlinked.borrow_mut().insert(ino);
    }

    /// Forgets an inode that is gone.
    pub(super) fn removed(&self, ino: u64) {
        self.unlinked.borrow_mut().remove(&ino);
    }
}

impl MetaServer {
    /// Reads who held files, and which have no name. At a mount, before anything is served.
    pub(super) async fn load_holds(&self) -> Result<(), StoreError> {
        let holders = self.numbers(keys::all_holders()).await?;
        self.holds.in_grace.set(!holders.is_empty());
        self.holds.holders.replace(holders);
        let unlinked = self.numbers(keys::all_unlinked()).await?;
        self.holds.unlinked.replace(unlinked);
        Ok(())
    }

    /// The numbers of all keys in a range.
    async fn numbers(&self, (from, to): (Vec<u8>, Vec<u8>)) -> Result<BTreeSet<u64>, StoreError> {
        let bad = || StoreError::Damaged { what: "a hold", block: 0 };
        let found = self.store.scan(Bound::Included(&from), &to, usize::MAX).await?;
        found.iter().map(|(key, _)| keys::number(key, 1).ok_or_else(bad)).collect()
    }

    pub(super) async fn hold_file(&self, request: Hold) -> Result<Inode, Error> {
        let Hold { ino, generation } = request;
        self.load(ino, generation).await?;
        let inode = self.with(ino, |active| Ok(active.inode.clone()))?;
        if inode.attributes.kind == (Kind::File {}) {
            self.holds.held.borrow_mut().insert(ino);
        }
        Ok(inode)
    }

    pub(super) async fn let_go(&self, ino: u64) -> Result<bool, Error> {
        self.holds.held.borrow_mut().remove(&ino);
        if self.holds.is_unlinked(ino) { self.remove_unlinked(ino).await } else { Ok(false) }
    }

    pub(super) async fn note_holder(&self, request: NoteHolder) -> Result<(), Error> {
        let NoteHolder { client, holds } = request;
        let (position, ()) = self
            .record(|| {
                let mut batch = Batch::new();
                // Files can be opened on a full volume, too.
                batch.relieve();
                if holds {
                    batch.put(keys::holder(client), Vec::new());
                } else {
                    batch.delete(keys::holder(client));
                }
                Ok((batch, ()))
            })
            .await?;
        self.settle_record(position, holds).await
    }

    /// Clients that held files when the node started.
    pub(super) fn holders(&self) -> Vec<u64> {
        self.holds.holders.borrow().iter().copied().collect()
    }

    /// From now on only files that somebody holds outlive their names.
    pub(super) async fn end_grace(&self) -> Result<Vec<u64>, Error> {
        self.holds.in_grace.set(false);
        self.holds.holders.take();
        let unlinked = self.holds.unlinked.borrow().clone();
        let mut gone = Vec::new();
        for ino in unlinked.into_iter().filter(|&ino| !self.holds.keeps(ino)) {
            if self.remove_unlinked(ino).await? {
                gone.push(ino);
            }
        }
        Ok(gone)
    }

    /// Removes a file without a name, unless somebody holds it. Is it gone now?
    async fn remove_unlinked(&self, ino: u64) -> Result<bool, Error> {
        // A commit under way would name blocks of a file that is gone.
        let _alone = self.commits.exclusive(ino).await;
        // Whoever is reading the inode from the store must not bring it back.
        match self.load(ino, 0).await {
            Err(Error::Stale {}) => return Ok(false),
            loaded => loaded?,
        }
        let removed = self
            .record(|| {
                if self.holds.keeps(ino) || !self.holds.is_unlinked(ino) {
                    return Err(Error::Changed {});
                }
                let mut batch = Batch::new();
                batch.relieve();
                let staged = Staged::removal(ino);
                self.put_staged(&staged, &mut batch);
                Ok((batch, staged))
            })
            .await;
        match removed {
            Ok((_, staged)) => {
                self.install_staged(staged);
                Ok(true)
            }
            Err(Error::Changed {}) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
