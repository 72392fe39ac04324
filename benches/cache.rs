//! One cached stripe of 64 KiB, read and written at each depth of the layers: through the client
//! from an ordinary thread (a door), through the client inside a node of the same thread, in the
//! cache itself, and the bare copy. The difference of two rows is what the layers between them
//! cost.
//!
//! Each iteration is a batch of stripes; reads hand out slices of the cache and copy nothing, a
//! write is copied once. Reads of files and of the cache come after their checksums were compared.

use std::future::Future;
use std::rc::Rc;

use benches::{BenchVolumeShape, Scratch, sized};
use blockio::{BlockClient, Stripes};
use bytes::Bytes;
use cache::CacheClient;
use client::{Credentials, File, FileSystem, OpenOptions};
use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use futures::executor::block_on;
use runtime::{ClientHandle, Context, Spawn};

/// Bytes of a stripe.
const STRIPE: usize = 64 << 10;
/// Stripes that are read or written in turn.
const STRIPES: usize = 64;
/// Stripes of one iteration.
const BATCH: usize = 512;
const BATCH_IN_TEST: usize = 4;

static CONTENT: [u8; STRIPE] = [7; STRIPE];

fn scratch() -> Scratch {
    // One thread: what crossing threads costs is measured in `spawn.rs`.
    let shape = BenchVolumeShape {
        disk_bytes: 128 << 20,
        cache_bytes: 64 << 20,
        threads: 1,
        prefault: false,
    };
    Scratch::new(env!("CARGO_TARGET_TMPDIR"), shape)
}

fn measure(bencher: Bencher<'_, '_>, work: impl Fn(usize) -> usize) {
    let batch = sized(BATCH, BATCH_IN_TEST);
    bencher.counter(ItemsCount::new(batch)).counter(BytesCount::new(batch * STRIPE)).bench_local(
        || {
            let sum = black_box(work(batch));
            assert_eq!(sum, batch * usize::from(CONTENT[0]), "each stripe has its content");
        },
    );
}

/// Stripe `i` of `batch`: its first byte goes into a sum, so that nothing can be left out.
async fn each(batch: usize, act: impl AsyncFn(usize) -> u8) -> usize {
    let mut sum = 0;
    for i in 0..batch {
        sum += usize::from(act(i % STRIPES).await);
    }
    sum
}

async fn file_of<S: Spawn>(system: &FileSystem<S>) -> File<S> {
    let options = OpenOptions::new().read(true).write(true).create(true);
    let file = system.open("/stripes", options).await.expect("there is room");
    for i in 0..STRIPES {
        write_file(&file, i).await;
    }
    file
}

async fn read_file<S: Spawn>(file: &File<S>, i: usize) -> u8 {
    let parts = file.read_bytes_at((i * STRIPE) as u64, STRIPE).await.expect("it is cached");
    assert_eq!(parts.iter().map(Bytes::len).sum::<usize>(), STRIPE);
    parts[0][0]
}

async fn write_file<S: Spawn>(file: &File<S>, i: usize) -> u8 {
    let data = Bytes::from_static(&CONTENT);
    file.write_at((i * STRIPE) as u64, data).await.expect("there is room");
    CONTENT[0]
}

/// Runs `work` inside the machine, with what `start` made there.
fn inside<F: Future<Output = usize> + 'static>(
    scratch: &Scratch,
    work: impl FnOnce(Context) -> F + Send + 'static,
) -> usize {
    block_on(scratch.running().on_application(work)).expect("it runs")
}

fn client_in(context: &Context) -> FileSystem<Context> {
    FileSystem::new(context.clone(), Credentials::root(), context.random())
}

/// The cache as the layers above it see it.
fn cache_in(context: &Context, map: &blockio::VolumeMap) -> CacheClient {
    let below: Rc<dyn Stripes> = Rc::new(BlockClient::new(context.clone(), map.clone()));
    CacheClient::new(context.clone(), map.clone(), below)
}

/// `act` on the stripes of a file, from this thread.
fn by_a_client_handle(
    bencher: Bencher<'_, '_>,
    act: impl AsyncFn(&File<ClientHandle>, usize) -> u8 + Copy,
) {
    let scratch = scratch();
    let file = block_on(file_of(scratch.volume().file_system()));
    measure(bencher, |batch| block_on(each(batch, async |i| act(&file, i).await)));
}

/// `act` on the stripes of a file that is opened with `options`, on the thread of the layers.
fn inside_a_node(
    bencher: Bencher<'_, '_>,
    options: OpenOptions,
    act: impl AsyncFn(&File<Context>, usize) -> u8 + Copy + Send + 'static,
) {
    let scratch = scratch();
    block_on(file_of(scratch.volume().file_system()));
    measure(bencher, |batch| {
        inside(&scratch, move |context| async move {
            let file = client_in(&context).open("/stripes", options).await.expect("it is there");
            each(batch, async |i| act(&file, i).await).await
        })
    });
}

/// `act` on stripes of the cache.
fn in_the_cache(
    bencher: Bencher<'_, '_>,
    act: impl AsyncFn(&CacheClient, u64) -> u8 + Copy + Send + 'static,
) {
    let scratch = scratch();
    let map = scratch.running().map().clone();
    let first = fill_cache(&scratch);
    measure(bencher, |batch| {
        let map = map.clone();
        inside(&scratch, move |context| async move {
            let cache = cache_in(&context, &map);
            each(batch, async |i| act(&cache, first + i as u64).await).await
        })
    });
}

async fn read_cache(cache: &CacheClient, stripe: u64) -> u8 {
    cache.read(stripe, 0, STRIPE as u32, Vec::new()).await.expect("it is cached")[0]
}

async fn write_cache(cache: &CacheClient, stripe: u64) -> u8 {
    let data = vec![Bytes::from_static(&CONTENT)];
    cache.write(stripe, 0, data).await.expect("there is room");
    CONTENT[0]
}

#[divan::bench_group]
mod read {
    use client::OpenOptions;
    use divan::Bencher;

    #[divan::bench]
    fn by_a_client_handle(bencher: Bencher<'_, '_>) {
        super::by_a_client_handle(bencher, super::read_file);
    }

    #[divan::bench]
    fn inside_a_node(bencher: Bencher<'_, '_>) {
        super::inside_a_node(bencher, OpenOptions::new().read(true), super::read_file);
    }

    #[divan::bench]
    fn in_the_cache(bencher: Bencher<'_, '_>) {
        super::in_the_cache(bencher, super::read_cache);
    }
}

#[divan::bench_group]
mod write {
    use client::OpenOptions;
    use divan::Bencher;

    #[divan::bench]
    fn by_a_client_handle(bencher: Bencher<'_, '_>) {
        super::by_a_client_handle(bencher, super::write_file);
    }

    #[divan::bench]
    fn inside_a_node(bencher: Bencher<'_, '_>) {
        super::inside_a_node(bencher, OpenOptions::new().write(true), super::write_file);
    }

    #[divan::bench]
    fn in_the_cache(bencher: Bencher<'_, '_>) {
        super::in_the_cache(bencher, super::write_cache);
    }
}

/// Puts stripes at the end of the volume, which nothing else uses, into the cache; the first.
fn fill_cache(scratch: &Scratch) -> u64 {
    let map = scratch.running().map().clone();
    let first = map.stripes() - STRIPES as u64;
    inside(scratch, move |context| async move {
        let cache = cache_in(&context, &map);
        for stripe in first..map.stripes() {
            write_cache(&cache, stripe).await;
        }
        STRIPES
    });
    first
}

/// The copy alone, between as many buffers as there are stripes.
#[divan::bench]
fn copy_alone(bencher: Bencher<'_, '_>) {
    let source = vec![CONTENT[0]; STRIPES * STRIPE];
    let target = std::cell::RefCell::new(vec![0; STRIPES * STRIPE]);
    measure(bencher, |batch| {
        block_on(each(batch, async |i| {
            let range = i * STRIPE..(i + 1) * STRIPE;
            let mut target = target.borrow_mut();
            target[range.clone()].copy_from_slice(black_box(&source[range.clone()]));
            black_box(target[range.start])
        }))
    });
}

fn main() {
    divan::main();
}
