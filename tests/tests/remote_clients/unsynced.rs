//! What was written and not synced, when the only server is killed or stopped before the sync: the
//! sync succeeds, and the bytes are there, also after one more kill.

use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};

use client::OpenOptions;
use tests::Content;
use tests::mounted::may_mount;

use super::RemoteSite;

/// Bytes of a file: more than one request, and parts of blocks.
const BYTES: u64 = (5 << 20) + 1234;
/// Bytes that are written over these once more, in the middle.
const AGAIN: std::ops::Range<usize> = 1_000_000..1_300_001;
const RESTARTS: u64 = 4;

/// The bytes of a file, in the order in which they are written.
fn parts(seed: u64) -> (Vec<u8>, Vec<u8>) {
    let content = Content { seed, length: BYTES }.bytes();
    (content, Content { seed: seed + 1, length: AGAIN.len() as u64 }.bytes())
}

#[test]
fn a_sync_after_the_server_was_killed_finds_all_that_was_written() {
    if !may_mount() {
        return;
    }
    let mut remote = RemoteSite::start();
    let client = remote.client();
    let mounted = client.mount("mnt", &[]);
    let volume = client.open().unwrap();
    let mut log = File::create_new(mounted.path("log")).unwrap();
    for restart in 0..RESTARTS {
        let (content, again) = parts(restart * 10);
        let in_mount = File::create_new(mounted.path(format!("mounted-{restart}"))).unwrap();
        in_mount.write_all_at(&content, 0).unwrap();
        in_mount.write_all_at(&again, AGAIN.start as u64).unwrap();
        let options = OpenOptions::new().read(true).write(true).create_new(true);
        let native = volume.open(format!("/native-{restart}"), options).unwrap();
        native.write_at(0, content.clone()).unwrap();
        native.write_at(AGAIN.start as u64, again.clone()).unwrap();
        log.write_all(format!("line {restart}\n").as_bytes()).unwrap();
        if restart % 2 == 0 {
            remote.kill_and_serve();
        } else {
            remote.stop_and_serve();
        }
        native.sync().unwrap();
        in_mount.sync_all().unwrap();
        log.sync_all().unwrap();
    }
    drop(log);
    // Nothing is left in the memory of the server, and the clients have nothing to send.
    remote.kill_and_serve();
    for restart in 0..RESTARTS {
        let (mut content, again) = parts(restart * 10);
        content[AGAIN].copy_from_slice(&again);
        for name in [format!("mounted-{restart}"), format!("native-{restart}")] {
            let found = fs::read(mounted.path(&name)).unwrap();
            assert!(found == content, "{name} has other bytes");
        }
    }
    let log = fs::read_to_string(mounted.path("log")).unwrap();
    assert!(log.lines().eq((0..RESTARTS).map(|restart| format!("line {restart}"))), "{log}");
    mounted.unmount();
}

#[test]
fn what_was_changed_before_an_unmount_outlives_the_server() {
    if !may_mount() {
        return;
    }
    let mut remote = RemoteSite::start();
    let client = remote.client();
    let mounted = client.mount("mnt", &[]);
    let (content, _) = parts(1);
    fs::write(mounted.path("file"), &content).unwrap();
    fs::set_permissions(mounted.path("file"), Permissions::from_mode(0o604)).unwrap();
    mounted.unmount();
    remote.kill_and_serve();
    let mounted = client.mount("again", &[]);
    let path = mounted.path("file");
    assert!(fs::read(&path).unwrap() == content, "the file has other bytes");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o604);
    mounted.unmount();
}
