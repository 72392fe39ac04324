//! What other threads send to the nodes of one thread of the machine: two queues, by priority, and
//! whether the thread looks into them by itself.
//!
//! Waking a parked thread costs more than a small request. So a sender looks first whether the
//! thread is [spinning](super::spin): then it only queues the request.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::mail::Envelope;
use crate::protocol::{Class, Undelivered};

/// Bulk requests that wait for one thread, at most; past it the answer is `Busy`. Control requests
/// are bounded by the limits of those who send them.
const BULK_MAX: usize = 1 << 16;

/// Requests that are taken in one turn, so that a full inbox does not hold up the thread.
const TAKEN_PER_TURN: usize = 64;

/// The requests that wait for one thread.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    queues: Mutex<Queues>,
    /// In the queues.
    waiting: AtomicUsize,
    /// The thread looks by itself, or has been told to.
    awake: AtomicBool,
}

#[derive(Debug, Default)]
struct Queues {
    control: VecDeque<Envelope>,
    bulk: VecDeque<Envelope>,
    closed: bool,
}

impl Inbox {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a request in; true if the thread has to be told. Refuses it if there is no room, or the
    /// thread has ended.
    pub(super) fn push(&self, envelope: Envelope) -> bool {
        let mut queues = self.queues();
        if queues.closed {
            drop(queues);
            envelope.message.refuse(Undelivered::Unreachable);
            return false;
        }
        match envelope.class {
            Class::Control => queues.control.push_back(envelope),
            Class::Bulk if queues.bulk.len() < BULK_MAX => queues.bulk.push_back(envelope),
            Class::Bulk => {
                drop(queues);
                envelope.message.refuse(Undelivered::Busy);
                return false;
            }
        }
        self.waiting.fetch_add(1, SeqCst);
        drop(queues);
        !self.awake.swap(true, SeqCst)
    }

    /// Some of what waits, control requests first.
    pub(super) fn take(&self) -> Vec<Envelope> {
        if self.waiting.load(SeqCst) == 0 {
            return Vec::new();
        }
        let mut queues = self.queues();
        let control = queues.control.len().min(TAKEN_PER_TURN);
        let bulk = queues.bulk.len().min(TAKEN_PER_TURN - control);
        let Queues { control: first, bulk: second, .. } = &mut *queues;
        let taken: Vec<Envelope> = first.drain(..control).chain(second.drain(..bulk)).collect();
        self.waiting.fetch_sub(taken.len(), SeqCst);
        taken
    }

    /// The thread looks by itself from now on.
    pub(super) fn wake(&self) {
        self.awake.store(true, SeqCst);
    }

    /// The thread does not look any more; false if something has come just now, and then it does.
    pub(super) fn sleep(&self) -> bool {
        self.awake.store(false, SeqCst);
        // A sender that pushed before this saw an awake thread and did not wake it.
        if self.waiting.load(SeqCst) == 0 {
            return true;
        }
        self.awake.store(true, SeqCst);
        false
    }

    /// Takes nothing any more, and refuses what waits.
    pub(super) fn close(&self) {
        let Queues { control, bulk, .. } =
            std::mem::replace(&mut *self.queues(), Queues { closed: true, ..Queues::default() });
        for envelope in control.into_iter().chain(bulk) {
            envelope.message.refuse(Undelivered::Unreachable);
        }
    }
}
