//! `mdfs token rotate`.

use client::VolumeAddress;
use client::root_keys::{KeysKept, RootKeys, TOKEN_KEYS};
use futures::executor::block_on;

use super::new_key;
use crate::connection::{ConnectionArguments, volume_address};
use crate::exit::CommandFailure;
use crate::session::CommandSession;
use crate::signals::secret;

/// Make a new key that signs tokens, and drop all but the newest of those before.
///
/// A token survives one rotation, not two. Servers refuse tokens of a dropped key within 30
/// seconds, also those of clients that are connected.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs token rotate scratch
  mdfs token rotate scratch --revoke-all        a token has leaked")]
pub(super) struct RotateTokenKeys {
    #[command(flatten)]
    connection: ConnectionArguments,
    /// The volume: its directory, or `mdfs://HOST[:PORT]/VOLUME`.
    #[arg(value_name = "VOL", value_parser = volume_address())]
    volume: VolumeAddress,
    /// Drop the newest key too: all tokens that were made before are revoked.
    #[arg(long)]
    revoke_all: bool,
}

impl RotateTokenKeys {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        session.connect_with(&self.connection);
        let failed = |why: String| {
            let volume = &self.volume;
            CommandFailure::Wrong(format!(
                "cannot rotate the token keys of volume {volume}: {why}; only root of the volume \
                 may do this"
            ))
        };
        let seed = secret().map_err(|error| failed(error.to_string()))?;
        let volume = session.open(&self.volume)?;
        let kept = if self.revoke_all { KeysKept::None } else { KeysKept::Newest };
        let keys = RootKeys::new(volume.file_system(), TOKEN_KEYS);
        let rotated = keys.rotate(kept, |_| new_key(&seed));
        let number = block_on(rotated).map_err(|error| failed(error.to_string()))?;
        session.print(format!("key {number} signs tokens now\n"))
    }
}
