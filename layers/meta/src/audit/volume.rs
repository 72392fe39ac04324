//! All nodes together: names against inodes and their counts of links, groups against their owners.
//! Open intents are applied here in memory first, as the next start of the volume will apply them,
//! so that a volume after a crash is not called damaged.

use std::collections::{BTreeMap, BTreeSet};

use super::files::{UnreadableFiles, unreadable};
use super::flaw::{COPY_OUT, Flaw, Flaws, ONLY_SPACE};
use super::node::NodeAudit;
use crate::attributes::{Kind, Name};
use crate::partition::partition_of;
use crate::protocol::{Dentry, Effect, Inode};

/// The root directory.
pub(super) const ROOT: u64 = 1;
/// Components of a path that is shown, at most.
const PATH_DEPTH_MAX: usize = 64;

/// What the next start of the volume, or its running, brings to its end. None of it is damage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingWork {
    /// Operations decided by one node and not yet known to be done by the others.
    pub intents: u64,
    /// Files whose blocks are still to be freed.
    pub trims: u64,
    /// Files without a name that may have been open.
    pub unlinked: u64,
    /// Groups of blocks in transit from one node to another.
    pub passing_groups: u64,
    /// What nodes remember as done for others.
    pub applied: u64,
}

/// What a volume holds, and what is wrong with it.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Inodes, as they are once everything pending is done.
    pub inodes: u64,
    /// Of these, directories.
    pub directories: u64,
    /// Names.
    pub names: u64,
    /// Bytes in all files, holes included.
    pub file_bytes: u64,
    /// Blocks with data of files.
    pub data_blocks: u64,
    /// Blocks of the allocation groups of all nodes.
    pub owned_blocks: u64,
    /// Blocks that are free.
    pub free_blocks: u64,
    /// Extended attributes.
    pub xattrs: u64,
    /// Stored replies.
    pub replies: u64,
    /// What is still to be done.
    pub pending: PendingWork,
    /// The files that cannot be read in full, as far as data was read.
    pub unreadable: UnreadableFiles,
    /// What is wrong.
    pub flaws: Flaws,
}

/// The tree as it is once everything pending is done.
pub(super) struct VolumeTree {
    pub(super) names: BTreeMap<(u64, Name), Dentry>,
    pub(super) inodes: BTreeMap<u64, Inode>,
    trims: BTreeSet<u64>,
    flaws: Flaws,
}

impl NodeAudit {
    /// Draws the conclusions once all nodes of a volume are [joined](Self::join).
    pub fn final_checkpoint(mut self) -> Summary {
        let pending = PendingWork {
            intents: self.intents,
            trims: self.trims.len() as u64,
            unlinked: self.unlinked.len() as u64,
            passing_groups: self.passing_groups,
            applied: self.applied,
        };
        let (owned_blocks, free_blocks) = (self.owned_blocks, self.free_blocks);
        let (xattrs, replies) = (self.xattrs.len() as u64, self.replies);
        let data_blocks = self.blocks.values().sum();
        let mut tree = if self.lost.is_empty() {
            self.check_groups();
            let mut tree = VolumeTree::new(&mut self);
            tree.do_pending(&self);
            tree.check_inodes(&self.blocks);
            tree.check_names();
            tree.check_reach();
            tree
        } else {
            // Half of what belongs together may be on what was lost, and is reported with that.
            let mut tree = VolumeTree::new(&mut self);
            tree.do_pending(&self);
            tree
        };
        let unreadable = unreadable(&self, &tree);
        tree.tell_paths();
        let is_directory = |inode: &&Inode| inode.attributes.kind == (Kind::Directory {});
        let is_file = |inode: &&Inode| inode.attributes.kind == (Kind::File {});
        let sizes = tree.inodes.values().filter(is_file).map(|file| file.attributes.size);
        Summary {
            inodes: tree.inodes.len() as u64,
            directories: tree.inodes.values().filter(is_directory).count() as u64,
            names: tree.names.len() as u64,
            file_bytes: sizes.fold(0, u64::saturating_add),
            data_blocks,
            owned_blocks,
            free_blocks,
            xattrs,
            replies,
            pending,
            unreadable,
            flaws: tree.flaws,
        }
    }

    fn check_groups(&mut self) {
        let mut owned = BTreeSet::new();
        for &group in &self.groups {
            if !owned.insert(group) {
                let what = "two nodes own it";
                self.flaws.push(Flaw::new(format!("group {group} of blocks"), what, COPY_OUT));
            }
        }
        // Groups of a set that has just come may have no owner yet.
        let adopted = usize::try_from(self.adopted_sets).unwrap_or(usize::MAX);
        let adopted = adopted.checked_sub(1).and_then(|last| self.set_ends.get(last)).copied();
        for group in (0..adopted.unwrap_or(0)).filter(|group| !owned.contains(group)) {
            if !self.granted.contains(&group) {
                let thing = format!("group {group} of blocks");
                self.flaws.push(Flaw::new(thing, "no node owns it", ONLY_SPACE));
            }
        }
    }
}

impl VolumeTree {
    fn new(audit: &mut NodeAudit) -> Self {
        let names = std::mem::take(&mut audit.names).into_iter();
        let inodes = std::mem::take(&mut audit.inodes).into_iter();
        Self {
            names: names.map(|(above, name, dentry)| ((above, name), dentry)).collect(),
            inodes: inodes.map(|inode| (inode.attributes.ino, inode)).collect(),
            trims: audit.trims.clone(),
            flaws: std::mem::take(&mut audit.flaws),
        }
    }

    /// Applies the intents. Effects at the deciding node itself are in its record.
    fn do_pending(&mut self, audit: &NodeAudit) {
        let nodes = audit.nodes.max(1);
        for (&intent, effects) in &audit.open_intents {
            for effect in effects {
                let node = effect.node(nodes);
                if node == intent.node || audit.marks.contains(&(node, intent)) {
                    continue;
                }
                let holds = audit.holding_nodes.contains(&node);
                self.apply(effect, holds);
            }
        }
    }

    /// An effect that does not fit has happened, or is about something that is gone.
    fn apply(&mut self, effect: &Effect, holds: bool) {
        match effect {
            Effect::SetName { directory, name, expect, set } => {
                let key = (*directory, name.clone());
                if self.names.get(&key) != expect.as_ref() {
                    return;
                }
                match set {
                    Some(dentry) => drop(self.names.insert(key, *dentry)),
                    None => drop(self.names.remove(&key)),
                }
            }
            Effect::DropLink { ino, generation, .. } => {
                let Some(inode) = self.inode(*ino, *generation) else { return };
                let attributes = &mut inode.attributes;
                attributes.links = attributes.links.saturating_sub(1);
                let is_directory = attributes.kind == (Kind::Directory {});
                let stays = holds && attributes.kind == (Kind::File {});
                if is_directory || (attributes.links == 0 && !stays) {
                    self.inodes.remove(ino);
                    self.trims.insert(*ino);
                }
            }
            Effect::ChangeParts { ino, generation, change } => {
                let Some(inode) = self.inode(*ino, *generation) else { return };
                let links = inode.attributes.links;
                inode.attributes.links = links.wrapping_add_signed(change.links as i32);
                inode.parent = change.parent.unwrap_or(inode.parent);
            }
        }
    }

    fn inode(&mut self, ino: u64, generation: u64) -> Option<&mut Inode> {
        self.inodes.get_mut(&ino).filter(|inode| inode.attributes.generation == generation)
    }

    fn check_inodes(&mut self, blocks: &BTreeMap<u64, u64>) {
        let mut names: BTreeMap<(u64, u64), u32> = BTreeMap::new();
        let mut directories: BTreeMap<u64, u32> = BTreeMap::new();
        for ((above, _), dentry) in &self.names {
            *names.entry((dentry.ino, dentry.generation)).or_default() += 1;
            if dentry.kind == (Kind::Directory {}) {
                *directories.entry(*above).or_default() += 1;
            }
        }
        for (&ino, inode) in &self.inodes {
            let attributes = &inode.attributes;
            let count = names.get(&(ino, attributes.generation)).copied().unwrap_or(0);
            if attributes.kind == (Kind::Directory {}) {
                let below = directories.get(&ino).copied().unwrap_or(0);
                if u64::from(attributes.links) != 2 + u64::from(below) {
                    let links = attributes.links;
                    let what = format!("a directory counts {links} links, has 2 + {below}");
                    self.flaws.push(Flaw::of(ino, what, "its content is there; copy it out"));
                }
                if count != u32::from(ino != ROOT) {
                    let what = format!("a directory has {count} names");
                    self.flaws.push(Flaw::of(ino, what, COPY_OUT));
                }
            } else if count != attributes.links {
                let what = match count {
                    0 => "a file has no name".to_owned(),
                    _ => format!("a file counts {} links, has {count} names", attributes.links),
                };
                self.flaws.push(Flaw::of(ino, what, "copy the file before a name is removed"));
            }
            let counted = blocks.get(&ino).copied().unwrap_or(0);
            let counted = counted.saturating_mul(blockio::BLOCK_SIZE as u64);
            let is_cut = self.trims.contains(&ino);
            if attributes.kind == (Kind::File {}) && attributes.used_bytes != counted && !is_cut {
                let used = attributes.used_bytes;
                let what = format!("a file says {used} bytes used, has {counted}");
                self.flaws.push(Flaw::of(ino, what, "compare the file with its source"));
            }
        }
        for &ino in blocks.keys() {
            if !self.inodes.contains_key(&ino) && !self.trims.contains(&ino) {
                self.flaws.push(Flaw::of(ino, "blocks belong to no file", ONLY_SPACE));
            }
        }
        if !self.inodes.contains_key(&ROOT) {
            self.flaws.push(Flaw::of(ROOT, "the root directory is not there", COPY_OUT));
        }
    }

    fn check_names(&mut self) {
        for ((above, name), dentry) in &self.names {
            let thing = || format!("name {name} in directory {above}");
            let flaw =
                |what: String, step| Flaw { ino: Some(*above), ..Flaw::new(thing(), what, step) };
            let found = self.inodes.get(&dentry.ino).map(|inode| &inode.attributes);
            let found = found.filter(|found| found.generation == dentry.generation);
            match found {
                None => {
                    let what = format!("it names inode {}, which is not there", dentry.ino);
                    self.flaws.push(flaw(what, "bring the file back from its source or a copy"));
                }
                Some(found) if found.kind != dentry.kind => {
                    let what = format!("it names inode {} as another kind of file", dentry.ino);
                    self.flaws.push(flaw(what, COPY_OUT));
                }
                Some(_) => {}
            }
            let is_root = *above == ROOT && dentry.kind == (Kind::Directory {});
            if partition_of(dentry.ino) != partition_of(*above) && !is_root {
                let what = format!("it names inode {}, which is in another partition", dentry.ino);
                self.flaws.push(flaw(what, COPY_OUT));
            }
            let above_it = self.inodes.get(above).map(|inode| inode.attributes.kind);
            if above_it != Some(Kind::Directory {}) {
                self.flaws.push(flaw("its directory is not there".to_owned(), COPY_OUT));
            }
        }
    }

    /// Every directory leads up to the root, by the directories that name it.
    fn check_reach(&mut self) {
        let mut above: BTreeMap<u64, u64> = BTreeMap::new();
        for ((directory, _), dentry) in &self.names {
            if dentry.kind == (Kind::Directory {}) {
                above.insert(dentry.ino, *directory);
            }
        }
        let mut reached = BTreeSet::from([ROOT]);
        for (&ino, inode) in &self.inodes {
            let Some(&parent) = above.get(&ino) else { continue };
            if inode.attributes.kind != (Kind::Directory {}) {
                continue;
            }
            if inode.parent != parent {
                let what = format!("`..` leads to {}, it is in {parent}", inode.parent);
                self.flaws.push(Flaw::of(ino, what, "move the directory away and back"));
            }
            let (mut way, mut here) = (BTreeSet::new(), ino);
            while !reached.contains(&here) && way.insert(here) {
                // One without a name is reported as such.
                let Some(&next) = above.get(&here) else { break };
                here = next;
            }
            if !reached.contains(&here) && above.contains_key(&here) {
                let what = "a directory in a circle that the root does not reach";
                self.flaws.push(Flaw::of(ino, what, COPY_OUT));
            }
            reached.extend(way);
        }
    }

    /// People know files by their paths.
    fn tell_paths(&mut self) {
        let wanted: BTreeSet<u64> =
            self.flaws.listed().iter().filter_map(|flaw| flaw.ino).collect();
        if wanted.is_empty() {
            return;
        }
        let mut named: BTreeMap<u64, (u64, &Name)> = BTreeMap::new();
        for ((above, name), dentry) in &self.names {
            if wanted.contains(&dentry.ino) || dentry.kind == (Kind::Directory {}) {
                named.entry(dentry.ino).or_insert((*above, name));
            }
        }
        for flaw in self.flaws.listed_mut() {
            let Some(path) = flaw.ino.and_then(|ino| path(&named, ino)) else { continue };
            flaw.thing = format!("{} ({path})", flaw.thing);
        }
    }
}

/// The path of an inode; `None` if no name leads to it from the root.
fn path(named: &BTreeMap<u64, (u64, &Name)>, ino: u64) -> Option<String> {
    let (mut parts, mut here) = (Vec::new(), ino);
    while here != ROOT {
        let (above, name) = named.get(&here)?;
        parts.push(name.to_string());
        here = *above;
        if parts.len() > PATH_DEPTH_MAX {
            return None;
        }
    }
    parts.reverse();
    Some(format!("/{}", parts.join("/")))
}
