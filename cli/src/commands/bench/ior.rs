//! IOR's pattern: every rank moves blocks of a shared file, or of one of its own.

use runtime::seed::Rng;

use super::options::CommonOptions;
use super::report::BenchReport;
use super::side::BenchSide;
use crate::exit::CommandFailure;
use crate::size::{ByteSize, human};
use crate::tree::{FileTree, TreeFile, into};

/// Bytes of the stamp at both ends of each transfer.
const STAMP: usize = 8;

/// Move blocks of files, as IOR does.
///
/// A file consists of segments, a segment of one block for each rank, a block of transfers. The
/// time of a phase goes from the first opening of a file to the last closing, with the fsync if
/// there is one. Each transfer is stamped with its place and repetition, and what is read is
/// compared with that.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs bench ior -N 4 -b 64MiB -t 1MiB -F -e scratch:/      a checkpoint: a file for each rank, durable
  mdfs bench ior -N 8 -b 1MiB -t 47008 -s 16 -i 5 scratch:/ one shared file, small pieces by turns
  mdfs bench ior -N 4 -b 64MiB -t 4KiB -z -r -w scratch:/   in random order")]
#[allow(clippy::struct_excessive_bools, reason = "independent switches, as IOR has them")]
pub(super) struct Ior {
    #[command(flatten)]
    pub(super) common: CommonOptions,
    /// Bytes that a rank moves in each segment.
    #[arg(short = 'b', long, value_name = "SIZE", default_value = "1MiB")]
    block: ByteSize,
    /// Bytes of one call.
    #[arg(short = 't', long, value_name = "SIZE", default_value = "256KiB")]
    transfer: ByteSize,
    /// Segments.
    #[arg(short = 's', long, value_name = "N", default_value_t = 1)]
    segments: u64,
    /// A file for each rank.
    #[arg(short = 'F', long)]
    file_per_process: bool,
    /// Write; without -w and -r, both.
    #[arg(short = 'w', long)]
    write: bool,
    /// Read, what was written before; alone, files are written first, which does not count.
    #[arg(short = 'r', long)]
    read: bool,
    /// The transfers of a rank in random order.
    #[arg(short = 'z', long)]
    random: bool,
    /// Make each file durable before it is closed.
    #[arg(short = 'e', long)]
    fsync: bool,
    /// Each rank reads what the next one has written.
    #[arg(short = 'C', long)]
    reorder: bool,
}

impl Ior {
    pub(super) fn check(&self) -> Result<(), CommandFailure> {
        let (block, transfer) = (self.block.0, self.transfer.0);
        if transfer < 2 * STAMP as u64 || block == 0 || block % transfer != 0 || self.segments == 0
        {
            let text = "a block (-b) is a whole number of transfers (-t) of at least 16 bytes, and there \
                        is at least one segment (-s)";
            return Err(CommandFailure::Usage(text.into()));
        }
        let all = block.checked_mul(self.segments);
        let all = all.and_then(|bytes| bytes.checked_mul(self.common.ranks.into()));
        match all {
            Some(bytes) if i64::try_from(bytes).is_ok() => Ok(()),
            _ => Err(CommandFailure::Usage("that is more than a file can hold".into())),
        }
    }

    /// What the figures mean.
    pub(super) fn words(&self) -> String {
        let files = if self.file_per_process { "a file for each" } else { "one shared file" };
        let durable = if self.fsync {
            "Writes include fsync: they are durable on both sides"
        } else {
            "Writes end in memory (no -e): nothing is durable yet when the clock stops"
        };
        format!(
            "{} ranks, {files}, {} each in calls of {}, {}.\n{durable}.\nReads come from memory where it \
             has still what was written: the server's cache, or the kernel's.",
            self.common.ranks,
            human(self.block.0 * self.segments),
            human(self.transfer.0),
            if self.random { "in random order" } else { "in order" },
        )
    }

    /// One repetition on one side.
    pub(super) fn run(
        &self,
        side: &BenchSide,
        repetition: u16,
        report: &mut BenchReport,
    ) -> Result<(), CommandFailure> {
        let (write, read) = (self.write || !self.read, self.read || !self.write);
        let ranks = u64::from(self.common.ranks);
        let calls = self.block.0 / self.transfer.0 * self.segments * ranks;
        let amount = (calls * self.transfer.0, calls);
        if !self.file_per_process {
            side.trees[0].part(&self.path(side, 0))?;
        }
        let written = side.as_ranks(|tree, rank| {
            let (file, _) = tree.part(&self.path(side, rank))?;
            self.each(rank, repetition, |offset, stamps, buffer| {
                stamp(buffer, stamps);
                file.write_from(offset, buffer)
            })?;
            if self.fsync { file.sync() } else { Ok(()) }
        })?;
        if write {
            report.add(("write", &side.name), amount, written);
        }
        if read {
            let elapsed = side.as_ranks(|tree, rank| {
                let rank = if self.reorder { (rank + 1) % ranks } else { rank };
                self.read(tree, side, rank, repetition)
            })?;
            report.add(("read", &side.name), amount, elapsed);
        }
        let files = if self.file_per_process { ranks } else { 1 };
        (0..files).try_for_each(|rank| side.trees[0].remove(&self.path(side, rank)))
    }

    fn read(
        &self,
        tree: &dyn FileTree,
        side: &BenchSide,
        rank: u64,
        repetition: u16,
    ) -> Result<(), CommandFailure> {
        let path = self.path(side, rank);
        let file: Box<dyn TreeFile> = tree.open(&path)?;
        self.each(rank, repetition, |offset, stamps, buffer| {
            let count = file.read_into(offset, buffer)?;
            if count < buffer.len() || !is_stamped(buffer, stamps) {
                let why =
                    "a transfer has not the bytes that were written; look at the server's log";
                return Err(tree.refuse("read", &path, why));
            }
            Ok(())
        })
    }

    fn path(&self, side: &BenchSide, rank: u64) -> Vec<u8> {
        let rank = if self.file_per_process { rank } else { 0 };
        into(&side.directory, format!("ior.{rank:08}").as_bytes())
    }

    /// Does `call` for each transfer of a rank, with its offset, its stamp and memory for it.
    fn each(
        &self,
        rank: u64,
        repetition: u16,
        mut call: impl FnMut(u64, u64, &mut [u8]) -> Result<(), CommandFailure>,
    ) -> Result<(), CommandFailure> {
        let mut offsets = self.offsets(rank);
        if self.random {
            let mut rng = Rng::new(rank ^ (u64::from(repetition) << 32));
            for last in (1..offsets.len()).rev() {
                offsets.swap(last, rng.below(last as u64 + 1) as usize);
            }
        }
        let mut buffer = vec![rank as u8; self.transfer.0 as usize];
        let stamps = |offset: u64| offset ^ (rank << 48) ^ (u64::from(repetition) << 56);
        offsets.into_iter().try_for_each(|offset| call(offset, stamps(offset), &mut buffer))
    }

    /// Where the transfers of a rank are in its file.
    fn offsets(&self, rank: u64) -> Vec<u64> {
        let (block, ranks) = (self.block.0, u64::from(self.common.ranks));
        let (segment, first) =
            if self.file_per_process { (block, 0) } else { (block * ranks, rank * block) };
        let starts = (0..self.segments).map(|number| number * segment + first);
        let transfer = self.transfer.0 as usize;
        starts.flat_map(|start| (start..start + block).step_by(transfer)).collect()
    }
}

fn stamp(buffer: &mut [u8], stamps: u64) {
    let end = buffer.len() - STAMP;
    buffer[..STAMP].copy_from_slice(&stamps.to_le_bytes());
    buffer[end..].copy_from_slice(&stamps.to_le_bytes());
}

fn is_stamped(buffer: &[u8], stamps: u64) -> bool {
    let stamps = stamps.to_le_bytes();
    buffer.starts_with(&stamps) && buffer.ends_with(&stamps)
}
