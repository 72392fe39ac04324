//! Files of random bytes, made and compared as streams.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of whole processes use the host, and panic where they fail"
)]

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use runtime::seed::Rng;

/// Bytes that are made or compared at a time.
const CHUNK: usize = 1 << 20;

/// Random bytes that can be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Which bytes.
    pub seed: u64,
    /// How many.
    pub length: u64,
}

impl Content {
    /// All of it at once, for small ones.
    pub fn bytes(self) -> Vec<u8> {
        let mut bytes = vec![0; self.length as usize];
        Rng::new(self.seed).fill(&mut bytes);
        bytes
    }

    /// A file of it.
    pub fn write(self, path: &Path) {
        let mut file = File::create(path).unwrap();
        self.each_chunk(|_, chunk| file.write_all(chunk).unwrap());
    }

    /// Reads `from` to its end: it has these bytes and no other.
    #[track_caller]
    pub fn compare(self, mut from: impl Read) {
        let mut found = vec![0; CHUNK];
        self.each_chunk(|offset, chunk| {
            let found = &mut found[..chunk.len()];
            from.read_exact(found).unwrap_or_else(|error| panic!("after {offset}: {error}"));
            let mut pairs = found.iter().zip(chunk);
            // The offset only: a megabyte of output is useless.
            if found != chunk {
                let place = pairs.position(|(a, b)| a != b).unwrap_or_default();
                panic!("byte {} of {self:?} is another one", offset + place as u64);
            }
        });
        let further = from.read(&mut found).unwrap();
        assert_eq!(further, 0, "there is more than {} bytes", self.length);
    }

    /// The file has these bytes and no other.
    #[track_caller]
    pub fn compare_file(self, path: &Path) {
        self.compare(File::open(path).unwrap());
    }

    fn each_chunk(self, mut use_chunk: impl FnMut(u64, &[u8])) {
        let mut rng = Rng::new(self.seed);
        let mut chunk = vec![0; CHUNK];
        let mut offset = 0;
        while offset < self.length {
            let length = (self.length - offset).min(CHUNK as u64) as usize;
            rng.fill(&mut chunk[..length]);
            use_chunk(offset, &chunk[..length]);
            offset += length as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENT: Content = Content { seed: 7, length: (CHUNK + CHUNK / 2 + 3) as u64 };

    fn differs(bytes: &[u8]) -> bool {
        std::panic::catch_unwind(|| CONTENT.compare(bytes)).is_err()
    }

    #[test]
    fn one_byte_more_or_less_or_changed_is_found() {
        let mut bytes = CONTENT.bytes();
        CONTENT.compare(&bytes[..]);
        assert!(differs(&bytes[..bytes.len() - 1]));
        for place in [0, CHUNK - 1, CHUNK, bytes.len() - 1] {
            bytes[place] ^= 1;
            assert!(differs(&bytes), "{place}");
            bytes[place] ^= 1;
        }
        bytes.push(0);
        assert!(differs(&bytes));
    }
}
