//! Counts as text that monitoring reads (the text format 0.0.4 of Prometheus).

use std::fmt::{Arguments, Display, Write as _};

/// What a metric counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Goes up and down.
    Gauge,
    /// Only goes up.
    Counter,
    /// Cumulative counts by upper bound.
    Histogram,
}

/// A page of metrics, all of whose names begin alike.
#[derive(Debug)]
pub struct MetricsPage {
    prefix: &'static str,
    text: String,
}

/// One metric of a page: its samples follow its head.
#[derive(Debug)]
pub struct Metric<'a> {
    page: &'a mut MetricsPage,
    name: &'a str,
}

impl MetricsPage {
    /// An empty page for names that begin with `prefix`, as `mdfs_`.
    pub fn new(prefix: &'static str) -> Self {
        Self { prefix, text: String::new() }
    }

    /// Begins a metric.
    pub fn metric<'a>(&'a mut self, name: &'a str, kind: MetricKind, help: &str) -> Metric<'a> {
        let (prefix, kind) = (self.prefix, format!("{kind:?}").to_lowercase());
        self.line(format_args!("# HELP {prefix}{name} {help}\n# TYPE {prefix}{name} {kind}"));
        Metric { page: self, name }
    }

    /// The text.
    pub fn finish(self) -> String {
        self.text
    }

    fn line(&mut self, line: Arguments<'_>) {
        // Writing into a string cannot fail.
        let _ = writeln!(self.text, "{line}");
    }
}

impl Metric<'_> {
    /// The only value.
    pub fn is(self, value: impl Display) {
        let (prefix, name) = (self.page.prefix, self.name);
        self.page.line(format_args!("{prefix}{name} {value}"));
    }

    /// A value with labels, as `disk="1"`.
    pub fn of(&mut self, labels: Arguments<'_>, value: impl Display) {
        self.part("", labels, value);
    }

    /// A value of a part of the metric, as `_sum` of a histogram.
    pub fn part(&mut self, part: &str, labels: Arguments<'_>, value: impl Display) {
        let (prefix, name) = (self.page.prefix, self.name);
        self.page.line(format_args!("{prefix}{name}{part}{{{labels}}} {value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metric_has_its_head_and_its_samples() {
        let mut page = MetricsPage::new("mdfs_");
        page.metric("lines", MetricKind::Gauge, "Lines.").is(3);
        let mut reads = page.metric("reads_total", MetricKind::Counter, "Reads.");
        reads.of(format_args!("disk=\"{}\"", 1), 5);
        page.metric("seconds", MetricKind::Histogram, "Time.").part(
            "_sum",
            format_args!("a=\"b\""),
            0.5,
        );
        let told = "# HELP mdfs_lines Lines.\n# TYPE mdfs_lines gauge\nmdfs_lines 3\n\
            # HELP mdfs_reads_total Reads.\n# TYPE mdfs_reads_total counter\n\
            mdfs_reads_total{disk=\"1\"} 5\n\
            # HELP mdfs_seconds Time.\n# TYPE mdfs_seconds histogram\nmdfs_seconds_sum{a=\"b\"} 0.5\n";
        assert_eq!(page.finish(), told);
    }
}
