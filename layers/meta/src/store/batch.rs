//! Batches, and the redo records that they become. `docs/format.md`, "Records".

use bytes::{BufMut as _, Bytes, BytesMut};
use runtime::wire::{Decoder, Malformed, Wire};

use super::error::{StoreError, StoreResult};
use super::groups::Run;
use super::page::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::operations::CommitDependency;

/// Bytes of one batch, at most. Volumes with small stripes have a lower limit: a record fits one
/// log segment (see [`Store::batch_bytes_max`](super::Store::batch_bytes_max)).
pub const BATCH_BYTES_MAX: usize = 48 << 10;

/// Bytes of a record before its changes.
pub(crate) const RECORD_HEAD: usize = 4 + 8 + 8 + 4;

/// One change of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BatchOp {
    Put { key: Bytes, value: Bytes },
    Delete { key: Bytes },
    Allocated { run: Run },
    Freed { run: Run },
    GiveGroup { group: u64 },
    TakeGroup { group: u64 },
}

mod tag {
    pub(super) const PUT: u8 = 1;
    pub(super) const DELETE: u8 = 2;
    pub(super) const ALLOCATED: u8 = 3;
    pub(super) const FREED: u8 = 4;
    pub(super) const GIVE_GROUP: u8 = 5;
    pub(super) const TAKE_GROUP: u8 = 6;
}

impl BatchOp {
    fn length(&self) -> usize {
        1 + match self {
            Self::Put { key, value } => 4 + key.len() + value.len(),
            Self::Delete { key } => 2 + key.len(),
            Self::Allocated { .. } | Self::Freed { .. } => 12,
            Self::GiveGroup { .. } | Self::TakeGroup { .. } => 8,
        }
    }

    fn encode(&self, out: &mut BytesMut) {
        match self {
            Self::Put { key, value } => {
                out.put_u8(tag::PUT);
                out.extend_from_slice(&(key.len() as u16).to_le_bytes());
                out.extend_from_slice(&(value.len() as u16).to_le_bytes());
                out.extend_from_slice(key);
                out.extend_from_slice(value);
            }
            Self::Delete { key } => {
                out.put_u8(tag::DELETE);
                out.extend_from_slice(&(key.len() as u16).to_le_bytes());
                out.extend_from_slice(key);
            }
            Self::Allocated { run } => encode_run(tag::ALLOCATED, *run, out),
            Self::Freed { run } => encode_run(tag::FREED, *run, out),
            Self::GiveGroup { group } => encode_group(tag::GIVE_GROUP, *group, out),
            Self::TakeGroup { group } => encode_group(tag::TAKE_GROUP, *group, out),
        }
    }

    fn decode(input: &mut Decoder) -> Result<Self, Malformed> {
        Ok(match u8::take(input)? {
            tag::PUT => {
                let key = u16::take(input)?;
                let value = u16::take(input)?;
                Self::Put { key: take_key(input, key)?, value: take_value(input, value)? }
            }
            tag::DELETE => {
                let key = u16::take(input)?;
                Self::Delete { key: take_key(input, key)? }
            }
            tag::ALLOCATED => Self::Allocated { run: Run::take(input)? },
            tag::FREED => Self::Freed { run: Run::take(input)? },
            tag::GIVE_GROUP => Self::GiveGroup { group: u64::take(input)? },
            tag::TAKE_GROUP => Self::TakeGroup { group: u64::take(input)? },
            _ => return Err(Malformed("unknown change")),
        })
    }
}

fn encode_run(tag: u8, run: Run, out: &mut BytesMut) {
    out.put_u8(tag);
    out.extend_from_slice(&run.start.to_le_bytes());
    out.extend_from_slice(&run.count.to_le_bytes());
}

fn encode_group(tag: u8, group: u64, out: &mut BytesMut) {
    out.put_u8(tag);
    out.extend_from_slice(&group.to_le_bytes());
}

fn take_key(input: &mut Decoder, length: u16) -> Result<Bytes, Malformed> {
    if !(1..=KEY_BYTES_MAX).contains(&usize::from(length)) {
        return Err(Malformed("a key has 1 to 300 bytes"));
    }
    Ok(Bytes::copy_from_slice(input.bytes(usize::from(length))?))
}

fn take_value(input: &mut Decoder, length: u16) -> Result<Bytes, Malformed> {
    if usize::from(length) > VALUE_BYTES_MAX {
        return Err(Malformed("a value has at most 8192 bytes"));
    }
    Ok(Bytes::copy_from_slice(input.bytes(usize::from(length))?))
}

/// What a batch must leave of the space of its store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BatchRoom {
    /// The room for the records of data that was accepted, and the reserve.
    #[default]
    Usual,
    /// It is such a record: what deletions need.
    Accepted,
    /// It frees space: nothing.
    Reserve,
}

/// Changes that happen together or not at all.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) ops: Vec<BatchOp>,
    length: usize,
    pub(crate) room: BatchRoom,
    pub(crate) after: Vec<CommitDependency>,
}

impl Batch {
    /// No change yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives `key` (1 to 300 bytes) the value `value` (at most 8 KiB).
    pub fn put(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.push(BatchOp::Put { key: key.into(), value: value.into() });
    }

    /// Removes `key`, if it is there.
    pub fn delete(&mut self, key: impl Into<Bytes>) {
        self.push(BatchOp::Delete { key: key.into() });
    }

    /// Blocks from [`StoreSpace::allocate`](super::StoreSpace::allocate), or a part of them, are in
    /// use from now on.
    pub fn allocated(&mut self, run: Run) {
        self.push(BatchOp::Allocated { run });
    }

    /// Blocks in use are not used any more. They are handed out again once this batch is durable.
    pub fn freed(&mut self, run: Run) {
        self.push(BatchOp::Freed { run });
    }

    /// A wholly free group goes to another node, which may take it once this batch is durable.
    pub fn give_group(&mut self, group: u64) {
        self.push(BatchOp::GiveGroup { group });
    }

    /// A group comes from another node, wholly free. It is used once this batch is durable.
    pub fn take_group(&mut self, group: u64) {
        self.push(BatchOp::TakeGroup { group });
    }

    /// Marks a batch that frees space (a deletion, a truncation): on a full volume it may use the
    /// reserve.
    pub fn take_from_reserve(&mut self) {
        self.room = BatchRoom::Reserve;
    }

    /// Marks a batch that names data which was accepted: room for it was kept.
    pub fn take_kept_room(&mut self) {
        self.room = BatchRoom::Accepted;
    }

    /// Adds dependencies: the batch is durable no earlier than these records of other nodes.
    pub fn after(&mut self, dependencies: impl IntoIterator<Item = CommitDependency>) {
        self.after.extend(dependencies);
    }

    /// Bytes of the batch, to be held against
    /// [`Store::batch_bytes_max`](super::Store::batch_bytes_max).
    pub fn length_bytes(&self) -> usize {
        self.length
    }

    /// Without any change?
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// The keys that it changes.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.ops.iter().filter_map(|op| match op {
            BatchOp::Put { key, .. } | BatchOp::Delete { key } => Some(&key[..]),
            _ => None,
        })
    }

    pub(crate) fn into_ops(self) -> Vec<BatchOp> {
        self.ops
    }

    fn push(&mut self, op: BatchOp) {
        self.length += op.length();
        self.ops.push(op);
    }

    /// Checks what can be checked without the store.
    pub(crate) fn check(&self, limit: usize) -> StoreResult<()> {
        if self.length > limit {
            return Err(StoreError::TooLarge { length: self.length, limit });
        }
        let fits = self.ops.iter().all(|op| match op {
            BatchOp::Put { key, value } => is_key(key) && value.len() <= VALUE_BYTES_MAX,
            BatchOp::Delete { key } => is_key(key),
            _ => true,
        });
        if !fits {
            return Err(StoreError::BadBatch("a key or a value has a wrong length"));
        }
        let allocated = self.ops.iter().filter_map(|op| match op {
            BatchOp::Allocated { run } => Some(*run),
            _ => None,
        });
        let freed = self.ops.iter().filter_map(|op| match op {
            BatchOp::Freed { run } => Some(*run),
            _ => None,
        });
        let groups = self.ops.iter().filter_map(|op| match op {
            BatchOp::GiveGroup { group } | BatchOp::TakeGroup { group } => {
                Some(Run { start: *group, count: 1 })
            }
            _ => None,
        });
        if overlap(allocated) || overlap(freed) || overlap(groups) {
            return Err(StoreError::BadBatch("a block or a group is named twice"));
        }
        Ok(())
    }
}

fn is_key(key: &Bytes) -> bool {
    (1..=KEY_BYTES_MAX).contains(&key.len())
}

fn overlap(runs: impl Iterator<Item = Run>) -> bool {
    let mut runs: Vec<Run> = runs.collect();
    runs.sort_unstable();
    runs.windows(2).any(|pair| pair[1].start < pair[0].blocks().end)
}

/// What a record says besides its changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHead {
    /// The number of the record, one more than that of the record before.
    pub(crate) position: u64,
    /// The next inode number.
    pub(crate) counter: u64,
}

/// Appends the record of a batch and says how long it is.
pub(crate) fn encode(head: RecordHead, batch: &Batch, out: &mut BytesMut) -> usize {
    let length = RECORD_HEAD + batch.length;
    out.extend_from_slice(&(length as u32).to_le_bytes());
    out.extend_from_slice(&head.position.to_le_bytes());
    out.extend_from_slice(&head.counter.to_le_bytes());
    out.extend_from_slice(&(batch.ops.len() as u32).to_le_bytes());
    batch.ops.iter().for_each(|op| op.encode(out));
    length
}

/// Takes one record off the front of `input`.
pub(crate) fn decode(input: &mut Decoder) -> Result<(RecordHead, Vec<BatchOp>), Malformed> {
    let length = u32::take(input)? as usize;
    let body = length.checked_sub(4).ok_or(Malformed("short record"))?;
    let mut record = Decoder::new(input.bytes(body)?, Bytes::new());
    let head = RecordHead { position: u64::take(&mut record)?, counter: u64::take(&mut record)? };
    let count = u32::take(&mut record)?;
    let mut ops = Vec::new();
    for _ in 0..count {
        ops.push(BatchOp::decode(&mut record)?);
    }
    record.finish()?;
    Ok((head, ops))
}

#[cfg(test)]
mod tests {
    use runtime::seed::with_seed;

    use super::*;

    fn sample() -> Batch {
        let mut batch = Batch::new();
        batch.put("k", "value");
        batch.delete("old");
        batch.allocated(Run { start: 5, count: 2 });
        batch.freed(Run { start: 9, count: 1 });
        batch.give_group(3);
        batch.take_group(4);
        batch
    }

    #[test]
    fn the_bytes_of_a_record_are_frozen() {
        let mut bytes = BytesMut::new();
        let length = encode(RecordHead { position: 7, counter: 16 }, &sample(), &mut bytes);
        let mut golden = vec![85, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0];
        golden.extend_from_slice(&[6, 0, 0, 0]);
        golden.extend_from_slice(b"\x01\x01\x00\x05\x00kvalue\x02\x03\x00old");
        golden.extend_from_slice(&[3, 5, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
        golden.extend_from_slice(&[4, 9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
        golden.extend_from_slice(&[5, 3, 0, 0, 0, 0, 0, 0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((length, &bytes[..]), (golden.len(), &golden[..]));
    }

    #[test]
    fn a_record_is_read_back_and_any_other_bytes_are_refused() {
        with_seed(|rng| {
            let mut bytes = BytesMut::new();
            let head = RecordHead { position: 7, counter: 16 };
            encode(head, &sample(), &mut bytes);
            let read = decode(&mut Decoder::new(&bytes, Bytes::new())).unwrap();
            assert_eq!(read, (head, sample().into_ops()));
            for _ in 0..10_000 {
                let mut bytes = bytes.clone();
                let index = rng.index(bytes.len());
                bytes[index] = rng.bits() as u8;
                bytes.truncate(rng.index(bytes.len() + 1));
                let _ = decode(&mut Decoder::new(&bytes, Bytes::new()));
            }
        });
    }

    #[test]
    fn a_batch_that_names_a_block_twice_or_is_too_long_is_refused() {
        let mut batch = sample();
        assert_eq!(batch.check(61), Ok(()));
        assert_eq!(batch.check(60), Err(StoreError::TooLarge { length: 61, limit: 60 }));
        batch.freed(Run { start: 8, count: 2 });
        assert!(matches!(batch.check(1000), Err(StoreError::BadBatch(_))));
        let mut batch = Batch::new();
        batch.put("", "");
        assert!(matches!(batch.check(1000), Err(StoreError::BadBatch(_))));
    }
}
