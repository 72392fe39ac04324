//! Who this process is: the user and the groups by which the file system judges it.

use std::io;

use fileio::protocol::{Credentials, GROUPS_MAX};

/// The effective user and groups of this process, as Linux reports them.
pub fn credentials() -> io::Result<Credentials> {
    parse(&std::fs::read_to_string("/proc/self/status")?)
        .ok_or_else(|| io::Error::other("/proc/self/status does not name a user and a group"))
}

/// The number of this process.
pub(crate) fn id() -> u32 {
    std::process::id()
}

/// The `umask` of this process. Linux shows it without a change; else it would have to be set and
/// set back, and other threads would make files meanwhile. The default if it is unknown.
pub fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    parse_umask(&status).unwrap_or(0o022)
}

/// A line as `Umask: octal`.
fn parse_umask(status: &str) -> Option<u32> {
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(mask.trim(), 8).ok()
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
    fn the_umask_is_octal() {
        assert_eq!(parse_umask("Name:\tx\nUmask:\t0027\n"), Some(0o027));
        assert_eq!(parse_umask("Name:\tx\n"), None);
    }

    #[test]
    fn the_effective_ids_are_taken() {
        let status = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \n";
        let expected = Credentials { uid: 2, gid: 6, groups: vec![9, 10] };
        assert_eq!(parse(status), Some(expected));
        assert_eq!(parse("Uid:\t1\n"), None);
        credentials().unwrap();
    }
}
