//! `VOL:/path`: a file in a volume.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser};
use client::address::{BadVolumeAddress, SCHEME, VolumeAddress};

/// A file in a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumePath {
    /// Where the volume is.
    pub(crate) volume: VolumeAddress,
    /// The path in it, from its root.
    pub(crate) path: Vec<u8>,
}

/// The text is not `VOL:/path`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadVolumePath {
    /// No volume, or no path.
    #[error(
        "it names no file in a volume; write the volume's directory or address, a colon and a path \
         from its root, as in scratch:/results/step1 or mdfs://node1:7400/scratch:/results/step1"
    )]
    NoPath,
    /// The address of the volume makes no sense.
    #[error(transparent)]
    Address(#[from] BadVolumeAddress),
}

impl VolumePath {
    /// The volume ends at the first `:/` (after `mdfs://`), or at a `:` at the very end (its root).
    pub(crate) fn parse(text: &OsStr) -> Result<Self, BadVolumePath> {
        let bytes = text.as_bytes();
        let scheme = if is_address(text) { SCHEME.len() } else { 0 };
        let colon = bytes[scheme..].windows(2).position(|pair| pair == b":/");
        let (volume, path) = match colon.map(|colon| scheme + colon) {
            Some(colon) => (&bytes[..colon], &bytes[colon + 1..]),
            None => (bytes.strip_suffix(b":").ok_or(BadVolumePath::NoPath)?, &b"/"[..]),
        };
        if volume.is_empty() {
            return Err(BadVolumePath::NoPath);
        }
        let volume = VolumeAddress::parse(OsStr::from_bytes(volume))?;
        Ok(Self { volume, path: path.to_vec() })
    }

    /// For the argument parser.
    pub(crate) fn parser() -> ValueParser {
        ValueParser::new(OsStringValueParser::new().try_map(|text| Self::parse(&text)))
    }

    /// The last name of the path; none for the root.
    pub(crate) fn last_name(&self) -> Option<&[u8]> {
        let names = self.path.split(|&byte| byte == b'/');
        names.rev().find(|name| !name.is_empty()).filter(|name| !matches!(*name, b"." | b".."))
    }
}

/// Does it begin like an address of servers?
pub(crate) fn is_address(text: &OsStr) -> bool {
    text.as_bytes().starts_with(SCHEME.as_bytes())
}

/// `name` in the directory `path`.
pub(crate) fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if path.ends_with(b"/") { b"" } else { b"/" };
    [path, slash, name].concat()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_volume_ends_at_the_first_colon_before_a_slash() {
        let parse = |text: &str| {
            let parsed = VolumePath::parse(OsStr::new(text)).ok()?;
            Some((parsed.volume.to_string(), String::from_utf8(parsed.path).unwrap()))
        };
        let some = |volume: &str, path: &str| Some((volume.to_owned(), path.to_owned()));
        assert_eq!(parse("VOL:/a/b"), some("VOL", "/a/b"));
        assert_eq!(parse("/tmp/my vol:/"), some("/tmp/my vol", "/"));
        assert_eq!(parse("VOL:"), some("VOL", "/"));
        assert_eq!(parse("a:b:/c:/d"), some("a:b", "/c:/d"));
        assert_eq!(parse("mdfs://h:1,[::1]/v:/a"), some("mdfs://h:1,[::1]:7400/v", "/a"));
        assert_eq!(parse("mdfs://h/v:/c:/d"), some("mdfs://h:7400/v", "/c:/d"));
        assert_eq!(parse("mdfs://h/v:"), some("mdfs://h:7400/v", "/"));
        for bad in ["mdfs://h/v", "mdfs://h:/a", "mdfs://h/:/a", "mdfs:///v:/a"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        for bad in ["", "VOL", "/tmp/x", ":/a", ":", "VOL:a"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_last_name_is_the_one_to_copy_under() {
        let last = |path: &str| {
            let parsed =
                VolumePath { volume: VolumeAddress::from(Path::new("v")), path: path.into() };
            parsed.last_name().map(<[u8]>::to_vec)
        };
        assert_eq!(last("/a/b"), Some(b"b".to_vec()));
        assert_eq!(last("/a/b//"), Some(b"b".to_vec()));
        assert_eq!(last("/"), None);
        assert_eq!(last("/a/.."), None);
    }
}
