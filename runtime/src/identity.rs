//! Who a client may act as.
//!
//! A client on a port says who it is only by what it can prove: the credentials of its local
//! socket, a token, or the certificate of its host. From that the server makes a [`Principal`], and
//! [admits](crate::RequestInfo::admit) each request under it: what a request says of itself is
//! never believed.

use std::ops::RangeInclusive;

/// Groups of one user besides the first, at most.
pub const GROUPS_MAX: usize = 1024;

crate::record! {
    /// The user and the groups by which the file system judges a request.
    pub struct Credentials {
        /// The user.
        uid: u32,
        /// The group.
        gid: u32,
        /// Further groups, at most [`GROUPS_MAX`].
        groups: Vec<u32>,
    }
}

impl Credentials {
    /// The superuser.
    pub fn root() -> Self {
        Self { uid: 0, gid: 0, groups: Vec::new() }
    }

    /// The user and group to which the kernel maps those that it cannot name.
    pub fn unmapped() -> Self {
        Self { uid: OVERFLOW_ID, gid: OVERFLOW_ID, groups: Vec::new() }
    }

    /// Is the caller in `group`?
    pub fn in_group(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }
}

/// The overflow user and group of Linux.
const OVERFLOW_ID: u32 = 65_534;

/// Whom a client has proved to speak for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    /// Anyone: root of the server's host over a local socket, or any client of a server that
    /// demands no proof.
    Anyone,
    /// This user and no other.
    User(Credentials),
    /// The users of one host, as its kernel or its root names them.
    Host {
        /// The host's name in its certificate.
        name: String,
        /// Users that it may name.
        uids: RangeInclusive<u32>,
        /// Groups that it may name.
        gids: RangeInclusive<u32>,
        /// Its root counts as the overflow user, and root's group as the overflow group.
        squash_root: bool,
    },
}

impl Principal {
    /// For whom the user at the other end of a local socket speaks, if the kernel knows it.
    /// `owner` is the user of the server, who owns the disks and could change them anyway.
    pub fn of_local_peer(user: Option<&Credentials>, owner: u32) -> Result<Self, AccessRefused> {
        match user {
            None => Err(AccessRefused),
            // Users of another namespace, of whom none is the owner.
            Some(user) if user.uid == OVERFLOW_ID => Ok(Self::User(Credentials::unmapped())),
            Some(user) if user.uid == 0 || user.uid == owner => Ok(Self::Anyone),
            Some(user) => Ok(Self::User(user.clone())),
        }
    }
}

/// Bytes of the path of a subtree, at most.
const SUBTREE_BYTES_MAX: usize = 512;
/// Bytes of a name in it, at most.
const NAME_BYTES_MAX: usize = 255;

/// The directory to which a client is limited, as an absolute path in the volume: of at least one
/// name, without `.` and `..`, in one spelling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubtreePath(Vec<u8>);

impl SubtreePath {
    /// `path`, if it is one.
    pub fn new(path: &[u8]) -> Option<Self> {
        let names = path.strip_prefix(b"/")?.split(|&byte| byte == b'/');
        let is_name = |name: &[u8]| {
            !matches!(name, b"" | b"." | b"..")
                && name.len() <= NAME_BYTES_MAX
                && !name.contains(&0)
        };
        let is_one = path.len() <= SUBTREE_BYTES_MAX && names.into_iter().all(is_name);
        is_one.then(|| Self(path.to_vec()))
    }

    /// The path.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The names on the way to the directory, from the root.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|&byte| byte == b'/').skip(1)
    }
}

impl std::fmt::Display for SubtreePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.escape_ascii().fmt(f)
    }
}

/// The client is not allowed to send this request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server does not let this client do that")]
pub struct AccessRefused;

impl Principal {
    /// Makes `who`, as a request names it, the user under whom the request is judged.
    pub fn apply(&self, who: &mut Credentials) -> Result<(), AccessRefused> {
        match self {
            Self::Anyone => {}
            Self::User(user) => who.clone_from(user),
            Self::Host { uids, gids, squash_root, .. } => {
                if who.uid == 0 && *squash_root {
                    *who = Credentials::unmapped();
                    return Ok(());
                }
                let is_outside = |group: &u32| !gids.contains(group);
                let is_any_outside = is_outside(&who.gid) || who.groups.iter().any(is_outside);
                if !uids.contains(&who.uid) || is_any_outside {
                    return Err(AccessRefused);
                }
                if *squash_root {
                    who.groups.retain(|group| *group != 0);
                    who.gid = if who.gid == 0 { OVERFLOW_ID } else { who.gid };
                }
            }
        }
        if who.groups.len() > GROUPS_MAX { Err(AccessRefused) } else { Ok(()) }
    }

    /// The number by which the nodes know a client of this principal that has drawn `nonce` and is
    /// limited to `subtree`, if it is limited.
    ///
    /// The same at every process, for as long as the client lives. It cannot be chosen: another
    /// principal that wanted it, or the same within other limits, would have to find a nonce for
    /// it, among 2^64.
    pub fn client_number(&self, nonce: u128, subtree: Option<&SubtreePath>) -> u64 {
        let mut hash = blake3::Hasher::new_derive_key("mdfs client number");
        match self {
            Self::Anyone => hash.update(b"anyone"),
            Self::User(user) => hash.update(b"user").update(&user.uid.to_le_bytes()),
            Self::Host { name, .. } => hash.update(b"host").update(name.as_bytes()),
        };
        hash.update(&[0]).update(&nonce.to_le_bytes());
        if let Some(SubtreePath(path)) = subtree {
            hash.update(path);
        }
        let digest: [u8; 32] = hash.finalize().into();
        u64::from_le_bytes(digest[..8].try_into().expect("a digest is longer"))
    }
}

/// A client at the port of a server: its principal, and the number by which the nodes know it.
#[derive(Clone, Debug)]
pub struct ClientIdentity {
    /// Whom it speaks for.
    pub principal: Principal,
    /// Its number ([`Principal::client_number`]).
    pub number: u64,
}

impl ClientIdentity {
    /// Is `number`, in a request of this client, its own?
    pub fn owns(&self, number: u64) -> Result<(), AccessRefused> {
        if number == self.number { Ok(()) } else { Err(AccessRefused) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
        Credentials { uid, gid, groups: groups.to_vec() }
    }

    #[test]
    fn a_user_is_never_another_whatever_the_request_says() {
        let principal = Principal::User(user(7, 70, &[71]));
        for said in [Credentials::root(), user(8, 80, &[]), user(7, 0, &[0])] {
            let mut who = said;
            principal.apply(&mut who).unwrap();
            assert_eq!(who, user(7, 70, &[71]));
        }
    }

    #[test]
    fn a_local_peer_is_whom_the_kernel_names() {
        let of = |uid, owner| Principal::of_local_peer(Some(&user(uid, 9, &[8])), owner);
        assert_eq!(of(0, 1000), Ok(Principal::Anyone));
        assert_eq!(of(1000, 1000), Ok(Principal::Anyone), "it owns the disks");
        for owner in [0, 1000] {
            assert_eq!(of(1001, owner), Ok(Principal::User(user(1001, 9, &[8]))));
        }
        for owner in [0, OVERFLOW_ID] {
            assert_eq!(of(OVERFLOW_ID, owner), Ok(Principal::User(Credentials::unmapped())));
        }
        assert_eq!(Principal::of_local_peer(None, 0), Err(AccessRefused));
    }

    #[test]
    fn a_host_names_users_within_its_ranges_only() {
        let host = |squash_root| {
            let (name, uids, gids) = ("n1".to_owned(), 0..=2000, 0..=1999);
            Principal::Host { name, uids, gids, squash_root }
        };
        let apply =
            |principal: &Principal, mut who: Credentials| principal.apply(&mut who).map(|()| who);
        let allowed = user(2000, 1999, &[5]);
        assert_eq!(apply(&host(true), allowed.clone()), Ok(allowed));
        assert_eq!(apply(&host(true), user(2001, 5, &[])), Err(AccessRefused));
        assert_eq!(apply(&host(true), user(5, 2000, &[])), Err(AccessRefused));
        assert_eq!(apply(&host(true), user(5, 5, &[9, 2000])), Err(AccessRefused));
        assert_eq!(apply(&host(true), Credentials::root()), Ok(Credentials::unmapped()));
        assert_eq!(apply(&host(false), Credentials::root()), Ok(Credentials::root()));
        // The group of root is squashed with it.
        let mapped = user(5, OVERFLOW_ID, &[7]);
        assert_eq!(apply(&host(true), user(5, 0, &[0, 7])), Ok(mapped));
        assert_eq!(apply(&host(false), user(5, 0, &[0])), Ok(user(5, 0, &[0])));
    }

    #[test]
    fn numbers_of_clients_differ_by_principal_and_nonce() {
        let (one, other) = (Principal::User(user(1, 1, &[])), Principal::User(user(2, 1, &[])));
        let again = Principal::User(user(1, 5, &[6]));
        assert_eq!(one.client_number(9, None), again.client_number(9, None));
        assert_ne!(one.client_number(9, None), other.client_number(9, None));
        assert_ne!(one.client_number(9, None), one.client_number(10, None));
        assert_ne!(one.client_number(9, None), Principal::Anyone.client_number(9, None));
        let limited = |path| one.client_number(9, SubtreePath::new(path).as_ref());
        assert_ne!(limited(b"/a"), one.client_number(9, None));
        assert_ne!(limited(b"/a"), limited(b"/b"));
    }

    #[test]
    fn a_subtree_is_an_absolute_path_in_one_spelling() {
        for good in ["/a", "/a/b c", "/..a/...", "/\u{e9}"] {
            let path = SubtreePath::new(good.as_bytes()).unwrap();
            let names: Vec<&[u8]> = path.names().collect();
            assert_eq!(names.join(&b'/'), &good.as_bytes()[1..]);
        }
        let (long, many) = (format!("/{}", "a".repeat(256)), "/ab".repeat(171));
        for bad in ["", "/", "a", "a/b", "/a/", "//a", "/a//b", "/.", "/a/..", "/a\0", &long, &many]
        {
            assert_eq!(SubtreePath::new(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
