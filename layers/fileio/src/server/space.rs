//! Space of a file: truncation, holes, allocation, and seeking data or holes.

use std::ops::{ControlFlow, Range};
use std::rc::Rc;

use blockio::RedundancyClass;
use blockio::volume_map::classes_of;
use futures::future::join_all;
use meta::attributes::access;
use meta::chunks::BlockSlot;
use meta::partition::{PartitionNumber, partition_of};
use meta::protocol::{
    self as metadata, Allocate as Reserve, ChangeInode, Chunk, ChunkPage, ChunkUpdate, Commit,
    FOUND_MAX, FindChunks, InodeChange, Install, Near, NewBlock, Run, Seal, Truncate, Unsynced,
};

use super::base::{MetadataAccess, or_again};
use super::changed_ranges::RangeChange;
use super::commit::{ContentComponents, FileCommits, retry_after_rollback};
use super::content::{ContentAccess, zeros};
use super::space_claims::shares;
use super::write::{ChangeNote, FileWriter, WritePurpose};
use crate::pieces::ByteRope;
use crate::protocol::{
    Allocate, Attributes, Error, Handle, PunchHole, Seek, SeekTarget, Space, Time, WriteResult,
};
use crate::rules;
use runtime::NodeId;

const BLOCK: u64 = blockio::BLOCK_SIZE as u64;

/// Chunks that a punch changes before it commits them and continues.
const PUNCHED_MAX: usize = 1024;

/// Why a file gets another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SizeChange {
    /// It was asked for.
    Set,
    /// Space past its end was allocated.
    Lengthen,
    /// A lost change with this order comes again.
    Replay { order: u64 },
}

/// The space of files.
pub(super) struct FileSpace {
    base: MetadataAccess,
    content: Rc<ContentAccess>,
    commits: Rc<FileCommits>,
    writer: Rc<FileWriter>,
}

impl FileSpace {
    pub(super) fn new((base, content, commits): ContentComponents, writer: Rc<FileWriter>) -> Self {
        Self { base, content, commits, writer }
    }

    /// The space of a partition: what its files use, and what they can get. Of partition 0 that of
    /// the volume.
    pub(super) async fn get_space(&self, partition: PartitionNumber) -> Result<Space, Error> {
        if partition == 0 {
            return self.volume_space(self.base.partitions.unit_of(0)).await;
        }
        let limit = self.base.partitions.limit(partition).await?;
        let volume = self.volume_space(self.base.partitions.unit_of(partition)).await?;
        let shares = shares(&self.base.context, partition, |_| false).await?;
        let (mut used_bytes, mut inodes) = (0, 0);
        for (_, share) in shares {
            used_bytes += share.used_bytes;
            inodes += share.inodes;
        }
        let left = limit.map_or(u64::MAX, |limit| limit.saturating_sub(used_bytes));
        let free_bytes = volume.free_bytes.min(left);
        Ok(Space {
            // What is beyond the free space of the volume is not there, whatever the limit.
            total_bytes: used_bytes + free_bytes,
            free_bytes,
            available_bytes: volume.available_bytes.min(left),
            inodes,
            ..volume
        })
    }

    /// What is to be had in logical blocks of `unit` blocks.
    async fn volume_space(&self, unit: u32) -> Result<Space, Error> {
        let nodes = (0..self.base.context.fs_nodes()).map(NodeId::fs);
        let asked = nodes.map(|node| self.base.meta(node, metadata::GetSpace { unit }));
        let mut space = Space::default();
        // A file gets what its own node has, and what the others give.
        let mut kept_least = u64::MAX;
        for answer in join_all(asked).await {
            let part = match answer {
                // Of a node that is lost nothing is known.
                Err(_) if self.base.is_read_only => continue,
                part => part?,
            };
            space.total_bytes += part.total_blocks * BLOCK;
            space.free_bytes += part.free_blocks * BLOCK;
            space.available_bytes += part.spare_blocks * BLOCK;
            space.inodes += part.inodes;
            kept_least = kept_least.min(part.free_blocks.saturating_sub(part.spare_blocks));
        }
        if self.base.is_read_only {
            space.available_bytes = 0;
        } else if kept_least != u64::MAX {
            space.available_bytes += kept_least * BLOCK;
        }
        Ok(self.in_copies(space))
    }

    /// May directories and files have this class?
    pub(super) fn has_class(&self, class: RedundancyClass) -> bool {
        classes_of(&self.content.stripes.map()).has(class)
    }

    /// What there is for data of which each block has its copies, given what there is for blocks.
    fn in_copies(&self, raw: Space) -> Space {
        let (map, class) = (self.content.stripes.map(), self.content.stripes.map().redundancy());
        let (copies, stripe) = (u64::from(class.copies()), u64::from(map.geometry().stripe_size));
        // Bytes of data, and the bytes of disks that they take.
        let wide = class.wide_stripes().filter(|it| map.stripes_in_copies(it.shards()) > 0);
        let (data, raw_each) =
            wide.map_or((1, copies), |shape| (u64::from(shape.data), u64::from(shape.shards())));
        let used_bytes = (raw.total_bytes - raw.free_bytes.min(raw.total_bytes)) / raw_each * data;
        // Where disks are uneven, copies of all do not fit on the others.
        let fitting = map.stripes_in_copies(raw_each as u32) * data * stripe;
        let total_bytes = (raw.total_bytes / raw_each * data).min(fitting);
        let left = total_bytes.saturating_sub(used_bytes);
        Space {
            total_bytes,
            free_bytes: (raw.free_bytes / raw_each * data).min(left),
            // What is written has copies at first.
            available_bytes: (raw.available_bytes / copies).min(left),
            inodes: raw.inodes,
            raw_total_bytes: raw.total_bytes,
            raw_free_bytes: raw.free_bytes,
        }
    }

    /// Does `work` while the file is neither read nor written; again, from the committed content,
    /// if uncommitted content was lost.
    async fn alone<T>(
        &self,
        file: Handle,
        work: impl AsyncFn() -> Result<T, Error>,
    ) -> Result<T, Error> {
        match self.alone_once(file.ino, &work).await {
            Err(Error::Damaged {}) => {
                self.commits.recover_lost_writes(file).await;
                self.alone_once(file.ino, &work).await
            }
            outcome => outcome,
        }
    }

    async fn alone_once<T>(
        &self,
        ino: u64,
        work: &impl AsyncFn() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let _alone = self.content.files.exclusive(ino).await;
        retry_after_rollback(work, async || self.commits.roll_back_locked(ino).await).await
    }

    /// Truncates the content, or extends it by a hole.
    pub(super) async fn set_size(
        &self,
        file: Handle,
        size: u64,
        time: Time,
        durable: bool,
    ) -> Result<Attributes, Error> {
        self.alone(file, async || {
            self.set_size_alone(file, (size, time), durable, SizeChange::Set).await
        })
        .await
    }

    async fn set_size_alone(
        &self,
        file: Handle,
        (size, time): (u64, Time),
        durable: bool,
        kind: SizeChange,
    ) -> Result<Attributes, Error> {
        let Handle { ino, generation } = file;
        let before = self.base.attributes(file).await?;
        let (last, reserved) = self.last_block(file, before.size, size).await?;
        if kind == SizeChange::Set && size >= before.size && self.base.replays.is_noting() {
            // After a crash it must be known that what comes again was cut off.
            self.base.meta_here(Seal { ino }).await?;
            self.base.meta_here(Commit { ino }).await?;
        }
        let order = if let SizeChange::Replay { order } = kind { Some(order) } else { None };
        let mark = self.base.next_mark(file, order).await?;
        let change = RangeChange::new(mark.sequence, order).cut(true);
        let call = Truncate { ino, generation, size, time, durable, last, mark };
        let outcome = self.base.meta_here(call).await;
        if outcome.is_ok() && kind == SizeChange::Set {
            // Earlier writes past the end may have been lost and come again.
            self.base.note_change(file, size..u64::MAX, change);
        }
        if outcome.is_err() {
            self.content.give_back(reserved).await;
        }
        outcome
    }

    /// A new last logical block for a truncation inside of it, and what was reserved for it: if the
    /// file grows again, the bytes cut off must read as zeros. `None` if they do so already.
    async fn last_block(
        &self,
        file: Handle,
        old_size: u64,
        size: u64,
    ) -> Result<(Option<NewBlock>, Vec<Run>), Error> {
        if size >= old_size {
            return Ok((None, Vec::new()));
        }
        let unit = self.unit_at(file, size).await?;
        let bytes = u64::from(unit) * BLOCK;
        let end = size.next_multiple_of(bytes).min(old_size);
        if size >= end || self.is_zero(file, size..end).await? {
            return Ok((None, Vec::new()));
        }
        let start = size / bytes * bytes;
        let kept = ByteRope::new(self.content.read_range(file, start, size).await?);
        let rest = ByteRope::new(vec![zeros((start + bytes - size) as usize)]);
        let content = ByteRope::join([kept, rest]);
        let checksum = content.checksum(0, content.length());
        let near = Near::Anywhere {};
        let call = Reserve { blocks: unit, unit, from_reserve: true, near };
        let class = self.content.class_of(file.ino).await?;
        let mut reserved = self.content.reserve(call, class, None).await?;
        let slot = reserved.take(checksum).ok_or(Error::Damaged {})?;
        let reserved = reserved.into_runs();
        let content = content.into_vec();
        let writes = slot.starts().map(|start| {
            let (stripe, offset) = self.content.geometry.block(start);
            let writing = self.content.stripes.write(stripe, offset, content.clone());
            async move { writing.await.map(|boot_id| Unsynced { stripe, boot_id }) }
        });
        // All of them are awaited: after a failure no write may still be on its way.
        let written = join_all(writes.collect::<Vec<_>>()).await;
        match written.into_iter().collect::<Result<Vec<_>, _>>() {
            Ok(written) => {
                let BlockSlot { block, mirrors, .. } = slot;
                Ok((Some(NewBlock { block, mirrors, checksum, written }), reserved))
            }
            Err(error) => {
                self.content.give_back(reserved).await;
                Err(error.into())
            }
        }
    }

    /// Blocks of a logical block of the chunk that has byte `offset` of the file, which the caller
    /// has locked.
    async fn unit_at(&self, file: Handle, offset: u64) -> Result<u32, Error> {
        let index = offset / u64::from(self.content.geometry.stripe_size);
        let chunks = self.content.map(file, index..index + 1).await?;
        let chunk = chunks.first().ok_or(Error::Damaged {})?;
        Ok(self.content.unit(file.ino, chunk) as u32)
    }

    /// Are all these bytes zeros? Holes are not read.
    async fn is_zero(&self, file: Handle, range: Range<u64>) -> Result<bool, Error> {
        let content = self.content.read_range(file, range.start, range.end).await?;
        Ok(content.iter().all(|part| part.iter().all(|&byte| byte == 0)))
    }

    pub(super) async fn punch_hole(&self, request: PunchHole) -> Result<WriteResult, Error> {
        let PunchHole { file, durable, .. } = request;
        let punched = self.alone(file, async || self.punch_alone(&request, None).await).await;
        self.commits.make_durable(file, or_again(punched)?, durable).await
    }

    /// The caller has locked the file. `order` is the number of the first answer, if that was lost.
    pub(super) async fn punch_alone(
        &self,
        request: &PunchHole,
        order: Option<u64>,
    ) -> Result<WriteResult, Error> {
        let &PunchHole { ref who, file, offset, length, durable: _ } = request;
        let before = self.base.attributes(file).await?;
        self.base.check_transfer(who, &before, access::WRITE)?;
        check_extent(offset, length)?;
        let note = ChangeNote { order, ..ChangeNote::of(offset..offset + length) };
        if offset >= before.size {
            // Earlier writes there may have been lost, and come again later.
            if order.is_some() || self.base.replays.is_noting() {
                return self.punch_blocks(file, 0..0, false, note).await;
            }
            return self.writer.unchanged(before).await;
        }
        let last = (offset + length).min(before.size) - 1;
        let units = (self.unit_at(file, offset).await?, self.unit_at(file, last).await?);
        let hole = Hole::new(offset, offset + length, before.size, units);
        for edge in hole.edges() {
            if !self.is_zero(file, edge.clone()).await? {
                let length = (edge.end - edge.start) as usize;
                let zeros = vec![zeros(length)];
                self.writer
                    .write_locked(
                        who,
                        &before,
                        (edge.start, zeros),
                        WritePurpose::Relief,
                        ChangeNote { order, ..ChangeNote::default() },
                    )
                    .await?;
            }
        }
        let drop_setid = rules::without_setid(who, &before) != before.mode;
        self.punch_blocks(file, hole.blocks, drop_setid, note).await
    }

    /// Takes whole blocks, counted from the start of the file, out of the map.
    async fn punch_blocks(
        &self,
        file: Handle,
        blocks: Range<u64>,
        drop_setid: bool,
        note: ChangeNote,
    ) -> Result<WriteResult, Error> {
        let Handle { ino, .. } = file;
        let per_chunk = u64::from(self.content.geometry.blocks_per_stripe());
        let mut next = Some(blocks.start / per_chunk);
        let mut punched = 0;
        loop {
            let mut updates = Vec::new();
            if let Some(first) = next.filter(|first| *first < blocks.end.div_ceil(per_chunk)) {
                let found = self.chunks_from(file, first).await?;
                next = found.next;
                for found in found.chunks {
                    let chunk = self.without(found.index, &found.chunk, &blocks);
                    if chunk != found.chunk {
                        let written = Vec::new();
                        let (index, wide) = (found.index, None);
                        updates.push(ChunkUpdate { index, chunk, written, wide });
                    }
                }
            } else {
                next = None;
            }
            punched += updates.len();
            let mark = self.base.next_mark(file, note.order).await?;
            let change = RangeChange::new(mark.sequence, note.order);
            let (size_min, time, append) = (0, self.base.now(), None);
            let call = Install { ino, updates, size_min, time, drop_setid, mark, append };
            let verified = self.base.meta_here(call).await?;
            for range in &note.ranges {
                self.base.note_change(file, range.clone(), change);
            }
            if next.is_none() {
                // The edges of the hole, and other chunks, were written before.
                return Ok(WriteResult { before: None, ..verified });
            }
            if punched >= PUNCHED_MAX {
                punched = 0;
                self.base.meta_here(Seal { ino }).await?;
                self.base.meta_here(Commit { ino }).await?;
            }
        }
    }

    /// A chunk without those of its logical blocks that are among `blocks` (of the file).
    fn without(&self, index: u64, chunk: &Chunk, blocks: &Range<u64>) -> Chunk {
        let per_chunk = self.content.geometry.blocks_per_stripe();
        let unit = chunk.unit_or(1);
        let mut slots = chunk.slots(per_chunk as usize, unit);
        let firsts = (index * u64::from(per_chunk)..).step_by(unit as usize);
        for (first, slot) in firsts.zip(&mut slots) {
            if blocks.start <= first && first + u64::from(unit) <= blocks.end {
                *slot = None;
            }
        }
        Chunk::from_slots(&slots, per_chunk, unit)
    }

    async fn chunks_from(&self, file: Handle, first: u64) -> Result<ChunkPage, Error> {
        let Handle { ino, generation } = file;
        self.base.meta_here(FindChunks { ino, generation, first, count_max: FOUND_MAX }).await
    }

    /// Calls `look` with the byte ranges in which the file has blocks, in order, from the chunk of
    /// `range.start` on, until it breaks or the range ends.
    async fn look_at_data<T>(
        &self,
        file: Handle,
        range: Range<u64>,
        mut look: impl FnMut(Range<u64>) -> ControlFlow<T>,
    ) -> Result<Option<T>, Error> {
        let chunk_size = u64::from(self.content.geometry.stripe_size);
        let mut next = Some(range.start / chunk_size);
        while let Some(first) = next.filter(|first| *first < range.end.div_ceil(chunk_size)) {
            let found = self.chunks_from(file, first).await?;
            for found in &found.chunks {
                let start = found.index * chunk_size;
                for run in &found.chunk.runs {
                    let (from, to) = (u64::from(run.at) * BLOCK, u64::from(run.end()) * BLOCK);
                    if let ControlFlow::Break(told) = look(start + from..start + to) {
                        return Ok(Some(told));
                    }
                }
            }
            next = found.next;
        }
        Ok(None)
    }

    pub(super) async fn allocate(&self, request: &Allocate) -> Result<Attributes, Error> {
        let &Allocate { ref who, file, offset, length, keep_size, .. } = request;
        let before = self.base.attributes(file).await?;
        self.base.check_transfer(who, &before, access::WRITE)?;
        check_extent(offset, length)?;
        let end = offset + length;
        self.base.partitions.learn(file.ino).await?;
        let block = u64::from(self.base.unit_of(file.ino)) * BLOCK;
        let wanted = offset / block * block..end.next_multiple_of(block);
        let mut missing_bytes = wanted.end - wanted.start;
        let counted = self.look_at_data(file, wanted.clone(), |data| {
            let there = data.end.min(wanted.end).saturating_sub(data.start.max(wanted.start));
            missing_bytes -= there;
            ControlFlow::<()>::Continue(())
        });
        counted.await?;
        if missing_bytes > 0
            && missing_bytes
                > or_again(self.get_space(partition_of(file.ino)).await)?.available_bytes
        {
            return Err(Error::NoSpace {});
        }
        if keep_size {
            return Ok(before);
        }
        self.alone(file, async || self.lengthen_alone(request).await).await
    }

    /// Lengthens the file to the end of what was allocated, unless it is as long by now.
    async fn lengthen_alone(&self, request: &Allocate) -> Result<Attributes, Error> {
        let &Allocate { ref who, file, offset, length, durable, .. } = request;
        let before = self.base.attributes(file).await?;
        let end = offset + length;
        if end <= before.size {
            return Ok(before);
        }
        let mode = rules::without_setid(who, &before);
        if mode != before.mode {
            let Handle { ino, generation } = file;
            let change = InodeChange { mode: Some(mode), ..InodeChange::default() };
            let call = ChangeInode {
                ino,
                generation,
                change,
                redundancy: None,
                only_if_ctime: None,
                durable: false,
            };
            self.base.meta_here(call).await?;
        }
        self.set_size_alone(file, (end, self.base.now()), durable, SizeChange::Lengthen).await
    }

    /// Lengthens the file by a hole for a replay. The caller has locked it.
    pub(super) async fn lengthen_locked(
        &self,
        file: Handle,
        size: u64,
        order: u64,
    ) -> Result<(), Error> {
        let place = (size, self.base.now());
        self.set_size_alone(file, place, false, SizeChange::Replay { order }).await.map(drop)
    }

    pub(super) async fn seek(&self, request: &Seek) -> Result<Option<u64>, Error> {
        let &Seek { ref who, file, offset, target } = request;
        let _reading = self.content.files.shared(file.ino).await;
        let before = self.base.attributes(file).await?;
        self.base.check_transfer(who, &before, access::READ)?;
        let size = before.size;
        if offset >= size {
            return Ok(None);
        }
        // Up to here there is only the other kind.
        let mut at = offset;
        let found = self.look_at_data(file, offset..size, |data| {
            if data.end <= at {
                return ControlFlow::Continue(());
            }
            match target {
                SeekTarget::Data {} => ControlFlow::Break(data.start.max(offset)),
                SeekTarget::Hole {} if data.start > at => ControlFlow::Break(at),
                SeekTarget::Hole {} => {
                    at = data.end;
                    ControlFlow::Continue(())
                }
            }
        });
        let found = found.await?;
        Ok(match target {
            SeekTarget::Data {} => found.filter(|found| *found < size),
            SeekTarget::Hole {} => Some(found.unwrap_or(at).min(size)),
        })
    }
}

/// Is this a range of at least one byte that a file can have?
fn check_extent(offset: u64, length: u64) -> Result<(), Error> {
    if length == 0 {
        return Err(Error::Invalid {});
    }
    rules::check_range(offset, length)
}

/// What a punch does to a file.
#[derive(Debug, PartialEq, Eq)]
struct Hole {
    /// Bytes before the first whole logical block, which become zeros.
    front: Range<u64>,
    /// Whole logical blocks, in blocks from the start of the file.
    blocks: Range<u64>,
    /// Bytes after the last whole logical block.
    back: Range<u64>,
}

impl Hole {
    /// Bytes `from..to` of a file of `size` bytes, which ends after `from`. Its last logical block
    /// is whole if all of its bytes are in the range. The units are the blocks of the logical
    /// blocks at the first byte, and at the last one that is in the file.
    fn new(from: u64, to: u64, size: u64, (first_unit, last_unit): (u32, u32)) -> Self {
        let bytes = |unit| u64::from(unit) * BLOCK;
        let to = if to < size { to } else { size.next_multiple_of(bytes(last_unit)) };
        let first = from.next_multiple_of(bytes(first_unit));
        let end = to / bytes(last_unit) * bytes(last_unit);
        Self {
            front: from..first.min(to).min(size),
            blocks: first / BLOCK..end.max(first) / BLOCK,
            back: end.max(first)..to,
        }
    }

    /// The bytes that become zeros.
    fn edges(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        [self.front.clone(), self.back.clone()].into_iter().filter(|edge| !edge.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_has_whole_blocks_between_two_edges() {
        let hole = |from, to, size| {
            let Hole { front, blocks, back } = Hole::new(from, to, size, (1, 1));
            let edge = |edge: Range<u64>| (!edge.is_empty()).then_some(edge);
            (edge(front), blocks.clone().count(), blocks.start, edge(back))
        };
        assert_eq!(hole(0, 8192, 8192), (None, 2, 0, None));
        assert_eq!(hole(1, 8193, 9000), (Some(1..4096), 1, 1, Some(8192..8193)));
        // Within one block.
        assert_eq!(hole(5000, 6000, 9000), (Some(5000..6000), 0, 2, None));
        assert_eq!(hole(4096, 6000, 9000), (None, 0, 1, Some(4096..6000)));
        // Up to the end of the file: its last block is whole, whatever is behind.
        assert_eq!(hole(8192, 9000, 9000), (None, 1, 2, None));
        assert_eq!(hole(8193, 1 << 40, 9000), (Some(8193..9000), 0, 3, None));
    }

    #[test]
    fn a_hole_has_only_whole_logical_blocks() {
        let hole = |from, to, size| {
            let Hole { front, blocks, back } = Hole::new(from, to, size, (4, 2));
            (front, blocks, back)
        };
        let size = 1 << 20;
        assert_eq!(hole(0, 24_576, size), (0..0, 0..6, 24_576..24_576));
        assert_eq!(hole(4096, 28_672, size), (4096..16_384, 4..6, 24_576..28_672));
        let (front, blocks, back) = hole(4096, 12_288, size);
        assert_eq!((front, back.is_empty(), blocks.is_empty()), (4096..12_288, true, true));
        assert_eq!(hole(16_384, 17_000, 17_000), (16_384..16_384, 4..6, 24_576..24_576));
    }
}
