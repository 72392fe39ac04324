//! READDIR. There are no entries `.` and `..` in version 4.

use bytes::Bytes;
use fileio::protocol::{Attributes, ENTRIES_MAX, ReadDirectory};

use super::attributes::{space, tell_entry};
use crate::v4::attributes::Bitmap;
use crate::v4::compound::Compound;
use crate::v4::here::Here;
use crate::v4::pseudo;
use crate::v4::status::{Failed, Status};
use crate::xdr::{Arguments, Out};

/// Bytes of the shortest name and its cookie: follows, cookie, name of one byte.
const NAME_BYTES_MIN: u32 = 4 + 8 + (4 + 4);
/// Bytes behind the entries: no more follows, end.
const AFTER_BYTES: usize = 4 + 4;
/// Bytes before them: the verifier.
const BEFORE_BYTES: usize = 8;
/// Larger cookies than those that clients use themselves (RFC 8881 section 18.23.3).
const PSEUDO_COOKIES: u64 = 3;

/// One entry.
struct Entry {
    cookie: u64,
    name: Bytes,
    here: Here,
    /// Those of what is gone already are missing.
    attributes: Option<Attributes>,
}

/// What is asked.
struct Asked {
    cookie: u64,
    /// Bytes of names and cookies.
    directory_bytes: u32,
    /// Bytes of all.
    bytes: u32,
    wanted: Bitmap,
}

//= rfc8881 18.23
pub(super) async fn serve(
    compound: &Compound<'_>,
    arguments: &mut Arguments,
    out: &mut Out,
) -> Result<(), Failed> {
    let cookie = arguments.take::<u64>()?;
    let verifier: [u8; 8] = arguments.fixed()?;
    let (directory_bytes, bytes) = (arguments.take::<u32>()?, arguments.take::<u32>()?);
    let wanted = Bitmap::take(arguments)?;
    let here = compound.here()?;
    let own_verifier = here.asker.volume().cookie_verifier().0;
    if cookie != 0 && verifier != own_verifier {
        return Err(Status::NOT_SAME.into());
    }
    //= rfc8881 18.23.3: cookies 1 and 2 are never given out
    if matches!(cookie, 1 | 2) {
        return Err(Status::BAD_COOKIE.into());
    }
    let bytes = bytes.min(compound.room(out) as u32);
    let asked = Asked { cookie, directory_bytes, bytes, wanted };
    let space = space(here, &asked.wanted).await?;
    let (entries, end) = if here.pseudo {
        pseudo_entries(here, &asked).await?
    } else {
        // No attributes take less room than those of what has none.
        let mut shortest = Out::default();
        tell_entry(here, &blank(here), &asked.wanted, space, &mut shortest)?;
        entries(here, &asked, NAME_BYTES_MIN + shortest.length() as u32).await?
    };
    out.fixed(&own_verifier);
    let all = fill(&asked, &entries, space, out)?;
    out.bool(false);
    out.bool(all && end);
    Ok(())
}

/// Entries of a directory of the volume, each of at least `bytes_min`, and whether these are the last.
async fn entries(here: &Here, asked: &Asked, bytes_min: u32) -> Result<(Vec<Entry>, bool), Status> {
    let by_name = asked.directory_bytes / NAME_BYTES_MIN;
    // Some clients say nothing by a directory count of zero.
    let by_name = if by_name == 0 { u32::MAX } else { by_name };
    let count_max = by_name.min(asked.bytes / bytes_min).clamp(1, ENTRIES_MAX);
    let (who, directory, after) = (here.asker.who(), here.file, asked.cookie);
    let attributes = !asked.wanted.is_empty();
    let page =
        here.asker.ask(ReadDirectory { who, directory, after, count_max, attributes }).await?;
    if page.entries.first().map_or(!page.end, |entry| entry.cookie < PSEUDO_COOKIES) {
        // The client could not go on from here.
        return Err(Status::SERVERFAULT);
    }
    let entry = |entry: fileio::protocol::DirectoryEntry| Entry {
        cookie: entry.cookie,
        name: Bytes::copy_from_slice(entry.name.as_bytes()),
        here: Here { file: entry.handle, ..here.clone() },
        attributes: entry.attributes.map(|attributes| *attributes),
    };
    Ok((page.entries.into_iter().map(entry).collect(), page.end))
}

/// Entries of a directory above the exports: all that there are.
async fn pseudo_entries(here: &Here, asked: &Asked) -> Result<(Vec<Entry>, bool), Status> {
    let mut entries = Vec::new();
    for (cookie, name) in (PSEUDO_COOKIES..).zip(pseudo::names(here).await?) {
        if cookie > asked.cookie {
            let found = pseudo::look_up(here, &name).await?;
            let attributes = Some(found.attributes().await?);
            entries.push(Entry { cookie, name: name.into(), here: found, attributes });
        }
    }
    Ok((entries, true))
}

/// Tells the entries as far as there is room; whether all had room.
fn fill(
    asked: &Asked,
    entries: &[Entry],
    space: fileio::protocol::Space,
    out: &mut Out,
) -> Result<bool, Failed> {
    let room = (asked.bytes as usize).saturating_sub(BEFORE_BYTES + AFTER_BYTES);
    let begin = out.length();
    let mut told = false;
    for Entry { cookie, name, here, attributes } in entries {
        let Some(attributes) = attributes.or(asked.wanted.is_empty().then(|| blank(here))) else {
            continue;
        };
        let before = out.mark();
        out.bool(true);
        out.u64(*cookie);
        out.opaque(name);
        tell_entry(here, &attributes, &asked.wanted, space, out)?;
        if out.length() - begin > room {
            out.cut(before);
            //= rfc8881 18.23.3: not even one entry: NFS4ERR_TOOSMALL
            return if told { Ok(false) } else { Err(Status::TOOSMALL.into()) };
        }
        told = true;
    }
    Ok(true)
}

/// Attributes of which none is told.
fn blank(here: &Here) -> Attributes {
    use fileio::protocol::{Kind, Time};
    let time = Time { seconds: 0, nanos: 0 };
    Attributes::blank(here.file.ino, here.file.generation, Kind::File {}, time)
}
