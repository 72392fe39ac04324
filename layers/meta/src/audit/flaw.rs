//! What is wrong with a volume, in words.

use std::fmt;

use blockio::DiskName;

/// Flaws of one node that are listed one by one, at most: a lost volume has millions.
pub const FLAWS_MAX: usize = 1000;

/// What to do about metadata that cannot be right.
pub(crate) const COPY_OUT: &str =
    "copy out what can still be read, then make the volume anew from a copy";
/// What to do about a disk that is not of today.
pub(crate) const COPY_BACK: &str = "the volume is not opened with this one";
/// What to do about a node that is too full to start.
pub(crate) const NO_ROOM: &str = "copy out what is there (`mdfs serve --degraded`)";
/// What to do about one file that cannot be right.
pub(crate) const REPLACE: &str = "bring the file back from its source or a copy";
/// What to do about space that is lost, and nothing else.
pub(crate) const ONLY_SPACE: &str = "no file is hurt, only this space is lost";
/// What to do about a copy of something that is well.
pub(crate) const HEALS: &str = "the next start of the volume writes it anew; watch that disk";

/// What to do about a bad copy of a page of metadata that is well.
pub(crate) const WRITTEN_ANEW: &str =
    "a volume that runs writes it anew where it reads it; watch that disk";

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flaw {
    /// Which thing, and where it is.
    pub thing: String,
    /// What is wrong with it.
    pub what: String,
    /// What to do about it.
    pub step: &'static str,
    /// The inode that it is about, if it is about one.
    pub ino: Option<u64>,
    /// The disk that it is on, if it is about one; the thing names it.
    pub disk: Option<DiskName>,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.thing, self.what, self.step)
    }
}

impl Flaw {
    /// Something about a thing that is no inode.
    pub fn new(thing: impl Into<String>, what: impl Into<String>, step: &'static str) -> Self {
        Self { thing: thing.into(), what: what.into(), step, ino: None, disk: None }
    }

    /// Something about an inode.
    pub(crate) fn of(ino: u64, what: impl Into<String>, step: &'static str) -> Self {
        Self { ino: Some(ino), ..Self::new(format!("inode {ino}"), what, step) }
    }

    /// Something on a disk.
    pub(crate) fn on(
        disk: DiskName,
        thing: &str,
        what: impl Into<String>,
        step: &'static str,
    ) -> Self {
        Self { disk: Some(disk), ..Self::new(format!("{thing} on disk {disk}"), what, step) }
    }
}

/// Flaws in the order in which they were found.
#[derive(Clone, Debug, Default)]
pub struct Flaws {
    listed: Vec<Flaw>,
    unlisted: u64,
}

impl Flaws {
    /// Notes a flaw.
    pub(crate) fn push(&mut self, flaw: Flaw) {
        if self.listed.len() < FLAWS_MAX {
            self.listed.push(flaw);
        } else {
            self.unlisted += 1;
        }
    }

    /// None at all?
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// How many were found.
    pub fn count(&self) -> u64 {
        self.listed.len() as u64 + self.unlisted
    }

    /// The flaws that are listed one by one.
    pub fn listed(&self) -> &[Flaw] {
        &self.listed
    }

    /// Things on disks are named with these paths: the operator knows disks by them.
    pub fn tell_paths(&mut self, path: impl Fn(DiskName) -> String) {
        for flaw in &mut self.listed {
            if let Some(disk) = flaw.disk {
                flaw.thing = flaw.thing.replace(&format!("disk {disk}"), &path(disk));
            }
        }
    }

    /// The flaws that are listed one by one, to be changed.
    pub(crate) fn listed_mut(&mut self) -> &mut [Flaw] {
        &mut self.listed
    }

    /// Adds those of another node.
    pub(crate) fn extend(&mut self, other: Self) {
        self.listed.extend(other.listed);
        self.unlisted += other.unlisted;
    }
}
