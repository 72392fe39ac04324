//! Who asks: the process on whose behalf the kernel does.

use client::protocol::{Credentials, GROUPS_MAX};

/// The process that asks, as the kernel tells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    uid: u32,
    gid: u32,
    pid: u32,
}

impl Caller {
    /// Who has sent `request`.
    pub(crate) fn of(request: &fuser::Request) -> Self {
        Self { uid: request.uid(), gid: request.gid(), pid: request.pid() }
    }

    /// Its user and groups. The kernel does not tell the further groups; the process waits for our
    /// answer, so they can be read. They are not needed for root, who may do everything.
    pub(crate) fn credentials(self) -> Credentials {
        let Self { uid, gid, pid } = self;
        let groups = if uid == 0 || pid == 0 { Vec::new() } else { further_groups(pid) };
        Credentials { uid, gid, groups }
    }

    /// Is there a signal that it has to take, or is it gone? What the kernel tells of signals is not
    /// passed on to us: so whoever is kept waiting is looked at now and then.
    pub(crate) fn is_interrupted(self) -> bool {
        if self.pid == 0 {
            return false;
        }
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid));
        status.is_ok_and(|status| has_signal(&status)) || !self.is_there()
    }

    fn is_there(self) -> bool {
        std::path::Path::new("/proc").join(self.pid.to_string()).exists()
    }

    /// Is it root, who may do everything?
    pub(crate) fn is_root(self) -> bool {
        self.uid == 0
    }
}

/// None if the process is gone: then nobody waits for the answer either.
fn further_groups(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    groups_in(&status)
}

/// Of the thread or of its process, and not blocked.
fn has_signal(status: &str) -> bool {
    let set = |name: &str| {
        let text = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        u64::from_str_radix(text.trim(), 16).unwrap_or_default()
    };
    (set("SigPnd:") | set("ShdPnd:")) & !set("SigBlk:") != 0
}

fn groups_in(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    let numbers = line.split_whitespace().filter_map(|number| number.parse().ok());
    numbers.take(GROUPS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_further_groups_of_a_process_are_found() {
        assert_eq!(groups_in("Name:\tx\nGid:\t1\t1\t1\t1\nGroups:\t4 24 \nVmPeak: 1\n"), [4, 24]);
        assert_eq!(groups_in("Groups:\t\n"), [] as [u32; 0]);
        assert_eq!(groups_in(""), [] as [u32; 0]);
        let many = format!("Groups:\t{}", "7 ".repeat(1000));
        assert_eq!(groups_in(&many).len(), GROUPS_MAX);
    }

    #[test]
    fn a_signal_interrupts_unless_it_is_blocked() {
        let status = |thread, process, blocked| {
            has_signal(&format!(
                "SigQ:\t9/9\nSigPnd:\t{thread}\nShdPnd:\t{process}\nSigBlk:\t{blocked}\n"
            ))
        };
        assert!(!status("0000000000000000", "0000000000000000", "0000000000000000"));
        assert!(status("0000000000000100", "0000000000000000", "0000000000000000"));
        assert!(status("0000000000000000", "0000000000004000", "0000000000000002"));
        assert!(!status("0000000000000000", "0000000000004000", "0000000000004000"));
    }

    #[test]
    fn root_and_nobody_have_no_further_groups() {
        let here = std::process::id();
        let root = Caller { uid: 0, gid: 7, pid: here }.credentials();
        assert_eq!(root, Credentials { uid: 0, gid: 7, groups: Vec::new() });
        assert!(Caller { uid: 5, gid: 7, pid: 0 }.credentials().groups.is_empty());
    }
}
