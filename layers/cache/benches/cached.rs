//! What the layer costs: cached reads and writes of whole stripes, asked for at the node that has
//! them, so that no message is sent.
//!
//! Prints requests per second and the nanoseconds of one request beyond the copy of its bytes (a
//! write copies once, a read not at all). `cargo bench -p cache`; a few rounds under `cargo test`.

#![allow(clippy::cast_precision_loss, reason = "a report for people")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::hint::black_box;
use std::time::{Duration, Instant};

use blockio::{Geometry, Stripes as _};
use bytes::Bytes;
use runtime::buffer::Pool;
use support::{Setup, World, geometry};

const STRIPE_SIZE: usize = 64 << 10;
const STRIPES: u64 = 64;

#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}

fn main() {
    let in_earnest = std::env::args().any(|argument| argument == "--bench");
    let rounds = if in_earnest { 200_000 } else { 200 };
    let copy = copy(rounds);
    let (write, read) = (cached_writes(rounds), cached_reads(rounds));
    println!("copy of 64 KiB        {:>10.0} ns", nanos(copy, rounds));
    report("cached 64 KiB write", write, copy, rounds);
    report("cached 64 KiB read ", read, Duration::ZERO, rounds);
}

fn nanos(time: Duration, rounds: u64) -> f64 {
    time.as_nanos() as f64 / rounds as f64
}

fn report(what: &str, time: Duration, copy: Duration, rounds: u64) {
    let per_second = rounds as f64 / time.as_secs_f64();
    let beyond = nanos(time, rounds) - nanos(copy, rounds);
    println!("{what}   {per_second:>10.0} /s   {beyond:>8.0} ns beyond the copy");
}

fn world() -> World {
    let geometry = Geometry { stripe_size: STRIPE_SIZE as u32, fs_nodes: 1, ..geometry() };
    World::new(&Setup { geometry, ..Setup::default() })
}

/// The same bytes copied into as many buffers of the same kind, without a cache.
fn copy(rounds: u64) -> Duration {
    let source = vec![1; STRIPE_SIZE];
    let pool = Pool::new(STRIPES as usize * STRIPE_SIZE);
    let mut lines: Vec<_> = (0..STRIPES).filter_map(|_| pool.take(STRIPE_SIZE)).collect();
    for line in &mut lines {
        line.fill(2);
    }
    let start = now();
    for round in 0..rounds {
        let line = &mut lines[(round % STRIPES) as usize];
        black_box(line).copy_from_slice(black_box(&source));
    }
    start.elapsed()
}

fn cached_writes(rounds: u64) -> Duration {
    let world = world();
    let client = world.client_at(0);
    world.run(async move {
        let data = Bytes::from(vec![1; STRIPE_SIZE]);
        for stripe in 0..STRIPES {
            client.write(stripe, 0, vec![data.clone()]).await.expect("there is room");
        }
        let start = now();
        for round in 0..rounds {
            let answer = client.write(round % STRIPES, 0, vec![data.clone()]).await;
            answer.expect("the line is there");
        }
        start.elapsed()
    })
}

fn cached_reads(rounds: u64) -> Duration {
    let world = world();
    let client = world.client_at(0);
    world.run(async move {
        for stripe in 0..STRIPES {
            client.read(stripe, 0, STRIPE_SIZE as u32, Vec::new()).await.expect("the disk reads");
        }
        let start = now();
        for round in 0..rounds {
            let answer = client.read(round % STRIPES, 0, STRIPE_SIZE as u32, Vec::new()).await;
            black_box(answer.expect("the line is there"));
        }
        start.elapsed()
    })
}
