//! Receive buffers that are used again: to find new memory costs the host more than to fill it.
//!
//! Whoever takes a buffer leaves an empty slice of it here, its *anchor*. The pieces of a record are
//! slices of the same buffer, in whatever hands they are; once the anchor is the only one left, the buffer
//! is taken again. Nothing has to be given back, and who keeps a piece for long keeps only its buffer.

use std::cell::RefCell;
use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Bytes of all buffers that are kept for a gateway, at most. Of those that are in use the oldest are given up
/// first: then they are freed when they are no longer used.
const SPARE_BYTES_MAX: usize = 4 << 20;
/// How many they are, at most.
const SPARES_MAX: usize = 64;

/// The receive buffers of one gateway.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    /// The last ones taken at the end.
    kept: RefCell<VecDeque<Kept>>,
}

#[derive(Debug)]
struct Kept {
    anchor: Bytes,
    /// Bytes of the buffer.
    bytes: usize,
}

impl Spares {
    /// An empty buffer: the smallest spare one of at least `bytes_best`, or else the largest of at least
    /// `bytes_min`, or else a new one of `bytes_min`.
    pub(crate) fn take(&self, bytes_min: usize, bytes_best: usize) -> BytesMut {
        let mut kept = self.kept.borrow_mut();
        let free = kept.iter().enumerate().filter(|(_, spare)| spare.anchor.is_unique());
        let fit = free.filter(|(_, spare)| spare.bytes >= bytes_min);
        // Those that are large enough are better the smaller, the others the larger they are.
        let rank =
            |bytes: usize| if bytes >= bytes_best { (0, bytes) } else { (1, usize::MAX - bytes) };
        let best = fit.min_by_key(|(_, spare)| rank(spare.bytes)).map(|(at, _)| at);
        let spare =
            best.and_then(|at| kept.remove(at)).and_then(|spare| spare.anchor.try_into_mut().ok());
        let mut buffer = spare.unwrap_or_else(|| BytesMut::with_capacity(bytes_min));
        let bytes = buffer.capacity();
        kept.push_back(Kept { anchor: buffer.split_to(0).freeze(), bytes });
        let mut sum: usize = kept.iter().map(|spare| spare.bytes).sum();
        while sum > SPARE_BYTES_MAX || kept.len() > SPARES_MAX {
            sum -= kept.pop_front().map_or(sum, |spare| spare.bytes);
        }
        buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_taken_again_when_the_last_of_its_pieces_is_gone() {
        let spares = Spares::default();
        let mut first = spares.take(1000, 1000);
        first.extend_from_slice(&[7; 600]);
        let place = first.as_ptr();
        let piece = first.split_to(500).freeze();
        drop(first);
        let second = spares.take(1000, 1000);
        assert_ne!(second.as_ptr(), place, "a piece is in use");
        assert_eq!(piece, [7; 500][..]);
        drop(piece);
        let third = spares.take(1000, 1000);
        assert_eq!((third.as_ptr(), third.len(), third.capacity()), (place, 0, 1000));
    }

    #[test]
    fn the_smallest_that_is_large_enough_is_taken_or_else_the_largest() {
        let spares = Spares::default();
        let sizes = [3000, 1000, 4000, 2000];
        drop(sizes.map(|bytes| spares.take(bytes, bytes)));
        assert_eq!(spares.take(500, 1500).capacity(), 2000);
        assert_eq!(spares.take(500, 9000).capacity(), 4000);
        assert_eq!(spares.take(5000, 9000).capacity(), 5000, "none is large enough");
    }

    #[test]
    fn what_is_kept_has_a_limit_and_what_is_in_use_is_never_lost() {
        let spares = Spares::default();
        let mut used = Vec::new();
        for size in 0..3 * SPARES_MAX {
            let mut buffer = spares.take(size * 1000, size * 1000);
            buffer.extend_from_slice(&size.to_be_bytes());
            used.push(buffer);
            let kept = spares.kept.borrow();
            assert!(kept.len() <= SPARES_MAX);
            assert!(kept.iter().map(|spare| spare.bytes).sum::<usize>() <= SPARE_BYTES_MAX);
        }
        assert!(used.iter().enumerate().all(|(size, buffer)| buffer[..] == size.to_be_bytes()));
    }
}
