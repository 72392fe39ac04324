//! The client of the caches: the same interface as block I/O, in front of it.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use blockio::{Answer, BootId, DiskName, Geometry, Stripes, VolumeMap};
use bytes::Bytes;
use futures::future::{LocalBoxFuture, ready};
use futures::{FutureExt as _, StreamExt as _, stream};
use runtime::protocol::Undelivered;
use runtime::{Call, Context, Epoch, NodeId};

use crate::hash;
use crate::pauses::Backoff;
use crate::protocol::{
    Cache, CacheStatus, Error, Extent, Forget, Placed, Read, ReadList, Status, Unsynced, Write,
    WriteBack, WriteList, WriteZeros,
};

/// The first pause after `Busy`, or while a node is away.
const BUSY_PAUSE_FIRST: Duration = Duration::from_millis(1);

/// Pauses before `Busy` goes to the caller: one second in all.
const BUSY_PAUSES_MAX: u32 = 10;

/// Requests of one call that wait for their answers at the same time.
const REQUESTS_CONCURRENCY_MAX: usize = 256;

/// Flushes of one call that find a disk node restarted, at most.
const RESTARTS_MAX: u32 = 8;

/// Stripes named by one write-back request.
const STRIPES_PER_REQUEST_MAX: usize = 4096;

/// The logical disk as seen through the cache. Cheap to clone.
///
/// A request to a node that is full or down is repeated with doubling pauses, a bounded number of
/// times. Every other error, also of the layer below, goes to the caller.
#[derive(Clone)]
pub struct CacheClient {
    context: Context,
    map: VolumeMap,
    below: Rc<dyn Stripes>,
}

impl std::fmt::Debug for CacheClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CacheClient").field("context", &self.context).finish_non_exhaustive()
    }
}

impl CacheClient {
    /// Calls the caches of the volume's nodes from the node of `context`; `below` is the logical
    /// disk without the cache, for root slots and for making durable.
    pub fn new(context: Context, map: VolumeMap, below: Rc<dyn Stripes>) -> Self {
        Self { context, map, below }
    }

    /// What the caches of all nodes hold and have done, in sum.
    pub async fn status(&self) -> Result<CacheStatus, Error> {
        let nodes = (0..self.map.geometry().fs_nodes).map(NodeId::fs);
        let requests = nodes.map(|node| ask(self.context.clone(), node, Status {}));
        let answers: Vec<_> =
            stream::iter(requests).buffer_unordered(REQUESTS_CONCURRENCY_MAX).collect().await;
        answers.into_iter().try_fold(CacheStatus::default(), |sum, answer| Ok(sum + answer?))
    }

    /// Sends `call` to the node that caches `stripe`.
    fn ask_owner<C>(&self, stripe: u64, call: C) -> Answer<C::Reply>
    where
        C: Call<Protocol = Cache> + Clone,
    {
        ask(self.context.clone(), hash::owner(&self.map, stripe), call)
    }

    /// The requests that write these stripes back: the fewest that name each of them at its node.
    fn write_backs(
        &self,
        written: &[Unsynced],
        restarted: Option<Unsynced>,
    ) -> Vec<(NodeId, WriteBack)> {
        let mut by_node: BTreeMap<NodeId, Vec<Unsynced>> = BTreeMap::new();
        for &unsynced in written {
            let owner = hash::owner(&self.map, unsynced.stripe);
            by_node.entry(owner).or_default().push(unsynced);
        }
        let batches = by_node.iter().flat_map(|(&node, written)| {
            let batches = written.chunks(STRIPES_PER_REQUEST_MAX);
            batches.map(move |batch| (node, WriteBack { written: batch.to_vec(), restarted }))
        });
        batches.collect()
    }

    /// Has the caches write these stripes back; returns what has to be synced below. Waits for all
    /// nodes even if one fails, and returns the first failure.
    async fn write_back(
        &self,
        written: &[Unsynced],
        restarted: Option<Unsynced>,
    ) -> Result<Vec<Unsynced>, Error> {
        let requests = self.write_backs(written, restarted).into_iter();
        let requests = requests.map(|(node, call)| ask(self.context.clone(), node, call));
        let answers: Vec<Result<Vec<Unsynced>, Error>> =
            stream::iter(requests).buffered(REQUESTS_CONCURRENCY_MAX).collect().await;
        Ok(answers.into_iter().collect::<Result<Vec<_>, Error>>()?.concat())
    }
}

impl Stripes for CacheClient {
    fn geometry(&self) -> Geometry {
        self.map.geometry()
    }

    fn map(&self) -> VolumeMap {
        self.map.clone()
    }

    fn read(&self, stripe: u64, offset: u32, length: u32, expect: Vec<u32>) -> Answer<Bytes> {
        self.ask_owner(stripe, Read { stripe, offset, length, expect })
    }

    fn try_read_now(&self, stripe: u64, offset: u32, length: u32, expect: &[u32]) -> Option<Bytes> {
        let call = Read { stripe, offset, length, expect: expect.to_vec() };
        self.context.try_now(hash::owner(&self.map, stripe), call)?.ok()
    }

    fn below(&self) -> Option<Rc<dyn Stripes>> {
        Some(self.below.clone())
    }

    fn node_of(&self, stripe: u64) -> Option<NodeId> {
        Some(hash::owner(&self.map, stripe))
    }

    fn write(&self, stripe: u64, offset: u32, data: Vec<Bytes>) -> Answer<BootId> {
        self.ask_owner(stripe, Write { stripe, offset, data })
    }

    fn write_once(
        &self,
        stripe: u64,
        offset: u32,
        data: Vec<Bytes>,
        epoch: Epoch,
    ) -> Answer<BootId> {
        let (context, owner) = (self.context.clone(), hash::owner(&self.map, stripe));
        async move {
            if context.epoch() != epoch {
                return Err(Undelivered::Fenced.into());
            }
            // In this epoch: nothing is awaited in between.
            context.spawn(owner, Write { stripe, offset, data }).await
        }
        .boxed_local()
    }

    fn read_list(
        &self,
        stripe: u64,
        extents: Vec<Extent>,
        (expect, unit): (Vec<u32>, u32),
    ) -> Answer<Vec<Bytes>> {
        self.ask_owner(stripe, ReadList { stripe, extents, expect, unit })
    }

    fn write_list(&self, stripe: u64, parts: Vec<Placed>) -> Answer<BootId> {
        self.ask_owner(stripe, WriteList { stripe, parts })
    }

    fn write_zeros(&self, stripe: u64, offset: u32, length: u32) -> Answer<BootId> {
        self.ask_owner(stripe, WriteZeros { stripe, offset, length })
    }

    /// A disk node that has restarted since the write-back may have lost bytes: the caches are
    /// notified and write back again what they still have.
    fn sync(&self, written: Vec<Unsynced>) -> Answer<()> {
        let this = self.clone();
        async move {
            let mut restarted = None;
            for _ in 1..RESTARTS_MAX {
                let below = this.write_back(&written, restarted).await?;
                match this.below.sync(below).await {
                    Err(Error::LostWrites { stripe, boot_id }) => {
                        restarted = Some(Unsynced { stripe, boot_id });
                    }
                    answer => return answer,
                }
            }
            let below = this.write_back(&written, restarted).await?;
            this.below.sync(below).await
        }
        .boxed_local()
    }

    fn forget(&self, stripe: u64, offset: u32, length: u32) -> Answer<()> {
        self.ask_owner(stripe, Forget { stripe, offset, length })
    }

    fn read_slot(&self, disk: DiskName, slot: u32) -> Answer<Bytes> {
        self.below.read_slot(disk, slot)
    }

    fn write_slot(&self, disk: DiskName, slot: u32, data: Bytes) -> Answer<()> {
        self.below.write_slot(disk, slot, data)
    }
}

/// Sends `call` to `node`, again after a pause while it is busy or away.
fn ask<C>(
    context: Context,
    node: NodeId,
    call: C,
) -> LocalBoxFuture<'static, Result<C::Reply, Error>>
where
    C: Call<Protocol = Cache> + Clone,
{
    if let Some(answer) = context.try_now(node, call.clone())
        && !answer.as_ref().is_err_and(Error::is_transient)
    {
        return ready(answer).boxed_local();
    }
    async move {
        let mut pauses = Backoff::new(BUSY_PAUSE_FIRST, BUSY_PAUSES_MAX);
        loop {
            let answer = context.spawn(node, call.clone()).await;
            let is_transient = answer.as_ref().is_err_and(Error::is_transient);
            if !is_transient || !pauses.pause(&context).await {
                return answer;
            }
        }
    }
    .boxed_local()
}
