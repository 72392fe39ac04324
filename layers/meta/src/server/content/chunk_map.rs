//! Where the content of files is ([`Map`], [`FindChunks`]).

use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use crate::keys;
use crate::protocol::{Chunk, ChunkPage, Error, FOUND_MAX, FindChunks, IndexedChunk, Map};
use crate::server::base::NodeBase;
use crate::server::record_log::decode;
use crate::server::space::reclaim::Reclaim;

/// The chunks of the files of one node.
pub(crate) struct ChunkMap {
    base: Rc<NodeBase>,
    reclaim: Rc<Reclaim>,
}

impl ChunkMap {
    pub(crate) fn new(base: &Rc<NodeBase>, reclaim: Rc<Reclaim>) -> Self {
        Self { base: base.clone(), reclaim }
    }

    pub(crate) async fn map(&self, request: Map) -> Result<Vec<Chunk>, Error> {
        let Map { ino, generation, first, count } = request;
        let _kept = self.base.inodes.keep(ino);
        self.base.inodes.load(ino, generation).await?;
        let mut chunks = Vec::with_capacity(count.min(1024) as usize);
        for index in first..first.saturating_add(u64::from(count)) {
            chunks.push(self.chunk(ino, index).await?);
        }
        // Unless the file was removed meanwhile.
        self.base.inodes.with(ino, |_| Ok(chunks))
    }

    /// The present state of a chunk.
    pub(crate) async fn chunk(&self, ino: u64, index: u64) -> Result<Chunk, Error> {
        let known = self.base.inodes.with(ino, |active| Ok(active.chunk(index).cloned()))?;
        if let Some(chunk) = known {
            return Ok(chunk);
        }
        let chunk = self.stored_chunk(ino, index).await?;
        self.base.inodes.note_remembered(1);
        // The caller has locked the chunk: it has not changed meanwhile.
        self.base.inodes.with(ino, |active| {
            active.remember(index, chunk.clone());
            Ok(chunk)
        })
    }

    pub(crate) async fn stored_chunk(&self, ino: u64, index: u64) -> Result<Chunk, Error> {
        if self.reclaim.is_cut_off(ino, index) {
            self.reclaim.finish_cut(ino).await?;
        }
        let value = self.base.store.get(&keys::chunk(ino, index)).await?;
        Ok(value.map(|value| self.decode_chunk(&value)).transpose()?.unwrap_or_default())
    }

    fn decode_chunk(&self, value: &[u8]) -> Result<Chunk, Error> {
        let chunk: Chunk = decode(value)?;
        let blocks = self.base.stripes.geometry().blocks_per_stripe();
        if chunk.is_valid(blocks) { Ok(chunk) } else { Err(Error::Damaged {}) }
    }

    pub(crate) async fn find_chunks(&self, request: FindChunks) -> Result<ChunkPage, Error> {
        let FindChunks { ino, generation, first, count_max } = request;
        let count = count_max.clamp(1, FOUND_MAX) as usize;
        self.base.inodes.load(ino, generation).await?;
        self.reclaim.finish_cut(ino).await?;
        // Looked at before the store: what a commit moves there meanwhile is in one of the two.
        let mut changed =
            self.base.inodes.with(ino, |active| Ok(active.changed_chunks(first, count)))?;
        let mut next = None;
        if changed.len() == count {
            next = changed.last_key_value().map(|(index, _)| index + 1);
        }
        let (from, end) = (keys::chunk(ino, first), keys::chunks_end(ino));
        let stored = self.base.store.scan(Bound::Included(&from), &end, count).await?;
        let mut found = BTreeMap::new();
        for (key, value) in &stored {
            let index = keys::chunk_index(key).ok_or(Error::Damaged {})?;
            found.insert(index, self.decode_chunk(value)?);
        }
        if stored.len() == count {
            let after = found.last_key_value().map(|(index, _)| index + 1);
            next = next.into_iter().chain(after).min();
        }
        found.append(&mut changed);
        let is_within = |index: u64| next.is_none_or(|next| index < next);
        let chunks = found
            .into_iter()
            .filter(|(index, chunk)| is_within(*index) && !chunk.runs.is_empty())
            .map(|(index, chunk)| IndexedChunk { index, chunk });
        let found = ChunkPage { chunks: chunks.collect(), next };
        // Unless the file was removed meanwhile.
        self.base.inodes.load(ino, generation).await?;
        Ok(found)
    }

    /// Counts the blocks of a file in its chunks before `end_chunk`.
    pub(crate) async fn count_blocks(&self, ino: u64, end_chunk: u64) -> Result<u64, Error> {
        let mut from = Bound::Included(keys::chunk(ino, 0));
        let end = keys::chunk(ino, end_chunk);
        let mut blocks = 0;
        loop {
            let found = self.base.store.scan(from.as_ref().map(Vec::as_slice), &end, 256).await?;
            let Some((last, _)) = found.last() else { return Ok(blocks) };
            from = Bound::Excluded(last.to_vec());
            for (_, value) in &found {
                blocks += decode::<Chunk>(value)?.count();
            }
        }
    }
}
