//! Space that is freed: blocks of files that were removed or cut, and allocated blocks that no
//! record names ([`Trim`](crate::protocol::Trim),
//! [`ListUntrimmed`](crate::protocol::ListUntrimmed)).
//!
//! None of it may be lost for want of an answer. While caches or disks are down, what is to be
//! freed is remembered and tried again. Only a restart of the node forgets it, and the next mount
//! finds all of it: intents in the store, and blocks that no record names.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use blockio::volume_map::classes_of;
use futures::stream::{self, StreamExt as _};
use runtime::sync::{KeyGuard, KeyedLock};

use super::encode_queue::EncodeQueue;
use crate::keys;
use crate::protocol::{Chunk, Error, Run, WideStripe};
use crate::server::base::NodeBase;
use crate::server::content::chunk_records::{RESERVE_CHUNKS_MAX, add_runs, chunks_per_record};
use crate::server::record_log::decode;
use crate::server::xattrs::Xattrs;
use crate::store::{Batch, Position, StoreError};
use crate::wide_stripe::chunks_together;

/// Forgets that are under way at a time.
const FORGETS_MAX: usize = 64;
/// Wide stripes that one record deletes, at most.
const WIDE_STRIPES_PER_RECORD: usize = 4;

/// Why chunks are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrimCause {
    /// The file was cut, or goes back to what it was.
    Cut,
    /// The file is gone.
    Removed,
}

/// Frees space of one node.
pub(crate) struct Reclaim {
    base: Rc<NodeBase>,
    xattrs: Rc<Xattrs>,
    /// Inodes that are gone and not trimmed yet, with their blocks that no record named.
    dead: RefCell<BTreeMap<u64, Vec<Run>>>,
    /// Files that were cut, and the first chunk that is gone: the store has it and those behind it
    /// still.
    cuts: RefCell<BTreeMap<u64, u64>>,
    /// One trim per inode.
    trimming: KeyedLock<u64>,
    /// Blocks that were allocated and not used, and that a cache could not discard yet.
    undiscarded: RefCell<Vec<Run>>,
    /// Hears of wide stripes that are not whole any more.
    queue: Rc<EncodeQueue>,
}

impl Reclaim {
    pub(crate) fn new(base: &Rc<NodeBase>, xattrs: Rc<Xattrs>, queue: Rc<EncodeQueue>) -> Self {
        Self {
            base: base.clone(),
            xattrs,
            dead: RefCell::default(),
            cuts: RefCell::default(),
            trimming: KeyedLock::default(),
            undiscarded: RefCell::default(),
            queue,
        }
    }

    /// An inode is gone, and with it its blocks that no record named.
    pub(crate) fn forget_removed(&self, ino: u64, unnamed: Vec<Run>) {
        self.cuts.borrow_mut().remove(&ino);
        self.dead.borrow_mut().insert(ino, unnamed);
    }

    /// A record has cut a file: its chunks from `first` on are gone.
    pub(crate) fn add_cut(&self, ino: u64, first: u64) {
        self.cuts.borrow_mut().insert(ino, first);
    }

    /// Is the store's chunk not the file's any more?
    pub(crate) fn is_cut_off(&self, ino: u64, index: u64) -> bool {
        self.cuts.borrow().get(&ino).is_some_and(|&first| index >= first)
    }

    /// Is space being freed? What could not be cut off yet is not waited for.
    pub(crate) fn is_any(&self) -> bool {
        !self.dead.borrow().is_empty() || !self.undiscarded.borrow().is_empty()
    }

    /// Nothing of the file is freed while this is held.
    pub(crate) async fn lock_trims(&self, ino: u64) -> KeyGuard<u64> {
        self.trimming.exclusive(ino).await
    }

    /// Frees what is left of a removed inode. Allocations wait for this; after a failure the caller
    /// retries.
    pub(crate) async fn trim(&self, ino: u64) -> Result<(), Error> {
        let _alone = self.trimming.exclusive(ino).await;
        let unnamed = self.dead.borrow_mut().get_mut(&ino).map(std::mem::take);
        let Some(unnamed) = unnamed else { return Ok(()) };
        let outcome = self.trim_all(ino, unnamed).await;
        // What is damaged stays damaged: no allocation shall wait for it.
        if matches!(outcome, Ok(()) | Err(Error::Damaged {})) {
            self.dead.borrow_mut().remove(&ino);
        }
        outcome
    }

    async fn trim_all(&self, ino: u64, unnamed: Vec<Run>) -> Result<(), Error> {
        self.discard_and_release(unnamed).await?;
        self.xattrs.trim_xattrs(ino).await?;
        // With the intent, so last.
        self.trim_chunks(ino, 0, TrimCause::Removed).await?;
        Ok(())
    }

    /// Frees what was cut off a file, if that is not done yet; the record after which it is. Before
    /// a file grows again, or what was cut off would be seen in it.
    pub(crate) async fn finish_cut(&self, ino: u64) -> Result<Position, Error> {
        if !self.is_cut_off(ino, u64::MAX) {
            return Ok(Position::default());
        }
        let _alone = self.trimming.exclusive(ino).await;
        let first = self.cuts.borrow().get(&ino).copied();
        let Some(first) = first else { return Ok(Position::default()) };
        let position = self.trim_chunks(ino, first, TrimCause::Cut).await?;
        self.cuts.borrow_mut().remove(&ino);
        Ok(position)
    }

    /// Deletes the wide stripes of `ino` all of whose chunks are from `first` on, and frees their
    /// blocks: those chunks are not the file's any more.
    async fn trim_wide_stripes(&self, ino: u64, first: u64) -> Result<(), Error> {
        let blocks = self.base.stripes.geometry().blocks_per_stripe();
        let (from, end) = (keys::wide_stripe(ino, first), keys::wide_stripes_end(ino));
        loop {
            let found =
                self.base.store.scan(Bound::Included(&from), &end, WIDE_STRIPES_PER_RECORD).await?;
            if found.is_empty() {
                // The one before may have lost some of its chunks.
                if let Some(last) = first.checked_sub(1)
                    && classes_of(&self.base.stripes.map()).have_wide_stripes()
                {
                    let together = chunks_together(self.base.class_at_hand(ino));
                    let now = self.base.context.now();
                    self.queue.note(ino, [first, last].into_iter(), (together, now));
                }
                return Ok(());
            }
            let mut freed = Vec::new();
            for (_, value) in &found {
                freed.extend(decode::<WideStripe>(value)?.runs(blocks));
            }
            let deletes = || {
                let mut batch = Batch::new();
                batch.take_from_reserve();
                for (key, _) in &found {
                    batch.delete(key.clone());
                }
                add_runs(&mut batch, &[], &freed);
                Ok((batch, ()))
            };
            self.base.records.record(deletes).await?;
        }
    }

    /// Deletes the chunks of `ino` from `first` on, frees their blocks, and then the intent.
    pub(crate) async fn trim_chunks(
        &self,
        ino: u64,
        first: u64,
        cause: TrimCause,
    ) -> Result<Position, Error> {
        self.trim_wide_stripes(ino, first).await?;
        let end = keys::chunks_end(ino);
        let most =
            chunks_per_record(&self.base.store, self.base.stripes.geometry().blocks_per_stripe())
                .min(RESERVE_CHUNKS_MAX);
        let mut chunks_per_record = most;
        loop {
            let from = keys::chunk(ino, first);
            let found =
                self.base.store.scan(Bound::Included(&from), &end, chunks_per_record).await?;
            let mut gone = Vec::with_capacity(found.len());
            for (key, value) in found {
                let index = keys::chunk_index(&key).ok_or(Error::Damaged {})?;
                gone.push((index, decode::<Chunk>(&value)?.disk_runs()));
            }
            let last = gone.len() < chunks_per_record;
            let deletes = || {
                let mut batch = Batch::new();
                batch.take_from_reserve();
                for (index, runs) in &gone {
                    batch.delete(keys::chunk(ino, *index));
                    add_runs(&mut batch, &[], runs);
                }
                // That of a file that was removed meanwhile is for all of it.
                let is_gone = self.dead.borrow().contains_key(&ino);
                if last && (cause == TrimCause::Removed || !is_gone) {
                    batch.delete(keys::trim_intent(ino));
                }
                Ok((batch, ()))
            };
            let (position, ()) = if chunks_per_record > 1 {
                match self.base.records.record_within(deletes).await {
                    // A smaller record needs less space, and brings some.
                    Err(Error::NoSpace {}) => {
                        chunks_per_record = 1;
                        continue;
                    }
                    recorded => recorded?,
                }
            } else {
                self.base.records.record(deletes).await?
            };
            chunks_per_record = (2 * chunks_per_record).min(most);
            if last {
                return Ok(position);
            }
        }
    }

    /// Finishes trims that a crash has interrupted. The files are not in use yet.
    pub(crate) async fn finish_trims(&self) -> Result<(), StoreError> {
        let (from, end) = keys::intents(keys::TRIMS);
        for (key, value) in self.base.store.scan(Bound::Included(&from), &end, usize::MAX).await? {
            let ino = keys::intent_number(&key).ok_or_else(bad_intent)?;
            let first = decode(&value).map_err(|_| bad_intent())?;
            if self.base.store.get(&keys::inode(ino)).await?.is_none() {
                self.xattrs.trim_xattrs(ino).await.map_err(|_| bad_intent())?;
            }
            self.trim_chunks(ino, first, TrimCause::Removed).await.map_err(|_| bad_intent())?;
        }
        Ok(())
    }

    /// Gives back blocks that no record named. Their content is discarded first: once a block is
    /// free the next owner may write it, and a late discard would hit that. What a cache cannot
    /// discard yet stays allocated until it can; that is no error for the caller.
    pub(crate) async fn discard_and_release(&self, runs: Vec<Run>) -> Result<(), Error> {
        let geometry = self.base.stripes.geometry();
        let forgets = runs.into_iter().map(|run| {
            let (stripe, offset) = geometry.block(run.start);
            let bytes = run.count * blockio::BLOCK_SIZE as u32;
            let forgotten = self.base.stripes.forget(stripe, offset, bytes);
            async move { (run, forgotten.await) }
        });
        let answers: Vec<_> = stream::iter(forgets).buffer_unordered(FORGETS_MAX).collect().await;
        let (mut forgotten, mut failure) = (Vec::with_capacity(answers.len()), None);
        for (run, answer) in answers {
            match answer {
                Ok(()) => forgotten.push(run),
                Err(error) => {
                    failure = Some(error);
                    self.undiscarded.borrow_mut().push(run);
                }
            }
        }
        if let Some(error) = failure {
            tracing::debug!(%error, "unused blocks stay allocated for now");
        }
        Ok(self.base.store.space().release(&forgotten)?)
    }

    /// Gives back what could not be given back before, as far as that goes now; then tells which
    /// inodes are gone and not trimmed yet.
    pub(crate) async fn list_untrimmed(&self) -> Vec<u64> {
        if let Err(error) = self.retry().await {
            tracing::debug!(%error, "what was cut off a file stays for now");
        }
        self.dead.borrow().keys().copied().collect()
    }

    async fn retry(&self) -> Result<(), Error> {
        let runs = self.undiscarded.take();
        if !runs.is_empty() {
            self.discard_and_release(runs).await?;
        }
        let cuts: Vec<u64> = self.cuts.borrow().keys().copied().collect();
        for ino in cuts {
            self.finish_cut(ino).await?;
        }
        Ok(())
    }
}

fn bad_intent() -> StoreError {
    StoreError::Damaged { what: "an intent to free blocks", block: 0 }
}
