//! Reading directories: names are spread over the nodes of their hashes, so the directory's node
//! collects them, in the order of node and position. A cookie is that pair, so it stays valid when
//! other names are added or removed.

use futures::future::try_join_all;
use meta::attributes::access;
use meta::hash::POSITION_BITS;
use meta::protocol::{GetOccupancy, NameEntry, SCAN_MAX, ScanNames, SetOccupancy};
use runtime::NodeId;

use super::names::{Names, handle_of};
use crate::protocol::{
    Attributes, DirectoryEntry, DirectoryPage, ENTRIES_MAX, Error, Handle, Kind, ReadDirectory,
    Time,
};
use crate::rules;

/// Nodes that are scanned at a time, at most.
const NODES_CONCURRENCY_MAX: usize = 16;

/// Each of several nodes is asked for this multiple of an even share; the few that have more get a
/// second request.
const SHARES: usize = 2;

// A scan that the node cuts short would look complete.
const _: () = assert!(ENTRIES_MAX < SCAN_MAX);

/// The part of a cookie that is the position at a node.
const POSITION_MASK: u64 = (1 << POSITION_BITS) - 1;

impl Names {
    pub(super) async fn read_directory(
        &self,
        request: ReadDirectory,
    ) -> Result<DirectoryPage, Error> {
        let ReadDirectory { who, directory, after, count_max, attributes } = request;
        let call = GetOccupancy { directory: directory.ino, generation: directory.generation };
        let occupancy = self.base.meta_here(call).await?;
        let above = occupancy.inode.attributes;
        if above.kind != (Kind::Directory {}) {
            return Err(Error::NotDirectory {});
        }
        let is_open = || self.base.rights.has(&who, &above, access::READ);
        rules::permit(above.permits(&who, access::READ) || is_open())?;
        let (first_node, position) = (after >> POSITION_BITS, after & POSITION_MASK);
        if count_max == 0 {
            return Err(Error::Invalid {});
        }
        if first_node >= u64::from(self.base.context.fs_nodes()) {
            return Err(Error::BadCookie {});
        }
        let nodes = match occupancy.nodes {
            Some(nodes) => nodes,
            None => self.learn_occupancy(directory.ino).await?,
        };
        let wanted = count_max.min(ENTRIES_MAX) as usize;
        let mut entries: Vec<DirectoryEntry> = Vec::new();
        let mut end = true;
        let nodes: Vec<u32> =
            nodes.into_iter().filter(|node| u64::from(*node) >= first_node).collect();
        let mut rest = &nodes[..];
        // A scan that continues in the middle of a node may find enough there.
        let mut concurrent = if after == 0 { NODES_CONCURRENCY_MAX } else { 1 };
        while !rest.is_empty() {
            if entries.len() >= wanted {
                end = false;
                break;
            }
            let (nodes, later) = rest.split_at(concurrent.min(rest.len()));
            rest = later;
            let known = entries.len();
            let scan =
                ScanNames { directory: directory.ino, after: None, count_max: 0, attributes };
            let from = (first_node, position);
            end &= self.scan_some(nodes, from, &scan, wanted, &mut entries).await?;
            // As many nodes as have the rest, if they have as many names as these.
            let (found, missing) = (entries.len() - known, wanted.saturating_sub(entries.len()));
            concurrent =
                (missing * nodes.len()).div_ceil(found.max(1)).clamp(1, NODES_CONCURRENCY_MAX);
        }
        end &= cut_page(&mut entries, wanted);
        if attributes {
            self.add_attributes(&mut entries).await?;
        }
        let directory = self.base.note_access(&above).await?;
        Ok(DirectoryPage { entries, end, directory })
    }

    /// Adds the entries of `nodes`, in their order, up to one more than `wanted`; true if there are
    /// no more. The first node of a page continues behind a position.
    async fn scan_some(
        &self,
        nodes: &[u32],
        (first_node, position): (u64, u64),
        scan: &ScanNames,
        wanted: usize,
        entries: &mut Vec<DirectoryEntry>,
    ) -> Result<bool, Error> {
        let share = Self::share(wanted - entries.len(), nodes.len());
        let scans = nodes.iter().map(|&node| {
            let after = (u64::from(node) == first_node).then_some(position);
            self.scan(node, ScanNames { after, count_max: share, ..scan.clone() })
        });
        for (&node, found) in nodes.iter().zip(try_join_all(scans).await?) {
            let last = found.last().map(|entry| entry.cookie & POSITION_MASK);
            let is_whole = found.len() < share as usize;
            entries.extend(found);
            if !is_whole && entries.len() <= wanted {
                let count_max = (wanted - entries.len()) as u32 + 1;
                let rest = ScanNames { after: last, count_max, ..scan.clone() };
                entries.extend(self.scan(node, rest).await?);
            }
            if entries.len() > wanted {
                // The entries of later nodes are for a later page.
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Entries to request of each of `nodes` nodes when `missing` are wanted, and one more to know
    /// whether there are more. In a very large directory the first node may have enough, and most
    /// entries of the others are not used.
    fn share(missing: usize, nodes: usize) -> u32 {
        let even = missing.div_ceil(nodes);
        (missing.min(even * SHARES) + 1) as u32
    }

    async fn scan(&self, node: u32, call: ScanNames) -> Result<Vec<DirectoryEntry>, Error> {
        let found = match self.base.meta(NodeId::fs(node), call).await {
            Err(error) if self.base.is_read_only => {
                tracing::error!(%error, node, "a listing lacks names that cannot be read");
                return Ok(Vec::new());
            }
            found => found?,
        };
        let entry = |NameEntry { position, name, dentry, attributes }| DirectoryEntry {
            cookie: u64::from(node) << POSITION_BITS | position,
            name,
            handle: handle_of(&dentry),
            kind: dentry.kind,
            attributes,
        };
        Ok(found.into_iter().map(entry).collect())
    }

    /// Asks all nodes once; afterwards the directory's node keeps the count.
    async fn learn_occupancy(&self, directory: u64) -> Result<Vec<u32>, Error> {
        let all = (0..self.base.context.fs_nodes()).collect();
        let nodes = self.occupied_nodes(directory, all).await?;
        self.base.meta_here(SetOccupancy { directory, nodes: nodes.clone() }).await?;
        Ok(nodes)
    }

    /// Adds the attributes of files that are not at the nodes of their names.
    async fn add_attributes(&self, entries: &mut [DirectoryEntry]) -> Result<(), Error> {
        let missing = entries.iter_mut().filter(|entry| entry.attributes.is_none());
        let asked = missing.map(|entry| async move {
            match self.base.inode(entry.handle).await {
                // Removed meanwhile.
                Err(Error::Stale {}) => {}
                // It is there, and to open it is an error.
                Err(_) if self.base.is_read_only => {
                    let (Handle { ino, generation }, epoch) = (entry.handle, Time::default());
                    let blank = Attributes::blank(ino, generation, entry.kind, epoch);
                    entry.attributes = Some(Box::new(blank));
                }
                inode => entry.attributes = Some(Box::<Attributes>::new(inode?.attributes)),
            }
            Ok::<_, Error>(())
        });
        try_join_all(asked).await?;
        Ok(())
    }
}

/// Cuts a page to about `wanted` entries, never between two of one cookie; false if anything was
/// cut off.
fn cut_page(entries: &mut Vec<DirectoryEntry>, wanted: usize) -> bool {
    let mut kept = wanted.min(entries.len());
    while kept < entries.len() && kept > 0 && entries[kept].cookie == entries[kept - 1].cookie {
        kept += 1;
    }
    let whole = kept == entries.len();
    entries.truncate(kept);
    whole
}
