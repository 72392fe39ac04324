//! What waits for one disk. Reads and writes take turns, so that neither a flusher nor a reader
//! who asks for much holds up the other; neighbours on the disk go together.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use super::Turn;
use crate::protocol::Error;

/// Bytes that go to the disk as one transfer, at most. A single request may be larger.
pub(super) const MERGED_BYTES_MAX: usize = 1 << 20;
/// So far back in the queue neighbours are looked for.
const LOOK_AHEAD: usize = 64;

/// One request that waits for its disk.
pub(super) struct Waiting<T> {
    pub(super) offset: u64,
    pub(super) length: usize,
    /// When it was asked.
    pub(super) came: Duration,
    pub(super) work: T,
}

pub(super) struct Read {
    pub(super) reply: Turn<Bytes>,
}

pub(super) struct Write {
    pub(super) data: Vec<Bytes>,
    pub(super) reply: Turn<()>,
}

/// Requests that go to the disk as one transfer: each begins where the one before ends.
pub(super) enum Transfer {
    Read(Vec<Waiting<Read>>),
    Write(Vec<Waiting<Write>>),
}

/// The requests of one disk, in order.
#[derive(Default)]
pub(super) struct Queue {
    reads: VecDeque<Waiting<Read>>,
    writes: VecDeque<Waiting<Write>>,
    /// The last transfer was a read.
    has_read: bool,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.reads.len() + self.writes.len()
    }

    pub(super) fn push_read(&mut self, read: Waiting<Read>) {
        self.reads.push_back(read);
    }

    pub(super) fn push_write(&mut self, write: Waiting<Write>) {
        self.writes.push_back(write);
    }

    /// Tells everybody who waits; some may have gone.
    pub(super) fn refuse(self, why: Error) {
        for read in self.reads {
            let _ = read.work.reply.send(Err(why));
        }
        for write in self.writes {
            let _ = write.work.reply.send(Err(why));
        }
    }

    /// The next transfer.
    pub(super) fn pop(&mut self) -> Option<Transfer> {
        let read = !self.reads.is_empty() && (self.writes.is_empty() || !self.has_read);
        self.has_read = read;
        if read {
            run(&mut self.reads).map(Transfer::Read)
        } else {
            run(&mut self.writes).map(Transfer::Write)
        }
    }
}

/// The oldest request, and those that continue it.
fn run<T>(queue: &mut VecDeque<Waiting<T>>) -> Option<Vec<Waiting<T>>> {
    let first = queue.pop_front()?;
    let (mut end, mut bytes) = (first.offset + first.length as u64, first.length);
    let mut run = vec![first];
    let mut index = 0;
    while index < queue.len().min(LOOK_AHEAD) {
        let next = &queue[index];
        if next.offset != end || bytes + next.length > MERGED_BYTES_MAX {
            index += 1;
        } else if let Some(next) = queue.remove(index) {
            end += next.length as u64;
            bytes += next.length;
            run.push(next);
        }
    }
    Some(run)
}
