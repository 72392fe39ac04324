//! The world as a J-Machine: what its time consists of.

use std::time::Duration;

use bytes::Bytes;
use machine_emu::jmachine::{JMachine, NodeCosts, Profile, Topology};
use machine_emu::{World, WorldShape};
use runtime::NodeId;

use crate::kit::{Echo, Ping, serve};

const STRIPE: usize = 64 << 10;

fn machine() -> JMachine {
    let topology = Topology::parse("8x8x8 disks=2 board=0").unwrap();
    JMachine { profile: Profile::ideal(), topology, host: None }
}

fn world(seed: u64) -> World {
    let world = World::new(seed, WorldShape { fs_nodes: 4, disk_nodes: 2 });
    for disk in 0..4 {
        world.create_disk(&format!("disk-{disk}"), 400 << 20);
    }
    world.emulate(&machine(), 3);
    for node in [NodeId::fs(0), NodeId::fs(1), NodeId::disk(0)] {
        serve(&world.context(node));
    }
    world
}

/// How long `work` takes.
fn time(world: &World, work: impl Future<Output = ()>) -> Duration {
    let start = world.now();
    world.run(work);
    world.now().saturating_sub(start)
}

#[test]
fn a_small_request_takes_what_its_parts_take() {
    let world = world(1);
    let context = world.context(NodeId::application(0));
    let took = time(&world, async {
        context.spawn(NodeId::fs(0), Ping { number: 7 }).await.unwrap();
    });
    let costs = NodeCosts::new(Profile::ideal().numbers());
    // Nine bytes there, nine back, and on the way four steps of processes and two crossings.
    let software_ns = 2 * (costs.send_ns(9) + costs.receive_ns(9)) + costs.handler_ns();
    let software = Duration::from_nanos(software_ns);
    let rest = took.saturating_sub(software);
    assert!((1..40).contains(&rest.as_micros()), "{took:?}, of which {software:?} is software");
}

#[test]
fn a_long_message_is_taken_in_while_it_is_sent() {
    let world = world(1);
    let context = world.context(NodeId::application(0));
    let data = Bytes::from(vec![1; STRIPE]);
    let took = time(&world, async {
        context.spawn(NodeId::fs(0), Echo { data }).await.unwrap();
    });
    let costs = NodeCosts::new(Profile::ideal().numbers());
    let sent = Duration::from_nanos(2 * costs.send_ns(STRIPE as u64));
    assert!((sent..sent + Duration::from_millis(1)).contains(&took), "{took:?}, sent in {sent:?}");
    let load = world.load(NodeId::fs(0));
    let worked = load.processor[0] + load.processor[1];
    let costs_ns = costs.receive_ns(STRIPE as u64) + costs.send_ns(STRIPE as u64);
    let rest = worked.saturating_sub(Duration::from_nanos(costs_ns));
    assert!(rest < Duration::from_millis(1), "{worked:?}");
}

#[test]
fn control_does_not_wait_for_bulk_that_is_at_work() {
    let world = world(1);
    let (one, other) = (NodeId::application(0), NodeId::application(1));
    let (one, other) = (world.context(one), world.context(other));
    let data = Bytes::from(vec![1; STRIPE]);
    world.run(async {
        let bulk = one.spawn(NodeId::fs(0), Echo { data });
        // By now the node sends its answer, which takes 35 ms.
        other.sleep(Duration::from_millis(50)).await;
        let start = world.now();
        other.spawn(NodeId::fs(0), Ping { number: 1 }).await.unwrap();
        let took = world.now().saturating_sub(start);
        assert!(took < Duration::from_millis(1), "{took:?}");
        bulk.await.unwrap();
        assert!(world.now() > Duration::from_millis(69), "{:?}", world.now());
    });
}

#[test]
fn the_disks_of_a_node_share_its_processor_and_move_at_the_same_time() {
    let world = world(1);
    let context = world.context(NodeId::disk(0));
    let took = time(&world, async {
        let mut disks = Vec::new();
        for disk in 0..4 {
            disks.push(context.open_disk(&format!("disk-{disk}")).await.unwrap());
        }
        // A random place for each, far from where its arm is.
        let writes = disks.iter().map(|disk| disk.write(200 << 20, vec![vec![7; STRIPE].into()]));
        for written in futures::future::join_all(writes).await {
            written.unwrap();
        }
    });
    let costs = NodeCosts::new(Profile::ideal().numbers());
    let copied = Duration::from_nanos(4 * costs.disk_ns(STRIPE as u64));
    let load = world.load(NodeId::disk(0));
    assert!(load.processor[0] + load.processor[1] >= copied, "{load:?}");
    assert_eq!(load.disks.len(), 4);
    let moved: Duration = load.disks.iter().sum();
    assert!(load.disks.iter().all(|moved| moved.as_millis() > 50), "{load:?}");
    // One after the other would take as long as all arms and surfaces together.
    assert!(took < moved * 3 / 4, "{took:?} for {moved:?}");
    assert!(took > copied + load.disks[3] / 2, "{took:?}");
}

#[test]
fn what_was_written_is_read_back_and_synced_on_a_bus() {
    let world = world(3);
    let context = world.context(NodeId::disk(1));
    world.run(async {
        let disk = context.open_disk("disk-0").await.unwrap();
        let data: Bytes =
            (0..3 * STRIPE).map(|index| (index % 251) as u8).collect::<Vec<_>>().into();
        disk.write(1 << 20, vec![data.clone()]).await.unwrap();
        disk.sync().await.unwrap();
        assert_eq!(disk.read(1 << 20, 3 * STRIPE).await.unwrap(), data);
    });
    assert!(world.load(NodeId::disk(1)).bus > Duration::ZERO);
}

#[test]
fn a_command_under_way_ends_with_the_power_and_the_disk_works_afterwards() {
    let world = world(4);
    let node = NodeId::disk(0);
    let context = world.context(node);
    world.run(async {
        let disk = context.open_disk("disk-0").await.unwrap();
        let write = disk.write(0, vec![vec![1; STRIPE].into()]);
        context.sleep(Duration::from_millis(20)).await;
        world.crash(node);
        assert!(write.await.is_err());
        let context = world.restart(node);
        let disk = context.open_disk("disk-0").await.unwrap();
        disk.write(0, vec![vec![2; STRIPE].into()]).await.unwrap();
        assert_eq!(disk.read(0, STRIPE).await.unwrap(), vec![2; STRIPE]);
    });
}

#[test]
fn the_same_program_takes_the_same_time_whatever_the_seed() {
    let run = |seed| {
        let world = world(seed);
        let context = world.context(NodeId::application(2));
        world.run(async {
            let data = Bytes::from(vec![1; STRIPE]);
            let calls =
                (0..2).map(|node| context.spawn(NodeId::fs(node), Echo { data: data.clone() }));
            for answer in futures::future::join_all(calls).await {
                answer.unwrap();
            }
        });
        (world.now(), world.trace_hash())
    };
    assert_eq!(run(1), run(1));
    assert_eq!(run(1).0, run(2).0);
}

#[test]
#[should_panic(expected = "do not fit on 2x1x2 disks=1 board=0")]
fn a_world_that_does_not_fit_on_the_machine_is_refused() {
    let world = World::new(1, WorldShape { fs_nodes: 4, disk_nodes: 1 });
    let topology = Topology::parse("2x1x2 disks=1").unwrap();
    world.emulate(&JMachine { profile: Profile::ideal(), topology, host: None }, 1);
}
