//! A shorter schedule that still fails: parts of it are taken out for as long as something fails
//! without them (delta debugging).

use crate::schedule::{Fault, Schedule, ScheduledFault};
use crate::{Case, Violation};

/// What was left of a schedule.
#[derive(Clone, Debug)]
pub struct ShrinkResult {
    /// The case with the shortest schedule found.
    pub case: Case,
    /// How it fails.
    pub violation: Violation,
    /// Runs that were needed.
    pub runs: u32,
}

/// Looks for a shorter schedule of `case`, which failed with `violation`, in at most `runs_max`
/// runs. Any violation counts. `may_continue` is asked before each run, with the number of faults
/// left; the search ends when it says no.
pub fn shrink(
    case: &Case,
    violation: Violation,
    runs_max: u32,
    may_continue: impl FnMut(usize) -> bool,
) -> ShrinkResult {
    let case = given(case, &violation.schedule.items);
    let best = ShrinkResult { case, violation, runs: 0 };
    let mut search = Search { best, runs_max, over: false, may_continue };
    search.remove_pieces();
    search.simplify();
    search.best
}

struct Search<P> {
    best: ShrinkResult,
    runs_max: u32,
    /// The caller has ended the search.
    over: bool,
    may_continue: P,
}

impl<P: FnMut(usize) -> bool> Search<P> {
    fn items(&self) -> &[ScheduledFault] {
        self.best.case.schedule.as_ref().map_or(&[], |schedule| &schedule.items)
    }

    fn may_run(&self) -> bool {
        !self.over && self.best.runs < self.runs_max
    }

    fn fails(&mut self, candidate: &[ScheduledFault]) -> bool {
        let left = self.items().len();
        self.over = !(self.may_continue)(left);
        if self.over {
            return false;
        }
        self.best.runs += 1;
        let case = given(&self.best.case, candidate);
        match case.run() {
            Ok(_) => false,
            Err(violation) => {
                self.best.case = case;
                self.best.violation = violation;
                true
            }
        }
    }

    fn remove_pieces(&mut self) {
        let mut piece = self.items().len();
        while piece > 0 && self.may_run() {
            let mut at = 0;
            let mut shorter = false;
            while at < self.items().len() && self.may_run() {
                let candidate = without(self.items(), at, piece);
                if candidate.len() < self.items().len() && self.fails(&candidate) {
                    shorter = true;
                } else {
                    at += piece;
                }
            }
            // A whole pass at the finest without success: nothing can be taken out alone.
            piece = if piece == 1 && shorter { 1 } else { piece / 2 };
        }
    }

    /// Power cuts become orderly ends, and faults of messages vanish, where that does not matter.
    fn simplify(&mut self) {
        for index in 0..self.items().len() {
            while self.may_run() {
                let simpler = simpler(&self.items()[index].fault);
                let found = simpler.into_iter().any(|fault| {
                    let mut candidate = self.items().to_vec();
                    candidate[index].fault = fault;
                    self.may_run() && self.fails(&candidate)
                });
                if !found {
                    break;
                }
            }
        }
    }
}

fn given(case: &Case, items: &[ScheduledFault]) -> Case {
    Case { schedule: Some(Schedule { items: items.to_vec() }), ..case.clone() }
}

/// Ends of rounds stay: without them the clients would do something else.
fn without(items: &[ScheduledFault], at: usize, piece: usize) -> Vec<ScheduledFault> {
    let kept = items.iter().enumerate().filter(|(index, item)| {
        !(at..at + piece).contains(index) || item.fault.is_end() && item.is_in_round()
    });
    kept.map(|(_, item)| item.clone()).collect()
}

fn simpler(fault: &Fault) -> Vec<Fault> {
    match fault {
        Fault::PowerCut {} | Fault::KillAll {} => vec![Fault::End {}],
        Fault::Slow { node, factor, .. } => {
            vec![Fault::Slow { node: *node, factor: *factor, step_ns: 0 }]
        }
        Fault::Network { .. } => simpler_networks(fault),
        _ => Vec::new(),
    }
}

/// One kind of fault less, each time.
fn simpler_networks(fault: &Fault) -> Vec<Fault> {
    let text = fault.to_string();
    let fields = text.split(' ').filter(|field| field.contains("_ppm=") && !field.ends_with("=0"));
    let without = |field: &str| {
        let name = field.split('=').next().unwrap_or_default();
        text.replace(field, &format!("{name}=0")).parse().ok()
    };
    fields.filter_map(without).collect()
}
