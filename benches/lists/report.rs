//! The table.

use std::time::Duration;

use benches::median;

use crate::MethodTimes;
use crate::patterns::ListPattern;
use crate::ways::ListMethod;

const STEPS: [&str; 2] = ["write", "read"];

/// One pattern with what each way took, round by round.
pub(crate) struct ListBenchRow {
    name: &'static str,
    seed: [&'static str; 2],
    /// Regions and packed bytes of one rank.
    regions: u64,
    bytes: u64,
    /// Each way's, in the order of [`ListMethod::ALL`].
    method_times: [Vec<MethodTimes>; 3],
}

impl ListBenchRow {
    pub(crate) fn new(pattern: &ListPattern) -> Self {
        let lists = (pattern.lists)(0);
        let regions = lists.iter().map(client::Regions::count).sum();
        let bytes = lists.iter().map(client::Regions::bytes).sum();
        Self {
            name: pattern.name,
            seed: pattern.seed,
            regions,
            bytes,
            method_times: Default::default(),
        }
    }

    pub(crate) fn note(&mut self, method: ListMethod, method_times: MethodTimes) {
        self.method_times[method as usize].push(method_times);
    }

    /// Milliseconds, in the middle.
    fn time_ms(&self, method: ListMethod, step: usize) -> f64 {
        median(
            self.method_times[method as usize]
                .iter()
                .map(|method_times| method_times.times[step].as_secs_f64() * 1e3),
        )
    }

    /// How many times as long as with lists.
    fn ratio(&self, method: ListMethod, time: impl Fn(&MethodTimes) -> Duration) -> f64 {
        let lists = &self.method_times[ListMethod::List as usize];
        let rounds = self.method_times[method as usize].iter().zip(lists);
        median(rounds.map(|(other, list)| time(other).as_secs_f64() / time(list).as_secs_f64()))
    }

    /// Of one rank.
    fn requests(&self, method: ListMethod, step: usize) -> u64 {
        self.method_times[method as usize]
            .first()
            .map_or(0, |method_times| method_times.requests[step])
    }
}

pub(crate) fn print(rows: &[ListBenchRow]) {
    println!(
        "4 ranks at once; milliseconds until all have done, medians; requests of one rank; ratios: how \
         many times as long as with lists, by the clock and by the processors, beside those of the seed"
    );
    println!(
        "{:<13} {:<5} {:>8} {:>7} | {:>8} {:>7} {:>6} | {:>9} {:>9} {:>8} | {:>8} {:>8} | {:>8} {:>8} | {:<13}",
        "pattern",
        "",
        "regions",
        "bytes",
        "requests",
        "",
        "",
        "ms",
        "",
        "",
        "single",
        "sieve",
        "cpu:",
        "",
        "seed"
    );
    println!(
        "{:<13} {:<5} {:>8} {:>7} | {:>8} {:>7} {:>6} | {:>9} {:>9} {:>8} | {:>8} {:>8} | {:>8} {:>8} |",
        "",
        "",
        "",
        "each",
        "single",
        "sieve",
        "list",
        "single",
        "sieve",
        "list",
        "/ list",
        "/ list",
        "single",
        "sieve"
    );
    for row in rows {
        for (step, name) in STEPS.iter().enumerate() {
            let [single, sieve, list] = ListMethod::ALL.map(|method| row.requests(method, step));
            let times = ListMethod::ALL.map(|method| row.time_ms(method, step));
            println!(
                "{:<13} {name:<5} {:>8} {:>7} | {single:>8} {sieve:>7} {list:>6} | {:>9.2} {:>9.2} \
                 {:>8.2} | {:>8.1} {:>8.2} | {:>8.1} {:>8.2} | {:<13}",
                row.name,
                row.regions,
                row.bytes / row.regions,
                times[0],
                times[1],
                times[2],
                row.ratio(ListMethod::Single, |taken| taken.times[step]),
                row.ratio(ListMethod::Sieve, |taken| taken.times[step]),
                row.ratio(ListMethod::Single, |taken| taken.processor[step]),
                row.ratio(ListMethod::Sieve, |taken| taken.processor[step]),
                row.seed[step],
            );
        }
    }
    for row in rows.iter().filter(|row| row.name.starts_with("BTIO")) {
        let both = |method| row.requests(method, 0) + row.requests(method, 1);
        let [single, sieve, list] = ListMethod::ALL.map(both);
        println!(
            "{}, requests of one rank to write and read: {single}, {sieve}, {list} \
             (the seed: 163840, 82040, 1360)",
            row.name
        );
    }
}
