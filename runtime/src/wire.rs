//! Bytes on the wire and on disk: one trait, little-endian, lengths checked before anything is
//! allocated.
//!
//! A message is a *head* (small fields, copied) and a *bulk* (payloads, never copied: the encoder
//! keeps references to them, the decoder hands out slices of what was received).

use std::sync::Arc;

use bytes::Bytes;

use crate::seal::HandleSeal;
use crate::seed::Rng;

/// The longest payload one message may carry, in bytes.
pub const BULK_LENGTH_MAX: usize = 16 << 20;

/// The longest head of one message, in bytes.
pub const HEAD_LENGTH_MAX: usize = 4 << 20;

/// The input is not what the table says: short, overlong, or a value out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed input: {0}")]
pub struct Malformed(pub &'static str);

/// A value with one agreed form in bytes.
pub trait Wire: Sized {
    /// Appends the value.
    fn put(&self, out: &mut Encoder);
    /// Reads the value from the front of `input`.
    fn take(input: &mut Decoder) -> Result<Self, Malformed>;
    /// Any value, for round-trip and fuzz tests.
    fn sample(rng: &mut Rng) -> Self;
}

/// Collects a message.
#[derive(Debug, Default)]
pub struct Encoder {
    head: Vec<u8>,
    bulk: Vec<Bytes>,
    bulk_length: usize,
    /// Seals handles, for a client of a subtree.
    seal: Option<Arc<HandleSeal>>,
}

impl Encoder {
    /// An empty message.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty message to a client; of one of a subtree the handles are sealed.
    pub fn to_client(seal: Option<Arc<HandleSeal>>) -> Self {
        Self { seal, ..Self::default() }
    }

    /// Appends a handle: an inode number and a generation.
    pub fn handle(&mut self, ino: u64, generation: u64) {
        let generation = self.seal.as_ref().map_or(generation, |seal| seal.seal(ino, generation));
        ino.put(self);
        generation.put(self);
    }

    /// Appends raw bytes to the head.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.head.extend_from_slice(bytes);
    }

    /// Appends a payload by reference.
    pub fn payload(&mut self, payload: Bytes) {
        self.bulk_length += payload.len();
        if !payload.is_empty() {
            self.bulk.push(payload);
        }
    }

    /// The head so far.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Bytes of the head.
    pub fn head_length(&self) -> usize {
        self.head.len()
    }

    /// Bytes in all payloads.
    pub fn bulk_length(&self) -> usize {
        self.bulk_length
    }

    /// The head and the payloads, in order.
    pub fn finish(self) -> (Vec<u8>, Vec<Bytes>) {
        (self.head, self.bulk)
    }

    /// Head and payloads in one piece: for values that carry little bulk, as on disk.
    pub fn finish_joined(self) -> Vec<u8> {
        let mut joined = self.head;
        for part in &self.bulk {
            joined.extend_from_slice(part);
        }
        joined
    }
}

/// Reads a message.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    head: &'a [u8],
    bulk: Bytes,
    /// A handle with generation 0 was read.
    has_wildcard: bool,
    /// Opens sealed handles, of a client of a subtree.
    seal: Option<&'a HandleSeal>,
    /// The handles that were opened by it.
    opened: Vec<(u64, u64)>,
}

impl<'a> Decoder<'a> {
    /// A reader of `head` whose payloads are slices of `bulk`.
    pub fn new(head: &'a [u8], bulk: Bytes) -> Self {
        Self { head, bulk, has_wildcard: false, seal: None, opened: Vec::new() }
    }

    /// The same for a message of a client; of one of a subtree the handles are opened.
    pub fn of_client(head: &'a [u8], bulk: Bytes, seal: Option<&'a HandleSeal>) -> Self {
        Self { seal, ..Self::new(head, bulk) }
    }

    /// The next handle: an inode number and a generation.
    pub fn handle(&mut self) -> Result<(u64, u64), Malformed> {
        let (ino, mut generation) = (u64::take(self)?, u64::take(self)?);
        if let Some(seal) = self.seal {
            generation = seal.open(ino, generation);
            self.opened.push((ino, generation));
        }
        self.has_wildcard |= generation == 0;
        Ok((ino, generation))
    }

    /// Takes the handles so far that were opened by a seal: to be checked before they are used.
    pub fn take_opened(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.opened)
    }

    /// Was there a handle with generation 0? It means any file of its number, which servers may ask
    /// for, and clients may not.
    pub fn has_wildcard(&self) -> bool {
        self.has_wildcard
    }

    /// The next `count` bytes of the head.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.head.split_at_checked(count).ok_or(Malformed("short head"))?;
        self.head = rest;
        Ok(taken)
    }

    /// The next `count` bytes of the bulk, without a copy.
    pub fn payload(&mut self, count: usize) -> Result<Bytes, Malformed> {
        if count > self.bulk.len() {
            return Err(Malformed("short payload"));
        }
        Ok(self.bulk.split_to(count))
    }

    /// Bytes of the head not yet read.
    pub fn remaining(&self) -> usize {
        self.head.len()
    }

    /// Everything that is left.
    pub fn rest(self) -> (&'a [u8], Bytes) {
        (self.head, self.bulk)
    }

    /// Succeeds if everything was read.
    pub fn finish(self) -> Result<(), Malformed> {
        if !self.head.is_empty() {
            return Err(Malformed("overlong head"));
        }
        if !self.bulk.is_empty() {
            return Err(Malformed("overlong payload"));
        }
        Ok(())
    }
}

/// Encodes one value into one piece.
pub fn to_bytes<T: Wire>(value: &T) -> Vec<u8> {
    let mut out = Encoder::new();
    value.put(&mut out);
    out.finish_joined()
}

/// Decodes one value without payloads; the whole input must be used.
pub fn from_bytes<T: Wire>(input: &[u8]) -> Result<T, Malformed> {
    let mut decoder = Decoder::new(input, Bytes::new());
    let value = T::take(&mut decoder)?;
    decoder.finish()?;
    Ok(value)
}

macro_rules! wire_number {
    ($($number:ty),+) => {$(
        impl Wire for $number {
            fn put(&self, out: &mut Encoder) {
                out.bytes(&self.to_le_bytes());
            }
            fn take(input: &mut Decoder) -> Result<Self, Malformed> {
                let bytes = input.bytes(size_of::<Self>())?;
                Ok(Self::from_le_bytes(bytes.try_into().map_err(|_| Malformed("short number"))?))
            }
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_possible_wrap,
                clippy::cast_lossless,
                reason = "any bits make a sample"
            )]
            fn sample(rng: &mut Rng) -> Self {
                rng.bits() as Self
            }
        }
    )+};
}
wire_number!(u8, u16, u32, u64, u128, i64);

impl Wire for bool {
    fn put(&self, out: &mut Encoder) {
        out.bytes(&[u8::from(*self)]);
    }
    fn take(input: &mut Decoder) -> Result<Self, Malformed> {
        match input.bytes(1)? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(Malformed("a bool is 0 or 1")),
        }
    }
    fn sample(rng: &mut Rng) -> Self {
        rng.bits() & 1 == 1
    }
}

impl Wire for () {
    fn put(&self, _: &mut Encoder) {}
    fn take(_: &mut Decoder) -> Result<Self, Malformed> {
        Ok(())
    }
    fn sample(_: &mut Rng) -> Self {}
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Encoder) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn take(input: &mut Decoder) -> Result<Self, Malformed> {
        bool::take(input)?.then(|| T::take(input)).transpose()
    }
    fn sample(rng: &mut Rng) -> Self {
        bool::sample(rng).then(|| T::sample(rng))
    }
}

impl<T: Wire> Wire for Box<T> {
    fn put(&self, out: &mut Encoder) {
        (**self).put(out);
    }
    fn take(input: &mut Decoder) -> Result<Self, Malformed> {
        T::take(input).map(Self::new)
    }
    fn sample(rng: &mut Rng) -> Self {
        Self::new(T::sample(rng))
    }
}

/// Count (u32), then the elements. Memory grows with what is really there, not with the count.
impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Encoder) {
        put_length(self.len(), out);
        for item in self {
            item.put(out);
        }
    }
    fn take(input: &mut Decoder) -> Result<Self, Malformed> {
        let count = u32::take(input)? as usize;
        // A zero-sized element would let a count alone make the list long.
        if size_of::<T>() == 0 || count > HEAD_LENGTH_MAX {
            return Err(Malformed("list too long"));
        }
        let mut items = Vec::with_capacity(count.min(input.remaining() / size_of::<T>() + 1));
        for _ in 0..count {
            items.push(T::take(input)?);
        }
        Ok(items)
    }
    fn sample(rng: &mut Rng) -> Self {
        (0..rng.below(5)).map(|_| T::sample(rng)).collect()
    }
}

/// Length in bytes (u32), then UTF-8.
impl Wire for String {
    fn put(&self, out: &mut Encoder) {
        put_length(self.len(), out);
        out.bytes(self.as_bytes());
    }
    fn take(input: &mut Decoder) -> Result<Self, Malformed> {
        let length = u32::take(input)? as usize;
        let text = std::str::from_utf8(input.bytes(length)?);
        text.map(Self::from).map_err(|_| Malformed("text is not UTF-8"))
    }
    fn sample(rng: &mut Rng) -> Self {
        (0..rng.below(5)).map(|_| char::from(b'a' + rng.below(26) as u8)).collect()
    }
}

/// Length (u32) in the head, content in the bulk.
impl Wire for Bytes {
    fn put(&self, out: &mut Encoder) {
        put_length(self.len(), out);
        out.payload(self.clone());
    }
    fn take(input: &mut Decoder) -> Result<Self, Malformed> {
        let count = u32::take(input)? as usize;
        input.payload(count)
    }
    fn sample(rng: &mut Rng) -> Self {
        Vec::<u8>::sample(rng).into()
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, out: &mut Encoder) {
        self.0.put(out);
        self.1.put(out);
    }
    fn take(input: &mut Decoder) -> Result<Self, Malformed> {
        Ok((A::take(input)?, B::take(input)?))
    }
    fn sample(rng: &mut Rng) -> Self {
        (A::sample(rng), B::sample(rng))
    }
}

impl<T: Wire, E: Wire> Wire for Result<T, E> {
    fn put(&self, out: &mut Encoder) {
        match self {
            Ok(value) => {
                true.put(out);
                value.put(out);
            }
            Err(error) => {
                false.put(out);
                error.put(out);
            }
        }
    }
    fn take(input: &mut Decoder) -> Result<Self, Malformed> {
        Ok(if bool::take(input)? { Ok(T::take(input)?) } else { Err(E::take(input)?) })
    }
    fn sample(rng: &mut Rng) -> Self {
        if bool::sample(rng) { Ok(T::sample(rng)) } else { Err(E::sample(rng)) }
    }
}

fn put_length(length: usize, out: &mut Encoder) {
    u32::try_from(length).expect("a message field is shorter than 4 GiB").put(out);
}

/// Declares a plain record: one row per field gives the struct, its bytes and its sample.
///
/// ```
/// runtime::record! {
///     /// Where a run of blocks is.
///     #[derive(Copy)]
///     pub struct Run {
///         /// The first block.
///         start: u64,
///         /// How many.
///         count: u32,
///     }
/// }
/// let bytes = runtime::wire::to_bytes(&Run { start: 1, count: 2 });
/// assert_eq!(bytes, [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
/// ```
///
/// With `handle` before `pub` the record begins with the fields `ino` and `generation`, which are a
/// handle: clients of a subtree get it sealed (ADR 88).
#[macro_export]
macro_rules! record {
    (
        $(#[$attribute:meta])*
        handle pub struct $name:ident {
            $(#[$ino_attribute:meta])* ino: u64,
            $(#[$generation_attribute:meta])* generation: u64
            $(, $(#[$field_attribute:meta])* $field:ident: $ty:ty)* $(,)?
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $(#[$ino_attribute])* pub ino: u64,
            $(#[$generation_attribute])* pub generation: u64,
            $($(#[$field_attribute])* pub $field: $ty),*
        }

        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut $crate::wire::Encoder) {
                out.handle(self.ino, self.generation);
                $($crate::wire::Wire::put(&self.$field, out);)*
            }
            fn take(
                input: &mut $crate::wire::Decoder,
            ) -> Result<Self, $crate::wire::Malformed> {
                let (ino, generation) = input.handle()?;
                Ok(Self { ino, generation, $($field: $crate::wire::Wire::take(input)?),* })
            }
            fn sample(rng: &mut $crate::seed::Rng) -> Self {
                let (ino, generation) = (rng.bits(), rng.bits());
                Self { ino, generation, $($field: $crate::wire::Wire::sample(rng)),* }
            }
        }
    };
    (
        $(#[$attribute:meta])*
        pub struct $name:ident {
            $($(#[$field_attribute:meta])* $field:ident: $ty:ty),* $(,)?
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_attribute])* pub $field: $ty),*
        }

        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut $crate::wire::Encoder) {
                $($crate::wire::Wire::put(&self.$field, out);)*
            }
            fn take(
                input: &mut $crate::wire::Decoder,
            ) -> Result<Self, $crate::wire::Malformed> {
                Ok(Self { $($field: $crate::wire::Wire::take(input)?),* })
            }
            fn sample(rng: &mut $crate::seed::Rng) -> Self {
                Self { $($field: $crate::wire::Wire::sample(rng)),* }
            }
        }
    };
}

/// Declares a choice: one row per variant, each with its tag (u8), never reused.
///
/// ```
/// runtime::choice! {
///     /// What a disk may answer.
///     #[derive(Copy)]
///     pub enum Outcome {
///         /// It worked.
///         1 Done {},
///         /// It did not.
///         2 Failed { /// Which one.
///             disk: u32 },
///     }
/// }
/// assert_eq!(runtime::wire::to_bytes(&Outcome::Failed { disk: 7 }), [2, 7, 0, 0, 0]);
/// ```
#[macro_export]
macro_rules! choice {
    (
        $(#[$attribute:meta])*
        pub enum $name:ident {
            $(
                $(#[$variant_attribute:meta])*
                $tag:literal $variant:ident {
                    $($(#[$field_attribute:meta])* $field:ident: $ty:ty),* $(,)?
                }
            ),+ $(,)?
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name {
            $(
                $(#[$variant_attribute])*
                $variant { $($(#[$field_attribute])* $field: $ty),* }
            ),+
        }

        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut $crate::wire::Encoder) {
                match self {$(
                    Self::$variant { $($field),* } => {
                        out.bytes(&[$tag]);
                        $($crate::wire::Wire::put($field, out);)*
                    }
                )+}
            }
            fn take(
                input: &mut $crate::wire::Decoder,
            ) -> Result<Self, $crate::wire::Malformed> {
                match u8::take(input)? {
                    $($tag => Ok(Self::$variant {
                        $($field: $crate::wire::Wire::take(input)?),*
                    }),)+
                    _ => Err($crate::wire::Malformed(concat!("unknown ", stringify!($name)))),
                }
            }
            fn sample(rng: &mut $crate::seed::Rng) -> Self {
                const TAGS: &[u8] = &[$($tag),+];
                match TAGS[rng.index(TAGS.len())] {
                    $($tag => Self::$variant {
                        $($field: $crate::wire::Wire::sample(rng)),*
                    },)+
                    _ => unreachable!("every tag has its arm"),
                }
            }
        }

        const _: () = $crate::wire::assert_unique(&[$($tag),+]);
    };
}

/// Fails the build if two rows of a table share a tag.
pub const fn assert_unique(tags: &[u8]) {
    let mut i = 0;
    while i < tags.len() {
        let mut j = i + 1;
        while j < tags.len() {
            assert!(tags[i] != tags[j], "two rows share one tag");
            j += 1;
        }
        i += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_without_content_allocates_nothing() {
        let bytes = u32::MAX.to_le_bytes();
        assert_eq!(from_bytes::<Vec<u64>>(&bytes), Err(Malformed("list too long")));
        let bytes = (1u32 << 20).to_le_bytes();
        assert_eq!(from_bytes::<Vec<u64>>(&bytes), Err(Malformed("short head")));
    }

    #[test]
    fn payloads_are_slices_of_what_was_received() {
        let bulk = Bytes::from_static(b"checkpoint");
        let mut decoder = Decoder::new(&[10, 0, 0, 0], bulk.clone());
        let payload = <Bytes as Wire>::take(&mut decoder).unwrap();
        assert_eq!(payload.as_ptr(), bulk.as_ptr());
        decoder.finish().unwrap();
    }
}
