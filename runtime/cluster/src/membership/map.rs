//! The node map, and what a member says of itself. Bytes: docs/format.md, "Records of a cluster".

use std::collections::BTreeSet;
use std::fmt;

use crate::coordination::LeaseId;
use runtime::hash::crc32c;
use runtime::ids::{DISK_NODES_MAX, Epoch, FS_NODES_MAX, NodeId, NodeKind};
use runtime::wire::{Decoder, Encoder, Malformed, Wire, from_bytes, to_bytes};

/// Processes of a volume, at most.
pub const PROCESSES_MAX: usize = 1024;
/// Addresses of a process, at most.
pub const ADDRESSES_MAX: usize = 8;
/// Bytes of an address, at most.
const ADDRESS_LENGTH_MAX: usize = 128;
/// The form of the node map of this version.
const MAP_FORM: u16 = 1;
/// The form of the records of members: 2 names the lease.
const MEMBER_FORM: u16 = 2;

/// A process that hosts nodes, by the number that its operator gave it. It keeps its number, and
/// its disks, when it starts again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u32);

impl ProcessId {
    /// No process. A disk node that is free has this owner: its disks are retired.
    pub const NONE: Self = Self(u32::MAX);
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.0)
    }
}

impl Wire for ProcessId {
    fn put(&self, out: &mut Encoder) {
        self.0.put(out);
    }
    fn take(input: &mut Decoder) -> Result<Self, Malformed> {
        Wire::take(input).map(Self)
    }
    fn sample(rng: &mut runtime::seed::Rng) -> Self {
        Self(Wire::sample(rng))
    }
}

runtime::record! {
    /// A process as the map knows it.
    pub struct Process {
        /// Its number.
        id: ProcessId,
        /// Which of its lives it is in; 0 if it is away.
        incarnation: u64,
        /// It shall give its file-system nodes to the others.
        leaving: bool,
        /// Where it is reached, best first.
        addresses: Vec<String>,
    }
}

impl Process {
    /// It was there when the map was made.
    pub fn is_living(&self) -> bool {
        self.incarnation != 0
    }
}

runtime::choice! {
    /// Who has a node.
    #[derive(Copy)]
    pub enum Assignment {
        /// A process serves it, or will once it is there.
        1 Serving { /// Who.
            by: ProcessId, /// The epoch of the map with which that began.
            since: Epoch },
        /// Its process stops it and settles what it holds; then another one has it.
        2 Moving { /// Who had it.
            from: ProcessId, /// Who will.
            to: ProcessId, /// The epoch of the map with which that began.
            since: Epoch },
    }
}

impl Assignment {
    /// The one process that answers for the node now.
    pub fn owner(self) -> ProcessId {
        match self {
            Self::Serving { by, .. } => by,
            Self::Moving { from, .. } => from,
        }
    }

    /// Who will have it when all moves are done.
    pub fn destination(self) -> ProcessId {
        match self {
            Self::Serving { by, .. } => by,
            Self::Moving { to, .. } => to,
        }
    }

    /// Does no process have the node?
    pub fn is_free(self) -> bool {
        matches!(self, Self::Serving { by: ProcessId::NONE, .. })
    }

    /// The epoch of the map with which it became as it is.
    pub fn since(self) -> Epoch {
        match self {
            Self::Serving { since, .. } | Self::Moving { since, .. } => since,
        }
    }
}

runtime::record! {
    /// Who serves what.
    pub struct NodeMap {
        /// Grows by one with each map.
        epoch: Epoch,
        /// All processes, by their numbers.
        processes: Vec<Process>,
        /// The assignments of the file-system nodes.
        fs: Vec<Assignment>,
        /// The assignments of the disk nodes.
        disks: Vec<Assignment>,
    }
}

impl NodeMap {
    /// The process with this number.
    pub fn process(&self, id: ProcessId) -> Option<&Process> {
        let at = self.processes.binary_search_by_key(&id, |process| process.id).ok()?;
        self.processes.get(at)
    }

    /// The assignment of a node; application nodes have none.
    pub fn assignment(&self, node: NodeId) -> Option<Assignment> {
        match node.kind() {
            NodeKind::Fs(index) => self.fs.get(index as usize).copied(),
            NodeKind::Disk(index) => self.disks.get(index as usize).copied(),
            NodeKind::Application(_) => None,
        }
    }

    /// All nodes with their assignments.
    pub fn assignments(&self) -> impl Iterator<Item = (NodeId, Assignment)> {
        let fs = (0..).zip(&self.fs).map(|(index, assignment)| (NodeId::fs(index), *assignment));
        let disks =
            (0..).zip(&self.disks).map(|(index, assignment)| (NodeId::disk(index), *assignment));
        fs.chain(disks)
    }

    /// Where requests to `node` go: the living process that serves it. `None`: try again later.
    pub fn host_of(&self, node: NodeId) -> Option<&Process> {
        match self.assignment(node)? {
            Assignment::Serving { by, .. } => {
                self.process(by).filter(|process| process.is_living())
            }
            Assignment::Moving { .. } => None,
        }
    }

    /// The bytes that the engine keeps.
    pub fn to_record(&self) -> Vec<u8> {
        seal(MAP_FORM, self)
    }

    /// Reads what the engine kept.
    pub fn from_record(bytes: &[u8]) -> Result<Self, Malformed> {
        let map: Self = open_record(MAP_FORM, bytes)?;
        map.check()?;
        Ok(map)
    }

    fn check(&self) -> Result<(), Malformed> {
        let ids: BTreeSet<ProcessId> = self.processes.iter().map(|process| process.id).collect();
        if self.processes.len() > PROCESSES_MAX
            || self.fs.len() > FS_NODES_MAX as usize
            || self.disks.len() > DISK_NODES_MAX as usize
        {
            return Err(Malformed("a node map with too many processes or nodes"));
        }
        if !self.processes.is_sorted_by_key(|process| process.id)
            || ids.len() < self.processes.len()
        {
            return Err(Malformed("the processes of a node map are out of order"));
        }
        if !self.processes.iter().all(|process| are_addresses(&process.addresses)) {
            return Err(Malformed("too many addresses, or too long ones"));
        }
        let is_sound = |(node, assignment): (NodeId, Assignment)| {
            let is_free = matches!(node.kind(), NodeKind::Disk(_)) && assignment.is_free();
            let known =
                ids.contains(&assignment.owner()) && ids.contains(&assignment.destination());
            (known || is_free) && assignment.since() <= self.epoch
        };
        if !ids.contains(&ProcessId::NONE) && self.assignments().all(is_sound) {
            Ok(())
        } else {
            Err(Malformed("a node of the map belongs to no process of it"))
        }
    }
}

runtime::record! {
    /// What a living process says of itself, bound to its lease.
    pub struct MemberRecord {
        /// Its number.
        id: ProcessId,
        /// Which of its lives this is: random, not 0.
        incarnation: u64,
        /// Where it is reached, best first.
        addresses: Vec<String>,
        /// The lease that the record goes with. Who finds the process dead revokes it.
        lease: LeaseId,
    }
}

impl MemberRecord {
    /// The bytes that the engine keeps.
    pub fn to_record(&self) -> Vec<u8> {
        seal(MEMBER_FORM, self)
    }

    /// Reads what the engine kept.
    pub fn from_record(bytes: &[u8]) -> Result<Self, Malformed> {
        let member: Self = open_record(MEMBER_FORM, bytes)?;
        if member.incarnation == 0 || !are_addresses(&member.addresses) {
            return Err(Malformed("a member without a life, or with impossible addresses"));
        }
        Ok(member)
    }
}

fn are_addresses(addresses: &[String]) -> bool {
    addresses.len() <= ADDRESSES_MAX
        && addresses.iter().all(|address| address.len() <= ADDRESS_LENGTH_MAX)
}

/// Form, value, checksum of both.
pub(super) fn seal<T: Wire>(form: u16, value: &T) -> Vec<u8> {
    let mut bytes = to_bytes(&form);
    bytes.extend(to_bytes(value));
    let checksum = crc32c(&bytes);
    bytes.extend(checksum.to_le_bytes());
    bytes
}

/// The value in a record of a cluster.
pub(super) fn open_record<T: Wire>(expected: u16, bytes: &[u8]) -> Result<T, Malformed> {
    let (sealed, checksum) = bytes.split_last_chunk::<4>().ok_or(Malformed("short record"))?;
    if crc32c(sealed) != u32::from_le_bytes(*checksum) {
        return Err(Malformed("the checksum of a record is wrong"));
    }
    let (form, value) = sealed.split_first_chunk::<2>().ok_or(Malformed("short record"))?;
    if u16::from_le_bytes(*form) != expected {
        return Err(Malformed("a record in a form of another version"));
    }
    from_bytes(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::seed::with_seed;

    fn example() -> NodeMap {
        let process = |id, incarnation, addresses: &[&str]| Process {
            id: ProcessId(id),
            incarnation,
            leaving: id == 2,
            addresses: addresses.iter().map(|&address| address.to_owned()).collect(),
        };
        let (one, two) = (ProcessId(1), ProcessId(2));
        NodeMap {
            epoch: Epoch(9),
            processes: vec![process(1, 0x1122_3344_5566_7788, &["h1:7"]), process(2, 0, &[])],
            fs: vec![
                Assignment::Serving { by: one, since: Epoch(3) },
                Assignment::Moving { from: one, to: two, since: Epoch(9) },
            ],
            disks: vec![Assignment::Serving { by: two, since: Epoch(1) }],
        }
    }

    #[test]
    fn the_bytes_of_a_map_and_of_a_member_never_change() {
        let golden = "0100 0900000000000000 \
            02000000 \
            01000000 8877665544332211 00 01000000 04000000 68313a37 \
            02000000 0000000000000000 01 00000000 \
            02000000 01 01000000 0300000000000000 02 01000000 02000000 0900000000000000 \
            01000000 01 02000000 0100000000000000 f2a517c1";
        assert_eq!(hex(&example().to_record()), golden.replace(' ', ""));
        let addresses = vec!["h1:7".to_owned()];
        let lease = LeaseId(6);
        let member = MemberRecord { id: ProcessId(1), incarnation: 5, addresses, lease };
        let golden = "0200 01000000 0500000000000000 01000000 04000000 68313a37 \
            0600000000000000 d73c4ecd";
        assert_eq!(hex(&member.to_record()), golden.replace(' ', ""));
        assert_eq!(MemberRecord::from_record(&member.to_record()), Ok(member));
    }

    fn hex(bytes: &[u8]) -> String {
        use std::fmt::Write as _;
        bytes.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    #[test]
    fn what_is_no_map_is_refused_and_nothing_panics() {
        let good = example().to_record();
        assert_eq!(NodeMap::from_record(&good), Ok(example()));
        with_seed(|rng| {
            for _ in 0..2_000 {
                let mut bad = good.clone();
                let at = rng.index(bad.len());
                bad[at] ^= 1 << rng.below(8);
                assert!(NodeMap::from_record(&bad).is_err());
                bad.truncate(rng.index(good.len()));
                assert!(NodeMap::from_record(&bad).is_err());
                // Also what a careful stranger writes, with the right checksum.
                let strange = NodeMap::sample(rng);
                let _ = NodeMap::from_record(&seal(MAP_FORM, &strange));
            }
        });
        let spoilt = |spoil: fn(&mut NodeMap)| {
            let mut map = example();
            spoil(&mut map);
            NodeMap::from_record(&map.to_record()).is_err()
        };
        assert!(spoilt(|map| map.processes.reverse()));
        assert!(spoilt(|map| map.epoch = Epoch(8)));
        assert!(spoilt(|map| drop(map.processes.pop())));
        assert!(spoilt(|map| map.processes[0].addresses = vec![String::new(); 9]));
        let free = Assignment::Serving { by: ProcessId::NONE, since: Epoch(9) };
        let mut map = example();
        map.disks.push(free);
        assert_eq!(NodeMap::from_record(&map.to_record()), Ok(map), "its disks are retired");
        let mut map = example();
        map.fs[0] = free;
        assert!(NodeMap::from_record(&map.to_record()).is_err());
    }

    #[test]
    fn a_node_is_reached_at_the_living_process_that_serves_it() {
        let map = example();
        let host = |node| map.host_of(node).map(|process| process.id);
        assert_eq!(host(NodeId::fs(0)), Some(ProcessId(1)));
        assert_eq!(host(NodeId::fs(1)), None);
        assert_eq!(host(NodeId::disk(0)), None);
        assert_eq!(host(NodeId::fs(2)), None);
    }
}
