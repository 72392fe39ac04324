//! `mdfs cluster certify`: keys for processes.

use std::path::PathBuf;

use transport::tls::CERTIFICATE_DAYS;

use super::file::MachineFile;
use crate::exit::CommandFailure;
use crate::session::CommandSession;

/// Make keys for processes of a cluster, by which they know each other.
///
/// The keys are in the folder that the machine file names (`keys` beside it if it names none):
/// authority.pem, which each host needs; process-N.pem, the key and certificate of process N, for
/// its host only; and authority.key, which makes them and is needed nowhere else. Keys that are
/// there are kept; with --renew they are made anew. A process reads them when it starts.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs cluster certify cluster.toml              for processes that were added to the file
  mdfs cluster certify cluster.toml 2 --renew    then copy process-2.pem to its host and restart it")]
pub(super) struct Certify {
    /// The machine file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// For these processes of it; for all if none is named.
    #[arg(value_name = "NUMBER")]
    numbers: Vec<u32>,
    /// Make keys anew also where there are some.
    #[arg(long)]
    renew: bool,
    /// How long the certificates hold.
    #[arg(long, value_name = "DAYS", default_value_t = CERTIFICATE_DAYS, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
}

impl Certify {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
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
}
