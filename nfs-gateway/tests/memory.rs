//! What bytes from the network make the gateway allocate: at most twice as much as came, and 64
//! KiB.
//!
//! Method: an allocator that keeps the peak; one stream at a time sends a beginning that promises
//! much more than ever comes.

use std::time::Duration;

use fileio::model::Model;
use fileio::protocol::FileIo;
use machine_emu::{World, WorldShape};
use nfs_gateway::{Config, Gateway, limits};
use peak_alloc::PeakAlloc;
use runtime::net::Address;
use runtime::seed::with_seed;
use runtime::{NodeId, VolumeId};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// What the emulated stream and the bookkeeping of one connection take by themselves.
const STREAM_BYTES: usize = 24 << 10;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A record whose mark tells its real length.
fn record(content: &[u8]) -> Vec<u8> {
    [&words(&[1 << 31 | content.len() as u32])[..], content].concat()
}

/// A call of `procedure` of NFS without a credential.
fn call(procedure: u32, arguments: &[u32]) -> Vec<u8> {
    let head = [1, 0, 2, 100_003, 3, procedure, 0, 0, 0, 0];
    record(&words(&[&head[..], arguments].concat()))
}

/// Beginnings that promise more than they bring.
fn promises() -> Vec<Vec<u8>> {
    let huge = u32::MAX;
    let mut promises = vec![
        words(&[1 << 31 | limits::RECORD_BYTES as u32]),
        words(&[limits::RECORD_BYTES as u32]),
        words(&[huge]),
        // Credentials, machine name and groups.
        record(&words(&[1, 0, 2, 100_003, 3, 0, 1, huge])),
        record(&words(&[1, 0, 2, 100_003, 3, 0, 1, 20, 0, huge, 0, 0, huge, 0, 0])),
        record(&words(&[1, 0, 2, 100_003, 3, 0, 1, 20, 0, 0, 0, 0, huge, 0, 0])),
    ];
    // The first argument of each procedure: a handle; a second one: a name, a path, a payload.
    for procedure in 1..22 {
        promises.push(call(procedure, &[huge]));
        promises.push(call(procedure, &[4, 0, huge]));
        promises.push(call(procedure, &[4, 0, 0, 0, huge, 0, huge]));
    }
    // A payload that does not come, or not all of it.
    for length in [1000, 20_000, 50_000, 200_000] {
        let promise = words(&[1, 0, 2, 100_003, 3, 7, 0, 0, 0, 0, 4, 0, 0, 0, 1 << 20, 2, 1 << 20]);
        let mark = words(&[1 << 31 | (promise.len() as u32 + (1 << 20))]);
        promises.push([mark, promise, vec![0; length]].concat());
    }
    for length in [1000, 50_000, 1 << 20] {
        let half = [words(&[1 << 31 | limits::RECORD_BYTES as u32]), vec![0; length]].concat();
        promises.push(half);
    }
    promises
}

#[test]
fn no_promise_is_paid_in_advance() {
    with_seed(|rng| {
        let world = World::new(rng.bits(), WorldShape { fs_nodes: 1, disk_nodes: 0 });
        world.context(NodeId::fs(0)).serve::<FileIo>(std::rc::Rc::new(Model::default()));
        let ctx = world.context(NodeId::application(0));
        let config = Config::new(VolumeId(1), [1; 32]);
        let address = Address::Tcp("gateway:2049".into());
        let gateway = world.run(Gateway::start(ctx, &address, config)).unwrap();
        for (index, promise) in promises().into_iter().enumerate() {
            let sent_bytes = promise.len();
            let mut stream = world.connect(gateway.address()).unwrap();
            world.advance(Duration::from_millis(1));
            // The emulated pipe holds one copy of what is sent.
            let before = ALLOCATOR.current_usage() + sent_bytes;
            ALLOCATOR.reset_peak_usage();
            world.run(async {
                for part in promise.chunks(64 << 10) {
                    let _ = stream.writer.write(vec![part.to_vec().into()]).await;
                }
            });
            world.advance(Duration::from_secs(1));
            let peak = ALLOCATOR.peak_usage().saturating_sub(before);
            let allowed = 2 * sent_bytes + (64 << 10) + STREAM_BYTES;
            assert!(peak <= allowed, "promise {index}: {peak} for {sent_bytes} bytes");
            drop(stream);
            world.advance(Duration::from_secs(1));
        }
    });
}
