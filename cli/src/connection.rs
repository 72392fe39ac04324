//! How a command reaches the servers of a volume: the options that all of them share.

use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{OsStringValueParser, PossibleValuesParser, TypedValueParser, ValueParser};
use client::address::{SCHEME, VolumeAddress};
use client::fabric::FabricWish;
use client::volume::{ConnectOptions, ParityMaker};
use client::wide::WideMode;
use runtime::identity::SubtreePath;

/// The options of a command that uses a volume.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ConnectionArguments {
    /// A file with a user token, for servers of other hosts. Without it: the file that `MDFS_TOKEN`
    /// names, else VOLUME.token in ~/.config/mdfs.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath,
          help_heading = "Connection")]
    pub(crate) token: Option<PathBuf>,
    /// How many seconds to wait for a server that is away, or `forever`.
    #[arg(long, value_name = "SECONDS", help_heading = "Connection")]
    pub(crate) timeout: Option<Timeout>,
    /// How to read over links with delay: off; auto (ahead of the program, if the link is far); on;
    /// thesis (one transfer at a time). Without it: what `MDFS_WIDE` says, else off.
    #[arg(long, value_name = "MODE", value_parser = wide_mode(), help_heading = "Connection")]
    pub(crate) wide: Option<WideMode>,
    /// Send and get large data over libfabric, if the servers of other hosts offer it too: off;
    /// auto (any network that this host has); or providers between commas, the preferred one first,
    /// as in `verbs;ofi_rxm,tcp;ofi_rxm`. Without it: what `MDFS_FABRIC` says, else off.
    #[arg(long, value_name = "PROVIDERS", help_heading = "Connection")]
    pub(crate) fabric: Option<FabricWish>,
    /// Who makes the parity of large writes, where files have wide stripes: servers (each byte
    /// crosses the link of this host once), or client (servers have less to compute). Without it:
    /// what `MDFS_PARITY` says, else servers.
    #[arg(long, value_name = "WHO", value_parser = parity_maker(), help_heading = "Connection")]
    pub(crate) parity: Option<ParityMaker>,
}

/// For the argument parser: who makes parity.
fn parity_maker() -> impl TypedValueParser<Value = ParityMaker> {
    let names = ParityMaker::NAMES.map(|(name, _)| name);
    PossibleValuesParser::new(names).map(|name| ParityMaker::from_name(&name).unwrap_or_default())
}

/// For the argument parser: a mode over links with delay.
fn wide_mode() -> impl TypedValueParser<Value = WideMode> {
    let names = WideMode::NAMES.map(|(name, _)| name);
    PossibleValuesParser::new(names).map(|name| WideMode::from_name(&name).unwrap_or_default())
}

/// For the argument parser: the path of a directory in the volume, to which clients are limited.
pub(crate) fn subtree_path() -> impl TypedValueParser<Value = SubtreePath> {
    OsStringValueParser::new().try_map(|path| {
        let path = path.as_encoded_bytes();
        SubtreePath::new(path.strip_suffix(b"/").unwrap_or(path)).ok_or(
            "write a path from the root of the volume, as in /projects/wind, without `.` and `..`, \
             of at most 512 bytes",
        )
    })
}

/// How long to wait; for ever if `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeout(pub(crate) Option<Duration>);

impl Timeout {
    const FOREVER: &str = "forever";
}

impl FromStr for Timeout {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == Self::FOREVER {
            return Ok(Self(None));
        }
        match text.parse() {
            Ok(seconds) if (1..=u64::from(u32::MAX)).contains(&seconds) => {
                Ok(Self(Some(Duration::from_secs(seconds))))
            }
            _ => Err("write a number of seconds from 1, or `forever`"),
        }
    }
}

impl std::fmt::Display for Timeout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(time) => write!(f, "{}", time.as_secs()),
            None => f.write_str(Self::FOREVER),
        }
    }
}

impl ConnectionArguments {
    /// What they say, over the defaults of this process.
    pub(crate) fn options(&self) -> io::Result<ConnectOptions> {
        let mut options = ConnectOptions::of_this_process()?;
        options.token = self.token.clone().or(options.token);
        options.wide = self.wide.unwrap_or(options.wide);
        options.fabric = self.fabric.clone().unwrap_or(options.fabric);
        options.parity = self.parity.unwrap_or(options.parity);
        if let Some(Timeout(timeout)) = self.timeout {
            options.timeout = timeout;
        }
        Ok(options)
    }
}

/// For the argument parser: a directory, or an address of servers.
pub(crate) fn volume_address() -> ValueParser {
    ValueParser::new(OsStringValueParser::new().try_map(VolumeAddress::parse))
}

/// For the argument parser of commands that work on the files of a volume.
pub(crate) fn volume_directory() -> ValueParser {
    ValueParser::new(OsStringValueParser::new().try_map(|text| {
        if text.as_encoded_bytes().starts_with(SCHEME.as_bytes()) {
            return Err(
                "this command works on the files of the volume; run it on the host that has them, \
                 with the volume's directory",
            );
        }
        if text.to_string_lossy().trim_end_matches('/').ends_with(':') {
            return Err(
                "this command takes the volume's directory: write it without the colon, which names \
                 files in the volume",
            );
        }
        Ok(PathBuf::from(text))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_of_a_volume_has_no_colon_at_its_end() {
        let volume = clap::Arg::new("volume").value_parser(volume_directory());
        let command = clap::Command::new("serve").arg(volume);
        let parse = |text| command.clone().try_get_matches_from(["serve", text]).is_ok();
        for good in ["VOL", "a:b", "/srv/a:b/VOL/"] {
            assert!(parse(good), "{good}");
        }
        for bad in ["VOL:", "VOL:/", "/srv/VOL://", "mdfs://host/VOL"] {
            assert!(!parse(bad), "{bad}");
        }
    }

    #[test]
    fn a_timeout_is_seconds_or_for_ever() {
        assert_eq!("7".parse(), Ok(Timeout(Some(Duration::from_secs(7)))));
        assert_eq!("forever".parse(), Ok(Timeout(None)));
        for bad in ["0", "-1", "1.5", "", "x", "5000000000"] {
            assert!(bad.parse::<Timeout>().is_err(), "{bad}");
        }
        assert_eq!("forever".parse::<Timeout>().unwrap().to_string(), "forever");
        assert_eq!("120".parse::<Timeout>().unwrap().to_string(), "120");
    }
}
