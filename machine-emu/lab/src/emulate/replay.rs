//! A recorded trace, sent again and compared.

use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use machine_emu::MeshSetup;
use machine_emu::jmachine::JMachine;
use machine_emu::mesh::{
    Journey, Journeys, MeshTrace, NetworkModel, ReplayTarget, TRACE_BYTES_MAX, Wires, replay,
};
use runtime::NodeId;

use super::machine::MachineArgs;
use mdfs_cli::exit::CommandFailure;
use mdfs_cli::local;
use mdfs_cli::output::table;
use mdfs_cli::session::CommandSession;

/// Which trace, and how.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ReplayArgs {
    /// Send the messages of a trace again, each at its time, and compare; on the machine of the
    /// recording unless --machine, --forwarders or --profile name another
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// How the network is modelled: formula (no message meets another), worm, or flit (every flit,
    /// slowly; forwarders then take messages in whole)
    #[arg(long, value_name = "LEVEL", default_value = "worm", requires = "replay", value_parser = level())]
    level: NetworkModel,
    /// Who shares a wire: own (each channel has one), priorities, or links (both directions)
    #[arg(long, value_name = "WIRES", requires = "replay", value_parser = wires())]
    wires: Option<Wires>,
}

/// What of the machine was named on the command line.
#[derive(Clone, Copy, Debug)]
pub(super) struct GivenOptions {
    pub(super) machine: bool,
    pub(super) forwarders: bool,
    pub(super) profile: bool,
}

fn level() -> impl TypedValueParser<Value = NetworkModel> {
    let named = |name: String| NetworkModel::ALL.into_iter().find(|level| level.name() == name);
    PossibleValuesParser::new(NetworkModel::ALL.map(NetworkModel::name))
        .map(move |name| named(name).unwrap_or_default())
}

fn wires() -> impl TypedValueParser<Value = Wires> {
    PossibleValuesParser::new(["own", "priorities", "links"]).map(|name| match name.as_str() {
        "priorities" => Wires::Priorities,
        "links" => Wires::Links,
        _ => Wires::Own,
    })
}

impl ReplayArgs {
    /// Was a trace named?
    pub(super) fn is_meant(&self) -> bool {
        self.replay.is_some()
    }

    pub(crate) fn run(
        &self,
        args: &MachineArgs,
        named: GivenOptions,
        session: &mut CommandSession,
    ) -> Result<(), CommandFailure> {
        let Some(path) = &self.replay else { return Ok(()) };
        let wrong = |error: &dyn std::fmt::Display| {
            CommandFailure::Wrong(format!("cannot replay {}: {error}", path.display()))
        };
        let trace = MeshTrace::from_bytes(&read(path)?).map_err(|error| wrong(&error))?;
        let recorded = Journeys::of(&trace).map_err(|error| wrong(&error))?;
        let stage = self.stage(&trace, args, named)?;
        let again = replay(&trace, &stage).map_err(|error| wrong(&error))?;
        let text = compare(&trace, &stage, &recorded, &again);
        session.print(text)
    }

    /// The machine of the trace, but for what was named.
    fn stage(
        &self,
        trace: &MeshTrace,
        args: &MachineArgs,
        named: GivenOptions,
    ) -> Result<ReplayTarget, CommandFailure> {
        let mut stage = ReplayTarget { level: self.level, ..ReplayTarget::of(trace) };
        if named.machine || named.profile {
            let profile = args.profile()?;
            let host = stage.geometry.host().map(|_| NodeId::application(0));
            let machine = JMachine { profile, topology: args.machine.clone(), host };
            let setup = MeshSetup::machine(&machine, stage.policy);
            let setup = setup.map_err(|error| CommandFailure::Wrong(error.to_string()))?;
            if named.machine {
                stage.geometry = setup.geometry;
            }
            if named.profile {
                stage.timing = setup.timing;
            }
        }
        if named.forwarders {
            stage.policy = args.forwarders;
        }
        stage.timing.wires = self.wires.unwrap_or(stage.timing.wires);
        Ok(stage)
    }
}

/// The bytes of a trace; what is longer than any trace is not read to its end.
fn read(path: &Path) -> Result<Vec<u8>, CommandFailure> {
    let mut bytes = Vec::new();
    let file = local::open(path)?;
    let most = TRACE_BYTES_MAX as u64 + 1;
    std::io::Read::read_to_end(&mut std::io::Read::take(file, most), &mut bytes)
        .map_err(|error| CommandFailure::local("read", path, error))?;
    Ok(bytes)
}

/// A number of the comparison: its name, and how it comes from the messages of a run, whose cycles
/// take this number of nanoseconds.
type ReplayRow = (&'static str, fn(&Journeys, f64) -> String);

const ROWS: [ReplayRow; 7] = [
    ("messages", |run, _| run.0.len().to_string()),
    ("forwarded", |run, _| run.0.iter().filter(|journey| journey.forwarded).count().to_string()),
    ("mean latency, us", |run, cycle_ns| format!("{:.2}", run.mean() * cycle_ns / 1e3)),
    ("median, us", |run, cycle_ns| micros(run.percentile(50), cycle_ns)),
    ("99 %, us", |run, cycle_ns| micros(run.percentile(99), cycle_ns)),
    ("longest, us", |run, cycle_ns| micros(run.percentile(100), cycle_ns)),
    ("the last came at, ms", |run, cycle_ns| micros(run.end() / 1000, cycle_ns)),
];

#[allow(clippy::cast_precision_loss, reason = "three digits are printed")]
fn micros(cycles: u64, cycle_ns: f64) -> String {
    format!("{:.2}", cycles as f64 * cycle_ns / 1e3)
}

#[allow(clippy::cast_precision_loss, reason = "a cycle has few nanoseconds")]
fn compare(
    trace: &MeshTrace,
    stage: &ReplayTarget,
    recorded: &Journeys,
    again: &Journeys,
) -> Vec<u8> {
    let cycles = [trace.timing.cycle_ns as f64, stage.timing.cycle_ns as f64];
    let row = |cells: [String; 3]| cells.map(String::into_bytes).to_vec();
    let head = ["", "recorded", "replayed"].map(str::to_owned);
    let mut rows = vec![row(head)];
    rows.extend(
        ROWS.map(|(name, of)| {
            row([name.to_owned(), of(recorded, cycles[0]), of(again, cycles[1])])
        }),
    );
    let mut text = table(&rows, &[false, true, true]);
    let (differ, first) = again.differ(recorded);
    let all = recorded.0.len();
    text.extend(match first {
        None => format!("all {all} messages took the same time\n").into_bytes(),
        Some([here, there]) => format!(
            "{differ} of {all} messages took another time, {}\n",
            first_of(trace, here, there)
        )
        .into_bytes(),
    });
    if trace.events_lost > 0 {
        let lost = trace.events_lost;
        text.extend(format!("the recording is not whole: {lost} events found no room\n").bytes());
    }
    text
}

/// Which message differs first, and how.
fn first_of(trace: &MeshTrace, here: Journey, there: Journey) -> String {
    let (letter, place) = there.message;
    let sent = trace.events.iter().filter(|event| event.kind == machine_emu::mesh::TraceKind::Sent);
    let ends = sent.clone().nth(letter as usize).map_or_else(String::new, |event| {
        let [from, to] = [event.from, event.to].map(|node| trace.geometry.place(node.into()));
        format!(" from {from} to {to}")
    });
    format!(
        "first message {place} of row {letter}{ends}, sent in cycle {}: {} cycles in place of {}",
        there.sent,
        here.latency(),
        there.latency()
    )
}
