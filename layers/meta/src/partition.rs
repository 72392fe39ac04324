//! Partitions of the logical disk (thesis section 2.5.1): which one an inode belongs to.
//!
//! The number of an inode tells its partition, so that each handle does. Part of the on-disk
//! format.

/// A partition. 0 is the one that holds the root directory of the volume; it is always there.
pub type PartitionNumber = u16;

/// The highest number: inode numbers stay positive as signed numbers.
pub const PARTITION_NUMBER_MAX: PartitionNumber = 0x7fff;

/// Bits of an inode number below those of its partition.
const PARTITION_SHIFT: u32 = 48;

/// The partition of an inode.
pub fn partition_of(ino: u64) -> PartitionNumber {
    (ino >> PARTITION_SHIFT) as PartitionNumber
}

/// The order in which a node has given numbers to its inodes, whatever their partitions: what is
/// below it for one inode is older.
pub fn order_of(ino: u64) -> u64 {
    ino & ((1 << PARTITION_SHIFT) - 1)
}

/// The number of an inode of `partition` at `node` of `nodes`; `number` is one that the node has
/// not given before.
pub fn ino_in(partition: PartitionNumber, number: u64, node: u32, nodes: u32) -> u64 {
    // So that `ino mod nodes` is the node.
    let first = (u64::from(partition) << PARTITION_SHIFT).next_multiple_of(u64::from(nodes));
    first + number * u64::from(nodes) + u64::from(node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::ino_node;

    #[test]
    fn an_inode_number_tells_its_partition_its_node_and_its_age() {
        for nodes in [1, 3, 64, 4095] {
            for partition in [0, 1, 2, 77, PARTITION_NUMBER_MAX] {
                for node in [0, nodes / 2, nodes - 1] {
                    let inos = [1, 2, 1 << 20].map(|number| ino_in(partition, number, node, nodes));
                    for ino in inos {
                        assert_eq!(partition_of(ino), partition);
                        assert_eq!(ino_node(ino, nodes), runtime::NodeId::fs(node));
                        assert!(i64::try_from(ino).is_ok());
                    }
                    // Older than what the node gives next, in any partition.
                    let next = order_of(ino_in(0, 2, node, nodes));
                    assert!(order_of(inos[0]) < next && order_of(inos[1]) >= next);
                }
            }
        }
        assert_eq!(ino_in(0, 5, 3, 64), 323, "as it was before there were partitions");
        assert_eq!(ino_in(2, 1, 0, 3), (2 << 48) + 1 + 3);
    }
}
