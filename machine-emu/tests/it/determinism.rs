//! The same seed, the same world.

use std::time::Duration;

use bytes::Bytes;
use machine_emu::{DiskFaults, FaultKind, NetworkFaults, World, WorldCounters, WorldShape};
use runtime::seed::with_seed;
use runtime::{Context, NodeId};

use crate::kit::{Count, Echo, Hop, Ping, Slowly, application, serve, serving};

const NODES: u32 = 5;

/// One client that asks at random, and does not mind errors.
async fn client(context: Context) {
    for _ in 0..60 {
        let node = NodeId::fs(context.random() as u32 % NODES);
        match context.random() % 6 {
            0 => drop(context.spawn(node, Ping { number: context.random() }).await),
            1 => {
                let data = Bytes::from(vec![context.random() as u8; 10_000]);
                drop(context.spawn(node, Echo { data }).await);
            }
            2 => drop(context.spawn(node, Hop { hops: 3 }).await),
            3 => drop(context.spawn(node, Slowly { nanoseconds: 30_000 }).await),
            4 => context.notify(node, Count {}),
            _ => context.idle().await,
        }
    }
}

/// Writes and flushes at random until its node dies.
async fn disk_user(context: Context) -> std::io::Result<()> {
    let disk = context.open_disk("disk").await?;
    loop {
        let offset = context.random() % 200 * 4096;
        disk.write(offset, vec![Bytes::from(vec![context.random() as u8; 4096])]).await?;
        if context.random().is_multiple_of(4) {
            disk.sync().await?;
        }
        disk.read(offset, 512).await?;
    }
}

fn start_disk_user(context: &Context) {
    let own = context.clone();
    context.task(async move {
        let _ = disk_user(own).await;
    });
}

/// Something goes wrong every few milliseconds.
async fn nemesis(world: World, context: Context) {
    for _ in 0..40 {
        context.sleep(Duration::from_micros(context.random() % 5_000)).await;
        let node = NodeId::fs(context.random() as u32 % NODES);
        match context.random() % 6 {
            0 => world.kill(node),
            1 => serve(&world.restart(node)),
            2 => world.network().partition(&[node], &[NodeId::fs((node.0 + 1) % NODES)]),
            3 => world.network().heal(),
            4 => world.node(node).freeze(Duration::from_millis(2)),
            _ => {
                world.crash(NodeId::disk(0));
                start_disk_user(&world.restart(NodeId::disk(0)));
            }
        }
    }
}

fn busy_world(seed: u64) -> (u64, WorldCounters, Duration) {
    let world = serving(seed, NODES);
    world.create_used_disk("disk", 1 << 20);
    world.disk("disk").set_faults(DiskFaults { read_error_ppm: 1_000, ..Default::default() });
    start_disk_user(&world.context(NodeId::disk(0)));
    world.network().set_faults(NetworkFaults {
        loss_ppm: 20_000,
        duplicate_ppm: 20_000,
        reorder_ppm: 100_000,
        corrupt_ppm: 10_000,
        delay_ppm: 50_000,
        delay_max_ns: 1_000_000,
    });
    let clients = (1..6).map(|index| client(world.context(NodeId::application(index))));
    let clients = futures::future::join_all(clients.collect::<Vec<_>>());
    let faults = nemesis(world.clone(), application(&world));
    world.run(futures::future::join(clients, faults));
    (world.trace_hash(), world.counters(), world.now())
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
    with_seed(|rng| {
        let seed = rng.bits();
        let first = busy_world(seed);
        assert_eq!(first, busy_world(seed));
        assert_ne!(first.0, busy_world(seed ^ 1).0);
        let counters = first.1;
        assert!(counters.messages > 150 && counters.disk_operations > 100, "{counters:?}");
        assert!(counters.faults.contains_key(&FaultKind::MessageReordered), "{counters:?}");
    });
}

/// Holds across builds, days and machines. Only what this crate itself does is in it, so that a
/// change elsewhere does not change it.
#[test]
fn a_seed_of_today_gives_the_trace_of_yesterday() {
    let world = World::new(42, WorldShape { fs_nodes: 0, disk_nodes: 1 });
    world.create_used_disk("disk", 1 << 20);
    world.shuffle_steps();
    for _ in 0..20 {
        start_disk_user(&world.restart(NodeId::disk(0)));
        world.advance(Duration::from_millis(10));
        world.crash(NodeId::disk(0));
    }
    let content = runtime::hash::xxh3(&world.disk("disk").peek(0, 1 << 20));
    assert_eq!(world.trace_hash(), 0xee15_c3e0_fffd_1d44, "{:#x}", world.trace_hash());
    assert_eq!(content, 0x5f85_e43c_e8b1_45d3, "{content:#x}");
}

#[test]
fn a_dropped_world_frees_what_its_nodes_held() {
    let witness = std::rc::Rc::new(());
    let kept = witness.clone();
    let world = serving(1, 2);
    let context = world.context(NodeId::fs(0));
    let own = context.clone();
    context.task(async move {
        futures::future::pending::<()>().await;
        drop((kept, own));
    });
    world.advance(Duration::from_millis(1));
    drop((world, context));
    assert_eq!(std::rc::Rc::strong_count(&witness), 1);
}
