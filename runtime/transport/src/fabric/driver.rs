//! The thread of a pair: drives its endpoint. It is never joined.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use ::fabric::FabricError;
use ::fabric::transport::{BulkPart, ConnectionId, FabricEvent, Loss, Transport};
use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::oneshot;

use super::pair::{FabricPair, PairCommand, PairCounters, Ticket, thread};
use super::paths::{RequestPath, ServedLink};
use super::shared::{FabricShared, Peer};
use crate::frame::{FabricAnswer, kind, unpack};
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
enum LinkRole {
    Asks(Arc<RequestPath>),
    Serves(
        Arc<ServedLink>,
        #[expect(dead_code, reason = "its end is what it tells")] oneshot::Sender<()>,
    ),
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
    parties: BTreeMap<Ticket, (LinkRole, Option<ConnectionId>)>,
    tickets: BTreeMap<ConnectionId, Ticket>,
    worked: Instant,
}

impl PairDriver<'_> {
    /// Starts the thread of a pair, which opens the endpoint.
    pub(super) fn start(shared: Arc<FabricShared>, peer: Peer) -> io::Result<Arc<FabricPair>> {
        let pair = Arc::new(FabricPair::new(peer)?);
        let own = pair.clone();
        thread("mdfs-fabric", move || PairDriver::run(&own, &shared))?;
        Ok(pair)
    }

    fn run(pair: &Arc<FabricPair>, shared: &FabricShared) {
        let provider = pair.provider();
        let end = match Transport::open(shared.setup(provider)) {
            Ok(transport) => {
                let mut driver = PairDriver {
                    pair: pair.clone(),
                    shared,
                    waitable: transport.link().waitable(),
                    transport,
                    parties: BTreeMap::new(),
                    tickets: BTreeMap::new(),
                    worked: now(),
                };
                let end = driver.work();
                driver.end();
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
        loop {
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
            if has_worked {
                self.worked = now();
            } else if let Some(end) = self.rest() {
                return end;
            }
            if polls % POLLS_PER_ACCOUNT == 0 {
                self.give_account();
            }
        }
    }

    /// Nothing was to be done: looks again, or sleeps.
    fn rest(&mut self) -> Option<PairEnd> {
        let idle = now().duration_since(self.worked);
        if idle < AWAKE {
            // Other threads come first.
            std::thread::yield_now();
            return None;
        }
        if self.parties.is_empty() && idle > UNUSED_MAX {
            return Some(PairEnd::Unused);
        }
        if !self.transport.may_rest() {
            return None;
        }
        self.give_account();
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
        None
    }

    fn obey(&mut self, command: PairCommand) -> Result<(), PairEnd> {
        let failed = |error: FabricError| PairEnd::Failed(error.to_string());
        match command {
            PairCommand::Connect { address, key, way } => {
                self.transport.policy = self.shared.policy(self.pair.provider());
                let connection =
                    self.transport.connect(&address, way.ticket, key).map_err(failed)?;
                self.tickets.insert(connection, way.ticket);
                self.parties.insert(way.ticket, (LinkRole::Asks(way), Some(connection)));
            }
            PairCommand::Admit { ticket, key, served, tell, lasts } => {
                self.transport.policy = self.shared.policy(self.pair.provider());
                self.transport.admit(ticket, key).map_err(failed)?;
                self.parties.insert(ticket, (LinkRole::Serves(served, lasts), None));
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
                let bulk = bulk.into_iter().map(BulkPart::Bytes).collect();
                match self.transport.send(connection, head, bulk) {
                    // A connection that is over has lost its calls.
                    Ok(()) | Err(FabricError::NotConnected { .. }) => {}
                    Err(error) => return Err(failed(error)),
                }
            }
            PairCommand::Leave { ticket } => {
                self.transport.revoke(&ticket);
                if let Some((_, Some(connection))) = self.parties.remove(&ticket) {
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
                let Some((party, its)) = self.parties.get_mut(&ticket) else { return Ok(()) };
                *its = Some(connection);
                self.tickets.insert(connection, ticket);
                match party {
                    LinkRole::Asks(way) => way.opened(connection),
                    LinkRole::Serves(served, _) => served.opened(connection),
                }
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
                let party = ticket.and_then(|ticket| self.parties.remove(&ticket));
                if let Some((LinkRole::Asks(way), _)) = party {
                    drop(way.lose());
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
        let party = self.tickets.get(&connection).and_then(|ticket| self.parties.get(ticket));
        let Some((party, _)) = party else { return true };
        let Some(frame) = unpack(head, bulk) else { return false };
        match party {
            LinkRole::Serves(served, _) => served.take(frame),
            LinkRole::Asks(way) if frame.header.kind == kind::REPLY => {
                way.take(frame);
                true
            }
            LinkRole::Asks(_) => false,
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
        for (party, _) in std::mem::take(&mut self.parties).into_values() {
            if let LinkRole::Asks(way) = party {
                drop(way.lose());
            }
        }
        self.tickets.clear();
        self.give_account();
    }
}
