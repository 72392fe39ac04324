//! The real layers on the emulated 8x8x8 machine with eight disk nodes.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;

use machine_emu::jmachine::{Profile, Topology};
use machine_emu::mesh::{Mesh, MeshGeometry, Priority, Role};
use sim::emulated::{CheckpointResult, CheckpointRun, Emulation, EmulationSetup, checkpoint};

/// Bytes that the 512-node machine with the file system may take.
const MEMORY_MAX: u64 = 1 << 30;

/// The most memory that this process ever had.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
}

fn cpu_milliseconds() -> u64 {
    let statistics = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    statistics.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1_000_000
}

/// Load at the disk nodes, in flits out of the mesh, and nothing on links that are not there.
fn disk_load(mesh: &Mesh) -> u64 {
    let geometry: &MeshGeometry = mesh.geometry();
    let mut at_disks = 0;
    for bucket in mesh.recorder().unwrap().buckets() {
        for (channel, load) in (0..).zip(&bucket.channels).filter(|(_, load)| load.flits > 0) {
            let (node, direction) = (channel / 16, (channel % 8) as usize);
            if direction < 6 {
                let direction = machine_emu::mesh::Direction::ALL[direction];
                assert!(geometry.neighbour(node, direction).is_some());
            } else if direction == 7 && geometry.role(node) == Role::Disk {
                at_disks += u64::from(load.flits);
            }
        }
    }
    at_disks
}

#[test]
fn checkpoints_on_the_emulated_machine_come_back_byte_by_byte() {
    let begun = cpu_milliseconds();
    let machine = Emulation::new(&EmulationSetup::thesis(1)).unwrap();
    let what = CheckpointRun { seed: 1, writers: 7, bytes: 1 << 20 };
    let first = checkpoint(&machine, what).unwrap_or_else(|error| panic!("{error}"));
    let at_disks = machine.world().network().mesh(|mesh| {
        assert_eq!(mesh.find_deadlock(), None);
        let idle = |node| mesh.queue_words(node, Priority::Normal) <= 512;
        assert!((0..mesh.geometry().nodes()).all(idle));
        disk_load(mesh)
    });
    let at_disks = at_disks.unwrap();
    let used = cpu_milliseconds() - begun;
    let peak = peak_bytes();
    println!("{first}\n{used} ms of this thread's processor, {} MiB at most", peak >> 20);
    // All that was written reached a disk node: two flits to a word of four bytes.
    assert!(at_disks > first.bytes / 2, "{at_disks}");
    assert!(first.mesh().forwarded > 0, "{first}");
    assert!(peak < MEMORY_MAX, "{peak}");
}

/// A small machine, with and without costs.
fn small(seed: u64, profile: Option<Profile>) -> CheckpointResult {
    let topology = Topology::parse("8x8x8 disks=2").unwrap();
    let setup = EmulationSetup { topology, fs_nodes: 8, profile, ..EmulationSetup::thesis(seed) };
    let machine = Emulation::new(&setup).unwrap();
    let done = checkpoint(&machine, CheckpointRun { seed, writers: 2, bytes: 100_000 });
    done.unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_same_seed_gives_the_same_run_of_the_machine() {
    for profile in [None, Some(Profile::as_measured())] {
        let first = small(5, profile.clone());
        assert_eq!(first, small(5, profile.clone()));
        assert_ne!(first.trace_hash, small(6, profile).trace_hash);
    }
}

#[test]
fn processors_buses_and_disks_of_1996_are_what_a_checkpoint_waits_for() {
    let [mesh, ideal, measured] =
        [None, Some(Profile::ideal()), Some(Profile::as_measured())].map(|profile| {
            let done = small(5, profile);
            println!("{done}");
            done.phases[1].time
        });
    // 200 kB of data at 2 MB/s, and at a tenth of that. How far the heads move depends on where the
    // stripes are: of 12 % more for one of them nothing is to be said.
    assert!(mesh < ideal / 2 && 3 * ideal < 2 * measured, "{mesh:?} {ideal:?} {measured:?}");
}
