//! Writes of which the client has left parts at the processes that store them (ADR 87).
//!
//! Everything that was left gets new blocks. So nothing of the file has changed until all of it is
//! stored, and if that fails the client sends the whole write as usual.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use futures::future::join_all;
use runtime::delivery::{
    BlocksToStore, PORTS_MAX, ParityToStore, SEND_PARTS_MAX, StoreDeposit, StoredDeposit,
};
use runtime::hash::join_crc32c;
use runtime::ids::NodeId;

use super::{
    Allocate, Attributes, BLOCK, ByteRope, Bytes, ChangeNote, Chunk, ChunkUpdate, ChunkWrite,
    Error, FileWriter, Near, Run, SpaceHold, StripeWrites, TRANSFER_MAX, Unsynced, WritePart,
    WritePurpose, WriteResult, access, add_part, handle_of, or_again, rules,
};
use crate::protocol::{BLOCK_SIZE, WriteDirect};

mod parity;

use parity::LeftParity;

/// Clients count in the same blocks.
const _: () = assert!(BLOCK == BLOCK_SIZE);

/// A process whose answer was lost may still be at work: blocks that it may write are given back
/// after this time.
const LATE_STORE_MAX: Duration = Duration::from_mins(1);

/// Bytes of a write.
enum PieceSource {
    /// They came with the request.
    Here(ByteRope),
    /// They are at this process, and these are the checksums of their blocks.
    Left(u32, Vec<u32>),
}

/// A part of a write.
struct WritePiece {
    /// Its place in the write.
    range: Range<u64>,
    source: PieceSource,
}

/// All of a write in order, or nothing if the parts do not fit together.
fn pieces_of(request: &WriteDirect) -> Option<Vec<WritePiece>> {
    let (data, block) = (ByteRope::new(request.data.clone()), BLOCK as u64);
    let mut pieces = Vec::with_capacity(2 * request.deposited.len() + 1);
    let (mut at, mut used) = (0, 0);
    let mut here = |until: u64, at: &mut u64, pieces: &mut Vec<WritePiece>| {
        let length = usize::try_from(until.checked_sub(*at)?).ok()?;
        if length > data.length() - used {
            return None;
        }
        if length > 0 {
            let source = PieceSource::Here(data.slice(used, used + length));
            pieces.push(WritePiece { range: *at..until, source });
            used += length;
            *at = until;
        }
        Some(data.length() - used)
    };
    for left in &request.deposited {
        here(left.at, &mut at, &mut pieces)?;
        let length = left.checksums.len() as u64 * block;
        let is_aligned = request.offset.checked_add(at)?.is_multiple_of(block);
        if length == 0 || length > u64::from(TRANSFER_MAX) || !is_aligned {
            return None;
        }
        let source = PieceSource::Left(left.process, left.checksums.clone());
        pieces.push(WritePiece { range: at..at + length, source });
        at += length;
    }
    let rest = here(at, &mut at, &mut pieces)? as u64;
    here(at + rest, &mut at, &mut pieces)?;
    (at <= u64::from(TRANSFER_MAX)).then_some(pieces)
}

impl WritePiece {
    fn is_left(&self) -> bool {
        matches!(self.source, PieceSource::Left(..))
    }

    /// The part of it in `range` of the write.
    fn within(&self, range: &Range<u64>) -> Option<Self> {
        let cut = self.range.start.max(range.start)..self.range.end.min(range.end);
        if cut.is_empty() {
            return None;
        }
        let (from, to) = ((cut.start - self.range.start) as usize, cut.end - self.range.start);
        let source = match &self.source {
            PieceSource::Here(bytes) => PieceSource::Here(bytes.slice(from, to as usize)),
            PieceSource::Left(process, sums) => {
                PieceSource::Left(*process, sums[from / BLOCK..to as usize / BLOCK].to_vec())
            }
        };
        Some(Self { range: cut, source })
    }

    /// The checksums of its logical blocks of `unit` blocks.
    fn checksums(&self, unit: usize) -> Vec<u32> {
        match &self.source {
            PieceSource::Left(_, sums) => joined(sums, unit),
            PieceSource::Here(bytes) => bytes.checksums(unit * BLOCK),
        }
    }
}

/// The checksums of logical blocks of `unit` blocks, of those of the blocks.
fn joined(sums: &[u32], unit: usize) -> Vec<u32> {
    let join = |first, second| join_crc32c(first, second, BLOCK as u64);
    sums.chunks(unit).filter_map(|sums| sums.iter().copied().reduce(join)).collect()
}

/// New blocks of one chunk, and where they go.
struct FreshChunk {
    index: u64,
    chunk: Chunk,
    reserved: Vec<Run>,
    /// The file is at least this long.
    end: u64,
    /// What came with the request.
    here: StripeWrites,
    /// What each process is to store.
    left: Vec<(u32, BlocksToStore)>,
    /// The space that the file gets with it.
    held: Option<SpaceHold>,
}

/// What the parts of one chunk come to.
enum ChunkPlan {
    /// Whole blocks, some of which were left.
    Fresh(Vec<WritePiece>),
    /// Bytes that came with the request, from this byte of the chunk on.
    Usual(usize, ByteRope),
}

/// Nothing of the write was done.
struct NotStored;

/// Does the writes of which clients have left parts elsewhere.
pub(crate) struct DirectWriter {
    pub(crate) writer: Rc<FileWriter>,
}

impl DirectWriter {
    /// Answers [`WriteDirect`].
    pub(crate) async fn write_direct(
        &self,
        request: WriteDirect,
    ) -> Result<Option<WriteResult>, Error> {
        let pieces = pieces_of(&request).filter(|_| request.source.ports.len() <= PORTS_MAX);
        let pieces = pieces.ok_or(Error::Invalid {})?;
        let is_here = |piece: &WritePiece| match piece.source {
            PieceSource::Left(process, _) => self.first_node_of(process).is_some(),
            PieceSource::Here(_) => true,
        };
        if !pieces.iter().all(is_here) {
            // By an old map.
            return Ok(None);
        }
        let WriteDirect { ref who, file, offset, .. } = request;
        let length = pieces.last().map_or(0, |piece| piece.range.end);
        let _writing = self.writer.content.files.shared(file.ino).await;
        let before = self.writer.base.attributes(file).await?;
        self.writer.base.check_transfer(who, &before, access::WRITE)?;
        rules::check_range(offset, length)?;
        if length == 0 {
            return Ok(Some(self.writer.unchanged(before).await?));
        }
        let written = self.write_pieces(&request, &before, &pieces, length).await;
        match written {
            // The usual way mends that first.
            Err(Error::Damaged {}) => Ok(None),
            written => or_again(written),
        }
    }

    /// Writes `pieces`, of `length` bytes together. The caller has locked the file.
    async fn write_pieces(
        &self,
        request: &WriteDirect,
        file: &Attributes,
        pieces: &[WritePiece],
        length: u64,
    ) -> Result<Option<WriteResult>, Error> {
        let (handle, offset, end) = (handle_of(file), request.offset, request.offset + length);
        let chunk_size = u64::from(self.writer.content.geometry.stripe_size);
        let chunks = offset / chunk_size..end.div_ceil(chunk_size);
        let _held = self.writer.content.lock_chunks(handle.ino, chunks.clone()).await;
        let olds = self.writer.content.map(handle, chunks.clone()).await?;
        let units = olds.iter().map(|old| self.writer.content.unit(handle.ino, old));
        let places: Vec<(u64, usize)> = chunks.clone().zip(units).collect();
        let Some(plans) = plan_chunks(pieces, offset, chunk_size, &places) else {
            return Ok(None);
        };
        let (mut fresh, mut usual) = (Vec::new(), Vec::new());
        for ((index, old), plan) in chunks.zip(olds).zip(plans) {
            match plan {
                ChunkPlan::Fresh(pieces) => fresh.push((index, old, pieces)),
                ChunkPlan::Usual(from, data) => usual.push(WritePart { index, old, from, data }),
            }
        }
        let Ok(stored) = Box::pin(self.store_fresh(request, fresh)).await else {
            return Ok(None);
        };
        // These may change blocks in place, so they come last.
        let indices: Vec<u64> = usual.iter().map(|part| part.index).collect();
        let writes = self.writer.write_parts(handle, offset..end, usual, WritePurpose::Data).await;
        let mut parts: BTreeMap<u64, Result<ChunkWrite, Error>> =
            indices.into_iter().zip(writes).collect();
        parts.extend(stored.into_iter().map(|written| (written.update.index, Ok(written))));
        let (parts, note) = (parts.into_values().collect(), ChangeNote::of(offset..end));
        self.writer.install(&request.who, file, parts, note).await.map(Some)
    }

    /// Gives new blocks to whole blocks of some chunks, and has them stored.
    async fn store_fresh(
        &self,
        request: &WriteDirect,
        chunks: Vec<(u64, Chunk, Vec<WritePiece>)>,
    ) -> Result<Vec<ChunkWrite>, NotStored> {
        let mut fresh = Vec::with_capacity(chunks.len());
        for (index, old, pieces) in chunks {
            match self.draft_fresh((request.file.ino, index), request.offset, &old, &pieces).await {
                Ok(draft) => fresh.push(draft),
                Err(error) => {
                    tracing::debug!(%error, "no blocks for what a client has left");
                    self.give_back_all(fresh).await;
                    return Err(NotStored);
                }
            }
        }
        let here = fresh.iter_mut().flat_map(|chunk| std::mem::take(&mut chunk.here)).collect();
        let orders = self.orders(request, &mut fresh).into_iter();
        let storing = orders.map(|(process, order)| self.have_stored(request, process, order));
        let (filled, stored) =
            futures::future::join(self.writer.fill(here), join_all(storing)).await;
        let is_stored = stored.iter().all(|it| matches!(it, StoreOutcome::Stored(..)));
        let Some(mut written) = filled.ok().filter(|_| is_stored) else {
            if stored.iter().any(|it| matches!(it, StoreOutcome::Unknown)) {
                self.give_back_later(fresh);
            } else {
                self.give_back_all(fresh).await;
            }
            return Err(NotStored);
        };
        let mut parity = Vec::new();
        for it in stored {
            if let StoreOutcome::Stored(unsynced, made) = it {
                written.extend(unsynced);
                parity.extend(made);
            }
        }
        let mut writes = self.chunk_writes(fresh, &written);
        for LeftParity { index, wide } in parity {
            if let Some(first) = writes.iter_mut().find(|write| write.update.index == index) {
                first.update.wide = Some(wide);
            }
        }
        Ok(writes)
    }

    /// Reserves blocks for `pieces` of a chunk, and says where each goes.
    async fn draft_fresh(
        &self,
        (ino, index): (u64, u64),
        offset: u64,
        old: &Chunk,
        pieces: &[WritePiece],
    ) -> Result<FreshChunk, Error> {
        let unit = self.writer.content.unit(ino, old);
        let class = self.writer.content.class_of(ino).await?;
        let start = index * u64::from(self.writer.content.geometry.stripe_size);
        let block_of = |at: u64| ((offset + at - start) / BLOCK as u64) as usize;
        let first = pieces.first().map_or(0, |piece| block_of(piece.range.start));
        let last = pieces.last().map_or(0, |piece| block_of(piece.range.end));
        let blocks = (last - first) as u32;
        let per_stripe = self.writer.content.geometry.blocks_per_stripe();
        let mut slots = old.slots(per_stripe as usize, unit as u32);
        let places = first / unit..last / unit;
        let new = slots[places.clone()].iter().filter(|slot| slot.is_none());
        let held = self.writer.hold(ino, new.count() * unit).await?;
        let defers = self.writer.content.defers_copies(class, (index, old), (first as u32, blocks));
        let near = self.near((ino, index), first as u32, pieces, defers);
        let call = Allocate { blocks, unit: unit as u32, from_reserve: false, near };
        let mut reserved =
            self.writer.content.reserve(call, class, defers.then_some((ino, index))).await?;
        let sums = pieces.iter().flat_map(|piece| piece.checksums(unit));
        for (slot, checksum) in slots[places].iter_mut().zip(sums) {
            *slot = reserved.take(checksum);
        }
        let reserved = reserved.into_runs();
        let chunk = Chunk::from_slots(&slots, per_stripe, unit as u32);
        let end = start + (last * BLOCK) as u64;
        let mut draft =
            FreshChunk { index, chunk, reserved, end, here: Vec::new(), left: Vec::new(), held };
        for piece in pieces {
            self.place(&mut draft, piece, block_of(piece.range.start), unit);
        }
        Ok(draft)
    }

    /// Notes where `piece` goes, of which the first block is `first` of the chunk.
    fn place(&self, draft: &mut FreshChunk, piece: &WritePiece, first: usize, unit: usize) {
        let blocks = first..first + ((piece.range.end - piece.range.start) as usize) / BLOCK;
        for (stripe, offset, Range { start: lo, end: hi }) in
            self.writer.placed(&draft.chunk, blocks)
        {
            let from = (lo - first) * BLOCK;
            match &piece.source {
                PieceSource::Here(bytes) => {
                    let part = (offset, bytes.slice(from, (hi - first) * BLOCK));
                    add_part(&mut draft.here, stripe, part);
                }
                PieceSource::Left(process, sums) => {
                    let expect = joined(&sums[lo - first..hi - first], unit);
                    let (at, length) = (piece.range.start + from as u64, (hi - lo) * BLOCK);
                    let length = length as u32;
                    let part = BlocksToStore { stripe, offset, at, length, expect };
                    draft.left.push((*process, part));
                }
            }
        }
    }

    /// Has a process store what the client has left there.
    async fn have_stored(
        &self,
        request: &WriteDirect,
        process: u32,
        order: ProcessOrder,
    ) -> StoreOutcome {
        let ProcessOrder { parts, parity, made } = order;
        let node = parts.first().and_then(|part| self.node_at(process, part.stripe));
        let (Some(port), Some(node)) = (request.source.port(process), node) else {
            return StoreOutcome::NotStored;
        };
        if parts.len() > SEND_PARTS_MAX {
            return StoreOutcome::NotStored;
        }
        let stripes: Vec<u64> = parts.iter().map(|part| part.stripe).collect();
        let (client, transfer) = (request.source.client, request.source.transfer);
        let call = StoreDeposit { port: port.0, client, transfer, parts, parity };
        match self.writer.content.context().spawn(node, call).await {
            Ok(StoredDeposit { boot_ids, parity }) if boot_ids.len() == stripes.len() => {
                let stored = stripes.into_iter().zip(boot_ids);
                let stored = stored.map(|(stripe, boot_id)| Unsynced { stripe, boot_id });
                let mut stored: Vec<Unsynced> = stored.collect();
                let made = self.with_checksums(made, parity, &mut stored);
                StoreOutcome::Stored(stored, made)
            }
            Err(why) if why.is_lost() => StoreOutcome::Unknown,
            Ok(_) | Err(_) => StoreOutcome::NotStored,
        }
    }

    /// A file-system node of a process: that of `stripe`, if it is there.
    fn node_at(&self, process: u32, stripe: u64) -> Option<NodeId> {
        let process_of = |node: NodeId| self.writer.content.context().process_of(node);
        let cache = self.writer.content.stripes.node_of(stripe);
        let cache = cache.filter(|node| process_of(*node) == Some(process));
        cache.or_else(|| self.first_node_of(process))
    }

    /// A file-system node of a process, if it has one.
    fn first_node_of(&self, process: u32) -> Option<NodeId> {
        let context = self.writer.content.context();
        let mut nodes = (0..context.fs_nodes()).map(NodeId::fs);
        nodes.find(|node| context.process_of(*node) == Some(process))
    }

    /// The chunks as they are to be installed, once all of `written` is stored.
    fn chunk_writes(&self, fresh: Vec<FreshChunk>, written: &[Unsynced]) -> Vec<ChunkWrite> {
        // A stripe that was written in several parts has each boot ID: if the cache was lost in
        // between, the commit finds that out.
        let mut by_stripe: BTreeMap<u64, Vec<Unsynced>> = BTreeMap::new();
        for unsynced in written {
            by_stripe.entry(unsynced.stripe).or_default().push(*unsynced);
        }
        let write = |fresh: FreshChunk| {
            let FreshChunk { index, chunk, reserved, end, held, .. } = fresh;
            let mut stripes: Vec<u64> = reserved
                .iter()
                .map(|run| self.writer.content.geometry.block(run.start).0)
                .collect();
            stripes.dedup();
            let written = stripes.iter().filter_map(|stripe| by_stripe.get(stripe)).flatten();
            let written = written.copied().collect();
            let update = ChunkUpdate { index, chunk, written, wide: None };
            ChunkWrite { update, reserved, end, in_place: false, held }
        };
        fresh.into_iter().map(write).collect()
    }

    async fn give_back_all(&self, fresh: Vec<FreshChunk>) {
        let reserved = fresh.into_iter().flat_map(|chunk| chunk.reserved);
        self.writer.content.give_back(reserved.collect()).await;
    }

    /// The same once nothing can be written to the blocks any more.
    fn give_back_later(&self, fresh: Vec<FreshChunk>) {
        let reserved: Vec<Run> = fresh.into_iter().flat_map(|chunk| chunk.reserved).collect();
        let content = self.writer.content.clone();
        self.writer.content.context().task(async move {
            content.context().sleep(LATE_STORE_MAX).await;
            content.give_back(reserved).await;
        });
    }
}

/// What one process is to store.
#[derive(Default)]
struct ProcessOrder {
    parts: Vec<BlocksToStore>,
    parity: Vec<ParityToStore>,
    /// The wide stripes that come of that.
    made: Vec<LeftParity>,
}

/// What has become of bytes that another process was to store.
enum StoreOutcome {
    Stored(Vec<Unsynced>, Vec<LeftParity>),
    NotStored,
    /// They may still be stored.
    Unknown,
}

/// What each chunk gets of `pieces` of a write at `offset`. Of each there is its place in the file
/// and how many blocks its logical blocks have. None if something was left in the middle of a
/// logical block, or beside a part of one.
fn plan_chunks(
    pieces: &[WritePiece],
    offset: u64,
    chunk_size: u64,
    chunks: &[(u64, usize)],
) -> Option<Vec<ChunkPlan>> {
    let mut rest = pieces;
    let plan = |&(index, unit): &(u64, usize)| {
        let block = (unit * BLOCK) as u64;
        let start = index * chunk_size;
        let range = start.max(offset) - offset..start + chunk_size - offset;
        let done = rest.partition_point(|piece| piece.range.end <= range.start);
        rest = &rest[done..];
        let cut: Vec<WritePiece> = rest.iter().map_while(|piece| piece.within(&range)).collect();
        let is_whole = |piece: &WritePiece| {
            let ends = [piece.range.start, piece.range.end];
            ends.iter().all(|at| (offset + at).is_multiple_of(block))
        };
        if cut.iter().any(WritePiece::is_left) {
            return cut.iter().all(is_whole).then_some(ChunkPlan::Fresh(cut));
        }
        let from = cut.first().map_or(0, |piece| offset + piece.range.start - start);
        let bytes: Vec<Bytes> = cut.into_iter().flat_map(WritePiece::into_bytes).collect();
        Some(ChunkPlan::Usual(from as usize, ByteRope::new(bytes)))
    };
    chunks.iter().map(plan).collect()
}

impl WritePiece {
    fn into_bytes(self) -> Vec<Bytes> {
        match self.source {
            PieceSource::Here(bytes) => bytes.into_vec(),
            PieceSource::Left(..) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use runtime::delivery::{DeliveryTarget, DepositedRange};

    use super::*;
    use crate::protocol::Credentials;

    const B: u64 = BLOCK as u64;

    /// Blocks in sequence have the checksums 0, 1, and so on.
    fn request(offset: u64, data: usize, left: &[(u32, u64, usize)]) -> WriteDirect {
        let mut sum = 0..;
        let deposited = left.iter().map(|&(process, at, blocks)| {
            let checksums = sum.by_ref().take(blocks).collect();
            DepositedRange { process, at, checksums }
        });
        let (who, file) = (Credentials::root(), crate::protocol::Handle { ino: 1, generation: 1 });
        let data = vec![Bytes::from(vec![7; data])];
        let source = DeliveryTarget { client: 4, transfer: 5, ports: Vec::new() };
        let (deposited, parity) = (deposited.collect(), Vec::new());
        WriteDirect { who, file, offset, data, source, deposited, parity }
    }

    fn ranges(pieces: &[WritePiece]) -> Vec<(u64, u64, bool)> {
        pieces.iter().map(|it| (it.range.start, it.range.end, it.is_left())).collect()
    }

    #[test]
    fn what_came_and_what_was_left_are_put_in_order() {
        let write = request(100, 3996 + 2 * BLOCK + 5, &[(2, 3996, 1), (3, 4 * B - 100, 2)]);
        let pieces = pieces_of(&write).unwrap();
        let (end, last) = (6 * B - 100, 6 * B - 95);
        let expected = [
            (0, 3996, false),
            (3996, 2 * B - 100, true),
            (2 * B - 100, 4 * B - 100, false),
            (4 * B - 100, end, true),
            (end, last, false),
        ];
        assert_eq!(ranges(&pieces), expected);
    }

    #[test]
    fn parts_that_do_not_fit_together_are_refused() {
        let is_refused =
            |offset, data, left: &[_]| pieces_of(&request(offset, data, left)).is_none();
        assert!(!is_refused(0, 0, &[(1, 0, 1), (2, B, 1)]));
        assert!(is_refused(0, 0, &[(1, B, 1)]), "some bytes are nowhere");
        assert!(is_refused(0, 0, &[(1, 0, 2), (2, B, 1)]), "they overlap");
        assert!(is_refused(0, BLOCK, &[(1, B, 1), (2, 0, 1)]), "they are not in order");
        assert!(is_refused(0, 1, &[(1, 1, 1)]), "it begins within a block");
        assert!(is_refused(0, 0, &[(1, 0, 0)]), "it is empty");
        assert!(is_refused(0, 0, &[(1, 0, 1025)]), "it is too long");
        assert!(is_refused(u64::MAX, BLOCK, &[(1, B, 1)]) && is_refused(0, 1, &[(1, u64::MAX, 1)]));
    }

    #[test]
    fn chunks_get_whole_blocks_or_bytes_that_came() {
        let chunk = 4 * B;
        let plan = |write: &WriteDirect, chunks: Range<u64>| {
            let chunks: Vec<(u64, usize)> = chunks.map(|index| (index, 1)).collect();
            plan_chunks(&pieces_of(write).unwrap(), write.offset, chunk, &chunks)
        };
        // Twelve blocks but for the first and the last byte.
        let write = request(1, 8 * BLOCK - 2, &[(2, chunk - 1, 4)]);
        let plans = plan(&write, 0..3).unwrap();
        let [ChunkPlan::Usual(1, first), ChunkPlan::Fresh(left), ChunkPlan::Usual(0, last)] =
            &plans[..]
        else {
            panic!("not as it should be");
        };
        assert_eq!((first.length(), last.length()), (4 * BLOCK - 1, 4 * BLOCK - 1));
        assert_eq!(left[0].checksums(1), [0, 1, 2, 3]);
        // Whole blocks that came with the request.
        let plans = plan(&request(0, 2 * BLOCK, &[(2, 2 * B, 6)]), 0..2).unwrap();
        assert!(matches!(&plans[..], [ChunkPlan::Fresh(_), ChunkPlan::Fresh(_)]));
        let plans = plan(&request(0, 4 * BLOCK, &[(2, chunk, 4)]), 0..2).unwrap();
        let [ChunkPlan::Usual(0, first), ChunkPlan::Fresh(_)] = &plans[..] else {
            panic!("bytes that came may be written where they were");
        };
        assert_eq!(first.length(), 4 * BLOCK);
        // Beside a part of a block.
        assert!(plan(&request(1, 4095, &[(2, B - 1, 3)]), 0..1).is_none());
        // Several sources in one chunk, and one for several chunks.
        let write = request(0, BLOCK, &[(2, B, 2), (3, 3 * B, 5)]);
        let plans = plan(&write, 0..2).unwrap();
        let [ChunkPlan::Fresh(first), ChunkPlan::Fresh(second)] = &plans[..] else {
            panic!("not as it should be");
        };
        assert_eq!(ranges(first), [(0, B, false), (B, 3 * B, true), (3 * B, 4 * B, true)]);
        assert_eq!((first[2].checksums(1), second[0].checksums(1)), (vec![2], vec![3, 4, 5, 6]));
    }

    #[test]
    fn only_whole_logical_blocks_are_stored_where_they_were_left() {
        let plan = |write: &WriteDirect, unit| {
            plan_chunks(&pieces_of(write).unwrap(), write.offset, 8 * B, &[(0, unit)])
        };
        let whole = request(0, 2 * BLOCK, &[(2, 2 * B, 4), (3, 6 * B, 2)]);
        let plans = plan(&whole, 2).unwrap();
        let [ChunkPlan::Fresh(pieces)] = &plans[..] else { panic!("not as it should be") };
        assert_eq!(pieces.iter().map(|it| it.checksums(2).len()).collect::<Vec<_>>(), [1, 2, 1]);
        assert!(plan(&whole, 4).is_none(), "two sources for one logical block");
        assert!(plan(&request(2 * B, 0, &[(2, 0, 4)]), 4).is_none(), "a part of one");
        assert!(plan(&request(0, 0, &[(2, 0, 8)]), 8).is_some());
        let bytes: Vec<u8> = (0..4 * BLOCK).map(|at| (at / 3) as u8).collect();
        let sums = ByteRope::new(vec![bytes.clone().into()]).checksums(BLOCK);
        for unit in [1, 2, 4] {
            let all = ByteRope::new(vec![bytes.clone().into()]).checksums(unit * BLOCK);
            assert_eq!(joined(&sums, unit), all);
        }
    }
}
