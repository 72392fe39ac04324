//! What others have written to try out file systems: `pjdfstest` (POSIX, case by case) and `fsx`
//! (random operations on one file, content compared).

use std::collections::BTreeSet;
use std::fmt::Write as _;

/// How `pjdfstest` is run.
const PJDFSTEST: &str = r#"
[features]
rename_ctime = {}
utime_now = {}
utimensat = {}
EXTRA
[settings]
naptime = 0.001
allow_remount = REMOUNT
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// What `fsx` does on every file system.
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

/// The settings of `pjdfstest`. What a file system has only if it knows `fallocate` is tried out
/// too if `allocates`; it is made read-only and writable again if `remounts`.
pub fn pjdfstest_settings(allocates: bool, remounts: bool) -> String {
    let extra = if allocates { "posix_fallocate = {}" } else { "" };
    PJDFSTEST.replace("EXTRA", extra).replace("REMOUNT", &remounts.to_string())
}

/// The settings of `fsx`, with space given and taken if the file system `allocates`.
pub fn fsx_settings(allocates: bool) -> String {
    let mut settings = FSX.to_owned();
    if allocates {
        for operation in ["posix_fallocate = 2", "punch_hole = 5"] {
            writeln!(settings, "{operation}").expect("a string takes all that is written to it");
        }
    }
    settings
}

/// What came of the cases of `pjdfstest`.
#[derive(Debug)]
pub struct Cases {
    /// How many went well.
    pub passed: usize,
    /// The names of those that did not.
    pub wrong: BTreeSet<String>,
}

impl Cases {
    /// What `pjdfstest` has told.
    pub fn of(told: &str) -> Self {
        let is_wrong = |line: &&str| line.ends_with("FAILED") || line.contains("UNEXPECTEDLY");
        let name = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
        Self {
            passed: told.lines().filter(|line| line.ends_with(" ok")).count(),
            wrong: told.lines().filter(is_wrong).map(name).collect(),
        }
    }
}
