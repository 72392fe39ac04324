//! The `mdfs-lab` program: MDFS under test, on machines that do not exist.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `sim/` | whole clusters in virtual time, with faults from seeds |
//! | `emulate/` | the J-Machine of 1996 and the figures of the thesis |
//! | `wide/` | clients over links with delay |
//! | `parity/` | who makes parity: writers, a ring of storage nodes, a switch |
//! | `crashes.rs` | every crash of every small workload |
//! | `convert.rs` | text between this computer and the J-Machine |
//! | `span.rs` | durations on the command line |
//!
//! What it shares with the program `mdfs` (sessions, output, exit codes, sizes) is in the library
//! of the package `mdfs`.

mod convert;
mod crashes;
mod emulate;
mod parity;
mod sim;
mod span;
#[cfg(test)]
mod tests;
mod wide;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use mdfs_cli::completion::{CompletionCommand, ManCommand};
use mdfs_cli::exit::{CommandFailure, EXIT_CODES};
use mdfs_cli::session::CommandSession;
use mdfs_cli::{Commands, run_program};

/// Test MDFS and reproduce the MDFS thesis: simulated clusters, the emulated J-Machine.
#[derive(Debug, Parser)]
#[command(name = "mdfs-lab", version, after_help = EXIT_CODES, arg_required_else_help = true)]
struct LabProgram {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    Sim(Box<sim::Sim>),
    Crashes(crashes::CrashSearch),
    Emulate(Box<emulate::Emulate>),
    Wide(wide::Wide),
    Parity(parity::Parity),
    Convert(convert::Convert),
    #[command(after_help = "Examples:
  mdfs-lab completion bash > ~/.local/share/bash-completion/completions/mdfs-lab
  . <(mdfs-lab completion bash)                     in this shell only")]
    Completion(CompletionCommand),
    #[command(after_help = "Examples:
  mdfs-lab man | man -l -                     read it
  mdfs-lab man --out ~/.local/share/man/man1  write it and mdfs-lab-sim(1), ...")]
    Man(ManCommand),
}

impl Commands for LabProgram {
    const NAME: &'static str = "mdfs-lab";

    fn run(self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        match self.command {
            LabCommand::Sim(sim) => sim.run(session),
            LabCommand::Crashes(crashes) => crashes.run(session),
            LabCommand::Emulate(emulate) => emulate.run(session),
            LabCommand::Wide(wide) => wide.run(session),
            LabCommand::Parity(parity) => parity.run(session),
            LabCommand::Convert(convert) => convert.run(session),
            LabCommand::Completion(completion) => completion.run::<Self>(session),
            LabCommand::Man(man) => man.run::<Self>(session),
        }
    }

    fn log_level(&self) -> &'static str {
        match self.command {
            // The warnings of a simulation are about its own faults.
            LabCommand::Sim(_) | LabCommand::Crashes(_) => "off",
            // A saturated disk node is meant to refuse.
            LabCommand::Emulate(_) => "error",
            _ => "warn",
        }
    }
}

/// Runs the program with `arguments` (the program's name first) and returns its exit code.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    run_program::<LabProgram>(arguments)
}
