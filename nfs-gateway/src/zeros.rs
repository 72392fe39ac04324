//! Finds the zeros in data that come in pieces.

use bytes::Bytes;

/// Zeros count from this many bytes on, at a multiple of it in the file: a page of clients.
const BLOCK_BYTES: usize = 4096;
static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// Bytes that are all zeros, or data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ZeroRun {
    pub(crate) is_zero: bool,
    pub(crate) length: usize,
}

/// Takes bytes from pieces, one range after another.
pub(crate) struct PieceReader<'a> {
    pieces: &'a [Bytes],
    /// The position in the first piece.
    at: usize,
}

impl<'a> PieceReader<'a> {
    /// At the beginning of `pieces`.
    pub(crate) fn new(pieces: &'a [Bytes]) -> Self {
        Self { pieces, at: 0 }
    }

    /// Calls `each` with the slices of the next `length` bytes.
    fn advance(&mut self, length: usize, mut each: impl FnMut(&'a Bytes, usize, usize)) {
        let mut left = length;
        while left > 0
            && let Some((piece, after)) = self.pieces.split_first()
        {
            let end = piece.len().min(self.at + left);
            each(piece, self.at, end);
            left -= end - self.at;
            self.at = end;
            if end == piece.len() {
                (self.pieces, self.at) = (after, 0);
            }
        }
    }

    /// The next `length` bytes, without a copy.
    pub(crate) fn take(&mut self, length: usize) -> Vec<Bytes> {
        let mut taken = Vec::new();
        self.advance(length, |piece, from, to| taken.push(piece.slice(from..to)));
        taken
    }

    /// Are the next `length` bytes zeros? A block of them at most.
    fn are_zeros(&mut self, length: usize) -> bool {
        let mut are_zeros = true;
        self.advance(length, |piece, from, to| {
            are_zeros = are_zeros && piece[from..to] == ZEROS[..to - from];
        });
        are_zeros
    }
}

/// Splits data that begin at `offset` of a file into whole blocks of zeros and the rest.
pub(crate) fn split_zeros(offset: u64, data: &[Bytes]) -> Vec<ZeroRun> {
    let mut runs: Vec<ZeroRun> = Vec::new();
    let mut left: usize = data.iter().map(Bytes::len).sum();
    let mut to_block = BLOCK_BYTES - (offset % BLOCK_BYTES as u64) as usize;
    let mut reader = PieceReader::new(data);
    while left > 0 {
        let length = to_block.min(left);
        let is_zero = reader.are_zeros(length) && length == BLOCK_BYTES;
        match runs.last_mut() {
            Some(run) if run.is_zero == is_zero => run.length += length,
            _ => runs.push(ZeroRun { is_zero, length }),
        }
        left -= length;
        to_block = BLOCK_BYTES;
    }
    runs
}

#[cfg(test)]
mod tests {
    use runtime::seed::with_seed;

    use super::*;

    #[test]
    fn runs_cover_the_data_and_only_whole_blocks_of_zeros_are_zero() {
        with_seed(|rng| {
            for _ in 0..50 {
                let offset = rng.index(3 * BLOCK_BYTES);
                let mut data = vec![0; rng.index(10 * BLOCK_BYTES)];
                for _ in 0..rng.index(6) {
                    if let Some(byte) = (!data.is_empty()).then(|| rng.index(data.len())) {
                        data[byte] = 1;
                    }
                }
                let mut rest = Bytes::from(data.clone());
                let mut pieces = Vec::new();
                while !rest.is_empty() {
                    pieces.push(rest.split_to(rng.index(rest.len() + 1)));
                }
                let mut reader = PieceReader::new(&pieces);
                let (mut all, mut last) = (Vec::new(), None);
                for ZeroRun { is_zero, length } in split_zeros(offset as u64, &pieces) {
                    assert_ne!(last.replace(is_zero), Some(is_zero), "runs alternate");
                    let at = offset + all.len();
                    let bytes = reader.take(length).concat();
                    assert_eq!(bytes.len(), length);
                    if is_zero {
                        assert!(bytes.iter().all(|byte| *byte == 0));
                        assert_eq!((at % BLOCK_BYTES, length % BLOCK_BYTES), (0, 0));
                    } else {
                        // The whole blocks in it have something else than zeros.
                        let skipped = at.next_multiple_of(BLOCK_BYTES) - at;
                        let blocks = bytes.get(skipped..).unwrap_or_default();
                        let mut blocks = blocks.chunks_exact(BLOCK_BYTES);
                        assert!(blocks.all(|block| block.contains(&1)));
                    }
                    all.extend(bytes);
                }
                assert_eq!(all, data);
            }
        });
    }
}
