//! The figures of the thesis, once more.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use figures::{Figure, FigureReport, Profiles};

use super::machine::MachineArgs;
use mdfs_cli::exit::CommandFailure;
use mdfs_cli::local::{self, Target};
use mdfs_cli::session::CommandSession;

/// Every figure.
const ALL: &str = "all";

/// Which figures, and with what costs.
#[derive(Debug, clap::Args)]
pub(crate) struct FigureArgs {
    /// The figures: 4.1a to 4.5, or all
    #[arg(long = "figure", value_name = "N,...", value_delimiter = ',', value_parser = figure())]
    figures: Vec<Option<Figure>>,
    /// Put a picture, a CSV and a JSON file of each figure into this directory
    #[arg(long, value_name = "DIR", requires = "figures")]
    out: Option<PathBuf>,
    /// Let messages meet in the mesh and its queues fill, in place of the time without traffic
    #[arg(long, requires = "figures")]
    traffic: bool,
    /// Print every number of the profile, with its source and how far it may be trusted
    #[arg(long)]
    explain: bool,
    /// As JSON
    #[arg(long, conflicts_with = "explain")]
    json: bool,
}

/// `None` is every figure.
fn figure() -> impl TypedValueParser<Value = Option<Figure>> {
    let names = Figure::ALL.map(Figure::number).into_iter().chain([ALL]);
    PossibleValuesParser::new(names).map(|name| Figure::from_number(&name))
}

impl FigureArgs {
    /// Was something asked of this?
    pub(super) fn is_meant(&self) -> bool {
        !self.figures.is_empty() || self.explain
    }

    pub(crate) fn run(
        &self,
        machine: &MachineArgs,
        session: &mut CommandSession,
    ) -> Result<(), CommandFailure> {
        let profile = machine.profile()?;
        if self.explain {
            session.print(profile.card())?;
        }
        let mut profiles = Profiles { calibrated: profile.into(), ..Profiles::default() };
        profiles.calibrated.traffic = self.traffic;
        profiles.ideal.traffic = self.traffic;
        if let Some(out) = &self.out {
            local::make_directory(out)?;
        }
        let mut reports = Vec::new();
        for (index, figure) in self.chosen().into_iter().enumerate() {
            let report = figure.run(&profiles);
            let failed =
                |error| CommandFailure::Wrong(format!("figure {}: {error}", figure.number()));
            let report = report.map_err(failed)?;
            if let Some(out) = &self.out {
                write(out, &report)?;
            }
            if !self.json {
                session.print(if index > 0 || self.explain { "\n" } else { "" })?;
                session.print(report.text())?;
                session.flush()?;
            }
            reports.push(report);
        }
        if self.json { session.print_json(&reports) } else { Ok(()) }
    }

    /// The figures, in their order and each once.
    fn chosen(&self) -> Vec<Figure> {
        let all = self.figures.contains(&None);
        Figure::ALL
            .into_iter()
            .filter(|figure| all || self.figures.contains(&Some(*figure)))
            .collect()
    }
}

/// The files of one figure.
fn write(out: &Path, report: &FigureReport) -> Result<(), CommandFailure> {
    let number = report.figure.number();
    let put = |ending: &str, text: String| {
        let target = Target::create(&out.join(format!("figure-{number}.{ending}")))?;
        let length = text.len() as u64;
        target.write(0, &[Bytes::from(text)])?;
        target.finish(length)
    };
    put("svg", report.svg())?;
    put("csv", report.csv())?;
    let json = serde_json::to_string_pretty(report);
    put(
        "json",
        json.map_err(|error| CommandFailure::Wrong(format!("figure {number}: {error}")))? + "\n",
    )
}
