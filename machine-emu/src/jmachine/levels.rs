//! The time of one processor at three levels: priority 1 before priority 0 before the background
//! (thesis 2.1.1). Each level has registers of its own, so a higher one interrupts a lower one
//! without a cost.

/// A level, the highest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PriorityLevel {
    /// Messages that overtake.
    P1,
    /// Messages.
    P0,
    /// What runs when no message is there.
    Background,
}

impl PriorityLevel {
    /// All of them, highest first.
    pub const ALL: [Self; 3] = [Self::P1, Self::P0, Self::Background];
}

/// Until when each level is at work, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Levels {
    until_ns: [u64; 3],
    worked_ns: [u64; 3],
}

impl Levels {
    /// When new work of `level` could begin, if no higher one comes between.
    pub fn free_ns(&self, level: PriorityLevel) -> u64 {
        self.until_ns[..=level as usize].iter().copied().max().unwrap_or_default()
    }

    /// When the work that `level` has now ends, if no higher one comes between.
    pub fn until_ns(&self, level: PriorityLevel) -> u64 {
        self.until_ns[level as usize]
    }

    /// What `level` has been given to do so far.
    pub fn worked_ns(&self, level: PriorityLevel) -> u64 {
        self.worked_ns[level as usize]
    }

    /// Gives `level` work that may begin at `from_ns`; when it is done, if no higher one comes
    /// between. Lower levels that are at work then end later.
    pub fn charge(&mut self, level: PriorityLevel, from_ns: u64, work_ns: u64) -> u64 {
        let start_ns = from_ns.max(self.free_ns(level));
        let (upper, lower) = self.until_ns.split_at_mut(level as usize + 1);
        upper[level as usize] = start_ns + work_ns;
        for until_ns in lower.iter_mut().filter(|until_ns| **until_ns > start_ns) {
            *until_ns += work_ns;
        }
        self.worked_ns[level as usize] += work_ns;
        start_ns + work_ns
    }
}

#[cfg(test)]
mod tests {
    use runtime::seed::Rng;

    use super::*;

    #[test]
    fn a_higher_level_interrupts_a_lower_one_and_waits_for_none() {
        let mut levels = Levels::default();
        assert_eq!(levels.charge(PriorityLevel::P0, 10, 100), 110);
        assert_eq!(levels.charge(PriorityLevel::P1, 50, 7), 57);
        assert_eq!(levels.until_ns(PriorityLevel::P0), 117);
        assert_eq!(levels.charge(PriorityLevel::P0, 60, 1), 118);
        assert_eq!(levels.charge(PriorityLevel::Background, 0, 5), 123);
        assert_eq!(levels.charge(PriorityLevel::P1, 200, 5), 205);
        assert_eq!(levels.until_ns(PriorityLevel::Background), 123);
        assert_eq!(levels.free_ns(PriorityLevel::Background), 205);
        assert_eq!(PriorityLevel::ALL.map(|level| levels.worked_ns(level)), [12, 101, 5]);
    }

    /// Lets work of fixed length come at random to the upper two levels; how long that of each
    /// stays, on average, in nanoseconds.
    fn mean_stay_ns(rates_per_ns: [f64; 2], work_ns: [u64; 2], count: u64) -> [f64; 2] {
        let (mut levels, mut rng) = (Levels::default(), Rng::new(5));
        let mut uniform = || (rng.bits() >> 11) as f64 / (1u64 << 53) as f64;
        let (mut sums, mut counts) = ([0.0; 2], [0.0; 2]);
        let mut next_ns = rates_per_ns.map(|rate| if rate > 0.0 { 0.0 } else { f64::INFINITY });
        // Work of P0 that may still be interrupted: when it came, and when it ends.
        let mut open: Vec<(u64, u64)> = Vec::new();
        for _ in 0..count {
            let class = usize::from(next_ns[1] < next_ns[0]);
            let at_ns = next_ns[class] as u64;
            next_ns[class] -= (1.0 - uniform()).ln() / rates_per_ns[class];
            let ended = open.extract_if(.., |(_, end_ns)| *end_ns <= at_ns);
            sums[1] += ended.map(|(came_ns, end_ns)| (end_ns - came_ns) as f64).sum::<f64>();
            counts[class] += 1.0;
            if class == 1 {
                open.push((at_ns, levels.charge(PriorityLevel::P0, at_ns, work_ns[1])));
                continue;
            }
            let before_ns = levels.until_ns(PriorityLevel::P0);
            let end_ns = levels.charge(PriorityLevel::P1, at_ns, work_ns[0]);
            sums[0] += (end_ns - at_ns) as f64;
            let start_ns = end_ns - work_ns[0];
            let later_ns = levels.until_ns(PriorityLevel::P0) - before_ns;
            for (_, end_ns) in open.iter_mut().filter(|(_, end_ns)| *end_ns > start_ns) {
                *end_ns += later_ns;
            }
        }
        sums[1] += open.iter().map(|(came_ns, end_ns)| (end_ns - came_ns) as f64).sum::<f64>();
        [sums[0] / counts[0], sums[1] / counts[1]]
    }

    #[test]
    fn messages_wait_as_long_as_queueing_theory_says() {
        // One queue with service time s and load r: s + r s / 2 (1 - r) (Pollaczek, Khinchine).
        for load in [0.3, 0.6, 0.8] {
            let service_ns = 10_000.0;
            let [_, stay_ns] = mean_stay_ns([0.0, load / service_ns], [0, 10_000], 200_000);
            let theory_ns = service_ns * (1.0 + load / (2.0 * (1.0 - load)));
            let error = stay_ns / theory_ns - 1.0;
            assert!(error.abs() < 0.02, "at {load}: {stay_ns}, theory {theory_ns}");
        }
    }

    #[test]
    fn a_lower_priority_waits_as_long_as_theory_says_for_a_server_that_is_interrupted() {
        let [s1, s0] = [5_400.0, 20_400.0];
        let [r1, r0] = [0.3, 0.4];
        let stay_ns = mean_stay_ns([r1 / s1, r0 / s0], [5_400, 20_400], 300_000);
        let first = s1 + r1 * s1 / (2.0 * (1.0 - r1));
        // Preemptive resume: (s0 (1 - r1 - r0) + R) / (1 - r1)(1 - r1 - r0), R the mean rest.
        let rest = f64::midpoint(r1 * s1, r0 * s0);
        let second = s0 / (1.0 - r1) + rest / ((1.0 - r1) * (1.0 - r1 - r0));
        for (stay_ns, theory_ns) in stay_ns.into_iter().zip([first, second]) {
            let error = stay_ns / theory_ns - 1.0;
            assert!(error.abs() < 0.03, "{stay_ns}, theory {theory_ns}");
        }
    }

    #[test]
    fn the_background_gets_what_the_messages_leave() {
        let mut levels = Levels::default();
        levels.charge(PriorityLevel::Background, 0, 1_000_000);
        for id in 1..=10 {
            let level = if id % 2 == 0 { PriorityLevel::P0 } else { PriorityLevel::P1 };
            levels.charge(level, id * 100_000, 50_000);
        }
        // Ten messages of 50 us came before the 1000 us of the background were over.
        assert_eq!(levels.until_ns(PriorityLevel::Background), 1_500_000);
        assert_eq!(levels.worked_ns(PriorityLevel::Background), 1_000_000);
    }
}
