//! Exports: directories, the clients that may use them, and their rights.
//!
//! Nothing is stored per client: each request is checked by the export in its file handle and the
//! address of its peer, so a new table takes effect with the next request.
//!
//! | file | holds |
//! | --- | --- |
//! | `network.rs` | networks of clients |
//! | `roots.rs` | where nested exports are in the tree |

mod network;
mod roots;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use fileio::protocol::Credentials;

pub use network::ClientNetwork;
pub(crate) use roots::{ExportRoots, PathName};

use crate::rpc::AuthSys;

/// The default user and group of squashed callers, and of callers without a credential.
pub(crate) const ANONYMOUS: u32 = 65_534;

/// Ports below this can be bound by root only.
const PRIVILEGED_PORTS_END: u16 = 1024;

/// Which users are mapped to the anonymous user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
pub enum Squash {
    /// Root.
    #[default]
    #[serde(rename = "root_squash")]
    Root,
    /// No user.
    #[serde(rename = "no_root_squash")]
    None,
    /// All users.
    #[serde(rename = "all_squash")]
    All,
}

/// The groups of a caller besides the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerGroups {
    /// Those that it sends, sixteen at most.
    Sent,
    /// Those that the [host](crate::GroupLookup) of the gateway knows, if it knows the user.
    OfHost,
}

/// What the clients of one network may do in an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clients {
    /// The network.
    pub network: ClientNetwork,
    /// The export is writable for them.
    pub writable: bool,
    /// Which users are mapped to the anonymous user.
    pub squash: Squash,
    /// The anonymous user and group.
    pub anonymous: (u32, u32),
    /// Only calls from ports below 1024 are answered.
    pub secure: bool,
    /// Which groups callers have besides their first.
    pub groups: CallerGroups,
    /// A change of names or attributes is durable before the reply, as RFC 1813 section 4.8
    /// requires. If not, a crash may undo the changes of the last seconds. (Data are as stable as
    /// the client requests in any case.)
    pub sync: bool,
}

impl Clients {
    /// All clients in `network`, with all rights and no squashing.
    fn trusted(network: ClientNetwork) -> Self {
        let anonymous = (ANONYMOUS, ANONYMOUS);
        Self {
            network,
            writable: true,
            squash: Squash::None,
            anonymous,
            secure: false,
            groups: CallerGroups::Sent,
            sync: true,
        }
    }

    /// The user whose rights a caller with `credential` has, of whom the host knows `groups`.
    pub(crate) fn credentials(
        &self,
        credential: Option<&AuthSys>,
        known: Option<&[u32]>,
    ) -> Credentials {
        let (user, group) = self.anonymous;
        let unless_root = |id, anonymous| {
            if id == 0 && self.squash == Squash::Root { anonymous } else { id }
        };
        match credential {
            Some(AuthSys { uid, gid, groups }) if self.squash != Squash::All => {
                let groups =
                    known.filter(|_| self.groups == CallerGroups::OfHost).unwrap_or(groups);
                Credentials {
                    uid: unless_root(*uid, user),
                    gid: unless_root(*gid, group),
                    groups: groups.iter().map(|gid| unless_root(*gid, group)).collect(),
                }
            }
            _ => Credentials { uid: user, gid: group, groups: Vec::new() },
        }
    }
}

/// An exported directory with all below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its number in file handles.
    pub(crate) id: u32,
    /// The components of its path from the volume's root.
    pub(crate) parts: Vec<Vec<u8>>,
    clients: Vec<Clients>,
}

impl Export {
    /// Exports the directory `path` of the volume to `clients`; the first entry that a peer belongs
    /// to decides.
    pub fn new(path: &[u8], clients: Vec<Clients>) -> Self {
        let parts: Vec<Vec<u8>> = parts(path).iter().map(|part| part.to_vec()).collect();
        let mut export = Self { id: 0, parts, clients };
        // File handles contain it: the same path has the same number for ever.
        export.id = runtime::hash::xxh3(&export.path()) as u32;
        export
    }

    /// The path of the directory.
    pub fn path(&self) -> Vec<u8> {
        if self.parts.is_empty() {
            return b"/".to_vec();
        }
        self.parts.iter().flat_map(|part| [&b"/"[..], part]).flatten().copied().collect()
    }

    /// The clients that may use it.
    pub fn clients(&self) -> &[Clients] {
        &self.clients
    }

    /// The rights of the peer at `address`; `None` if it has none. A peer without an address
    /// belongs to [`ClientNetwork::Any`] only.
    pub(crate) fn clients_of(&self, address: Option<SocketAddr>) -> Option<&Clients> {
        let ip = address.map(|address| address.ip().to_canonical());
        let found = self.clients.iter().find(|clients| clients.network.contains(ip))?;
        let port = address.map_or(u16::MAX, |address| address.port());
        (!found.secure || port < PRIVILEGED_PORTS_END).then_some(found)
    }
}

/// All exports of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exports {
    all: Vec<Export>,
    /// Do groups of callers have to be looked up? Asked for each call.
    manages_gids: bool,
}

impl Exports {
    /// These exports.
    pub(crate) fn new(all: Vec<Export>) -> Self {
        let is_managed = |clients: &Clients| clients.groups == CallerGroups::OfHost;
        let manages_gids = all.iter().any(|export| export.clients.iter().any(is_managed));
        Self { all, manages_gids }
    }

    /// The whole volume, to clients on this host, without squashing: the default.
    pub fn loopback() -> Self {
        let networks = [
            ClientNetwork::of(IpAddr::from([127, 0, 0, 0]), 8),
            ClientNetwork::of(IpAddr::from(std::net::Ipv6Addr::LOCALHOST), 128),
        ];
        Self::new(vec![Export::new(b"/", networks.into_iter().map(Clients::trusted).collect())])
    }

    /// The whole volume, to all clients, without squashing: for emulated networks.
    pub fn all_clients() -> Self {
        Self::new(vec![Export::new(b"/", vec![Clients::trusted(ClientNetwork::Any)])])
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Export> {
        self.all.iter()
    }

    /// Do groups of callers have to be looked up?
    pub(crate) fn manages_gids(&self) -> bool {
        self.manages_gids
    }

    /// The one with this number.
    pub(crate) fn of_id(&self, id: u32) -> Option<&Export> {
        self.all.iter().find(|export| export.id == id)
    }

    /// Those that lie inside another one.
    pub(crate) fn nested(&self) -> impl Iterator<Item = &Export> {
        let paths: BTreeSet<&[Vec<u8>]> = self.iter().map(|export| &export.parts[..]).collect();
        let is_nested = move |inner: &&Export| {
            let parts = &inner.parts;
            (0..parts.len()).any(|length| paths.contains(&parts[..length]))
        };
        self.iter().filter(is_nested)
    }

    /// The innermost one that contains the directory `parts`.
    pub(crate) fn around(&self, parts: &[&[u8]]) -> Option<&Export> {
        let holds = |export: &&Export| {
            let Some(first) = parts.get(..export.parts.len()) else { return false };
            export.parts.iter().map(Vec::as_slice).eq(first.iter().copied())
        };
        self.all.iter().filter(holds).max_by_key(|export| export.parts.len())
    }
}

/// The components of `path`, with `.` and `..` resolved; symbolic links are not followed.
pub(crate) fn parts(path: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential(uid: u32) -> AuthSys {
        AuthSys { uid, gid: 0, groups: vec![0, 7] }
    }

    fn clients(squash: Squash) -> Clients {
        Clients { squash, anonymous: (11, 12), ..Clients::trusted(ClientNetwork::Any) }
    }

    #[test]
    fn root_and_its_group_are_squashed_and_others_are_not() {
        let root = clients(Squash::Root).credentials(Some(&credential(0)), None);
        assert_eq!(root, Credentials { uid: 11, gid: 12, groups: vec![12, 7] });
        assert_eq!(clients(Squash::Root).credentials(Some(&credential(5)), None).uid, 5);
        assert_eq!(clients(Squash::None).credentials(Some(&credential(0)), None).uid, 0);
        let all = clients(Squash::All).credentials(Some(&credential(5)), None);
        assert_eq!(all, Credentials { uid: 11, gid: 12, groups: vec![] });
        assert_eq!(clients(Squash::None).credentials(None, None).uid, 11);
    }

    #[test]
    fn known_groups_count_where_the_export_says_so_and_are_squashed() {
        let known = Some(&[0, 8, 9][..]);
        let sent = clients(Squash::Root).credentials(Some(&credential(5)), known);
        assert_eq!(sent, Credentials { uid: 5, gid: 12, groups: vec![12, 7] });
        let managed = Clients { groups: CallerGroups::OfHost, ..clients(Squash::Root) };
        let found = managed.credentials(Some(&credential(5)), known);
        assert_eq!(found, Credentials { uid: 5, gid: 12, groups: vec![12, 8, 9] });
        let unknown = managed.credentials(Some(&credential(5)), None);
        assert_eq!(unknown.groups, [12, 7]);
    }

    #[test]
    fn the_first_network_of_a_peer_decides_and_a_high_port_may_be_refused() {
        let strict = ClientNetwork::of(IpAddr::from([10, 0, 0, 0]), 8);
        let strict = Clients { secure: true, ..Clients::trusted(strict) };
        let export = Export::new(b"/", vec![strict, Clients::trusted(ClientNetwork::Any)]);
        let of = |address: &str| export.clients_of(Some(address.parse().unwrap()));
        assert!(of("10.1.2.3:1023").unwrap().secure);
        assert_eq!(of("10.1.2.3:1024"), None, "the first matching network decides");
        assert!(of("[::ffff:10.1.2.3]:800").unwrap().secure, "a mapped address is the same one");
        assert!(!of("11.1.2.3:1024").unwrap().secure);
        assert!(export.clients_of(None).is_some());
    }

    #[test]
    fn without_a_table_only_this_computer_is_served() {
        let exports = Exports::loopback();
        let root = exports.around(&[]).unwrap();
        let admits = |address: &str| root.clients_of(Some(address.parse().unwrap())).is_some();
        assert!(admits("127.0.0.1:40000") && admits("127.9.9.9:1") && admits("[::1]:40000"));
        assert!(!admits("10.0.0.1:800") && !admits("[::2]:800") && !admits("128.0.0.1:800"));
        assert_eq!(root.clients_of(None), None);
    }

    #[test]
    fn the_innermost_export_holds_a_path() {
        let export = |path: &[u8]| Export::new(path, vec![]);
        let exports = Exports::new(vec![export(b"/"), export(b"/a/b"), export(b"//a/./c/../d/")]);
        let around = |path: &[u8]| exports.around(&parts(path)).unwrap().path();
        assert_eq!(around(b"/a/b/c"), b"/a/b");
        assert_eq!(around(b"/a/bb"), b"/");
        assert_eq!(around(b"/a/b/.."), b"/");
        assert_eq!(around(b"/a/d/x"), b"/a/d");
        assert_eq!(Export::new(b"/a/d", vec![]).id, export(b"/a//d/").id);
        let nested = |exports: &Exports| exports.nested().map(Export::path).collect::<Vec<_>>();
        assert_eq!(nested(&exports), [b"/a/b", b"/a/d"]);
        assert_eq!(
            nested(&Exports::new(vec![export(b"/a"), export(b"/ab"), export(b"/b/a")])),
            [b""; 0]
        );
    }
}
