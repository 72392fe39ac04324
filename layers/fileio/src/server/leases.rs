//! Which clients have which files of this node open. A client keeps its files open by
//! renewing its lease, which covers all of them at this node. All of this is in memory. Durable is only
//! that files may be open, so that a restarted node waits for their clients (ADR 10).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use meta::protocol::{self as metadata, EndGrace, GraceBelow};
use runtime::protocol::Undelivered;
use runtime::sync::KeyedLock;

use super::{ClientHandover, FileServer, FilesHandover};
use crate::locks::LockTable;
use crate::protocol::{
    CallId, CloseHandle, Error, FileLock, Handle, Kind, LEASE, OpenHandle, OpenedFile, Renew,
};

/// Files that all clients together hold at one node, at most; past it the answer is `Busy`. Each process of a
/// parallel program that has one common file open holds it.
const HOLDS_MAX: usize = 1 << 16;
/// Clients with a lease at one node, at most. Past it those that hold nothing make room.
const CLIENTS_MAX: usize = HOLDS_MAX;
/// The interval at which ended leases are looked for.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// One client at this node.
struct LeaseClient {
    /// Drawn when the client became known.
    lease: u64,
    /// When the lease ends, unless it is renewed.
    until: Duration,
    /// The files that it holds, each with the number of the call that held it last.
    files: BTreeMap<u64, u64>,
}

/// The clients of one node.
#[derive(Default)]
pub(super) struct LeaseTable {
    clients: RefCell<BTreeMap<u64, LeaseClient>>,
    /// Clients that hold a file.
    holders: RefCell<BTreeMap<u64, usize>>,
    /// Files held by each client, in sum.
    holds: Cell<usize>,
    /// One at a time begins or ends to hold a file.
    holding: KeyedLock<u64>,
    /// The end of the grace period, in which clients open again what they had open before the restart.
    grace_end: Cell<Option<Duration>>,
    /// It has had that time.
    is_grace_over: Cell<bool>,
    /// Inodes from this number on are new since the restart; `None` before that is known.
    young_from: Cell<Option<u64>>,
    /// Locks on files that are held.
    pub(super) locks: RefCell<LockTable>,
    /// The task that looks for ended leases is running.
    looking: Cell<bool>,
}

impl LeaseTable {
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

    /// Are those who held files before this node started waited for?
    pub(super) fn is_in_grace(&self) -> bool {
        !self.is_grace_over.get()
    }

    /// Can one of them have held this file?
    pub(super) fn is_in_grace_for(&self, ino: u64) -> bool {
        self.is_in_grace() && self.young_from.get().is_none_or(|young| ino < young)
    }

    fn is_held(&self, ino: u64) -> bool {
        self.holders.borrow().contains_key(&ino)
    }

    /// Clients whose leases are over at `now`.
    fn over(&self, now: Duration) -> Vec<u64> {
        let clients = self.clients.borrow();
        clients.iter().filter(|(_, known)| known.until <= now).map(|(&client, _)| client).collect()
    }

    /// Takes out a client, unless it has renewed its lease.
    fn remove_over(&self, client: u64, now: Duration) -> Option<LeaseClient> {
        let mut clients = self.clients.borrow_mut();
        let is_over = clients.get(&client).is_some_and(|known| known.until <= now);
        is_over.then(|| clients.remove(&client)).flatten()
    }

    /// Forgets clients that hold nothing, the half of them that was heard least lately. False if there are none.
    fn make_room(&self) -> bool {
        let mut clients = self.clients.borrow_mut();
        let idle = clients.iter().filter(|(_, known)| known.files.is_empty());
        let mut idle: Vec<(Duration, u64)> =
            idle.map(|(&client, known)| (known.until, client)).collect();
        idle.sort_unstable();
        idle.truncate(idle.len().div_ceil(2));
        for (_, client) in &idle {
            clients.remove(client);
        }
        !idle.is_empty()
    }

    /// Who holds which files, with which locks.
    pub(super) fn handed(&self, now: Duration) -> FilesHandover {
        let clients = self.clients.borrow();
        let clients = clients.iter().map(|(&client, known)| ClientHandover {
            client,
            lease: known.lease,
            files: known.files.iter().map(|(&ino, &number)| (ino, number)).collect(),
        });
        let locks = self.locks.borrow().all().collect();
        let grace_left = match self.grace_end.get() {
            _ if !self.is_in_grace() => Duration::ZERO,
            Some(end) => end.saturating_sub(now),
            None => LEASE,
        };
        let grace_left_ms = grace_left.as_millis() as u64;
        FilesHandover { clients: clients.collect(), locks, grace_left_ms }
    }

    /// Goes on with these. Each lease begins anew: a move of the node must not cost a client its
    /// open files.
    pub(super) fn resume(&self, handed: FilesHandover, now: Duration) {
        self.grace_end.set(Some(now + Duration::from_millis(handed.grace_left_ms)));
        for ClientHandover { client, lease, files } in handed.clients {
            let known = LeaseClient { lease, until: now + LEASE, files: BTreeMap::new() };
            self.clients.borrow_mut().insert(client, known);
            for (ino, number) in files {
                self.note(CallId { client, number }, lease, ino);
            }
        }
        for (file, FileLock { owner, range, kind }) in handed.locks {
            // They fitted into the table they come from.
            let _ = self.locks.borrow_mut().lock(file, owner, range, kind);
        }
    }
}

runtime::handlers! { FileServer;
    OpenHandle => |server, _, request| server.open_handle(request).await;
    CloseHandle => |server, _, request| server.close_handle(request).await;
    Renew => |server, _, request| Ok(server.renew(&request));
}

impl FileServer {
    pub(super) async fn open_handle(
        self: &Rc<Self>,
        request: OpenHandle,
    ) -> Result<OpenedFile, Error> {
        let OpenHandle { call, file } = request;
        let lease = self.lease_of(call.client)?;
        let _alone = self.leases.holding.exclusive(file.ino).await;
        if self.leases.holds.get() >= HOLDS_MAX {
            return Err(Undelivered::Busy.into());
        }
        let Handle { ino, generation } = file;
        let inode = self.meta_here(metadata::OpenHandle { ino, generation }).await?;
        let attributes = inode.attributes;
        if attributes.kind != (Kind::File {}) {
            return Ok(OpenedFile { attributes, lease: 0 });
        }
        if !self.leases.note(call, lease, ino) {
            self.close_unless_open(ino).await?;
            return Err(Undelivered::Busy.into());
        }
        Ok(OpenedFile { attributes, lease })
    }

    /// The lease of a client, which becomes known if it was not.
    fn lease_of(self: &Rc<Self>, client: u64) -> Result<u64, Error> {
        if let Some(lease) = self.leases.renewed(client, self.context.now()) {
            return Ok(lease);
        }
        let is_full = self.leases.clients.borrow().len() >= CLIENTS_MAX;
        if is_full && !self.leases.make_room() {
            return Err(Undelivered::Busy.into());
        }
        let (lease, until) = (self.context.random() | 1, self.context.now() + LEASE);
        let known = LeaseClient { lease, until, files: BTreeMap::new() };
        self.leases.clients.borrow_mut().insert(client, known);
        self.expire_leases_later();
        Ok(lease)
    }

    pub(super) async fn close_handle(self: &Rc<Self>, request: CloseHandle) -> Result<(), Error> {
        let CloseHandle { call, file } = request;
        let _alone = self.leases.holding.exclusive(file.ino).await;
        if self.leases.take(call, file.ino) {
            self.leases.leave(file.ino);
            self.close_unless_open(file.ino).await?;
        }
        Ok(())
    }

    /// The caller keeps others from holding the file.
    async fn close_unless_open(self: &Rc<Self>, ino: u64) -> Result<(), Error> {
        if !self.leases.is_held(ino) && self.meta_here(metadata::CloseHandle { ino }).await? {
            self.trim_later(ino);
        }
        Ok(())
    }

    /// Has the client had this lease ever since?
    pub(super) fn knows_lease(&self, client: u64, lease: u64) -> bool {
        self.leases.clients.borrow().get(&client).is_some_and(|known| known.lease == lease)
    }

    pub(super) fn renew(&self, request: &Renew) -> bool {
        let &Renew { client, lease } = request;
        let is_known = self.knows_lease(client, lease);
        if is_known {
            self.leases.renewed(client, self.context.now());
        }
        is_known
    }

    /// Ends leases in the background, as long as there are any.
    pub(super) fn expire_leases_later(self: &Rc<Self>) {
        if self.leases.looking.replace(true) {
            return;
        }
        let me = self.clone();
        self.context.task(async move {
            while !me.leases.clients.borrow().is_empty() {
                me.context.sleep(LOOK_INTERVAL).await;
                let now = me.context.now();
                for client in me.leases.over(now) {
                    me.forget(client).await;
                }
            }
            me.leases.looking.set(false);
        });
    }

    /// Forgets a client, if its lease is still over, with all that it holds.
    async fn forget(self: &Rc<Self>, client: u64) {
        let gone = self.leases.remove_over(client, self.context.now());
        let files: Vec<u64> = gone.into_iter().flat_map(|gone| gone.files.into_keys()).collect();
        for &ino in &files {
            // Now: it may come back, and lock again, while the files are let go of.
            self.leases.locks.borrow_mut().release(ino, client);
        }
        for ino in files {
            let _alone = self.leases.holding.exclusive(ino).await;
            self.leases.leave(ino);
            if let Err(error) = self.close_unless_open(ino).await {
                // Its mark is in the store: it is tried again now and then.
                tracing::warn!(%error, ino, "an unreferenced file could not be removed");
            }
        }
    }

    /// After a start: lets those who held files before hold them again. Until a lease is over, every
    /// file that there was outlives its last name.
    pub(super) async fn wait_for_grace_end(self: &Rc<Self>) {
        // If the metadata does not answer, the grace period applies to all files.
        let young_from = self.meta_here(GraceBelow {}).await.unwrap_or(u64::MAX);
        self.leases.young_from.set(Some(young_from));
        if young_from > 0 {
            let now = self.context.now();
            let end = self.leases.grace_end.get().unwrap_or(now + LEASE);
            self.leases.grace_end.set(Some(end));
            self.context.sleep(end.saturating_sub(now)).await;
        }
        self.leases.is_grace_over.set(true);
        self.remove_unreferenced().await;
    }

    /// Removes files without a name that no client has open, once the grace period is over: mostly those
    /// that could not be removed at the last close.
    pub(super) async fn remove_unreferenced(self: &Rc<Self>) {
        if self.leases.is_in_grace() {
            return;
        }
        match self.meta_here(EndGrace {}).await {
            Ok(gone) => gone.into_iter().for_each(|ino| self.trim_later(ino)),
            Err(error) => tracing::warn!(%error, "unreferenced files could not be removed"),
        }
    }
}
