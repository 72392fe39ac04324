//! The audit of a node that runs.

use std::ops::Bound;
use std::time::Duration;

use super::MetaServer;
use crate::audit::{BlockOwner, Flaw, NodeAudit, UsedBlocks, compare};
use crate::protocol::Run;
use crate::store::{Audit, GroupLayout, StoreError};

/// Tries of an audit that a checkpoint disturbs.
const TRIES_MAX: u32 = 20;
/// The pause before the next one.
const AGAIN_PAUSE: Duration = Duration::from_millis(20);

impl MetaServer {
    /// Reads everything and compares the space in use with what is named. `Busy` if a checkpoint
    /// came between again and again; changes of the node meanwhile are reported as flaws.
    pub async fn audit(&self) -> Result<NodeAudit, StoreError> {
        for _ in 1..TRIES_MAX {
            match self.audit_once().await {
                Err(StoreError::Busy) => self.base.context.sleep(AGAIN_PAUSE).await,
                outcome => return outcome,
            }
        }
        self.audit_once().await
    }

    async fn audit_once(&self) -> Result<NodeAudit, StoreError> {
        let space = self.base.store.space().status();
        let audit = self.base.store.audit().await?;
        let volume_map = self.base.stripes.map();
        let mut found = NodeAudit {
            node: self.base.node,
            nodes: self.base.context.fs_nodes(),
            chunk_blocks: self.base.stripes.geometry().blocks_per_stripe(),
            set_ends: GroupLayout::of(&self.base.stripes.map()).set_ends(),
            adopted_sets: self.base.stripes.map().born_sets() as u64,
            groups: self.base.store.space().groups(),
            owned_blocks: space.owned_blocks,
            free_blocks: space.free_blocks,
            ..NodeAudit::default()
        };
        let Audit { tree, map, log, kept, busy, .. } = audit;
        let mut used = Vec::new();
        for (runs, owner) in
            [(&tree, BlockOwner::Tree), (&map, BlockOwner::Map), (&log, BlockOwner::Log)]
        {
            used.extend(runs.iter().map(|&run| UsedBlocks { run, owner }));
        }
        for (key, value) in self.base.store.scan(Bound::Unbounded, &[u8::MAX], usize::MAX).await? {
            if let Some(entry) = found.take(&key, &value, &mut used) {
                found.check_copies(&volume_map, &entry);
            }
        }
        found.inode_count = self.base.inodes.count();
        compare(self.base.node, used, &kept, &mut found.flaws);
        let count = |runs: &[Run]| runs.iter().map(|run| u64::from(run.count)).sum::<u64>();
        let reasons = count(&kept) + count(&map) + count(&log);
        let passing = space.waiting_blocks + space.loaned_blocks;
        if count(&busy) != reasons + passing {
            let busy = count(&busy);
            let what = format!("{busy} blocks are busy, {reasons} + {passing} have a reason to be");
            let thing = format!("the space of node {}", self.base.node);
            found.flaws.push(Flaw::new(thing, what, "start the node again"));
        }
        found.check();
        Ok(found)
    }
}
