//! Clients over TCP: they find each process, and survive broken connections and restarts.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(clippy::disallowed_methods, reason = "the network between is no machine of ours")]

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::executor::block_on;
use futures::future::{LocalBoxFuture, join_all};
use runtime::embedded::{Config, DiskAccess, Embedded};
use runtime::net::Address;
use runtime::{Caller, ClientHandle, Context, Epoch, NodeId, Server, Undelivered, VolumeId};
use table::{Add, Request, Sum};
use transport::{ClientBudget, ClientOptions, ClientPort, ServerAddress};

mod table {
    use runtime::Undelivered as Error;

    runtime::protocol! {
        /// A sum, which shows what is done twice.
        Sum id 7 version 1;
        /// Adds to the sum, after a while. Executed twice it adds twice.
        1 Bulk Add { number: u64, micros: u64 } -> u64,
            by caller, retry never, from any, after recovery;
        /// For servers.
        2 Bulk Clear {} -> (), by caller, retry never, from servers, after recovery;
    }
}

/// The sum of all servers of one test.
struct Adder(Context, Arc<AtomicU64>);

impl Server<Sum> for Adder {
    fn try_now(self: std::rc::Rc<Self>, _: Caller, request: &Request) -> Option<table::Reply> {
        match *request {
            Request::Add(Add { number, micros: 0 }) => {
                Some(table::Reply::Add(Ok(self.1.fetch_add(number, SeqCst) + number)))
            }
            _ => None,
        }
    }

    fn handle(
        self: std::rc::Rc<Self>,
        _: Caller,
        request: Request,
    ) -> LocalBoxFuture<'static, table::Reply> {
        async move {
            match request {
                Request::Add(Add { number, micros }) => {
                    self.0.sleep(Duration::from_micros(micros)).await;
                    table::Reply::Add(Ok(self.1.fetch_add(number, SeqCst) + number))
                }
                Request::Clear(_) => {
                    self.1.store(0, SeqCst);
                    table::Reply::Clear(Ok(()))
                }
            }
        }
        .boxed_local()
    }
}

fn port() -> ClientPort<Sum> {
    ClientPort::local(VolumeId(1), "sums".into(), 0, 0)
}

/// A server with two nodes, and its address.
fn serve(sum: &Arc<AtomicU64>) -> (Embedded, String) {
    serve_within(sum, Arc::default())
}

/// The same, whose clients may take so much memory.
fn serve_within(sum: &Arc<AtomicU64>, budget: Arc<ClientBudget>) -> (Embedded, String) {
    let config = Config {
        threads: 1,
        fs_nodes: 2,
        disk_nodes: 1,
        epoch: Epoch(1),
        pool_bytes: 1 << 20,
        disk_access: DiskAccess::Best,
    };
    let machine = Embedded::start(config).unwrap();
    for node in 0..2 {
        let sum = sum.clone();
        let served = machine.on_node(NodeId::fs(node), move |context| async move {
            context.serve::<Sum>(std::rc::Rc::new(Adder(context.clone(), sum)));
        });
        block_on(served).unwrap();
    }
    let listening = machine.on_node(machine.application(), |context| async move {
        let listener = context.listen(&Address::Tcp("127.0.0.1:0".into())).await.unwrap();
        let address = listener.address().to_string();
        context.task(transport::serve::<Sum>(
            context.clone(),
            listener,
            ClientPort { budget, ..port() },
        ));
        address
    });
    let address = block_on(listening).unwrap();
    (machine, address)
}

fn connect(address: &str, timeout: Option<Duration>) -> std::io::Result<ClientHandle> {
    let options = ClientOptions { timeout, ..ClientOptions::default() };
    transport::connect(&ServerAddress::Tcp(vec![address.to_owned()]), options, 9)
}

fn add(client: &ClientHandle, number: u64, micros: u64) -> Result<u64, Undelivered> {
    block_on(client.spawn(NodeId::fs(number as u32 % 2), Add { number, micros }))
}

/// Something between client and server that breaks connections, and can lead elsewhere.
struct Relay {
    address: String,
    target: Arc<Mutex<String>>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let target = Arc::new(Mutex::new(target.to_owned()));
        let open = Arc::new(Mutex::new(Vec::new()));
        let (wanted, connections) = (target.clone(), open.clone());
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(&*wanted.lock().unwrap()) else { continue };
                let ends = [client.try_clone().unwrap(), server.try_clone().unwrap()];
                connections.lock().unwrap().extend(ends);
                for (mut from, mut to) in
                    [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
                {
                    thread::spawn(move || {
                        let mut buffer = [0; 4096];
                        while let Ok(length @ 1..) = from.read(&mut buffer) {
                            if to.write_all(&buffer[..length]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Self { address, target, open }
    }

    fn cut(&self) {
        for end in self.open.lock().unwrap().drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

#[test]
fn connections_break_and_no_call_fails_or_is_done_twice() {
    let sum = Arc::new(AtomicU64::new(0));
    let (_machine, address) = serve(&sum);
    let relay = Relay::to(&address);
    let client = connect(&relay.address, None).unwrap();
    let ended = Arc::new(AtomicU64::new(0));
    let callers: Vec<_> = (0..4)
        .map(|caller| {
            let (client, ended) = (client.clone(), ended.clone());
            thread::spawn(move || {
                for call in 0..150 {
                    add(&client, 1, (call * 37 + caller) % 3_000).unwrap();
                }
                ended.fetch_add(1, SeqCst);
            })
        })
        .collect();
    let mut cuts = 0;
    while ended.load(SeqCst) < 4 {
        thread::sleep(Duration::from_millis(25));
        relay.cut();
        cuts += 1;
    }
    for caller in callers {
        caller.join().unwrap();
    }
    assert!(cuts > 5, "{cuts} cuts are too few to show anything");
    assert_eq!(sum.load(SeqCst), 600);
}

#[test]
fn a_call_to_a_server_that_is_gone_is_lost_and_the_next_one_waits_for_another() {
    let sum = Arc::new(AtomicU64::new(0));
    let (machine, address) = serve(&sum);
    let relay = Relay::to(&address);
    let client = connect(&relay.address, None).unwrap();
    assert_eq!(add(&client, 1, 0), Ok(1));
    let waiting = client.spawn(NodeId::fs(0), Add { number: 5, micros: 60_000_000 });
    thread::sleep(Duration::from_millis(50));
    relay.cut();
    drop(machine);
    let next = thread::spawn({
        let client = client.clone();
        move || add(&client, 2, 0)
    });
    thread::sleep(Duration::from_millis(400));
    let (_machine, address) = serve(&sum);
    *relay.target.lock().unwrap() = address;
    assert_eq!(block_on(waiting), Err(Undelivered::Gone));
    assert_eq!(next.join().unwrap(), Ok(3));
}

#[test]
fn a_client_waits_no_longer_than_it_is_told_to() {
    let sum = Arc::new(AtomicU64::new(0));
    let (machine, address) = serve(&sum);
    let client = connect(&address, Some(Duration::from_millis(600))).unwrap();
    assert_eq!(add(&client, 1, 0), Ok(1));
    drop(machine);
    thread::sleep(Duration::from_millis(50));
    let start = Instant::now();
    let outcome = add(&client, 1, 0);
    assert!(matches!(outcome, Err(Undelivered::TimedOut | Undelivered::Gone)), "{outcome:?}");
    assert_eq!(add(&client, 1, 0), Err(Undelivered::TimedOut));
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

/// It may be done at any moment: to give it up would be to know nothing of it.
#[test]
fn a_call_is_not_given_up_while_its_process_gives_signs_of_life() {
    let sum = Arc::new(AtomicU64::new(0));
    let (_machine, address) = serve(&sum);
    let client = connect(&address, Some(Duration::from_secs(1))).unwrap();
    assert_eq!(add(&client, 1, 7_000_000), Ok(1));
    assert_eq!(sum.load(SeqCst), 1);
}

#[test]
fn calls_that_wait_for_a_server_are_limited_and_who_is_refused_asks_again() {
    let sum = Arc::new(AtomicU64::new(0));
    let (machine, address) = serve(&sum);
    let relay = Relay::to(&address);
    let client = connect(&relay.address, None).unwrap();
    assert_eq!(add(&client, 1, 0), Ok(1));
    drop(machine);
    relay.cut();
    thread::sleep(Duration::from_millis(50));
    let call = || client.spawn(NodeId::fs(0), Add { number: 1, micros: 0 }).boxed();
    let mut waiting = Vec::new();
    let mut refused = 0;
    // In pieces that the thread of the client takes at once.
    for _ in 0..transport::WAITING_MAX / 512 + 2 {
        waiting.extend((0..512).map(|_| call()));
        thread::sleep(Duration::from_millis(20));
        waiting.retain_mut(|call| match call.now_or_never() {
            None => true,
            Some(outcome) => {
                assert_eq!(outcome, Err(Undelivered::Busy));
                refused += 1;
                false
            }
        });
    }
    assert!(refused > 0 && waiting.len() <= transport::WAITING_MAX + 512, "{}", waiting.len());
    let (_machine, address) = serve(&sum);
    *relay.target.lock().unwrap() = address;
    let count = waiting.len() as u64;
    let done = block_on(join_all(waiting));
    assert!(done.iter().filter(|outcome| outcome.is_ok()).count() as u64 >= count - 1);
    assert!(block_on(call()).is_ok(), "who was refused asks again");
}

#[test]
fn a_client_gets_what_is_for_clients_only_and_under_its_own_name() {
    let sum = Arc::new(AtomicU64::new(7));
    let (_machine, address) = serve(&sum);
    let client = connect(&address, None).unwrap();
    let refused = block_on(client.spawn(NodeId::fs(0), table::Clear {}));
    assert_eq!((refused, sum.load(SeqCst)), (Err(Undelivered::Refused), 7));
    let elsewhere = block_on(client.spawn(NodeId::disk(0), Add { number: 1, micros: 0 }));
    assert_eq!(elsewhere, Err(Undelivered::Unreachable));
    let options = ClientOptions { volume: "others".into(), ..ClientOptions::default() };
    let refused = transport::connect(&ServerAddress::Tcp(vec![address]), options, 9).unwrap_err();
    assert_eq!(refused.to_string(), "there is no volume 'others' here; this one is called 'sums'");
}

#[test]
fn many_calls_are_under_way_at_once() {
    let sum = Arc::new(AtomicU64::new(0));
    let (_machine, address) = serve(&sum);
    let client = connect(&address, None).unwrap();
    let calls = (0..2_000).map(|_| client.spawn(NodeId::fs(0), Add { number: 1, micros: 100 }));
    let all = block_on(join_all(calls));
    assert!(all.into_iter().all(|call| call.is_ok()));
    assert_eq!(sum.load(SeqCst), 2_000);
}

/// A call of this table counts a little more than 1 KiB.
const CALL_BYTES: usize = 1500;

#[test]
fn clients_that_wait_for_memory_of_the_server_go_on_when_there_is_some() {
    let sum = Arc::new(AtomicU64::new(0));
    let (_machine, address) = serve_within(&sum, ClientBudget::of(2 * CALL_BYTES));
    let start = Instant::now();
    let adding: Vec<_> = (0..3)
        .map(|session| {
            let server = ServerAddress::Tcp(vec![address.clone()]);
            let options = ClientOptions { timeout: None, ..ClientOptions::default() };
            let client = transport::connect(&server, options, session).unwrap();
            // Longer than a client bears silence.
            thread::spawn(move || add(&client, 1, 2_500_000).unwrap())
        })
        .collect();
    for adding in adding {
        adding.join().unwrap();
    }
    assert_eq!(sum.load(SeqCst), 3);
    let took = start.elapsed();
    assert!(took > Duration::from_secs(7), "one at a time fits into the memory: {took:?}");
}

/// The window in which a server may answer is over before the answer of its first client is there.
fn answer_late(then: impl FnOnce(Context) + Send + 'static) -> (Result<u64, Undelivered>, u64) {
    let sum = Arc::<AtomicU64>::default();
    let (machine, address) = serve(&sum);
    let client = connect(&address, None).unwrap();
    let window = |context: Context| async move {
        context.answer_until(context.now() + Duration::from_millis(20));
    };
    block_on(machine.on_node(NodeId::fs(0), window)).unwrap();
    let asked = thread::spawn(move || add(&client, 1, 50_000));
    thread::sleep(Duration::from_millis(300));
    assert!(!asked.is_finished(), "it was answered outside of the window");
    block_on(machine.on_node(NodeId::fs(0), |context| async move { then(context) })).unwrap();
    (asked.join().unwrap(), sum.load(SeqCst))
}

#[test]
fn an_answer_that_is_too_late_waits_for_the_next_window() {
    let renew = |context: Context| context.answer_until(context.now() + Duration::from_mins(1));
    assert_eq!(answer_late(renew), (Ok(1), 1));
}

#[test]
fn an_answer_of_a_process_that_has_lost_its_nodes_says_that_they_are_gone() {
    let end = |context: Context| context.answer_until(Duration::ZERO);
    assert_eq!(answer_late(end).0, Err(Undelivered::Gone));
}

#[test]
fn a_request_that_comes_from_another_thread_after_the_window_waits_too() {
    let sum = Arc::<AtomicU64>::default();
    let (machine, _) = serve(&sum);
    let over = |context: Context| async move {
        context.answer_until(context.now() + Duration::from_nanos(1));
        context.sleep(Duration::from_millis(5)).await;
    };
    block_on(machine.on_node(NodeId::fs(0), over)).unwrap();
    let handle = machine.client_handle();
    let asked = thread::spawn(move || add(&handle, 1, 0));
    thread::sleep(Duration::from_millis(100));
    assert!(!asked.is_finished(), "it was answered outside of the window");
    let renew = |context: Context| async move {
        context.answer_until(context.now() + Duration::from_mins(1));
    };
    block_on(machine.on_node(NodeId::fs(0), renew)).unwrap();
    assert_eq!((asked.join().unwrap(), sum.load(SeqCst)), (Ok(1), 1));
}
