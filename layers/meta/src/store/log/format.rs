//! Segment headers and entries in bytes. `docs/format.md`, "Log".

use blockio::BLOCK_SIZE;
use blockio::redundancy::METADATA_COPIES_MAX;
use bytes::Bytes;
use runtime::VolumeId;
use runtime::hash::crc32c;
use runtime::wire::{Decoder, Encoder, Malformed, Wire};

use crate::store::page::{FORMAT_VERSIONS, NUMBER_END, StoreOwner, version_of};

const SEGMENT_MAGIC: u32 = u32::from_le_bytes(*b"mdLS");
const ENTRY_MAGIC: u32 = u32::from_le_bytes(*b"mdLE");

/// Bytes of an entry before its records.
pub(crate) const ENTRY_HEAD: usize = 64;

/// One log of one node: from a mount to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogId {
    pub(crate) owner: StoreOwner,
    /// Random, so that what an earlier log left on the same stripes is never taken for this one's.
    pub(crate) id: u64,
    pub(crate) epoch: u64,
}

/// Stripes with the same content, on different disks if there are several: the copies of a segment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentCopies {
    stripes: [u64; METADATA_COPIES_MAX as usize],
    count: u8,
}

impl std::fmt::Debug for SegmentCopies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stripes().fmt(f)
    }
}

impl SegmentCopies {
    /// These stripes, two or more.
    pub(crate) fn new(copies: &[u64]) -> Self {
        let mut stripes = [0; METADATA_COPIES_MAX as usize];
        stripes[..copies.len()].copy_from_slice(copies);
        Self { stripes, count: copies.len() as u8 }
    }

    /// Where there is no segment.
    pub(crate) fn nowhere() -> Self {
        Self::new(&[0, 0])
    }

    pub(crate) fn stripes(&self) -> &[u64] {
        &self.stripes[..usize::from(self.count)]
    }

    /// The first of them.
    pub(crate) fn first(&self) -> u64 {
        self.stripes[0]
    }

    /// What a header or root says of the number of copies: nothing if there are two.
    pub(crate) fn put_count<T: From<u8> + Wire>(&self, out: &mut Encoder) {
        T::from(if self.count == 2 { 0 } else { self.count }).put(out);
    }

    pub(crate) fn put(&self, out: &mut Encoder) {
        self.stripes().iter().for_each(|stripe| stripe.put(out));
    }

    /// Reads `count` stripes, where [`put_count`](Self::put_count) wrote that.
    pub(crate) fn take(count: u32, input: &mut Decoder) -> Result<Self, Malformed> {
        let count = if count == 0 { 2 } else { count };
        if !(2..=METADATA_COPIES_MAX).contains(&count) {
            return Err(Malformed("the copies of a segment"));
        }
        let mut copies = Self { count: count as u8, ..Self::nowhere() };
        for stripe in &mut copies.stripes[..count as usize] {
            *stripe = u64::take(input)?;
        }
        Ok(copies)
    }
}

/// The first block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) sequence: u64,
    /// The number of its first entry: all entries before it were durable when this was written.
    pub(crate) first_entry: u64,
    pub(crate) here: SegmentCopies,
    /// Of as many stripes.
    pub(crate) next: SegmentCopies,
}

impl SegmentHeader {
    /// The block.
    pub(crate) fn encode(&self, log: LogId) -> Vec<u8> {
        let mut out = Encoder::new();
        SEGMENT_MAGIC.put(&mut out);
        version_of(self.here.count.into()).put(&mut out);
        0u16.put(&mut out);
        log.owner.volume.put(&mut out);
        log.owner.node.put(&mut out);
        self.here.put_count::<u32>(&mut out);
        for field in [log.epoch, log.id, self.sequence, self.first_entry] {
            field.put(&mut out);
        }
        self.here.put(&mut out);
        self.next.put(&mut out);
        let mut block = out.finish_joined();
        block.resize(BLOCK_SIZE - 4, 0);
        block.extend_from_slice(&crc32c(&block).to_le_bytes());
        block
    }

    /// Reads the header of the segment `sequence` of `log` at `here`.
    pub(crate) fn decode(
        block: &[u8],
        log: LogId,
        sequence: u64,
        here: SegmentCopies,
    ) -> Result<Self, Malformed> {
        let (content, checksum) =
            block.split_at_checked(BLOCK_SIZE - 4).ok_or(Malformed("short segment"))?;
        if crc32c(content).to_le_bytes() != checksum.get(..4).unwrap_or_default() {
            return Err(Malformed("checksum of a segment"));
        }
        let mut input = Decoder::new(content, Bytes::new());
        let magic = u32::take(&mut input)?;
        if magic != SEGMENT_MAGIC || !FORMAT_VERSIONS.contains(&u16::take(&mut input)?) {
            return Err(Malformed("not a segment"));
        }
        u16::take(&mut input)?;
        let owner =
            StoreOwner { volume: VolumeId::take(&mut input)?, node: u32::take(&mut input)? };
        let count = u32::take(&mut input)?;
        let (epoch, id) = (u64::take(&mut input)?, u64::take(&mut input)?);
        let header = Self {
            sequence: u64::take(&mut input)?,
            first_entry: u64::take(&mut input)?,
            here: SegmentCopies::take(count, &mut input)?,
            next: SegmentCopies::take(count, &mut input)?,
        };
        let same = (LogId { owner, id, epoch }) == log && header.here == here;
        if !same || header.sequence != sequence || header.first_entry >= NUMBER_END {
            return Err(Malformed("another segment"));
        }
        Ok(header)
    }
}

/// Where an entry stands: part of its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryPlace {
    /// The segment's number.
    pub(crate) segment: u64,
    /// The entry's number, one more than that of the entry before.
    pub(crate) entry: u64,
}

/// Blocks that an entry with this number of bytes of records takes.
pub(crate) fn entry_blocks(body: usize) -> usize {
    (ENTRY_HEAD + body).div_ceil(BLOCK_SIZE)
}

/// Appends an entry, padded to whole blocks.
pub(crate) fn encode_entry(log: LogId, place: EntryPlace, body: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    let mut head = Encoder::new();
    ENTRY_MAGIC.put(&mut head);
    (body.len() as u32).put(&mut head);
    log.owner.volume.put(&mut head);
    log.owner.node.put(&mut head);
    0u32.put(&mut head); // the checksum's place
    for field in [log.epoch, log.id, place.segment, place.entry] {
        field.put(&mut head);
    }
    out.extend_from_slice(&head.finish_joined());
    out.extend_from_slice(body);
    let checksum = crc32c(&out[start..]);
    out[start + CHECKSUM_AT..start + CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
    out.resize(start + entry_blocks(body.len()) * BLOCK_SIZE, 0);
}

const CHECKSUM_AT: usize = 28;

/// Reads the entry at the front of `input` (the rest of a segment): its number and its records.
pub(crate) fn decode_entry(
    input: &[u8],
    log: LogId,
    segment: u64,
) -> Result<(EntryPlace, &[u8]), Malformed> {
    let mut head = Decoder::new(input, Bytes::new());
    if u32::take(&mut head)? != ENTRY_MAGIC {
        return Err(Malformed("not an entry"));
    }
    let length = u32::take(&mut head)? as usize;
    let owner = StoreOwner { volume: VolumeId::take(&mut head)?, node: u32::take(&mut head)? };
    let checksum = u32::take(&mut head)?;
    let (epoch, id) = (u64::take(&mut head)?, u64::take(&mut head)?);
    let place = EntryPlace { segment: u64::take(&mut head)?, entry: u64::take(&mut head)? };
    if (LogId { owner, id, epoch }) != log || place.segment != segment {
        return Err(Malformed("another entry"));
    }
    let whole = ENTRY_HEAD.checked_add(length).and_then(|end| input.get(..end));
    let mut covered = whole.ok_or(Malformed("short entry"))?.to_vec();
    covered[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
    if crc32c(&covered) != checksum {
        return Err(Malformed("checksum of an entry"));
    }
    Ok((place, &input[ENTRY_HEAD..ENTRY_HEAD + length]))
}

#[cfg(test)]
mod tests {
    use runtime::seed::with_seed;

    use super::*;

    const LOG: LogId =
        LogId { owner: StoreOwner { volume: VolumeId(7), node: 3 }, id: 0x0102, epoch: 5 };

    fn header() -> SegmentHeader {
        let [here, next] = [[10, 11], [12, 13]].map(|stripes| SegmentCopies::new(&stripes));
        SegmentHeader { sequence: 8, first_entry: 9, here, next }
    }

    fn numbers(bytes: &mut Vec<u8>, values: &[u64]) {
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    #[test]
    fn the_bytes_of_a_segment_header_are_frozen() {
        let header = header();
        let block = header.encode(LOG);
        let mut golden = b"mdLS\x03\x00\x00\x00".to_vec();
        golden.extend_from_slice(&[7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend_from_slice(&[3, 0, 0, 0, 0, 0, 0, 0]);
        numbers(&mut golden, &[5, 0x0102, 8, 9, 10, 11, 12, 13]);
        assert_eq!(block[..golden.len()], golden);
        assert_eq!(block.len(), BLOCK_SIZE);
        assert_eq!(block[BLOCK_SIZE - 4..], crc32c(&block[..BLOCK_SIZE - 4]).to_le_bytes());
        assert_eq!(SegmentHeader::decode(&block, LOG, 8, header.here), Ok(header));
        let mut of_version_1 = block.clone();
        of_version_1[4] = 1;
        let checksum = crc32c(&of_version_1[..BLOCK_SIZE - 4]).to_le_bytes();
        of_version_1[BLOCK_SIZE - 4..].copy_from_slice(&checksum);
        assert_eq!(SegmentHeader::decode(&of_version_1, LOG, 8, header.here), Ok(header));
    }

    #[test]
    fn the_bytes_of_a_segment_header_with_three_copies_are_frozen() {
        let [here, next] = [[10, 11, 12], [13, 14, 15]].map(|stripes| SegmentCopies::new(&stripes));
        let header = SegmentHeader { here, next, ..header() };
        let block = header.encode(LOG);
        let mut golden = b"mdLS\x04\x00\x00\x00".to_vec();
        golden.extend_from_slice(&[7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend_from_slice(&[3, 0, 0, 0, 3, 0, 0, 0]);
        numbers(&mut golden, &[5, 0x0102, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(block[..golden.len()], golden);
        assert_eq!(SegmentHeader::decode(&block, LOG, 8, here), Ok(header));
    }

    #[test]
    fn the_bytes_of_an_entry_are_frozen() {
        let mut block = Vec::new();
        encode_entry(LOG, EntryPlace { segment: 8, entry: 9 }, b"records", &mut block);
        let mut golden = b"mdLE\x07\x00\x00\x00".to_vec();
        golden.extend_from_slice(&[7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]);
        golden.extend_from_slice(&[0; 4]);
        numbers(&mut golden, &[5, 0x0102, 8, 9]);
        golden.extend_from_slice(b"records");
        let checksum = crc32c(&golden).to_le_bytes();
        golden[28..32].copy_from_slice(&checksum);
        assert_eq!(block[..golden.len()], golden);
        assert_eq!(block.len(), BLOCK_SIZE);
    }

    #[test]
    fn a_torn_or_rotten_or_strange_entry_is_found_out() {
        with_seed(|rng| {
            let body = vec![0x5A; 9000];
            let place = EntryPlace { segment: 8, entry: 9 };
            let mut entry = Vec::new();
            encode_entry(LOG, place, &body, &mut entry);
            assert_eq!(decode_entry(&entry, LOG, 8), Ok((place, &body[..])));
            assert!(decode_entry(&entry, LOG, 7).is_err());
            assert!(decode_entry(&entry, LogId { epoch: 4, ..LOG }, 8).is_err());
            assert!(decode_entry(&entry, LogId { id: 4, ..LOG }, 8).is_err());
            let mut torn = entry.clone();
            torn[8192..].fill(0);
            assert!(decode_entry(&torn, LOG, 8).is_err());
            for _ in 0..300 {
                let mut rotten = entry.clone();
                rotten[rng.index(ENTRY_HEAD + body.len())] ^= 1 << rng.below(8);
                assert!(decode_entry(&rotten, LOG, 8).is_err());
                assert!(decode_entry(&entry[..rng.index(9000)], LOG, 8).is_err());
            }
        });
    }

    #[test]
    fn a_header_of_another_place_or_log_is_found_out() {
        with_seed(|rng| {
            let header = header();
            let block = header.encode(LOG);
            assert!(SegmentHeader::decode(&block, LOG, 7, header.here).is_err());
            assert!(SegmentHeader::decode(&block, LOG, 8, header.next).is_err());
            let other = LogId { owner: StoreOwner { node: 4, ..LOG.owner }, ..LOG };
            assert!(SegmentHeader::decode(&block, other, 8, header.here).is_err());
            for _ in 0..300 {
                let mut rotten = block.clone();
                rotten[rng.index(BLOCK_SIZE)] ^= 1 << rng.below(8);
                assert!(SegmentHeader::decode(&rotten, LOG, 8, header.here).is_err());
            }
        });
    }
}
