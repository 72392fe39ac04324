//! A shorter schedule that still fails: parts of it are taken out for as long as something fails
//! without them (delta debugging).

use crate::schedule::{Item, Schedule, Strike};
use crate::{Case, Violation};

/// What was left of a schedule.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The case with the shortest schedule found.
    pub case: Case,
    /// How it fails.
    pub violation: Violation,
    /// Runs that were needed.
    pub runs: u32,
}

/// Looks for a shorter schedule of `case`, which failed with `violation`, in at most `runs_max` runs.
/// Any violation counts. `progress` is called before each run with the number of faults left.
pub fn shrink(
    case: &Case,
    violation: Violation,
    runs_max: u32,
    mut progress: impl FnMut(usize),
) -> Shrunk {
    let mut best = Shrunk { case: given(case, &violation.schedule.items), violation, runs: 0 };
    let mut piece = best.violation.schedule.items.len();
    while piece > 0 && best.runs < runs_max {
        let mut at = 0;
        let mut shorter = false;
        while at < items(&best).len() && best.runs < runs_max {
            progress(items(&best).len());
            let candidate = without(items(&best), at, piece);
            if candidate.len() < items(&best).len() && fails(&mut best, &candidate) {
                shorter = true;
            } else {
                at += piece;
            }
        }
        // A whole pass at the finest without success: nothing can be taken out alone.
        piece = if piece == 1 && shorter { 1 } else { piece / 2 };
    }
    soften(&mut best, runs_max);
    best
}

fn items(shrunk: &Shrunk) -> &[Item] {
    shrunk.case.schedule.as_ref().map_or(&[], |schedule| &schedule.items)
}

fn given(case: &Case, items: &[Item]) -> Case {
    Case { schedule: Some(Schedule { items: items.to_vec() }), ..case.clone() }
}

/// Ends of rounds stay: without them the clients would do something else.
fn without(items: &[Item], at: usize, piece: usize) -> Vec<Item> {
    let kept = items.iter().enumerate().filter(|(index, item)| {
        !(at..at + piece).contains(index) || item.strike.is_end() && item.is_in_round()
    });
    kept.map(|(_, item)| item.clone()).collect()
}

fn fails(best: &mut Shrunk, candidate: &[Item]) -> bool {
    best.runs += 1;
    let case = given(&best.case, candidate);
    match case.run() {
        Ok(_) => false,
        Err(violation) => {
            best.case = case;
            best.violation = violation;
            true
        }
    }
}

/// Power cuts become orderly ends, and faults of messages vanish, where that does not matter.
fn soften(best: &mut Shrunk, runs_max: u32) {
    for index in 0..items(best).len() {
        while best.runs < runs_max {
            let softer = softer(&items(best)[index].strike);
            let found = softer.into_iter().any(|strike| {
                let mut candidate = items(best).to_vec();
                candidate[index].strike = strike;
                fails(best, &candidate)
            });
            if !found {
                break;
            }
        }
    }
}

fn softer(strike: &Strike) -> Vec<Strike> {
    match strike {
        Strike::Power {} | Strike::Die {} => vec![Strike::End {}],
        Strike::Slow { node, factor, .. } => {
            vec![Strike::Slow { node: *node, factor: *factor, step_ns: 0 }]
        }
        Strike::Network { .. } => softer_networks(strike),
        _ => Vec::new(),
    }
}

/// One kind of fault less, each time.
fn softer_networks(strike: &Strike) -> Vec<Strike> {
    let text = strike.to_string();
    let fields = text.split(' ').filter(|field| field.contains("_ppm=") && !field.ends_with("=0"));
    let without = |field: &str| {
        let name = field.split('=').next().unwrap_or_default();
        text.replace(field, &format!("{name}=0")).parse().ok()
    };
    fields.filter_map(without).collect()
}
