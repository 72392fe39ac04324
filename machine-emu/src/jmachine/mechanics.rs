//! A disk as a moving thing: an arm, a platter that turns, and zones with a rate each.

use super::DiskNumbers;

/// A group of cylinders with one rate.
#[derive(Clone, Copy, Debug)]
struct Zone {
    /// Its first byte.
    start: f64,
    bytes_per_cylinder: f64,
    bytes_per_ns: f64,
}

/// The arm and the platter of one disk.
#[derive(Clone, Debug)]
pub struct Mechanics {
    zones: Vec<Zone>,
    cylinders_per_zone: f64,
    seek_ns: f64,
    seek_root_ns: f64,
    turn_ns: f64,
    /// The cylinder at which the arm stands.
    arm: u32,
}

impl Mechanics {
    /// A disk with its arm at the outer edge, where byte 0 is.
    ///
    /// All zones have as many cylinders; their rates fall evenly from the outer to the inner edge,
    /// and their capacities with the rates.
    pub fn new(numbers: &DiskNumbers) -> Self {
        let count = numbers.zones.value.max(1.0) as u32;
        let (outer, inner) = (numbers.media_outer.value, numbers.media_inner.value);
        let rate = |zone: u32| {
            let inward = if count == 1 { 0.5 } else { f64::from(zone) / f64::from(count - 1) };
            outer + (inner - outer) * inward
        };
        let rates: f64 = (0..count).map(rate).sum();
        let cylinders_per_zone = numbers.cylinders.value / f64::from(count);
        let mut start = 0.0;
        let zones = (0..count).map(|zone| {
            let bytes = numbers.capacity.value * rate(zone) / rates;
            let bytes_per_cylinder = bytes / cylinders_per_zone;
            let found = Zone { start, bytes_per_cylinder, bytes_per_ns: rate(zone) * 1e6 / 1e9 };
            start += bytes;
            found
        });
        Self {
            zones: zones.collect(),
            cylinders_per_zone,
            seek_ns: numbers.seek.value * 1e6,
            seek_root_ns: numbers.seek_root.value * 1e6,
            turn_ns: 60e9 / numbers.rotation.value,
            arm: 0,
        }
    }

    fn zone(&self, offset: u64) -> (usize, Zone) {
        let after = self.zones.partition_point(|zone| zone.start <= offset as f64);
        (after - 1, self.zones[after - 1])
    }

    /// The cylinder on which a byte is. What is past the end is on the last.
    pub fn cylinder(&self, offset: u64) -> u32 {
        let (index, zone) = self.zone(offset);
        let within = (offset as f64 - zone.start) / zone.bytes_per_cylinder;
        let cylinder = index as f64 * self.cylinders_per_zone + within;
        let last = self.zones.len() as f64 * self.cylinders_per_zone - 1.0;
        cylinder.min(last) as u32
    }

    /// Seek time over a distance in cylinders.
    pub fn seek_ns(&self, cylinders: u32) -> u64 {
        if cylinders == 0 {
            return 0;
        }
        (self.seek_ns + self.seek_root_ns * f64::from(cylinders).sqrt()) as u64
    }

    /// Moves the arm to a byte; when it is there, if it leaves at `now_ns`.
    pub fn seek(&mut self, now_ns: u64, offset: u64) -> u64 {
        let to = self.cylinder(offset);
        let distance = to.abs_diff(self.arm);
        self.arm = to;
        now_ns + self.seek_ns(distance)
    }

    /// When a byte next comes under the head, from `now_ns` on.
    pub fn under_head_ns(&self, now_ns: u64, offset: u64) -> u64 {
        let (_, zone) = self.zone(offset);
        // What passes in one turn counts as a track; so bytes that follow one another come so, too.
        let angle = (offset as f64 - zone.start) / zone.bytes_per_ns % self.turn_ns;
        let now = now_ns as f64 % self.turn_ns;
        let wait_ns = (angle - now).rem_euclid(self.turn_ns);
        // A byte that has just passed within the grain of time has not passed.
        let missed_ns = self.turn_ns - wait_ns;
        if missed_ns < GRAIN_NS { now_ns } else { now_ns + wait_ns as u64 }
    }

    /// Transfer time of `bytes` bytes from `offset` on.
    pub fn media_ns(&self, offset: u64, bytes: u64) -> u64 {
        let (_, zone) = self.zone(offset);
        (bytes as f64 / zone.bytes_per_ns) as u64
    }
}

/// Times are rounded to nanoseconds at each step of a transfer.
const GRAIN_NS: f64 = 16.0;

#[cfg(test)]
mod tests {
    use runtime::seed::Rng;

    use super::*;
    use crate::jmachine::Profile;

    fn numbers() -> DiskNumbers {
        Profile::ideal().numbers().disk.clone()
    }

    #[test]
    fn a_seek_takes_as_long_as_the_data_sheet_says() {
        let disk = Mechanics::new(&numbers());
        let ms = |ns: u64| ns as f64 / 1e6;
        assert!((ms(disk.seek_ns(1)) - 3.0).abs() < 0.01);
        assert!((ms(disk.seek_ns(1545)) - 21.4).abs() < 0.05);
        assert_eq!(disk.seek_ns(0), 0);
        let mut rng = Rng::new(1);
        let count = 200_000;
        let seek = |_| {
            let (from, to) = (rng.below(1546) as u32, rng.below(1546) as u32);
            ms(disk.seek_ns(from.abs_diff(to)))
        };
        let mean_ms = (0..count).map(seek).sum::<f64>() / f64::from(count);
        assert!((mean_ms - 12.6).abs() < 0.05, "{mean_ms} ms");
    }

    #[test]
    fn a_random_write_of_a_stripe_takes_71_ms_at_1_3_megabytes_a_second() {
        let mut numbers = numbers();
        numbers.media_outer.value = 1.3;
        numbers.media_inner.value = 1.3;
        let mut disk = Mechanics::new(&numbers);
        let mut rng = Rng::new(2);
        let stripes = numbers.capacity.value as u64 >> 16;
        let (count, mut now_ns) = (20_000, 0);
        for _ in 0..count {
            let offset = rng.below(stripes) << 16;
            let there_ns = disk.seek(now_ns, offset);
            let ready_ns = disk.under_head_ns(there_ns, offset);
            now_ns = ready_ns + disk.media_ns(offset, 1 << 16);
        }
        let mean_ms = now_ns as f64 / 1e6 / f64::from(count);
        assert!((mean_ms - (50.4 + 12.6 + 8.33)).abs() < 0.3, "{mean_ms} ms");
    }

    #[test]
    fn bytes_that_follow_one_another_stream_without_a_turn_between() {
        let mut disk = Mechanics::new(&numbers());
        let mut now_ns = disk.under_head_ns(0, 0);
        let start_ns = now_ns;
        for stripe in 0..160 {
            let offset = stripe << 16;
            now_ns = disk.seek(now_ns, offset);
            let ready_ns = disk.under_head_ns(now_ns, offset);
            // A track-to-track seek is felt, but nothing else.
            now_ns = ready_ns + disk.media_ns(offset, 1 << 16);
        }
        let rate = 160.0 * 65_536.0 / ((now_ns - start_ns) as f64 / 1e9) / 1e6;
        assert!((1.3..=1.6).contains(&rate), "{rate} MB/s");
    }

    #[test]
    fn zones_are_slower_and_smaller_towards_the_middle() {
        let disk = Mechanics::new(&numbers());
        assert_eq!(disk.zones.len(), 8);
        assert_eq!((disk.cylinder(0), disk.cylinder(421_999_999)), (0, 1545));
        assert_eq!(disk.cylinder(u64::MAX), 1545);
        let media_ns = |offset| disk.media_ns(offset, 1_600_000);
        assert_eq!((media_ns(0), media_ns(421_000_000)), (1_000_000_000, 1_600_000_000));
        let [first, last] = [disk.zones[0], disk.zones[7]];
        assert!((first.bytes_per_cylinder / last.bytes_per_cylinder - 1.6).abs() < 1e-9);
        let mut before = 0;
        for offset in (0..422_000_000).step_by(1 << 16) {
            let cylinder = disk.cylinder(offset);
            assert!(cylinder >= before && cylinder <= before + 1, "{before}, then {cylinder}");
            before = cylinder;
        }
    }
}
