//! The semantics of the reference itself, rule by rule.

use bytes::Bytes;
use runtime::seed::with_seed;

use super::Model;
use crate::protocol::*;

const ALICE: u32 = 1000;
const BOB: u32 = 1001;

/// One user of a model.
struct User<'a> {
    model: &'a Model,
    who: Credentials,
}

fn user(model: &Model, uid: u32) -> User<'_> {
    User { model, who: Credentials { uid, gid: uid, groups: vec![100] } }
}

fn root(model: &Model) -> User<'_> {
    User { model, who: Credentials::root() }
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes().to_vec()).unwrap()
}

fn handle(attributes: Attributes) -> Handle {
    Handle { ino: attributes.ino, generation: attributes.generation }
}

fn mode(mode: u32) -> Change {
    Change { mode: Some(mode), ..Change::default() }
}

fn size(size: u64) -> Change {
    Change { size: Some(size), ..Change::default() }
}

fn call() -> CallId {
    use std::cell::Cell;
    thread_local!(static NUMBER: Cell<u64> = const { Cell::new(0) });
    let number = NUMBER.get() + 1;
    NUMBER.set(number);
    CallId { client: 1, number }
}

impl User<'_> {
    fn node(&self, directory: Handle, text: &str, node: NewNode) -> Result<Attributes, Error> {
        self.node_with(directory, text, node, Change::default())
    }

    fn node_with(
        &self,
        directory: Handle,
        text: &str,
        node: NewNode,
        change: Change,
    ) -> Result<Attributes, Error> {
        let who = self.who.clone();
        self.model.ask(MakeNode {
            who,
            call: call(),
            directory,
            name: name(text),
            node,
            change,
            durable: true,
        })
    }

    fn mkdir(&self, directory: Handle, text: &str, bits: u32) -> Result<Handle, Error> {
        self.node_with(directory, text, NewNode::Directory {}, mode(bits)).map(handle)
    }

    fn create_with(
        &self,
        directory: Handle,
        text: &str,
        existing: Existing,
        change: Change,
    ) -> Result<Created, Error> {
        let (who, name, durable) = (self.who.clone(), name(text), false);
        self.model.ask(Create { who, call: call(), directory, name, existing, change, durable })
    }

    fn create(&self, directory: Handle, text: &str) -> Result<Handle, Error> {
        let created = self.create_with(directory, text, Existing::Refuse {}, Change::default())?;
        Ok(handle(created.attributes))
    }

    fn lookup(&self, directory: Handle, text: &str) -> Result<Attributes, Error> {
        self.model.ask(Lookup { who: self.who.clone(), directory, name: name(text) })
    }

    fn stat(&self, file: Handle) -> Attributes {
        self.model.ask(GetAttributes { file }).unwrap()
    }

    fn set(&self, file: Handle, change: Change) -> Result<Attributes, Error> {
        let who = self.who.clone();
        self.model.ask(SetAttributes { who, file, change, only_if_ctime: None, durable: false })
    }

    fn write(&self, file: Handle, offset: u64, data: &[u8]) -> Result<Attributes, Error> {
        let data = vec![Bytes::copy_from_slice(data)];
        let write = Write { who: self.who.clone(), file, offset, data, durable: false };
        self.model.ask(write).map(|written| written.attributes)
    }

    fn read(&self, file: Handle, offset: u64, length: u32) -> Result<(Vec<u8>, bool), Error> {
        let read = self.model.ask(Read { who: self.who.clone(), file, offset, length })?;
        Ok((read.data.concat(), read.end))
    }

    fn remove(&self, directory: Handle, text: &str) -> Result<(), Error> {
        let (who, name) = (self.who.clone(), name(text));
        self.model.ask(Remove { who, call: call(), directory, name, durable: false })
    }

    fn rmdir(&self, directory: Handle, text: &str) -> Result<(), Error> {
        let (who, name) = (self.who.clone(), name(text));
        self.model.ask(RemoveDirectory { who, call: call(), directory, name, durable: true })
    }

    fn rename(&self, from: (Handle, &str), to: (Handle, &str)) -> Result<(), Error> {
        self.model.ask(Rename {
            who: self.who.clone(),
            call: call(),
            from_directory: from.0,
            from_name: name(from.1),
            to_directory: to.0,
            to_name: name(to.1),
            replace: true,
            durable: true,
        })
    }

    fn rename_to_new(&self, from: (Handle, &str), to: (Handle, &str)) -> Result<(), Error> {
        self.model.ask(Rename {
            who: self.who.clone(),
            call: call(),
            from_directory: from.0,
            from_name: name(from.1),
            to_directory: to.0,
            to_name: name(to.1),
            replace: false,
            durable: true,
        })
    }

    fn link(&self, file: Handle, directory: Handle, text: &str) -> Result<Attributes, Error> {
        let (who, name) = (self.who.clone(), name(text));
        self.model.ask(Link { who, call: call(), file, directory, name, durable: true })
    }

    fn list(&self, directory: Handle, after: u64, count_max: u32) -> Result<DirectoryPage, Error> {
        let who = self.who.clone();
        self.model.ask(ReadDirectory { who, directory, after, count_max, attributes: true })
    }

    fn names(&self, directory: Handle) -> Vec<String> {
        let page = self.list(directory, 0, ENTRIES_MAX).unwrap();
        assert!(page.end);
        page.entries.iter().map(|entry| entry.name.to_string()).collect()
    }
}

#[test]
fn a_file_reads_back_as_written_and_holes_read_as_zeros() {
    let model = Model::default();
    let me = root(&model);
    let file = me.create(ROOT, "f").unwrap();
    me.write(file, 5000, b"late").unwrap();
    me.write(file, 1, b"early").unwrap();
    let (bytes, end) = me.read(file, 0, 10_000).unwrap();
    assert!(end && bytes.len() == 5004);
    assert_eq!((&bytes[..7], &bytes[5000..]), (&b"\0early\0"[..], &b"late"[..]));
    assert!(!me.read(file, 0, 5003).unwrap().1);
    assert_eq!(me.read(file, 5004, 1), Ok((vec![], true)));
    assert_eq!(me.read(file, u64::MAX, 1), Ok((vec![], true)));
    assert_eq!(me.stat(file).used_bytes, 2 * 4096);
}

#[test]
fn random_writes_and_cuts_agree_with_a_vector() {
    with_seed(|rng| {
        let model = Model::default();
        let me = root(&model);
        let file = me.create(ROOT, "f").unwrap();
        let mut expected: Vec<u8> = Vec::new();
        for _ in 0..500 {
            let offset = rng.index(20_000);
            if rng.chance(1, 4) {
                me.set(file, size(offset as u64)).unwrap();
                expected.resize(offset, 0);
            } else {
                let mut data = vec![0; 1 + rng.index(9000)];
                rng.fill(&mut data);
                me.write(file, offset as u64, &data).unwrap();
                expected.resize(expected.len().max(offset + data.len()), 0);
                expected[offset..offset + data.len()].copy_from_slice(&data);
            }
            assert_eq!(me.read(file, 0, TRANSFER_MAX).unwrap().0, expected);
        }
    });
}

#[test]
fn lengths_past_the_limits_are_refused() {
    let model = Model::new(8192, || std::time::Duration::ZERO);
    let me = root(&model);
    let file = me.create(ROOT, "f").unwrap();
    assert_eq!(me.read(file, 0, TRANSFER_MAX + 1), Err(Error::Invalid {}));
    let long = vec![0; TRANSFER_MAX as usize + 1];
    assert_eq!(me.write(file, 0, &long), Err(Error::Invalid {}));
    assert_eq!(me.write(file, FILE_SIZE_MAX, b"x"), Err(Error::FileTooLarge {}));
    assert_eq!(me.write(file, u64::MAX, b"x"), Err(Error::FileTooLarge {}));
    assert_eq!(me.set(file, size(FILE_SIZE_MAX + 1)), Err(Error::FileTooLarge {}));
    me.write(file, FILE_SIZE_MAX - 1, b"x").unwrap();
    assert_eq!(me.write(file, 0, &[1; 4097]), Err(Error::NoSpace {}));
    me.write(file, 0, &[1; 4096]).unwrap();
    assert_eq!(model.ask(GetSpace { partition: 0 }).unwrap().free_bytes, 0);
    me.remove(ROOT, "f").unwrap();
    assert_eq!(model.ask(GetSpace { partition: 0 }).unwrap().free_bytes, 8192);
}

#[test]
fn a_handle_is_stale_once_its_last_name_is_gone_even_if_the_number_is_used_again() {
    let model = Model::default();
    let me = root(&model);
    let first = me.create(ROOT, "f").unwrap();
    me.link(first, ROOT, "g").unwrap();
    me.remove(ROOT, "f").unwrap();
    assert_eq!(me.stat(first).links, 1);
    me.remove(ROOT, "g").unwrap();
    let second = me.create(ROOT, "f").unwrap();
    assert_eq!(second.ino, first.ino);
    assert_eq!(me.read(first, 0, 1), Err(Error::Stale {}));
    assert_eq!(me.write(first, 0, b"x"), Err(Error::Stale {}));
    assert_eq!(me.link(first, ROOT, "h").map(handle), Err(Error::Stale {}));
    me.read(second, 0, 1).unwrap();
}

#[test]
fn create_of_an_existing_name_does_what_was_asked_for() {
    let model = Model::default();
    let me = root(&model);
    let same = Existing::UseIfSame { verifier: 7 };
    let made = me.create_with(ROOT, "f", same, Change::default()).unwrap();
    assert!(made.new);
    me.write(handle(made.attributes), 0, b"1234").unwrap();
    assert!(!me.create_with(ROOT, "f", same, Change::default()).unwrap().new);
    let other = Existing::UseIfSame { verifier: 8 };
    assert_eq!(me.create_with(ROOT, "f", other, Change::default()), Err(Error::Exists {}));
    let refused = me.create_with(ROOT, "f", Existing::Refuse {}, size(0));
    assert_eq!(refused, Err(Error::Exists {}));
    let change = Change { size: Some(2), mode: Some(0), ..Change::default() };
    let used = me.create_with(ROOT, "f", Existing::Use {}, change).unwrap();
    assert!(!used.new);
    assert_eq!((used.attributes.size, used.attributes.mode), (2, 0o644), "only the size applies");
    me.mkdir(ROOT, "d", 0o755).unwrap();
    let on_directory = me.create_with(ROOT, "d", Existing::Use {}, size(0));
    assert_eq!(on_directory, Err(Error::IsDirectory {}));
}

#[test]
fn a_call_that_comes_again_gets_the_first_answer() {
    let model = Model::default();
    let me = root(&model);
    me.create(ROOT, "f").unwrap();
    let again = Remove {
        who: me.who.clone(),
        call: call(),
        directory: ROOT,
        name: name("f"),
        durable: false,
    };
    assert_eq!(model.ask(again.clone()), Ok(()));
    assert_eq!(model.ask(again.clone()), Ok(()));
    let other = Remove { call: call(), ..again.clone() };
    assert_eq!(model.ask(other), Err(Error::NotFound {}));
    let reused = Remove { name: name("g"), ..again };
    assert_eq!(model.ask(reused), Err(Error::NotFound {}), "another call with the same id");
}

#[test]
fn directories_count_their_subdirectories_and_know_what_is_above() {
    let model = Model::default();
    let me = root(&model);
    let a = me.mkdir(ROOT, "a", 0o755).unwrap();
    let b = me.mkdir(a, "b", 0o755).unwrap();
    me.create(a, "f").unwrap();
    assert_eq!([ROOT, a, b].map(|directory| me.stat(directory).links), [3, 3, 2]);
    let parent = |directory| model.ask(Parent { who: Credentials::root(), directory }).map(handle);
    assert_eq!([parent(b), parent(a), parent(ROOT)], [Ok(a), Ok(ROOT), Ok(ROOT)]);
    assert_eq!(me.rmdir(ROOT, "a"), Err(Error::NotEmpty {}));
    assert_eq!(me.rmdir(a, "f"), Err(Error::NotDirectory {}));
    assert_eq!(me.remove(a, "b"), Err(Error::IsDirectory {}));
    assert_eq!(me.rmdir(a, "x"), Err(Error::NotFound {}));
    me.rmdir(a, "b").unwrap();
    assert_eq!(me.stat(a).links, 2);
    assert_eq!(me.lookup(b, "x"), Err(Error::Stale {}));
}

#[test]
fn rename_replaces_what_it_may_replace_and_nothing_else() {
    let model = Model::default();
    let me = root(&model);
    let [a, b] = ["a", "b"].map(|text| me.mkdir(ROOT, text, 0o755).unwrap());
    let f = me.create(a, "f").unwrap();
    let g = me.create(b, "g").unwrap();
    me.rename((a, "f"), (b, "g")).unwrap();
    assert_eq!(me.lookup(b, "g").map(handle), Ok(f));
    assert_eq!(me.read(g, 0, 1), Err(Error::Stale {}));
    assert_eq!(me.rename((b, "g"), (ROOT, "a")), Err(Error::IsDirectory {}));
    assert_eq!(me.rename((ROOT, "a"), (b, "g")), Err(Error::NotDirectory {}));
    assert_eq!(me.rename((ROOT, "a"), (ROOT, "b")), Err(Error::NotEmpty {}));
    assert_eq!(me.rename((ROOT, "b"), (b, "inside")), Err(Error::Invalid {}));
    assert_eq!(me.rename((ROOT, "x"), (ROOT, "y")), Err(Error::NotFound {}));
    me.rename((b, "g"), (b, "g")).unwrap();
    me.link(f, a, "f").unwrap();
    me.rename((a, "f"), (b, "g")).unwrap();
    assert_eq!(me.stat(f).links, 2, "two names of one file: nothing happens");
    me.remove(a, "f").unwrap();
    me.rename((ROOT, "b"), (ROOT, "a")).unwrap();
    assert_eq!((me.names(ROOT), me.stat(ROOT).links), (vec!["a".to_owned()], 3));
}

#[test]
fn a_rename_that_replaces_nothing_needs_a_new_name() {
    let model = Model::default();
    let me = root(&model);
    let [f, g] = ["f", "g"].map(|text| me.create(ROOT, text).unwrap());
    me.link(f, ROOT, "link").unwrap();
    for taken in ["f", "g", "link"] {
        assert_eq!(me.rename_to_new((ROOT, "f"), (ROOT, taken)), Err(Error::Exists {}));
    }
    assert_eq!(me.rename_to_new((ROOT, "x"), (ROOT, "g")), Err(Error::NotFound {}));
    me.rename_to_new((ROOT, "f"), (ROOT, "new")).unwrap();
    assert_eq!(me.lookup(ROOT, "new").map(handle), Ok(f));
    assert_eq!(me.lookup(ROOT, "g").map(handle), Ok(g));
}

#[test]
fn a_moved_directory_changes_its_parent_and_both_link_counts() {
    let model = Model::default();
    let me = root(&model);
    let [a, b] = ["a", "b"].map(|text| me.mkdir(ROOT, text, 0o755).unwrap());
    let c = me.mkdir(a, "c", 0o755).unwrap();
    me.rename((a, "c"), (b, "d")).unwrap();
    assert_eq!([a, b].map(|directory| me.stat(directory).links), [2, 3]);
    let parent = model.ask(Parent { who: me.who.clone(), directory: c }).unwrap();
    assert_eq!(handle(parent), b);
}

#[test]
fn links_make_one_file_of_many_names_but_not_of_directories() {
    let model = Model::default();
    let me = root(&model);
    let d = me.mkdir(ROOT, "d", 0o755).unwrap();
    let f = me.create(ROOT, "f").unwrap();
    assert_eq!(me.link(f, d, "g").unwrap().links, 2);
    me.write(f, 0, b"shared").unwrap();
    assert_eq!(me.lookup(d, "g").unwrap().size, 6);
    assert_eq!(me.link(d, ROOT, "e"), Err(Error::NotPermitted {}));
    assert_eq!(me.link(f, ROOT, "d"), Err(Error::Exists {}));
    for number in 2..LINKS_MAX {
        me.link(f, d, &number.to_string()).unwrap();
    }
    assert_eq!(me.link(f, d, "one more"), Err(Error::TooManyLinks {}));
}

#[test]
fn symbolic_links_and_special_files_keep_what_they_were_made_with() {
    let model = Model::default();
    let me = root(&model);
    let target = b"../somewhere".to_vec();
    let link = me.node(ROOT, "l", NewNode::Symlink { target: target.clone() }).unwrap();
    assert_eq!((link.kind, link.size, link.mode), (Kind::Symlink {}, 12, 0o777));
    assert_eq!(model.ask(ReadLink { file: handle(link) }), Ok(target));
    assert_eq!(model.ask(ReadLink { file: ROOT }), Err(Error::Invalid {}));
    for target in [vec![], vec![b'x'; TARGET_MAX + 1], b"a\0b".to_vec()] {
        let made = me.node(ROOT, "m", NewNode::Symlink { target });
        assert_eq!(made, Err(Error::Invalid {}));
    }
    let disk = me.node(ROOT, "disk", NewNode::BlockDevice { major: 8, minor: 1 }).unwrap();
    assert_eq!((disk.kind, disk.major, disk.minor), (Kind::BlockDevice {}, 8, 1));
    assert_eq!(me.read(handle(disk), 0, 1), Err(Error::Invalid {}));
    assert_eq!(me.read(ROOT, 0, 1), Err(Error::IsDirectory {}));
    assert_eq!(me.node(ROOT, "pipe", NewNode::Fifo {}).unwrap().kind, Kind::Fifo {});
    assert_eq!(me.node(ROOT, "socket", NewNode::Socket {}).unwrap().kind, Kind::Socket {});
    me.set(ROOT, mode(0o777)).unwrap();
    let device = NewNode::CharDevice { major: 1, minor: 3 };
    assert_eq!(user(&model, ALICE).node(ROOT, "null", device), Err(Error::NotPermitted {}));
}

#[test]
fn the_mode_decides_and_the_owner_overrides_for_open_files_only() {
    let model = Model::default();
    let (me, alice, bob) = (root(&model), user(&model, ALICE), user(&model, BOB));
    assert_eq!(alice.create(ROOT, "f"), Err(Error::AccessDenied {}));
    me.set(ROOT, mode(0o777)).unwrap();
    let private = alice.mkdir(ROOT, "private", 0o700).unwrap();
    let file = alice.create(private, "f").unwrap();
    alice.set(file, mode(0o400)).unwrap();
    alice.write(file, 0, b"her own").unwrap();
    assert_eq!(bob.lookup(private, "f"), Err(Error::AccessDenied {}));
    assert_eq!(bob.list(private, 0, 1), Err(Error::AccessDenied {}));
    assert_eq!(bob.read(file, 0, 1), Err(Error::AccessDenied {}));
    assert_eq!(bob.write(file, 0, b"x"), Err(Error::AccessDenied {}));
    assert_eq!(bob.set(file, size(0)), Err(Error::AccessDenied {}));
    assert_eq!(bob.set(file, mode(0o777)), Err(Error::NotPermitted {}));
    alice.set(file, mode(0o711)).unwrap();
    bob.read(file, 0, 1).unwrap();
    assert_eq!(bob.write(file, 0, b"x"), Err(Error::AccessDenied {}));
    assert_eq!(me.read(file, 0, 7), Ok((b"her own".to_vec(), true)));
}

#[test]
fn only_root_gives_files_away_and_setid_bits_do_not_survive_it() {
    let model = Model::default();
    let (me, alice) = (root(&model), user(&model, ALICE));
    me.set(ROOT, mode(0o777)).unwrap();
    let file = alice.create(ROOT, "f").unwrap();
    let to = |uid, gid| Change { uid, gid, ..Change::default() };
    assert_eq!(alice.set(file, to(Some(BOB), None)), Err(Error::NotPermitted {}));
    assert_eq!(alice.set(file, to(None, Some(7))), Err(Error::NotPermitted {}));
    alice.set(file, mode(0o6755)).unwrap();
    assert_eq!(alice.set(file, to(Some(ALICE), Some(100))).unwrap().mode, 0o755);
    alice.set(file, mode(0o6755)).unwrap();
    assert_eq!(alice.write(file, 0, b"x").unwrap().mode, 0o755);
    me.set(file, to(None, Some(7))).unwrap();
    assert_eq!(alice.set(file, mode(0o2755)).unwrap().mode, 0o755, "not her group");
    assert_eq!(me.set(file, to(Some(BOB), None)).unwrap().uid, BOB);
}

#[test]
fn setid_bits_do_not_survive_a_new_owner_that_root_gives_but_roots_writes() {
    let model = Model::default();
    let me = root(&model);
    let file = me.create(ROOT, "f").unwrap();
    let to = |uid, gid| Change { uid, gid, ..Change::default() };
    for change in [to(Some(BOB), None), to(None, Some(7)), to(Some(BOB), Some(7))] {
        me.set(file, mode(0o6755)).unwrap();
        assert_eq!(me.write(file, 0, b"x").unwrap().mode, 0o6755);
        assert_eq!(me.set(file, change).unwrap().mode, 0o755);
    }
    me.set(file, mode(0o6745)).unwrap();
    assert_eq!(
        me.set(file, to(Some(ALICE), None)).unwrap().mode,
        0o2745,
        "no one runs it as a group"
    );
    let both = Change { mode: Some(0o4755), ..to(Some(BOB), None) };
    assert_eq!(me.set(file, both).unwrap().mode, 0o4755, "said in the same breath");
    let directory = me.mkdir(ROOT, "d", 0o2755).unwrap();
    assert_eq!(
        me.set(directory, to(None, Some(7))).unwrap().mode,
        0o2755,
        "it means another thing"
    );
}

#[test]
fn in_a_sticky_directory_only_owners_remove_and_rename() {
    let model = Model::default();
    let (me, alice, bob) = (root(&model), user(&model, ALICE), user(&model, BOB));
    let tmp = me.mkdir(ROOT, "tmp", 0o1777).unwrap();
    alice.create(tmp, "hers").unwrap();
    bob.create(tmp, "his").unwrap();
    assert_eq!(bob.remove(tmp, "hers"), Err(Error::NotPermitted {}));
    assert_eq!(bob.rename((tmp, "hers"), (tmp, "x")), Err(Error::NotPermitted {}));
    assert_eq!(bob.rename((tmp, "his"), (tmp, "hers")), Err(Error::NotPermitted {}));
    alice.rename((tmp, "hers"), (tmp, "x")).unwrap();
    me.remove(tmp, "his").unwrap();
    alice.remove(tmp, "x").unwrap();
}

#[test]
fn a_setgid_directory_hands_its_group_down() {
    let model = Model::default();
    let (me, alice) = (root(&model), user(&model, ALICE));
    let shared = me.mkdir(ROOT, "shared", 0o2777).unwrap();
    me.set(shared, Change { gid: Some(500), mode: Some(0o2777), ..Change::default() }).unwrap();
    let file = alice.create(shared, "f").unwrap();
    assert_eq!((alice.stat(file).gid, alice.stat(file).mode), (500, 0o644));
    let directory = alice.mkdir(shared, "d", 0o755).unwrap();
    assert_eq!((alice.stat(directory).gid, alice.stat(directory).mode), (500, 0o2755));
    let plain = alice.stat(alice.create(alice.mkdir(shared, "e", 0o755).unwrap(), "g").unwrap());
    assert_eq!(plain.gid, 500);
}

#[test]
fn times_follow_content_and_attributes() {
    let model = Model::default();
    let me = root(&model);
    let file = me.create(ROOT, "f").unwrap();
    let made = me.stat(file);
    assert_eq!((made.atime, made.mtime, made.ctime), (made.birth, made.birth, made.birth));
    assert_eq!(me.stat(ROOT).mtime, made.birth, "the directory has changed with it");
    let written = me.write(file, 0, b"x").unwrap();
    assert!(written.mtime > made.mtime && written.ctime == written.mtime);
    assert_eq!(me.write(file, 0, b"").unwrap(), written, "nothing written, nothing changed");
    me.read(file, 0, 1).unwrap();
    let read = me.stat(file);
    assert!(read.atime > written.mtime && read.mtime == written.mtime);
    me.read(file, 0, 1).unwrap();
    assert_eq!(me.stat(file).atime, read.atime, "noted once, until it changes again");
    let changed = me.set(file, mode(0o600)).unwrap();
    assert!(changed.ctime > read.ctime && changed.mtime == read.mtime);
    assert_eq!(me.set(file, Change::default()).unwrap(), changed);
    let linked = me.link(file, ROOT, "g").unwrap();
    assert!(linked.ctime > changed.ctime && linked.mtime == changed.mtime);
    let given = Time { seconds: -5, nanos: 7 };
    let to = Change { mtime: Some(SetTime::To { time: given }), ..Change::default() };
    let set = me.set(file, to).unwrap();
    assert!(set.mtime == given && set.ctime > linked.ctime);
}

#[test]
fn others_may_touch_what_they_may_write_but_not_set_its_times() {
    let model = Model::default();
    let (me, bob) = (root(&model), user(&model, BOB));
    let file = me.create(ROOT, "f").unwrap();
    let now = Change { mtime: Some(SetTime::Now {}), ..Change::default() };
    let given = SetTime::To { time: Time::default() };
    let to = Change { mtime: Some(given), ..Change::default() };
    assert_eq!(bob.set(file, now.clone()), Err(Error::AccessDenied {}));
    me.set(file, mode(0o666)).unwrap();
    bob.set(file, now).unwrap();
    assert_eq!(bob.set(file, to), Err(Error::NotPermitted {}));
}

#[test]
fn a_guarded_change_is_refused_if_the_file_was_changed() {
    let model = Model::default();
    let me = root(&model);
    let file = me.create(ROOT, "f").unwrap();
    let seen = me.stat(file).ctime;
    let guarded = SetAttributes {
        who: me.who.clone(),
        file,
        change: mode(0),
        only_if_ctime: Some(seen),
        durable: false,
    };
    model.ask(guarded.clone()).unwrap();
    assert_eq!(model.ask(guarded), Err(Error::Changed {}));
}

#[test]
fn a_cookie_stays_valid_while_entries_come_and_go() {
    with_seed(|rng| {
        let model = Model::default();
        let me = root(&model);
        for number in 0..200 {
            me.create(ROOT, &format!("stays-{number}")).unwrap();
            me.create(ROOT, &format!("goes-{number}")).unwrap();
        }
        let mut seen = Vec::new();
        let mut after = 0;
        let mut round = 0;
        loop {
            let page = me.list(ROOT, after, 1 + rng.below(20) as u32).unwrap();
            seen.extend(page.entries.iter().map(|entry| entry.name.to_string()));
            after = page.entries.last().map_or(after, |entry| entry.cookie);
            if page.end {
                break;
            }
            let _ = me.remove(ROOT, &format!("goes-{}", rng.below(200)));
            if round < 50 {
                me.create(ROOT, &format!("new-{round}")).unwrap();
            }
            round += 1;
        }
        let stayed: Vec<String> = (0..200).map(|number| format!("stays-{number}")).collect();
        seen.retain(|name| name.starts_with("stays"));
        assert_eq!(seen, stayed, "each that stayed is seen once");
        assert_eq!(me.list(ROOT, after + 1000, 1), Err(Error::BadCookie {}));
        assert_eq!(me.list(ROOT, 0, 0), Err(Error::Invalid {}));
    });
}

#[test]
fn a_hole_frees_whole_pages_and_zeroes_its_edges_and_can_be_found() {
    let model = Model::default();
    let me = root(&model);
    let file = me.create(ROOT, "f").unwrap();
    me.write(file, 0, &[7; 10_000]).unwrap();
    me.write(file, 10_000, &[7; 10_000]).unwrap();
    let punch = |offset, length| {
        let (who, durable) = (me.who.clone(), false);
        model.ask(PunchHole { who, file, offset, length, durable }).map(|_| ())
    };
    let seek =
        |offset, target| model.ask(Seek { who: me.who.clone(), file, offset, target }).unwrap();
    let (data, hole) = (SeekTarget::Data {}, SeekTarget::Hole {});
    punch(4_000, 8_288).unwrap();
    assert_eq!((me.stat(file).size, me.stat(file).used_bytes), (20_000, 3 * 4096));
    let (bytes, _) = me.read(file, 3_999, 8_290).unwrap();
    assert_eq!(bytes, [&[7][..], &[0; 8_288], &[7]].concat());
    assert_eq!(
        (seek(0, data), seek(0, hole), seek(5_000, data)),
        (Some(0), Some(4096), Some(12_288))
    );
    assert_eq!(
        (seek(13_000, hole), seek(20_000, hole), seek(20_000, data)),
        (Some(20_000), None, None)
    );
    punch(12_289, u64::from(u32::MAX)).unwrap();
    assert_eq!(me.stat(file).used_bytes, 2 * 4096, "the last page goes with the end of the file");
    assert_eq!(seek(16_384, data), None);
    assert_eq!(punch(0, 0), Err(Error::Invalid {}));
    assert_eq!(punch(FILE_SIZE_MAX, 1), Err(Error::FileTooLarge {}));
}

#[test]
fn extended_attributes_are_for_whom_linux_has_them() {
    let model = Model::default();
    let (root, alice, bob) = (root(&model), user(&model, ALICE), user(&model, BOB));
    let set = |user: &User, file, name: &str| {
        let (who, value, mode) = (user.who.clone(), b"v".to_vec(), XattrMode::Either {});
        let name = XattrName::new(name.as_bytes().to_vec()).unwrap();
        model
            .ask(SetXattr { who, call: call(), file, name, value, mode, durable: false })
            .map(|_| ())
    };
    let get = |user: &User, file, name: &str| {
        let name = XattrName::new(name.as_bytes().to_vec()).unwrap();
        model.ask(GetXattr { who: user.who.clone(), file, name }).map(|_| ())
    };
    let open = root.mkdir(ROOT, "open", 0o1777).unwrap();
    let file = alice.create(open, "f").unwrap();
    alice.set(file, mode(0o640)).unwrap();
    set(&alice, file, "user.a").unwrap();
    assert_eq!(get(&bob, file, "user.a"), Err(Error::AccessDenied {}));
    assert_eq!(set(&bob, file, "user.a"), Err(Error::AccessDenied {}));
    assert_eq!(get(&alice, file, "user.b"), Err(Error::NoXattr {}));
    // Unlike content, not even for the owner without the mode.
    alice.set(file, mode(0)).unwrap();
    assert_eq!(get(&alice, file, "user.a"), Err(Error::AccessDenied {}));

    set(&root, file, "trusted.a").unwrap();
    assert_eq!(get(&alice, file, "trusted.a"), Err(Error::NoXattr {}));
    assert_eq!(set(&alice, file, "trusted.a"), Err(Error::NotPermitted {}));
    let listed = |user: &User| model.ask(ListXattrs { who: user.who.clone(), file }).unwrap().len();
    assert_eq!((listed(&root), listed(&bob)), (2, 1));

    assert_eq!(set(&bob, open, "user.a"), Err(Error::NotPermitted {}), "a sticky directory");
    assert_eq!(get(&bob, open, "user.a"), Err(Error::NoXattr {}));
    let link =
        alice.node(open, "l", NewNode::Symlink { target: b"f".to_vec() }).map(handle).unwrap();
    assert_eq!(set(&root, link, "user.a"), Err(Error::NotPermitted {}));
    assert_eq!(get(&root, link, "user.a"), Err(Error::NoXattr {}));
    set(&root, link, "trusted.a").unwrap();
    assert_eq!(set(&root, file, "trusted.mdfs.partitions"), Err(Error::NotPermitted {}));
    assert_eq!(get(&root, file, "trusted.mdfs.partitions"), Err(Error::NoXattr {}));
    for other in ["security.selinux", "system.posix_acl_access", "user"] {
        assert_eq!(set(&root, file, other), Err(Error::Unsupported {}));
    }
    assert_eq!(set(&root, file, "user."), Err(Error::Invalid {}));
}

#[test]
fn extended_attributes_of_one_file_have_a_limit_together() {
    let model = Model::default();
    let me = root(&model);
    let file = me.create(ROOT, "f").unwrap();
    let set = |name: &'static str, length, mode| {
        let (who, name) = (me.who.clone(), XattrName::new(name.as_bytes()).unwrap());
        let value = vec![1; length];
        model
            .ask(SetXattr { who, call: call(), file, name, value, mode, durable: false })
            .map(|_| ())
    };
    let (any, new, old) = (XattrMode::Either {}, XattrMode::CreateNew {}, XattrMode::Replace {});
    assert_eq!(set("user.a", 1, old), Err(Error::NoXattr {}));
    set("user.a", XATTR_VALUE_MAX, new).unwrap();
    assert_eq!(set("user.a", 1, new), Err(Error::Exists {}));
    assert_eq!(set("user.b", XATTR_VALUE_MAX + 1, any), Err(Error::TooLarge {}));
    let rest = XATTRS_BYTES_MAX - XATTR_VALUE_MAX - 12;
    assert_eq!(set("user.b", rest + 1, any), Err(Error::TooLarge {}));
    set("user.b", rest, any).unwrap();
    set("user.a", XATTR_VALUE_MAX, old).unwrap();
}
