//! The limit of open files of this process, and how many connections fit below it.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Each kind of connection has this part of the limit, so that disks, files, and what the process
/// itself connects to keep the rest.
const CONNECTION_KINDS: u64 = 5;
/// The limit where the system sets none.
const UNLIMITED: u64 = 1 << 20;

/// Raises the limit of open files (`RLIMIT_NOFILE`) to what this user may have at most, and returns
/// it. For programs; a library leaves the limit of its program alone.
pub fn raise_open_files() -> io::Result<u64> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    Ok(maximum.unwrap_or(UNLIMITED))
}

/// How many of `wanted` connections of one kind (those of processes, of NFS clients, of clients on
/// this host) may be open, so that all kinds together stay below the limit of open files.
pub fn connections_within_limit(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(UNLIMITED);
    connections_below(limit, wanted)
}

fn connections_below(limit: u64, wanted: usize) -> usize {
    wanted.min(usize::try_from(limit / CONNECTION_KINDS).unwrap_or(usize::MAX)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_of_connections_leave_descriptors_for_disks() {
        assert_eq!(connections_below(20_000, 1024), 1024);
        let of_each = connections_below(1024, 4096);
        assert!(3 * of_each + 256 <= 1024, "{of_each}");
        assert_eq!(connections_below(3, 4096), 1, "some connection is always possible");
    }
}
