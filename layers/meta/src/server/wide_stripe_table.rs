//! The wide stripes of the files of one node ([`FindWideStripe`](crate::protocol::FindWideStripe)).

use std::ops::{Bound, Range};
use std::rc::Rc;

use blockio::redundancy::DATA_SHARDS_MAX;

use crate::keys;
use crate::protocol::{Chunk, Error, PlacedWideStripe, WideStripe};
use crate::server::base::NodeBase;
use crate::server::record_log::decode;

/// Finds wide stripes and their chunks in the store.
pub(crate) struct WideStripeTable {
    base: Rc<NodeBase>,
}

impl WideStripeTable {
    pub(crate) fn new(base: &Rc<NodeBase>) -> Self {
        Self { base: base.clone() }
    }

    /// The wide stripe that a chunk is in.
    pub(crate) async fn find(
        &self,
        ino: u64,
        index: u64,
    ) -> Result<Option<PlacedWideStripe>, Error> {
        Ok(self.within(ino, index..index.saturating_add(1)).await?.pop())
    }

    /// The wide stripes that some of these chunks are in. They have no chunk together, but where
    /// the class of the file has changed they may begin anywhere.
    pub(crate) async fn within(
        &self,
        ino: u64,
        chunks: Range<u64>,
    ) -> Result<Vec<PlacedWideStripe>, Error> {
        let first = chunks.start.saturating_sub(u64::from(DATA_SHARDS_MAX) - 1);
        let (from, end) = (keys::wide_stripe(ino, first), keys::wide_stripe(ino, chunks.end));
        let mut found = Vec::new();
        for (key, value) in self.base.store.scan(Bound::Included(&from), &end, usize::MAX).await? {
            let first = keys::chunk_index(&key).ok_or(Error::Damaged {})?;
            let wide = self.decode(&value)?;
            if first.saturating_add(wide.chunks()) > chunks.start {
                found.push(PlacedWideStripe { first, wide });
            }
        }
        Ok(found)
    }

    /// The wide stripe whose first chunk is `first`.
    pub(crate) async fn get(&self, ino: u64, first: u64) -> Result<Option<WideStripe>, Error> {
        let value = self.base.store.get(&keys::wide_stripe(ino, first)).await?;
        value.map(|value| self.decode(&value)).transpose()
    }

    /// A wide stripe as it is stored.
    pub(crate) fn decode(&self, value: &[u8]) -> Result<WideStripe, Error> {
        let wide: WideStripe = decode(value)?;
        let blocks = self.base.stripes.geometry().blocks_per_stripe();
        if wide.is_valid(blocks) { Ok(wide) } else { Err(Error::Damaged {}) }
    }

    /// `count` chunks from `first` on, as the store has them.
    pub(crate) async fn chunks(
        &self,
        ino: u64,
        first: u64,
        count: u64,
    ) -> Result<Vec<Chunk>, Error> {
        let blocks = self.base.stripes.geometry().blocks_per_stripe();
        let (from, end) = (keys::chunk(ino, first), keys::chunk(ino, first.saturating_add(count)));
        let mut chunks = vec![Chunk::default(); count as usize];
        for (key, value) in self.base.store.scan(Bound::Included(&from), &end, usize::MAX).await? {
            let index = keys::chunk_index(&key).ok_or(Error::Damaged {})?;
            let chunk: Chunk = decode(&value)?;
            let place = chunks.get_mut((index - first) as usize).ok_or(Error::Damaged {})?;
            if !chunk.is_valid(blocks) {
                return Err(Error::Damaged {});
            }
            *place = chunk;
        }
        Ok(chunks)
    }
}
