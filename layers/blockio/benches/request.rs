//! Cost of one read and one write of a stripe through client, server and I/O manager, without
//! a network and with a disk that answers at once: what the layer itself adds.
//!
//! `cargo test` runs it small, so that it cannot rot; `cargo bench` runs it in earnest.

#[path = "../tests/promises/support/machine.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod machine;

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use blockio::protocol::BlockIo;
use blockio::{BlockClient, Config, DiskName, Server, Stripes as _, VolumeMap, format_disk};
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, join_all, ready};
use machine::World;
use runtime::disk::Disk;
use runtime::{NodeId, VolumeId};

const STRIPE: u32 = 64 << 10;
const LENGTH: u64 = 16 << 20;

/// As much as the I/O manager reads at once.
static CONTENT: [u8; 1 << 20] = [7; 1 << 20];

/// Forgets everything but its first block, at once.
struct NullDisk(std::cell::RefCell<Bytes>);

impl Disk for NullDisk {
    fn length(&self) -> u64 {
        LENGTH
    }

    fn read(&self, offset: u64, length: usize) -> LocalBoxFuture<'static, io::Result<Bytes>> {
        let content = if offset == 0 {
            self.0.borrow().clone()
        } else {
            Bytes::from_static(&CONTENT[..length])
        };
        ready(Ok(content)).boxed_local()
    }

    fn write(&self, offset: u64, mut data: Vec<Bytes>) -> LocalBoxFuture<'static, io::Result<()>> {
        if offset == 0 {
            *self.0.borrow_mut() = data.swap_remove(0);
        }
        ready(Ok(())).boxed_local()
    }

    fn sync(&self) -> LocalBoxFuture<'static, io::Result<()>> {
        ready(Ok(())).boxed_local()
    }
}

fn main() {
    let earnest = std::env::args().any(|arg| arg == "--bench");
    let rounds: u64 = if earnest { 20_000 } else { 5 };
    let world = World::new(1);
    let client = start(&world);
    for (name, at_once) in [("one by one", 1), ("16 at once", 16)] {
        world.run(measure(client.clone(), name, rounds, at_once));
    }
}

/// A volume of one disk node with two disks.
fn start(world: &World) -> BlockClient {
    let map = VolumeMap::for_disks(VolumeId(1), STRIPE, 1, 1, 2, LENGTH).expect("a small volume");
    let context = world.context(NodeId::disk(0));
    let client = BlockClient::new(world.context(NodeId::application(0)), map.clone());
    world.run(async move {
        let mut disks: Vec<Rc<dyn Disk>> = Vec::new();
        for index in 0..2 {
            let disk = NullDisk(Bytes::from_static(&CONTENT[..4096]).into());
            format_disk(&disk, &map, DiskName { disk_node: 0, disk: index }, 1, Duration::ZERO)
                .await
                .expect("it forgets");
            disks.push(Rc::new(disk));
        }
        let server = Server::open(&context, &map, disks, Config::default());
        context.serve::<BlockIo>(server.await.expect("just formatted"));
    });
    client
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures the real clock")]
async fn measure(client: BlockClient, name: &'static str, rounds: u64, at_once: u64) {
    let stripes = client.map().stripes();
    let count = u128::from(rounds * at_once);

    let start = Instant::now();
    // The sum keeps the work from being optimised away, and the meaning from changing.
    let mut sum = 0;
    for round in 0..rounds {
        let stripe = |i| (round * at_once + i) % stripes;
        let reads = (0..at_once).map(|i| client.read(stripe(i), 0, STRIPE, Vec::new()));
        for data in join_all(reads).await {
            sum += u64::from(data.expect("it reads")[0]);
        }
    }
    let read_ns = start.elapsed().as_nanos() / count;
    assert_eq!(sum, 7 * rounds * at_once);

    let start = Instant::now();
    for round in 0..rounds {
        let stripe = |i| (round * at_once + i) % stripes;
        let writes = (0..at_once).map(|i| {
            client.write(stripe(i), 0, vec![Bytes::from_static(&CONTENT[..STRIPE as usize])])
        });
        for written in join_all(writes).await {
            written.expect("it writes");
        }
    }
    let write_ns = start.elapsed().as_nanos() / count;
    println!("{name}: read {read_ns} ns/op, write {write_ns} ns/op, over {count} ops each");
}
