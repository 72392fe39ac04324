//! A worker of a host.

use super::host::{V4Answer, V4Host};
use super::wire::{CompoundOps, op, status};
use crate::harness::WorkResult;

/// Makes one call at a time, in a slot of a host.
pub(super) struct V4Worker<'a> {
    pub(super) host: &'a V4Host<'a>,
    pub(super) slot: usize,
    /// Among all.
    pub(super) number: u32,
}

impl V4Worker<'_> {
    /// See [`V4Host::ask`].
    pub(super) async fn ask(
        &self,
        once: bool,
        make: impl Fn() -> Option<CompoundOps>,
    ) -> WorkResult<Option<V4Answer>> {
        Box::pin(self.host.ask(self.slot, once, make)).await
    }

    /// Closes a file, if the gateway has not forgotten it.
    pub(super) async fn close(&self, number: u64) -> WorkResult {
        self.host.with_open(number, |open| open.closing = true);
        let answer = self.ask(true, || {
            let open = self.host.open(number)?;
            let ops =
                CompoundOps::default().put(&open.file).op(op::CLOSE).word(0).fixed(&open.stateid);
            Some(ops)
        });
        let answer = answer.await;
        self.host.forget_open(number);
        if let Some(answer) = answer? {
            assert_eq!(answer.status, status::OK, "a close is refused");
        }
        Ok(())
    }
}
