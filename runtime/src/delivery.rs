//! Bytes that go to a client straight from the process that has them, and not through the one that
//! answers its request.
//!
//! A client with a large read says at which processes it is let in, and begins a
//! [`DirectTransfer`]. The node of the file has other processes [deliver](Deliver) what they have
//! of the bytes, and says in its reply which these were. Whatever does not come is read again.
//! (Third-party transfer, as I/O servers of a parallel file system do it.)

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::ids::NodeId;
use crate::protocol::Undelivered as Error;

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

crate::protocol! {
    /// What a process sends to its own clients for another one.
    Delivery id 5 version 1;

    /// Send these bytes to a client of this process. False if it has no link with room for them.
    1 Bulk Deliver {
        destination: Destination,
        parts: Vec<PlacedBytes>,
    } -> bool, by caller, retry never, from servers, during recovery;
}

/// The transfers of one client, and the processes that can deliver to it.
#[derive(Debug, Default)]
pub struct Transfers {
    /// The number by which the nodes know the client.
    client: AtomicU64,
    /// Links to all processes are wanted.
    is_wanted: AtomicBool,
    table: Mutex<TransferTable>,
}

#[derive(Debug, Default)]
struct TransferTable {
    /// How many processes there are.
    processes: usize,
    /// The processes to which there is a link.
    ports: BTreeMap<u32, u32>,
    last: u64,
    waiting: BTreeMap<u64, Weak<PendingTransfer>>,
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
    /// A link has ended, and with it what was on its way.
    is_cut: bool,
}

/// A client that repeats its request may get the bytes of each execution.
const EXECUTIONS_MAX: u64 = 4;

impl Transfers {
    /// The client is known by this number.
    pub fn set_client(&self, client: u64) {
        self.client.store(client, Relaxed);
    }

    /// The number of processes that answer clients.
    pub fn set_processes(&self, processes: usize) {
        lock(&self.table).processes = processes;
    }

    /// There is a link to `process`, which lets the client in at `node`.
    pub fn link_up(&self, process: u32, node: NodeId) {
        lock(&self.table).ports.insert(process, node.0);
    }

    /// The link to `process` has ended.
    pub fn link_down(&self, process: u32) {
        let mut table = lock(&self.table);
        table.ports.remove(&process);
        for transfer in table.waiting.values().filter_map(Weak::upgrade) {
            lock(&transfer.came).is_cut = true;
            transfer.changed.notify_waiters();
        }
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
        let of = |(&process, &node): (&u32, &u32)| PortAddress { process, node };
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
        let mut came = lock(&state.came);
        for PlacedBytes { at, data } in parts {
            let length = data.len() as u64;
            let fits = at.checked_add(length).is_some_and(|end| end <= state.length);
            if fits && came.bytes + length <= EXECUTIONS_MAX * state.length {
                came.bytes += length;
                // A copy of a message never replaces what came first.
                came.parts.entry((execution, at)).or_insert(data);
            }
        }
        drop(came);
        state.changed.notify_waiters();
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

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn part(at: u64, data: &'static [u8]) -> PlacedBytes {
        PlacedBytes { at, data: Bytes::from_static(data) }
    }

    fn two_links() -> Arc<Transfers> {
        let transfers = Arc::new(Transfers::default());
        transfers.set_processes(2);
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
        transfers.link_down(2);
        assert_eq!(taking.as_mut().now_or_never(), Some(None));
        drop(taking);
        transfers.receive(transfer.number, 1, vec![part(2, b"here")]);
        assert!(transfer.take(1, &WHOLE).now_or_never().unwrap().is_some(), "it has come before");
    }

    #[test]
    fn a_server_cannot_make_a_client_hold_more_than_it_asked_for() {
        let transfers = two_links();
        let transfer = transfers.begin(8).unwrap();
        transfers.receive(transfer.number, 1, vec![part(6, b"long"), part(u64::MAX, b"x")]);
        for execution in 0..100 {
            transfers.receive(transfer.number, execution, vec![part(0, b"12345678")]);
        }
        assert_eq!(lock(&transfer.state.came).bytes, 32);
        drop(transfer);
        assert!(lock(&transfers.table).waiting.is_empty());
    }
}
