//! Fig. 4.5: the whole file system. Clients write eight files of 64 KB in pieces of 2 KB.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use client::{Credentials, FileSystem};
use runtime::{Context, NodeId};

use crate::bench::{FigureBench, MachineSize, RunError, STRIPE};
use crate::exclusive::{AllocationServer, Allocator, Give, Take};
use crate::report::{Curve, FigureReport, Panel, Series};
use crate::{Figure, Profiles, Rig};

/// Files of one experiment.
const FILES: u32 = 8;

/// Bytes of one write.
const PIECE: u32 = 2 << 10;

/// What the table of the thesis says: clients and seconds.
pub(crate) const SECONDS: [(u32, f64); 3] = [(1, 2.421), (2, 2.579), (4, 2.547)];

/// File-system nodes: the plane next to the disks, but for one. With all 64 the first stripes of
/// every node's space would be cached by the same few nodes, since its groups have 64 stripes.
const FS_NODES: u32 = 63;

/// Disk nodes; nothing waits for a disk here.
const DISK_NODES: u32 = 8;

/// The node with the free list.
const ALLOCATOR: NodeId = NodeId::fs(0);

/// How blocks are allocated and names found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// One client at a time, as in the thesis.
    Exclusive,
    /// Each node has space of its own and names are hashed, as today.
    Own,
}

/// One experiment.
#[derive(Clone, Copy, Debug)]
pub struct FilesExperiment {
    /// Nodes that write the eight files between them.
    pub clients: u32,
    /// How blocks are allocated.
    pub allocation: Allocation,
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub struct FilesResult {
    /// How long it took.
    pub time: Duration,
    /// Of the clients' time, the share in which they waited for the allocator.
    pub waited: f64,
}

/// Does one experiment, and reads every file back.
pub fn measure_files(rig: &Rig, run: FilesExperiment) -> Result<FilesResult, RunError> {
    let FilesExperiment { clients, allocation } = run;
    let layout = MachineSize { fs_nodes: FS_NODES, disk_nodes: DISK_NODES, clients };
    let bench = FigureBench::new(rig, layout)?;
    bench.world.run(bench.serve_files())?;
    bench.world.context(ALLOCATOR).serve::<Allocator>(Rc::new(AllocationServer::default()));
    let exclusive_ms = rig.profile.numbers().file.exclusive.value;
    let exclusive = Duration::from_nanos((exclusive_ms * 1e6) as u64);
    let (time, waits) = bench.world.run(bench.time(clients, |context, client| async move {
        let files = FileSystem::new(context.clone(), Credentials::root(), u64::from(client));
        let mut gate = AllocationGate { context, allocation, exclusive, waited: Duration::ZERO };
        for file in (client..FILES).step_by(clients as usize) {
            write_file(&files, &mut gate, file).await?;
        }
        Ok(gate.waited)
    }))?;
    bench.world.run(bench.time(1, |context, _| async move {
        let files = FileSystem::new(context, Credentials::root(), u64::from(FILES));
        for file in 0..FILES {
            let opened = files.open(path(file), client::OpenOptions::new().read(true)).await?;
            let parts = opened.read_bytes_at(0, 2 * STRIPE as usize).await?;
            assert!(parts.concat() == content(file), "{} is not what was written", path(file));
        }
        Ok(())
    }))?;
    let waited: Duration = waits.iter().sum();
    let all = time.as_secs_f64() * f64::from(clients);
    Ok(FilesResult { time, waited: waited.as_secs_f64() / all })
}

fn path(file: u32) -> String {
    format!("/checkpoint-{file}")
}

fn content(file: u32) -> Vec<u8> {
    (0..STRIPE).map(|at| (at / 7 + at + file) as u8).collect()
}

/// What a client passes before it changes anything.
struct AllocationGate {
    context: Context,
    allocation: Allocation,
    /// How long each write holds what is exclusive, besides its own work.
    exclusive: Duration,
    waited: Duration,
}

impl AllocationGate {
    async fn enter(&mut self, work: Duration) -> Result<(), RunError> {
        if self.allocation == Allocation::Own {
            return Ok(());
        }
        let start = self.context.now();
        self.context.spawn(ALLOCATOR, Take {}).await?;
        self.waited += self.context.now().saturating_sub(start);
        self.context.sleep(work).await;
        Ok(())
    }

    async fn leave(&self) -> Result<(), RunError> {
        if self.allocation == Allocation::Exclusive {
            self.context.spawn(ALLOCATOR, Give {}).await?;
        }
        Ok(())
    }
}

async fn write_file(
    files: &FileSystem<Context>,
    gate: &mut AllocationGate,
    file: u32,
) -> Result<(), RunError> {
    gate.enter(Duration::ZERO).await?;
    let created = files.create(path(file)).await;
    gate.leave().await?;
    let (created, content) = (created?, Bytes::from(content(file)));
    for at in (0..STRIPE).step_by(PIECE as usize) {
        let piece = content.slice(at as usize..(at + PIECE) as usize);
        gate.enter(gate.exclusive).await?;
        let written = created.write_at(u64::from(at), piece).await;
        gate.leave().await?;
        written?;
    }
    Ok(())
}

/// Time over clients.
fn curve(
    rig: &Rig,
    (series, name): (Series, &str),
    allocation: Allocation,
) -> Result<Curve, RunError> {
    let mut points = Vec::new();
    for (clients, _) in SECONDS {
        let written = measure_files(rig, FilesExperiment { clients, allocation })?;
        points.push((f64::from(clients), written.time.as_secs_f64()));
    }
    Ok(Curve { series, name: name.to_owned(), points })
}

/// Fig. 4.5.
pub(crate) fn files(profiles: &Profiles) -> Result<FigureReport, RunError> {
    let Profiles { ideal, calibrated } = profiles;
    let points = SECONDS.map(|(clients, seconds)| (f64::from(clients), seconds)).to_vec();
    let thesis = Curve { series: Series::Thesis, name: "thesis".to_owned(), points };
    let old = (Series::Calibrated, "calibrated, exclusive allocator");
    let own = (Series::Other, "calibrated, today's allocator");
    let curves = vec![
        thesis,
        curve(calibrated, old, Allocation::Exclusive)?,
        curve(calibrated, own, Allocation::Own)?,
        curve(ideal, (Series::Ideal, "ideal, today's allocator"), Allocation::Own)?,
    ];
    let speed_up = curves[2].points[0].1 / curves[2].points[2].1;
    let run = FilesExperiment { clients: 4, allocation: Allocation::Exclusive };
    let waited = measure_files(calibrated, run)?.waited;
    let notes = vec![
        "Fitted is the time with one client; those with two and four are predicted.".to_owned(),
        format!(
            "With the exclusive allocator four clients spend {:.0} % of their time waiting for it; \
             with today's they are {speed_up:.1} times as fast as one.",
            waited * 100.0
        ),
        "Here the whole write is exclusive, not its allocation alone: the thesis' times do not fall with \
         clients, so next to nothing of a write can have gone beside another. Of two clients that take \
         turns each waits for half of its time at most."
            .to_owned(),
        "Nothing is flushed within the time; whether the thesis flushed is not known. Its 302.6 ms \
         for a file of 64 KB are within 1.2 % of the 306 ms that block I/O takes for as much, \
         probably by chance."
            .to_owned(),
    ];
    Ok(FigureReport {
        figure: Figure::F45,
        title: "The file system: eight files of 64 KB written in pieces of 2 KB".to_owned(),
        x: "clients".to_owned(),
        y: "seconds".to_owned(),
        x_is_log: true,
        y_is_log: false,
        ticks: SECONDS.map(|(clients, _)| (f64::from(clients), clients.to_string())).to_vec(),
        marks: Vec::new(),
        stroke: None,
        panels: vec![Panel { title: String::new(), curves }],
        fitted: FigureReport::fitted_of(&calibrated.profile, &["file.exclusive"]),
        notes,
    })
}
