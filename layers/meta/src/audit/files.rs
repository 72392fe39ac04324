//! Which files cannot be read in full, by their paths.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;

use super::node::NodeAudit;
use super::volume::{ROOT, VolumeTree};
use crate::attributes::{Kind, Name};
use crate::hash::ino_node;
use crate::keys::{self, KeyTable};
use crate::protocol::{Dentry, Inode};

/// A file, or anything else with a name, that cannot be read in full.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnreadableFile {
    /// Its path from the root of the volume. Where names are lost, it begins with `<inode N>`.
    pub path: Vec<u8>,
    /// The inode.
    pub ino: u64,
    /// Why.
    pub why: String,
}

/// The files that cannot be read in full.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnreadableFiles {
    /// In the order of their paths.
    pub files: Vec<UnreadableFile>,
    /// Nodes where names of any directory may be lost. Files whose names were there are listed
    /// without them.
    pub names_lost: BTreeSet<u32>,
}

/// Keys of a node that cannot be read.
#[derive(Clone, Debug)]
pub(crate) struct LostKeys {
    node: u32,
    range: Range<Bytes>,
    /// Of these, those that can be.
    known: BTreeSet<Bytes>,
}

impl LostKeys {
    /// Is the key of a chunk of a file, whose last one is `last`, lost?
    fn has_chunk(&self, ino: u64, last: u64) -> bool {
        let is_lost = |index: u64| {
            let key = keys::chunk(ino, index);
            self.range.start[..] <= key[..] && key[..] < self.range.end[..]
        };
        // The lost keys are neighbours: the first one is found by halving.
        let is_before = |index: u64| keys::chunk(ino, index)[..] < self.range.start[..];
        let (mut low, mut high) = (0, last.saturating_add(1));
        while low < high {
            let middle = low + (high - low) / 2;
            if is_before(middle) { low = middle + 1 } else { high = middle }
        }
        let is_known = |index: u64| self.known.contains(&keys::chunk(ino, index)[..]);
        let mut missing = (low..=last).take_while(|&index| is_lost(index));
        missing.any(|index| !is_known(index))
    }

    fn meets(&self, from: &[u8], to: &[u8]) -> bool {
        self.range.start[..] < *to && *from < self.range.end[..]
    }
}

/// What of the data of a file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BadData {
    /// The first byte of the first logical block, and why.
    first: (u64, String),
    /// Bytes of it.
    bytes: usize,
    /// Where the others begin.
    others: BTreeSet<u64>,
}

impl BadData {
    pub(crate) fn new((offset, bytes): (u64, usize), why: String) -> Self {
        Self { first: (offset, why), bytes, others: BTreeSet::new() }
    }

    pub(crate) fn add(&mut self, offset: u64, why: String) {
        let (first, _) = self.first;
        self.others.insert(first.max(offset));
        if offset < first {
            self.first = (offset, why);
        }
    }

    /// What of it is in a file of `size` bytes.
    fn within(&self, size: u64) -> Option<String> {
        let ((first, why), bytes) = (&self.first, self.bytes);
        let count = 1 + self.others.range(..size).count();
        (*first < size).then(|| match count {
            1 => format!("{bytes} bytes at offset {first}: {why}"),
            _ => format!("{count} blocks of {bytes} bytes, the first at offset {first}: {why}"),
        })
    }
}

/// What the walk needs.
struct Walk<'a> {
    audit: &'a NodeAudit,
    tree: &'a VolumeTree,
    names: BTreeMap<u64, Vec<(&'a Name, &'a Dentry)>>,
    visited: BTreeSet<u64>,
    found: Vec<UnreadableFile>,
}

/// Lists the files of a volume that cannot be read in full. The data must have been read.
pub(super) fn unreadable(audit: &NodeAudit, tree: &VolumeTree) -> UnreadableFiles {
    let mut names: BTreeMap<u64, Vec<(&Name, &Dentry)>> = BTreeMap::new();
    for ((above, name), dentry) in &tree.names {
        names.entry(*above).or_default().push((name, dentry));
    }
    let (visited, found) = (BTreeSet::new(), Vec::new());
    let mut walk = Walk { audit, tree, names, visited, found };
    let above = (!tree.inodes.contains_key(&ROOT)).then(|| Vec::from(b"/"));
    if above.is_some() {
        walk.note(b"/".to_vec(), ROOT, walk.why_lost(ROOT));
    }
    walk.directory(ROOT, Vec::new(), above);
    // What no name leads to from the root.
    let targets: BTreeSet<u64> = tree.names.values().map(|dentry| dentry.ino).collect();
    let is_loose = |directory: &u64| !targets.contains(directory);
    let loose: Vec<u64> = walk.names.keys().copied().filter(is_loose).collect();
    for directory in loose {
        let path = format!("<inode {directory}>").into_bytes();
        walk.directory(directory, path.clone(), Some(path));
    }
    let names_lost = audit.nodes_without_names();
    if !names_lost.is_empty() {
        walk.nameless(&targets);
    }
    let mut files = walk.found;
    files.sort();
    UnreadableFiles { files, names_lost }
}

impl Walk<'_> {
    fn note(&mut self, path: Vec<u8>, ino: u64, why: String) {
        self.found.push(UnreadableFile { path, ino, why });
    }

    /// Goes through a directory, and all below it. `lost` is a directory on the way that cannot be
    /// read.
    fn directory(&mut self, ino: u64, path: Vec<u8>, lost: Option<Vec<u8>>) {
        let mut todo = vec![(ino, path, lost)];
        while let Some((ino, path, lost)) = todo.pop() {
            if !self.visited.insert(ino) {
                continue;
            }
            for (name, dentry) in self.names.get(&ino).cloned().unwrap_or_default() {
                let path = [&path[..], b"/", name.as_bytes()].concat();
                let why = match &lost {
                    Some(lost) => {
                        let lost = String::from_utf8_lossy(lost);
                        Some(format!("directory {lost} cannot be read"))
                    }
                    None => self.why(dentry),
                };
                let is_lost = why.is_some();
                if let Some(why) = why {
                    self.note(path.clone(), dentry.ino, why);
                }
                if dentry.kind == (Kind::Directory {}) {
                    let lost = lost.clone().or_else(|| is_lost.then(|| path.clone()));
                    todo.push((dentry.ino, path, lost));
                }
            }
        }
    }

    /// Why what a name names cannot be read in full.
    fn why(&self, dentry: &Dentry) -> Option<String> {
        let inode = self.tree.inodes.get(&dentry.ino);
        let inode = inode.filter(|inode| inode.attributes.generation == dentry.generation);
        match inode {
            None => Some(self.why_lost(dentry.ino)),
            Some(inode) => self.why_content(inode),
        }
    }

    fn why_lost(&self, ino: u64) -> String {
        let node = self.node(ino);
        if self.audit.lost.contains(&node) {
            format!("its inode is in the metadata of node {node}, which is damaged")
        } else {
            "its inode is not there".to_owned()
        }
    }

    fn why_content(&self, inode: &Inode) -> Option<String> {
        let attributes = &inode.attributes;
        if attributes.kind != (Kind::File {}) || attributes.size == 0 {
            return None;
        }
        let chunk_bytes = u64::from(self.audit.chunk_blocks.max(1)) * blockio::BLOCK_SIZE as u64;
        let last = (attributes.size - 1) / chunk_bytes;
        let node = self.node(attributes.ino);
        let mut damage = self.audit.lost_keys.iter().filter(|lost| lost.node == node);
        if damage.any(|lost| lost.has_chunk(attributes.ino, last)) {
            return Some(format!("a part of its block map at node {node} is damaged"));
        }
        self.audit.bad_data.get(&attributes.ino)?.within(attributes.size)
    }

    fn node(&self, ino: u64) -> u32 {
        match ino_node(ino, self.audit.nodes.max(1)).kind() {
            runtime::NodeKind::Fs(node) => node,
            _ => u32::MAX,
        }
    }

    /// Inodes whose name may be among those that are lost.
    fn nameless(&mut self, targets: &BTreeSet<u64>) {
        let unlinked: BTreeSet<u64> = self.audit.unlinked.iter().copied().collect();
        for &ino in self.tree.inodes.keys() {
            if ino != ROOT && !targets.contains(&ino) && !unlinked.contains(&ino) {
                let path = format!("<inode {ino}>").into_bytes();
                self.note(path, ino, "its name cannot be read".to_owned());
            }
        }
    }
}

impl NodeAudit {
    /// Keys of this node cannot be read, for this reason; of some of them the values are known.
    pub(crate) fn lose_keys(&mut self, why: String, range: Range<Bytes>, known: Vec<Bytes>) {
        let (node, known) = (self.node, known.into_iter().collect());
        self.lost_keys.push(LostKeys { node, range, known });
        self.lose(node, why);
    }

    /// A block of a file at `offset` cannot be read.
    pub(crate) fn lose_data(&mut self, ino: u64, (offset, bytes): (u64, usize), why: String) {
        match self.bad_data.get_mut(&ino) {
            Some(bad) => bad.add(offset, why),
            None => drop(self.bad_data.insert(ino, BadData::new((offset, bytes), why))),
        }
    }

    /// Nodes at which names may be lost, or intents to set them.
    fn nodes_without_names(&self) -> BTreeSet<u32> {
        let tables = [KeyTable::Name, KeyTable::Intent].map(keys::all);
        let lost = self.lost_keys.iter();
        let lost = lost.filter(|lost| tables.iter().any(|(from, to)| lost.meets(from, to)));
        lost.map(|lost| lost.node).chain(self.lost_nodes.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blocks_before_the_end_of_a_file_count() {
        let mut bad = BadData::new((8192, 4096), "b".to_owned());
        bad.add(4096, "a".to_owned());
        bad.add(40_960, "c".to_owned());
        assert_eq!(bad.within(4096), None);
        assert_eq!(bad.within(4097).as_deref(), Some("4096 bytes at offset 4096: a"));
        let two = "2 blocks of 4096 bytes, the first at offset 4096: a";
        assert_eq!(bad.within(40_960).as_deref(), Some(two));
        assert!(bad.within(u64::MAX).is_some_and(|what| what.starts_with("3 blocks")));
    }
}
