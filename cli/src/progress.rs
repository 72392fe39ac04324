//! Bars for long work, on a terminal only.

use std::borrow::Cow;
use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A transfer is long if it moves this many bytes,
const BYTES_MIN: u64 = 64 << 20;

/// or this many files.
const FILES_MIN: u64 = 500;

/// A bar on standard error; hidden if that is no terminal or the transfer is short.
#[derive(Clone, Debug)]
pub struct Progress {
    bar: ProgressBar,
    /// Files found so far.
    files: Arc<AtomicU64>,
}

impl Progress {
    /// For a transfer of which nothing is [found](Self::found) yet.
    pub fn of_transfer() -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        Self { bar: bar.with_style(style(TRANSFER)), files: Arc::default() }
    }

    /// For work of `total` steps.
    pub fn of_work(total: u64) -> Self {
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::new(total).with_style(style(WORK))
        } else {
            ProgressBar::hidden()
        };
        Self { bar, files: Arc::default() }
    }

    /// One file more to transfer, of `bytes`. Called by one thread.
    pub fn found(&self, bytes: u64) {
        self.bar.inc_length(bytes);
        let files = self.files.fetch_add(1, Ordering::Relaxed) + 1;
        let long = files >= FILES_MIN || self.bar.length().is_some_and(|all| all >= BYTES_MIN);
        if long && self.bar.is_hidden() && std::io::stderr().is_terminal() {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// How many steps there are, if that was not known at first.
    pub fn set_total(&self, total: u64) {
        self.bar.set_length(total);
    }

    /// Sets the number of steps done and the message beside the bar.
    pub fn at(&self, steps: u64, message: impl Into<Cow<'static, str>>) {
        self.bar.set_position(steps);
        self.bar.set_message(message);
    }

    /// Adds to the number of bytes moved.
    pub fn moved(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Prints a line without disturbing the bar.
    pub fn print_above(&self, line: &str) {
        self.bar.suspend(|| crate::exit::say(format_args!("{line}")));
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

const TRANSFER: &str =
    "{wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";

const WORK: &str = "{wide_bar} {msg} {eta}";

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_of_the_bars_are_understood() {
        for template in [TRANSFER, WORK] {
            ProgressStyle::with_template(template).unwrap();
        }
    }
}
