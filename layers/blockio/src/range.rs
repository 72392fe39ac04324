//! Bytes of the whole logical disk: split at stripe boundaries, all parts at once (thesis section
//! 2.3.4).

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};

use crate::protocol::{Error, Unsynced};
use crate::stripes::Stripes;
use crate::volume_map::VolumeMap;

/// Stripes of one range that are asked for at once, at most.
pub const STRIPES_AT_ONCE: usize = 64;

/// The part of a range that lies in one stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeSpan {
    /// The stripe.
    pub stripe: u64,
    /// The first byte within the stripe.
    pub offset: u32,
    /// How many bytes, at least one.
    pub length: u32,
}

/// The parts of bytes `offset..offset + length` of the logical disk, in order.
pub fn spans(map: &VolumeMap, offset: u64, length: u64) -> Result<Vec<StripeSpan>, Error> {
    let stripe_size = u64::from(map.geometry().stripe_size);
    let end = offset.checked_add(length).filter(|&end| end <= map.bytes());
    let end = end.ok_or(Error::OutOfRange {
        stripe: offset / stripe_size,
        offset: (offset % stripe_size) as u32,
        length: u32::try_from(length).unwrap_or(u32::MAX),
    })?;
    let mut spans = Vec::new();
    let mut position = offset;
    while position < end {
        let within = position % stripe_size;
        let length = (stripe_size - within).min(end - position);
        spans.push(StripeSpan {
            stripe: position / stripe_size,
            offset: within as u32,
            length: length as u32,
        });
        position += length;
    }
    Ok(spans)
}

/// Reads a range of the logical disk; one piece per stripe, in order, none of them copied.
pub async fn read_range(
    stripes: &dyn Stripes,
    offset: u64,
    length: u64,
) -> Result<Vec<Bytes>, Error> {
    let spans = spans(&stripes.map(), offset, length)?;
    stream::iter(spans)
        .map(|span| stripes.read(span.stripe, span.offset, span.length, Vec::new()))
        .buffered(STRIPES_AT_ONCE)
        .try_collect()
        .await
}

/// Replaces a range of the logical disk; returns what has to be synced. After an error any part of
/// it may have been written.
pub async fn write_range(
    stripes: &dyn Stripes,
    offset: u64,
    data: Vec<Bytes>,
) -> Result<Vec<Unsynced>, Error> {
    let length = data.iter().map(|piece| piece.len() as u64).sum();
    let spans = spans(&stripes.map(), offset, length)?;
    let mut rest = data.into_iter();
    let mut piece = Bytes::new();
    let parts: Vec<_> = spans
        .into_iter()
        .map(|span| (span, take_bytes(span.length as usize, &mut piece, &mut rest)))
        .collect();
    stream::iter(parts)
        .map(|(StripeSpan { stripe, offset, .. }, data)| {
            let writing = stripes.write(stripe, offset, data);
            async move { Ok(Unsynced { stripe, boot_id: writing.await? }) }
        })
        .buffer_unordered(STRIPES_AT_ONCE)
        .try_collect()
        .await
}

/// The next `count` bytes of `piece` and then of `rest`, as slices.
fn take_bytes(
    mut count: usize,
    piece: &mut Bytes,
    rest: &mut impl Iterator<Item = Bytes>,
) -> Vec<Bytes> {
    let mut taken = Vec::new();
    while count > 0 {
        if piece.is_empty() {
            let Some(next) = rest.next() else { break };
            *piece = next;
            continue;
        }
        let part = piece.split_to(count.min(piece.len()));
        count -= part.len();
        taken.push(part);
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> VolumeMap {
        VolumeMap::for_disks(runtime::VolumeId(1), 16384, 1, 1, 1, 1 << 20).expect("a small volume")
    }

    #[test]
    fn a_range_splits_at_stripe_boundaries() {
        let map = map();
        let parts = |offset, length| {
            let spans = spans(&map, offset, length).expect("within the disk");
            spans.iter().map(|span| (span.stripe, span.offset, span.length)).collect::<Vec<_>>()
        };
        assert_eq!(parts(100, 0), []);
        assert_eq!(parts(16383, 2), [(0, 16383, 1), (1, 0, 1)]);
        assert_eq!(parts(16384, 32768), [(1, 0, 16384), (2, 0, 16384)]);
    }

    #[test]
    fn a_range_past_the_end_is_refused() {
        let end = map().bytes();
        assert!(spans(&map(), end, 0).is_ok());
        for (offset, length) in [(end, 1), (end - 1, 2), (u64::MAX, 1), (0, u64::MAX)] {
            let refused = spans(&map(), offset, length);
            assert!(matches!(refused, Err(Error::OutOfRange { .. })), "{offset}+{length}");
        }
    }

    #[test]
    fn pieces_are_cut_without_a_copy() {
        let first = Bytes::from_static(b"check");
        let mut rest = vec![Bytes::new(), Bytes::from_static(b"point")].into_iter();
        let mut piece = first.clone();
        assert_eq!(take_bytes(7, &mut piece, &mut rest), ["check", "po"]);
        assert_eq!(take_bytes(3, &mut piece, &mut rest), ["int"]);
    }
}
