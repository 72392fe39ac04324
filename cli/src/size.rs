//! Sizes as people write and read them.

use std::str::FromStr;

/// A number of bytes, written as `4GiB`, `64k` or `512`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(pub u64);

/// The text is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no size; write a whole number and a unit, as in 512, 64KiB, 4GiB or 10GB")]
pub struct BadByteSize;

/// Powers of 1024, each with a letter.
const UNITS: &str = "KMGTPE";

impl FromStr for ByteSize {
    type Err = BadByteSize;

    /// `K`, `M`, ... and `KiB`, `MiB`, ... are powers of 1024, `KB`, `MB`, ... are powers of 1000.
    fn from_str(text: &str) -> Result<Self, BadByteSize> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| BadByteSize)?;
        let factor = factor(&unit.trim_start().to_ascii_uppercase()).ok_or(BadByteSize)?;
        number.checked_mul(factor).map(Self).ok_or(BadByteSize)
    }
}

fn factor(unit: &str) -> Option<u64> {
    let Some(letter) = unit.chars().next().filter(|&letter| letter != 'B') else {
        return matches!(unit, "" | "B").then_some(1);
    };
    let power = UNITS.find(letter)? as u32 + 1;
    match &unit[1..] {
        "" | "IB" => 1024u64.checked_pow(power),
        "B" => 1000u64.checked_pow(power),
        _ => None,
    }
}

/// So much memory at least is for cached data: a few lines for each node of a usual volume.
const CACHE_MIN: ByteSize = ByteSize(16 << 20);
/// And so much at most, which no computer has.
const CACHE_MAX: ByteSize = ByteSize(1 << 44);

/// The memory of a cache.
pub fn cache_size(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse().map_err(|error: BadByteSize| error.to_string())?;
    if (CACHE_MIN.0..=CACHE_MAX.0).contains(&size.0) {
        return Ok(size);
    }
    Err(format!("a cache has from {} to {}", human(CACHE_MIN.0), human(CACHE_MAX.0)))
}

/// A number of bytes as people read it: `999 B`, `1.5 KiB`, `64 GiB`.
pub fn human(bytes: u64) -> String {
    let mut power = 0;
    // Up to the unit in which it is below 1000, so that it has three digits at most.
    while power < UNITS.len() as u32 && bytes >= 1000 * 1024u64.pow(power) {
        power += 1;
    }
    let Some(letter) = power.checked_sub(1).and_then(|index| UNITS.chars().nth(index as usize))
    else {
        return format!("{bytes} B");
    };
    let tenths = (u128::from(bytes) * 10).div_ceil(u128::from(1024u64.pow(power)));
    match tenths {
        0..100 if tenths % 10 != 0 => format!("{}.{} {letter}iB", tenths / 10, tenths % 10),
        _ => format!("{} {letter}iB", tenths.div_ceil(10)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let size = |text: &str| text.parse::<ByteSize>().ok().map(|size| size.0);
        assert_eq!(size("512"), Some(512));
        assert_eq!(size("512B"), Some(512));
        assert_eq!(size("64KiB"), Some(64 << 10));
        assert_eq!(size("64k"), Some(64 << 10));
        assert_eq!(size("4 GiB"), Some(4 << 30));
        assert_eq!(size("10GB"), Some(10_000_000_000));
        assert_eq!(size("15EiB"), Some(15 << 60));
        for bad in ["", "GiB", "-1", "1.5GiB", "4XiB", "4iB", "16EiB", "1 2", "4GiBs", "é", "4é"]
        {
            assert_eq!(size(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_cache_is_neither_tiny_nor_larger_than_memory() {
        assert_eq!(cache_size("16MiB"), Ok(CACHE_MIN));
        for bad in ["", "15MiB", "17TiB", "15EiB"] {
            assert!(cache_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_written_short_and_never_too_small() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(999), "999 B");
        assert_eq!(human(1000), "1 KiB");
        assert_eq!(human(1025), "1.1 KiB");
        assert_eq!(human(64 << 10), "64 KiB");
        assert_eq!(human(3 << 29), "1.5 GiB");
        assert_eq!(human((12 << 20) + 1), "13 MiB");
        assert_eq!(human(u64::MAX), "16 EiB");
    }
}
