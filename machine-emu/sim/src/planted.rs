//! Bugs of the simulated parts that are switched on by name.

/// A bug switched on, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// Disks answer a flush and do nothing.
    LyingDisks,
    /// A commit is answered and not done.
    IdleCommits,
    /// Now and then a write is answered and not done.
    DroppedWrites,
}

impl Planted {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::LyingDisks, Self::IdleCommits, Self::DroppedWrites];

    /// The name by which it is switched on.
    pub fn name(self) -> &'static str {
        match self {
            Self::LyingDisks => "lying-disks",
            Self::IdleCommits => "idle-commits",
            Self::DroppedWrites => "dropped-writes",
        }
    }

    /// The bug of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|planted| planted.name() == name)
    }
}
