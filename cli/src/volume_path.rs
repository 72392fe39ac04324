//! `VOL:/path`: a file in a volume.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser};

/// A file in a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumePath {
    /// The volume's directory.
    pub(crate) volume: PathBuf,
    /// The path in it, from its root.
    pub(crate) path: Vec<u8>,
}

/// The text is not `VOL:/path`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it names no file in a volume; write the volume's directory, a colon and a path from its root, as in scratch:/results/step1"
)]
pub(crate) struct BadVolumePath;

impl VolumePath {
    /// The volume ends at the first `:/`, or at a `:` at the very end (its root).
    pub(crate) fn parse(text: &OsStr) -> Result<Self, BadVolumePath> {
        let bytes = text.as_bytes();
        let (volume, path) = match bytes.windows(2).position(|pair| pair == b":/") {
            Some(colon) => (&bytes[..colon], &bytes[colon + 1..]),
            None => (bytes.strip_suffix(b":").ok_or(BadVolumePath)?, &b"/"[..]),
        };
        if volume.is_empty() {
            return Err(BadVolumePath);
        }
        let volume = PathBuf::from(OsString::from_vec(volume.to_vec()));
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

/// `name` in the directory `path`.
pub(crate) fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if path.ends_with(b"/") { b"" } else { b"/" };
    [path, slash, name].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_ends_at_the_first_colon_before_a_slash() {
        let parse = |text: &str| {
            let parsed = VolumePath::parse(OsStr::new(text)).ok()?;
            Some((
                parsed.volume.to_str().unwrap().to_owned(),
                String::from_utf8(parsed.path).unwrap(),
            ))
        };
        let some = |volume: &str, path: &str| Some((volume.to_owned(), path.to_owned()));
        assert_eq!(parse("VOL:/a/b"), some("VOL", "/a/b"));
        assert_eq!(parse("/tmp/my vol:/"), some("/tmp/my vol", "/"));
        assert_eq!(parse("VOL:"), some("VOL", "/"));
        assert_eq!(parse("a:b:/c:/d"), some("a:b", "/c:/d"));
        for bad in ["", "VOL", "/tmp/x", ":/a", ":", "VOL:a"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_last_name_is_the_one_to_copy_under() {
        let last = |path: &str| {
            let parsed = VolumePath { volume: "v".into(), path: path.into() };
            parsed.last_name().map(<[u8]>::to_vec)
        };
        assert_eq!(last("/a/b"), Some(b"b".to_vec()));
        assert_eq!(last("/a/b//"), Some(b"b".to_vec()));
        assert_eq!(last("/"), None);
        assert_eq!(last("/a/.."), None);
    }
}
