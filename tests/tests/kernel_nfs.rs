//! The NFS client of the Linux kernel on a served volume.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs;
use std::thread;
use std::time::Duration;

use client::{ByteRange, LockKind, OpenOptions, XattrMode};
use runtime::seed::with_seed;
use tests::conformance::{Cases, fsx_settings, pjdfstest_settings};
use tests::guest::{POINT, may_boot, run};
use tests::mounted::tool;
use tests::{Site, long};

/// A version of NFS, and what it cannot do.
struct Version {
    number: &'static str,
    /// Whether `fallocate` and the finding of holes are part of it.
    allocates: bool,
    /// Cases of `pjdfstest` that must have passed, so that a list that has become empty is noticed.
    passed_min: usize,
    /// Cases that fail with every server.
    cannot: &'static [&'static str],
}

const V3: Version = Version {
    number: "3",
    allocates: false,
    passed_min: 377,
    cannot: &[
        // The client gives a file that is removed while it is open another name instead.
        "unlink::open_file_not_freed",
        // Times end in 2106 (RFC 1813 section 2.5, nfstime3), so the client's kernel cuts a later
        // one to the last that it can say, before it asks any server. The case is run because the
        // settings here claim `utimensat`; with those that come with pjdfstest, without that, only
        // the one above fails.
        "utimensat::y2038",
    ],
};

const V4_1: Version = Version { number: "4.1", allocates: false, passed_min: 379, cannot: &[] };

const V4_2: Version = Version { number: "4.2", allocates: true, passed_min: 384, cannot: &[] };

const FSX_OPERATIONS: u64 = 500;
const FSX_OPERATIONS_LONG: u64 = 20_000;

/// Rounds in which one client writes and the other reads.
const ROUNDS: u32 = 50;
const ROUNDS_LONG: u32 = 10_000;

/// Kills of a server.
const KILLS: u32 = 3;
const KILLS_LONG: u32 = 100;

/// What each of two clients does: in its rounds it writes and closes the data, then says so; in the
/// other's it waits until the other says so, and reads. An open after another's close sees what
/// that wrote.
const CLOSE_TO_OPEN: &str = r#"
round=1
while [ $round -le ROUNDS ]; do
    if [ $((round % 2)) = ROLE ]; then
        echo $((100000 + round)) >data
        echo $round >turn
    else
        turn=
        until read turn 2>/dev/null <turn && [ "$turn" = $round ]; do
            busybox usleep 1000
        done
        read data <data
        [ $data = $((100000 + round)) ] || { echo "stale: $data in round $round"; exit 1; }
    fi
    round=$((round + 1))
done
echo "no stale byte in $((round - 1)) rounds"
"#;

/// What a client does while its server is killed: it holds a lock on a file that it has open, and
/// that has lost its name; writes, makes and renames; and compares all in the end.
const OUTLIVING: &str = r"
dd if=/dev/urandom of=/run/reference bs=64k count=16 2>/dev/null
echo first >held
exec 9<>held
LOCK
rm held
echo 0 >locked
count=0
until [ -e stop ]; do
    dd if=/run/reference of=file$count bs=64k 2>/dev/null
    mkdir made$count
    mv made$count moved$count
    count=$((count + 1))
done
sync
while [ $count -gt 0 ]; do
    count=$((count - 1))
    cmp /run/reference file$count
    [ -d moved$count ]
    [ ! -e made$count ]
done
echo after >&9
cat /proc/self/fd/9
";

fn posix_is_kept(version: &Version) {
    if !may_boot() {
        return;
    }
    let pjdfstest = tool("pjdfstest");
    let site = Site::formatted(4096, 16);
    let served = site.serve();
    let settings = site.path("pjdfstest.toml");
    fs::write(&settings, pjdfstest_settings(version.allocates, false)).unwrap();
    let job = format!(
        "mount_nfs {number} {POINT}
         mkdir {POINT}/pjdfstest
         chmod 755 {POINT} {POINT}/pjdfstest
         {pjdfstest} -c {settings} -p {POINT}/pjdfstest -s /mnt/other || true",
        number = version.number,
        pjdfstest = pjdfstest.display(),
        settings = settings.display(),
    );
    let told = run(&site, served.port(), 180, &job).ok();
    let Cases { passed, wrong } = Cases::of(&told);
    let wrong: Vec<&String> =
        wrong.iter().filter(|name| !version.cannot.contains(&name.as_str())).collect();
    assert!(wrong.is_empty(), "{wrong:#?}\n{told}");
    assert!(passed >= version.passed_min, "{passed} cases passed only\n{told}");
    served.stop();
}

fn content_is_right(version: &Version) {
    if !may_boot() {
        return;
    }
    let fsx = tool("fsx");
    with_seed(|rng| {
        let site = Site::formatted(1024, 16);
        let served = site.serve();
        let settings = site.path("fsx.toml");
        fs::write(&settings, fsx_settings(version.allocates)).unwrap();
        let operations = if long() { FSX_OPERATIONS_LONG } else { FSX_OPERATIONS };
        let job = format!(
            "mount_nfs {number} {POINT}
             {fsx} -f {settings} -P /run -N {operations} -S {seed} {POINT}/file",
            number = version.number,
            fsx = fsx.display(),
            settings = settings.display(),
            seed = rng.below(1 << 32),
        );
        let told = run(&site, served.port(), if long() { 3_600 } else { 180 }, &job).ok();
        assert!(told.contains("A-OK"), "{told}");
        served.stop();
    });
}

#[test]
fn posix_is_kept_case_by_case_over_version_3_but_for_what_it_has_no_words_for() {
    posix_is_kept(&V3);
}

#[test]
fn the_content_of_a_file_is_right_after_any_operations_over_version_3() {
    content_is_right(&V3);
}

#[test]
fn posix_is_kept_case_by_case_over_version_4_1() {
    posix_is_kept(&V4_1);
}

#[test]
fn the_content_of_a_file_is_right_after_any_operations_over_version_4_1() {
    content_is_right(&V4_1);
}

#[test]
fn posix_is_kept_case_by_case_over_version_4_2() {
    posix_is_kept(&V4_2);
}

#[test]
fn the_content_of_a_file_is_right_after_any_operations_over_version_4_2() {
    content_is_right(&V4_2);
}

#[test]
fn a_tree_is_unpacked_and_copied_and_is_the_same() {
    if !may_boot() {
        return;
    }
    let site = Site::formatted(1024, 16);
    let served = site.serve();
    let job = format!(
        "mount_nfs 4.2 {POINT}
         mkdir {POINT}/unpacked
         tar cf - -C {tree} . | tar xf - -C {POINT}/unpacked
         diff -r {tree} {POINT}/unpacked
         cp -a {POINT}/unpacked {POINT}/copied
         echo 3 >/proc/sys/vm/drop_caches
         diff -r {tree} {POINT}/copied
         rm -r {POINT}/unpacked {POINT}/copied
         test -z \"$(ls -A {POINT})\"",
        tree = env!("CARGO_MANIFEST_DIR"),
    );
    run(&site, served.port(), 180, &job).ok();
    served.stop();
}

#[test]
fn extended_attributes_are_copied_over_version_4_2() {
    if !may_boot() {
        return;
    }
    let site = Site::formatted(1024, 16);
    let served = site.serve();
    let volume = site.open();
    volume.create("/marked").unwrap();
    volume.xattrs("/marked").set("user.mark", "value", XattrMode::Either {}).unwrap();
    // That of the host: the shell's own copies no attributes.
    let job =
        format!("mount_nfs 4.2 {POINT}\n/bin/cp --preserve=xattr {POINT}/marked {POINT}/copy");
    run(&site, served.port(), 180, &job).ok();
    assert_eq!(volume.xattrs("/copy").get("user.mark").unwrap(), b"value");
    drop(volume);
    served.stop();
}

fn two_kernels_agree(versions: [&str; 2]) {
    if !may_boot() {
        return;
    }
    let site = Site::formatted(1024, 16);
    let served = site.serve();
    let port = served.port();
    let rounds = if long() { ROUNDS_LONG } else { ROUNDS };
    thread::scope(|scope| {
        let guests = versions.into_iter().enumerate().map(|(role, version)| {
            let job = CLOSE_TO_OPEN.replace("ROUNDS", &rounds.to_string());
            let job = job.replace("ROLE", &role.to_string());
            let job = format!("mount_nfs {version} {POINT}\ncd {POINT}\n{job}\ncd /\n");
            let (site, seconds) = (&site, if long() { 7_200 } else { 240 });
            scope.spawn(move || run(site, port, seconds, &job))
        });
        let guests: Vec<_> = guests.collect();
        for guest in guests {
            let told = guest.join().unwrap().ok();
            assert!(told.contains(&format!("no stale byte in {rounds} rounds")), "{told}");
        }
    });
    served.stop();
}

#[test]
fn two_kernels_read_no_stale_byte_over_version_4_1() {
    two_kernels_agree(["4.1", "4.1"]);
}

#[test]
fn two_kernels_read_no_stale_byte_over_versions_3_and_4_1() {
    two_kernels_agree(["3", "4.1"]);
}

/// The server is killed again and again while a kernel works. Returns what the job has said.
fn outlive(version: &str, lock: &str, check: impl Fn(&Site)) -> String {
    let site = Site::formatted(2048, 16);
    let mut served = site.serve();
    let port = served.port();
    // Soon seen: what others make is looked for at once.
    let job = format!(
        "mount_nfs {version} {POINT} ,actimeo=1\ncd {POINT}\n{}\nexec 9>&-\ncd /\n",
        OUTLIVING.replace("LOCK", lock)
    );
    thread::scope(|scope| {
        let site = &site;
        let guest = scope.spawn(move || run(site, port, if long() { 3_600 } else { 240 }, &job));
        let volume = site.open();
        while volume.metadata("/locked").is_err() {
            assert!(!guest.is_finished(), "{:?}", guest.join());
            thread::sleep(Duration::from_millis(100));
        }
        drop(volume);
        for _ in 0..if long() { KILLS_LONG } else { KILLS } {
            thread::sleep(Duration::from_secs(2));
            assert!(!guest.is_finished(), "{:?}", guest.join());
            served.kill();
            served = site.serve_at(port);
        }
        thread::sleep(Duration::from_secs(2));
        assert!(!guest.is_finished(), "{:?}", guest.join());
        check(site);
        site.open().create("/stop").unwrap();
        let told = guest.join().unwrap().ok();
        served.stop();
        told
    })
}

/// The same over a version with locks: the kernel gets its lock again. Its sessions end with the
/// server, but not what was done in them (ADR 51).
fn outlive_with_lock(version: &str) {
    let told = outlive(version, "flock -n 9\nln held other", |site| {
        let volume = site.open();
        let file = volume.open("/other", OpenOptions::new().read(true).write(true)).unwrap();
        // Kernels look for a server that is gone every 15 s, half of the lease.
        let is_locked = |_| {
            thread::sleep(Duration::from_secs(1));
            file.test_lock(ByteRange::ALL, LockKind::Shared {}).unwrap().is_some()
        };
        assert!((0..40).any(is_locked), "the lock is gone");
    });
    assert!(told.contains("after\n"), "{told}");
}

#[test]
fn a_kernel_loses_nothing_by_kills_of_its_server_over_version_4_2_not_even_its_lock() {
    if may_boot() {
        outlive_with_lock("4.2");
    }
}

#[test]
fn a_kernel_loses_nothing_by_kills_of_its_server_over_version_4_1_not_even_its_lock() {
    // To the server both are the same but for their number: the short form has one of them.
    if may_boot() && long() {
        outlive_with_lock("4.1");
    }
}

#[test]
fn a_kernel_loses_nothing_by_kills_of_its_server_over_version_3() {
    if !may_boot() {
        return;
    }
    let told = outlive("3", "", |_| {});
    assert!(told.contains("after\n"), "{told}");
}
