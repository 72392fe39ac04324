//! A pool of receive buffers: new memory costs the host more than filling it.
//!
//! The pool keeps an empty slice of each buffer, its *anchor*. The pieces of a record are slices of
//! the same buffer; once the anchor is the only one left, the buffer is reused. Nothing is returned
//! explicitly, and a piece that is kept for long keeps only its buffer.

use std::cell::RefCell;
use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Bytes of all buffers of the pool, at most. The oldest are dropped from it first; a buffer in use
/// is then freed with its last slice.
const POOL_BYTES_MAX: usize = 4 << 20;
/// Buffers of the pool, at most.
const POOL_BUFFERS_MAX: usize = 64;

/// The receive buffers of one gateway.
#[derive(Debug, Default)]
pub(crate) struct RecvBufferPool {
    /// In the order in which they were taken.
    buffers: RefCell<VecDeque<PooledBuffer>>,
}

#[derive(Debug)]
struct PooledBuffer {
    anchor: Bytes,
    /// Bytes of the buffer.
    bytes: usize,
}

impl RecvBufferPool {
    /// Takes an empty buffer: the smallest free one of at least `bytes_best`, or else the largest
    /// of at least `bytes_min`, or else a new one of `bytes_min`.
    pub(crate) fn take(&self, bytes_min: usize, bytes_best: usize) -> BytesMut {
        let mut buffers = self.buffers.borrow_mut();
        let free = buffers.iter().enumerate().filter(|(_, spare)| spare.anchor.is_unique());
        let fit = free.filter(|(_, spare)| spare.bytes >= bytes_min);
        // First the smallest of those that are large enough, then the largest of the others.
        let rank =
            |bytes: usize| if bytes >= bytes_best { (0, bytes) } else { (1, usize::MAX - bytes) };
        let best = fit.min_by_key(|(_, spare)| rank(spare.bytes)).map(|(at, _)| at);
        let spare = best
            .and_then(|at| buffers.remove(at))
            .and_then(|spare| spare.anchor.try_into_mut().ok());
        let mut buffer = spare.unwrap_or_else(|| BytesMut::with_capacity(bytes_min));
        let bytes = buffer.capacity();
        buffers.push_back(PooledBuffer { anchor: buffer.split_to(0).freeze(), bytes });
        let mut sum: usize = buffers.iter().map(|spare| spare.bytes).sum();
        while sum > POOL_BYTES_MAX || buffers.len() > POOL_BUFFERS_MAX {
            sum -= buffers.pop_front().map_or(sum, |spare| spare.bytes);
        }
        buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_reused_when_its_last_piece_is_dropped() {
        let recv_buffers = RecvBufferPool::default();
        let mut first = recv_buffers.take(1000, 1000);
        first.extend_from_slice(&[7; 600]);
        let place = first.as_ptr();
        let piece = first.split_to(500).freeze();
        drop(first);
        let second = recv_buffers.take(1000, 1000);
        assert_ne!(second.as_ptr(), place, "a piece is in use");
        assert_eq!(piece, [7; 500][..]);
        drop(piece);
        let third = recv_buffers.take(1000, 1000);
        assert_eq!((third.as_ptr(), third.len(), third.capacity()), (place, 0, 1000));
    }

    #[test]
    fn the_smallest_sufficient_buffer_is_taken_or_else_the_largest() {
        let recv_buffers = RecvBufferPool::default();
        let sizes = [3000, 1000, 4000, 2000];
        drop(sizes.map(|bytes| recv_buffers.take(bytes, bytes)));
        assert_eq!(recv_buffers.take(500, 1500).capacity(), 2000);
        assert_eq!(recv_buffers.take(500, 9000).capacity(), 4000);
        assert_eq!(recv_buffers.take(5000, 9000).capacity(), 5000, "none is large enough");
    }

    #[test]
    fn the_pool_has_a_limit_and_buffers_in_use_stay_intact() {
        let recv_buffers = RecvBufferPool::default();
        let mut used = Vec::new();
        for size in 0..3 * POOL_BUFFERS_MAX {
            let mut buffer = recv_buffers.take(size * 1000, size * 1000);
            buffer.extend_from_slice(&size.to_be_bytes());
            used.push(buffer);
            let buffers = recv_buffers.buffers.borrow();
            assert!(buffers.len() <= POOL_BUFFERS_MAX);
            assert!(buffers.iter().map(|spare| spare.bytes).sum::<usize>() <= POOL_BYTES_MAX);
        }
        assert!(used.iter().enumerate().all(|(size, buffer)| buffer[..] == size.to_be_bytes()));
    }
}
