//! The mesh keeps its formulas, agrees with the judge that moves every flit, and with tables that
//! other simulators made.

use std::ops::Range;

use machine_emu::mesh::{
    Delivery, FlitMesh, ForwardPolicy, Forwarders, Latencies, Letter, Mesh, MeshGeometry,
    MeshTiming, MeshTrace, Priority, Recorder, SendError, Spill, Traffic, WaitingParty, Wires,
    judge,
};
use runtime::seed::{Rng, with_seed};

fn cube(side: u8) -> MeshGeometry {
    MeshGeometry::new([side; 3], 0, &[], None).unwrap()
}

fn open() -> MeshTiming {
    MeshTiming { queue_words: None, ..MeshTiming::default() }
}

/// Everything that a mesh delivers until it is empty.
fn drain(mesh: &mut Mesh) -> Vec<Delivery> {
    let mut out = Vec::new();
    while let Some(next) = mesh.next_cycle() {
        mesh.advance(next, &mut out);
    }
    out
}

#[test]
fn an_empty_mesh_takes_the_time_of_the_formula_for_all_pairs() {
    let geometry = MeshGeometry::thesis(8).unwrap();
    let timing = open();
    let mut mesh = Mesh::new(geometry.clone(), timing, ForwardPolicy::Canonical);
    let forwarders = Forwarders::new(ForwardPolicy::Canonical);
    let mut out = Vec::new();
    let mut farthest = 0;
    let pairs =
        (0..geometry.nodes()).flat_map(|from| (0..geometry.nodes()).map(move |to| (from, to)));
    for (from, to) in pairs {
        let words = 4 + (from + to) % 9;
        let cycle = mesh.now();
        mesh.send(cycle, Letter::new(from, to, words, 7)).unwrap();
        mesh.advance(cycle + 200, &mut out);
        let via = forwarders.via(&geometry, from, to).unwrap();
        let hops = |from, to| u64::from(geometry.hops(from, to).unwrap());
        // H + 7 + 2 L; through a forwarder its first leg's H + 7, 12 there, and the second leg.
        let expected = match via {
            None => hops(from, to) + 7 + 2 * u64::from(words),
            Some(via) => hops(from, via) + 7 + 12 + hops(via, to) + 7 + 2 * u64::from(words),
        };
        let delivery = out.pop().unwrap();
        assert_eq!((delivery.latency(), delivery.via), (expected, via), "{from} to {to}");
        assert_eq!(delivery.head + 2 * u64::from(words), delivery.cycle);
        assert!(out.is_empty());
        farthest = farthest.max(expected - 2 * u64::from(words));
    }
    // Two corners through a forwarder are the farthest; 28 is the hardware's 21 hops.
    assert!(farthest > 28, "{farthest}");
    assert_eq!(timing.zero_load_cycles(21, 4), 36);
}

#[test]
fn worms_and_flits_agree_on_every_message() {
    with_seed(|rng| {
        let mut count = 0;
        while count < 30_000 {
            count += judge(rng).unwrap_or_else(|differs| panic!("{differs}"));
        }
    });
}

/// The mean of what is sent in `window`.
fn mean_latency(timing: MeshTiming, words: u32, load: f64, window: Range<u64>) -> f64 {
    let geometry = cube(8);
    let rate = load / f64::from(timing.flits(words));
    let mut traffic = Traffic::uniform(11, geometry.main_nodes(), words, rate);
    let mut mesh = Mesh::new(geometry, timing, ForwardPolicy::Canonical);
    let mut latencies = Latencies::default();
    let hear = |delivery: &Delivery| {
        if delivery.sent >= window.start {
            latencies.add(delivery.latency());
        }
    };
    traffic.drive(&mut mesh, window.end, hear).unwrap();
    latencies.mean()
}

/// Prints each row and tells the worst error, in per cent, up to load 0.10 and at 0.15.
fn compare(name: &str, rows: &[(u32, f64, f64)], latency: impl Fn(u32, f64) -> f64) -> (f64, f64) {
    let (mut low, mut high) = (0f64, 0f64);
    for &(flits, load, reference) in rows {
        let ours = latency(flits, load);
        let error = 100.0 * (ours / reference - 1.0);
        println!(
            "{name} {flits:>2} flits at {load:.3}: {reference:.2}, here {ours:.2}: {error:+.1} %"
        );
        if load < 0.125 {
            low = low.max(error.abs());
        } else {
            high = high.max(error.abs());
        }
    }
    (low, high)
}

/// `BookSim` 2 at 28f4329, mesh k=8 n=3, one virtual channel of 8 flits, uniform traffic.
#[test]
fn latencies_are_those_of_booksim_below_the_knee() {
    let rows = [
        (4, 0.005, 40.76),
        (4, 0.05, 41.63),
        (4, 0.10, 43.51),
        (4, 0.15, 46.62),
        (16, 0.005, 52.80),
        (16, 0.05, 56.32),
        (16, 0.10, 62.30),
        (16, 0.15, 77.92),
    ];
    let bare = MeshTiming { header_flits: 0, interface_cycles: 0, ..open() };
    let timing = MeshTiming { hop_cycles: 4, credit_cycles: 3, gap_cycles: 2, ..bare };
    // Its interfaces take 0.9 cycles more than a hop on average.
    let errors = compare("BookSim", &rows, |flits, load| {
        mean_latency(timing, flits / 2, load, 2_000..6_000) + 0.9
    });
    assert!(errors.0 < 4.0 && errors.1 < 8.0, "{errors:?}");
}

/// CAMINOS 0.6.3, mesh 8x8x8, dimension order, messages of 16 phits, buffers of 16.
#[test]
fn latencies_are_those_of_caminos_below_the_knee() {
    let rows = [(16, 0.01, 25.49), (16, 0.05, 27.94), (16, 0.10, 32.04), (16, 0.15, 38.45)];
    let timing = MeshTiming { header_flits: 0, interface_cycles: 0, buffer_flits: 16, ..open() };
    let errors = compare("CAMINOS", &rows, |flits, load| {
        mean_latency(timing, flits / 2, load, 1_000..6_000)
    });
    assert!(errors.0 < 4.0 && errors.1 < 8.0, "{errors:?}");
}

/// A run on the whole machine, disks and forwarders included, with queues that fill.
fn busy_mesh(seed: u64, policy: ForwardPolicy) -> (Vec<Delivery>, Mesh) {
    let geometry = MeshGeometry::thesis(8).unwrap();
    let timing = MeshTiming { queue_words: Some(128), ..MeshTiming::default() };
    let mut mesh = Mesh::new(geometry, timing, policy);
    mesh.record(Recorder::new(seed, "busy", 64));
    let mut rng = Rng::new(seed);
    let mut all = Vec::new();
    let mut out = Vec::new();
    for cycle in 0..3_000 {
        if rng.chance(1, 2) {
            let disk = 512 + rng.below(8) as u32;
            let main = rng.below(512) as u32;
            let (from, to) = if rng.chance(1, 2) { (main, disk) } else { (disk, main) };
            let count = 1 + rng.below(3) as u32;
            let last_words = 1 + rng.below(40) as u32;
            let priority = if rng.chance(1, 2) { Priority::High } else { Priority::Normal };
            let letter = Letter::new(from, to, 40, cycle);
            let letter = Letter { count, last_words, priority, ..letter };
            mesh.send(cycle, letter).unwrap();
        }
        mesh.advance(cycle, &mut out);
        for delivery in out.drain(..) {
            mesh.consume(delivery.to, delivery.priority, delivery.words, cycle + 1);
            all.push(delivery);
        }
        let counters = mesh.counters();
        assert_eq!(counters.injected, counters.delivered + mesh.in_flight());
    }
    while let Some(next) = mesh.next_cycle() {
        mesh.advance(next, &mut out);
        for delivery in out.drain(..) {
            mesh.consume(delivery.to, delivery.priority, delivery.words, next + 1);
            all.push(delivery);
        }
    }
    (all, mesh)
}

#[test]
fn what_is_sent_is_delivered_or_under_way_and_the_same_seed_gives_the_same_run() {
    with_seed(|rng| {
        let seed = rng.bits();
        for policy in ForwardPolicy::ALL {
            let (first, mesh) = busy_mesh(seed, policy);
            let counters = mesh.counters();
            assert_eq!((mesh.in_flight(), counters.injected), (0, first.len() as u64));
            assert!(counters.forwarded > counters.injected / 2, "{counters:?}");
            assert!(counters.stalled_cycles > 0, "{counters:?}");
            let nodes = mesh.geometry().nodes();
            for level in [Priority::Normal, Priority::High] {
                assert!((0..nodes).all(|node| mesh.queue_words(node, level) == 0));
            }
            let (second, again) = busy_mesh(seed, policy);
            assert_eq!(first, second);
            let traces = [&mesh, &again].map(|mesh| MeshTrace::of(mesh).unwrap().to_bytes());
            assert!(traces[0] == traces[1]);
            assert_ne!(busy_mesh(seed ^ 1, policy).0, first);
        }
    });
}

#[test]
fn messages_of_one_way_keep_their_order_under_the_canonical_policy() {
    let (all, _) = busy_mesh(5, ForwardPolicy::Canonical);
    let mut last = std::collections::BTreeMap::new();
    for delivery in &all {
        let before = last.insert((delivery.from, delivery.to, delivery.priority), delivery.tag);
        assert!(before.is_none_or(|tag| tag <= delivery.tag), "{delivery:?}");
    }
}

#[test]
fn load_over_time_stays_bounded_and_complete() {
    let mut mesh = Mesh::new(cube(2), open(), ForwardPolicy::Canonical);
    mesh.record(Recorder::new(1, "2x2x2", 1));
    let mut sent = 0;
    for cycle in (0..10_000).step_by(40) {
        mesh.send(cycle, Letter::new(0, 7, 2, 0)).unwrap();
        sent += 1;
    }
    drain(&mut mesh);
    let recorder = mesh.recorder().unwrap();
    assert!(recorder.buckets().len() <= machine_emu::mesh::BUCKETS_MAX);
    assert_eq!(recorder.bucket_cycles(), 64);
    let loads = recorder.buckets().iter().flat_map(|bucket| &bucket.channels);
    let flits: u32 = loads.map(|load| load.flits).sum();
    // Into the mesh, three links, out of it; 7 flits each.
    assert_eq!(flits, sent * 5 * 7);
}

#[test]
fn what_cannot_be_sent_traps() {
    let mut mesh = Mesh::new(cube(2), MeshTiming::default(), ForwardPolicy::Canonical);
    let long = mesh.send(0, Letter::new(0, 1, 1024, 0));
    assert_eq!(long, Err(SendError::Words { words: 1024 }));
    let wide = mesh.send(0, Letter::new(0, 1, 513, 0));
    assert_eq!(wide, Err(SendError::QueueTooSmall { words: 513, queue_words: 512 }));
    let empty = mesh.send(0, Letter::new(0, 1, 0, 0));
    assert_eq!(empty, Err(SendError::Words { words: 0 }));
    // The flit level has no forwarders: there the missing link shows.
    let mut flits = FlitMesh::new(MeshGeometry::thesis(8).unwrap(), MeshTiming::default());
    let trapped = flits.send(0, Letter::new(0, 519, 4, 0));
    assert!(matches!(trapped, Err(SendError::Unroutable(_))), "{trapped:?}");
}

/// Messages pile up before the full queue of a node that takes nothing out.
fn piled_up(spill: Option<Spill>) -> Mesh {
    let timing = MeshTiming { queue_words: Some(16), spill, ..MeshTiming::default() };
    let mut mesh = Mesh::new(cube(4), timing, ForwardPolicy::Canonical);
    for tag in 0..10 {
        mesh.send(0, Letter::new(0, 3, 8, tag)).unwrap();
        mesh.send(0, Letter::new(1, 3, 8, 10 + tag)).unwrap();
    }
    mesh
}

#[test]
fn a_full_queue_holds_the_worms_and_their_channels() {
    let mut mesh = piled_up(None);
    assert_eq!(drain(&mut mesh).len(), 2);
    assert_eq!((mesh.queue_words(3, Priority::Normal), mesh.in_flight()), (16, 18));
    // The line reaches back over the links, so who only shares them is held up as well.
    mesh.send(0, Letter::new(1, 2, 8, 99)).unwrap();
    assert_eq!(drain(&mut mesh).len(), 0);
    // High priority has channels of its own.
    let high = Letter { priority: Priority::High, ..Letter::new(1, 3, 8, 100) };
    mesh.send(0, high).unwrap();
    assert_eq!(drain(&mut mesh).len(), 1);
    let mut delivered = 3;
    while mesh.in_flight() > 0 {
        mesh.consume(3, Priority::Normal, 8, 0);
        delivered += drain(&mut mesh).len();
    }
    assert_eq!(delivered, 22);
}

#[test]
fn a_full_queue_that_spills_takes_all_in_at_a_price() {
    let cost = Spill { fixed_cycles: 100, cycles_per_word: 6 };
    let mut mesh = piled_up(Some(cost));
    let all = drain(&mut mesh);
    assert_eq!((all.len(), mesh.counters().spilled_words), (20, 18 * 8));
    // Each of the eighteen waits for the fault and the copy of its eight words.
    assert!(all[19].cycle >= 18 * (100 + 8 * 6), "{:?}", all[19]);
    for _ in 0..20 {
        mesh.consume(3, Priority::Normal, 8, 0);
    }
    assert_eq!(mesh.queue_words(3, Priority::Normal), 0);
}

#[test]
fn slow_handlers_are_no_deadlock() {
    let mut mesh = piled_up(None);
    drain(&mut mesh);
    assert_eq!(mesh.find_deadlock(), None);
}

#[test]
fn a_planted_circle_of_waiting_handlers_is_found_and_told() {
    let timing = MeshTiming { queue_words: Some(16), ..MeshTiming::default() };
    let mut mesh = Mesh::new(cube(4), timing, ForwardPolicy::Canonical);
    // Both fill the queue of the other; then each handler sends before it takes its message out.
    for tag in 0..8 {
        mesh.send(0, Letter::new(0, 3, 8, tag)).unwrap();
        mesh.send(0, Letter::new(3, 0, 8, tag)).unwrap();
    }
    drain(&mut mesh);
    for (node, other) in [(0, 3), (3, 0)] {
        let answer = mesh.send(mesh.now(), Letter::new(node, other, 8, 100)).unwrap();
        mesh.handler_waits(node, Priority::Normal, Some(answer));
    }
    drain(&mut mesh);
    let deadlock = mesh.find_deadlock().unwrap();
    println!("{deadlock}");
    let handler = |node| WaitingParty::Handler(node, Priority::Normal);
    assert!(deadlock.circle.contains(&handler(0)) && deadlock.circle.contains(&handler(3)));
    let text = deadlock.to_string();
    assert!(text.contains("the normal queue of (3,0,0) waits for the normal handler of (3,0,0)"));
    // As soon as one of them can go on there is none.
    mesh.handler_waits(0, Priority::Normal, None);
    assert_eq!(mesh.find_deadlock(), None);
}

#[test]
fn a_circle_through_a_forwarder_is_found() {
    let timing = MeshTiming { queue_words: Some(16), ..MeshTiming::default() };
    let mut mesh = Mesh::new(MeshGeometry::thesis(2).unwrap(), timing, ForwardPolicy::Canonical);
    let disk = mesh.geometry().disk(0).unwrap();
    // A node far from the disk's board and that disk fill each other's queues.
    let far = mesh.geometry().find(machine_emu::mesh::Coordinates::new(5, 7, 3)).unwrap();
    for tag in 0..8 {
        mesh.send(0, Letter::new(far, disk, 8, tag)).unwrap();
        mesh.send(0, Letter::new(disk, far, 8, tag)).unwrap();
    }
    drain(&mut mesh);
    assert_eq!(mesh.find_deadlock(), None);
    for (node, other) in [(far, disk), (disk, far)] {
        let answer = mesh.send(mesh.now(), Letter::new(node, other, 8, 100)).unwrap();
        mesh.handler_waits(node, Priority::Normal, Some(answer));
    }
    drain(&mut mesh);
    let deadlock = mesh.find_deadlock().unwrap();
    println!("{deadlock}");
    let forwarder = |party: &&WaitingParty| matches!(party, WaitingParty::Handler(node, Priority::High) if *node < 512);
    assert!(deadlock.circle.iter().any(|party| forwarder(&party)), "{deadlock}");
}

/// Messages of two priorities, or against each other, on wires that they share.
fn shared_wires_error(wires: Wires, load: f64) -> f64 {
    let timing = MeshTiming { wires, ..open() };
    let geometry = cube(4);
    let rate = load / f64::from(timing.flits(8));
    let traffic = Traffic::uniform(23, 64, 8, rate).high(20);
    let mean = |mesh: &mut dyn FnMut(Traffic, &mut Latencies)| {
        let mut latencies = Latencies::default();
        mesh(traffic.clone(), &mut latencies);
        latencies.mean()
    };
    let worms = mean(&mut |mut traffic, latencies| {
        let mut mesh = Mesh::new(geometry.clone(), timing, ForwardPolicy::Canonical);
        let hear = |delivery: &Delivery| latencies.add(delivery.latency());
        traffic.drive(&mut mesh, 3_000, hear).unwrap();
    });
    let flits = mean(&mut |mut traffic, latencies| {
        let mut mesh = FlitMesh::new(geometry.clone(), timing);
        let hear = |delivery: &Delivery| latencies.add(delivery.latency());
        traffic.drive(&mut mesh, 3_000, hear).unwrap();
    });
    let error = 100.0 * (worms / flits - 1.0);
    println!("{wires:?} at {load}: flits {flits:.2}, worms {worms:.2}: {error:+.1} %");
    error
}

#[test]
fn on_shared_wires_worms_stay_near_the_flits_at_low_load() {
    for wires in [Wires::Priorities, Wires::Links] {
        assert!(shared_wires_error(wires, 0.02).abs() < 2.0);
        assert!(shared_wires_error(wires, 0.1).abs() < 8.0);
        assert!(shared_wires_error(wires, 0.2).abs() < 12.0);
    }
}
