//! Bars for long transfers, on a terminal only.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressStyle};

/// A transfer is long if it moves this many bytes,
const BYTES_MIN: u64 = 64 << 20;

/// or this many files.
const FILES_MIN: u64 = 500;

/// A bar on standard error; nothing is shown if nobody looks or the transfer is short.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// For a transfer of `bytes` in `files`.
    pub(crate) fn new(bytes: u64, files: u64) -> Self {
        let long = bytes >= BYTES_MIN || files >= FILES_MIN;
        if !long || !std::io::stderr().is_terminal() {
            return Self { bar: ProgressBar::hidden() };
        }
        Self { bar: ProgressBar::new(bytes).with_style(style()) }
    }

    /// So many bytes more were moved.
    pub(crate) fn moved(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Prints a line without disturbing the bar.
    pub(crate) fn tell(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

const TEMPLATE: &str =
    "{wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";

fn style() -> ProgressStyle {
    ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_the_bar_is_understood() {
        ProgressStyle::with_template(TEMPLATE).unwrap();
    }
}
