//! What others have written to try out file systems, on a mounted volume: `pjdfstest` and `fsx`.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use runtime::seed::with_seed;
use tempfile::TempDir;
use tests::conformance::{Cases, fsx_settings, pjdfstest_settings};
use tests::mount_helper::with_mount_helper;
use tests::mounted::{Mounted, may_mount, tool};
use tests::{Site, long};

/// The cases of a file system that becomes read-only. They are run first, alone: a case that fails
/// may leave its file open, which keeps the file system from becoming so.
const READ_ONLY: &str = "erofs";

/// Cases that must have passed, of those and of all, so that a list that has become empty is
/// noticed.
const READ_ONLY_MIN: usize = 12;
const ALL_MIN: usize = 384;

const FSX_OPERATIONS: u64 = 2_000;
const FSX_OPERATIONS_LONG: u64 = 100_000;

#[test]
fn posix_is_kept_case_by_case() {
    if !may_mount() {
        return;
    }
    let pjdfstest = tool("pjdfstest");
    let site = Site::formatted(4096, 16);
    // Other users must reach it, and the address of a socket is a short path.
    let at = TempDir::with_prefix_in("mdfs-", "/tmp").unwrap();
    let mounted = Mounted::start_at(&site, at.path(), &["--allow-other"]);
    fs::set_permissions(at.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let folder = mounted.path("pjdfstest");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    for (remounts, cases, passed_min) in
        [(true, Some(READ_ONLY), READ_ONLY_MIN), (false, None, ALL_MIN)]
    {
        let config = site.path("pjdfstest.toml");
        fs::write(&config, pjdfstest_settings(true, remounts)).unwrap();
        // Where `fuse3` is installed, `mount -o remount` needs the helper.
        let helpers = site.path(format!("helpers-{remounts}"));
        let mut command = with_mount_helper(&helpers, true, &pjdfstest);
        command.arg("-c").arg(config).arg("-p").arg(&folder).args(["-s", "/dev/shm"]).args(cases);
        let output = command.env("NO_COLOR", "1").output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        let Cases { passed, wrong } = Cases::of(&told);
        assert!(output.status.success() && wrong.is_empty(), "{wrong:#?}\n{told}");
        assert!(passed >= passed_min, "{passed} cases passed only\n{told}");
    }
    mounted.unmount();
}

#[test]
fn the_content_of_a_file_is_right_after_any_operations() {
    if !may_mount() {
        return;
    }
    let fsx = tool("fsx");
    with_seed(|rng| {
        let site = Site::formatted(1024, 16);
        let mounted = Mounted::start(&site, &[]);
        let config = site.path("fsx.toml");
        fs::write(&config, fsx_settings(true)).unwrap();
        let operations = if long() { FSX_OPERATIONS_LONG } else { FSX_OPERATIONS };
        let mut command = Command::new(&fsx);
        command.arg("-f").arg(config).arg("-P").arg(site.path("."));
        command.args(["-N", &operations.to_string(), "-S", &rng.below(1 << 32).to_string()]);
        let output = command.arg(mounted.path("file")).output().unwrap();
        let told = [output.stdout, output.stderr].concat();
        let told = String::from_utf8_lossy(&told);
        assert!(output.status.success() && told.contains("A-OK"), "{told}");
        mounted.unmount();
    });
}
