//! The oracle of files: what each block, and the size, may be.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use fileio::regions::{Region, Regions};

use super::versions::Versions;

/// The block of files, in bytes: what is atomic.
pub(super) const BLOCK: u64 = blockio::BLOCK_SIZE as u64;

pub(super) type Block = Rc<[u8]>;

/// Sizes that a file may have. Several writers may lengthen it at the same time.
#[derive(Clone, Debug)]
struct Sizes {
    /// The least size, unless the file is truncated.
    acknowledged: u64,
    /// The greatest size.
    issued: u64,
    /// What may be found after a crash; and whether its writer has been answered.
    after_crash: Vec<(u64, bool)>,
    /// Where writes ended since the file was settled: it may end there if earlier ones were lost.
    ends: Vec<u64>,
    /// Writes that may be done in part, for which the file may end anywhere in these: by their
    /// places among those above.
    steps: Vec<(usize, Range<u64>)>,
}

impl Sizes {
    fn flushed(size: u64) -> Self {
        Self {
            acknowledged: size,
            issued: size,
            after_crash: vec![(size, true)],
            ends: Vec::new(),
            steps: Vec::new(),
        }
    }

    fn is_possible(&self, size: u64) -> bool {
        self.after_crash.iter().any(|&(possible, _)| possible == size)
            || self.steps.iter().any(|(_, sizes)| sizes.contains(&size))
    }
}

/// What one file may hold.
#[derive(Clone, Debug)]
pub(super) struct ExpectedContent {
    blocks: Vec<Versions<Block>>,
    sizes: Sizes,
}

/// A write or cut under way.
#[derive(Debug)]
pub(super) struct Issued {
    blocks: Vec<(usize, usize)>,
    size: u64,
    size_entry: usize,
    cuts: bool,
}

/// A moment: what was acknowledged then.
#[derive(Debug)]
pub(super) struct Moment {
    blocks: Vec<usize>,
    size: u64,
    /// The greatest size that a write before the loss may have left.
    size_max: u64,
    size_entries: usize,
    unanswered: Vec<usize>,
}

impl ExpectedContent {
    /// An empty file that never has more than `blocks` blocks.
    pub(super) fn new(blocks: usize) -> Self {
        let empty: Block = Rc::from(vec![0; BLOCK as usize]);
        Self { blocks: vec![Versions::new(empty); blocks], sizes: Sizes::flushed(0) }
    }

    /// Bytes that a look which began at `moment` may have found, at least and at most.
    pub(super) fn sizes(&self, moment: &Moment) -> (u64, u64) {
        (moment.size, self.sizes.issued.max(moment.size_max))
    }

    /// Bytes that the file has at least and at most.
    pub(super) fn size(&self) -> (u64, u64) {
        (self.sizes.acknowledged, self.sizes.issued)
    }

    /// A write begins.
    pub(super) fn issue_write(&mut self, offset: u64, data: &[u8]) -> Issued {
        let whole = Regions::contiguous(offset, data.len() as u64);
        self.issue_list(&whole.expect("a part of a small file"), data)
    }

    /// A write of the packed bytes `data` to regions begins; later ones lie over earlier ones.
    pub(super) fn issue_list(&mut self, regions: &Regions, data: &[u8]) -> Issued {
        let mut changed: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        for Region { offset, position, length } in regions.walk(0..u64::MAX) {
            let (end, data) = (offset + length, &data[position as usize..]);
            for index in blocks_of(offset..end) {
                let start = index as u64 * BLOCK;
                let (from, to) = (offset.max(start), end.min(start + BLOCK));
                let block = changed.entry(index);
                let block = block.or_insert_with(|| self.blocks[index].last().to_vec());
                block[(from - start) as usize..(to - start) as usize]
                    .copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize]);
            }
        }
        let issue =
            |(index, block): (usize, Vec<u8>)| (index, self.blocks[index].issue(block.into()));
        let blocks = changed.into_iter().map(issue).collect();
        let size = regions.end().max(self.sizes.acknowledged);
        self.sizes.ends.push(regions.end());
        self.issue(blocks, size, false)
    }

    /// The write that has just begun may be done in part; then the file ends with that part.
    pub(super) fn in_steps(&mut self, issued: &Issued) {
        self.sizes.steps.push((issued.size_entry, self.sizes.acknowledged..issued.size));
    }

    /// A truncation or extension begins; there is no other writer.
    pub(super) fn issue_cut(&mut self, size: u64) -> Issued {
        let mut blocks = Vec::new();
        for index in (size / BLOCK) as usize..self.blocks.len() {
            let mut block = self.blocks[index].last().to_vec();
            let kept = size.saturating_sub(index as u64 * BLOCK).min(BLOCK) as usize;
            block[kept..].fill(0);
            if block[..] != self.blocks[index].last()[..] {
                blocks.push((index, self.blocks[index].issue(block.into())));
            }
        }
        self.issue(blocks, size, true)
    }

    /// A hole of `length` bytes is begun; there is no other writer.
    pub(super) fn issue_punch(&mut self, offset: u64, length: u64) -> Issued {
        let mut blocks = Vec::new();
        for index in blocks_of(offset..offset + length) {
            let start = index as u64 * BLOCK;
            let (from, to) = (offset.max(start), (offset + length).min(start + BLOCK));
            let mut block = self.blocks[index].last().to_vec();
            block[(from - start) as usize..(to - start) as usize].fill(0);
            if block[..] != self.blocks[index].last()[..] {
                blocks.push((index, self.blocks[index].issue(block.into())));
            }
        }
        let size = self.sizes.acknowledged;
        self.issue(blocks, size, false)
    }

    fn issue(&mut self, blocks: Vec<(usize, usize)>, size: u64, cuts: bool) -> Issued {
        self.sizes.issued = self.sizes.issued.max(size);
        self.sizes.after_crash.push((size, false));
        Issued { blocks, size, size_entry: self.sizes.after_crash.len() - 1, cuts }
    }

    /// It was answered well.
    pub(super) fn acknowledge(&mut self, issued: &Issued) {
        for &(index, number) in &issued.blocks {
            self.blocks[index].acknowledge(number);
        }
        let sizes = &mut self.sizes;
        if issued.cuts {
            (sizes.acknowledged, sizes.issued) = (issued.size, issued.size);
        } else {
            sizes.acknowledged = sizes.acknowledged.max(issued.size);
        }
        if let Some(entry) = sizes.after_crash.get_mut(issued.size_entry) {
            entry.1 = true;
        }
    }

    /// It was answered well, and is durable by itself.
    pub(super) fn acknowledge_durable(&mut self, issued: &Issued) {
        self.acknowledge(issued);
        self.durable(issued);
    }

    /// What it wrote is durable; of the size nothing is known.
    pub(super) fn durable(&mut self, issued: &Issued) {
        for &(index, number) in &issued.blocks {
            self.blocks[index].durable(number);
        }
    }

    /// A read, or a commit, begins.
    pub(super) fn moment(&self) -> Moment {
        let unanswered = (0..).zip(&self.sizes.after_crash).filter(|(_, (_, answered))| !answered);
        Moment {
            blocks: self.blocks.iter().map(Versions::acknowledged).collect(),
            size: self.sizes.acknowledged,
            size_max: 0,
            size_entries: self.sizes.after_crash.len(),
            unanswered: unanswered.map(|(index, _)| index).collect(),
        }
    }

    /// The same moment if what was acknowledged and is not durable may be lost.
    pub(super) fn moment_of_loss(&self) -> Moment {
        let Sizes { after_crash, ends, .. } = &self.sizes;
        let sizes = || after_crash.iter().map(|&(size, _)| size);
        Moment {
            blocks: self.blocks.iter().map(Versions::oldest_after_crash).collect(),
            size: sizes().min().unwrap_or(0),
            size_max: sizes().chain(ends.iter().copied()).max().unwrap_or(0),
            ..self.moment()
        }
    }

    /// The commit that began at `moment` was answered well.
    pub(super) fn committed(&mut self, moment: &Moment) {
        for (block, &number) in self.blocks.iter_mut().zip(&moment.blocks) {
            block.durable(number);
        }
        // Entries keep their places: those who wait for an answer know them by these.
        let keep = moment.size;
        let is_taken = |index| index < moment.size_entries && !moment.unanswered.contains(&index);
        for (index, entry) in self.sizes.after_crash.iter_mut().enumerate() {
            if is_taken(index) {
                *entry = (keep, true);
            }
        }
        self.sizes.steps.retain(|&(index, _)| !is_taken(index));
    }

    /// A read that began at `moment` brought `data` from `offset`, where `wanted` bytes were asked
    /// for. What is wrong with that, if anything.
    pub(super) fn check_read(
        &self,
        moment: &Moment,
        offset: u64,
        wanted: u64,
        data: &[u8],
    ) -> Result<(), String> {
        let end = offset + data.len() as u64;
        let (least, most) = self.sizes(moment);
        let (shortest, longest) = (
            least.clamp(offset, offset + wanted) - offset,
            most.clamp(offset, offset + wanted) - offset,
        );
        if !(shortest..=longest).contains(&(data.len() as u64)) {
            return Err(format!(
                "{} bytes came of {offset}+{wanted}, the file has {least} to {most}",
                data.len()
            ));
        }
        for index in blocks_of(offset..end) {
            let possible = moment.blocks[index];
            check_block(index, offset, data, &self.blocks[index], possible)?;
        }
        Ok(())
    }

    /// All that was answered is durable.
    pub(super) fn all_committed(&mut self) {
        let moment = self.moment();
        self.committed(&moment);
    }

    /// The whole file was read: while there was no writer, or after a crash.
    pub(super) fn check_all(&mut self, data: &[u8], after_crash: bool) -> Result<(), String> {
        if after_crash {
            self.flush(data).map_err(|wrong| format!("after a crash: {wrong}"))
        } else {
            self.observe(data).map_err(|wrong| format!("at rest: {wrong}"))
        }
    }

    /// The whole file was read while there was no writer: it is `data` from now on.
    pub(super) fn observe(&mut self, data: &[u8]) -> Result<(), String> {
        self.check_read(&self.moment(), 0, self.blocks.len() as u64 * BLOCK, data)?;
        for (index, block) in whole_blocks(data, self.blocks.len()) {
            if block[..] != self.blocks[index].flushed()[..]
                || block[..] != self.blocks[index].last()[..]
            {
                self.blocks[index].observe(block);
            }
        }
        let size = data.len() as u64;
        self.sizes.after_crash.push((size, true));
        (self.sizes.acknowledged, self.sizes.issued) = (size, size);
        Ok(())
    }

    /// The whole file was read after single nodes had restarted, and committed: it is `data`,
    /// durably.
    pub(super) fn settle_losses(&mut self, data: &[u8]) -> Result<(), String> {
        let least = self.sizes.after_crash.iter().map(|&(size, _)| size).min().unwrap_or(0);
        let ends = self.sizes.ends.iter().filter(|&&end| end >= least);
        let ends: Vec<(u64, bool)> = ends.map(|&end| (end, true)).collect();
        self.sizes.after_crash.extend(ends);
        self.flush(data)
    }

    /// Size and blocks of a file that is not being changed.
    pub(super) fn at_rest(&self) -> (u64, Vec<Block>) {
        let blocks = self.blocks.iter().map(|block| block.last().clone());
        (self.sizes.acknowledged, blocks.collect())
    }

    /// The whole file was read after a crash: it is `data`, durably.
    pub(super) fn flush(&mut self, data: &[u8]) -> Result<(), String> {
        let size = data.len() as u64;
        if !self.sizes.is_possible(size) {
            let Sizes { after_crash, steps, .. } = &self.sizes;
            return Err(format!(
                "the file has {size} bytes; possible were {after_crash:?}, and in steps {steps:?}"
            ));
        }
        for index in blocks_of(0..size) {
            let block = &self.blocks[index];
            check_block(index, 0, data, block, block.oldest_after_crash())?;
        }
        for (index, block) in whole_blocks(data, self.blocks.len()) {
            self.blocks[index].flush(block);
        }
        self.sizes = Sizes::flushed(size);
        Ok(())
    }
}

fn blocks_of(range: Range<u64>) -> Range<usize> {
    let first = (range.start / BLOCK) as usize;
    first..if range.is_empty() { first } else { range.end.div_ceil(BLOCK) as usize }
}

/// `data` cut into blocks, each filled up with zeros, and as many empty ones as there may be.
pub(super) fn whole_blocks(data: &[u8], count: usize) -> impl Iterator<Item = (usize, Block)> {
    (0..count).map(move |index| {
        let start = (index * BLOCK as usize).min(data.len());
        let end = (start + BLOCK as usize).min(data.len());
        let mut block = data[start..end].to_vec();
        block.resize(BLOCK as usize, 0);
        (index, block.into())
    })
}

/// The part of block `index` that `data`, which begins at `offset`, has of it: it is one of
/// `versions` from number `oldest` on.
fn check_block(
    index: usize,
    offset: u64,
    data: &[u8],
    versions: &Versions<Block>,
    oldest: usize,
) -> Result<(), String> {
    let start = index as u64 * BLOCK;
    let (from, to) = (offset.max(start), (offset + data.len() as u64).min(start + BLOCK));
    let seen = &data[(from - offset) as usize..(to - offset) as usize];
    let part = (from - start) as usize..(to - start) as usize;
    let possible = versions.visible(oldest);
    if possible.iter().any(|version| version[part.clone()] == *seen) {
        return Ok(());
    }
    let differs = |version: &Block| {
        version[part.clone()].iter().zip(seen).filter(|(one, other)| one != other).count()
    };
    let distances: Vec<usize> = possible.iter().map(differs).collect();
    let zeros = seen.iter().all(|&byte| byte == 0);
    let earlier = versions.numbers(|version| version[part.clone()] == *seen);
    Err(format!(
        "bytes {from}..{to} (block {index}) are none of {} possible values, from number {oldest} on; \
         they differ from them in {distances:?} bytes; they are the values {earlier:?}; all zeros: \
         {zeros}",
        possible.len()
    ))
}
