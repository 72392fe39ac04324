//! A volume on disk files of the host, as a program of its own serves it.

use std::path::Path;
use std::time::{Duration, Instant};

use volume::{CheckOptions, RunOptions, RunningVolume};

pub(crate) fn run(directory: &Path) -> RunningVolume {
    let options = RunOptions { threads: 2, cache_bytes: 32 << 20, ..RunOptions::default() };
    volume::open(directory, &options).unwrap()
}

/// It is sound, with all of its data.
pub(crate) fn check(directory: &Path) {
    let on_step = std::sync::Arc::new(|_| {});
    let options = CheckOptions { data: true, files: false, rate_bytes: 0, on_step };
    let checked = volume::check(directory, &options).unwrap();
    let flaws: Vec<_> = checked.summary.flaws.listed().iter().collect();
    assert!(flaws.is_empty(), "{flaws:?}");
}

#[allow(clippy::disallowed_methods, reason = "the servers run in threads of their own")]
pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_mins(1), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
