//! How a change of content becomes durable: data first, then the record that names the
//! new blocks with their checksums ([`Commit`](crate::protocol::Commit),
//! [`RollBack`](crate::protocol::RollBack)).

use std::collections::BTreeSet;
use std::rc::Rc;

use blockio::protocol::Unsynced;
use blockio::volume_map::classes_of;
use runtime::sync::KeyedLock;
use runtime::wire::to_bytes;

use super::chunk_records::{
    RESERVE_CHUNKS_MAX, TIGHT_CHUNKS_MAX, batch_of, chunks_per_record, first_gone,
};
use super::protect::ContentProtection;
use crate::active::{SealedState, Uncommitted, add_blocks};
use crate::attributes::WriteResult;
use crate::keys;
use crate::protocol::{Chunk, CommitMark, Error};
use crate::server::base::NodeBase;
use crate::server::partition_use::UseChange;
use crate::server::space::encode_queue::EncodeQueue;
use crate::server::space::reclaim::{Reclaim, TrimCause};
use crate::server::verifiers::WriteVerifiers;
use crate::store::{Position, StoreError, WritePauses};
use crate::wide_stripe::{chunks_together, may_change};

/// One commit, truncation or removal per inode.
pub(crate) type CommitLocks = Rc<KeyedLock<u64>>;

/// What a commit says that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitExtent {
    /// All that is sealed.
    Sealed,
    /// What the last one did: some of what is sealed was dropped, since it is about to be cut off.
    Unchanged,
}

/// Where the records of a commit find space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordRoom {
    /// Where those of all changes do.
    Usual,
    /// There too; there is so little that they must be short.
    Tight,
    /// What is kept back for deletions.
    Reserve,
}

/// Commits the content of the files of one node.
pub(crate) struct Commits {
    base: Rc<NodeBase>,
    reclaim: Rc<Reclaim>,
    verifiers: Rc<WriteVerifiers>,
    /// Hears of chunks that may become wide stripes.
    queue: Rc<EncodeQueue>,
    protection: ContentProtection,
    one_at_a_time: CommitLocks,
}

impl Commits {
    pub(crate) fn new(
        base: &Rc<NodeBase>,
        reclaim: Rc<Reclaim>,
        (verifiers, queue): (Rc<WriteVerifiers>, Rc<EncodeQueue>),
        one_at_a_time: CommitLocks,
    ) -> Self {
        let (base, protection) = (base.clone(), ContentProtection::new(base, reclaim.clone()));
        Self { base, reclaim, verifiers, queue, protection, one_at_a_time }
    }

    pub(crate) async fn commit(&self, ino: u64) -> Result<WriteResult, Error> {
        let (position, verified) = {
            let _alone = self.one_at_a_time.exclusive(ino).await;
            let _kept = self.base.inodes.keep(ino);
            self.base.inodes.load(ino, 0).await?;
            let position =
                if self.base.inodes.with(ino, |active| Ok(active.is_clean() && !active.lost))? {
                    // The log has it: only its own records are waited for, not what came after
                    // them.
                    self.last_record(ino)
                } else {
                    self.commit_locked(ino, CommitExtent::Sealed, false).await?
                };
            // A later loss is of what was written later.
            let write_verifier = self.verifiers.get(ino);
            let (attributes, committed) = self.base.inodes.with(ino, |active| {
                Ok((active.inode.attributes, active.stored.committed.sequence))
            })?;
            let before = None;
            (position, WriteResult { attributes, write_verifier, before, sequence: 0, committed })
        };
        // The next commit of the same file may join this flush.
        self.base.store.durable_unless(position, WritePauses::why).await?;
        self.note_durable(ino, verified.write_verifier, verified.committed);
        Ok(verified)
    }

    /// Later answers say that changes up to a number are durable, unless some were lost meanwhile.
    fn note_durable(&self, ino: u64, write_verifier: u64, sequence: u64) {
        if self.verifiers.get(ino) != write_verifier {
            return;
        }
        // It may have left memory.
        let _ = self.base.inodes.with(ino, |active| {
            active.durable_sequence = active.durable_sequence.max(sequence);
            Ok(())
        });
    }

    /// The place of the last record of an inode: what it has beside it (its chunks, its extended
    /// attributes) was recorded before that or with it. The start if that is durable.
    fn last_record(&self, ino: u64) -> Position {
        let (from, to) = keys::only(&keys::inode(ino));
        self.base.store.last_change(&from, &to)
    }

    pub(crate) async fn roll_back(&self, ino: u64) -> Result<(), Error> {
        let _alone = self.one_at_a_time.exclusive(ino).await;
        let _kept = self.base.inodes.keep(ino);
        self.base.inodes.load(ino, 0).await?;
        let (is_past_end, end) = self.base.inodes.with(ino, |active| {
            Ok((active.lost && active.is_past_end, active.stored.attributes.size))
        })?;
        if is_past_end {
            // A commit that failed had recorded chunks past the end to which the file goes back.
            self.reclaim
                .trim_chunks(
                    ino,
                    first_gone(end, self.base.stripes.geometry().stripe_size),
                    TrimCause::Cut,
                )
                .await?;
        }
        let Some(unnamed) = self.base.inodes.with(ino, |active| Ok(active.roll_back()))? else {
            return Ok(());
        };
        tracing::warn!(ino, "writes to a file were lost before they were committed");
        // The loss itself is to be recorded: its numbers are not there, whatever comes later.
        self.base.inodes.with_dirty(ino, |_| ())?;
        self.verifiers.change(ino);
        self.reclaim.discard_and_release(unnamed).await
    }

    /// Commits what is sealed; returns the position after which it is durable. With `from_reserve`
    /// it is a part of something that frees space.
    pub(crate) async fn commit_locked(
        &self,
        ino: u64,
        extent: CommitExtent,
        from_reserve: bool,
    ) -> Result<Position, Error> {
        // The intent to free what was cut off ends with a commit.
        self.reclaim.finish_cut(ino).await?;
        let blocks = self.base.stripes.geometry().blocks_per_stripe() as usize;
        let (dropped, sealed) = self.base.inodes.with(ino, |active| {
            if active.lost {
                return Err(Error::LostWrites {});
            }
            // In one moment: a later seal is of the next commit.
            Ok((active.begin_commit(blocks), active.sealed_state.clone()))
        })?;
        self.reclaim.discard_and_release(dropped).await?;
        let (changes, committed) = self.base.inodes.with(ino, |active| {
            // What was written since the seal waits for the next commit.
            if active.is_sealed() {
                active.dirty_since = None;
            }
            active.is_being_committed = true;
            let changes = active.committing_changes();
            let is_covered = extent == CommitExtent::Sealed;
            let committed =
                if is_covered { sealed.mark.clone() } else { active.inode.committed.clone() };
            Ok((changes, committed))
        })?;
        // What was accepted is committed, however full the volume is.
        let usual = if from_reserve { RecordRoom::Reserve } else { RecordRoom::Usual };
        let what = (sealed, committed);
        let mut outcome = self.record_changes(ino, what.clone(), changes, usual).await;
        for room in [RecordRoom::Tight, RecordRoom::Reserve] {
            if outcome == Err(Error::NoSpace {}) && usual == RecordRoom::Usual {
                let changes =
                    self.base.inodes.with(ino, |active| Ok(active.committing_changes()))?;
                outcome = self.record_changes(ino, what.clone(), changes, room).await;
            }
        }
        if let Err(error) = &outcome {
            // Still uncommitted: the next commit tries again, unless the file is gone.
            let lost = *error == Error::LostWrites {};
            let _ = self.base.inodes.with_dirty(ino, |active| {
                active.is_being_committed = false;
                active.lost |= lost;
            });
        }
        outcome
    }

    async fn record_changes(
        &self,
        ino: u64,
        what: (SealedState, CommitMark),
        changes: Vec<(u64, Uncommitted)>,
        room: RecordRoom,
    ) -> Result<Position, Error> {
        let mut changes = self.protection.protect(ino, changes).await?;
        let outcome = self.record_protected(ino, what, &mut changes, room).await;
        if outcome.is_err() {
            self.protection.abandon(&changes).await?;
        }
        outcome
    }

    /// Records changes, and takes those away that are recorded.
    async fn record_protected(
        &self,
        ino: u64,
        (sealed, committed): (SealedState, CommitMark),
        changes: &mut Vec<(u64, Uncommitted)>,
        room: RecordRoom,
    ) -> Result<Position, Error> {
        let written = changes.iter().flat_map(|(_, change)| &change.written);
        let written: BTreeSet<Unsynced> = written.copied().collect();
        if !written.is_empty() {
            let synced = self.base.stripes.sync(written.into_iter().collect()).await;
            synced.map_err(StoreError::from)?;
        }
        // Holes too must find their way into the log of a full volume.
        let from_reserve =
            room == RecordRoom::Reserve || count_freed(changes) > count_taken(changes);
        let most = match room {
            RecordRoom::Usual if from_reserve => RESERVE_CHUNKS_MAX,
            RecordRoom::Usual => usize::MAX,
            RecordRoom::Tight => TIGHT_CHUNKS_MAX,
            RecordRoom::Reserve => RESERVE_CHUNKS_MAX,
        };
        let most =
            chunks_per_record(&self.base.store, self.base.stripes.geometry().blocks_per_stripe())
                .min(most);
        let end = self.base.inodes.with(ino, |active| Ok(active.stored.attributes.size))?;
        let stripe_size = self.base.stripes.geometry().stripe_size;
        put_last(changes, end / u64::from(stripe_size));
        // The inode goes with the last part: its size must not promise content that no record
        // names.
        loop {
            let part = part_length(changes, most);
            if part == changes.len() {
                break;
            }
            let early = &changes[..part];
            self.record_early(ino, early, first_gone(end, stripe_size), from_reserve).await?;
            let early: Vec<_> = changes.drain(..part).collect();
            self.protection.conclude(&early).await?;
        }
        let last = &changes[..];
        let make = || {
            self.base.inodes.with(ino, |active| {
                // Links, owner and the like may have changed, in records of their own, while
                // the content became durable.
                let mut stored = active.inode.clone();
                stored.attributes.size = sealed.size;
                stored.attributes.used_bytes = sealed.used_bytes;
                stored.committed = committed.clone();
                let mut batch = batch_of(ino, last, from_reserve);
                batch.put(keys::inode(ino), stored.to_stored());
                let used = UseChange::of(&active.stored, &stored);
                self.base.inodes.uses().put(&[used], &mut batch);
                let appends = active.appends_up_to(sealed.mark.sequence);
                self.base.replies.put_all(&appends, self.base.context.now(), &mut batch);
                if active.is_past_end {
                    batch.delete(keys::trim_intent(ino));
                }
                Ok((batch, (stored, appends, used)))
            })
        };
        let (position, (stored, appends, used)) = self.base.records.record(make).await?;
        self.base.inodes.uses().committed(&[used]);
        for &reply in &appends {
            self.base.replies.stored(reply, self.base.context.now(), position, None);
        }
        self.base.inodes.note_remembered(last.len());
        self.note_recorded(ino, last);
        let blocks = self.base.stripes.geometry().blocks_per_stripe() as usize;
        self.base.inodes.with(ino, |active| {
            for (index, change) in last {
                active.committed(*index, &change.chunk, blocks);
            }
            active.is_past_end = false;
            active.appends.retain(|(number, _)| *number > sealed.mark.sequence);
            active.inode.committed = stored.committed.clone();
            active.stored = stored;
            active.is_being_committed = false;
            if active.dirty_since.is_none() {
                self.base.inodes.clear_dirty(ino);
            }
            Ok(())
        })?;
        self.protection.conclude(&std::mem::take(changes)).await?;
        Ok(position)
    }

    /// The store has these chunks now: they may become wide stripes, or be of another class, or
    /// leave dead blocks in their wide stripes.
    fn note_recorded(&self, ino: u64, chunks: &[(u64, Uncommitted)]) {
        let classes = classes_of(&self.base.stripes.map());
        if classes.have_wide_stripes() || classes.differ() {
            let class = self.base.class_at_hand(ino);
            let blocks = u64::from(self.base.stripes.geometry().blocks_per_stripe());
            let has_holes =
                |chunk: &Chunk| class.wide_stripes().is_some() && chunk.count() < blocks;
            let is_left = |change: &Uncommitted| {
                // The class may have changed since it was read for the wide stripe.
                let shape = change.encoded.as_ref().map(|encoded| encoded.wide.shape());
                may_change(class, &change.chunk)
                    || has_holes(&change.chunk)
                    || shape.is_some() && shape != class.wide_stripes()
            };
            let left = chunks.iter().filter(|(_, change)| is_left(change));
            let indices = left.map(|(index, _)| *index);
            self.queue.note(ino, indices, (chunks_together(class), self.base.context.now()));
        }
    }

    /// Records changed chunks before the size and times that go with them. What is past the end of
    /// the file as the store knows it, from chunk `first_gone` on, must not be found there after a
    /// crash: the file would show it when it grows. So an intent frees that, unless the size is
    /// recorded.
    async fn record_early(
        &self,
        ino: u64,
        part: &[(u64, Uncommitted)],
        first_gone: u64,
        from_reserve: bool,
    ) -> Result<(), Error> {
        let is_past_end = part.iter().any(|(index, _)| *index >= first_gone);
        let within = part.iter().filter(|(index, _)| *index < first_gone);
        let more_blocks = within.map(|(_, change)| change.more_blocks).sum();
        let make = || {
            self.base.inodes.with(ino, |active| {
                let mut stored = active.stored.clone();
                add_blocks(&mut stored, more_blocks);
                let mut batch = batch_of(ino, part, from_reserve);
                batch.put(keys::inode(ino), stored.to_stored());
                let used = UseChange::of(&active.stored, &stored);
                self.base.inodes.uses().put(&[used], &mut batch);
                if is_past_end {
                    batch.put(keys::trim_intent(ino), to_bytes(&first_gone));
                }
                Ok((batch, (stored, used)))
            })
        };
        let (_, (stored, used)) = self.base.records.record(make).await?;
        self.base.inodes.uses().committed(&[used]);
        self.base.inodes.note_remembered(part.len());
        self.note_recorded(ino, part);
        let blocks = self.base.stripes.geometry().blocks_per_stripe() as usize;
        self.base.inodes.with(ino, |active| {
            for (index, change) in part {
                active.committed(*index, &change.chunk, blocks);
            }
            active.stored = stored;
            active.is_past_end |= is_past_end;
            Ok(())
        })
    }
}

/// How many changes, from the first one on, are recorded together in any case.
fn together(changes: &[(u64, Uncommitted)]) -> usize {
    let first = changes.first().and_then(|(_, change)| change.encoded.as_ref());
    first.map_or(1, |encoded| encoded.wide.data.len()).min(changes.len())
}

/// Puts the change of chunk `end`, in which the file ends, last, with those of its wide stripe.
fn put_last(changes: &mut [(u64, Uncommitted)], end: u64) {
    let mut at = 0;
    while at < changes.len() {
        let count = together(&changes[at..]);
        if changes[at..at + count].iter().any(|(index, _)| *index == end) {
            changes[at..].rotate_left(count);
            return;
        }
        at += count;
    }
}

/// How many changes go into the next record, `most` if they may be apart.
fn part_length(changes: &[(u64, Uncommitted)], most: usize) -> usize {
    let mut length = together(changes);
    while length < changes.len() {
        let next = together(&changes[length..]);
        if length + next > most {
            break;
        }
        length += next;
    }
    length
}

fn count_taken(changes: &[(u64, Uncommitted)]) -> u64 {
    changes.iter().flat_map(|(_, change)| &change.taken).map(|run| u64::from(run.count)).sum()
}

fn count_freed(changes: &[(u64, Uncommitted)]) -> u64 {
    changes.iter().flat_map(|(_, change)| &change.freed).map(|run| u64::from(run.count)).sum()
}
