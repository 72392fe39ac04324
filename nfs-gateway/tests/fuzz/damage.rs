//! What happens to bytes on their way.

use runtime::seed::Rng;

use crate::seeds::Seeds;

/// Bytes of a call's head up to its arguments, without authentication.
const HEAD_WORDS: usize = 10;

/// Values that lengths, counts and numbers have trouble with.
const VALUES: [u32; 14] =
    [0, 1, 2, 3, 4, 57, 64, 255, 256, 1 << 16, 1 << 20, 1 << 31, u32::MAX - 3, u32::MAX];

/// `call`, mostly damaged in one of several ways.
pub(crate) fn call(call: Vec<u8>, seeds: &mut Seeds, rng: &mut Rng) -> Vec<u8> {
    let mut call = call;
    match rng.below(10) {
        0..2 => {}
        2..6 => words(&mut call, HEAD_WORDS * 4, rng),
        6 => words(&mut call, 0, rng),
        7 => call.truncate(rng.index(call.len())),
        8 => {
            // The end of another one behind the beginning of this.
            let other = seeds.any(rng);
            call.truncate(rng.index(call.len()) & !3);
            call.extend_from_slice(&other[rng.index(other.len()) & !3..]);
        }
        _ => {
            for _ in 0..=rng.index(8) {
                let at = rng.index(call.len());
                call[at] = rng.bits() as u8;
            }
        }
    }
    call
}

/// Changes some words from byte `from` on.
fn words(call: &mut [u8], from: usize, rng: &mut Rng) {
    let words = call.len().saturating_sub(from) / 4;
    if words == 0 {
        return;
    }
    for _ in 0..=rng.index(4) {
        let at = from + 4 * rng.index(words);
        let known = VALUES[rng.index(VALUES.len())];
        let value = if rng.chance(2, 3) { known } else { rng.bits() as u32 };
        call[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }
}

/// Puts `record` behind `out`, in one or many fragments, now and then with a wrong mark.
pub(crate) fn frame(record: &[u8], rng: &mut Rng, out: &mut Vec<u8>) {
    let pieces = if rng.chance(1, 4) { 1 + rng.index(80) } else { 1 };
    let size = record.len().div_ceil(pieces).max(1);
    let count = record.chunks(size).len();
    for (index, piece) in record.chunks(size).enumerate() {
        let last = u32::from(index + 1 == count) << 31;
        let mut mark = piece.len() as u32 | last;
        if rng.chance(1, 100) {
            mark = VALUES[rng.index(VALUES.len())] | last;
        }
        out.extend_from_slice(&mark.to_be_bytes());
        out.extend_from_slice(piece);
    }
}
