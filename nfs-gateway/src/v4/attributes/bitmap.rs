//! Sets of attributes (`bitmap4`, RFC 8881 section 3.3.7).

use crate::v4::limits::BITMAP_WORDS_MAX;
use crate::xdr::{CallArguments, ProcedureError, XdrEncoder};

/// Words of the supported attributes.
const WORDS: usize = 3;

/// A set of attributes. Unknown numbers are only known to exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bitmap {
    words: [u32; WORDS],
    /// It has unknown attributes.
    others: bool,
}

impl Bitmap {
    /// The set of `numbers`.
    pub(crate) const fn of(numbers: &[u32]) -> Self {
        let mut words = [0; WORDS];
        let mut index = 0;
        while index < numbers.len() {
            let number = numbers[index];
            words[number as usize / 32] |= 1 << (number % 32);
            index += 1;
        }
        Self { words, others: false }
    }

    /// Takes a set from the arguments.
    pub(crate) fn take(arguments: &mut CallArguments) -> Result<Self, ProcedureError> {
        let count = arguments.take::<u32>()?;
        if count > BITMAP_WORDS_MAX {
            return Err(ProcedureError::GarbageArguments);
        }
        let mut bitmap = Self::default();
        for index in 0..count as usize {
            let word = arguments.take::<u32>()?;
            match bitmap.words.get_mut(index) {
                Some(known) => *known = word,
                None => bitmap.others |= word != 0,
            }
        }
        Ok(bitmap)
    }

    /// Encodes the set, without trailing zero words.
    pub(crate) fn encode(&self, out: &mut XdrEncoder) {
        let count = WORDS - self.words.iter().rev().take_while(|word| **word == 0).count();
        out.u32(count as u32);
        for word in &self.words[..count] {
            out.u32(*word);
        }
    }

    /// Does it contain `number`?
    pub(crate) fn has(&self, number: u32) -> bool {
        self.words.get(number as usize / 32).is_some_and(|word| word >> (number % 32) & 1 == 1)
    }

    /// The intersection.
    pub(crate) fn and(&self, other: &Self) -> Self {
        let word = |index: usize| self.words[index] & other.words[index];
        Self { words: std::array::from_fn(word), others: false }
    }

    /// The union.
    pub(crate) fn or(&self, other: &Self) -> Self {
        let word = |index: usize| self.words[index] | other.words[index];
        Self { words: std::array::from_fn(word), others: self.others || other.others }
    }

    /// Is it a subset of `other`?
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        !self.others && self.and(other).words == self.words
    }

    /// Is it empty?
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
