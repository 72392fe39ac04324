//! How much to read at once over a link with delay (Ohtsuji's thesis, chapter 4; ADR 84).
//!
//! All here is pure: what the program reads, times and rates go in, sizes and ranges come out.
//!
//! - [`thesis`]: one transfer at a time, whose size follows the share of its bytes that the program
//!   used. It is exactly the controller of the thesis.
//! - [`ahead`]: several transfers under way. The same controller steers how many bytes they have
//!   together, up to what the link holds ([`LinkEstimate::window`]); [`pattern`] tells which.
//! - [`behind`]: writes likewise.
//! - [`estimate`]: delay and rate of a link, from the transfers themselves.

pub mod ahead;
pub mod behind;
pub mod estimate;
pub mod pattern;
pub mod thesis;

use std::time::Duration;

/// The least size of a transfer and of a window: one stripe.
pub const TRANSFER_MIN: u64 = 64 << 10;

/// What a link can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkEstimate {
    /// From sending a small request to its answer.
    pub round_trip: Duration,
    /// What it delivers; 0 if that is not known.
    pub bytes_per_second: u64,
}

impl LinkEstimate {
    /// Of a link with this delay in each direction.
    pub fn new(delay: Duration, bytes_per_second: u64) -> Self {
        Self { round_trip: 2 * delay, bytes_per_second }
    }

    /// Bytes that it carries during the delay of one direction: the thesis's bandwidth-delay
    /// product (4.2).
    pub fn bandwidth_delay(&self) -> u64 {
        carried(self.bytes_per_second, self.round_trip / 2)
    }

    /// Bytes to have under way so that it never waits: what it carries from a request to the last
    /// byte of the answer, twice, for answers that come in groups.
    pub fn window(&self) -> u64 {
        2 * carried(self.bytes_per_second, self.round_trip)
    }
}

fn carried(bytes_per_second: u64, time: Duration) -> u64 {
    let bytes = u128::from(bytes_per_second) * time.as_nanos() / 1_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX / 4)
}
