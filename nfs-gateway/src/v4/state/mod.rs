//! What the gateway keeps for clients (RFC 8881 sections 2.4, 2.10, 8 and 9; ADR 21): who they are, their
//! sessions with the replies that may be asked for again, what they have open, and whose locks there are.
//!
//! All of it is in memory. After a restart clients find that their sessions are unknown, make new
//! ones, and open and lock again what they had; the nodes below give locks to nobody else meanwhile.
//!
//! | file | holds |
//! | --- | --- |
//! | `clients.rs` | clients: named, confirmed, forgotten |
//! | `sessions.rs` | sessions, slots, kept replies |
//! | `opens.rs` | open files and their share modes |
//! | `owners.rs` | owners of locks |

mod clients;
mod opens;
mod owners;
mod sessions;

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use fileio::protocol::Handle;
use runtime::Context;

pub(crate) use clients::{Client, Exchange, Named};
pub(crate) use opens::{Open, READ, Sharing, WRITE};
pub(crate) use owners::{Locker, Locks, owner_id};
pub(crate) use sessions::{Begun, Channel, Doubt, Session, Wanted};

use super::limits::{GRACE, LEASE, STATES_MAX, STATES_PER_CLIENT_MAX};
use super::status::Status;
use super::words::{SessionId, Stateid};

/// How often it is looked whose lease has ended.
const REAP_INTERVAL: Duration = Duration::from_secs(LEASE.as_secs() / 2);

/// What stands behind a state id.
#[derive(Debug)]
pub(crate) enum State {
    /// An open file.
    Open(Open),
    /// The locks of an owner on a file that is open.
    Locks(Locks),
}

/// Everything.
#[derive(Debug)]
pub(crate) struct Tables {
    /// Tells this life of the gateway from others.
    instance: u64,
    next: u64,
    clients: BTreeMap<u64, Client>,
    sessions: BTreeMap<SessionId, Session>,
    states: BTreeMap<u64, State>,
    /// The open states of each file.
    by_file: BTreeMap<Handle, Vec<u64>>,
    /// Open states that forbid others something.
    denials: usize,
}

/// The state of one gateway.
#[derive(Debug)]
pub(crate) struct Kept {
    ctx: Context,
    started: Duration,
    tables: RefCell<Tables>,
    reaping: Cell<bool>,
}

impl Kept {
    /// Nothing is kept yet.
    pub(crate) fn new(ctx: Context) -> Rc<Self> {
        let tables = Tables {
            instance: ctx.random(),
            next: 1,
            clients: BTreeMap::new(),
            sessions: BTreeMap::new(),
            states: BTreeMap::new(),
            by_file: BTreeMap::new(),
            denials: 0,
        };
        let started = ctx.now();
        Rc::new(Self { ctx, started, tables: RefCell::new(tables), reaping: Cell::new(false) })
    }

    /// To look at it; not across an await.
    pub(crate) fn tables(&self) -> Ref<'_, Tables> {
        self.tables.borrow()
    }

    /// To change it; not across an await.
    pub(crate) fn change(&self) -> RefMut<'_, Tables> {
        self.tables.borrow_mut()
    }

    /// The time.
    pub(crate) fn now(&self) -> Duration {
        self.ctx.now()
    }

    /// May clients still get again what they had open before a restart?
    pub(crate) fn is_in_grace(&self) -> bool {
        self.now() < self.started + GRACE
    }

    /// From now on clients whose leases end are forgotten, as long as there are any.
    pub(crate) fn reap(self: &Rc<Self>) {
        if self.reaping.replace(true) {
            return;
        }
        let kept = self.clone();
        self.ctx.task(async move {
            while !kept.tables().clients.is_empty() {
                kept.ctx.sleep(REAP_INTERVAL).await;
                let now = kept.now();
                kept.change().reap(&kept.ctx, now);
            }
            kept.reaping.set(false);
        });
    }
}

impl Tables {
    /// Tells this life of the gateway from others.
    pub(crate) fn instance(&self) -> u64 {
        self.instance
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The state id of the state `number`.
    pub(crate) fn stateid(&self, number: u64) -> Stateid {
        let mut other = [0; 12];
        other[..4].copy_from_slice(&(self.instance as u32).to_be_bytes());
        other[4..].copy_from_slice(&number.to_be_bytes());
        let seqid = match self.states.get(&number) {
            Some(State::Open(open)) => open.seqid,
            Some(State::Locks(locks)) => locks.seqid,
            None => 0,
        };
        Stateid { seqid, other }
    }

    /// The number of a state of `client`.
    //= rfc8881 8.2.2: a seqid of zero stands for the newest; an older one is OLD_STATEID, a newer
    //= one BAD_STATEID
    pub(crate) fn find(&self, client: u64, stateid: &Stateid) -> Result<u64, Status> {
        let (instance, number) = stateid.other.split_at(4);
        let number = u64::from_be_bytes(number.try_into().map_err(|_| Status::BAD_STATEID)?);
        let state = self.states.get(&number).ok_or(Status::BAD_STATEID)?;
        let (owner, seqid) = match state {
            State::Open(open) => (open.client, open.seqid),
            State::Locks(locks) => (locks.client, locks.seqid),
        };
        if owner != client || instance != (self.instance as u32).to_be_bytes() {
            return Err(Status::BAD_STATEID);
        }
        match stateid.seqid {
            0 => Ok(number),
            told if told == seqid => Ok(number),
            told if told < seqid => Err(Status::OLD_STATEID),
            _ => Err(Status::BAD_STATEID),
        }
    }

    /// Is there room for one more state of `client`?
    fn check_room(&self, client: u64) -> Result<(), Status> {
        let of_client = self.clients.get(&client).map_or(0, |client| client.states);
        if self.states.len() >= STATES_MAX || of_client >= STATES_PER_CLIENT_MAX {
            return Err(Status::DELAY);
        }
        Ok(())
    }

    /// Adds a state.
    fn add(&mut self, client: u64, state: State) -> u64 {
        let number = self.number();
        if let State::Open(open) = &state {
            self.by_file.entry(open.file).or_default().push(number);
            self.denials += usize::from(open.denies());
        }
        self.states.insert(number, state);
        if let Some(client) = self.clients.get_mut(&client) {
            client.states += 1;
        }
        number
    }

    /// Removes a state.
    fn remove(&mut self, number: u64) -> Option<State> {
        let state = self.states.remove(&number)?;
        let client = match &state {
            State::Open(open) => {
                self.denials -= usize::from(open.denies());
                if let Some(of_file) = self.by_file.get_mut(&open.file) {
                    of_file.retain(|other| *other != number);
                    if of_file.is_empty() {
                        self.by_file.remove(&open.file);
                    }
                }
                open.client
            }
            State::Locks(locks) => locks.client,
        };
        if let Some(client) = self.clients.get_mut(&client) {
            client.states -= 1;
        }
        Some(state)
    }
}
