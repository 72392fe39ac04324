//! What clients that are limited to a subtree can reach (ADR 88), on the emulated machine.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::cell::Cell;
use std::fmt::Debug;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use fileio::client::ask;
use fileio::hash;
use fileio::model::Model;
use fileio::protocol::{
    CallId, Change, Create, Credentials, Error, Existing, FileIo, GetAttributes, GetXattr, Handle,
    Link, ListXattrs, Lookup, MakeNode, Name, NewNode, Parent, ROOT, Read, ReadDirectory, Remove,
    Rename, Reply, Request, SetAttributes, SetXattr, Write, XattrMode, XattrName, handle_of,
};
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use machine_emu::{World, WorldShape};
use runtime::identity::SubtreePath;
use runtime::protocol::Undelivered;
use runtime::seal::SECRET_BYTES;
use runtime::wire::{Decoder, Encoder, Wire};
use runtime::{Call, Caller, Context, NodeId, RequestInfo as _, Server};
use transport::{Subtree, SubtreeRefused, Subtrees as _};
use volume::VolumeSubtrees;

/// After this time it is looked again whether a directory is inside.
const INSIDE_MAX: Duration = Duration::from_secs(1);

const NODES: u32 = 4;
const USER: u32 = 1001;

/// The reference, at each node.
struct AtNode(Rc<Model>);

impl Server<FileIo> for AtNode {
    fn handle(self: Rc<Self>, _: Caller, request: Request) -> LocalBoxFuture<'static, Reply> {
        let reply = self.0.answer(&request);
        async move { reply }.boxed_local()
    }
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes().to_vec()).unwrap()
}

fn who(uid: u32) -> Credentials {
    Credentials { uid, gid: uid, groups: Vec::new() }
}

/// A volume with the directories `in` and `out`, each with a directory `d` and the file `d/f`.
struct Site {
    context: Context,
    calls: Cell<u64>,
    subtrees: VolumeSubtrees,
    inside: Tree,
    outside: Tree,
}

#[derive(Clone, Copy)]
struct Tree {
    top: Handle,
    directory: Handle,
    file: Handle,
}

impl Site {
    fn run(test: impl AsyncFnOnce(&Self)) {
        let world = World::new(1, WorldShape { fs_nodes: NODES, disk_nodes: 0 });
        let model = Rc::new(Model::default());
        for index in 0..NODES {
            world.context(NodeId::fs(index)).serve::<FileIo>(Rc::new(AtNode(model.clone())));
        }
        let context = world.context(NodeId::application(0));
        let none = Tree { top: ROOT, directory: ROOT, file: ROOT };
        let (calls, subtrees) = (Cell::new(0), VolumeSubtrees::new([7; SECRET_BYTES]));
        let mut site = Self { context, calls, subtrees, inside: none, outside: none };
        world.run(async {
            site.inside = site.tree("in").await;
            site.outside = site.tree("out").await;
            test(&site).await;
        });
    }

    fn call(&self) -> CallId {
        self.calls.set(self.calls.get() + 1);
        CallId { client: 5, number: self.calls.get() }
    }

    async fn mkdir(&self, directory: Handle, text: &str) -> Handle {
        let change = Change { mode: Some(0o777), ..Change::default() };
        let make = MakeNode {
            who: Credentials::root(),
            call: self.call(),
            directory,
            name: name(text),
            node: NewNode::Directory {},
            change,
            durable: false,
        };
        handle_of(&ask(&self.context, make).await.unwrap())
    }

    async fn tree(&self, text: &str) -> Tree {
        let top = self.mkdir(ROOT, text).await;
        let directory = self.mkdir(top, "d").await;
        let create = self.create(directory, "f");
        let file = handle_of(&ask(&self.context, create).await.unwrap().attributes);
        Tree { top, directory, file }
    }

    fn create(&self, directory: Handle, text: &str) -> Create {
        let change = Change { mode: Some(0o666), ..Change::default() };
        let (call, existing) = (self.call(), Existing::Use {});
        let (who, name) = (who(USER), name(text));
        Create { who, call, directory, name, existing, change, durable: false }
    }

    fn rename(&self, (from, from_name): (Handle, &str), (to, to_name): (Handle, &str)) -> Rename {
        Rename {
            who: Credentials::root(),
            call: self.call(),
            from_directory: from,
            from_name: name(from_name),
            to_directory: to,
            to_name: name(to_name),
            replace: true,
            durable: false,
        }
    }

    fn link(&self, file: Handle, directory: Handle, text: &str) -> Link {
        let (who, call) = (who(USER), self.call());
        Link { who, call, file, directory, name: name(text), durable: false }
    }

    async fn enter(&self, path: &str) -> Result<Client<'_>, SubtreeRefused> {
        let path = SubtreePath::new(path.as_bytes()).unwrap();
        let subtree = self.subtrees.enter(&self.context, path).await?;
        let (ino, generation) = subtree.root();
        let root = Handle { ino, generation: subtree.seal().seal(ino, generation) };
        Ok(Client { site: self, subtree, root })
    }
}

/// A limited client; what it sends and gets has sealed handles.
struct Client<'a> {
    site: &'a Site,
    subtree: Rc<dyn Subtree<FileIo>>,
    root: Handle,
}

impl Client<'_> {
    async fn ask<C: Call<Protocol = FileIo>>(&self, call: C) -> Result<C::Reply, Error> {
        let request: Request = call.into();
        let to = hash::owner(request.route(), NODES);
        let seal = self.subtree.seal();
        let (head, bulk) = encoded(&request, Encoder::new());
        let mut input = Decoder::of_client(&head, bulk, Some(seal));
        let request = Request::take(&mut input).unwrap();
        let handles = input.take_opened();
        let answering = self.subtree.clone().answer(&self.site.context, handles, to, request);
        let (head, bulk) = encoded(&answering.await, Encoder::to_client(Some(seal.clone())));
        C::answer(Reply::take(&mut Decoder::new(&head, bulk)).unwrap())
    }

    async fn lookup(&self, directory: Handle, text: &str) -> Result<Handle, Error> {
        let lookup = Lookup { who: who(USER), directory, name: name(text) };
        self.ask(lookup).await.map(|found| handle_of(&found))
    }

    async fn parent(&self, directory: Handle) -> Result<Handle, Error> {
        self.ask(Parent { who: who(USER), directory }).await.map(|found| handle_of(&found))
    }

    /// The directory and the file inside, as the client has reached them.
    async fn reach(&self) -> (Handle, Handle) {
        let directory = self.lookup(self.root, "d").await.unwrap();
        let file = self.lookup(directory, "f").await.unwrap();
        (directory, file)
    }
}

fn encoded<T: Wire>(value: &T, mut out: Encoder) -> (Vec<u8>, Bytes) {
    value.put(&mut out);
    let (head, bulk) = out.finish();
    (head, Bytes::from(bulk.concat()))
}

const REFUSED: Error = Error::Undelivered { why: Undelivered::Refused };

#[track_caller]
fn is<T: Debug>(answer: Result<T, Error>, error: Error) {
    assert_eq!(answer.map(drop), Err(error));
}

#[test]
fn inside_a_limited_client_does_what_it_likes() {
    Site::run(async |site| {
        let client = site.enter("/in").await.unwrap();
        let (directory, file) = client.reach().await;
        let data = vec![Bytes::from_static(b"data")];
        let (uid, durable) = (USER, false);
        let write = Write { who: who(uid), file, offset: 0, data: data.clone(), durable };
        client.ask(write).await.unwrap();
        let read = client.ask(Read { who: who(uid), file, offset: 0, length: 9 }).await.unwrap();
        assert_eq!(read.data, data);
        client.ask(site.rename((directory, "f"), (client.root, "g"))).await.unwrap();
        client.ask(site.link(file, directory, "h")).await.unwrap();
        assert_eq!(client.lookup(client.root, "g").await, Ok(file));
        assert_eq!(client.lookup(directory, "h").await, Ok(file));
        let made = client.ask(site.create(directory, "new")).await.unwrap();
        assert_eq!(client.lookup(directory, "new").await, Ok(handle_of(&made.attributes)));
        let list = |directory| {
            let (after, count_max, attributes) = (0, 9, true);
            client.ask(ReadDirectory { who: who(uid), directory, after, count_max, attributes })
        };
        let page = list(client.root).await.unwrap();
        assert_eq!(handle_of(&page.directory), client.root);
        let listed: Vec<Handle> = page.entries.iter().map(|entry| entry.handle).collect();
        let told = page.entries.iter().map(|entry| handle_of(entry.attributes.as_ref().unwrap()));
        assert_eq!(listed, told.collect::<Vec<_>>());
        assert!(listed.contains(&directory) && listed.contains(&file), "as lookups name them");
        assert_eq!(client.parent(directory).await, Ok(client.root));
    });
}

#[test]
fn handles_that_the_client_has_not_reached_mean_nothing() {
    Site::run(async |site| {
        let client = site.enter("/in").await.unwrap();
        let (directory, file) = client.reach().await;
        let Tree { top, file: other, .. } = site.outside;
        // Known from elsewhere, to be guessed, of another number, of another subtree.
        let elsewhere = site.enter("/out").await.unwrap();
        let deeper = site.enter("/in/d").await.unwrap();
        let beside = Handle { ino: other.ino, generation: file.generation };
        let foreign = [ROOT, top, other, site.inside.file, beside, elsewhere.root, deeper.root];
        for file in foreign.into_iter().chain([elsewhere.reach().await.1]) {
            let owner = who(USER);
            is(client.ask(GetAttributes { file }).await, Error::Stale {});
            is(client.ask(Read { who: owner, file, offset: 0, length: 1 }).await, Error::Stale {});
            is(client.lookup(file, "f").await, Error::Stale {});
            is(client.parent(file).await, Error::Stale {});
            // Each of several handles counts.
            let (out, inside) = ((file, "d"), (client.root, "x"));
            is(client.ask(site.rename(out, inside)).await, Error::Stale {});
            let (inside, out) = ((directory, "f"), (file, "x"));
            is(client.ask(site.rename(inside, out)).await, Error::Stale {});
            is(client.ask(site.link(file, directory, "x")).await, Error::Stale {});
            is(client.ask(site.create(file, "x")).await, Error::Stale {});
        }
        for directory in [ROOT, top, elsewhere.root] {
            is(client.ask(site.link(file, directory, "x")).await, Error::Stale {});
        }
        assert_eq!(client.lookup(directory, "f").await, Ok(file), "nothing was changed");
    });
}

#[test]
fn above_the_root_of_a_client_is_nothing() {
    Site::run(async |site| {
        for path in ["/in", "/in/d"] {
            let client = site.enter(path).await.unwrap();
            assert_eq!(client.parent(client.root).await, Ok(client.root), "{path}");
        }
    });
}

#[test]
fn a_directory_that_was_moved_out_is_outside_and_so_is_all_below_it() {
    Site::run(async |site| {
        let client = site.enter("/in").await.unwrap();
        let (directory, file) = client.reach().await;
        site.mkdir(site.inside.directory, "below").await;
        let deep = client.lookup(directory, "below").await.unwrap();
        let out = site.rename((site.inside.top, "d"), (site.outside.top, "moved"));
        ask(&site.context, out).await.unwrap();
        site.context.sleep(INSIDE_MAX).await;
        for directory in [directory, deep] {
            is(client.lookup(directory, "f").await, REFUSED);
            is(client.parent(directory).await, REFUSED);
            is(client.ask(GetAttributes { file: directory }).await, REFUSED);
            is(client.ask(site.create(directory, "x")).await, REFUSED);
            is(client.ask(site.rename((client.root, "x"), (directory, "x"))).await, REFUSED);
            is(client.ask(site.rename((directory, "f"), (client.root, "x"))).await, REFUSED);
            is(client.ask(site.link(file, directory, "x")).await, REFUSED);
            let (who, after, count_max, attributes) = (who(USER), 0, 9, true);
            let list = ReadDirectory { who, directory, after, count_max, attributes };
            is(client.ask(list).await, REFUSED);
        }
        // A file was reached, as if it were open.
        client.ask(GetAttributes { file }).await.unwrap();
        let back = site.rename((site.outside.top, "moved"), (site.inside.top, "d"));
        ask(&site.context, back).await.unwrap();
        assert_eq!(client.lookup(directory, "below").await, Ok(deep));
    });
}

#[test]
fn the_limit_is_the_directory_that_had_the_path_when_the_client_came() {
    Site::run(async |site| {
        let client = site.enter("/in").await.unwrap();
        let (directory, file) = client.reach().await;
        ask(&site.context, site.rename((ROOT, "in"), (ROOT, "renamed"))).await.unwrap();
        assert_eq!(client.lookup(client.root, "d").await, Ok(directory));
        let refused = site.enter("/in").await.map(drop).unwrap_err();
        assert!(refused.is_final && refused.why.contains("/in"), "{refused}");
        // Another directory with the name has other handles.
        site.mkdir(ROOT, "in").await;
        let later = site.enter("/in").await.unwrap();
        is(later.ask(GetAttributes { file }).await, Error::Stale {});
        is(later.lookup(directory, "f").await, Error::Stale {});
        // After a restart of the server, or at another process, the handles are the same.
        let again = site.enter("/renamed").await.unwrap();
        assert_eq!((again.root, again.reach().await), (client.root, (directory, file)));
    });
}

#[test]
fn no_client_comes_in_where_there_is_no_directory() {
    Site::run(async |site| {
        let target = b"/out".to_vec();
        let link = MakeNode {
            who: Credentials::root(),
            call: site.call(),
            directory: site.inside.top,
            name: name("link"),
            node: NewNode::Symlink { target },
            change: Change::default(),
            durable: false,
        };
        ask(&site.context, link).await.unwrap();
        for path in ["/none", "/in/none/d", "/in/d/f", "/in/link", "/in/link/d"] {
            assert!(site.enter(path).await.is_err_and(|refused| refused.is_final), "{path}");
        }
    });
}

#[test]
fn the_keys_of_the_volume_cannot_be_reached_and_with_a_damaged_one_no_client_comes_in() {
    Site::run(async |site| {
        let client = site.enter("/in").await.unwrap();
        let root = Credentials::root();
        is(client.ask(ListXattrs { who: root.clone(), file: ROOT }).await, Error::Stale {});
        let keys = ask(&site.context, ListXattrs { who: root.clone(), file: ROOT });
        let [key] = &keys.await.unwrap()[..] else { panic!("it was made") };
        assert_eq!(key.as_bytes(), b"trusted.mdfs.subtree-key.1");
        let get = GetXattr { who: root.clone(), file: ROOT, name: key.clone() };
        assert_eq!(ask(&site.context, get).await, Ok(vec![7; SECRET_BYTES]));
        let damaged = SetXattr {
            who: root,
            call: site.call(),
            file: ROOT,
            name: XattrName::new(key.as_bytes().to_vec()).unwrap(),
            value: vec![7; 31],
            mode: XattrMode::Either {},
            durable: true,
        };
        ask(&site.context, damaged).await.unwrap();
        assert!(site.enter("/in").await.is_err());
    });
}

#[test]
fn removals_and_changes_need_a_handle_too() {
    Site::run(async |site| {
        let client = site.enter("/in").await.unwrap();
        let (directory, file) = client.reach().await;
        let remove = |directory| {
            let (who, call, name) = (who(USER), site.call(), name("f"));
            Remove { who, call, directory, name, durable: false }
        };
        let change = |file| {
            let change = Change { size: Some(3), ..Change::default() };
            SetAttributes { who: who(USER), file, change, only_if_ctime: None, durable: false }
        };
        is(client.ask(change(site.outside.file)).await, Error::Stale {});
        is(client.ask(remove(site.outside.directory)).await, Error::Stale {});
        assert_eq!(client.ask(change(file)).await.unwrap().size, 3);
        client.ask(remove(directory)).await.unwrap();
        is(client.ask(GetAttributes { file }).await, Error::Stale {});
    });
}
