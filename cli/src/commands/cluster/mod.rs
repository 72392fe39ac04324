//! `mdfs cluster`: a volume that several processes serve together.

mod certify;
mod file;
mod init;
mod members;
mod recover;
mod serve;
mod status;

use clap::Subcommand;

use crate::exit::CommandFailure;
use crate::session::CommandSession;

/// Make and run a volume that several processes serve together, on one host or on many.
///
/// FILE is the machine file, in TOML, the same on each host: it says where etcd is, what the volume
/// is like, and which processes there are. `mdfs cluster init --example` prints one to begin with.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs cluster init --example > cluster.toml      then edit it
  mdfs cluster init cluster.toml                  then copy keys to the hosts
  mdfs cluster serve cluster.toml 1 --nfs 0.0.0.0:2049      on the host of process 1
  mdfs cluster status cluster.toml
  mdfs cluster remove cluster.toml 3              its nodes go to the others")]
pub(crate) struct ClusterCommand {
    #[command(subcommand)]
    command: ClusterSubcommand,
}

#[derive(Debug, Subcommand)]
enum ClusterSubcommand {
    Init(init::Init),
    Certify(certify::Certify),
    Add(members::Add),
    Remove(members::Remove),
    Recover(recover::Recover),
    Serve(serve::ServeProcess),
    Status(status::Status),
}

impl ClusterCommand {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        match &self.command {
            ClusterSubcommand::Init(init) => init.run(session),
            ClusterSubcommand::Certify(certify) => certify.run(session),
            ClusterSubcommand::Add(add) => add.run(session),
            ClusterSubcommand::Remove(remove) => remove.run(session),
            ClusterSubcommand::Recover(recover) => recover.run(session),
            ClusterSubcommand::Serve(serve) => serve.run(session),
            ClusterSubcommand::Status(status) => status.run(session),
        }
    }
}
