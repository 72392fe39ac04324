//! Files of a mounted volume, beyond reading and writing: without a name, with extended attributes,
//! with holes.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use rustix::fs::{
    FallocateFlags, SeekFrom, XattrFlags, fallocate, getxattr, getxattr_query, listxattr,
    listxattr_query, removexattr, seek, setxattr,
};
use rustix::io::Errno;
use tests::Site;
use tests::mounted::{Mounted, may_mount};

const MIB: u64 = 1 << 20;

#[test]
fn a_removed_file_is_used_as_any_other_until_it_is_closed_and_then_gives_its_space_back() {
    if !may_mount() {
        return;
    }
    let site = Site::formatted(1024, 16);
    let used_before = site.used_bytes();
    let mounted = Mounted::start(&site, &["--cache-ms", "0"]);
    let path = mounted.path("file");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(&vec![7; 8 * MIB as usize], 0).unwrap();
    fs::remove_file(&path).unwrap();
    // Another file of the same name is another file.
    fs::write(&path, b"another").unwrap();
    file.write_all_at(b"more", 8 * MIB).unwrap();
    file.sync_all().unwrap();
    let metadata = file.metadata().unwrap();
    assert_eq!((metadata.nlink(), metadata.len()), (0, 8 * MIB + 4));
    file.set_len(4 * MIB).unwrap();
    let again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    drop(file);
    let mut tail = [0; 4];
    again.read_exact_at(&mut tail, 4 * MIB - 4).unwrap();
    assert_eq!((tail, again.metadata().unwrap().len()), ([7; 4], 4 * MIB));
    drop(again);
    assert_eq!(fs::read(&path).unwrap(), b"another");
    mounted.unmount();
    let used = site.used_bytes() - used_before;
    assert!(used < MIB, "{used} bytes more are in use");
}

#[test]
fn extended_attributes_are_set_read_listed_and_removed() {
    if !may_mount() {
        return;
    }
    let site = Site::formatted(1024, 16);
    let mounted = Mounted::start(&site, &[]);
    let path = mounted.path("file");
    fs::write(&path, b"content").unwrap();
    assert_eq!(listxattr(&path, &mut [0_u8; 64]), Ok(0));
    setxattr(&path, "user.one", b"first", XattrFlags::CREATE).unwrap();
    setxattr(&path, "user.two", b"", XattrFlags::empty()).unwrap();
    setxattr(&path, "trusted.three", b"third", XattrFlags::empty()).unwrap();
    let create = setxattr(&path, "user.one", b"again", XattrFlags::CREATE);
    assert_eq!(create, Err(Errno::EXIST));
    let replace = setxattr(&path, "user.none", b"again", XattrFlags::REPLACE);
    assert_eq!(replace, Err(Errno::NODATA));
    setxattr(&path, "user.one", b"replaced", XattrFlags::REPLACE).unwrap();

    let mut value = [0_u8; 64];
    assert_eq!(getxattr_query(&path, "user.one"), Ok(8));
    assert_eq!(getxattr(&path, "user.one", &mut [0_u8; 7]), Err(Errno::RANGE));
    assert_eq!(getxattr(&path, "user.one", &mut value), Ok(8));
    assert_eq!(&value[..8], b"replaced");
    assert_eq!(getxattr(&path, "user.two", &mut value), Ok(0));
    assert_eq!(getxattr(&path, "user.none", &mut value), Err(Errno::NODATA));
    assert_eq!(getxattr(&path, "security.capability", &mut value), Err(Errno::OPNOTSUPP));

    let expected = b"trusted.three\0user.one\0user.two\0";
    let mut names = [0_u8; 64];
    assert_eq!(listxattr_query(&path), Ok(expected.len()));
    assert_eq!(listxattr(&path, &mut [0_u8; 8]), Err(Errno::RANGE));
    assert_eq!(listxattr(&path, &mut names), Ok(expected.len()));
    assert_eq!(&names[..expected.len()], expected);

    removexattr(&path, "user.one").unwrap();
    assert_eq!(removexattr(&path, "user.one"), Err(Errno::NODATA));
    setxattr(mounted.path(""), "user.root", b"x", XattrFlags::empty()).unwrap();
    mounted.unmount();
    let mounted = Mounted::start(&site, &[]);
    assert_eq!(getxattr(mounted.path("file"), "trusted.three", &mut value), Ok(5));
    assert_eq!(getxattr(mounted.path("file"), "user.one", &mut value), Err(Errno::NODATA));
    assert_eq!(getxattr(mounted.path(""), "user.root", &mut value), Ok(1));
    mounted.unmount();
}

#[test]
fn space_is_prepared_given_back_and_found() {
    if !may_mount() {
        return;
    }
    let site = Site::formatted(1024, 16);
    let mounted = Mounted::start(&site, &["--cache-ms", "0"]);
    let options = OpenOptions::new().read(true).write(true).create_new(true).clone();
    let file = options.open(mounted.path("file")).unwrap();
    let keep_size = FallocateFlags::KEEP_SIZE;
    let length = || file.metadata().unwrap().len();
    fallocate(&file, keep_size, 0, MIB).unwrap();
    assert_eq!(length(), 0);
    fallocate(&file, FallocateFlags::empty(), 0, MIB).unwrap();
    assert_eq!(length(), MIB);
    let too_large = fallocate(&file, FallocateFlags::empty(), 0, 1 << 40);
    assert_eq!(too_large, Err(Errno::NOSPC));

    file.write_all_at(&vec![7; 4 * MIB as usize], 0).unwrap();
    file.sync_all().unwrap();
    let blocks = file.metadata().unwrap().blocks();
    fallocate(&file, FallocateFlags::PUNCH_HOLE | keep_size, MIB, MIB).unwrap();
    fallocate(&file, FallocateFlags::ZERO_RANGE | keep_size, 3 * MIB + 100, 2 * MIB).unwrap();
    assert_eq!(length(), 4 * MIB);
    file.sync_all().unwrap();
    assert!(file.metadata().unwrap().blocks() < blocks);
    let byte = |at| {
        let mut byte = [9];
        file.read_exact_at(&mut byte, at).unwrap();
        byte[0]
    };
    let at = [0, MIB - 1, MIB, 2 * MIB - 1, 2 * MIB, 3 * MIB + 99, 3 * MIB + 100, 4 * MIB - 1];
    assert_eq!(at.map(byte), [7, 7, 0, 0, 7, 7, 0, 0]);
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(MIB));
    assert_eq!(seek(&file, SeekFrom::Data(MIB)), Ok(2 * MIB));
    assert_eq!(seek(&file, SeekFrom::Data(4 * MIB)), Err(Errno::NXIO));
    fallocate(&file, FallocateFlags::ZERO_RANGE, 4 * MIB, MIB).unwrap();
    assert_eq!(length(), 5 * MIB);
    for other in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        assert_eq!(fallocate(&file, other, 0, MIB), Err(Errno::OPNOTSUPP));
    }
    drop(file);
    mounted.unmount();
}
