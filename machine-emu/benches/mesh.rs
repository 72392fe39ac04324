//! The mesh alone: messages per second of processor time, a million messages before the judge that
//! moves every flit, and where uniform traffic saturates.
//!
//! `cargo bench -p machine-emu --bench mesh`, with `-- judge` the judgement alone; under `cargo
//! test` it runs once, small.

use machine_emu::mesh::{
    Delivery, FlitMesh, ForwardPolicy, Latencies, Mesh, MeshGeometry, MeshModel, MeshTiming,
    Traffic, Wires, judge,
};
use runtime::seed::{Rng, with_seed};

/// A load counts as too much once the mean latency is this multiple of that of an empty mesh.
const SATURATED: f64 = 6.0;

/// Seconds of processor time of this thread.
#[allow(clippy::cast_precision_loss, reason = "three digits are printed")]
fn cpu_seconds() -> f64 {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds =
        statistics.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
    nanoseconds.unwrap_or_default() as f64 / 1e9
}

fn cube() -> MeshGeometry {
    MeshGeometry::new([8; 3], 0, &[], None).expect("a cube")
}

fn open() -> MeshTiming {
    MeshTiming { queue_words: None, ..MeshTiming::default() }
}

fn uniform(seed: u64, words: u32, load: f64) -> Traffic {
    Traffic::uniform(seed, 512, words, load / f64::from(open().flits(words)))
}

fn latencies(mesh: &mut impl MeshModel, mut traffic: Traffic, cycles: u64) -> Latencies {
    let mut latencies = Latencies::default();
    let hear = |delivery: &Delivery| latencies.add(delivery.latency());
    traffic.drive(mesh, cycles, hear).expect("all can be sent");
    latencies
}

/// Uniform traffic at load 0.1, generation included, best of five.
#[allow(clippy::cast_precision_loss, reason = "three digits are printed")]
fn speed(cycles: u64, large: bool) {
    for words in [2, 4, 8] {
        let mut best = (0.0, Latencies::default(), 0);
        for seed in 0..5 {
            let mut mesh = Mesh::new(cube(), open(), ForwardPolicy::Canonical);
            let begun = cpu_seconds();
            let latencies = latencies(&mut mesh, uniform(seed, words, 0.1), cycles);
            let rate = latencies.count as f64 / (cpu_seconds() - begun).max(1e-9);
            if rate > best.0 {
                best = (rate, latencies, mesh.counters().crossings);
            }
        }
        let (rate, latencies, crossings) = best;
        // The clock of the processor is too coarse for a short run.
        let rate = if large { rate } else { 0.0 };
        println!(
            "{words} words: {:.2} M messages/s, {:.1} M channel crossings/s of processor time \
             ({} messages, mean {:.1} cycles)",
            rate / 1e6,
            rate / 1e6 * crossings as f64 / latencies.count as f64,
            latencies.count,
            latencies.mean(),
        );
    }
}

fn judgement(messages: u64) {
    with_seed(|rng| {
        let begun = cpu_seconds();
        let (mut agreed, mut cases) = (0, 0);
        while agreed < messages {
            agreed += judge(rng).unwrap_or_else(|differs| panic!("{differs}"));
            cases += 1;
        }
        let seconds = cpu_seconds() - begun;
        println!("worms and flits: {agreed} messages of {cases} cases agree ({seconds:.1} s)");
    });
}

/// The mean latency by load until it has no end.
fn saturation(name: &str, cycles: u64, run: impl Fn(Traffic, u64) -> Latencies) {
    let seed = Rng::new(9).bits();
    let empty = run(uniform(seed, 8, 0.005), cycles).mean();
    print!("{name}, 8 words: empty {empty:.1}");
    for step in 1..=25 {
        let load = f64::from(step) * 0.02;
        let mean = run(uniform(seed, 8, load), cycles).mean();
        print!(", {load:.2} {mean:.1}");
        if mean > SATURATED * empty {
            println!("; saturated at {load:.2} flit/node/cycle");
            return;
        }
    }
    println!("; not saturated");
}

fn main() {
    let large = std::env::args().any(|argument| argument == "--bench");
    if std::env::args().any(|argument| argument == "judge") {
        return judgement(1_000_000);
    }
    speed(if large { 60_000 } else { 200 }, large);
    judgement(if large { 1_000_000 } else { 2_000 });
    let cycles = if large { 6_000 } else { 300 };
    for wires in [Wires::Own, Wires::Links] {
        let timing = MeshTiming { wires, ..open() };
        saturation(&format!("worms, {wires:?}"), cycles, |traffic, cycles| {
            latencies(&mut Mesh::new(cube(), timing, ForwardPolicy::Canonical), traffic, cycles)
        });
        if large {
            saturation(&format!("flits, {wires:?}"), cycles, |traffic, cycles| {
                latencies(&mut FlitMesh::new(cube(), timing), traffic, cycles)
            });
        }
    }
}
