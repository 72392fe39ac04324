//! The commands, one file each.

mod bench;
mod cat;
mod check;
mod cluster;
mod cp;
mod demo;
mod df;
mod format;
mod get;
mod ls;
mod mkdir;
pub(crate) mod mount;
mod mv;
mod put;
mod rm;
mod rotate_keys;
mod serve;
mod stat;

use clap::{Parser, Subcommand};

use crate::Commands;
use crate::completion::{Completion, Man};
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
    Cluster(cluster::Cluster),
    #[command(after_help = "Examples:
  mdfs completion bash > ~/.local/share/bash-completion/completions/mdfs
  mdfs completion zsh > ~/.zfunc/_mdfs              with ~/.zfunc in fpath, before compinit
  mdfs completion fish > ~/.config/fish/completions/mdfs.fish
  . <(mdfs completion bash)                         in this shell only")]
    Completion(Completion),
    #[command(after_help = "Examples:
  mdfs man | man -l -                     read it
  mdfs man --out ~/.local/share/man/man1  write it and mdfs-cp(1), mdfs-serve(1), ...")]
    Man(Man),
}

impl Commands for Program {
    const NAME: &'static str = "mdfs";

    fn run(self, session: &mut Session) -> Result<(), Failure> {
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
            Command::Cluster(cluster) => cluster.run(session),
            Command::Completion(completion) => completion.run::<Self>(session),
            Command::Man(man) => man.run::<Self>(session),
        }
    }

    fn log_level(&self) -> &'static str {
        match self.command {
            // The output has what it finds, with more about where it is.
            Command::Check(_) | Command::Scrub(_) => "error",
            _ => "warn",
        }
    }
}
