//! `cargo xtask planted`: does the simulator find bugs that were put there on purpose?
//!
//! | file | holds |
//! | --- | --- |
//! | `list.rs` | the list of bugs, and how they get into files |
//! | `copy.rs` | a copy of the tree with all of them |
//! | `hunt.rs` | one hunt, and what came of it |
//!
//! The copy is built once. Each bug is switched on by the environment of processes of its own,
//! which run the simulator until it finds something or its time is up.

mod copy;
mod hunt;
pub(crate) mod list;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use crate::steps::USAGE;
use crate::tidy::tree::SourceTree;
use hunt::{Hunt, HuntOutcome};
use list::Bug;

/// Hunts at a time.
const HUNTS_CONCURRENT: usize = 2;
/// Time for each bug, in seconds, unless told otherwise.
const SECONDS: u64 = 90;
/// The share of the bugs that must be caught, in percent.
const CAUGHT_MIN_PERCENT: usize = 95;
/// The hunt without a bug.
const CONTROL: &str = "(no bug)";

const HELP: &str = "usage: cargo xtask planted [--list] [--only ID]... [--seconds N]\n\n\
    Puts the bugs of machine-emu/sim/planted/ into a copy of the code, one switched on at a time, and\n\
    tells which of them the simulator finds within N seconds (90). docs/bugs.md tells more.";

struct HuntOptions {
    list: bool,
    only: Vec<String>,
    seconds: u64,
}

/// Runs the command; `arguments` are as [`HELP`] has it.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let Some(options) = options(arguments) else {
        eprintln!("{HELP}");
        return ExitCode::from(USAGE);
    };
    match planted(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

fn options(arguments: &[String]) -> Option<HuntOptions> {
    let mut options = HuntOptions { list: false, only: Vec::new(), seconds: SECONDS };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--list" => options.list = true,
            "--only" => options.only.push(arguments.next()?.clone()),
            "--seconds" => options.seconds = arguments.next()?.parse().ok()?,
            _ => return None,
        }
    }
    Some(options)
}

/// True if the simulator is as good as it must be.
fn planted(options: &HuntOptions) -> Result<bool, String> {
    let tree =
        SourceTree::read(".".as_ref()).map_err(|error| format!("cannot read the tree: {error}"))?;
    let (bugs, texts) = copy::with_all_bugs(&tree)?;
    if options.list {
        for bug in &bugs {
            println!("{:<44} {}", bug.id, bug.what);
        }
        println!("{} bugs", bugs.len());
        return Ok(true);
    }
    if let Some(id) = options.only.iter().find(|id| bugs.iter().all(|bug| bug.id != **id)) {
        return Err(format!("there is no bug `{id}`: see `cargo xtask planted --list`"));
    }
    let program = copy::build(&tree, &texts)?;
    let chosen: Vec<&Bug> = bugs
        .iter()
        .filter(|bug| options.only.is_empty() || options.only.contains(&bug.id))
        .collect();
    let layer_tests = copy::build_layer_tests()?;
    let budget = Duration::from_secs(options.seconds);
    let hunt = Hunt { program: &program, tests: &layer_tests, logs: copy::LOGS.as_ref(), budget };
    let outcomes = hunt_all(&hunt, &chosen)?;
    Ok(print_totals(&chosen, &outcomes))
}

/// The outcome for no bug, and for each of `bugs`.
fn hunt_all(hunt: &Hunt, bugs: &[&Bug]) -> Result<Vec<HuntOutcome>, String> {
    let hunted = bugs.iter().map(|bug| (bug.id.as_str(), bug.hunters.as_slice()));
    let waiting = Mutex::new([(CONTROL, [].as_slice())].into_iter().chain(hunted).enumerate());
    let outcomes = Mutex::new(Vec::new());
    let work = || {
        loop {
            let next = waiting.lock().ok().and_then(|mut waiting| waiting.next());
            let Some((index, (id, first))) = next else { return };
            let outcome = hunt.run(id, first);
            match &outcome {
                Ok(outcome) => println!("{id:<44} {outcome}"),
                Err(error) => eprintln!("{id:<44} cannot be hunted: {error}"),
            }
            if let Ok(mut outcomes) = outcomes.lock() {
                outcomes.push((index, outcome));
            }
        }
    };
    #[allow(clippy::disallowed_methods, reason = "this tool runs beside the system, not in it")]
    std::thread::scope(|scope| {
        for _ in 0..HUNTS_CONCURRENT {
            scope.spawn(work);
        }
    });
    let mut outcomes = outcomes.into_inner().map_err(|_| "a hunt has panicked".to_owned())?;
    outcomes.sort_by_key(|(index, _)| *index);
    let outcomes = outcomes.into_iter().map(|(_, outcome)| outcome);
    outcomes.collect::<Result<_, _>>().map_err(|error| format!("a hunt failed: {error}"))
}

/// Prints the sum; true if it is good.
fn print_totals(bugs: &[&Bug], outcomes: &[HuntOutcome]) -> bool {
    let (control, outcomes) = outcomes.split_at(1);
    let missed = |bug: &Bug, outcome: &HuntOutcome| {
        if let HuntOutcome::Nothing { .. } = outcome { Some(bug.id.clone()) } else { None }
    };
    let pairs = || bugs.iter().zip(outcomes);
    let missed_ids: Vec<String> = pairs().filter_map(|(bug, o)| missed(bug, o)).collect();
    let caught = bugs.len() - missed_ids.len();
    let tenths = caught * 1000 / bugs.len().max(1);
    print_by_hunter(outcomes);
    println!("\ncaught: {caught} of {} bugs ({}.{} %)", bugs.len(), tenths / 10, tenths % 10);
    for id in &missed_ids {
        println!("NOT CAUGHT: {id}");
    }
    let mut good = caught * 100 >= bugs.len() * CAUGHT_MIN_PERCENT;
    if !good {
        println!("that is less than {CAUGHT_MIN_PERCENT} %: make workloads or oracles stronger");
    }
    for (bug, _) in pairs().filter(|(bug, outcome)| bug.canary && missed(bug, outcome).is_some()) {
        println!("the canary {} was not caught: the hunt itself does not work", bug.id);
        good = false;
    }
    if !matches!(control[0], HuntOutcome::Nothing { .. }) {
        println!("without any bug there was a violation too: mend that first ({})", control[0]);
        good = false;
    }
    good
}

/// Prints how many bugs each hunter has caught.
fn print_by_hunter(outcomes: &[HuntOutcome]) {
    let mut caught: BTreeMap<&str, usize> = BTreeMap::new();
    for outcome in outcomes {
        if let HuntOutcome::Caught { by, .. } = outcome {
            *caught.entry(by.split(' ').next().unwrap_or_default()).or_default() += 1;
        }
    }
    println!();
    for (hunter, count) in caught {
        println!("{hunter:<14} {count:>4} caught");
    }
}
