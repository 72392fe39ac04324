//! `mdfs token`: what users show who use a volume from other hosts.

mod create;
mod rotate;
mod show;
mod users;

use clap::Subcommand;

use crate::exit::CommandFailure;
use crate::session::CommandSession;

/// Make, show and revoke tokens: files by which users prove who they are to the servers of a
/// volume.
///
/// A token is signed by a key of the volume, which only root of the volume can use.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs token create scratch --user alice --expires 12h --out alice.token
  mdfs token show alice.token
  mdfs token rotate scratch --revoke-all")]
pub(crate) struct TokenCommand {
    #[command(subcommand)]
    command: TokenSubcommand,
}

#[derive(Debug, Subcommand)]
enum TokenSubcommand {
    Create(create::CreateToken),
    Show(show::ShowToken),
    Rotate(rotate::RotateTokenKeys),
}

impl TokenCommand {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        match &self.command {
            TokenSubcommand::Create(create) => create.run(session),
            TokenSubcommand::Show(show) => show.run(session),
            TokenSubcommand::Rotate(rotate) => rotate.run(session),
        }
    }
}

/// Derives the bytes of a new key as they are stored, from 32 secret bytes that are used only here.
fn new_key(secret: &[u8; 32]) -> Vec<u8> {
    transport::identity::token::SigningKey::stored_of(secret)
}
