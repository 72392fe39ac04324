//! A figure as numbers: what was measured, in tables and as comma-separated values.

use std::fmt::Write as _;

use machine_emu::jmachine::Profile;
use serde::Serialize;

use crate::Figure;

/// Where a curve comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Series {
    /// The thesis.
    Thesis,
    /// The calibrated profile.
    Calibrated,
    /// The ideal profile.
    Ideal,
    /// A comparison with another assumption.
    Other,
    /// Proportional to the first point.
    Linear,
}

impl Series {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Thesis => "thesis",
            Self::Calibrated => "calibrated",
            Self::Ideal => "ideal",
            Self::Other => "other",
            Self::Linear => "linear",
        }
    }
}

/// One curve.
#[derive(Clone, Debug, Serialize)]
pub struct Curve {
    /// Where it comes from.
    pub series: Series,
    /// What it is called.
    pub name: String,
    /// Its points, x before y.
    pub points: Vec<(f64, f64)>,
}

/// Curves that are drawn together.
#[derive(Clone, Debug, Serialize)]
pub struct Panel {
    /// What they have in common; empty if there is one panel.
    pub title: String,
    /// The curves.
    pub curves: Vec<Curve>,
}

/// A figure.
#[derive(Clone, Debug, Serialize)]
pub struct FigureReport {
    /// Which.
    #[serde(serialize_with = "number")]
    pub figure: Figure,
    /// What it shows.
    pub title: String,
    /// What stands to the right.
    pub x: String,
    /// What stands upwards.
    pub y: String,
    /// Equal ratios are equally far apart, to the right.
    #[serde(skip)]
    pub x_is_log: bool,
    /// Equal ratios are equally far apart, upwards.
    #[serde(skip)]
    pub y_is_log: bool,
    /// The places along x that have a name.
    #[serde(skip)]
    pub ticks: Vec<(f64, String)>,
    /// Places along x of which the thesis speaks.
    #[serde(skip)]
    pub marks: Vec<(f64, String)>,
    /// Points per line.
    #[serde(skip)]
    pub stroke: Option<usize>,
    /// The curves.
    pub panels: Vec<Panel>,
    /// The numbers that were fitted to this figure.
    pub fitted: Vec<String>,
    /// What a reader must know.
    pub notes: Vec<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn number<S: serde::Serializer>(figure: &Figure, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(figure.number())
}

/// Three digits that count.
fn short(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

impl FigureReport {
    /// The fitted numbers of `profile` among `names`, with their values.
    pub(crate) fn fitted_of(profile: &Profile, names: &[&str]) -> Vec<String> {
        let fitted = profile.fitted().into_iter();
        let ours = fitted.filter(|(name, _)| names.contains(&name.as_str()));
        let described = |(name, number): (String, &machine_emu::jmachine::Number)| {
            let to = number.fitted.as_deref().unwrap_or_default();
            format!("{name} = {} {}, fitted {to}", number.value, number.unit)
        };
        ours.map(described).collect()
    }

    /// The name of a place along x.
    fn place(&self, x: f64) -> String {
        let tick = self.ticks.iter().find(|(at, _)| (at - x).abs() < 1e-9);
        tick.map_or_else(|| format!("{x}"), |(_, name)| name.clone())
    }

    /// The figure as text: a table per panel, what was fitted, what to know.
    pub fn text(&self) -> String {
        let mut text = format!("Figure {}: {} ({})\n", self.figure.number(), self.title, self.y);
        for panel in &self.panels {
            text.push('\n');
            if !panel.title.is_empty() {
                let _ = writeln!(text, "{}", panel.title);
            }
            text.push_str(&self.table(panel));
        }
        text.push_str("\nFitted to this figure: ");
        text.push_str(&if self.fitted.is_empty() {
            "nothing".to_owned()
        } else {
            self.fitted.join("; ")
        });
        text.push('\n');
        for note in &self.notes {
            let _ = writeln!(text, "- {note}");
        }
        text
    }

    /// The points of a panel: a row for each x, a column for each curve.
    fn table(&self, panel: &Panel) -> String {
        let mut places: Vec<f64> = panel
            .curves
            .iter()
            .flat_map(|curve| curve.points.iter().map(|point| point.0))
            .collect();
        places.sort_unstable_by(f64::total_cmp);
        places.dedup();
        let head = std::iter::once(self.x.clone());
        let head = head.chain(panel.curves.iter().map(|curve| curve.name.clone()));
        let mut rows = vec![head.collect::<Vec<_>>()];
        for place in places {
            let cell = |curve: &Curve| {
                let point = curve.points.iter().find(|point| (point.0 - place).abs() < 1e-9);
                point.map_or_else(String::new, |point| short(point.1))
            };
            let cells = std::iter::once(self.place(place)).chain(panel.curves.iter().map(cell));
            rows.push(cells.collect());
        }
        aligned(&rows)
    }

    /// All points, one in a line: figure, series, curve, x, y.
    pub fn csv(&self) -> String {
        let mut text = String::from("figure,series,curve,x,y\n");
        for curve in self.panels.iter().flat_map(|panel| &panel.curves) {
            for (x, y) in &curve.points {
                let (figure, series) = (self.figure.number(), curve.series.name());
                let (name, place) = (&curve.name, self.place(*x));
                let _ = writeln!(text, "{figure},{series},\"{name}\",{place},{y}");
            }
        }
        text
    }

    /// The curve of this series and name.
    pub fn curve(&self, series: Series, name: &str) -> Option<&Curve> {
        let mut curves = self.panels.iter().flat_map(|panel| &panel.curves);
        curves.find(|curve| curve.series == series && curve.name == name)
    }
}

/// Rows with columns that end at the same place.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..columns).map(|column| width(column).unwrap_or_default()).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<_> =
            row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:>width$}")).collect();
        format!("  {}\n", cells.join("  "))
    };
    rows.iter().map(line).collect()
}
