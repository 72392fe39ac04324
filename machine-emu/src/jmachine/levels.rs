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
}
