//! The table, the same as JSON, and a chart of the ratios.

#![allow(clippy::cast_precision_loss, reason = "places in a chart")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::sides::CheckpointFileKind;
use crate::works::CheckpointWork;

/// One work with its rates, round by round.
pub(crate) struct CheckpointBenchRow {
    name: &'static str,
    unit: &'static str,
    durable: &'static str,
    rates: BTreeMap<CheckpointFileKind, Vec<f64>>,
}

impl CheckpointBenchRow {
    pub(crate) fn new(work: &CheckpointWork) -> Self {
        let CheckpointWork { name, unit, durable, .. } = *work;
        Self { name, unit, durable, rates: BTreeMap::new() }
    }

    /// Adds a round of one side; `None` if the side cannot do the work.
    pub(crate) fn note(&mut self, kind: CheckpointFileKind, rate: Option<f64>) {
        self.rates.entry(kind).or_default().extend(rate);
    }

    fn median(&self, kind: CheckpointFileKind) -> Option<f64> {
        median(self.rates.get(&kind)?.clone())
    }

    /// The median over the rounds of ours / theirs.
    fn ratio(&self, other: CheckpointFileKind) -> Option<f64> {
        let (ours, theirs) = (self.rates.get(&CheckpointFileKind::Ours)?, self.rates.get(&other)?);
        median(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect())
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
}

pub(crate) fn print(rows: &[CheckpointBenchRow]) {
    println!(
        "\nours: a volume in this process on 4 disk files; disk: the file system that holds them; \
         memory: /dev/shm, never durable; direct: as disk, past its page cache; peer: another file \
         system, mounted. 1 MB = 1,000,000 bytes; medians; higher is better"
    );
    let present = |kind: &CheckpointFileKind| rows.iter().any(|row| row.median(*kind).is_some());
    let kinds: Vec<CheckpointFileKind> =
        CheckpointFileKind::ALL.into_iter().filter(present).collect();
    let mut line = format!("{:<26} {:<7} {:<8}", "work", "unit/s", "durable");
    for kind in &kinds {
        let _ = write!(line, " {:>9}", kind.name());
    }
    for other in kinds.iter().filter(|kind| **kind != CheckpointFileKind::Ours) {
        let _ = write!(line, " {:>11}", format!("ours/{}", other.name()));
    }
    println!("{line}");
    for row in rows {
        let mut line = format!("{:<26} {:<7} {:<8}", row.name, row.unit, row.durable);
        for kind in &kinds {
            let _ = write!(line, " {:>9}", shown(row.median(*kind), 0));
        }
        for other in kinds.iter().filter(|kind| **kind != CheckpointFileKind::Ours) {
            let _ = write!(line, " {:>11}", shown(row.ratio(*other), 2));
        }
        println!("{line}");
    }
}

/// Writes `checkpoint.json` and `checkpoint.svg` into `folder`.
pub(crate) fn write(rows: &[CheckpointBenchRow], folder: impl AsRef<Path>) {
    for (name, text) in [("checkpoint.json", json(rows)), ("checkpoint.svg", chart(rows))] {
        let path = folder.as_ref().join(name);
        std::fs::write(&path, text).expect("the target directory takes files");
        println!("{}", path.display());
    }
}

fn json(rows: &[CheckpointBenchRow]) -> String {
    let number =
        |value: Option<f64>| value.map_or("null".to_owned(), |value| format!("{value:.3}"));
    let rows = rows.iter().map(|row| {
        let mut line = format!(
            "  {{\"work\": \"{}\", \"unit\": \"{}/s\", \"durable\": \"{}\"",
            row.name, row.unit, row.durable
        );
        for kind in CheckpointFileKind::ALL {
            let _ = write!(line, ", \"{}\": {}", kind.name(), number(row.median(kind)));
        }
        for other in
            CheckpointFileKind::ALL.into_iter().filter(|kind| *kind != CheckpointFileKind::Ours)
        {
            let _ = write!(line, ", \"ours_to_{}\": {}", other.name(), number(row.ratio(other)));
        }
        line + "}"
    });
    format!("[\n{}\n]\n", rows.collect::<Vec<_>>().join(",\n"))
}

const ROW_HEIGHT: f64 = 47.0;
const TOP: f64 = 56.0;
const LEFT: f64 = 210.0;
const WIDTH: f64 = 480.0;
/// The chart shows ratios from 1/RANGE to RANGE, each doubling as wide as the others.
const RANGE: f64 = 32.0;

/// Where a ratio is in the chart, from the left.
fn place(ratio: f64) -> f64 {
    let doublings = ratio.clamp(1.0 / RANGE, RANGE).log2() / RANGE.log2();
    LEFT + WIDTH * f64::midpoint(doublings, 1.0)
}

/// A bar for each ratio, to the right where ours is faster.
fn chart(rows: &[CheckpointBenchRow]) -> String {
    let height = TOP + ROW_HEIGHT * rows.len() as f64 + 20.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"16\" font-size=\"13\">Ours against the disk's file system (blue; past its page \
         cache: green), memory (grey), a peer (orange);</text>\n\
         <text x=\"10\" y=\"32\" font-size=\"13\">right of the line ours is faster</text>\n",
        LEFT + WIDTH + 70.0
    );
    for ratio in [1.0 / 16.0, 0.25, 1.0, 4.0, 16.0] {
        let x = place(ratio);
        let (colour, label) = if (ratio - 1.0).abs() < 1e-9 { ("#000", "1") } else { ("#ccc", "") };
        let label = if label.is_empty() { format!("{ratio:.4}") } else { label.to_owned() };
        let label = if label.contains('.') {
            label.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            label
        };
        let _ = writeln!(
            out,
            "<line x1=\"{x}\" x2=\"{x}\" y1=\"{TOP}\" y2=\"{}\" stroke=\"{colour}\"/>\
             <text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
            height - 20.0,
            TOP - 6.0
        );
    }
    for (i, row) in rows.iter().enumerate() {
        let y = TOP + ROW_HEIGHT * i as f64;
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            y + 20.0,
            row.name
        );
        bar(&mut out, row.ratio(CheckpointFileKind::Disk), y + 5.0, "#2b6cb0");
        bar(&mut out, row.ratio(CheckpointFileKind::Memory), y + 18.0, "#a0aec0");
        bar(&mut out, row.ratio(CheckpointFileKind::Direct), y + 18.0, "#2f855a");
        bar(&mut out, row.ratio(CheckpointFileKind::Peer), y + 31.0, "#c05621");
    }
    out.push_str("</svg>\n");
    out
}

fn bar(out: &mut String, ratio: Option<f64>, y: f64, colour: &str) {
    let Some(ratio) = ratio else { return };
    let (middle, end) = (place(1.0), place(ratio));
    let (x, width) = (middle.min(end), (end - middle).abs());
    let _ = writeln!(
        out,
        "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"11\" fill=\"{colour}\"/>\
         <text x=\"{:.1}\" y=\"{}\" font-size=\"10\">{ratio:.2}</text>",
        middle.max(end) + 4.0,
        y + 9.5
    );
}
