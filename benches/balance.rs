//! How evenly stripes are spread over the nodes that cache them: the fullest node's share in units
//! of the mean (1.00 is perfect, the number of nodes is worst), for the ways of `cache::hash`.
//! Counts, no times.
//!
//! `cargo xtask bench balance` prints the table.

#![allow(clippy::cast_precision_loss, reason = "counts of a benchmark")]

use cache::hash::Distribution;
use runtime::seed::Rng;

/// Stripes in use at a time: 64 MiB in stripes of 64 KiB.
const STRIPES: u64 = 1024;
/// As in a new volume with one disk node.
const UNITS: Distribution = Distribution::Units { unit: 16, lanes: 1 };
const SEED: u64 = 0x000B_A1A4;
const NODES: [u32; 4] = [3, 24, 64, 512];

/// Which stripe the `i`-th is.
type KeyDistribution = (&'static str, fn(u64, &mut Rng) -> u64);

const KEYS: [KeyDistribution; 8] = [
    ("sequential", |i, _| i),
    ("every 2nd", |i, _| 2 * i),
    ("every 8th", |i, _| 8 * i),
    ("every 64th", |i, _| 64 * i),
    // 8 ranks, each with a region of 1000 stripes.
    ("8 writers, 1000 apart", |i, _| i % 8 * 1000 + i / 8),
    // Small files of all nodes: each node has allocation groups of its own.
    ("first 4 of 64-groups", |i, _| i / 4 * 64 + i % 4),
    ("first 4 of 256-groups", |i, _| i / 4 * 256 + i % 4),
    ("random", |_, rng| rng.below(1 << 30)),
];

fn fullest(distribution: Distribution, keys: fn(u64, &mut Rng) -> u64, nodes: u32) -> f64 {
    let mut rng = Rng::new(SEED);
    let mut loads = vec![0_u64; nodes as usize];
    for i in 0..STRIPES {
        loads[distribution.node(keys(i, &mut rng), nodes) as usize] += 1;
    }
    let most = loads.iter().max().copied().unwrap_or(0);
    most as f64 * f64::from(nodes) / STRIPES as f64
}

fn main() {
    println!("the fullest node in units of the mean, {STRIPES} stripes");
    print!("{:<24}", "stripes");
    for nodes in NODES {
        print!(" {:>9} {:>7} {:>7}", format!("mod {nodes}"), "mixed", "units");
    }
    println!();
    for (name, keys) in KEYS {
        print!("{name:<24}");
        for nodes in NODES {
            let [modulo, mixed, units] = [Distribution::Modulo, Distribution::Mixed, UNITS]
                .map(|distribution| fullest(distribution, keys, nodes));
            print!(" {modulo:>9.2} {mixed:>7.2} {units:>7.2}");
        }
        println!();
    }
    let sequential = fullest(UNITS, |i, _| i, 64);
    assert!((sequential - 1.0).abs() < 1e-9, "a file is spread evenly");
}
