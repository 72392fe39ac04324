//! The disks of a process when it makes them.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;

use tests::cluster::{Cluster, Shape};

/// The superblock of an ext4 file system starts at byte 1024.
const EXT4: [(u64, &[u8]); 3] =
    [(1024 + 56, &[0x53, 0xef]), (1024 + 96, &[0x42]), (1024 + 104, b"its own 128 bits")];

/// Makes a disk one that holds a file system.
pub(super) fn write_ext4(disk: &File) {
    for (at, bytes) in EXT4 {
        disk.write_all_at(bytes, at).unwrap();
    }
}

/// Does it hold that still?
pub(super) fn has_ext4(disk: &File) -> bool {
    EXT4.iter().all(|&(at, bytes)| {
        let mut found = vec![0; bytes.len()];
        disk.read_exact_at(&mut found, at).unwrap();
        found == bytes
    })
}

/// A process that is to have this disk, before it runs for the first time.
fn put_disk(directory: &Path) {
    fs::create_dir_all(directory.join("disks")).unwrap();
    let disk = File::create(directory.join("disks/n0d0")).unwrap();
    disk.set_len(256 << 20).unwrap();
    write_ext4(&disk);
    for (name, mode) in [("", 0o711), ("disks", 0o700), ("disks/n0d0", 0o600)] {
        fs::set_permissions(directory.join(name), Permissions::from_mode(mode)).unwrap();
    }
}

/// A disk that holds a file system is not formatted, except by its id.
#[test]
fn a_process_does_not_format_a_disk_that_holds_anything() {
    let mut cluster = Cluster::not_started(Shape { members: 2, ..Shape::default() });
    put_disk(&cluster.directory(1));
    let refused = |cluster: &Cluster, more: &[&str]| {
        let serve = ["cluster", "serve", "cluster.toml", "1"];
        let output = cluster.run(&[&serve[..], more].concat());
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let text = refused(&cluster, &[]);
    assert!(text.contains("disks/n0d0 holds an ext4 file system ("), "{text}");
    assert!(refused(&cluster, &["--force", "n0d0"]).contains("no disk has the id n0d0"));
    let disk = File::open(cluster.directory(1).join("disks/n0d0")).unwrap();
    assert!(has_ext4(&disk), "a refused disk was changed");
    let id = text.split("--force ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    cluster.start_member_with(1, &["--force", id]);
    cluster.start_member(2);
    for number in cluster.numbers() {
        cluster.wait_until_ready(number);
    }
    // And from now on without.
    cluster.stop();
    for number in cluster.numbers() {
        cluster.start_member(number);
    }
    for number in cluster.numbers() {
        cluster.wait_until_ready(number);
    }
    cluster.stop();
    let told = cluster.check();
    assert!(told.contains("sound"), "{told}");
}
