//! Bytes that go to a client straight from the process that has them, and not through the one that
//! answers its request.
//!
//! A client with a large read says at which processes it is let in, and begins a
//! [`DirectTransfer`]. The node of the file has other processes [deliver](Deliver) what they have
//! of the bytes, and says in its reply which these were. Whatever does not come is read again.
//! (Third-party transfer, as I/O servers of a parallel file system do it.)
//!
//! A client with a large write leaves parts of it at other processes first ([`Deposit`]). The node
//! of the file has these [store](StoreDeposit) them where it has reserved blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::identity::{AccessRefused, ClientIdentity};
use crate::ids::NodeId;
use crate::protocol::Undelivered as Error;
use crate::sync::lock;

mod deposit;

pub use deposit::{
    BlocksToStore, DepositProcess, DepositTransfer, DepositUnit, DepositedRange, ParityToStore,
    StoredDeposit, StoredParity,
};

/// Processes that a client names in one request, at most.
pub const PORTS_MAX: usize = 256;

crate::record! {
    /// Where a process lets clients in.
    #[derive(Copy)]
    pub struct PortAddress {
        /// The number of the process.
        process: u32,
        /// The application node there.
        node: u32,
    }
}

crate::record! {
    /// How other processes than the one that answers can deliver bytes to a client.
    pub struct DeliveryTarget {
        /// The client.
        client: u64,
        /// Its transfer.
        transfer: u64,
        /// Where it is let in, at most [`PORTS_MAX`].
        ports: Vec<PortAddress>,
    }
}

impl DeliveryTarget {
    /// Is `client` the one that gets the bytes?
    pub fn admit(&self, client: &ClientIdentity) -> Result<(), AccessRefused> {
        client.owns(self.client)
    }

    /// Where the client is let in at `process`.
    pub fn port(&self, process: u32) -> Option<NodeId> {
        let port = self.ports.iter().find(|port| port.process == process)?;
        Some(NodeId(port.node))
    }
}

crate::record! {
    /// Where one process delivers bytes for one execution of a request.
    #[derive(Copy)]
    pub struct Destination {
        /// The application node at which the client is let in.
        port: u32,
        /// The client.
        client: u64,
        /// Its transfer.
        transfer: u64,
        /// Drawn anew each time that the request is executed, so that bytes of two times are never
        /// mixed.
        execution: u64,
    }
}

crate::record! {
    /// Bytes, and where they belong in the transfer.
    pub struct PlacedBytes {
        /// The place of the first.
        at: u64,
        /// The bytes.
        data: Bytes,
    }
}

crate::record! {
    /// Bytes that were delivered.
    #[derive(Copy)]
    pub struct DeliveredRange {
        /// The place of the first in the transfer.
        at: u64,
        /// How many.
        length: u64,
    }
}

crate::record! {
    /// Blocks of one stripe that go to a client.
    pub struct BlocksToSend {
        /// The logical stripe.
        stripe: u64,
        /// The first byte of the blocks within the stripe.
        offset: u32,
        /// Bytes of the blocks.
        length: u32,
        /// The CRC-32C of each logical block.
        expect: Vec<u32>,
        /// Bytes of the blocks before those that are sent.
        skip: u32,
        /// Bytes that are sent.
        keep: u32,
        /// Their place in the transfer.
        at: u64,
    }
}

/// Parts that one [`SendBlocks`] names, at most.
pub const SEND_PARTS_MAX: usize = 4096;
/// Pieces of one [`Deposit`], at most.
pub const DEPOSIT_PARTS_MAX: usize = 4096;

crate::protocol! {
    /// What a process sends to its own clients for another one. A table of its own, so that its
    /// requests never wait behind those of the table whose locks their senders hold.
    Delivery id 5 version 3;

    /// Send these bytes to a client of this process, at the node where it is let in. False if it
    /// has no link with room for them.
    1 Bulk Deliver {
        destination: Destination,
        parts: Vec<PlacedBytes>,
    } -> bool, by caller, retry never, from servers, during recovery;

    /// Send what the caches of this process have, at any of its file-system nodes. False if it
    /// cannot be sent now. The asker holds the locks under which the blocks are read.
    2 Bulk SendBlocks {
        destination: Destination,
        /// At most [`SEND_PARTS_MAX`].
        parts: Vec<BlocksToSend>,
    } -> bool, by caller, retry never, from servers, during recovery;

    /// Keep parts of a write until the node of the file has them stored. Answered where the client
    /// is let in, whichever node it names. False if there is no room: then nothing is kept.
    3 Bulk Deposit {
        /// The client.
        client: u64,
        /// The write.
        transfer: u64,
        /// The first of its writes that is not over: what it has left for earlier ones is dropped.
        first: u64,
        /// The bytes in order of their places in the write, at most [`DEPOSIT_PARTS_MAX`].
        parts: Vec<PlacedBytes>,
    } -> bool, by caller, retry never, from any, during recovery;

    /// Take what a client has left here, at the node where it is let in. Empty if there is nothing;
    /// the second time there is nothing.
    4 Bulk TakeDeposit {
        /// The client.
        client: u64,
        /// Its write.
        transfer: u64,
    } -> Vec<PlacedBytes>, by caller, retry never, from servers, during recovery;

    /// Store what a client has left at this process, at any of its file-system nodes: all or
    /// nothing. The asker has reserved the blocks.
    5 Bulk StoreDeposit {
        /// The application node at which the client is let in.
        port: u32,
        /// The client.
        client: u64,
        /// Its write.
        transfer: u64,
        /// Where the bytes go, at most [`SEND_PARTS_MAX`].
        parts: Vec<BlocksToStore>,
        /// Parity of these, which is stored with them.
        parity: Vec<ParityToStore>,
    } -> StoredDeposit, by caller, retry never, from servers, during recovery;
}

/// The transfers of one client, and the processes that can deliver to it.
#[derive(Debug, Default)]
pub struct Transfers {
    /// The number by which the nodes know the client.
    client: AtomicU64,
    /// Links to all processes are wanted.
    is_wanted: AtomicBool,
    /// The client makes the parity of its large writes.
    makes_parity: AtomicBool,
    table: Mutex<TransferTable>,
    /// A link has ended.
    link_ended: Notify,
}

#[derive(Debug, Default)]
struct TransferTable {
    /// How many processes there are.
    processes: usize,
    /// The processes to which there is a link: the node that lets the client in, and the number of
    /// the link.
    ports: BTreeMap<u32, (u32, u64)>,
    last_link: u64,
    last: u64,
    waiting: BTreeMap<u64, Weak<PendingTransfer>>,
    /// By file-system node: the number of its process.
    hosts: Vec<u32>,
    unit: DepositUnit,
    /// Writes that are not over.
    writes: BTreeSet<u64>,
}

/// Bytes that a client waits for.
#[derive(Debug)]
pub struct DirectTransfer {
    table: Arc<Transfers>,
    number: u64,
    ports: Vec<PortAddress>,
    state: Arc<PendingTransfer>,
}

#[derive(Debug, Default)]
struct PendingTransfer {
    /// Bytes of the transfer, at most.
    length: u64,
    came: Mutex<ReceivedParts>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct ReceivedParts {
    /// By execution and place.
    parts: BTreeMap<(u64, u64), Bytes>,
    bytes: u64,
    /// Something that was sent will not come: a link has ended, or it was too much.
    is_cut: bool,
}

/// A client that repeats its request may get the bytes of each execution.
const EXECUTIONS_MAX: u64 = 4;

impl Transfers {
    /// The client is known by this number.
    pub fn set_client(&self, client: u64) {
        self.client.store(client, Relaxed);
    }

    /// The client makes the parity of its large writes, and not the processes that store them.
    pub fn set_makes_parity(&self, makes_parity: bool) {
        self.makes_parity.store(makes_parity, Relaxed);
    }

    /// The number of processes that answer clients, by file-system node that of its process, and
    /// how large writes are cut.
    pub fn set_map(&self, processes: usize, hosts: &[u32], unit: DepositUnit) {
        let mut table = lock(&self.table);
        table.processes = processes;
        table.hosts = hosts.to_vec();
        let is_sound = unit.chunk > 0 && unit.chunks > 0;
        table.unit = if is_sound { unit } else { DepositUnit::default() };
    }

    /// There is a link to `process`, which lets the client in at `node`. Returns its number.
    pub fn link_up(&self, process: u32, node: NodeId) -> u64 {
        let mut table = lock(&self.table);
        table.last_link += 1;
        let link = table.last_link;
        table.ports.insert(process, (node.0, link));
        link
    }

    /// The link of this number has ended.
    pub fn link_down(&self, link: u64) {
        let mut table = lock(&self.table);
        table.ports.retain(|_, port| port.1 != link);
        for transfer in table.waiting.values().filter_map(Weak::upgrade) {
            transfer.cut();
        }
        drop(table);
        self.link_ended.notify_waiters();
    }

    /// Are links to all processes wanted? Asked once for each time.
    pub fn take_wanted(&self) -> bool {
        self.is_wanted.load(Relaxed) && self.is_wanted.swap(false, Relaxed)
    }

    /// A transfer of `length` bytes; none if no other process than one could deliver anything.
    pub fn begin(self: &Arc<Self>, length: u64) -> Option<DirectTransfer> {
        let mut table = lock(&self.table);
        if table.ports.len() < table.processes {
            self.is_wanted.store(true, Relaxed);
        }
        if table.ports.len() < 2 {
            return None;
        }
        let of = |(&process, &(node, _)): (&u32, &(u32, u64))| PortAddress { process, node };
        let ports = table.ports.iter().take(PORTS_MAX).map(of).collect();
        table.last += 1;
        let number = table.last;
        let state = Arc::new(PendingTransfer { length, ..PendingTransfer::default() });
        table.waiting.insert(number, Arc::downgrade(&state));
        drop(table);
        Some(DirectTransfer { table: self.clone(), number, ports, state })
    }

    /// Bytes have come. What nothing waits for is dropped.
    pub fn receive(&self, transfer: u64, execution: u64, parts: Vec<PlacedBytes>) {
        let waiting = lock(&self.table).waiting.get(&transfer).and_then(Weak::upgrade);
        let Some(state) = waiting else { return };
        let length: u64 = parts.iter().map(|part| part.data.len() as u64).sum();
        let fits = |part: &PlacedBytes| {
            let end = part.at.checked_add(part.data.len() as u64);
            !part.data.is_empty() && end.is_some_and(|end| end <= state.length)
        };
        let mut came = lock(&state.came);
        // Each part keeps all of the frame in memory.
        came.bytes += length;
        if came.bytes > EXECUTIONS_MAX * state.length || !parts.iter().all(fits) {
            drop(came);
            return state.cut();
        }
        for PlacedBytes { at, data } in parts {
            // A copy of a message never replaces what came first.
            came.parts.entry((execution, at)).or_insert(data);
        }
        drop(came);
        state.changed.notify_waiters();
    }
}

impl PendingTransfer {
    /// Something was dropped that is not sent again.
    fn cut(&self) {
        let mut came = lock(&self.came);
        came.is_cut = true;
        drop(came);
        self.changed.notify_waiters();
    }
}

impl DirectTransfer {
    /// What the request says of it.
    pub fn target(&self) -> DeliveryTarget {
        let client = self.table.client.load(Relaxed);
        DeliveryTarget { client, transfer: self.number, ports: self.ports.clone() }
    }

    /// Waits for the bytes of `ranges`, in order, which were delivered in this execution. None if
    /// they will not come.
    pub async fn take(&self, execution: u64, ranges: &[DeliveredRange]) -> Option<Vec<Vec<Bytes>>> {
        loop {
            let changed = self.state.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // From here on, and not from the first poll.
            changed.as_mut().enable();
            {
                let came = lock(&self.state.came);
                let of = |range: &DeliveredRange| came.range(execution, *range);
                if let Some(all) = ranges.iter().map(of).collect() {
                    return Some(all);
                }
                if came.is_cut {
                    return None;
                }
            }
            changed.await;
        }
    }
}

impl Drop for DirectTransfer {
    fn drop(&mut self) {
        lock(&self.table.table).waiting.remove(&self.number);
    }
}

impl ReceivedParts {
    /// The bytes of a range, if all of them are here.
    fn range(&self, execution: u64, range: DeliveredRange) -> Option<Vec<Bytes>> {
        let Range { start: mut at, end } = range.at..range.at.checked_add(range.length)?;
        let mut parts = Vec::new();
        while at < end {
            let part = self.parts.get(&(execution, at))?;
            at += part.len() as u64;
            if part.is_empty() || at > end {
                return None;
            }
            parts.push(part.clone());
        }
        Some(parts)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::wire::{Encoder, Wire as _};

    fn part(at: u64, data: &'static [u8]) -> PlacedBytes {
        PlacedBytes { at, data: Bytes::from_static(data) }
    }

    fn two_links() -> Arc<Transfers> {
        let transfers = Arc::new(Transfers::default());
        transfers.set_map(2, &[1, 2, 2], DepositUnit::default());
        transfers.link_up(1, NodeId::application(7));
        assert!(transfers.begin(4).is_none(), "one process has the rest of the bytes as well");
        assert!(transfers.take_wanted() && !transfers.take_wanted());
        transfers.link_up(2, NodeId::application(9));
        transfers
    }

    const WHOLE: [DeliveredRange; 1] = [DeliveredRange { at: 2, length: 4 }];

    #[test]
    fn bytes_of_two_executions_are_never_mixed_and_copies_change_nothing() {
        let transfers = two_links();
        let transfer = transfers.begin(8).unwrap();
        assert_eq!(transfer.target().port(2), Some(NodeId::application(9)));
        transfers.receive(transfer.number, 1, vec![part(2, b"ol")]);
        transfers.receive(transfer.number, 2, vec![part(4, b"ew")]);
        assert!(transfer.take(2, &WHOLE).now_or_never().is_none());
        transfers.receive(transfer.number, 2, vec![part(2, b"_n"), part(4, b"XX")]);
        let taken = transfer.take(2, &WHOLE).now_or_never().unwrap().unwrap();
        assert_eq!(taken.concat().concat(), b"_new");
    }

    #[test]
    fn what_was_on_its_way_by_a_link_that_ended_is_not_waited_for() {
        let transfers = two_links();
        let transfer = transfers.begin(8).unwrap();
        let mut taking = Box::pin(transfer.take(1, &WHOLE));
        assert!(taking.as_mut().now_or_never().is_none());
        transfers.link_down(transfers.link_up(2, NodeId::application(9)));
        assert_eq!(taking.as_mut().now_or_never(), Some(None));
        drop(taking);
        transfers.receive(transfer.number, 1, vec![part(2, b"here")]);
        assert!(transfer.take(1, &WHOLE).now_or_never().unwrap().is_some(), "it has come before");
    }

    #[test]
    fn a_server_cannot_make_a_client_hold_more_than_it_asked_for_and_the_client_reads_again() {
        for parts in [vec![part(6, b"long")], vec![part(u64::MAX, b"x")], vec![part(0, b"")]] {
            let transfers = two_links();
            let transfer = transfers.begin(8).unwrap();
            transfers.receive(transfer.number, 1, parts);
            assert_eq!(transfer.take(1, &WHOLE).now_or_never(), Some(None));
        }
        let transfers = two_links();
        let transfer = transfers.begin(8).unwrap();
        for execution in 0..100 {
            transfers.receive(transfer.number, execution, vec![part(0, b"12345678")]);
        }
        assert_eq!(lock(&transfer.state.came).parts.len(), EXECUTIONS_MAX as usize);
        assert_eq!(transfer.take(50, &WHOLE).now_or_never(), Some(None), "it was dropped");
        drop(transfer);
        assert!(lock(&transfers.table).waiting.is_empty());
    }

    #[test]
    fn requests_have_the_agreed_bytes() {
        let destination = Destination { port: 6, client: 4, transfer: 5, execution: 7 };
        let (expect, skip, keep) = (vec![0x0a], 2, 3);
        let block =
            BlocksToSend { stripe: 1, offset: 4096, length: 4096, expect, skip, keep, at: 8 };
        let mut out = Encoder::new();
        Request::from(SendBlocks { destination, parts: vec![block] }).put(&mut out);
        let head: Vec<String> = out.finish().0.iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = concat!(
            "0206000000040000000000000005000000000000000700000000000000",
            "01000000",
            "01000000000000000010000000100000010000000a000000",
            "02000000030000000800000000000000"
        );
        assert_eq!(head.concat(), expected);
    }

    #[test]
    fn a_link_that_ends_late_leaves_its_successor() {
        let transfers = two_links();
        let (earlier, node) =
            (transfers.link_up(2, NodeId::application(9)), NodeId::application(9));
        transfers.link_up(2, node);
        transfers.link_down(earlier);
        assert!(transfers.begin(8).is_some());
    }
}
