//! READDIR. There are no entries `.` and `..` in version 4.

use bytes::Bytes;
use fileio::protocol::{Attributes, ENTRIES_MAX, ReadDirectory};

use super::attributes::{encode_attributes, space};
use crate::v4::attributes::{Bitmap, RDATTR_ERROR, encode_error};
use crate::v4::compound::{Compound, OperationXdr};
use crate::v4::current_fh::CurrentFh;
use crate::v4::pseudo_fs;
use crate::v4::status::{OperationError, OperationResult, Status};
use crate::xdr::XdrEncoder;

/// Bytes of the shortest entry without attributes: follows, cookie, name of one byte.
const NAME_BYTES_MIN: u32 = 4 + 8 + (4 + 4);
/// Bytes after the entries: no more follows, eof.
const AFTER_BYTES: usize = 4 + 4;
/// Bytes before them: the verifier.
const BEFORE_BYTES: usize = 8;
/// The first cookie that is not reserved (RFC 8881 section 18.23.3).
const PSEUDO_COOKIES: u64 = 3;

struct ReaddirEntry {
    cookie: u64,
    name: Bytes,
    /// The error if it is the root of a nested export that the caller may not use.
    fh: Result<CurrentFh, Status>,
    /// `None` if the file was removed meanwhile.
    attributes: Option<Attributes>,
}

/// The arguments.
struct ReaddirArgs {
    cookie: u64,
    /// Bytes of names and cookies.
    directory_bytes: u32,
    /// Bytes of the result.
    bytes: u32,
    wanted: Bitmap,
    /// The minor version.
    minor: u32,
}

//= rfc8881 18.23
pub(super) async fn serve(compound: &Compound<'_>, xdr: &mut OperationXdr) -> OperationResult {
    let cookie = xdr.arguments.take::<u64>()?;
    let verifier: [u8; 8] = xdr.arguments.fixed()?;
    let (directory_bytes, bytes) = (xdr.arguments.take::<u32>()?, xdr.arguments.take::<u32>()?);
    let wanted = Bitmap::take(&mut xdr.arguments)?;
    let fh = compound.current_fh()?;
    let own_verifier = fh.context.volume.cookie_verifier.0;
    if cookie != 0 && verifier != own_verifier {
        return Err(Status::NOT_SAME.into());
    }
    //= rfc8881 18.23.3: cookies 1 and 2 are never given out
    if matches!(cookie, 1 | 2) {
        return Err(Status::BAD_COOKIE.into());
    }
    let bytes = bytes.min(compound.reply_bytes_left(&xdr.out) as u32);
    let args = ReaddirArgs { cookie, directory_bytes, bytes, wanted, minor: compound.minor };
    let space = space(fh, &args.wanted).await?;
    let (entries, end) = if fh.pseudo {
        pseudo_entries(fh, &args).await?
    } else {
        // The shortest entry has the attributes of an empty file.
        let mut shortest = XdrEncoder::default();
        encode_attributes(fh, &blank(fh), &args.wanted, (args.minor, space), &mut shortest)?;
        entries(fh, &args, NAME_BYTES_MIN + shortest.length() as u32).await?
    };
    xdr.out.fixed(&own_verifier);
    let all = encode_entries(&args, &entries, space, &mut xdr.out)?;
    xdr.out.bool(false);
    xdr.out.bool(all && end);
    Ok(())
}

/// The entries of a directory of the volume, each of at least `bytes_min`; true if they are the
/// last.
async fn entries(
    fh: &CurrentFh,
    args: &ReaddirArgs,
    bytes_min: u32,
) -> Result<(Vec<ReaddirEntry>, bool), Status> {
    let by_name = args.directory_bytes / NAME_BYTES_MIN;
    // A dircount of zero is no limit: some clients send it.
    let by_name = if by_name == 0 { u32::MAX } else { by_name };
    let count_max = by_name.min(args.bytes / bytes_min).clamp(1, ENTRIES_MAX);
    let (who, directory, after) = (fh.context.credentials(), fh.file, args.cookie);
    let attributes = !args.wanted.is_empty();
    let page =
        fh.context.request(ReadDirectory { who, directory, after, count_max, attributes }).await?;
    if page.entries.first().map_or(!page.end, |entry| entry.cookie < PSEUDO_COOKIES) {
        // The client could not continue from here.
        return Err(Status::SERVERFAULT);
    }
    let entry = |entry: fileio::protocol::DirectoryEntry| ReaddirEntry {
        cookie: entry.cookie,
        name: Bytes::copy_from_slice(entry.name.as_bytes()),
        fh: pseudo_fs::cross(fh, Some(&entry.name), entry.handle),
        attributes: entry.attributes.map(|attributes| *attributes),
    };
    Ok((page.entries.into_iter().map(entry).collect(), page.end))
}

/// The entries of a directory above the exports, all of them.
async fn pseudo_entries(
    fh: &CurrentFh,
    args: &ReaddirArgs,
) -> Result<(Vec<ReaddirEntry>, bool), Status> {
    let mut entries = Vec::new();
    for (cookie, name) in (PSEUDO_COOKIES..).zip(pseudo_fs::names(fh).await?) {
        if cookie > args.cookie {
            let found = pseudo_fs::look_up(fh, &name).await?;
            let attributes = Some(found.attributes().await?);
            entries.push(ReaddirEntry { cookie, name: name.into(), fh: Ok(found), attributes });
        }
    }
    Ok((entries, true))
}

/// Encodes the entries that fit; true if all do.
fn encode_entries(
    args: &ReaddirArgs,
    entries: &[ReaddirEntry],
    space: fileio::protocol::Space,
    out: &mut XdrEncoder,
) -> Result<bool, OperationError> {
    let bytes_max = (args.bytes as usize).saturating_sub(BEFORE_BYTES + AFTER_BYTES);
    let begin = out.length();
    let mut has_entries = false;
    for ReaddirEntry { cookie, name, fh, attributes } in entries {
        let before = out.mark();
        out.bool(true);
        out.u64(*cookie);
        out.opaque(name);
        match fh {
            Ok(fh) => {
                let blank = || args.wanted.is_empty().then(|| blank(fh));
                let Some(attributes) = attributes.or_else(blank) else {
                    out.cut(before);
                    continue;
                };
                encode_attributes(fh, &attributes, &args.wanted, (args.minor, space), out)?;
            }
            //= rfc8881 5.8.1.12: with this attribute the error replaces all others of the entry
            Err(status) if args.wanted.has(RDATTR_ERROR) => encode_error(*status, out),
            // Otherwise the error would be that of the whole listing.
            Err(_) => {
                out.cut(before);
                continue;
            }
        }
        if out.length() - begin > bytes_max {
            out.cut(before);
            //= rfc8881 18.23.3: not even one entry: NFS4ERR_TOOSMALL
            return if has_entries { Ok(false) } else { Err(Status::TOOSMALL.into()) };
        }
        has_entries = true;
    }
    Ok(true)
}

/// Attributes of an empty file.
fn blank(fh: &CurrentFh) -> Attributes {
    use fileio::protocol::{Kind, Time};
    let time = Time { seconds: 0, nanos: 0 };
    Attributes::blank(fh.file.ino, fh.file.generation, Kind::File {}, time)
}
