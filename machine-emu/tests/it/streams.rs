//! Byte streams from outside.

use std::io::ErrorKind;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use machine_emu::{FaultKind, StreamFaults, World, WorldShape};
use runtime::net::{Address, ByteStream};
use runtime::seed::with_seed;
use runtime::{Context, NodeId};

fn world(seed: u64) -> World {
    World::new(seed, WorldShape { fs_nodes: 1, disk_nodes: 0 })
}

fn address() -> Address {
    Address::Tcp("localhost:2049".into())
}

/// Sends everything back, stream by stream.
async fn echo(context: Context) {
    let mut listener = context.listen(&address()).await.unwrap();
    while let Ok(mut stream) = listener.accept().await {
        context.task(async move {
            let mut buffer = BytesMut::new();
            while let Ok(1..) = stream.reader.read(&mut buffer).await {
                if stream.writer.write(vec![buffer.split().freeze()]).await.is_err() {
                    return;
                }
            }
        });
    }
}

fn start(world: &World) {
    let context = world.context(NodeId::fs(0));
    context.task(echo(context.clone()));
    world.advance(Duration::from_micros(1));
}

async fn read_to_end(stream: &mut ByteStream) -> BytesMut {
    let mut all = BytesMut::new();
    while stream.reader.read(&mut all).await.unwrap() > 0 {}
    all
}

#[test]
fn a_stream_brings_all_bytes_in_order_and_then_its_end() {
    with_seed(|rng| {
        let world = world(rng.bits());
        start(&world);
        let mut data = vec![0; 3 << 20];
        rng.fill(&mut data);
        let data = Bytes::from(data);
        let ByteStream { reader, mut writer, peer, user } = world.connect(&address()).unwrap();
        assert_eq!(peer, "localhost:2049");
        let sent = data.clone();
        let upload = async move {
            for chunk in sent.chunks(100_000) {
                let (one, two) = chunk.split_at(chunk.len() / 2);
                let parts = [one, two].map(Bytes::copy_from_slice).to_vec();
                writer.write(parts).await.unwrap();
            }
        };
        let mut down = ByteStream { reader, writer: Box::new(Nowhere), peer, user };
        let (received, ()) = world.run(async { futures::join!(read_to_end(&mut down), upload) });
        assert!(received == data);
        assert!(world.now() >= Duration::from_micros(40));
    });
}

struct Nowhere;

impl runtime::net::StreamWriter for Nowhere {
    fn write(&mut self, _: Vec<Bytes>) -> futures::future::LocalBoxFuture<'_, std::io::Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

#[test]
fn a_writer_waits_while_no_one_reads() {
    let world = world(1);
    let context = world.context(NodeId::fs(0));
    let mut listener = world.run(context.listen(&address())).unwrap();
    let mut stream = world.connect(&address()).unwrap();
    let mut accepted = world.run(listener.accept()).unwrap();
    let blocked = world.run(async {
        let write = stream.writer.write(vec![Bytes::from(vec![1; 1 << 20])]);
        futures::pin_mut!(write);
        let patience = context.sleep(Duration::from_secs(1));
        matches!(futures::future::select(write, patience).await, futures::future::Either::Right(_))
    });
    assert!(blocked, "the pipe is bounded");
    drop(stream);
    let received = world.run(read_to_end(&mut accepted)).len();
    assert_eq!(received, 256 << 10);
}

#[test]
fn without_a_listener_connections_are_refused_and_ports_are_assigned() {
    let world = world(1);
    let refused = world.connect(&address()).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let context = world.context(NodeId::fs(0));
    let any = Address::Tcp("localhost:0".into());
    let listener = world.run(context.listen(&any)).unwrap();
    assert_ne!(listener.address(), any);
    assert!(world.connect(&listener.address()).is_ok());
    let again = world.run(context.listen(&listener.address())).err().unwrap();
    assert_eq!(again.kind(), ErrorKind::AddrInUse);
    drop(listener);
    start(&world);
}

#[test]
fn the_streams_of_a_dead_node_are_reset_and_its_address_is_free() {
    let world = world(1);
    start(&world);
    let mut stream = world.connect(&address()).unwrap();
    world.advance(Duration::from_millis(1));
    world.kill(NodeId::fs(0));
    let mut buffer = BytesMut::new();
    let error = world.run(stream.reader.read(&mut buffer)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let error = world.run(stream.writer.write(vec![Bytes::from_static(b"x")])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    world.restart(NodeId::fs(0));
    start(&world);
    assert!(world.connect(&address()).is_ok());
}

#[test]
fn a_cut_stream_brings_a_part_and_then_breaks_for_both_sides() {
    let data = Bytes::from(vec![7; 10_000]);
    let mut lengths = Vec::new();
    for seed in 0..20 {
        let world = world(seed);
        let context = world.context(NodeId::fs(0));
        let mut listener = world.run(context.listen(&address())).unwrap();
        world.set_stream_faults(StreamFaults { cut_ppm: 1_000_000, ..StreamFaults::default() });
        let mut near = world.connect_from("10.0.0.1:800", &address()).unwrap();
        let mut far = world.run(listener.accept()).unwrap();
        assert_eq!(far.peer, "10.0.0.1:800");
        world.run(near.writer.write(vec![data.clone()])).unwrap();
        let mut received = BytesMut::new();
        let error = world.run(async {
            loop {
                if let Err(error) = far.reader.read(&mut received).await {
                    break error;
                }
            }
        });
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        let back = world.run(far.writer.write(vec![data.clone()])).unwrap_err();
        assert_eq!(back.kind(), ErrorKind::BrokenPipe);
        let answer = world.run(near.reader.read(&mut BytesMut::new())).unwrap_err();
        assert_eq!(answer.kind(), ErrorKind::ConnectionReset);
        assert_eq!(world.counters().faults.get(&FaultKind::StreamCut), Some(&1));
        lengths.push(received.len());
    }
    assert!(lengths.iter().any(|&length| 0 < length && length < data.len()), "{lengths:?}");
}

#[test]
fn a_stream_brings_small_pieces_late_if_told_so() {
    let world = world(3);
    start(&world);
    let delay_max_ns = 1_000_000_000;
    world.set_stream_faults(StreamFaults {
        delay_ppm: 1_000_000,
        delay_max_ns,
        piece_bytes_max: 10,
        ..StreamFaults::default()
    });
    let mut stream = world.connect(&address()).unwrap();
    let before = world.now();
    world.run(async {
        stream.writer.write(vec![Bytes::from(vec![7; 1_000])]).await.unwrap();
        let mut received = BytesMut::new();
        while received.len() < 1_000 {
            let count = stream.reader.read(&mut received).await.unwrap();
            assert!((1..=10).contains(&count), "{count} bytes at once");
        }
    });
    assert!(world.now() > before + Duration::from_millis(100), "nothing was held up");
}
