//! The users of this host and their groups, from its name services (files, LDAP).

use futures::FutureExt as _;
use futures::future::BoxFuture;
use nfs_gateway::GroupLookup;
use nix::unistd::{Uid, User, getgrouplist};

/// Asks the name services.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostUsers;

impl GroupLookup for HostUsers {
    #[allow(clippy::disallowed_methods, reason = "it asks the host, which no simulation has")]
    fn groups(&self, uid: u32) -> BoxFuture<'static, Option<Vec<u32>>> {
        // They may ask another host, and block meanwhile.
        let looking = tokio::task::spawn_blocking(move || groups_of(uid));
        looking.map(|found| found.ok().flatten()).boxed()
    }
}

fn groups_of(uid: u32) -> Option<Vec<u32>> {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten()?;
    let name = std::ffi::CString::new(user.name).ok()?;
    let groups = getgrouplist(&name, user.gid).ok()?;
    Some(groups.into_iter().map(nix::unistd::Gid::as_raw).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_in_its_group_and_a_number_without_a_user_has_none() {
        assert!(groups_of(0).unwrap().contains(&0));
        assert_eq!(groups_of(3_999_999_999), None);
    }
}
