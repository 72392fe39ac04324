//! The log of slow calls: each line has the trace id of its call, which the spans of its requests
//! to the nodes carry, too.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use super::OperationKey;

/// Lines in one second, at most; the others are counted.
const LINES_MAX: u32 = 10;

const WINDOW: Duration = Duration::from_secs(1);

/// A slow call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlowCall<'a> {
    /// Its trace id.
    pub(crate) trace: u64,
    /// The client's host.
    pub(crate) host: &'a str,
    pub(crate) xid: u32,
    pub(crate) what: OperationKey,
    /// How long it took.
    pub(crate) took: Duration,
}

impl fmt::Display for SlowCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace, host, xid, what, took } = self;
        let (name, took) = (what.name(), took.as_millis());
        write!(f, "slow: {name} of {host} took {took} ms, xid {xid:#x}, trace {trace:016x}")
    }
}

/// Logs calls that take longer than a limit.
#[derive(Debug)]
pub(crate) struct SlowCallLog {
    limit: Duration,
    began: Cell<Duration>,
    lines: Cell<u32>,
    left_out: Cell<u64>,
}

impl SlowCallLog {
    /// A log of calls that take at least `limit`.
    pub(crate) fn new(limit: Duration) -> Self {
        let (began, lines, left_out) = (Cell::default(), Cell::default(), Cell::default());
        Self { limit, began, lines, left_out }
    }

    /// Logs a call that ended at `now`, if it was slow.
    pub(crate) fn note(&self, now: Duration, call: &SlowCall<'_>) {
        if call.took < self.limit {
            return;
        }
        if let Some(line) = self.line(now, call) {
            tracing::warn!(target: "mdfs::nfs", "{line}");
        }
    }

    fn line(&self, now: Duration, call: &SlowCall<'_>) -> Option<String> {
        if now.saturating_sub(self.began.get()) >= WINDOW {
            self.began.set(now);
            self.lines.set(0);
        }
        if self.lines.get() == LINES_MAX {
            self.left_out.set(self.left_out.get() + 1);
            return None;
        }
        self.lines.set(self.lines.get() + 1);
        Some(match self.left_out.take() {
            0 => call.to_string(),
            others => format!("{call} ({others} more before it)"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_slow_calls_is_logged_in_few_lines_with_their_number() {
        let log = SlowCallLog::new(Duration::from_millis(10));
        let took = Duration::from_millis(12);
        let call =
            SlowCall { trace: 5, host: "10.0.0.1", xid: 16, what: OperationKey::Nfs3(6), took };
        let at = |millis: u64| log.line(Duration::from_millis(5000 + millis), &call);
        let lines: Vec<String> = (0..100).filter_map(at).collect();
        assert_eq!(lines.len(), LINES_MAX as usize);
        let first = "slow: nfs3.read of 10.0.0.1 took 12 ms, xid 0x10, trace 0000000000000005";
        assert_eq!(lines[0], first);
        assert_eq!(at(1000).unwrap(), format!("{first} (90 more before it)"));
        assert_eq!(at(1001).unwrap(), first);
    }
}
