//! Whole chunks of files that did not become wide stripes with their commit do so in the
//! background, some time after they were written (ADR 97). Until then they have copies. What is not
//! stored as the class of its file wants, since that has changed, is stored anew (ADR 99).
//!
//! A wide stripe with many dead blocks is made anew of what its chunks have now. One whose chunks
//! are not whole any more is dissolved when copies of what is live take less space.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range};
use std::rc::Rc;
use std::time::Duration;

use blockio::volume_map::classes_of;
use blockio::{BLOCK_SIZE, DiskName, RedundancyClass, WideStripeShape};
use bytes::{Bytes, BytesMut};
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;

use super::allocate::Allocator;
use super::content_mover::wide_stripes::WideStripeChange;
use super::content_mover::{ContentMover, MovePlan, QuietFile};
use super::disk_mover::DiskMover;
use super::encode_queue::{EncodeQueue, ScanExtent};
use crate::erasure::ErasureCode;
use crate::keys::{self, KeyTable};
use crate::protocol::{
    Allocate, BlockRun, Chunk, Error, Mirrors, Near, PlacedWideStripe, Run, RunForm, StripeShard,
    Unsynced, WideStripe,
};
use crate::server::base::NodeBase;
use crate::server::record_log::decode;
use crate::server::wide_stripe_table::WideStripeTable;
use crate::store::StoreError;
use crate::wide_stripe::{
    are_apart, chunks_together, failure_domain_of, has_disks_for, is_online, is_stored_as,
    may_change,
};

/// The pause before a file that is written to is looked at again.
const IN_USE_PAUSE: Duration = Duration::from_secs(2);
/// The pause before what could not become a wide stripe is tried again, and the longest.
const RETRY_PAUSE: Duration = Duration::from_secs(4);
const RETRY_PAUSE_MAX: Duration = Duration::from_mins(1);
/// Keys that are looked at at a time for chunks that no one has noted.
const SCANNED_MAX: usize = 256;

/// Makes the wide stripes of one node.
pub(crate) struct WideStripeEncoder {
    base: Rc<NodeBase>,
    mover: Rc<ContentMover>,
    table: Rc<WideStripeTable>,
    allocator: Rc<Allocator>,
    disks: Rc<DiskMover>,
    queue: Rc<EncodeQueue>,
    running: Cell<bool>,
    has_looked: Cell<bool>,
}

/// What is done with a file that is being written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InUse {
    /// It is left alone: it will be written to its end, or cut.
    Leave,
    /// Its turn comes all the same: else a file that is always written to never got its class.
    Wait,
}

/// What became of chunks that were to be a wide stripe, or to get copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EncodeOutcome {
    /// There is nothing to be done.
    Done,
    /// There may be more to be done at once.
    Again,
    /// The file is being written to.
    InUse,
    /// It may be possible later.
    Later,
}

impl WideStripeEncoder {
    pub(super) fn new(
        base: &Rc<NodeBase>,
        (mover, table): (Rc<ContentMover>, Rc<WideStripeTable>),
        allocator: Rc<Allocator>,
        disks: Rc<DiskMover>,
        queue: Rc<EncodeQueue>,
    ) -> Rc<Self> {
        let (base, running, has_looked) = (base.clone(), Cell::default(), Cell::default());
        let encoder = Self { base, mover, table, allocator, disks, queue, running, has_looked };
        let encoder = Rc::new(encoder);
        let weak = Rc::downgrade(&encoder);
        encoder.queue.on_note(move || {
            if let Some(encoder) = weak.upgrade() {
                encoder.start();
            }
        });
        encoder
    }

    /// Can there be anything to do?
    fn has_work(&self) -> bool {
        let classes = classes_of(&self.base.stripes.map());
        classes.have_wide_stripes() || classes.differ()
    }

    /// Pieces of files that are to be looked at, as far as they are known.
    pub(crate) fn waiting(&self) -> u64 {
        // One may be looked at just now, or all will be, soon after a start.
        let is_unknown = self.has_work() && !self.has_looked.get();
        self.queue.waiting().max(u64::from(self.running.get() || is_unknown))
    }

    /// Waits for nothing from now on.
    pub(crate) fn encode_at_once(&self) {
        self.queue.set_eager();
    }

    /// Looks at all chunks of the node, if it has not done so since it started.
    pub(crate) fn look_at_all_once(self: &Rc<Self>) {
        if !self.has_looked.replace(true) {
            self.look_at_all();
        }
    }

    /// Disks have changed: looks at all chunks of the node.
    pub(crate) fn look_at_all(self: &Rc<Self>) {
        if self.has_work() {
            self.queue.note_all();
        }
    }

    /// Begins in the background, if it has not.
    fn start(self: &Rc<Self>) {
        if !self.has_work() || self.running.replace(true) {
            return;
        }
        let me = self.clone();
        self.base.context.task(async move {
            let _mover = me.disks.pace().begin_moves(me.base.context.now());
            let mut pause = RETRY_PAUSE;
            while let Some(due) = me.queue.next_due() {
                let now = me.base.context.now();
                if due > now {
                    me.base.context.sleep(due.saturating_sub(now)).await;
                    continue;
                }
                let is_stuck = me.run_round(pause).await;
                pause = if is_stuck { (2 * pause).min(RETRY_PAUSE_MAX) } else { RETRY_PAUSE };
            }
            me.running.set(false);
        });
    }

    /// Does what is due. True if something has to wait for `pause`.
    async fn run_round(&self, pause: Duration) -> bool {
        let mut is_stuck = false;
        if let Some(extent) = self.queue.take_scan()
            && let Err(error) = self.scan(&extent).await
        {
            tracing::debug!(%error, "chunks cannot be looked at");
            self.queue.scan_later(extent);
            self.base.context.sleep(pause).await;
            is_stuck = true;
        }
        let now = self.base.context.now();
        while let Some(what) = self.queue.take(now) {
            match self.visit(what).await {
                Ok(EncodeOutcome::Done) | Err(Error::Stale {}) => {}
                Ok(EncodeOutcome::Again) => self.queue.put(what, self.base.context.now()),
                Ok(EncodeOutcome::InUse) => self.queue.put(what, now + IN_USE_PAUSE),
                outcome => {
                    tracing::debug!(?outcome, ?what, "chunks are not stored as they shall be yet");
                    is_stuck = true;
                    self.queue.put(what, self.base.context.now() + pause);
                }
            }
        }
        is_stuck
    }

    /// Notes those of the next chunks, or wide stripes, in the store for which there may be
    /// something to do.
    async fn scan(&self, extent: &ScanExtent) -> Result<(), Error> {
        let (from, end) = match extent {
            ScanExtent::File(ino, next) => {
                (Bound::Included(keys::chunk(*ino, *next)), keys::chunks_end(*ino))
            }
            ScanExtent::Node(after) => {
                let (start, end) = keys::all(keys::table_of(after).unwrap_or(KeyTable::Chunk));
                (Bound::Excluded(start.max(after.clone())), end)
            }
        };
        let after = from.as_ref().map(Vec::as_slice);
        let found = self.base.store.scan(after, &end, SCANNED_MAX).await?;
        let mut settled = BTreeSet::new();
        for (key, value) in &found {
            let scanned = match keys::table_of(key) {
                Some(KeyTable::WideStripe) => self.scan_wide_stripe(key, value).await,
                _ => self.scan_chunk(key, value, &mut settled).await,
            };
            match scanned {
                // It was removed, and is being freed; or it is damaged, which a check tells.
                Ok(()) | Err(Error::Stale {} | Error::Damaged {}) => {}
                Err(error) => return Err(error),
            }
        }
        let last = found.last().filter(|_| found.len() == SCANNED_MAX).map(|(key, _)| key.to_vec());
        let next = match (extent, last) {
            (ScanExtent::File(ino, _), Some(last)) => {
                keys::chunk_index(&last).map(|index| ScanExtent::File(*ino, index + 1))
            }
            (ScanExtent::Node(_), Some(last)) => Some(ScanExtent::Node(last)),
            // The chunks of a wide stripe may all be holes.
            (ScanExtent::Node(_), None) if end == keys::all(KeyTable::Chunk).1 => {
                Some(ScanExtent::Node(keys::all(KeyTable::WideStripe).0))
            }
            _ => None,
        };
        if let Some(next) = next {
            self.queue.scan_later(next);
        }
        Ok(())
    }

    /// Notes a wide stripe that is of another class than its file, or has many dead blocks.
    async fn scan_wide_stripe(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let ino = keys::chunk_ino(key).ok_or(Error::Damaged {})?;
        let first = keys::chunk_index(key).ok_or(Error::Damaged {})?;
        let wide = self.table.decode(value)?;
        let class = self.base.class_of(ino).await?;
        let chunks = self.table.chunks(ino, first, wide.chunks()).await?;
        let blocks = self.base.stripes.geometry().blocks_per_stripe();
        let is_fit = class.wide_stripes() == Some(wide.shape());
        if !is_fit || work_on(Some(&wide), &chunks, blocks).is_some() {
            let together = chunks_together(class);
            self.queue.put((ino, first / together * together), self.base.context.now());
        }
        Ok(())
    }

    /// Notes a chunk, unless it is among those that are `settled` already.
    async fn scan_chunk(
        &self,
        key: &[u8],
        value: &[u8],
        settled: &mut BTreeSet<(u64, u64)>,
    ) -> Result<(), Error> {
        let ino = keys::chunk_ino(key).ok_or(Error::Damaged {})?;
        let index = keys::chunk_index(key).ok_or(Error::Damaged {})?;
        let class = self.base.class_of(ino).await?;
        let together = chunks_together(class);
        let first = index / together * together;
        let chunk: Chunk = decode(value)?;
        if self.needs_visit(class, &chunk) {
            self.queue.put((ino, first), self.base.context.now());
        } else if settled.insert((ino, first)) {
            let chunks = first..first + together;
            if self.unfit_wide_stripe(ino, chunks, class).await?.is_some() {
                self.queue.put((ino, first), self.base.context.now());
            }
        }
        Ok(())
    }

    /// Does a chunk of this class, as it is, have to be looked at with its neighbours?
    fn needs_visit(&self, class: RedundancyClass, chunk: &Chunk) -> bool {
        let blocks = u64::from(self.base.stripes.geometry().blocks_per_stripe());
        may_change(class, chunk)
            && (chunk.count() == blocks || !chunk.runs.iter().all(|run| is_stored_as(class, run)))
    }

    /// A wide stripe of another class than the file has now that has some of these chunks.
    async fn unfit_wide_stripe(
        &self,
        ino: u64,
        chunks: Range<u64>,
        class: RedundancyClass,
    ) -> Result<Option<PlacedWideStripe>, Error> {
        if !classes_of(&self.base.stripes.map()).differ() {
            return Ok(None);
        }
        let is_fit = |PlacedWideStripe { first, wide }: &PlacedWideStripe| {
            *first == chunks.start && class.wide_stripes() == Some(wide.shape())
        };
        let found = self.table.within(ino, chunks.clone()).await?;
        Ok(found.into_iter().find(|wide| !is_fit(wide)))
    }

    /// Looks at some chunks of a file together, those round chunk `at`, and does what is to be done
    /// with them.
    async fn visit(&self, (ino, at): (u64, u64)) -> Result<EncodeOutcome, Error> {
        let class = self.base.class_of(ino).await?;
        let together = chunks_together(class);
        let first = at / together * together;
        let chunks = first..first + together;
        if let Some(unfit) = self.unfit_wide_stripe(ino, chunks.clone(), class).await? {
            return self.end_wide_stripe(ino, unfit, class).await;
        }
        let encoded = match class.wide_stripes() {
            Some(shape) => self.visit_wide((ino, first), (class, shape)).await?,
            None => EncodeOutcome::Done,
        };
        // What is in no wide stripe yet has copies meanwhile.
        if encoded != EncodeOutcome::Again && classes_of(&self.base.stripes.map()).differ() {
            let copied = self.visit_copies((ino, chunks), class).await?;
            return Ok(if copied == EncodeOutcome::Done { encoded } else { copied });
        }
        Ok(encoded)
    }

    /// Dissolves a wide stripe of another class than the file has now.
    async fn end_wide_stripe(
        &self,
        ino: u64,
        unfit: PlacedWideStripe,
        class: RedundancyClass,
    ) -> Result<EncodeOutcome, Error> {
        let PlacedWideStripe { first, wide } = unfit;
        let Some(_quiet) = self.quiet((ino, class), wide.chunks(), InUse::Wait).await? else {
            return Ok(EncodeOutcome::InUse);
        };
        // It may have changed meanwhile.
        if self.table.get(ino, first).await?.as_ref() != Some(&wide) {
            return Ok(EncodeOutcome::Again);
        }
        let copies = class.copies() as usize;
        if !self.mover.dissolve(&EncodePlan(self), (ino, first), (&wide, copies)).await? {
            return Ok(EncodeOutcome::Later);
        }
        let together = chunks_together(class);
        for index in first..first + wide.chunks() {
            self.queue.put((ino, index / together * together), self.base.context.now());
        }
        Ok(EncodeOutcome::Again)
    }

    /// Gives chunks that are in no wide stripe as many copies as their file shall have.
    async fn visit_copies(
        &self,
        (ino, chunks): (u64, Range<u64>),
        class: RedundancyClass,
    ) -> Result<EncodeOutcome, Error> {
        let is_unfit = |run: &BlockRun| !run.form.covered && !is_stored_as(class, run);
        let count = chunks.end - chunks.start;
        let found = self.table.chunks(ino, chunks.start, count).await?;
        if !found.iter().flat_map(|chunk| &chunk.runs).any(is_unfit) {
            return Ok(EncodeOutcome::Done);
        }
        let Some(_quiet) = self.quiet((ino, class), count, InUse::Wait).await? else {
            return Ok(EncodeOutcome::InUse);
        };
        let copies = class.copies() as usize;
        let done = self.mover.set_copies(&EncodePlan(self), (ino, chunks), copies).await?;
        Ok(if done { EncodeOutcome::Done } else { EncodeOutcome::Later })
    }

    /// Commits a file and keeps all others from it, in its turn for as many chunks; `None` if it is
    /// in use and is to be left alone then, unless space is short, or has got another class.
    async fn quiet(
        &self,
        (ino, class): (u64, RedundancyClass),
        chunks: u64,
        in_use: InUse,
    ) -> Result<Option<QuietFile>, Error> {
        let is_pressing = self.queue.is_eager() || self.base.store.space().is_short();
        let is_in_use = self.base.inodes.with(ino, |active| Ok(!active.is_clean()));
        if is_in_use == Ok(true) && in_use == InUse::Leave && !is_pressing {
            return Ok(None);
        }
        if !is_pressing {
            let blocks = u64::from(self.base.stripes.geometry().blocks_per_stripe());
            self.disks.wait_for_pace(chunks * blocks * BLOCK_SIZE as u64).await;
        }
        let quiet = self.mover.quiet(ino).await?;
        Ok(quiet.filter(|_| self.base.class_at_hand(ino) == class))
    }

    /// Looks at the chunks of one wide stripe, and does what is to be done with them.
    async fn visit_wide(
        &self,
        (ino, first): (u64, u64),
        (class, shape): (RedundancyClass, WideStripeShape),
    ) -> Result<EncodeOutcome, Error> {
        let blocks = self.base.stripes.geometry().blocks_per_stripe();
        let known = self.table.get(ino, first).await?;
        let count = known.as_ref().map_or(u64::from(shape.data), WideStripe::chunks);
        let chunks = self.table.chunks(ino, first, count).await?;
        let Some(work) = work_on(known.as_ref(), &chunks, blocks) else {
            return Ok(EncodeOutcome::Done);
        };
        if work == EncodeWork::Encode && !has_disks_for(&self.base.stripes.map(), shape.shards()) {
            return Ok(EncodeOutcome::Later);
        }
        let Some(_quiet) = self.quiet((ino, class), count, InUse::Leave).await? else {
            return Ok(EncodeOutcome::InUse);
        };
        // It may have changed meanwhile.
        if self.unfit_wide_stripe(ino, first..first + count, class).await?.is_some() {
            return Ok(EncodeOutcome::Again);
        }
        let known = self.table.get(ino, first).await?;
        let chunks = self.table.chunks(ino, first, count).await?;
        match (work_on(known.as_ref(), &chunks, blocks), &known) {
            (Some(EncodeWork::Encode), _) => {
                let parity = shape.parity as usize;
                self.encode((ino, first), known, (chunks, parity)).await
            }
            (Some(EncodeWork::Dissolve), Some(wide)) => {
                let copies = 1 + wide.parity.len();
                let plan = EncodePlan(self);
                if !self.mover.dissolve(&plan, (ino, first), (wide, copies)).await? {
                    return Ok(EncodeOutcome::Later);
                }
                tracing::debug!(ino, first, "a wide stripe with dead blocks is dissolved");
                Ok(EncodeOutcome::Done)
            }
            _ => Ok(EncodeOutcome::Done),
        }
    }

    /// Makes a wide stripe of whole chunks. The file is quiet.
    async fn encode(
        &self,
        (ino, first): (u64, u64),
        known: Option<WideStripe>,
        (chunks, parity): (Vec<Chunk>, usize),
    ) -> Result<EncodeOutcome, Error> {
        let blocks = self.base.stripes.geometry().blocks_per_stripe();
        let unit = chunks.first().map_or(1, |chunk| chunk.unit_or(1));
        let Some(placed) = self.place(&chunks, parity, blocks).await? else {
            return Ok(EncodeOutcome::Later);
        };
        let ShardPlaces { kept, starts, taken } = placed;
        let written = self.write_shards(known.as_ref(), &chunks, (&kept, &starts)).await;
        let (written, parity) = match written {
            Ok(written) => written,
            Err(error) => {
                self.allocator.release(taken).await?;
                return Err(error);
            }
        };
        let shard = |(&start, chunk)| StripeShard { start, checksums: checksums(chunk) };
        let data = starts.iter().zip(&chunks).map(shard).collect();
        let wide = WideStripe { data, parity };
        let whole = |start: u64| Run { start, count: blocks };
        let stays = |start: u64| kept.contains(&Some(start));
        let mut freed: Vec<Run> = chunks.iter().flat_map(Chunk::disk_runs).collect();
        freed.extend(known.iter().flat_map(|known| known.runs(blocks)));
        freed.retain(|run| !stays(run.start) || *run != whole(run.start));
        let chunks = wide.data.iter().enumerate().map(|(number, shard)| {
            let (start, checksums) = (shard.start, shard.checksums.clone());
            let (form, mirrors) = (RunForm::covered(unit), Mirrors::default());
            let run = BlockRun { at: 0, start, checksums, form, mirrors };
            (first + number as u64, Chunk { runs: vec![run] })
        });
        let chunks = chunks.collect();
        let change = WideStripeChange { first, wide: Some(wide), chunks, taken, freed };
        self.mover.record_wide_stripe(&EncodePlan(self), ino, change, written).await?;
        tracing::debug!(ino, first, "chunks are in a wide stripe now");
        Ok(EncodeOutcome::Done)
    }

    /// Finds a place for each shard, apart from the others: where a chunk is already, if it is in
    /// one stripe.
    async fn place(
        &self,
        chunks: &[Chunk],
        parity: usize,
        blocks: u32,
    ) -> Result<Option<ShardPlaces>, Error> {
        let map = self.base.stripes.map();
        let candidates = |chunk: &Chunk| -> Vec<(DiskName, u64)> {
            let [run] = &chunk.runs[..] else { return Vec::new() };
            let places = run.places().map(|place| place.start);
            let whole = places.filter(|start| start.is_multiple_of(blocks.into()));
            let whole = whole.filter(|start| is_online(&map, *start));
            let whole = whole.filter(|_| run.count() == blocks);
            whole.map(|start| (failure_domain_of(&map, start), start)).collect()
        };
        let kept = choose_apart(&chunks.iter().map(candidates).collect::<Vec<_>>());
        let mut starts = kept.clone();
        starts.resize(chunks.len() + parity, None);
        let mut taken = Vec::new();
        for number in 0..starts.len() {
            if starts[number].is_some() {
                continue;
            }
            let others = starts.iter().flatten().map(|&start| Run { start, count: blocks });
            let others: Vec<Run> = others.collect();
            let found = if others.is_empty() {
                let call =
                    Allocate { blocks, unit: blocks, from_reserve: false, near: Near::Anywhere {} };
                self.allocator.allocate(&call).await.map(Some)
            } else {
                let copies = others.iter().map(|&run| vec![run]).collect();
                self.allocator.allocate_beside(copies, blocks).await
            };
            let found = match found {
                Ok(found) => found.unwrap_or_default(),
                Err(error) => {
                    self.base.store.space().release(&taken)?;
                    return if error == (Error::NoSpace {}) { Ok(None) } else { Err(error) };
                }
            };
            taken.extend(&found);
            let is_good = matches!(&found[..], [run] if run.count == blocks)
                && are_apart(&map, others.iter().chain(&found));
            if !is_good {
                self.base.store.space().release(&taken)?;
                return Ok(None);
            }
            starts[number] = Some(found[0].start);
        }
        Ok(Some(ShardPlaces { kept, starts: starts.into_iter().flatten().collect(), taken }))
    }

    /// Writes the shards that are not where they shall be. Returns what is to be synced, and the
    /// parity.
    async fn write_shards(
        &self,
        known: Option<&WideStripe>,
        chunks: &[Chunk],
        (kept, starts): (&[Option<u64>], &[u64]),
    ) -> Result<(Vec<Unsynced>, Vec<StripeShard>), Error> {
        let blocks = self.base.stripes.geometry().blocks_per_stripe();
        let mut contents = Vec::with_capacity(chunks.len());
        for (number, chunk) in chunks.iter().enumerate() {
            contents.push(self.read_chunk((known, number), chunk, kept[number]).await?);
        }
        let (data, parity_starts) = starts.split_at_checked(chunks.len()).unwrap_or_default();
        let code = ErasureCode::new(data.len(), parity_starts.len()).ok_or(Error::Damaged {})?;
        let parity = code.encode(&contents);
        let unit = chunks.first().map_or(1, |chunk| chunk.unit_or(1));
        let shards = parity_starts.iter().zip(&parity);
        let shards = shards.map(|(start, content)| StripeShard::of_content(*start, content, unit));
        let shards = shards.collect();
        let moved = contents.iter().zip(kept).zip(starts);
        let moved = moved.filter(|((_, kept), _)| kept.is_none());
        let mut places: Vec<(Bytes, u64)> =
            moved.map(|((content, _), start)| (content.clone(), *start)).collect();
        places.extend(parity.into_iter().zip(parity_starts.iter().copied()));
        let runs: Vec<Run> =
            places.iter().map(|(_, start)| Run { start: *start, count: blocks }).collect();
        let contents: Vec<Bytes> = places.into_iter().map(|(content, _)| content).collect();
        Ok((self.mover.write(&runs, &contents).await?, shards))
    }

    /// The content of a whole chunk, checked: of the place where it stays, if it does.
    async fn read_chunk(
        &self,
        (known, number): (Option<&WideStripe>, usize),
        chunk: &Chunk,
        kept: Option<u64>,
    ) -> Result<Bytes, Error> {
        let geometry = self.base.stripes.geometry();
        if let Some(start) = kept {
            let (stripe, offset) = geometry.block(start);
            let reading =
                self.base.stripes.read(stripe, offset, geometry.stripe_size, checksums(chunk));
            return Ok(reading.await.map_err(StoreError::from)?);
        }
        let mut content = BytesMut::with_capacity(geometry.stripe_size as usize);
        for run in &chunk.runs {
            let part = match known.filter(|_| run.form.covered) {
                Some(wide) => {
                    let blocks = geometry.blocks_per_stripe();
                    let range = wide.range_of(number, run.first_place(), blocks);
                    self.mover.read_shard(wide, number, range).await?
                }
                None => self.mover.read_any(run).await?,
            };
            content.extend_from_slice(&part);
        }
        Ok(content.freeze())
    }
}

/// Places for the shards of a wide stripe.
struct ShardPlaces {
    /// For each chunk, where it is already.
    kept: Vec<Option<u64>>,
    /// Of each chunk, and then of each stripe of parity.
    starts: Vec<u64>,
    taken: Vec<Run>,
}

/// What is to be done with chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EncodeWork {
    /// They become a wide stripe.
    Encode,
    /// Their wide stripe ends: what is live gets copies.
    Dissolve,
}

fn work_on(known: Option<&WideStripe>, chunks: &[Chunk], blocks: u32) -> Option<EncodeWork> {
    let unit = chunks.first().and_then(Chunk::unit);
    let are_whole =
        chunks.iter().all(|chunk| chunk.count() == u64::from(blocks) && chunk.unit() == unit);
    let all = chunks.len() as u64 * u64::from(blocks);
    let parity = known.map_or(1, |known| known.parity.len() as u64);
    match known.map(|known| known.dead_blocks(chunks, blocks)) {
        None => are_whole.then_some(EncodeWork::Encode),
        Some(dead) if are_whole && 4 * dead >= all => Some(EncodeWork::Encode),
        // Copies of what is live take less than all shards.
        Some(dead)
            if !are_whole && (1 + parity) * (all - dead) < all + parity * u64::from(blocks) =>
        {
            Some(EncodeWork::Dissolve)
        }
        Some(_) => None,
    }
}

/// The checksums of all blocks of a whole chunk.
fn checksums(chunk: &Chunk) -> Vec<u32> {
    chunk.runs.iter().flat_map(|run| run.checksums.iter().copied()).collect()
}

/// Chooses a place for each of several, of those that it could have, so that as many as possible
/// have one and no two are in the same failure domain.
fn choose_apart(candidates: &[Vec<(DiskName, u64)>]) -> Vec<Option<u64>> {
    /// Gives `who` a place, for which others may have to take another one.
    fn settle(
        who: usize,
        candidates: &[Vec<(DiskName, u64)>],
        owners: &mut BTreeMap<DiskName, (usize, u64)>,
        tried: &mut BTreeSet<DiskName>,
    ) -> bool {
        for &(domain, start) in &candidates[who] {
            if !tried.insert(domain) {
                continue;
            }
            let owner = owners.get(&domain).map(|(owner, _)| *owner);
            if owner.is_none_or(|owner| settle(owner, candidates, owners, tried)) {
                owners.insert(domain, (who, start));
                return true;
            }
        }
        false
    }
    let mut owners = BTreeMap::new();
    for who in 0..candidates.len() {
        settle(who, candidates, &mut owners, &mut BTreeSet::new());
    }
    let mut chosen = vec![None; candidates.len()];
    for (owner, start) in owners.into_values() {
        chosen[owner] = Some(start);
    }
    chosen
}

/// What is live of a wide stripe that is dissolved stays where it is, unless its disk is away.
struct EncodePlan<'a>(&'a WideStripeEncoder);

impl MovePlan for EncodePlan<'_> {
    fn is_moving(&self, block: u64) -> bool {
        !is_online(&self.0.base.stripes.map(), block)
    }

    fn allocate_beside(
        &self,
        copies: Vec<Vec<Run>>,
        unit: u32,
    ) -> LocalBoxFuture<'_, Result<Option<Vec<Run>>, Error>> {
        self.0.allocator.allocate_beside(copies, unit).boxed_local()
    }

    fn moved(&self, _: &[Run]) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_possible_get_a_place_apart_from_the_others() {
        let disk = |disk_node| DiskName { disk_node, disk: 0 };
        let candidates = vec![
            vec![(disk(0), 10), (disk(1), 11)],
            vec![(disk(0), 20)],
            vec![(disk(1), 30), (disk(2), 32)],
            vec![(disk(1), 41)],
            vec![],
        ];
        let chosen = choose_apart(&candidates);
        assert_eq!(chosen.iter().flatten().count(), 3);
        assert_eq!(chosen[1], Some(20), "it has no other");
        assert_eq!(chosen[4], None);
    }
}
