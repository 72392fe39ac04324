//! Creates, stats and removes per second, beside the host's file system on the same disk: in one
//! directory and in many, by 1, 4 and 16 clients, each operation synced or none.
//!
//! Three ways take turns within each round. *threads*: each client is an ordinary thread that asks
//! through the client API; *inside*: each is a task on a node of the machine, as a gateway is;
//! *local*: each is a thread that does the same system calls. *Synced* is a file that is made,
//! synced and closed, and then its directory is synced; a removal, and then its directory is
//! synced. A name after `--bench` chooses the rows that contain it.

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use benches::{BenchVolumeShape, Scratch, median, sized};
use client::{Credentials, FileSystem, OpenOptions};
use futures::executor::block_on;
use futures::future::join_all;
use runtime::Spawn;

/// As the program `mdfs` has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Directories over which files are spread, where there are many.
const DIRECTORIES: usize = 64;
const CLIENTS: [usize; 3] = [1, 4, 16];
const WAYS: [&str; 3] = ["threads", "inside", "local"];
const STEPS: [MetadataStep; 3] = [MetadataStep::Create, MetadataStep::Stat, MetadataStep::Remove];

/// What is done with each file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MetadataStep {
    Create,
    Stat,
    Remove,
}

/// One kind of round.
#[derive(Clone, Copy, Debug)]
struct MetadataCase {
    clients: usize,
    spread: bool,
    synced: bool,
    /// Files of all clients together.
    files: usize,
}

impl MetadataCase {
    fn name(&self, step: MetadataStep) -> String {
        let Self { clients, spread, synced, .. } = self;
        let place = if *spread { "many directories" } else { "one directory" };
        let step = format!("{step:?}").to_lowercase();
        let sync = if *synced { "synced" } else { "not synced" };
        format!("{step}, {place}, {clients} clients, {sync}")
    }

    /// The steps that are measured: a stat has nothing to sync.
    fn steps(&self) -> impl Iterator<Item = MetadataStep> + use<> {
        let synced = self.synced;
        STEPS.into_iter().filter(move |step| !synced || *step != MetadataStep::Stat)
    }

    /// The files of one client, each with its directory.
    fn paths(&self, client: usize, above: &str) -> Vec<(String, String)> {
        let numbers = (client..self.files).step_by(self.clients);
        let path = |number: usize| {
            let directory = if self.spread { number % DIRECTORIES } else { 0 };
            let directory = format!("{above}/d{directory}");
            (format!("{directory}/file-{number}"), directory)
        };
        numbers.map(path).collect()
    }
}

fn cases() -> Vec<MetadataCase> {
    let mut cases = Vec::new();
    for synced in [false, true] {
        for spread in [false, true] {
            for clients in CLIENTS {
                let files = if synced { sized(64 + 32 * clients, 16) } else { sized(8_000, 32) };
                cases.push(MetadataCase { clients, spread, synced, files });
            }
        }
    }
    cases
}

/// Operations per second by way, of all rounds.
struct MetadataBenchRow {
    name: String,
    rates: [Vec<f64>; 3],
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(part));
    let bench = MetadataBench::new();
    println!(
        "{:<48} {:>9} {:>9} {:>9}  {:>13} {:>12}",
        "operations per second", WAYS[0], WAYS[1], WAYS[2], "threads/local", "inside/local"
    );
    for case in cases() {
        if case.steps().any(|step| is_wanted(&case.name(step))) {
            for row in bench.measure(&case) {
                println!("{}", row.line());
            }
        }
    }
}

struct MetadataBench {
    scratch: Scratch,
    host: PathBuf,
}

impl MetadataBench {
    #[allow(clippy::disallowed_methods, reason = "a benchmark makes directories of the host")]
    fn new() -> Self {
        let shape = BenchVolumeShape {
            disk_bytes: sized(1 << 30, 128 << 20),
            cache_bytes: 64 << 20,
            threads: 0,
            prefault: false,
        };
        let scratch = Scratch::new(env!("CARGO_TARGET_TMPDIR"), shape);
        let (volume, host) = (scratch.volume(), scratch.host_directory());
        for number in 0..DIRECTORIES {
            volume.mkdir(format!("/d{number}")).expect("the root has room");
            std::fs::create_dir(host.join(format!("d{number}"))).expect("the host has room");
        }
        Self { scratch, host }
    }

    fn measure(&self, case: &MetadataCase) -> Vec<MetadataBenchRow> {
        let mut rows: Vec<(MetadataStep, MetadataBenchRow)> = case
            .steps()
            .map(|step| {
                (step, MetadataBenchRow { name: case.name(step), rates: [const { Vec::new() }; 3] })
            })
            .collect();
        for round in 0..sized(7, 1) {
            for turn in 0..WAYS.len() {
                let way = (turn + round) % WAYS.len();
                for step in STEPS {
                    let rate = self.perform(case, step, way);
                    if let Some((_, row)) = rows.iter_mut().find(|(known, _)| *known == step) {
                        row.rates[way].push(rate);
                    }
                }
            }
        }
        rows.into_iter().map(|(_, row)| row).collect()
    }

    #[allow(clippy::disallowed_methods, reason = "a benchmark measures the real clock")]
    #[allow(clippy::cast_precision_loss, reason = "counts of a benchmark")]
    fn perform(&self, case: &MetadataCase, step: MetadataStep, way: usize) -> f64 {
        let above =
            if WAYS[way] == "local" { self.host.to_str().expect("a plain name") } else { "" };
        let paths = (0..case.clients).map(|client| case.paths(client, above)).collect();
        let synced = case.synced;
        let start = Instant::now();
        match WAYS[way] {
            "threads" => self.by_threads(paths, step, synced),
            "inside" => self.inside(paths, step, synced),
            _ => locally(paths, step, synced),
        }
        let elapsed = start.elapsed().max(Duration::from_nanos(1));
        case.files as f64 / elapsed.as_secs_f64()
    }

    #[allow(clippy::disallowed_methods, reason = "clients of a benchmark are ordinary threads")]
    fn by_threads(&self, paths: Vec<Vec<(String, String)>>, step: MetadataStep, synced: bool) {
        std::thread::scope(|scope| {
            for paths in paths {
                let volume = self.scratch.volume();
                scope.spawn(move || {
                    block_on(work(volume.file_system().clone(), paths, step, synced));
                });
            }
        });
    }

    fn inside(&self, paths: Vec<Vec<(String, String)>>, step: MetadataStep, synced: bool) {
        let clients = paths.into_iter().map(|paths| {
            self.scratch.running().on_application(move |context| async move {
                let system =
                    FileSystem::new(context.clone(), Credentials::root(), context.random());
                work(system, paths, step, synced).await;
            })
        });
        for done in block_on(join_all(clients)) {
            done.expect("the machine runs");
        }
    }
}

/// What one client of the volume does.
async fn work<S: Spawn>(
    system: FileSystem<S>,
    paths: Vec<(String, String)>,
    step: MetadataStep,
    synced: bool,
) {
    let options = OpenOptions::new().write(true).create_new(true);
    for (path, directory) in paths {
        match step {
            MetadataStep::Create => {
                let file = system.open(&path, options).await.expect("there is room");
                if synced {
                    file.sync().await.expect("the disks are there");
                }
            }
            MetadataStep::Stat => {
                assert_eq!(system.metadata(&path).await.expect("it was made").size, 0);
            }
            MetadataStep::Remove => system.remove_file(&path).await.expect("it was made"),
        }
        if synced {
            system.sync_directory(&directory).await.expect("the disks are there");
        }
    }
}

/// The same by system calls.
#[allow(clippy::disallowed_methods, reason = "the other side of the comparison")]
fn locally(paths: Vec<Vec<(String, String)>>, step: MetadataStep, synced: bool) {
    let one = |(path, directory): (String, String)| {
        match step {
            MetadataStep::Create => {
                let file = File::create_new(&path).expect("there is room");
                if synced {
                    file.sync_all().expect("the disk is good");
                }
            }
            MetadataStep::Stat => {
                assert_eq!(std::fs::metadata(&path).expect("it was made").len(), 0);
            }
            MetadataStep::Remove => std::fs::remove_file(&path).expect("it was made"),
        }
        if synced {
            let directory = File::open(&directory).expect("it was made");
            directory.sync_all().expect("the disk is good");
        }
    };
    std::thread::scope(|scope| {
        for paths in paths {
            scope.spawn(move || paths.into_iter().for_each(one));
        }
    });
}

impl MetadataBenchRow {
    fn rate(&self, way: usize) -> f64 {
        median(self.rates[way].iter().copied())
    }

    /// The median of the ratios of the rounds: what both sides suffer in a round cancels out.
    fn to_local(&self, way: usize) -> f64 {
        median(self.rates[way].iter().zip(&self.rates[2]).map(|(ours, local)| ours / local))
    }

    fn line(&self) -> String {
        format!(
            "{:<48} {:>9.0} {:>9.0} {:>9.0}  {:>13.2} {:>12.2}",
            self.name,
            self.rate(0),
            self.rate(1),
            self.rate(2),
            self.to_local(0),
            self.to_local(1),
        )
    }
}
