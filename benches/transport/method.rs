//! A way to carry bytes between two processes.

use std::time::Instant;

/// Bytes of the largest message.
pub(crate) const SIZE_MAX: usize = 4 << 20;

#[allow(clippy::disallowed_methods, reason = "a benchmark measures the real clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// What the other process is asked to do.
#[derive(Clone, Copy)]
pub(crate) enum TransportCommand {
    /// Send this many bytes back.
    Echo(usize),
    /// Receive this many bytes.
    Sink(usize),
    /// Say that all is there.
    Acknowledge,
}

/// A way to carry bytes.
pub(crate) trait TransportMethod {
    /// `content` there and back.
    fn round_trip(&mut self, content: &[u8]);
    /// `content` there, several times; the last is known to be there when this returns.
    fn stream(&mut self, content: &[u8], count: usize);
}
