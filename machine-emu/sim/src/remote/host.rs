//! The hosts: the server's port, which knows the user of each client, and the clients' links.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use client::FileSystem;
use fileio::protocol::FileIo;
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, ready};
use machine_emu::World;
use runtime::net::{Address, ByteStream, Listener};
use runtime::{Context, Credentials, NodeId};
use transport::{
    ClientEnvironment, ClientOptions, ClientPort, ClientState, LinkHandle, VolumeLinks,
};

use crate::harness::Harness;

/// The application node at which clients are let in.
const INGRESS: u32 = 4;
/// The first user of a client that is not root.
pub(super) const FIRST_USER: u32 = 1000;

fn address() -> Address {
    Address::Tcp("server:7400".to_owned())
}

/// Lets clients in, as the process does that hosts all nodes.
pub(super) async fn serve(harness: &Harness) {
    let context = harness.cluster.application(INGRESS);
    let listener = context.listen(&address()).await;
    let listener = listener.unwrap_or_else(|error| panic!("nothing else listens there: {error}"));
    let port = ClientPort::local(harness.cluster.geometry().volume, "sim".to_owned(), 0, 0);
    let listener = Box::new(LocalListener(listener));
    context.task(transport::serve::<FileIo>(context.clone(), listener, port));
}

/// The process at the port dies.
pub(super) fn end(harness: &Harness) {
    harness.cluster.world().restart(NodeId::application(INGRESS));
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
    let context = harness.cluster.application(number);
    let session = u128::from(context.random()) << 64 | u128::from(context.random());
    let world = harness.cluster.world().clone();
    let host = Rc::new(SimulatedHost { world, context, uid, ports: Cell::new(0) });
    let options = ClientOptions { timeout: None, ..ClientOptions::default() };
    let state = Arc::new(ClientState::default());
    loop {
        let opened = VolumeLinks::open(
            host.clone(),
            vec![address()],
            options.clone(),
            session,
            state.clone(),
        );
        match opened.await {
            Ok(links) => {
                let handle = LinkHandle::new(links);
                let calls = handle.calls();
                return FileSystem::with_calls(handle, credentials(uid), calls);
            }
            // The stream was cut.
            Err(error) => tracing::debug!(%error, "the first contact is tried again"),
        }
    }
}
