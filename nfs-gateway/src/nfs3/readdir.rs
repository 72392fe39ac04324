//! READDIR and READDIRPLUS.
//!
//! The entries `.` and `..` are made here, with the cookies 1 and 2, which file I/O reserves for
//! gateways. A cookie stays valid while entries come and go, also over a restart, so the verifier
//! of cookies never changes.

use bytes::Bytes;
use fileio::protocol::{Attributes, DirectoryPage, ENTRIES_MAX, Handle, ReadDirectory, handle_of};
use nfs3_types::nfs3::{READDIR3resfail, READDIRPLUS3resfail, cookieverf3, nfsstat3, post_op_attr};

use super::results::{current_attr, pack, post_op_attr, take_handle};
use crate::call_context::CallContext;
use crate::handle::HANDLE_BYTES;
use crate::limits::TRANSFER_BYTES;
use crate::lookup;
use crate::xdr::{CallArguments, ProcedureError, ProcedureResult, ReplyBody, XdrEncoder};

/// The cookies of `.` and `..`.
const DOT: u64 = 1;
const DOTDOT: u64 = 2;

/// Bytes of an entry in a list without its name: follows, fileid, length, cookie.
const NAMELESS_BYTES: usize = 4 + 8 + 4 + 8;
/// Bytes of the shortest entry.
const ENTRY_BYTES_MIN: u32 = NAMELESS_BYTES as u32 + 4;
/// Bytes of the attributes of an entry after the word that says that they follow.
const ATTRIBUTES_BYTES: usize = 84;
/// Bytes of that word, and of the handle of an entry.
const HANDLED_BYTES: usize = 4 + (4 + 4 + HANDLE_BYTES.next_multiple_of(4));
/// Bytes of attributes and handle of an entry that has both.
const PLUS_BYTES: u32 = (ATTRIBUTES_BYTES + HANDLED_BYTES) as u32;
/// Bytes after the list: no more follows, eof.
const AFTER_BYTES: usize = 4 + 4;
/// The same, and bytes before the list: attributes, verifier.
const AROUND_BYTES: usize = (4 + ATTRIBUTES_BYTES) + 8 + AFTER_BYTES;

/// Where a listing resumes.
struct Cursor {
    directory: Bytes,
    cookie: u64,
    verifier: cookieverf3,
}

impl Cursor {
    fn take(arguments: &mut CallArguments) -> Result<Self, ProcedureError> {
        let directory = take_handle(arguments)?;
        let cookie = arguments.take()?;
        let verifier = arguments.take()?;
        Ok(Self { directory, cookie, verifier })
    }
}

/// An entry of the list.
struct ReaddirItem<'a> {
    name: &'a [u8],
    cookie: u64,
    file: Handle,
    attributes: Option<&'a Attributes>,
}

/// Entries from a cursor on.
struct ReaddirPage {
    /// `.` and `..`, as far as they come after the cursor.
    dots: Vec<(&'static str, u64, Attributes)>,
    /// The entries after them.
    found: DirectoryPage,
}

//= rfc1813 3.3.16
pub(super) async fn readdir(
    context: &CallContext,
    mut arguments: CallArguments,
) -> ProcedureResult {
    let cursor = Cursor::take(&mut arguments)?;
    let count = arguments.take::<u32>()?.min(TRANSFER_BYTES);
    arguments.finish()?;
    let result = match page(context, &cursor, count / ENTRY_BYTES_MIN, false).await {
        Ok(page) => page.fitting(&mut plain_room(count)).map(|fitting| (page, fitting)),
        Err(status) => Err(status),
    };
    match result {
        Ok((page, fitting)) => reply(context, &page, fitting, |_, _| Ok(())),
        Err(status) => {
            let dir_attributes = current_attr(context, &cursor.directory).await;
            pack::<u32, _>(Err((status, READDIR3resfail { dir_attributes })))
        }
    }
}

//= rfc1813 3.3.17
pub(super) async fn readdirplus(
    context: &CallContext,
    mut arguments: CallArguments,
) -> ProcedureResult {
    let cursor = Cursor::take(&mut arguments)?;
    let dircount = arguments.take::<u32>()?.min(TRANSFER_BYTES);
    let maxcount = arguments.take::<u32>()?.min(TRANSFER_BYTES);
    arguments.finish()?;
    let most = (dircount / ENTRY_BYTES_MIN).min(maxcount / (ENTRY_BYTES_MIN + PLUS_BYTES));
    let result = match page(context, &cursor, most, true).await {
        Ok(page) => {
            let handle = context.handle_encoder(handle_of(&page.found.directory));
            match (page.fitting(&mut plus_room(dircount, maxcount)), handle) {
                (Ok(fitting), Ok(handle)) => Ok((page, fitting, handle)),
                (Err(status), _) | (_, Err(status)) => Err(status),
            }
        }
        Err(status) => Err(status),
    };
    match result {
        Ok((page, fitting, handle)) => reply(context, &page, fitting, |item, out| {
            let handle = handle(item.name, item.file);
            // Of the root of an export that the caller may not use only the name is told.
            let attributes = item.attributes.filter(|_| handle.is_some());
            out.push(&attributes.map_or(post_op_attr::None, |known| post_op_attr(context, known)))?;
            out.bool(handle.is_some());
            if let Some(handle) = handle {
                out.opaque(&handle);
            }
            Ok(())
        }),
        Err(status) => {
            let dir_attributes = current_attr(context, &cursor.directory).await;
            pack::<u32, _>(Err((status, READDIRPLUS3resfail { dir_attributes })))
        }
    }
}

/// Reads at least one entry from `cursor` on, if there is any, and about `count_max`.
async fn page(
    context: &CallContext,
    cursor: &Cursor,
    count_max: u32,
    attributes: bool,
) -> Result<ReaddirPage, nfsstat3> {
    let directory = context.file(&cursor.directory)?;
    //= rfc1813 3.3.16: a verifier that does not belong to the cookie is NFS3ERR_BAD_COOKIE
    if cursor.cookie != 0 && cursor.verifier != context.volume.cookie_verifier {
        return Err(nfsstat3::NFS3ERR_BAD_COOKIE);
    }
    let after = if cursor.cookie <= DOTDOT { 0 } else { cursor.cookie };
    let count_max = count_max.clamp(1, ENTRIES_MAX);
    let who = context.credentials();
    let found =
        context.request(ReadDirectory { who, directory, after, count_max, attributes }).await?;
    let first = found.entries.first();
    if first.map_or(!found.end, |entry| entry.cookie <= DOTDOT) {
        // The client could not continue from here.
        return Err(nfsstat3::NFS3ERR_SERVERFAULT);
    }
    let mut dots = Vec::new();
    if cursor.cookie < DOT {
        dots.push((".", DOT, found.directory));
    }
    if cursor.cookie < DOTDOT {
        dots.push(("..", DOTDOT, lookup::parent(context, directory).await?));
    }
    Ok(ReaddirPage { dots, found })
}

impl ReaddirPage {
    fn item(&self) -> impl Iterator<Item = ReaddirItem<'_>> {
        let dots = self.dots.iter().map(|(name, cookie, attributes)| ReaddirItem {
            name: name.as_bytes(),
            cookie: *cookie,
            file: Handle { ino: attributes.ino, generation: attributes.generation },
            attributes: Some(attributes),
        });
        dots.chain(self.found.entries.iter().map(|entry| ReaddirItem {
            name: entry.name.as_bytes(),
            cookie: entry.cookie,
            file: entry.handle,
            attributes: entry.attributes.as_deref(),
        }))
    }

    /// The number of entries that fit, and their bytes; `take` returns the bytes of an entry if it
    /// fits.
    fn fitting(
        &self,
        take: &mut impl FnMut(&ReaddirItem<'_>) -> Option<usize>,
    ) -> Result<(usize, usize), nfsstat3> {
        let bytes = self.item().map_while(|item| take(&item));
        let (count, bytes) = bytes.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes));
        //= rfc1813 3.3.16: not even one entry fits: NFS3ERR_TOOSMALL
        if count == 0 && self.item().next().is_some() {
            return Err(nfsstat3::NFS3ERR_TOOSMALL);
        }
        Ok((count, bytes))
    }
}

//= rfc1813 3.3.16: count is "the maximum size of the READDIR3resok structure", XDR included
fn plain_room(count: u32) -> impl FnMut(&ReaddirItem<'_>) -> Option<usize> {
    let mut left = (count as usize).saturating_sub(AROUND_BYTES);
    move |item| {
        let bytes = item.plain_bytes();
        left = left.checked_sub(bytes)?;
        Some(bytes)
    }
}

//= rfc1813 3.3.17: maxcount is "the maximum size of the READDIRPLUS3resok structure"; dircount
//= does "not include the size of the attributes and file handle portions"
fn plus_room(dircount: u32, maxcount: u32) -> impl FnMut(&ReaddirItem<'_>) -> Option<usize> {
    let mut left = (maxcount as usize).saturating_sub(AROUND_BYTES);
    let mut left_plain = dircount as usize;
    move |item| {
        let plain_bytes = item.plain_bytes();
        let attributes_bytes = if item.attributes.is_some() { ATTRIBUTES_BYTES } else { 0 };
        let bytes = plain_bytes + attributes_bytes + HANDLED_BYTES;
        left = left.checked_sub(bytes)?;
        left_plain = left_plain.checked_sub(plain_bytes)?;
        Some(bytes)
    }
}

impl ReaddirItem<'_> {
    /// Bytes of the entry without attributes and handle.
    fn plain_bytes(&self) -> usize {
        NAMELESS_BYTES + self.name.len().next_multiple_of(4)
    }
}

/// `READDIR3resok`, or with `plus`, which encodes more of each entry, `READDIRPLUS3resok`: of the
/// first entries of `page`, as `fitting` says. They are encoded into the buffer that is sent.
fn reply(
    context: &CallContext,
    page: &ReaddirPage,
    (count, bytes): (usize, usize),
    plus: impl Fn(&ReaddirItem<'_>, &mut XdrEncoder) -> Result<(), ProcedureError>,
) -> ProcedureResult {
    let mut head = ReplyBody::pack(&nfsstat3::NFS3_OK)?;
    head.push(&post_op_attr(context, &page.found.directory))?;
    head.push(&context.volume.cookie_verifier)?;
    let mut out = XdrEncoder::with_capacity(bytes + AFTER_BYTES);
    for item in page.item().take(count) {
        out.bool(true);
        out.u64(item.file.ino);
        out.opaque(item.name);
        out.u64(item.cookie);
        plus(&item, &mut out)?;
    }
    out.bool(false);
    out.bool(page.found.end && page.item().nth(count).is_none());
    Ok(out.behind(head.head))
}
