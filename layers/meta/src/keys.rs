//! Keys and values of a node's store. Part of the on-disk format: see docs/format.md.
//!
//! A key is a table number (one byte) and big-endian numbers, so that the order of the bytes is the
//! order of the numbers; values are in the form of [`runtime::wire`].

use crate::attributes::XattrName;
use crate::hash::NAME_TABLE;
pub(crate) use crate::hash::{name_key as name, position};
use crate::partition::PartitionNumber;
use crate::protocol::IntentId;

/// What a key is the key of: its first byte. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum KeyTable {
    Inode = 1,
    Chunk = 2,
    Name = NAME_TABLE,
    Reply = 4,
    Intent = 5,
    Count = 6,
    Applied = 7,
    Xattr = 8,
    Unlinked = 9,
    OpenFiles = 10,
    WideStripe = 11,
    ScrubProgress = 12,
    Adopted = 15,
}

/// Counts of the node: its inodes, and what each partition uses.
const INODES: u64 = 1;
const PARTITION_USES: u64 = 2;

pub(crate) fn table_of(key: &[u8]) -> Option<KeyTable> {
    use KeyTable::{
        Adopted, Applied, Chunk, Count, Inode, Intent, Name, OpenFiles, Reply, ScrubProgress,
        Unlinked, WideStripe, Xattr,
    };
    let tables = [
        Inode,
        Chunk,
        Name,
        Reply,
        Intent,
        Count,
        Applied,
        Xattr,
        Unlinked,
        OpenFiles,
        WideStripe,
        ScrubProgress,
        Adopted,
    ];
    tables.into_iter().find(|&table| key.first() == Some(&(table as u8)))
}

/// The range of all keys of a table.
pub(crate) fn all(table: KeyTable) -> (Vec<u8>, Vec<u8>) {
    (key(table, &[]), vec![table as u8 + 1])
}

/// The inode `ino`.
pub(crate) fn inode(ino: u64) -> Vec<u8> {
    key(KeyTable::Inode, &[ino])
}

/// How many inodes the node has.
pub(crate) fn inode_count() -> Vec<u8> {
    key(KeyTable::Count, &[INODES])
}

/// What a partition uses at the node.
pub(crate) fn partition_use(partition: PartitionNumber) -> Vec<u8> {
    key(KeyTable::Count, &[PARTITION_USES, u64::from(partition)])
}

/// The range of all of these.
pub(crate) fn partition_uses() -> (Vec<u8>, Vec<u8>) {
    (key(KeyTable::Count, &[PARTITION_USES]), key(KeyTable::Count, &[PARTITION_USES + 1]))
}

/// The partition in such a key.
pub(crate) fn used_partition(key: &[u8]) -> Option<PartitionNumber> {
    if number(key, 1)? != PARTITION_USES {
        return None;
    }
    number(key, 9)?.try_into().ok()
}

/// Chunk `index` of the file `ino`.
pub(crate) fn chunk(ino: u64, index: u64) -> Vec<u8> {
    key(KeyTable::Chunk, &[ino, index])
}

/// The file in the key of a chunk.
pub(crate) fn chunk_ino(key: &[u8]) -> Option<u64> {
    number(key, 1)
}

pub(crate) fn chunk_index(key: &[u8]) -> Option<u64> {
    number(key, 9)
}

/// Past the last chunk of the file `ino`.
pub(crate) fn chunks_end(ino: u64) -> Vec<u8> {
    after(KeyTable::Chunk, ino)
}

/// The wide stripe of the file `ino` whose first chunk is `first`. The numbers in it are those of
/// the key of that chunk.
pub(crate) fn wide_stripe(ino: u64, first: u64) -> Vec<u8> {
    key(KeyTable::WideStripe, &[ino, first])
}

/// Past the last wide stripe of the file `ino`.
pub(crate) fn wide_stripes_end(ino: u64) -> Vec<u8> {
    after(KeyTable::WideStripe, ino)
}

/// Position and bytes of the name in a name's key.
pub(crate) fn name_parts(key: &[u8]) -> Option<(u64, &[u8])> {
    Some((number(key, 9)?, key.get(17..)?))
}

/// Before the first name of `directory` after `after`.
pub(crate) fn names_after(directory: u64, after: Option<u64>) -> Vec<u8> {
    let from = after.map_or(0, |after| after.saturating_add(1));
    key(KeyTable::Name, &[directory, from])
}

/// Before the first name of `directory`.
pub(crate) fn names_start(directory: u64) -> Vec<u8> {
    key(KeyTable::Name, &[directory])
}

/// Past the last name of `directory`.
pub(crate) fn names_end(directory: u64) -> Vec<u8> {
    after(KeyTable::Name, directory)
}

/// The blocks of `ino` from some chunk on are to be freed.
pub(crate) fn trim_intent(ino: u64) -> Vec<u8> {
    key(KeyTable::Intent, &[TRIMS, ino])
}

/// `group` was given to another node, which has not confirmed it yet.
pub(crate) fn grant_intent(group: u64) -> Vec<u8> {
    key(KeyTable::Intent, &[GRANTS, group])
}

/// `group` has come from another node, which may still offer it: it is not given on before.
pub(crate) fn arrival(group: u64) -> Vec<u8> {
    key(KeyTable::Intent, &[ARRIVALS, group])
}

/// Effects at other nodes that this node has decided: an intent.
pub(crate) fn operation_intent(number: u64) -> Vec<u8> {
    key(KeyTable::Intent, &[OPERATIONS, number])
}

/// The range of all intents of one kind.
pub(crate) fn intents(kind: u64) -> (Vec<u8>, Vec<u8>) {
    (key(KeyTable::Intent, &[kind]), key(KeyTable::Intent, &[kind + 1]))
}

/// Kind of [`trim_intent`] for [`intents`].
pub(crate) const TRIMS: u64 = 1;
/// Kind of [`grant_intent`] for [`intents`].
pub(crate) const GRANTS: u64 = 2;
/// Kind of [`operation_intent`] for [`intents`].
pub(crate) const OPERATIONS: u64 = 3;
/// Kind of [`arrival`] for [`intents`].
pub(crate) const ARRIVALS: u64 = 4;

/// The effects of `intent` at this node have been applied.
pub(crate) fn applied(intent: IntentId) -> Vec<u8> {
    key(KeyTable::Applied, &[u64::from(intent.node), intent.number])
}

/// The stored reply in this slot.
pub(crate) fn reply(slot: u64) -> Vec<u8> {
    key(KeyTable::Reply, &[slot])
}

/// The slot in a stored reply's key.
pub(crate) fn reply_slot(key: &[u8]) -> Option<u64> {
    number(key, 1)
}

/// Piece `piece` of the value of the extended attribute `name` of `ino`. A zero byte ends the name.
pub(crate) fn xattr(ino: u64, name: &XattrName, piece: u8) -> Vec<u8> {
    let mut key = key(KeyTable::Xattr, &[ino]);
    key.extend_from_slice(name.as_bytes());
    key.extend_from_slice(&[0, piece]);
    key
}

/// Name and piece in the key of an extended attribute.
pub(crate) fn xattr_parts(key: &[u8]) -> Option<(&[u8], u8)> {
    match key.get(9..)? {
        [name @ .., 0, piece] => Some((name, *piece)),
        _ => None,
    }
}

/// The range of the pieces of one extended attribute.
pub(crate) fn xattr_pieces(ino: u64, name: &XattrName) -> (Vec<u8>, Vec<u8>) {
    let of = |end: u8| [&key(KeyTable::Xattr, &[ino])[..], name.as_bytes(), &[end]].concat();
    (of(0), of(1))
}

/// The range of all extended attributes of `ino`.
pub(crate) fn xattrs(ino: u64) -> (Vec<u8>, Vec<u8>) {
    (key(KeyTable::Xattr, &[ino]), after(KeyTable::Xattr, ino))
}

/// The file `ino` has no name any more, and may be open.
pub(crate) fn unlinked(ino: u64) -> Vec<u8> {
    key(KeyTable::Unlinked, &[ino])
}

/// Files of this node may be open.
pub(crate) fn open_files() -> Vec<u8> {
    key(KeyTable::OpenFiles, &[1])
}

/// Files of this node may be delegated.
pub(crate) fn delegated_files() -> Vec<u8> {
    key(KeyTable::OpenFiles, &[2])
}

/// The disk sets of which the node has taken over its groups.
pub(crate) fn adopted() -> Vec<u8> {
    key(KeyTable::Adopted, &[1])
}

/// How far the node has compared what it has with its checksums.
pub(crate) fn scrub_progress() -> Vec<u8> {
    key(KeyTable::ScrubProgress, &[1])
}

/// The range that holds nothing but `key`.
pub(crate) fn only(key: &[u8]) -> (Vec<u8>, Vec<u8>) {
    (key.to_vec(), [key, &[0]].concat())
}

pub(crate) fn intent_kind(key: &[u8]) -> Option<u64> {
    number(key, 1)
}

pub(crate) fn intent_number(key: &[u8]) -> Option<u64> {
    number(key, 9)
}

fn key(table: KeyTable, numbers: &[u64]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + 8 * numbers.len());
    key.push(table as u8);
    for number in numbers {
        key.extend_from_slice(&number.to_be_bytes());
    }
    key
}

/// Past all keys of `table` that begin with `number`, which may come from a damaged disk.
fn after(table: KeyTable, number: u64) -> Vec<u8> {
    number.checked_add(1).map_or_else(|| all(table).1, |next| key(table, &[next]))
}

/// The number at byte `at` of a key.
pub(crate) fn number(key: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::Name;
    use crate::hash::POSITION_BITS;

    #[test]
    fn keys_have_the_agreed_bytes_and_order() {
        assert_eq!(inode(0x0102), [1, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(partition_use(3), [6, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!(
            (used_partition(&partition_use(3)), used_partition(&inode_count())),
            (Some(3), None)
        );
        assert_eq!(reply(5), [4, 0, 0, 0, 0, 0, 0, 0, 5]);
        assert_eq!(chunk(1, 2), [2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
        let name = Name::new(&b"a"[..]).unwrap();
        let key = super::name(1, &name);
        assert_eq!(name_parts(&key), Some((position(1, &name), &b"a"[..])));
        assert!(key < names_end(1) && chunk(1, u64::MAX) < chunks_end(1));
        assert!(position(1, &name) < 1 << POSITION_BITS);
        assert_eq!(unlinked(0x0102), [9, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(open_files(), [10, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(delegated_files(), [10, 0, 0, 0, 0, 0, 0, 0, 2]);
    }

    #[test]
    fn each_key_tells_its_table() {
        let name = Name::new(&b"a"[..]).unwrap();
        let keys = [
            (inode(1), KeyTable::Inode),
            (inode_count(), KeyTable::Count),
            (partition_use(3), KeyTable::Count),
            (chunk(1, 2), KeyTable::Chunk),
            (super::name(1, &name), KeyTable::Name),
            (trim_intent(1), KeyTable::Intent),
            (grant_intent(1), KeyTable::Intent),
            (arrival(1), KeyTable::Intent),
            (operation_intent(1), KeyTable::Intent),
            (applied(IntentId { node: 1, number: 2 }), KeyTable::Applied),
            (reply(5), KeyTable::Reply),
            (xattr(1, &XattrName::new(&b"a"[..]).unwrap(), 0), KeyTable::Xattr),
            (unlinked(1), KeyTable::Unlinked),
            (open_files(), KeyTable::OpenFiles),
            (delegated_files(), KeyTable::OpenFiles),
            (wide_stripe(1, 2), KeyTable::WideStripe),
            (scrub_progress(), KeyTable::ScrubProgress),
            (adopted(), KeyTable::Adopted),
        ];
        for (key, table) in keys {
            assert_eq!(table_of(&key), Some(table));
        }
        assert_eq!(table_of(&[0]), None, "a table that is never written");
        assert_eq!(table_of(&[]), None);
    }

    #[test]
    fn pieces_of_a_value_are_together_and_apart_from_other_names() {
        let name = |text: &'static str| XattrName::new(text.as_bytes()).unwrap();
        let key = xattr(1, &name("ab"), 3);
        assert_eq!(key, [8, 0, 0, 0, 0, 0, 0, 0, 1, b'a', b'b', 0, 3]);
        assert_eq!(xattr_parts(&key), Some((&b"ab"[..], 3)));
        let (from, to) = xattr_pieces(1, &name("ab"));
        assert!(from <= xattr(1, &name("ab"), 0) && xattr(1, &name("ab"), 255) < to);
        assert!(xattr(1, &name("a"), 255) < from && to <= xattr(1, &name("ab\x01"), 0));
        let (from, to) = xattrs(1);
        assert!(from <= key && key < to);
    }
}
