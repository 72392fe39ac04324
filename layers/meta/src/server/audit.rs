//! Reading all metadata of a node, to check it: what is there, and whether its space is exact.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use super::{MetaServer, decode};
use crate::attributes::{Attributes, Kind, Name, XattrName};
use crate::keys;
use crate::protocol::{Chunk, Dentry, Inode, Run, StoredReply};
use crate::store::{Audit, StoreError, VALUE_BYTES_MAX};

/// Tries of an audit that a checkpoint disturbs.
const TRIES_MAX: u32 = 20;
/// The pause before the next one.
const AGAIN_PAUSE: Duration = Duration::from_millis(20);

/// All metadata of one node, durable or not; or of several, see [`join`](Self::join).
#[derive(Clone, Debug, Default)]
pub struct NodeAudit {
    /// Its inodes.
    pub inodes: Vec<Inode>,
    /// Its names: the directory, the name, what it names.
    pub names: Vec<(u64, Name, Dentry)>,
    /// Blocks that the chunks of each file name.
    pub blocks: BTreeMap<u64, u64>,
    /// Bytes in each piece of each extended attribute, by inode and name.
    pub xattrs: BTreeMap<(u64, Vec<u8>), Vec<usize>>,
    /// Inodes whose removal, or cut, is not done to its end.
    pub trims: BTreeSet<u64>,
    /// Groups given to another node, or come from one, of which the two have not agreed yet.
    pub passing_groups: u64,
    /// Effects promised to other nodes, not yet known to be durable there.
    pub promises: u64,
    /// Effects of other nodes' promises that are remembered as applied.
    pub applied: u64,
    /// Files without a name that somebody may have open.
    pub unlinked: Vec<u64>,
    /// The allocation groups that it owns.
    pub groups: Vec<u64>,
    /// The count of inodes that the node keeps.
    pub inode_count: u64,
    /// What contradicts itself, in words. Empty on a sound node.
    pub flaws: Vec<String>,
}

impl MetaServer {
    /// Reads everything and compares the space in use with what is named. `Busy` if a checkpoint
    /// came between again and again; changes of the node meanwhile are told as flaws.
    pub async fn audit(&self) -> Result<NodeAudit, StoreError> {
        for _ in 1..TRIES_MAX {
            match self.audit_once().await {
                Err(StoreError::Busy) => self.context.sleep(AGAIN_PAUSE).await,
                outcome => return outcome,
            }
        }
        self.audit_once().await
    }

    async fn audit_once(&self) -> Result<NodeAudit, StoreError> {
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
        found.check_xattrs();
        if found.inodes.len() as u64 != found.inode_count {
            let (inodes, count) = (found.inodes.len(), found.inode_count);
            found.flaws.push(format!("{inodes} inodes are there, {count} are counted"));
        }
        found.check_unlinked();
        Ok(found)
    }
}

impl NodeAudit {
    /// Adds what another node holds.
    pub fn join(&mut self, other: Self) {
        self.inodes.extend(other.inodes);
        self.names.extend(other.names);
        for (ino, blocks) in other.blocks {
            *self.blocks.entry(ino).or_default() += blocks;
        }
        self.xattrs.extend(other.xattrs);
        self.unlinked.extend(other.unlinked);
        self.trims.extend(other.trims);
        self.passing_groups += other.passing_groups;
        self.promises += other.promises;
        self.groups.extend(other.groups);
        self.applied += other.applied;
        self.inode_count += other.inode_count;
        self.flaws.extend(other.flaws);
    }

    /// Extended attributes belong to an inode of the node, or to one that is being trimmed, and have
    /// only whole pieces but the last.
    fn check_xattrs(&mut self) {
        let inodes: BTreeSet<u64> = self.inodes.iter().map(|inode| inode.attributes.ino).collect();
        for ((ino, name), lengths) in &self.xattrs {
            if !inodes.contains(ino) && !self.trims.contains(ino) {
                let name = String::from_utf8_lossy(name);
                self.flaws.push(format!("{name} belongs to inode {ino}, which is not there"));
            }
            let last = lengths.len() - 1;
            if lengths[..last].iter().any(|&length| length != VALUE_BYTES_MAX) {
                self.flaws.push(format!("an extended attribute of inode {ino} lacks a piece"));
            }
        }
    }

    /// A file without a name has a mark, and nothing else has.
    fn check_unlinked(&mut self) {
        let is_unlinked =
            |attributes: &Attributes| attributes.links == 0 && attributes.kind == (Kind::File {});
        let nameless = self.inodes.iter().map(|inode| &inode.attributes);
        let nameless: Vec<u64> =
            nameless.filter(|file| is_unlinked(file)).map(|file| file.ino).collect();
        if nameless != self.unlinked {
            let marked = &self.unlinked;
            self.flaws.push(format!("files {nameless:?} have no name, {marked:?} are marked so"));
        }
    }

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
            keys::Table::Intent => match keys::intent_kind(key)? {
                keys::TRIMS => drop(self.trims.insert(keys::intent_number(key)?)),
                keys::GRANTS | keys::ARRIVALS => self.passing_groups += 1,
                keys::PROMISES => self.promises += 1,
                _ => return None,
            },
            keys::Table::Count | keys::Table::Held => {}
            keys::Table::Unlinked => self.unlinked.push(keys::number(key, 1)?),
            keys::Table::Applied => self.applied += 1,
            keys::Table::Reply => drop(decode::<StoredReply>(value).ok()?),
            keys::Table::Xattr => {
                let (name, piece) = keys::xattr_parts(key)?;
                XattrName::new(name.to_vec()).ok()?;
                let of = (keys::number(key, 1)?, name.to_vec());
                let lengths: &mut Vec<usize> = self.xattrs.entry(of).or_default();
                if usize::from(piece) != lengths.len() {
                    return None;
                }
                lengths.push(value.len());
            }
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
