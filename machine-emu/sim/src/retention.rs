//! Native clients that write without syncing, over crashes of single nodes: what was answered is
//! there after a sync, in its order, although the node that had it in memory has lost it.
//!
//! Some clients die, and what they had not synced may be lost. What a node could not order, since
//! it was lost in a second crash before it was sent again, is reported by a sync: then the file is
//! not looked at any more.

mod cells;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use client::{Cause, Credentials, File, FileSystem, OpenOptions, Regions};
use fileio::protocol::Error;
use futures::FutureExt as _;
use runtime::seed::Rng;

use self::cells::{CELL_BYTES, FileHistory};
use crate::harness::{Harness, PowerCut, WorkResult};
use crate::programs::{ClusterClient, ClusterSpawn, OperationFailure};

/// Cells of a file, at most.
const CELLS_MAX: usize = 192;
/// Cells of one write, at most.
const WRITE_CELLS_MAX: usize = 40;
/// Bytes of a record of the log: its client, its own number, and padding.
const RECORD_BYTES: usize = 700;
const LOG: &str = "/log";
/// Bytes that some clients keep, so that they have to commit now and then.
const KEPT_BYTES: usize = 96 << 10;

struct RetentionWorkload<'a> {
    harness: &'a Harness,
    clients: u32,
    files: Vec<RefCell<FileHistory>>,
    clock: Cell<u64>,
    version: Cell<u64>,
    /// Records of the log that must be there, in the order of each client.
    records: RefCell<Vec<[u64; 2]>>,
    /// A sync has reported losses of appends.
    log_is_lost: Cell<bool>,
    next_client: Cell<u64>,
    /// Restarts of nodes before the round.
    restarts_before: Cell<u64>,
}

/// Runs the workload to its end.
pub(crate) async fn run(harness: &Harness, clients: u32, rounds: u32, round_ms: u64) {
    harness.set_up().await;
    let mut rng = harness.fork_rng();
    let cells = |rng: &mut Rng| RefCell::new(FileHistory::new(8 + rng.index(CELLS_MAX - 8)));
    let workload = RetentionWorkload {
        harness,
        clients,
        files: (0..=rng.index(3)).map(|_| cells(&mut rng)).collect(),
        clock: Cell::new(1),
        version: Cell::new(1),
        records: RefCell::default(),
        log_is_lost: Cell::new(false),
        next_client: Cell::new(1),
        restarts_before: Cell::new(0),
    };
    for round in 0..rounds {
        workload.prepare(round).await;
        let working = (0..clients)
            .map(|number| workload.work(number, round, harness.fork_rng()).map(drop).boxed_local());
        // Nothing but single nodes crashes.
        let _ = harness.round(working.collect(), round_ms).await;
        harness.within_limit("a check", workload.check(round)).await;
    }
}

impl<'a> RetentionWorkload<'a> {
    fn path(file: usize, round: u32) -> String {
        format!("/file-{file}-{round}")
    }

    fn log_path(round: u32) -> String {
        format!("{LOG}-{round}")
    }

    /// New files for each round.
    async fn prepare(&self, round: u32) {
        let client = self.client(0, usize::MAX >> 1);
        let paths = (0..self.files.len()).map(|file| Self::path(file, round));
        for path in paths.chain([Self::log_path(round)]) {
            let made = client.must(|| client.system.create(&path)).await;
            made.unwrap_or_else(|PowerCut| panic!("the power stays on"));
        }
        let synced = client.must(|| client.system.sync()).await;
        synced.unwrap_or_else(|PowerCut| panic!("the power stays on"));
        self.restarts_before.set(self.harness.restarts());
        for file in &self.files {
            file.borrow_mut().clear();
        }
        self.records.borrow_mut().clear();
        self.log_is_lost.set(false);
    }

    fn client(&self, number: u32, kept_bytes: usize) -> ClusterClient<'a> {
        let context = self.harness.cluster.application(number);
        let mark = context.random();
        let machine = ClusterSpawn { context, planted: None };
        let system = FileSystem::new(machine, Credentials::root(), mark).retaining(kept_bytes);
        ClusterClient { system, number, harness: Some(self.harness) }
    }

    /// Restarts of nodes in this round.
    fn restarts(&self) -> u64 {
        self.harness.restarts() - self.restarts_before.get()
    }

    fn now(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    /// Programs on one host, one after the other: all but the last die.
    async fn work(&self, number: u32, round: u32, mut rng: Rng) -> WorkResult {
        loop {
            let kept_bytes = if rng.chance(1, 3) { KEPT_BYTES } else { 64 << 20 };
            let name = self.next_client.replace(self.next_client.get() + 1);
            let client = self.client(number, kept_bytes);
            let program = RetentionProgram::start(self, client, name, round).await?;
            let steps = if rng.chance(1, 3) { rng.below(60) } else { u64::MAX };
            for _ in 0..steps {
                if self.harness.is_over() {
                    return program.sync_all().await;
                }
                program.step(&mut rng).await?;
            }
            for file in &self.files {
                file.borrow_mut().die(name);
            }
            self.records.borrow_mut().retain(|record| record[0] != name);
        }
    }

    /// What is there when all have synced.
    async fn check(&self, round: u32) {
        let reader = self.client(0, 0);
        for (index, file) in self.files.iter().enumerate() {
            let path = Self::path(index, round);
            let read = reader.must(async || read_all(&reader, &path).await).await;
            let bytes = read.unwrap_or_else(|PowerCut| panic!("the power stays on"));
            file.borrow().check(&bytes, 0, None, self.clock.get(), index);
        }
        let read = reader.must(async || read_all(&reader, &Self::log_path(round)).await).await;
        let bytes = read.unwrap_or_else(|PowerCut| panic!("the power stays on"));
        let records: Vec<[u64; 2]> = bytes.chunks(RECORD_BYTES).map(record_of).collect();
        let mut seen = BTreeSet::new();
        for record in records.iter().filter(|record| record[1] > 0) {
            assert!(seen.insert(*record), "{record:?} was appended twice");
        }
        if self.log_is_lost.get() {
            return;
        }
        let mut places = Vec::new();
        for record in self.records.borrow().iter() {
            let place = records.iter().position(|found| found == record);
            let place = place.unwrap_or_else(|| panic!("{record:?} was appended and is not there"));
            places.push((record[0], place));
        }
        // Each client's own come in their order, unless another client's append has taken the place
        // of one that was lost.
        if self.clients > 1 && self.restarts() > 0 {
            return;
        }
        places.sort_by_key(|&(client, _)| client);
        let is_later = |pair: &[(u64, usize)]| pair[0].0 != pair[1].0 || pair[0].1 < pair[1].1;
        assert!(
            places.windows(2).all(is_later),
            "records of one client in another order: {places:?}"
        );
    }
}

async fn read_all(reader: &ClusterClient<'_>, path: &str) -> Result<Vec<u8>, client::Error> {
    let file = reader.system.open(path, OpenOptions::new().read(true)).await?;
    let mut bytes = vec![0; file.metadata().await?.size as usize];
    let length = file.read_at(0, &mut bytes).await?;
    bytes.truncate(length);
    Ok(bytes)
}

fn record_of(bytes: &[u8]) -> [u64; 2] {
    let word = |at: usize| {
        bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
    };
    [word(0), word(8)]
}

/// One program, until it dies or the round ends.
struct RetentionProgram<'a, 'b> {
    workload: &'b RetentionWorkload<'a>,
    client: ClusterClient<'a>,
    name: u64,
    /// Kept open: what was written through one of them is reported lost by its sync.
    files: Vec<File<ClusterSpawn>>,
    log: File<ClusterSpawn>,
}

/// How cells are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CellChange {
    Write,
    List,
    Punch,
    Cut,
}

impl<'a, 'b> RetentionProgram<'a, 'b> {
    async fn start(
        workload: &'b RetentionWorkload<'a>,
        client: ClusterClient<'a>,
        name: u64,
        round: u32,
    ) -> WorkResult<Self> {
        let mut files = Vec::new();
        for file in 0..workload.files.len() {
            let (path, options) =
                (RetentionWorkload::path(file, round), OpenOptions::new().read(true).write(true));
            files.push(client.must(|| client.system.open(&path, options)).await?);
        }
        let path = RetentionWorkload::log_path(round);
        let log = client.must(|| client.system.open(&path, OpenOptions::new().append(true)));
        let log = log.await?;
        Ok(Self { workload, client, name, files, log })
    }

    async fn step(&self, rng: &mut Rng) -> WorkResult {
        let file = rng.index(self.workload.files.len());
        match rng.below(24) {
            0..10 => self.change(file, CellChange::Write, rng).await,
            10..12 => self.change(file, CellChange::List, rng).await,
            12..14 => self.change(file, CellChange::Punch, rng).await,
            14 => self.change(file, CellChange::Cut, rng).await,
            15..18 => self.read(file, rng).await,
            18..20 => self.append().await,
            20 => self.sync(file).await,
            21 => self.sync_log().await,
            _ => {
                self.workload.harness.pass(std::time::Duration::from_millis(rng.below(400))).await;
                Ok(())
            }
        }
    }

    async fn change(&self, index: usize, kind: CellChange, rng: &mut Rng) -> WorkResult {
        let (workload, opened) = (self.workload, &self.files[index]);
        let file = &workload.files[index];
        let count = file.borrow().cells();
        let first = rng.index(count);
        let length = (1 + rng.index(WRITE_CELLS_MAX)).min(count - first);
        let cells: Vec<usize> = match kind {
            CellChange::Write | CellChange::Punch => (first..first + length).collect(),
            CellChange::List => (first..first + length).step_by(2).collect(),
            CellChange::Cut => (first..count).collect(),
        };
        let version = match kind {
            CellChange::Write | CellChange::List => {
                workload.version.set(workload.version.get() + 1);
                workload.version.get()
            }
            CellChange::Punch | CellChange::Cut => 0,
        };
        let is_durable = kind == CellChange::Cut;
        let change =
            file.borrow_mut().begin(&cells, version, self.name, is_durable, workload.now());
        let cell = version.to_le_bytes().repeat(CELL_BYTES / 8);
        let (offset, bytes) = ((first * CELL_BYTES) as u64, (length * CELL_BYTES) as u64);
        let changed = self.client.must(async || match kind {
            CellChange::Write => opened.write_at(offset, cell.repeat(length)).await,
            CellChange::List => {
                let region = |&place: &usize| ((place * CELL_BYTES) as u64, CELL_BYTES as u64);
                let regions = Regions::indexed(cells.iter().map(region));
                let regions = regions.unwrap_or_else(|error| panic!("{error}"));
                opened.write_list(&regions, cell.repeat(cells.len())).await
            }
            CellChange::Punch => opened.punch_hole(offset, bytes).await,
            CellChange::Cut => opened.set_len(offset).await,
        });
        changed.await?;
        file.borrow_mut().answered(&change, workload.now());
        Ok(())
    }

    /// Reads find at least what this program has written itself.
    async fn read(&self, index: usize, rng: &mut Rng) -> WorkResult {
        let workload = self.workload;
        let count = workload.files[index].borrow().cells();
        let first = rng.index(count);
        let length = 1 + rng.index(count - first);
        let begun = workload.now();
        let read = self.client.must(async || {
            let mut bytes = vec![0; length * CELL_BYTES];
            let read = self.files[index].read_at((first * CELL_BYTES) as u64, &mut bytes).await?;
            bytes.truncate(read);
            Ok(bytes)
        });
        let bytes = read.await?;
        if workload.restarts() > 1 {
            // What is lost for good is told by the next sync only.
            return Ok(());
        }
        let file = workload.files[index].borrow();
        file.check(&bytes, first, Some(self.name), begun, index);
        Ok(())
    }

    async fn append(&self) -> WorkResult {
        let workload = self.workload;
        workload.version.set(workload.version.get() + 1);
        let record = [self.name, workload.version.get()];
        let mut bytes: Vec<u8> = record.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize(RECORD_BYTES, 0);
        match self.log.append(bytes).await {
            Ok(_) => workload.records.borrow_mut().push(record),
            Err(error) => {
                // Whether it was done is not known; but the client has sent again what was lost.
                let is_lost = error.cause == Cause::FileIo(Error::LostWrites {});
                assert!(!is_lost || workload.restarts() > 1, "an append ends with {error}");
            }
        }
        if workload.harness.is_power_off() { Err(PowerCut) } else { Ok(()) }
    }

    async fn sync(&self, index: usize) -> WorkResult {
        if self.sync_file(&self.files[index]).await? {
            self.workload.files[index].borrow_mut().synced(self.name);
        } else {
            self.workload.files[index].borrow_mut().lose();
        }
        Ok(())
    }

    async fn sync_log(&self) -> WorkResult {
        if !self.sync_file(&self.log).await? {
            self.workload.log_is_lost.set(true);
        }
        Ok(())
    }

    /// False if writes were lost. That is excused if several nodes have crashed.
    async fn sync_file(&self, file: &File<ClusterSpawn>) -> WorkResult<bool> {
        let synced = self.client.ask(|| file.sync()).await;
        match synced {
            Ok(()) => Ok(true),
            Err(OperationFailure::Refused(Cause::FileIo(Error::LostWrites {}))) => {
                let restarts = self.workload.restarts();
                assert!(restarts > 1, "writes were lost after {restarts} restarts");
                Ok(false)
            }
            Err(failure) => failure.power_cut(),
        }
    }

    /// At the end of a round nothing is left to be sent again.
    async fn sync_all(&self) -> WorkResult {
        for index in 0..self.workload.files.len() {
            self.sync(index).await?;
        }
        self.sync_log().await
    }
}
