//! The code of wide stripes: Reed-Solomon over GF(2^8), byte for byte as Intel's ISA-L has it with
//! `gf_gen_rs_matrix`. Its first stripe of parity is the exclusive or of the data.

use blockio::redundancy::{DATA_SHARDS_MAX, PARITY_SHARDS_MAX};
use bytes::Bytes;
use rusty_erasure::{Coder, Matrix};

/// The code of wide stripes with some number of data shards and of parity shards.
#[derive(Debug)]
pub struct ErasureCode {
    coder: Coder,
}

impl ErasureCode {
    /// That of `data` data shards and `parity` parity shards. `None` if there are too many, or no
    /// data or no parity.
    pub fn new(data: usize, parity: usize) -> Option<Self> {
        let is_known = data <= DATA_SHARDS_MAX as usize && parity <= PARITY_SHARDS_MAX as usize;
        let matrix = Matrix::reed_solomon(data, parity).ok().filter(|_| is_known)?;
        Some(Self { coder: rusty_erasure::coder(matrix).ok()? })
    }

    /// Parity of data shards of `length` bytes, before any has been added.
    pub fn begin(&self, length: usize) -> Vec<Vec<u8>> {
        vec![vec![0; length]; self.coder.p()]
    }

    /// Adds a piece of data shard `number`, which begins at byte `at` of it, to the parity. What
    /// does not fit is left out.
    pub fn add(&self, (number, at): (usize, usize), piece: &[u8], parity: &mut [Vec<u8>]) {
        let parts = parity.iter_mut().map(|whole| whole.get_mut(at..at + piece.len()));
        let Some(mut parts) = parts.collect::<Option<Vec<&mut [u8]>>>() else { return };
        let added = self.coder.update(number, piece, &mut parts);
        debug_assert_eq!(added, Ok(()), "a piece of one of the shards");
    }

    /// The parity of all data shards, which have the same length.
    pub fn encode(&self, data: &[Bytes]) -> Vec<Bytes> {
        let length = data.first().map_or(0, Bytes::len);
        self.encode_pieces(length, data.iter().map(std::slice::from_ref))
    }

    /// The parity of all data shards, of `length` bytes, each of which is in pieces.
    pub fn encode_pieces<'a>(
        &self,
        length: usize,
        data: impl Iterator<Item = &'a [Bytes]>,
    ) -> Vec<Bytes> {
        let mut parity = self.begin(length);
        for (number, shard) in data.enumerate() {
            let mut at = 0;
            for piece in shard {
                self.add((number, at), piece, &mut parity);
                at += piece.len();
            }
        }
        parity.into_iter().map(Bytes::from).collect()
    }

    /// Shard `number`, parity coming behind the data, made of others: of as many as there are data
    /// shards. `None` if there are too few.
    pub fn reconstruct(&self, shards: &[Option<Bytes>], number: usize) -> Option<Bytes> {
        let present: Vec<bool> = shards.iter().map(Option::is_some).collect();
        let plan = self.coder.decode_plan(&present, &[number]).ok()?;
        let length = shards.iter().flatten().next().map_or(0, Bytes::len);
        let mut made = vec![0; length];
        let shards: Vec<Option<&[u8]>> = shards.iter().map(Option::as_deref).collect();
        self.coder.recover_with(&plan, &shards, &mut [&mut made]).ok()?;
        Some(made.into())
    }
}

#[cfg(test)]
mod tests {
    use runtime::seed::{Rng, with_seed};

    use super::*;

    /// A product in GF(2^8) with the polynomial 0x11D, bit by bit.
    fn product(mut one: u8, mut other: u8) -> u8 {
        let mut product = 0;
        while other > 0 {
            if other & 1 == 1 {
                product ^= one;
            }
            one = (one << 1) ^ if one & 0x80 == 0 { 0 } else { 0x1D };
            other >>= 1;
        }
        product
    }

    /// Parity row *i* has 2^(*i* *j*) for data shard *j*.
    fn coefficient(parity: usize, data: usize) -> u8 {
        (0..parity * data).fold(1, |power, _| product(power, 2))
    }

    fn random(rng: &mut Rng, length: usize) -> Bytes {
        let mut bytes = vec![0; length];
        rng.fill(&mut bytes);
        bytes.into()
    }

    #[test]
    fn parity_is_what_the_definition_says_whatever_its_pieces() {
        with_seed(|rng| {
            for data in 1..=DATA_SHARDS_MAX as usize {
                for parity in 1..=PARITY_SHARDS_MAX as usize {
                    let code = ErasureCode::new(data, parity).expect("there is such a code");
                    let length = 1 + rng.index(200);
                    let shards: Vec<Bytes> = (0..data).map(|_| random(rng, length)).collect();
                    let encoded = code.encode(&shards);
                    for (row, made) in encoded.iter().enumerate() {
                        let byte = |at: usize| {
                            let parts = shards.iter().enumerate();
                            parts.fold(0, |sum, (column, shard)| {
                                sum ^ product(coefficient(row, column), shard[at])
                            })
                        };
                        assert!((0..length).all(|at| made[at] == byte(at)), "{data}+{parity}");
                    }
                    let mut pieces = code.begin(length);
                    for (number, shard) in shards.iter().enumerate().rev() {
                        let cut = rng.index(length + 1);
                        code.add((number, cut), &shard[cut..], &mut pieces);
                        code.add((number, 0), &shard[..cut], &mut pieces);
                    }
                    assert_eq!(pieces, encoded);
                }
            }
        });
    }

    #[test]
    fn any_shards_are_made_of_as_many_others_as_there_are_data() {
        with_seed(|rng| {
            for (data, parity) in [(2, 1), (2, 2), (4, 2), (8, 3), (16, 4), (1, 4)] {
                let code = ErasureCode::new(data, parity).expect("there is such a code");
                let mut all: Vec<Bytes> = (0..data).map(|_| random(rng, 64)).collect();
                all.extend(code.encode(&all));
                for _ in 0..200 {
                    let mut known: Vec<Option<Bytes>> = all.iter().cloned().map(Some).collect();
                    while known.iter().flatten().count() > data {
                        known[rng.index(data + parity)] = None;
                    }
                    for (number, shard) in all.iter().enumerate() {
                        assert_eq!(code.reconstruct(&known, number).as_ref(), Some(shard));
                    }
                    let one = known.iter().position(Option::is_some).expect("some are there");
                    known[one] = None;
                    assert_eq!(code.reconstruct(&known, one), None, "too few");
                }
            }
        });
    }

    #[test]
    fn there_are_no_codes_of_nothing_or_of_too_much() {
        for (data, parity) in [(0, 1), (1, 0), (17, 1), (2, 5)] {
            assert!(ErasureCode::new(data, parity).is_none(), "{data}+{parity}");
        }
    }
}
