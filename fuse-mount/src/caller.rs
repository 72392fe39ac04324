//! The process on whose behalf the kernel sends a request.

use client::protocol::{Credentials, GROUPS_MAX};

/// The calling process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallerProcess {
    uid: u32,
    gid: u32,
    pid: u32,
}

impl CallerProcess {
    /// The caller of `request`.
    pub(crate) fn of(request: &fuser::Request) -> Self {
        Self { uid: request.uid(), gid: request.gid(), pid: request.pid() }
    }

    /// A process of root, for tests.
    #[cfg(test)]
    pub(crate) fn numbered(pid: u32) -> Self {
        Self { uid: 0, gid: 0, pid }
    }

    /// Its user and groups. The kernel does not send the supplementary groups; they are read from
    /// `/proc`, where the process waits for the reply. Root needs none.
    pub(crate) fn credentials(self) -> Credentials {
        let Self { uid, gid, pid } = self;
        let groups = if uid == 0 || pid == 0 { Vec::new() } else { supplementary_groups(pid) };
        Credentials { uid, gid, groups }
    }

    /// Has it a pending signal, or has it exited? `fuser` does not pass on the interrupts of the
    /// kernel, so a waiting caller is polled.
    pub(crate) fn is_interrupted(self) -> bool {
        if self.pid == 0 {
            return false;
        }
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid));
        status.is_ok_and(|status| has_signal(&status)) || !self.exists()
    }

    /// Is it killed, and waits only for the reply? The kernel sends SIGKILL to all threads of a
    /// process that any signal ends. Programs that handle a signal go on waiting.
    pub(crate) fn is_killed(self) -> bool {
        if self.pid == 0 {
            return false;
        }
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid));
        status.is_ok_and(|status| has_kill_signal(&status))
    }

    fn exists(self) -> bool {
        std::path::Path::new("/proc").join(self.pid.to_string()).exists()
    }
}

/// No groups if the process has exited: then the reply is not used.
fn supplementary_groups(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    groups_in(&status)
}

/// Is a signal pending for the thread or its process, and not blocked?
fn has_signal(status: &str) -> bool {
    pending_signals(status) & !signal_set(status, "SigBlk:") != 0
}

fn has_kill_signal(status: &str) -> bool {
    pending_signals(status) & (1 << (libc::SIGKILL - 1)) != 0
}

/// The signals that are pending for the thread or its process.
fn pending_signals(status: &str) -> u64 {
    signal_set(status, "SigPnd:") | signal_set(status, "ShdPnd:")
}

fn signal_set(status: &str, name: &str) -> u64 {
    let text = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    u64::from_str_radix(text.trim(), 16).unwrap_or_default()
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
    fn the_supplementary_groups_of_a_process_are_found() {
        assert_eq!(groups_in("Name:\tx\nGid:\t1\t1\t1\t1\nGroups:\t4 24 \nVmPeak: 1\n"), [4, 24]);
        assert_eq!(groups_in("Groups:\t\n"), [] as [u32; 0]);
        assert_eq!(groups_in(""), [] as [u32; 0]);
        let many = format!("Groups:\t{}", "7 ".repeat(2 * GROUPS_MAX));
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
    fn only_sigkill_kills() {
        assert!(has_kill_signal("SigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
        assert!(has_kill_signal("SigPnd:\t0000000000000000\nShdPnd:\t0000000000004100\n"));
        assert!(!has_kill_signal("SigPnd:\t0000000000000200\nShdPnd:\t0000000000004000\n"));
        assert!(!has_kill_signal(""));
        assert!(!CallerProcess::numbered(std::process::id()).is_killed());
    }

    #[test]
    fn root_and_unknown_processes_have_no_supplementary_groups() {
        let here = std::process::id();
        let root = CallerProcess { uid: 0, gid: 7, pid: here }.credentials();
        assert_eq!(root, Credentials { uid: 0, gid: 7, groups: Vec::new() });
        assert!(CallerProcess { uid: 5, gid: 7, pid: 0 }.credentials().groups.is_empty());
    }
}
