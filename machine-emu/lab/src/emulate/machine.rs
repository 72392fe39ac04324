//! Which machine is emulated.

use std::path::Path;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use machine_emu::jmachine::{Profile, ProfileError, Topology};
use machine_emu::mesh::ForwardPolicy;
use sim::emulated::{EmulatedError, Emulation, EmulationSetup};

use mdfs_cli::exit::CommandFailure;
use mdfs_cli::local;

/// The machine, and what it costs.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct MachineArgs {
    /// Processors along X, Y and Z, disk nodes, and the boards that carry them
    #[arg(long, value_name = "MACHINE", default_value = "8x8x8 disks=8 board=0,2,4,6", value_parser = topology)]
    pub(super) machine: Topology,
    /// File-system nodes, in the slice next to the disks
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u32).range(1..=4096))]
    fs_nodes: u32,
    /// Who passes on what cannot be sent directly
    #[arg(long, value_name = "POLICY", default_value = "canonical", value_parser = policy())]
    pub(super) forwarders: ForwardPolicy,
    /// What processors, messages and disks cost: as-measured, ideal, a file, or none
    #[arg(long, value_name = "PROFILE", default_value = "as-measured")]
    pub(super) profile: String,
    /// Of everything that is drawn
    #[arg(long, value_name = "S", default_value = "1")]
    pub(super) seed: u64,
}

/// The profile of a machine on which only the mesh takes time.
const NONE: &str = "none";

fn topology(text: &str) -> Result<Topology, String> {
    Topology::parse(text).map_err(|error| error.to_string())
}

pub(super) fn policy() -> impl TypedValueParser<Value = ForwardPolicy> {
    let named = |name: String| ForwardPolicy::ALL.into_iter().find(|policy| policy.name() == name);
    PossibleValuesParser::new(ForwardPolicy::ALL.map(ForwardPolicy::name))
        .map(move |name| named(name).unwrap_or_default())
}

impl MachineArgs {
    /// Makes the machine, with an empty volume; it takes down what happens in its mesh if `record`.
    pub(super) fn start(&self, record: bool) -> Result<Emulation, CommandFailure> {
        let profile = if self.profile == NONE { None } else { Some(self.profile()?) };
        let Self { machine, fs_nodes, forwarders, seed, .. } = self;
        let setup = EmulationSetup {
            seed: *seed,
            topology: machine.clone(),
            fs_nodes: *fs_nodes,
            policy: *forwarders,
            profile,
            record,
        };
        Emulation::new(&setup).map_err(failed)
    }

    /// The profile by its name, or in its file.
    pub(super) fn profile(&self) -> Result<Profile, CommandFailure> {
        let path = Path::new(&self.profile);
        let wrong = |error: ProfileError| CommandFailure::Wrong(error.to_string());
        if !path.exists() {
            return Profile::shipped(&self.profile).map_err(wrong);
        }
        let text = local::read_text(path)?;
        Profile::parse(&text, &self.profile).map_err(wrong)
    }
}

/// What happened on the machine, as a failure of the program.
#[allow(clippy::needless_pass_by_value, reason = "it stands in map_err")]
pub(super) fn failed(error: EmulatedError) -> CommandFailure {
    CommandFailure::Wrong(format!("the run failed: {error}"))
}
