//! Direct placement: the data of a large WRITE are received into stripe buffers of the cache's
//! pool, one for each whole stripe of the file. The cache takes over such a buffer as its line, so
//! the data are not copied.

use std::collections::VecDeque;

use runtime::buffer::{Buffer, Pool};

/// The data that a record carries, as far as they are recognised while it is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteData {
    /// Bytes of the record before the data.
    pub(crate) start: usize,
    /// The offset in the file.
    pub(crate) offset: u64,
    /// Bytes of data.
    pub(crate) length: usize,
}

/// Where the data of large WRITEs are placed.
#[derive(Clone, Debug)]
pub(crate) struct DirectPlacement {
    /// The pool of the cache.
    pub(crate) pool: Pool,
    pub(crate) stripe_bytes: usize,
    /// Finds the data of a WRITE in the first bytes of a record.
    pub(crate) find_data: fn(&[u8]) -> Option<WriteData>,
}

/// Buffers for the whole stripes of a record that is being received.
#[derive(Debug)]
pub(crate) struct StripeBuffers {
    /// Bytes not received yet before the first stripe.
    pub(crate) before: usize,
    /// Stripes that are not complete.
    pub(crate) left: usize,
    /// Buffers of the next ones.
    pub(crate) buffers: VecDeque<Buffer>,
    /// Bytes received into the first buffer.
    pub(crate) filled: usize,
    /// Buffers to take next: as many as were filled, so memory stays in proportion to what came.
    pub(crate) taken_next: usize,
}

impl StripeBuffers {
    /// Takes buffers for the next stripes if there are none; false if the pool is empty.
    pub(crate) fn take_buffers(&mut self, placement: &DirectPlacement) -> bool {
        if self.buffers.is_empty() {
            let take = || placement.pool.take_spare(placement.stripe_bytes);
            self.buffers.extend((0..self.taken_next.min(self.left)).map_while(|_| take()));
            self.taken_next *= 2;
        }
        !self.buffers.is_empty()
    }

    /// Records that `length` bytes were received into the buffers; returns the complete stripes.
    pub(crate) fn fill(&mut self, length: usize) -> Vec<Buffer> {
        self.filled += length;
        let mut complete = Vec::new();
        while let Some(first) = self.buffers.pop_front_if(|first| first.len() <= self.filled) {
            self.filled -= first.len();
            self.left -= 1;
            complete.push(first);
        }
        complete
    }
}

impl DirectPlacement {
    /// Bytes of a record that are received before it is inspected: few enough to be copied.
    pub(crate) fn inspected_bytes(&self) -> usize {
        self.stripe_bytes / 4
    }

    /// The whole stripes of a record of `length` bytes that begins with `head`. This is a guess:
    /// the call is decoded again when it is served.
    pub(crate) fn stripes(&self, head: &[u8], length: usize) -> Option<StripeBuffers> {
        let stripe = self.stripe_bytes;
        let data = (self.find_data)(head)?;
        let skipped = ((data.offset as usize).wrapping_neg() % stripe).min(data.length);
        let left = (data.length - skipped) / stripe;
        let fits = data.start.saturating_add(data.length) <= length;
        let (before, buffers) = (data.start + skipped, VecDeque::new());
        (fits && left > 0).then_some(StripeBuffers {
            before,
            left,
            buffers,
            filled: 0,
            taken_next: 1,
        })
    }
}
