//! What requests for content, directories and open files return.

use bytes::Bytes;
use runtime::delivery::DeliveredRange;

use crate::protocol::{Attributes, Handle, Kind, Name, WriteResult};

runtime::record! {
    /// One entry of a directory.
    pub struct DirectoryEntry {
        /// The position after this entry, valid while other entries are added and removed; above 2
        /// and below 2^63, so that gateways have the first two for `.` and `..`.
        cookie: u64,
        /// The name.
        name: Name,
        /// What it names.
        handle: Handle,
        /// What kind of thing that is.
        kind: Kind,
        /// Its attributes, if asked for (and if it still existed).
        attributes: Option<Box<Attributes>>,
    }
}

runtime::record! {
    /// A part of a directory.
    pub struct DirectoryPage {
        /// Entries in the order of their cookies.
        entries: Vec<DirectoryEntry>,
        /// Nothing follows.
        end: bool,
        /// The directory itself.
        directory: Attributes,
    }
}

runtime::record! {
    /// What was read.
    pub struct ReadData {
        /// The bytes, in pieces; fewer than asked for only at the end of the file.
        data: Vec<Bytes>,
        /// The last byte read is the last of the file.
        end: bool,
        /// The file.
        attributes: Attributes,
        /// As in [`WriteResult`]: with another one, the reader's own writes may be missing.
        write_verifier: u64,
    }
}

runtime::record! {
    /// What was read, where other processes have delivered some of it.
    pub struct DirectData {
        /// All else: its `data` are the bytes that were not delivered.
        read: ReadData,
        /// In which execution of the request bytes were delivered.
        execution: u64,
        /// Which, in order; places count from the first byte that was asked for.
        delivered: Vec<DeliveredRange>,
    }
}

runtime::record! {
    /// What was read of a list.
    pub struct ListData {
        /// The packed bytes, in pieces, up to the last one that is in the file: what is missing of
        /// the window lies past its end. Bytes past the end between others are zeros.
        data: Vec<Bytes>,
        /// The file.
        attributes: Attributes,
        /// As in [`ReadData`].
        write_verifier: u64,
    }
}

runtime::record! {
    /// What was appended.
    #[derive(Copy)]
    pub struct Appended {
        /// Where in the file it begins.
        offset: u64,
        /// The file afterwards.
        written: WriteResult,
    }
}

runtime::record! {
    /// What was created, or found in its place.
    #[derive(Copy)]
    pub struct Created {
        /// The file.
        attributes: Attributes,
        /// It did not exist before.
        new: bool,
    }
}

runtime::choice! {
    /// What [`Seek`](crate::protocol::Seek) looks for.
    #[derive(Copy)]
    pub enum SeekTarget {
        /// A byte in a block.
        1 Data {},
        /// A byte in no block; the end of the file counts as one.
        2 Hole {},
    }
}

runtime::record! {
    /// An open file, or what is no regular file and need not be open.
    #[derive(Copy)]
    pub struct OpenedFile {
        /// Its attributes.
        attributes: Attributes,
        /// The client's lease at the file's node; 0 if nothing is open. A new lease means that the
        /// node has forgotten the client's open files: it must reopen them.
        lease: u64,
    }
}

runtime::record! {
    /// What was created, or found in its place, and is open.
    #[derive(Copy)]
    pub struct OpenedNewFile {
        /// The file.
        created: Created,
        /// As in [`OpenedFile`].
        lease: u64,
    }
}
