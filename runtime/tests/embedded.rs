//! The embedded machine keeps the promises of the node context, across its threads.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::FutureExt as _;
use futures::executor::block_on;
use futures::future::join_all;
use runtime::embedded::{Config, DiskAccess, Embedded};
use runtime::host::{RUNNING_MAX, WAITING_MAX};
use runtime::net::Address;
use runtime::{Context, Epoch, NodeId, Undelivered};
use support::echo;

fn machine(threads: usize) -> Embedded {
    let machine = Embedded::start(Config {
        threads,
        fs_nodes: 8,
        disk_nodes: 2,
        epoch: Epoch(3),
        pool_bytes: 1 << 20,
        disk_access: DiskAccess::Best,
    })
    .unwrap();
    let booted = (0..8).map(|index| machine.on_node(NodeId::fs(index), support::serve));
    for outcome in block_on(join_all(booted)) {
        outcome.unwrap();
    }
    machine
}

#[test]
fn a_request_travels_over_threads_and_its_payload_is_not_copied() {
    for threads in [1, 2, 3] {
        let machine = machine(threads);
        let text = Bytes::from(vec![7; 5000]);
        let call = echo::Say { text: text.clone(), hops: 11 };
        let (back, node) = block_on(machine.client_handle().spawn(NodeId::fs(2), call)).unwrap();
        assert_eq!((back.as_ptr(), node), (text.as_ptr(), 13 % 8), "{threads} threads");
    }
}

#[test]
fn many_requests_of_many_threads_are_all_answered() {
    let machine = machine(2);
    #[allow(clippy::disallowed_methods, reason = "the client side of the test")]
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let client_handle = machine.client_handle();
                let calls = (0..500).map(|i| {
                    let text = Bytes::from(vec![0; i as usize]);
                    client_handle.spawn(NodeId::fs(i % 8), echo::Say { text, hops: i % 3 })
                });
                for (i, answer) in block_on(join_all(calls)).into_iter().enumerate() {
                    assert_eq!(answer.unwrap().0.len(), i);
                }
            });
        }
    });
}

#[test]
fn a_node_that_does_not_exist_or_does_not_serve_is_unreachable() {
    let machine = machine(2);
    let say = echo::Say { text: Bytes::new(), hops: 0 };
    let unreachable = Err(Undelivered::Unreachable);
    let client_handle = machine.client_handle();
    assert_eq!(block_on(client_handle.spawn(NodeId::fs(8), say.clone())), unreachable);
    assert_eq!(block_on(client_handle.spawn(NodeId::disk(1), say.clone())), unreachable);
    assert_eq!(block_on(client_handle.spawn(NodeId::application(0), say)), unreachable);
}

#[test]
fn a_full_node_answers_busy_and_loses_nothing() {
    let machine = machine(1);
    let client_handle = machine.client_handle();
    // Those that run do so until all the others have come.
    let running = (0..RUNNING_MAX).map(|_| 2_000_000);
    let others = (0..WAITING_MAX + 100).map(|_| 1);
    let calls = running
        .chain(others)
        .map(|micros| client_handle.spawn(NodeId::fs(1), echo::Wait { micros }));
    let answers = block_on(join_all(calls));
    let busy = answers.iter().filter(|answer| answer.is_err()).count();
    assert!(answers.iter().filter_map(|answer| answer.err()).all(|e| e == Undelivered::Busy));
    assert_eq!(busy, 100);
}

#[test]
fn a_client_whose_node_is_stopped_may_send_any_request_again() {
    let machine = machine(1);
    let wait = echo::Wait { micros: 60_000_000 };
    let mut waiting = pin!(machine.client_handle().spawn(NodeId::fs(1), wait));
    assert!(waiting.as_mut().now_or_never().is_none());
    // By then it runs.
    let resting = machine.on_node(NodeId::fs(1), |context| async move {
        context.sleep(Duration::from_millis(50)).await;
    });
    block_on(resting).unwrap();
    machine.stop_node(NodeId::fs(1));
    assert_eq!(block_on(waiting), Err(Undelivered::Gone));
}

#[test]
fn a_request_completes_without_a_waiter() {
    let machine = machine(1);
    let heard = block_on(machine.on_node(NodeId::fs(0), |context| async move {
        let mut direct = context.spawn(NodeId::fs(0), echo::Wait { micros: 100 });
        assert!((&mut direct).now_or_never().is_none());
        drop(direct);
        context.notify(NodeId::fs(0), echo::Wait { micros: 100 });
        context.sleep(Duration::from_millis(5)).await;
        context.idle().await;
        context.now()
    }));
    assert!(heard.unwrap() >= Duration::from_millis(5));
}

#[test]
fn a_disk_is_opened_by_one_process_at_a_time_and_reads_what_was_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk").to_str().unwrap().to_owned();
    std::fs::write(&path, vec![0; 1 << 16]).unwrap();
    let machine = machine(2);
    let work = move |context: Context| async move {
        let disk = context.open_disk(&path).await.unwrap();
        assert_eq!(disk.length(), 1 << 16);
        let pieces = vec![Bytes::from_static(b"check"), Bytes::from_static(b"point")];
        disk.write(4090, pieces).await.unwrap();
        disk.sync().await.unwrap();
        assert_eq!(disk.read(4088, 14).await.unwrap(), &b"\0\0checkpoint\0\0"[..]);
        assert!(disk.read(65_530, 10).await.is_err(), "past the end");
        let second = context.open_disk(&path).await.err().unwrap();
        assert_eq!(second.kind(), std::io::ErrorKind::ResourceBusy);
        let missing = context.open_disk("/nowhere/disk").await.err().unwrap();
        assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
    };
    block_on(machine.on_node(NodeId::disk(1), work)).unwrap();
}

#[test]
fn streams_carry_pieces_in_order_over_tcp_and_unix_sockets() {
    use std::io::{Read as _, Write as _};
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let machine = machine(1);
    for address in [Address::Tcp("127.0.0.1:0".into()), Address::Unix(socket)] {
        let (told, listening) = std::sync::mpsc::channel();
        let server = machine.on_node(NodeId::fs(0), move |context| async move {
            let mut listener = context.listen(&address).await.unwrap();
            told.send(listener.address()).unwrap();
            let mut stream = listener.accept().await.unwrap();
            let mut buffer = BytesMut::new();
            while buffer.len() < 5 {
                stream.reader.read(&mut buffer).await.unwrap();
            }
            let hello = buffer.freeze();
            let pieces = (0..200).map(|i| hello.slice(i % 5..5)).collect();
            stream.writer.write(pieces).await.unwrap();
        });
        let mut received = Vec::new();
        match listening.recv().unwrap() {
            Address::Tcp(address) => {
                #[allow(clippy::disallowed_methods, reason = "the client side of the test")]
                let mut client = std::net::TcpStream::connect(address).unwrap();
                client.write_all(b"hello").unwrap();
                client.read_to_end(&mut received).unwrap();
            }
            Address::Unix(path) => {
                #[allow(clippy::disallowed_methods, reason = "the client side of the test")]
                let mut client = std::os::unix::net::UnixStream::connect(path).unwrap();
                client.write_all(b"hello").unwrap();
                client.read_to_end(&mut received).unwrap();
            }
        }
        assert_eq!(received, b"helloellolloloo".repeat(40));
        block_on(server).unwrap();
    }
}
