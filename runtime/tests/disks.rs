//! The disks of the embedded machine keep the promises of `runtime::disk::Disk` on both ways to
//! them. A host that refuses direct transfers is asked about the other way only.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::future::Future;
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::executor::block_on;
use futures::future::join_all;
use runtime::buffer::{ALIGNMENT, SharedBuffer};
use runtime::disk::Disk;
use runtime::embedded::{Config, DiskAccess, Embedded};
use runtime::seed::Rng;
use runtime::{Context, Epoch, NodeId};
use tempfile::TempDir;

const LENGTH: usize = 1 << 20;
const POOL_BYTES: usize = 2 << 20;

fn machine(disk_access: DiskAccess) -> Embedded {
    let epoch = Epoch(1);
    let pool_bytes = POOL_BYTES;
    Embedded::start(Config {
        threads: 1,
        fs_nodes: 1,
        disk_nodes: 1,
        epoch,
        pool_bytes,
        disk_access,
    })
    .unwrap()
}

/// A disk file of zeros, on the disk that also holds the build: a temporary directory may be in
/// memory.
struct Scratch(TempDir);

impl Scratch {
    fn new(length: usize) -> Self {
        let scratch = Self(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
        std::fs::write(scratch.path(), vec![0; length]).unwrap();
        scratch
    }

    fn path(&self) -> String {
        self.0.path().join("disk").to_str().unwrap().to_owned()
    }

    fn content(&self) -> Vec<u8> {
        std::fs::read(self.path()).unwrap()
    }
}

/// Does `work` with the disk at `path`, on a node of `machine`.
fn with_disk<F: Future<Output: Send> + 'static>(
    machine: &Embedded,
    path: String,
    work: impl FnOnce(Context, Rc<dyn Disk>) -> F + Send + 'static,
) -> F::Output {
    block_on(machine.on_node(NodeId::disk(0), async move |context: Context| {
        let disk = context.open_disk(&path).await.unwrap();
        work(context, disk).await
    }))
    .unwrap()
}

fn host_is_direct() -> bool {
    let scratch = Scratch::new(LENGTH);
    let machine = machine(DiskAccess::Best);
    with_disk(&machine, scratch.path(), async |_, disk| disk.is_direct())
}

/// The ways that this host allows.
fn ways() -> Vec<DiskAccess> {
    if host_is_direct() {
        return vec![DiskAccess::Cached, DiskAccess::Direct];
    }
    eprintln!("this host refuses direct transfers: only the cached way is tested");
    vec![DiskAccess::Cached]
}

/// Asks each way the same, with a disk of its own, and the machine's context.
fn on_each_way<F: Future<Output = ()> + 'static>(
    work: impl Fn(Context, Rc<dyn Disk>) -> F + Clone + Send + 'static,
) {
    for way in ways() {
        let scratch = Scratch::new(LENGTH);
        let machine = machine(way);
        let work = work.clone();
        with_disk(&machine, scratch.path(), async move |context, disk| {
            assert_eq!(disk.is_direct(), way == DiskAccess::Direct);
            work(context, disk).await;
        });
    }
}

/// `length` bytes in pieces, some of them aligned in memory, some not.
fn pieces(context: &Context, rng: &mut Rng, length: usize) -> Vec<Bytes> {
    let mut pieces = Vec::new();
    let mut left = length;
    while left > 0 {
        let fill = rng.below(256) as u8;
        let wanted = [ALIGNMENT, 2 * ALIGNMENT, 1 + rng.index(5000)][rng.index(3)].min(left);
        pieces.push(match context.pool().take(wanted) {
            Some(mut aligned) if rng.chance(2, 3) => {
                aligned.fill(fill);
                aligned.freeze()
            }
            _ => vec![fill; wanted].into(),
        });
        left -= wanted;
    }
    pieces
}

#[test]
fn bytes_read_back_as_written_at_any_place_and_length() {
    on_each_way(async |context, disk| {
        let mut rng = Rng::new(1);
        let mut model = vec![0; LENGTH];
        for _ in 0..200 {
            let unit = [1, 512, ALIGNMENT][rng.index(3)];
            let offset = rng.index(LENGTH / unit) * unit;
            let most = (LENGTH - offset).min(100_000);
            let length = ((1 + rng.index(most)) / unit).max(1) * unit;
            if rng.chance(1, 2) {
                let data = pieces(&context, &mut rng, length);
                model[offset..offset + length].copy_from_slice(&data.concat());
                disk.write(offset as u64, data).await.unwrap();
            } else {
                let found = disk.read(offset as u64, length).await.unwrap();
                assert!(found == model[offset..offset + length], "{offset} {length}");
            }
        }
        disk.sync().await.unwrap();
        assert!(disk.read(0, LENGTH).await.unwrap() == model);
    });
}

#[test]
fn pieces_are_read_as_one_and_whole_blocks_come_in_buffers_of_their_own() {
    on_each_way(async |context, disk| {
        let mut rng = Rng::new(2);
        let model: Vec<u8> = (0..LENGTH).map(|_| rng.bits() as u8).collect();
        disk.write(0, vec![model.clone().into()]).await.unwrap();
        for unit in [1, ALIGNMENT] {
            for _ in 0..50 {
                let offset = rng.index(LENGTH / unit / 2) * unit;
                let mut lengths = Vec::new();
                while lengths.len() < 8 && rng.chance(7, 8) {
                    lengths.push((1 + rng.index(3)) * unit);
                }
                let read = disk.read_pieces(offset as u64, lengths.clone()).await.unwrap();
                let mut at = offset;
                for piece in &read {
                    assert!(*piece == model[at..at + piece.len()], "{offset} {lengths:?}");
                    at += piece.len();
                    let is_own = SharedBuffer::adopt(piece, context.pool()).is_some();
                    assert!(is_own || unit == 1, "{offset} {lengths:?}");
                }
                assert!(read.iter().map(Bytes::len).eq(lengths));
            }
        }
        let beyond = disk.read_pieces(0, vec![LENGTH, ALIGNMENT]).await;
        assert_eq!(beyond.unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(context.pool().used_bytes(), 0);
    });
}

#[test]
fn neighbours_within_a_block_do_not_lose_each_other() {
    on_each_way(async |_, disk| {
        // Writes of 100 bytes cross the ends of blocks; whole blocks between them go at once.
        let mut model = Vec::new();
        let mut writes = Vec::new();
        for fill in 0..=200_u8 {
            let length = if fill.is_multiple_of(20) { ALIGNMENT } else { 100 };
            let offset = model.len() as u64;
            model.resize(model.len() + length, fill);
            writes.push(disk.write(offset, vec![vec![fill; length].into()]));
        }
        for written in join_all(writes).await {
            written.unwrap();
        }
        assert!(disk.read(0, model.len()).await.unwrap() == model);
    });
}

#[test]
fn many_requests_are_in_flight_at_once() {
    on_each_way(async |_, disk| {
        let block = |i: u64| vec![Bytes::from(vec![i as u8; 1024])];
        // More than go to the kernel in one call.
        let writes = (0..1000).map(|i| disk.write(i * 1024, block(i)));
        assert!(join_all(writes).await.iter().all(Result::is_ok));
        let reads = (0..400).map(|i| disk.read(i * 1024, 1024));
        for (i, read) in join_all(reads).await.into_iter().enumerate() {
            assert!(read.unwrap() == vec![i as u8; 1024], "{i}");
        }
    });
}

#[test]
fn a_request_completes_and_keeps_its_memory_without_a_waiter() {
    on_each_way(async |context, disk| {
        let pool = context.pool().clone();
        let mut content = pool.take(256 << 10).unwrap();
        content.fill(7);
        let content = content.freeze();
        let writes = [disk.write(0, vec![content]), disk.write(512 << 10, vec!["tail".into()])];
        let reads = [disk.read(0, 128 << 10), disk.read(256 << 10, 128 << 10)];
        drop((writes, reads));
        let held = if disk.is_direct() { 512 << 10 } else { 0 };
        assert!(pool.used_bytes() >= held, "nothing has been heard of the kernel yet");
        while pool.used_bytes() > 0 {
            context.sleep(Duration::from_millis(1)).await;
        }
        assert!(disk.read(0, 256 << 10).await.unwrap() == vec![7; 256 << 10]);
        while disk.read(512 << 10, 4).await.unwrap() != "tail" {
            context.sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn a_machine_that_ends_waits_for_its_disks_and_frees_them() {
    for way in ways() {
        let scratch = Scratch::new(LENGTH);
        for round in 1..20_u8 {
            let machine = machine(way);
            with_disk(&machine, scratch.path(), async move |context, disk| {
                let mut content = context.pool().take(64 << 10).unwrap();
                content.fill(round);
                let content = content.freeze();
                for stripe in 0..16 {
                    drop(disk.write(stripe << 16, vec![content.clone()]));
                    drop(disk.read(stripe << 16, 64 << 10));
                }
                // Given to the kernel, and not heard of again by this life.
                drop(disk);
                context.sleep(Duration::ZERO).await;
            });
            let pool = machine.pool().clone();
            drop(machine);
            assert_eq!(pool.used_bytes(), 0, "{way:?}");
            let before = scratch.content();
            for block in before.chunks(ALIGNMENT) {
                assert!(block.iter().all(|byte| *byte == block[0]), "a block is whole");
            }
            assert!(before == scratch.content(), "no late write");
        }
    }
}

#[test]
fn what_is_not_on_the_disk_is_refused_and_the_disk_does_not_grow() {
    for way in ways() {
        let scratch = Scratch::new(LENGTH);
        let machine = machine(way);
        with_disk(&machine, scratch.path(), async |_, disk| {
            let length = LENGTH as u64;
            for (offset, count) in [(length, 1), (length - 1, 2), (u64::MAX, 1), (0, LENGTH + 1)] {
                let read = disk.read(offset, count).await;
                assert_eq!(read.unwrap_err().kind(), ErrorKind::InvalidInput);
                let written = disk.write(offset, vec![vec![1; count].into()]).await;
                assert_eq!(written.unwrap_err().kind(), ErrorKind::InvalidInput);
            }
            assert_eq!(disk.read(length, 0).await.unwrap(), "");
            disk.write(length, Vec::new()).await.unwrap();
            disk.write(length - 1, vec!["x".into()]).await.unwrap();
        });
        let mut expected = vec![0; LENGTH];
        expected[LENGTH - 1] = b'x';
        assert!(scratch.content() == expected);
    }
}

#[test]
fn a_full_pool_refuses_reads_and_still_lets_writes_through() {
    on_each_way(async |context, disk| {
        let held = context.pool().take(POOL_BYTES).unwrap();
        let read = disk.read(0, 1).await;
        assert_eq!(read.unwrap_err().kind(), ErrorKind::OutOfMemory);
        // Dirty data must reach the disk before its memory can be used again.
        disk.write(1, vec!["x".into()]).await.unwrap();
        disk.write(4096, vec![vec![3; 4096].into()]).await.unwrap();
        drop(held);
        assert_eq!(disk.read(0, 3).await.unwrap(), "\0x\0");
        assert_eq!(disk.read(8191, 2).await.unwrap(), "\x03\0");
    });
}

#[test]
fn only_what_is_not_aligned_is_copied_on_its_way_to_the_disk() {
    on_each_way(async |context, disk| {
        let pool = context.pool();
        let line = pool.take(64 << 10).unwrap().freeze();
        disk.write(0, vec![line.slice(..4096), line.slice(8192..)]).await.unwrap();
        assert_eq!(pool.bounced_bytes(), 0);
        disk.write(0, vec![line.slice(1..4097)]).await.unwrap();
        let bounced = if disk.is_direct() { 4096 } else { 0 };
        assert_eq!(pool.bounced_bytes(), bounced);
        let found = disk.read(10, 100).await.unwrap();
        assert_eq!((found.len(), pool.bounced_bytes()), (100, bounced));
    });
}

#[test]
fn a_disk_is_locked_until_its_last_request_is_done_and_then_free() {
    for way in ways() {
        let scratch = Scratch::new(LENGTH);
        let machine = machine(way);
        let path = scratch.path();
        with_disk(&machine, scratch.path(), async move |context, disk| {
            let second = context.open_disk(&path).await.err().unwrap();
            assert_eq!(second.kind(), ErrorKind::ResourceBusy);
            // Begun, and on its way unless the host was very quick.
            let _ = disk.write(0, vec![vec![1; LENGTH].into()]).now_or_never();
            drop(disk);
            let disk = loop {
                match context.open_disk(&path).await {
                    Ok(disk) => break disk,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::ResourceBusy),
                }
            };
            assert!(disk.read(0, LENGTH).await.unwrap() == vec![1; LENGTH]);
        });
    }
}

#[test]
fn a_disk_for_which_direct_transfers_are_refused_goes_through_the_page_cache() {
    // Not whole blocks; no block to try with.
    for length in [LENGTH + 512, 0] {
        let scratch = Scratch::new(length);
        let path = scratch.path();
        with_disk(&machine(DiskAccess::Best), scratch.path(), async move |context, disk| {
            assert!(!disk.is_direct());
            assert_eq!(disk.length(), length as u64);
            assert_eq!(disk.read(0, length).await.unwrap().len(), length);
            let second = context.open_disk(&path).await.err().unwrap();
            assert_eq!(second.kind(), ErrorKind::ResourceBusy, "it is locked all the same");
        });
        let (machine, path) = (machine(DiskAccess::Direct), scratch.path());
        let refused = machine.on_node(NodeId::disk(0), async move |context: Context| {
            context.open_disk(&path).await.is_err()
        });
        assert!(block_on(refused).unwrap());
    }
}
