//! Names of directories, at the nodes of their hashes ([`FindName`], [`ScanNames`], [`HasNames`]).

use std::ops::Bound;
use std::rc::Rc;

use bytes::Bytes;
use runtime::NodeId;

use super::base::NodeBase;
use super::locks::names::NameLocks;
use super::record_log::decode;
use crate::attributes::{Attributes, Name};
use crate::hash::ino_node;
use crate::keys;
use crate::protocol::{
    CommitDependency, Dentry, Error, FindName, HasNames, Inode, NameEntry, SCAN_MAX, ScanNames,
};

/// Names of one position that are looked for beyond a full page.
const SAME_POSITION_MAX: usize = 64;

/// Names that are returned without waiting, at most: a longer scan would delay other requests.
const SCAN_NOW_MAX: usize = 1024;

/// The names of one node.
pub(super) struct NameRequests {
    base: Rc<NodeBase>,
    name_locks: Rc<NameLocks>,
}

impl NameRequests {
    pub(super) fn new(base: &Rc<NodeBase>, name_locks: Rc<NameLocks>) -> Self {
        Self { base: base.clone(), name_locks }
    }

    pub(super) async fn find_name(&self, request: FindName) -> Result<Option<Dentry>, Error> {
        let key = keys::name(request.directory, &request.name);
        self.name_locks.wait_visible(&key, &self.base.context).await?;
        let value = self.base.store.get(&key).await?;
        value.map(|value| decode(&value)).transpose()
    }

    /// Answers [`FindName`], if the name is not being moved and nothing has to be read.
    pub(super) fn try_find_name_now(
        &self,
        request: &FindName,
    ) -> Option<Result<Option<Dentry>, Error>> {
        let key = keys::name(request.directory, &request.name);
        if self.name_locks.is_hidden(&key) {
            return None;
        }
        let value = self.base.store.try_get_now(&key)?.ok()?;
        Some(value.map(|value| decode(&value)).transpose())
    }

    pub(super) async fn scan_names(&self, request: ScanNames) -> Result<Vec<NameEntry>, Error> {
        let ScanNames { directory, after, count_max, attributes } = request;
        let wanted = count_max.clamp(1, SCAN_MAX) as usize;
        let (from, end) = (keys::names_after(directory, after), keys::names_end(directory));
        let from = Bound::Included(&from[..]);
        let found = self.base.store.scan(from, &end, wanted + SAME_POSITION_MAX).await?;
        let mut entries = name_entries(found, wanted)?;
        if attributes {
            for entry in &mut entries {
                entry.attributes = self.attributes_here(entry.dentry).await?.map(Box::new);
            }
        }
        Ok(entries)
    }

    /// Answers [`ScanNames`], if nothing has to be read.
    pub(super) fn try_scan_names_now(
        &self,
        request: &ScanNames,
    ) -> Option<Result<Vec<NameEntry>, Error>> {
        let &ScanNames { directory, after, count_max, attributes } = request;
        let wanted = count_max.clamp(1, SCAN_MAX) as usize;
        if wanted > SCAN_NOW_MAX {
            return None;
        }
        let (from, end) = (keys::names_after(directory, after), keys::names_end(directory));
        let found = self.base.store.try_scan_now(&from, &end, wanted + SAME_POSITION_MAX)?.ok()?;
        let mut entries = match name_entries(found, wanted) {
            Ok(entries) => entries,
            Err(error) => return Some(Err(error)),
        };
        if attributes {
            for entry in &mut entries {
                let known = self.try_attributes_now(entry.dentry)?.ok()?;
                entry.attributes = known.map(Box::new);
            }
        }
        Some(Ok(entries))
    }

    /// The attributes of an inode of this node; `None` if it is elsewhere or gone.
    async fn attributes_here(&self, dentry: Dentry) -> Result<Option<Attributes>, Error> {
        match self.try_attributes_now(dentry) {
            Some(known) => known,
            // A scan of a large directory must not push the inodes in use out of memory.
            None => inode_of(self.base.store.get(&keys::inode(dentry.ino)).await?),
        }
    }

    /// The same, if nothing has to be read.
    fn try_attributes_now(&self, dentry: Dentry) -> Option<Result<Option<Attributes>, Error>> {
        if ino_node(dentry.ino, self.base.context.fs_nodes()) != self.base.context.node() {
            return Some(Ok(None));
        }
        let active = self.base.inodes.attributes(dentry.ino);
        if active.is_some() {
            return Some(Ok(active));
        }
        Some(inode_of(self.base.store.try_get_now(&keys::inode(dentry.ino))?.ok()?))
    }

    pub(super) async fn has_names(
        &self,
        caller: NodeId,
        request: &HasNames,
    ) -> Result<(bool, CommitDependency), Error> {
        let from = keys::names_after(request.directory, None);
        let end = keys::names_end(request.directory);
        let found = self.base.store.scan(Bound::Included(&from), &end, 1).await?;
        let mut changed = CommitDependency::default();
        if found.is_empty() {
            // The directory may be removed now: what a crash brought back would be in no directory.
            let last = self.base.store.last_change(&keys::names_start(request.directory), &end);
            changed = self.base.records.dependency_for(caller, last).await?;
        }
        Ok((!found.is_empty(), changed))
    }
}

/// What a scan has `found`: `wanted` names, and further ones of the same position.
fn name_entries(found: Vec<(Bytes, Bytes)>, wanted: usize) -> Result<Vec<NameEntry>, Error> {
    let mut entries: Vec<NameEntry> = Vec::with_capacity(found.len().min(wanted));
    for (key, value) in found {
        let (position, name) = keys::name_parts(&key).ok_or(Error::Damaged {})?;
        if entries.len() >= wanted && entries.last().is_some_and(|e| e.position != position) {
            break;
        }
        let name = Name::new(key.slice_ref(name)).map_err(|_| Error::Damaged {})?;
        entries.push(NameEntry { position, name, dentry: decode(&value)?, attributes: None });
    }
    Ok(entries)
}

/// The attributes in the `value` of an inode.
fn inode_of(value: Option<Bytes>) -> Result<Option<Attributes>, Error> {
    let inode = value.map(|value| Inode::from_stored(&value)).transpose();
    let inode = inode.map_err(|_| Error::Damaged {})?;
    Ok(inode.map(|inode| inode.attributes))
}
