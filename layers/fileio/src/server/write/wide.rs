//! Writes of whole chunks in a row: their parity is written with them, and the commit makes a wide
//! stripe of that (ADR 97).

use std::ops::Range;

use blockio::WideStripeShape;
use blockio::protocol::Error as BlockError;
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{join, join_all};
use meta::erasure::ErasureCode;
use meta::protocol::{Chunk, ChunkUpdate, Unsynced, WideStripe};
use meta::wide_stripe::{by_wide_stripe, of_deferred_chunks};

use super::{BlockSpan, ChunkDraft, ChunkWrite, FileWriter, WritePart, WritePurpose};
use crate::protocol::{Error, Handle};
use crate::server::content::ContentAccess;

impl ContentAccess {
    /// The wide stripes of a file, if these bytes have all of one.
    fn wide_stripe_within(&self, ino: u64, bytes: Range<u64>) -> Option<WideStripeShape> {
        let shape = self.class_at_hand(ino)?.wide_stripes()?;
        let length = u64::from(shape.data) * u64::from(self.geometry.stripe_size);
        let first = bytes.start.next_multiple_of(length);
        (first + length <= bytes.end).then_some(shape)
    }
}

impl FileWriter {
    /// Writes parts of chunks, which are these bytes of the file; whole chunks that can be a wide
    /// stripe with their parity. The caller has locked the chunks.
    pub(super) async fn write_parts(
        &self,
        file: Handle,
        bytes: Range<u64>,
        parts: Vec<WritePart>,
        purpose: WritePurpose,
    ) -> Vec<Result<ChunkWrite, Error>> {
        if purpose == WritePurpose::Data
            && let Some(shape) = self.content.wide_stripe_within(file.ino, bytes)
        {
            return self.write_wide_stripes(file, parts, shape).await;
        }
        let mut writes = parts.into_iter().map(|part| self.write_part(file, part, purpose));
        match (writes.next(), writes.next()) {
            (Some(only), None) => vec![only.await],
            (first, second) => join_all(first.into_iter().chain(second).chain(writes)).await,
        }
    }

    fn write_part(
        &self,
        file: Handle,
        part: WritePart,
        purpose: WritePurpose,
    ) -> impl Future<Output = Result<ChunkWrite, Error>> {
        let WritePart { index, old, from, data } = part;
        self.write_chunk((file, index), old, from, data, purpose)
    }

    /// Writes parts of chunks, with parity for those of them that can be a wide stripe.
    async fn write_wide_stripes(
        &self,
        file: Handle,
        parts: Vec<WritePart>,
        shape: WideStripeShape,
    ) -> Vec<Result<ChunkWrite, Error>> {
        let chunk_size = self.content.geometry.stripe_size as usize;
        let count = u64::from(shape.data);
        let groups = by_wide_stripe(parts, count, |part| part.index);
        let writes = groups.into_iter().map(|group| {
            let is_whole = group.len() as u64 == count
                && group.iter().all(|part| part.data.length() == chunk_size);
            if is_whole {
                return self.write_wide_stripe(file, group, shape).boxed_local();
            }
            let singles =
                group.into_iter().map(move |part| self.write_part(file, part, WritePurpose::Data));
            join_all(singles).boxed_local()
        });
        join_all(writes).await.into_iter().flatten().collect()
    }

    /// Writes the chunks of one wide stripe.
    async fn write_wide_stripe(
        &self,
        file: Handle,
        group: Vec<WritePart>,
        shape: WideStripeShape,
    ) -> Vec<Result<ChunkWrite, Error>> {
        let drafts = group.into_iter().map(|part| {
            let (chunk, to) = ((file.ino, part.index), part.data.length());
            let spans = vec![BlockSpan { first: 0, whole: part.data }];
            self.draft(chunk, part.old, spans, to, WritePurpose::Data)
        });
        let drafts = join_all(drafts).await;
        let made = self.parity_of(&drafts, shape);
        let filling = drafts.iter().map(|draft| async move {
            match draft {
                Ok(draft) => self.fill(self.parts(draft)).await,
                Err(error) => Err(*error),
            }
        });
        let writing = async {
            let (wide, parity) = made?;
            let writes = wide.parity.iter().zip(parity).map(|(shard, content)| async move {
                let (stripe, offset) = self.content.geometry.block(shard.start);
                let boot_id = self.content.stripes.write(stripe, offset, vec![content]).await?;
                Ok::<_, BlockError>(Unsynced { stripe, boot_id })
            });
            // Copies may be written in these places later: none is left on its way.
            let written: Result<Vec<Unsynced>, BlockError> =
                join_all(writes).await.into_iter().collect();
            Some((wide, written.ok()?))
        };
        let (filled, parity) = join(join_all(filling), writing).await;
        let mut written = Vec::with_capacity(drafts.len());
        for (draft, filled) in drafts.into_iter().zip(filled) {
            written.push(match draft {
                Ok(draft) => self.conclude(file, draft, filled).await,
                Err(error) => Err(error),
            });
        }
        if let (Some((wide, unsynced)), Some(Ok(first))) = (parity, written.first_mut()) {
            first.update.wide = Some(wide);
            first.update.written.extend(unsynced);
        }
        written
    }

    /// The wide stripe that whole chunks can be, and the bytes of its parity.
    fn parity_of(
        &self,
        drafts: &[Result<ChunkDraft, Error>],
        shape: WideStripeShape,
    ) -> Option<(WideStripe, Vec<Bytes>)> {
        let geometry = self.content.geometry;
        let chunks = drafts.iter().map(|draft| draft.as_ref().ok().map(|draft| &draft.chunk));
        let chunks: Vec<&Chunk> = chunks.collect::<Option<_>>()?;
        let mut wide = of_deferred_chunks(&self.content.stripes.map(), shape, &chunks)?;
        let code = ErasureCode::new(wide.data.len(), wide.parity.len())?;
        // Each chunk is written whole.
        let contents = drafts.iter().flatten().filter_map(|draft| draft.spans.first());
        let contents = contents.map(|span| span.whole.pieces());
        let parity = code.encode_pieces(geometry.stripe_size as usize, contents);
        let unit = wide.unit(geometry.blocks_per_stripe());
        wide.set_parity(&parity, unit);
        Some((wide, parity))
    }
}

/// Are there chunks whose copies are left to the commit, and no parity for them?
pub(super) fn are_deferred<'a>(updates: impl Iterator<Item = &'a ChunkUpdate>) -> bool {
    let (mut deferred, mut covered) = (0, 0);
    for ChunkUpdate { chunk, wide, .. } in updates {
        deferred += usize::from(chunk.runs.iter().any(|run| run.form.deferred));
        covered += wide.as_ref().map_or(0, |wide| wide.data.len());
    }
    deferred > covered
}
