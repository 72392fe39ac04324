//! What a certificate of a cluster's authority says of its holder.

use std::io;
use std::ops::RangeInclusive;

use tokio_rustls::rustls::pki_types::{DnsName, ServerName};
use webpki::EndEntityCert;

use super::Certificate;
use runtime::identity::{Principal, SubtreePath};

/// Users or groups without a limit.
pub const ALL_IDS: RangeInclusive<u32> = 0..=u32::MAX;

/// Before what a certificate of a client host says of its limits, as a URI (RFC 5280 section
/// 4.2.1.6).
const LIMITS_PREFIX: &str = "mdfs://client/";

/// The name of a process in its certificate.
pub fn process_name(number: u32) -> String {
    format!("process-{number}.mdfs")
}

pub(super) fn server_name(number: u32) -> ServerName<'static> {
    ServerName::try_from(process_name(number)).expect("the name of a process is a host name")
}

/// The number in the name of a process.
fn process_number(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("process-")?.strip_suffix(".mdfs")?;
    let number = digits.parse().ok()?;
    // One spelling for each number.
    (process_name(number) == name).then_some(number)
}

/// A host of clients, and for whom it may speak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCertificate {
    /// Its name.
    pub name: String,
    /// Users that it may name.
    pub uids: RangeInclusive<u32>,
    /// Groups that it may name.
    pub gids: RangeInclusive<u32>,
    /// Its root counts as the overflow user.
    pub squash_root: bool,
    /// The directory to which it is limited.
    pub subtree: Option<SubtreePath>,
}

impl HostCertificate {
    /// A host that may speak for all users but root.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            uids: ALL_IDS,
            gids: ALL_IDS,
            squash_root: true,
            subtree: None,
        }
    }

    /// For whom the host may speak.
    pub fn principal(self) -> Principal {
        let Self { name, uids, gids, squash_root, subtree: _ } = self;
        Principal::Host { name, uids, gids, squash_root }
    }

    /// The DNS name in the certificate; `None` if the host cannot have this name.
    pub(super) fn dns_name(&self) -> Option<String> {
        let name = format!("client-{}.mdfs", self.name);
        let is_plain = |letter: char| {
            letter.is_ascii_lowercase() || letter.is_ascii_digit() || matches!(letter, '-' | '.')
        };
        let is_valid = !self.name.is_empty()
            && self.name.chars().all(is_plain)
            && DnsName::try_from(name.as_str()).is_ok();
        is_valid.then_some(name)
    }

    /// The limits as they stand in the certificate.
    pub(super) fn uri(&self) -> String {
        let Self { name, uids, gids, squash_root, subtree } = self;
        let squash = if *squash_root { "root" } else { "none" };
        let subtree = subtree.as_ref().map_or_else(String::new, |path| {
            format!("&subtree={}", percent_encoded(path.as_bytes()))
        });
        format!(
            "{LIMITS_PREFIX}{name}?uids={}-{}&gids={}-{}&squash={squash}{subtree}",
            uids.start(),
            uids.end(),
            gids.start(),
            gids.end()
        )
    }

    /// Reads what [`uri`](Self::uri) writes, and nothing else.
    fn from_uri(uri: &str) -> Option<Self> {
        let (name, limits) = uri.strip_prefix(LIMITS_PREFIX)?.split_once('?')?;
        let mut limits = limits.split('&');
        let mut next = |key: &str| limits.next()?.strip_prefix(key)?.strip_prefix('=');
        let host = Self {
            uids: id_range(next("uids")?)?,
            gids: id_range(next("gids")?)?,
            squash_root: next("squash")? == "root",
            subtree: next("subtree").and_then(percent_decoded).and_then(|it| SubtreePath::new(&it)),
            name: name.to_owned(),
        };
        // Also refuses what the fields have lost.
        (host.uri() == uri).then_some(host)
    }
}

/// Bytes in a URI (RFC 3986 section 2.1).
fn percent_encoded(bytes: &[u8]) -> String {
    let mut text = String::new();
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let hexadecimal = |digit: u8| char::from(b"0123456789ABCDEF"[usize::from(digit)]);
            text.extend(['%', hexadecimal(byte >> 4), hexadecimal(byte & 15)]);
        }
    }
    text
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let (digits, after) = rest.split_first_chunk::<2>()?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = after;
    }
    Some(bytes)
}

/// Reads a range of user or group numbers: `1000-1999`, or one number.
pub fn id_range(text: &str) -> Option<RangeInclusive<u32>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = first.parse().ok()?..=last.parse().ok()?;
    (!range.is_empty()).then_some(range)
}

/// What the side that connects has proved by its certificate, if it has shown one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerCertificate {
    /// Nothing: it must show a token.
    None,
    /// It is this process.
    Process(u32),
    /// It is a host of clients.
    Client(HostCertificate),
}

impl PeerCertificate {
    /// Reads a certificate whose signature was checked.
    pub(super) fn of(certificate: Option<&Certificate>) -> io::Result<Self> {
        let Some(certificate) = certificate else { return Ok(Self::None) };
        let refused = || io::Error::new(io::ErrorKind::PermissionDenied, UnknownHolder);
        let parsed = EndEntityCert::try_from(certificate).map_err(|_| refused())?;
        let mut names = parsed.valid_dns_names();
        let mut uris = parsed.valid_uri_names();
        // A certificate is of one kind: one name, and limits with the name of a client only.
        let holder = match (names.next(), names.next(), uris.next(), uris.next()) {
            (Some(name), None, None, None) => process_number(name).map(Self::Process),
            (Some(name), None, Some(uri), None) => HostCertificate::from_uri(uri)
                .filter(|host| host.dns_name().as_deref() == Some(name))
                .map(Self::Client),
            _ => None,
        };
        holder.ok_or_else(refused)
    }
}

/// A certificate of the authority that names neither a process nor a client.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the certificate names neither a process nor a host of clients")]
struct UnknownHolder;

/// The process whose certificate this is.
pub(super) fn process_of(certificate: &Certificate) -> Option<u32> {
    match PeerCertificate::of(Some(certificate)) {
        Ok(PeerCertificate::Process(number)) => Some(number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_one_spelling() {
        let host = HostCertificate {
            name: "n1.example".into(),
            uids: 1000..=1999,
            gids: 5..=5,
            squash_root: false,
            subtree: None,
        };
        let uri = "mdfs://client/n1.example?uids=1000-1999&gids=5-5&squash=none";
        assert_eq!(host.uri(), uri);
        assert_eq!(HostCertificate::from_uri(uri), Some(host.clone()));
        let subtree = SubtreePath::new("/a b/%&?#/\u{e9}".as_bytes());
        assert!(subtree.is_some());
        let limited = HostCertificate { subtree, ..host };
        let limits = format!("{uri}&subtree=/a%20b/%25%26%3F%23/%C3%A9");
        assert_eq!(limited.uri(), limits);
        assert_eq!(HostCertificate::from_uri(&limits), Some(limited));
        for bad in [
            "mdfs://client/n1?uids=1000-999&gids=5-5&squash=none",
            "mdfs://client/n1?uids=1000-1999&gids=5-5&squash=no",
            "mdfs://client/n1?uids=1000-1999&gids=5-5",
            "mdfs://client/n1?uids=1000-1999&gids=5-5&squash=none&more=1",
            // A limit that is not understood is no missing limit.
            "mdfs://client/n1?uids=1000-1999&gids=5-5&squash=none&subtree=",
            "mdfs://client/n1?uids=1000-1999&gids=5-5&squash=none&subtree=/",
            "mdfs://client/n1?uids=1000-1999&gids=5-5&squash=none&subtree=a",
            "mdfs://client/n1?uids=1000-1999&gids=5-5&squash=none&subtree=/a/../b",
            "mdfs://client/n1?uids=1000-1999&gids=5-5&squash=none&subtree=/%61",
            "mdfs://client/n1?uids=1000-1999&gids=5-5&squash=none&subtree=/a%2",
            "mdfs://client/n1?uids=1000-1999&gids=5-5&squash=none&subtree=/%c3%a9",
            "mdfs://client/n1?uids=1000-1999&gids=5-5&squash=none&subtree=/a&subtree=/b",
            "mdfs://client/n1?uids=01000-1999&gids=5-5&squash=none",
            "mdfs://client/n1?uids=0-4294967296&gids=5-5&squash=none",
            "mdfs://client/n1?uids=+1-2&gids=5-5&squash=none",
            "mdfs://client/n1?gids=5-5&uids=1000-1999&squash=none",
            "mdfs://process/n1?uids=1000-1999&gids=5-5&squash=none",
        ] {
            assert_eq!(HostCertificate::from_uri(bad), None, "{bad}");
        }
    }

    #[test]
    fn names_of_hosts_are_names_and_no_process_has_two() {
        for good in ["n1", "node-7.example.org", "10.0.0.1"] {
            assert!(HostCertificate::new(good).dns_name().is_some(), "{good}");
        }
        let long = "a".repeat(60);
        for bad in ["", "N1", "a b", "a/b", "*", "a_b", "n1?uids=0-1", &long] {
            assert!(HostCertificate::new(bad).dns_name().is_none(), "{bad}");
        }
        assert_eq!(process_number("process-7.mdfs"), Some(7));
        for bad in ["process-07.mdfs", "process-+7.mdfs", "process-.mdfs", "client-7.mdfs", "x"] {
            assert_eq!(process_number(bad), None, "{bad}");
        }
    }

    #[test]
    fn ranges_are_numbers_in_order() {
        assert_eq!(id_range("7"), Some(7..=7));
        assert_eq!(id_range("7-9"), Some(7..=9));
        for bad in ["", "-", "9-7", "a-b", "1-", "-1", "1-4294967296"] {
            assert_eq!(id_range(bad), None, "{bad}");
        }
    }
}
