//! What one node holds, by its keys.

use std::collections::{BTreeMap, BTreeSet};

use blockio::{RedundancyClass, VolumeMap};
use runtime::wire::{Wire, from_bytes};

use super::files::{BadData, LostKeys};
use super::flaw::{COPY_OUT, Flaw, Flaws, REPLACE};
use super::space::{BlockOwner, UsedBlocks};
use super::wide_stripes::{WideStripeAudit, check_places};
use crate::attributes::{Attributes, Kind, Name, XattrName};
use crate::hash::{ino_node, name_node};
use crate::keys;
use crate::partition::{PartitionNumber, partition_of};
use crate::protocol::{
    Chunk, Dentry, Effect, Inode, IntentId, PartitionUse, Run, StoredReply, WideStripe,
};
use crate::scrub_progress::ScrubProgress;
use crate::store::VALUE_BYTES_MAX;
use crate::wide_stripe::is_stored_as;

/// All metadata of one node, durable or not; or of several, see [`join`](Self::join).
#[derive(Clone, Debug, Default)]
pub struct NodeAudit {
    /// The node; the last one, if several were joined.
    pub node: u32,
    /// Nodes of the volume.
    pub nodes: u32,
    /// Blocks in one chunk.
    pub chunk_blocks: u32,
    /// The number of groups of all sets up to each.
    pub set_ends: Vec<u64>,
    /// Sets of which it has taken over its groups; of several nodes, the one with the fewest.
    pub adopted_sets: u64,
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
    /// Groups that were given and may not have been taken yet.
    pub granted: BTreeSet<u64>,
    /// Intents of effects at other nodes, not yet known to be durable there.
    pub intents: u64,
    /// These intents.
    pub open_intents: BTreeMap<IntentId, Vec<Effect>>,
    /// Effects of other nodes' intents that are marked as applied.
    pub applied: u64,
    /// Of these, by the node that has applied them.
    pub marks: BTreeSet<(u32, IntentId)>,
    /// Files without a name that may be open.
    pub unlinked: Vec<u64>,
    /// Nodes of which files may be open.
    pub holding_nodes: BTreeSet<u32>,
    /// Stored replies.
    pub replies: u64,
    /// The allocation groups that it owns.
    pub groups: Vec<u64>,
    /// Blocks in them.
    pub owned_blocks: u64,
    /// Blocks that are free.
    pub free_blocks: u64,
    /// The count of inodes that the node keeps.
    pub inode_count: u64,
    /// The counts of what partitions use that it keeps.
    pub(crate) partition_uses: BTreeMap<PartitionNumber, PartitionUse>,
    /// Nodes of which not everything could be read: what they held is not known.
    pub lost: BTreeSet<u32>,
    /// Of these, the nodes of which nothing could be read.
    pub(crate) lost_nodes: BTreeSet<u32>,
    /// Keys that could not be read.
    pub(crate) lost_keys: Vec<LostKeys>,
    /// Data that could not be read, by inode.
    pub(crate) bad_data: BTreeMap<u64, BadData>,
    /// Its wide stripes, until they were compared with its chunks.
    pub(crate) wide_stripes: WideStripeAudit,
    /// The classes of files that have one of their own.
    pub(crate) classes: BTreeMap<u64, RedundancyClass>,
    /// Files of which something is not stored as their class wants, yet.
    pub unfit: BTreeSet<u64>,
    /// What contradicts itself. Empty on a sound node.
    pub flaws: Flaws,
}

/// A value that names data.
#[derive(Debug)]
pub(crate) enum DataEntry {
    Chunk { ino: u64, index: u64, chunk: Chunk },
    WideStripe { ino: u64, first: u64, wide: WideStripe },
}

fn value<T: Wire>(bytes: &[u8]) -> Option<T> {
    from_bytes(bytes).ok()
}

impl NodeAudit {
    /// Adds what another node holds.
    pub fn join(&mut self, other: Self) {
        self.node = other.node;
        self.nodes = self.nodes.max(other.nodes);
        self.chunk_blocks = self.chunk_blocks.max(other.chunk_blocks);
        let is_first = self.set_ends.is_empty();
        let adopted = if is_first { u64::MAX } else { self.adopted_sets };
        self.adopted_sets = adopted.min(other.adopted_sets);
        self.set_ends = other.set_ends;
        self.inodes.extend(other.inodes);
        self.classes.extend(other.classes);
        self.unfit.extend(other.unfit);
        self.names.extend(other.names);
        for (ino, blocks) in other.blocks {
            *self.blocks.entry(ino).or_default() += blocks;
        }
        self.xattrs.extend(other.xattrs);
        self.unlinked.extend(other.unlinked);
        self.holding_nodes.extend(other.holding_nodes);
        self.trims.extend(other.trims);
        self.passing_groups += other.passing_groups;
        self.granted.extend(other.granted);
        self.intents += other.intents;
        self.open_intents.extend(other.open_intents);
        self.groups.extend(other.groups);
        self.owned_blocks += other.owned_blocks;
        self.free_blocks += other.free_blocks;
        self.applied += other.applied;
        self.marks.extend(other.marks);
        self.replies += other.replies;
        self.inode_count = self.inode_count.saturating_add(other.inode_count);
        self.lost.extend(other.lost);
        self.lost_nodes.extend(other.lost_nodes);
        self.lost_keys.extend(other.lost_keys);
        self.bad_data.extend(other.bad_data);
        self.flaws.extend(other.flaws);
    }

    /// Notes something that was seen outside of the metadata.
    pub fn note(&mut self, flaw: Flaw) {
        self.flaws.push(flaw);
    }

    /// Nothing of `node` could be read, for this reason.
    pub fn lose_node(&mut self, node: u32, why: String) {
        self.lost_nodes.insert(node);
        self.lose(node, why);
    }

    /// Not everything of `node` could be read, for this reason.
    pub(crate) fn lose(&mut self, node: u32, why: String) {
        self.lost.insert(node);
        self.flaws.push(Flaw::new(format!("the metadata of node {node}"), why, COPY_OUT));
    }

    /// Takes one key of the store; a key that cannot be read is a flaw. Returns what names data, if
    /// it is that.
    pub(crate) fn take(
        &mut self,
        key: &[u8],
        value: &[u8],
        used: &mut Vec<UsedBlocks>,
    ) -> Option<DataEntry> {
        let taken = self.try_take(key, value, used);
        if taken.is_none() {
            let thing = format!("a key of node {}", self.node);
            let what = format!("key {key:02x?} or its value means nothing");
            self.flaws.push(Flaw::new(thing, what, COPY_OUT));
        }
        taken.flatten()
    }

    /// What is stored several times is to be on as many disks.
    pub(crate) fn check_copies(&mut self, map: &VolumeMap, entry: &DataEntry) {
        self.compare_class(map, entry);
        let (ino, index, chunk) = match entry {
            DataEntry::Chunk { ino, index, chunk } => (*ino, *index, chunk),
            DataEntry::WideStripe { ino, first, wide } => {
                return check_places(map, (*ino, *first), wide, &mut self.flaws);
            }
        };
        let disk_of = |place: Run| {
            let stripe = map.geometry().block(place.start).0;
            (stripe < map.stripes()).then(|| map.place(stripe).disk)
        };
        for run in chunk.runs.iter().filter(|run| run.is_mirrored()) {
            let mut disks: Vec<_> = run.places().map(disk_of).collect();
            disks.sort_unstable();
            if disks.windows(2).any(|pair| pair[0] == pair[1]) {
                let what = format!("blocks of chunk {index} have two copies on one disk");
                self.flaws.push(Flaw::of(ino, what, REPLACE));
            }
        }
    }

    /// Is it stored as the class of its file wants?
    fn compare_class(&mut self, map: &VolumeMap, entry: &DataEntry) {
        let class = |ino| self.classes.get(&ino).copied().unwrap_or_else(|| map.redundancy());
        let (ino, is_fit) = match entry {
            DataEntry::Chunk { ino, chunk, .. } => {
                (*ino, chunk.runs.iter().all(|run| is_stored_as(class(*ino), run)))
            }
            DataEntry::WideStripe { ino, wide, .. } => {
                (*ino, class(*ino).wide_stripes() == Some(wide.shape()))
            }
        };
        if !is_fit {
            self.unfit.insert(ino);
        }
    }

    #[allow(clippy::option_option, reason = "unreadable, names no data, names data")]
    fn try_take(
        &mut self,
        key: &[u8],
        raw: &[u8],
        used: &mut Vec<UsedBlocks>,
    ) -> Option<Option<DataEntry>> {
        let first = keys::number(key, 1);
        match keys::table_of(key)? {
            keys::KeyTable::Inode => self.take_inode(first?, Inode::from_stored(raw).ok()?),
            keys::KeyTable::Chunk => {
                let (ino, index) = (first?, keys::chunk_index(key)?);
                let chunk: Chunk = value(raw)?;
                if !chunk.is_valid(self.chunk_blocks) || !self.is_here(ino) {
                    let what = format!("the block map of chunk {index} cannot be");
                    self.flaws.push(Flaw::of(ino, what, REPLACE));
                }
                *self.blocks.entry(ino).or_default() += chunk.count();
                let owner = BlockOwner::Chunk { ino, index };
                used.extend(chunk.disk_runs().into_iter().map(|run| UsedBlocks { run, owner }));
                self.wide_stripes.add_chunk((ino, index), &chunk);
                return Some(Some(DataEntry::Chunk { ino, index, chunk }));
            }
            keys::KeyTable::WideStripe => {
                let (ino, first) = (first?, keys::chunk_index(key)?);
                let wide: WideStripe = value(raw)?;
                if !wide.is_valid(self.chunk_blocks) || !self.is_here(ino) {
                    let what = format!("the wide stripe of chunk {first} cannot be");
                    self.flaws.push(Flaw::of(ino, what, REPLACE));
                }
                if !wide.has_parity_of_data(self.chunk_blocks) {
                    let what = format!("the parity of its chunk {first} is not that of the data");
                    self.flaws.push(Flaw::of(ino, what, REPLACE));
                }
                let owner = BlockOwner::WideStripe { ino, first };
                let runs = wide.runs(self.chunk_blocks).into_iter();
                used.extend(runs.map(|run| UsedBlocks { run, owner }));
                self.wide_stripes.add((ino, first), wide.clone());
                return Some(Some(DataEntry::WideStripe { ino, first, wide }));
            }
            keys::KeyTable::Name => self.take_name(key, first?, value(raw)?)?,
            keys::KeyTable::Intent => self.take_intent(key, raw)?,
            keys::KeyTable::Count => match keys::used_partition(key) {
                Some(partition) => drop(self.partition_uses.insert(partition, value(raw)?)),
                None => self.inode_count = value(raw)?,
            },
            keys::KeyTable::OpenFiles if key == keys::open_files() => {
                self.holding_nodes.insert(self.node);
            }
            keys::KeyTable::OpenFiles => {}
            keys::KeyTable::Adopted => {
                let (set, _): (u64, u64) = value(raw)?;
                self.adopted_sets = set;
            }
            keys::KeyTable::ScrubProgress => {
                let _: ScrubProgress = value(raw)?;
            }
            keys::KeyTable::Unlinked => self.unlinked.push(first?),
            keys::KeyTable::Applied => {
                let node = u32::try_from(first?).ok()?;
                let intent = IntentId { node, number: keys::number(key, 9)? };
                self.marks.insert((self.node, intent));
                self.applied += 1;
            }
            keys::KeyTable::Reply => {
                let _: StoredReply = value(raw)?;
                if first? != self.replies {
                    return None;
                }
                self.replies += 1;
            }
            keys::KeyTable::Xattr => self.take_xattr(key, first?, raw.len())?,
        }
        Some(None)
    }

    fn is_here(&self, ino: u64) -> bool {
        ino_node(ino, self.nodes.max(1)) == runtime::NodeId::fs(self.node)
    }

    fn take_inode(&mut self, ino: u64, inode: Inode) {
        if inode.attributes.ino != ino || !self.is_here(ino) {
            let what = format!("it is kept at node {} as inode {ino}", self.node);
            self.flaws.push(Flaw::of(inode.attributes.ino, what, COPY_OUT));
        }
        if let Some(class) = inode.attributes.redundancy {
            self.classes.insert(ino, class);
        }
        self.inodes.push(inode);
    }

    fn take_name(&mut self, key: &[u8], directory: u64, dentry: Dentry) -> Option<()> {
        let (position, name) = keys::name_parts(key)?;
        let name = Name::new(name.to_vec()).ok()?;
        let node = name_node(directory, &name, self.nodes.max(1));
        if node != runtime::NodeId::fs(self.node) || position != keys::position(directory, &name) {
            let thing = format!("name {name} in directory {directory}");
            let what = format!("it is at node {}, where it is never looked up", self.node);
            self.flaws.push(Flaw::new(thing, what, COPY_OUT));
        }
        self.names.push((directory, name, dentry));
        Some(())
    }

    fn take_intent(&mut self, key: &[u8], raw: &[u8]) -> Option<()> {
        let number = keys::intent_number(key)?;
        match keys::intent_kind(key)? {
            keys::TRIMS => {
                let _: u64 = value(raw)?;
                self.trims.insert(number);
            }
            kind @ (keys::GRANTS | keys::ARRIVALS) => {
                let _: u32 = value(raw)?;
                self.passing_groups += 1;
                if kind == keys::GRANTS {
                    self.granted.insert(number);
                }
            }
            keys::OPERATIONS => {
                self.open_intents.insert(IntentId { node: self.node, number }, value(raw)?);
                self.intents += 1;
            }
            _ => return None,
        }
        Some(())
    }

    fn take_xattr(&mut self, key: &[u8], ino: u64, length: usize) -> Option<()> {
        let (name, piece) = keys::xattr_parts(key)?;
        XattrName::new(name.to_vec()).ok()?;
        let lengths: &mut Vec<usize> = self.xattrs.entry((ino, name.to_vec())).or_default();
        if usize::from(piece) != lengths.len() {
            return None;
        }
        lengths.push(length);
        Some(())
    }

    /// All keys are taken: what can be said of the node alone.
    pub(crate) fn check(&mut self) {
        let files = self.inodes.iter().map(|inode| inode.attributes.ino);
        let files: BTreeSet<u64> = files.chain(self.trims.iter().copied()).collect();
        let wide_stripes = std::mem::take(&mut self.wide_stripes);
        wide_stripes.check(&files, self.chunk_blocks, &mut self.flaws);
        self.check_xattrs();
        self.check_unlinked();
        self.check_partition_uses();
        if self.inodes.len() as u64 != self.inode_count {
            let (inodes, count) = (self.inodes.len(), self.inode_count);
            let what = format!("{inodes} inodes are there, {count} are counted");
            let step = "only `df` is wrong by that";
            self.flaws.push(Flaw::new(format!("node {}", self.node), what, step));
        }
    }

    /// What partitions use is counted right.
    fn check_partition_uses(&mut self) {
        let mut found: BTreeMap<PartitionNumber, PartitionUse> = BTreeMap::new();
        for inode in &self.inodes {
            let Attributes { ino, used_bytes, .. } = inode.attributes;
            let partition = partition_of(ino);
            if partition != 0 {
                let sum = found.entry(partition).or_default();
                sum.bytes = sum.bytes.saturating_add(used_bytes);
                sum.inodes += 1;
            }
        }
        let partitions: BTreeSet<_> = found.keys().chain(self.partition_uses.keys()).collect();
        for partition in partitions {
            let there = found.get(partition).copied().unwrap_or_default();
            let counted = self.partition_uses.get(partition).copied().unwrap_or_default();
            if there != counted {
                let PartitionUse { bytes, inodes } = there;
                let what = format!(
                    "partition {partition} has {inodes} inodes with {bytes} bytes there, counted \
                     are {} with {}",
                    counted.inodes, counted.bytes
                );
                let step = "only the space of the partition is wrong by that";
                self.flaws.push(Flaw::new(format!("node {}", self.node), what, step));
            }
        }
    }

    /// Extended attributes belong to an inode of the node, or to one that is being trimmed, and
    /// have only whole pieces but the last.
    fn check_xattrs(&mut self) {
        let inodes: BTreeSet<u64> = self.inodes.iter().map(|inode| inode.attributes.ino).collect();
        for ((ino, name), lengths) in &self.xattrs {
            let name = String::from_utf8_lossy(name);
            if !inodes.contains(ino) && !self.trims.contains(ino) {
                let what = format!("it is not there, but its extended attribute {name} is");
                self.flaws.push(Flaw::of(*ino, what, COPY_OUT));
            }
            let whole = lengths.split_last().is_none_or(|(&last, whole)| {
                last <= VALUE_BYTES_MAX && whole.iter().all(|&length| length == VALUE_BYTES_MAX)
            });
            if !whole {
                let what = format!("its extended attribute {name} lacks a piece");
                self.flaws.push(Flaw::of(*ino, what, "set the attribute again"));
            }
        }
    }

    /// A file without a name has a mark, and nothing else has.
    fn check_unlinked(&mut self) {
        let is_unlinked =
            |attributes: &Attributes| attributes.links == 0 && attributes.kind == (Kind::File {});
        let nameless = self.inodes.iter().map(|inode| &inode.attributes);
        let nameless: BTreeSet<u64> =
            nameless.filter(|file| is_unlinked(file)).map(|file| file.ino).collect();
        let marked: BTreeSet<u64> = self.unlinked.iter().copied().collect();
        for &ino in nameless.difference(&marked) {
            let what = "a file without a name, and nothing says that it goes when it is closed";
            self.flaws.push(Flaw::of(ino, what, "no name is hurt, only its space is lost"));
        }
        for &ino in marked.difference(&nameless) {
            let what = "marked as a file without a name, but it is none";
            self.flaws.push(Flaw::of(ino, what, COPY_OUT));
        }
    }
}
