//! One cached stripe of 64 KiB, read and written at each depth of the layers: through the client
//! from an ordinary thread (a door), through the client inside a node of the same thread, in the
//! cache itself, and the bare copy. The difference of two rows is what the layers between them cost.
//!
//! Each iteration is a batch of stripes; reads hand out slices of the cache and copy nothing, a
//! write is copied once. Reads of files and of the cache come after their checksums were compared.

use std::future::Future;
use std::rc::Rc;

use benches::{Scratch, Shape, sized};
use blockio::{BlockClient, Stripes};
use bytes::Bytes;
use cache::CacheClient;
use client::{Credentials, File, FileSystem, OpenOptions};
use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use futures::executor::block_on;
use runtime::{Context, Spawn};

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
    let shape = Shape { disk_bytes: 128 << 20, cache_bytes: 64 << 20, threads: 1 };
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
async fn each<F: Future<Output = u8>>(batch: usize, act: impl Fn(usize) -> F) -> usize {
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
fn cache_in(context: &Context, geometry: blockio::Geometry) -> CacheClient {
    let below: Rc<dyn Stripes> = Rc::new(BlockClient::new(context.clone(), geometry));
    CacheClient::new(context.clone(), geometry, below)
}

#[divan::bench_group]
mod read {
    use client::OpenOptions;
    use divan::Bencher;
    use futures::executor::block_on;

    use super::{
        STRIPE, Stripes as _, cache_in, client_in, each, file_of, fill_cache, inside, measure,
        read_file, scratch,
    };

    #[divan::bench]
    fn by_a_door(bencher: Bencher<'_, '_>) {
        let scratch = scratch();
        let file = block_on(file_of(scratch.volume().file_system()));
        measure(bencher, |batch| block_on(each(batch, |i| read_file(&file, i))));
    }

    #[divan::bench]
    fn inside_a_node(bencher: Bencher<'_, '_>) {
        let scratch = scratch();
        block_on(file_of(scratch.volume().file_system()));
        measure(bencher, |batch| {
            inside(&scratch, move |context| async move {
                let options = OpenOptions::new().read(true);
                let file =
                    client_in(&context).open("/stripes", options).await.expect("it is there");
                each(batch, |i| read_file(&file, i)).await
            })
        });
    }

    #[divan::bench]
    fn in_the_cache(bencher: Bencher<'_, '_>) {
        let scratch = scratch();
        let geometry = scratch.running().geometry();
        let first = fill_cache(&scratch);
        measure(bencher, |batch| {
            inside(&scratch, move |context| async move {
                let cache = cache_in(&context, geometry);
                let read = async |stripe| {
                    let read = cache.read(stripe, 0, STRIPE as u32, Vec::new()).await;
                    read.expect("it is cached")[0]
                };
                each(batch, |i| read(first + i as u64)).await
            })
        });
    }
}

#[divan::bench_group]
mod write {
    use bytes::Bytes;
    use client::OpenOptions;
    use divan::Bencher;
    use futures::executor::block_on;

    use super::{
        CONTENT, Stripes as _, cache_in, client_in, each, file_of, fill_cache, inside, measure,
        scratch, write_file,
    };

    #[divan::bench]
    fn by_a_door(bencher: Bencher<'_, '_>) {
        let scratch = scratch();
        let file = block_on(file_of(scratch.volume().file_system()));
        measure(bencher, |batch| block_on(each(batch, |i| write_file(&file, i))));
    }

    #[divan::bench]
    fn inside_a_node(bencher: Bencher<'_, '_>) {
        let scratch = scratch();
        block_on(file_of(scratch.volume().file_system()));
        measure(bencher, |batch| {
            inside(&scratch, move |context| async move {
                let options = OpenOptions::new().write(true);
                let file =
                    client_in(&context).open("/stripes", options).await.expect("it is there");
                each(batch, |i| write_file(&file, i)).await
            })
        });
    }

    #[divan::bench]
    fn in_the_cache(bencher: Bencher<'_, '_>) {
        let scratch = scratch();
        let geometry = scratch.running().geometry();
        let first = fill_cache(&scratch);
        measure(bencher, |batch| {
            inside(&scratch, move |context| async move {
                let cache = cache_in(&context, geometry);
                let write = async |stripe| {
                    let data = vec![Bytes::from_static(&CONTENT)];
                    cache.write(stripe, 0, data).await.expect("there is room");
                    CONTENT[0]
                };
                each(batch, |i| write(first + i as u64)).await
            })
        });
    }
}

/// Puts stripes at the end of the volume, which nothing else uses, into the cache; the first.
fn fill_cache(scratch: &Scratch) -> u64 {
    let geometry = scratch.running().geometry();
    let first = geometry.stripes() - STRIPES as u64;
    inside(scratch, move |context| async move {
        let cache = cache_in(&context, geometry);
        for stripe in first..geometry.stripes() {
            let data = vec![Bytes::from_static(&CONTENT)];
            cache.write(stripe, 0, data).await.expect("there is room");
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
        block_on(each(batch, |i| {
            let range = i * STRIPE..(i + 1) * STRIPE;
            let mut target = target.borrow_mut();
            target[range.clone()].copy_from_slice(black_box(&source[range.clone()]));
            futures::future::ready(black_box(target[range.start]))
        }))
    });
}

fn main() {
    divan::main();
}
