//! Small reads by programs inside the machine: one for each core, as a solver that holds the volume
//! in its own process would do them. The host's side does as many system calls.

#![allow(clippy::cast_precision_loss, reason = "counts of a benchmark")]
#![allow(clippy::disallowed_methods, reason = "the host's side works with threads")]

use client::{Credentials, File, FileSystem, OpenOptions};
use futures::executor::block_on;
use futures::future::join_all;
use runtime::Context;
use runtime::seed::Rng;

use crate::sides::CheckpointSide;
use crate::works::{CheckpointScale, SEED, SMALL, random_offset, timed, warm_first};

/// Reads that each program has under way: some of the blocks are with another thread.
const AT_ONCE: u64 = 32;

/// Random reads of a file in memory, all cores together.
pub(crate) fn reads(side: &mut CheckpointSide, scale: &CheckpointScale) -> Option<f64> {
    let file = warm_first(side, scale);
    let programs = std::thread::available_parallelism().map_or(1, usize::from);
    let amount = (programs * scale.small) as f64;
    if let CheckpointSide::Ours { scratch } = side {
        let running = scratch.running();
        let scale = *scale;
        let work = |program| {
            running.on_application(move |context| async move {
                one_program(&context, scale, program as u64).await;
            })
        };
        return timed(amount, || {
            let done = block_on(join_all((0..programs).map(work)));
            for ended in done {
                ended.expect("it runs");
            }
        });
    }
    timed(amount, || {
        std::thread::scope(|scope| {
            for program in 0..programs {
                let file = &file;
                scope.spawn(move || {
                    let mut rng = Rng::new(SEED + program as u64);
                    let mut buffer = vec![0; SMALL];
                    for _ in 0..scale.small {
                        file.read_at(random_offset(&mut rng, scale), &mut buffer);
                    }
                });
            }
        });
    })
}

async fn one_program(context: &Context, scale: CheckpointScale, program: u64) {
    let system = FileSystem::new(context.clone(), Credentials::root(), context.random());
    let options = OpenOptions::new().read(true);
    let file = system.open("/file0", options).await.expect("it is there");
    let readers = (0..AT_ONCE).map(|reader| {
        let count = scale.small as u64 / AT_ONCE + u64::from(reader < scale.small as u64 % AT_ONCE);
        one_reader(&file, scale, Rng::new(SEED + program * AT_ONCE + reader), count)
    });
    join_all(readers).await;
}

async fn one_reader(file: &File<Context>, scale: CheckpointScale, mut rng: Rng, count: u64) {
    let mut buffer = vec![0; SMALL];
    for _ in 0..count {
        let offset = random_offset(&mut rng, &scale);
        let read = file.read_at(offset, &mut buffer).await.expect("it is cached");
        assert_eq!(read, SMALL);
    }
}
