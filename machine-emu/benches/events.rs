//! Events per second of the bare world: nothing but the loop, timers and messages.
//!
//! `cargo bench -p machine-emu`; under `cargo test` it runs once, small.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use machine_emu::{World, WorldShape};
use runtime::{Caller, NodeId};

mod table {
    use runtime::Undelivered as Error;

    runtime::protocol! {
        /// The smallest layer.
        Bench id 7 version 1;

        /// Send it back.
        1 Control Ping { number: u64 } -> u64, by caller, retry never, from any, after recovery;
    }
}
use table::{Bench, Ping, Reply, Request};

struct Server;

impl runtime::Server<Bench> for Server {
    fn handle(self: Rc<Self>, _: Caller, request: Request) -> LocalBoxFuture<'static, Reply> {
        let Request::Ping(Ping { number }) = request;
        futures::future::ready(Reply::Ping(Ok(number))).boxed_local()
    }
}

const NODES: u32 = 64;

fn world() -> World {
    let world = World::new(1, WorldShape { fs_nodes: NODES, disk_nodes: 0 });
    for index in 0..NODES {
        world.context(NodeId::fs(index)).serve::<Bench>(Rc::new(Server));
    }
    world
}

/// Many tasks that only sleep: each event rings an alarm and runs one step.
fn timers(world: &World, tasks: u32, rounds: u32) {
    for index in 0..tasks {
        let context = world.context(NodeId::fs(index % NODES));
        let own = context.clone();
        context.task(async move {
            for _ in 0..rounds {
                own.sleep(Duration::from_nanos(100 + own.random() % 10_000)).await;
            }
        });
    }
}

/// Many tasks that ask other nodes: each round trip is two arrivals.
fn messages(world: &World, tasks: u32, rounds: u32) {
    let answered = Rc::new(Cell::new(0u64));
    for index in 0..tasks {
        let context = world.context(NodeId::fs(index % NODES));
        let (own, answered) = (context.clone(), answered.clone());
        context.task(async move {
            for number in 0..rounds {
                let to = NodeId::fs((own.node().0 + 1 + number % (NODES - 1)) % NODES);
                let answer = own.spawn(to, Ping { number: u64::from(number) }).await;
                assert_eq!(answer, Ok(u64::from(number)));
                answered.set(answered.get() + 1);
            }
        });
    }
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
#[allow(clippy::cast_precision_loss, reason = "three digits are printed")]
fn measure(name: &str, start: impl FnOnce(&World)) {
    let world = world();
    start(&world);
    let begun = Instant::now();
    world.run_until_idle();
    let seconds = begun.elapsed().as_secs_f64();
    let counters = world.counters();
    println!(
        "{name:>9}: {:.2} M events/s, {:.2} M steps/s, {:.2} M messages/s ({} events)",
        counters.events as f64 / seconds / 1e6,
        counters.steps as f64 / seconds / 1e6,
        (counters.messages + counters.replies) as f64 / seconds / 1e6,
        counters.events,
    );
}

fn main() {
    let rounds = if std::env::args().any(|argument| argument == "--bench") { 5_000 } else { 5 };
    measure("timers", |world| timers(world, 1_000, rounds));
    measure("messages", |world| messages(world, 1_000, rounds / 2));
}
