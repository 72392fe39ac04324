//! Where a volume is: a directory of this host, or servers of other hosts.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

/// How an address of other hosts begins.
pub const SCHEME: &str = "mdfs://";

/// The port of a server, unless its address names another one.
pub const DEFAULT_PORT: u16 = 7400;

/// Servers that one address names, at most: any of them names all others.
pub const SERVERS_MAX: usize = 64;

/// Where a volume is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VolumeAddress {
    /// A directory of this host.
    Directory(PathBuf),
    /// Behind servers that are reached over the network.
    Remote {
        /// `host:port` of each, an IPv6 address in brackets; at least one.
        servers: Vec<String>,
        /// The name of the volume there.
        volume: String,
    },
}

/// The text is no address of a volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}; write mdfs://HOST[:PORT][,HOST[:PORT]...]/VOLUME, as in mdfs://node1:7400/scratch")]
pub struct BadVolumeAddress {
    why: &'static str,
}

const fn bad(why: &'static str) -> BadVolumeAddress {
    BadVolumeAddress { why }
}

impl VolumeAddress {
    /// An address as people write it. All that does not begin with [`SCHEME`] is a directory.
    pub fn parse(text: impl AsRef<OsStr>) -> Result<Self, BadVolumeAddress> {
        let bytes = text.as_ref().as_bytes();
        if bytes.is_empty() {
            return Err(bad("the address of a volume is empty"));
        }
        let Some(rest) = bytes.strip_prefix(SCHEME.as_bytes()) else {
            return Ok(Self::Directory(PathBuf::from(OsString::from_vec(bytes.to_vec()))));
        };
        let rest = str::from_utf8(rest).map_err(|_| bad("the address is not UTF-8"))?;
        let (hosts, volume) = rest.split_once('/').unwrap_or((rest, ""));
        let volume = volume.strip_suffix('/').unwrap_or(volume);
        if volume.is_empty() {
            return Err(bad("the address names no volume"));
        }
        if volume.contains(['/', ':']) {
            return Err(bad("the name of a volume has no '/' and no ':'"));
        }
        let servers = hosts.split(',').map(server).collect::<Result<Vec<_>, _>>()?;
        if servers.len() > SERVERS_MAX {
            return Err(bad("the address names more than 64 servers"));
        }
        Ok(Self::Remote { servers, volume: volume.to_owned() })
    }

    /// The directory, if the volume is in one of this host.
    pub fn directory(&self) -> Option<&Path> {
        match self {
            Self::Directory(directory) => Some(directory),
            Self::Remote { .. } => None,
        }
    }
}

/// `host:port` of `text`, which may leave out the port.
fn server(text: &str) -> Result<String, BadVolumeAddress> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) =
                rest.split_once(']').ok_or(bad("an IPv6 address lacks its closing bracket"))?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(bad("what is in brackets is no IPv6 address"));
            }
            let port = if port.is_empty() { None } else { Some(port.strip_prefix(':')) };
            (format!("[{host}]"), port.map(Option::unwrap_or_default))
        }
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err(bad("an IPv6 address needs brackets"));
            }
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (text.to_owned(), None),
        },
    };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_[]:".contains(&byte);
    if host.is_empty() || !host.bytes().all(fits) {
        return Err(bad("the address names no host"));
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => match port.parse() {
            Ok(port) if port > 0 => port,
            _ => return Err(bad("a port is a number from 1 to 65535")),
        },
    };
    Ok(format!("{host}:{port}"))
}

impl fmt::Display for VolumeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(directory) => directory.display().fmt(f),
            Self::Remote { servers, volume } => {
                write!(f, "{SCHEME}{}/{volume}", servers.join(","))
            }
        }
    }
}

impl From<&Path> for VolumeAddress {
    fn from(directory: &Path) -> Self {
        Self::Directory(directory.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(text: &str) -> Option<(Vec<String>, String)> {
        match VolumeAddress::parse(text).unwrap() {
            VolumeAddress::Remote { servers, volume } => Some((servers, volume)),
            VolumeAddress::Directory(_) => None,
        }
    }

    #[test]
    fn an_address_names_servers_and_a_volume() {
        let some = |servers: &[&str], volume: &str| {
            Some((servers.iter().map(|&server| server.to_owned()).collect(), volume.to_owned()))
        };
        assert_eq!(remote("mdfs://node1/scratch"), some(&["node1:7400"], "scratch"));
        assert_eq!(remote("mdfs://10.0.0.1:9/v/"), some(&["10.0.0.1:9"], "v"));
        assert_eq!(remote("mdfs://a,b:1,[::1],[fe80::2]:3/v.1"), {
            some(&["a:7400", "b:1", "[::1]:7400", "[fe80::2]:3"], "v.1")
        });
        for directory in ["scratch", "/srv/a:b", "mdfs", "mdfs:", "mdfs:/x"] {
            assert_eq!(remote(directory), None, "{directory}");
        }
    }

    #[test]
    fn an_address_is_displayed_as_it_is_parsed() {
        for text in ["mdfs://a:7400,[::1]:2/v", "/srv/scratch", "scratch"] {
            assert_eq!(VolumeAddress::parse(text).unwrap().to_string(), text);
        }
        let text = VolumeAddress::parse("mdfs://a/v").unwrap().to_string();
        assert_eq!(text, "mdfs://a:7400/v");
    }

    #[test]
    fn a_bad_address_is_refused_with_the_right_form() {
        let cases = [
            ("", "is empty"),
            ("mdfs://", "names no volume"),
            ("mdfs://a", "names no volume"),
            ("mdfs://a/", "names no volume"),
            ("mdfs:///v", "names no host"),
            ("mdfs://a,/v", "names no host"),
            ("mdfs://a b/v", "names no host"),
            ("mdfs://a/v/w", "no '/'"),
            ("mdfs://a/v:/w", "no '/' and no ':'"),
            ("mdfs://::1/v", "needs brackets"),
            ("mdfs://[::1/v", "closing bracket"),
            ("mdfs://[x]/v", "no IPv6 address"),
            ("mdfs://[::1]9/v", "a port is"),
            ("mdfs://a:/v", "a port is"),
            ("mdfs://a:0/v", "a port is"),
            ("mdfs://a:65536/v", "a port is"),
        ];
        for (text, why) in cases {
            let error = VolumeAddress::parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
            assert!(error.ends_with("as in mdfs://node1:7400/scratch"), "{error}");
        }
        let many = format!("mdfs://{}a/v", "a,".repeat(SERVERS_MAX));
        assert!(VolumeAddress::parse(many).is_err());
    }
}
