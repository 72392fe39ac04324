//! Changing lines. Nothing here reads a disk.

use std::rc::Rc;

use super::Server;
use super::pace::WriteThrottle;
use super::room::RetryBudget;
use blockio::BootId;
use runtime::protocol::Undelivered;

use crate::line::{Line, OutOfMemory};
use crate::protocol::{Error, Forget, Write, WriteZeros};

impl Server {
    /// Answers [`Write`], if there is room.
    pub(super) fn try_write_now(self: &Rc<Self>, request: &Write) -> Option<Result<BootId, Error>> {
        let &Write { stripe, offset, ref data } = request;
        let length = data.iter().map(|piece| piece.len() as u64).sum();
        if self.range(stripe, offset, length).ok()?.is_empty() {
            return None;
        }
        if self.must_wait(stripe) {
            return None;
        }
        let (pool, now) = (self.context.pool(), self.context.now());
        if !self.try_change(stripe, |line| line.write(offset, data, pool, now)) {
            return None;
        }
        self.note_written(stripe);
        Some(Ok(self.boot_ids.own(stripe)))
    }

    /// Answers [`Write`].
    pub(super) async fn write(self: &Rc<Self>, request: Write) -> Result<BootId, Error> {
        let Write { stripe, offset, data } = request;
        let length = data.iter().map(|piece| piece.len() as u64).sum();
        if self.range(stripe, offset, length)?.is_empty() {
            return Ok(self.boot_ids.own(stripe));
        }
        let change =
            |line: &mut Line| line.write(offset, &data, self.context.pool(), self.context.now());
        self.change(stripe, change).await
    }

    /// Answers [`WriteZeros`].
    pub(super) async fn write_zeros(self: &Rc<Self>, request: WriteZeros) -> Result<BootId, Error> {
        let WriteZeros { stripe, offset, length } = request;
        let range = self.range(stripe, offset, u64::from(length))?;
        if range.is_empty() {
            return Ok(self.boot_ids.own(stripe));
        }
        let (pool, now) = (self.context.pool(), self.context.now());
        let change = |line: &mut Line| line.write_zeros(range.clone(), pool, now);
        self.change(stripe, change).await
    }

    /// Answers [`Forget`]. Never waits: a write-back under way continues, and its result is
    /// discarded.
    pub(super) fn forget(&self, request: &Forget) -> Result<(), Error> {
        let range = self.range(request.stripe, request.offset, u64::from(request.length))?;
        self.lines.borrow_mut().change(request.stripe, |line| line.forget(&range));
        Ok(())
    }

    /// Applies `change` to the line of `stripe`, which is made if there is none; returns the boot
    /// ID at that time.
    pub(super) async fn change(
        self: &Rc<Self>,
        stripe: u64,
        change: impl Fn(&mut Line) -> Result<(), OutOfMemory>,
    ) -> Result<BootId, Error> {
        let epoch = self.context.epoch();
        let _turn = self.changing.exclusive(stripe).await;
        self.refusals.check(&self.map, &self.lines.borrow(), stripe)?;
        if self.lines.borrow().is_fragmented(stripe) {
            self.write_back_line(stripe).await?;
            self.lines.borrow_mut().change(stripe, Line::forget_clean);
            self.boot_ids.note_dropped(stripe);
        }
        if self.is_paced(stripe) {
            self.pause().await;
        }
        let mut patience = RetryBudget::new();
        loop {
            if self.context.epoch() != epoch {
                // The caller may be another by now, and have given the blocks to others.
                return Err(Undelivered::Fenced.into());
            }
            if self.try_change(stripe, &change) {
                break;
            }
            self.make_room(&mut patience).await?;
            self.refusals.check(&self.map, &self.lines.borrow(), stripe)?;
        }
        self.note_written(stripe);
        // No await since: it is the boot ID of this change.
        Ok(self.boot_ids.own(stripe))
    }

    /// A change of `stripe` cannot be done at once.
    pub(super) fn must_wait(&self, stripe: u64) -> bool {
        !self.changing.is_open(&stripe)
            || self.lines.borrow().is_fragmented(stripe)
            || self.is_paced(stripe)
            || self.refusals.check(&self.map, &self.lines.borrow(), stripe).is_err()
    }

    /// A write of `stripe` makes one more line dirty, and there are many.
    fn is_paced(&self, stripe: u64) -> bool {
        let lines = self.lines.borrow();
        lines.dirty_count() > WriteThrottle::share(lines.count_max())
            && !lines.get(stripe).is_some_and(Line::is_dirty)
    }

    /// Waits until one more line may become dirty.
    async fn pause(&self) {
        let (dirty, most) = {
            let lines = self.lines.borrow();
            (lines.dirty_count(), lines.count_max())
        };
        let pause = self.pace.pause(self.context.now(), dirty, most);
        if !pause.is_zero() {
            self.context.sleep(pause).await;
        }
    }

    pub(super) fn try_change(
        &self,
        stripe: u64,
        change: impl FnOnce(&mut Line) -> Result<(), OutOfMemory>,
    ) -> bool {
        let mut lines = self.lines.borrow_mut();
        lines.ensure(stripe) && matches!(lines.change(stripe, change), Some(Ok(())))
    }
}
