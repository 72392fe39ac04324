//! The thread of a pair: drives its endpoint. It is never joined.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use ::fabric::transport::{BulkPart, ConnectionId, FabricEvent, Loss, Transport, held_bytes};
use ::fabric::{ExitGate, FabricError};
use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::oneshot;

use super::pair::{FabricPair, PairCommand, PairCounters, Ticket, thread};
use super::paths::FabricPath;
use super::shared::{FabricShared, PairUse, Peer};
use crate::frame::{FabricAnswer, unpack};
use runtime::sync::lock;

/// After its last work the thread polls this long before it sleeps (ADR 42).
const AWAKE: Duration = Duration::from_micros(50);
/// The longest sleep, where the provider wakes: beats are due much more seldom.
const SLEEP_MAX: Duration = Duration::from_millis(250);
/// The naps where it does not: a quarter of the time since the last work, within these.
const NAP_MIN: Duration = Duration::from_micros(20);
const NAP_MAX: Duration = Duration::from_millis(2);
/// A pair without links ends after this time.
const UNUSED_MAX: Duration = Duration::from_secs(2);
/// Polls between two accounts, while there is no rest.
const POLLS_PER_ACCOUNT: u32 = 4096;

#[allow(clippy::disallowed_methods, reason = "the machine itself looks at the clock")]
fn now() -> Instant {
    Instant::now()
}

/// Who uses a connection.
struct LinkUser {
    path: Arc<dyn FabricPath>,
    connection: Option<ConnectionId>,
    /// Bytes that it has given to be sent.
    given: u64,
    /// Its end is what it tells.
    _lasts: Option<oneshot::Sender<()>>,
}

/// Why a pair ends.
#[derive(Debug)]
enum PairEnd {
    Unused,
    Retired,
    Failed(String),
}

/// The thread's own.
pub(super) struct PairDriver<'a> {
    pair: Arc<FabricPair>,
    shared: &'a FabricShared,
    transport: Transport,
    waitable: Option<OwnedFd>,
    users: BTreeMap<Ticket, LinkUser>,
    tickets: BTreeMap<ConnectionId, Ticket>,
    worked: Instant,
    has_been_used: bool,
    gate: Arc<ExitGate>,
}

impl PairDriver<'_> {
    /// Starts the thread of a pair, which opens the endpoint.
    pub(super) fn start(
        shared: Arc<FabricShared>,
        peer: Peer,
        used: PairUse,
    ) -> io::Result<Arc<FabricPair>> {
        let (pair, running) = FabricPair::new(peer, used)?;
        let pair = Arc::new(pair);
        let own = pair.clone();
        thread("mdfs-fabric", move || {
            PairDriver::run(&own, &shared);
            drop(running);
        })?;
        Ok(pair)
    }

    fn run(pair: &Arc<FabricPair>, shared: &FabricShared) {
        let provider = pair.provider();
        let gate = Arc::new(ExitGate::default());
        let inside = gate.enter();
        let end = match Transport::open(shared.setup(provider, pair.used)) {
            Ok(transport) => {
                let mut driver = PairDriver {
                    pair: pair.clone(),
                    shared,
                    waitable: transport.link().waitable(),
                    transport,
                    users: BTreeMap::new(),
                    tickets: BTreeMap::new(),
                    worked: now(),
                    has_been_used: false,
                    gate: gate.clone(),
                };
                drop(inside);
                let end = driver.work();
                let _inside = gate.enter();
                driver.end();
                drop(driver);
                end
            }
            Err(error) => PairEnd::Failed(error.to_string()),
        };
        let (process, provider) = (pair.process(), provider.name());
        if let PairEnd::Failed(why) = end {
            tracing::info!(process, provider, why, "libfabric has failed");
        } else {
            tracing::debug!(process, provider, why = ?end, "a pair has ended");
        }
        let left = lock(&pair.commands).take();
        left.into_iter().flatten().for_each(PairCommand::be_void);
        shared.settle(pair.provider(), pair.account().counters);
    }

    fn work(&mut self) -> PairEnd {
        let mut polls = 0;
        let gate = self.gate.clone();
        loop {
            let inside = gate.enter();
            let commands = self.pair.take();
            let mut has_worked = !commands.is_empty();
            for command in commands {
                if let Err(end) = self.obey(command) {
                    return end;
                }
            }
            if let Err(error) = self.transport.poll() {
                return PairEnd::Failed(error.to_string());
            }
            while let Some(event) = self.transport.next_event() {
                has_worked = true;
                if let Err(end) = self.take(event) {
                    return end;
                }
            }
            polls += 1;
            if self.pair.used.is_client() {
                self.note_sent();
                if self.users.is_empty() && self.has_been_used {
                    return PairEnd::Unused;
                }
            }
            if has_worked {
                self.worked = now();
            } else {
                let may_sleep = self.may_sleep();
                drop(inside);
                match may_sleep {
                    Ok(true) => self.sleep(),
                    Ok(false) => {}
                    Err(end) => return end,
                }
            }
            if polls % POLLS_PER_ACCOUNT == 0 {
                self.give_account();
            }
        }
    }

    /// Nothing was to be done: look again at once, or sleep?
    fn may_sleep(&mut self) -> Result<bool, PairEnd> {
        let idle = now().duration_since(self.worked);
        if idle < AWAKE {
            // Other threads come first.
            std::thread::yield_now();
            return Ok(false);
        }
        if self.users.is_empty() && idle > UNUSED_MAX {
            return Err(PairEnd::Unused);
        }
        let may_rest = self.transport.may_rest();
        if may_rest {
            self.give_account();
        }
        Ok(may_rest)
    }

    fn sleep(&mut self) {
        let idle = now().duration_since(self.worked);
        let longest = match self.waitable {
            Some(_) => SLEEP_MAX,
            None => (idle / 4).clamp(NAP_MIN, NAP_MAX),
        };
        let pair = self.pair.clone();
        pair.asleep.store(true, SeqCst);
        if !pair.has_commands() {
            let mut sources = vec![PollFd::new(&pair.bell, PollFlags::IN)];
            sources.extend(self.waitable.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
            let timeout = Timespec {
                tv_sec: longest.as_secs().cast_signed(),
                tv_nsec: longest.subsec_nanos().into(),
            };
            // Whatever ends the sleep: it is looked again.
            let _ = poll(&mut sources, Some(&timeout));
        }
        pair.asleep.store(false, SeqCst);
        // Empty if the bell was not rung.
        let _ = rustix::io::read(&pair.bell, &mut [0; 8]);
    }

    fn obey(&mut self, command: PairCommand) -> Result<(), PairEnd> {
        let failed = |error: FabricError| PairEnd::Failed(error.to_string());
        match command {
            PairCommand::Connect { address, ticket, key, path } => {
                self.transport.policy = self.shared.policy(self.pair.provider());
                let connected = self.transport.connect(&address, ticket, key);
                let connection = connected.inspect_err(|_| path.lost()).map_err(failed)?;
                self.tickets.insert(connection, ticket);
                self.add_user(ticket, path, Some(connection), None);
            }
            PairCommand::Admit { ticket, key, path, tell, lasts } => {
                self.transport.policy = self.shared.policy(self.pair.provider());
                let admitted = self.transport.admit(ticket, key);
                admitted.inspect_err(|_| path.lost()).map_err(failed)?;
                self.add_user(ticket, path, None, Some(lasts));
                let grant = FabricAnswer {
                    provider: self.pair.provider().name().to_owned(),
                    instance: self.shared.instance,
                    address: self.transport.address().to_vec(),
                    ticket: ticket.to_vec(),
                    key: key.map_or_else(Vec::new, |key| key.to_vec()),
                };
                // If the link is over, it says so next.
                let _ = tell.send(grant);
            }
            PairCommand::Send { connection, head, bulk } => {
                let length = head.len() + bulk.iter().map(Bytes::len).sum::<usize>();
                let ticket = self.tickets.get(&connection);
                if let Some(user) = ticket.and_then(|ticket| self.users.get_mut(ticket)) {
                    user.given += length as u64;
                }
                let bulk = bulk.into_iter().map(BulkPart::Bytes).collect();
                match self.transport.send(connection, head, bulk) {
                    // A connection that is over has lost its calls.
                    Ok(()) | Err(FabricError::NotConnected { .. }) => {}
                    Err(error) => return Err(failed(error)),
                }
            }
            PairCommand::Leave { ticket } => {
                self.transport.revoke(&ticket);
                let user = self.users.remove(&ticket);
                if let Some(connection) = user.and_then(|user| user.connection) {
                    self.tickets.remove(&connection);
                    self.transport.forsake(connection).map_err(failed)?;
                }
            }
            PairCommand::Retire { .. } => {
                self.transport.advance_epoch(1).map_err(failed)?;
                return Err(PairEnd::Retired);
            }
        }
        Ok(())
    }

    fn take(&mut self, event: FabricEvent) -> Result<(), PairEnd> {
        match event {
            FabricEvent::Opened { connection, ticket } => {
                tracing::debug!(process = self.pair.process(), ?connection, "opened");
                let Some(user) = self.users.get_mut(&ticket) else { return Ok(()) };
                user.connection = Some(connection);
                self.tickets.insert(connection, ticket);
                user.path.opened(connection);
            }
            FabricEvent::Received { connection, head, bulk } => {
                if !self.deliver(connection, head, bulk) {
                    return Err(PairEnd::Failed("the other side breaks the rules".to_owned()));
                }
            }
            FabricEvent::Closed { connection, loss } => {
                let (process, counters) = (self.pair.process(), self.transport.counters());
                tracing::debug!(process, ?connection, ?loss, ?counters, "closed");
                let ticket = self.tickets.remove(&connection);
                if let Some(user) = ticket.and_then(|ticket| self.users.remove(&ticket)) {
                    user.path.lost();
                }
                // It is unknown what any other failure leaves in the endpoint (ADR 34).
                if !matches!(loss, Loss::Left | Loss::Worn | Loss::Forsaken) {
                    return Err(PairEnd::Failed(format!("{loss:?}")));
                }
            }
        }
        Ok(())
    }

    /// Hands out a message; false if it is none.
    fn deliver(&self, connection: ConnectionId, head: Bytes, bulk: Bytes) -> bool {
        let user = self.tickets.get(&connection).and_then(|ticket| self.users.get(ticket));
        let Some(user) = user else { return true };
        unpack(head, bulk).is_some_and(|frame| user.path.clone().take(frame))
    }

    fn add_user(
        &mut self,
        ticket: Ticket,
        path: Arc<dyn FabricPath>,
        connection: Option<ConnectionId>,
        lasts: Option<oneshot::Sender<()>>,
    ) {
        self.has_been_used = true;
        self.users.insert(ticket, LinkUser { path, connection, given: 0, _lasts: lasts });
    }

    /// Tells the users how much of what they have given has left.
    fn note_sent(&self) {
        for user in self.users.values() {
            if let Some(connection) = user.connection {
                let held = held_bytes(&self.transport, connection) as u64;
                user.path.note_sent(user.given.saturating_sub(held));
            }
        }
    }

    fn give_account(&self) {
        let links = self.tickets.len();
        *lock(&self.pair.account) = PairCounters { counters: self.transport.counters(), links };
    }

    /// All that was to come is lost.
    fn end(&mut self) {
        // First no command can be added; then those that were are lost.
        let left = lock(&self.pair.commands).take();
        left.into_iter().flatten().for_each(PairCommand::be_void);
        for user in std::mem::take(&mut self.users).into_values() {
            user.path.lost();
        }
        self.tickets.clear();
        self.give_account();
    }
}
