//! Which regions each rank has.

use client::Regions;

/// Ranks, as many as the seeds have client nodes.
pub(crate) const RANKS: usize = 4;

/// One pattern.
pub(crate) struct ListPattern {
    pub(crate) name: &'static str,
    /// The lists of one rank: one for each dump.
    pub(crate) lists: fn(usize) -> Vec<Regions>,
    /// What the seeds report: how many times as fast list I/O with sieving by servers is as one
    /// call for each region, and as sieving by clients, to write and to read.
    pub(crate) seed: [&'static str; 2],
}

/// Wu, section 3.4.3 (no disk): against Multiple I/O 5.7 and 8.8, against ROMIO 5.7 and 1.18.
const TILE: [&str; 2] = ["5.7, 5.7", "8.8, 1.18"];
/// Wu, section 3.4.2: list I/O writes beat ROMIO 3.5 to 12.1 times; reads are in a figure only.
const COLUMN: [&str; 2] = ["-, 3.5..12.1", "-"];
/// Wu, table 3.2: I/O time of writes and reads together 14.4 s, 11.7 s and 2.1 s.
const BTIO: [&str; 2] = ["6.9, 5.6", "(both)"];

pub(crate) const EARNEST: &[ListPattern] = &[
    ListPattern { name: "tile, 3 B", lists: |rank| tile(rank, 3, 1024, 768), seed: TILE },
    ListPattern { name: "tile, 32 B", lists: |rank| tile(rank, 32, 1024, 768), seed: TILE },
    ListPattern { name: "column, 512", lists: |rank| column(rank, 512), seed: COLUMN },
    ListPattern { name: "column, 1024", lists: |rank| column(rank, 1024), seed: COLUMN },
    ListPattern { name: "column, 2048", lists: |rank| column(rank, 2048), seed: COLUMN },
    ListPattern { name: "column, 4096", lists: |rank| column(rank, 4096), seed: COLUMN },
    ListPattern { name: "column, 8192", lists: |rank| column(rank, 8192), seed: COLUMN },
    ListPattern { name: "BTIO class A", lists: |rank| btio(rank, 64, 40), seed: BTIO },
];

pub(crate) const TEST: &[ListPattern] = &[
    ListPattern { name: "tile, 3 B", lists: |rank| tile(rank, 3, 64, 48), seed: TILE },
    ListPattern { name: "tile, 32 B", lists: |rank| tile(rank, 32, 64, 48), seed: TILE },
    ListPattern { name: "column, 64", lists: |rank| column(rank, 64), seed: COLUMN },
    ListPattern { name: "BTIO, 16", lists: |rank| btio(rank, 16, 2), seed: BTIO },
];

/// mpi-tile-io: 2 x 2 tiles, each of `width` x `height` elements.
fn tile(rank: usize, element: u64, width: u64, height: u64) -> Vec<Regions> {
    let (row, column) = (rank as u64 / 2 * height, rank as u64 % 2 * width);
    let (array, part) = ([2 * height, 2 * width], [height, width]);
    vec![Regions::subarray(0, element, &array, &part, &[row, column]).expect("it is within")]
}

/// An array of n x n elements of 4 bytes, of which each rank has a quarter of the columns.
fn column(rank: usize, n: u64) -> Vec<Regions> {
    let first = rank as u64 * n / 4;
    vec![Regions::subarray(0, 4, &[n, n], &[n, n / 4], &[0, first]).expect("it is within")]
}

/// BTIO: dumps of a cube of n x n x n cells with 5 numbers of 8 bytes each, one after the other.
/// The ranks are a square of 2 x 2; each has as many blocks of the cube as the square is wide, one
/// in each layer (multi-partitioning, NAS Parallel Benchmarks). That each rank writes and reads 40
/// dumps of 2048 rows is what makes the 163,840 calls of the seed.
fn btio(rank: usize, n: u64, dumps: u64) -> Vec<Regions> {
    let (i, j) = (rank as u64 % 2, rank as u64 / 2);
    let half = n / 2;
    let dump = |number: u64| {
        let blocks = (0..2).map(|layer| {
            let first = [layer * half, (j + layer) % 2 * half, (i + layer) % 2 * half];
            let offset = number * n * n * n * 40;
            Regions::subarray(offset, 40, &[n; 3], &[half; 3], &first).expect("it is within")
        });
        Regions::join(blocks).expect("two patterns")
    };
    (0..dumps).map(dump).collect()
}
