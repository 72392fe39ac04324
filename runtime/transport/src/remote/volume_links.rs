//! The links of a client to the processes of a volume, and the node map by which it chooses.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{Either, select};
use runtime::ids::{NodeId, NodeKind};
use runtime::mail::Envelope;
use runtime::net::Address;
use runtime::protocol::Undelivered;

use super::contact::{Contact, contact};
use super::outage::OutageLog;
use super::process_link::{OutgoingCall, ProcessLink, goodbye};
use super::{ClientEnvironment, ClientOptions, ClientState};
use crate::frame::{ClientMap, NO_PROCESS};

/// Calls that wait for one process that is away or busy, with those for which there is no process,
/// at most; further ones are refused as `Busy`.
pub const WAITING_MAX: usize = 16 << 10;
/// How often calls that wait are looked at.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// How long servers that are away are tried for the first time; those of this host are not.
const FIRST_CONTACT_MAX: Duration = Duration::from_secs(10);
/// The pause before they are all tried again.
const FIRST_CONTACT_PAUSE: Duration = Duration::from_millis(200);
/// The first pause before a call is sent again that was not done; each later one is twice as long,
/// up to the last.
const AGAIN_PAUSE: Duration = Duration::from_millis(5);
const AGAIN_PAUSE_MAX: Duration = Duration::from_millis(500);
/// The pause between two contacts for the sake of the map.
const PROBE_INTERVAL: Duration = Duration::from_millis(300);
/// How often the last calls are looked at before the end.
const LAST_CALLS_PAUSE: Duration = Duration::from_millis(1);

/// The links of one client.
pub struct VolumeLinks {
    pub(super) environment: Rc<dyn ClientEnvironment>,
    pub(super) options: ClientOptions,
    /// The addresses that were given.
    seeds: Vec<Address>,
    session: u128,
    /// The number of the latest link.
    link: Cell<u64>,
    /// The number of the next call: no two links count alike, since a process may know the session
    /// from an earlier one.
    call: Cell<u64>,
    map: RefCell<ClientMap>,
    /// By number of the process; 0 if one process answers for all nodes.
    links: RefCell<BTreeMap<u32, Rc<ProcessLink>>>,
    /// Calls to nodes that no process answers for now.
    unrouted: RefCell<Vec<OutgoingCall>>,
    /// Which address is asked next for a newer map.
    next_probe: Cell<usize>,
    is_probing: Cell<bool>,
    is_checking: Cell<bool>,
    /// Calls that wait for their next try.
    resting: Cell<usize>,
    outages: OutageLog,
    pub(super) state: Arc<ClientState>,
    pub(super) is_closed: Cell<bool>,
}

impl std::fmt::Debug for VolumeLinks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VolumeLinks").field("seeds", &self.seeds).finish_non_exhaustive()
    }
}

impl VolumeLinks {
    /// Contacts one of the servers at `seeds`. Fails if none lets the client in.
    pub async fn open(
        environment: Rc<dyn ClientEnvironment>,
        seeds: Vec<Address>,
        options: ClientOptions,
        session: u128,
        state: Arc<ClientState>,
    ) -> io::Result<Rc<Self>> {
        let outages = OutageLog::new(options.outages.clone());
        let links = Rc::new(Self {
            environment,
            options,
            seeds,
            session,
            link: Cell::new(0),
            call: Cell::new(1),
            map: RefCell::default(),
            links: RefCell::default(),
            unrouted: RefCell::default(),
            next_probe: Cell::new(0),
            is_probing: Cell::new(false),
            is_checking: Cell::new(false),
            resting: Cell::new(0),
            outages,
            state,
            is_closed: Cell::new(false),
        });
        let first = links.first_contact_shown().await?;
        let welcome = &first.welcome;
        let (client, process) = (welcome.client, welcome.process);
        let answers_for_all = welcome.map.processes.is_empty();
        let state = &links.state;
        state.client.store(client, Relaxed);
        if let Some(root) = first.root {
            // The first one counts: later links may lead to another directory of the same name.
            state.root.get_or_init(|| root);
        }
        state.fs_nodes.store(welcome.map.fs_nodes, Relaxed);
        state.epoch.store(welcome.map.epoch, Relaxed);
        state.transfers.set_client(client);
        let map = &welcome.map;
        state.transfers.set_map(map.processes.len(), &map.hosts, map.unit);
        links.map.replace(welcome.map.clone());
        if let Some(link) = links.link_to(if answers_for_all { 0 } else { process }) {
            link.adopt(first);
        }
        Ok(links)
    }

    async fn first_contact(&self) -> io::Result<Contact> {
        let start = self.environment.now();
        loop {
            let mut failure = io::Error::from(io::ErrorKind::NotFound);
            // Final is a refusal by all: some may only not know yet what they need to know.
            let mut is_final = true;
            for seed in &self.seeds {
                match self.contact(seed, None).await {
                    Ok(contact) => return Ok(contact),
                    Err(error) => failure = error,
                }
                is_final &= failure.kind() == io::ErrorKind::PermissionDenied;
            }
            let is_local = self.seeds.iter().all(|seed| matches!(seed, Address::Unix(_)));
            if is_local
                || is_final
                || self.environment.now().saturating_sub(start) > FIRST_CONTACT_MAX
            {
                return Err(failure);
            }
            self.environment.sleep(FIRST_CONTACT_PAUSE).await;
        }
    }

    /// As `first_contact`; how long it takes is shown.
    async fn first_contact_shown(&self) -> io::Result<Contact> {
        let contacting = pin!(self.first_contact());
        let Either::Left((contact, _)) = select(contacting, pin!(self.note_first_wait())).await;
        self.outages.clear();
        contact
    }

    /// Takes note of how long no server has let the client in.
    async fn note_first_wait(&self) -> Infallible {
        let start = self.environment.now();
        loop {
            self.environment.sleep(CHECK_INTERVAL).await;
            let waited = self.environment.now().saturating_sub(start);
            self.outages.update_first_contact(waited);
        }
    }

    pub(super) fn waits_for_ever(&self) -> bool {
        self.options.timeout.is_none()
    }

    /// Makes the next link of the session to the server at `address`.
    pub(super) async fn contact(
        &self,
        address: &Address,
        process: Option<u32>,
    ) -> io::Result<Contact> {
        let session = (self.session, self.next_link());
        contact(&*self.environment, address, &self.options, session, process).await
    }

    fn next_link(&self) -> u64 {
        self.link.set(self.link.get() + 1);
        self.link.get()
    }

    pub(super) fn next_call(&self) -> u64 {
        self.call.set(self.call.get() + 1);
        self.call.get()
    }

    /// The number of the latest call on any link.
    pub(super) fn last_call(&self) -> u64 {
        self.call.get()
    }

    /// Brings a request to its node. `Busy` if too many wait already: who asks waits then, and asks
    /// again.
    pub fn send(self: &Rc<Self>, envelope: Envelope) {
        if self.waiting_for(envelope.to) >= WAITING_MAX {
            return envelope.message.refuse(Undelivered::Busy);
        }
        let now = self.environment.now();
        let deadline = self.options.timeout.map(|timeout| now + timeout);
        self.route(OutgoingCall::new(envelope, now, deadline));
        if self.state.transfers.take_wanted() {
            self.link_to_all();
        }
        self.check_while_calls_wait();
    }

    /// Calls that are before one to `node` and were not sent, or are to be sent again.
    fn waiting_for(&self, node: NodeId) -> usize {
        let process = self.process_of(node);
        let links = self.links.borrow();
        let link = process.and_then(|process| links.get(&process));
        self.resting.get() + self.unrouted.borrow().len() + link.map_or(0, |link| link.waiting())
    }

    /// Brings a call to the link of the process that answers for its node.
    fn route(self: &Rc<Self>, call: OutgoingCall) {
        let Some(process) = self.process_of(call.node()) else {
            return call.fail(Undelivered::Unreachable);
        };
        match self.link_to(process) {
            Some(link) => link.push(call),
            None => self.unrouted.borrow_mut().push(call),
        }
    }

    /// Connects to the processes to which there is no link: they deliver bytes.
    fn link_to_all(self: &Rc<Self>) {
        let processes: Vec<u32> =
            self.map.borrow().processes.iter().map(|process| process.number).collect();
        for link in processes.into_iter().filter_map(|process| self.link_to(process)) {
            link.connect_soon();
        }
    }

    /// The process that answers for `node`; none if there is no such node.
    fn process_of(&self, node: NodeId) -> Option<u32> {
        let map = self.map.borrow();
        let NodeKind::Fs(index) = node.kind() else { return None };
        if index >= map.fs_nodes {
            return None;
        }
        if map.processes.is_empty() {
            return Some(0);
        }
        Some(map.hosts.get(index as usize).copied().unwrap_or(NO_PROCESS))
    }

    /// The link to a process; a new one if there is none. None if the map has no such process.
    fn link_to(self: &Rc<Self>, process: u32) -> Option<Rc<ProcessLink>> {
        if let Some(link) = self.links.borrow().get(&process) {
            return Some(link.clone());
        }
        let (incarnation, addresses) = if process == 0 {
            (0, self.seeds.clone())
        } else {
            let map = self.map.borrow();
            let known = map.processes.iter().find(|known| known.number == process)?;
            (known.incarnation, vec![Address::Tcp(known.address.clone())])
        };
        let link = ProcessLink::new(self.clone(), process, incarnation, addresses);
        self.links.borrow_mut().insert(process, link.clone());
        Some(link)
    }

    /// A process has answered that knows nothing of the client's earlier calls there.
    pub(super) fn note_restart(&self) {
        self.state.restarts.fetch_add(1, Relaxed);
    }

    /// The epoch of the map that the client has.
    pub(super) fn epoch(&self) -> u64 {
        self.map.borrow().epoch
    }

    /// Follows a newer map: calls to processes that are gone are lost if they were sent.
    pub(super) fn take_map(self: &Rc<Self>, map: ClientMap) {
        if map.epoch <= self.epoch() {
            return;
        }
        self.state.epoch.store(map.epoch, Relaxed);
        self.state.transfers.set_map(map.processes.len(), &map.hosts, map.unit);
        let is_current = |link: &ProcessLink| {
            let it = map.processes.iter().find(|it| it.number == link.process());
            map.processes.is_empty() || it.is_some_and(|it| link.leads_to(it))
        };
        let gone: Vec<Rc<ProcessLink>> = self
            .links
            .borrow_mut()
            .extract_if(.., |_, link| !is_current(link))
            .map(|it| it.1)
            .collect();
        self.map.replace(map);
        for link in gone {
            for call in link.abandon() {
                self.route(call);
            }
        }
        for call in self.unrouted.take() {
            self.route(call);
        }
    }

    /// A process has not done `call`, and says why: it is sent again after a pause.
    pub(super) fn send_later(self: &Rc<Self>, mut call: OutgoingCall, why: Undelivered) {
        if why != Undelivered::Busy {
            self.ask_for_map();
        }
        let pause = call.pause.map_or(AGAIN_PAUSE, |last| AGAIN_PAUSE_MAX.min(2 * last));
        call.pause = Some(pause);
        self.resting.set(self.resting.get() + 1);
        let (links, slept) = (self.clone(), self.environment.sleep(pause));
        let resting = async move {
            slept.await;
            links.resting.set(links.resting.get() - 1);
            if call.is_over(links.environment.now()) {
                call.fail(Undelivered::TimedOut);
            } else {
                links.route(call);
            }
        };
        self.environment.task(resting.boxed_local());
    }

    /// Asks for a newer map: the processes to which there are connections, else any.
    fn ask_for_map(self: &Rc<Self>) {
        let links: Vec<Rc<ProcessLink>> = self.links.borrow().values().cloned().collect();
        let asked = links.iter().filter(|link| link.ping()).count();
        if asked == 0 {
            self.look_for_map();
        }
    }

    /// Asks other processes than those to which there are connections, one after the other: these
    /// may be cut off from the rest.
    pub(super) fn look_for_map(self: &Rc<Self>) {
        // One that answers for all nodes has no map to follow.
        if self.map.borrow().processes.is_empty() || self.is_probing.replace(true) {
            return;
        }
        let links = self.clone();
        let probe = async move {
            links.probe().await;
            links.environment.sleep(PROBE_INTERVAL).await;
            links.is_probing.set(false);
        };
        self.environment.task(probe.boxed_local());
    }

    /// Contacts the next server for its map alone, in a session of its own.
    async fn probe(self: &Rc<Self>) {
        let known = self.map.borrow().processes.clone();
        let mut all = self.seeds.clone();
        for process in known {
            let address = Address::Tcp(process.address);
            if !all.contains(&address) {
                all.push(address);
            }
        }
        let index = self.next_probe.get();
        self.next_probe.set(index + 1);
        let (address, session) = (&all[index % all.len()], (!self.session, self.next_link()));
        let found = contact(&*self.environment, address, &self.options, session, None).await;
        if let Ok(Contact { welcome, mut writer, .. }) = found {
            self.take_map(welcome.map);
            // It may be gone again.
            let _ = writer.write(goodbye()).await;
        }
    }

    /// Looks after calls that wait, for as long as there are any.
    fn check_while_calls_wait(self: &Rc<Self>) {
        if self.is_checking.replace(true) {
            return;
        }
        let links = self.clone();
        let checking = async move {
            while !links.is_idle() && !links.is_closed.get() {
                links.environment.sleep(CHECK_INTERVAL).await;
                // The last time when none waits any more: then there is no outage.
                links.check();
            }
            links.is_checking.set(false);
        };
        self.environment.task(checking.boxed_local());
    }

    fn check(self: &Rc<Self>) {
        let now = self.environment.now();
        let links: Vec<Rc<ProcessLink>> = self.links.borrow().values().cloned().collect();
        let mut is_stuck = !self.unrouted.borrow().is_empty();
        for link in &links {
            link.expire(now);
            if link.is_worth_looking(now) {
                self.look_for_map();
            }
            // Nothing waits for one that only was to deliver.
            is_stuck |= link.is_down() && !link.is_idle();
        }
        self.note_outages(&links, now);
        let late: Vec<OutgoingCall> =
            self.unrouted.borrow_mut().extract_if(.., |call| call.is_over(now)).collect();
        for call in late {
            call.fail(Undelivered::TimedOut);
        }
        if is_stuck || self.resting.get() > 0 {
            self.ask_for_map();
            self.look_for_map();
        }
    }

    /// Takes note of the processes that calls wait for, and of calls to nodes without a process.
    fn note_outages(&self, links: &[Rc<ProcessLink>], now: Duration) {
        let silences = links.iter().map(|link| (link.process(), link.silent_for(now)));
        let unrouted = self.unrouted.borrow();
        let unrouted = unrouted.iter().map(|call| (NO_PROCESS, call.age(now))).max();
        self.outages.update(silences.chain(unrouted));
    }

    fn is_idle(&self) -> bool {
        self.resting.get() == 0
            && self.unrouted.borrow().is_empty()
            && self.links.borrow().values().all(|link| link.is_idle())
    }

    /// Waits for the last calls, not longer than `longest`, and ends all links.
    pub async fn finish(&self, longest: Duration) {
        let start = self.environment.now();
        while !self.is_idle() && self.environment.now().saturating_sub(start) < longest {
            self.environment.sleep(LAST_CALLS_PAUSE).await;
        }
        for link in self.links.take().into_values() {
            link.say_goodbye().await;
        }
        self.is_closed.set(true);
        self.options.fabric.close();
    }
}
