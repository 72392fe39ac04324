//! The settings of a gateway in TOML: exports and limits.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use crate::config::Config;
use crate::exports::{ANONYMOUS, CallerGroups, ClientNetwork, Clients, Export, Exports, Squash};
use crate::limits;

/// Exports in one table, at most.
const EXPORTS_MAX: usize = 1024;
/// Client entries of one export, at most.
const CLIENTS_MAX: usize = 1024;

/// The settings of an operator: exports, and limits that differ from the default.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The exports.
    pub exports: Exports,
    limits: Limits,
}

/// The file is invalid, and none of it is applied.
#[derive(Debug, thiserror::Error)]
#[error("{file}, line {line}: {cause}; correct the file; the previous settings stay in force")]
pub struct SettingsError {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The cause.
    pub cause: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SettingsTable {
    #[serde(default)]
    limits: Limits,
    #[serde(default, rename = "export")]
    exports: Vec<ExportTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportTable {
    path: toml::Spanned<String>,
    #[serde(default, rename = "client")]
    clients: Vec<ClientTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientTable {
    network: ClientNetwork,
    #[serde(default)]
    access: Access,
    #[serde(default)]
    squash: Squash,
    #[serde(default = "anonymous")]
    anon_uid: u32,
    #[serde(default = "anonymous")]
    anon_gid: u32,
    #[serde(default = "yes")]
    secure: bool,
    #[serde(default)]
    manage_gids: bool,
    #[serde(default = "yes")]
    sync: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
enum Access {
    #[default]
    #[serde(rename = "ro")]
    Read,
    #[serde(rename = "rw")]
    Write,
}

fn anonymous() -> u32 {
    ANONYMOUS
}

fn yes() -> bool {
    true
}

/// A number in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u64")]
struct InRange<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> TryFrom<u64> for InRange<MIN, MAX> {
    type Error = String;

    fn try_from(value: u64) -> Result<Self, String> {
        if (MIN..=MAX).contains(&value) {
            Ok(Self(value))
        } else {
            Err(format!("{value} is not allowed here; choose from {MIN} to {MAX}"))
        }
    }
}

/// Clients may send WRITEs of this size, so less is not allowed.
const RECORD_BYTES_MIN: u64 = limits::RECORD_BYTES as u64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    record_bytes: Option<InRange<RECORD_BYTES_MIN, { 64 << 20 }>>,
    fragments: Option<InRange<1, { 1 << 16 }>>,
    connections: Option<InRange<1, { 1 << 20 }>>,
    connections_per_peer: Option<InRange<1, { 1 << 20 }>>,
    outstanding_calls: Option<InRange<1, { 1 << 16 }>>,
    outstanding_bytes: Option<InRange<{ 1 << 20 }, { 1 << 30 }>>,
    outstanding_bytes_per_peer: Option<InRange<{ 1 << 20 }, { 1 << 40 }>>,
    outstanding_bytes_total: Option<InRange<{ 1 << 20 }, { 1 << 40 }>>,
    incomplete_bytes: Option<InRange<{ 1 << 20 }, { 1 << 40 }>>,
    incomplete_bytes_per_peer: Option<InRange<{ 1 << 20 }, { 1 << 40 }>>,
    idle_seconds: Option<InRange<1, { 7 * 24 * 3600 }>>,
    drain_seconds: Option<InRange<0, 3600>>,
    slow_milliseconds: Option<InRange<1, { 3600 * 1000 }>>,
}

impl Settings {
    /// Parses `text`, the content of `file`.
    pub fn parse(text: &str, file: &str) -> Result<Self, SettingsError> {
        let failed = |at: usize, cause: String| {
            let before = text.get(..at).unwrap_or_default();
            let line = 1 + before.bytes().filter(|byte| *byte == b'\n').count();
            SettingsError { file: file.to_owned(), line, cause: cause.replace('\n', " ") }
        };
        let table: SettingsTable = toml::from_str(text).map_err(|error| {
            failed(error.span().map_or(0, |span| span.start), error.message().to_owned())
        })?;
        if table.exports.len() > EXPORTS_MAX {
            return Err(failed(0, format!("more than {EXPORTS_MAX} exports")));
        }
        let mut exports = BTreeMap::new();
        for export in table.exports {
            let at = export.path.span().start;
            let export = export.export().map_err(|cause| failed(at, cause))?;
            if let Some(other) = exports.insert(export.id, export) {
                let path = String::from_utf8_lossy(&other.path()).into_owned();
                let cause = format!("{path} has the same path or number; name each path once");
                return Err(failed(at, cause));
            }
        }
        Ok(Self { exports: Exports::new(exports.into_values().collect()), limits: table.limits })
    }

    /// Returns `config` with these settings.
    pub fn apply(&self, config: &Config) -> Config {
        let Limits { record_bytes, fragments, connections, .. } = self.limits;
        let Limits { connections_per_peer, outstanding_calls, outstanding_bytes, .. } = self.limits;
        let Limits { outstanding_bytes_per_peer, outstanding_bytes_total, .. } = self.limits;
        let Limits { incomplete_bytes, incomplete_bytes_per_peer, .. } = self.limits;
        let Limits { idle_seconds, drain_seconds, slow_milliseconds, .. } = self.limits;
        Config {
            exports: self.exports.clone(),
            record_bytes_max: size(record_bytes, config.record_bytes_max),
            fragments_max: size(fragments, config.fragments_max),
            connections_max: size(connections, config.connections_max),
            connections_per_peer_max: size(connections_per_peer, config.connections_per_peer_max),
            outstanding_calls_max: size(outstanding_calls, config.outstanding_calls_max),
            outstanding_bytes_max: size(outstanding_bytes, config.outstanding_bytes_max),
            outstanding_bytes_per_peer_max: size(
                outstanding_bytes_per_peer,
                config.outstanding_bytes_per_peer_max,
            ),
            outstanding_bytes_total_max: size(
                outstanding_bytes_total,
                config.outstanding_bytes_total_max,
            ),
            incomplete_bytes_max: size(incomplete_bytes, config.incomplete_bytes_max),
            incomplete_bytes_per_peer_max: size(
                incomplete_bytes_per_peer,
                config.incomplete_bytes_per_peer_max,
            ),
            idle: seconds(idle_seconds, config.idle),
            drain: seconds(drain_seconds, config.drain),
            slow: slow_milliseconds
                .map_or(config.slow, |InRange(value)| Duration::from_millis(value)),
            ..config.clone()
        }
    }

    /// Are the limits the same as those of `other`?
    pub fn has_limits_of(&self, other: &Self) -> bool {
        self.limits == other.limits
    }
}

fn size<const MIN: u64, const MAX: u64>(set: Option<InRange<MIN, MAX>>, usual: usize) -> usize {
    set.map_or(usual, |InRange(value)| value as usize)
}

fn seconds<const MIN: u64, const MAX: u64>(
    set: Option<InRange<MIN, MAX>>,
    usual: Duration,
) -> Duration {
    set.map_or(usual, |InRange(value)| Duration::from_secs(value))
}

impl ExportTable {
    fn export(self) -> Result<Export, String> {
        let path = self.path.into_inner();
        if !path.starts_with('/') {
            return Err(format!("the path `{path}` does not begin with `/`, the volume's root"));
        }
        if path.len() > nfs3_types::mount::MNTPATHLEN || path.contains('\0') {
            return Err("no client can mount this path; choose another".to_owned());
        }
        if self.clients.is_empty() {
            return Err(format!("`{path}` has no clients; add an [[export.client]]"));
        }
        if self.clients.len() > CLIENTS_MAX {
            return Err(format!("`{path}` has more than {CLIENTS_MAX} clients; use networks"));
        }
        let clients = self.clients.into_iter().map(|client| Clients {
            network: client.network,
            writable: client.access == Access::Write,
            squash: client.squash,
            anonymous: (client.anon_uid, client.anon_gid),
            secure: client.secure,
            groups: if client.manage_gids { CallerGroups::OfHost } else { CallerGroups::Sent },
            sync: client.sync,
        });
        Ok(Export::new(path.as_bytes(), clients.collect()))
    }
}

#[cfg(test)]
mod tests {
    use runtime::VolumeId;

    use super::*;

    const GOOD: &str = r#"
[limits]
record_bytes = 2097152
fragments = 3
connections = 4
connections_per_peer = 5
outstanding_calls = 6
outstanding_bytes = 2000000
outstanding_bytes_per_peer = 3000000
outstanding_bytes_total = 4000000
incomplete_bytes = 6000000
incomplete_bytes_per_peer = 5000000
idle_seconds = 7
drain_seconds = 8
slow_milliseconds = 9

[[export]]
path = "/home"
[[export.client]]
network = "10.0.0.0/8"
access = "rw"
squash = "all_squash"
anon_uid = 1
anon_gid = 2
secure = false
manage_gids = true
sync = false
[[export.client]]
network = "fd00::/8"
"#;

    #[test]
    fn a_table_says_who_may_what_and_the_careful_choice_is_the_usual_one() {
        let settings = Settings::parse(GOOD, "exports.toml").unwrap();
        let export = settings.exports.iter().next().unwrap();
        assert_eq!(export.path(), b"/home");
        let clients = |network: &str| Clients {
            network: network.parse().unwrap(),
            writable: false,
            squash: Squash::Root,
            anonymous: (ANONYMOUS, ANONYMOUS),
            secure: true,
            groups: CallerGroups::Sent,
            sync: true,
        };
        let first = Clients {
            writable: true,
            squash: Squash::All,
            anonymous: (1, 2),
            secure: false,
            groups: CallerGroups::OfHost,
            sync: false,
            ..clients("10.0.0.0/8")
        };
        assert_eq!(export.clients(), [first, clients("fd00::/8")]);
    }

    #[test]
    fn every_limit_can_be_set() {
        let settings = Settings::parse(GOOD, "exports.toml").unwrap();
        let config = settings.apply(&Config::new(VolumeId(1), [7; 32]));
        assert_eq!((config.record_bytes_max, config.fragments_max), (2_097_152, 3));
        assert_eq!((config.connections_max, config.connections_per_peer_max), (4, 5));
        assert_eq!((config.outstanding_calls_max, config.outstanding_bytes_max), (6, 2_000_000));
        let of_peers = (config.outstanding_bytes_per_peer_max, config.outstanding_bytes_total_max);
        assert_eq!(of_peers, (3_000_000, 4_000_000));
        let incomplete = (config.incomplete_bytes_max, config.incomplete_bytes_per_peer_max);
        assert_eq!(incomplete, (6_000_000, 5_000_000));
        assert_eq!((config.idle, config.drain), (Duration::from_secs(7), Duration::from_secs(8)));
        assert_eq!(config.slow, Duration::from_millis(9));
    }

    #[test]
    fn a_mistake_is_told_with_its_file_its_line_and_what_to_do() {
        let export = "[[export]]\npath = \"/a\"\n[[export.client]]\nnetwork = \"10.0.0.0/8\"\n";
        for (text, line, word) in [
            ("[limits]\nidle_seconds = 0\n".to_owned(), 2, "choose from 1"),
            ("[limits]\nrecord_bytes = 5\n".to_owned(), 2, "choose from"),
            ("[limits]\nidel_seconds = 9\n".to_owned(), 2, "idel_seconds"),
            (format!("{export}access = \"w\"\n"), 5, "`ro` or `rw`"),
            (format!("{export}squash = \"no\"\n"), 5, "no_root_squash"),
            (export.replace("0.0.0/8", "0.0.1/8"), 4, "behind its prefix"),
            (export.replace("/a", "a"), 2, "does not begin"),
            (format!("{export}{}", export.replace("/a", "/x/../a/")), 6, "once"),
            ("[[export]]\npath = \"/a\"\n".to_owned(), 2, "no clients"),
            ("\n\npath = \n".to_owned(), 3, ""),
        ] {
            let error = Settings::parse(&text, "e.toml").unwrap_err();
            assert_eq!(error.line, line, "{text}: {error}");
            let told = error.to_string();
            assert!(told.starts_with("e.toml, line ") && told.contains(word), "{told}");
        }
    }
}
