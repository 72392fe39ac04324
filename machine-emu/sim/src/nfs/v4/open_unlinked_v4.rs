//! Files that lose their only name while they are open: they live on until they are closed,
//! whatever restarts.

use std::cell::{Cell, RefCell};

use bytes::Bytes;
use runtime::seed::Rng;

use super::content::{on, open_root};
use super::wire::{CompoundOps, CreateMode, op, status};
use super::worker::V4Worker;
use crate::files::any_bytes;
use crate::harness::WorkResult;

/// Bytes of such a file, at most.
const BYTES_MAX: u64 = 20_000;
/// Files that one worker keeps so, at most.
const KEPT_MAX: usize = 4;

struct NfsOpenUnlinkedFile {
    worker: u32,
    open: u64,
    bytes: Bytes,
    /// The removal met its own work, which may not have reached the file yet.
    may_lag: bool,
}

#[derive(Default)]
pub(super) struct OpenUnlinkedV4 {
    kept: RefCell<Vec<NfsOpenUnlinkedFile>>,
    next: Cell<u64>,
}

impl OpenUnlinkedV4 {
    /// Makes one more, or looks at one and closes it.
    pub(super) async fn step(&self, worker: &V4Worker<'_>, rng: &mut Rng) -> WorkResult {
        let mine = |kept: &NfsOpenUnlinkedFile| kept.worker == worker.number;
        let count = self.kept.borrow().iter().filter(|kept| mine(kept)).count();
        if count < KEPT_MAX && rng.chance(1, 2) {
            return self.make(worker, rng).await;
        }
        let index = self.kept.borrow().iter().position(mine);
        let Some(index) = index else { return Ok(()) };
        let kept = self.kept.borrow_mut().remove(index);
        if let Err(cut) = self.check(worker, &kept).await {
            self.kept.borrow_mut().push(kept);
            return Err(cut);
        }
        worker.close(kept.open).await
    }

    async fn make(&self, worker: &V4Worker<'_>, rng: &mut Rng) -> WorkResult {
        let number = self.next.get();
        self.next.set(number + 1);
        let name = format!("nameless-{number}");
        let opened =
            open_root(worker, &name, (3, 0), (&name, CreateMode::Exclusive(rng.bits()))).await?;
        let opened = opened.unwrap_or_else(|status| panic!("{name} cannot be made: {status}"));
        let open = worker.host.add_open(opened);
        let bytes = any_bytes(1 + rng.below(BYTES_MAX), rng);
        let filled = self.fill(worker, open, &name, &bytes).await;
        if let Ok(Some(may_lag)) = filled {
            self.kept.borrow_mut().push(NfsOpenUnlinkedFile {
                worker: worker.number,
                open,
                bytes,
                may_lag,
            });
        } else {
            worker.host.forget_open(open);
        }
        filled.map(drop)
    }

    /// Writes `bytes` durably and removes the name; returns whether that met its own work, `None`
    /// if the file was lost meanwhile.
    async fn fill(
        &self,
        worker: &V4Worker<'_>,
        open: u64,
        name: &str,
        bytes: &Bytes,
    ) -> WorkResult<Option<bool>> {
        let written = worker.ask(false, || {
            let (ops, stateid) = on(worker, open, false)?;
            Some(ops.op(op::WRITE).fixed(&stateid).long(0).word(2).opaque(bytes))
        });
        let Some(written) = written.await? else { return Ok(None) };
        assert_eq!(written.status, status::OK, "a write is refused");
        let remove = || Some(CompoundOps::default().root().named(op::REMOVE, name));
        let Some(removed) = worker.ask(true, remove).await? else { return Ok(None) };
        let met_own_work = removed.has_stray_twin && removed.status == status::NOENT;
        assert!(removed.status == status::OK || met_own_work, "{name}: {}", removed.status);
        Ok(Some(met_own_work))
    }

    async fn check(&self, worker: &V4Worker<'_>, kept: &NfsOpenUnlinkedFile) -> WorkResult {
        let NfsOpenUnlinkedFile { open, bytes, may_lag, .. } = kept;
        let answer = worker.ask(false, || {
            let (ops, stateid) = on(worker, *open, false)?;
            let read = ops.op(op::READ).fixed(&stateid).long(0).word(bytes.len() as u32 + 1);
            Some(read.look())
        });
        let Some(mut answer) = answer.await? else { return Ok(()) };
        assert_eq!(answer.status, status::OK, "an open file is missing");
        answer.reply.done(op::PUTFH);
        let read = answer.reply.done(op::READ);
        let end = read.word();
        let found = read.opaque();
        assert!(found == *bytes && end == 1, "a file without a name has other bytes");
        let (size, links) = answer.reply.looked();
        let is_right = size == bytes.len() as u64 && links <= u32::from(*may_lag);
        assert!(is_right, "a file without a name has {size} bytes and {links} links");
        Ok(())
    }
}
