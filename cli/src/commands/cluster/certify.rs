//! `mdfs cluster certify`: keys for processes.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use runtime::identity::SubtreePath;
use transport::tls::{
    ALL_IDS, CERTIFICATE_DAYS, HostCertificate, KeyFolder, id_range, write_secret,
};

use super::file::MachineFile;
use crate::connection::subtree_path;
use crate::exit::CommandFailure;
use crate::session::CommandSession;

/// Make keys for processes of a cluster, by which they know each other, or for a host of clients.
///
/// The keys are in the folder that the machine file names (`keys` beside it if it names none):
/// authority.pem, which each host needs; process-N.pem, the key and certificate of process N, for
/// its host only; and authority.key, which makes them and is needed nowhere else. Keys that are
/// there are kept; with --renew they are made anew. A process reads them when it starts.
///
/// With --client, makes client-HOST.pem in this directory, for that host only: its root, or whom
/// its kernel names in a mount, then acts as any user within the limits.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs cluster certify cluster.toml              for processes that were added to the file
  mdfs cluster certify cluster.toml 2 --renew    then copy process-2.pem to its host and restart it
  mdfs cluster certify cluster.toml --client node7 --uids 1000-1999 --gids 100
  mdfs cluster certify cluster.toml --client node8 --subtree /projects/wind
  mdfs cluster certify scratch --client node7    for a volume of `mdfs serve --listen`")]
pub(super) struct Certify {
    /// The machine file; with --client also the directory of a volume that one process serves.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// For these processes of it; for all if none is named.
    #[arg(value_name = "NUMBER", conflicts_with = "client")]
    numbers: Vec<u32>,
    /// Make keys anew also where there are some.
    #[arg(long, conflicts_with = "client")]
    renew: bool,
    /// Make a certificate for this host of clients instead.
    #[arg(long, value_name = "HOST")]
    client: Option<String>,
    /// Users that the host may name, as in 1000-1999; all if this is not given.
    #[arg(long, value_name = "FIRST-LAST", requires = "client", value_parser = ids)]
    uids: Option<RangeInclusive<u32>>,
    /// Groups that the host may name.
    #[arg(long, value_name = "FIRST-LAST", requires = "client", value_parser = ids)]
    gids: Option<RangeInclusive<u32>>,
    /// Root of the host is root of the volume; else it is the overflow user.
    #[arg(long, requires = "client")]
    no_root_squash: bool,
    /// The directory that the host sees as the root; nothing outside of it can be reached.
    #[arg(long, value_name = "PATH", requires = "client", value_parser = subtree_path())]
    subtree: Option<SubtreePath>,
    /// How long the certificates hold.
    #[arg(long, value_name = "DAYS", default_value_t = CERTIFICATE_DAYS, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
}

impl Certify {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        if let Some(name) = &self.client {
            return self.certify_host(name, session);
        }
        let file = MachineFile::read(&self.file)?;
        let numbers = match &self.numbers[..] {
            [] => file.numbers(),
            some => some.to_vec(),
        };
        for number in &numbers {
            file.process(*number)?;
        }
        let keys = file.keys();
        let outcome = keys.certify(&numbers, self.days, self.renew)?;
        let list = |numbers: &[u32]| {
            let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
            if numbers.is_empty() { "none".to_owned() } else { numbers.join(", ") }
        };
        session.print(format!(
            "keys in {}: made for {}; kept for {}\n",
            keys.0.display(),
            list(&outcome.made),
            list(&outcome.kept)
        ))
    }

    fn certify_host(&self, name: &str, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let folder = if self.file.is_dir() {
            KeyFolder::of_volume(&self.file)
        } else {
            MachineFile::read(&self.file)?.keys()
        };
        let host = HostCertificate {
            name: name.to_owned(),
            uids: self.uids.clone().unwrap_or(ALL_IDS),
            gids: self.gids.clone().unwrap_or(ALL_IDS),
            squash_root: !self.no_root_squash,
            subtree: self.subtree.clone(),
        };
        if self.no_root_squash && !host.uids.contains(&0) {
            return Err(CommandFailure::Usage(
                "--no-root-squash means nothing where 0 is not among --uids".into(),
            ));
        }
        let text = folder.certify_host(&host, self.days)?;
        let path = format!("client-{name}.pem");
        let written = write_secret(Path::new(&path), &text);
        written.map_err(|error| CommandFailure::Wrong(error.to_string()))?;
        let limit = self.subtree.as_ref().map(|path| format!(", below {path} only"));
        let limit = limit.unwrap_or_default();
        session
            .print(format!("{path}: for host {name} only, valid for {} days{limit}\n", self.days))
    }
}

/// For the argument parser: `1000-1999`, or one number.
fn ids(text: &str) -> Result<RangeInclusive<u32>, &'static str> {
    id_range(text).ok_or("write two numbers in order, as in 1000-1999, or one")
}
