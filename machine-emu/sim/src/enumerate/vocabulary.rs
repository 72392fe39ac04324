//! The operations of which workloads are made, over the names of one small volume.

use fileio::protocol::Error;

use super::perform::Durability::{self, Acknowledged, Later};

/// One operation. Paths are relative to the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VolumeOperation {
    /// A new file; an existing one is cut to nothing.
    Create(&'static str, Durability),
    /// Bytes from an offset on; they differ for each operation of a workload.
    Write(&'static str, u64, usize, Durability),
    /// Cut or lengthen.
    Size(&'static str, u64, Durability),
    Mode(&'static str, u32, Durability),
    Owner(&'static str, u32, Durability),
    /// A hole: an offset and a length.
    Punch(&'static str, u64, u64, Durability),
    /// Set an extended attribute.
    Tag(&'static str, &'static str, Durability),
    Commit(&'static str),
    /// The names of a directory are made durable.
    Sync(&'static str),
    MakeDirectory(&'static str, Durability),
    Symlink(&'static str),
    Fifo(&'static str),
    Remove(&'static str, Durability),
    RemoveDirectory(&'static str, Durability),
    Rename(&'static str, &'static str, Durability),
    Link(&'static str, &'static str, Durability),
    /// A node is asked for more space than it has: it gets groups of blocks from the other one.
    Refill,
    /// All nodes make everything durable.
    Flush,
    /// All processes die and start again; the power stays.
    Restart,
    /// No request, for the time after which everything is durable.
    Pause,
}

/// What the volume holds before each workload.
pub(super) const SETUP: &[VolumeOperation] = &[
    VolumeOperation::Create("f", Acknowledged),
    VolumeOperation::Write("f", 0, 10_000, Acknowledged),
    VolumeOperation::Create("g", Acknowledged),
    VolumeOperation::Write("g", 0, 40_000, Acknowledged),
    VolumeOperation::Tag("g", "old", Acknowledged),
    VolumeOperation::MakeDirectory("d", Acknowledged),
    VolumeOperation::Create("d/x", Acknowledged),
    VolumeOperation::Write("d/x", 0, 5_000, Acknowledged),
    VolumeOperation::MakeDirectory("e", Acknowledged),
    VolumeOperation::Flush,
];

/// All operations of workloads. `k` and `s` do not exist at first, and on a volume of two nodes
/// they are at another one than `f`, `g`, `d` and `e`. Stripes have 16 KiB.
pub(super) const VOCABULARY: &[(&str, VolumeOperation)] = &[
    ("create-k", VolumeOperation::Create("k", Acknowledged)),
    ("create-k-later", VolumeOperation::Create("k", Later)),
    ("create-d/k", VolumeOperation::Create("d/k", Acknowledged)),
    ("create-f", VolumeOperation::Create("f", Acknowledged)),
    ("create-f-later", VolumeOperation::Create("f", Later)),
    ("write-k", VolumeOperation::Write("k", 0, 6_000, Later)),
    ("write-k-durable", VolumeOperation::Write("k", 0, 6_000, Acknowledged)),
    ("overwrite-f", VolumeOperation::Write("f", 100, 50, Later)),
    ("overwrite-f-durable", VolumeOperation::Write("f", 100, 50, Acknowledged)),
    ("append-f", VolumeOperation::Write("f", 10_000, 5_000, Later)),
    ("append-f-durable", VolumeOperation::Write("f", 10_000, 5_000, Acknowledged)),
    ("hole-f", VolumeOperation::Write("f", 50_000, 100, Later)),
    ("cross-g", VolumeOperation::Write("g", 13_000, 6_000, Later)),
    ("cross-g-durable", VolumeOperation::Write("g", 13_000, 6_000, Acknowledged)),
    ("write-d/x", VolumeOperation::Write("d/x", 4_000, 200, Later)),
    ("cut-f", VolumeOperation::Size("f", 100, Acknowledged)),
    ("cut-f-later", VolumeOperation::Size("f", 100, Later)),
    ("cut-f-block", VolumeOperation::Size("f", 4_096, Acknowledged)),
    ("lengthen-f", VolumeOperation::Size("f", 20_000, Acknowledged)),
    ("cut-g-stripe", VolumeOperation::Size("g", 16_384, Acknowledged)),
    ("cut-g-later", VolumeOperation::Size("g", 20_000, Later)),
    ("empty-g", VolumeOperation::Size("g", 0, Acknowledged)),
    ("punch-f-later", VolumeOperation::Punch("f", 100, 9_000, Later)),
    ("punch-g", VolumeOperation::Punch("g", 3_000, 30_000, Acknowledged)),
    ("tag-f", VolumeOperation::Tag("f", "new", Acknowledged)),
    ("tag-g-later", VolumeOperation::Tag("g", "new", Later)),
    ("commit-f", VolumeOperation::Commit("f")),
    ("commit-g", VolumeOperation::Commit("g")),
    ("commit-k", VolumeOperation::Commit("k")),
    ("sync-root", VolumeOperation::Sync("")),
    ("mkdir-s", VolumeOperation::MakeDirectory("s", Acknowledged)),
    ("mkdir-d/s", VolumeOperation::MakeDirectory("d/s", Acknowledged)),
    ("mkdir-s-later", VolumeOperation::MakeDirectory("s", Later)),
    ("symlink-k", VolumeOperation::Symlink("k")),
    ("fifo-d/k", VolumeOperation::Fifo("d/k")),
    ("rmdir-e", VolumeOperation::RemoveDirectory("e", Acknowledged)),
    ("rmdir-e-later", VolumeOperation::RemoveDirectory("e", Later)),
    ("rmdir-s-later", VolumeOperation::RemoveDirectory("s", Later)),
    ("remove-f", VolumeOperation::Remove("f", Acknowledged)),
    ("remove-f-later", VolumeOperation::Remove("f", Later)),
    ("remove-g", VolumeOperation::Remove("g", Acknowledged)),
    ("remove-k", VolumeOperation::Remove("k", Acknowledged)),
    ("remove-k-later", VolumeOperation::Remove("k", Later)),
    ("remove-d/x", VolumeOperation::Remove("d/x", Acknowledged)),
    ("rename-f-k", VolumeOperation::Rename("f", "k", Acknowledged)),
    ("rename-f-k-later", VolumeOperation::Rename("f", "k", Later)),
    ("rename-k-f-later", VolumeOperation::Rename("k", "f", Later)),
    ("rename-d-e-later", VolumeOperation::Rename("d", "e", Later)),
    ("rename-e-d/s-later", VolumeOperation::Rename("e", "d/s", Later)),
    ("rename-f-g", VolumeOperation::Rename("f", "g", Acknowledged)),
    ("rename-f-d/k", VolumeOperation::Rename("f", "d/k", Acknowledged)),
    ("rename-f-d/x", VolumeOperation::Rename("f", "d/x", Acknowledged)),
    ("rename-k-f", VolumeOperation::Rename("k", "f", Acknowledged)),
    ("rename-d-s", VolumeOperation::Rename("d", "s", Acknowledged)),
    ("rename-d-e", VolumeOperation::Rename("d", "e", Acknowledged)),
    ("rename-e-d/s", VolumeOperation::Rename("e", "d/s", Acknowledged)),
    ("link-f-k", VolumeOperation::Link("f", "k", Acknowledged)),
    ("link-f-k-later", VolumeOperation::Link("f", "k", Later)),
    ("link-f-d/k", VolumeOperation::Link("f", "d/k", Acknowledged)),
    ("chmod-f", VolumeOperation::Mode("f", 0o600, Acknowledged)),
    ("chmod-f-later", VolumeOperation::Mode("f", 0o640, Later)),
    ("chmod-d", VolumeOperation::Mode("d", 0o700, Acknowledged)),
    ("chown-g", VolumeOperation::Owner("g", 1000, Acknowledged)),
    ("refill", VolumeOperation::Refill),
    ("settle", VolumeOperation::Flush),
    ("restart", VolumeOperation::Restart),
    ("pause", VolumeOperation::Pause),
];

/// How an operation that was answered ended.
pub(super) type OperationOutcome = Result<(), Error>;

impl VolumeOperation {
    /// The operation of that name.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        VOCABULARY.iter().find(|(known, _)| *known == name).map(|(_, op)| *op)
    }

    pub(super) fn name(self) -> &'static str {
        VOCABULARY.iter().find(|(_, op)| *op == self).map_or("?", |(name, _)| name)
    }

    /// Once it is answered it survives any crash.
    pub(super) fn is_durable(self) -> bool {
        match self {
            Self::Create(_, durable)
            | Self::Write(_, _, _, durable)
            | Self::Size(_, _, durable)
            | Self::Mode(_, _, durable)
            | Self::Owner(_, _, durable)
            | Self::Punch(_, _, _, durable)
            | Self::Tag(_, _, durable)
            | Self::MakeDirectory(_, durable)
            | Self::Remove(_, durable)
            | Self::RemoveDirectory(_, durable)
            | Self::Rename(_, _, durable)
            | Self::Link(_, _, durable) => durable == Acknowledged,
            Self::Commit(_)
            | Self::Sync(_)
            | Self::Symlink(_)
            | Self::Fifo(_)
            | Self::Refill
            | Self::Flush
            | Self::Restart
            | Self::Pause => true,
        }
    }

    /// A commit of the file makes it durable.
    pub(super) fn is_committed_with_file(self) -> bool {
        matches!(
            self,
            Self::Create(..)
                | Self::Write(..)
                | Self::Size(..)
                | Self::Mode(..)
                | Self::Owner(..)
                | Self::Punch(..)
                | Self::Tag(..)
        )
    }

    /// A sync of `directory` makes it durable: it changes a name of it.
    pub(super) fn is_synced_with(self, directory: &str) -> bool {
        let is_in = |path: &str| path.rsplit_once('/').map_or("", |(above, _)| above) == directory;
        match self {
            Self::MakeDirectory(path, _)
            | Self::Remove(path, _)
            | Self::RemoveDirectory(path, _)
            | Self::Link(_, path, _) => is_in(path),
            Self::Rename(from, to, _) => is_in(from) || is_in(to),
            _ => false,
        }
    }

    /// It changes nothing that is seen.
    pub(super) fn is_silent(self) -> bool {
        matches!(
            self,
            Self::Commit(_)
                | Self::Sync(_)
                | Self::Refill
                | Self::Flush
                | Self::Restart
                | Self::Pause
        )
    }
}

#[cfg(test)]
mod tests {
    use fileio::protocol::ROOT;
    use meta::hash::name_node;

    use super::super::perform::name;

    /// Otherwise volumes with two nodes would show nothing that those with one do not.
    #[test]
    fn the_names_of_the_root_are_at_different_nodes() {
        let at = |text| name_node(ROOT.ino, &name(text), 2);
        assert_ne!(at("f"), at("k"), "a file is renamed from node to node");
        assert_ne!(at("d"), at("s"), "a directory, too");
        assert_eq!(at("f"), at("g"), "and within one");
        assert_eq!(at("d"), at("e"));
    }

    #[test]
    fn each_operation_has_a_name_of_its_own() {
        for (name, op) in super::VOCABULARY {
            assert_eq!(super::VolumeOperation::from_name(name), Some(*op));
            assert_eq!(op.name(), *name);
        }
    }
}
