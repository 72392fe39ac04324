//! What is missing or damaged of a volume that is opened to be read, in words.

use std::fmt;
use std::path::PathBuf;

use meta::store::StoreError;
use runtime::NodeId;

use super::node::MetadataToRead;

/// A disk of which something is missing or damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImpairedDisk {
    /// Where it is, or should be.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
    /// Nothing of it is used.
    pub is_left_out: bool,
}

/// A node of which some metadata cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImpairedNode {
    /// Which.
    pub node: NodeId,
    /// What is damaged.
    pub why: String,
    /// Nothing of its metadata can be read.
    pub is_lost: bool,
}

/// What is missing or damaged of a volume that is open to be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingParts {
    /// Disks.
    pub disks: Vec<ImpairedDisk>,
    /// Nodes whose metadata was found to be damaged when the volume was opened.
    pub nodes: Vec<ImpairedNode>,
}

impl fmt::Display for ImpairedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = if self.is_left_out { "the volume is read without it" } else { "it is read" };
        write!(f, "disk {}: {}; {outcome}", self.path.display(), self.why)
    }
}

impl fmt::Display for ImpairedNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, why, is_lost } = self;
        let outcome = if *is_lost {
            "its files cannot be read, and listings lack its names"
        } else {
            "what was changed last there may be missing"
        };
        write!(f, "the metadata of {node}: {why}; {outcome}")
    }
}

/// What a node has found of its metadata.
pub(super) fn impaired_node(
    node: NodeId,
    mounted: &Result<MetadataToRead, StoreError>,
) -> Option<ImpairedNode> {
    match mounted {
        Ok((_, damage)) => {
            let why: Vec<String> = damage.iter().map(ToString::to_string).collect();
            let why = why.join(", ");
            (!damage.is_empty()).then_some(ImpairedNode { node, why, is_lost: false })
        }
        Err(error) => Some(ImpairedNode { node, why: error.to_string(), is_lost: true }),
    }
}
