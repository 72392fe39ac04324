//! The latency of a message on an idle mesh: the formula. With traffic the mesh says it
//! (`meshed.rs`).

use super::{NetworkNumbers, NodeCoordinates, Topology};

/// The network without traffic: `hops + 7` cycles for the head and 2 for each word; once more for
/// the way from a forwarder, where there is no direct one.
#[derive(Clone, Debug)]
pub struct ZeroLoad {
    topology: Topology,
    numbers: NetworkNumbers,
}

impl ZeroLoad {
    /// Of this machine.
    pub fn new(topology: &Topology, numbers: &NetworkNumbers) -> Self {
        Self { topology: topology.clone(), numbers: numbers.clone() }
    }

    fn is_disk_node(&self, place: NodeCoordinates) -> bool {
        place.y >= self.topology.sides[1]
    }

    /// Messages go along X, then Y, then Z. Beyond the Y edge there is only X 0 and 1, and no Z.
    fn is_direct(&self, from: NodeCoordinates, to: NodeCoordinates) -> bool {
        let beyond_x = self.is_disk_node(from) && to.x > 1;
        let beyond_z = self.is_disk_node(to) && from.z != to.z;
        !beyond_x && !beyond_z
    }

    /// The processor that touches a disk node: it reaches everything and everything reaches it.
    fn forwarder(&self, from: NodeCoordinates, to: NodeCoordinates) -> NodeCoordinates {
        let disk_node = if self.is_disk_node(to) { to } else { from };
        NodeCoordinates { y: self.topology.sides[1] - 1, ..disk_node }
    }

    /// Cycles until the first word of a message is at its destination.
    pub fn head_cycles(&self, from: NodeCoordinates, to: NodeCoordinates) -> u64 {
        let NetworkNumbers { hop, ends, forward, .. } = &self.numbers;
        let leg = |from, to| hops(from, to) as f64 * hop.value + ends.value;
        let cycles = if self.is_direct(from, to) {
            leg(from, to)
        } else {
            let forwarder = self.forwarder(from, to);
            leg(from, forwarder) + forward.value + leg(forwarder, to)
        };
        cycles.round() as u64
    }

    /// Cycles from there until the last of `words` words is there, if they are sent without gaps.
    pub fn tail_cycles(&self, words: u64) -> u64 {
        (words as f64 * self.numbers.word.value).round() as u64
    }
}

fn hops(from: NodeCoordinates, to: NodeCoordinates) -> u64 {
    u64::from(from.x.abs_diff(to.x) + from.y.abs_diff(to.y) + from.z.abs_diff(to.z))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jmachine::Profile;

    fn network() -> (Topology, ZeroLoad) {
        let topology = Topology::parse("8x8x8 disks=8 board=0,2,4,6").unwrap();
        let network = ZeroLoad::new(&topology, &Profile::ideal().numbers().network);
        (topology, network)
    }

    #[test]
    fn a_message_takes_a_cycle_per_hop_seven_at_its_ends_and_two_per_word() {
        let (_, network) = network();
        let place = |x, y, z| NodeCoordinates { x, y, z };
        // The examples of the notes: 4 words over 21 hops, 136 words over 8.
        assert_eq!(
            network.head_cycles(place(0, 0, 0), place(7, 7, 7)) + network.tail_cycles(4),
            36
        );
        assert_eq!(
            network.head_cycles(place(0, 0, 0), place(4, 4, 0)) + network.tail_cycles(136),
            287
        );
        // On the board of the disk node directly; from another one by way of (1,7,2).
        assert_eq!(network.head_cycles(place(5, 3, 2), place(1, 8, 2)), 4 + 5 + 7);
        assert_eq!(network.head_cycles(place(5, 3, 0), place(1, 8, 2)), 4 + 4 + 2 + 7 + 12 + 1 + 7);
        assert_eq!(network.head_cycles(place(1, 8, 2), place(0, 3, 5)), 1 + 5 + 3 + 7);
        assert_eq!(network.head_cycles(place(1, 8, 2), place(5, 7, 2)), 1 + 7 + 12 + 4 + 7);
    }

    #[test]
    fn as_many_pairs_need_a_forwarder_as_brute_force_has_found() {
        let (topology, network) = network();
        let processors: Vec<_> = (0..512).map(|index| topology.fs_node(index)).collect();
        let disks: Vec<_> = (0..8).map(|index| topology.disk_node(index)).collect();
        let indirect = |from: &[NodeCoordinates], to: &[NodeCoordinates]| {
            let pairs = from.iter().flat_map(|from| to.iter().map(move |to| (*from, *to)));
            pairs.filter(|&(from, to)| from != to && !network.is_direct(from, to)).count()
        };
        assert_eq!(indirect(&processors, &disks), 3584);
        assert_eq!(indirect(&disks, &processors), 3072);
        assert_eq!(indirect(&disks, &disks), 48);
        assert_eq!(indirect(&processors, &processors), 0);
        for &from in processors.iter().chain(&disks) {
            for &to in &disks {
                let forwarder = network.forwarder(from, to);
                assert!(network.is_direct(from, forwarder) && network.is_direct(forwarder, to));
                let back = network.forwarder(to, from);
                assert!(network.is_direct(to, back) && network.is_direct(back, from));
            }
        }
    }
}
