//! A checkpoint on the emulated machine, message by message through its mesh.

use std::fs;
use std::path::PathBuf;

use machine_emu::mesh::{Policy, movie};
use sim::emulated::{Checkpoint, checkpoint};

use crate::exit::Failure;
use crate::session::Session;
use crate::size::Size;

/// What writes, and on which machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Checkpointing {
    /// Disk nodes, with four disks each
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u32).range(1..=8))]
    disk_nodes: u32,
    /// File-system nodes, in the slice next to the disks
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u32).range(1..=64))]
    fs_nodes: u32,
    /// Programs that write
    #[arg(long, value_name = "N", default_value = "7", value_parser = clap::value_parser!(u32).range(1..=7))]
    writers: u32,
    /// Bytes that each writes
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    size: Size,
    /// Who passes on what cannot be sent directly
    #[arg(long, value_name = "POLICY", default_value = "canonical", value_parser = policy)]
    forwarders: Policy,
    /// Of everything that is drawn
    #[arg(long, value_name = "S", default_value = "1")]
    seed: u64,
    /// Write a page that plays the load of the mesh
    #[arg(long, value_name = "FILE", conflicts_with_all = ["figures", "explain"])]
    movie: Option<PathBuf>,
}

fn policy(text: &str) -> Result<Policy, String> {
    let names = Policy::ALL.map(Policy::name);
    let found = Policy::ALL.into_iter().find(|policy| policy.name() == text);
    found.ok_or_else(|| format!("choose one of {}", names.join(", ")))
}

/// All of it is in memory, several times.
const SIZE_MAX: u64 = 16 << 20;

impl Checkpointing {
    pub(super) fn run(&self, session: &mut Session) -> Result<(), Failure> {
        let Self { disk_nodes, fs_nodes, writers, seed, forwarders, .. } = *self;
        if self.size.0 == 0 || self.size.0 > SIZE_MAX {
            return Err(Failure::Usage("--size is 1 byte to 16MiB on this machine".to_owned()));
        }
        let bytes = self.size.0 as usize;
        let what = Checkpoint { seed, disk_nodes, fs_nodes, writers, bytes, policy: forwarders };
        let title = format!("{writers} writers, {disk_nodes} disk nodes, seed {seed}");
        let mut page = None;
        let done = checkpoint(what, |mesh| {
            page = self.movie.as_ref().and_then(|_| movie(mesh, &title));
        });
        let done = done.map_err(|error| Failure::Wrong(format!("the run failed: {error}")))?;
        session.print(format!("{done}\nall files are as they were written\n"))?;
        if let (Some(path), Some(page)) = (&self.movie, page) {
            fs::write(path, page).map_err(|error| Failure::local("write", path, error))?;
            session.print(format!("open {} in a browser\n", path.display()))?;
        }
        Ok(())
    }
}
