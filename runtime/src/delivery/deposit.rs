//! Parts of a large write that a client leaves at the processes that shall store them.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{DeliveryTarget, PORTS_MAX, PortAddress, Transfers};
use crate::ids::{NodeId, NodeKind};
use crate::sync::lock;

crate::record! {
    /// Bytes of a write that were left at another process.
    pub struct DepositedRange {
        /// The process.
        process: u32,
        /// The place of the first in the write; it begins a block of the file.
        at: u64,
        /// The CRC-32C of each block: there are that many blocks.
        checksums: Vec<u32>,
    }
}

crate::record! {
    /// How a client cuts large writes: bytes in a row of a file, from a multiple of this on, are
    /// left at one process together.
    #[derive(Copy)]
    pub struct DepositUnit {
        /// Bytes of a chunk.
        chunk: u32,
        /// Chunks of a unit: where files have wide stripes, those of one.
        chunks: u32,
        /// Parity shards of a unit.
        parity: u32,
    }
}

impl Default for DepositUnit {
    /// Without parity.
    fn default() -> Self {
        Self { chunk: 128 << 10, chunks: 1, parity: 0 }
    }
}

impl DepositUnit {
    /// Its bytes.
    pub fn bytes(self) -> u64 {
        u64::from(self.chunk) * u64::from(self.chunks)
    }
}

crate::record! {
    /// Where blocks go that a client has left.
    pub struct BlocksToStore {
        /// The logical stripe.
        stripe: u64,
        /// The first byte of the blocks within the stripe.
        offset: u32,
        /// The place of the first byte in the write.
        at: u64,
        /// Bytes of the blocks.
        length: u32,
        /// The CRC-32C of each logical block.
        expect: Vec<u32>,
    }
}

crate::record! {
    /// Parity that the process with the data makes and stores.
    pub struct ParityToStore {
        /// The part that is the first data shard.
        first: u32,
        /// Parts in a row that are data shards, each a whole stripe.
        data: u32,
        /// Blocks of a logical block.
        unit: u32,
        /// The logical stripe of each parity shard.
        stripes: Vec<u64>,
    }
}

crate::record! {
    /// A parity shard that was stored.
    pub struct StoredParity {
        /// The boot ID of the cache.
        boot_id: u64,
        /// The CRC-32C of each logical block.
        checksums: Vec<u32>,
    }
}

crate::record! {
    /// What was stored.
    #[derive(Default)]
    pub struct StoredDeposit {
        /// The boot ID of the cache for each part; none if the bytes were not here, or not these.
        boot_ids: Vec<u64>,
        /// For each wide stripe the parity shards.
        parity: Vec<StoredParity>,
    }
}

/// A process at which a client can leave bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DepositProcess {
    /// Its number.
    pub process: u32,
    /// A file-system node there, by which requests find it.
    pub node: NodeId,
    /// It answers for the node of the file: what it shall store goes with the request.
    pub is_answering: bool,
    port: PortAddress,
    link: u64,
}

/// A write of which parts are left at several processes. It is over when this is dropped.
#[derive(Debug)]
pub struct DepositTransfer {
    table: Arc<Transfers>,
    number: u64,
    first: u64,
    processes: Vec<DepositProcess>,
    unit: DepositUnit,
}

impl Transfers {
    /// A write to a file of `file_node`; none if no process could store anything beside the one
    /// that answers for it.
    pub fn begin_deposits(self: &Arc<Self>, file_node: NodeId) -> Option<DepositTransfer> {
        let mut table = lock(&self.table);
        if table.ports.len() < table.processes {
            self.is_wanted.store(true, Relaxed);
        }
        let NodeKind::Fs(index) = file_node.kind() else { return None };
        let answering = table.hosts.get(index as usize).copied()?;
        let found = table.ports.iter().take(PORTS_MAX).filter_map(|(&process, &(port, link))| {
            let index = table.hosts.iter().position(|host| *host == process)?;
            let node = NodeId::fs(u32::try_from(index).ok()?);
            let port = PortAddress { process, node: port };
            let is_answering = process == answering;
            Some(DepositProcess { process, node, is_answering, port, link })
        });
        let processes: Vec<DepositProcess> = found.collect();
        if processes.iter().all(|it| it.is_answering) {
            return None;
        }
        table.last += 1;
        let number = table.last;
        table.writes.insert(number);
        let first = table.writes.first().copied().unwrap_or(number);
        let unit = table.unit;
        drop(table);
        Some(DepositTransfer { table: self.clone(), number, first, processes, unit })
    }
}

impl DepositTransfer {
    /// The number of the client.
    pub fn client(&self) -> u64 {
        self.table.client.load(Relaxed)
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The first of the client's writes that was not over when this began.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Where parts can be left, in the order of their numbers.
    pub fn processes(&self) -> &[DepositProcess] {
        &self.processes
    }

    /// How it is cut.
    pub fn unit(&self) -> DepositUnit {
        self.unit
    }

    /// Does the client make its parity?
    pub fn makes_parity(&self) -> bool {
        self.unit.parity > 0 && self.table.makes_parity.load(Relaxed)
    }

    /// What the request says of it: the bytes are where the client is let in at `processes`.
    pub fn source(&self, processes: &[DepositProcess]) -> DeliveryTarget {
        let ports = processes.iter().map(|it| it.port).collect();
        DeliveryTarget { client: self.client(), transfer: self.number, ports }
    }

    /// Resolves when the link by which `process` was reached has ended.
    pub async fn link_ended(&self, process: DepositProcess) {
        loop {
            let mut ended = pin!(self.table.link_ended.notified());
            // From here on, and not from the first poll.
            ended.as_mut().enable();
            let links = lock(&self.table.table).ports.get(&process.process).map(|port| port.1);
            if links != Some(process.link) {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for DepositTransfer {
    fn drop(&mut self) {
        lock(&self.table.table).writes.remove(&self.number);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use bytes::Bytes;
    use futures::FutureExt as _;

    use super::super::{Deposit, PlacedBytes, Request, StoreDeposit, TakeDeposit};
    use super::*;
    use crate::wire::{Encoder, Wire as _};

    fn transfers() -> Arc<Transfers> {
        let transfers = Arc::new(Transfers::default());
        transfers.set_map(3, &[1, 2, 2, 3], DepositUnit::default());
        transfers.link_up(2, NodeId::application(9));
        assert!(transfers.begin_deposits(NodeId::fs(1)).is_none(), "it answers for the file");
        assert!(transfers.take_wanted(), "links to the others are made");
        transfers.link_up(1, NodeId::application(9));
        transfers
    }

    #[test]
    fn a_write_knows_who_answers_for_the_file_and_where_the_client_is_let_in() {
        let transfers = transfers();
        transfers.set_client(4);
        let write = transfers.begin_deposits(NodeId::fs(2)).unwrap();
        let [one, two] = *write.processes() else { panic!("{:?}", write.processes()) };
        assert_eq!((one.process, one.node, one.is_answering), (1, NodeId::fs(0), false));
        assert_eq!((two.process, two.node, two.is_answering), (2, NodeId::fs(1), true));
        let ports = vec![PortAddress { process: 1, node: NodeId::application(9).0 }];
        let source = DeliveryTarget { client: 4, transfer: write.number(), ports };
        assert_eq!(write.source(&[one]), source);
        assert!(transfers.begin_deposits(NodeId::fs(7)).is_none(), "there is no such node");
    }

    #[test]
    fn what_was_left_for_writes_that_are_over_need_not_be_kept() {
        let transfers = transfers();
        let begin = || transfers.begin_deposits(NodeId::fs(0)).unwrap();
        let (one, two) = (begin(), begin());
        assert_eq!((two.first(), one.first()), (one.number(), one.number()));
        drop(one);
        assert_eq!(begin().first(), two.number());
    }

    #[test]
    fn the_end_of_a_link_is_noticed_and_that_of_another_is_not() {
        let transfers = transfers();
        let write = transfers.begin_deposits(NodeId::fs(1)).unwrap();
        let one = write.processes()[0];
        let mut ended = Box::pin(write.link_ended(one));
        assert!(ended.as_mut().now_or_never().is_none());
        let other = transfers.link_up(3, NodeId::application(9));
        transfers.link_down(other);
        assert!(ended.as_mut().now_or_never().is_none());
        transfers.link_down(one.link);
        assert!(ended.as_mut().now_or_never().is_some());
        transfers.link_up(1, NodeId::application(9));
        assert!(write.link_ended(one).now_or_never().is_some(), "it is another link");
    }

    #[test]
    fn requests_have_the_agreed_bytes() {
        let form = |request: Request| {
            let mut out = Encoder::new();
            request.put(&mut out);
            let (head, bulk) = out.finish();
            let head: Vec<String> = head.iter().map(|byte| format!("{byte:02x}")).collect();
            (head.concat(), bulk.concat())
        };
        let numbers = "04000000000000000500000000000000";
        let parts = vec![PlacedBytes { at: 8, data: Bytes::from_static(b"part") }];
        let deposit = Deposit { client: 4, transfer: 5, first: 3, parts };
        let expected = format!("03{numbers}0300000000000000{}", "01000000080000000000000004000000");
        assert_eq!(form(deposit.into()), (expected, b"part".to_vec()));
        let take = TakeDeposit { client: 4, transfer: 5 };
        assert_eq!(form(take.into()), (format!("04{numbers}"), Vec::new()));
        let part =
            BlocksToStore { stripe: 1, offset: 4096, at: 8, length: 4096, expect: vec![0x0a] };
        let parity = ParityToStore { first: 2, data: 3, unit: 4, stripes: vec![5] };
        let parity = vec![parity];
        let store = StoreDeposit { port: 6, client: 4, transfer: 5, parts: vec![part], parity };
        let places = "01000000010000000000000000100000080000000000000000100000010000000a000000";
        let parity = "01000000020000000300000004000000010000000500000000000000";
        assert_eq!(
            form(store.into()),
            (format!("0506000000{numbers}{places}{parity}"), Vec::new())
        );
    }
}
