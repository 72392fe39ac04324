//! Many calls on one connection: order, back-pressure, retransmission, stopping.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use fileio::protocol::{CallId, Reply, Request};
use nfs_gateway::{Config, Error, Gateway, limits};
use nfs3_types::nfs3::NFS_PROGRAM::*;
use nfs3_types::nfs3::*;
use runtime::net::Address;
use runtime::seed::{Rng, with_seed};
use runtime::{NodeId, Undelivered};

use crate::kit::{Act, Client, Stage, VOLUME, at, encode, mode, status};

fn config() -> Config {
    crate::kit::config(VOLUME)
}

#[test]
fn a_slow_call_does_not_hold_back_the_others() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let service = stage.service.clone();
        stage.run(async |mut client, root| {
            let file = client.file(&root, "file").await;
            service.rule(|request| match request {
                Request::Read(_) => Act::After(Duration::from_secs(1)),
                _ => Act::Answer,
            });
            let read = READ3args { file: file.clone(), offset: 0, count: 1 };
            let slow = client.send(NFSPROC3_READ, &read).await;
            let quick = client.send(NFSPROC3_GETATTR, &GETATTR3args { object: file }).await;
            let (first, _) = client.receive().await.unwrap();
            let (second, verdict) = client.receive().await.unwrap();
            assert_eq!((first, second), (quick, slow));
            assert!(verdict.done::<READ3res>().unwrap().eof);
        });
    });
}

#[test]
fn many_calls_at_once_are_all_answered_rightly() {
    with_seed(|rng| {
        let config =
            Config { outstanding_calls_max: 7, outstanding_bytes_max: 100_000, ..config() };
        let stage = Stage::with(rng, config);
        let mut delays = rng.clone();
        stage.service.rule(move |_| Act::After(Duration::from_micros(delays.below(500))));
        stage.run(async |mut client, root| {
            let file = client.file(&root, "file").await;
            let content: Vec<u8> = (0..200_000_u32).map(|i| (i / 251) as u8).collect();
            client.write(&file, 0, &content, stable_how::UNSTABLE).await.unwrap();
            let mut asked = BTreeSet::new();
            for index in 0..100 {
                let read = READ3args { file: file.clone(), offset: index * 1000, count: 60_000 };
                asked.insert((client.send(NFSPROC3_READ, &read).await, index as usize));
            }
            let base = asked.first().unwrap().0;
            for _ in 0..100 {
                let (xid, verdict) = client.receive().await.unwrap();
                let index = (xid - base) as usize;
                assert!(asked.remove(&(xid, index)), "answered once");
                let read = verdict.done::<READ3res>().unwrap();
                assert!(read.data.as_ref() == &content[index * 1000..index * 1000 + 60_000]);
            }
        });
    });
}

#[test]
fn too_many_outstanding_calls_stop_the_reading() {
    with_seed(|rng| {
        let stage = Stage::with(rng, Config { outstanding_calls_max: 5, ..config() });
        let service = stage.service.clone();
        let mut client = stage.client();
        let root = stage.world.run(client.mount("/"));
        let running = Rc::new(Cell::new(0));
        let count = running.clone();
        service.rule(move |_| {
            count.set(count.get() + 1);
            Act::Hang
        });
        stage.world.run(async {
            for _ in 0..100 {
                client.send(NFSPROC3_GETATTR, &GETATTR3args { object: root.clone() }).await;
            }
        });
        stage.world.advance(Duration::from_secs(10));
        assert_eq!(running.get(), 5, "calls that were let in");
        let mut other = stage.client();
        service.rule(|_| Act::Answer);
        stage.world.run(async {
            assert_eq!(status(&other.getattr(&root).await), nfsstat3::NFS3_OK);
        });
    });
}

#[test]
fn a_peer_that_takes_no_replies_cannot_pile_them_up() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let service = stage.service.clone();
        let (mut client, root) = stage.run(async |client, root| (client, root));
        let file = stage.world.run(client.file(&root, "file"));
        let size = Nfs3Option::Some(1 << 20);
        let cut = sattr3 { size, ..sattr3::default() };
        stage.world.run(client.setattr(&file, cut)).unwrap();
        service.asked();
        stage.world.run(async {
            for _ in 0..64 {
                let read = READ3args { file: file.clone(), offset: 0, count: 1 << 20 };
                client.send(NFSPROC3_READ, &read).await;
            }
        });
        stage.world.advance(Duration::from_mins(1));
        let reads = service.asked().len();
        let most = limits::OUTSTANDING_BYTES >> 20;
        assert!((most - 1..=most).contains(&reads), "{reads} replies wait");
        stage.world.advance(2 * limits::IDLE + limits::DRAIN);
        assert_eq!(stage.gateway.connections(), 0, "it was given up");
    });
}

/// Sends READs of 1 MiB of `file` whose replies the client does not take.
async fn read_in_vain(client: &mut Client, file: &nfs_fh3) {
    for _ in 0..16 {
        let read = READ3args { file: file.clone(), offset: 0, count: 1 << 20 };
        client.send(NFSPROC3_READ, &read).await;
    }
}

#[test]
fn replies_that_are_not_taken_have_a_bound_for_each_peer_and_one_for_all() {
    with_seed(|rng| {
        let (of_peer, total) = (5 << 20, 12 << 20);
        let stage = Stage::with(
            rng,
            Config {
                outstanding_bytes_per_peer_max: of_peer,
                outstanding_bytes_total_max: total,
                ..config()
            },
        );
        let service = stage.service.clone();
        let reads = || service.asked().iter().filter(|asked| is_read(asked)).count();
        let mut clean = stage.client_at("10.9.0.1:700");
        let root = stage.world.run(clean.mount("/"));
        let file = stage.world.run(clean.file(&root, "file"));
        let size = Nfs3Option::Some(1 << 20);
        stage.world.run(clean.setattr(&file, sattr3 { size, ..sattr3::default() })).unwrap();
        let mut greedy: Vec<Client> =
            (0..6).map(|index| stage.client_at(&format!("10.0.0.{}:{index}", index / 2))).collect();
        stage.world.run(read_in_vain(&mut greedy[0], &file));
        stage.world.run(read_in_vain(&mut greedy[1], &file));
        stage.world.advance(Duration::from_secs(1));
        assert_eq!(reads(), (of_peer >> 20) - 1, "two connections of one peer share its bound");
        for client in &mut greedy[2..] {
            stage.world.run(read_in_vain(client, &file));
        }
        stage.world.advance(Duration::from_secs(1));
        let most = total >> 20;
        assert!((most - 6..most).contains(&(4 + reads())), "all of them share one");
        // A small call does not wait for them; a large one until the first is closed.
        let began = stage.world.now();
        assert_eq!(status(&stage.world.run(clean.getattr(&root))), nfsstat3::NFS3_OK);
        assert!(stage.world.now().saturating_sub(began) < Duration::from_millis(10));
        let read = READ3args { file, offset: 0, count: 1 << 20 };
        let read = stage.world.run(clean.nfs::<READ3res>(NFSPROC3_READ, &read));
        assert_eq!(read.unwrap().count, 1 << 20);
        assert!(stage.world.now().saturating_sub(began) < Duration::from_secs(15));
    });
}

fn is_read(asked: &Request) -> bool {
    matches!(asked, Request::Read(_))
}

#[test]
fn waiting_for_a_reply_is_not_being_idle() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let service = stage.service.clone();
        stage.run(async |mut client, root| {
            service.rule(|_| Act::After(limits::IDLE * 3));
            assert_eq!(status(&client.getattr(&root).await), nfsstat3::NFS3_OK);
        });
    });
}

/// The calls of all requests that have one.
fn calls(asked: &[Request]) -> Vec<CallId> {
    let call = |request: &Request| match request {
        Request::Remove(remove) => Some(remove.call),
        Request::MakeNode(make) => Some(make.call),
        _ => None,
    };
    asked.iter().filter_map(call).collect()
}

#[test]
fn a_retransmission_gets_the_first_answer_and_does_nothing_twice() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let service = stage.service.clone();
        stage.run(async |mut client, root| {
            client.file(&root, "file").await;
            service.asked();
            let program = [PROGRAM, VERSION, NFSPROC3_REMOVE as u32];
            let (xid, record) = client.record(program, &encode(&at(&root, b"file")));
            for _ in 0..2 {
                client.send_record(&record).await;
                let (answered, verdict) = client.receive().await.unwrap();
                assert_eq!(answered, xid);
                assert_eq!(status(&verdict.done::<REMOVE3res>()), nfsstat3::NFS3_OK);
            }
            let [first, again] = calls(&service.asked())[..] else { panic!("asked twice") };
            assert_eq!(first, again);
            // The same number with other arguments is another call.
            let program = [PROGRAM, VERSION, NFSPROC3_MKDIR as u32];
            let mkdir = |name: &'static [u8]| MKDIR3args {
                where_: at(&root, name),
                attributes: mode(0o755),
            };
            let (_, one) = client.record(program, &encode(&mkdir(b"one")));
            let (_, mut two) = client.record(program, &encode(&mkdir(b"two")));
            two[..4].copy_from_slice(&one[..4]);
            for record in [one, two] {
                client.send_record(&record).await;
                let (_, verdict) = client.receive().await.unwrap();
                assert_eq!(status(&verdict.done::<MKDIR3res>()), nfsstat3::NFS3_OK);
            }
            let [one, two] = calls(&service.asked())[..] else { panic!("asked twice") };
            assert_ne!(one, two);
        });
    });
}

#[test]
fn a_client_that_comes_back_from_another_port_makes_the_same_call_and_others_make_others() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let service = stage.service.clone();
        let ports = [("10.0.0.1:700", 1), ("10.0.0.1:701", 1), ("10.0.0.1:40000", 1)];
        let others = [("10.0.0.2:700", 1), ("10.0.0.1:700", 2)];
        let clients = ports.into_iter().chain(others);
        let clients: Vec<_> = clients.map(|(peer, user)| (stage.client_at(peer), user)).collect();
        stage.run(async |_, root| {
            service.asked();
            for (mut client, user) in clients {
                client.be(user, 0);
                let program = [PROGRAM, VERSION, NFSPROC3_REMOVE as u32];
                let (_, record) = client.record(program, &encode(&at(&root, b"none")));
                client.send_record(&record).await;
                client.receive().await.unwrap();
            }
            let [one, again, high, other_host, other_user] = calls(&service.asked())[..] else {
                panic!("each asks once")
            };
            assert_eq!((one, one), (again, high));
            assert!(one != other_host && one != other_user && other_host != other_user);
        });
    });
}

#[test]
fn a_call_that_may_have_been_done_is_not_answered_so_that_it_comes_again_as_it_is() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let service = stage.service.clone();
        let connect = || {
            let stream = stage.world.connect_from("10.0.0.1:800", stage.gateway.address());
            Client::over(stream.expect("the gateway listens"))
        };
        stage.world.run(async {
            let mut client = connect();
            let root = client.mount("/").await;
            client.file(&root, "file").await;
            service.asked();
            service.rule(|request| match request {
                Request::Remove(_) => Act::AnswerWith(Reply::Remove(Err(Undelivered::Lost.into()))),
                _ => Act::Answer,
            });
            let program = [PROGRAM, VERSION, NFSPROC3_REMOVE as u32];
            let (xid, record) = client.record(program, &encode(&at(&root, b"file")));
            client.send_record(&record).await;
            assert!(client.receive().await.is_none(), "its outcome is unknown");
            service.rule(|_| Act::Answer);
            let mut client = connect();
            client.send_record(&record).await;
            let (answered, verdict) = client.receive().await.unwrap();
            assert_eq!(answered, xid);
            assert_eq!(status(&verdict.done::<REMOVE3res>()), nfsstat3::NFS3_OK);
            let calls = calls(&service.asked());
            assert!(calls.len() > 2 && calls.iter().all(|call| *call == calls[0]), "{calls:?}");
        });
    });
}

#[test]
fn a_client_that_has_said_all_is_still_answered() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        stage.service.rule(|_| Act::After(Duration::from_secs(1)));
        let mut stream = stage.world.connect(stage.gateway.address()).unwrap();
        let (_, record) = stage.client().record([PROGRAM, VERSION, 0], &[]);
        let mark = (record.len() as u32 | 1 << 31).to_be_bytes();
        let sent = [&mark[..], &record].concat();
        let received = stage.world.run(async move {
            stream.writer.write(vec![sent.into()]).await.unwrap();
            drop(stream.writer);
            let mut received = bytes::BytesMut::new();
            while stream.reader.read(&mut received).await.unwrap() > 0 {}
            received
        });
        assert_eq!(received.len(), 4 + 24, "the reply, then the end");
        stage.world.advance(Duration::from_secs(1));
        assert_eq!(stage.gateway.connections(), 0);
    });
}

#[test]
fn stop_lets_calls_end_and_then_hangs_up() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let service = stage.service.clone();
        let gateway = stage.gateway.clone();
        let idle = stage.client();
        stage.run(async |mut client, root| {
            service.rule(|_| Act::After(Duration::from_secs(1)));
            let xid = client.send(NFSPROC3_GETATTR, &GETATTR3args { object: root }).await;
            stage.world.context(NodeId::fs(0)).sleep(Duration::from_millis(100)).await;
            let (answer, ()) = futures::future::join(client.receive(), gateway.stop()).await;
            let (answered, verdict) = answer.unwrap();
            assert_eq!(answered, xid);
            assert_eq!(status(&verdict.done::<GETATTR3res>()), nfsstat3::NFS3_OK);
            assert!(client.receive().await.is_none());
        });
        drop(idle);
        assert_eq!(stage.gateway.connections(), 0);
        assert!(stage.world.connect(stage.gateway.address()).is_err());
        assert!(stage.world.now() < limits::DRAIN);
    });
}

#[test]
fn stop_does_not_wait_for_ever() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let service = stage.service.clone();
        let gateway = stage.gateway.clone();
        stage.run(async |mut client, root| {
            service.rule(|_| Act::Hang);
            client.send(NFSPROC3_GETATTR, &GETATTR3args { object: root }).await;
            gateway.stop().await;
            assert!(client.receive().await.is_none());
        });
        assert!(stage.world.now() < limits::DRAIN * 2);
    });
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    with_seed(|rng| {
        let trace = |mut rng: Rng| {
            let stage = Stage::new(&mut rng);
            stage.run(async |mut client, root| {
                for name in ["a", "b", "c"] {
                    let file = client.file(&root, name).await;
                    client.write(&file, 0, &vec![7; 100_000], stable_how::FILE_SYNC).await.unwrap();
                }
            });
            stage.world.trace_hash()
        };
        assert_eq!(trace(rng.clone()), trace(rng.clone()));
        let other = Rng::new(rng.bits());
        assert_ne!(trace(rng.clone()), trace(other));
    });
}

#[test]
fn a_taken_address_is_an_error_that_names_it() {
    with_seed(|rng| {
        let stage = Stage::new(rng);
        let ctx = stage.world.context(NodeId::application(1));
        let address: &Address = stage.gateway.address();
        let error = stage.world.run(Gateway::start(ctx, address, config())).unwrap_err();
        assert!(matches!(error, Error::Listen { .. }));
        assert!(error.to_string().contains("gateway:2049"), "{error}");
    });
}
