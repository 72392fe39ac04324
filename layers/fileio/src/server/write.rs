//! Writing: whole blocks with known checksums go to the cache (ADR 5), then the map is changed.
//! Blocks that a record names are never rewritten; others are.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use blockio::protocol::Placed;
use blockio::{Answer, BootId};
use bytes::Bytes;
use futures::future::join_all;
use meta::InodeView;
use meta::attributes::access;
use meta::chunks::BlockSlot;
use meta::protocol::{
    Allocate, AppendRecord, BlockRun, Chunk, ChunkUpdate, GetVerifier, Install, Near, Run, Unsynced,
};

mod direct;
mod wide;

pub(super) use direct::DirectWriter;

use super::base::{MetadataAccess, or_again};
use super::changed_ranges::RangeChange;
use super::commit::{ContentComponents, FileCommits};
use super::content::ContentAccess;
use super::partial_block_cache::PartialBlockCache;
use super::reserve::ReservedBlocks;
use super::space_claims::SpaceHold;
use crate::pieces::ByteRope;
use crate::protocol::{
    Attributes, Credentials, Error, Handle, TRANSFER_MAX, WccAttr, Write, WriteResult, handle_of,
};
use crate::rules;

const BLOCK: usize = blockio::BLOCK_SIZE;

/// Logical blocks in a row with all of their new content.
pub(super) struct BlockSpan {
    /// The first block, counted within the chunk.
    pub(super) first: usize,
    pub(super) whole: ByteRope,
}

impl BlockSpan {
    fn blocks(&self) -> Range<usize> {
        self.first..self.first + self.whole.length() / BLOCK
    }

    /// Its places among logical blocks of `unit` blocks.
    fn places(&self, unit: usize) -> Range<usize> {
        let blocks = self.blocks();
        blocks.start / unit..blocks.end / unit
    }
}

/// New content of one chunk, and the blocks that were reserved for it.
pub(super) struct ChunkWrite {
    update: ChunkUpdate,
    reserved: Vec<Run>,
    /// The size of the file is at least this.
    end: u64,
    /// Blocks that a map names have new content: their checksums in the map are out of date.
    in_place: bool,
    /// The space that the file gets with it.
    held: Option<SpaceHold>,
}

/// New content of some blocks of a chunk, and where it goes, before the cache has it.
pub(super) struct ChunkDraft {
    index: u64,
    old: Chunk,
    /// The logical blocks of the chunk, as they will be.
    slots: Vec<Option<BlockSlot>>,
    /// Blocks of each.
    unit: usize,
    /// The same for the map.
    chunk: Chunk,
    reserved: Vec<Run>,
    in_place: bool,
    spans: Vec<BlockSpan>,
    /// The size of the file is at least this.
    end: u64,
    /// The space that the file gets with it.
    held: Option<SpaceHold>,
}

/// A part of a write: bytes of one chunk, from byte `from` of it on.
struct WritePart {
    index: u64,
    old: Chunk,
    from: usize,
    data: ByteRope,
}

/// For each stripe the parts to write, with their offsets.
type StripeWrites = Vec<(u64, Vec<(u32, ByteRope)>)>;

/// Why something is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WritePurpose {
    /// Data of a client: a part of a chunk, of which the rest may follow.
    Data,
    /// Parts of many chunks. Those of several chunks share a stripe, which gets one request.
    Parts,
    /// Zeros at the edge of a hole: on a full volume they come from the reserve.
    Relief,
}

impl WritePurpose {
    fn is_from_reserve(self) -> bool {
        self == Self::Relief
    }
}

/// What is to be noted of a change of content when it is installed.
#[derive(Clone, Debug, Default)]
pub(super) struct ChangeNote {
    /// The bytes that it changes.
    pub(super) ranges: Vec<Range<u64>>,
    /// The number under which it was answered first, if that was lost.
    pub(super) order: Option<u64>,
    /// The append that it is.
    pub(super) append: Option<AppendRecord>,
    /// It is an append, or was one when it was answered first.
    pub(super) is_append: bool,
}

impl ChangeNote {
    /// Of a usual write.
    pub(super) fn of(range: Range<u64>) -> Self {
        Self { ranges: vec![range], ..Self::default() }
    }
}

/// Writes into the files of one node.
pub(super) struct FileWriter {
    base: MetadataAccess,
    content: Rc<ContentAccess>,
    commits: Rc<FileCommits>,
    partial_blocks: PartialBlockCache,
}

impl FileWriter {
    pub(super) fn new((base, content, commits): ContentComponents) -> Self {
        Self { base, content, commits, partial_blocks: PartialBlockCache::default() }
    }

    pub(super) async fn write(&self, request: Write) -> Result<WriteResult, Error> {
        let Write { file, durable, .. } = request;
        let mut written = or_again(self.write_once(&request).await);
        // Boxed, to keep the future of the usual case small.
        if written == Err(Error::Damaged {}) {
            Box::pin(self.commits.recover_lost_writes(file)).await;
            written = or_again(Box::pin(self.write_once(&request)).await);
        }
        if durable {
            Box::pin(self.commits.make_durable(file, written?, true)).await
        } else {
            written
        }
    }

    /// A file to which nothing was written.
    pub(super) async fn unchanged(&self, attributes: Attributes) -> Result<WriteResult, Error> {
        let write_verifier = self.base.meta_here(GetVerifier { ino: attributes.ino }).await?;
        let Attributes { ino, generation, .. } = attributes;
        let durable = |known: InodeView<'_>| Some(known.durable_sequence());
        let committed = self.base.information.look(ino, generation, durable).unwrap_or(0);
        let before = Some(WccAttr::of(&attributes));
        Ok(WriteResult { attributes, write_verifier, before, sequence: 0, committed })
    }

    async fn write_once(&self, request: &Write) -> Result<WriteResult, Error> {
        let &Write { ref who, file, offset, ref data, durable: _ } = request;
        let length: usize = data.iter().map(Bytes::len).sum();
        if length > TRANSFER_MAX as usize {
            return Err(Error::Invalid {});
        }
        let _writing = self.content.files.shared(file.ino).await;
        let before = self.base.attributes(file).await?;
        self.base.check_transfer(who, &before, access::WRITE)?;
        rules::check_range(offset, length as u64)?;
        if length == 0 {
            return self.unchanged(before).await;
        }
        let note = ChangeNote::of(offset..offset + length as u64);
        self.write_locked(who, &before, (offset, data.clone()), WritePurpose::Data, note).await
    }

    /// Writes at least one byte. The caller has locked the file.
    pub(super) async fn write_locked(
        &self,
        who: &Credentials,
        file: &Attributes,
        (offset, data): (u64, Vec<Bytes>),
        purpose: WritePurpose,
        note: ChangeNote,
    ) -> Result<WriteResult, Error> {
        let data = ByteRope::new(data);
        let end = offset + data.length() as u64;
        let chunk_size = u64::from(self.content.geometry.stripe_size);
        let handle = handle_of(file);

        let chunks = offset / chunk_size..end.div_ceil(chunk_size);
        let _held = self.content.lock_chunks(file.ino, chunks.clone()).await;
        let before = self.content.map(handle, chunks.clone()).await?;
        let parts = chunks.zip(before).map(|(index, old)| {
            let start = index * chunk_size;
            let (from, to) = (offset.max(start), end.min(start + chunk_size));
            let data = data.slice((from - offset) as usize, (to - offset) as usize);
            WritePart { index, old, from: (from - start) as usize, data }
        });
        let parts = self.write_parts(handle, offset..end, parts.collect(), purpose).await;
        self.install(who, file, parts, note).await
    }

    /// Installs in the map what was written of some chunks, as far as that succeeded.
    pub(super) async fn install(
        &self,
        who: &Credentials,
        file: &Attributes,
        parts: Vec<Result<ChunkWrite, Error>>,
        note: ChangeNote,
    ) -> Result<WriteResult, Error> {
        let (written, failure) = self.usable(parts).await;
        if let (true, Some(error)) = (written.is_empty(), failure) {
            return Err(error);
        }
        let reserved: Vec<Run> =
            written.iter().flat_map(|written| written.reserved.clone()).collect();
        let mark = match self.base.next_mark(handle_of(file), note.order).await {
            Ok(mark) => mark,
            Err(error) => {
                self.content.give_back(reserved).await;
                return Err(error);
            }
        };
        let ChangeNote { mut ranges, order, append, is_append } = note;
        if failure.is_some() {
            // What it has not written is not covered by it.
            let chunk_size = u64::from(self.content.geometry.stripe_size);
            let chunks: Vec<u64> = written.iter().map(|written| written.update.index).collect();
            let part = |range: &Range<u64>, index: u64| {
                let start = range.start.max(index * chunk_size);
                start..range.end.min((index + 1) * chunk_size)
            };
            let parts =
                ranges.iter().flat_map(|range| chunks.iter().map(|&index| part(range, index)));
            ranges = parts.filter(|part| !part.is_empty()).collect();
        }
        let change = RangeChange::new(mark.sequence, order).append(is_append);
        let size_min = written.iter().map(|written| written.end).max().unwrap_or(0);
        let are_deferred = wide::are_deferred(written.iter().map(|written| &written.update));
        // Held until the file has it.
        let (updates, _held): (Vec<_>, Vec<_>) =
            written.into_iter().map(|written| (written.update, written.held)).unzip();
        let call = Install {
            ino: file.ino,
            size_min,
            updates,
            time: self.base.now(),
            drop_setid: rules::without_setid(who, file) != file.mode,
            mark,
            append: append.filter(|_| failure.is_none()),
        };
        match self.base.meta_here(call).await {
            Ok(written) => {
                for range in ranges {
                    self.base.note_change(handle_of(file), range, change);
                }
                if are_deferred {
                    self.commits.commit_ahead(handle_of(file));
                }
                failure.map_or(Ok(written), Err)
            }
            Err(error) => {
                self.content.give_back(reserved).await;
                Err(error)
            }
        }
    }

    /// The chunks to install: all, or, after a failure, those with blocks that were rewritten in
    /// place, since a map with their old checksums would make damage of them. What was reserved
    /// for the others is given back.
    async fn usable(
        &self,
        parts: Vec<Result<ChunkWrite, Error>>,
    ) -> (Vec<ChunkWrite>, Option<Error>) {
        let mut whole = Vec::with_capacity(parts.len());
        let mut failure = None;
        for part in parts {
            match part {
                Ok(written) => whole.push(written),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        if failure.is_none() {
            return (whole, failure);
        }
        let (kept, dropped): (Vec<_>, Vec<_>) =
            whole.into_iter().partition(|written| written.in_place);
        self.content
            .give_back(dropped.into_iter().flat_map(|written| written.reserved).collect())
            .await;
        (kept, failure)
    }

    /// Writes `data` at byte `from` of the chunk `old` into the cache. The caller has locked the
    /// chunk.
    async fn write_chunk(
        &self,
        (file, index): (Handle, u64),
        old: Chunk,
        from: usize,
        data: ByteRope,
        purpose: WritePurpose,
    ) -> Result<ChunkWrite, Error> {
        let (to, chunk) = (from + data.length(), (file.ino, index));
        let unit = self.content.unit(file.ino, &old);
        let block = unit * BLOCK;
        let whole = self.complete(chunk, &old, (from, to, block), data).await?;
        let is_whole = from.is_multiple_of(block) && to.is_multiple_of(block);
        let kept = (!is_whole).then(|| whole.clone());
        let spans = vec![BlockSpan { first: from / block * unit, whole }];
        let written = self.write_spans((file, index), old, spans, to, purpose).await?;
        if let Some(whole) = kept {
            self.partial_blocks.keep(chunk, &written.update.chunk, (from, to), &whole);
        }
        Ok(written)
    }

    /// Puts blocks of the chunk `old`, in order, into the cache. The file then has the bytes of the
    /// chunk before `to`. The caller has locked the chunk.
    async fn write_spans(
        &self,
        (file, index): (Handle, u64),
        old: Chunk,
        spans: Vec<BlockSpan>,
        to: usize,
        purpose: WritePurpose,
    ) -> Result<ChunkWrite, Error> {
        let draft = self.draft((file.ino, index), old, spans, to, purpose).await?;
        let filled = self.fill(self.parts(&draft)).await;
        self.conclude(file, draft, filled).await
    }

    /// Reserves blocks for `spans` of the chunk `old`, as [`write_spans`](Self::write_spans) does,
    /// and says where everything goes.
    pub(super) async fn draft(
        &self,
        (ino, index): (u64, u64),
        old: Chunk,
        spans: Vec<BlockSpan>,
        to: usize,
        purpose: WritePurpose,
    ) -> Result<ChunkDraft, Error> {
        let per_stripe = self.content.geometry.blocks_per_stripe();
        let unit = self.content.unit(ino, &old);
        let class = self.content.class_of(ino).await?;
        let mut slots = old.slots(per_stripe as usize, unit as u32);
        let new = spans.iter().flat_map(|span| span.places(unit));
        let new = new.filter(|&place| slots[place].is_none());
        let held = self.hold(ino, new.count() * unit).await?;
        // Blocks that a record names, and holes, get new blocks.
        let needs = |slot: &Option<BlockSlot>| slot.is_none_or(|slot| slot.sealed);
        let places = spans.iter().flat_map(|span| span.places(unit));
        let mut places = places.filter(|&place| needs(&slots[place]));
        let mut reserved = match places.next() {
            None => ReservedBlocks::default(),
            Some(first) => {
                let unit = unit as u32;
                let blocks = (1 + places.count() as u32) * unit;
                let from_reserve = purpose.is_from_reserve();
                let apart = purpose == WritePurpose::Data && index > 0;
                let skip = first as u32 * unit;
                let defers = purpose == WritePurpose::Data
                    && self.content.defers_copies(class, (index, &old), (skip, blocks));
                let near = match self.near(&old, skip as usize, blocks, apart) {
                    Near::Anywhere {} | Near::Apart { .. } if defers => {
                        ContentAccess::in_domain((ino, index), skip, None)
                    }
                    near => near,
                };
                let call = Allocate { blocks, unit, from_reserve, near };
                self.content.reserve(call, class, defers.then_some((ino, index))).await?
            }
        };
        let mut in_place = false;
        let bytes = unit * BLOCK;
        for span in &spans {
            for (i, slot) in slots[span.places(unit)].iter_mut().enumerate() {
                let checksum = span.whole.checksum(i * bytes, (i + 1) * bytes);
                *slot = match *slot {
                    Some(slot) if !slot.sealed => {
                        in_place = true;
                        Some(BlockSlot { checksum, ..slot })
                    }
                    _ => Some(reserved.take(checksum).ok_or(Error::Damaged {})?),
                };
            }
        }
        let chunk = Chunk::from_slots(&slots, per_stripe, unit as u32);
        let end = index * u64::from(self.content.geometry.stripe_size) + to as u64;
        let reserved = reserved.into_runs();
        Ok(ChunkDraft { index, old, slots, unit, chunk, reserved, in_place, spans, end, held })
    }

    /// Holds space for `blocks` new blocks of a file.
    async fn hold(&self, ino: u64, blocks: usize) -> Result<Option<SpaceHold>, Error> {
        self.base.partitions.hold(ino, (blocks * BLOCK) as u64).await
    }

    /// Where to allocate `blocks` blocks of a chunk, the first of them at place `first`: where they
    /// would be if the chunk had been written at once. A chunk that is written in pieces (records
    /// of several writers, a growing log) is then in one stripe, read by one message, and one entry
    /// of the map. With `apart` the chunk gets a stripe of its own; not the first chunk of a file,
    /// since small files share stripes.
    fn near(&self, chunk: &Chunk, first: usize, blocks: u32, apart: bool) -> Near {
        let before = chunk.runs.iter().rev().find(|run| run.end() as usize <= first);
        let Some(run) = before.or_else(|| chunk.runs.first()) else {
            let is_part = blocks < self.content.geometry.blocks_per_stripe();
            let skip = first as u32;
            return if apart && is_part { Near::Apart { skip } } else { Near::Anywhere {} };
        };
        let at = (run.start + first as u64).checked_sub(u64::from(run.at));
        let stripe_of = |block: u64| self.content.geometry.block(block).0;
        match at {
            Some(block) if stripe_of(block) == stripe_of(run.start) => {
                Near::At { block, or_apart: apart }
            }
            _ => Near::Anywhere {},
        }
    }

    /// Completes a draft, once the cache has it or has failed.
    async fn conclude(
        &self,
        file: Handle,
        draft: ChunkDraft,
        filled: Result<Vec<Unsynced>, Error>,
    ) -> Result<ChunkWrite, Error> {
        let ChunkDraft { index, old, slots, unit, chunk, reserved, in_place, spans, end, held } =
            draft;
        match filled {
            Ok(written) => {
                let update = ChunkUpdate { index, chunk, written, wide: None };
                Ok(ChunkWrite { update, reserved, end, in_place, held })
            }
            Err(error) => {
                self.content.give_back(reserved).await;
                self.learn_content((file, index), &old, (&slots, unit), &spans).await;
                Err(error)
            }
        }
    }

    /// Puts drafts of several chunks into the cache together: chunks may share a stripe, which
    /// gets one request. The caller has locked the chunks.
    pub(super) async fn write_together(
        &self,
        file: Handle,
        drafts: Vec<Result<ChunkDraft, Error>>,
    ) -> Vec<Result<ChunkWrite, Error>> {
        let mut together: BTreeMap<u64, Vec<(u32, ByteRope)>> = BTreeMap::new();
        let mut touched: Vec<Vec<u64>> = Vec::with_capacity(drafts.len());
        for draft in &drafts {
            let parts = draft.as_ref().map_or_else(|_| Vec::new(), |draft| self.parts(draft));
            touched.push(parts.iter().map(|&(stripe, _)| stripe).collect());
            for (stripe, parts) in parts {
                together.entry(stripe).or_default().extend(parts);
            }
        }
        let writes = together.into_iter().map(|(stripe, parts)| {
            let writing = self.put(stripe, parts);
            async move { (stripe, writing.await) }
        });
        // All of them are awaited: after a failure no write may still be on its way.
        let boot_ids: BTreeMap<_, _> = join_all(writes).await.into_iter().collect();
        let unsynced = |stripe: u64| Ok(Unsynced { stripe, boot_id: boot_ids[&stripe]? });
        let mut written = Vec::with_capacity(drafts.len());
        for (draft, stripes) in drafts.into_iter().zip(touched) {
            written.push(match draft {
                Ok(draft) => {
                    let filled = stripes.into_iter().map(unsynced).collect();
                    self.conclude(file, draft, filled).await
                }
                Err(error) => Err(error),
            });
        }
        written
    }

    /// After a write that failed half-way: blocks that it rewrote in place may be old or new. The
    /// map gets the checksums of those that are new; what is neither is lost, and stays damaged
    /// until a commit finds that out.
    async fn learn_content(
        &self,
        (file, index): (Handle, u64),
        old: &Chunk,
        (new, unit): (&[Option<BlockSlot>], usize),
        spans: &[BlockSpan],
    ) {
        let per_stripe = self.content.geometry.blocks_per_stripe();
        let mut slots = old.slots(per_stripe as usize, unit as u32);
        for place in spans.iter().flat_map(|span| span.places(unit)) {
            let (Some(slot), Some(new)) = (&mut slots[place], &new[place]) else { continue };
            if slot.sealed {
                continue;
            }
            let (stripe, offset) = self.content.geometry.block(slot.block);
            let length = (unit * BLOCK) as u32;
            match self.content.stripes.read(stripe, offset, length, Vec::new()).await {
                Ok(content) if runtime::hash::crc32c(&content) == new.checksum => {
                    slot.checksum = new.checksum;
                }
                Ok(_) => {}
                // Then the block stays damaged, and readers get an error.
                Err(error) => tracing::warn!(%error, "a block is unknown after a failed write"),
            }
        }
        let chunk = Chunk::from_slots(&slots, per_stripe, unit as u32);
        let mark = match self.base.next_mark(file, None).await {
            Ok(mark) => mark,
            Err(error) => {
                tracing::warn!(%error, "the map could not be mended after a failed write");
                return;
            }
        };
        let call = Install {
            ino: file.ino,
            // The boot ids under which its blocks were written are known already.
            updates: vec![ChunkUpdate { index, chunk, written: Vec::new(), wide: None }],
            size_min: 0,
            time: self.base.now(),
            drop_setid: false,
            mark,
            append: None,
        };
        if let Err(error) = self.base.meta_here(call).await {
            tracing::warn!(%error, "the map could not be mended after a failed write");
        }
    }

    /// `data`, which are bytes `from..to` of a chunk, with the rest of its first and last logical
    /// block round it.
    async fn complete(
        &self,
        chunk: (u64, u64),
        old: &Chunk,
        (from, to, block): (usize, usize, usize),
        data: ByteRope,
    ) -> Result<ByteRope, Error> {
        let (start, end) = (from / block * block, to.next_multiple_of(block));
        if start == from && end == to {
            return Ok(data);
        }
        let before = self.rest_of_block(chunk, old, start..from).await?;
        let after = self.rest_of_block(chunk, old, to..end).await?;
        Ok(ByteRope::join([ByteRope::new(before), data, ByteRope::new(after)]))
    }

    /// Bytes of one logical block of the chunk `old`, of the last write here or from the cache.
    async fn rest_of_block(
        &self,
        chunk: (u64, u64),
        old: &Chunk,
        range: Range<usize>,
    ) -> Result<Vec<Bytes>, Error> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(known) = self.partial_blocks.find(chunk, old, &range) {
            return Ok(vec![known]);
        }
        let read = self.content.read_in_block((chunk, old), range).await?;
        // Copied: a reference to a part of a line would make the cache copy all of it at the next
        // write, which is this one.
        Ok(vec![Bytes::copy_from_slice(&read)])
    }

    /// What a draft puts into each stripe.
    fn parts(&self, draft: &ChunkDraft) -> StripeWrites {
        let mut by_stripe: StripeWrites = Vec::with_capacity(1);
        for span in &draft.spans {
            let blocks = span.blocks();
            for (stripe, offset, Range { start: lo, end: hi }) in self.placed(&draft.chunk, blocks)
            {
                let part = span.whole.slice((lo - span.first) * BLOCK, (hi - span.first) * BLOCK);
                add_part(&mut by_stripe, stripe, (offset, part));
            }
        }
        by_stripe
    }

    /// Where these blocks of a chunk are, and those further copies that are written with them:
    /// stripe, offset there, and which of them, in a row.
    fn placed(
        &self,
        chunk: &Chunk,
        blocks: Range<usize>,
    ) -> impl Iterator<Item = (u64, u32, Range<usize>)> {
        let places = |run| BlockRun::written_places(run).map(move |place| (run, place));
        let places = chunk.runs.iter().flat_map(places);
        places.filter_map(move |(run, place)| {
            let start = usize::from(run.at);
            let part = blocks.start.max(start)..blocks.end.min(run.end() as usize);
            if part.is_empty() {
                return None;
            }
            let block = place.start + (part.start - start) as u64;
            let (stripe, offset) = self.content.geometry.block(block);
            Some((stripe, offset, part))
        })
    }

    /// Puts parts into the cache, by one request for each stripe. Returns what has to be synced.
    async fn fill(&self, by_stripe: StripeWrites) -> Result<Vec<Unsynced>, Error> {
        let mut writes = by_stripe.into_iter().map(|(stripe, parts)| {
            let writing = self.put(stripe, parts);
            async move { Ok(Unsynced { stripe, boot_id: writing.await? }) }
        });
        // All of them are awaited: after a failure no write may still be on its way.
        match (writes.next(), writes.next()) {
            (Some(only), None) => Ok(vec![only.await?]),
            (first, second) => {
                let writes = first.into_iter().chain(second).chain(writes);
                join_all(writes).await.into_iter().collect()
            }
        }
    }

    /// Puts some parts of one stripe into the cache.
    fn put(&self, stripe: u64, mut parts: Vec<(u32, ByteRope)>) -> Answer<BootId> {
        if parts.len() == 1
            && let Some((offset, part)) = parts.pop()
        {
            return self.content.stripes.write(stripe, offset, part.into_vec());
        }
        let mut placed = Vec::new();
        for (mut offset, part) in parts {
            for data in part.into_vec() {
                let next = offset + data.len() as u32;
                placed.push(Placed { offset, data });
                offset = next;
            }
        }
        self.content.stripes.write_list(stripe, placed)
    }
}

/// Adds one more part of a stripe.
fn add_part(by_stripe: &mut StripeWrites, stripe: u64, part: (u32, ByteRope)) {
    match by_stripe.iter_mut().find(|(known, _)| *known == stripe) {
        Some((_, parts)) => parts.push(part),
        None => by_stripe.push((stripe, vec![part])),
    }
}
