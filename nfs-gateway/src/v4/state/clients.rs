//! Clients: named, confirmed, forgotten (RFC 8881 sections 18.35, 18.36 and 18.50).

use std::sync::Arc;
use std::time::Duration;

use client::leases::Leases;
use runtime::Context;

use super::sessions::{Session, Wanted};
use super::{Kept, State, Tables};
use crate::v4::limits::{CLIENTS_MAX, LEASE, SESSIONS_MAX, SESSIONS_PER_CLIENT_MAX};
use crate::v4::status::Status;
use crate::v4::words::{SessionId, Verifier};

/// A client that has begun so often, each time within a lease, is told of in the log.
const LIVES_SUSPECT: u32 = 4;

/// A client, by the name that it has given itself.
#[derive(Debug)]
pub(crate) struct Client {
    name: Vec<u8>,
    /// Another one after each restart of the client.
    verifier: Verifier,
    /// The user who speaks for it.
    principal: Option<u32>,
    /// It has made a session.
    confirmed: bool,
    /// The number that its next `CREATE_SESSION` has.
    next_session: u32,
    /// The result of the last one.
    last_session: Option<Vec<u8>>,
    /// What it has open, at the nodes below.
    pub(crate) leases: Arc<Leases>,
    /// When it was heard last.
    seen: Duration,
    /// When it made its first session.
    began: Duration,
    /// So many of its name have begun, each before the lease of the one before could have ended.
    lives: u32,
    /// It has said that it has everything again.
    pub(crate) reclaimed: bool,
    /// Its states.
    pub(super) states: usize,
}

/// What an `EXCHANGE_ID` says.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    /// The client's name.
    pub(crate) name: Vec<u8>,
    /// Of this life of the client.
    pub(crate) verifier: Verifier,
    /// The user who says so, if anybody.
    pub(crate) principal: Option<u32>,
    /// Only what is known already is changed.
    pub(crate) update: bool,
}

/// What an `EXCHANGE_ID` is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// The number of the client.
    pub(crate) client: u64,
    /// That of its next `CREATE_SESSION`.
    pub(crate) next_session: u32,
    /// It has made a session before.
    pub(crate) confirmed: bool,
}

impl Tables {
    fn of_name(&self, name: &[u8], confirmed: bool) -> Option<u64> {
        let found = self
            .clients
            .iter()
            .find(|(_, client)| client.confirmed == confirmed && client.name == name);
        found.map(|(id, _)| *id)
    }

    //= rfc8881 18.35.4: the table of cases
    /// Takes note of a client.
    pub(crate) fn exchange(&mut self, kept: &Kept, exchange: Exchange) -> Result<Named, Status> {
        let now = kept.now();
        let known = self.of_name(&exchange.name, true);
        let known = known.and_then(|id| Some((id, self.clients.get_mut(&id)?)));
        match known {
            Some((id, client)) if client.verifier == exchange.verifier => {
                let is_same = client.principal == exchange.principal;
                if !is_same {
                    return Err(if exchange.update {
                        Status::WRONG_CRED
                    } else {
                        Status::CLID_INUSE
                    });
                }
                client.seen = now;
                let next_session = client.next_session;
                return Ok(Named { client: id, next_session, confirmed: true });
            }
            Some(_) if exchange.update => return Err(Status::NOT_SAME),
            Some((_, client)) if client.principal != exchange.principal && client.states > 0 => {
                return Err(Status::CLID_INUSE);
            }
            None if exchange.update => return Err(Status::NOENT),
            // A new client, or one that has restarted: what it had ends when it makes a session.
            _ => {}
        }
        if let Some(unconfirmed) = self.of_name(&exchange.name, false) {
            self.clients.remove(&unconfirmed);
        }
        self.make_room()?;
        let id = kept.ctx.random();
        let client = Client {
            name: exchange.name,
            verifier: exchange.verifier,
            principal: exchange.principal,
            confirmed: false,
            next_session: 1,
            last_session: None,
            leases: Arc::new(Leases::new(kept.ctx.random())),
            seen: now,
            began: now,
            lives: 1,
            reclaimed: false,
            states: 0,
        };
        self.clients.insert(id, client);
        Ok(Named { client: id, next_session: 1, confirmed: false })
    }

    /// Makes room for one more client: who has not made a session for longest has to ask again.
    fn make_room(&mut self) -> Result<(), Status> {
        if self.clients.len() < CLIENTS_MAX {
            return Ok(());
        }
        let unconfirmed = self.clients.iter().filter(|(_, client)| !client.confirmed);
        let oldest = unconfirmed.min_by_key(|(_, client)| client.seen).map(|(id, _)| *id);
        self.clients.remove(&oldest.ok_or(Status::DELAY)?);
        Ok(())
    }

    //= rfc8881 18.36.4: in the order of the sequence ids, the last one again as it was
    /// Makes a session of `client`; what `tell` makes of it is kept for a retransmission.
    pub(crate) fn create_session(
        &mut self,
        kept: &Kept,
        id: u64,
        sequence: u32,
        wanted: Wanted,
        tell: impl FnOnce(&SessionId, &Session) -> Vec<u8>,
    ) -> Result<Vec<u8>, Status> {
        let client = self.clients.get_mut(&id).ok_or(Status::STALE_CLIENTID)?;
        client.seen = kept.now();
        if sequence.wrapping_add(1) == client.next_session {
            return client.last_session.clone().ok_or(Status::SEQ_MISORDERED);
        }
        if sequence != client.next_session {
            return Err(Status::SEQ_MISORDERED);
        }
        let of_client = self.sessions.values().filter(|session| session.client() == id).count();
        if of_client >= SESSIONS_PER_CLIENT_MAX || self.sessions.len() >= SESSIONS_MAX {
            return Err(Status::DELAY);
        }
        let session = Session::new(id, wanted)?;
        if !client.confirmed {
            client.began = client.seen;
            self.follow(&kept.ctx, id);
        }
        let mut session_id = [0; 16];
        session_id[..8].copy_from_slice(&self.instance.to_be_bytes());
        session_id[8..].copy_from_slice(&self.number().to_be_bytes());
        let told = tell(&session_id, &session);
        self.sessions.insert(session_id, session);
        if let Some(client) = self.clients.get_mut(&id) {
            client.confirmed = true;
            client.next_session = sequence.wrapping_add(1);
            client.last_session = Some(told.clone());
        }
        Ok(told)
    }

    /// If the client has restarted, nobody uses what it had.
    fn follow(&mut self, ctx: &Context, id: u64) {
        let Some(client) = self.clients.get(&id) else { return };
        let Some(before) = self.of_name(&client.name, true) else { return };
        let lives = self.clients.get(&before).map_or(1, |before| {
            if client.began < before.began + LEASE { before.lives.saturating_add(1) } else { 1 }
        });
        if lives >= LIVES_SUSPECT && lives.is_power_of_two() {
            tracing::warn!(
                target: "mdfs::nfs",
                client = %client.name.escape_ascii(),
                times = lives,
                "an NFS client begins anew over and over, and loses what it has open: two computers may have the \
                 same name; give each its own, or another nfs4_unique_id of its kernel's module nfs"
            );
        }
        if let Some(client) = self.clients.get_mut(&id) {
            client.lives = lives;
        }
        self.forget(ctx, before);
    }

    /// The client is heard.
    pub(crate) fn hear(&mut self, id: u64, now: Duration) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.seen = now;
        }
    }

    /// A client that is known.
    pub(crate) fn client(&self, id: u64) -> Result<&Client, Status> {
        self.clients.get(&id).ok_or(Status::STALE_CLIENTID)
    }

    /// The client has everything again that it had before a restart.
    pub(crate) fn reclaimed(&mut self, id: u64) -> Result<(), Status> {
        let client = self.clients.get_mut(&id).ok_or(Status::STALE_CLIENTID)?;
        if std::mem::replace(&mut client.reclaimed, true) {
            return Err(Status::COMPLETE_ALREADY);
        }
        Ok(())
    }

    //= rfc8881 18.50.3: not as long as it has sessions or state
    /// Forgets a client that asks for it.
    pub(crate) fn destroy_client(&mut self, id: u64) -> Result<(), Status> {
        let client = self.clients.get(&id).ok_or(Status::STALE_CLIENTID)?;
        let has_sessions = self.sessions.values().any(|session| session.client() == id);
        if client.states > 0 || has_sessions {
            return Err(Status::CLIENTID_BUSY);
        }
        self.clients.remove(&id);
        Ok(())
    }

    /// Forgets a client with all that it has.
    fn forget(&mut self, ctx: &Context, id: u64) {
        let of_client = |state: &State| match state {
            State::Open(open) => open.client == id,
            State::Locks(locks) => locks.client == id,
        };
        let states = self.states.iter().filter(|(_, state)| of_client(state));
        let states: Vec<u64> = states.map(|(number, _)| *number).collect();
        for number in states {
            let state = self.remove(number);
            if let (Some(State::Open(open)), Some(client)) = (state, self.clients.get(&id)) {
                // Its locks go with the last opening.
                client.leases.close(ctx, open.file);
            }
        }
        self.sessions.retain(|_, session| session.client() != id);
        self.clients.remove(&id);
    }

    /// Forgets all whose leases have ended.
    pub(super) fn reap(&mut self, ctx: &Context, now: Duration) {
        let ended = self.clients.iter().filter(|(_, client)| client.seen + LEASE < now);
        let ended: Vec<u64> = ended.map(|(id, _)| *id).collect();
        for id in ended {
            tracing::info!(target: "mdfs::nfs", client = id, "silent for too long: forgotten");
            self.forget(ctx, id);
        }
    }
}
