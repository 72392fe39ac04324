//! Clients whose large requests and replies go over libfabric.
#![cfg(all(feature = "fabric", feature = "tls"))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(clippy::disallowed_methods, reason = "the test stands outside of the machines")]

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::executor::block_on;
use futures::future::{LocalBoxFuture, join_all};
use runtime::embedded::{Config, DiskAccess, Embedded};
use runtime::net::Address;
use runtime::{Caller, ClientHandle, Context, Epoch, NodeId, Server, VolumeId};
use table::{Get, Put, Request, Store};
use transport::fabric::{FabricOptions, Fabrics, Provider};
use transport::{ClientFabric, ClientOptions, ClientPort, Guard, Security, ServerAddress};

mod table {
    use bytes::Bytes;

    use runtime::Undelivered as Error;

    runtime::protocol! {
        /// Large requests that must not be done twice, and large replies.
        Store id 7 version 1;
        /// Adds the bytes to the sum.
        1 Bulk Put { bytes: Bytes } -> u64, by caller, retry never, from any, after recovery;
        /// Bytes.
        2 Bulk Get { length: u32, byte: u8 } -> Bytes,
            by caller, retry idempotent, from any, after recovery;
    }
}

const SOON: Duration = Duration::from_secs(20);
const MIB: usize = 1 << 20;

struct Summer(Context, Arc<AtomicU64>);

impl Server<Store> for Summer {
    fn handle(
        self: std::rc::Rc<Self>,
        _: Caller,
        request: Request,
    ) -> LocalBoxFuture<'static, table::Reply> {
        async move {
            self.0.sleep(Duration::from_micros(500)).await;
            match request {
                Request::Put(Put { bytes }) => {
                    let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
                    table::Reply::Put(Ok(self.1.fetch_add(sum, SeqCst) + sum))
                }
                Request::Get(Get { length, byte }) => {
                    table::Reply::Get(Ok(vec![byte; length as usize].into()))
                }
            }
        }
        .boxed_local()
    }
}

/// One test at a time: each keeps the cores busy, and counts what the process has.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A server whose clients may come over `provider`.
struct StoreServer {
    _machine: Embedded,
    address: String,
    guard: Arc<Guard>,
    sum: Arc<AtomicU64>,
}

impl StoreServer {
    fn start(providers: &[Provider]) -> Self {
        let config = Config {
            threads: 1,
            fs_nodes: 1,
            disk_nodes: 1,
            epoch: Epoch(1),
            pool_bytes: 1 << 20,
            disk_access: DiskAccess::Best,
        };
        let machine = Embedded::start(config).unwrap();
        let sum = Arc::new(AtomicU64::new(0));
        let own = sum.clone();
        let served = machine.on_node(NodeId::fs(0), move |context| async move {
            context.serve::<Store>(std::rc::Rc::new(Summer(context.clone(), own)));
        });
        block_on(served).unwrap();
        let providers = providers.to_vec();
        let options = FabricOptions { providers, source: None, costs: None, is_told: true };
        let guard = Arc::new(Guard::new(Security::None).with_fabrics(Fabrics::new(options)));
        let guarded = guard.clone();
        let listening = machine.on_node(machine.application(), |context| async move {
            let listener = context.listen(&Address::Tcp("127.0.0.1:0".into())).await.unwrap();
            let address = listener.address().to_string();
            let port = ClientPort::local(VolumeId(1), "store".into(), 0, 0);
            let port = ClientPort { guard: guarded, ..port };
            context.task(transport::serve::<Store>(context.clone(), listener, port));
            address
        });
        let address = block_on(listening).unwrap();
        Self { _machine: machine, address, guard, sum }
    }

    fn client(&self, session: u128, provider: Provider) -> ClientHandle {
        let server = ServerAddress::Tcp(vec![self.address.clone()]);
        let fabric = ClientFabric::of(&server, vec![provider], true);
        let options = ClientOptions { timeout: None, fabric, ..ClientOptions::default() };
        transport::connect(&server, options, session).unwrap()
    }

    /// The value of a count; lines of all labels together.
    fn count(&self, metric: &str) -> u64 {
        let counts = self.guard.counts();
        let lines = counts.lines().filter(|line| line.starts_with(metric));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    }

    #[track_caller]
    fn until(&self, is_so: impl Fn() -> bool) {
        let begin = Instant::now();
        while !is_so() {
            assert!(begin.elapsed() < SOON, "{}", self.guard.counts());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until nothing of any client is left. Clients of this process count as well.
    #[track_caller]
    fn until_nothing_is_left(&self) {
        let left = ["clients{", "endpoints ", "regions ", "registered_bytes ", "client_bytes "];
        self.until(|| left.iter().all(|it| self.count(&format!("mdfs_fabric_{it}")) == 0));
    }
}

fn put(client: &ClientHandle, length: usize) -> u64 {
    block_on(client.spawn(NodeId::fs(0), Put { bytes: vec![1; length].into() })).unwrap()
}

fn get(client: &ClientHandle, length: usize, byte: u8) -> Bytes {
    block_on(client.spawn(NodeId::fs(0), Get { length: length as u32, byte })).unwrap()
}

/// Large requests and replies go over libfabric from now on.
fn warm_up(server: &StoreServer, client: &ClientHandle) {
    let before = server.count("mdfs_fabric_bytes_total");
    server.until(|| {
        put(client, MIB);
        server.count("mdfs_fabric_bytes_total") > before
    });
}

#[test]
fn large_requests_and_replies_of_a_client_go_over_libfabric_and_nothing_of_it_is_left() {
    let _alone = alone();
    for provider in [Provider::Tcp, Provider::Shm] {
        let server = StoreServer::start(&[provider]);
        let client = server.client(1, provider);
        warm_up(&server, &client);
        let directions = ["in", "out"].map(|it| {
            let provider = provider.name();
            format!("mdfs_fabric_bytes_total{{provider=\"{provider}\",direction=\"{it}\"}}")
        });
        let before = directions.each_ref().map(|it| server.count(it));
        let sum = server.sum.load(SeqCst);
        for length in [16 << 10, 100_000, MIB, 4 * MIB] {
            put(&client, length);
            assert!(get(&client, length, 7) == vec![7; length]);
        }
        assert_eq!(server.sum.load(SeqCst) - sum, (16 << 10) + 100_000 + 5 * MIB as u64);
        // A request has left before it was counted here.
        for (direction, before) in directions.iter().zip(before) {
            server.until(|| server.count(direction) - before > 5 * MIB as u64);
        }
        // What is too long, or too short to be worth it, goes over the link itself.
        let before = server.count("mdfs_fabric_bytes_total");
        assert!(get(&client, 9 * MIB, 9).len() == 9 * MIB && get(&client, 100, 9).len() == 100);
        assert_eq!(server.count("mdfs_fabric_bytes_total"), before);
        assert_eq!(server.count("mdfs_fabric_refused_total"), 0, "{}", server.guard.counts());
        drop(client);
        server.until_nothing_is_left();
    }
}

#[test]
fn a_path_that_ends_loses_no_call_and_has_none_done_twice() {
    let _alone = alone();
    let server = StoreServer::start(&[Provider::Tcp]);
    let ended = AtomicU64::new(0);
    let (calls, callers, rounds) = (80, 4u64, 5u32);
    thread::scope(|scope| {
        for caller in 0..callers {
            let (server, ended) = (&server, &ended);
            scope.spawn(move || {
                for round in 0..rounds {
                    // Each has a path of its own, which may be ended at any moment.
                    let client =
                        server.client(u128::from(caller) << 8 | u128::from(round), Provider::Tcp);
                    // Some before there is a path, the others while it ends.
                    for part in (0..calls).collect::<Vec<_>>().chunks(5) {
                        let part = part.iter().map(|call| {
                            let bytes = vec![1; 20_000 + call * 7_001].into();
                            let sent = client.spawn(NodeId::fs(0), Put { bytes });
                            let get = Get { length: 50_000, byte: 3 };
                            let asked = client.spawn(NodeId::fs(0), get);
                            async move {
                                sent.await.unwrap();
                                assert!(asked.await.unwrap() == vec![3; 50_000]);
                            }
                        });
                        block_on(join_all(part));
                        thread::sleep(Duration::from_millis(20));
                    }
                }
                ended.fetch_add(1, SeqCst);
            });
        }
        let mut cuts = 0;
        while ended.load(SeqCst) < callers {
            thread::sleep(Duration::from_millis(7 + 13 * (cuts % 5)));
            if server.count("mdfs_fabric_clients") > 0 {
                server.guard.retire(|_, _| true);
                cuts += 1;
            }
        }
        assert!(cuts > 5, "{cuts} cuts are too few to show anything");
    });
    let all: u64 = (0..calls as u64).map(|call| 20_000 + call * 7_001).sum();
    assert_eq!(server.sum.load(SeqCst), all * callers * u64::from(rounds));
    server.until_nothing_is_left();
}

#[test]
fn clients_without_room_are_answered_over_their_links() {
    let _alone = alone();
    let server = StoreServer::start(&[Provider::Tcp]);
    let clients: Vec<ClientHandle> = (1..=34)
        .map(|session| {
            let client = server.client(session, Provider::Tcp);
            let crowded = "mdfs_fabric_refused_total{provider=\"tcp;ofi_rxm\",reason=\"crowded\"";
            let before = server.count("mdfs_fabric_clients{") + server.count(crowded);
            server.until(|| {
                put(&client, MIB);
                server.count("mdfs_fabric_clients{") + server.count(crowded) > before
            });
            client
        })
        .collect();
    assert_eq!(server.count("mdfs_fabric_clients{"), 32);
    for client in &clients {
        assert!(get(client, MIB, 5) == vec![5; MIB]);
    }
    drop(clients);
    server.until_nothing_is_left();
}

#[test]
fn a_client_asks_over_its_link_where_the_server_has_another_provider() {
    let _alone = alone();
    let server = StoreServer::start(&[Provider::Shm]);
    let client = server.client(1, Provider::Tcp);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(2) {
        put(&client, MIB);
        assert!(get(&client, MIB, 5) == vec![5; MIB]);
    }
    assert_eq!(server.count("mdfs_fabric_bytes_total"), 0);
    assert_eq!(server.count("mdfs_fabric_clients{"), 0);
}
