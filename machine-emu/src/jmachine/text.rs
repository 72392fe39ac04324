//! Text between a host, where a character is a byte, and the J-Machine, where it is a word: the
//! machine addresses words only (thesis 2.7).

/// Bytes of a character on the machine.
const WORD: usize = 4;

/// Where in its word the character is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ByteOrder {
    /// In the last byte, as the machine's host, a SPARC, has integers.
    #[default]
    Big,
    /// In the first byte.
    Little,
}

impl ByteOrder {
    fn place(self) -> usize {
        match self {
            Self::Big => WORD - 1,
            Self::Little => 0,
        }
    }
}

/// What is no text of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// A word that is no character.
    #[error(
        "byte {offset}: the word {:08x} is no character; only pure text can be converted, \
         in the byte order in which it was written", u32::from_be_bytes(*.word)
    )]
    NoCharacter {
        /// Where it begins, in bytes from the start.
        offset: u64,
        /// Its bytes.
        word: [u8; WORD],
    },
    /// The text ends within a word.
    #[error(
        "the text ends after {length} bytes, within a word of {WORD}; it was cut off, or it is not \
         in the format of the machine"
    )]
    Cut {
        /// Bytes of the whole text.
        length: u64,
    },
}

/// The text of a host in the format of the machine: four bytes for each. Works piece by piece.
pub fn to_machine(text: &[u8], order: ByteOrder) -> Vec<u8> {
    let word = |&character| {
        let mut word = [0; WORD];
        word[order.place()] = character;
        word
    };
    text.iter().flat_map(word).collect()
}

/// The text of the machine in the format of a host.
pub fn to_host(text: &[u8], order: ByteOrder) -> Result<Vec<u8>, TextError> {
    let mut reader = ToHost::new(order);
    let converted = reader.convert(text)?;
    reader.finish()?;
    Ok(converted)
}

/// Converts the text of the machine piece by piece; a piece may end anywhere.
#[derive(Clone, Debug)]
pub struct ToHost {
    order: ByteOrder,
    /// Bytes so far.
    length: u64,
    begun: [u8; WORD],
}

impl ToHost {
    /// At the start of a text.
    pub fn new(order: ByteOrder) -> Self {
        Self { order, length: 0, begun: [0; WORD] }
    }

    /// The next piece. After an error nothing more can be converted.
    pub fn convert(&mut self, piece: &[u8]) -> Result<Vec<u8>, TextError> {
        let mut converted = Vec::with_capacity(piece.len() / WORD + 1);
        for &byte in piece {
            let at = (self.length % WORD as u64) as usize;
            self.begun[at] = byte;
            self.length += 1;
            if at + 1 == WORD {
                converted.push(self.character()?);
            }
        }
        Ok(converted)
    }

    /// The character of the word that has just ended.
    fn character(&self) -> Result<u8, TextError> {
        let (word, place) = (self.begun, self.order.place());
        let others = word.iter().enumerate().filter(|(index, _)| *index != place);
        if others.into_iter().all(|(_, byte)| *byte == 0) {
            return Ok(word[place]);
        }
        Err(TextError::NoCharacter { offset: self.length - WORD as u64, word })
    }

    /// The text is over.
    pub fn finish(self) -> Result<(), TextError> {
        let whole = self.length.is_multiple_of(WORD as u64);
        if whole { Ok(()) } else { Err(TextError::Cut { length: self.length }) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn order() -> impl Strategy<Value = ByteOrder> {
        prop_oneof![Just(ByteOrder::Big), Just(ByteOrder::Little)]
    }

    proptest! {
        #[test]
        fn text_comes_back_as_it_went(text: Vec<u8>, order in order()) {
            prop_assert_eq!(to_host(&to_machine(&text, order), order).unwrap(), text);
        }

        #[test]
        fn pieces_may_end_anywhere(text: Vec<u8>, order in order(), cuts: Vec<u8>) {
            let words = to_machine(&text, order);
            let (mut reader, mut rest, mut converted) = (ToHost::new(order), &words[..], Vec::new());
            for cut in cuts {
                let (piece, after) = rest.split_at(usize::from(cut).min(rest.len()));
                converted.extend(reader.convert(piece).unwrap());
                rest = after;
            }
            converted.extend(reader.convert(rest).unwrap());
            reader.finish().unwrap();
            prop_assert_eq!(converted, text);
        }

        #[test]
        fn whatever_is_converted_goes_back_to_the_same_bytes(bytes: Vec<u8>, order in order()) {
            if let Ok(text) = to_host(&bytes, order) {
                prop_assert_eq!(to_machine(&text, order), bytes);
            }
        }
    }

    #[test]
    fn a_character_is_the_last_byte_of_its_word() {
        assert_eq!(to_machine(b"A\n", ByteOrder::Big), [0, 0, 0, 65, 0, 0, 0, 10]);
        assert_eq!(to_machine(b"A", ByteOrder::Little), [65, 0, 0, 0]);
    }

    #[test]
    fn what_is_no_text_is_refused_with_its_place() {
        let mut words = to_machine(b"hello", ByteOrder::Big);
        words[9] = 1;
        let error = to_host(&words, ByteOrder::Big).unwrap_err();
        assert_eq!(error, TextError::NoCharacter { offset: 8, word: [0, 1, 0, 108] });
        assert!(
            error.to_string().starts_with("byte 8: the word 0001006c is no character"),
            "{error}"
        );
        let little = to_machine(b"A", ByteOrder::Little);
        assert!(to_host(&little, ByteOrder::Big).is_err());
        let cut = to_host(&words[..7], ByteOrder::Big).unwrap_err();
        assert_eq!(cut, TextError::Cut { length: 7 });
    }
}
