//! Clients of the same host, over a Unix socket.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../tests/support/mod.rs"]
mod support;

use bytes::Bytes;
use futures::executor::block_on;
use futures::future::{LocalBoxFuture, join_all};
use runtime::embedded::{Config, DiskAccess, Embedded};
use runtime::net::{Address, ByteStream, Listener};
use runtime::{Epoch, NodeId, Undelivered};
use support::echo;

fn machine(threads: usize) -> Embedded {
    let machine = Embedded::start(Config {
        threads,
        fs_nodes: 8,
        disk_nodes: 1,
        epoch: Epoch(1),
        pool_bytes: 1 << 20,
        disk_access: DiskAccess::Best,
    })
    .unwrap();
    let booted = (0..8).map(|index| machine.on_node(NodeId::fs(index), support::serve));
    for served in block_on(join_all(booted)) {
        served.unwrap();
    }
    machine
}

#[test]
fn another_process_asks_through_a_socket_as_if_it_were_here() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let machine = machine(2);
    let address = Address::Unix(socket.clone());
    let gate = machine.application();
    let listening = machine.on_node(gate, move |context| async move {
        let listener = context.listen(&address).await.unwrap();
        let serving = context.clone();
        let port = transport::ClientPort::local(runtime::VolumeId(1), String::new(), 0, 0);
        context.task(transport::serve::<echo::Echo>(serving, listener, port));
    });
    block_on(listening).unwrap();
    let client_handle = transport::connect(
        &transport::ServerAddress::Local(socket.clone()),
        transport::ClientOptions {
            timeout: Some(std::time::Duration::from_millis(300)),
            ..transport::ClientOptions::default()
        },
        7,
    )
    .unwrap();
    assert_eq!(client_handle.fs_nodes(), 8);
    let calls = (0..300).map(|i| {
        let text = Bytes::from(vec![i as u8; 1000 * i as usize]);
        client_handle.spawn(NodeId::fs(i % 8), echo::Say { text, hops: i % 3 })
    });
    for (i, answer) in block_on(join_all(calls)).into_iter().enumerate() {
        assert_eq!(answer.unwrap().0, vec![i as u8; 1000 * i]);
    }
    let missing = client_handle.spawn(NodeId::fs(99), echo::Wait { micros: 1 });
    assert_eq!(block_on(missing), Err(Undelivered::Unreachable));
    let waiting = client_handle.spawn(NodeId::fs(0), echo::Wait { micros: 60_000_000 });
    drop(machine);
    assert_eq!(block_on(waiting), Err(Undelivered::TimedOut));
}

/// A listener that fails a few times, as where the process has too many open files.
struct OutOfFiles {
    listener: Box<dyn Listener>,
    errors: Vec<i32>,
}

impl Listener for OutOfFiles {
    fn accept(&mut self) -> LocalBoxFuture<'_, std::io::Result<ByteStream>> {
        Box::pin(async {
            match self.errors.pop() {
                Some(error) => Err(std::io::Error::from_raw_os_error(error)),
                None => self.listener.accept().await,
            }
        })
    }

    fn address(&self) -> Address {
        self.listener.address()
    }
}

#[test]
fn a_socket_answers_again_once_files_can_be_opened() {
    const EMFILE: i32 = 24;
    const ENFILE: i32 = 23;
    const ECONNABORTED: i32 = 103;
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let machine = machine(1);
    let address = Address::Unix(socket.clone());
    let listening = machine.on_node(machine.application(), move |context| async move {
        let listener = context.listen(&address).await.unwrap();
        let errors = vec![EMFILE, ENFILE, ECONNABORTED];
        let listener = Box::new(OutOfFiles { listener, errors });
        let port = transport::ClientPort::local(runtime::VolumeId(1), String::new(), 0, 0);
        context.task(transport::serve::<echo::Echo>(context.clone(), listener, port));
    });
    block_on(listening).unwrap();
    let client_handle = transport::connect(
        &transport::ServerAddress::Local(socket),
        transport::ClientOptions::default(),
        7,
    )
    .expect("it still listens");
    let answer = client_handle.spawn(NodeId::fs(0), echo::Wait { micros: 1 });
    assert!(block_on(answer).is_ok());
}
