//! Listing directories.
//!
//! The entries `.` and `..` are made here, with the cookies 1 and 2, which file I/O leaves for that.
//! A cookie stays valid whatever comes and goes, so nothing is kept for a directory that is open.

use client::protocol::{
    Attributes, Credentials, DirectoryEntry, Handle, Kind, Parent, ROOT, ReadDirectory,
};
use runtime::Spawn;

use super::Operations;
use crate::translate::Failure;

/// The cookies of `.` and `..`.
const DOT: u64 = 1;
const DOTDOT: u64 = 2;

/// Entries that are asked for at a time: about what fits into a small reply of the kernel, without and
/// with attributes.
const ENTRIES: u32 = 128;
const ENTRIES_PLUS: u32 = 32;

/// One entry, for the kernel.
#[derive(Debug)]
pub(crate) struct Listed<'a> {
    pub(crate) ino: u64,
    pub(crate) kind: Kind,
    pub(crate) name: &'a [u8],
    /// Where to go on behind it.
    pub(crate) cookie: u64,
    /// If asked for.
    pub(crate) attributes: Option<&'a Attributes>,
    /// `.` or `..`, of which the kernel does not count how often it was told.
    pub(crate) is_dot: bool,
}

impl<S: Spawn> Operations<S> {
    /// Gives the entries of a directory behind the cookie `after` to `add`, until that says that one
    /// found no room any more. The caller may read the directory: it has opened it.
    pub(crate) async fn list(
        &self,
        ino: u64,
        after: u64,
        attributes: bool,
        mut add: impl FnMut(&Listed<'_>) -> bool,
    ) -> Result<(), Failure> {
        let directory = self.handle(ino)?;
        if !self.list_dots(directory, after, &mut add).await? {
            return Ok(());
        }
        let mut after = if after <= DOTDOT { 0 } else { after };
        loop {
            let count_max = if attributes { ENTRIES_PLUS } else { ENTRIES };
            let who = Credentials::root();
            let call = ReadDirectory { who, directory, after, count_max, attributes };
            let page = self.ask(call).await?;
            let cookies = go_on_behind(&page.entries, if after == 0 { DOTDOT } else { after });
            for (entry, cookie) in page.entries.iter().zip(cookies) {
                let attributes_of = entry.attributes.as_deref();
                if attributes && attributes_of.is_none() {
                    // Removed meanwhile.
                    continue;
                }
                let listed = Listed {
                    ino: entry.handle.ino,
                    kind: entry.kind,
                    name: entry.name.as_bytes(),
                    cookie,
                    attributes: attributes_of,
                    is_dot: false,
                };
                if !add(&listed) {
                    return Ok(());
                }
            }
            let Some(last) = page.entries.last().filter(|_| !page.end) else { return Ok(()) };
            after = last.cookie;
        }
    }

    /// `.` and `..`, as far as they come behind `after`; false if there was no room.
    async fn list_dots(
        &self,
        directory: Handle,
        after: u64,
        add: &mut impl FnMut(&Listed<'_>) -> bool,
    ) -> Result<bool, Failure> {
        if after >= DOTDOT {
            return Ok(true);
        }
        let file = self.get_attributes(directory.ino).await?;
        if after < DOT && !add(&dot(&file, b".", DOT)) {
            return Ok(false);
        }
        let above = if directory == ROOT {
            file
        } else {
            self.ask(Parent { who: Credentials::root(), directory }).await?
        };
        Ok(add(&dot(&above, b"..", DOTDOT)))
    }
}

fn dot<'a>(file: &'a Attributes, name: &'a [u8], cookie: u64) -> Listed<'a> {
    let &Attributes { ino, kind, .. } = file;
    Listed { ino, kind, name, cookie, attributes: Some(file), is_dot: true }
}

/// Where to go on behind each of `entries`, which begin behind `before`. Of some that share a cookie
/// only the last may have it: whoever goes on behind another one sees the others again, and misses none.
fn go_on_behind(entries: &[DirectoryEntry], before: u64) -> Vec<u64> {
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
    use client::protocol::Name;

    use super::*;

    #[test]
    fn of_entries_with_one_cookie_none_is_missed() {
        let entry = |cookie| DirectoryEntry {
            cookie,
            name: Name::new("x").unwrap(),
            handle: ROOT,
            kind: Kind::File {},
            attributes: None,
        };
        let entries: Vec<_> = [5, 7, 7, 7, 9].map(entry).into();
        assert_eq!(go_on_behind(&entries, DOTDOT), [5, 5, 5, 7, 9]);
        assert_eq!(go_on_behind(&entries[1..], 5), [5, 5, 7, 9]);
        assert_eq!(go_on_behind(&entries[2..3], DOTDOT), [7]);
    }
}
