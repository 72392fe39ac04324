//! Where nested exports are: the directories that are their roots, and the names that lead to them.

use std::collections::BTreeMap;

use bytes::Bytes;
use fileio::client;
use fileio::protocol::{Credentials, Error, Handle, Kind, Lookup, Name, ROOT, handle_of};
use runtime::Context;

use super::Exports;

/// What a name on the path to a nested export leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathName {
    /// The root of the export with this number.
    Root(u32),
    /// A directory above such a root.
    Ancestor,
}

/// Where the exports are that lie inside another one. A directory is recognized by its inode, an
/// entry also by its name, which covers a root that was made or replaced a moment ago.
#[derive(Debug, Default)]
pub(crate) struct ExportRoots {
    roots: BTreeMap<Handle, u32>,
    names: BTreeMap<Handle, BTreeMap<Vec<u8>, PathName>>,
}

impl ExportRoots {
    /// Looks the nested ones of `exports` up, with root's rights. A path that leads nowhere is no
    /// error.
    pub(crate) async fn find(ctx: &Context, exports: &Exports) -> Result<Self, Error> {
        let mut found = Self::default();
        // Paths share their beginnings.
        let mut known = BTreeMap::new();
        for export in exports.nested() {
            let mut directory = ROOT;
            for (index, name) in export.parts.iter().enumerate() {
                let path = &export.parts[..=index];
                let is_root = path.len() == export.parts.len();
                let leads_to = if is_root { PathName::Root(export.id) } else { PathName::Ancestor };
                found.add_name(directory, name, leads_to);
                let entry = if let Some(entry) = known.get(path) {
                    *entry
                } else {
                    let entry = directory_at(ctx, directory, name).await?;
                    known.insert(path, entry);
                    entry
                };
                let Some(entry) = entry else { break };
                if is_root {
                    found.roots.insert(entry, export.id);
                }
                directory = entry;
            }
        }
        Ok(found)
    }

    fn add_name(&mut self, directory: Handle, name: &[u8], leads_to: PathName) {
        let known = self.names.entry(directory).or_default();
        if leads_to != PathName::Ancestor || !known.contains_key(name) {
            known.insert(name.to_vec(), leads_to);
        }
    }

    /// The nested export whose root `file` is.
    pub(crate) fn export_of(&self, file: Handle) -> Option<u32> {
        self.roots.get(&file).copied()
    }

    /// What the entry `name` of `directory` leads to.
    pub(crate) fn name(&self, directory: Handle, name: &[u8]) -> Option<PathName> {
        self.names.get(&directory)?.get(name).copied()
    }

    /// The nested export whose root `file` is, found under `name` in `directory`.
    pub(crate) fn export_of_entry(
        &self,
        directory: Handle,
        name: &[u8],
        file: Handle,
    ) -> Option<u32> {
        match self.name(directory, name) {
            Some(PathName::Root(export)) => Some(export),
            Some(PathName::Ancestor) | None => self.export_of(file),
        }
    }
}

/// The directory `name` in `directory`, if there is one.
async fn directory_at(
    ctx: &Context,
    directory: Handle,
    name: &[u8],
) -> Result<Option<Handle>, Error> {
    // No file has a name that is not allowed.
    let Ok(name) = Name::new(Bytes::copy_from_slice(name)) else { return Ok(None) };
    let who = Credentials { uid: 0, gid: 0, groups: Vec::new() };
    match client::ask(ctx, Lookup { who, directory, name }).await {
        Ok(found) => Ok((found.kind == Kind::Directory {}).then(|| handle_of(&found))),
        Err(Error::NotFound {} | Error::NotDirectory {} | Error::Stale {}) => Ok(None),
        Err(error) => Err(error),
    }
}
