//! Lengths of time as people write them.

use std::str::FromStr;
use std::time::Duration;

/// A length of time, written as `90s`, `10min` or `2h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeSpan(pub(crate) Duration);

/// The text is no length of time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no length of time; write a whole number and a unit, as in 90s, 10min or 2h")]
pub(crate) struct BadTimeSpan;

impl FromStr for TimeSpan {
    type Err = BadTimeSpan;

    fn from_str(text: &str) -> Result<Self, BadTimeSpan> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| BadTimeSpan)?;
        let unit_s = match unit.trim_start() {
            "s" => 1,
            "m" | "min" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => return Err(BadTimeSpan),
        };
        let seconds = number.checked_mul(unit_s).ok_or(BadTimeSpan)?;
        Ok(Self(Duration::from_secs(seconds)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_read_as_people_write_them() {
        let span = |text: &str| text.parse::<TimeSpan>().ok().map(|span| span.0.as_secs());
        assert_eq!(span("90s"), Some(90));
        assert_eq!(span("10min"), Some(600));
        assert_eq!(span("10 m"), Some(600));
        assert_eq!(span("2h"), Some(7200));
        assert_eq!(span("1d"), Some(86_400));
        for bad in ["", "s", "90", "-1s", "1.5h", "1 fortnight", "999999999999999999d"] {
            assert_eq!(span(bad), None, "{bad}");
        }
    }
}
