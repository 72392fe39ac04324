//! The hosts: the server's port, which knows the user of each client, and the clients' links.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use client::FileSystem;
use fileio::deposit_unit;
use fileio::protocol::FileIo;
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, ready};
use machine_emu::World;
use runtime::net::{Address, ByteStream, Listener};
use runtime::{Context, Credentials, NodeId, Spawn as _};
use transport::{
    ClientEnvironment, ClientMap, ClientOptions, ClientPort, ClientProcess, ClientState,
    LinkHandle, Outages, VolumeLinks,
};

use crate::harness::Harness;

/// Processes that let clients in, if there is more than one.
pub(super) const PROCESSES: u32 = 3;
/// The application node at which clients are let in by the first process.
const INGRESS: u32 = 8;
/// The first user of a client that is not root.
pub(super) const FIRST_USER: u32 = 1000;

fn address(process: u32) -> String {
    format!("server{process}:7400")
}

/// Lets clients in, as each of `processes` does that host the nodes by turns.
pub(super) async fn serve(harness: &Harness, processes: u32) {
    harness.cluster.world().set_hosts(if processes > 1 { processes } else { 0 });
    for process in 1..=processes {
        serve_at(harness, process, processes).await;
    }
}

/// Lets clients in at one of `processes`, from now on.
pub(super) async fn serve_at(harness: &Harness, process: u32, processes: u32) {
    // In the present epoch.
    let node = NodeId::application(INGRESS + process);
    let context = harness.cluster.world().restart(node);
    let listener = context.listen(&Address::Tcp(address(process))).await;
    let listener = listener.unwrap_or_else(|error| panic!("nothing else listens there: {error}"));
    let (volume, unit) = (harness.cluster.geometry().volume, deposit_unit(&harness.cluster.map()));
    let mut port = ClientPort::local(volume, "sim".to_owned(), 0, 0);
    if processes > 1 {
        port.process = process;
        port.map = Box::new(move |context| ClientMap { unit, ..node_map(context, processes) });
    }
    let listener = Box::new(LocalListener(listener));
    context.task(transport::serve::<FileIo>(context.clone(), listener, port));
}

fn node_map(context: &Context, processes: u32) -> ClientMap {
    let all = (1..=processes).map(|number| ClientProcess {
        number,
        incarnation: 1,
        address: address(number),
    });
    let hosts = (0..context.fs_nodes()).map(|node| process_of(node, processes));
    ClientMap { processes: all.collect(), hosts: hosts.collect(), ..ClientMap::of_one(context) }
}

/// The one of `processes` that hosts a file-system node.
pub(super) fn process_of(node: u32, processes: u32) -> u32 {
    node % processes + 1
}

/// The processes at the ports die.
pub(super) fn end(harness: &Harness, processes: u32) {
    for process in 1..=processes {
        end_at(harness, process);
    }
}

/// The process at this port dies.
pub(super) fn end_at(harness: &Harness, process: u32) {
    harness.cluster.world().restart(NodeId::application(INGRESS + process));
}

/// As a socket of the host: the kernel knows the user, which here is a part of the address.
struct LocalListener(Box<dyn Listener>);

impl Listener for LocalListener {
    fn accept(&mut self) -> LocalBoxFuture<'_, io::Result<ByteStream>> {
        async {
            let stream = self.0.accept().await?;
            let uid = stream.peer.split(['.', ':']).nth(3).and_then(|uid| uid.parse().ok());
            let user = uid.map(credentials);
            Ok(ByteStream { user, ..stream })
        }
        .boxed_local()
    }

    fn address(&self) -> Address {
        Address::Unix("/server".into())
    }
}

/// The user with this number, in a group of the same number.
pub(super) fn credentials(uid: u32) -> Credentials {
    Credentials { uid, gid: uid, groups: Vec::new() }
}

/// The host of one client.
struct SimulatedHost {
    world: World,
    context: Context,
    uid: u32,
    ports: Cell<u16>,
}

impl ClientEnvironment for SimulatedHost {
    fn dial(&self, address: &Address) -> LocalBoxFuture<'static, io::Result<ByteStream>> {
        self.ports.set(self.ports.get().wrapping_add(1));
        let peer = format!("10.0.0.{}:{}", self.uid, self.ports.get());
        ready(self.world.connect_from(&peer, address)).boxed_local()
    }

    fn sleep(&self, duration: Duration) -> LocalBoxFuture<'static, ()> {
        self.context.sleep(duration)
    }

    fn now(&self) -> Duration {
        self.context.now()
    }

    fn task(&self, task: LocalBoxFuture<'static, ()>) {
        self.context.task(task);
    }
}

/// The file system as client `number` of the user `uid` has it.
pub(super) async fn connect(harness: &Harness, number: u32, uid: u32) -> FileSystem<LinkHandle> {
    connect_showing(harness, number, uid, Outages::default()).await
}

/// The same; the client shows what it waits for.
pub(super) async fn connect_showing(
    harness: &Harness,
    number: u32,
    uid: u32,
    outages: Outages,
) -> FileSystem<LinkHandle> {
    let context = harness.cluster.application(number);
    let session = u128::from(context.random()) << 64 | u128::from(context.random());
    let world = harness.cluster.world().clone();
    let host = Rc::new(SimulatedHost { world, context, uid, ports: Cell::new(0) });
    let options = ClientOptions { timeout: None, outages, ..ClientOptions::default() };
    let state = Arc::new(ClientState::default());
    loop {
        let opened = VolumeLinks::open(
            host.clone(),
            vec![Address::Tcp(address(1))],
            options.clone(),
            session,
            state.clone(),
        );
        match opened.await {
            Ok(links) => {
                let handle = LinkHandle::new(links);
                if let Some(transfers) = handle.transfers() {
                    // Some clients do not leave that to the servers.
                    transfers.set_makes_parity(session.is_multiple_of(3));
                }
                let calls = handle.calls();
                return FileSystem::with_calls(handle, credentials(uid), calls);
            }
            // The stream was cut.
            Err(error) => tracing::debug!(%error, "the first contact is tried again"),
        }
    }
}
