//! `mdfs-lab emulate`: the J-Machine of 1996, with today's layers on it.

mod checkpoint;
mod figures;
mod keep;
mod machine;
mod nfs;
mod replay;
mod shell;

use std::net::SocketAddr;

use clap::parser::ValueSource;
use clap::{ArgMatches, FromArgMatches};

use self::checkpoint::CheckpointArgs;
use self::figures::FigureArgs;
use self::keep::OutputFiles;
use self::machine::MachineArgs;
use self::replay::{GivenOptions, ReplayArgs};
use mdfs_cli::exit::CommandFailure;
use mdfs_cli::session::CommandSession;

/// Run the layers on an emulated J-Machine: a checkpoint, a volume to try, NFS, or the figures of
/// the MDFS thesis.
///
/// Makes a volume on 8x8x8 nodes with disk nodes on their edge, lets programs on application nodes
/// write a file each, restarts all nodes, reads the files back and compares them. Time is virtual;
/// all messages go through the mesh, and the same seed does the same on any day and machine. The
/// volume is in memory and gone at the end.
///
/// With --shell commands work on the volume, and each prints its cost. With --nfs the host of the
/// machine serves the volume to NFS clients on this computer, until SIGTERM or SIGINT; virtual time
/// goes on while a call waits, and else with the clock.
///
/// With --figure: does figures of chapter 4 again: block I/O, cache and files as they are today, on
/// processors, a mesh and disks that take the time of a profile. Printed are what the thesis says,
/// what the ideal profile gives and what the calibrated one gives, and which numbers were fitted.
/// docs/reproduction.md says what agrees, what does not, and why.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs-lab emulate                                     a checkpoint on the mesh
  mdfs-lab emulate --machine '8x8x8 disks=2' --forwarders spread --movie load.html
                                                   then open load.html in a browser
  mdfs-lab emulate --shell                             commands; 'help' lists them
  mdfs-lab emulate --shell < script                    the same from a file, up to the first error
  mdfs-lab emulate --nfs 127.0.0.1:20490 --writers 7   then, for instance:
  nfs-ls 'nfs://127.0.0.1/?nfsport=20490&mountport=20490'
  mdfs-lab emulate --record run.trace                  keep all messages; and later
  mdfs-lab emulate --replay run.trace --forwarders round-robin --level flit
  mdfs-lab emulate --figure 4.2b                       a table
  mdfs-lab emulate --figure all --out figures          tables, and a picture (SVG), CSV and JSON of each
  mdfs-lab emulate --explain                           every number of the machine, with its source
  mdfs-lab emulate --figure 4.1a --profile mine.toml   with other costs than those of 1996

A profile is a TOML file with a table for each number, as --explain names them:
  about = \"A faster copy.\"
  based_on = \"as-measured\"
  [disk_node.copy]
  value = 40
  unit = \"cycles per word\"
  confidence = \"I\"
  source = \"what if\"")]
struct Arguments {
    #[command(flatten, next_help_heading = "The machine")]
    machine: MachineArgs,
    #[command(flatten, next_help_heading = "A checkpoint")]
    checkpointing: CheckpointArgs,
    #[command(flatten, next_help_heading = "A volume to try")]
    trying: InteractiveArgs,
    #[command(flatten, next_help_heading = "What is kept")]
    keep: OutputFiles,
    #[command(flatten, next_help_heading = "A trace again")]
    replaying: ReplayArgs,
    #[command(flatten, next_help_heading = "Figures of the thesis")]
    drawing: FigureArgs,
}

/// Who works on the volume after the checkpoint.
#[derive(Clone, Copy, Debug, clap::Args)]
struct InteractiveArgs {
    /// Read commands that work on the volume, and print the cost of each
    #[arg(long)]
    shell: bool,
    /// Serve the volume over NFS from the host of the machine; port 0 lets the system choose one
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "shell")]
    nfs: Option<SocketAddr>,
}

/// The arguments, and which of them were given.
#[derive(Debug)]
pub(crate) struct Emulate {
    arguments: Arguments,
    named: GivenOptions,
}

impl clap::Args for Emulate {
    fn augment_args(command: clap::Command) -> clap::Command {
        Arguments::augment_args(command)
    }
    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Arguments::augment_args_for_update(command)
    }
}

impl FromArgMatches for Emulate {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |name| matches.value_source(name) == Some(ValueSource::CommandLine);
        let [machine, forwarders, profile] = ["machine", "forwarders", "profile"].map(given);
        let named = GivenOptions { machine, forwarders, profile };
        Ok(Self { arguments: Arguments::from_arg_matches(matches)?, named })
    }
    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Emulate {
    pub(crate) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let Arguments { machine, checkpointing, trying, keep, replaying, drawing } =
            &self.arguments;
        let modes = [
            (trying.shell || trying.nfs.is_some(), "--shell or --nfs"),
            (replaying.is_meant(), "--replay"),
            (drawing.is_meant(), "--figure or --explain"),
        ];
        let meant: Vec<&str> = modes.iter().filter(|mode| mode.0).map(|mode| mode.1).collect();
        if let [one, other, ..] = meant[..] {
            return Err(CommandFailure::Usage(format!("{one} cannot be used with {other}")));
        }
        if keep.is_meant() && (replaying.is_meant() || drawing.is_meant()) {
            let kept = "--movie and --record cannot be used with --replay, --figure or --explain";
            return Err(CommandFailure::Usage(format!("{kept}: they keep what a volume does")));
        }
        if drawing.is_meant() {
            return drawing.run(machine, session);
        }
        if replaying.is_meant() {
            return replaying.run(machine, self.named, session);
        }
        checkpointing.check()?;
        let emulation = machine.start(keep.is_meant())?;
        let writers = checkpointing.writers(trying.shell || trying.nfs.is_some());
        if writers > 0 {
            checkpointing.run(&emulation, writers, session)?;
        }
        let tried = match trying.nfs {
            Some(address) => nfs::serve(&emulation, address, session),
            None if trying.shell => shell::run(&emulation, session),
            None => Ok(()),
        };
        // Also of what went wrong.
        keep.write(&emulation, session)?;
        tried
    }
}
