//! Bytes in several pieces that are cut and joined without a copy.

use bytes::Bytes;

/// Bytes in several pieces.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces {
    parts: Vec<Bytes>,
    length: usize,
}

impl Pieces {
    /// The pieces of `parts`, in order.
    pub(crate) fn new(parts: Vec<Bytes>) -> Self {
        let length = parts.iter().map(Bytes::len).sum();
        Self { parts, length }
    }

    /// One after the other.
    pub(crate) fn join(parts: impl IntoIterator<Item = Self>) -> Self {
        Self::new(parts.into_iter().flat_map(|pieces| pieces.parts).collect())
    }

    /// How many bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Bytes `from..to`.
    pub(crate) fn slice(&self, from: usize, to: usize) -> Self {
        let mut parts = Vec::new();
        let mut start = 0;
        for part in &self.parts {
            let end = start + part.len();
            let (lo, hi) = (from.max(start), to.min(end));
            if lo < hi {
                parts.push(part.slice(lo - start..hi - start));
            }
            start = end;
        }
        Self::new(parts)
    }

    /// The pieces.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Bytes> {
        self.parts.iter()
    }

    /// The pieces.
    pub(crate) fn into_vec(self) -> Vec<Bytes> {
        self.parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_spans_pieces_and_keeps_the_order() {
        let pieces = Pieces::new([&b"check"[..], b"", b"point"].map(Bytes::from_static).to_vec());
        for from in 0..=10 {
            for to in from..=10 {
                let slice = pieces.slice(from, to);
                assert_eq!(
                    slice.iter().flatten().copied().collect::<Vec<_>>(),
                    b"checkpoint"[from..to]
                );
                assert_eq!(slice.length(), to - from);
            }
        }
    }
}
