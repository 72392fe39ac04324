//! Paths mean what POSIX says. Method: the blocking client on the model.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use client::blocking::Volume;
use client::{
    ByteRange, Cause, Change, Credentials, Error, Kind, LockKind, OpenOptions, SYMLINKS_MAX,
};
use fileio::model::machine;
use fileio::protocol::{Error as FileIoError, NameError};

fn volume() -> Volume {
    let machine = machine::start().unwrap();
    Volume::holding(machine.client_handle(), Credentials::root(), machine)
}

fn put(volume: &Volume, path: &str, content: &str) {
    volume.create(path).unwrap().write_at(0, content.to_owned()).unwrap();
}

fn get(volume: &Volume, path: &str) -> Result<String, Error> {
    let file = volume.open(path, OpenOptions::new().read(true))?;
    let bytes = file.read_bytes_at(0, 1 << 20)?.concat();
    Ok(String::from_utf8(bytes).unwrap())
}

fn cause<T: std::fmt::Debug>(result: Result<T, Error>) -> Cause {
    result.unwrap_err().cause
}

const NOT_FOUND: Cause = Cause::FileIo(FileIoError::NotFound {});
const EXISTS: Cause = Cause::FileIo(FileIoError::Exists {});
const NOT_DIRECTORY: Cause = Cause::FileIo(FileIoError::NotDirectory {});
const IS_DIRECTORY: Cause = Cause::FileIo(FileIoError::IsDirectory {});

#[test]
fn dots_double_slashes_and_links_lead_where_they_point() {
    let volume = volume();
    volume.mkdir_all("/a/b/c").unwrap();
    put(&volume, "/a/f", "content");
    volume.symlink("b/c", "/a/relative").unwrap();
    volume.symlink("/a/b", "/a/absolute").unwrap();
    volume.symlink("../../f", "/a/b/c/up").unwrap();
    for path in [
        "/a/f",
        "a/f",
        "//a///f",
        "/a/./b/../f",
        "/a/relative/../../f",
        "/a/absolute/c/up",
        "/a/relative/up",
        "/../../a/f",
        "/a/b/../../a/./f",
    ] {
        assert_eq!(get(&volume, path).as_deref(), Ok("content"), "{path}");
    }
    let kind = |path: &str| volume.symlink_metadata(path).map(|found| found.kind);
    assert_eq!(kind("/a/relative"), Ok(Kind::Symlink {}));
    assert_eq!(kind("/a/relative/"), Ok(Kind::Directory {}), "a slash asks for the directory");
    assert_eq!(kind("/"), Ok(Kind::Directory {}));
    assert_eq!(kind("/a/b/."), Ok(Kind::Directory {}));
    assert_eq!(volume.read_link("/a/relative").as_deref(), Ok(&b"b/c"[..]));
}

#[test]
fn a_path_that_leads_nowhere_says_why() {
    let volume = volume();
    put(&volume, "/f", "");
    assert_eq!(cause(get(&volume, "")), Cause::EmptyPath);
    assert_eq!(cause(get(&volume, "/missing")), NOT_FOUND);
    assert_eq!(cause(get(&volume, "/missing/f")), NOT_FOUND);
    assert_eq!(cause(get(&volume, "/f/g")), NOT_DIRECTORY);
    assert_eq!(cause(get(&volume, "/f/")), NOT_DIRECTORY);
    assert_eq!(cause(get(&volume, "/f/..")), NOT_DIRECTORY);
    assert_eq!(cause(get(&volume, "/")), IS_DIRECTORY);
    assert_eq!(cause(get(&volume, &"x".repeat(256))), Cause::Name(NameError::TooLong));
    assert_eq!(cause(get(&volume, "/a\0b")), Cause::Name(NameError::Forbidden));
    put(&volume, &"x".repeat(255), "longest");
    assert_eq!(cause(volume.create("/new/")), IS_DIRECTORY);
    assert_eq!(cause(volume.mkdir("/")), EXISTS);
    assert_eq!(cause(volume.remove_dir("/")), Cause::NoLastName);
    assert_eq!(cause(volume.remove_dir("/.")), Cause::NoLastName);
    assert_eq!(cause(volume.rename("/..", "/x")), Cause::NoLastName);
    let error = get(&volume, "/missing/f").unwrap_err();
    let text =
        "cannot open /missing/f: no such file or directory; check the spelling, or make it first";
    assert_eq!(error.to_string(), text);
}

#[test]
fn links_are_followed_up_to_the_limit_and_loops_end() {
    let volume = volume();
    put(&volume, "/l0", "end");
    for number in 1..=SYMLINKS_MAX + 1 {
        volume.symlink(format!("l{}", number - 1), format!("/l{number}")).unwrap();
    }
    assert_eq!(get(&volume, &format!("/l{SYMLINKS_MAX}")).as_deref(), Ok("end"));
    assert_eq!(cause(get(&volume, &format!("/l{}", SYMLINKS_MAX + 1))), Cause::SymlinkLoop);
    volume.symlink("/me/and/more", "/me").unwrap();
    assert_eq!(cause(get(&volume, "/me")), Cause::SymlinkLoop);
    volume.remove_file("/me").unwrap();
}

#[test]
fn open_creates_refuses_and_cuts_as_asked() {
    let volume = volume();
    let write = OpenOptions::new().write(true);
    assert_eq!(cause(volume.open("/f", write)), NOT_FOUND);
    volume.open("/f", write.create_new(true).mode(0o640)).unwrap();
    assert_eq!(volume.metadata("/f").unwrap().mode, 0o640);
    assert_eq!(cause(volume.open("/f", write.create_new(true))), EXISTS);
    put(&volume, "/f", "12345");
    volume.open("/f", write.create(true)).unwrap();
    assert_eq!(get(&volume, "/f").as_deref(), Ok("12345"));
    volume.open("/f", write.truncate(true)).unwrap();
    assert_eq!(get(&volume, "/f").as_deref(), Ok(""));
    volume.symlink("made", "/dangling").unwrap();
    assert_eq!(cause(volume.open("/dangling", write.create_new(true))), EXISTS);
    put(&volume, "/dangling", "through the link");
    assert_eq!(get(&volume, "/made").as_deref(), Ok("through the link"));
    for options in [
        OpenOptions::new(),
        OpenOptions::new().read(true).truncate(true),
        OpenOptions::new().read(true).create(true),
        OpenOptions::new().append(true).truncate(true),
    ] {
        assert_eq!(cause(volume.open("/f", options)), Cause::BadOptions);
    }
    let reading = volume.open("/f", OpenOptions::new().read(true)).unwrap();
    assert_eq!(cause(reading.write_at(0, "x")), Cause::NotWritable);
    assert_eq!(cause(reading.set_len(0)), Cause::NotWritable);
    let writing = volume.open("/f", write).unwrap();
    assert_eq!(cause(writing.read_bytes_at(0, 1)), Cause::NotReadable);
}

#[test]
fn the_mode_is_checked_when_a_file_is_opened_and_not_later() {
    let machine = machine::start().unwrap();
    let alice = Credentials { uid: 1000, gid: 1000, groups: vec![] };
    let root = Volume::new(machine.client_handle(), Credentials::root());
    root.set_attributes("/", Change { mode: Some(0o777), ..Change::default() }).unwrap();
    let volume = Volume::new(machine.client_handle(), alice);
    let options = OpenOptions::new().write(true).create_new(true).mode(0o444);
    let file = volume.open("/f", options).unwrap();
    file.write_at(0, "written by who made it").unwrap();
    let denied = volume.open("/f", OpenOptions::new().write(true));
    assert_eq!(cause(denied), Cause::FileIo(FileIoError::AccessDenied {}));
    assert_eq!(get(&volume, "/f").as_deref(), Ok("written by who made it"));
    assert_eq!(
        root.set_attributes("/f", Change { uid: Some(7), ..Change::default() }).unwrap().uid,
        7
    );
}

#[test]
fn names_move_link_and_go() {
    let volume = volume();
    volume.mkdir("/d").unwrap();
    put(&volume, "/f", "one");
    volume.hard_link("/f", "/d/g").unwrap();
    assert_eq!(volume.metadata("/d/g").unwrap().links, 2);
    assert_eq!(cause(volume.hard_link("/f", "/d")), EXISTS);
    put(&volume, "/h", "two");
    volume.rename("/h", "/f").unwrap();
    assert_eq!(get(&volume, "/f").as_deref(), Ok("two"));
    assert_eq!(get(&volume, "/d/g").as_deref(), Ok("one"));
    assert_eq!(cause(volume.rename("/f", "/d/")), NOT_DIRECTORY);
    assert_eq!(cause(volume.rename("/f", "/d")), IS_DIRECTORY);
    volume.rename("/d", "/e/").unwrap();
    assert_eq!(cause(volume.remove_file("/e")), IS_DIRECTORY);
    assert_eq!(cause(volume.remove_dir("/f")), NOT_DIRECTORY);
    assert_eq!(cause(volume.remove_dir("/e")), Cause::FileIo(FileIoError::NotEmpty {}));
    volume.remove_file("/e/g").unwrap();
    volume.remove_dir("/e").unwrap();
    let changed = volume.set_attributes("/f", Change { mode: Some(0o600), ..Change::default() });
    assert_eq!(changed.unwrap().mode, 0o600);
    assert_eq!(
        volume.set_attributes("/f", Change { size: Some(1), ..Change::default() }).unwrap().size,
        1
    );
    volume.sync().unwrap();
    assert!(volume.space().unwrap().total_bytes > 0);
}

#[test]
fn whole_trees_are_made_listed_and_removed() {
    let volume = volume();
    volume.mkdir_all("deep/./er/../er/est/").unwrap();
    volume.mkdir_all("/deep/er").unwrap();
    put(&volume, "/file", "");
    assert_eq!(cause(volume.mkdir_all("/file/x")), NOT_DIRECTORY);
    assert_eq!(cause(volume.mkdir_all("/file")), NOT_DIRECTORY);
    volume.symlink("/file", "/deep/link").unwrap();
    for number in 0..2500 {
        put(&volume, &format!("/deep/er/{number}"), "");
    }
    let listed = volume.read_dir("/deep/er").unwrap();
    assert_eq!(listed.len(), 2501);
    assert!(listed.iter().all(|entry| entry.attributes.is_some()));
    assert_eq!(cause(volume.read_dir("/file")), NOT_DIRECTORY);
    volume.remove_all("/deep").unwrap();
    assert_eq!(cause(volume.remove_all("/deep")), NOT_FOUND);
    let left: Vec<String> =
        volume.read_dir("/").unwrap().iter().map(|entry| entry.name.to_string()).collect();
    assert_eq!(left, ["file"], "what the link pointed to is still there");
}

#[test]
fn a_file_that_is_open_outlives_its_name() {
    let volume = volume();
    put(&volume, "/f", "still there");
    let options = OpenOptions::new().read(true).write(true);
    let (one, other) = (volume.open("/f", options).unwrap(), volume.open("/f", options).unwrap());
    volume.remove_file("/f").unwrap();
    assert_eq!(cause(get(&volume, "/f")), NOT_FOUND);
    assert_eq!(one.metadata().unwrap().links, 0);
    one.write_at(6, "here, ").unwrap();
    drop(one);
    assert_eq!(other.read_bytes_at(0, 100).unwrap().concat(), b"still here, ");
    let inodes = volume.space().unwrap().inodes;
    drop(other);
    volume.sync().unwrap();
    assert_eq!(volume.space().unwrap().inodes, inodes - 1, "gone when it was closed");
    put(&volume, "/f", "");
    put(&volume, "/g", "another");
    let replaced = volume.open("/f", options).unwrap();
    volume.rename("/g", "/f").unwrap();
    assert_eq!(replaced.metadata().unwrap().size, 0);
    assert_eq!(get(&volume, "/f").as_deref(), Ok("another"));
}

#[test]
fn locks_exclude_others_until_they_are_dropped() {
    let machine = machine::start().unwrap();
    let volume = Volume::new(machine.client_handle(), Credentials::root());
    put(&volume, "/f", "");
    let options = OpenOptions::new().read(true).write(true);
    let (one, other) = (volume.open("/f", options).unwrap(), volume.open("/f", options).unwrap());
    let head = ByteRange { first: 0, last: 9 };
    let tail = ByteRange { first: 10, last: u64::MAX };
    let shared = one.lock(head, LockKind::Shared {}).unwrap();
    let lock = one.lock(tail, LockKind::Exclusive {}).unwrap();
    assert!(other.try_lock(head, LockKind::Shared {}).unwrap().is_some());
    assert!(other.try_lock(tail, LockKind::Shared {}).unwrap().is_none());
    let conflict = other.test_lock(ByteRange::ALL, LockKind::Exclusive {}).unwrap().unwrap();
    assert_eq!((conflict.range, conflict.kind), (head, LockKind::Shared {}));
    assert!(lock.is_held());
    drop(lock);
    let taken = other.lock(tail, LockKind::Exclusive {}).unwrap();
    drop((one, shared));
    let all = other.lock(ByteRange::ALL, LockKind::Exclusive {}).unwrap();
    assert_eq!((all.range(), taken.range()), (ByteRange::ALL, tail));
}
