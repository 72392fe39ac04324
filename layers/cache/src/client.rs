//! How the layers above ask the cache: the same interface as block I/O, in front of it.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use blockio::{Answer, Geometry, Stripes};
use bytes::Bytes;
use futures::future::LocalBoxFuture;
use futures::{FutureExt as _, StreamExt as _, stream};
use runtime::{Call, Context, NodeId};

use crate::hash;
use crate::pauses::Pauses;
use crate::protocol::{
    Cache, CacheStatus, Error, Forget, Read, Status, Write, WriteBack, WriteZeros,
};

/// The first pause after `Busy`.
const BUSY_PAUSE_FIRST: Duration = Duration::from_millis(1);

/// Pauses before `Busy` goes to the caller: one second in all.
const BUSY_PAUSES_MAX: u32 = 10;

/// Requests of one call that wait for their answers at the same time.
const REQUESTS_AT_ONCE_MAX: usize = 256;

/// Stripes named by one write-back request.
const STRIPES_PER_REQUEST_MAX: usize = 4096;

/// The logical disk as seen through the cache. Cheap to clone.
///
/// A full node's `Busy` is retried with doubling pauses, a bounded number of times; every other
/// error, also of the layer below, goes to the caller.
#[derive(Clone)]
pub struct CacheClient {
    context: Context,
    geometry: Geometry,
    below: Rc<dyn Stripes>,
}

impl std::fmt::Debug for CacheClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CacheClient").field("context", &self.context).finish_non_exhaustive()
    }
}

impl CacheClient {
    /// Asks the caches of the volume's nodes from the node of `context`; `below` is the logical
    /// disk without the cache, for root slots and for making durable.
    pub fn new(context: Context, geometry: Geometry, below: Rc<dyn Stripes>) -> Self {
        Self { context, geometry, below }
    }

    /// What the caches of all nodes hold and have done, in sum.
    pub async fn status(&self) -> Result<CacheStatus, Error> {
        let nodes = (0..self.geometry.fs_nodes).map(NodeId::fs);
        let requests = nodes.map(|node| ask(self.context.clone(), node, Status {}));
        let answers: Vec<_> =
            stream::iter(requests).buffer_unordered(REQUESTS_AT_ONCE_MAX).collect().await;
        answers.into_iter().try_fold(CacheStatus::default(), |sum, answer| Ok(sum + answer?))
    }

    /// Sends `call` to the node that caches `stripe`.
    fn ask_owner<C>(&self, stripe: u64, call: C) -> Answer<C::Reply>
    where
        C: Call<Protocol = Cache> + Clone,
    {
        ask(self.context.clone(), hash::owner(&self.geometry, stripe), call)
    }

    /// The requests that write `stripes` back: the fewest that name each of them at its node; for
    /// no stripes, one that says "all" to each node.
    fn write_backs(&self, stripes: &[u64]) -> Vec<(NodeId, WriteBack)> {
        if stripes.is_empty() {
            let nodes = (0..self.geometry.fs_nodes).map(NodeId::fs);
            return nodes.map(|node| (node, WriteBack { stripes: Vec::new() })).collect();
        }
        let mut by_node: BTreeMap<NodeId, Vec<u64>> = BTreeMap::new();
        for &stripe in stripes {
            by_node.entry(hash::owner(&self.geometry, stripe)).or_default().push(stripe);
        }
        let batches = by_node.iter().flat_map(|(&node, stripes)| {
            let batches = stripes.chunks(STRIPES_PER_REQUEST_MAX);
            batches.map(move |batch| (node, WriteBack { stripes: batch.to_vec() }))
        });
        batches.collect()
    }
}

impl Stripes for CacheClient {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, stripe: u64, offset: u32, length: u32, expect: Vec<u32>) -> Answer<Bytes> {
        self.ask_owner(stripe, Read { stripe, offset, length, expect })
    }

    fn write(&self, stripe: u64, offset: u32, data: Vec<Bytes>) -> Answer<()> {
        self.ask_owner(stripe, Write { stripe, offset, data })
    }

    fn write_zeros(&self, stripe: u64, offset: u32, length: u32) -> Answer<()> {
        self.ask_owner(stripe, WriteZeros { stripe, offset, length })
    }

    /// Waits for all nodes even if one fails, and returns the first failure; nothing is made
    /// durable then that was not before.
    fn sync(&self, stripes: Vec<u64>) -> Answer<()> {
        let this = self.clone();
        async move {
            let requests = this.write_backs(&stripes).into_iter();
            let requests = requests.map(|(node, call)| ask(this.context.clone(), node, call));
            let answers: Vec<Result<(), Error>> =
                stream::iter(requests).buffered(REQUESTS_AT_ONCE_MAX).collect().await;
            answers.into_iter().collect::<Result<(), Error>>()?;
            this.below.sync(stripes).await
        }
        .boxed_local()
    }

    fn forget(&self, stripe: u64, offset: u32, length: u32) -> Answer<()> {
        self.ask_owner(stripe, Forget { stripe, offset, length })
    }

    fn read_slot(&self, disk: u32, slot: u32) -> Answer<Bytes> {
        self.below.read_slot(disk, slot)
    }

    fn write_slot(&self, disk: u32, slot: u32, data: Bytes) -> Answer<()> {
        self.below.write_slot(disk, slot, data)
    }
}

/// Sends `call` to `node`, again after a pause while it is busy.
fn ask<C>(
    context: Context,
    node: NodeId,
    call: C,
) -> LocalBoxFuture<'static, Result<C::Reply, Error>>
where
    C: Call<Protocol = Cache> + Clone,
{
    async move {
        let mut pauses = Pauses::new(BUSY_PAUSE_FIRST, BUSY_PAUSES_MAX);
        loop {
            let answer = context.spawn(node, call.clone()).await;
            let is_busy = answer.as_ref().is_err_and(Error::is_busy);
            if !is_busy || !pauses.pause(&context).await {
                return answer;
            }
        }
    }
    .boxed_local()
}
