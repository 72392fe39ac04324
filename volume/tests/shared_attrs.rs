//! What nodes show to all threads of their process is what they would answer, after each change,
//! and no reader looks at what is not answered for any more (ADR 59).

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::sync::Arc;

use bytes::Bytes;
use fileio::client::ask;
use fileio::protocol::{
    Attributes, CallId, Change, Create, Credentials, Error, Existing, GetAttributes, Handle, Link,
    Lookup, MakeNode, Name, NewNode, ROOT, Remove, RemoveDirectory, Rename, SetAttributes, Write,
};
use futures::executor::block_on;
use meta::SharedAttrCache;
use meta::hash::{ino_node, name_node};
use meta::memory::MemoryBudget;
use runtime::embedded::Embedded;
use runtime::{ClientHandle, NodeId};

const NODES: u32 = 4;
const STRIPES: u64 = 1024;
/// More than fall on one node.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

struct Volume {
    machine: Embedded,
    client_handle: ClientHandle,
    shared_attrs: Arc<SharedAttrCache>,
    calls: u64,
}

impl Volume {
    fn new() -> Self {
        let memory = MemoryBudget::new(support::METADATA_BYTES);
        let shared_attrs = Arc::new(SharedAttrCache::new(NODES));
        let machine = support::machine_with(NODES, STRIPES, memory, &shared_attrs, 1);
        let client_handle = machine.client_handle();
        Self { machine, client_handle, shared_attrs, calls: 0 }
    }

    fn call(&mut self) -> CallId {
        self.calls += 1;
        CallId { client: 7, number: self.calls }
    }

    fn create(&mut self, directory: Handle, text: &str) -> Handle {
        let (who, call, name) = (Credentials::root(), self.call(), name(text));
        let (existing, change, durable) = (Existing::Refuse {}, Change::default(), false);
        let create = Create { who, call, directory, name, existing, change, durable };
        handle(&block_on(ask(&self.client_handle, create)).unwrap().attributes)
    }

    /// Asks the node of a name, whatever is shown.
    fn look_up(&self, directory: Handle, text: &str) -> Result<Attributes, Error> {
        let (who, name) = (Credentials::root(), name(text));
        let node = name_node(directory.ino, &name, NODES);
        block_on(self.client_handle.spawn(node, Lookup { who, directory, name }))
    }

    /// All that is shown of the names of a directory, and of it, is so; how much that is.
    fn check(&self, directory: Handle) -> usize {
        let mut shown = 0;
        for text in NAMES {
            let truth = self.look_up(directory, text);
            if let Some(dentry) = self.shared_attrs.dentry(directory.ino, &name(text)) {
                let truth = truth.unwrap();
                assert_eq!((dentry.ino, dentry.generation), (truth.ino, truth.generation));
                shown += 1;
            }
            let Ok(truth) = self.look_up(directory, text) else { continue };
            if let Some(attributes) = self.shared_attrs.attributes(truth.ino, truth.generation) {
                assert_eq!(attributes, truth, "{text}");
                shown += 1;
            }
        }
        let node = ino_node(directory.ino, NODES);
        let truth =
            block_on(self.client_handle.spawn(node, GetAttributes { file: directory })).unwrap();
        if let Some(attributes) = self.shared_attrs.attributes(directory.ino, directory.generation)
        {
            assert_eq!(attributes, truth);
            shown += 1;
        }
        shown
    }
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes().to_vec()).unwrap()
}

fn handle(attributes: &Attributes) -> Handle {
    Handle { ino: attributes.ino, generation: attributes.generation }
}

#[test]
fn what_is_shown_is_as_it_is_after_every_change() {
    let mut volume = Volume::new();
    let (who, durable) = (Credentials::root(), false);
    let files: Vec<Handle> = NAMES[..4].iter().map(|text| volume.create(ROOT, text)).collect();
    volume.check(ROOT);
    assert_eq!(volume.check(ROOT), 9, "four names, four files, and the directory");

    let data = vec![Bytes::from_static(b"some")];
    let write = Write { who: who.clone(), file: files[0], offset: 9, data, durable };
    block_on(ask(&volume.client_handle, write)).unwrap();
    volume.check(ROOT);

    let change = Change { mode: Some(0o711), size: Some(3), ..Change::default() };
    let set =
        SetAttributes { who: who.clone(), file: files[1], change, only_if_ctime: None, durable };
    block_on(ask(&volume.client_handle, set)).unwrap();
    volume.check(ROOT);

    let call = volume.call();
    let (directory, new) = (ROOT, name("e"));
    let link = Link { who: who.clone(), call, file: files[2], directory, name: new, durable };
    block_on(ask(&volume.client_handle, link)).unwrap();
    volume.check(ROOT);

    // Over one that is there, and to a name that is free.
    for (from, to) in [("a", "b"), ("b", "f")] {
        let (call, from_name, to_name) = (volume.call(), name(from), name(to));
        let (from_directory, to_directory, replace) = (ROOT, ROOT, true);
        let who = who.clone();
        let rename = Rename {
            who,
            call,
            from_directory,
            from_name,
            to_directory,
            to_name,
            replace,
            durable,
        };
        block_on(ask(&volume.client_handle, rename)).unwrap();
        volume.check(ROOT);
        assert_eq!(volume.look_up(ROOT, from), Err(Error::NotFound {}));
    }

    for text in ["c", "e", "d"] {
        let (call, directory, name) = (volume.call(), ROOT, name(text));
        let remove = Remove { who: who.clone(), call, directory, name, durable };
        block_on(ask(&volume.client_handle, remove)).unwrap();
        volume.check(ROOT);
    }

    let (call, directory, new) = (volume.call(), ROOT, name("a"));
    let (node, change) = (NewNode::Directory {}, Change::default());
    let made = MakeNode { who: who.clone(), call, directory, name: new, node, change, durable };
    let made = handle(&block_on(ask(&volume.client_handle, made)).unwrap());
    volume.create(made, "a");
    volume.check(made);
    assert_eq!(volume.check(made), 3, "a name, its file, and the directory");
    let (call, inner) = (volume.call(), name("a"));
    let remove = Remove { who: who.clone(), call, directory: made, name: inner, durable };
    block_on(ask(&volume.client_handle, remove)).unwrap();
    volume.check(made);
    let (call, name) = (volume.call(), name("a"));
    let remove = RemoveDirectory { who, call, directory, name, durable };
    block_on(ask(&volume.client_handle, remove)).unwrap();
    volume.check(ROOT);
    assert_eq!(volume.shared_attrs.attributes(made.ino, made.generation), None);
}

#[test]
fn who_may_not_search_a_directory_is_refused_by_a_look_too() {
    let mut volume = Volume::new();
    volume.create(ROOT, "a");
    volume.check(ROOT);
    let other = Credentials { uid: 7, gid: 7, groups: Vec::new() };
    let lookup = Lookup { who: other, directory: ROOT, name: name("a") };
    block_on(ask(&volume.client_handle, lookup.clone())).unwrap();
    let change = Change { mode: Some(0o700), ..Change::default() };
    let (who, file, only_if_ctime) = (Credentials::root(), ROOT, None);
    let set = SetAttributes { who, file, change, only_if_ctime, durable: false };
    block_on(ask(&volume.client_handle, set)).unwrap();
    assert!(volume.shared_attrs.dentry(ROOT.ino, &name("a")).is_some());
    assert_eq!(block_on(ask(&volume.client_handle, lookup)), Err(Error::AccessDenied {}));
}

#[test]
fn nothing_is_shown_of_a_node_that_has_ended_or_that_is_about_to_move() {
    let mut volume = Volume::new();
    for text in NAMES {
        volume.create(ROOT, text);
    }
    assert_eq!(volume.check(ROOT).max(volume.check(ROOT)), 13);
    let node = |text: &str| name_node(ROOT.ino, &name(text), NODES);
    let (closing, ending) = (node("a"), NodeId::fs((node("a").0 + 1) % NODES));
    let close = volume.machine.on_node(closing, |context| async move {
        context.close::<fileio::protocol::FileIo>(|_| false);
    });
    block_on(close).unwrap();
    volume.machine.stop_node(ending);
    while NAMES.iter().any(|text| {
        let is_gone = node(text) == ending || node(text) == closing;
        is_gone && volume.shared_attrs.dentry(ROOT.ino, &name(text)).is_some()
    }) {
        std::thread::yield_now();
    }
    let stays = |text: &&&str| node(text) != ending && node(text) != closing;
    let shown =
        NAMES.iter().filter(|text| volume.shared_attrs.dentry(ROOT.ino, &name(text)).is_some());
    assert_eq!(shown.count(), NAMES.iter().filter(stays).count());
    let Volume { machine, shared_attrs, .. } = volume;
    drop(machine);
    assert!(NAMES.iter().all(|text| shared_attrs.dentry(ROOT.ino, &name(text)).is_none()));
}
