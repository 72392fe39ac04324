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
    use runtime::hash::crc32c;
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

    /// Bytes of a shard of [`oracle_shard`]: the vector loops end within it.
    const ORACLE_BYTES: usize = 4099;

    /// What ISA-L computed for the data shards 0, 1, ... of [`oracle_shard`]: for 1 to 16 of them,
    /// the CRC-32C of each of the four stripes of parity.
    ///
    /// ISA-L 2.30.0 (Debian 12, `libisal2` 2.30.0-5): `gf_gen_rs_matrix(a, k + m, k)`,
    /// `ec_init_tables(k, m, a + k * k, tables)`, `ec_encode_data`, and `crc32_iscsi` from !0,
    /// inverted. With fewer stripes of parity it made the first ones of these.
    const ORACLE_CHECKSUMS: [[u32; PARITY_SHARDS_MAX as usize]; DATA_SHARDS_MAX as usize] = [
        [0x64E1_C3A8, 0x64E1_C3A8, 0x64E1_C3A8, 0x64E1_C3A8],
        [0x5B11_88F2, 0x3117_D70E, 0x0511_1C25, 0x2FAE_E7CE],
        [0xB140_4A72, 0xDB30_88B5, 0xEBD4_DFEB, 0xC50A_D8F2],
        [0xF1AE_3D2F, 0x52B1_ED6D, 0xC9C8_14D0, 0x014F_E394],
        [0x5E35_DE48, 0x03B7_6139, 0x84EF_1E76, 0xA410_BE11],
        [0x7112_4FE7, 0x485C_2CE5, 0xAA41_EDF6, 0xA378_D6EE],
        [0x974A_4BD2, 0x7895_E7A8, 0xBD39_9656, 0xBAAF_1569],
        [0x2548_7E77, 0xE12F_006D, 0xC167_7DFB, 0x7B95_93F3],
        [0xAFBE_0F6B, 0x04A7_0F09, 0x253A_4DD8, 0xD316_B359],
        [0x1272_34B9, 0xDB69_7C4F, 0x84C1_F1AE, 0x01DF_DF5D],
        [0x2B08_100C, 0x6B11_49B6, 0xAF99_B3C8, 0xDC01_52B8],
        [0x4C3D_3260, 0x6149_23AD, 0x808A_F001, 0x3981_F240],
        [0xE842_EE29, 0xF228_E2B8, 0x7B77_469C, 0x9A9D_EF41],
        [0x86AB_B253, 0x3F5F_E426, 0x9B32_D1F7, 0x96F3_4FB5],
        [0x77CB_2FEF, 0x70E8_F797, 0x6766_E3F1, 0x2074_70CD],
        [0x710E_A1DB, 0x10C5_47A5, 0x2A63_509A, 0x01FB_74E8],
    ];

    /// The upper bytes of Knuth's linear congruential generator of 64 bits, from `number` on.
    fn oracle_shard(number: u64) -> Bytes {
        const FACTOR: u64 = 6_364_136_223_846_793_005;
        const INCREMENT: u64 = 1_442_695_040_888_963_407;
        let next = |state: &u64| Some(state.wrapping_mul(FACTOR).wrapping_add(INCREMENT));
        let states = std::iter::successors(Some(number), next).skip(1);
        states.take(ORACLE_BYTES).map(|state| state.to_be_bytes()[0]).collect()
    }

    #[test]
    fn parity_is_what_isa_l_computes() {
        let shards: Vec<Bytes> = (0..u64::from(DATA_SHARDS_MAX)).map(oracle_shard).collect();
        for (data, expected) in (1..).zip(&ORACLE_CHECKSUMS) {
            for parity in 1..=expected.len() {
                let code = ErasureCode::new(data, parity).expect("there is such a code");
                let encoded = code.encode(&shards[..data]);
                let checksums: Vec<u32> = encoded.iter().map(|shard| crc32c(shard)).collect();
                assert_eq!(checksums, expected[..parity], "{data}+{parity}");
            }
        }
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
