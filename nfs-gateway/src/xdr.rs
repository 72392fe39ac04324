//! Arguments of a call. Fields of fixed size are decoded by `nfs3_types`; its decoder believes the
//! length of an opaque before the bytes are there, so everything of variable length is taken here:
//! by nom, as a slice of the receive buffer, never longer than what is left of the record.

use bytes::{Bytes, BytesMut};
use nfs3_types::nfs3::{cookieverf3, createhow3, mknoddata3, sattr3, sattrguard3, stable_how};
use nfs3_types::xdr_codec::{Pack, Unpack};
use nom::bytes::complete::take;
use nom::combinator::verify;
use nom::multi::length_data;
use nom::number::complete::be_u32;
use nom::{IResult, Parser as _};

use crate::record::Record;

/// Why a call has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The arguments are not what the procedure takes.
    GarbageArguments,
    /// No such procedure.
    NoProcedure,
    /// The result cannot be encoded: a bug.
    System,
}

/// What `nfs3_types` may decode: no part of these has a length of its own, so decoding them
/// allocates nothing.
pub(crate) trait Fixed: Unpack {}

macro_rules! fixed {
    ($($name:ty),+) => {$(impl Fixed for $name {})+};
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
pub(crate) struct Arguments {
    /// Contiguous, and all but a payload.
    head: Bytes,
    /// The rest of a payload.
    rest: Vec<Bytes>,
}

impl Arguments {
    /// What follows the first `head_bytes` bytes of `record`, the head of the call.
    pub(crate) fn new(record: Record, head_bytes: usize) -> Self {
        Self { head: record.head.slice(head_bytes..), rest: record.rest }
    }

    /// Makes all of it contiguous, by a copy if it came in pieces. For calls without a payload.
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

    /// Bytes that have not been taken yet.
    pub(crate) fn length(&self) -> usize {
        self.head.len() + self.rest.iter().map(Bytes::len).sum::<usize>()
    }

    /// A field of fixed size.
    pub(crate) fn take<T: Fixed>(&mut self) -> Result<T, Fault> {
        let mut input = &self.head[..];
        let (value, _) = T::unpack(&mut input).map_err(|_| Fault::GarbageArguments)?;
        let taken = self.head.len() - input.len();
        let _ = self.head.split_to(taken);
        Ok(value)
    }

    /// A field of at most `bytes_max` bytes, as a slice of the receive buffer.
    pub(crate) fn opaque(&mut self, bytes_max: usize) -> Result<Bytes, Fault> {
        let (left, data) = opaque(&self.head, bytes_max).map_err(|_| Fault::GarbageArguments)?;
        let (data, left) = (self.head.slice_ref(data), self.head.slice_ref(left));
        self.head = left;
        Ok(data)
    }

    /// The last field, an opaque that may continue over the further pieces: slices of the receive
    /// buffers.
    pub(crate) fn payload(mut self) -> Result<Vec<Bytes>, Fault> {
        let length = self.take::<u32>()? as usize;
        if self.length() != length.saturating_add(padding(length).len()) {
            return Err(Fault::GarbageArguments);
        }
        let mut pieces = vec![self.head];
        pieces.append(&mut self.rest);
        Ok(first_bytes(pieces, length))
    }

    /// There is nothing else.
    pub(crate) fn finish(self) -> Result<(), Fault> {
        if self.length() == 0 { Ok(()) } else { Err(Fault::GarbageArguments) }
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

/// The result of a call: encoded, and slices that follow it as they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Body {
    /// Encoded.
    pub(crate) head: Vec<u8>,
    /// Sent behind it without a copy.
    pub(crate) tail: Vec<Bytes>,
}

impl Body {
    /// Encodes `value`.
    pub(crate) fn pack(value: &impl Pack) -> Result<Self, Fault> {
        let mut body = Self { head: Vec::with_capacity(value.packed_size()), tail: Vec::new() };
        body.push(value)?;
        Ok(body)
    }

    /// Encodes `value` behind what is there.
    pub(crate) fn push(&mut self, value: &impl Pack) -> Result<(), Fault> {
        value.pack(&mut self.head).map(|_| ()).map_err(|_| Fault::System)
    }
}

#[cfg(test)]
mod tests {
    use runtime::seed::with_seed;

    use super::*;

    fn arguments(head: &[u8], rest: &[&[u8]]) -> Arguments {
        let rest = rest.iter().map(|piece| Bytes::copy_from_slice(piece)).collect();
        Arguments { head: Bytes::copy_from_slice(head), rest }
    }

    #[test]
    fn a_length_is_believed_only_if_its_bytes_are_there() {
        for length in [5_u32, 64, 1 << 20, u32::MAX] {
            let input = [&length.to_be_bytes()[..], b"abcd"].concat();
            let taken = arguments(&input, &[]).opaque(usize::MAX);
            assert_eq!(taken, Err(Fault::GarbageArguments));
            assert_eq!(arguments(&input, &[]).payload(), Err(Fault::GarbageArguments));
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
    fn a_payload_goes_on_over_all_pieces_and_stops_before_its_padding() {
        let pieces = arguments(b"\0\0\0\x07ab", &[b"cd", b"ef", b"g\0"]).payload().unwrap();
        assert_eq!(pieces.concat(), b"abcdefg");
        assert!(arguments(b"\0\0\0\x07ab", &[b"cd", b"ef", b"g"]).payload().is_err());
        assert!(arguments(b"\0\0\0\x07ab", &[b"cd", b"efg\0more"]).payload().is_err());
    }

    #[test]
    fn a_payload_stays_where_it_was_received() {
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
