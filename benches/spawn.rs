//! One request to a node and its answer: on the same thread, on another thread, and in
//! another process by way of a Unix socket.
//!
//! Each iteration is a batch of requests, counted as items: the time of one is the reciprocal of
//! the printed rate. `in_turn` waits for each answer before it asks again, so a thread that has
//! parked is woken for each; `at_once` has many under way, so that the receiver does not park.

use std::path::Path;
use std::rc::Rc;

use benches::sized;
use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use futures::executor::block_on;
use futures::future::{LocalBoxFuture, join_all, ready};
use futures::{FutureExt as _, StreamExt as _, stream};
use runtime::embedded::{Config, DiskAccess, Embedded};
use runtime::net::Address;
use runtime::{Caller, Epoch, NodeId, Server, Spawn};

/// Requests of one iteration.
const BATCH: u64 = 2_000;
const BATCH_IN_TEST: u64 = 20;
/// Requests under way `at_once`.
const AT_ONCE: usize = 64;

/// Nodes 0 and 2 live on one thread, node 1 on the other.
const HERE: NodeId = NodeId::fs(0);
const BESIDE: NodeId = NodeId::fs(2);
const ELSEWHERE: NodeId = NodeId::fs(1);

mod table {
    use runtime::Undelivered as Error;

    runtime::protocol! {
        /// The smallest request.
        Sum id 7 version 1;
        /// Adds one.
        1 Bulk Next { number: u64 } -> u64, by caller, retry never, from any, after recovery;
    }
}

struct Adder;

impl Server<table::Sum> for Adder {
    fn handle(
        self: Rc<Self>,
        _: Caller,
        request: table::Request,
    ) -> LocalBoxFuture<'static, table::Reply> {
        let table::Request::Next(table::Next { number }) = request;
        ready(table::Reply::Next(Ok(number + 1))).boxed_local()
    }
}

fn machine() -> Embedded {
    let config = Config {
        threads: 2,
        fs_nodes: 4,
        disk_nodes: 1,
        epoch: Epoch(1),
        pool_bytes: 1 << 20,
        disk_access: DiskAccess::Best,
    };
    let machine = Embedded::start(config).expect("threads can be made");
    let serving = (0..4).map(|node| {
        machine.on_node(NodeId::fs(node), |context| async move {
            context.serve::<table::Sum>(Rc::new(Adder));
        })
    });
    block_on(join_all(serving));
    machine
}

/// Asks `to` for each of `batch` numbers, `at_once` of them at a time; what the answers sum up to.
async fn ask(from: impl Spawn, to: NodeId, batch: u64, at_once: usize) -> u64 {
    let asks = (0..batch).map(|number| from.spawn(to, table::Next { number }));
    let answers = stream::iter(asks).buffer_unordered(at_once);
    let sum = answers.fold(0, async |sum, answer| sum + answer.expect("it is answered")).await;
    assert_eq!(sum, batch * (batch + 1) / 2);
    sum
}

fn between_nodes(bencher: Bencher<'_, '_>, to: NodeId, at_once: usize) {
    let machine = machine();
    let batch = sized(BATCH, BATCH_IN_TEST);
    bencher.counter(ItemsCount::new(batch)).bench_local(|| {
        let asked = machine.on_node(HERE, move |context| ask(context, to, batch, at_once));
        black_box(block_on(asked).expect("it runs"))
    });
}

fn from_outside(bencher: Bencher<'_, '_>, client_handle: &runtime::ClientHandle, at_once: usize) {
    let batch = sized(BATCH, BATCH_IN_TEST);
    bencher
        .counter(ItemsCount::new(batch))
        .bench_local(|| black_box(block_on(ask(client_handle.clone(), HERE, batch, at_once))));
}

#[divan::bench]
fn same_thread(bencher: Bencher<'_, '_>) {
    between_nodes(bencher, BESIDE, 1);
}

#[divan::bench(args = [1, AT_ONCE])]
fn other_thread(bencher: Bencher<'_, '_>, at_once: usize) {
    between_nodes(bencher, ELSEWHERE, at_once);
}

#[divan::bench(args = [1, AT_ONCE])]
fn client_handle(bencher: Bencher<'_, '_>, at_once: usize) {
    let machine = machine();
    from_outside(bencher, &machine.client_handle(), at_once);
}

#[divan::bench(args = [1, AT_ONCE])]
fn remote_client_handle(bencher: Bencher<'_, '_>, at_once: usize) {
    let machine = machine();
    let directory = tempfile::tempdir().expect("a socket needs a directory with a short name");
    let socket = directory.path().join("socket");
    listen(&machine, &socket);
    let client_handle = transport::connect(
        &transport::ServerAddress::Local(socket.clone()),
        transport::ClientOptions::default(),
        7,
    )
    .expect("it listens");
    from_outside(bencher, &client_handle, at_once);
}

fn listen(machine: &Embedded, socket: &Path) {
    let address = Address::Unix(socket.to_owned());
    let listening = machine.on_node(HERE, |context| async move {
        let listener = context.listen(&address).await.expect("a fresh socket");
        let serving = context.clone();
        let port = transport::ClientPort::local(runtime::VolumeId(1), String::new(), 0, 0);
        context.task(transport::serve::<table::Sum>(serving, listener, port));
    });
    block_on(listening).expect("it runs");
}

fn main() {
    divan::main();
}
