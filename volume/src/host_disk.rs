//! What the host says of a disk that is to be formatted: is it one, who uses it, which is it.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

/// What a path that is to be a disk names on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostDisk {
    /// Bytes of it; `None` if there is nothing, and a file is to be made.
    pub(crate) length: Option<u64>,
    /// The name that the device has from its maker or its driver, as a shell takes it; files have
    /// none.
    pub(crate) device_id: Option<String>,
    /// The number of the device, or the place of the file: the same disk has the same.
    pub(crate) place: Option<(u64, u64)>,
    /// A block device.
    pub(crate) is_device: bool,
}

/// A path cannot be used as a disk. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum BadDisk {
    /// A device that is not there, or a mistyped name.
    #[error(
        "{}: there is no such device, and files are not made under /dev; `lsblk` lists the devices",
        .0.display()
    )]
    NoDevice(PathBuf),
    /// A link to nothing.
    #[error(
        "disk {}: it is a symbolic link to a path at which there is nothing; bring that back, or \
         correct the link",
        .0.display()
    )]
    BrokenLink(PathBuf),
    /// Neither a file nor a block device.
    #[error("disk {disk}: it is {1}; give a block device or a file", disk = .0.display())]
    NoDisk(PathBuf, &'static str),
    /// The host uses it.
    #[error("disk {disk} is in use: {1}; give another disk", disk = .0.display())]
    InUse(PathBuf, String),
    /// Twice the same.
    #[error("disks {} and {} are the same; give each disk once", .0.display(), .1.display())]
    Twice(PathBuf, PathBuf),
    /// The host cannot tell.
    #[error("disk {disk}: {1}", disk = .0.display())]
    Host(PathBuf, io::Error),
}

/// Is `path`, which does not exist, in the directory of devices? What is made there is lost at the
/// next start of the host, and fills its memory. /dev/shm is for files.
pub(crate) fn is_among_devices(path: &Path) -> bool {
    let Ok(mut at) = std::path::absolute(path) else { return false };
    // The nearest that exists may be reached by a link.
    let mut missing = Vec::new();
    while !at.exists() {
        missing.extend(at.file_name().map(ToOwned::to_owned));
        if !at.pop() {
            return false;
        }
    }
    let at = at.canonicalize().unwrap_or(at);
    let real: PathBuf =
        std::iter::once(at.into_os_string()).chain(missing.into_iter().rev()).collect();
    real.starts_with("/dev") && !real.starts_with("/dev/shm")
}

/// Looks at `path`, which is to be a disk of a new volume. Nothing is opened, and nothing made.
pub(crate) fn inspect(path: &Path) -> Result<HostDisk, BadDisk> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if is_among_devices(path) {
                return Err(BadDisk::NoDevice(path.to_owned()));
            }
            if fs::symlink_metadata(path).is_ok() {
                return Err(BadDisk::BrokenLink(path.to_owned()));
            }
            return Ok(HostDisk { length: None, device_id: None, place: None, is_device: false });
        }
        Err(error) => return Err(BadDisk::Host(path.to_owned(), error)),
    };
    let of = metadata.file_type();
    let other = match () {
        () if of.is_block_device() || of.is_file() => None,
        () if of.is_dir() => Some("a directory"),
        () if of.is_char_device() => Some("a character device"),
        () if of.is_fifo() => Some("a pipe"),
        () => Some("a socket"),
    };
    if let Some(other) = other {
        return Err(BadDisk::NoDisk(path.to_owned(), other));
    }
    if let Some(user) = user(&metadata) {
        return Err(BadDisk::InUse(path.to_owned(), user));
    }
    if of.is_block_device() {
        let device = BlockDevice(metadata.rdev());
        return Ok(HostDisk {
            length: Some(device.length().map_err(|error| BadDisk::Host(path.to_owned(), error))?),
            device_id: device.id(),
            place: Some((0, metadata.rdev())),
            is_device: true,
        });
    }
    let place = Some((metadata.dev(), metadata.ino()));
    Ok(HostDisk { length: Some(metadata.len()), device_id: None, place, is_device: false })
}

/// Looks at all of them; the same disk cannot be two.
pub(crate) fn inspect_all<'a>(
    paths: impl Iterator<Item = &'a PathBuf>,
) -> Result<Vec<HostDisk>, BadDisk> {
    let mut seen: Vec<(&PathBuf, HostDisk)> = Vec::new();
    for path in paths {
        let disk = inspect(path)?;
        let is_same = |other: &(&PathBuf, HostDisk)| match disk.place {
            Some(_) => other.1.place == disk.place,
            None => std::path::absolute(other.0).ok() == std::path::absolute(path).ok(),
        };
        if let Some((other, _)) = seen.iter().find(|other| is_same(other)) {
            return Err(BadDisk::Twice((*other).clone(), path.clone()));
        }
        seen.push((path, disk));
    }
    Ok(seen.into_iter().map(|(_, disk)| disk).collect())
}

/// A block device, by its number.
#[derive(Clone, Copy, PartialEq, Eq)]
struct BlockDevice(u64);

impl BlockDevice {
    /// Where the kernel describes it.
    fn description(self) -> PathBuf {
        PathBuf::from(format!("/sys/dev/block/{}:{}", major(self.0), minor(self.0)))
    }

    fn attribute(at: &Path) -> Option<String> {
        let text = fs::read_to_string(at).ok()?;
        let words: Vec<&str> = text.split_whitespace().collect();
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._-+:".contains(letter);
        let shown = words.join("_").replace(|letter| !is_plain(letter), "_");
        (!shown.is_empty()).then_some(shown)
    }

    /// In units of 512 bytes the kernel tells it, whatever the sectors of the device are.
    fn length(self) -> io::Result<u64> {
        let text = fs::read_to_string(self.description().join("size"))?;
        let sectors: u64 = text.trim().parse().map_err(io::Error::other)?;
        Ok(sectors * 512)
    }

    /// What its maker or its driver calls it: a world wide name, a serial number, or the UUID of
    /// a device mapper.
    fn id(self) -> Option<String> {
        let at = self.description();
        if let Some(number) = Self::attribute(&at.join("partition")) {
            let whole = at.canonicalize().ok()?;
            return Some(format!("{}-part{number}", Self::id_at(whole.parent()?)?));
        }
        Self::id_at(&at)
    }

    fn id_at(at: &Path) -> Option<String> {
        let places = ["wwid", "device/wwid", "serial", "device/serial", "dm/uuid", "md/uuid"];
        places.into_iter().find_map(|place| Self::attribute(&at.join(place)))
    }

    /// The device and its partitions, each with the place of its description.
    fn with_partitions(self) -> Vec<(Self, PathBuf)> {
        let at = self.description();
        let entries = fs::read_dir(&at).into_iter().flatten().flatten();
        let partitions = entries.filter_map(|entry| {
            let place = entry.path();
            place.join("partition").exists().then_some(())?;
            let number = fs::read_to_string(place.join("dev")).ok()?;
            let (major, minor) = number.trim().split_once(':')?;
            let number = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
            Some((Self(number), place))
        });
        let mut all: Vec<(Self, PathBuf)> = partitions.collect();
        all.push((self, at));
        all
    }

    /// The device that `path` names.
    fn at(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        metadata.file_type().is_block_device().then(|| Self(metadata.rdev()))
    }
}

/// Who uses the disk with this `metadata`, in words, as far as the host tells. Opening it with
/// `O_EXCL` is the proof that no other program does; this says who.
fn user(metadata: &Metadata) -> Option<String> {
    if !metadata.file_type().is_block_device() {
        let is_it = |path: &Path| {
            fs::metadata(path)
                .is_ok_and(|it| (it.dev(), it.ino()) == (metadata.dev(), metadata.ino()))
        };
        let swap =
            swaps().into_iter().any(|path| is_it(&path)).then(|| "it is swap space".to_owned());
        return swap.or_else(|| loop_device(is_it));
    }
    let parts = BlockDevice(metadata.rdev()).with_partitions();
    let is_part = |device: BlockDevice| parts.iter().any(|(part, _)| *part == device);
    if let Some(point) = mounts().into_iter().find_map(|(number, source, point)| {
        let is_it = is_part(number) || BlockDevice::at(&source).is_some_and(is_part);
        is_it.then_some(point)
    }) {
        return Some(format!("it, or a partition of it, is mounted at {}", point.display()));
    }
    if swaps().iter().any(|path| BlockDevice::at(path).is_some_and(is_part)) {
        return Some("it, or a partition of it, is swap space".into());
    }
    let holders = parts.iter().flat_map(|(_, at)| fs::read_dir(at.join("holders"))).flatten();
    let holder = holders.flatten().next()?.file_name();
    let holder = Path::new("/dev").join(holder);
    Some(format!("it, or a partition of it, is part of {}", holder.display()))
}

/// The loop device with the backing file that `is_it` tells.
fn loop_device(is_it: impl Fn(&Path) -> bool) -> Option<String> {
    let devices = fs::read_dir("/sys/block").ok()?.flatten();
    let mut loops = devices.filter(|device| {
        let backing = fs::read(device.path().join("loop/backing_file")).unwrap_or_default();
        let backing = backing.strip_suffix(b"\n").unwrap_or(&backing).to_vec();
        !backing.is_empty() && is_it(Path::new(&std::ffi::OsString::from_vec(backing)))
    });
    let name = loops.next()?.file_name();
    Some(format!("/dev/{} is made of it", name.display()))
}

/// What is mounted: the number of the device, what it was mounted from, and where.
fn mounts() -> Vec<(BlockDevice, PathBuf, PathBuf)> {
    parse_mounts(&fs::read("/proc/self/mountinfo").unwrap_or_default())
}

fn parse_mounts(table: &[u8]) -> Vec<(BlockDevice, PathBuf, PathBuf)> {
    let lines = table.split(|&byte| byte == b'\n');
    let mounts = lines.filter_map(|line| {
        let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let (major, minor) = std::str::from_utf8(fields.get(2)?).ok()?.split_once(':')?;
        let number = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        // After the optional fields: the type, then the source.
        let end = fields.iter().position(|field| *field == b"-")?;
        Some((BlockDevice(number), unescaped(fields.get(end + 2)?), unescaped(fields.get(4)?)))
    });
    mounts.collect()
}

/// Files and devices that are swap space now.
fn swaps() -> Vec<PathBuf> {
    let table = fs::read("/proc/swaps").unwrap_or_default();
    let lines = table.split(|&byte| byte == b'\n').skip(1);
    let first = lines.filter_map(|line| line.split(u8::is_ascii_whitespace).next());
    first.filter(|name| !name.is_empty()).map(unescaped).collect()
}

/// The kernel writes spaces and the like as three octal digits.
fn unescaped(name: &[u8]) -> PathBuf {
    let (mut out, mut rest) = (Vec::new(), name);
    while let [first, tail @ ..] = rest {
        let octal = |digits: &[u8]| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        };
        if let (b'\\', Some(byte)) = (first, tail.get(..3).and_then(octal)) {
            out.push(byte);
            rest = &tail[3..];
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_mounts_is_understood() {
        let table = b"36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw\n\
            37 35 0:42 / /b rw - btrfs /dev/sd\\134b rw\n\nshort 1 2\n";
        let found = parse_mounts(table);
        let text = |path: &PathBuf| path.display().to_string();
        let shown: Vec<_> = found.iter().map(|it| (it.0.0, text(&it.1), text(&it.2))).collect();
        assert_eq!(
            shown,
            [
                (rustix::fs::makedev(98, 0), "/dev/root".into(), "/mnt 2".into()),
                (rustix::fs::makedev(0, 42), "/dev/sd\\b".into(), "/b".into()),
            ]
        );
    }

    #[test]
    fn a_device_is_called_what_its_maker_calls_it() {
        let place = tempfile::tempdir().unwrap();
        let at = place.path();
        fs::create_dir(at.join("device")).unwrap();
        assert_eq!(BlockDevice::id_at(at), None);
        for (name, text, wanted) in [
            ("serial", " \n", None),
            ("device/serial", "S1 23$(x)\0\n", Some("S1_23__x__")),
            ("serial", "virtio7\n", Some("virtio7")),
            ("device/wwid", "t10.ATA     SAMSUNG  1\n", Some("t10.ATA_SAMSUNG_1")),
            ("wwid", "eui.0025385\n", Some("eui.0025385")),
        ] {
            fs::write(at.join(name), text).unwrap();
            assert_eq!(BlockDevice::id_at(at).as_deref(), wanted, "{name}");
        }
    }

    #[test]
    fn nothing_is_made_among_the_devices() {
        let place = tempfile::tempdir().unwrap();
        let link = place.path().join("devices");
        std::os::unix::fs::symlink("/dev", &link).unwrap();
        let missing = ["/dev/no-such-disk", "/dev/mapper/no/such", "/dev/../dev/no-such-disk"];
        for missing in missing.map(PathBuf::from).into_iter().chain([link.join("no-such-disk")]) {
            let found = inspect(&missing);
            assert!(matches!(found, Err(BadDisk::NoDevice(_))), "{} {found:?}", missing.display());
        }
        for fine in [PathBuf::from("/dev/shm/no-such-disk"), place.path().join("dev/sda")] {
            assert!(!is_among_devices(&fine), "{}", fine.display());
        }
    }

    #[test]
    fn only_files_and_block_devices_are_disks_and_each_is_one() {
        let place = tempfile::tempdir().unwrap();
        let [file, link, broken, new] =
            ["file", "link", "broken", "new"].map(|name| place.path().join(name));
        fs::write(&file, [0; 5000]).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        std::os::unix::fs::symlink(place.path().join("nothing"), &broken).unwrap();
        for (path, wanted) in [
            (place.path(), "it is a directory"),
            (Path::new("/dev/null"), "it is a character device"),
            (&broken, "a symbolic link to a path at which there is nothing"),
        ] {
            let refused = inspect(path).unwrap_err().to_string();
            assert!(refused.contains(wanted), "{refused}");
        }
        let found = inspect_all([&file, &new].into_iter()).unwrap();
        assert_eq!([found[0].length, found[1].length], [Some(5000), None]);
        for twice in [[&file, &link], [&new, &new]] {
            let refused = inspect_all(twice.into_iter()).unwrap_err().to_string();
            assert!(refused.contains("are the same"), "{refused}");
        }
    }

    #[test]
    fn what_the_root_is_mounted_from_is_in_use() {
        let devices = mounts().into_iter().filter_map(|(number, source, _)| {
            let device = BlockDevice::at(&source)?;
            (device == number).then_some(source)
        });
        // A host without any, as in a container, has nothing to show here.
        for source in devices {
            let refused = inspect(&source).unwrap_err().to_string();
            assert!(refused.contains("mounted at"), "{refused}");
        }
    }
}
