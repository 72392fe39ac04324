//! Who this process is: the user and the groups by which the file system judges it.

use std::io;

use fileio::protocol::{Credentials, GROUPS_MAX};

/// The effective user and groups of this process, as Linux tells them.
pub fn credentials() -> io::Result<Credentials> {
    parse(&std::fs::read_to_string("/proc/self/status")?)
        .ok_or_else(|| io::Error::other("/proc/self/status does not name a user and a group"))
}

/// Lines as `Uid: real effective saved filesystem`.
fn parse(status: &str) -> Option<Credentials> {
    let numbers = |key: &str| -> Option<Vec<u32>> {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_whitespace().map(|number| number.parse().ok()).collect()
    };
    let effective = |key| numbers(key)?.get(1).copied();
    let mut groups = numbers("Groups:")?;
    groups.truncate(GROUPS_MAX);
    Some(Credentials { uid: effective("Uid:")?, gid: effective("Gid:")?, groups })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effective_ids_are_taken() {
        let status = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \n";
        let expected = Credentials { uid: 2, gid: 6, groups: vec![9, 10] };
        assert_eq!(parse(status), Some(expected));
        assert_eq!(parse("Uid:\t1\n"), None);
        credentials().unwrap();
    }
}
