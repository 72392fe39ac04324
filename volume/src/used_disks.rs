//! The refusal of disks that hold something.

use std::fmt;
use std::path::PathBuf;

use blockio::DiskContent;

/// A disk that holds something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsedDisk {
    pub(crate) name: PathBuf,
    pub(crate) content: DiskContent,
    pub(crate) id: String,
}

/// Disks that hold something and are not overwritten. It names each, and its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsedDisks {
    pub(crate) disks: Vec<UsedDisk>,
    /// Ids that name no disk.
    pub(crate) strange: Vec<String>,
}

impl fmt::Display for UsedDisks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.disks.len() > 1 { "\n" } else { "; " };
        for UsedDisk { name, content, id } in &self.disks {
            write!(f, "disk {} holds {content} and is not overwritten: ", name.display())?;
            if content.superblock().is_some() {
                f.write_str("if a volume has lost its record, `mdfs serve` goes on with it; ")?;
            }
            write!(f, "give another disk, or --force {id} if all on it may be lost{end}")?;
        }
        if !self.strange.is_empty() {
            write!(f, "no disk has the id {}; ", self.strange.join(", "))?;
        }
        f.write_str("nothing was changed")
    }
}
