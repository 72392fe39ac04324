//! Listing a directory, page by page.

use fileio::protocol::{DirectoryEntry, DirectoryPage, Handle, ReadDirectory};
use runtime::Spawn;

use crate::error::{Cause, Error};
use crate::session::ClientSession;

/// Entries that one page asks for.
pub const PAGE_ENTRIES: u32 = 1024;

/// A directory being listed. Entries that come or go meanwhile may or may not be seen; all others
/// are seen once.
#[derive(Debug)]
pub struct ReadDir<S> {
    session: ClientSession<S>,
    path: Vec<u8>,
    directory: Handle,
    after: u64,
    end: bool,
    attributes: bool,
}

impl<S: Spawn> ReadDir<S> {
    pub(crate) fn new(session: ClientSession<S>, path: &[u8], directory: Handle) -> Self {
        let path = path.to_vec();
        Self { session, path, directory, after: 0, end: false, attributes: false }
    }

    /// Brings the attributes of each entry too.
    #[must_use]
    pub fn with_attributes(mut self) -> Self {
        self.attributes = true;
        self
    }

    /// Goes on after the entry with this cookie, from this listing or another of the same
    /// directory.
    #[must_use]
    pub fn after(mut self, cookie: u64) -> Self {
        self.after = cookie;
        self
    }

    /// Some entries, in no particular order; none at the end. `.` and `..` are not among them.
    pub async fn next_page(&mut self) -> Result<Option<Vec<DirectoryEntry>>, Error> {
        if self.end {
            return Ok(None);
        }
        let page = self.session.read_page(self.directory, self.after, self.attributes).await;
        let page = page.map_err(Error::of("list", &self.path))?;
        // A page that brings nothing could be asked for again and again.
        self.end = page.end || page.entries.is_empty();
        self.after = page.entries.last().map_or(self.after, |entry| entry.cookie);
        Ok(Some(page.entries).filter(|entries| !entries.is_empty()))
    }

    /// All the entries that are left.
    pub async fn rest(mut self) -> Result<Vec<DirectoryEntry>, Error> {
        let mut entries = Vec::new();
        while let Some(page) = self.next_page().await? {
            entries.extend(page);
        }
        Ok(entries)
    }
}

impl<S: Spawn> ClientSession<S> {
    pub(crate) async fn read_page(
        &self,
        directory: Handle,
        after: u64,
        attributes: bool,
    ) -> Result<DirectoryPage, Cause> {
        let (who, count_max) = (self.who(), PAGE_ENTRIES);
        self.ask(ReadDirectory { who, directory, after, count_max, attributes }).await
    }
}
