//! Which writes of a direct disk may run at once.
//!
//! A direct transfer moves whole blocks. A write of less reads the rest of its first and last
//! block, lays its bytes over it and writes them back: a *patch*. A neighbour in the same block
//! that is written in between would be lost, so a patch runs alone in its blocks.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use tokio::sync::oneshot;

/// The writes of one disk that are under way.
#[derive(Default)]
pub(super) struct Writes {
    running: RefCell<Vec<RunningWrites>>,
    /// Told whenever a write has ended, and then look again.
    waiting: RefCell<Vec<oneshot::Sender<()>>>,
}

struct RunningWrites {
    blocks: Range<u64>,
    patches: bool,
}

impl Writes {
    /// Lets a write of the blocks from byte `blocks.start` to byte `blocks.end` begin, unless
    /// another one is in its way.
    pub(super) fn enter(self: &Rc<Self>, blocks: Range<u64>, patches: bool) -> Option<WritePermit> {
        let mut running = self.running.borrow_mut();
        let in_the_way = running.iter().any(|other| {
            (patches || other.patches)
                && other.blocks.start < blocks.end
                && blocks.start < other.blocks.end
        });
        if in_the_way {
            return None;
        }
        running.push(RunningWrites { blocks: blocks.clone(), patches });
        Some(WritePermit { writes: self.clone(), blocks, patches })
    }

    /// As [`enter`](Self::enter), in turn.
    pub(super) async fn entered(self: &Rc<Self>, blocks: Range<u64>, patches: bool) -> WritePermit {
        loop {
            if let Some(entered) = self.enter(blocks.clone(), patches) {
                return entered;
            }
            let (tell, told) = oneshot::channel();
            self.waiting.borrow_mut().push(tell);
            // Told, or dropped with those who would tell: look again in both cases.
            let _ = told.await;
        }
    }
}

/// A write under way. It has ended when this is dropped.
pub(super) struct WritePermit {
    writes: Rc<Writes>,
    blocks: Range<u64>,
    patches: bool,
}

impl Drop for WritePermit {
    fn drop(&mut self) {
        let mut running = self.writes.running.borrow_mut();
        let own = running
            .iter()
            .position(|other| other.blocks == self.blocks && other.patches == self.patches);
        if let Some(own) = own {
            running.swap_remove(own);
        }
        for waiting in self.writes.waiting.take() {
            // The waiter may be gone.
            let _ = waiting.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[test]
    fn a_patch_runs_alone_in_its_blocks_and_whole_writes_run_together() {
        let writes = Rc::<Writes>::default();
        let whole = writes.enter(0..8192, false).unwrap();
        let other = writes.enter(4096..8192, false).unwrap();
        assert!(writes.enter(4096..8192, true).is_none());
        let beside = writes.enter(8192..12288, true).unwrap();
        assert!(writes.enter(8192..12288, false).is_none());
        let mut patch = Box::pin(writes.entered(4096..8192, true));
        assert!((&mut patch).now_or_never().is_none());
        drop(whole);
        assert!((&mut patch).now_or_never().is_none(), "one of two has ended");
        drop((other, beside));
        let patch = patch.now_or_never().unwrap();
        assert!(writes.enter(0..8192, false).is_none());
        drop(patch);
        assert!(writes.enter(0..8192, true).is_some());
    }
}
