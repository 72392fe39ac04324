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

/// Copies a volume, as a crash would leave it if it is in use.
#[allow(dead_code, reason = "not every test copies one")]
pub(crate) fn copy_all(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir(to).unwrap();
    fs::set_permissions(to, fs::metadata(from).unwrap().permissions()).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_all(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}
