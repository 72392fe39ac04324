//! Every attribute, and how its value is told (RFC 8881 section 5.8).

use fileio::protocol::{Attributes, FILE_SIZE_MAX, Kind, LINKS_MAX, Space, Time};

use super::Bitmap;
use super::settable::SETTABLE;
use crate::nfs3::{Asker, FILE_BYTES_MIN, NAME_BYTES_MAX};
use crate::translate;
use crate::v4::limits::{DATA_BYTES_MAX, LEASE};
use crate::xdr::Out;

/// What attributes are told of.
pub(crate) struct Facts<'a> {
    /// Who asks.
    pub(crate) asker: &'a Asker,
    /// The file.
    pub(crate) attributes: &'a Attributes,
    /// Its handle.
    pub(crate) handle: &'a [u8],
    /// The space of the volume, if [asked for](wants_space).
    pub(crate) space: Space,
}

struct Row {
    number: u32,
    tell: fn(&Facts, &mut Out),
}

const fn row(number: u32, tell: fn(&Facts, &mut Out)) -> Row {
    Row { number, tell }
}

/// Those that can be read, in the order of their numbers.
const ROWS: &[Row] = &[
    row(0, |_, out| supported().tell(out)),
    row(1, |facts, out| out.u32(file_type(facts.attributes.kind))),
    // Handles stay good as long as their file exists.
    row(2, |_, out| out.u32(0)),
    row(CHANGE, |facts, out| out.u64(facts.asker.volume().change(facts.attributes))),
    row(4, |facts, out| out.u64(facts.attributes.size)),
    // Hard links, symbolic links, no named attributes.
    row(5, |_, out| out.bool(true)),
    row(6, |_, out| out.bool(true)),
    row(7, |_, out| out.bool(false)),
    row(8, |facts, out| {
        out.u64(translate::fsid(facts.asker.volume().id()));
        out.u64(0);
    }),
    // Two handles are never one file.
    row(9, |_, out| out.bool(true)),
    row(10, |_, out| out.u32(LEASE.as_secs() as u32)),
    // No error.
    row(11, |_, out| out.u32(0)),
    // No access control lists.
    row(13, |_, out| out.u32(0)),
    // Times can be set; names keep their case, and it counts; only root gives files away.
    row(15, |_, out| out.bool(true)),
    row(16, |_, out| out.bool(false)),
    row(17, |_, out| out.bool(true)),
    row(18, |_, out| out.bool(true)),
    row(19, |facts, out| out.opaque(facts.handle)),
    row(20, |facts, out| out.u64(facts.attributes.ino)),
    row(21, |facts, out| out.u64(facts.space.free_bytes / FILE_BYTES_MIN)),
    row(22, |facts, out| out.u64(facts.space.free_bytes / FILE_BYTES_MIN)),
    row(23, |facts, out| {
        let free = facts.space.free_bytes / FILE_BYTES_MIN;
        out.u64(facts.space.inodes.saturating_add(free));
    }),
    // The same for all files of the volume.
    row(26, |_, out| out.bool(true)),
    row(27, |_, out| out.u64(FILE_SIZE_MAX)),
    row(28, |_, out| out.u32(LINKS_MAX)),
    row(29, |_, out| out.u32(NAME_BYTES_MAX)),
    row(30, |_, out| out.u64(DATA_BYTES_MAX.into())),
    row(31, |_, out| out.u64(DATA_BYTES_MAX.into())),
    row(33, |facts, out| out.u32(facts.attributes.mode & 0o7777)),
    // Too long a name is an error.
    row(34, |_, out| out.bool(true)),
    row(35, |facts, out| out.u32(facts.attributes.links)),
    row(36, |facts, out| out.opaque(facts.attributes.uid.to_string().as_bytes())),
    row(37, |facts, out| out.opaque(facts.attributes.gid.to_string().as_bytes())),
    row(41, |facts, out| {
        out.u32(facts.attributes.major);
        out.u32(facts.attributes.minor);
    }),
    row(42, |facts, out| out.u64(facts.space.free_bytes)),
    row(43, |facts, out| out.u64(facts.space.free_bytes)),
    row(44, |facts, out| out.u64(facts.space.total_bytes)),
    row(45, |facts, out| out.u64(facts.attributes.used_bytes)),
    row(47, |facts, out| time(facts.attributes.atime, out)),
    row(50, |facts, out| time(facts.attributes.birth, out)),
    row(51, |_, out| time(Time { seconds: 0, nanos: 1 }, out)),
    row(52, |facts, out| time(facts.attributes.ctime, out)),
    row(53, |facts, out| time(facts.attributes.mtime, out)),
    // Nothing is mounted on a file here.
    row(55, |facts, out| out.u64(facts.attributes.ino)),
    row(75, |_, out| SETTABLE.tell(out)),
];

const CHANGE: u32 = 3;

/// What needs the space of the volume.
const OF_SPACE: Bitmap = Bitmap::of(&[21, 22, 23, 42, 43, 44]);

/// All that a client may read.
pub(crate) fn readable() -> Bitmap {
    const READABLE: Bitmap = {
        let mut numbers = [0; ROWS.len()];
        let mut index = 0;
        while index < ROWS.len() {
            numbers[index] = ROWS[index].number;
            index += 1;
        }
        Bitmap::of(&numbers)
    };
    READABLE
}

/// All that there is.
pub(super) fn supported() -> Bitmap {
    readable().or(&SETTABLE)
}

/// Does it take the space of the volume to tell these?
pub(crate) fn wants_space(wanted: &Bitmap) -> bool {
    !wanted.and(&OF_SPACE).is_empty()
}

/// Tells those of `wanted` that there are (`fattr4`).
pub(crate) fn tell(wanted: &Bitmap, facts: &Facts, out: &mut Out) {
    let told = wanted.and(&readable());
    told.tell(out);
    out.sized(|out| {
        for row in ROWS.iter().filter(|row| told.has(row.number)) {
            (row.tell)(facts, out);
        }
    });
}

fn time(time: Time, out: &mut Out) {
    out.u64(time.seconds.cast_unsigned());
    out.u32(time.nanos);
}

fn file_type(kind: Kind) -> u32 {
    match kind {
        Kind::File {} => 1,
        Kind::Directory {} => 2,
        Kind::BlockDevice {} => 3,
        Kind::CharDevice {} => 4,
        Kind::Symlink {} => 5,
        Kind::Socket {} => 6,
        Kind::Fifo {} => 7,
    }
}
