//! Making changes durable, and freeing the blocks of removed files.

use blockio::volume_map::classes_of;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use futures::StreamExt as _;
use meta::protocol::{self as metadata, GetDirty, GetInode, RollBack, Seal};

use super::base::MetadataAccess;
use super::content::ContentAccess;
use super::errors::warn_of_retry;
use crate::protocol::{Attributes, Error, Handle, WccAttr, WriteResult};

/// Commits of one node that run at a time without being requested.
const COMMITS_MAX: usize = 16;

/// Rollbacks after lost writes that one request retries, at most.
const LOSSES_MAX: u32 = 8;

/// Bytes of a file that wait for a commit where whole chunks become wide stripes with it, before
/// one begins by itself: the caches have them still.
const AHEAD_BYTES: u64 = 32 << 20;

/// Makes the files of one node durable.
pub(super) struct FileCommits {
    pub(super) base: MetadataAccess,
    content: Rc<ContentAccess>,
    /// Files that are committed for that reason.
    ahead: RefCell<BTreeSet<u64>>,
}

/// The components that all readers and writers of content need.
pub(super) type ContentComponents = (MetadataAccess, Rc<ContentAccess>, Rc<FileCommits>);

impl FileCommits {
    pub(super) fn new(base: MetadataAccess, content: Rc<ContentAccess>) -> Self {
        Self { base, content, ahead: RefCell::default() }
    }

    /// Commits a file in the background, if much of it is to become wide stripes.
    pub(super) fn commit_ahead(self: &Rc<Self>, file: Handle) {
        let Handle { ino, generation } = file;
        if !classes_of(&self.content.stripes.map()).have_wide_stripes() {
            return;
        }
        let waiting =
            self.base.information.look(ino, generation, |known| Some(known.uncommitted()));
        let chunk_size = u64::from(self.content.geometry.stripe_size);
        let is_much = waiting.is_some_and(|chunks| chunks as u64 * chunk_size >= AHEAD_BYTES);
        if is_much && self.ahead.borrow_mut().insert(ino) {
            let me = self.clone();
            self.base.context.task(async move {
                // A commit that is asked for tells what goes wrong.
                if let Err(error) = me.commit_ino(ino).await {
                    tracing::debug!(%error, ino, "a file is not committed ahead of time");
                }
                me.ahead.borrow_mut().remove(&ino);
            });
        }
    }

    /// Makes all that was written to a file durable.
    pub(super) async fn commit(&self, file: &Handle) -> Result<WriteResult, Error> {
        self.base.attributes(*file).await?;
        self.commit_ino(file.ino).await
    }

    /// After a loss the file is as last committed; its write verifier has changed, so that all who
    /// wrote since find out.
    async fn commit_ino(&self, ino: u64) -> Result<WriteResult, Error> {
        let commit = async || {
            {
                // Running writes finish first; later ones go to new blocks.
                let _alone = self.content.files.exclusive(ino).await;
                self.base.meta_here(Seal { ino }).await?;
            }
            self.base.meta_here(metadata::Commit { ino }).await
        };
        let roll_back = async || {
            let _alone = self.content.files.exclusive(ino).await;
            self.roll_back_locked(ino).await
        };
        retry_after_rollback(commit, roll_back).await
    }

    /// After a loss: the file is as last committed. The caller has locked it.
    pub(super) async fn roll_back_locked(&self, ino: u64) -> Result<(), Error> {
        let before = self.base.information.write_verifier(ino);
        self.base.meta_here(RollBack { ino }).await?;
        if self.base.information.write_verifier(ino) != before {
            let Attributes { generation, .. } =
                self.base.meta_here(GetInode { ino, generation: 0 }).await?.attributes;
            let installed = self.base.installed(Handle { ino, generation }).await?;
            self.base.replays.note_loss(ino, &installed);
        }
        Ok(())
    }

    /// Commits what was `written` if `durable`.
    pub(super) async fn make_durable(
        &self,
        file: Handle,
        written: WriteResult,
        durable: bool,
    ) -> Result<WriteResult, Error> {
        if !durable {
            return Ok(written);
        }
        let committed = self.commit(&file).await?;
        if committed.write_verifier != written.write_verifier {
            return Err(Error::LostWrites {});
        }
        // Others may have written meanwhile.
        let is_as_written = WccAttr::of(&committed.attributes) == WccAttr::of(&written.attributes);
        let (before, sequence) = (written.before.filter(|_| is_as_written), written.sequence);
        Ok(WriteResult { before, sequence, ..committed })
    }

    /// Commits a file with an unreadable block. If the block was lost before it was committed, this
    /// restores the committed content.
    pub(super) async fn recover_lost_writes(&self, file: Handle) {
        if let Err(error) = self.commit(&file).await {
            tracing::warn!(%error, ino = file.ino, "a damaged file could not be committed");
        }
    }

    pub(super) async fn commit_dirty(&self, age_ms: u64) -> Result<(), Error> {
        let dirty = self.base.meta_here(GetDirty { age_ms }).await?;
        let commits = dirty.into_iter().map(|ino| self.commit_ino(ino));
        let mut outcomes = futures::stream::iter(commits).buffer_unordered(COMMITS_MAX);
        let mut first_failure = Ok(());
        while let Some(outcome) = outcomes.next().await {
            match outcome {
                // Removed meanwhile.
                Ok(_) | Err(Error::Stale {}) => {}
                Err(error) => first_failure = first_failure.and(Err(error)),
            }
        }
        first_failure
    }

    /// Makes everything of this node durable and writes a checkpoint.
    pub(super) async fn flush(&self) -> Result<(), Error> {
        self.commit_dirty(0).await?;
        self.base.note_undelegated().await?;
        self.base.meta_here(metadata::Flush {}).await
    }

    /// Frees the blocks of a removed file in the background.
    pub(super) fn trim_later(self: &Rc<Self>, ino: u64) {
        let me = self.clone();
        self.base.context.task(async move { me.trim(ino).await });
    }

    /// Frees the blocks of a removed file once its last reader has finished.
    pub(super) async fn trim(&self, ino: u64) {
        let _alone = self.content.files.exclusive(ino).await;
        if let Err(error) = self.base.meta_here(metadata::Trim { ino }).await {
            // The intent stays in the store: the next start of the node continues.
            warn_of_retry(error, "the blocks of a removed file could not be freed yet");
        }
    }
}

/// Runs `work`, and again after `roll_back` when a node has lost uncommitted writes.
pub(super) async fn retry_after_rollback<T>(
    work: impl AsyncFn() -> Result<T, Error>,
    roll_back: impl AsyncFn() -> Result<(), Error>,
) -> Result<T, Error> {
    for _ in 0..LOSSES_MAX {
        match work().await {
            Err(Error::LostWrites {}) => roll_back().await?,
            outcome => return outcome,
        }
    }
    Err(Error::LostWrites {})
}
