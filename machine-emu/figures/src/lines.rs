//! Figs. 4.3 and 4.4: the distributed cache, without disks and with them.

use std::time::Duration;

use bytes::Bytes;

use crate::bench::{CHUNKS, FigureBench, MachineSize, RunError, STRIPE, cache_of, write_stripe};
use crate::report::{Curve, FigureReport, Panel, Series};
use crate::{Figure, Profiles, Rig};

/// Nodes of the cache in Fig. 4.3.
pub(crate) const LINE_NODES: u32 = 32;

/// How often each client writes its line.
const REPEATS: u32 = 8;

/// Which line a client writes; the thesis does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineChoice {
    /// Each client has a region of five quarters of a stripe and writes where it begins.
    Regions,
    /// Client `i` writes stripe `i`.
    Plain,
}

impl LineChoice {
    fn stripe(self, client: u32) -> u64 {
        match self {
            Self::Regions => u64::from(client) * 5 / 4,
            Self::Plain => u64::from(client),
        }
    }
}

/// One experiment of Fig. 4.3.
#[derive(Clone, Copy, Debug)]
pub struct LinesExperiment {
    /// Nodes that write, each its own line again and again.
    pub clients: u32,
    /// Which line.
    pub map: LineChoice,
}

/// One experiment of Fig. 4.4.
#[derive(Clone, Copy, Debug)]
pub struct CacheExperiment {
    /// Nodes of the cache.
    pub cache_nodes: u32,
    /// Disk nodes.
    pub disk_nodes: u32,
    /// Nodes that write 4 MB between them, round robin.
    pub clients: u32,
}

/// Does one experiment of Fig. 4.3; how long each client took.
pub fn measure_lines(rig: &Rig, run: LinesExperiment) -> Result<Vec<Duration>, RunError> {
    let LinesExperiment { clients, map } = run;
    let bench =
        FigureBench::new(rig, MachineSize { fs_nodes: LINE_NODES, disk_nodes: 1, clients })?;
    bench.serve_caches();
    let (volume, data) = (&bench.map, Bytes::from(vec![0x5A; STRIPE as usize]));
    let (_, times) = bench.world.run(bench.time(clients, |context, client| {
        let (volume, data) = (volume.clone(), data.clone());
        async move {
            let cache = cache_of(&context, volume);
            let start = context.now();
            for _ in 0..REPEATS {
                write_stripe(&cache, map.stripe(client), data.clone()).await?;
            }
            Ok(context.now().saturating_sub(start))
        }
    }))?;
    Ok(times)
}

/// Does one experiment of Fig. 4.4; how long it took until the last write was answered.
pub fn measure_cache(rig: &Rig, run: CacheExperiment) -> Result<Duration, RunError> {
    let CacheExperiment { cache_nodes, disk_nodes, clients } = run;
    let bench = FigureBench::new(rig, MachineSize { fs_nodes: cache_nodes, disk_nodes, clients })?;
    bench.world.run(bench.serve_disks())?;
    bench.serve_caches();
    let (volume, data) = (&bench.map, Bytes::from(vec![0x5A; STRIPE as usize]));
    let (time, _) = bench.world.run(bench.time(clients, |context, client| {
        let (volume, data) = (volume.clone(), data.clone());
        async move {
            let cache = cache_of(&context, volume);
            for stripe in (u64::from(client)..CHUNKS).step_by(clients as usize) {
                write_stripe(&cache, stripe, data.clone()).await?;
            }
            Ok(())
        }
    }))?;
    Ok(time)
}

/// Loads of Fig. 4.3; around the first collision all of them.
const LOADS: [u32; 16] = [1, 2, 4, 8, 12, 16, 20, 24, 25, 26, 27, 28, 29, 30, 31, 32];

/// The slowest client's time over clients.
fn line_curve(rig: &Rig, series: Series, map: LineChoice, name: &str) -> Result<Curve, RunError> {
    let mut points = Vec::new();
    for clients in LOADS {
        let times = measure_lines(rig, LinesExperiment { clients, map })?;
        let slowest = times.into_iter().max().unwrap_or_default();
        points.push((f64::from(clients), slowest.as_secs_f64() / f64::from(REPEATS)));
    }
    Ok(Curve { series, name: name.to_owned(), points })
}

/// What the machine writes in all, as a share of what as many machines with one client would.
fn aggregate(rig: &Rig, clients: u32) -> Result<f64, RunError> {
    let alone = measure_lines(rig, LinesExperiment { clients: 1, map: LineChoice::Regions })?[0];
    let times = measure_lines(rig, LinesExperiment { clients, map: LineChoice::Regions })?;
    let rates = times.iter().map(|time| alone.as_secs_f64() / time.as_secs_f64());
    Ok(rates.sum::<f64>() / f64::from(clients))
}

/// Fig. 4.3.
pub(crate) fn lines(profiles: &Profiles) -> Result<FigureReport, RunError> {
    let Profiles { ideal, calibrated } = profiles;
    let curves = vec![
        line_curve(calibrated, Series::Calibrated, LineChoice::Regions, "calibrated")?,
        line_curve(
            calibrated,
            Series::Other,
            LineChoice::Plain,
            "calibrated, line i for client i",
        )?,
        line_curve(ideal, Series::Ideal, LineChoice::Regions, "ideal")?,
    ];
    let all = aggregate(calibrated, LINE_NODES)?;
    let notes = vec![
        "The plot of the thesis is lost; it says that the cache scales well to 24 clients and that \
         between 24 and 32 lines begin to share a node (the two marks)."
            .to_owned(),
        "Which client writes which line is not said. Regions of 1.25 stripes put the 27th client on the \
         node of the first; with line i for client i nothing would collide."
            .to_owned(),
        format!(
            "Time is the slowest client's. As a rate of all together 32 clients reach {all:.2} of 32 \
             times one."
        ),
        "The ideal cache puts a word away faster than a client sends it, so two clients share a node \
         with little loss."
            .to_owned(),
    ];
    let ticks = [1, 4, 8, 12, 16, 20, 24, 28, 32];
    Ok(FigureReport {
        figure: Figure::F43,
        title: "The cache alone: each client writes its own line again and again, 32 nodes"
            .to_owned(),
        x: "clients".to_owned(),
        y: "seconds for one line".to_owned(),
        x_is_log: false,
        y_is_log: false,
        ticks: ticks.map(|clients| (f64::from(clients), clients.to_string())).to_vec(),
        marks: vec![(24.0, "thesis: good to 24".to_owned()), (32.0, "shared by 32".to_owned())],
        stroke: None,
        panels: vec![Panel { title: String::new(), curves }],
        fitted: FigureReport::fitted_of(&calibrated.profile, &["node.receive_word"]),
        notes,
    })
}

/// Nodes of the cache, for each number of disk nodes.
const CACHE_NODES: [u32; 6] = [1, 2, 4, 8, 16, 32];

/// Disk nodes of Fig. 4.4.
const DISK_NODES: [u32; 4] = [1, 2, 4, 8];

/// Clients of Fig. 4.4.
const CACHE_CLIENTS: [u32; 4] = [1, 2, 4, 8];

fn places() -> impl Iterator<Item = (f64, u32, u32)> {
    let pairs = DISK_NODES.into_iter().flat_map(|disk_nodes| {
        CACHE_NODES.into_iter().map(move |cache_nodes| (cache_nodes, disk_nodes))
    });
    (0..)
        .zip(pairs)
        .map(|(place, (cache_nodes, disk_nodes))| (f64::from(place), cache_nodes, disk_nodes))
}

fn cache_curves(rig: &Rig, series: Series) -> Result<Vec<Curve>, RunError> {
    let mut curves = Vec::new();
    for clients in CACHE_CLIENTS {
        let mut points = Vec::new();
        for (place, cache_nodes, disk_nodes) in places() {
            let time = measure_cache(rig, CacheExperiment { cache_nodes, disk_nodes, clients })?;
            points.push((place, time.as_secs_f64()));
        }
        let name = if clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") };
        curves.push(Curve { series, name, points });
    }
    Ok(curves)
}

/// Fig. 4.4.
pub(crate) fn cache(profiles: &Profiles) -> Result<FigureReport, RunError> {
    let lines = profiles.calibrated.profile.numbers().node.lines.value;
    let notes = vec![
        "The plot of the thesis is lost; it says that time generally falls with nodes and clients until \
         disks or network are saturated."
            .to_owned(),
        "Time ends when the last write is answered, not when all is on the disks; whether the thesis \
         waited for that is not known."
            .to_owned(),
        format!(
            "A node of the cache holds {lines} stripes and writes back when half of them are dirty: with \
             {:.0} nodes and more all 64 stripes fit, and the disks no longer matter.",
            (CHUNKS as f64 / lines).ceil()
        ),
        "From there on the clients are the limit, so more nodes change nothing. Before, while the disks are \
         saturated, more clients and more nodes that write back are refused more often, which delays the \
         disk nodes as in Fig. 4.1."
            .to_owned(),
    ];
    let tick = |(place, cache_nodes, disk_nodes)| (place, format!("{cache_nodes}/{disk_nodes}"));
    Ok(FigureReport {
        figure: Figure::F44,
        title: "The cache with disks: 4 MB written round robin".to_owned(),
        x: "nodes of the cache / disk nodes".to_owned(),
        y: "seconds".to_owned(),
        x_is_log: false,
        y_is_log: true,
        ticks: places().map(tick).collect(),
        marks: Vec::new(),
        stroke: Some(CACHE_NODES.len()),
        panels: vec![
            Panel {
                title: "calibrated".to_owned(),
                curves: cache_curves(&profiles.calibrated, Series::Calibrated)?,
            },
            Panel {
                title: "ideal".to_owned(),
                curves: cache_curves(&profiles.ideal, Series::Ideal)?,
            },
        ],
        fitted: FigureReport::fitted_of(
            &profiles.calibrated.profile,
            &["node.receive_word", "disk_node.copy", "disk_node.buffers"],
        ),
        notes,
    })
}
