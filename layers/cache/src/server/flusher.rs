//! Who writes back without being asked: behind those who write on and on, for want of clean lines, and
//! after a time.
//!
//! The migrating flushers of the thesis (section 2.4.2) take the place of this file; all that the
//! rest of the server knows of it is [`Server::note_written`] and [`Server::note_dirty`].

use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::time::Duration;

use runtime::Context;

use super::Server;
use crate::line::Line;

/// A line that has been dirty for this long is written back without being asked.
pub const WRITE_BACK_AGE: Duration = Duration::from_secs(5);

/// Time between two looks for such lines.
pub const WRITE_BACK_INTERVAL: Duration = Duration::from_secs(1);

/// Of so many lines in the budget one may be dirty before write-back begins, so that a new line
/// rarely waits for a disk.
const LINES_PER_DIRTY_LINE: usize = 2;

/// Of so many lines in the budget one may be dirty as a whole before write-back behind its writer begins.
/// The rest dies in memory, if it is short-lived: what is rewritten, and small files.
const LINES_PER_HELD_LINE: usize = 16;

/// At least so many lines are held, if they are no more than a quarter of the budget.
const HELD_MIN: usize = 8;

/// Lines that became dirty as a whole, in that order: their writers have gone on, unless they write them again.
#[derive(Debug, Default)]
pub(super) struct Behind {
    /// Stripes, and the state of each then.
    lines: VecDeque<(u64, u64)>,
}

impl Server {
    /// To be called after bytes of `stripe` were written.
    pub(super) fn note_written(self: &Rc<Self>, stripe: u64) {
        let state = self.lines.borrow_mut().note_whole(stripe);
        if let Some(state) = state {
            self.behind.borrow_mut().lines.push_back((stripe, state));
        }
        self.note_dirty();
    }

    /// To be called after bytes became dirty: sees to it that they are written back some day.
    pub(super) fn note_dirty(self: &Rc<Self>) {
        if !self.ticking.replace(true) {
            self.context.task(tick(self.context.clone(), Rc::downgrade(self)));
        }
        if (self.excess() > 0 || self.behind_excess() > 0) && !self.draining.replace(true) {
            let server = self.clone();
            self.context.task(async move { server.drain().await });
        }
    }

    /// Dirty lines above the share that they may have.
    fn excess(&self) -> usize {
        let lines = self.lines.borrow();
        lines.dirty_count().saturating_sub(lines.count_max().div_ceil(LINES_PER_DIRTY_LINE))
    }

    /// Whole dirty lines above those that are held.
    fn behind_excess(&self) -> usize {
        let most = self.lines.borrow().count_max();
        let held = (most / LINES_PER_HELD_LINE).max(HELD_MIN.min(most / 4));
        self.behind.borrow().lines.len().saturating_sub(held)
    }

    /// The lines that their writers have left longest, above those that are held. A line that was written
    /// again is left alone: it may be so for long, and each time would reach the disk.
    fn left_behind(&self) -> Vec<u64> {
        let (excess, lines) = (self.behind_excess(), self.lines.borrow());
        let mut behind = self.behind.borrow_mut();
        let oldest = behind.lines.drain(..excess);
        let is_left = |(stripe, state): &(u64, u64)| {
            lines.get(*stripe).and_then(Line::whole_state) == Some(*state)
        };
        oldest.filter(is_left).map(|(stripe, _)| stripe).collect()
    }

    /// The least recently used dirty lines above the share that they may have, else lines that were left
    /// behind.
    fn next_to_drain(&self) -> Vec<u64> {
        let excess = self.excess();
        if excess == 0 {
            return self.left_behind();
        }
        self.lines.borrow().dirty().map(|(stripe, _)| stripe).take(excess).collect()
    }

    /// Writes back until dirty lines are within their shares.
    async fn drain(self: &Rc<Self>) {
        loop {
            let stripes = self.next_to_drain();
            if stripes.is_empty() {
                break;
            }
            let (start, lines) = (self.context.now(), stripes.len());
            if !self.write_back_quietly(stripes).await {
                // The next writes would only fail at the same disk again and again.
                self.context.sleep(WRITE_BACK_INTERVAL).await;
                break;
            }
            self.pace.note(lines, self.context.now().saturating_sub(start));
        }
        self.draining.set(false);
    }

    /// Writes back what has been dirty for long.
    async fn write_back_aged(self: &Rc<Self>) {
        let Some(limit) = self.context.now().checked_sub(WRITE_BACK_AGE) else { return };
        let aged = {
            let lines = self.lines.borrow();
            let aged = lines.dirty().filter(|(_, line)| line.is_dirty_since(limit));
            aged.map(|(stripe, _)| stripe).collect()
        };
        self.write_back_quietly(aged).await;
    }

    /// Writes back; a failure leaves the bytes dirty, is logged here and told to whoever syncs.
    async fn write_back_quietly(self: &Rc<Self>, stripes: Vec<u64>) -> bool {
        let result = self.write_back_lines(stripes).await;
        if let Err(error) = &result {
            tracing::warn!(node = %self.context.node(), %error, "write-back failed, will try again");
        }
        result.is_ok()
    }
}

/// Looks for aged lines as long as there are dirty ones and the server lives: an idle node with
/// clean lines has no task and no timer.
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
