//! READDIR and READDIRPLUS.
//!
//! The entries `.` and `..` are made here, with the cookies 1 and 2, which file I/O leaves to
//! gateways. A cookie stays valid while entries come and go, also over a restart, so the verifier
//! of cookies never changes.

use bytes::Bytes;
use fileio::protocol::{Attributes, DirectoryEntry, ENTRIES_MAX, Handle, ReadDirectory};
use nfs3_types::nfs3::{
    Nfs3Option, READDIR3resfail, READDIR3resok, READDIRPLUS3resfail, READDIRPLUS3resok,
    cookieverf3, dirlist3, dirlistplus3, entry3, entryplus3, filename3, nfsstat3, post_op_attr,
};
use nfs3_types::xdr_codec::{List, Pack};

use super::asker::{Asker, pack, take_handle};
use super::lookup::above;
use crate::config::limits::TRANSFER_BYTES;
use crate::handle::HANDLE_BYTES;
use crate::xdr::{Arguments, Body, Fault};

/// The cookies of `.` and `..`.
const DOT: u64 = 1;
const DOTDOT: u64 = 2;

/// Bytes of the shortest entry in a list: follows, fileid, name of one byte, cookie.
const ENTRY_BYTES_MIN: u32 = 4 + 8 + (4 + 4) + 8;
/// Bytes of attributes and handle of such an entry.
const PLUS_BYTES: u32 = (4 + 84) + (4 + 4 + HANDLE_BYTES.next_multiple_of(4) as u32);
/// Bytes before the list: attributes, verifier; and behind it: no more follows, end.
const AROUND_BYTES: usize = (4 + 84) + 8 + 4 + 4;

/// Where a client wants to go on.
struct Cursor {
    directory: Bytes,
    cookie: u64,
    verifier: cookieverf3,
}

impl Cursor {
    fn take(arguments: &mut Arguments) -> Result<Self, Fault> {
        let directory = take_handle(arguments)?;
        let cookie = arguments.take()?;
        let verifier = arguments.take()?;
        Ok(Self { directory, cookie, verifier })
    }
}

/// One entry as both procedures tell it.
struct Listed {
    name: Bytes,
    cookie: u64,
    file: Handle,
    attributes: Option<Attributes>,
}

/// Entries from a cursor on.
struct Page {
    entries: Vec<Listed>,
    end: bool,
    directory: Attributes,
}

//= rfc1813 3.3.16
pub(super) async fn readdir(asker: &Asker, mut arguments: Arguments) -> Result<Body, Fault> {
    let cursor = Cursor::take(&mut arguments)?;
    let count = arguments.take::<u32>()?.min(TRANSFER_BYTES);
    arguments.finish()?;
    let result = match page(asker, &cursor, count / ENTRY_BYTES_MIN, false).await {
        Ok(page) => list(asker, &page, count),
        Err(status) => Err(status),
    };
    pack(match result {
        Ok(listed) => Ok(listed),
        Err(status) => {
            let dir_attributes = asker.after(&cursor.directory).await;
            Err((status, READDIR3resfail { dir_attributes }))
        }
    })
}

//= rfc1813 3.3.17
pub(super) async fn readdirplus(asker: &Asker, mut arguments: Arguments) -> Result<Body, Fault> {
    let cursor = Cursor::take(&mut arguments)?;
    let dircount = arguments.take::<u32>()?.min(TRANSFER_BYTES);
    let maxcount = arguments.take::<u32>()?.min(TRANSFER_BYTES);
    arguments.finish()?;
    let most = (dircount / ENTRY_BYTES_MIN).min(maxcount / (ENTRY_BYTES_MIN + PLUS_BYTES));
    let result = match page(asker, &cursor, most, true).await {
        Ok(page) => list_plus(asker, &page, dircount, maxcount),
        Err(status) => Err(status),
    };
    pack(match result {
        Ok(listed) => Ok(listed),
        Err(status) => {
            let dir_attributes = asker.after(&cursor.directory).await;
            Err((status, READDIRPLUS3resfail { dir_attributes }))
        }
    })
}

/// At least one entry from `cursor` on, if there is any, and about `count_max`.
async fn page(
    asker: &Asker,
    cursor: &Cursor,
    count_max: u32,
    attributes: bool,
) -> Result<Page, nfsstat3> {
    let directory = asker.file(&cursor.directory)?;
    //= rfc1813 3.3.16: a verifier that does not belong to the cookie is NFS3ERR_BAD_COOKIE
    if cursor.cookie != 0 && cursor.verifier != asker.volume().cookie_verifier() {
        return Err(nfsstat3::NFS3ERR_BAD_COOKIE);
    }
    let after = if cursor.cookie <= DOTDOT { 0 } else { cursor.cookie };
    let count_max = count_max.clamp(1, ENTRIES_MAX);
    let who = asker.who();
    let found = asker.ask(ReadDirectory { who, directory, after, count_max, attributes }).await?;
    let first = found.entries.first();
    if first.map_or(!found.end, |entry| entry.cookie <= DOTDOT) {
        // The client could not go on from here.
        return Err(nfsstat3::NFS3ERR_SERVERFAULT);
    }
    let mut entries = dots(asker, cursor.cookie, directory, &found.directory).await?;
    entries.extend(found.entries.into_iter().map(listed));
    Ok(Page { entries, end: found.end, directory: found.directory })
}

fn listed(entry: DirectoryEntry) -> Listed {
    Listed {
        name: Bytes::copy_from_slice(entry.name.as_bytes()),
        cookie: entry.cookie,
        file: entry.handle,
        attributes: entry.attributes.map(|attributes| *attributes),
    }
}

/// `.` and `..`, as far as they come after `cookie`.
async fn dots(
    asker: &Asker,
    cookie: u64,
    directory: Handle,
    attributes: &Attributes,
) -> Result<Vec<Listed>, nfsstat3> {
    let entry = |name: &'static str, cookie, attributes: Attributes| Listed {
        name: name.into(),
        cookie,
        file: Handle { ino: attributes.ino, generation: attributes.generation },
        attributes: Some(attributes),
    };
    let mut entries = Vec::new();
    if cookie < DOT {
        entries.push(entry(".", DOT, *attributes));
    }
    if cookie < DOTDOT {
        entries.push(entry("..", DOTDOT, above(asker, directory).await?));
    }
    Ok(entries)
}

/// Room for entries, in bytes.
struct Room(usize);

impl Room {
    /// Takes `bytes`, if there are so many.
    fn take(&mut self, bytes: usize) -> bool {
        let left = self.0.checked_sub(bytes);
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }
}

//= rfc1813 3.3.16: count is "the maximum size of the READDIR3resok structure", XDR included
fn list(asker: &Asker, page: &Page, count: u32) -> Result<READDIR3resok<'static>, nfsstat3> {
    let mut room = Room((count as usize).saturating_sub(AROUND_BYTES));
    let fits = |listed: &Listed| {
        let entry = entry(listed);
        room.take(entry_bytes(&entry)).then_some(entry)
    };
    let (entries, eof) = fill(page, fits)?;
    Ok(READDIR3resok {
        dir_attributes: asker.told(&page.directory),
        cookieverf: asker.volume().cookie_verifier(),
        reply: dirlist3 { entries: List(entries), eof },
    })
}

//= rfc1813 3.3.17: maxcount is "the maximum size of the READDIRPLUS3resok structure"; dircount
//= does "not include the size of the attributes and file handle portions"
fn list_plus(
    asker: &Asker,
    page: &Page,
    dircount: u32,
    maxcount: u32,
) -> Result<READDIRPLUS3resok<'static>, nfsstat3> {
    let mut room = Room((maxcount as usize).saturating_sub(AROUND_BYTES));
    let mut directory_room = Room(dircount as usize);
    let fits = |listed: &Listed| {
        let plain_bytes = entry_bytes(&entry(listed));
        let entry = entry_plus(asker, listed);
        let fits = room.take(entry.packed_size() + 4) && directory_room.take(plain_bytes);
        fits.then_some(entry)
    };
    let (entries, eof) = fill(page, fits)?;
    Ok(READDIRPLUS3resok {
        dir_attributes: asker.told(&page.directory),
        cookieverf: asker.volume().cookie_verifier(),
        reply: dirlistplus3 { entries: List(entries), eof },
    })
}

/// The entries of `page` as long as they fit, and whether these are the last of the directory.
fn fill<T>(
    page: &Page,
    fits: impl FnMut(&Listed) -> Option<T>,
) -> Result<(Vec<T>, bool), nfsstat3> {
    let entries: Vec<T> = page.entries.iter().map_while(fits).collect();
    let all = entries.len() == page.entries.len();
    //= rfc1813 3.3.16: not even one entry fits: NFS3ERR_TOOSMALL
    if entries.is_empty() && !all {
        return Err(nfsstat3::NFS3ERR_TOOSMALL);
    }
    Ok((entries, all && page.end))
}

fn entry(listed: &Listed) -> entry3<'static> {
    let Listed { name, cookie, file, .. } = listed;
    entry3 { fileid: file.ino, name: filename3::from(name.to_vec()), cookie: *cookie }
}

fn entry_plus(asker: &Asker, listed: &Listed) -> entryplus3<'static> {
    let Listed { name, cookie, file, attributes } = listed;
    let name_attributes: post_op_attr = match attributes {
        Some(attributes) => asker.told(attributes),
        None => Nfs3Option::None,
    };
    entryplus3 {
        fileid: file.ino,
        name: filename3::from(name.to_vec()),
        cookie: *cookie,
        name_attributes,
        name_handle: match asker.handle(*file) {
            Ok(handle) => Nfs3Option::Some(handle),
            Err(_) => Nfs3Option::None,
        },
    }
}

/// Bytes of an entry in a list.
fn entry_bytes(entry: &entry3) -> usize {
    entry.packed_size() + 4
}
