//! Open files outlive their last name. The layer above knows which client has which file open; here
//! is only which files are open, and a durable mark for each that has no name any more, so that it
//! is removed in the end whatever happens to the clients (ADR 10).

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::rc::Rc;
use std::time::Duration;

use runtime::protocol::Undelivered;
use runtime::sync::KeyedLock;

use super::base::NodeBase;
use super::content::commit::CommitLocks;
use super::effects::{Effects, StagedInodes};
use crate::attributes::Kind;
use crate::keys;
use crate::partition::order_of;
use crate::protocol::{Error, Inode, OpenHandle};
use crate::store::{Batch, StoreError};

/// The pause before it is tried again to say that files are open, while a disk takes no writes.
const MARK_PAUSE: Duration = Duration::from_millis(100);

/// Opening and closing files, and the grace period after a restart.
pub(super) struct OpenFileRequests {
    base: Rc<NodeBase>,
    effects: Rc<Effects>,
    commits: CommitLocks,
    /// The store says, durably, that files may be open: the next mount finds it and waits.
    is_marked: Cell<bool>,
    /// Files were opened while nothing could be written; it will say so.
    is_marking_later: Cell<bool>,
    /// One change of that at a time.
    marking: KeyedLock<()>,
}

impl OpenFileRequests {
    pub(super) fn new(base: &Rc<NodeBase>, effects: Rc<Effects>, commits: CommitLocks) -> Self {
        Self {
            base: base.clone(),
            effects,
            commits,
            is_marked: Cell::default(),
            is_marking_later: Cell::default(),
            marking: KeyedLock::default(),
        }
    }

    /// Reads whether files were held, and which have no name. At a mount, before anything is
    /// served.
    pub(super) async fn load_open_files(&self) -> Result<(), StoreError> {
        let (from, to) = keys::only(&keys::open_files());
        let may_be_held = !self.base.store.scan(Bound::Included(&from), &to, 1).await?.is_empty();
        self.is_marked.set(may_be_held);
        if may_be_held {
            self.base.open_files.set_grace_below(order_of(self.base.inodes.next_ino(0)));
        }
        let (from, to) = keys::all(keys::KeyTable::Unlinked);
        let bad = || StoreError::Damaged { what: "a file without a name", block: 0 };
        let found = self.base.store.scan(Bound::Included(&from), &to, usize::MAX).await?;
        let unlinked = found.iter().map(|(key, _)| keys::number(key, 1).ok_or_else(bad));
        let unlinked: BTreeSet<u64> = unlinked.collect::<Result<_, _>>()?;
        self.base.open_files.set_unlinked(unlinked);
        Ok(())
    }

    /// In a volume that is only read nothing has to be said of open files: none goes.
    pub(super) fn open_to_read(&self) {
        self.is_marked.set(true);
    }

    pub(super) async fn open_handle(self: &Rc<Self>, request: OpenHandle) -> Result<Inode, Error> {
        let OpenHandle { ino, generation } = request;
        loop {
            let is_excused = match self.mark_open().await {
                // Files can be read while nothing can be written. No name goes meanwhile.
                Err(Error::Unwritable { .. }) => {
                    self.mark_open_later();
                    true
                }
                marked => marked.map(|()| false)?,
            };
            self.base.inodes.load(ino, generation).await?;
            // A clean stop may have come between.
            if is_excused || self.is_marked.get() {
                break;
            }
        }
        let inode = self.base.inodes.with(ino, |active| Ok(active.inode.clone()))?;
        if inode.attributes.kind == (Kind::File {}) {
            self.base.open_files.open(ino);
        }
        Ok(inode)
    }

    /// Makes the store say that files may be held, if it does not: once from one clean stop to the
    /// next, so that only the first who opens a file waits for the log.
    async fn mark_open(&self) -> Result<(), Error> {
        if self.is_marked.get() {
            return Ok(());
        }
        let _alone = self.marking.exclusive(()).await;
        if !self.is_marked.get() {
            let mark = |batch: &mut Batch| {
                // Files can be opened on a full volume, too.
                batch.take_from_reserve();
                batch.put(keys::open_files(), Vec::new());
            };
            let position = self.base.records.record_batch(mark).await?;
            match self.base.records.ensure_durable(position, true).await {
                // A disk takes no writes for now. What removes a name is recorded behind this.
                Ok(()) | Err(Error::Undelivered { why: Undelivered::Lost }) => {}
                Err(error) => return Err(error),
            }
            self.is_marked.set(true);
        }
        Ok(())
    }

    /// Does so as soon as the disk takes writes.
    fn mark_open_later(self: &Rc<Self>) {
        if self.is_marking_later.replace(true) {
            return;
        }
        let me = self.clone();
        self.base.context.task(async move {
            while matches!(me.mark_open().await, Err(Error::Unwritable { .. })) {
                me.base.context.sleep(MARK_PAUSE).await;
            }
            me.is_marking_later.set(false);
        });
    }

    /// At a clean stop: if no file is open the next start need not wait.
    pub(super) async fn mark_idle(&self) -> Result<(), Error> {
        let _alone = self.marking.exclusive(()).await;
        if self.is_marked.get() && self.base.open_files.is_idle() {
            // The next open marks it again.
            self.is_marked.set(false);
            self.base.records.delete_all(&[keys::open_files()]).await?;
        }
        Ok(())
    }

    pub(super) async fn close_handle(&self, ino: u64) -> Result<bool, Error> {
        self.base.open_files.close(ino);
        if self.base.open_files.is_unlinked(ino) {
            self.remove_unlinked(ino).await
        } else {
            Ok(false)
        }
    }

    /// Files with numbers below this might be held by those whom the node knew before it started.
    pub(super) fn grace_below(&self) -> u64 {
        self.base.open_files.grace_below()
    }

    /// From now on only open files outlive their names.
    pub(super) async fn end_grace(&self) -> Result<Vec<u64>, Error> {
        self.base.open_files.set_grace_below(0);
        let unlinked = self.base.open_files.all_unlinked();
        let mut gone = Vec::new();
        for ino in unlinked.into_iter().filter(|&ino| !self.base.open_files.outlives_name(ino)) {
            if self.remove_unlinked(ino).await? {
                gone.push(ino);
            }
        }
        Ok(gone)
    }

    /// Removes a file without a name, unless it is open. True if it is removed.
    async fn remove_unlinked(&self, ino: u64) -> Result<bool, Error> {
        // A commit under way would name blocks of a file that is gone.
        let _alone = self.commits.exclusive(ino).await;
        let _kept = self.base.inodes.keep(ino);
        // A concurrent read of the inode from the store must not bring it back.
        match self.base.inodes.load(ino, 0).await {
            Err(Error::Stale {}) => return Ok(false),
            loaded => loaded?,
        }
        let make = || {
            if self.base.open_files.outlives_name(ino) || !self.base.open_files.is_unlinked(ino) {
                return Err(Error::Changed {});
            }
            let mut batch = Batch::new();
            batch.take_from_reserve();
            let staged = StagedInodes::removal(ino);
            self.effects.put_staged(&staged, &mut batch);
            Ok((batch, staged))
        };
        let removed = self.base.records.record(make).await;
        match removed {
            Ok((_, staged)) => {
                self.effects.install_staged(staged);
                Ok(true)
            }
            Err(Error::Changed {}) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
