//! Write-back in the background: behind a sequential writer, when clean lines run short, and by
//! age.
//!
//! Each node has one timer of its own, which runs only while the node has dirty lines. The thesis
//! has flushers that migrate from node to node instead (section 2.4.2); they are not built.

use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::time::Duration;

use runtime::Context;

use super::Server;
use super::lines::Lines;
use crate::line::Line;
use crate::protocol::Error;

/// A line that has been dirty for this long is written back in the background.
pub const WRITE_BACK_AGE: Duration = Duration::from_secs(5);

/// Interval between two searches for such lines.
pub const WRITE_BACK_INTERVAL: Duration = Duration::from_secs(1);

/// One line in this many of the budget may be dirty before write-back begins, so that a new line
/// rarely waits for a disk.
const LINES_PER_DIRTY_LINE: usize = 2;

/// One line in this many of the budget may be dirty as a whole before write-behind begins.
/// Short-lived data stays in memory: what is rewritten, and small files.
const LINES_PER_HELD_LINE: usize = 16;

/// At least this many whole dirty lines stay, unless they exceed a quarter of the budget.
const HELD_MIN: usize = 8;

/// Lines that became dirty as a whole, in that order. Unless they are written again, their writers
/// have moved on.
#[derive(Debug, Default)]
pub(super) struct WriteBehindQueue {
    /// Stripes, and the state of each then.
    lines: VecDeque<(u64, u64)>,
}

impl WriteBehindQueue {
    /// Whole dirty lines above those that stay in memory.
    fn excess(&self, lines: &Lines) -> usize {
        let most = lines.count_max();
        let held = (most / LINES_PER_HELD_LINE).max(HELD_MIN.min(most / 4));
        self.lines.len().saturating_sub(held)
    }

    /// The lines that were written first, above those that stay in memory. A line that was written
    /// again since is left out: it may change often, and each time would reach the disk.
    fn take_excess(&mut self, lines: &Lines) -> Vec<u64> {
        let excess = self.excess(lines);
        let oldest = self.lines.drain(..excess);
        let is_unchanged = |(stripe, state): &(u64, u64)| {
            lines.get(*stripe).and_then(Line::whole_state) == Some(*state)
        };
        oldest.filter(is_unchanged).map(|(stripe, _)| stripe).collect()
    }

    /// The least recently used dirty lines above [`LINES_PER_DIRTY_LINE`], else whole lines that
    /// were written first.
    fn next_to_drain(&mut self, lines: &Lines) -> Vec<u64> {
        match dirty_excess(lines) {
            0 => self.take_excess(lines),
            excess => lines.dirty().map(|(stripe, _)| stripe).take(excess).collect(),
        }
    }
}

/// Dirty lines above [`LINES_PER_DIRTY_LINE`].
fn dirty_excess(lines: &Lines) -> usize {
    lines.dirty_count().saturating_sub(lines.count_max().div_ceil(LINES_PER_DIRTY_LINE))
}

impl Server {
    /// To be called after bytes of `stripe` were written.
    pub(super) fn note_written(self: &Rc<Self>, stripe: u64) {
        let state = self.lines.borrow_mut().note_whole(stripe);
        if let Some(state) = state {
            self.write_behind.borrow_mut().lines.push_back((stripe, state));
        }
        self.note_dirty();
    }

    /// To be called after bytes became dirty: starts the tasks that write them back.
    pub(super) fn note_dirty(self: &Rc<Self>) {
        if !self.ticking.replace(true) {
            self.context.task(tick(self.context.clone(), Rc::downgrade(self)));
        }
        let has_excess = {
            let lines = self.lines.borrow();
            dirty_excess(&lines) > 0 || self.write_behind.borrow().excess(&lines) > 0
        };
        if has_excess && !self.draining.replace(true) {
            let server = self.clone();
            self.context.task(async move { server.drain().await });
        }
    }

    /// Writes back until dirty lines are within their shares.
    async fn drain(self: &Rc<Self>) {
        loop {
            let stripes = {
                let lines = self.lines.borrow();
                self.write_behind.borrow_mut().next_to_drain(&lines)
            };
            if stripes.is_empty() {
                break;
            }
            let (start, lines) = (self.context.now(), stripes.len());
            if !self.write_back_quietly(stripes).await {
                // The next writes would fail at the same disk.
                self.context.sleep(WRITE_BACK_INTERVAL).await;
                break;
            }
            self.pace.note(lines, self.context.now().saturating_sub(start));
        }
        self.draining.set(false);
    }

    /// Writes back lines that have been dirty for [`WRITE_BACK_AGE`], and those that a disk has
    /// refused.
    async fn write_back_aged(self: &Rc<Self>) {
        let limit = self.context.now().checked_sub(WRITE_BACK_AGE);
        let aged = {
            let lines = self.lines.borrow();
            let is_due = |stripe: u64, line: &Line| {
                limit.is_some_and(|limit| line.is_dirty_since(limit))
                    || self.refusals.has(&self.map, stripe)
            };
            let due = lines.dirty().filter(|(stripe, line)| is_due(*stripe, line));
            due.map(|(stripe, _)| stripe).collect()
        };
        self.write_back_quietly(aged).await;
    }

    /// Writes back. After a failure, which is logged, the bytes stay dirty; the next sync returns
    /// it.
    async fn write_back_quietly(self: &Rc<Self>, stripes: Vec<u64>) -> bool {
        let result = self.write_back_lines(stripes).await;
        if let Err(error) = &result {
            if error.is_unwritable() || matches!(error, Error::DiskFailed { .. }) {
                // The disk node says so in its log, once.
                tracing::debug!(node = %self.context.node(), %error, "write-back waits");
                return false;
            }
            tracing::warn!(node = %self.context.node(), %error, "write-back failed, will try again");
        }
        result.is_ok()
    }
}

/// Searches for aged lines while there are dirty lines and the server exists. A node with clean
/// lines has no task and no timer.
async fn tick(context: Context, server: Weak<Server>) {
    loop {
        context.sleep(WRITE_BACK_INTERVAL).await;
        let Some(server) = server.upgrade() else { return };
        server.write_back_aged().await;
        if server.lines.borrow().dirty_count() == 0 {
            return server.ticking.set(false);
        }
    }
}
