//! Traces: as files, and sent again through other machines.

use bytes::Bytes;
use machine_emu::jmachine::{JMachine, Profile, Topology};
use machine_emu::mesh::{
    Coordinates, Delivery, ForwardPolicy, Journeys, Mesh, MeshGeometry, MeshTiming, MeshTrace,
    NetworkModel, Recorder, ReplayError, ReplayTarget, TraceError, TraceKind, Traffic, replay,
};
use machine_emu::{MeshSetup, World, WorldShape};
use runtime::NodeId;
use runtime::seed::with_seed;

use crate::kit::{Echo, serve};

/// Random traffic on a cube, with queues that fill.
fn recorded(seed: u64) -> (MeshTrace, Vec<Delivery>) {
    let geometry = MeshGeometry::new([4; 3], 0, &[], None).unwrap();
    let timing = MeshTiming { queue_words: None, ..MeshTiming::default() };
    let mut mesh = Mesh::new(geometry, timing, ForwardPolicy::Canonical);
    mesh.record(Recorder::new(seed, "4x4x4", 100));
    let mut all = Vec::new();
    let mut traffic = Traffic::uniform(seed, 64, 6, 0.01).high(20);
    traffic.drive(&mut mesh, 2_000, |delivery| all.push(*delivery)).unwrap();
    (MeshTrace::of(&mesh).unwrap(), all)
}

/// A machine on which `clients` programs send stripes to file-system nodes, and those to disk
/// nodes.
fn machine(boards: &str) -> JMachine {
    let topology = Topology::parse(boards).unwrap();
    JMachine { profile: Profile::as_measured(), topology, host: Some(NodeId::application(7)) }
}

fn busy_machine(seed: u64, with_costs: bool) -> MeshTrace {
    let world = World::new(seed, WorldShape { fs_nodes: 16, disk_nodes: 4 });
    let machine = machine("8x8x8 disks=4 board=0,2");
    if with_costs {
        world.emulate(&machine, 8);
    } else {
        (0..8).for_each(|index| drop(world.context(NodeId::application(index))));
    }
    let recorder = Some(Recorder::new(seed, "busy", 1_000));
    let setup = MeshSetup::machine(&machine, ForwardPolicy::Canonical).unwrap();
    world.network().use_mesh(MeshSetup { recorder, ..setup }).unwrap();
    let nodes = (0..4).map(NodeId::disk).chain((0..16).map(NodeId::fs));
    nodes.for_each(|node| serve(&world.context(node)));
    let asked = (0..8).map(|index| {
        let context = world.context(NodeId::application(index));
        async move {
            for turn in 0..3 {
                let data = Bytes::from(vec![index as u8; 9_000]);
                let to = if turn == 1 { NodeId::fs(index) } else { NodeId::disk(index % 4) };
                context.spawn(to, Echo { data }).await.unwrap();
            }
        }
    });
    world.run(futures::future::join_all(asked.collect::<Vec<_>>()));
    world.network().mesh(MeshTrace::of).flatten().unwrap()
}

#[test]
fn a_trace_is_the_same_after_a_file_and_the_same_for_the_same_seed() {
    with_seed(|rng| {
        let seed = rng.bits();
        let (trace, _) = recorded(seed);
        let bytes = trace.to_bytes();
        assert_eq!(MeshTrace::from_bytes(&bytes).unwrap(), trace);
        assert!(bytes == recorded(seed).0.to_bytes());
        assert!(bytes != recorded(seed ^ 1).0.to_bytes());
        let machine = busy_machine(seed, true).to_bytes();
        assert!(machine == busy_machine(seed, true).to_bytes());
    });
}

#[test]
fn the_first_bytes_of_a_trace_are_those_of_the_format() {
    let geometry = MeshGeometry::new([2, 3, 4], 1, &[2], Some(Coordinates::new(2, 2, 0))).unwrap();
    let mut mesh = Mesh::new(geometry, MeshTiming::default(), ForwardPolicy::Spread);
    mesh.record(Recorder::new(7, "golden", 100));
    let bytes = MeshTrace::of(&mesh).unwrap().to_bytes();
    assert_eq!(bytes.len(), 200);
    assert_eq!(&bytes[..12], b"MDFSmesh\x01\0\0\0");
    assert_eq!(bytes[16..24], 7u64.to_le_bytes());
    let numbers = |from: usize| u32::from_le_bytes(bytes[from..from + 4].try_into().unwrap());
    assert_eq!([48, 52, 56, 60].map(numbers), [2, 3, 4, 1]);
    assert_eq!((&bytes[64..67], bytes[95]), (&[2, 255, 255][..], 255));
    assert_eq!((numbers(96), &bytes[100..104], numbers(104)), (1, &[2, 2, 0, 0][..], 1));
    // Hop, credit, gap, interface, forward and clock; then no spilling.
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let longs: Vec<u64> = (0..8).map(|index| long(108 + 8 * index)).collect();
    assert_eq!(longs, [1, 1, 0, 3, 12, 100, 0, 0]);
    assert_eq!([172, 176, 180, 184, 188].map(numbers), [8, 3, 512, 0, 0]);
    assert_eq!(numbers(12), runtime::hash::crc32c(&bytes[16..]));
}

#[test]
fn a_damaged_trace_is_told_from_a_cut_one_and_from_something_else() {
    let (trace, _) = recorded(4);
    let bytes = trace.to_bytes();
    assert_eq!(MeshTrace::from_bytes(b"").unwrap_err(), TraceError::Magic);
    assert_eq!(MeshTrace::from_bytes(&[0; 4096]).unwrap_err(), TraceError::Magic);
    let cut = MeshTrace::from_bytes(&bytes[..bytes.len() - 1]).unwrap_err();
    assert!(matches!(cut, TraceError::Length { .. }), "{cut}");
    let mut newer = bytes.clone();
    newer[8] = 2;
    assert_eq!(MeshTrace::from_bytes(&newer).unwrap_err(), TraceError::Version(2));
    let mut claims = bytes.clone();
    claims[39] = 0xFF;
    assert!(matches!(MeshTrace::from_bytes(&claims).unwrap_err(), TraceError::Length { .. }));
    with_seed(|rng| {
        let mut damaged = bytes.clone();
        let at = 16 + rng.index(damaged.len() - 16);
        damaged[at] ^= 1 << rng.below(8);
        let error = MeshTrace::from_bytes(&damaged).unwrap_err();
        assert!(
            matches!(error, TraceError::Checksum { .. } | TraceError::Length { .. }),
            "{error}"
        );
    });
}

#[test]
fn a_trace_with_a_good_checksum_and_bad_content_is_refused_and_nothing_panics() {
    let (trace, _) = recorded(5);
    let bytes = trace.to_bytes();
    with_seed(|rng| {
        let mut hostile = bytes.clone();
        for _ in 0..=rng.below(3) {
            // The head is where the danger is.
            let range = if rng.chance(3, 4) { 200 - 48 } else { bytes.len() - 48 };
            hostile[48 + rng.index(range)] = rng.bits() as u8;
        }
        let sum = runtime::hash::crc32c(&hostile[16..]).to_le_bytes();
        hostile[12..16].copy_from_slice(&sum);
        // Good or refused; a machine that cannot be is not made.
        let _ = MeshTrace::from_bytes(&hostile);
    });
}

#[test]
fn a_trace_sent_again_on_its_machine_comes_in_the_same_cycles() {
    let (trace, delivered) = recorded(3);
    let first = Journeys::of(&trace).unwrap();
    assert!(delivered.len() > 1_000);
    assert_eq!(first.0.len(), delivered.len());
    assert_eq!(replay(&trace, &ReplayTarget::of(&trace)).unwrap(), first);
    // With processors that feed and take out message by message, queues that fill, and forwarders.
    let busy = busy_machine(9, true);
    let recorded = Journeys::of(&busy).unwrap();
    assert!(recorded.0.iter().any(|journey| journey.forwarded));
    assert!(busy.events.iter().any(|event| event.kind == TraceKind::Taken));
    assert_eq!(replay(&busy, &ReplayTarget::of(&busy)).unwrap(), recorded);
}

#[test]
fn rows_that_the_network_feeds_are_sent_again_message_by_message() {
    let busy = busy_machine(9, false);
    assert!(busy.events.iter().any(|event| event.kind == TraceKind::Continued));
    let recorded = Journeys::of(&busy).unwrap();
    let again = replay(&busy, &ReplayTarget::of(&busy)).unwrap();
    assert_eq!(again.0.len(), recorded.0.len());
    // Who of two that ask in the same cycle goes first may change.
    let (differ, _) = again.differ(&recorded);
    assert!(differ * 20 <= recorded.0.len(), "{differ} of {}", recorded.0.len());
}

#[test]
fn flits_agree_with_worms_and_the_formula_is_their_lower_bound() {
    let (trace, _) = recorded(6);
    let stage = |level| ReplayTarget { level, ..ReplayTarget::of(&trace) };
    let [formula, worms, flits] =
        NetworkModel::ALL.map(|level| replay(&trace, &stage(level)).unwrap());
    assert_eq!(worms, flits);
    for (bound, found) in formula.0.iter().zip(&worms.0) {
        assert_eq!(bound.message, found.message);
        assert!(bound.latency() <= found.latency(), "{bound:?} {found:?}");
    }
    assert!(formula.differ(&worms).0 > 100, "messages meet in this traffic");
}

#[test]
fn a_trace_is_sent_again_on_another_machine_if_all_its_nodes_have_a_place() {
    let busy = busy_machine(9, true);
    let recorded = Journeys::of(&busy).unwrap();
    let on = |boards: &str, policy| {
        let setup = MeshSetup::machine(&machine(boards), policy).unwrap();
        let MeshSetup { geometry, timing, policy, .. } = setup;
        replay(&busy, &ReplayTarget { geometry, timing, policy, level: NetworkModel::Worm })
    };
    for (boards, policy) in [
        ("8x8x8 disks=4 board=0,2", ForwardPolicy::Spread),
        ("8x8x8 disks=4 board=6,7", ForwardPolicy::Canonical),
        ("4x8x16 disks=4 board=1,3", ForwardPolicy::RoundRobin),
    ] {
        let there = on(boards, policy).unwrap();
        assert_eq!(there.0.len(), recorded.0.len(), "{boards}");
        assert!(there.differ(&recorded).0 > 0, "{boards}");
    }
    let few = on("8x8x8 disks=2 board=0", ForwardPolicy::Canonical).unwrap_err();
    assert!(matches!(few, ReplayError::NoPlace { what: "disk node", there: 2, .. }), "{few}");
    let small = on("2x2x2 disks=4 board=0,1", ForwardPolicy::Canonical).unwrap_err();
    assert!(small.to_string().contains("has no place on a machine with 8 of them"), "{small}");
}

#[test]
fn a_record_that_begins_amid_messages_tells_of_none_of_those() {
    let geometry = MeshGeometry::new([4; 3], 0, &[], None).unwrap();
    let mut mesh = Mesh::new(geometry, MeshTiming::default(), ForwardPolicy::Canonical);
    let row =
        machine_emu::mesh::Letter { count: 9, ..machine_emu::mesh::Letter::new(0, 63, 20, 0) };
    mesh.send(0, row).unwrap();
    let mut out = Vec::new();
    mesh.advance(60, &mut out);
    mesh.record(Recorder::new(1, "late", 10));
    mesh.send(70, machine_emu::mesh::Letter::new(5, 9, 3, 1)).unwrap();
    while let Some(next) = mesh.next_cycle() {
        mesh.advance(next, &mut out);
    }
    assert_eq!(out.len(), 10);
    let trace = MeshTrace::of(&mesh).unwrap();
    let journeys = Journeys::of(&trace).unwrap();
    // The rest of the row, whose turn came later, and the new one.
    assert!((2..10).contains(&journeys.0.len()), "{journeys:?}");
    assert!(journeys.0.iter().all(|journey| journey.sent > 60), "{journeys:?}");
    assert!(mesh.recorder().unwrap().buckets().len() < 60);
}
