//! Reading ahead: the next bytes of a sequential reader are brought into the cache while it works.
//! Cached files and random reads cost nothing.
//!
//! Several ranks of a program may read parts of one file at the same time: a reader is known by the
//! offset at which it goes on, not by its client.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use futures::future::ready;
use futures::{FutureExt as _, StreamExt as _, stream};
use meta::protocol::BlockRun;

use super::base::MetadataAccess;
use super::content::ContentAccess;
use crate::protocol::{Error, Handle};

/// Files of one node that are watched, at most; the least recently read one is replaced.
const WATCHED_MAX: usize = 64;

/// Readers of one file that are distinguished, at most; the least recent one is replaced.
const READERS_MAX: usize = 16;

/// Bytes read ahead once a reader is sequential; doubled each time it comes near their end.
const WINDOW_FIRST_BYTES: u64 = 512 << 10;

/// Bytes read ahead of one reader, at most.
const WINDOW_MAX_BYTES: u64 = 4 << 20;

/// Stripes that are fetched for one reader at a time: some for each of many disks. More would
/// displace lines of a small cache that other requests need.
const FETCHES_MAX: usize = 16;

/// Readers of one node that are read ahead at the same time, at most; for others it is left out.
const RUNNING_MAX: usize = 4;

/// A read that took no longer came from memory, perhaps of another thread, or from a disk that
/// needs no help.
const WAIT_MIN: Duration = Duration::from_micros(50);

/// What each further stripe may add to it.
const WAIT_MIN_PER_STRIPE: Duration = Duration::from_micros(2);

/// The sequential readers of one node, as far as they have to wait for disks.
#[derive(Debug, Default)]
struct SequentialReaders {
    watched: RefCell<BTreeMap<u64, WatchedFile>>,
    /// Counts the reads that were noted.
    reads: Cell<u64>,
    running: Cell<usize>,
}

/// The readers of one file.
#[derive(Debug, Default)]
struct WatchedFile {
    generation: u64,
    /// The last read of any, counted over the node.
    last_read: u64,
    readers: Vec<SequentialReader>,
}

/// Where one reader is.
#[derive(Debug, Default, PartialEq, Eq)]
struct SequentialReader {
    /// Its first read, counted over the node: unique.
    id: u64,
    /// Its last one.
    last_read: u64,
    /// Where it goes on if it is sequential.
    next: u64,
    /// Everything before this was read or is being read ahead.
    ahead: u64,
    /// How far it is read ahead; 0 while it is not.
    window_bytes: u64,
    /// A read-ahead for it is running.
    is_running: bool,
}

impl SequentialReader {
    /// Notes a read of `range`; returns what to read ahead in a file of `size` bytes, if that may
    /// be begun now.
    fn note(
        &mut self,
        range: &Range<u64>,
        size: u64,
        waited: bool,
        may_begin: bool,
    ) -> Option<Range<u64>> {
        let is_sequential = range.start == self.next;
        if !is_sequential {
            (self.ahead, self.window_bytes) = (0, 0);
        }
        self.next = range.end;
        self.ahead = self.ahead.max(range.end);
        // A reader that never waits needs no read-ahead, unless read-ahead is why it never waits.
        let is_wanted = is_sequential && (waited || self.window_bytes > 0);
        let is_near = self.ahead - self.next <= self.window_bytes / 2;
        if !is_wanted || !is_near || self.is_running || !may_begin {
            return None;
        }
        // A reader of large pieces needs more at once.
        let least = WINDOW_FIRST_BYTES.max(2 * (range.end - range.start));
        self.window_bytes = (2 * self.window_bytes).max(least).min(WINDOW_MAX_BYTES);
        let from = self.ahead;
        self.ahead = size.min(self.next + self.window_bytes).max(from);
        Some(from..self.ahead).filter(|asked| !asked.is_empty())
    }
}

impl WatchedFile {
    /// The reader that continues at `start`; a new one if there is none and this read waited.
    fn reader(&mut self, start: u64, read: u64, waited: bool) -> Option<&mut SequentialReader> {
        self.last_read = read;
        let known = self.readers.iter().position(|reader| reader.next == start);
        if known.is_none() && !waited {
            return None;
        }
        let place = known.unwrap_or_else(|| {
            if self.readers.len() >= READERS_MAX {
                let ages = self.readers.iter().enumerate();
                let oldest = ages.min_by_key(|(_, reader)| reader.last_read);
                self.readers.swap_remove(oldest.map_or(0, |(place, _)| place));
            }
            self.readers.push(SequentialReader { id: read, ..SequentialReader::default() });
            self.readers.len() - 1
        });
        let reader = self.readers.get_mut(place)?;
        reader.last_read = read;
        Some(reader)
    }
}

/// What is to be read ahead, and for which reader of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReadAheadRange {
    range: Range<u64>,
    reader: u64,
}

impl SequentialReaders {
    /// A file is watched: reads that did not wait must be noted too.
    fn watches(&self) -> bool {
        !self.watched.borrow().is_empty()
    }

    /// Notes a read; returns what to read ahead. The caller reports its [end](Self::end).
    fn begin(
        &self,
        file: Handle,
        range: &Range<u64>,
        size: u64,
        waited: bool,
    ) -> Option<ReadAheadRange> {
        let mut watched = self.watched.borrow_mut();
        let is_watched = |known: &WatchedFile| known.generation == file.generation;
        if !watched.get(&file.ino).is_some_and(is_watched) {
            if !waited {
                return None;
            }
            watched.remove(&file.ino);
            if watched.len() >= WATCHED_MAX {
                let oldest = watched.iter().min_by_key(|(_, file)| file.last_read);
                let oldest = oldest.map(|(&ino, _)| ino)?;
                watched.remove(&oldest);
            }
        }
        let new = || WatchedFile { generation: file.generation, ..WatchedFile::default() };
        let known = watched.entry(file.ino).or_insert_with(new);
        self.reads.set(self.reads.get() + 1);
        let reader = known.reader(range.start, self.reads.get(), waited)?;
        let asked = reader.note(range, size, waited, self.running.get() < RUNNING_MAX)?;
        reader.is_running = true;
        self.running.set(self.running.get() + 1);
        Some(ReadAheadRange { range: asked, reader: reader.id })
    }

    /// The read-ahead has finished. If it did not wait, the file is cached, and its reader is
    /// forgotten until it has to wait again.
    fn end(&self, file: Handle, reader: u64, waited: bool) {
        self.running.set(self.running.get() - 1);
        let mut watched = self.watched.borrow_mut();
        let Some(known) = watched.get_mut(&file.ino) else { return };
        let Some(place) = known.readers.iter().position(|one| one.id == reader) else { return };
        known.readers[place].is_running = false;
        if !waited {
            known.readers.swap_remove(place);
        }
        if known.readers.is_empty() {
            watched.remove(&file.ino);
        }
    }
}

/// Reads ahead of the sequential readers of one node.
pub(super) struct ReadAhead {
    base: MetadataAccess,
    content: Rc<ContentAccess>,
    readers: SequentialReaders,
}

impl ReadAhead {
    pub(super) fn new(base: MetadataAccess, content: Rc<ContentAccess>) -> Self {
        Self { base, content, readers: SequentialReaders::default() }
    }

    /// Notes a read of `range` of a file of `size` bytes, which took `took`; reads ahead, in the
    /// background, if its reader will need that.
    pub(super) fn note_read(
        self: &Rc<Self>,
        file: Handle,
        range: &Range<u64>,
        size: u64,
        took: Duration,
    ) {
        let waited = took >= WAIT_MIN;
        if !waited && !self.readers.watches() {
            return;
        }
        let Some(asked) = self.readers.begin(file, range, size, waited) else { return };
        let me = self.clone();
        self.base.context.task(async move {
            // If it fails, the reader gets the error itself.
            let waited = me.read_ahead(file, &asked.range).await.unwrap_or(false);
            me.readers.end(file, asked.reader, waited);
        });
    }

    /// Brings bytes of a file into the cache; true if that had to wait for something.
    ///
    /// If the file changes meanwhile, the cache has old blocks that are never read. Checksums are
    /// verified by the reader.
    async fn read_ahead(&self, file: Handle, asked: &Range<u64>) -> Result<bool, Error> {
        let chunk_size = u64::from(self.content.geometry.stripe_size);
        let mut runs = Vec::new();
        for index in asked.start / chunk_size..asked.end.div_ceil(chunk_size) {
            // Locked for the look-up of the map, which caches its result.
            let _reading = self.content.files.shared(file.ino).await;
            let _held = self.content.chunks.shared((file.ino, index)).await;
            let chunks = self.content.map(file, index..index + 1).await?;
            runs.extend(chunks.iter().flat_map(|chunk| &chunk.runs).map(BlockRun::first_place));
        }
        let before = self.base.context.now();
        let stripes = runs.len() as u32;
        let reads = runs.into_iter().map(|run| {
            let (stripe, offset) = self.content.geometry.block(run.start);
            let length = run.count * blockio::BLOCK_SIZE as u32;
            self.content.stripes.read(stripe, offset, length, Vec::new()).map(drop)
        });
        stream::iter(reads).buffer_unordered(FETCHES_MAX).for_each(|()| ready(())).await;
        Ok(self.base.context.now().saturating_sub(before)
            >= WAIT_MIN + stripes * WAIT_MIN_PER_STRIPE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const FILE: Handle = Handle { ino: 5, generation: 1 };

    fn read(
        ahead: &SequentialReaders,
        file: Handle,
        from: u64,
        to: u64,
        waited: bool,
    ) -> Option<Range<u64>> {
        ahead.begin(file, &(from..to), 64 * MIB, waited).map(|asked| asked.range)
    }

    /// All that is being read ahead is there; `waited` for or not.
    fn end(ahead: &SequentialReaders, file: Handle, waited: bool) {
        let running = |known: &WatchedFile| {
            let running = known.readers.iter().filter(|reader| reader.is_running);
            running.map(|reader| reader.id).collect::<Vec<u64>>()
        };
        let ids = ahead.watched.borrow().get(&file.ino).map(running).unwrap_or_default();
        for id in ids {
            ahead.end(file, id, waited);
        }
    }

    #[test]
    fn ranks_that_read_parts_of_one_file_at_once_are_each_read_ahead() {
        let ahead = SequentialReaders::default();
        let (part, piece) = (16 * MIB, MIB / 4);
        let mut read_ahead = [0, 1, 2, 3].map(|rank| rank * part);
        let mut waits = 0;
        for step in 0..part / piece {
            for (rank, known) in (0_u64..).zip(&mut read_ahead) {
                let from = rank * part + step * piece;
                let waited = from + piece > *known;
                waits += u64::from(waited);
                *known = (*known).max(from + piece);
                if let Some(asked) = read(&ahead, FILE, from, from + piece, waited) {
                    assert_eq!(asked.start, *known, "no byte twice, no gap");
                    *known = asked.end;
                }
                end(&ahead, FILE, true);
            }
        }
        assert!(waits <= 8, "{waits} of 256 reads waited");
    }

    #[test]
    fn readers_of_a_file_are_bounded_and_those_who_read_here_and_there_displace_the_oldest() {
        let ahead = SequentialReaders::default();
        for i in 0..1000 {
            assert_eq!(read(&ahead, FILE, 2 * i + 1, 2 * i + 2, true), None);
        }
        assert_eq!(ahead.watched.borrow()[&FILE.ino].readers.len(), READERS_MAX);
        assert!(read(&ahead, FILE, 2000, 2001, true).is_some(), "the latest goes on");
        assert_eq!(read(&ahead, FILE, 2, 3, true), None, "the first is forgotten");
        let again = Handle { generation: 2, ..FILE };
        assert_eq!(read(&ahead, again, 7, 8, true), None);
        assert_eq!(ahead.watched.borrow()[&FILE.ino].readers.len(), 1);
    }

    #[test]
    fn a_reader_in_sequence_is_read_ahead_twice_as_far_each_time_up_to_the_limit() {
        let ahead = SequentialReaders::default();
        let (mut at, mut read_ahead) = (0, 0);
        let mut windows = Vec::new();
        while at < 63 * MIB {
            let waited = at + MIB / 4 > read_ahead;
            if let Some(asked) = read(&ahead, FILE, at, at + MIB / 4, waited) {
                assert_eq!(asked.start, read_ahead.max(at + MIB / 4), "no byte twice, no gap");
                read_ahead = asked.end;
                windows.push(asked.end - (at + MIB / 4));
                end(&ahead, FILE, true);
            }
            at += MIB / 4;
        }
        assert_eq!(windows[..5], [MIB / 2, MIB, 2 * MIB, 4 * MIB, 4 * MIB]);
        assert!(windows.iter().all(|&window| window <= WINDOW_MAX_BYTES));
        assert_eq!(read_ahead, 64 * MIB, "not past the end of the file");
    }

    #[test]
    fn reads_here_and_there_and_reads_of_cached_files_are_left_alone() {
        let ahead = SequentialReaders::default();
        for from in [9, 3, 40, 1, 22] {
            assert_eq!(read(&ahead, FILE, from * MIB, from * MIB + 4096, true), None);
        }
        let cached = Handle { ino: 6, generation: 1 };
        for i in 0..100 {
            assert_eq!(read(&ahead, cached, i * MIB, (i + 1) * MIB, false), None);
        }
        assert_eq!(ahead.watched.borrow().len(), 1);
    }

    #[test]
    fn a_reader_whose_file_turns_out_to_be_cached_is_forgotten() {
        let ahead = SequentialReaders::default();
        assert!(read(&ahead, FILE, 0, MIB, true).is_some());
        assert_eq!(read(&ahead, FILE, MIB, 2 * MIB, true), None, "one at a time");
        end(&ahead, FILE, false);
        assert!(ahead.watched.borrow().is_empty());
        assert_eq!(ahead.running.get(), 0);
    }

    #[test]
    fn files_watched_and_files_read_ahead_are_bounded() {
        let ahead = SequentialReaders::default();
        let begun = (0..1000).filter(|&ino| {
            let file = Handle { ino, generation: 1 };
            read(&ahead, file, 0, MIB, true).is_some()
        });
        assert_eq!(begun.count(), RUNNING_MAX);
        assert_eq!(ahead.watched.borrow().len(), WATCHED_MAX);
        // They are watched no more, and end all the same.
        for ino in 0..RUNNING_MAX as u64 {
            ahead.end(Handle { ino, generation: 1 }, ino + 1, true);
        }
        assert_eq!(ahead.running.get(), 0);
        assert!(read(&ahead, Handle { ino: 999, generation: 1 }, MIB, 2 * MIB, true).is_some());
    }
}
