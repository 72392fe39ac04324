//! Delay and rate of a link, measured by its transfers.

use std::collections::VecDeque;
use std::time::Duration;

use super::LinkEstimate;

/// How long a rate counts.
const RATE_AGE_MAX: Duration = Duration::from_secs(10);

/// How long a round trip counts: long, because while transfers fill the link each one also waits
/// for those before it.
const ROUND_TRIP_AGE_MAX: Duration = Duration::from_mins(10);

/// Slices of time of which the best measurement is kept.
const SLICES: u32 = 16;

/// A transfer that is under way.
#[derive(Clone, Copy, Debug)]
pub struct Departure {
    at: Duration,
    /// Bytes that had been delivered by then.
    delivered: u64,
}

/// The best measurements of the last slices of time.
#[derive(Clone, Debug, Default)]
struct Best<T>(VecDeque<(Duration, T)>);

impl<T: Copy> Best<T> {
    /// Adds a measurement, and returns the best of those that are not older than `age_max`.
    fn add(&mut self, (now, value): (Duration, T), age_max: Duration, best: fn(T, T) -> T) -> T {
        match self.0.back_mut() {
            Some((start, last)) if now.saturating_sub(*start) < age_max / SLICES => {
                *last = best(*last, value);
            }
            _ => self.0.push_back((now, value)),
        }
        self.0.retain(|(start, _)| now.saturating_sub(*start) <= age_max);
        self.0.iter().fold(value, |known, (_, value)| best(known, *value))
    }
}

/// Estimates a link: the smallest round trip, and the largest rate, of the last time. Times are
/// since any start.
#[derive(Clone, Debug, Default)]
pub struct Estimate {
    delivered: u64,
    round_trips: Best<Duration>,
    rates: Best<u64>,
    figures: LinkEstimate,
}

impl Estimate {
    /// A transfer starts.
    pub fn depart(&self, now: Duration) -> Departure {
        Departure { at: now, delivered: self.delivered }
    }

    /// It has brought `bytes` bytes. What all transfers brought since it started, over that time,
    /// is a rate of the link.
    pub fn arrive(&mut self, departure: Departure, now: Duration, bytes: u64) {
        self.delivered += bytes;
        let took = now.saturating_sub(departure.at).max(Duration::from_nanos(1));
        let brought = self.delivered - departure.delivered;
        let rate = u128::from(brought) * 1_000_000_000 / took.as_nanos();
        let bytes_per_second = u64::try_from(rate).unwrap_or(u64::MAX);
        self.figures = LinkEstimate {
            round_trip: self.round_trips.add((now, took), ROUND_TRIP_AGE_MAX, Ord::min),
            bytes_per_second: self.rates.add((now, bytes_per_second), RATE_AGE_MAX, Ord::max),
        };
    }

    /// What is known of the link; nothing before the first transfer.
    pub fn figures(&self) -> LinkEstimate {
        self.figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MIB: u64 = 1 << 20;

    /// Transfers of 1 MiB over a link of 100 ms and 10 MiB/s, `count` at a time, for 3 seconds.
    fn measured(count: usize) -> LinkEstimate {
        let (round_trip, wire) = (SECOND / 10, SECOND / 10);
        let mut estimate = Estimate::default();
        let mut free = Duration::ZERO;
        let mut under_way = VecDeque::new();
        let mut now = Duration::ZERO;
        while now < 3 * SECOND {
            while under_way.len() < count {
                free = free.max(now + round_trip) + wire;
                under_way.push_back((estimate.depart(now), free));
            }
            let (departure, arrival) = under_way.pop_front().unwrap();
            now = arrival;
            estimate.arrive(departure, now, MIB);
        }
        estimate.figures()
    }

    #[test]
    fn several_transfers_at_a_time_show_rate_and_round_trip() {
        let LinkEstimate { round_trip, bytes_per_second } = measured(4);
        assert!((9 * MIB..=11 * MIB).contains(&bytes_per_second), "{bytes_per_second}");
        assert!(round_trip >= SECOND / 12 && round_trip <= SECOND / 4, "{round_trip:?}");
    }

    #[test]
    fn a_window_of_what_was_measured_lets_the_rate_be_found() {
        // One at a time shows only half of the rate, and the window that it gives is two of them.
        let figures = measured(1);
        assert!(figures.window() >= 2 * MIB, "{figures:?}");
    }

    #[test]
    fn old_measurements_are_forgotten() {
        let mut estimate = Estimate::default();
        estimate.arrive(estimate.depart(Duration::ZERO), SECOND / 1000, 1000);
        assert_eq!(estimate.figures().round_trip, SECOND / 1000);
        assert_eq!(estimate.figures().bytes_per_second, 1_000_000);
        for (start, round_trip) in [(20 * SECOND, SECOND / 1000), (660 * SECOND, SECOND / 10)] {
            let later = estimate.depart(start);
            estimate.arrive(later, start + SECOND / 10, 1000);
            assert_eq!(estimate.figures().round_trip, round_trip);
            assert_eq!(estimate.figures().bytes_per_second, 10_000);
        }
    }
}
