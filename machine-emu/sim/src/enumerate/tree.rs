//! A whole file system, as a recursive walk sees it.

use std::collections::BTreeMap;
use std::fmt;

use fileio::protocol::{
    Attributes, Credentials, ENTRIES_MAX, Error, GetAttributes, GetXattr, Handle, Kind, Lookup,
    Parent, ROOT, Read, ReadDirectory, ReadLink, TRANSFER_MAX,
};

use super::perform::{FileService, handle, name, tag};

/// Directories below one another, at most.
const DEPTH_MAX: usize = 8;

/// What is at one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WalkedEntry {
    pub(super) kind: Kind,
    pub(super) mode: u32,
    pub(super) links: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size: u64,
    /// Of a symbolic link.
    pub(super) target: Vec<u8>,
    /// The extended attribute, of what has one.
    pub(super) tag: Option<Vec<u8>>,
    /// Of a file.
    pub(super) content: Vec<u8>,
    /// The first path of the same file.
    pub(super) first_path: String,
    /// Of a directory: `..` is where it is.
    pub(super) knows_parent: bool,
}

impl fmt::Display for WalkedEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, mode, links, uid, gid, tag, first_path, .. } = self;
        write!(f, "{kind:?} {mode:o} of {uid}:{gid} with {links} links, first at /{first_path}")?;
        if let Some(tag) = tag {
            write!(f, ", tagged {}", String::from_utf8_lossy(tag))?;
        }
        if !self.knows_parent {
            write!(f, ", which believes to be elsewhere")?;
        }
        Ok(())
    }
}

/// All paths; the root's is empty.
pub(super) type PathTree = BTreeMap<String, WalkedEntry>;

/// Reads everything; in words what cannot be read or contradicts itself.
pub(super) async fn walk(ask: &impl FileService) -> Result<PathTree, String> {
    let mut tree = PathTree::new();
    let mut paths = BTreeMap::new();
    let root = ask.ask(GetAttributes { file: ROOT }).await;
    let root = root.map_err(|error| format!("the root has no attributes: {error}"))?;
    let mut todo = vec![(String::new(), root, ROOT)];
    while let Some((path, attributes, above)) = todo.pop() {
        let file = handle(&attributes);
        let first_path = paths.entry(file).or_insert_with(|| path.clone()).clone();
        let entry = look(ask, &attributes, above, first_path).await;
        let entry = entry.map_err(|error| format!("/{path}: {error}"))?;
        if attributes.kind == (Kind::Directory {}) {
            if path.split('/').count() > DEPTH_MAX {
                return Err(format!("/{path}: directories without end"));
            }
            let listed = list(ask, file).await.map_err(|error| format!("/{path}: {error}"))?;
            let inside = listed.into_iter().rev().map(|(name, attributes)| {
                let below = if path.is_empty() { name } else { format!("{path}/{name}") };
                (below, attributes, file)
            });
            todo.extend(inside);
        }
        tree.insert(path, entry);
    }
    Ok(tree)
}

async fn look(
    ask: &impl FileService,
    attributes: &Attributes,
    above: Handle,
    first_path: String,
) -> Result<WalkedEntry, String> {
    let Attributes { kind, mode, links, uid, gid, size, .. } = *attributes;
    let (file, who) = (handle(attributes), Credentials::root());
    let mut entry = WalkedEntry {
        kind,
        mode,
        links,
        uid,
        gid,
        size,
        target: Vec::new(),
        tag: None,
        content: Vec::new(),
        first_path,
        knows_parent: true,
    };
    match ask.ask(GetXattr { who: who.clone(), file, name: tag() }).await {
        Ok(value) => entry.tag = Some(value),
        Err(Error::NoXattr {}) => {}
        Err(error) => return Err(format!("reading the extended attribute: {error}")),
    }
    match kind {
        Kind::File {} if size > 0 => {
            let length = u32::try_from(size).unwrap_or(u32::MAX).min(TRANSFER_MAX);
            let read = ask.ask(Read { who, file, offset: 0, length }).await;
            let read = read.map_err(|error| format!("reading: {error}"))?;
            entry.content = read.data.concat();
            if entry.content.len() as u64 != size || !read.end {
                return Err(format!("{} bytes of {size} could be read", entry.content.len()));
            }
        }
        Kind::Symlink {} => {
            let target = ask.ask(ReadLink { file }).await;
            entry.target = target.map_err(|error| format!("reading the link: {error}"))?;
        }
        Kind::Directory {} => {
            let parent = ask.ask(Parent { who, directory: file }).await;
            let parent = parent.map_err(|error| format!("looking above: {error}"))?;
            entry.knows_parent = handle(&parent) == above;
        }
        _ => {}
    }
    Ok(entry)
}

/// The names of a directory in order, each looked up.
async fn list(
    ask: &impl FileService,
    directory: Handle,
) -> Result<BTreeMap<String, Attributes>, String> {
    let call = ReadDirectory {
        who: Credentials::root(),
        directory,
        after: 0,
        count_max: ENTRIES_MAX,
        attributes: false,
    };
    let page = ask.ask(call).await.map_err(|error| format!("listing: {error}"))?;
    let mut listed = BTreeMap::new();
    for entry in page.entries {
        let text = entry.name.to_string();
        let lookup = Lookup { who: Credentials::root(), directory, name: name(&text) };
        let found = ask.ask(lookup).await.map_err(|error| format!("looking up {text}: {error}"))?;
        if handle(&found) != entry.handle || found.kind != entry.kind {
            return Err(format!("{text} is listed as another file than it is"));
        }
        if listed.insert(text.clone(), found).is_some() {
            return Err(format!("{text} is listed twice"));
        }
    }
    Ok(listed)
}
