//! Reading all metadata of a node, to check it: what is there, and whether its space is exact.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::{MetaServer, decode};
use crate::attributes::Name;
use crate::keys;
use crate::protocol::{Chunk, Dentry, Inode, Run};
use crate::store::{Audit, StoreError};

/// All metadata of one node, durable or not.
#[derive(Clone, Debug, Default)]
pub struct NodeAudit {
    /// Its inodes.
    pub inodes: Vec<Inode>,
    /// Its names: the directory, the name, what it names.
    pub names: Vec<(u64, Name, Dentry)>,
    /// Blocks that the chunks of each file name.
    pub blocks: BTreeMap<u64, u64>,
    /// Things still to be done: space to be trimmed, effects at other nodes.
    pub intents: u64,
    /// The allocation groups that it owns.
    pub groups: Vec<u64>,
    /// What it remembers of groups that it gave or got and that are not settled yet.
    pub groups_on_their_way: u64,
    /// The count of inodes that the node keeps.
    pub inode_count: u64,
    /// What contradicts itself, in words. Empty on a sound node.
    pub flaws: Vec<String>,
}

impl MetaServer {
    /// Reads everything and compares the space in use with what is named. `Busy` if a checkpoint
    /// came between; changes of the node meanwhile are told as flaws.
    pub async fn audit(&self) -> Result<NodeAudit, StoreError> {
        let space = self.store.space();
        let audit = self.store.audit().await?;
        let mut found = NodeAudit {
            inode_count: self.inode_count.get(),
            groups: self.store.groups(),
            ..NodeAudit::default()
        };
        let mut used = audit.tree.clone();
        for (key, value) in self.store.scan(Bound::Unbounded, &[u8::MAX], usize::MAX).await? {
            if found.take(&key, &value, &mut used).is_none() {
                found.flaws.push(format!("a key that means nothing: {key:?}"));
            }
        }
        if flat(used) != flat(audit.kept.clone()) {
            found.flaws.push("the blocks in use are not those that are named".to_owned());
        }
        let count = |runs: &[Run]| runs.iter().map(|run| u64::from(run.count)).sum::<u64>();
        let Audit { map, log, kept, busy, .. } = &audit;
        let reasons = count(kept) + count(map) + count(log);
        let passing = space.waiting_blocks + space.loaned_blocks;
        if count(busy) != reasons + passing {
            let busy = count(busy);
            let flaw = format!("{busy} blocks are busy, {reasons} + {passing} have a reason to be");
            found.flaws.push(flaw);
        }
        if found.inodes.len() as u64 != found.inode_count {
            let (inodes, count) = (found.inodes.len(), found.inode_count);
            found.flaws.push(format!("{inodes} inodes are there, {count} are counted"));
        }
        Ok(found)
    }
}

impl NodeAudit {
    /// Takes one key of the store; `None` if it cannot be read.
    fn take(&mut self, key: &[u8], value: &[u8], used: &mut Vec<Run>) -> Option<()> {
        match keys::table_of(key)? {
            keys::Table::Inode => self.inodes.push(decode(value).ok()?),
            keys::Table::Chunk => {
                let chunk: Chunk = decode(value).ok()?;
                *self.blocks.entry(keys::number(key, 1)?).or_default() += chunk.count();
                used.extend(chunk.disk_runs());
            }
            keys::Table::Name => {
                let (_, name) = keys::name_parts(key)?;
                let name = Name::new(name.to_vec()).ok()?;
                self.names.push((keys::number(key, 1)?, name, decode(value).ok()?));
            }
            keys::Table::Intent if keys::is_of_groups(key) => self.groups_on_their_way += 1,
            keys::Table::Intent => self.intents += 1,
            keys::Table::Count => {}
        }
        Some(())
    }
}

/// The same blocks in as few runs as possible, in order. A block that is named twice stays twice.
fn flat(mut runs: Vec<Run>) -> Vec<(u64, u64)> {
    runs.sort_unstable();
    let mut flat: Vec<(u64, u64)> = Vec::new();
    for run in runs {
        let blocks = run.blocks();
        match flat.last_mut() {
            Some((_, end)) if *end == blocks.start => *end = blocks.end,
            _ => flat.push((blocks.start, blocks.end)),
        }
    }
    flat
}
