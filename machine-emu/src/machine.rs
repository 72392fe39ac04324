//! The machine as one incarnation of one node sees it.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, pending, ready};
use runtime::buffer::Pool;
use runtime::disk::Disk;
use runtime::mail::Envelope;
use runtime::net::{Address, Listener};
use runtime::{Class, Epoch, Host, Machine, NodeId, NodeKind, SharedServers, Undelivered};

use crate::core::Core;
use crate::node::{NodeInstance, dead};
use crate::tasks::TaskKind;

/// Each node is a process of its own: it calls itself directly and all others through the network.
pub(crate) struct NodeMachine {
    core: Rc<Core>,
    instance: Rc<NodeInstance>,
}

impl NodeMachine {
    pub(crate) fn new(core: Rc<Core>, instance: Rc<NodeInstance>) -> Rc<Self> {
        Rc::new(Self { core, instance })
    }
}

impl Machine for NodeMachine {
    fn fs_nodes(&self) -> u32 {
        self.core.kernel.shape.fs_nodes
    }

    fn disk_nodes(&self) -> u32 {
        self.core.kernel.shape.disk_nodes
    }

    fn epoch(&self) -> Epoch {
        self.instance.epoch.get()
    }

    fn host(&self, node: NodeId) -> Option<Rc<Host>> {
        // A dead node's calls of itself are answered by a host that serves nothing.
        (node == self.instance.id).then(|| {
            let living = self.instance.living_host();
            living.unwrap_or_else(|| Host::new(node, self.epoch()))
        })
    }

    fn send(&self, envelope: Envelope) {
        if self.instance.alive() {
            self.core.network.send(self.instance.node, envelope);
        } else {
            envelope.message.refuse(Undelivered::Unreachable);
        }
    }

    fn shares_failure_domain(&self, _: NodeId, other: NodeId) -> bool {
        matches!(other.kind(), NodeKind::Fs(_)) && self.core.is_one_process(self.instance.id, other)
    }

    fn process_of(&self, node: NodeId) -> Option<u32> {
        self.core.process_of(node)
    }

    fn shared_servers(&self) -> Option<&SharedServers> {
        self.core.shared_servers_of(self.instance.id)
    }

    fn now(&self, _: NodeId) -> Duration {
        let kernel = &self.core.kernel;
        let now_ns = kernel.now_ns();
        let now = kernel.with_node(self.instance.node, |node| node.clock.monotonic(now_ns));
        now.unwrap_or_default()
    }

    fn unix_time(&self, _: NodeId) -> Duration {
        let kernel = &self.core.kernel;
        let now_ns = kernel.now_ns();
        let now = kernel.with_node(self.instance.node, |node| node.clock.unix(now_ns));
        now.unwrap_or_default()
    }

    fn sleep(&self, _: NodeId, duration: Duration) -> LocalBoxFuture<'static, ()> {
        if !self.instance.alive() {
            return pending().boxed_local();
        }
        let kernel = &self.core.kernel;
        let seen_ns = duration.as_nanos() as u64;
        let takes_ns = kernel.with_node(self.instance.node, |node| node.clock.takes_ns(seen_ns));
        kernel.alarm_in(takes_ns.unwrap_or(seen_ns)).boxed_local()
    }

    fn random(&self, _: NodeId) -> u64 {
        self.instance.rng.borrow_mut().bits()
    }

    fn task(&self, _: NodeId, task: LocalBoxFuture<'static, ()>) {
        if self.instance.alive() {
            let mut tasks = self.core.kernel.tasks.borrow_mut();
            tasks.spawn(self.instance.node, Class::Bulk, TaskKind::Plain(task));
        }
    }

    fn idle(&self, _: NodeId) -> LocalBoxFuture<'static, ()> {
        if !self.instance.alive() {
            return pending().boxed_local();
        }
        self.core.kernel.idle_alarm(self.instance.node).boxed_local()
    }

    fn pool(&self) -> &Pool {
        &self.instance.pool
    }

    fn open_disk(
        &self,
        _: NodeId,
        path: &str,
    ) -> LocalBoxFuture<'static, io::Result<Rc<dyn Disk>>> {
        let alive = self.instance.alive();
        let opened = if alive { self.core.disks.open(&self.instance, path) } else { Err(dead()) };
        ready(opened).boxed_local()
    }

    fn listen(
        &self,
        _: NodeId,
        address: &Address,
    ) -> LocalBoxFuture<'static, io::Result<Box<dyn Listener>>> {
        let listener = if self.instance.alive() {
            self.core.streams.listen(self.instance.node, address)
        } else {
            Err(dead())
        };
        ready(listener).boxed_local()
    }
}
