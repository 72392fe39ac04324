//! Which version of a file the kernel's pages belong to, so that they may survive an open.
//!
//! The rule is close-to-open: an open keeps the pages only if all of them are what a read would
//! return at that moment. The proof for one file:
//!
//! 1. An open finds the version *v*, and the kernel drops all pages before the program has the
//!    file. What is read into pages after that is of *v* or later. The mount knows of the drop by
//!    the first request through that open file: until then another open drops the pages too.
//! 2. A later open finds *v* again. No version returns (a clock that is set back would have
//!    to show the same nanosecond again), so the content was the same all the time.
//! 3. A write of this mount, whose result says that the version before it was *v*, changes the
//!    pages as it changes the file. So they are of the version after it. They are changed first if
//!    it is collected (`write_behind.rs`), and if it fails then, that ends the proof.
//!
//! Every other change makes a version that is not known here: of another client, to the size, of
//! space, past the page cache, or of a mapped page. A crash of a server may bring an earlier
//! version back. So a read that finds an unknown version ends the proof, and so does a restart.

use client::protocol::{Attributes, Time, WccAttr};

/// A version of the content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContentVersion {
    /// The size and times, of which the ctime is another one after each change.
    attributes: WccAttr,
    /// The number of server restarts that the mount has noticed.
    restarts: Option<u64>,
}

impl ContentVersion {
    pub(crate) fn new(attributes: WccAttr, restarts: Option<u64>) -> Self {
        Self { attributes, restarts }
    }

    /// The last change.
    pub(crate) fn ctime(self) -> Time {
        self.attributes.ctime
    }

    /// The same of other attributes.
    pub(crate) fn with(self, attributes: WccAttr) -> Self {
        Self { attributes, ..self }
    }

    /// That of a file with these attributes.
    pub(crate) fn of(file: &Attributes, restarts: Option<u64>) -> Self {
        Self::new(WccAttr::of(file), restarts)
    }
}

/// What is known of the kernel's copy of one file.
#[derive(Debug, Default)]
pub(crate) struct PageVersion {
    known: Option<Box<KnownPages>>,
    sent: SentAttributes,
}

/// The attributes that the kernel was sent since it had to forget them.
#[derive(Debug, Default)]
enum SentAttributes {
    #[default]
    Nothing,
    Same(WccAttr),
    /// It has discarded those of some replies, which had been requested before others arrived.
    Different,
}

/// Pages that were all read since the file had a version.
#[derive(Debug)]
struct KnownPages {
    version: ContentVersion,
    /// The number of the first open file at whose open all earlier pages are dropped.
    since: u64,
    /// They have been dropped.
    dropped: bool,
}

/// What an open does with the kernel's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenVerdict {
    /// The pages are those of the file.
    pub(crate) keeps_pages: bool,
    /// The attributes of the kernel may be older than those of the open, and must be invalidated.
    pub(crate) has_old_attributes: bool,
    /// Requests through an open file with this number prove that pages were dropped.
    pub(crate) since: u64,
}

impl PageVersion {
    /// The kernel is sent attributes.
    pub(crate) fn note_sent(&mut self, file: &Attributes) {
        let now = WccAttr::of(file);
        match self.sent {
            SentAttributes::Nothing => self.sent = SentAttributes::Same(now),
            SentAttributes::Same(before) if before == now => {}
            _ => self.sent = SentAttributes::Different,
        }
    }

    /// The kernel is sent attributes that it has set, which it never discards.
    pub(crate) fn note_set(&mut self, file: &Attributes) {
        self.sent = SentAttributes::Same(WccAttr::of(file));
    }

    /// The file with the number `file` is opened, and has this version; `None` if it is unknown.
    pub(crate) fn open(&mut self, file: u64, version: Option<ContentVersion>) -> OpenVerdict {
        let Some(version) = version else {
            (self.known, self.sent) = (None, SentAttributes::Nothing);
            return OpenVerdict { keeps_pages: false, has_old_attributes: true, since: file };
        };
        let has_old_attributes = match self.sent {
            SentAttributes::Nothing => false,
            SentAttributes::Same(sent) => sent != version.attributes,
            SentAttributes::Different => true,
        };
        if has_old_attributes {
            self.sent = SentAttributes::Nothing;
        }
        match &self.known {
            Some(known) if known.version == version => {
                let (keeps_pages, since) = (known.dropped, known.since);
                OpenVerdict { keeps_pages, has_old_attributes, since }
            }
            _ => {
                let known = KnownPages { version, since: file, dropped: false };
                self.known = Some(Box::new(known));
                OpenVerdict { keeps_pages: false, has_old_attributes, since: file }
            }
        }
    }

    /// A program has used a file whose open was answered with `since`.
    pub(crate) fn note_use(&mut self, since: u64) {
        if let Some(known) = self.known.as_mut().filter(|known| known.since == since) {
            known.dropped = true;
        }
    }

    /// The version of the pages, if it is known.
    pub(crate) fn version(&self) -> Option<ContentVersion> {
        self.known.as_ref().map(|known| known.version)
    }

    /// A read has found this version.
    pub(crate) fn note_read(&mut self, version: ContentVersion) {
        if self.known.as_ref().is_some_and(|known| known.version != version) {
            self.known = None;
        }
    }

    /// The pages may be of no version.
    pub(crate) fn forget(&mut self) {
        self.known = None;
    }

    /// This mount has made the version `after` of `before`, and the kernel's copy has the same
    /// change.
    pub(crate) fn note_write(&mut self, before: ContentVersion, after: ContentVersion) {
        if let Some(known) = self.known.as_mut().filter(|known| known.version == before) {
            known.version = after;
        }
        // The kernel has changed the size itself, and requests the times again.
        if let SentAttributes::Same(sent) = &mut self.sent
            && *sent == before.attributes
        {
            *sent = after.attributes;
        }
    }
}

#[cfg(test)]
mod tests {
    use client::protocol::Kind;

    use super::*;

    fn version(nanos: u32) -> ContentVersion {
        let time = Time { seconds: 1, nanos };
        ContentVersion::new(WccAttr { size: 9, mtime: time, ctime: time }, Some(0))
    }

    fn keeps(pages: &mut PageVersion, file: u64, nanos: u32) -> bool {
        pages.open(file, Some(version(nanos))).keeps_pages
    }

    /// Opened as file 1 at version 1, and used.
    fn loaded() -> PageVersion {
        let mut pages = PageVersion::default();
        assert!(!keeps(&mut pages, 1, 1));
        pages.note_use(1);
        pages
    }

    #[test]
    fn pages_of_the_same_version_survive_once_older_ones_are_dropped() {
        let mut pages = PageVersion::default();
        assert_eq!(pages.open(1, Some(version(1))).since, 1);
        assert_eq!(pages.open(2, Some(version(1))).since, 1, "either open drops the older pages");
        pages.note_use(7);
        assert!(!keeps(&mut pages, 3, 1), "no open is known to have dropped them");
        pages.note_use(1);
        assert!(keeps(&mut pages, 4, 1) && keeps(&mut pages, 5, 1));
    }

    #[test]
    fn another_version_needs_another_drop() {
        let mut pages = loaded();
        assert!(!keeps(&mut pages, 2, 2));
        pages.note_use(1);
        assert!(!keeps(&mut pages, 3, 2), "file 1 was opened before the change");
        pages.note_use(2);
        assert!(keeps(&mut pages, 4, 2) && !keeps(&mut pages, 5, 1));
        let restarted = ContentVersion { restarts: Some(1), ..version(2) };
        let mut pages = loaded();
        assert!(!pages.open(2, Some(restarted)).keeps_pages, "it may have lost version 3");
        assert!(!pages.open(3, None).keeps_pages && !keeps(&mut pages, 4, 1));
    }

    #[test]
    fn own_writes_continue_a_version_only_without_one_between() {
        let mut pages = loaded();
        pages.note_write(version(1), version(2));
        pages.note_write(version(2), version(3));
        assert!(keeps(&mut pages, 2, 3));
        pages.note_write(version(4), version(5));
        assert!(!keeps(&mut pages, 3, 5), "version 4 is of another client");
    }

    #[test]
    fn a_read_of_an_unknown_version_ends_the_proof() {
        let mut pages = loaded();
        pages.note_read(version(1));
        assert!(keeps(&mut pages, 2, 1));
        // Version 2 is lost in a crash after the read.
        pages.note_read(version(2));
        assert!(!keeps(&mut pages, 3, 1));
    }

    #[test]
    fn attributes_are_old_if_others_were_sent() {
        let mut pages = PageVersion::default();
        let is_old =
            |pages: &mut PageVersion, nanos| pages.open(1, Some(version(nanos))).has_old_attributes;
        let send = |pages: &mut PageVersion, nanos| {
            let time = version(nanos).attributes.mtime;
            let blank = Attributes::blank(7, 7, Kind::File {}, time);
            pages.note_sent(&Attributes { size: 9, ..blank });
        };
        assert!(!is_old(&mut pages, 1), "the kernel has none");
        send(&mut pages, 1);
        send(&mut pages, 1);
        assert!(!is_old(&mut pages, 1) && is_old(&mut pages, 2));
        send(&mut pages, 2);
        pages.note_write(version(2), version(3));
        assert!(!is_old(&mut pages, 3));
        // The kernel may have discarded the second reply, and the third.
        for nanos in [4, 5, 5] {
            send(&mut pages, nanos);
        }
        assert!(is_old(&mut pages, 5) && !is_old(&mut pages, 5));
        assert!(pages.open(1, None).has_old_attributes);
        send(&mut pages, 6);
        let time = version(7).attributes.mtime;
        let blank = Attributes::blank(7, 7, Kind::File {}, time);
        pages.note_set(&Attributes { size: 9, ..blank });
        assert!(!is_old(&mut pages, 7), "the kernel has what it has set");
    }
}
