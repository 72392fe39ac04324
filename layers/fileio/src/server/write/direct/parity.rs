//! Parity of whole chunks that a client has left.
//!
//! Usually all chunks of a wide stripe are left at one process. It makes the parity of them and has
//! that stored with them: each byte crosses the client's link once, and different processes do this
//! for wide stripes that follow each other. A client may make parity itself; then it has left each
//! chunk, and the parity, at a process of its own.

use std::collections::{BTreeMap, BTreeSet};

use blockio::{RedundancyClass, WideStripeShape};
use meta::protocol::{StripeShard, WideStripe};
use meta::wide_stripe::of_deferred_chunks;
use runtime::delivery::{BlocksToStore, DepositedRange, ParityToStore, StoredParity};

use super::{
    BLOCK, Chunk, DirectWriter, FreshChunk, Near, PieceSource, ProcessOrder, Unsynced, WritePiece,
    joined,
};
use crate::protocol::WriteDirect;
use crate::server::content::ContentAccess;

/// A wide stripe whose parity other processes store.
pub(super) struct LeftParity {
    /// Its first chunk.
    pub(super) index: u64,
    /// Until the process that makes its parity has answered, without the checksums of that.
    pub(super) wide: WideStripe,
}

impl DirectWriter {
    /// Where `pieces` of a chunk had best be, from block `skip` of it on: where the process with
    /// the first that was left caches them; if the chunk defers its copies, on disks of its own.
    pub(super) fn near(
        &self,
        chunk: (u64, u64),
        skip: u32,
        pieces: &[WritePiece],
        defers: bool,
    ) -> Near {
        let context = self.writer.content.context();
        let own = context.process_of(context.node());
        let process = pieces.iter().find_map(|piece| match piece.source {
            PieceSource::Left(process, _) => Some(process),
            PieceSource::Here(_) => own,
        });
        match process {
            process if defers => ContentAccess::in_domain(chunk, skip, process),
            Some(process) => Near::On { process, skip },
            None => Near::Apart { skip },
        }
    }

    /// What each process is to store of what was left.
    pub(super) fn orders(
        &self,
        request: &WriteDirect,
        fresh: &mut [FreshChunk],
    ) -> BTreeMap<u32, ProcessOrder> {
        let class = self.writer.content.class_at_hand(request.file.ino);
        let shape = class.and_then(RedundancyClass::wide_stripes);
        let count = shape.map_or(1, |shape| u64::from(shape.data));
        let length = count * u64::from(self.writer.content.geometry.stripe_size);
        let first = request.offset.div_ceil(length);
        let mut orders: BTreeMap<u32, ProcessOrder> = BTreeMap::new();
        for group in fresh.chunk_by_mut(|one, next| one.index / count == next.index / count) {
            if let Some(wide) = shape.and_then(|shape| self.wide_stripe_of(group, shape)) {
                let number = (group[0].index / count).checked_sub(first);
                self.order_parity(&mut orders, group, wide, (request, number));
            }
            for (process, part) in group.iter_mut().flat_map(|chunk| chunk.left.drain(..)) {
                orders.entry(process).or_default().parts.push(part);
            }
        }
        orders
    }

    /// The wide stripe of chunks that were left whole and are stripes on disks of their own; the
    /// checksums of its parity are still missing.
    fn wide_stripe_of(&self, group: &[FreshChunk], shape: WideStripeShape) -> Option<WideStripe> {
        let length = self.writer.content.geometry.stripe_size;
        // One part, so it is all of the chunk.
        let is_left =
            |chunk: &FreshChunk| matches!(&chunk.left[..], [(_, part)] if part.length == length);
        if !group.iter().all(is_left) {
            return None;
        }
        let chunks: Vec<&Chunk> = group.iter().map(|fresh| &fresh.chunk).collect();
        of_deferred_chunks(&self.writer.content.stripes.map(), shape, &chunks)
    }

    /// Has the parity of a wide stripe stored: what the client has made for wide stripe `number` of
    /// its write, or else, if all chunks are at one process, what that makes of them.
    fn order_parity(
        &self,
        orders: &mut BTreeMap<u32, ProcessOrder>,
        group: &[FreshChunk],
        mut wide: WideStripe,
        (request, number): (&WriteDirect, Option<u64>),
    ) {
        let unit = wide.unit(self.writer.content.geometry.blocks_per_stripe());
        let index = group[0].index;
        if !request.parity.is_empty() {
            // Clients make it for wide stripes of the volume's class.
            let map = self.writer.content.stripes.map();
            let is_usual = map.redundancy().wide_stripes() == Some(wide.shape());
            let number = number.filter(|_| is_usual);
            let left = number.and_then(|it| shards_of(request, it, &wide));
            let parts = left.and_then(|left| self.parts_of_parity(left, &mut wide, unit));
            let mut made = Some(LeftParity { index, wide });
            for (process, part) in parts.unwrap_or_default() {
                let order = orders.entry(process).or_default();
                order.parts.push(part);
                order.made.extend(made.take());
            }
            return;
        }
        let processes: BTreeSet<u32> =
            group.iter().flat_map(|chunk| &chunk.left).map(|(process, _)| *process).collect();
        let mut processes = processes.into_iter();
        let (Some(process), None) = (processes.next(), processes.next()) else { return };
        let order = orders.entry(process).or_default();
        let (first, data) = (order.parts.len() as u32, wide.data.len() as u32);
        let geometry = self.writer.content.geometry;
        let stripes = wide.parity.iter().map(|shard| geometry.block(shard.start).0).collect();
        order.parity.push(ParityToStore { first, data, unit, stripes });
        order.made.push(LeftParity { index, wide });
    }

    /// What has to be stored of parity that the client has `left`; `wide` gets its checksums. None
    /// if that cannot be.
    fn parts_of_parity(
        &self,
        left: &[DepositedRange],
        wide: &mut WideStripe,
        unit: u32,
    ) -> Option<Vec<(u32, BlocksToStore)>> {
        let geometry = self.writer.content.geometry;
        let part = |(left, shard): (&DepositedRange, &mut StripeShard)| {
            shard.checksums = joined(&left.checksums, unit as usize);
            let (stripe, expect) = (geometry.block(shard.start).0, shard.checksums.clone());
            let (at, length) = (left.at, geometry.stripe_size);
            let is_whole = left.checksums.len() * BLOCK == length as usize;
            let part = BlocksToStore { stripe, offset: 0, at, length, expect };
            is_whole.then_some((left.process, part))
        };
        left.iter().zip(&mut wide.parity).map(part).collect()
    }

    /// Completes wide stripes, once their parity was stored. Without an answer for each shard there
    /// are none: then the commit makes them.
    pub(super) fn with_checksums(
        &self,
        mut made: Vec<LeftParity>,
        parity: Vec<StoredParity>,
        stored: &mut Vec<Unsynced>,
    ) -> Vec<LeftParity> {
        let shards = made.iter_mut().flat_map(|it| &mut it.wide.parity);
        let missing: Vec<&mut StripeShard> =
            shards.filter(|shard| shard.checksums.is_empty()).collect();
        if missing.len() == parity.len() {
            for (shard, StoredParity { boot_id, checksums }) in missing.into_iter().zip(parity) {
                let stripe = self.writer.content.geometry.block(shard.start).0;
                stored.push(Unsynced { stripe, boot_id });
                shard.checksums = checksums;
            }
        }
        made.retain(|it| it.wide.parity.iter().all(|shard| !shard.checksums.is_empty()));
        made
    }
}

/// What a client has left as the parity of wide stripe `number` of its write.
fn shards_of<'a>(
    request: &'a WriteDirect,
    number: u64,
    wide: &WideStripe,
) -> Option<&'a [DepositedRange]> {
    let count = wide.parity.len();
    let first = usize::try_from(number).ok()?.checked_mul(count)?;
    request.parity.get(first..first.checked_add(count)?)
}
