//! `mdfs cluster`: a volume that several processes serve together.

mod certify;
mod file;
mod init;
mod keys;
mod members;
mod serve;
mod status;

use clap::Subcommand;

use crate::exit::Failure;
use crate::session::Session;

/// Make and run a volume that several processes serve together, on one host or on many.
///
/// FILE is the machine file, in TOML, the same on each host: it says where etcd is, what the volume is
/// like, and which processes there are. `mdfs cluster init --example` prints one to begin with.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs cluster init --example > cluster.toml      then edit it
  mdfs cluster init cluster.toml                  then copy keys to the hosts
  mdfs cluster serve cluster.toml 1 --nfs 0.0.0.0:2049      on the host of process 1
  mdfs cluster status cluster.toml
  mdfs cluster remove cluster.toml 3              its nodes go to the others")]
pub(crate) struct Cluster {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Init(init::Init),
    Certify(certify::Certify),
    Add(members::Add),
    Remove(members::Remove),
    Serve(serve::Serve),
    Status(status::Status),
}

impl Cluster {
    pub(super) fn run(&self, session: &mut Session) -> Result<(), Failure> {
        match &self.command {
            Command::Init(init) => init.run(session),
            Command::Certify(certify) => certify.run(session),
            Command::Add(add) => add.run(session),
            Command::Remove(remove) => remove.run(session),
            Command::Serve(serve) => serve.run(session),
            Command::Status(status) => status.run(session),
        }
    }
}
