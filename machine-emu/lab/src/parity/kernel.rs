//! Virtual time, links with a rate in each direction, and resources that do one thing at a time.
//!
//! A message leaves its port behind those before it, takes the delay, and enters the other port
//! behind those that arrived before it. The other end begins to receive before the first has sent
//! all: the network cuts through. Links are full duplex. Small control messages have a lane of
//! their own: they take the delay but do not wait for bulk.
//!
//! `machine_emu::World` has a rate for each pair of nodes, but the ports of nodes are what limits
//! the makers of parity. So this module has a kernel of its own.

use std::collections::BTreeMap;

/// Picoseconds of a second.
pub(super) const SECOND_PS: u64 = 1_000_000_000_000;
/// Picoseconds of a nanosecond.
pub(super) const NANOSECOND_PS: u64 = 1_000;
/// Picoseconds of a microsecond.
pub(super) const MICROSECOND_PS: u64 = 1_000_000;

/// Bytes of a control message.
const CONTROL_BYTES: u64 = 64;

/// How long things take.
#[derive(Clone, Copy, Debug)]
pub(super) struct ParityTiming {
    /// Of a link, in each direction, in bytes per second.
    pub(super) link_rate: u64,
    /// The delay between two nodes.
    pub(super) delay_ps: u64,
    /// What a message costs its sender besides its bytes; the link is not used meanwhile.
    pub(super) send_ps: u64,
    /// What a message costs its receiver.
    pub(super) receive_ps: u64,
    /// Bytes that a processor XORs into others in a second.
    pub(super) xor_rate: u64,
    /// Bytes that a medium takes in a second.
    pub(super) medium_rate: u64,
    /// What makes bytes durable that a medium has taken.
    pub(super) flush_ps: u64,
    /// A writer without news for this time sends again what is not acknowledged.
    pub(super) timeout_ps: u64,
}

impl ParityTiming {
    /// How long `bytes` take at `rate`.
    pub(super) fn duration_ps(bytes: u64, rate: u64) -> u64 {
        (u128::from(bytes) * u128::from(SECOND_PS) / u128::from(rate)) as u64
    }

    /// How long a block is on a link.
    pub(super) fn wire_ps(&self, bytes: u64) -> u64 {
        Self::duration_ps(bytes, self.link_rate)
    }
}

/// A port of a node: one end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PortId(usize);

/// Something that does one thing at a time: a processor, a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnitId(usize);

/// Bytes of blocks that crossed a port. Control messages are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PortTraffic {
    pub(super) sent: u64,
    pub(super) received: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct NodePort {
    out_free_ps: u64,
    in_free_ps: u64,
    traffic: PortTraffic,
}

enum Scheduled<E> {
    /// The first byte of a message is at its port.
    Head {
        port: PortId,
        bytes: u64,
        event: E,
    },
    Due(E),
}

/// Time, and what is going to happen.
pub(super) struct VirtualTime<E> {
    pub(super) timing: ParityTiming,
    now_ps: u64,
    sequence: u64,
    queue: BTreeMap<(u64, u64), Scheduled<E>>,
    ports: Vec<NodePort>,
    units: Vec<u64>,
}

impl<E> VirtualTime<E> {
    pub(super) fn new(timing: ParityTiming) -> Self {
        let (ports, units) = (Vec::new(), Vec::new());
        Self { timing, now_ps: 0, sequence: 0, queue: BTreeMap::new(), ports, units }
    }

    pub(super) fn add_port(&mut self) -> PortId {
        self.ports.push(NodePort::default());
        PortId(self.ports.len() - 1)
    }

    pub(super) fn add_unit(&mut self) -> UnitId {
        self.units.push(0);
        UnitId(self.units.len() - 1)
    }

    pub(super) fn now_ps(&self) -> u64 {
        self.now_ps
    }

    pub(super) fn traffic(&self, port: PortId) -> PortTraffic {
        self.ports[port.0].traffic
    }

    /// The next event, at its time.
    pub(super) fn next(&mut self) -> Option<E> {
        loop {
            let ((at_ps, _), scheduled) = self.queue.pop_first()?;
            self.now_ps = at_ps;
            match scheduled {
                Scheduled::Due(event) => return Some(event),
                Scheduled::Head { port, bytes, event } => {
                    let busy_ps = self.timing.receive_ps + self.timing.wire_ps(bytes);
                    let port = &mut self.ports[port.0];
                    port.in_free_ps = port.in_free_ps.max(at_ps) + busy_ps;
                    port.traffic.received += bytes;
                    let at_ps = port.in_free_ps;
                    self.schedule(at_ps, Scheduled::Due(event));
                }
            }
        }
    }

    fn schedule(&mut self, at_ps: u64, scheduled: Scheduled<E>) {
        self.sequence += 1;
        self.queue.insert((at_ps, self.sequence), scheduled);
    }

    /// An event after some time.
    pub(super) fn after(&mut self, delay_ps: u64, event: E) {
        self.schedule(self.now_ps + delay_ps, Scheduled::Due(event));
    }

    /// Sends a block. `departed` comes when the port is free again, `arrived` with the last byte.
    pub(super) fn transmit(
        &mut self,
        from: PortId,
        to: PortId,
        bytes: u64,
        departed: E,
        arrived: E,
    ) {
        let start_ps = self.now_ps.max(self.ports[from.0].out_free_ps) + self.timing.send_ps;
        let end_ps = start_ps + self.timing.wire_ps(bytes);
        self.ports[from.0].out_free_ps = end_ps;
        self.ports[from.0].traffic.sent += bytes;
        self.schedule(end_ps, Scheduled::Due(departed));
        let head_ps = start_ps + self.timing.delay_ps;
        self.schedule(head_ps, Scheduled::Head { port: to, bytes, event: arrived });
    }

    /// Sends a control message.
    pub(super) fn control(&mut self, event: E) {
        let delay_ps = self.timing.delay_ps + self.timing.wire_ps(CONTROL_BYTES);
        self.after(delay_ps, event);
    }

    /// Lets a unit work, behind what it has to do already.
    pub(super) fn work(&mut self, unit: UnitId, duration_ps: u64, done: E) {
        let end_ps = self.now_ps.max(self.units[unit.0]) + duration_ps;
        self.units[unit.0] = end_ps;
        self.schedule(end_ps, Scheduled::Due(done));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMING: ParityTiming = ParityTiming {
        link_rate: 1_000_000_000,
        delay_ps: 1000,
        send_ps: 10,
        receive_ps: 20,
        xor_rate: 1,
        medium_rate: 1,
        flush_ps: 0,
        timeout_ps: 0,
    };

    fn arrivals(sends: &[(usize, usize, u64)]) -> Vec<(usize, u64)> {
        let mut time = VirtualTime::new(TIMING);
        let ports: Vec<PortId> = (0..3).map(|_| time.add_port()).collect();
        for (id, (from, to, bytes)) in sends.iter().enumerate() {
            time.transmit(ports[*from], ports[*to], *bytes, None, Some(id));
        }
        let mut arrivals = Vec::new();
        while let Some(event) = time.next() {
            arrivals.extend(event.map(|id| (id, time.now_ps())));
        }
        arrivals
    }

    #[test]
    fn a_message_takes_its_costs_its_bytes_and_the_delay() {
        assert_eq!(arrivals(&[(0, 1, 5)]), [(0, 10 + 1000 + 20 + 5000)]);
    }

    #[test]
    fn two_senders_share_the_port_of_a_receiver_and_directions_do_not() {
        let both = arrivals(&[(0, 2, 5), (1, 2, 5), (2, 0, 5)]);
        assert_eq!(both, [(0, 6030), (2, 6030), (1, 6030 + 5020)]);
    }

    #[test]
    fn a_sender_sends_one_message_after_the_other() {
        assert_eq!(arrivals(&[(0, 1, 5), (0, 2, 5)]), [(0, 6030), (1, 6030 + 5010)]);
    }
}
