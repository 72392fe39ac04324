//! The back channel of a host: what a gateway recalls. Hosts answer at once, late, or never.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use runtime::seed::Rng;

use super::wire::{CompoundOps, WireStateid};
use crate::harness::Harness;
use crate::nfs::link::HostLink;

/// The number of the callback program of all hosts.
pub(super) const CALLBACK_PROGRAM: u32 = 0x4000_0001;

const CB_NULL: u32 = 0;
const CB_RECALL: u32 = 4;
const CB_SEQUENCE: u32 = 11;
/// One call in this number is answered late, and as many are never answered.
const SLOW_ONE_IN: u64 = 10;
/// How late, at most.
const LATE_MS_MAX: u64 = 1_000;

/// A connection that is bound to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallbackPath {
    /// The number of the session.
    pub(super) session: u64,
    /// How often the gateway had started.
    pub(super) start: u64,
    pub(super) connection: u16,
}

/// The back channel of a host.
pub(super) struct HostBackChannel {
    rng: RefCell<Rng>,
    bound: Cell<Option<CallbackPath>>,
    /// Stateids of recalled delegations, without their sequence ids.
    recalled: RefCell<BTreeSet<Vec<u8>>>,
}

/// A stateid without its sequence id.
fn key(stateid: &[u8]) -> Vec<u8> {
    stateid[4..].to_vec()
}

impl HostBackChannel {
    pub(super) fn new(harness: &Harness) -> Self {
        let rng = RefCell::new(harness.fork_rng());
        Self { rng, bound: Cell::default(), recalled: RefCell::default() }
    }

    pub(super) fn is_bound(&self, path: &CallbackPath) -> bool {
        self.bound.get() == Some(*path)
    }

    pub(super) fn bound(&self, path: CallbackPath) -> CallbackPath {
        self.bound.set(Some(path));
        path
    }

    /// Was this delegation recalled?
    pub(super) fn is_recalled(&self, delegation: &WireStateid) -> bool {
        self.recalled.borrow().contains(&key(delegation))
    }

    /// Takes the calls of the gateway. A recall counts when it arrives, however late it is
    /// answered.
    pub(super) async fn serve(&self, link: &HostLink<'_>) -> Infallible {
        loop {
            let callback = link.next_callback().await;
            if callback.procedure == CB_NULL {
                link.answer(&callback, &[]);
                continue;
            }
            let result = self.recall(callback.arguments.clone());
            let when = self.rng.borrow_mut().below(SLOW_ONE_IN);
            if when == 0 {
                continue;
            }
            if when == 1 {
                let late = Duration::from_millis(self.rng.borrow_mut().below(LATE_MS_MAX));
                link.harness().pass(late).await;
            }
            link.answer(&callback, &result);
        }
    }

    /// Notes the recall of a `CB_COMPOUND`; returns the result.
    fn recall(&self, mut call: Bytes) -> Vec<u8> {
        let [tag, _minor, _ident, operations] = std::array::from_fn(|_| call.get_u32());
        assert_eq!((tag, operations), (0, 2), "no tag, and two operations");
        assert_eq!(call.get_u32(), CB_SEQUENCE);
        let session = call.split_to(16);
        let [sequence, slot, highest, cached] = std::array::from_fn(|_| call.get_u32());
        assert_eq!(cached, 0, "the reply is not to be cached");
        for _ in 0..call.get_u32() {
            call.advance(16);
            let calls = call.get_u32() as usize;
            call.advance(8 * calls);
        }
        assert_eq!(call.get_u32(), CB_RECALL);
        self.recalled.borrow_mut().insert(key(&call[..16]));
        let head = CompoundOps::default().word(0).word(0).word(2).word(CB_SEQUENCE).word(0);
        let head = head.fixed(&session).word(sequence).word(slot).word(highest).word(highest);
        head.word(CB_RECALL).word(0).encoded()
    }
}
