//! One sequence of calls for all coordination engines: sled, etcd and the simulated one keep the
//! same promises (`runtime/cluster/src/coordination/mod.rs`).
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod etcd;
mod etcd_members;
mod rules;

use std::rc::Rc;
use std::time::Duration;

use cluster::coordination::{Coordination, Sled};
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use machine_emu::{EngineStore, SimulatedEngine, World, WorldShape};
use runtime::NodeId;

/// An engine under test, and what is around it.
trait Arm {
    /// A client; all of them see the same store.
    fn client(&self) -> Rc<dyn Coordination>;
    /// Waits, by the clock of the engine.
    fn sleep(&self, duration: Duration) -> LocalBoxFuture<'static, ()>;
    /// The engine dies, and comes back.
    fn restart(&self) -> LocalBoxFuture<'_, ()>;
    /// It is part of its clients' process: they die with it.
    fn dies_with_clients(&self) -> bool {
        false
    }
}

/// sled's process is this one: it closes the store and opens it again.
struct SledArm {
    directory: tempfile::TempDir,
    engine: std::cell::RefCell<Option<Sled>>,
}

#[allow(clippy::disallowed_methods, reason = "this test runs on the host's clock")]
fn host_sleep(duration: Duration) -> LocalBoxFuture<'static, ()> {
    tokio::time::sleep(duration).boxed_local()
}

impl Arm for SledArm {
    fn client(&self) -> Rc<dyn Coordination> {
        Rc::new(self.engine.borrow().clone().expect("it is open"))
    }
    fn sleep(&self, duration: Duration) -> LocalBoxFuture<'static, ()> {
        host_sleep(duration)
    }
    fn restart(&self) -> LocalBoxFuture<'_, ()> {
        self.engine.take();
        *self.engine.borrow_mut() = Some(Sled::open(self.directory.path()).unwrap());
        futures::future::ready(()).boxed_local()
    }
    fn dies_with_clients(&self) -> bool {
        true
    }
}

/// The simulated one is at a disk node, the clients are applications.
struct SimulatedArm {
    world: World,
    store: EngineStore,
    clients: std::cell::Cell<u32>,
}

const ENGINE: NodeId = NodeId::disk(0);

impl Arm for SimulatedArm {
    fn client(&self) -> Rc<dyn Coordination> {
        let node = NodeId::application(self.clients.replace(self.clients.get() + 1));
        Rc::new(SimulatedEngine::new(self.world.context(node), ENGINE))
    }
    fn sleep(&self, duration: Duration) -> LocalBoxFuture<'static, ()> {
        self.world.context(NodeId::application(0)).sleep(duration)
    }
    fn restart(&self) -> LocalBoxFuture<'_, ()> {
        self.world.kill(ENGINE);
        self.store.serve(&self.world.restart(ENGINE));
        futures::future::ready(()).boxed_local()
    }
}

fn on_host(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test);
}

#[test]
fn sled_keeps_the_promises() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Some(Sled::open(directory.path()).unwrap()).into();
    on_host(async { rules::all(&SledArm { directory, engine }).await });
}

#[test]
fn the_simulated_engine_keeps_the_promises() {
    for seed in 0..3 {
        let world = World::new(seed, WorldShape { fs_nodes: 1, disk_nodes: 1 });
        let store = EngineStore::default();
        store.serve(&world.context(ENGINE));
        let arm = SimulatedArm { world: world.clone(), store, clients: 0.into() };
        world.run(async move { rules::all(&arm).await });
    }
}

#[test]
fn etcd_keeps_the_promises() {
    on_host(async {
        let arm = etcd::EtcdArm::new(None).await;
        etcd::prefixes_are_apart(&arm).await;
        rules::all(&arm).await;
    });
}

#[test]
fn etcd_keeps_the_promises_to_those_it_knows_by_certificate() {
    let certificates = etcd::Certificates::new();
    on_host(async {
        let arm = etcd::EtcdArm::new(Some(certificates)).await;
        etcd::a_stranger_is_refused(&arm).await;
        rules::all(&arm).await;
    });
}

#[test]
fn one_frozen_member_of_etcd_hinders_no_renewal() {
    on_host(etcd_members::one_frozen_member_hinders_no_renewal());
}

#[test]
#[ignore = "a measurement: cargo test -p machine-emu --test coordination -- --ignored --nocapture"]
fn etcd_is_this_slow() {
    on_host(async { etcd::measure(&etcd::EtcdArm::new(None).await).await });
}
