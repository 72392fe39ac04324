//! Moving pages of the tree out of groups that are being emptied, or off a disk: what a checkpoint
//! changes goes to a fresh place, so it is enough to let it write them.

use blockio::has_lost_disk;

use super::StoreSpace;
use super::batch::Batch;
use super::error::{StoreError, StoreResult};
use super::page::PageRef;
use super::page_copies::PageCopies;
use super::space::MoveReason;
use super::state::LEFT_SEGMENTS_MAX;
use super::tree::TreeRoot;

impl StoreSpace<'_> {
    /// Moves pages of the tree, and with them the space map and the log up to now, away from where
    /// they are, as far as they move for this reason. All of them, unless the space for that is
    /// missing or the tree changes meanwhile: then the caller repeats it.
    pub async fn move_pages(&self, reason: MoveReason) -> StoreResult<()> {
        let (tree, generation) = {
            let root = self.0.state.borrow().root;
            (root.tree, root.generation)
        };
        let touched = self.touch_pages(tree, generation, reason).await;
        // The tree that was read may be gone: the next call looks at the new one.
        if self.0.generation() == generation {
            touched?;
        }
        if has_lost_disk(&self.0.pages.device.map())
            && let Some(store) = self.0.me.upgrade()
        {
            PageCopies::of(&store).make_missing().await?;
        }
        self.move_log(reason).await
    }

    /// Moves the log up to now away from where it is, likewise, and from disks that are behind.
    pub async fn move_log(&self, reason: MoveReason) -> StoreResult<()> {
        for _ in 0..LEFT_SEGMENTS_MAX {
            if !self.0.state.borrow_mut().leave_moving_segment(reason) {
                break;
            }
            self.commit_nothing().await?;
        }
        self.checkpoint_again().await
    }

    /// Lets the log go on in its next segment, and gives all before that back.
    pub async fn restart_log(&self) -> StoreResult<()> {
        self.0.state.borrow_mut().log.leave_segment();
        self.commit_nothing().await?;
        self.checkpoint_again().await
    }

    /// A record that changes nothing, for which the log goes to its next segment if it is to.
    async fn commit_nothing(&self) -> StoreResult<()> {
        let position = self.0.commit(Batch::new())?;
        self.0.durable(position).await
    }

    /// The number of the newest record.
    pub fn newest_record(&self) -> u64 {
        self.0.state.borrow().log.last
    }

    /// Starts a checkpoint if at least `keys` keys have changed since the last one, or data is kept
    /// from space that is for it.
    pub fn checkpoint_if_changed(&self, keys: u64) {
        let is_due = {
            let state = self.0.state.borrow();
            state.active.keys() >= keys || state.checkpoint_keeps_space()
        };
        if is_due {
            self.0.start_checkpoint();
        }
    }

    /// Lets the next checkpoint write all pages that move.
    async fn touch_pages(
        &self,
        tree: TreeRoot,
        generation: u64,
        reason: MoveReason,
    ) -> StoreResult<()> {
        let top = tree.top.map(|top| (top, tree.height.saturating_sub(1), false));
        let mut todo: Vec<(PageRef, u8, bool)> = top.into_iter().collect();
        while let Some((place, level, is_parent_moved)) = todo.pop() {
            let moves = is_parent_moved || place.runs().any(|run| self.moves(run.start, reason));
            if level == 0 && !moves {
                continue;
            }
            let page = self.0.pages.load(place, level).await?;
            if level > 0 {
                for index in 0..page.len() {
                    let child = page.child(index).map_err(|_| place.damaged("a tree page"))?;
                    // One leaf is enough for all the pages above it.
                    todo.push((child, level - 1, moves && index == 0));
                }
                continue;
            }
            let (key, value) = page.entry(0);
            let mut state = self.0.state.borrow_mut();
            if state.root.generation != generation || !state.touch(key, value) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Writes a checkpoint that begins after this call, whether there is something to write or not.
    async fn checkpoint_again(&self) -> StoreResult<()> {
        let running = self.0.state.borrow().checkpointing.then(|| self.0.checkpointed.next());
        if let Some(running) = running {
            running.await;
        }
        let finished = self.0.checkpointed.next();
        self.0.start_checkpoint();
        if let Some(stopped) = self.0.state.borrow().stopped {
            return Err(stopped);
        }
        finished.await;
        let error: Option<StoreError> = self.0.state.borrow().checkpoint_error;
        error.map_or(Ok(()), Err)
    }
}
