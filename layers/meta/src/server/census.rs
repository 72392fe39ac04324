//! Counting what a node holds, by reading all of it.

use std::ops::Bound;
use std::time::Duration;

use super::MetaServer;
use crate::keys;
use crate::protocol::{Census, Error};
use crate::store::{Run, StoreError};

/// Keys read at a time.
const PAGE_KEYS: usize = 1024;
/// The pause before a count that a checkpoint has disturbed is tried again.
const AGAIN_PAUSE: Duration = Duration::from_millis(5);

impl MetaServer {
    pub(super) async fn take_census(&self) -> Result<Census, Error> {
        Ok(Census {
            inodes: self.count(keys::all_inodes()).await?,
            names: self.count(keys::all_names()).await?,
            data_blocks: self.data_blocks().await?,
            trims: self.count(keys::intents(keys::TRIMS)).await?,
            intents: self.count(keys::intents(keys::PROMISES)).await?,
            applied: self.count(keys::all_applied()).await?,
            unlinked: self.count(keys::all_unlinked()).await?,
        })
    }

    async fn count(&self, (from, to): (Vec<u8>, Vec<u8>)) -> Result<u64, Error> {
        let (mut from, mut count) = (Bound::Included(from), 0);
        loop {
            let slice = from.as_ref().map(Vec::as_slice);
            let found = self.store.scan(slice, &to, PAGE_KEYS).await?;
            count += found.len() as u64;
            let Some((last, _)) = found.last() else { return Ok(count) };
            from = Bound::Excluded(last.to_vec());
        }
    }

    /// Blocks that records have named and that are not the store's own.
    async fn data_blocks(&self) -> Result<u64, Error> {
        let sum = |runs: &[Run]| runs.iter().map(|run| u64::from(run.count)).sum::<u64>();
        loop {
            match self.store.audit().await {
                Ok(audit) => return Ok(sum(&audit.kept) - sum(&audit.tree)),
                Err(StoreError::Busy) => self.context.sleep(AGAIN_PAUSE).await,
                Err(error) => return Err(error.into()),
            }
        }
    }
}
