//! What others have written to try out file systems, on a mounted volume: `pjdfstest` (POSIX, case by
//! case) and `fsx` (random operations on one file, content compared).

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use runtime::seed::with_seed;
use tests::mounted::{Mounted, may_mount, tool};
use tests::{Site, long};

/// How `pjdfstest` is run. What fails is listed with its reason, and it is an error if it passes.
///
/// - `unlink::open_file_not_freed`: a file that is removed while it is open is gone at once.
const PJDFSTEST: &str = r#"
[features]
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.001
allow_remount = true
expected_failures = ["unlink::open_file_not_freed"]
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// Cases of `pjdfstest` that must have passed, so that a list that has become empty is noticed.
const PASSED_MIN: usize = 370;

/// All that `fsx` can do and the volume has.
const FSX: &str = r"
flen = 1048576
[opsize]
max = 131072
[weights]
close_open = 1
invalidate = 1
mapread = 5
mapwrite = 5
read = 10
write = 10
truncate = 3
fsync = 1
fdatasync = 1
sendfile = 2
posix_fadvise = 1
copy_file_range = 2
";

const FSX_OPERATIONS: u64 = 2_000;
const FSX_OPERATIONS_LONG: u64 = 100_000;

#[test]
fn posix_is_kept_case_by_case() {
    if !may_mount() {
        return;
    }
    let pjdfstest = tool("pjdfstest");
    let site = Site::formatted(4096, 16);
    Mounted::open_to_all(&site);
    let mounted = Mounted::start(&site, &["--allow-other"]);
    let (folder, config) = (mounted.path("pjdfstest"), site.path("pjdfstest.toml"));
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&config, PJDFSTEST).unwrap();
    let mut command = Command::new(pjdfstest);
    command.arg("-c").arg(config).arg("-p").arg(folder).args(["-s", "/dev/shm"]);
    let output = command.env("NO_COLOR", "1").output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let failed: Vec<&str> = told
        .lines()
        .filter(|line| line.ends_with("FAILED") || line.contains("UNEXPECTEDLY"))
        .collect();
    assert!(output.status.success(), "{failed:#?}\n{told}");
    let passed = told.lines().filter(|line| line.ends_with(" ok")).count();
    assert!(passed >= PASSED_MIN, "{passed} cases passed only\n{told}");
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
        fs::write(&config, FSX).unwrap();
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
