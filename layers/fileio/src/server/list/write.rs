//! Writing a window of a list.

use std::rc::Rc;

use bytes::Bytes;
use futures::future::join_all;
use meta::attributes::access;
use meta::protocol::Chunk;
use runtime::protocol::Undelivered;

use super::super::base::{MetadataAccess, or_again};
use super::super::commit::{ContentComponents, FileCommits};
use super::super::content::{ChunkId, ContentAccess};
use super::super::write::{
    BlockSpan, ChangeNote, ChunkDraft, ChunkWrite, FileWriter, WritePurpose,
};
use super::gather::PackedPart;
use super::{CHUNKS_MAX, ChunkPart, ChunkParts, TOGETHER_MAX, split, window};
use crate::pieces::ByteRope;
use crate::protocol::{Attributes, Error, Handle, WriteList, WriteResult};
use crate::rules;

const BLOCK: usize = blockio::BLOCK_SIZE;

/// What a group has of one logical block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockCoverage {
    Nothing,
    /// All of it, by the piece of this number and no other.
    Whole(usize),
    /// It is put together, in the place of this number; with its old bytes round the new ones, or
    /// not.
    Built {
        place: usize,
        needs_old: bool,
    },
}

/// Answers [`WriteList`].
pub(in super::super) struct ListWriter {
    base: MetadataAccess,
    content: Rc<ContentAccess>,
    commits: Rc<FileCommits>,
    writer: Rc<FileWriter>,
}

impl ListWriter {
    pub(in super::super) fn new(
        (base, content, commits): ContentComponents,
        writer: Rc<FileWriter>,
    ) -> Self {
        Self { base, content, commits, writer }
    }

    pub(in super::super) async fn write_list(
        &self,
        request: WriteList,
    ) -> Result<WriteResult, Error> {
        let mut written = or_again(self.write_list_once(&request).await);
        if written == Err(Error::Damaged {}) {
            self.commits.recover_lost_writes(request.file).await;
            written = or_again(self.write_list_once(&request).await);
        }
        self.commits.make_durable(request.file, written?, request.durable).await
    }

    async fn write_list_once(&self, request: &WriteList) -> Result<WriteResult, Error> {
        let &WriteList { ref who, file, ref regions, skip, ref data, durable: _ } = request;
        let window = window(regions, skip, data.len())?;
        let _writing = self.content.files.shared(file.ino).await;
        let before = self.base.attributes(file).await?;
        self.base.check_transfer(who, &before, access::WRITE)?;
        rules::check_range(regions.end(), 0)?;
        let chunk_size = u64::from(self.content.geometry.stripe_size);
        let groups = split(regions.walk(window), skip, chunk_size, u64::MAX);
        let mut first: Option<WriteResult> = None;
        let mut last = None;
        self.base.partitions.learn(file.ino).await?;
        // So much longer is what may have to be put together.
        let chunks = (CHUNKS_MAX / self.base.unit_of(file.ino) as usize).max(TOGETHER_MAX);
        for step in groups.chunks(chunks) {
            let written = self.write_groups(request, &before, step).await?;
            // Another verifier: what was written before that one is lost.
            let first = first.get_or_insert(written);
            if first.write_verifier != written.write_verifier {
                return Err(Error::LostWrites {});
            }
            // What was before all steps is not known to be what was before the last one.
            let before = written.before.filter(|_| last.is_none());
            last = Some(WriteResult { before, ..written });
        }
        match last {
            Some(written) => Ok(written),
            None => self.writer.unchanged(before).await,
        }
    }

    /// Writes what `groups` have of some chunks, and installs it at once.
    async fn write_groups(
        &self,
        request: &WriteList,
        before: &Attributes,
        groups: &[ChunkParts],
    ) -> Result<WriteResult, Error> {
        let file = request.file;
        let indices = groups.iter().map(|group| group.index);
        let _held = self.content.lock_chunks(file.ino, indices).await;
        let chunks = self.content.maps(file, groups).await?;
        let mut chunks = chunks.into_iter();
        let lots = groups.chunks(TOGETHER_MAX).map(|lot| {
            let old = chunks.by_ref().take(lot.len()).collect();
            self.write_lot(file, lot, old, &request.data)
        });
        let parts = join_all(lots).await.into_iter().flatten().collect();
        let mut note = ChangeNote::default();
        if self.base.replays.is_noting() {
            let chunk_size = u64::from(self.content.geometry.stripe_size);
            let pieces = groups
                .iter()
                .flat_map(|group| group.pieces.iter().map(move |piece| (group, piece)));
            let range = |(group, piece): (&ChunkParts, &ChunkPart)| {
                let start = group.index * chunk_size + piece.from as u64;
                start..start + piece.length as u64
            };
            note.ranges = pieces.map(range).collect();
        }
        self.writer.install(&request.who, before, parts, note).await
    }

    /// Writes what `lot` has of the chunks `old`.
    async fn write_lot(
        &self,
        file: Handle,
        lot: &[ChunkParts],
        old: Vec<Chunk>,
        data: &Bytes,
    ) -> Vec<Result<ChunkWrite, Error>> {
        let drafts =
            lot.iter().zip(old).map(|(group, old)| self.draft_group(file.ino, group, old, data));
        let drafts = join_all(drafts).await;
        self.writer.write_together(file, drafts).await
    }

    async fn draft_group(
        &self,
        ino: u64,
        group: &ChunkParts,
        old: Chunk,
        data: &Bytes,
    ) -> Result<ChunkDraft, Error> {
        let unit = self.content.unit(ino, &old);
        let spans = self.spans((ino, group), (&old, unit), data).await?;
        let to = group.pieces.iter().map(ChunkPart::end).max().unwrap_or(0);
        self.writer.draft((ino, group.index), old, spans, to, WritePurpose::Parts).await
    }

    /// The logical blocks, of `unit` blocks, that `group` touches, with all of their new content.
    /// What lies in one piece is not copied.
    async fn spans(
        &self,
        (ino, group): (u64, &ChunkParts),
        (old, unit): (&Chunk, usize),
        data: &Bytes,
    ) -> Result<Vec<BlockSpan>, Error> {
        let blocks = self.content.geometry.blocks_per_stripe() as usize / unit;
        let block = unit * BLOCK;
        let (covers, places) = covers(group, blocks, block);
        let mut built = Bytes::new();
        if places > 0 {
            let pool = self.base.context.pool();
            let mut buffer = pool.take(places * block).ok_or(Undelivered::Busy)?;
            self.fetch_old((ino, group.index), old, (&covers, block), &mut buffer).await?;
            let mut copied = 0;
            for piece in &group.pieces {
                copied += overlay(piece, (&covers, block), data, &mut buffer);
            }
            pool.count_copy(copied);
            built = buffer.freeze();
        }
        Ok(cut_spans(group, (&covers, unit), &built, data))
    }

    /// Puts the old bytes of the blocks that need them into their places.
    async fn fetch_old(
        &self,
        (ino, index): ChunkId,
        old: &Chunk,
        (covers, length): (&[BlockCoverage], usize),
        buffer: &mut [u8],
    ) -> Result<(), Error> {
        let mut pieces: Vec<ChunkPart> = Vec::new();
        for (block, cover) in covers.iter().enumerate() {
            let &BlockCoverage::Built { place, needs_old: true } = cover else { continue };
            let (from, position) = (block * length, place * length);
            match pieces.last_mut() {
                Some(last) if last.end() == from && last.position + last.length == position => {
                    last.length += length;
                }
                _ => pieces.push(ChunkPart { from, length, position }),
            }
        }
        if pieces.is_empty() {
            return Ok(());
        }
        let mut copied = 0;
        let wanted = ChunkParts { index, pieces, is_sorted: true };
        let take = |part: PackedPart<'_>| match part {
            PackedPart::Hole { position, length } => buffer[position..position + length].fill(0),
            PackedPart::Data { position, bytes, range } => {
                copied += range.len();
                buffer[position..position + range.len()].copy_from_slice(&bytes[range]);
            }
        };
        let wanted = (ino, std::slice::from_ref(&wanted));
        self.content.gather(wanted, std::slice::from_ref(old), take).await?;
        self.base.context.pool().count_copy(copied);
        Ok(())
    }
}

/// What `group` has of each of the `blocks` logical blocks, of `length` bytes, of its chunk, and
/// how many of them have to be put together.
fn covers(group: &ChunkParts, blocks: usize, length: usize) -> (Vec<BlockCoverage>, usize) {
    let mut bytes = vec![0; blocks];
    let mut covers = vec![BlockCoverage::Nothing; blocks];
    for (number, piece) in group.pieces.iter().enumerate() {
        for block in piece.from / length..piece.end().div_ceil(length) {
            let start = block * length;
            let (from, to) = (piece.from.max(start), piece.end().min(start + length));
            let is_first = bytes[block] == 0;
            bytes[block] += to - from;
            // Its place comes later.
            covers[block] = match covers[block] {
                BlockCoverage::Nothing if is_first && to - from == length => {
                    BlockCoverage::Whole(number)
                }
                // An earlier or later piece has all of it: no old byte stays.
                BlockCoverage::Whole(_) | BlockCoverage::Built { needs_old: false, .. } => {
                    BlockCoverage::Built { place: 0, needs_old: false }
                }
                _ => BlockCoverage::Built { place: 0, needs_old: to - from < length },
            };
        }
    }
    let mut places = 0;
    for (cover, &bytes) in covers.iter_mut().zip(&bytes) {
        if let BlockCoverage::Built { place, needs_old } = cover {
            *place = places;
            places += 1;
            // Pieces that do not overlap fill the block if they are as long.
            *needs_old &= !(group.is_sorted && bytes == length);
        }
    }
    (covers, places)
}

/// Copies a piece over the logical blocks in `buffer` that it touches. Returns how many bytes.
fn overlay(
    piece: &ChunkPart,
    (covers, length): (&[BlockCoverage], usize),
    data: &Bytes,
    buffer: &mut [u8],
) -> usize {
    let mut copied = 0;
    let first = piece.from / length;
    for (block, cover) in (first..piece.end().div_ceil(length)).zip(&covers[first..]) {
        let BlockCoverage::Built { place, .. } = cover else { continue };
        let start = block * length;
        let (from, to) = (piece.from.max(start), piece.end().min(start + length));
        let at = place * length + (from - start);
        let source = piece.position + (from - piece.from);
        buffer[at..at + (to - from)].copy_from_slice(&data[source..source + (to - from)]);
        copied += to - from;
    }
    copied
}

/// The touched logical blocks, of `unit` blocks, in rows, as slices of what was put together and of
/// the packed bytes; neighbours in both become one slice.
fn cut_spans(
    group: &ChunkParts,
    (covers, unit): (&[BlockCoverage], usize),
    built: &Bytes,
    data: &Bytes,
) -> Vec<BlockSpan> {
    /// Which bytes: of `built`, or of `data`.
    type Slice = (bool, std::ops::Range<usize>);
    let mut rows: Vec<(usize, Vec<Slice>)> = Vec::new();
    let (mut is_open, length) = (false, unit * BLOCK);
    for (block, cover) in covers.iter().enumerate() {
        let (is_built, from) = match *cover {
            BlockCoverage::Nothing => {
                is_open = false;
                continue;
            }
            BlockCoverage::Built { place, .. } => (true, place * length),
            BlockCoverage::Whole(number) => {
                let piece = &group.pieces[number];
                (false, piece.position + (block * length - piece.from))
            }
        };
        if !std::mem::replace(&mut is_open, true) {
            rows.push((block * unit, Vec::new()));
        }
        let Some((_, slices)) = rows.last_mut() else { continue };
        match slices.last_mut() {
            Some((kind, last)) if *kind == is_built && last.end == from => last.end += length,
            _ => slices.push((is_built, from..from + length)),
        }
    }
    let bytes =
        |(is_built, range): Slice| if is_built { built.slice(range) } else { data.slice(range) };
    let span = |(first, slices): (usize, Vec<Slice>)| BlockSpan {
        first,
        whole: ByteRope::new(slices.into_iter().map(bytes).collect()),
    };
    rows.into_iter().map(span).collect()
}
