//! How a stream is opened: the modes of C's `fopen`.

use std::str::FromStr;

use crate::options::OpenOptions;

/// A way of opening a stream: `r`, `w` or `a`, then any of `+`, `b` (which changes nothing) and,
/// after `w`, `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    options: OpenOptions,
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) appends: bool,
}

/// The text is none of the modes of `fopen`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a way to open a stream; use r, w or a, with + to read and write, x after w to refuse an existing file"
)]
pub struct BadMode(pub String);

impl Mode {
    /// How the file below is opened.
    pub fn options(self) -> OpenOptions {
        self.options
    }
}

impl FromStr for Mode {
    type Err = BadMode;

    fn from_str(text: &str) -> Result<Self, BadMode> {
        let bad = || BadMode(text.to_owned());
        let (first, flags) = text.split_at_checked(1).ok_or_else(bad)?;
        let has = |flag| flags.contains(flag);
        let repeated = flags.chars().any(|flag| flags.matches(flag).count() > 1);
        if repeated || flags.chars().any(|flag| !"+bx".contains(flag)) || (has('x') && first != "w")
        {
            return Err(bad());
        }
        let options = OpenOptions::new();
        let (readable, writable, appends, options) = match first {
            "r" => (true, has('+'), false, options),
            "w" if has('x') => (has('+'), true, false, options.create_new(true)),
            "w" => (has('+'), true, false, options.create(true).truncate(true)),
            "a" => (has('+'), true, true, options.create(true)),
            _ => return Err(bad()),
        };
        let options = options.read(readable).write(writable && !appends).append(appends);
        Ok(Self { options, readable, writable, appends })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modes_of_fopen_are_understood_and_nothing_else() {
        let access = |text: &str| {
            let mode: Mode = text.parse().unwrap();
            (mode.readable, mode.writable, mode.appends)
        };
        assert_eq!(access("r"), (true, false, false));
        assert_eq!(access("rb+"), (true, true, false));
        assert_eq!(access("w"), (false, true, false));
        assert_eq!(access("w+b"), (true, true, false));
        assert_eq!(access("a"), (false, true, true));
        assert_eq!(access("a+"), (true, true, true));
        assert!("wx".parse::<Mode>().unwrap().options.create_new);
        for bad in ["", "x", "rw", "r++", "rx", "ax", "+r", "é"] {
            assert!(bad.parse::<Mode>().is_err(), "{bad}");
        }
    }
}
