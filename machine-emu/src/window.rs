//! What TCP adds to a link with delay: a window that opens slowly and closes again.
//!
//! Small transfers with pauses between them never let the window open, which is most of what a
//! larger transfer gains in the thesis of Ohtsuji (section 4.3.2). A sender has at most a window
//! of bytes under way. No segment is lost here, so it is slow start all the way: the window doubles
//! in each round trip that used it up, to the largest one. A pause closes it again.

/// The parameters of TCP on one direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpTiming {
    /// Bytes of the first window: ten segments since Linux 2.6.39, three before.
    pub first_window: u64,
    /// Bytes of the largest one: that of the receiver.
    pub window_max: u64,
    /// From sending a byte to its acknowledgement.
    pub round_trip_ns: u64,
    /// The window closes if nothing was sent for this time. TCP has its retransmission timeout
    /// here (RFC 5681, 4.1), which Linux never lets come nearer to the round trip than 200 ms.
    pub idle_max_ns: u64,
}

impl TcpTiming {
    /// A segment of Ethernet with time stamps.
    pub const SEGMENT: u64 = 1448;

    /// Linux as it is: ten segments, idle after the round trip and 200 ms.
    pub fn linux(round_trip_ns: u64) -> Self {
        Self {
            first_window: 10 * Self::SEGMENT,
            window_max: 1 << 30,
            round_trip_ns,
            idle_max_ns: round_trip_ns + 200_000_000,
        }
    }

    /// A sender of the thesis's days, with a first window of three segments, that begins anew after
    /// each wait for a request: with it a fixed transfer of 1 MB falls as far behind as the thesis
    /// measured.
    pub fn restarting(round_trip_ns: u64) -> Self {
        Self {
            first_window: 3 * Self::SEGMENT,
            idle_max_ns: round_trip_ns / 2,
            ..Self::linux(round_trip_ns)
        }
    }
}

/// The window of one direction, over time.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpWindow {
    /// Bytes; 0 before the first frame.
    window: u64,
    /// The last byte was sent.
    sent_ns: u64,
    /// The round trip in which bytes are being sent: its start and what it has carried.
    round_ns: u64,
    round_bytes: u64,
}

impl TcpWindow {
    /// Sends `bytes` bytes, which the wire can take from `start_ns` on at `picoseconds_per_byte`.
    /// Returns when the last one has left.
    pub fn send(
        &mut self,
        timing: &TcpTiming,
        start_ns: u64,
        bytes: u64,
        picoseconds_per_byte: u64,
    ) -> u64 {
        let idle_ns = start_ns.saturating_sub(self.sent_ns);
        if self.window == 0 || idle_ns > timing.idle_max_ns {
            *self = Self { window: timing.first_window, ..Self::default() };
            self.round_ns = start_ns;
        }
        let wire_ns = |bytes: u64| bytes.saturating_mul(picoseconds_per_byte) / 1000;
        let mut now_ns = start_ns.max(self.sent_ns);
        let mut rest = bytes;
        while rest > 0 {
            if now_ns >= self.round_ns + timing.round_trip_ns {
                // All that was sent a round trip ago is acknowledged. Only a window that was used
                // up grows (RFC 2861).
                if self.round_bytes >= self.window {
                    self.window = (2 * self.window).min(timing.window_max);
                }
                (self.round_ns, self.round_bytes) = (now_ns, 0);
            }
            let round_end_ns = self.round_ns + timing.round_trip_ns;
            let part = rest.min(self.window - self.round_bytes.min(self.window));
            if part == 0 {
                now_ns = round_end_ns;
                continue;
            }
            self.round_bytes += part;
            rest -= part;
            now_ns += wire_ns(part);
        }
        self.sent_ns = now_ns;
        now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    /// A gigabit per second.
    const WIRE: u64 = 8_000;
    const MB: u64 = 1 << 20;

    #[test]
    fn the_first_megabyte_takes_seven_round_trips_and_the_second_none() {
        let timing = TcpTiming::linux(100 * MS);
        let mut window = TcpWindow::default();
        let first = window.send(&timing, 0, MB, WIRE);
        assert!((600 * MS..700 * MS).contains(&first), "{first}");
        let start = first + 100 * MS;
        let second = window.send(&timing, start, MB, WIRE) - start;
        assert!(second < 120 * MS, "{second}");
    }

    #[test]
    fn a_pause_closes_the_window() {
        let timing = TcpTiming::linux(100 * MS);
        let mut window = TcpWindow::default();
        let first = window.send(&timing, 0, MB, WIRE);
        let start = first + 301 * MS;
        assert_eq!(window.send(&timing, start, MB, WIRE) - start, first);
    }

    #[test]
    fn a_long_transfer_gets_the_wire() {
        let timing = TcpTiming::linux(100 * MS);
        let mut window = TcpWindow::default();
        let bytes = 512 * MB;
        let left = window.send(&timing, 0, bytes, WIRE);
        let wire = bytes * WIRE / 1000;
        assert!(left > wire + 800 * MS && left < wire + 1500 * MS, "{left} {wire}");
    }
}
