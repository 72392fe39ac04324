//! Bytes of a read that other processes send to the client themselves, so that they do not pass
//! through the node of the file. It holds its locks until they are sent.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, join, join_all, try_join_all};
use runtime::delivery::{
    BlocksToSend, Deliver, DeliveredRange, Delivery, DeliveryTarget, Destination, PlacedBytes,
    Reply, Request, SEND_PARTS_MAX, SendBlocks,
};
use runtime::{Caller, NodeId, NodeKind, Server, Undelivered};

use super::content::{BlockSource, ContentAccess, RangeData};
use crate::protocol::Error;

/// Less than this from one process goes through the node of the file: a message of its own to the
/// client would cost more.
const SEND_BYTES_MIN: u64 = 64 << 10;

/// How one execution of a read delivers bytes.
#[derive(Clone, Copy)]
pub(super) struct ReadDelivery<'a> {
    pub(super) target: &'a DeliveryTarget,
    /// Drawn for this execution.
    pub(super) execution: u64,
}

/// What one process is to send.
struct ProcessShare {
    /// One of its nodes.
    node: NodeId,
    port: NodeId,
    /// Indices of the sources.
    sources: Vec<usize>,
    parts: Vec<BlocksToSend>,
    bytes: u64,
}

impl ReadDelivery<'_> {
    /// Has other processes send what they have of `sources`, which follow each other from place 0
    /// of the transfer on, and reads the rest.
    pub(super) async fn send(
        self,
        content: &ContentAccess,
        sources: Vec<BlockSource<'_>>,
    ) -> Result<RangeData, Error> {
        let shares = self.shares(content, &sources);
        let mut is_sent = vec![false; sources.len()];
        for index in shares.iter().flat_map(|share| &share.sources) {
            is_sent[*index] = true;
        }
        let taking = take(content, &sources, |index| !is_sent[index]);
        let sending = join_all(shares.into_iter().map(|share| self.send_share(content, share)));
        let (taken, failed) = join(taking, sending).await;
        let mut taken = taken?;
        let failed: Vec<usize> = failed.into_iter().flatten().collect();
        taken.extend(take(content, &sources, |index| failed.contains(&index)).await?);
        Ok(assemble(&sources, taken))
    }

    /// What each of the other processes can send.
    fn shares(self, content: &ContentAccess, sources: &[BlockSource<'_>]) -> Vec<ProcessShare> {
        let mut shares: BTreeMap<u32, ProcessShare> = BTreeMap::new();
        let mut at = 0;
        for (index, source) in sources.iter().enumerate() {
            let place = at;
            at += source.length() as u64;
            let BlockSource::Stored { run, blocks, skip, keep, .. } = source else { continue };
            let (stripe, offset, length) = content.bytes_of(run, blocks);
            let Some((process, node, port)) = self.process_with(content, stripe) else { continue };
            let expect = run.checksums[blocks.clone()].to_vec();
            let (skip, keep) = (*skip as u32, *keep as u32);
            let share = shares.entry(process).or_insert_with(|| ProcessShare {
                node,
                port,
                sources: Vec::new(),
                parts: Vec::new(),
                bytes: 0,
            });
            share.sources.push(index);
            share.parts.push(BlocksToSend {
                stripe,
                offset,
                length,
                expect,
                skip,
                keep,
                at: place,
            });
            share.bytes += source.length() as u64;
        }
        shares.retain(|_, share| share.bytes >= SEND_BYTES_MIN);
        shares.into_values().collect()
    }

    /// Another process that has `stripe` and lets the client in, its node of the stripe, and where
    /// it lets the client in.
    fn process_with(self, content: &ContentAccess, stripe: u64) -> Option<(u32, NodeId, NodeId)> {
        let node = content.stripes.node_of(stripe)?;
        let here = content.context();
        let process = here.process_of(node)?;
        let is_other = here.process_of(here.node()) != Some(process);
        let port = self.target.port(process).filter(|_| is_other)?;
        Some((process, node, port))
    }

    /// Returns the sources of a share that was not sent.
    async fn send_share(self, content: &ContentAccess, share: ProcessShare) -> Vec<usize> {
        let DeliveryTarget { client, transfer, .. } = *self.target;
        let ProcessShare { node, port, sources, parts, .. } = share;
        let execution = self.execution;
        let destination = Destination { port: port.0, client, transfer, execution };
        let sent = content.context().spawn(node, SendBlocks { destination, parts }).await;
        if sent == Ok(true) { Vec::new() } else { sources }
    }
}

/// The bytes of those sources whose index `is_wanted`.
async fn take(
    content: &ContentAccess,
    sources: &[BlockSource<'_>],
    is_wanted: impl Fn(usize) -> bool,
) -> Result<BTreeMap<usize, Bytes>, Error> {
    let wanted = sources.iter().enumerate().filter(|(index, _)| is_wanted(*index));
    let taking = wanted.map(|(index, source)| {
        let bytes = content.take(source);
        async move { Ok::<_, Error>((index, bytes.await?)) }
    });
    let taken: Vec<(usize, Bytes)> = try_join_all(taking).await?;
    Ok(taken.into_iter().collect())
}

/// What is here of the sources, and where the rest belongs.
fn assemble(sources: &[BlockSource<'_>], mut taken: BTreeMap<usize, Bytes>) -> RangeData {
    let mut read = RangeData { data: Vec::new(), delivered: Vec::new() };
    let mut at = 0;
    for (index, source) in sources.iter().enumerate() {
        let length = source.length() as u64;
        match (taken.remove(&index), read.delivered.last_mut()) {
            (Some(bytes), _) => read.data.push(bytes),
            (None, Some(last)) if last.at + last.length == at => last.length += length,
            (None, _) => read.delivered.push(DeliveredRange { at, length }),
        }
        at += length;
    }
    read
}

/// Sends what the caches of this process have to clients of this process, and stores what these
/// have left here ([`store`](Self::store), in `store_deposit.rs`).
pub(super) struct BlockSender(pub(super) Rc<ContentAccess>);

impl Server<Delivery> for BlockSender {
    fn handle(self: Rc<Self>, caller: Caller, request: Request) -> LocalBoxFuture<'static, Reply> {
        async move {
            match request {
                Request::SendBlocks(request) if !caller.is_client() => {
                    Reply::SendBlocks(Ok(self.send(request).await.unwrap_or(false)))
                }
                Request::StoreDeposit(request) if !caller.is_client() => {
                    let stored = match self.store(request, caller.epoch).await {
                        Err(Error::Undelivered { why }) if why.is_lost() => Err(why),
                        stored => Ok(stored.unwrap_or_default()),
                    };
                    Reply::StoreDeposit(stored)
                }
                _ => Undelivered::Refused.into(),
            }
        }
        .boxed_local()
    }
}

impl BlockSender {
    async fn send(&self, request: SendBlocks) -> Result<bool, Error> {
        let SendBlocks { destination, parts } = request;
        let port = NodeId(destination.port);
        let is_checked = parts.iter().all(|part| !part.expect.is_empty());
        let is_port = matches!(port.kind(), NodeKind::Application(_));
        if parts.len() > SEND_PARTS_MAX || !is_checked || !is_port {
            return Err(Error::Invalid {});
        }
        let reads = parts.into_iter().map(|part| {
            let BlocksToSend { stripe, offset, length, expect, skip, keep, at } = part;
            let reading = self.0.stripes.read(stripe, offset, length, expect);
            async move {
                let (first, bytes) = (skip as usize, reading.await?);
                let end = skip.checked_add(keep).map(|end| end as usize);
                let end = end.filter(|end| *end <= bytes.len());
                let end = end.ok_or(Error::from(Undelivered::ProtocolMismatch))?;
                Ok::<_, Error>(PlacedBytes { at, data: bytes.slice(first..end) })
            }
        });
        let parts = try_join_all(reads).await?;
        Ok(self.0.context().spawn(port, Deliver { destination, parts }).await?)
    }
}
