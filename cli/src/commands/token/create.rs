//! `mdfs token create`.

use std::path::PathBuf;
use std::time::Duration;

use client::VolumeAddress;
use client::root_keys::{RootKeys, TOKEN_KEYS};
use futures::executor::block_on;
use runtime::identity::SubtreePath;
use transport::identity::token::{self, SigningKey, VALIDITY_MAX};
use transport::tls::{KeyFolder, write_secret};

use super::new_key;
use super::users::holder;
use crate::connection::{ConnectionArguments, subtree_path, volume_address};
use crate::exit::CommandFailure;
use crate::session::CommandSession;
use crate::signals::secret;
use crate::time::{date_of, since_1970};

/// Make a token for a user.
///
/// The file has the token and the certificate of the volume's authority, and mode 600: give it to
/// its user only. A user puts it into ~/.config/mdfs/VOLUME.token, or names it with --token or
/// `MDFS_TOKEN`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs token create scratch --user alice --out alice.token
  mdfs token create scratch --user 1001 --groups 100,27 --expires 7d --out alice.token
  mdfs token create scratch --user alice --subtree /projects/wind --out alice.token
  mdfs token create /srv/mdfs/1 --keys keys --user alice        for a volume of a cluster")]
pub(super) struct CreateToken {
    #[command(flatten)]
    connection: ConnectionArguments,
    /// The volume: its directory, or `mdfs://HOST[:PORT]/VOLUME`.
    #[arg(value_name = "VOL", value_parser = volume_address())]
    volume: VolumeAddress,
    /// The user, by name or number.
    #[arg(long, value_name = "USER")]
    user: String,
    /// Its groups, by name or number, the first one for new files; those that the user has on this
    /// host if none is given.
    #[arg(long, value_name = "GROUP", value_delimiter = ',')]
    groups: Vec<String>,
    /// How long the token is valid, as in 30m, 12h or 7d.
    #[arg(long, value_name = "TIME", default_value = "12h", value_parser = validity)]
    expires: Duration,
    /// The directory that its holder sees as the root; nothing outside of it can be reached.
    #[arg(long, value_name = "PATH", value_parser = subtree_path())]
    subtree: Option<SubtreePath>,
    /// Where to write it; to standard output if this is not given.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The folder with authority.pem; `keys` in the directory of the volume if this is not given.
    #[arg(long, value_name = "FOLDER")]
    keys: Option<PathBuf>,
}

impl CreateToken {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        session.connect_with(&self.connection);
        let failed = |why: String| {
            let volume = &self.volume;
            CommandFailure::Wrong(format!("cannot make a token for volume {volume}: {why}"))
        };
        let who = holder(&self.user, &self.groups).map_err(&failed)?;
        let authority = self.key_folder().map_err(&failed)?.authority_certificate()?;
        let [seed, nonce] = [secret(), secret()];
        let seed = seed.map_err(|error| failed(error.to_string()))?;
        let nonce = nonce.map_err(|error| failed(error.to_string()))?;
        let volume = session.open(&self.volume)?;
        let keys = RootKeys::new(volume.file_system(), TOKEN_KEYS);
        let keys = block_on(keys.valid_or_first(|_| new_key(&seed))).map_err(|error| {
            failed(format!("its keys cannot be used: {error}; only root of the volume may do this"))
        })?;
        let newest = keys.first().and_then(|key| SigningKey::of_stored(key.number, &key.value));
        let newest = newest.ok_or_else(|| {
            failed("its newest key has no private part; `mdfs token rotate` makes another".into())
        })?;
        let nonce = u64::from_le_bytes(*nonce.first_chunk().expect("a secret is longer"));
        let now = since_1970();
        let subtree = self.subtree.as_ref();
        let token = newest.token_within(subtree, &who, now, self.expires, nonce);
        let text = token::to_text(&token) + &authority;
        let Some(path) = &self.out else { return session.print(text) };
        write_secret(path, &text).map_err(|error| failed(error.to_string()))?;
        let limit = subtree.map_or_else(String::new, |path| format!(", below {path} only"));
        session.print(format!(
            "{}: user {} until {} UTC{limit}\n",
            path.display(),
            who.uid,
            date_of(now + self.expires)
        ))
    }

    fn key_folder(&self) -> Result<KeyFolder, String> {
        match (&self.keys, &self.volume) {
            (Some(folder), _) => Ok(KeyFolder(folder.clone())),
            (None, VolumeAddress::Directory(path)) => Ok(KeyFolder::of_volume(path)),
            (None, VolumeAddress::Remote { .. }) => {
                Err("name the folder that has its authority.pem with --keys".into())
            }
        }
    }
}

/// For the argument parser: `30m`, `12h`, `7d`.
fn validity(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let seconds = match &text[digits.len()..] {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => 0,
    };
    let seconds = digits.parse().ok().and_then(|count: u64| count.checked_mul(seconds));
    match seconds.map(Duration::from_secs) {
        Some(time) if !time.is_zero() && time <= VALIDITY_MAX => Ok(time),
        _ => Err("write a number and s, m, h or d, up to 365d, as in 12h".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_validity_is_a_number_with_a_unit() {
        assert_eq!(validity("12h"), Ok(Duration::from_hours(12)));
        assert_eq!(validity("365d"), Ok(VALIDITY_MAX));
        for bad in ["", "12", "h", "0h", "-1h", "1.5h", "366d", "1w", "99999999999999999999s"] {
            assert!(validity(bad).is_err(), "{bad}");
        }
    }
}
