//! Forwarders: who passes on what cannot be sent directly. One is always enough (MDFS thesis 3.2).

use std::cell::Cell;

use super::geometry::{Coordinates, MeshGeometry, Role, Unroutable};

/// Which forwarder a message takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardPolicy {
    /// The main node that touches the disk node: in the slice next to the disks, and good for both
    /// directions. All off-board traffic of a disk node shares it.
    #[default]
    Canonical,
    /// A node of the disk node's column, by the hash of the node at the other end. It may lie
    /// outside the file-system slice.
    Spread,
    /// The nodes of the disk node's column, one message after the other: messages between two nodes
    /// may overtake each other.
    RoundRobin,
}

impl ForwardPolicy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Canonical, Self::Spread, Self::RoundRobin];

    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Canonical => "canonical",
            Self::Spread => "spread",
            Self::RoundRobin => "round-robin",
        }
    }
}

/// Finds forwarders by a policy.
#[derive(Debug)]
pub struct Forwarders {
    policy: ForwardPolicy,
    turn: Cell<u32>,
}

impl Forwarders {
    /// By this policy.
    pub fn new(policy: ForwardPolicy) -> Self {
        Self { policy, turn: Cell::new(0) }
    }

    /// The policy.
    pub fn policy(&self) -> ForwardPolicy {
        self.policy
    }

    /// `None` if `from` can send to `to` directly, else its forwarder. An error if there is none,
    /// which no machine with at most one host knows.
    pub fn via(&self, mesh: &MeshGeometry, from: u32, to: u32) -> Result<Option<u32>, Unroutable> {
        let Err(unroutable) = mesh.hops(from, to) else { return Ok(None) };
        let preferred = self.preferred(mesh, from, to);
        let good = |&node: &u32| serves(mesh, from, node, to);
        if let Some(node) = preferred.filter(good) {
            return Ok(Some(node));
        }
        // Only pairs with a host come here: the slice next to the disks first.
        let candidates = candidates(mesh, from, to);
        let slice = mesh.size()[1].cast_signed() - 1;
        let in_slice = candidates.iter().find(|&&node| mesh.place(node).y == slice);
        in_slice.or(candidates.first()).copied().map(Some).ok_or(unroutable)
    }

    /// A node of the column of the disk node at one end: it works both ways for every peer.
    fn preferred(&self, mesh: &MeshGeometry, from: u32, to: u32) -> Option<u32> {
        let (disk, peer) = match (mesh.role(from), mesh.role(to)) {
            (_, Role::Disk) => (to, from),
            (Role::Disk, _) => (from, to),
            _ => return None,
        };
        let Coordinates { x, y, z } = mesh.place(disk);
        let height = u32::from(mesh.size()[1]);
        let row = match self.policy {
            ForwardPolicy::Canonical => y - 1,
            ForwardPolicy::Spread => (mix(peer) % height) as i8,
            ForwardPolicy::RoundRobin => {
                let turn = self.turn.get();
                self.turn.set(turn.wrapping_add(1));
                (turn % height) as i8
            }
        };
        mesh.find(Coordinates::new(x, row, z))
    }
}

/// Whether `node` is a main node that can be reached from `from`, and reaches `to`.
fn serves(mesh: &MeshGeometry, from: u32, node: u32, to: u32) -> bool {
    mesh.role(node) == Role::Main && mesh.hops(from, node).is_ok() && mesh.hops(node, to).is_ok()
}

/// All nodes that could pass a message on.
pub fn candidates(mesh: &MeshGeometry, from: u32, to: u32) -> Vec<u32> {
    (0..mesh.main_nodes()).filter(|&node| serves(mesh, from, node, to)).collect()
}

/// Spreads small numbers: Knuth's multiplicative hash, high bits.
fn mix(node: u32) -> u32 {
    node.wrapping_mul(0x9E37_79B1) >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Direct pairs by the rules of the thesis' wiring, not by walking.
    fn direct(mesh: &MeshGeometry, from: u32, to: u32) -> bool {
        let (s, d) = (mesh.place(from), mesh.place(to));
        match (mesh.role(from), mesh.role(to)) {
            (Role::Main | Role::Disk, Role::Disk) => s.z == d.z,
            (Role::Disk, Role::Main) => d.x <= 1,
            _ => true,
        }
    }

    /// What can serve, by rule.
    fn may_forward(mesh: &MeshGeometry, from: u32, to: u32) -> Vec<u32> {
        let z = mesh.place(to).z;
        let good = |node: &u32| {
            let place = mesh.place(*node);
            let (near, board) = (place.x <= 1, place.z == z);
            match (mesh.role(from), mesh.role(to)) {
                (Role::Main, _) => board,
                (_, Role::Main) => near,
                _ => near && board,
            }
        };
        (0..mesh.main_nodes()).filter(good).collect()
    }

    /// Pairs (direct, forwarded) for main to disk, disk to main, disk to disk, main to main.
    fn count(mesh: &MeshGeometry) -> [(u32, u32); 4] {
        let forwarders = ForwardPolicy::ALL.map(Forwarders::new);
        let mut counts = [(0, 0); 4];
        let pairs = (0..mesh.nodes()).flat_map(|from| (0..mesh.nodes()).map(move |to| (from, to)));
        for (from, to) in pairs.filter(|(from, to)| from != to) {
            let kind = match (mesh.role(from), mesh.role(to)) {
                (Role::Main, Role::Disk) => 0,
                (Role::Disk, Role::Main) => 1,
                (Role::Disk, Role::Disk) => 2,
                _ => 3,
            };
            let reached = mesh.hops(from, to).is_ok();
            assert_eq!(reached, direct(mesh, from, to), "{from} to {to}");
            if reached {
                counts[kind].0 += 1;
                continue;
            }
            counts[kind].1 += 1;
            for forwarders in &forwarders {
                let via = forwarders.via(mesh, from, to).unwrap().unwrap();
                assert!(serves(mesh, from, via, to), "{from} to {to}");
                // Between two disk nodes each direction has a board, and a forwarder, of its own.
                assert!(kind == 2 || serves(mesh, to, via, from), "{to} to {from}");
            }
            let disk = if mesh.role(to) == Role::Disk { to } else { from };
            let touching = mesh.find(Coordinates { y: 7, ..mesh.place(disk) });
            assert_eq!(forwarders[0].via(mesh, from, to).unwrap(), touching);
        }
        counts
    }

    #[test]
    fn direct_and_forwarded_pairs_are_as_many_as_the_brute_force_table_says() {
        let main = |nodes: u32| (nodes * (nodes - 1), 0);
        let half = [(512, 3584), (1024, 3072), (8, 48), main(512)];
        assert_eq!(count(&MeshGeometry::thesis(8).unwrap()), half);
        let low = MeshGeometry::new([8, 8, 8], 8, &[0, 1, 2, 3], None).unwrap();
        assert_eq!(count(&low), half);
        let all = MeshGeometry::new([8, 8, 8], 16, &[0, 1, 2, 3, 4, 5, 6, 7], None).unwrap();
        assert_eq!(count(&all), [(1024, 7168), (2048, 6144), (16, 224), main(512)]);
        let small = MeshGeometry::new([8, 8, 3], 2, &[1], None).unwrap();
        assert_eq!(count(&small), [(128, 256), (96, 288), (2, 0), main(192)]);
    }

    #[test]
    fn the_sets_of_possible_forwarders_follow_the_rules() {
        let mesh = MeshGeometry::thesis(8).unwrap();
        let at = |x, y, z| mesh.find(Coordinates::new(x, y, z)).unwrap();
        for (from, to, size) in [
            (at(5, 2, 1), at(0, 8, 4), 64),
            (at(1, 8, 6), at(2, 0, 6), 128),
            (at(0, 8, 0), at(1, 8, 2), 16),
        ] {
            let found = candidates(&mesh, from, to);
            assert_eq!(found, may_forward(&mesh, from, to));
            assert_eq!(found.len(), size);
        }
    }

    #[test]
    fn a_host_on_any_face_is_reached_through_one_forwarder_at_most() {
        for (host, reaches) in [
            // On an X face it reaches all but far disks, and its row reaches it.
            (Coordinates::new(8, 7, 3), 512),
            // On the near Y face it reaches its column on each board only.
            (Coordinates::new(4, -1, 2), 64),
            // On a Z face it reaches its pillar only.
            (Coordinates::new(1, 7, 8), 8),
        ] {
            let mesh = MeshGeometry::new([8, 8, 8], 8, &[0, 2, 4, 6], Some(host)).unwrap();
            let node = mesh.host().unwrap();
            let main = 0..mesh.main_nodes();
            let direct = main.filter(|&to| mesh.hops(node, to).is_ok()).count();
            assert_eq!(direct, reaches, "{host}");
            let forwarders = Forwarders::new(ForwardPolicy::Canonical);
            for other in 0..node {
                assert!(forwarders.via(&mesh, node, other).is_ok(), "{host} to {other}");
                assert!(forwarders.via(&mesh, other, node).is_ok(), "{other} to {host}");
            }
        }
    }
}
