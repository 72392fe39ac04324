//! Which clients have which files of this node open. A client holds a file for as long as it says so
//! now and then: its lease covers all that it holds here. All of this is in memory; durable is only
//! which clients there are, so that a node which has restarted waits for them (ADR 10).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use meta::protocol::{self as metadata, EndGrace, GetHolders, NoteHolder};
use runtime::protocol::Undelivered;
use runtime::sync::KeyedLock;

use super::FileServer;
use crate::locks::LockTable;
use crate::protocol::{CallId, Error, Handle, Held, Hold, Kind, LEASE, LetGo, Renew};

/// Clients with a lease at one node, at most; past it the answer is `Busy`.
const CLIENTS_MAX: usize = 4096;
/// Files that all clients together hold at one node, at most; past it the answer is `Busy`.
const HOLDS_MAX: usize = 1 << 16;
/// Leases are looked through so often for those that have ended.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// One client at this node.
struct Client {
    /// Drawn when the client became known.
    lease: u64,
    /// When the lease ends, unless it is renewed.
    until: Duration,
    /// The files that it holds, each with the number of the call that held it last.
    files: BTreeMap<u64, u64>,
}

/// The time after a start in which those who held files before are waited for.
#[derive(Default)]
pub(super) enum Grace {
    /// Who they are is not known yet.
    #[default]
    Begins,
    /// For these.
    Waits(BTreeSet<u64>),
    /// For nobody any more.
    Over,
}

/// The clients of one node.
#[derive(Default)]
pub(super) struct Leases {
    clients: RefCell<BTreeMap<u64, Client>>,
    /// Clients that hold a file.
    holders: RefCell<BTreeMap<u64, usize>>,
    /// Files held by each client, in sum.
    holds: Cell<usize>,
    /// One at a time makes a client known, or forgets it.
    meeting: KeyedLock<u64>,
    /// One at a time begins or ends to hold a file.
    holding: KeyedLock<u64>,
    /// Clients that have held again all that they held before this node restarted.
    returned: RefCell<BTreeSet<u64>>,
    /// Whether somebody is waited for who held files before this node restarted.
    pub(super) grace: RefCell<Grace>,
    /// Locks on files that are held.
    pub(super) locks: RefCell<LockTable>,
    /// Somebody looks for leases that have ended.
    looking: Cell<bool>,
}

impl Leases {
    /// The lease of a client that is known, which begins anew.
    fn renewed(&self, client: u64, now: Duration) -> Option<u64> {
        let mut clients = self.clients.borrow_mut();
        let client = clients.get_mut(&client)?;
        client.until = now + LEASE;
        Some(client.lease)
    }

    /// Notes that the client of `call` holds a file. False if its lease is over.
    fn note(&self, call: CallId, lease: u64, ino: u64) -> bool {
        let mut clients = self.clients.borrow_mut();
        let known = clients.get_mut(&call.client).filter(|client| client.lease == lease);
        let Some(client) = known else { return false };
        let last = client.files.insert(ino, call.number);
        if last.is_none() {
            *self.holders.borrow_mut().entry(ino).or_default() += 1;
            self.holds.set(self.holds.get() + 1);
        } else if let Some(last) = last.filter(|last| *last > call.number) {
            client.files.insert(ino, last);
        }
        true
    }

    /// Takes a file from a client that has let go of it by `call`, and has not held it again since.
    fn take(&self, call: CallId, ino: u64) -> bool {
        let mut clients = self.clients.borrow_mut();
        let Some(client) = clients.get_mut(&call.client) else { return false };
        let is_held = client.files.get(&ino).is_some_and(|held| *held <= call.number);
        if is_held {
            client.files.remove(&ino);
            self.locks.borrow_mut().release(ino, call.client);
        }
        is_held
    }

    /// One client less holds a file.
    fn leave(&self, ino: u64) {
        self.holds.set(self.holds.get().saturating_sub(1));
        let mut holders = self.holders.borrow_mut();
        if let Some(count) = holders.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                holders.remove(&ino);
            }
        }
    }

    /// Does the client hold the file under this lease? Then the lease begins anew.
    pub(super) fn is_held_under(&self, client: u64, lease: u64, ino: u64, now: Duration) -> bool {
        let mut clients = self.clients.borrow_mut();
        let known = clients.get_mut(&client).filter(|known| known.lease == lease);
        let Some(known) = known else { return false };
        known.until = now + LEASE;
        known.files.contains_key(&ino)
    }

    fn is_held(&self, ino: u64) -> bool {
        self.holders.borrow().contains_key(&ino)
    }

    /// Clients of which `is_over` is true.
    fn those(&self, is_over: impl Fn(&Client) -> bool) -> Vec<u64> {
        let clients = self.clients.borrow();
        clients.iter().filter(|(_, client)| is_over(client)).map(|(&client, _)| client).collect()
    }
}

impl FileServer {
    pub(super) async fn hold(self: &Rc<Self>, request: Hold) -> Result<Held, Error> {
        let Hold { call, file } = request;
        let lease = self.meet(call.client).await?;
        let _alone = self.leases.holding.exclusive(file.ino).await;
        if self.leases.holds.get() >= HOLDS_MAX {
            return Err(Undelivered::Busy.into());
        }
        let Handle { ino, generation } = file;
        let inode = self.meta_here(metadata::Hold { ino, generation }).await?;
        let attributes = inode.attributes;
        if attributes.kind != (Kind::File {}) {
            return Ok(Held { attributes, lease: 0 });
        }
        if !self.leases.note(call, lease, ino) {
            self.let_go_unless_held(ino).await?;
            return Err(Undelivered::Busy.into());
        }
        Ok(Held { attributes, lease })
    }

    /// The lease of a client, which becomes known if it was not: durably, so that the node waits
    /// for it after a restart.
    async fn meet(self: &Rc<Self>, client: u64) -> Result<u64, Error> {
        if let Some(lease) = self.leases.renewed(client, self.context.now()) {
            return Ok(lease);
        }
        let _alone = self.leases.meeting.exclusive(client).await;
        if let Some(lease) = self.leases.renewed(client, self.context.now()) {
            return Ok(lease);
        }
        if self.leases.clients.borrow().len() >= CLIENTS_MAX {
            return Err(Undelivered::Busy.into());
        }
        self.meta_here(NoteHolder { client, holds: true }).await?;
        let (lease, until) = (self.context.random() | 1, self.context.now() + LEASE);
        let known = Client { lease, until, files: BTreeMap::new() };
        self.leases.clients.borrow_mut().insert(client, known);
        self.look_later();
        Ok(lease)
    }

    pub(super) async fn let_go(self: &Rc<Self>, request: LetGo) -> Result<(), Error> {
        let LetGo { call, file } = request;
        let _alone = self.leases.holding.exclusive(file.ino).await;
        if self.leases.take(call, file.ino) {
            self.leases.leave(file.ino);
            self.let_go_unless_held(file.ino).await?;
        }
        Ok(())
    }

    /// The caller keeps others from holding the file.
    async fn let_go_unless_held(self: &Rc<Self>, ino: u64) -> Result<(), Error> {
        if !self.leases.is_held(ino) && self.meta_here(metadata::LetGo { ino }).await? {
            self.trim_later(ino);
        }
        Ok(())
    }

    pub(super) fn renew(&self, request: &Renew) -> bool {
        let &Renew { client, lease } = request;
        let is_known =
            self.leases.clients.borrow().get(&client).is_some_and(|known| known.lease == lease);
        if is_known {
            self.leases.renewed(client, self.context.now());
            self.leases.returned.borrow_mut().insert(client);
        }
        is_known
    }

    /// Ends leases in the background, as long as there are any.
    fn look_later(self: &Rc<Self>) {
        if self.leases.looking.replace(true) {
            return;
        }
        let me = self.clone();
        self.context.task(async move {
            while !me.leases.clients.borrow().is_empty() {
                me.context.sleep(LOOK_INTERVAL).await;
                let now = me.context.now();
                for client in me.leases.those(|client| client.until <= now) {
                    me.forget(client, |known| known.until <= now).await;
                }
            }
            me.leases.looking.set(false);
        });
    }

    /// Forgets a client, if `is_over` is still true of it, with all that it holds.
    async fn forget(self: &Rc<Self>, client: u64, is_over: impl Fn(&Client) -> bool) {
        let _alone = self.leases.meeting.exclusive(client).await;
        let gone = {
            let mut clients = self.leases.clients.borrow_mut();
            if !clients.get(&client).is_some_and(is_over) {
                return;
            }
            clients.remove(&client)
        };
        for ino in gone.into_iter().flat_map(|gone| gone.files.into_keys()) {
            let _alone = self.leases.holding.exclusive(ino).await;
            self.leases.locks.borrow_mut().release(ino, client);
            self.leases.leave(ino);
            if let Err(error) = self.let_go_unless_held(ino).await {
                // Its mark is in the store: it is tried again now and then.
                tracing::warn!(%error, ino, "a file that nobody holds could not be removed");
            }
        }
        if let Err(error) = self.meta_here(NoteHolder { client, holds: false }).await {
            tracing::warn!(%error, client, "a client that has gone could not be forgotten");
        }
    }

    /// Forgets clients that hold nothing: after a clean stop nobody needs to wait for them.
    pub(super) async fn forget_idle_clients(self: &Rc<Self>) -> Result<(), Error> {
        for client in self.leases.those(|client| client.files.is_empty()) {
            self.forget(client, |known| known.files.is_empty()).await;
        }
        Ok(())
    }

    /// After a start: lets those who held files before hold them again. Until all of them have, or a
    /// lease is over, every file outlives its last name.
    pub(super) async fn wait_for_holders(self: &Rc<Self>) {
        let until = self.context.now() + LEASE;
        let holders = self.meta_here(GetHolders {}).await.unwrap_or_default();
        self.leases.grace.replace(Grace::Waits(holders.iter().copied().collect()));
        let are_back = || {
            let returned = self.leases.returned.borrow();
            holders.iter().all(|holder| returned.contains(holder))
        };
        while !are_back() && self.context.now() < until {
            self.context.sleep(LOOK_INTERVAL).await;
        }
        self.leases.grace.replace(Grace::Over);
        self.remove_what_nobody_holds().await;
        for client in holders {
            self.forget_lost(client).await;
        }
    }

    /// Removes files without a name that nobody holds, if it is known who holds what: mostly what
    /// could not be removed when the last client let go.
    pub(super) async fn remove_what_nobody_holds(self: &Rc<Self>) {
        if !matches!(*self.leases.grace.borrow(), Grace::Over) {
            return;
        }
        match self.meta_here(EndGrace {}).await {
            Ok(gone) => gone.into_iter().for_each(|ino| self.trim_later(ino)),
            Err(error) => tracing::warn!(%error, "files that nobody holds could not be removed"),
        }
    }

    /// Forgets a client from before a restart that has not come back.
    async fn forget_lost(&self, client: u64) {
        let _alone = self.leases.meeting.exclusive(client).await;
        if self.leases.clients.borrow().contains_key(&client) {
            return;
        }
        if let Err(error) = self.meta_here(NoteHolder { client, holds: false }).await {
            tracing::warn!(%error, client, "a client that has gone could not be forgotten");
        }
    }
}
