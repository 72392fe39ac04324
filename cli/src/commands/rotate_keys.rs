//! `mdfs rotate-keys`: a new key under NFS file handles.

use client::VolumeAddress;
use futures::executor::block_on;

use crate::connection::{ConnectionArguments, volume_address};
use crate::exit::CommandFailure;
use crate::session::CommandSession;
use crate::signals::secret;

/// Make a new key under the file handles of NFS clients; do it twice to shut out handles that
/// leaked.
///
/// Handles made before stay valid until the second rotation: clients that keep files open longer
/// mount again then. Gateways follow within half a minute.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs rotate-keys scratch")]
pub(crate) struct RotateKeys {
    #[command(flatten)]
    connection: ConnectionArguments,
    /// The volume: its directory, or `mdfs://HOST[:PORT]/VOLUME`.
    #[arg(value_name = "VOL", value_parser = volume_address())]
    volume: VolumeAddress,
}

impl RotateKeys {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        session.connect_with(&self.connection);
        let failed = |why: String| {
            let volume = &self.volume;
            CommandFailure::Wrong(format!(
                "cannot rotate the keys of volume {volume}: {why}; try again"
            ))
        };
        let secret = secret().map_err(|error| failed(error.to_string()))?;
        let volume = session.open(&self.volume)?;
        let rotated = nfs_gateway::rotate_keys(volume.file_system(), secret);
        let id = block_on(rotated).map_err(|error| failed(error.to_string()))?;
        session.print(format!("key {id} counts now\n"))
    }
}
