//! Who writes back without being asked: after a time, and for want of clean lines.
//!
//! The migrating flushers of the thesis (section 2.4.2) take the place of this file; all that the
//! rest of the server knows of it is [`Server::note_dirty`].

use std::rc::{Rc, Weak};
use std::time::Duration;

use runtime::Context;

use super::Server;

/// A line that has been dirty for this long is written back without being asked.
pub const WRITE_BACK_AGE: Duration = Duration::from_secs(5);

/// Time between two looks for such lines.
pub const WRITE_BACK_INTERVAL: Duration = Duration::from_secs(1);

/// Of so many lines in the budget one may be dirty before write-back begins, so that a new line
/// rarely waits for a disk.
const LINES_PER_DIRTY_LINE: usize = 2;

impl Server {
    /// To be called after bytes became dirty: sees to it that they are written back some day.
    pub(super) fn note_dirty(self: &Rc<Self>) {
        if !self.ticking.replace(true) {
            self.context.task(tick(self.context.clone(), Rc::downgrade(self)));
        }
        if self.excess() > 0 && !self.draining.replace(true) {
            let server = self.clone();
            self.context.task(async move { server.drain().await });
        }
    }

    /// Dirty lines above the share that they may have.
    fn excess(&self) -> usize {
        let lines = self.lines.borrow();
        lines.dirty_count().saturating_sub(lines.count_max().div_ceil(LINES_PER_DIRTY_LINE))
    }

    /// Writes the least recently used dirty lines back until dirty lines are within their share.
    async fn drain(self: &Rc<Self>) {
        while self.excess() > 0 {
            let excess = self.excess();
            let stripes =
                self.lines.borrow().dirty().map(|(stripe, _)| stripe).take(excess).collect();
            if !self.write_back_quietly(stripes).await {
                // The next writes would only fail at the same disk again and again.
                self.context.sleep(WRITE_BACK_INTERVAL).await;
                break;
            }
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
