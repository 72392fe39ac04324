//! Several processes, each with some of the nodes, reach each other's nodes; what cannot be reached
//! says so in time.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(clippy::disallowed_methods, reason = "the test stands outside of the machines")]

mod member;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::executor::block_on;
use futures::future::join_all;
use member::{Member, NODES, VOLUME, three};
use runtime::net::Address;
use runtime::{NodeId, Undelivered, VolumeId};
use support::echo;
use transport::ProcessAddress;

#[test]
fn a_request_travels_over_processes_and_back() {
    let members = three();
    for member in &members {
        for node in 0..NODES {
            assert_eq!(member.say(node, 13), Ok((node + 13) % NODES));
        }
    }
}

#[test]
fn many_requests_of_many_threads_cross_and_none_is_mixed_up() {
    let members = three();
    std::thread::scope(|scope| {
        for member in &members {
            scope.spawn(|| {
                let client_handle = member.machine.client_handle();
                let calls = (0..600_u32).map(|i| {
                    let text = Bytes::from(vec![i as u8; 97 * i as usize]);
                    client_handle.spawn(NodeId::fs(i % NODES), echo::Say { text, hops: i % 4 })
                });
                for (i, answer) in block_on(join_all(calls)).into_iter().enumerate() {
                    let (text, node) = answer.unwrap();
                    assert_eq!((text.len(), node), (97 * i, (i as u32 + i as u32 % 4) % NODES));
                    assert!(text.iter().all(|byte| *byte == i as u8));
                }
            });
        }
    });
}

#[test]
fn a_client_of_one_process_reaches_the_nodes_of_all() {
    let members = three();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let address = Address::Unix(socket.clone());
    let machine = &members[1].machine;
    let listening = machine.on_node(machine.application(), |context| async move {
        let listener = context.listen(&address).await.unwrap();
        let serving = context.clone();
        let port = transport::ClientPort::local(runtime::VolumeId(1), String::new(), 0, 0);
        context.task(transport::serve::<echo::Echo>(serving, listener, port));
    });
    block_on(listening).unwrap();
    let client_handle = transport::connect(
        &transport::ServerAddress::Local(socket.clone()),
        transport::ClientOptions::default(),
        7,
    )
    .unwrap();
    for node in 0..NODES {
        let call = echo::Say { text: Bytes::from_static(b"a word"), hops: 2 };
        let (text, last) = block_on(client_handle.spawn(NodeId::fs(node), call)).unwrap();
        assert_eq!((&text[..], last), (&b"a word"[..], (node + 2) % NODES));
    }
}

#[test]
fn a_process_of_another_volume_or_life_is_not_asked() {
    let here = Member::start(0, 1, VOLUME, Arc::default());
    for (incarnation, volume, reached) in
        [(1, VOLUME, true), (2, VOLUME, false), (1, VolumeId(78), false)]
    {
        let there = Member::start(1, incarnation, volume, Arc::default());
        let wanted =
            Arc::new(ProcessAddress { incarnation: 1, ..ProcessAddress::clone(&there.process) });
        here.meet(1, &[&here.process, &wanted]);
        let answer = here.say_until(1, |answer| (answer.is_ok() == reached).then_some(answer));
        assert_eq!(answer, if reached { Ok(1) } else { Err(Undelivered::Unreachable) });
    }
}

#[test]
fn a_process_that_is_gone_is_unreachable_until_it_is_back_in_another_life() {
    let [first, second, third] = three();
    assert_eq!(first.say(1, 0), Ok(1));
    drop(second);
    first.say_until(1, |answer| (answer == Err(Undelivered::Unreachable)).then_some(()));
    assert_eq!(first.say(2, 0), Ok(2));

    let second = Member::start(1, 2, VOLUME, Arc::default());
    let all = [&first.process, &second.process, &third.process];
    for member in [&first, &second, &third] {
        member.meet(2, &all);
    }
    assert_eq!(first.say_until(1, Result::ok), 1);
    assert_eq!(second.say_until(2, Result::ok), 2);
}

#[test]
fn a_process_is_fenced_until_it_knows_the_epoch() {
    let [first, second, third] = three();
    let all = [&first.process, &second.process, &third.process];
    second.meet(2, &all);
    first.say_until(1, |answer| (answer == Err(Undelivered::Fenced)).then_some(()));
    assert_eq!(second.say(0, 0), Ok(0), "one who knows more is answered");
    first.meet(2, &all);
    assert_eq!(first.say_until(1, Result::ok), 1);
    first.meet(1, &all);
    assert_eq!(first.say(1, 0), Ok(1), "an epoch is never forgotten");
}

#[test]
fn calls_to_a_life_that_is_over_are_lost_as_soon_as_the_routes_say_so() {
    let [first, second, _third] = three();
    assert_eq!(first.say(1, 0), Ok(1));
    let waiting =
        first.machine.client_handle().spawn(NodeId::fs(1), echo::Wait { micros: 60_000_000 });
    let later = std::thread::spawn(move || (block_on(waiting), Instant::now()));
    // The call is on its way, or even there.
    std::thread::sleep(Duration::from_millis(50));
    let told = Instant::now();
    let next =
        Arc::new(ProcessAddress { incarnation: 2, ..ProcessAddress::clone(&second.process) });
    first.meet(2, &[&first.process, &next]);
    let (answer, lost_at) = later.join().unwrap();
    assert_eq!(answer, Err(Undelivered::Lost));
    assert!(lost_at - told < Duration::from_secs(1));
}

/// Carries bytes from a client to `to` and back, until it is told to hold them.
fn holding_proxy(to: String, holds: &Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let holds = holds.clone();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(&to) else { return };
            let (client_too, server_too) =
                (client.try_clone().unwrap(), server.try_clone().unwrap());
            for (mut from, mut into) in [(client, server), (server_too, client_too)] {
                let holds = holds.clone();
                std::thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    while let Ok(count @ 1..) = from.read(&mut buffer) {
                        while holds.load(Relaxed) {
                            std::thread::sleep(Duration::from_millis(5));
                        }
                        if into.write_all(&buffer[..count]).is_err() {
                            return;
                        }
                    }
                });
            }
        }
    });
    address
}

#[test]
fn a_process_that_falls_silent_is_given_up_and_asked_again_later() {
    let [first, second, _third] = three();
    let holds = Arc::new(AtomicBool::new(false));
    let address = holding_proxy(second.process.address.clone(), &holds);
    let behind = Arc::new(ProcessAddress { address, ..ProcessAddress::clone(&second.process) });
    first.meet(1, &[&first.process, &behind]);
    assert_eq!(first.say_until(1, Result::ok), 1);

    // A call may take long, as long as the process gives signs of life.
    let slow = first.machine.client_handle().spawn(NodeId::fs(1), echo::Wait { micros: 3_500_000 });
    assert_eq!(block_on(slow), Ok(()));

    holds.store(true, Relaxed);
    let begin = Instant::now();
    assert_eq!(first.say(1, 0), Err(Undelivered::Lost));
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    holds.store(false, Relaxed);
    assert_eq!(first.say_until(1, Result::ok), 1);
}

#[test]
fn what_a_link_has_left_behind_is_not_done_when_its_next_connection_asks() {
    let [first, second, _third] = three();
    let holds = Arc::new(AtomicBool::new(false));
    let held = holding_proxy(second.process.address.clone(), &holds);
    let free = holding_proxy(second.process.address.clone(), &Arc::default());
    // The first connection goes through the one, all others through the other.
    let address = proxy_per_connection([held, free]);
    let behind = Arc::new(ProcessAddress { address, ..ProcessAddress::clone(&second.process) });
    first.meet(1, &[&first.process, &behind]);
    assert_eq!(first.say_until(1, Result::ok), 1);
    let said = || block_on(second.machine.client_handle().spawn(NodeId::fs(1), echo::CountSaid {}));
    let before = said().unwrap();

    holds.store(true, Relaxed);
    assert_eq!(first.say(1, 0), Err(Undelivered::Lost));
    assert_eq!(first.say_until(1, Result::ok), 1);
    let after = said().unwrap();
    assert!(after > before);
    // The request that was lost arrives after all.
    holds.store(false, Relaxed);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(said().unwrap(), after);
}

/// Hands the first connection to the first of `to`, and all later ones to the last.
fn proxy_per_connection(to: [String; 2]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let connections = listener.incoming().map_while(Result::ok);
        for (index, client) in connections.enumerate() {
            let Ok(server) = TcpStream::connect(&to[index.min(1)]) else { return };
            let (client_too, server_too) =
                (client.try_clone().unwrap(), server.try_clone().unwrap());
            for (mut from, mut into) in [(client, server), (server_too, client_too)] {
                // The server's side stays open when the client's has ended.
                std::thread::spawn(move || std::io::copy(&mut from, &mut into).map(|_| into));
            }
        }
    });
    address
}

#[test]
fn garbage_at_the_port_does_no_harm() {
    let members = three();
    for bytes in [&[0_u8; 200][..], &[0xFF; 200], b"GET / HTTP/1.1\r\n\r\n", b"MDFS\x01\x00\x04"] {
        let mut stranger = TcpStream::connect(&members[1].process.address).unwrap();
        stranger.write_all(bytes).unwrap();
        stranger.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut answer = Vec::new();
        let ended = stranger.read_to_end(&mut answer);
        assert!(ended.is_ok() || answer.is_empty(), "the stream stays open");
        assert!(answer.is_empty(), "strangers are told nothing");
        assert_eq!(members[0].say(1, 0), Ok(1));
    }
}
