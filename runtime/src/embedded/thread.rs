//! What the nodes of one thread see of the machine.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;

use tracing::Instrument as _;

use super::disk::{self, Ring};
use super::inbox::Inbox;
use super::net;
use super::shared::{MachineShared, bind, spawn};
use super::spin::SpinState;
use super::unpredictable::UnpredictableNumbers;
use crate::Table;
use crate::buffer::Pool;
use crate::context::Context;
use crate::deadline::Deadline;
use crate::disk::Disk;
use crate::host::Host;
use crate::ids::{Epoch, NodeId, NodeKind};
use crate::machine::{Ingress, Machine};
use crate::mail::Envelope;
use crate::net::{Address, Listener};
use crate::protocol::Undelivered;
use crate::remote_nodes::{Outbound, RemoteNodes};
use crate::shared_server::SharedServers;

/// How often a node that waits for idleness looks again.
const IDLE_PAUSE: Duration = Duration::from_micros(500);

thread_local! {
    static MACHINE: RefCell<Option<Rc<MachineThread>>> = const { RefCell::new(None) };
}

struct MachineThread {
    shared: Arc<MachineShared>,
    start: Instant,
    hosts: RefCell<Table<NodeId, Rc<Host>>>,
    random: RefCell<UnpredictableNumbers>,
    spin: Rc<SpinState>,
    /// Which of the machine's threads it is.
    number: usize,
    /// Requests that came before their node was brought up here.
    early: RefCell<Vec<Envelope>>,
    /// To other processes, if there are any.
    links: RefCell<Option<Rc<dyn Outbound>>>,
    /// Made when the first disk is opened.
    ring: RefCell<Option<Rc<Ring>>>,
}

impl MachineThread {
    fn inbox(&self) -> &Inbox {
        &self.shared.inboxes[self.number]
    }

    /// Lets a node of this thread answer: at once, if it can, else in a task.
    fn deliver(&self, envelope: Envelope) {
        let Some(host) = self.host(envelope.to) else {
            if self.shared.place(envelope.to) == Some(self.number) {
                // It will be brought up in a moment.
                return self.early.borrow_mut().push(envelope);
            }
            return envelope.message.refuse(Undelivered::Unreachable);
        };
        let Envelope { message, span, .. } = envelope;
        if span.is_disabled() {
            if let Some(message) = message.answer_now(&host) {
                spawn(message.deliver(host));
            }
        } else {
            spawn(message.deliver(host).instrument(span));
        }
    }

    fn ring(&self) -> io::Result<Rc<Ring>> {
        let mut ring = self.ring.borrow_mut();
        if let Some(ring) = &*ring {
            return Ok(ring.clone());
        }
        Ok(ring.insert(Ring::new()?).clone())
    }
}

/// Makes the current thread part of the machine.
#[allow(clippy::disallowed_methods, reason = "the machine itself gives the time")]
pub(super) fn enter(shared: Arc<MachineShared>, number: usize) {
    bind(shared.clone());
    let links = shared.remote.clone().map(RemoteNodes::links);
    let machine = MachineThread {
        shared,
        start: Instant::now(),
        hosts: RefCell::default(),
        random: RefCell::new(UnpredictableNumbers::new()),
        spin: Rc::default(),
        number,
        early: RefCell::default(),
        links: RefCell::new(links),
        ring: RefCell::default(),
    };
    MACHINE.set(Some(Rc::new(machine)));
}

/// Drops the nodes: their servers hold contexts and so the machine, which holds the nodes.
/// Waits for the disks, so that the next process to open them meets no late write.
pub(super) fn leave() {
    let left = MACHINE.with_borrow(|machine| {
        let machine = machine.as_ref()?;
        machine.inbox().close();
        Some((machine.hosts.take(), machine.links.take(), machine.ring.take()))
    });
    let Some((hosts, links, ring)) = left else { return };
    for host in hosts.values() {
        host.invalidate_published();
    }
    drop((hosts, links));
    if let Some(ring) = ring {
        ring.close();
    }
}

fn machine() -> Rc<MachineThread> {
    MACHINE.with_borrow(Clone::clone).expect("the thread has entered the machine")
}

/// Adds a node to the current thread.
pub(super) fn add_host(node: NodeId, epoch: Epoch) {
    let machine = machine();
    let deadline = machine.shared.deadline.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let host = Host::until(node, epoch, deadline);
    machine.hosts.borrow_mut().insert(node, host);
    for envelope in machine.early.take() {
        machine.deliver(envelope);
    }
}

/// Ends the life of a node of this thread.
pub(super) fn remove_host(node: NodeId) {
    let host = machine().hosts.borrow_mut().remove(&node);
    if let Some(host) = host {
        host.end();
    }
}

/// The nodes of this thread live in `epoch` from now on, and the links follow the node map.
pub(super) fn begin_epoch(epoch: Epoch) {
    let machine = machine();
    let hosts: Vec<Rc<Host>> = machine.hosts.borrow().values().cloned().collect();
    for host in hosts {
        host.set_epoch(epoch);
    }
    let links = machine.links.borrow().clone();
    if let Some(links) = links {
        links.update();
    }
}

/// Sends a request to a node of another process.
pub(super) fn send_away(envelope: Envelope) {
    let links = machine().links.borrow().clone();
    match links {
        Some(links) => links.send(envelope),
        None => envelope.message.refuse(Undelivered::Unreachable),
    }
}

/// The context of a node of the current thread.
pub(super) fn context(node: NodeId) -> Context {
    Context::new(node, machine())
}

/// To be called when something has come from another thread.
pub(super) fn note_work() {
    machine().spin.note_work();
}

/// The thread looks into its inbox by itself from now on.
pub(super) fn wake_inbox() {
    machine().inbox().wake();
}

/// Lets the nodes answer what has come; false if nothing has.
pub(super) fn empty_inbox() -> bool {
    let machine = machine();
    let taken = machine.inbox().take();
    let came = !taken.is_empty();
    for envelope in taken {
        machine.deliver(envelope);
    }
    came
}

/// The thread is to be told from now on; false if something has come just now.
pub(super) fn leave_inbox() -> bool {
    machine().inbox().sleep()
}

impl Machine for MachineThread {
    fn fs_nodes(&self) -> u32 {
        self.shared.config.fs_nodes
    }

    fn disk_nodes(&self) -> u32 {
        self.shared.disk_nodes.load(Relaxed)
    }

    fn epoch(&self) -> Epoch {
        Epoch(self.shared.epoch.load(Relaxed))
    }

    fn host(&self, node: NodeId) -> Option<Rc<Host>> {
        self.hosts.borrow().get(&node).cloned()
    }

    fn send(&self, envelope: Envelope) {
        // The answer will come soon.
        self.spin.note_work();
        if let Err(envelope) = self.shared.send_here(envelope) {
            send_away(envelope);
        }
    }

    fn is_here(&self, node: NodeId) -> bool {
        self.shared.place(node).is_some()
    }

    fn open_port(&self, node: NodeId) -> Option<Rc<Host>> {
        if !matches!(node.kind(), NodeKind::Application(_)) {
            return None;
        }
        let host = Host::new(node, self.epoch());
        self.hosts.borrow_mut().insert(node, host.clone());
        let mut ports = self.shared.ports.write().unwrap_or_else(PoisonError::into_inner);
        ports.insert(node, self.number);
        Some(host)
    }

    fn now(&self, _: NodeId) -> Duration {
        self.start.elapsed()
    }

    #[allow(clippy::disallowed_methods, reason = "the machine itself gives the time")]
    fn unix_time(&self, _: NodeId) -> Duration {
        // A clock before 1970 is not set; zero says so as well as an error would.
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
    }

    #[allow(clippy::disallowed_methods, reason = "the machine itself gives the time")]
    fn sleep(&self, _: NodeId, duration: Duration) -> LocalBoxFuture<'static, ()> {
        tokio::time::sleep(duration).boxed_local()
    }

    fn random(&self, _: NodeId) -> u64 {
        self.random.borrow_mut().next()
    }

    fn task(&self, node: NodeId, task: LocalBoxFuture<'static, ()>) {
        match self.host(node) {
            Some(host) => spawn(host.within_life(task).map(|_| ())),
            None => spawn(task),
        }
    }

    #[allow(clippy::disallowed_methods, reason = "the machine itself gives the time")]
    fn idle(&self, node: NodeId) -> LocalBoxFuture<'static, ()> {
        let host = self.host(node);
        async move {
            // Always a pause first, so that a loop of waits does not keep the thread busy.
            tokio::time::sleep(IDLE_PAUSE).await;
            while host.as_ref().is_some_and(|host| host.running() > 0) {
                tokio::time::sleep(IDLE_PAUSE).await;
            }
        }
        .boxed_local()
    }

    fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    fn process_of(&self, node: NodeId) -> Option<u32> {
        self.shared.remote.as_ref()?.process_of(node)
    }

    fn incarnation_of(&self, node: NodeId) -> Option<u64> {
        self.shared.remote.as_ref()?.incarnation_of(node)
    }

    /// The nodes of one process end together.
    fn shares_failure_domain(&self, _: NodeId, other: NodeId) -> bool {
        !matches!(other.kind(), NodeKind::Application(_)) && self.is_here(other)
    }

    fn shared_servers(&self) -> Option<&SharedServers> {
        Some(&self.shared.shared_servers)
    }

    fn answer_until(&self, _: NodeId, until: Duration) {
        // In this order: a pause between the two makes the deadline earlier, never later.
        let begin = Deadline::now();
        let rest = until.saturating_sub(self.start.elapsed());
        let mut deadline = self.shared.deadline.lock().unwrap_or_else(PoisonError::into_inner);
        if until.is_zero() {
            return deadline.end();
        }
        if deadline.has_ended() {
            // For the nodes that begin from now on.
            *deadline = Arc::default();
        }
        deadline.set(begin, rest);
    }

    fn ingress(&self) -> Option<Arc<dyn Ingress>> {
        Some(self.shared.clone())
    }

    fn open_disk(
        &self,
        _: NodeId,
        path: &str,
    ) -> LocalBoxFuture<'static, io::Result<Rc<dyn Disk>>> {
        let access = self.shared.config.disk_access;
        disk::open(path.into(), self.shared.pool.clone(), access, self.ring()).boxed_local()
    }

    fn listen(
        &self,
        _: NodeId,
        address: &Address,
    ) -> LocalBoxFuture<'static, io::Result<Box<dyn Listener>>> {
        net::listen(address.clone())
    }
}
