//! The same work done by the volume and by the host, round by round in turn.

use std::time::{Duration, Instant};

/// One kind of work, measured on both sides.
#[derive(Debug)]
pub struct ProcessPair {
    /// What is done, and how durable it is at the end.
    what: String,
    /// What is counted: `MB` or a plural as in `reads`.
    unit: &'static str,
    ours: Vec<f64>,
    local: Vec<f64>,
}

impl ProcessPair {
    /// No rounds yet.
    pub fn new(what: impl Into<String>, unit: &'static str) -> Self {
        Self { what: what.into(), unit, ours: Vec::new(), local: Vec::new() }
    }

    /// Times `work`, which does `amount` units on the volume.
    pub fn ours<T>(&mut self, amount: f64, work: impl FnOnce() -> T) -> T {
        timed(&mut self.ours, amount, work)
    }

    /// Times `work`, which does the same on the host.
    pub fn local<T>(&mut self, amount: f64, work: impl FnOnce() -> T) -> T {
        timed(&mut self.local, amount, work)
    }

    /// The median of the ratios of the rounds: what both sides suffer in a round cancels out.
    fn ratio(&self) -> f64 {
        median(self.ours.iter().zip(&self.local).map(|(ours, local)| ours / local))
    }
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures the real clock")]
fn timed<T>(rates: &mut Vec<f64>, amount: f64, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    let elapsed = start.elapsed().max(Duration::from_nanos(1));
    rates.push(amount / elapsed.as_secs_f64());
    result
}

/// The middle one of some values; no number if there is none.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Prints the medians of each pair, and how far its rounds lie apart.
pub fn print_table(pairs: &[ProcessPair]) {
    println!(
        "{:<46} {:>11} {:>11} {:>7}  {:<12} {:>6}",
        "what", "ours", "local", "ratio", "unit", "rounds"
    );
    for pair in pairs {
        let spread = |rates: &[f64]| {
            let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
            let most = rates.iter().copied().fold(0.0, f64::max);
            format!("{least:.0}..{most:.0}")
        };
        println!(
            "{:<46} {:>11.0} {:>11.0} {:>7.3}  {:<12} {:>6}   ours {} local {}",
            pair.what,
            median(pair.ours.iter().copied()),
            median(pair.local.iter().copied()),
            pair.ratio(),
            format!("{}/s", pair.unit),
            pair.ours.len(),
            spread(&pair.ours),
            spread(&pair.local),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_that_of_the_middle_round() {
        let ours = vec![10.0, 30.0, 20.0];
        let pair =
            ProcessPair { what: String::new(), unit: "MB", ours, local: vec![10.0, 10.0, 40.0] };
        assert!((pair.ratio() - 1.0).abs() < 1e-9);
        assert!(median(std::iter::empty()).is_nan());
    }
}
