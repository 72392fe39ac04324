//! Random numbers from a seed: the same seed, the same numbers, on every machine.

use rustix::rand::{GetRandomFlags, getrandom};

/// A small, fast generator (xoshiro256**, seeded by splitmix64). Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The generator of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut mix = seed;
        Self { state: std::array::from_fn(|_| splitmix(&mut mix)) }
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let [s0, s1, s2, s3] = self.state;
        let result = s1.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let (s2, s3) = (s2 ^ s0, s3 ^ s1);
        self.state = [s0 ^ s3, s1 ^ s2, s2 ^ (s1 << 17), s3.rotate_left(45)];
        result
    }

    /// A number from `0..bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing is below zero");
        // The bias is below 2^-32 for every bound that is used here.
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// An index into a list of `length` items.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// True with probability `numerator / denominator`.
    pub fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }

    /// Fills `out` with random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            let bits = self.bits().to_le_bytes();
            chunk.copy_from_slice(&bits[..chunk.len()]);
        }
    }
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Runs `body` with a generator. The seed comes from the environment variable `SEED`, else it is
/// fresh; if `body` panics the line that repeats the run is printed.
pub fn with_seed(body: impl FnOnce(&mut Rng)) {
    let given = std::env::var("SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(fresh_seed);
    let reporter = Reporter { seed };
    body(&mut Rng::new(seed));
    std::mem::forget(reporter);
}

/// Random bytes. Drawn from the kernel: a forked child would repeat whatever is kept in memory.
pub fn fresh_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        // Fails only if a signal interrupts it.
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty()).unwrap_or(0);
    }
    bytes
}

/// A random seed, drawn as [`fresh_bytes`] are.
pub fn fresh_seed() -> u64 {
    u64::from_ne_bytes(fresh_bytes())
}

struct Reporter {
    seed: u64,
}

impl Drop for Reporter {
    fn drop(&mut self) {
        eprintln!("to repeat this run: SEED={} cargo test ...", self.seed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_a_seed_never_change() {
        let mut rng = Rng::new(42);
        let first: Vec<u64> = (0..3).map(|_| rng.bits()).collect();
        assert_eq!(
            first,
            [0x1578_0b2e_0c2e_c716, 0x6104_d986_6d11_3a7e, 0xae17_5332_39e4_99a1],
            "{first:#x?}"
        );
    }

    #[test]
    fn below_stays_below() {
        with_seed(|rng| {
            for bound in 1..1000 {
                assert!(rng.below(bound) < bound);
            }
        });
    }
}
