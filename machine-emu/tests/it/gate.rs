//! The host of a J-Machine: bytes and messages wait until they are looked for.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use machine_emu::jmachine::{JMachine, Profile, Topology};
use machine_emu::mesh::{ForwardPolicy, Mesh};
use machine_emu::{LinkError, MeshSetup, World, WorldShape};
use runtime::NodeId;
use runtime::net::Address;

use crate::kit::{Ping, serve};

const HOST: u32 = 3;

fn machine() -> JMachine {
    let topology = Topology::parse("8x8x8 disks=2 board=0").unwrap();
    JMachine { profile: Profile::ideal(), topology, host: Some(NodeId::application(HOST)) }
}

fn world() -> World {
    let world = World::new(1, WorldShape { fs_nodes: 64, disk_nodes: 2 });
    world.emulate(&machine(), HOST + 1);
    world
        .network()
        .use_mesh(MeshSetup::machine(&machine(), ForwardPolicy::Canonical).unwrap())
        .unwrap();
    for node in [NodeId::fs(0), NodeId::fs(63), NodeId::disk(1)] {
        serve(&world.context(node));
    }
    world
}

/// How long a small request of `from` takes.
fn ping(world: &World, from: u32, to: NodeId) -> Duration {
    let context = world.context(NodeId::application(from));
    let start = world.now();
    assert_eq!(world.run(async { context.spawn(to, Ping { number: 5 }).await }), Ok(5));
    world.now().saturating_sub(start)
}

#[test]
fn the_host_asks_like_any_node_but_hears_answers_when_it_looks() {
    let world = world();
    // File-system node 63 is in the row of the host; the others are reached as well, and answer
    // through a forwarder.
    for to in [NodeId::fs(63), NodeId::fs(0), NodeId::disk(1)] {
        let here = ping(&world, 0, to);
        assert!(here < Duration::from_micros(200), "{here:?}");
        let host = ping(&world, HOST, to);
        assert!(host > here && host < Duration::from_millis(2), "{host:?}");
        // It looks once in a millisecond, and takes three words out of the FIFO.
        assert_eq!(world.now().as_nanos() % 1_000_000, 3_000, "{to}");
    }
    let counters = world.network().mesh(Mesh::counters).unwrap();
    assert!(counters.forwarded >= 2, "{counters:?}");
}

#[test]
fn bytes_from_outside_take_the_time_of_the_hosts_network_and_of_its_polling() {
    let world = world();
    let context = world.context(NodeId::application(HOST));
    let address = Address::Tcp("host:2049".to_owned());
    let took = world.run(async {
        let mut listener = context.listen(&address).await.unwrap();
        let mut outside = world.connect_from("127.0.0.1:7", &address).unwrap();
        let mut inside = listener.accept().await.unwrap();
        let start = world.now();
        // 1.25 MB/s: 100 ms.
        outside.writer.write(vec![Bytes::from(vec![9; 125_000])]).await.unwrap();
        let mut got = BytesMut::with_capacity(200_000);
        while got.len() < 125_000 {
            assert!(inside.reader.read(&mut got).await.unwrap() > 0);
        }
        world.now().saturating_sub(start)
    });
    assert!((100..=102).contains(&took.as_millis()), "{took:?}");
}

#[test]
fn a_host_needs_a_node_and_a_place() {
    let world = World::new(1, WorldShape { fs_nodes: 4, disk_nodes: 2 });
    let setup = MeshSetup::machine(&machine(), ForwardPolicy::Canonical).unwrap();
    let without_host = MeshSetup { host: None, ..setup };
    assert_eq!(world.network().use_mesh(without_host).unwrap_err(), LinkError::Host);
    let slow = Profile::ideal().with("network.word", 3.0).unwrap();
    let slow =
        MeshSetup::machine(&JMachine { profile: slow, ..machine() }, ForwardPolicy::Canonical);
    let error = slow.unwrap_err().to_string();
    assert_eq!(error, "network.word is 3: the mesh takes 2 to 2; change the profile");
}
