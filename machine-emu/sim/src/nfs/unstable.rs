//! What was written and answered, but not as stable: a client keeps it until a COMMIT with the same
//! verifier, and writes it again if that has changed.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use bytes::Bytes;

/// Changes when a server has lost unstable writes (`writeverf3`, `verifier4`).
type WriteVerifier = [u8; 8];

struct UnstableWrite {
    worker: u32,
    file: usize,
    offset: u64,
    data: Bytes,
    verifier: WriteVerifier,
    /// Since then the server has not lost anything.
    incarnation: u32,
}

impl UnstableWrite {
    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.data.len() as u64
    }
}

/// All that is unstable, of all workers.
#[derive(Default)]
pub(super) struct UnstableWrites {
    writes: RefCell<Vec<UnstableWrite>>,
    incarnation: Cell<u32>,
}

/// Have both something in common?
pub(super) fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl UnstableWrites {
    /// A worker's write to a file was answered with `verifier`.
    pub(super) fn note(
        &self,
        (worker, file): (u32, usize),
        (offset, data): (u64, Bytes),
        verifier: WriteVerifier,
    ) {
        let incarnation = self.incarnation.get();
        let write = UnstableWrite { worker, file, offset, data, verifier, incarnation };
        self.writes.borrow_mut().push(write);
    }

    /// What is overwritten or truncated need not be written again.
    pub(super) fn overwritten(&self, file: usize, range: &Range<u64>) {
        let mut writes = self.writes.borrow_mut();
        writes.retain(|write| write.file != file || !overlap(&write.range(), range));
    }

    /// A worker's commit of a file was answered with `verifier`: what it must write again, as
    /// offset and bytes.
    pub(super) fn flush(
        &self,
        (worker, file): (u32, usize),
        verifier: WriteVerifier,
    ) -> Vec<(u64, Bytes)> {
        let mut writes = self.writes.borrow_mut();
        let mine = |write: &mut UnstableWrite| write.worker == worker && write.file == file;
        let mine: Vec<UnstableWrite> = writes.extract_if(.., mine).collect();
        let (kept, lost): (Vec<_>, Vec<_>) =
            mine.into_iter().partition(|write| write.verifier == verifier);
        let now = self.incarnation.get();
        let deceived = kept.iter().find(|write| write.incarnation != now);
        if let Some(UnstableWrite { offset, data, .. }) = deceived {
            let length = data.len();
            panic!(
                "file {file}: {length} bytes at {offset} were written before the server started \
                 again, and the verifier has not changed: the client believes them safe"
            );
        }
        assert!(lost.iter().all(|w| w.incarnation != now), "the verifier changed without a reason");
        lost.into_iter().map(|write| (write.offset, write.data)).collect()
    }

    /// The server has started again.
    pub(super) fn restarted(&self) {
        self.incarnation.set(self.incarnation.get() + 1);
    }
}
