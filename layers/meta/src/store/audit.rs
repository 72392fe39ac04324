//! Reading everything, to check it.

use bytes::Bytes;

use super::Store;
use super::error::{StoreError, StoreResult};
use super::groups::Run;
use super::page::PageRef;

/// What every block of a node is used for. Busy blocks that are in none of the lists are loaned, or
/// wait until what freed them is durable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Pages of the tree, all copies of each.
    pub tree: Vec<Run>,
    /// Pages of the space map, likewise.
    pub map: Vec<Run>,
    /// Stripes of the log.
    pub log: Vec<Run>,
    /// Everything that batches hold: the tree, and the blocks they named.
    pub kept: Vec<Run>,
    /// Everything that is not to be handed out.
    pub busy: Vec<Run>,
    /// Keys in the tree.
    pub keys: u64,
}

impl Store {
    /// Reads every page of the tree and checks it: checksum, identity, order of the keys, counts.
    /// `Busy` if a checkpoint came between.
    pub async fn audit(&self) -> StoreResult<Audit> {
        let root = self.state.borrow().root;
        let mut audit = Audit::default();
        let (mut last_key, mut pages, mut incomplete) = (None, 0, 0);
        let mut todo: Vec<(PageRef, u8)> =
            root.tree.top.map(|top| (top, root.tree.height - 1)).into_iter().collect();
        while let Some((place, level)) = todo.pop() {
            let page = self.pages.load(place, level).await.map_err(|error| {
                if self.generation() == root.generation { error } else { StoreError::Busy }
            })?;
            audit.tree.extend(place.runs());
            pages += 1;
            incomplete += u64::from(place.has_fewer_than(self.pages.device.copies));
            if level > 0 {
                for index in (0..page.len()).rev() {
                    let child = page.child(index).map_err(|_| place.damaged("a tree page"))?;
                    todo.push((child, level - 1));
                }
                continue;
            }
            let first = Some(page.entry(0).0);
            if last_key >= first {
                return Err(place.damaged("the order of the leaves"));
            }
            last_key = Some(page.entry(page.len() - 1).0) as Option<Bytes>;
            audit.keys += page.len() as u64;
        }
        self.finish_audit(audit, (pages, incomplete), root.generation)
    }

    fn finish_audit(
        &self,
        mut audit: Audit,
        (pages, incomplete): (u64, u64),
        generation: u64,
    ) -> StoreResult<Audit> {
        let state = self.state.borrow();
        if state.root.generation != generation || state.checkpointing {
            return Err(StoreError::Busy);
        }
        let tree = &state.root.tree;
        if (audit.keys, pages, incomplete) != (tree.keys, tree.pages, tree.incomplete) {
            let top = tree.top.unwrap_or_default();
            return Err(top.damaged("the count of keys or pages of the tree"));
        }
        audit.tree.sort_unstable();
        audit.map = state.map_pages.iter().flat_map(PageRef::runs).collect();
        let layout = &state.space.layout;
        audit.log = state.log.stripes().map(|stripe| layout.stripe_run(stripe)).collect();
        audit.kept = state.space.kept_runs();
        audit.busy = state.space.busy_runs();
        Ok(audit)
    }
}
