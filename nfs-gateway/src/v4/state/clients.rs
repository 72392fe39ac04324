//! Clients: created, confirmed, expired (RFC 8881 sections 18.35, 18.36 and 18.50).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use client::delegations::DelegationHolder;
use client::leases::Leases;
use fileio::protocol::Handle;
use runtime::Context;
use runtime::client_handle::CallNumbers;

use super::back_channel::BackChannel;
use super::lock_waiters::LockWaiters;
use super::sessions::{ChannelAttrs, Nfs4Session, SessionTable};
use super::stateids::{StateEntry, StateidTable, clients_in_the_way, clients_of};
use crate::v4::limits::{
    CLIENTS_MAX, COURTESY_MAX, COURTESY_STATES_MAX, COURTESY_STATES_PER_CLIENT_MAX, LEASE,
    SESSIONS_MAX, SESSIONS_PER_CLIENT_MAX,
};
use crate::v4::status::Status;
use crate::v4::types::{SessionId, Verifier4};

/// Restarts of a client, each within a lease, after which a warning is logged.
const RESTARTS_SUSPECT: u32 = 4;

/// `SEQ4_STATUS_RECALLABLE_STATE_REVOKED`: there are stateids of revoked delegations to free.
const RECALLABLE_STATE_REVOKED: u32 = 0x40;

/// A client, identified by its owner string.
#[derive(Debug)]
pub(crate) struct Nfs4Client {
    name: Vec<u8>,
    /// Changes with each restart of the client.
    verifier: Verifier4,
    /// The user who created it.
    principal: Option<u32>,
    /// It has created a session.
    confirmed: bool,
    /// The sequence id of its next `CREATE_SESSION`.
    next_session: u32,
    /// The result of the last one.
    last_session: Option<Vec<u8>>,
    /// Its open files and locks at the nodes.
    pub(crate) leases: Arc<Leases>,
    /// When its lease was last renewed.
    renewed: Duration,
    /// When it created its first session.
    began: Duration,
    /// Instances of this name, each created before the lease of the one before could expire.
    instances: u32,
    /// It has sent `RECLAIM_COMPLETE`.
    pub(crate) reclaim_complete: bool,
    /// `CB_RECALL_ANY` is under way.
    is_recalling_any: bool,
    /// Its lease is over, and its state is kept until then, since it is not in the way of others.
    kept_until: Option<Duration>,
}

impl Nfs4Client {
    /// Is its lease over?
    fn has_expired(&self, now: Duration) -> bool {
        self.renewed + LEASE < now
    }

    fn renew(&mut self, now: Duration) {
        self.renewed = now;
        self.kept_until = None;
    }
}

/// The arguments of an `EXCHANGE_ID`.
#[derive(Clone, Debug)]
pub(crate) struct ExchangeIdArgs {
    /// The client's owner string.
    pub(crate) name: Vec<u8>,
    /// Of this instance of the client.
    pub(crate) verifier: Verifier4,
    /// The user, if the call has one.
    pub(crate) principal: Option<u32>,
    /// Only an existing record is updated.
    pub(crate) update: bool,
}

/// The result of an `EXCHANGE_ID`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExchangeIdResult {
    /// The client id.
    pub(crate) client: u64,
    /// The sequence id of its next `CREATE_SESSION`.
    pub(crate) next_session: u32,
    /// It has created a session before.
    pub(crate) confirmed: bool,
}

/// The state of all clients: their records, sessions and stateids.
#[derive(Debug)]
pub(crate) struct StateTables {
    clients: BTreeMap<u64, Nfs4Client>,
    pub(crate) sessions: SessionTable,
    /// Open files, lock owners and delegations.
    pub(crate) states: StateidTable,
    /// Clients that wait for a lock.
    pub(crate) lock_waiters: LockWaiters,
    /// What the gateway holds at the nodes, to delegate it to clients.
    pub(crate) holder: Arc<DelegationHolder>,
}

impl StateTables {
    /// The empty tables of a gateway instance.
    pub(super) fn new(instance: u64) -> Self {
        Self {
            clients: BTreeMap::new(),
            sessions: SessionTable::default(),
            states: StateidTable::new(instance),
            lock_waiters: LockWaiters::default(),
            holder: DelegationHolder::new(instance),
        }
    }

    /// Returns `file` to its node, if no client has it any more.
    pub(crate) fn release_undelegated(&self, ctx: &Context, file: Handle) {
        if !self.states.is_delegated(file) {
            self.holder.give_back(ctx, file);
        }
    }

    /// Is any client known?
    pub(super) fn has_clients(&self) -> bool {
        !self.clients.is_empty()
    }

    fn of_name(&self, name: &[u8], confirmed: bool) -> Option<u64> {
        let found = self
            .clients
            .iter()
            .find(|(_, client)| client.confirmed == confirmed && client.name == name);
        found.map(|(id, _)| *id)
    }

    //= rfc8881 18.35.4: the table of cases
    /// Creates or updates the record of a client.
    pub(crate) fn exchange_id(
        &mut self,
        ctx: &Context,
        args: ExchangeIdArgs,
    ) -> Result<ExchangeIdResult, Status> {
        let now = ctx.now();
        let known = self.of_name(&args.name, true);
        let known = known.and_then(|id| Some((id, self.clients.get_mut(&id)?)));
        match known {
            Some((_, client)) if args.update && client.verifier != args.verifier => {
                return Err(Status::NOT_SAME);
            }
            Some((_, client)) if args.update && client.principal != args.principal => {
                return Err(Status::PERM);
            }
            // Another user's client of this name ends at once, if it has nothing to lose.
            Some((id, client)) if client.principal != args.principal => {
                if !client.has_expired(now)
                    && (self.states.count_of(id) > 0 || self.sessions.count_of(id) > 0)
                {
                    return Err(Status::CLID_INUSE);
                }
                self.expire(ctx, id);
            }
            Some((id, client)) if client.verifier == args.verifier => {
                client.renew(now);
                let next_session = client.next_session;
                return Ok(ExchangeIdResult { client: id, next_session, confirmed: true });
            }
            None if args.update => return Err(Status::NOENT),
            // A new client, or a restarted one: its old state is removed when it creates a session.
            _ => {}
        }
        if let Some(unconfirmed) = self.of_name(&args.name, false) {
            self.clients.remove(&unconfirmed);
        }
        self.make_room(ctx)?;
        let id = ctx.random();
        let client = Nfs4Client {
            name: args.name,
            verifier: args.verifier,
            principal: args.principal,
            confirmed: false,
            next_session: 1,
            last_session: None,
            leases: Arc::new(Leases::new(Arc::new(CallNumbers::new(ctx.random())))),
            renewed: now,
            began: now,
            instances: 1,
            reclaim_complete: false,
            is_recalling_any: false,
            kept_until: None,
        };
        self.clients.insert(id, client);
        Ok(ExchangeIdResult { client: id, next_session: 1, confirmed: false })
    }

    /// If there are too many clients, evicts those whose leases are over, or else the oldest that
    /// is unconfirmed.
    fn make_room(&mut self, ctx: &Context) -> Result<(), Status> {
        if self.clients.len() < CLIENTS_MAX {
            return Ok(());
        }
        self.expire_leases(ctx, ctx.now());
        if self.clients.len() < CLIENTS_MAX {
            return Ok(());
        }
        let unconfirmed = self.clients.iter().filter(|(_, client)| !client.confirmed);
        let oldest = unconfirmed.min_by_key(|(_, client)| client.renewed).map(|(id, _)| *id);
        //= rfc8881 18.35: there is no other error for it that a client does not wait for
        self.clients.remove(&oldest.ok_or(Status::SERVERFAULT)?);
        Ok(())
    }

    //= rfc8881 18.36.4: in the order of the sequence ids, the last one again as it was
    /// Creates a session of a client; the result that `encode` makes is kept for a retransmission.
    pub(crate) fn create_session(
        &mut self,
        ctx: &Context,
        (id, principal): (u64, Option<u32>),
        sequence: u32,
        (requested, back): (ChannelAttrs, BackChannel),
        encode: impl FnOnce(&SessionId, &Nfs4Session) -> Vec<u8>,
    ) -> Result<Vec<u8>, Status> {
        let now = ctx.now();
        let client = self.clients.get_mut(&id).ok_or(Status::STALE_CLIENTID)?;
        //= rfc8881 18.35.4: an unconfirmed record ends with the lease
        if !client.confirmed && client.has_expired(now) {
            self.clients.remove(&id);
            return Err(Status::STALE_CLIENTID);
        }
        client.renew(now);
        if sequence.wrapping_add(1) == client.next_session {
            return client.last_session.clone().ok_or(Status::SEQ_MISORDERED);
        }
        if sequence != client.next_session {
            return Err(Status::SEQ_MISORDERED);
        }
        if !client.confirmed && client.principal != principal {
            return Err(Status::CLID_INUSE);
        }
        self.check_session_room(ctx, id)?;
        let slots_max = self.sessions.slots_max();
        let session = Nfs4Session::new(id, (requested, slots_max), back)?;
        if let Some(client) = self.clients.get_mut(&id)
            && !client.confirmed
        {
            client.began = client.renewed;
            self.replace_instance(ctx, id);
        }
        let mut session_id = [0; 16];
        session_id[..8].copy_from_slice(&self.states.instance.to_be_bytes());
        session_id[8..].copy_from_slice(&self.states.next_number().to_be_bytes());
        let result = encode(&session_id, &session);
        self.sessions.insert(session_id, session);
        if let Some(client) = self.clients.get_mut(&id) {
            client.confirmed = true;
            client.next_session = sequence.wrapping_add(1);
            client.last_session = Some(result.clone());
        }
        Ok(result)
    }

    /// Is there room for one more session of `client`? Clients whose leases are over make some.
    fn check_session_room(&mut self, ctx: &Context, client: u64) -> Result<(), Status> {
        if self.sessions.len() >= SESSIONS_MAX {
            self.expire_leases(ctx, ctx.now());
        }
        let is_full = self.sessions.len() >= SESSIONS_MAX;
        if is_full || self.sessions.count_of(client) >= SESSIONS_PER_CLIENT_MAX {
            return Err(Status::NOSPC);
        }
        Ok(())
    }

    /// If the client has restarted, expires its instance before.
    fn replace_instance(&mut self, ctx: &Context, id: u64) {
        let Some(client) = self.clients.get(&id) else { return };
        let Some(before) = self.of_name(&client.name, true) else { return };
        let instances = self.clients.get(&before).map_or(1, |before| {
            if client.began < before.began + LEASE { before.instances.saturating_add(1) } else { 1 }
        });
        if instances >= RESTARTS_SUSPECT && instances.is_power_of_two() {
            tracing::warn!(
                target: "mdfs::nfs",
                client = %client.name.escape_ascii(),
                times = instances,
                "an NFS client restarts repeatedly and loses its open files: two hosts may have the same client \
                 name; give each its own, or another nfs4_unique_id of its kernel's module nfs"
            );
        }
        if let Some(client) = self.clients.get_mut(&id) {
            client.instances = instances;
        }
        self.expire(ctx, before);
    }

    /// Renews the lease of a client.
    pub(crate) fn renew(&mut self, id: u64, now: Duration) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.renew(now);
        }
    }

    /// Returns a client.
    pub(crate) fn client(&self, id: u64) -> Result<&Nfs4Client, Status> {
        self.clients.get(&id).ok_or(Status::STALE_CLIENTID)
    }

    /// Records that `CB_RECALL_ANY` is sent to a client; false if it is already.
    pub(crate) fn begin_recall_any(&mut self, id: u64) -> bool {
        let client = self.clients.get_mut(&id);
        client.is_some_and(|client| !std::mem::replace(&mut client.is_recalling_any, true))
    }

    /// `CB_RECALL_ANY` was sent.
    pub(crate) fn end_recall_any(&mut self, id: u64) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.is_recalling_any = false;
        }
    }

    //= rfc8881 18.46.3: sr_status_flags
    /// The status flags of a SEQUENCE of `client` in the session `id`.
    pub(crate) fn status_flags(&self, client: u64, id: &SessionId) -> u32 {
        let revoked = if self.states.has_revoked(client) { RECALLABLE_STATE_REVOKED } else { 0 };
        self.sessions.callback_flags(id) | revoked
    }

    /// The client has reclaimed all its state from before a restart.
    pub(crate) fn reclaim_complete(&mut self, id: u64) -> Result<(), Status> {
        let client = self.clients.get_mut(&id).ok_or(Status::STALE_CLIENTID)?;
        if std::mem::replace(&mut client.reclaim_complete, true) {
            return Err(Status::COMPLETE_ALREADY);
        }
        Ok(())
    }

    //= rfc8881 18.50.3: not as long as it has sessions or state
    /// Removes a client at its own request.
    pub(crate) fn destroy_client(&mut self, id: u64) -> Result<(), Status> {
        if !self.clients.contains_key(&id) {
            return Err(Status::STALE_CLIENTID);
        }
        if self.states.count_of(id) > 0 || self.sessions.count_of(id) > 0 {
            return Err(Status::CLIENTID_BUSY);
        }
        self.clients.remove(&id);
        Ok(())
    }

    /// Removes a client with all its state.
    fn expire(&mut self, ctx: &Context, id: u64) {
        for number in self.states.numbers_of(id) {
            let Some(state) = self.states.remove(number) else { continue };
            let Some(client) = self.clients.get(&id) else { continue };
            match state {
                // Its locks go with the last open.
                StateEntry::Open(open) => client.leases.close(ctx, open.file),
                StateEntry::Delegation(known) => {
                    self.states.delegated.totals.revoked += u64::from(!known.is_revoked);
                    self.release_undelegated(ctx, known.file);
                }
                StateEntry::Locks(_) => {}
            }
        }
        self.sessions.remove_of(id);
        self.lock_waiters.remove_of(id);
        self.clients.remove(&id);
    }

    /// Makes an attempt on `file`; if it was denied, again without the clients that are in the way
    /// and whose leases are over.
    pub(crate) fn attempt<T>(
        &mut self,
        ctx: &Context,
        file: Handle,
        attempt: impl Fn(&mut StateidTable) -> Result<T, Status>,
    ) -> Result<T, Status> {
        match attempt(&mut self.states) {
            Err(Status::SHARE_DENIED) => {
                for client in clients_of(&self.states, file) {
                    self.end_if_silent(ctx, client);
                }
            }
            Err(Status::DQUOT) => self.expire_leases(ctx, ctx.now()),
            done => return done,
        }
        attempt(&mut self.states)
    }

    /// Ends a client whose lease is over; returns its files and locks at the nodes, which are being
    /// closed.
    pub(crate) fn end_if_silent(&mut self, ctx: &Context, id: u64) -> Option<Arc<Leases>> {
        let client = self.clients.get(&id).filter(|client| client.has_expired(ctx.now()))?;
        let leases = client.leases.clone();
        self.end_silent(ctx, id);
        Some(leases)
    }

    fn end_silent(&mut self, ctx: &Context, id: u64) {
        tracing::info!(target: "mdfs::nfs", client = id, "the lease of an NFS client has expired");
        self.expire(ctx, id);
    }

    /// Removes all clients whose leases have expired.
    fn expire_leases(&mut self, ctx: &Context, now: Duration) {
        for id in self.silent(|client| client.has_expired(now)) {
            self.end_silent(ctx, id);
        }
    }

    fn silent(&self, is_silent: impl Fn(&Nfs4Client) -> bool) -> Vec<u64> {
        let silent = self.clients.iter().filter(|(_, client)| is_silent(client));
        silent.map(|(id, _)| *id).collect()
    }

    //= rfc8881 8.4.2.4: a server may keep the state of a client whose lease is over
    /// Ends the clients whose leases are over. One that has nothing but some open files which deny
    /// others nothing stays until it is in the way at a limit, or until a day has passed. Locks and
    /// delegations also keep clients elsewhere waiting, which this gateway does not hear of.
    pub(super) fn expire_conflicting(&mut self, ctx: &Context, now: Duration) {
        let is_new = |client: &Nfs4Client| client.has_expired(now) && client.kept_until.is_none();
        let is_too_old = |client: &Nfs4Client| client.kept_until.is_some_and(|until| until < now);
        let silent = self.silent(|client| is_new(client) || is_too_old(client));
        if silent.is_empty() {
            return;
        }
        let conflicting = clients_in_the_way(&self.states);
        let kept = self.silent(|client| client.kept_until.is_some()).into_iter();
        let mut kept_states: usize = kept.map(|id| self.states.count_of(id)).sum();
        for id in silent {
            let count = self.states.count_of(id);
            let may_stay = (1..=COURTESY_STATES_PER_CLIENT_MAX).contains(&count)
                && kept_states + count <= COURTESY_STATES_MAX
                && !conflicting.contains(&id);
            match self.clients.get_mut(&id) {
                Some(client) if client.confirmed && !is_too_old(client) && may_stay => {
                    client.kept_until = Some(client.renewed + COURTESY_MAX);
                    kept_states += count;
                }
                _ => self.end_silent(ctx, id),
            }
        }
    }
}
