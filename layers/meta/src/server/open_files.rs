//! Files that somebody has open outlive their last name. Who has them open the layer above knows;
//! here is only which files are held, and a durable mark for each that lives on without a name, so
//! that it goes in the end, whatever happens to those who held it (ADR 10).

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Bound;

use runtime::sync::KeyedLock;

use super::MetaServer;
use super::effects::Staged;
use crate::attributes::Kind;
use crate::keys;
use crate::protocol::{Error, Inode, OpenHandle};
use crate::store::{Batch, StoreError};

/// What of this node is held.
#[derive(Default)]
pub(super) struct OpenFiles {
    /// Files that somebody has open.
    held: RefCell<BTreeSet<u64>>,
    /// Files without a name. Each has its mark in the store.
    unlinked: RefCell<BTreeSet<u64>>,
    /// The store says, durably, that files may be held: a start finds it and waits.
    noted: Cell<bool>,
    /// One at a time makes the store say so, or not any more.
    noting: KeyedLock<()>,
    /// What was held before an earlier start is not known yet: it may be any file with a number below this one,
    /// which was the next then. Who holds a younger one is known. Zero if all is known.
    grace_below: Cell<u64>,
}

impl OpenFiles {
    /// Does the file outlive its last name?
    pub(super) fn keeps(&self, ino: u64) -> bool {
        ino < self.grace_below.get() || self.has(ino)
    }

    /// Has somebody the file open, as far as is known?
    pub(super) fn has(&self, ino: u64) -> bool {
        self.held.borrow().contains(&ino)
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

    /// What is held, and below which number more may be.
    pub(super) fn all(&self) -> (Vec<u64>, u64) {
        (self.held.borrow().iter().copied().collect(), self.grace_below.get())
    }

    /// This is held. After a start: what may be held is known, but for what the one before did not know.
    pub(super) fn resume(&self, held: &[u64], grace_below: u64) {
        self.held.replace(held.iter().copied().collect());
        self.grace_below.set(grace_below.min(self.grace_below.get()));
    }

    /// Will space be free once it is known what is held?
    pub(super) fn is_space_kept(&self) -> bool {
        let unlinked = self.unlinked.borrow();
        unlinked.range(..self.grace_below.get()).any(|&ino| !self.has(ino))
    }

    fn is_in_grace(&self) -> bool {
        self.grace_below.get() > 0
    }

    /// Is nothing held, as far as can be known?
    fn is_idle(&self) -> bool {
        !self.is_in_grace() && self.held.borrow().is_empty()
    }
}

impl MetaServer {
    /// Reads whether files were held, and which have no name. At a mount, before anything is served.
    pub(super) async fn load_holds(&self) -> Result<(), StoreError> {
        let (from, to) = keys::only(&keys::held());
        let may_be_held = !self.store.scan(Bound::Included(&from), &to, 1).await?.is_empty();
        self.open_files.noted.set(may_be_held);
        if may_be_held {
            self.open_files.grace_below.set(self.next_ino());
        }
        let (from, to) = keys::all_unlinked();
        let bad = || StoreError::Damaged { what: "a file without a name", block: 0 };
        let found = self.store.scan(Bound::Included(&from), &to, usize::MAX).await?;
        let unlinked = found.iter().map(|(key, _)| keys::number(key, 1).ok_or_else(bad));
        let unlinked: BTreeSet<u64> = unlinked.collect::<Result<_, _>>()?;
        self.open_files.unlinked.replace(unlinked);
        Ok(())
    }

    pub(super) async fn hold_file(&self, request: OpenHandle) -> Result<Inode, Error> {
        let OpenHandle { ino, generation } = request;
        loop {
            self.note_holds().await?;
            self.load(ino, generation).await?;
            // A clean stop may have come between.
            if self.open_files.noted.get() {
                break;
            }
        }
        let inode = self.with(ino, |active| Ok(active.inode.clone()))?;
        if inode.attributes.kind == (Kind::File {}) {
            self.open_files.held.borrow_mut().insert(ino);
        }
        Ok(inode)
    }

    /// Makes the store say that files may be held, if it does not: once from one clean stop to the
    /// next, so that only the first who opens a file waits for the log.
    async fn note_holds(&self) -> Result<(), Error> {
        if self.open_files.noted.get() {
            return Ok(());
        }
        let _alone = self.open_files.noting.exclusive(()).await;
        if !self.open_files.noted.get() {
            let (position, ()) = self
                .record(|| {
                    let mut batch = Batch::new();
                    // Files can be opened on a full volume, too.
                    batch.take_from_reserve();
                    batch.put(keys::held(), Vec::new());
                    Ok((batch, ()))
                })
                .await?;
            self.settle_record(position, true).await?;
            self.open_files.noted.set(true);
        }
        Ok(())
    }

    /// At a clean stop: if nothing is held the next start need not wait.
    pub(super) async fn note_idle(&self) -> Result<(), Error> {
        let _alone = self.open_files.noting.exclusive(()).await;
        if self.open_files.noted.get() && self.open_files.is_idle() {
            // Whoever holds a file from here on notes it again.
            self.open_files.noted.set(false);
            self.record(|| {
                let mut batch = Batch::new();
                batch.take_from_reserve();
                batch.delete(keys::held());
                Ok((batch, ()))
            })
            .await?;
        }
        Ok(())
    }

    pub(super) async fn close_handle(&self, ino: u64) -> Result<bool, Error> {
        self.open_files.held.borrow_mut().remove(&ino);
        if self.open_files.is_unlinked(ino) { self.remove_unlinked(ino).await } else { Ok(false) }
    }

    /// Files with numbers below this might be held by those whom the node knew before it started.
    pub(super) fn grace_below(&self) -> u64 {
        self.open_files.grace_below.get()
    }

    /// From now on only files that somebody holds outlive their names.
    pub(super) async fn end_grace(&self) -> Result<Vec<u64>, Error> {
        self.open_files.grace_below.set(0);
        let unlinked = self.open_files.unlinked.borrow().clone();
        let mut gone = Vec::new();
        for ino in unlinked.into_iter().filter(|&ino| !self.open_files.keeps(ino)) {
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
        let _kept = self.keep(ino);
        // Whoever is reading the inode from the store must not bring it back.
        match self.load(ino, 0).await {
            Err(Error::Stale {}) => return Ok(false),
            loaded => loaded?,
        }
        let removed = self
            .record(|| {
                if self.open_files.keeps(ino) || !self.open_files.is_unlinked(ino) {
                    return Err(Error::Changed {});
                }
                let mut batch = Batch::new();
                batch.take_from_reserve();
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
