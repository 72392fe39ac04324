//! The pages that the kernel keeps of a mounted volume across opens: they are used as long as the
//! content is the same, and never after another client has changed it (close-to-open).

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use client::OpenOptions as NativeOptions;
use runtime::seed::{Rng, with_seed};
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use tests::Site;
use tests::mounted::{Mounted, may_mount};
use tests::served::Served;

const PAGE: usize = 4096;
const PAGES: usize = 16;
/// Writes of two mounts in turn.
const ROUNDS: u64 = 10_000;
/// The kernel requests no attributes for that long on its own.
const LONG: [&str; 2] = ["--cache-ms", "600000"];
/// A read without the server is done within this time.
const SOON: Duration = Duration::from_secs(20);

/// A served volume, mounted twice.
struct TwoMounts {
    mounts: [Mounted; 2],
    served: Served,
    site: Site,
}

impl TwoMounts {
    fn start(arguments: &[&str]) -> Self {
        let site = Site::formatted(1024, 16);
        let served = site.serve();
        let mounts =
            ["one", "two"].map(|point| Mounted::start_at(&site, Path::new(point), arguments));
        Self { mounts, served, site }
    }

    fn stop(self) {
        for mounted in self.mounts {
            mounted.unmount();
        }
        self.served.stop();
    }

    /// Opens the file at the first mount and reads all of it while the server does not answer:
    /// from the kernel's pages alone.
    #[track_caller]
    fn read_without_server(&self, name: &str) -> Vec<u8> {
        let mut file = File::open(self.mounts[0].path(name)).unwrap();
        self.signal("-STOP");
        let (sender, read) = mpsc::channel();
        let reader = thread::spawn(move || {
            // Without a look at the attributes: the time of the access is not cached.
            let (mut bytes, mut part) = (Vec::new(), vec![0; PAGE]);
            while let Ok(count @ 1..) = file.read(&mut part) {
                bytes.extend(&part[..count]);
            }
            let _ = sender.send(bytes);
        });
        let bytes = read.recv_timeout(SOON);
        self.signal("-CONT");
        reader.join().unwrap();
        bytes.expect("the read has waited for the server")
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.served.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }
}

/// Pages that all begin with their own version, and are filled with it.
fn content(versions: &[u64]) -> Vec<u8> {
    versions.iter().flat_map(|version| version.to_le_bytes().repeat(PAGE / 8)).collect()
}

/// The oldest version in each page.
fn versions(content: &[u8]) -> Vec<u64> {
    let oldest = |page: &[u8]| {
        let words = page.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        words.min().unwrap()
    };
    content.chunks(PAGE).map(oldest).collect()
}

#[test]
fn unchanged_content_is_read_without_the_server_after_another_open() {
    if !may_mount() {
        return;
    }
    let two = TwoMounts::start(&LONG);
    let written = content(&[1; PAGES]);
    fs::write(two.mounts[1].path("file"), &written).unwrap();
    let here = two.mounts[0].path("file");
    assert_eq!(fs::read(&here).unwrap(), written);
    assert_eq!(two.read_without_server("file"), written);
    // A change of the mode changes no content, though the ctime.
    fs::set_permissions(&here, Permissions::from_mode(0o600)).unwrap();
    assert_eq!(two.read_without_server("file"), written);
    two.stop();
}

#[test]
fn pages_outlast_writes_of_their_own_mount() {
    if !may_mount() {
        return;
    }
    let two = TwoMounts::start(&LONG);
    let here = two.mounts[0].path("file");
    let mut pages = vec![1; PAGES];
    fs::write(&here, content(&pages)).unwrap();
    assert_eq!(fs::read(&here).unwrap(), content(&pages));
    let file = OpenOptions::new().read(true).write(true).open(&here).unwrap();
    let mut read = vec![0; PAGES * PAGE];
    for version in 2..5 {
        pages[version] = version as u64;
        file.write_all_at(&content(&[version as u64]), (version * PAGE) as u64).unwrap();
        file.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(versions(&read), pages);
    }
    drop(file);
    assert_eq!(versions(&two.read_without_server("file")), pages);
    // Past the page cache, from which the kernel drops what it covers.
    let direct = OFlags::DIRECT.bits().cast_signed();
    let file = OpenOptions::new().write(true).custom_flags(direct).open(&here).unwrap();
    pages[7] = 7;
    file.write_all_at(&content(&[7]), 7 * PAGE as u64).unwrap();
    drop(file);
    assert_eq!(versions(&fs::read(&here).unwrap()), pages);
    two.stop();
}

#[test]
fn each_change_by_another_client_is_seen_by_the_next_open() {
    if !may_mount() {
        return;
    }
    let two = TwoMounts::start(&LONG);
    let [here, there] = [0, 1].map(|mount| two.mounts[mount].path("file"));
    fs::write(&here, content(&[1; PAGES])).unwrap();
    let whole = (PAGES * PAGE) as u64;
    let writable = || OpenOptions::new().write(true).open(&there).unwrap();
    let mut expected = content(&[1; PAGES]);
    let mut check = |what: &str, change: &mut dyn FnMut(&mut Vec<u8>)| {
        // Of the version before, with and without a long open that reads meanwhile.
        assert_eq!(two.read_without_server("file"), expected, "before: {what}");
        let open = File::open(&here).unwrap();
        change(&mut expected);
        let mut mixed = vec![0; PAGE];
        let _ = open.read_at(&mut mixed, 0).unwrap();
        assert!(fs::read(&here).unwrap() == expected, "{what}");
        assert!(fs::read(&here).unwrap() == expected, "once more: {what}");
        drop(open);
        assert!(fs::read(&here).unwrap() == expected, "after the close: {what}");
    };
    fs::read(&here).unwrap();
    check("overwritten", &mut |expected| {
        expected[PAGE..2 * PAGE].copy_from_slice(&content(&[2]));
        writable().write_all_at(&content(&[2]), PAGE as u64).unwrap();
    });
    check("overwritten, with the old times", &mut |expected| {
        expected[..PAGE].copy_from_slice(&content(&[3]));
        let file = writable();
        let before = file.metadata().unwrap().modified().unwrap();
        file.write_all_at(&content(&[3]), 0).unwrap();
        file.set_modified(before).unwrap();
    });
    check("longer", &mut |expected| {
        expected.extend(content(&[4]));
        OpenOptions::new()
            .append(true)
            .open(&there)
            .unwrap()
            .write_all_at(&content(&[4]), 0)
            .unwrap();
    });
    check("cut, and as long as before", &mut |expected| {
        let file = writable();
        let size = expected.len();
        expected[5 * PAGE + 7..].fill(0);
        file.set_len(5 * PAGE as u64 + 7).unwrap();
        file.set_len(size as u64).unwrap();
    });
    check("with a hole", &mut |expected| {
        expected[..PAGE + 9].fill(0);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(writable(), hole, 0, PAGE as u64 + 9).unwrap();
    });
    check("emptied", &mut |expected| {
        expected.clear();
        File::create(&there).unwrap();
    });
    check("written anew", &mut |expected| {
        *expected = content(&[6; PAGES]);
        fs::write(&there, &*expected).unwrap();
    });
    let volume = two.site.open();
    check("by a program with the library", &mut |expected| {
        expected[whole as usize - PAGE..].copy_from_slice(&content(&[8]));
        let file = volume.open("/file", NativeOptions::new().write(true)).unwrap();
        file.write_at(whole - PAGE as u64, content(&[8])).unwrap();
        drop(file);
    });
    drop(volume);
    two.stop();
}

#[test]
fn content_that_a_crash_has_undone_is_not_kept() {
    if !may_mount() {
        return;
    }
    let TwoMounts { mounts: [reader, writer], served, site } = TwoMounts::start(&LONG);
    let (here, port) = (reader.path("file"), served.port());
    let old = content(&[1; PAGES]);
    fs::write(&here, &old).unwrap();
    File::open(&here).unwrap().sync_all().unwrap();
    let open = File::open(&here).unwrap();
    let mut page = vec![0; PAGE];
    open.read_exact_at(&mut page, (PAGES / 2 * PAGE) as u64).unwrap();
    let file = OpenOptions::new().write(true).open(writer.path("file")).unwrap();
    file.write_all_at(&content(&[2]), 0).unwrap();
    // The kernel has a page of a version that goes with its writer and the server.
    open.read_exact_at(&mut page, 0).unwrap();
    assert_eq!(versions(&page), [2]);
    served.kill();
    writer.kill();
    let served = site.serve_at(port);
    drop(open);
    let now = versions(&fs::read(&here).unwrap());
    let volume = site.open();
    let stored = volume.open("/file", NativeOptions::new().read(true)).unwrap();
    let stored = stored.read_bytes_at(0, PAGES * PAGE).unwrap();
    assert_eq!(now, versions(&stored.concat()));
    drop((volume, file));
    let _ = Command::new("umount").args(["-q", "-l"]).arg(site.path("two")).status();
    reader.unmount();
    served.stop();
}

/// Ends the readers when it is dropped, also by a panic.
struct EndReaders<'a>(&'a AtomicBool);

impl Drop for EndReaders<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn two_mounts_in_turn_never_read_a_stale_page() {
    if !may_mount() {
        return;
    }
    let two = TwoMounts::start(&[]);
    let paths = [0, 1].map(|mount| two.mounts[mount].path("file"));
    fs::write(&paths[0], content(&[0; PAGES])).unwrap();
    // What was written before the writer closed the file.
    let closed: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
    let is_over = AtomicBool::new(false);
    let end = EndReaders(&is_over);
    let read = |path: &Path| {
        let before: Vec<u64> = closed.iter().map(|page| page.load(SeqCst)).collect();
        let found = versions(&fs::read(path).unwrap());
        assert_eq!(found.len(), PAGES);
        for (page, (found, before)) in found.iter().zip(before).enumerate() {
            assert!(*found >= before, "page {page} is of round {found}, after {before} was closed");
        }
    };
    with_seed(|rng| {
        let mut rng = Rng::new(rng.bits());
        thread::scope(|scope| {
            for path in &paths {
                scope.spawn(|| {
                    while !is_over.load(SeqCst) {
                        read(path);
                    }
                });
            }
            for round in 1..=ROUNDS {
                let first = rng.index(PAGES);
                let count = 1 + rng.index(PAGES - first);
                let path = &paths[round as usize % 2];
                let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
                file.write_all_at(&content(&vec![round; count]), (first * PAGE) as u64).unwrap();
                drop(file);
                for page in &closed[first..first + count] {
                    page.store(round, SeqCst);
                }
                // The other one, which has the pages of an earlier round.
                read(&paths[(round as usize + 1) % 2]);
                if rng.chance(1, 4) {
                    read(path);
                }
            }
            drop(end);
        });
    });
    two.stop();
}
