//! Group commit: one task writes what is pending while a caller waits for it.

use std::rc::Rc;
use std::time::Duration;

use blockio::protocol::Error as DiskError;
use futures::future::join_all;

use super::device::WritePauses;
use super::error::{StoreError, StoreResult};
use super::log::LogWrite;
use super::{LOG_DELAY, LOSSES_MAX, Position, Store};
use crate::operations::CommitDependency;

/// The pause before a node whose disk takes no writes is asked again to make its records durable.
const DEPENDENCY_PAUSE: Duration = Duration::from_millis(500);

/// What the writer does next.
enum WriterStep {
    /// A group commit.
    Write(LogWrite),
    /// Waiting until other nodes have made these durable.
    Flush(Vec<CommitDependency>),
}

impl Store {
    /// Resolves once everything up to `position` survives a crash. A call during a group commit is
    /// served by the next one. While a disk takes no writes it waits.
    ///
    /// After an error it is unknown what is on the disks: the store accepts nothing any more and
    /// has to be mounted again.
    pub async fn durable(&self, position: Position) -> StoreResult<()> {
        self.durable_unless(position, |_| None).await.map(drop)
    }

    /// As [`durable`](Self::durable), but fails while a disk takes no writes, for `why`. What was
    /// committed still becomes durable then, unless the store is closed before. Returns up to where
    /// all is durable.
    pub(crate) async fn durable_unless(
        &self,
        position: Position,
        why: impl Fn(&WritePauses) -> Option<DiskError>,
    ) -> StoreResult<Position> {
        // What comes after the call is not waited for, however far ahead the position is.
        let position = position.0.min(self.state.borrow().log.last);
        loop {
            let written = {
                let mut state = self.state.borrow_mut();
                if state.log.durable >= position {
                    return Ok(Position(state.log.durable));
                }
                if let Some(stopped) = state.stopped {
                    return Err(stopped);
                }
                if let Some(why) = why(&self.pages.device.pauses) {
                    return Err(why.into());
                }
                state.wanted = state.wanted.max(position);
                // Also told when something begins to wait for a disk.
                self.written.next()
            };
            self.start_writer();
            written.await;
        }
    }

    /// Writes pending records after a delay, unless a caller waits for them earlier.
    pub(super) fn write_later(&self) {
        if std::mem::replace(&mut self.state.borrow_mut().timer, true) {
            return;
        }
        let (delay, me) = (self.ctx.sleep(LOG_DELAY), self.me.clone());
        self.ctx.task(async move {
            delay.await;
            if let Some(store) = me.upgrade() {
                store.state.borrow_mut().timer = false;
                store.write_now();
            }
        });
    }

    /// Starts writing everything pending, without waiting for it.
    pub(super) fn write_now(&self) {
        {
            let mut state = self.state.borrow_mut();
            state.wanted = state.log.last;
        }
        self.start_writer();
    }

    fn start_writer(&self) {
        let Some(me) = self.me.upgrade() else { return };
        if !std::mem::replace(&mut self.state.borrow_mut().writing, true) {
            self.ctx.task(me.write_rounds());
        }
    }

    async fn write_rounds(self: Rc<Self>) {
        let mut paused = None;
        while let Some(step) = self.next_step() {
            let round = match step {
                WriterStep::Write(round) => round,
                WriterStep::Flush(dependencies) => {
                    let flushed = self.flush_dependencies(dependencies).await;
                    let begin = |why| self.pages.device.pauses.begin_dependency(why);
                    paused = flushed.err().map(begin);
                    if paused.is_some() {
                        self.ctx.sleep(DEPENDENCY_PAUSE).await;
                    }
                    continue;
                }
            };
            paused.take();
            if let Err(error) = self.write_round(&round).await {
                self.stop(error);
            }
            self.state.borrow_mut().flush();
            self.written.tell();
            self.checkpoint_if_due();
        }
    }

    /// Waits until these records of other nodes are durable. Fails while one of those nodes waits
    /// for a disk.
    async fn flush_dependencies(
        &self,
        dependencies: Vec<CommitDependency>,
    ) -> Result<(), DiskError> {
        let flush = self.flush_dependency.borrow().clone();
        let flush = flush.expect("dependencies on other nodes need a way to call them");
        let asked = dependencies.into_iter().map(|dependency| {
            let flushed = flush(dependency);
            async move { (dependency.node, flushed.await) }
        });
        let mut waits = Ok(());
        for (node, flushed) in join_all(asked).await {
            match flushed {
                Ok(position) => self.state.borrow_mut().blocked_records.learn(node, position),
                Err(StoreError::Disk(why)) if why.is_unwritable() => waits = Err(why),
                Err(error) => self.stop(error),
            }
        }
        // If the store has stopped, the waiting callers must hear of it.
        self.written.tell();
        waits
    }

    /// What comes next, or `None` if no caller waits; the writer is then idle.
    fn next_step(&self) -> Option<WriterStep> {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if state.wanted <= state.log.durable || state.stopped.is_some() {
            state.writing = false;
            return None;
        }
        if state.blocked_records.first() == Some(state.log.next()) {
            return Some(WriterStep::Flush(state.blocked_records.dependencies_of_first()));
        }
        if state.log.needs_segment() {
            match state.space.allocate_segment(Some(state.log.next_copies())) {
                Some(next) => state.log.next_segment(next),
                // The floor under every allocation keeps space for the log, so this is a bug; what
                // is pending cannot become durable.
                None => state.stopped = Some(StoreError::NoSpace),
            }
        }
        let round = state.log.round(state.blocked_records.first());
        state.writing = round.is_some();
        if round.is_none() {
            self.written.tell();
        }
        round.map(WriterStep::Write)
    }

    /// Writes one round to all copies and makes it durable.
    pub(super) async fn write_round(&self, round: &LogWrite) -> StoreResult<()> {
        let device = &self.pages.device;
        let blocks = u64::from(device.geometry.blocks_per_stripe());
        let write = |stripe: u64| device.write(stripe * blocks + round.block, round.data.clone());
        let mut losses = 0;
        loop {
            let writes = round.copies.stripes().iter().map(|stripe| write(*stripe));
            // No write is left on its way where one has failed.
            let written = join_all(writes).await.into_iter().collect::<Result<Vec<_>, _>>();
            let written = written.map_err(StoreError::Failed)?;
            match device.sync(&written).await {
                // A node on the path has restarted: write the same bytes again.
                Err(DiskError::LostWrites { .. }) if losses < LOSSES_MAX => losses += 1,
                synced => {
                    synced.map_err(StoreError::Failed)?;
                    if device.wait_for_host(round.copies.stripes()).await {
                        continue;
                    }
                    self.state.borrow_mut().log.finished(round);
                    return Ok(());
                }
            }
        }
    }

    /// Accepts nothing any more.
    pub(super) fn stop(&self, error: StoreError) {
        tracing::error!(%error, node = self.pages.owner.node, "a metadata store has stopped");
        let mut state = self.state.borrow_mut();
        state.stopped = state.stopped.or(Some(error));
    }
}
