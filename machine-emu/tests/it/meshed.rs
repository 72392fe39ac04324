//! A world whose messages go through a mesh.

use std::time::Duration;

use bytes::Bytes;
use machine_emu::mesh::{MeshTrace, Recorder, TraceKind};
use machine_emu::{MeshSetup, NetworkFaults, World};
use runtime::NodeId;
use runtime::seed::with_seed;

use crate::kit::{Echo, Hop, Ping, application, serving};

/// What the mesh adds to a request of 8 + `words` words over `hops` links: H + 7 + 2 L, and taking
/// it out of its queue.
fn cycles(hops: u64, words: u64) -> u64 {
    let words = words + 8;
    hops + 7 + 2 * words + 4 + 2 * words
}

fn meshed(seed: u64, fs_nodes: u32) -> World {
    let world = serving(seed, fs_nodes);
    let recorder = Some(Recorder::new(seed, "test", 1_000));
    world.network().use_mesh(MeshSetup { recorder, ..MeshSetup::thesis(8).unwrap() }).unwrap();
    world
}

#[test]
fn a_round_trip_takes_the_time_of_the_mesh() {
    let world = meshed(1, 64);
    let context = application(&world);
    // The first application stands at (0,0,0), node 13 at (5,7,1): thirteen links.
    let answer = world.run(async { context.spawn(NodeId::fs(13), Ping { number: 3 }).await });
    assert_eq!(answer, Ok(3));
    let delivered = world.network().mesh(|mesh| {
        let events = mesh.recorder().unwrap().events().iter();
        let delivered = events.filter(|event| event.kind == TraceKind::Delivered);
        delivered.map(|event| u64::from(event.words) - 8).collect::<Vec<_>>()
    });
    let [request, reply] = delivered.unwrap()[..] else { panic!("two messages") };
    let expected = cycles(13, request) + cycles(13, reply);
    assert_eq!(world.now(), Duration::from_nanos(100 * expected));
}

#[test]
fn long_payloads_come_whole_and_control_overtakes_them() {
    let world = meshed(2, 64);
    let context = application(&world);
    let data = Bytes::from((0..1_000_003u32).map(|at| (at * 7) as u8).collect::<Vec<_>>());
    let (ping, pinged, echoed) = world.run(async {
        let echo = context.spawn(NodeId::fs(63), Echo { data: data.clone() });
        let ping = context.spawn(NodeId::fs(63), Ping { number: 9 }).await;
        let pinged = world.now();
        assert_eq!(echo.await, Ok(data.clone()));
        (ping, pinged, world.now())
    });
    assert_eq!(ping, Ok(9));
    // Two words in three cycles at best: a megabyte takes 50 ms each way, the ping overtakes it.
    assert!(pinged < Duration::from_micros(20), "{pinged:?}");
    assert!(echoed > Duration::from_millis(100), "{echoed:?}");
}

#[test]
fn a_node_that_stands_still_holds_up_the_mesh_before_it() {
    let world = meshed(3, 64);
    let context = application(&world);
    world.run(async {
        world.node(NodeId::fs(0)).freeze(Duration::from_millis(5));
        let data = Bytes::from(vec![1; 100_000]);
        assert_eq!(context.spawn(NodeId::fs(0), Echo { data: data.clone() }).await, Ok(data));
    });
    let counters = world.network().mesh(machine_emu::mesh::Mesh::counters).unwrap();
    assert!(counters.queue_full > 0, "{counters:?}");
    assert!(counters.stalled_cycles > 40_000, "{counters:?}");
}

fn busy(seed: u64, faults: NetworkFaults) -> (u64, Duration, u64) {
    let world = meshed(seed, 64);
    world.network().set_faults(faults);
    let contexts: Vec<_> = (0..6).map(|index| world.context(NodeId::application(index))).collect();
    let clients = contexts.into_iter().map(|context| async move {
        for _ in 0..20 {
            let node = NodeId::fs(context.random() as u32 % 64);
            if context.random().is_multiple_of(2) {
                let _ = context.spawn(node, Hop { hops: 3 }).await;
            } else {
                let data = Bytes::from(vec![context.random() as u8; 5_000]);
                drop(context.spawn(node, Echo { data }).await);
            }
        }
    });
    world.run(futures::future::join_all(clients.collect::<Vec<_>>()));
    world.advance(Duration::from_secs(2));
    let counters = world.network().mesh(machine_emu::mesh::Mesh::counters).unwrap();
    assert_eq!(counters.injected, counters.delivered);
    let trace =
        world.network().mesh(|mesh| runtime::hash::xxh3(&MeshTrace::of(mesh).unwrap().to_bytes()));
    (world.trace_hash(), world.now(), trace.unwrap())
}

#[test]
fn the_same_seed_gives_the_same_trace_of_world_and_mesh_also_amid_faults() {
    with_seed(|rng| {
        let faults = NetworkFaults {
            loss_ppm: 20_000,
            duplicate_ppm: 20_000,
            reorder_ppm: 50_000,
            corrupt_ppm: 10_000,
            delay_ppm: 50_000,
            delay_max_ns: 100_000,
        };
        let seed = rng.bits();
        for faults in [NetworkFaults::default(), faults] {
            let first = busy(seed, faults);
            assert_eq!(first, busy(seed, faults));
            assert_ne!(first, busy(seed ^ 1, faults));
        }
    });
}
