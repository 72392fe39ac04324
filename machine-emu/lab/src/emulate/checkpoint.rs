//! A checkpoint on the emulated machine, message by message through its mesh.

use sim::emulated::{CheckpointRun, Emulation, checkpoint};

use super::machine::failed;
use mdfs_cli::exit::CommandFailure;
use mdfs_cli::session::CommandSession;
use mdfs_cli::size::ByteSize;

/// What is written.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct CheckpointArgs {
    /// Programs that write a file each; with --shell or --nfs usually none
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=7))]
    writers: Option<u32>,
    /// Bytes that each writes
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    size: ByteSize,
}

/// All of it is in memory, several times.
const SIZE_MAX: u64 = 16 << 20;
/// As many as there are places for programs, besides the host.
const WRITERS: u32 = 7;

impl CheckpointArgs {
    /// Before anything is made.
    pub(super) fn check(&self) -> Result<(), CommandFailure> {
        if self.size.0 == 0 || self.size.0 > SIZE_MAX {
            return Err(CommandFailure::Usage(
                "--size is 1 byte to 16MiB on this machine".to_owned(),
            ));
        }
        Ok(())
    }

    /// How many write.
    pub(super) fn writers(&self, interactive: bool) -> u32 {
        self.writers.unwrap_or(if interactive { 0 } else { WRITERS })
    }

    /// Writes, restarts, reads, compares, and tells.
    pub(crate) fn run(
        &self,
        machine: &Emulation,
        writers: u32,
        session: &mut CommandSession,
    ) -> Result<(), CommandFailure> {
        let (seed, bytes) = (machine.world().seed(), self.size.0 as usize);
        let done = checkpoint(machine, CheckpointRun { seed, writers, bytes }).map_err(failed)?;
        session.print(format!("{done}\nall files are as they were written\n"))
    }
}
