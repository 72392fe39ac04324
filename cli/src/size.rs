//! Sizes as people read them.

/// Powers of 1024, each with a letter.
const UNITS: &str = "KMGTPE";

/// A number of bytes as people read it: `999 B`, `1.5 KiB`, `64 GiB`.
pub(crate) fn human(bytes: u64) -> String {
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
