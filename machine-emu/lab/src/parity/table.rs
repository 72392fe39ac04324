//! Tables of what the thesis says, what formulas say, and what is measured here.

use std::fmt::Write as _;

/// Characters of a column of a sweep.
const COLUMN: usize = 18;

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ParityUnit {
    /// MB/s.
    Rate,
    /// One number as a part of another.
    Ratio,
    /// Milliseconds.
    Milliseconds,
    /// Megabytes.
    Megabytes,
    /// How many.
    Count,
}

/// One number, with what it stands beside.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct ParityRow {
    pub(crate) what: String,
    pub(crate) unit: ParityUnit,
    /// How many writers, in a sweep over their number.
    pub(crate) writers: Option<usize>,
    /// What the thesis says.
    pub(crate) thesis: Option<f64>,
    /// What the formula says.
    pub(crate) model: Option<f64>,
    /// What is measured.
    pub(crate) here: f64,
    /// What must be reached, at least.
    pub(crate) goal: Option<f64>,
    pub(crate) is_met: Option<bool>,
}

/// The numbers of one experiment.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct ParityTable {
    /// Of the thesis, or what is added.
    pub(crate) figure: &'static str,
    pub(crate) title: &'static str,
    pub(crate) rows: Vec<ParityRow>,
}

impl ParityRow {
    pub(super) fn new(what: impl Into<String>, unit: ParityUnit, here: f64) -> Self {
        let (what, writers) = (what.into(), None);
        Self { what, unit, writers, thesis: None, model: None, here, goal: None, is_met: None }
    }

    /// Bytes per second, shown as MB/s.
    pub(super) fn rate(what: impl Into<String>, here: f64) -> Self {
        Self::new(what, ParityUnit::Rate, here / 1e6)
    }

    pub(super) fn ratio(what: impl Into<String>, here: f64) -> Self {
        Self::new(what, ParityUnit::Ratio, here)
    }

    pub(super) fn writers(self, writers: usize) -> Self {
        Self { writers: Some(writers), ..self }
    }

    pub(super) fn thesis(self, thesis: f64) -> Self {
        Self { thesis: Some(thesis), ..self }
    }

    pub(super) fn model(self, model: f64) -> Self {
        Self { model: Some(model), ..self }
    }

    pub(super) fn goal(self, goal: f64) -> Self {
        Self { goal: Some(goal), is_met: Some(self.here >= goal), ..self }
    }
}

impl ParityUnit {
    fn text(self, number: f64) -> String {
        match self {
            Self::Rate => format!("{number:.0} MB/s"),
            Self::Ratio => format!("{number:.3}"),
            Self::Milliseconds => format!("{number:.3} ms"),
            Self::Megabytes => format!("{number:.2} MB"),
            Self::Count => format!("{number:.0}"),
        }
    }
}

impl ParityTable {
    pub(super) fn print(&self, text: &mut String) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}: {}", self.figure, self.title);
        self.print_sweep(text);
        let rows: Vec<_> = self.rows.iter().filter(|row| row.writers.is_none()).collect();
        let width = rows.iter().map(|row| row.what.chars().count()).max().unwrap_or_default();
        let (seed, model, here) = ("thesis", "model", "here");
        let _ = writeln!(text, "{:width$}  {seed:>10}  {model:>10}  {here:>10}  goal", "");
        for row in rows {
            let shown = |number: Option<f64>| {
                number.map_or_else(|| "-".to_owned(), |number| row.unit.text(number))
            };
            let goal = match row.is_met {
                Some(true) => format!(">= {}: met", shown(row.goal)),
                Some(false) => format!(">= {}: MISSED", shown(row.goal)),
                None => String::new(),
            };
            let (thesis, model, here) =
                (shown(row.thesis), shown(row.model), shown(Some(row.here)));
            let _ =
                write!(text, "{:width$}  {thesis:>10}  {model:>10}  {here:>10}  {goal}", row.what);
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        text.push('\n');
    }

    /// A sweep: a line for each number of writers, with what is measured and the formula's number.
    fn print_sweep(&self, text: &mut String) {
        let swept: Vec<_> = self.rows.iter().filter(|row| row.writers.is_some()).collect();
        let mut ways: Vec<&str> = swept.iter().map(|row| row.what.as_str()).collect();
        ways.dedup();
        if ways.is_empty() {
            return;
        }
        let _ = write!(text, "MB/s, here/model");
        for way in ways {
            let _ = write!(text, "  {way:>COLUMN$}");
        }
        let last = swept.iter().filter_map(|row| row.writers).max().unwrap_or_default();
        for writers in 1..=last {
            let _ = write!(text, "\nw = {writers:<12}");
            for row in swept.iter().filter(|row| row.writers == Some(writers)) {
                let model = row.model.map_or_else(String::new, |model| format!("/{model:.0}"));
                let _ = write!(text, "  {:>COLUMN$}", format!("{:.0}{model}", row.here));
            }
        }
        text.push_str("\n\n");
    }

    pub(super) fn missed(&self) -> usize {
        self.rows.iter().filter(|row| row.is_met == Some(false)).count()
    }
}
