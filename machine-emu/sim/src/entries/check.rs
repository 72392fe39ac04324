//! The checks after a crash: names, links, extended attributes and what the nodes hold.

use std::collections::BTreeMap;

use fileio::protocol::{
    Attributes, Credentials, Error, GetAttributes, GetXattr, Handle, Kind, ListXattrs, Parent,
    ROOT, handle_of,
};
use meta::hash::ino_node;
use meta::protocol::Map;
use meta::store::VALUE_BYTES_MAX;
use runtime::Undelivered;

use super::{CHUNKS_MAX, EntriesWorkload, NamedFile, PendingRename, xattr_name, xattr_value};
use crate::cluster::OBSERVER;
use crate::harness::CallFailure;
use crate::names::{NameKey, list};
use crate::versions::Versions;

impl EntriesWorkload<'_> {
    async fn look(&self, key: &NameKey) -> NamedFile {
        match self.harness.lookup(0, self.directories[key.0], key.1.clone()).await {
            Ok(attributes) => Some(handle_of(&attributes)),
            Err(CallFailure::Refused(Error::NotFound {})) => None,
            Err(failure) => panic!("{key:?} cannot be looked up: {failure:?}"),
        }
    }

    pub(super) async fn check_after_crash(&self) {
        let mut present: BTreeMap<NameKey, Handle> = BTreeMap::new();
        let unknown = self.unknown.take();
        let mut keys: Vec<NameKey> = self.named.borrow().keys().cloned().collect();
        keys.extend(unknown.iter().cloned());
        for key in keys {
            let found = self.look(&key).await;
            present.extend(found.map(|found| (key.clone(), found)));
            let mut entries = self.named.borrow_mut();
            let versions = entries.entry(key.clone()).or_insert_with(|| Versions::new(None));
            let possible = versions.after_crash();
            let right = possible.contains(&found) || found.is_some() && unknown.contains(&key);
            assert!(right, "{key:?} names {found:?}, possible were {possible:?}");
            versions.flush(found);
        }
        for pending in self.pending_renames.take() {
            self.check_pending_rename(&pending).await;
        }
        self.check_lists(&present).await;
        self.check_inside().await;
        self.check_nothing_else_is_there().await;
    }

    /// A rename that was not answered, or not durable, was done or was not done.
    async fn check_pending_rename(&self, pending: &PendingRename) {
        let (from, to) = (self.look(&pending.from).await, self.look(&pending.to).await);
        match (from == Some(pending.moved), to == Some(pending.moved)) {
            (true, true) => assert!(pending.may_have_both, "{pending:?} left two names"),
            (false, false) => assert!(!pending.from_certain, "{pending:?} lost its file"),
            // Or never, nor what came before it.
            (false, true) => {
                assert!(from.is_none() || pending.may_have_both, "{pending:?} was done");
            }
            (true, false) => {
                assert!(!pending.to_certain || to == pending.replaced, "{pending:?} took {to:?}");
            }
        }
    }

    /// What was durably put into a directory is there, so the directory is, too.
    async fn check_inside(&self) {
        let inside: Vec<_> = self.inside.borrow().clone().into_iter().collect();
        for (directory, names) in inside {
            for name in names {
                let found = self.harness.lookup(0, directory, name.clone()).await;
                assert!(found.is_ok(), "{name:?} of {directory:?} was durable: {found:?}");
            }
        }
    }

    /// Walks the tree. Links are exact, directories know what is above them, and the nodes hold no
    /// inode, no name and no block but those of the tree.
    async fn check_nothing_else_is_there(&self) {
        let mut tree = WalkedTree::default();
        let mut unseen = vec![ROOT];
        while let Some(directory) = unseen.pop() {
            let listed = list(self.harness, 0, directory, 100).await;
            let listed = listed.unwrap_or_else(|error| panic!("{directory:?}: {error}"));
            let mut directories = 0;
            for (name, kind, handle) in listed {
                tree.names += 1;
                *tree.named.entry(handle).or_default() += 1;
                if kind == (Kind::Directory {}) {
                    directories += 1;
                    assert_eq!(tree.named[&handle], 1, "{name:?} is one name of a directory");
                    let asked = Parent { who: Credentials::root(), directory: handle };
                    let above = self.harness.ask(0, asked).await.map(|above| handle_of(&above));
                    assert_eq!(above, Ok(directory), "what is above {name:?}");
                    unseen.push(handle);
                }
            }
            let links = self.attributes(directory).await.links;
            assert_eq!(links, 2 + directories, "links of {directory:?}");
        }
        tree.xattrs += self.check_xattr(ROOT).await;
        for (&file, &names) in &tree.named {
            tree.xattrs += self.check_xattr(file).await;
            let attributes = self.attributes(file).await;
            if attributes.kind != (Kind::Directory {}) {
                assert_eq!(attributes.links, names, "links of {file:?}");
                tree.data_blocks += self.blocks(file).await;
            }
        }
        self.xattrs.borrow_mut().retain(|file, _| tree.named.contains_key(file));
        self.check_audit(&tree).await;
    }

    /// The extended attribute of a file is one of those that it may have after a crash. Returns the
    /// pieces that the node keeps for it.
    async fn check_xattr(&self, file: Handle) -> u64 {
        let (who, name) = (Credentials::root(), xattr_name());
        let found = match self.harness.ask(0, GetXattr { who: who.clone(), file, name }).await {
            Ok(value) => Some(value),
            Err(CallFailure::Refused(Error::NoXattr {})) => None,
            Err(failure) => panic!("the extended attribute of {file:?}: {failure:?}"),
        };
        let names = self.harness.ask(0, ListXattrs { who, file }).await;
        let listed = names.unwrap_or_else(|failure| panic!("{file:?}: {failure:?}"));
        assert_eq!(listed.len(), usize::from(found.is_some()), "{file:?} has {listed:?}");

        let mut xattrs = self.xattrs.borrow_mut();
        let versions = xattrs.entry(file).or_insert_with(|| Versions::new(None));
        let possible = versions.after_crash().iter();
        let seed = possible.copied().find(|seed| seed.map(xattr_value) == found);
        let lengths = (versions.after_crash().len(), found.as_ref().map(Vec::len));
        let seed = seed.unwrap_or_else(|| panic!("{file:?} has none of the values: {lengths:?}"));
        versions.flush(seed);
        found.map_or(0, |value| value.len().div_ceil(VALUE_BYTES_MAX).max(1) as u64)
    }

    async fn attributes(&self, file: Handle) -> Attributes {
        let found = self.harness.ask(0, GetAttributes { file }).await;
        found.unwrap_or_else(|failure| panic!("{file:?} has a name, but {failure:?}"))
    }

    async fn blocks(&self, file: Handle) -> u64 {
        let context = self.harness.cluster.application(OBSERVER);
        let Handle { ino, generation } = file;
        let node = ino_node(ino, context.fs_nodes());
        let chunks = loop {
            let call = Map { ino, generation, first: 0, count: CHUNKS_MAX };
            match meta::client::ask(&context, node, call).await {
                Ok(chunks) => break chunks,
                Err(meta::protocol::Error::Undelivered { why: Undelivered::Lost }) => {}
                Err(error) => panic!("the map of {file:?}: {error}"),
            }
        };
        chunks.iter().map(meta::protocol::Chunk::count).sum()
    }

    async fn check_audit(&self, tree: &WalkedTree) {
        let audit = self.harness.audit().await;
        let audit = audit.unwrap_or_else(|error| panic!("the audit failed: {error}"));
        assert!(audit.flaws.is_empty(), "the metadata contradicts itself: {:?}", audit.flaws);
        let inodes = tree.named.len() as u64 + 1;
        let actual = [
            audit.inodes.len() as u64,
            audit.names.len() as u64,
            audit.blocks.values().sum(),
            audit.xattrs.values().map(|pieces| pieces.len() as u64).sum(),
            audit.trims.len() as u64,
            audit.intents,
            audit.applied,
        ];
        let needed = [inodes, tree.names, tree.data_blocks, tree.xattrs, 0, 0, 0];
        assert_eq!(
            actual, needed,
            "inodes, names, blocks, pieces of xattrs, trims, promises, marks that the nodes hold and the tree needs"
        );
        let reported = self.harness.space().await.inodes;
        assert_eq!(reported, inodes, "inodes as reported to clients");
    }

    async fn check_lists(&self, present: &BTreeMap<NameKey, Handle>) {
        for (index, &directory) in self.directories.iter().enumerate() {
            let listed = list(self.harness, 0, directory, 100).await;
            let listed = listed.unwrap_or_else(|error| panic!("directory {index}: {error}"));
            for (name, _, handle) in &listed {
                let known = present.get(&(index, name.clone())) == Some(handle);
                let known = known || self.directories.contains(handle);
                assert!(known, "{name:?} of directory {index} is listed, but not there");
            }
            for ((at, name), handle) in present {
                let is_listed = listed.iter().any(|(one, _, found)| one == name && found == handle);
                assert!(*at != index || is_listed, "{name:?} of directory {index} is not listed");
            }
        }
    }
}

/// What was found on a walk.
#[derive(Default)]
struct WalkedTree {
    names: u64,
    /// All but the root, with the number of their names.
    named: BTreeMap<Handle, u32>,
    data_blocks: u64,
    /// Pieces of extended attributes.
    xattrs: u64,
}
