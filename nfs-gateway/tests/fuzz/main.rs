//! Whatever bytes come: no panic, no memory out of proportion, and the gateway goes on serving
//! others.
//!
//! Method: streams of calls that are right, in sequences, damaged at every depth: the marks of the
//! records, the head of the call, the arguments of each procedure and operation, the order of
//! calls. An allocator counts what each stream makes the gateway take. One execution is one call.
//!
//! `cargo test` runs it for a moment; `MDFS_FUZZ=10000000 cargo test --release -p nfs-gateway
//! --test fuzz` for as many executions. A failure prints its seed.

mod damage;
mod seeds;

use std::time::Duration;

use fileio::model::Model;
use fileio::protocol::FileIo;
use machine_emu::{World, WorldShape};
use nfs_gateway::{Config, Exports, Gateway};
use peak_alloc::PeakAlloc;
use runtime::net::{Address, ByteStream};
use runtime::seed::{Rng, with_seed};
use runtime::{NodeId, VolumeId};

use seeds::Seeds;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Executions under `cargo test`.
const EXECUTIONS: u64 = 20_000;
/// Calls on one stream, at most.
const CALLS_MAX: usize = 8;
/// Streams in one world: what they write stays there.
const STREAMS: usize = 300;
/// What the emulated streams and the bookkeeping of one connection take by themselves.
const STREAM_BYTES: usize = 32 << 10;
/// What the issue allows beside twice the record.
const SPARE_BYTES: usize = 64 << 10;
/// What the emulated pipes take for each piece beside its bytes.
const PIECE_BYTES: usize = 160;
/// What each further call that is under way at the same time takes by itself.
const CALL_BYTES: usize = 16 << 10;

/// A gateway before the reference of file I/O.
struct Stage {
    world: World,
    gateway: Gateway,
}

impl Stage {
    fn new(rng: &mut Rng) -> Self {
        let world = World::new(rng.bits(), WorldShape { fs_nodes: 1, disk_nodes: 0 });
        world.context(NodeId::fs(0)).serve::<FileIo>(std::rc::Rc::new(Model::default()));
        let config =
            Config { exports: Exports::all_clients(), ..Config::new(VolumeId(1), [1; 32]) };
        let address = Address::Tcp("gateway:2049".into());
        let ctx = world.context(NodeId::application(0));
        let gateway = world.run(Gateway::start(ctx, &address, config)).expect("a free address");
        Self { world, gateway }
    }

    fn connect(&self) -> ByteStream {
        self.world.connect(self.gateway.address()).expect("the gateway listens")
    }

    /// Sends `bytes` in pieces and takes all that comes back, until the gateway has said all.
    fn exchange(&self, bytes: &[u8], piece: usize) -> Vec<u8> {
        let ByteStream { mut reader, mut writer, .. } = self.connect();
        self.world.run(async {
            for part in bytes.chunks(piece) {
                if writer.write(vec![part.to_vec().into()]).await.is_err() {
                    break;
                }
            }
            drop(writer);
            let mut received = bytes::BytesMut::new();
            while matches!(reader.read(&mut received).await, Ok(1..)) {}
            received.to_vec()
        })
    }
}

fn executions() -> u64 {
    let asked = std::env::var("MDFS_FUZZ").ok();
    asked.map_or(EXECUTIONS, |count| count.parse().expect("MDFS_FUZZ is a number"))
}

/// One world of streams; how many calls were sent.
fn fuzz_one_world(rng: &mut Rng) -> u64 {
    let stage = Stage::new(rng);
    let mut seeds = Seeds::new(&stage);
    let mut executions = 0;
    for _ in 0..STREAMS {
        let calls = 1 + rng.index(CALLS_MAX);
        let mut sent = Vec::new();
        for _ in 0..calls {
            let call = damage::call(seeds.any(rng), &mut seeds, rng);
            damage::frame(&call, rng, &mut sent);
        }
        executions += calls as u64;
        let piece = [sent.len().max(1), 1 + rng.index(200), 4096][rng.index(3)];
        let spare_bytes = SPARE_BYTES + STREAM_BYTES + (calls - 1) * CALL_BYTES;
        check_memory(&stage, &sent, (piece, spare_bytes), &mut seeds);
    }
    seeds.still_serves(&stage);
    executions
}

/// Sends it in pieces; the gateway may take `spare_bytes`, and twice of what it gets.
fn check_memory(
    stage: &Stage,
    sent: &[u8],
    (piece, spare_bytes): (usize, usize),
    seeds: &mut Seeds,
) {
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    let received = stage.exchange(sent, piece);
    let peak = ALLOCATOR.peak_usage().saturating_sub(before);
    seeds.learn(&received);
    stage.world.advance(Duration::from_millis(10));
    let kept = ALLOCATOR.current_usage().saturating_sub(before);
    // The emulated pipes hold what is sent once more, piece by piece; what is received is made by
    // file I/O, held by them, and gathered here in a buffer that doubles.
    let wire = sent.len() + 5 * received.len() + sent.len().div_ceil(piece) * PIECE_BYTES;
    let allowed = wire + 2 * sent.len() + spare_bytes + kept;
    let told = bytes::Bytes::copy_from_slice(sent);
    assert!(peak <= allowed, "{peak} bytes, {allowed} allowed, for {}: {told:?}", sent.len());
}

#[test]
fn any_damage_to_any_call_is_answered_or_hung_up_on_within_bounded_memory() {
    with_seed(|rng| {
        let wanted = executions();
        let mut done = 0;
        while done < wanted {
            done += fuzz_one_world(rng);
        }
        eprintln!("{done} executions");
    });
}
