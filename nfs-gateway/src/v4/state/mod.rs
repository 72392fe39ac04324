//! The state of clients (RFC 8881 sections 2.4, 2.10, 8 and 9; ADR 21): client ids, sessions with
//! their reply cache and back channel, open files, lock owners and delegations.
//!
//! All of it is in memory. After a restart clients find their sessions unknown, create new ones,
//! and reclaim their opens and locks; meanwhile the nodes grant these locks to no other client.

mod back_channel;
mod clients;
mod delegations;
mod grace;
mod lock_owners;
mod lock_waiters;
mod opens;
mod sessions;
mod stateids;

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::rc::Rc;
use std::time::Duration;

use runtime::Context;
use runtime::sync::Event;

pub(crate) use back_channel::{BackChannel, CallbackAttrs, SlotOutcome, TakenSlot};
pub(crate) use clients::{ExchangeIdArgs, ExchangeIdResult, StateTables};
pub(crate) use delegations::{ClientDelegation, DelegationTotals};
pub(crate) use lock_owners::{Locker, owner_id, owner_name};
pub(crate) use lock_waiters::{AwaitedLock, LockWaiter, LockWaiters};
pub(crate) use sessions::{ChannelAttrs, Nfs4Session, SlotLookup, UnknownOutcome};
pub(crate) use stateids::{READ, ShareReservation, StateidTable, WRITE};

use self::grace::GracePeriod;
use super::limits::LEASE;

/// How often leases are checked: others wait for the locks of a silent client for that much longer.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(LEASE.as_secs() / 6);

/// The state that one gateway keeps for its clients.
#[derive(Debug)]
pub(crate) struct Nfs4State {
    /// The node.
    pub(crate) ctx: Context,
    grace: Rc<GracePeriod>,
    tables: RefCell<StateTables>,
    is_expiring: Cell<bool>,
    /// COPYs under way.
    pub(crate) copies: Cell<usize>,
    /// Callbacks that wait for a slot.
    pub(crate) callbacks_waiting: Cell<usize>,
    pub(crate) callback_slot_freed: Event,
    /// Delegations are recalled.
    pub(crate) is_recalling: Cell<bool>,
    /// Clients wait for locks.
    pub(crate) is_notifying: Cell<bool>,
}

impl Nfs4State {
    /// The state of a new gateway: no clients.
    pub(crate) fn new(ctx: Context) -> Rc<Self> {
        let tables = RefCell::new(StateTables::new(ctx.random()));
        let grace = GracePeriod::begin(ctx.clone());
        Rc::new(Self {
            ctx,
            grace,
            tables,
            is_expiring: Cell::new(false),
            copies: Cell::new(0),
            callbacks_waiting: Cell::new(0),
            callback_slot_freed: Event::default(),
            is_recalling: Cell::new(false),
            is_notifying: Cell::new(false),
        })
    }

    /// The tables to read; not across an await.
    pub(crate) fn tables(&self) -> Ref<'_, StateTables> {
        self.tables.borrow()
    }

    /// The tables to change; not across an await.
    pub(crate) fn tables_mut(&self) -> RefMut<'_, StateTables> {
        self.tables.borrow_mut()
    }

    /// Is the grace period running, in which clients reclaim their opens?
    pub(crate) fn is_in_grace(&self) -> bool {
        self.grace.is_running()
    }

    /// Starts to expire leases, as long as there are clients.
    pub(crate) fn start_expiry(self: &Rc<Self>) {
        if self.is_expiring.replace(true) {
            return;
        }
        let state = self.clone();
        self.ctx.task(async move {
            while state.tables().has_clients() {
                state.ctx.sleep(EXPIRY_INTERVAL).await;
                let now = state.ctx.now();
                state.tables_mut().expire_conflicting(&state.ctx, now);
            }
            state.is_expiring.set(false);
        });
    }
}
