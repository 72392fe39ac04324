//! What is done to a cluster in one run, as data: drawn from the seed, printed, edited, replayed.
//!
//! A schedule is text, one fault in a line, with the part of the run and the virtual time since
//! that part began:
//!
//! ```text
//! setup       at 0 us: network loss_ppm=0 corrupt_ppm=0 ...
//! round 1     at 12345 us: freeze node=fs:2 for_us=64
//! round 1     at 200000 us: power-cut
//! recovery 1  at 128 us: power-cut
//! ```
//!
//! Each line may be taken out without making the others meaningless: a round whose end is missing
//! ends in order, at the time drawn for it.

mod fault;

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

pub use fault::Fault;

/// Lines of a schedule, at most.
const ITEMS_MAX: usize = 1 << 20;

/// A part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunPart {
    /// Once the volume is made, before the first round.
    Setup,
    /// While clients work; counted from 1.
    Round(u32),
    /// While nothing runs; counted from 1.
    Rest(u32),
    /// While the volume is mounted; counted from 1.
    Recovery(u32),
}

impl fmt::Display for RunPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setup => f.pad("setup"),
            Self::Round(number) => f.pad(&format!("round {number}")),
            Self::Rest(number) => f.pad(&format!("rest {number}")),
            Self::Recovery(number) => f.pad(&format!("recovery {number}")),
        }
    }
}

impl FromStr for RunPart {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not `setup`, `round N`, `rest N` or `recovery N`");
        let (word, number) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        let number = number.trim().parse();
        match (word, number) {
            ("setup", _) => Ok(Self::Setup),
            ("round", Ok(number)) => Ok(Self::Round(number)),
            ("rest", Ok(number)) => Ok(Self::Rest(number)),
            ("recovery", Ok(number)) => Ok(Self::Recovery(number)),
            _ => Err(wrong()),
        }
    }
}

/// One fault at its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledFault {
    /// The part of the run.
    pub part: RunPart,
    /// Virtual time since the part began.
    pub at_us: u64,
    /// What happens.
    pub fault: Fault,
}

impl ScheduledFault {
    /// Happens while clients work.
    pub(crate) fn is_in_round(&self) -> bool {
        matches!(self.part, RunPart::Round(_))
    }
}

impl fmt::Display for ScheduledFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<11} at {} us: {}", self.part, self.at_us, self.fault)
    }
}

impl FromStr for ScheduledFault {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let (place, fault) = line.split_once(':').ok_or("`: ` before the fault is missing")?;
        let (part, at) = place.split_once(" at ").ok_or("` at ` before the time is missing")?;
        let at_us = at.trim().strip_suffix("us").and_then(|number| number.trim().parse().ok());
        let at_us = at_us.ok_or_else(|| format!("`{at}` is not a time like `12 us`"))?;
        Ok(Self { part: part.parse()?, at_us, fault: fault.parse()? })
    }
}

/// All faults of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// In any order; those of one part and time happen in the order of the list.
    pub items: Vec<ScheduledFault>,
}

impl Schedule {
    /// The faults of one part, in the order of time.
    pub fn of(&self, part: RunPart) -> Vec<ScheduledFault> {
        let mut items: Vec<ScheduledFault> =
            self.items.iter().filter(|item| item.part == part).cloned().collect();
        items.sort_by_key(|item| item.at_us);
        items
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.items.iter().try_for_each(|item| writeln!(f, "{item}"))
    }
}

/// A text is not a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ScheduleError {
    /// One line of it.
    #[error("line {line} of the schedule: {why}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// There is no end of it.
    #[error("a schedule has {ITEMS_MAX} lines at most")]
    TooLong,
}

impl FromStr for Schedule {
    type Err = ScheduleError;

    /// Reads what was printed. Empty lines, and lines that begin with `#`, mean nothing.
    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let mut items = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            if items.len() == ITEMS_MAX {
                return Err(ScheduleError::TooLong);
            }
            items.push(text.parse().map_err(|why| ScheduleError::Line { line, why })?);
        }
        Ok(Self { items })
    }
}

#[cfg(test)]
mod tests {
    use runtime::NodeId;

    use super::*;

    #[test]
    fn a_schedule_is_read_back_as_it_was_printed() {
        let item = |part, at_us, fault| ScheduledFault { part, at_us, fault };
        let schedule = Schedule {
            items: vec![
                item(RunPart::Setup, 0, Fault::Shuffle {}),
                item(RunPart::Round(1), 12_345, Fault::Clog { node: NodeId::fs(2) }),
                item(RunPart::Round(12), 7, Fault::PowerCut {}),
                item(RunPart::Rest(1), 0, Fault::Wipe { disk: "disk-0-0".into() }),
                item(RunPart::Recovery(3), 1, Fault::PowerCut {}),
            ],
        };
        let text = schedule.to_string();
        assert_eq!(text.parse(), Ok(schedule), "{text}");
    }

    #[test]
    fn a_wrong_line_is_told_by_its_number() {
        let wrong = |text: &str| text.parse::<Schedule>().unwrap_err().to_string();
        let text = "# by hand\n\nround 1 at 5 us: heal\nround x at 5 us: heal\n";
        assert!(wrong(text).starts_with("line 4 of the schedule: `round x` is not"));
        assert!(wrong("round 1 at 5: heal").contains("not a time"));
    }
}
