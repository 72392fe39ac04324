//! The crashes that were possible in a recorded run: where, and what of the unflushed writes was
//! left.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use machine_emu::{DiskEvent, SECTOR_SIZE};
use runtime::hash::xxh3;
use runtime::seed::Rng;

use super::volume::{DiskImages, RecordedRun, WorkloadMark};

/// With more subsets of the unflushed writes than this some are drawn.
pub(super) const SUBSETS_MAX: usize = 4_096;

/// How far the workload had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WorkloadStage {
    /// Operations begun.
    pub(super) begun: usize,
    /// Operations answered.
    pub(super) answered: usize,
    /// No request came for the time after which everything is durable.
    pub(super) rested: bool,
}

/// What a power cut made of one unflushed write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteFate {
    Lost,
    Whole,
    /// Its sector `i` is there if bit `i` is one; from the 64th on the bits begin anew.
    Torn(u64),
}

impl WriteFate {
    fn keeps(self, sector: usize) -> bool {
        match self {
            Self::Lost => false,
            Self::Whole => true,
            Self::Torn(sectors) => sectors >> (sector % 64) & 1 == 1,
        }
    }

    pub(super) fn text(self) -> String {
        match self {
            Self::Lost => "0".to_owned(),
            Self::Whole => "1".to_owned(),
            Self::Torn(sectors) => format!("t{sectors:x}"),
        }
    }

    pub(super) fn from_text(text: &str) -> Option<Self> {
        match text {
            "0" => Some(Self::Lost),
            "1" => Some(Self::Whole),
            _ => u64::from_str_radix(text.strip_prefix('t')?, 16).ok().map(Self::Torn),
        }
    }
}

/// A write that no flush has covered yet.
#[derive(Clone, Debug)]
pub(super) struct Unflushed {
    pub(super) disk: u32,
    pub(super) offset: u64,
    pub(super) data: Bytes,
    /// For each sector its place in the list of all sectors that unflushed writes touch, and a
    /// hash of place and content.
    sectors: Vec<(usize, u64)>,
}

/// A moment at which the power may go.
#[derive(Debug)]
pub(super) struct Point {
    pub(super) stage: WorkloadStage,
    /// In the order in which they were begun.
    pub(super) unflushed: Vec<Unflushed>,
    /// What is durable.
    disks: DiskImages,
    /// Hashes of the sectors that unflushed writes touch, as they are without these.
    below: Vec<u64>,
    /// Of all sectors: the sum of all hashes, less that of the volume before the workload.
    hash: u64,
}

/// Of a sector at its place. The sum over all sectors identifies an image.
fn hash_of(disk: u32, sector: u64, content: &[u8]) -> u64 {
    let place = (sector << 8 | u64::from(disk)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = u128::from(xxh3(content) ^ place) * u128::from(place | 1);
    (mixed >> 64) as u64 ^ mixed as u64
}

fn sectors_of(offset: u64, data: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    assert!(offset.is_multiple_of(SECTOR_SIZE), "a write begins within a sector");
    (offset / SECTOR_SIZE..).zip(data.chunks(SECTOR_SIZE as usize))
}

impl Point {
    fn new(
        stage: WorkloadStage,
        disks: DiskImages,
        hash: u64,
        writes: Vec<(u32, u64, Bytes)>,
    ) -> Self {
        let mut places: BTreeMap<(u32, u64), usize> = BTreeMap::new();
        let mut below = Vec::new();
        let mut unflushed = Vec::new();
        for (disk, offset, data) in writes {
            let mut sectors = Vec::new();
            for (sector, content) in sectors_of(offset, &data) {
                let place = *places.entry((disk, sector)).or_insert_with(|| {
                    let old = disks[disk as usize].read(sector * SECTOR_SIZE, content.len());
                    below.push(hash_of(disk, sector, &old));
                    below.len() - 1
                });
                sectors.push((place, hash_of(disk, sector, content)));
            }
            unflushed.push(Unflushed { disk, offset, data, sectors });
        }
        Self { stage, unflushed, disks, below, hash }
    }

    /// The hash of the image that these fates leave. `sectors` is room to work in.
    pub(super) fn hash(&self, fates: &[WriteFate], sectors: &mut Vec<u64>) -> u64 {
        sectors.clone_from(&self.below);
        for (write, &fate) in self.unflushed.iter().zip(fates) {
            for (number, &(place, hash)) in write.sectors.iter().enumerate() {
                if fate.keeps(number) {
                    sectors[place] = hash;
                }
            }
        }
        let changed = sectors.iter().zip(&self.below);
        changed.fold(self.hash, |sum, (new, old)| sum.wrapping_add(new.wrapping_sub(*old)))
    }

    /// The disks that these fates leave.
    pub(super) fn image(&self, fates: &[WriteFate]) -> DiskImages {
        let mut disks = self.disks.clone();
        for (write, &fate) in self.unflushed.iter().zip(fates) {
            let disk = &mut disks[write.disk as usize];
            match fate {
                WriteFate::Lost => {}
                WriteFate::Whole => disk.write(write.offset, &write.data),
                WriteFate::Torn(_) => {
                    for (number, (sector, content)) in
                        sectors_of(write.offset, &write.data).enumerate()
                    {
                        if fate.keeps(number) {
                            disk.write(sector * SECTOR_SIZE, content);
                        }
                    }
                }
            }
        }
        disks
    }

    /// Some subsets had to be drawn.
    pub(super) fn is_sampled(&self) -> bool {
        1_usize.checked_shl(self.unflushed.len() as u32).is_none_or(|all| all > SUBSETS_MAX)
    }

    /// What may be left: every subset of the writes (or a sample drawn from `rng`), and each write
    /// torn, with all others whole and with all others lost.
    pub(super) fn fates(&self, rng: &mut Rng) -> Vec<Vec<WriteFate>> {
        let count = self.unflushed.len();
        let pick = |keep: &dyn Fn(usize) -> bool| -> Vec<WriteFate> {
            (0..count).map(|i| if keep(i) { WriteFate::Whole } else { WriteFate::Lost }).collect()
        };
        let mut fates = Vec::new();
        if self.is_sampled() {
            fates.extend([pick(&|_| false), pick(&|_| true)]);
            for one in 0..count {
                fates.extend([pick(&|i| i == one), pick(&|i| i != one), pick(&|i| i <= one)]);
            }
            while fates.len() < SUBSETS_MAX {
                let odds = 1 + rng.below(7);
                let kept: Vec<bool> = (0..count).map(|_| rng.chance(odds, 8)).collect();
                fates.push(pick(&|i| kept[i]));
            }
        } else {
            fates.extend((0..1_usize << count).map(|subset| pick(&|i| subset >> i & 1 == 1)));
        }
        for (torn, write) in self.unflushed.iter().enumerate() {
            for sectors in tears(write.sectors.len(), rng) {
                for others in [WriteFate::Whole, WriteFate::Lost] {
                    let mut one = vec![others; count];
                    one[torn] = WriteFate::Torn(sectors);
                    fates.push(one);
                    if count == 1 {
                        break;
                    }
                }
            }
        }
        fates
    }
}

/// How a write of `sectors` sectors may be torn: for a block every prefix and every
/// suffix, for larger ones some of them; every other sector; and one that is drawn.
fn tears(sectors: usize, rng: &mut Rng) -> Vec<u64> {
    let length = sectors.min(64);
    if length < 2 {
        return Vec::new();
    }
    let all = u64::MAX >> (64 - length);
    let step = length.div_ceil(8);
    let mut tears: Vec<u64> = Vec::new();
    for cut in (1..length).step_by(step) {
        let prefix = all >> (length - cut);
        tears.extend([prefix, all & !prefix]);
    }
    tears.extend([0x5555_5555_5555_5555 & all, 0xAAAA_AAAA_AAAA_AAAA & all, rng.bits() & all]);
    tears
}

/// Goes through a recorded run, from crash to crash.
pub(super) struct Crashes<'a> {
    recorded: &'a RecordedRun,
    disks: DiskImages,
    hash: u64,
    /// Events that are writes which no flush has covered.
    unflushed: BTreeSet<usize>,
    stage: WorkloadStage,
    event: usize,
    mark: usize,
    first_mark: usize,
    /// The last point was drawn from: what is possible after its flush may have been missed.
    look_after: bool,
}

impl<'a> Crashes<'a> {
    /// The crashes of a run on `disks`, after the first `first_mark` marks.
    pub(super) fn new(recorded: &'a RecordedRun, disks: DiskImages, first_mark: usize) -> Self {
        Self {
            recorded,
            disks,
            hash: 0,
            unflushed: BTreeSet::new(),
            stage: WorkloadStage { begun: 0, answered: 0, rested: false },
            event: 0,
            mark: 0,
            first_mark,
            look_after: false,
        }
    }

    fn point(&self) -> Point {
        let writes = self.unflushed.iter().map(|&event| self.write_at(event)).collect();
        Point::new(self.stage, self.disks.clone(), self.hash, writes)
    }

    fn write_at(&self, event: usize) -> (u32, u64, Bytes) {
        match &self.recorded.events[event] {
            DiskEvent::Write { disk, offset, data } => (*disk, *offset, data.clone()),
            DiskEvent::Flushed { .. } => unreachable!("only writes are flushed"),
        }
    }

    fn make_durable(&mut self, event: usize) {
        let (disk, offset, data) = self.write_at(event);
        let image = &mut self.disks[disk as usize];
        for (sector, content) in sectors_of(offset, &data) {
            let old = image.read(sector * SECTOR_SIZE, content.len());
            self.hash = self.hash.wrapping_add(
                hash_of(disk, sector, content).wrapping_sub(hash_of(disk, sector, &old)),
            );
        }
        image.write(offset, &data);
        self.unflushed.remove(&event);
    }

    /// True if a crash here is looked at.
    fn pass_mark(&mut self, mark: WorkloadMark) -> bool {
        self.mark += 1;
        match mark {
            WorkloadMark::Mounted => {}
            WorkloadMark::Begun => self.stage.begun += 1,
            WorkloadMark::Answered => self.stage.answered += 1,
            WorkloadMark::Rested => self.stage.rested = true,
        }
        mark != WorkloadMark::Begun && self.mark > self.first_mark
    }
}

/// Points are right before a flush takes effect, after an answer, and at the end. Right after a
/// flush nothing is possible that is not possible right before it; that is a point only if not all
/// was looked at there.
impl Iterator for Crashes<'_> {
    type Item = Point;

    fn next(&mut self) -> Option<Point> {
        loop {
            if std::mem::take(&mut self.look_after) {
                return Some(self.point());
            }
            if let Some(&(at, mark)) = self.recorded.marks.get(self.mark)
                && at <= self.event
            {
                if self.pass_mark(mark) {
                    return Some(self.point());
                }
                continue;
            }
            let event = self.event;
            self.event += 1;
            match self.recorded.events.get(event)? {
                DiskEvent::Write { .. } => {
                    self.unflushed.insert(event);
                }
                DiskEvent::Flushed { writes, .. } => {
                    let looked_at = !writes.is_empty() && self.mark >= self.first_mark;
                    let point = looked_at.then(|| self.point());
                    for &write in writes {
                        self.make_durable(write);
                    }
                    if let Some(point) = point {
                        self.look_after = point.is_sampled();
                        return Some(point);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use machine_emu::{World, WorldShape};
    use runtime::seed::with_seed;

    use super::*;

    const LENGTH: usize = 64 << 10;

    fn disks() -> DiskImages {
        let world = World::new(1, WorldShape { fs_nodes: 0, disk_nodes: 1 });
        let paths = ["a", "b"];
        for path in paths {
            world.create_used_disk(path, LENGTH as u64);
        }
        paths.map(|path| world.disk(path).snapshot()).to_vec()
    }

    fn any_write(rng: &mut Rng) -> DiskEvent {
        let sectors = 1 + rng.below(9);
        let offset = rng.below(16) * SECTOR_SIZE;
        let value = rng.below(2) as u8;
        let data = vec![value; (sectors * SECTOR_SIZE) as usize].into();
        DiskEvent::Write { disk: rng.below(2) as u32, offset, data }
    }

    fn bytes(disks: &DiskImages) -> Vec<Vec<u8>> {
        disks.iter().map(|disk| disk.read(0, LENGTH)).collect()
    }

    /// Writes, some of them flushed in order.
    fn any_events(rng: &mut Rng) -> Vec<DiskEvent> {
        let mut events: Vec<DiskEvent> = Vec::new();
        let mut flushed = 0;
        for _ in 0..20 {
            events.push(any_write(rng));
            if rng.chance(1, 5) {
                let of_disk_0 =
                    |event: &DiskEvent| matches!(event, DiskEvent::Write { disk: 0, .. });
                let writes = (flushed..events.len()).filter(|&i| of_disk_0(&events[i])).collect();
                flushed = events.len();
                events.push(DiskEvent::Flushed { disk: 0, writes });
            }
        }
        events
    }

    #[test]
    fn images_have_the_same_hash_exactly_if_they_have_the_same_bytes() {
        with_seed(|rng| {
            let events = any_events(rng);
            let marks = vec![(events.len(), WorkloadMark::Rested)];
            let recorded = RecordedRun { events, marks, done: Vec::new() };
            let mut images: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
            let mut room = Vec::new();
            for point in Crashes::new(&recorded, disks(), 0) {
                for fates in point.fates(rng).into_iter().step_by(31) {
                    let image = bytes(&point.image(&fates));
                    let hash = point.hash(&fates, &mut room);
                    assert!(*images.entry(hash).or_insert_with(|| image.clone()) == image);
                }
            }
            let mut distinct: Vec<_> = images.values().collect();
            distinct.sort_unstable();
            distinct.dedup();
            assert_eq!(distinct.len(), images.len());
        });
    }

    #[test]
    fn up_to_twelve_writes_have_every_subset_and_more_a_sample() {
        let write = |number: u64| DiskEvent::Write {
            disk: 0,
            offset: number * SECTOR_SIZE,
            data: vec![number as u8; SECTOR_SIZE as usize].into(),
        };
        for (count, expected) in [(0, 1), (1, 2), (3, 8), (12, 4096), (13, 4096)] {
            let events: Vec<DiskEvent> = (0..count).map(write).collect();
            let marks = vec![(events.len(), WorkloadMark::Rested)];
            let recorded = RecordedRun { events, marks, done: Vec::new() };
            let point = Crashes::new(&recorded, disks(), 0).next().expect("the end is a point");
            assert_eq!(point.fates(&mut Rng::new(1)).len(), expected, "of {count} writes");
            assert_eq!(point.is_sampled(), count > 12);
        }
    }

    #[test]
    fn a_block_is_torn_after_each_of_its_sectors() {
        let tears = tears(8, &mut Rng::new(1));
        for cut in 1..8 {
            let prefix = (1 << cut) - 1;
            assert!(tears.contains(&prefix) && tears.contains(&(0xFF & !prefix)));
        }
        assert!(super::tears(1, &mut Rng::new(1)).is_empty(), "a sector is never torn");
    }

    #[test]
    fn a_fate_is_read_back_from_its_text() {
        for fate in [
            WriteFate::Lost,
            WriteFate::Whole,
            WriteFate::Torn(0),
            WriteFate::Torn(u64::MAX),
            WriteFate::Torn(0x5A),
        ] {
            assert_eq!(WriteFate::from_text(&fate.text()), Some(fate));
        }
        assert_eq!(WriteFate::from_text("x"), None);
    }
}
