//! Listing directories.
//!
//! The entries `.` and `..` are made here, with the cookies 1 and 2, which file I/O reserves for
//! that. A cookie stays valid while entries come and go, so an open directory has no state.

use client::protocol::{Attributes, DirectoryEntry, Error, Kind, Parent, ReadDirectory};
use runtime::Spawn;

use super::MountOperations;
use crate::inode_table::OpenFile;
use crate::translate::KernelResult;

/// The cookies of `.` and `..`.
const DOT: u64 = 1;
const DOTDOT: u64 = 2;

/// The number of an inode that is not told, as libfuse has it.
const UNKNOWN_INO: u64 = 0xffff_ffff;

/// Entries per request, without and with attributes: about what fits into a small reply to the
/// kernel.
const ENTRIES: u32 = 128;
const ENTRIES_PLUS: u32 = 32;

/// One entry, for the kernel.
#[derive(Debug)]
pub(crate) struct ListedEntry<'a> {
    pub(crate) ino: u64,
    pub(crate) kind: Kind,
    pub(crate) name: &'a [u8],
    /// Where a listing resumes after it.
    pub(crate) cookie: u64,
    /// If requested.
    pub(crate) attributes: Option<&'a Attributes>,
    /// `.` or `..`: the kernel does not count them as lookups.
    pub(crate) is_dot: bool,
}

impl<S: Spawn> MountOperations<S> {
    /// Passes the entries of a directory after the cookie `after` to `add`, until that returns
    /// false because the reply is full. The directory is open with this number.
    pub(crate) async fn list(
        &self,
        number: u64,
        after: u64,
        attributes: bool,
        mut add: impl FnMut(&ListedEntry<'_>) -> bool,
    ) -> KernelResult<()> {
        let open = self.open_file(number)?;
        let directory = open.handle;
        if !self.list_dots(&open, after, &mut add).await? {
            return Ok(());
        }
        let mut after = if after <= DOTDOT { 0 } else { after };
        loop {
            let count_max = if attributes { ENTRIES_PLUS } else { ENTRIES };
            let who = (*open.opener).clone();
            let call = ReadDirectory { who, directory, after, count_max, attributes };
            let page = self.volume.request(call).await?;
            let cookies = resume_cookies(&page.entries, if after == 0 { DOTDOT } else { after });
            for (entry, cookie) in page.entries.iter().zip(cookies) {
                let mut attributes_of = entry.attributes.as_deref();
                if attributes && attributes_of.is_none() {
                    // Removed meanwhile.
                    continue;
                }
                let own = match attributes_of {
                    Some(&found) => Some(self.volume.with_own_writes(found).await),
                    None => None,
                };
                attributes_of = own.as_ref().or(attributes_of);
                let entry = ListedEntry {
                    ino: entry.handle.ino,
                    kind: entry.kind,
                    name: entry.name.as_bytes(),
                    cookie,
                    attributes: attributes_of,
                    is_dot: false,
                };
                if !add(&entry) {
                    return Ok(());
                }
            }
            let Some(last) = page.entries.last().filter(|_| !page.end) else { return Ok(()) };
            after = last.cookie;
        }
    }

    /// `.` and `..`, as far as they come after `after`; false if the reply is full.
    async fn list_dots(
        &self,
        open: &OpenFile,
        after: u64,
        add: &mut impl FnMut(&ListedEntry<'_>) -> bool,
    ) -> KernelResult<bool> {
        if after >= DOTDOT {
            return Ok(true);
        }
        let directory = open.handle;
        let file = self.get_attributes(directory.ino).await?;
        if after < DOT && !add(&dot(&file, b".", DOT)) {
            return Ok(false);
        }
        let parent = if directory == self.inodes.root() {
            file
        } else {
            let who = (*open.opener).clone();
            match self.volume.request(Parent { who, directory }).await {
                // To list a directory needs no permission to search it.
                Err(Error::AccessDenied {}) => Attributes { ino: UNKNOWN_INO, ..file },
                above => above?,
            }
        };
        Ok(add(&dot(&parent, b"..", DOTDOT)))
    }
}

fn dot<'a>(file: &'a Attributes, name: &'a [u8], cookie: u64) -> ListedEntry<'a> {
    let &Attributes { ino, kind, .. } = file;
    ListedEntry { ino, kind, name, cookie, attributes: Some(file), is_dot: true }
}

/// Where a listing resumes after each of `entries`, which begin after `before`. Of entries with the
/// same cookie only the last one gets it: a listing that stops at another one repeats some, and
/// misses none.
fn resume_cookies(entries: &[DirectoryEntry], before: u64) -> Vec<u64> {
    let mut last = before;
    let mut cookies = Vec::with_capacity(entries.len());
    for (at, entry) in entries.iter().enumerate() {
        if entries.get(at + 1).is_none_or(|next| next.cookie != entry.cookie) {
            last = entry.cookie;
        }
        cookies.push(last);
    }
    cookies
}

#[cfg(test)]
mod tests {
    use client::protocol::{Name, ROOT};

    use super::*;

    #[test]
    fn entries_with_the_same_cookie_are_not_missed() {
        let entry = |cookie| DirectoryEntry {
            cookie,
            name: Name::new("x").unwrap(),
            handle: ROOT,
            kind: Kind::File {},
            attributes: None,
        };
        let entries: Vec<_> = [5, 7, 7, 7, 9].map(entry).into();
        assert_eq!(resume_cookies(&entries, DOTDOT), [5, 5, 5, 7, 9]);
        assert_eq!(resume_cookies(&entries[1..], 5), [5, 5, 7, 9]);
        assert_eq!(resume_cookies(&entries[2..3], DOTDOT), [7]);
    }
}
