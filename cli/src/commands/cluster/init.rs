//! `mdfs cluster init`: makes a cluster.

use std::path::PathBuf;

use transport::tls::CERTIFICATE_DAYS;
use volume::cluster;

use super::file::{EXAMPLE, MachineFile};
use crate::exit::CommandFailure;
use crate::session::CommandSession;
use crate::size::human;

/// Make a cluster: keys for its processes, and in etcd the shape of its volume and its first node
/// map.
///
/// Keys that are there are kept. Each host needs authority.pem and the process-N.pem of its
/// processes from the folder of keys; authority.key stays here. Each process makes its disks when
/// it is started for the first time.
#[derive(Debug, clap::Args)]
pub(super) struct Init {
    /// The machine file.
    #[arg(value_name = "FILE", required_unless_present = "example")]
    file: Option<PathBuf>,
    /// Print a machine file to begin with, and do nothing else.
    #[arg(long)]
    example: bool,
    /// Make no keys: the processes are to be served with --insecure.
    #[arg(long)]
    insecure: bool,
}

impl Init {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let Some(path) = self.file.as_ref().filter(|_| !self.example) else {
            return session.print(EXAMPLE);
        };
        let file = MachineFile::read(path)?;
        let shape = file.shape()?;
        let directories = file.processes.iter().map(|process| process.directory.clone());
        if let Some((disk, volume)) = cluster::formatted_disk(&directories.collect::<Vec<_>>()) {
            let disk = disk.display();
            return Err(CommandFailure::Wrong(format!(
                "no cluster was made: disk {disk} holds volume {volume}; if its etcd was lost, rebuild \
                 it: mdfs cluster recover {}; for a new volume name other directories",
                path.display()
            )));
        }
        let keys = file.keys();
        if !self.insecure {
            keys.certify(&file.numbers(), CERTIFICATE_DAYS, false)?;
        }
        let made = cluster::bootstrap(&file.engine()?, &shape);
        let map =
            made.map_err(|error| CommandFailure::Wrong(format!("no cluster was made: {error}")))?;
        let (bytes, geometry) = (map.bytes(), map.geometry());
        if !self.insecure {
            session.print(format!("keys in {}: to each host its own\n", keys.0.display()))?;
        }
        session.print(format!(
            "volume {}: {} nodes, {} on {} disks of {} processes\n\
             start each process: mdfs cluster serve {} NUMBER\n",
            geometry.volume,
            geometry.fs_nodes,
            human(bytes),
            map.disks().len(),
            file.processes.len(),
            path.display(),
        ))
    }
}
