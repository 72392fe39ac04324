//! Disks of a volume that are files of different size.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Makes files of these sizes in MiB in `directory`.
#[allow(dead_code, reason = "not every test has disks of several sizes")]
pub(crate) fn make_disks(directory: &Path, sizes: &[u64]) -> Vec<PathBuf> {
    fs::create_dir_all(directory).unwrap();
    let make = |(number, mib): (usize, &u64)| {
        let path = directory.join(format!("disk{number}"));
        make_disk(&path, mib << 20);
        path
    };
    sizes.iter().enumerate().map(make).collect()
}

/// Makes a file of `bytes` bytes that its owner only may read, as disks must be.
pub(crate) fn make_disk(path: &Path, bytes: u64) {
    let file = File::create_new(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    file.set_len(bytes).unwrap();
}
