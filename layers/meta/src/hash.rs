//! Placement: which node owns an inode, a name, and the order of names at a node. Frozen: the
//! values are part of the on-disk format.

use runtime::{NodeId, Route};

use crate::attributes::{NAME_MAX, Name};

/// The node of inode `ino`: the thesis' modulo.
pub fn ino_node(ino: u64, nodes: u32) -> NodeId {
    NodeId::fs((ino % u64::from(nodes)) as u32)
}

/// The hash of `name` in the directory `directory`: XXH3-64 (seed 0) over the directory's number
/// (8 bytes, little-endian) and the name.
pub fn name_hash(directory: u64, name: &Name) -> u64 {
    hash_bytes(directory, name.as_bytes())
}

/// As [`name_hash`]; `name` has at most [`NAME_MAX`] bytes.
fn hash_bytes(directory: u64, name: &[u8]) -> u64 {
    let mut input = [0; 8 + NAME_MAX];
    let length = 8 + name.len();
    input[..8].copy_from_slice(&directory.to_le_bytes());
    input[8..length].copy_from_slice(name);
    runtime::hash::xxh3(&input[..length])
}

/// The node of `name` in `directory`.
pub fn name_node(directory: u64, name: &Name, nodes: u32) -> NodeId {
    NodeId::fs((name_hash(directory, name) % u64::from(nodes)) as u32)
}

/// The table number in the keys of names.
pub(crate) const NAME_TABLE: u8 = 3;

/// Bits of a name's position. With the 12 bits of a node before them they make a cookie that is
/// positive as a signed number too, as some clients want it.
pub const POSITION_BITS: u32 = 51;

/// No name has a smaller position: these cookies are for `.` and `..` and the start.
const POSITION_MIN: u64 = 3;

/// The place of a name in the order of its directory at its node.
pub(crate) fn position(directory: u64, name: &Name) -> u64 {
    (name_hash(directory, name) >> (u64::BITS - POSITION_BITS)).max(POSITION_MIN)
}

/// The key of `name` in `directory`, in the store and in the shared attribute cache.
pub(crate) fn name_key(directory: u64, name: &Name) -> Vec<u8> {
    let mut key = vec![NAME_TABLE];
    key.extend_from_slice(&directory.to_be_bytes());
    key.extend_from_slice(&position(directory, name).to_be_bytes());
    key.extend_from_slice(name.as_bytes());
    key
}

/// The file-system node that owns a request with this route, in a volume of `nodes` of them. Node 0
/// if the caller chooses, or for a stripe: the cache places those.
pub fn owner(route: Route<'_>, nodes: u32) -> NodeId {
    match route {
        Route::Inode(ino) => ino_node(ino, nodes),
        Route::Name { directory, name } => {
            NodeId::fs((hash_bytes(directory, name) % u64::from(nodes)) as u32)
        }
        Route::Stripe(_) | Route::Caller => NodeId::fs(0),
    }
}

/// May `node` answer a request with this route? Any node may if the caller chooses; the cache and
/// the disk nodes know which stripes are theirs.
pub fn is_owner(node: NodeId, route: Route<'_>, nodes: u32) -> bool {
    matches!(route, Route::Stripe(_) | Route::Caller) || owner(route, nodes) == node
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placement_is_frozen() {
        let node =
            |directory, name: &'static [u8]| name_node(directory, &Name::new(name).unwrap(), 64);
        assert_eq!(ino_node(1, 64), NodeId::fs(1));
        assert_eq!(ino_node(129, 64), NodeId::fs(1));
        assert_eq!([node(1, b"a"), node(1, b"b"), node(2, b"a")].map(|node| node.0), [17, 41, 54]);
    }
}
