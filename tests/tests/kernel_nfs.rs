//! The NFS client of the Linux kernel on a served volume.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs;

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
        // Times end in 2106 (RFC 1813 section 2.5, nfstime3).
        "utimensat::y2038",
    ],
};

const V4_1: Version = Version { number: "4.1", allocates: false, passed_min: 379, cannot: &[] };

const V4_2: Version = Version { number: "4.2", allocates: true, passed_min: 384, cannot: &[] };

const FSX_OPERATIONS: u64 = 500;
const FSX_OPERATIONS_LONG: u64 = 20_000;

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
    let told = run(&site, &served, 180, &job).ok();
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
        let told = run(&site, &served, if long() { 3_600 } else { 180 }, &job).ok();
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
