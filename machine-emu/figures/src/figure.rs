//! Which figures there are, and the machines to measure on.

use machine_emu::jmachine::Profile;

/// A figure of chapter 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Figure {
    /// Block I/O under load, consecutive stripes.
    F41a,
    /// Block I/O under load, random stripes.
    F41b,
    /// Time at the best load over disk nodes.
    F42a,
    /// Rate at the best load over disk nodes.
    F42b,
    /// The cache without disks.
    F43,
    /// The cache with disks.
    F44,
    /// The file system.
    F45,
}

impl Figure {
    /// All of them, in order.
    pub const ALL: [Self; 7] =
        [Self::F41a, Self::F41b, Self::F42a, Self::F42b, Self::F43, Self::F44, Self::F45];

    /// Its number in the thesis.
    pub fn number(self) -> &'static str {
        match self {
            Self::F41a => "4.1a",
            Self::F41b => "4.1b",
            Self::F42a => "4.2a",
            Self::F42b => "4.2b",
            Self::F43 => "4.3",
            Self::F44 => "4.4",
            Self::F45 => "4.5",
        }
    }

    /// The figure with this number.
    pub fn from_number(number: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|figure| figure.number() == number)
    }
}

/// A machine to measure on.
#[derive(Clone, Debug)]
pub struct Rig {
    /// What everything costs.
    pub profile: Profile,
    /// Messages meet in the mesh, and its queues fill; otherwise each takes the time of the
    /// formula.
    pub traffic: bool,
}

impl From<Profile> for Rig {
    /// Without traffic.
    fn from(profile: Profile) -> Self {
        Self { profile, traffic: false }
    }
}

/// The profiles of a figure.
#[derive(Clone, Debug)]
pub struct Profiles {
    /// Software as good as the hardware lets it be.
    pub ideal: Rig,
    /// Fitted to what was measured.
    pub calibrated: Rig,
}

impl Default for Profiles {
    /// Those that come with the program.
    fn default() -> Self {
        Self { ideal: Profile::ideal().into(), calibrated: Profile::as_measured().into() }
    }
}
