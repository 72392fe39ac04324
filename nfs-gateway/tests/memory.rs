//! What bytes from the network make the gateway allocate: at most twice as much as came, and 64
//! KiB.
//!
//! Method: an allocator that keeps the peak; one stream at a time sends a beginning that promises
//! much more than ever comes.

use std::sync::Mutex;
use std::time::Duration;

use fileio::model::Model;
use fileio::protocol::FileIo;
use machine_emu::{World, WorldShape};
use nfs_gateway::{Config, Gateway, limits};
use peak_alloc::PeakAlloc;
use runtime::net::Address;
use runtime::seed::with_seed;
use runtime::sync::lock;
use runtime::{NodeId, VolumeId};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// The allocator counts what all threads take, so the tests take turns.
static TURN: Mutex<()> = Mutex::new(());

/// What the emulated stream and the bookkeeping of one connection take by themselves.
const STREAM_BYTES: usize = 24 << 10;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A record whose mark tells its real length.
fn record(content: &[u8]) -> Vec<u8> {
    [&words(&[1 << 31 | content.len() as u32])[..], content].concat()
}

/// A call of `procedure` of NFS without a credential.
fn call(procedure: u32, arguments: &[u32]) -> Vec<u8> {
    let head = [1, 0, 2, 100_003, 3, procedure, 0, 0, 0, 0];
    record(&words(&[&head[..], arguments].concat()))
}

/// Beginnings that promise more than they bring.
fn promises() -> Vec<Vec<u8>> {
    let huge = u32::MAX;
    let mut promises = vec![
        words(&[1 << 31 | limits::RECORD_BYTES as u32]),
        words(&[limits::RECORD_BYTES as u32]),
        words(&[huge]),
        // Credentials, machine name and groups.
        record(&words(&[1, 0, 2, 100_003, 3, 0, 1, huge])),
        record(&words(&[1, 0, 2, 100_003, 3, 0, 1, 20, 0, huge, 0, 0, huge, 0, 0])),
        record(&words(&[1, 0, 2, 100_003, 3, 0, 1, 20, 0, 0, 0, 0, huge, 0, 0])),
    ];
    // The first argument of each procedure: a handle; a second one: a name, a path, a payload.
    for procedure in 1..22 {
        promises.push(call(procedure, &[huge]));
        promises.push(call(procedure, &[4, 0, huge]));
        promises.push(call(procedure, &[4, 0, 0, 0, huge, 0, huge]));
    }
    // A payload that does not come, or not all of it.
    for length in [1000, 20_000, 50_000, 200_000] {
        let promise = words(&[1, 0, 2, 100_003, 3, 7, 0, 0, 0, 0, 4, 0, 0, 0, 1 << 20, 2, 1 << 20]);
        let mark = words(&[1 << 31 | (promise.len() as u32 + (1 << 20))]);
        promises.push([mark, promise, vec![0; length]].concat());
    }
    for length in [1000, 50_000, 1 << 20] {
        let half = [words(&[1 << 31 | limits::RECORD_BYTES as u32]), vec![0; length]].concat();
        promises.push(half);
    }
    promises
}

#[test]
fn no_promise_is_paid_in_advance() {
    let _turn = lock(&TURN);
    with_seed(|rng| {
        let world = World::new(rng.bits(), WorldShape { fs_nodes: 1, disk_nodes: 0 });
        world.context(NodeId::fs(0)).serve::<FileIo>(std::rc::Rc::new(Model::default()));
        let ctx = world.context(NodeId::application(0));
        let config = Config::new(VolumeId(1), [1; 32]);
        let address = Address::Tcp("gateway:2049".into());
        let gateway = world.run(Gateway::start(ctx, &address, config)).unwrap();
        for (index, promise) in promises().into_iter().enumerate() {
            let sent_bytes = promise.len();
            let mut stream = world.connect(gateway.address()).unwrap();
            world.advance(Duration::from_millis(1));
            // The emulated pipe holds one copy of what is sent.
            let before = ALLOCATOR.current_usage() + sent_bytes;
            ALLOCATOR.reset_peak_usage();
            world.run(async {
                for part in promise.chunks(64 << 10) {
                    let _ = stream.writer.write(vec![part.to_vec().into()]).await;
                }
            });
            world.advance(Duration::from_secs(1));
            let peak = ALLOCATOR.peak_usage().saturating_sub(before);
            let allowed = 2 * sent_bytes + (64 << 10) + STREAM_BYTES;
            assert!(peak <= allowed, "promise {index}: {peak} for {sent_bytes} bytes");
            drop(stream);
            world.advance(Duration::from_secs(1));
        }
    });
}

/// Limits of the test below, so low that few connections reach them.
const INCOMPLETE_BYTES: usize = 4 << 20;
const GREEDY_PEERS: usize = 8;
const CONNECTIONS_OF_EACH: usize = 5;
/// What the emulated network holds of one stream, and the first buffer of a connection.
const CONNECTION_BYTES: usize = (256 << 10) + (64 << 10) + STREAM_BYTES;

#[test]
fn half_received_records_have_one_bound_and_others_are_served_meanwhile() {
    let _turn = lock(&TURN);
    with_seed(|rng| {
        let world = World::new(rng.bits(), WorldShape { fs_nodes: 1, disk_nodes: 0 });
        world.context(NodeId::fs(0)).serve::<FileIo>(std::rc::Rc::new(Model::default()));
        let ctx = world.context(NodeId::application(0));
        let config = Config {
            incomplete_bytes_max: INCOMPLETE_BYTES,
            incomplete_bytes_per_peer_max: INCOMPLETE_BYTES / 2,
            ..Config::new(VolumeId(1), [1; 32])
        };
        let address = Address::Tcp("gateway:2049".into());
        let gateway = world.run(Gateway::start(ctx.clone(), &address, config)).unwrap();
        // All of a record but its last word.
        let length = 1 << 20;
        let most =
            bytes::Bytes::from([words(&[1 << 31 | length]), vec![0; length as usize - 4]].concat());
        let connections = GREEDY_PEERS * CONNECTIONS_OF_EACH;
        let before = ALLOCATOR.current_usage();
        ALLOCATOR.reset_peak_usage();
        for index in 0..connections {
            let peer = format!("10.0.0.{}:{}", index % GREEDY_PEERS, 700 + index);
            let mut stream = world.connect_from(&peer, gateway.address()).unwrap();
            let most = most.clone();
            ctx.task(async move {
                let _ = stream.writer.write(vec![most]).await;
                let _ = stream.reader.read(&mut bytes::BytesMut::new()).await;
            });
            world.advance(Duration::from_millis(1));
        }
        let mut clean = world.connect_from("10.0.1.1:700", gateway.address()).unwrap();
        let mut ask = |sent: Vec<u8>, within: Duration| {
            let began = world.now();
            world.run(async {
                clean.writer.write(vec![sent.into()]).await.unwrap();
                let mut reply = bytes::BytesMut::new();
                assert!(clean.reader.read(&mut reply).await.unwrap() > 0, "hung up");
            });
            let took = world.now().saturating_sub(began);
            assert!(took <= within, "answered after {took:?}");
        };
        for _ in 0..100 {
            ask(call(0, &[]), Duration::from_millis(10));
            world.advance(Duration::from_millis(5));
        }
        let peak = ALLOCATOR.peak_usage().saturating_sub(before);
        let allowed = 2 * INCOMPLETE_BYTES + connections * CONNECTION_BYTES;
        assert!(peak <= allowed && allowed < connections << 20, "{peak} of {allowed} bytes");
        // A large call waits until slow ones are closed, not until all are.
        let large =
            record(&[words(&[9, 0, 2, 100_003, 3, 0, 0, 0, 0, 0]), vec![0; 300_000]].concat());
        ask(large, Duration::from_secs(2));
        assert!(gateway.connections() < connections);
    });
}
