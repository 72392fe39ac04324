//! The commands, one file each.

mod bench;
mod cat;
mod check;
mod cluster;
mod cp;
mod demo;
mod df;
mod disk;
mod du;
mod format;
mod get;
mod ls;
mod mkdir;
pub(crate) mod mount;
mod mv;
mod online_check;
mod partition;
mod put;
mod redundancy;
mod rm;
mod rotate_keys;
mod serve;
mod stat;
mod status;
mod token;
mod upgrade;

use clap::{Parser, Subcommand};

use crate::Commands;
use crate::completion::{CompletionCommand, ManCommand};
use crate::exit::{CommandFailure, EXIT_CODES};
use crate::session::CommandSession;

/// Work with MDFS volumes.
///
/// VOL is the directory of a volume, or `mdfs://HOST[:PORT][,HOST...]/VOLUME` for one behind
/// servers of other hosts; `VOL:/path` names a file in it, from the volume's root. A command asks
/// the server that serves the volume, and opens the volume of a directory itself if none does.
#[derive(Debug, Parser)]
#[command(name = "mdfs", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub(crate) struct MdfsProgram {
    #[command(subcommand)]
    command: MdfsCommand,
}

#[derive(Debug, Subcommand)]
enum MdfsCommand {
    Format(format::FormatCommand),
    Serve(serve::Serve),
    Mount(mount::MountCommand),
    Cp(cp::Cp),
    Put(put::Put),
    Get(get::Get),
    Cat(cat::Cat),
    Ls(ls::Ls),
    Stat(stat::StatCommand),
    Mkdir(mkdir::Mkdir),
    Rm(rm::Rm),
    Mv(mv::Mv),
    Status(status::VolumeSummary),
    Df(df::Df),
    Du(du::Du),
    Disk(disk::DiskCommand),
    Rebalance(disk::rebalance::Rebalance),
    Redundancy(redundancy::RedundancyCommand),
    Partition(partition::PartitionCommand),
    Check(check::Check),
    Scrub(check::ScrubCommand),
    RotateKeys(rotate_keys::RotateKeys),
    Upgrade(upgrade::Upgrade),
    Token(token::TokenCommand),
    Bench(bench::BenchCommand),
    Demo(demo::Demo),
    Cluster(cluster::ClusterCommand),
    #[command(after_help = "Examples:
  mdfs completion bash > ~/.local/share/bash-completion/completions/mdfs
  mdfs completion zsh > ~/.zfunc/_mdfs              with ~/.zfunc in fpath, before compinit
  mdfs completion fish > ~/.config/fish/completions/mdfs.fish
  . <(mdfs completion bash)                         in this shell only")]
    Completion(CompletionCommand),
    #[command(after_help = "Examples:
  mdfs man | man -l -                     read it
  mdfs man --out ~/.local/share/man/man1  write it and mdfs-cp(1), mdfs-serve(1), ...")]
    Man(ManCommand),
}

impl Commands for MdfsProgram {
    const NAME: &'static str = "mdfs";

    fn run(self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        match self.command {
            MdfsCommand::Format(format) => format.run(session),
            MdfsCommand::Serve(serve) => serve.run(session),
            MdfsCommand::Mount(mount) => mount.run(session),
            MdfsCommand::Cp(cp) => cp.run(session),
            MdfsCommand::Put(put) => put.run(session),
            MdfsCommand::Get(get) => get.run(session),
            MdfsCommand::Cat(cat) => cat.run(session),
            MdfsCommand::Ls(ls) => ls.run(session),
            MdfsCommand::Stat(stat) => stat.run(session),
            MdfsCommand::Mkdir(mkdir) => mkdir.run(session),
            MdfsCommand::Rm(rm) => rm.run(session),
            MdfsCommand::Mv(mv) => mv.run(session),
            MdfsCommand::Status(status) => status.run(session),
            MdfsCommand::Df(df) => df.run(session),
            MdfsCommand::Du(du) => du.run(session),
            MdfsCommand::Disk(disk) => disk.run(session),
            MdfsCommand::Rebalance(rebalance) => rebalance.run(session),
            MdfsCommand::Redundancy(redundancy) => redundancy.run(session),
            MdfsCommand::Partition(partition) => partition.run(session),
            MdfsCommand::Check(check) => check.run(session),
            MdfsCommand::Scrub(scrub) => scrub.run(session),
            MdfsCommand::RotateKeys(rotate) => rotate.run(session),
            MdfsCommand::Upgrade(upgrade) => upgrade.run(session),
            MdfsCommand::Token(token) => token.run(session),
            MdfsCommand::Bench(bench) => bench.run(session),
            MdfsCommand::Demo(demo) => demo.run(session),
            MdfsCommand::Cluster(cluster) => cluster.run(session),
            MdfsCommand::Completion(completion) => completion.run::<Self>(session),
            MdfsCommand::Man(man) => man.run::<Self>(session),
        }
    }

    fn log_level(&self) -> &'static str {
        match self.command {
            // The output has what it finds, with more about where it is.
            MdfsCommand::Check(_) | MdfsCommand::Scrub(_) => "error",
            // What a killed program was waiting for gets no reply, which fuser reports.
            MdfsCommand::Mount(_) => "warn,fuser::reply=error",
            // What they wait for they show themselves (`waiting.rs`).
            _ => "warn,transport::remote::outage=off",
        }
    }
}
