//! The commands, one file each.

mod bench;
mod cat;
mod check;
mod cluster;
mod completion;
mod convert;
mod cp;
mod demo;
mod df;
mod emulate;
mod format;
mod get;
mod ls;
mod mkdir;
mod mount;
mod mv;
mod put;
mod rm;
mod rotate_keys;
mod serve;
mod sim;
mod stat;

use clap::{Parser, Subcommand};

use crate::exit::{EXIT_CODES, Failure};
use crate::session::Session;

/// Work with MDFS volumes.
///
/// VOL is the directory of a volume; `VOL:/path` names a file in it, from the volume's root. A command
/// asks the server that serves the volume, and opens the volume itself if none does.
#[derive(Debug, Parser)]
#[command(name = "mdfs", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub(crate) struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Format(format::Format),
    Serve(serve::Serve),
    Mount(mount::Mount),
    Cp(cp::Cp),
    Put(put::Put),
    Get(get::Get),
    Cat(cat::Cat),
    Ls(ls::Ls),
    Stat(stat::Stat),
    Mkdir(mkdir::Mkdir),
    Rm(rm::Rm),
    Mv(mv::Mv),
    Df(df::Df),
    Check(check::Check),
    Scrub(check::Scrub),
    RotateKeys(rotate_keys::RotateKeys),
    Bench(bench::Bench),
    Demo(demo::Demo),
    Sim(Box<sim::Sim>),
    Emulate(Box<emulate::Emulate>),
    Convert(convert::Convert),
    Cluster(cluster::Cluster),
    Completion(completion::Completion),
    Man(completion::Man),
}

impl Program {
    /// Does what the command says.
    pub(crate) fn run(self, session: &mut Session) -> Result<(), Failure> {
        match self.command {
            Command::Format(format) => format.run(session),
            Command::Serve(serve) => serve.run(session),
            Command::Mount(mount) => mount.run(session),
            Command::Cp(cp) => cp.run(session),
            Command::Put(put) => put.run(session),
            Command::Get(get) => get.run(session),
            Command::Cat(cat) => cat.run(session),
            Command::Ls(ls) => ls.run(session),
            Command::Stat(stat) => stat.run(session),
            Command::Mkdir(mkdir) => mkdir.run(session),
            Command::Rm(rm) => rm.run(session),
            Command::Mv(mv) => mv.run(session),
            Command::Df(df) => df.run(session),
            Command::Check(check) => check.run(session),
            Command::Scrub(scrub) => scrub.run(session),
            Command::RotateKeys(rotate) => rotate.run(session),
            Command::Bench(bench) => bench.run(session),
            Command::Demo(demo) => demo.run(session),
            Command::Sim(sim) => sim.run(session),
            Command::Emulate(emulate) => emulate.run(session),
            Command::Convert(convert) => convert.run(session),
            Command::Cluster(cluster) => cluster.run(session),
            Command::Completion(completion) => completion.run(session),
            Command::Man(man) => man.run(session),
        }
    }

    /// What is logged if `MDFS_LOG` does not say.
    pub(crate) fn log_level(&self) -> &'static str {
        match self.command {
            // The faults of a simulation are there to be warned of.
            Command::Sim(_) => "off",
            // What it finds is its output, with more of where it is; a saturated disk node is meant to
            // refuse.
            Command::Check(_) | Command::Scrub(_) | Command::Emulate(_) => "error",
            _ => "warn",
        }
    }
}
