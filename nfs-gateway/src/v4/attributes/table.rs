//! The table of attributes, with the encoding of their values (RFC 8881 section 5.8).

use fileio::protocol::{Attributes, FILE_SIZE_MAX, Kind, LINKS_MAX, Space, Time};

use super::bitmap::Bitmap;
use super::numbers::{CHANGE, FILEHANDLE, RDATTR_ERROR, SETTABLE, SIZE};
use crate::call_context::CallContext;
use crate::limits::{FILE_BYTES_MIN, NAME_BYTES_MAX};
use crate::translate;
use crate::v4::limits::{DATA_BYTES_MAX, LEASE_SHOWN};
use crate::v4::status::Status;
use crate::xdr::XdrEncoder;

/// The source of attribute values.
pub(crate) struct AttrSource<'a> {
    pub(crate) context: &'a CallContext,
    /// The minor version.
    pub(crate) minor: u32,
    /// The file.
    pub(crate) attributes: &'a Attributes,
    pub(crate) handle: &'a [u8],
    /// The space of the volume, if [needed](wants_space).
    pub(crate) space: Space,
}

struct AttrRow {
    number: u32,
    encode: fn(&AttrSource, &mut XdrEncoder),
}

const fn row(number: u32, encode: fn(&AttrSource, &mut XdrEncoder)) -> AttrRow {
    AttrRow { number, encode }
}

/// The attributes that can be read, in the order of their numbers.
const ROWS: &[AttrRow] = &[
    row(0, |source, out| supported(source.minor).encode(out)),
    row(1, |source, out| out.u32(file_type(source.attributes.kind))),
    // Handles are persistent.
    row(2, |_, out| out.u32(0)),
    row(CHANGE, |source, out| out.u64(source.context.volume.change_attribute(source.attributes))),
    row(SIZE, |source, out| out.u64(source.attributes.size)),
    // Hard links, symbolic links, no named attributes.
    row(5, |_, out| out.bool(true)),
    row(6, |_, out| out.bool(true)),
    row(7, |_, out| out.bool(false)),
    row(8, |source, out| {
        out.u64(translate::fsid(source.context.volume.id, source.attributes.ino));
        out.u64(0);
    }),
    // A file has one handle.
    row(9, |_, out| out.bool(true)),
    row(10, |_, out| out.u32(LEASE_SHOWN.as_secs() as u32)),
    // No error.
    row(RDATTR_ERROR, |_, out| out.u32(0)),
    // No access control lists.
    row(13, |_, out| out.u32(0)),
    // Times can be set; names are case-sensitive and case-preserving; chown is restricted.
    row(15, |_, out| out.bool(true)),
    row(16, |_, out| out.bool(false)),
    row(17, |_, out| out.bool(true)),
    row(18, |_, out| out.bool(true)),
    row(FILEHANDLE, |source, out| out.opaque(source.handle)),
    row(20, |source, out| out.u64(source.attributes.ino)),
    row(21, |source, out| out.u64(source.space.free_bytes / FILE_BYTES_MIN)),
    row(22, |source, out| out.u64(source.space.free_bytes / FILE_BYTES_MIN)),
    row(23, |source, out| {
        let free = source.space.free_bytes / FILE_BYTES_MIN;
        out.u64(source.space.inodes.saturating_add(free));
    }),
    // The same for all files of the volume.
    row(26, |_, out| out.bool(true)),
    row(27, |_, out| out.u64(FILE_SIZE_MAX)),
    row(28, |_, out| out.u32(LINKS_MAX)),
    row(29, |_, out| out.u32(NAME_BYTES_MAX)),
    row(30, |_, out| out.u64(DATA_BYTES_MAX.into())),
    row(31, |_, out| out.u64(DATA_BYTES_MAX.into())),
    row(33, |source, out| out.u32(source.attributes.mode & 0o7777)),
    // Names that are too long are not truncated.
    row(34, |_, out| out.bool(true)),
    row(35, |source, out| out.u32(source.attributes.links)),
    row(36, |source, out| out.opaque(source.attributes.uid.to_string().as_bytes())),
    row(37, |source, out| out.opaque(source.attributes.gid.to_string().as_bytes())),
    row(41, |source, out| {
        out.u32(source.attributes.major);
        out.u32(source.attributes.minor);
    }),
    row(42, |source, out| out.u64(source.space.available_bytes)),
    row(43, |source, out| out.u64(source.space.free_bytes)),
    row(44, |source, out| out.u64(source.space.total_bytes)),
    row(45, |source, out| out.u64(source.attributes.used_bytes)),
    row(47, |source, out| time(source.attributes.atime, out)),
    row(50, |source, out| time(source.attributes.birth, out)),
    row(51, |_, out| time(Time { seconds: 0, nanos: 1 }, out)),
    row(52, |source, out| time(source.attributes.ctime, out)),
    row(53, |source, out| time(source.attributes.mtime, out)),
    // Nothing is mounted on a file.
    row(55, |source, out| out.u64(source.attributes.ino)),
    row(75, |_, out| SETTABLE.encode(out)),
    //= rfc8276 8.2.1: there are extended attributes
    row(82, |_, out| out.bool(true)),
];

/// The attributes that need the space of the volume.
const SPACE: Bitmap = Bitmap::of(&[21, 22, 23, 42, 43, 44]);

/// The last attribute of minor version 1 (RFC 8881 section 5.7).
const LAST_OF_MINOR_1: u32 = 76;

/// All attributes of minor version `minor` that can be read.
pub(crate) fn readable(minor: u32) -> Bitmap {
    const MINOR_1: Bitmap = readable_up_to(LAST_OF_MINOR_1);
    const ALL: Bitmap = readable_up_to(u32::MAX);
    if minor == 1 { MINOR_1 } else { ALL }
}

const fn readable_up_to(last: u32) -> Bitmap {
    let mut numbers = [ROWS[0].number; ROWS.len()];
    let mut index = 0;
    while index < ROWS.len() {
        if ROWS[index].number <= last {
            numbers[index] = ROWS[index].number;
        }
        index += 1;
    }
    Bitmap::of(&numbers)
}

/// All attributes of minor version `minor`.
pub(super) fn supported(minor: u32) -> Bitmap {
    readable(minor).or(&SETTABLE)
}

/// Do these need the space of the volume?
pub(crate) fn wants_space(wanted: &Bitmap) -> bool {
    !wanted.and(&SPACE).is_empty()
}

/// Encodes the supported ones of `wanted` (`fattr4`).
pub(crate) fn encode(wanted: &Bitmap, source: &AttrSource, out: &mut XdrEncoder) {
    let supported = wanted.and(&readable(source.minor));
    supported.encode(out);
    out.sized(|out| {
        for row in ROWS.iter().filter(|row| supported.has(row.number)) {
            (row.encode)(source, out);
        }
    });
}

/// Encodes the error of an entry of a directory, and no other attribute of it.
pub(crate) fn encode_error(status: Status, out: &mut XdrEncoder) {
    Bitmap::of(&[RDATTR_ERROR]).encode(out);
    out.sized(|out| out.u32(status.0));
}

fn time(time: Time, out: &mut XdrEncoder) {
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
