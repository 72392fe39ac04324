//! What a disk holds before it is formatted.
//!
//! A disk is empty only if its first and its last MiB are zeros. Whatever else is there may be
//! somebody's data: the table of signatures only finds a name for it.

use std::fmt;
use std::io;

use runtime::disk::Disk;
use runtime::hash::xxh3;

use crate::geometry::BLOCK_SIZE;
use crate::superblock::{MAGIC, Superblock};

/// Bytes at either end of a disk that must be zeros for it to be empty.
pub const END_BYTES: u64 = 1 << 20;

/// Bytes that are read at a time.
const READ_BYTES: u64 = 64 << 10;

/// What is on a disk that is not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskContent {
    /// In words, as in "an ext4 file system".
    what: &'static str,
    /// What its owner called it.
    label: Option<String>,
    /// Names this content and hardly any other: the UUID that it has, or a hash of the bytes.
    id: String,
    /// Of a disk of a volume.
    superblock: Option<Superblock>,
}

impl DiskContent {
    /// Names this content and hardly any other, as a shell takes it.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// If the disk is one of a volume, and says so clearly.
    pub fn superblock(&self) -> Option<&Superblock> {
        self.superblock.as_ref()
    }
}

impl fmt::Display for DiskContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)?;
        match &self.label {
            Some(label) => write!(f, " ({label}, {})", self.id),
            None => write!(f, " ({})", self.id),
        }
    }
}

/// What `disk` holds; `None` if it is empty. Only reads. A disk that cannot be read is an error:
/// what it holds may be readable again tomorrow.
pub async fn probe(disk: &dyn Disk) -> io::Result<Option<DiskContent>> {
    let length = disk.length();
    let edge = END_BYTES.min(length);
    let (first, last) = (read(disk, 0, edge).await?, read(disk, length - edge, edge).await?);
    Ok(DiskEnds { first: &first, last: &last, length }.content())
}

async fn read(disk: &dyn Disk, start: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(length as usize);
    while let left @ 1.. = length - bytes.len() as u64 {
        let piece = READ_BYTES.min(left) as usize;
        bytes.extend_from_slice(&disk.read(start + bytes.len() as u64, piece).await?);
    }
    Ok(bytes)
}

/// Both ends of a disk.
struct DiskEnds<'a> {
    first: &'a [u8],
    last: &'a [u8],
    length: u64,
}

/// Where a signature is, or what belongs to it.
#[derive(Clone, Copy)]
enum SignaturePlace {
    /// Bytes from the start of the disk.
    Start(u64),
    /// Bytes before its end.
    End(u64),
    /// Bytes after the start of the magic bytes.
    PastMagic(u64),
}
use SignaturePlace::{End, PastMagic, Start};

/// How an id is written.
#[derive(Clone, Copy)]
enum IdForm {
    /// 16 bytes, as they come.
    Uuid,
    /// 16 bytes, the first three groups in little endian.
    Guid,
    /// As many characters, at most.
    Text(usize),
    /// A number of as many bytes in little endian.
    Number(usize),
}
use IdForm::{Guid, Number, Text, Uuid};

/// By what a kind of content is known.
struct Signature {
    what: &'static str,
    place: SignaturePlace,
    magic: &'static [u8],
    id: Option<(SignaturePlace, IdForm)>,
    label: Option<(SignaturePlace, usize)>,
}

const fn signature(
    what: &'static str,
    place: SignaturePlace,
    magic: &'static [u8],
    id: Option<(SignaturePlace, IdForm)>,
    label: Option<(SignaturePlace, usize)>,
) -> Signature {
    Signature { what, place, magic, id, label }
}

const RAID: &str = "part of a Linux RAID";
const RAID_MAGIC: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9];
const RAID_ID: Option<(SignaturePlace, IdForm)> = Some((PastMagic(16), Uuid));
const RAID_LABEL: Option<(SignaturePlace, usize)> = Some((PastMagic(32), 32));
const LVM: &str = "an LVM physical volume";
const LVM_ID: Option<(SignaturePlace, IdForm)> = Some((PastMagic(32), Text(32)));
const GPT: &str = "a partition table (GPT)";
const GPT_ID: Option<(SignaturePlace, IdForm)> = Some((PastMagic(56), Guid));
const SWAP: &str = "swap space";
const SWAP_ID: Option<(SignaturePlace, IdForm)> = Some((Start(1036), Uuid));
const SWAP_LABEL: Option<(SignaturePlace, usize)> = Some((Start(1052), 16));

/// What a container says of itself comes before what it contains.
#[rustfmt::skip]
static SIGNATURES: &[Signature] = &[
    signature(RAID, Start(0), RAID_MAGIC, RAID_ID, RAID_LABEL),
    signature(RAID, Start(4096), RAID_MAGIC, RAID_ID, RAID_LABEL),
    signature(LVM, Start(0), b"LABELONE", LVM_ID, None),
    signature(LVM, Start(512), b"LABELONE", LVM_ID, None),
    signature(LVM, Start(1024), b"LABELONE", LVM_ID, None),
    signature(LVM, Start(1536), b"LABELONE", LVM_ID, None),
    signature("an encrypted volume (LUKS)", Start(0), b"LUKS\xba\xbe",
        Some((Start(168), Text(40))), None),
    signature("an encrypted volume (LUKS)", Start(16384), b"SKUL\xba\xbe",
        Some((PastMagic(168), Text(40))), None),
    signature("an encrypted volume (BitLocker)", Start(3), b"-FVE-FS-", None, None),
    signature("a bcache device", Start(4120),
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
        Some((PastMagic(16), Uuid)), None),
    signature("a bcachefs file system", Start(4120),
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
        Some((PastMagic(16), Uuid)), None),
    signature("a disk of Ceph", Start(0), b"bluestore block device", None, None),
    signature(GPT, Start(512), b"EFI PART", GPT_ID, None),
    signature(GPT, Start(4096), b"EFI PART", GPT_ID, None),
    signature(GPT, End(512), b"EFI PART", GPT_ID, None),
    signature(GPT, End(4096), b"EFI PART", GPT_ID, None),
    signature("an XFS file system", Start(0), b"XFSB",
        Some((Start(32), Uuid)), Some((Start(108), 12))),
    signature("a Btrfs file system", Start(65600), b"_BHRfS_M",
        Some((Start(65568), Uuid)), Some((Start(65835), 256))),
    signature("an F2FS file system", Start(1024), &[0x10, 0x20, 0xf5, 0xf2],
        Some((Start(1132), Uuid)), None),
    signature("an NTFS file system", Start(3), b"NTFS    ", Some((Start(72), Number(8))), None),
    signature("an exFAT file system", Start(3), b"EXFAT   ", Some((Start(100), Number(4))), None),
    signature("a FAT file system", Start(82), b"FAT32   ",
        Some((Start(67), Number(4))), Some((Start(71), 11))),
    signature("a FAT file system", Start(54), b"FAT1",
        Some((Start(39), Number(4))), Some((Start(43), 11))),
    signature("an ISO 9660 file system", Start(32769), b"CD001", None, Some((Start(32808), 32))),
    signature(SWAP, Start((4 << 10) - 10), b"SWAPSPACE2", SWAP_ID, SWAP_LABEL),
    signature(SWAP, Start((8 << 10) - 10), b"SWAPSPACE2", SWAP_ID, SWAP_LABEL),
    signature(SWAP, Start((16 << 10) - 10), b"SWAPSPACE2", SWAP_ID, SWAP_LABEL),
    signature(SWAP, Start((64 << 10) - 10), b"SWAPSPACE2", SWAP_ID, SWAP_LABEL),
];

/// The magic number of the ext file systems, in their superblock at byte 1024.
const EXT_MAGIC: [u8; 2] = 0xEF53_u16.to_le_bytes();
/// The feature bit of a journal.
const EXT_JOURNAL: u8 = 0x04;
/// Feature bits that only ext4 has: extents, 64 bit, flexible groups and more.
const EXT4_ONLY: [u8; 2] = [0xc0, 0x03];
/// The magic number in each ring of uberblocks of ZFS.
const ZFS_MAGIC: u64 = 0x00ba_b10c;
/// Bytes of a label of ZFS, of which two are at each end; its uberblocks are in the second half.
const ZFS_LABEL: u64 = 256 << 10;

impl DiskEnds<'_> {
    fn content(&self) -> Option<DiskContent> {
        if self.first.iter().chain(self.last).all(|&byte| byte == 0) {
            return None;
        }
        let named = self.of_volume().or_else(|| self.by_table());
        let named = named.or_else(|| self.old_raid()).or_else(|| self.zfs());
        let named = named.or_else(|| self.ext()).or_else(|| self.partitions());
        Some(named.unwrap_or_else(|| self.named("data of an unknown kind", None, None)))
    }

    /// `length` bytes at `offset` of the disk, if they are among those that were read.
    fn bytes(&self, offset: u64, length: usize) -> Option<&[u8]> {
        let within = |edge: &'_ [u8], offset: u64| {
            let start = usize::try_from(offset).ok()?;
            Some(start..start.checked_add(length).filter(|end| *end <= edge.len())?)
        };
        if let Some(range) = within(self.first, offset) {
            return self.first.get(range);
        }
        let start = self.length - self.last.len() as u64;
        self.last.get(within(self.last, offset.checked_sub(start)?)?)
    }

    fn has(&self, offset: u64, magic: &[u8]) -> bool {
        self.bytes(offset, magic.len()) == Some(magic)
    }

    /// What its id does not name is named by the bytes themselves.
    fn named(&self, what: &'static str, id: Option<String>, label: Option<String>) -> DiskContent {
        let hash = || format!("content-{:016x}", xxh3(self.first).wrapping_add(xxh3(self.last)));
        DiskContent { what, label, id: id.unwrap_or_else(hash), superblock: None }
    }

    /// A disk of MDFS.
    fn of_volume(&self) -> Option<DiskContent> {
        let block = BLOCK_SIZE as u64;
        let copy_offset = (self.length / block).checked_sub(1)? * block;
        let blocks = [0, copy_offset].map(|offset| self.bytes(offset, BLOCK_SIZE));
        if let Some(superblock) = Superblock::newest(blocks.into_iter().flatten()) {
            let id = format!("{}-{}", superblock.volume(), superblock.disk);
            let (what, label, superblock) = ("a volume of MDFS", None, Some(superblock));
            return Some(DiskContent { what, label, id, superblock });
        }
        let what = "a disk of MDFS, damaged or of a newer version";
        blocks
            .iter()
            .flatten()
            .any(|block| block.starts_with(&MAGIC))
            .then(|| self.named(what, None, None))
    }

    fn by_table(&self) -> Option<DiskContent> {
        let at = |place, magic| match place {
            Start(offset) => Some(offset),
            PastMagic(offset) => Some(magic + offset),
            End(before) => self.length.checked_sub(before),
        };
        SIGNATURES.iter().find_map(|signature| {
            let magic = at(signature.place, 0).filter(|at| self.has(*at, signature.magic))?;
            let at = |place| at(place, magic);
            let id = signature.id.and_then(|(place, form)| self.id(at(place)?, form));
            let label = signature.label.and_then(|(place, length)| self.text(at(place)?, length));
            Some(self.named(signature.what, id, label))
        })
    }

    /// Versions 1.0 and 0.90 of Linux RAID, which are at the end.
    fn old_raid(&self) -> Option<DiskContent> {
        let sectors = self.length / 512;
        let newer = (sectors.checked_sub(16)? & !7) * 512;
        if self.has(newer, RAID_MAGIC) {
            let label = self.text(newer + 32, 32);
            return Some(self.named(RAID, self.id(newer + 16, Uuid), label));
        }
        let older = (self.length & !0xffff).checked_sub(0x1_0000)?;
        self.has(older, RAID_MAGIC).then(|| {
            let id = [20, 52, 56, 60].map(|at| self.id(older + at, Number(4)));
            let id = id.into_iter().collect::<Option<Vec<String>>>();
            self.named(RAID, id.map(|parts| parts.join(":")), None)
        })
    }

    fn zfs(&self) -> Option<DiskContent> {
        let end = self.length & !(ZFS_LABEL - 1);
        let labels = [Some(0), Some(ZFS_LABEL), end.checked_sub(2 * ZFS_LABEL)];
        let labels = labels.into_iter().chain([end.checked_sub(ZFS_LABEL)]).flatten();
        let mut uberblocks =
            labels.flat_map(|label| (label + ZFS_LABEL / 2..label + ZFS_LABEL).step_by(1024));
        let is_magic =
            |at| self.has(at, &ZFS_MAGIC.to_le_bytes()) || self.has(at, &ZFS_MAGIC.to_be_bytes());
        uberblocks.any(is_magic).then(|| self.named("a disk of ZFS", None, None))
    }

    fn ext(&self) -> Option<DiskContent> {
        if !self.has(1080, &EXT_MAGIC) {
            return None;
        }
        let features = self.bytes(1024 + 92, 6)?;
        let is_4 = features[4] & EXT4_ONLY[0] != 0 || features[5] & EXT4_ONLY[1] != 0;
        let what = match () {
            () if is_4 => "an ext4 file system",
            () if features[0] & EXT_JOURNAL != 0 => "an ext3 file system",
            () => "an ext2 file system",
        };
        Some(self.named(what, self.id(1024 + 104, Uuid), self.text(1024 + 120, 16)))
    }

    /// The partition table of the PC, or something else that starts with boot code.
    fn partitions(&self) -> Option<DiskContent> {
        if !self.has(510, &[0x55, 0xaa]) {
            return None;
        }
        let table = self.bytes(446, 64)?;
        let is_sound = table.chunks(16).all(|entry| matches!(entry[0], 0 | 0x80));
        let is_used = table.chunks(16).any(|entry| entry[4] != 0);
        let what = if is_sound && is_used { "a partition table (MBR)" } else { "a boot sector" };
        Some(self.named(what, self.id(440, Number(4)), None))
    }

    /// An id at `offset`; none if there is nothing.
    fn id(&self, offset: u64, form: IdForm) -> Option<String> {
        let bytes = match form {
            Uuid | Guid => self.bytes(offset, 16)?,
            Text(length) => {
                let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
                return Some(self.text(offset, length)?.replace(|letter| !is_plain(letter), "_"));
            }
            Number(length) => self.bytes(offset, length)?,
        };
        if bytes.iter().all(|&byte| byte == 0) {
            return None;
        }
        let mut bytes = bytes.to_vec();
        match form {
            Guid => {
                for group in [0..4, 4..6, 6..8] {
                    bytes[group].reverse();
                }
            }
            Number(_) => bytes.reverse(),
            Uuid | Text(_) => {}
        }
        let mut id = String::new();
        for (index, byte) in bytes.iter().enumerate() {
            if bytes.len() == 16 && [4, 6, 8, 10].contains(&index) {
                id.push('-');
            }
            for half in [byte >> 4, byte & 15] {
                id.extend(char::from_digit(half.into(), 16));
            }
        }
        Some(id)
    }

    /// At most `length` bytes at `offset`, up to a zero, as far as they can be shown.
    fn text(&self, offset: u64, length: usize) -> Option<String> {
        let bytes = self.bytes(offset, length)?;
        let bytes = bytes.split(|&byte| byte == 0).next()?;
        let shown = String::from_utf8_lossy(bytes);
        let shown: String = shown.chars().filter(|letter| !letter.is_control()).collect();
        let shown = shown.trim();
        (!shown.is_empty()).then(|| shown.to_owned())
    }
}
