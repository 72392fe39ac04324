//! Decoding of arguments, encoding of results (XDR, RFC 4506). Fields of fixed size are decoded by
//! `nfs3_types`; its decoder trusts the length of an opaque before the bytes are there, so
//! everything of variable length is decoded here by nom, as a slice of the receive buffer, never
//! longer than the rest of the record.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use nfs3_types::nfs3::{cookieverf3, createhow3, mknoddata3, sattr3, sattrguard3, stable_how};
use nfs3_types::xdr_codec::{Pack, Unpack};
use nom::bytes::complete::take;
use nom::combinator::verify;
use nom::multi::length_data;
use nom::number::complete::be_u32;
use nom::{IResult, Parser as _};

/// Why a procedure has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcedureError {
    /// The arguments are not what the procedure takes.
    GarbageArguments,
    /// No such procedure.
    NoProcedure,
    /// The result cannot be encoded: a bug.
    System,
}

/// The reply of a procedure.
pub(crate) type ProcedureResult = Result<ReplyBody, ProcedureError>;

/// Types that `nfs3_types` may decode: they have no field of variable length, so decoding them
/// allocates nothing.
pub(crate) trait FixedSize: Unpack {}

macro_rules! fixed {
    ($($name:ty),+) => {$(impl FixedSize for $name {})+};
}
fixed!(u32, u64, cookieverf3, createhow3, mknoddata3, sattr3, sattrguard3, stable_how);

/// Zeros that fill `length` bytes up to a multiple of four.
pub(crate) fn padding(length: usize) -> &'static [u8] {
    &[0; 3][..length.wrapping_neg() % 4]
}

/// An opaque of at most `bytes_max` bytes, with its padding.
pub(crate) fn opaque(input: &[u8], bytes_max: usize) -> IResult<&[u8], &[u8]> {
    let length = verify(be_u32, |length: &u32| *length as usize <= bytes_max);
    let (rest, data) = length_data(length).parse(input)?;
    let (rest, _) = take(padding(data.len()).len())(rest)?;
    Ok((rest, data))
}

/// The arguments of one call, taken field by field.
#[derive(Clone, Debug)]
pub(crate) struct CallArguments {
    /// The contiguous part, all but a payload.
    head: Bytes,
    /// The rest of a payload.
    rest: Vec<Bytes>,
    /// The last field that was taken.
    taken: Bytes,
}

impl CallArguments {
    /// The arguments in `head` and in the pieces after it.
    pub(crate) fn new(head: Bytes, rest: Vec<Bytes>) -> Self {
        Self { head, rest, taken: Bytes::new() }
    }

    /// Do arguments follow the contiguous part?
    pub(crate) fn is_in_pieces(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Makes all of it contiguous, by a copy if it is in pieces. For calls without a payload.
    pub(crate) fn join(&mut self) {
        if !self.rest.is_empty() {
            let mut joined = BytesMut::with_capacity(self.length());
            joined.extend_from_slice(&self.head);
            self.rest.drain(..).for_each(|piece| joined.extend_from_slice(&piece));
            self.head = joined.freeze();
        }
    }

    /// The contiguous part that has not been taken yet.
    pub(crate) fn head(&self) -> &[u8] {
        &self.head
    }

    /// The first bytes that have not been taken yet, at most `bytes_max`, however the record was
    /// cut.
    pub(crate) fn first(&self, bytes_max: usize) -> Cow<'_, [u8]> {
        if self.head.len() >= bytes_max || self.rest.is_empty() {
            return self.head[..self.head.len().min(bytes_max)].into();
        }
        let pieces = std::iter::once(&self.head).chain(&self.rest);
        let mut first = Vec::with_capacity(bytes_max);
        for piece in pieces {
            first.extend_from_slice(&piece[..piece.len().min(bytes_max - first.len())]);
        }
        first.into()
    }

    /// Bytes that have not been taken yet.
    pub(crate) fn length(&self) -> usize {
        self.head.len() + self.rest.iter().map(Bytes::len).sum::<usize>()
    }

    /// A field of fixed size.
    pub(crate) fn take<T: FixedSize>(&mut self) -> Result<T, ProcedureError> {
        self.parse(|mut input| {
            let (value, _) = T::unpack(&mut input).ok()?;
            Some((value, input))
        })
    }

    /// An opaque of `N` bytes, a multiple of four.
    pub(crate) fn fixed<const N: usize>(&mut self) -> Result<[u8; N], ProcedureError> {
        self.parse(|input| {
            let (bytes, input) = input.split_first_chunk()?;
            Some((*bytes, input))
        })
    }

    /// A field of at most `bytes_max` bytes, as a slice of the receive buffer.
    pub(crate) fn opaque(&mut self, bytes_max: usize) -> Result<Bytes, ProcedureError> {
        let length = self.parse(|input| {
            let (left, data) = opaque(input, bytes_max).ok()?;
            Some((data.len(), left))
        });
        // What was taken is a slice of what was there before.
        length.map(|length| self.taken.slice(4..4 + length))
    }

    /// Takes what `parse` finds at the front. If a field crosses the end of a piece, all pieces are
    /// joined first.
    fn parse<T>(
        &mut self,
        parse: impl Fn(&[u8]) -> Option<(T, &[u8])>,
    ) -> Result<T, ProcedureError> {
        let found = |head: &Bytes| {
            let (value, left) = parse(head)?;
            Some((value, head.len() - left.len()))
        };
        let parsed = found(&self.head).or_else(|| {
            self.join();
            found(&self.head)
        });
        let (value, taken) = parsed.ok_or(ProcedureError::GarbageArguments)?;
        self.taken = self.head.split_to(taken);
        Ok(value)
    }

    /// An opaque of at most `bytes_max` bytes that may extend over several pieces: slices of the
    /// receive buffers.
    pub(crate) fn bulk(&mut self, bytes_max: usize) -> Result<Vec<Bytes>, ProcedureError> {
        let length = self.take::<u32>()? as usize;
        let mut left = length.saturating_add(padding(length).len());
        if length > bytes_max || left > self.length() {
            return Err(ProcedureError::GarbageArguments);
        }
        let mut pieces = Vec::new();
        let mut rest = std::mem::take(&mut self.rest).into_iter();
        while left > 0 {
            if self.head.is_empty() {
                self.head = rest.next().ok_or(ProcedureError::GarbageArguments)?;
            }
            let part = self.head.split_to(left.min(self.head.len()));
            left -= part.len();
            pieces.push(part);
        }
        self.rest = rest.collect();
        Ok(first_bytes(pieces, length))
    }

    /// The last field, an opaque.
    pub(crate) fn payload(mut self) -> Result<Vec<Bytes>, ProcedureError> {
        let data = self.bulk(usize::MAX)?;
        self.finish()?;
        Ok(data)
    }

    /// Checks that nothing is left.
    pub(crate) fn finish(self) -> Result<(), ProcedureError> {
        if self.length() == 0 { Ok(()) } else { Err(ProcedureError::GarbageArguments) }
    }
}

/// The first `length` bytes of `pieces`.
pub(crate) fn first_bytes(mut pieces: Vec<Bytes>, length: usize) -> Vec<Bytes> {
    let mut left = length;
    for piece in &mut pieces {
        piece.truncate(left);
        left -= piece.len();
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

/// The result of a call: encoded fields, and data that follow them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplyBody {
    /// Encoded fields.
    pub(crate) head: Vec<u8>,
    /// Data, sent after them without a copy.
    pub(crate) tail: Vec<Bytes>,
}

impl ReplyBody {
    /// Bytes in all.
    pub(crate) fn length(&self) -> usize {
        self.head.len() + self.tail.iter().map(Bytes::len).sum::<usize>()
    }

    /// Does it begin with a status other than success?
    pub(crate) fn has_failed(&self) -> bool {
        self.head.first_chunk().is_some_and(|status| *status != [0; 4])
    }

    /// Encodes `value`.
    pub(crate) fn pack(value: &impl Pack) -> Result<Self, ProcedureError> {
        let mut body = Self { head: Vec::with_capacity(value.packed_size()), tail: Vec::new() };
        body.push(value)?;
        Ok(body)
    }

    /// Appends the encoded `value`.
    pub(crate) fn push(&mut self, value: &impl Pack) -> Result<(), ProcedureError> {
        pack(value, &mut self.head)
    }
}

fn pack(value: &impl Pack, out: &mut Vec<u8>) -> Result<(), ProcedureError> {
    value.pack(out).map(|_| ()).map_err(|_| ProcedureError::System)
}

/// Encodes a result piece by piece, with data between the fields.
#[derive(Debug, Default)]
pub(crate) struct XdrEncoder {
    /// Complete parts, each a multiple of four bytes.
    done: Vec<Bytes>,
    /// The words after them.
    words: Vec<u8>,
}

/// A position in an [`XdrEncoder`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncoderMark {
    done: usize,
    words: usize,
}

impl XdrEncoder {
    /// An encoder with this capacity.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self { done: Vec::new(), words: Vec::with_capacity(bytes) }
    }

    /// Encodes `value`.
    pub(crate) fn push(&mut self, value: &impl Pack) -> Result<(), ProcedureError> {
        pack(value, &mut self.words)
    }

    /// One word.
    pub(crate) fn u32(&mut self, value: u32) {
        self.words.extend_from_slice(&value.to_be_bytes());
    }

    /// Two words.
    pub(crate) fn u64(&mut self, value: u64) {
        self.words.extend_from_slice(&value.to_be_bytes());
    }

    /// One word.
    pub(crate) fn bool(&mut self, value: bool) {
        self.u32(value.into());
    }

    /// Bytes as they are, a multiple of four.
    pub(crate) fn fixed(&mut self, bytes: &[u8]) {
        self.words.extend_from_slice(bytes);
    }

    /// Bytes with their length.
    pub(crate) fn opaque(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.fixed(bytes);
        self.fixed(padding(bytes.len()));
    }

    /// Data with their length, without a copy.
    pub(crate) fn bulk(&mut self, data: Vec<Bytes>) {
        let length: usize = data.iter().map(Bytes::len).sum();
        self.u32(length as u32);
        self.done.push(std::mem::take(&mut self.words).into());
        self.done.extend(data);
        self.words.extend_from_slice(padding(length));
    }

    /// What `write` encodes, with its length.
    pub(crate) fn sized(&mut self, write: impl FnOnce(&mut Self)) {
        let at = self.words.len();
        self.u32(0);
        write(self);
        let length = self.words.len() - at - 4;
        self.words[at..at + 4].copy_from_slice(&(length as u32).to_be_bytes());
        self.fixed(padding(length));
    }

    /// The current position.
    pub(crate) fn mark(&self) -> EncoderMark {
        EncoderMark { done: self.done.len(), words: self.words.len() }
    }

    /// Removes everything after `mark`.
    pub(crate) fn cut(&mut self, mark: EncoderMark) {
        if self.done.len() > mark.done {
            // The words of that time begin the first part that was completed since.
            let mut words = self.done[mark.done].to_vec();
            words.truncate(mark.words);
            self.done.truncate(mark.done);
            self.words = words;
        } else {
            self.words.truncate(mark.words);
        }
    }

    /// Bytes so far.
    pub(crate) fn length(&self) -> usize {
        self.words.len() + self.done.iter().map(Bytes::len).sum::<usize>()
    }

    /// The result after `head`, without joining the two.
    pub(crate) fn behind(self, head: Vec<u8>) -> ReplyBody {
        let tail = self.done.into_iter().chain([self.words.into()]).collect();
        ReplyBody { head, tail }
    }

    /// The result after `head`.
    pub(crate) fn body(self, mut head: Vec<u8>) -> ReplyBody {
        let mut parts = self.done.into_iter();
        match parts.next() {
            None => head.extend_from_slice(&self.words),
            Some(first) => {
                head.extend_from_slice(&first);
                let tail = parts.chain([self.words.into()]).collect();
                return ReplyBody { head, tail };
            }
        }
        ReplyBody { head, tail: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use runtime::seed::with_seed;

    use super::*;

    fn arguments(head: &[u8], rest: &[&[u8]]) -> CallArguments {
        let rest = rest.iter().map(|piece| Bytes::copy_from_slice(piece)).collect();
        CallArguments::new(Bytes::copy_from_slice(head), rest)
    }

    #[test]
    fn the_first_bytes_are_the_same_however_a_record_was_cut() {
        with_seed(|rng| {
            let mut all = vec![0; 1000];
            rng.fill(&mut all);
            for _ in 0..100 {
                let (one, two) = (rng.index(1000), rng.index(1000));
                let (one, two) = (one.min(two), one.max(two));
                let cut = arguments(&all[..one], &[&all[one..two], &all[two..]]);
                let most = rng.index(1200);
                assert_eq!(cut.first(most), arguments(&all, &[]).first(most));
            }
        });
    }

    #[test]
    fn a_length_without_its_bytes_is_refused() {
        for length in [5_u32, 64, 1 << 20, u32::MAX] {
            let input = [&length.to_be_bytes()[..], b"abcd"].concat();
            let taken = arguments(&input, &[]).opaque(usize::MAX);
            assert_eq!(taken, Err(ProcedureError::GarbageArguments));
            assert_eq!(arguments(&input, &[]).payload(), Err(ProcedureError::GarbageArguments));
        }
    }

    #[test]
    fn an_opaque_ends_with_its_padding() {
        let mut input = arguments(b"\0\0\0\x05hello\0\0\0\0\0\0\x07", &[]);
        assert_eq!(input.opaque(5).unwrap(), "hello");
        assert_eq!(input.take::<u32>(), Ok(7));
        assert_eq!(input.finish(), Ok(()));
        assert!(arguments(b"\0\0\0\x05hello\0\0", &[]).opaque(5).is_err());
        assert!(arguments(b"\0\0\0\x05hello\0\0\0", &[]).opaque(4).is_err());
    }

    #[test]
    fn a_payload_extends_over_all_pieces_without_its_padding() {
        let pieces = arguments(b"\0\0\0\x07ab", &[b"cd", b"ef", b"g\0"]).payload().unwrap();
        assert_eq!(pieces.concat(), b"abcdefg");
        assert!(arguments(b"\0\0\0\x07ab", &[b"cd", b"ef", b"g"]).payload().is_err());
        assert!(arguments(b"\0\0\0\x07ab", &[b"cd", b"efg\0more"]).payload().is_err());
    }

    #[test]
    fn a_payload_is_not_copied() {
        let input = arguments(b"\0\0\0\x06ab", &[b"cdef", b"\0\0"]);
        let received = [input.head[4..].as_ptr(), input.rest[0].as_ptr()];
        let payload = input.payload().unwrap();
        assert_eq!(payload.iter().map(|piece| piece.as_ptr()).collect::<Vec<_>>(), received);
    }

    #[test]
    fn any_bytes_are_taken_or_refused_without_a_panic() {
        with_seed(|rng| {
            for _ in 0..20_000 {
                let mut bytes = vec![0; rng.index(100)];
                rng.fill(&mut bytes);
                for byte in &mut bytes {
                    *byte >>= 2 * rng.index(4);
                }
                let input = arguments(&bytes, &[]);
                let _ = input.clone().take::<sattr3>();
                let _ = input.clone().take::<createhow3>();
                let _ = input.clone().take::<mknoddata3>();
                let _ = input.clone().take::<sattrguard3>();
                let _ = input.clone().opaque(64);
                let _ = input.payload();
            }
        });
    }
}
