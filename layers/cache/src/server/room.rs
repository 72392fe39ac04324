//! Eviction, and pins that keep a line across an await.

use std::rc::Rc;
use std::time::Duration;

use runtime::Undelivered;

use super::lines::Victim;
use super::{Server, count};
use crate::line::Line;
use crate::pauses::Backoff;
use crate::protocol::Error;

/// The first pause of a request that finds no free line.
const ROOM_PAUSE_FIRST: Duration = Duration::from_millis(1);

/// Pauses before the answer is `Busy`: half a second in all.
const ROOM_PAUSES_MAX: u32 = 9;

/// Lines that one request may drop between two pauses: if the pool is still empty then, others
/// hold its buffers, and dropping all lines would not help.
const EVICTIONS_MAX: u32 = 4;

/// How long a request waits for room.
#[derive(Debug)]
pub(super) struct RetryBudget {
    pauses: Backoff,
    evictions: u32,
}

impl RetryBudget {
    /// All of it.
    pub(super) fn new() -> Self {
        Self { pauses: Backoff::new(ROOM_PAUSE_FIRST, ROOM_PAUSES_MAX), evictions: 0 }
    }
}

impl Server {
    /// One step to free a line: drops a clean one, writes a dirty one back, or pauses. `Busy` once
    /// the budget is used up.
    pub(super) async fn make_room(
        self: &Rc<Self>,
        patience: &mut RetryBudget,
    ) -> Result<(), Error> {
        let victim = self.lines.borrow_mut().victim();
        match victim {
            Some(Victim::Clean(stripe)) if patience.evictions < EVICTIONS_MAX => {
                if self.lines.borrow_mut().evict(stripe) {
                    self.boot_ids.note_dropped(stripe);
                }
                count(&self.counters.evictions);
                patience.evictions += 1;
                return Ok(());
            }
            Some(Victim::Dirty(stripe)) => match self.write_back_line(stripe).await {
                Ok(()) => return Ok(()),
                // The next sync of that stripe returns the error; this request is about another
                // stripe.
                Err(_) => self.lines.borrow_mut().postpone(stripe),
            },
            Some(Victim::Clean(_)) | None => {}
        }
        patience.evictions = 0;
        if patience.pauses.pause(&self.context).await {
            Ok(())
        } else {
            Err(Undelivered::Busy.into())
        }
    }

    /// Holds the line of `stripe`; `None` if there is none.
    pub(super) fn pin(self: &Rc<Self>, stripe: u64) -> Option<Pin> {
        self.lines.borrow_mut().change(stripe, Line::pin)?;
        Some(Pin { server: self.clone(), stripe })
    }

    /// Holds the line of `stripe`, a new one if there is none; `None` if there is no room.
    pub(super) fn pin_new(self: &Rc<Self>, stripe: u64) -> Option<Pin> {
        let exists = self.lines.borrow_mut().ensure(stripe);
        exists.then(|| self.pin(stripe)).flatten()
    }
}

/// The hold on a line: while it lasts, the line is not dropped.
#[derive(Debug)]
pub(super) struct Pin {
    server: Rc<Server>,
    stripe: u64,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.server.lines.borrow_mut().change(self.stripe, Line::unpin);
    }
}
