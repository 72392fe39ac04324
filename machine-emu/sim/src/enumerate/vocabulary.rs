//! The operations of which workloads are made, over the names of one small volume.

use fileio::protocol::Error;

use super::perform::Durable::{self, Acknowledged, Later};

/// One operation. Paths are relative to the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// A new file; an existing one is cut to nothing.
    Create(&'static str, Durable),
    /// So many bytes at an offset; they are different for each operation of a workload.
    Write(&'static str, u64, usize, Durable),
    /// Cut or lengthen.
    Size(&'static str, u64, Durable),
    Mode(&'static str, u32, Durable),
    Owner(&'static str, u32, Durable),
    /// A hole: so many bytes from an offset.
    Punch(&'static str, u64, u64, Durable),
    /// Set an extended attribute.
    Tag(&'static str, &'static str, Durable),
    Commit(&'static str),
    /// The names of a directory are made durable.
    Sync(&'static str),
    MakeDirectory(&'static str, Durable),
    Symlink(&'static str),
    Fifo(&'static str),
    Remove(&'static str, Durable),
    RemoveDirectory(&'static str, Durable),
    Rename(&'static str, &'static str, Durable),
    Link(&'static str, &'static str, Durable),
    /// A node is asked for more space than it has: it gets groups of blocks from the other one.
    Refill,
    /// All nodes make everything durable.
    Flush,
    /// All processes die and start again; the power stays.
    Restart,
    /// Nothing is asked for long enough that everything becomes durable by itself.
    Pause,
}

/// What the volume holds before each workload.
pub(super) const SETUP: &[Op] = &[
    Op::Create("f", Acknowledged),
    Op::Write("f", 0, 10_000, Acknowledged),
    Op::Create("g", Acknowledged),
    Op::Write("g", 0, 40_000, Acknowledged),
    Op::Tag("g", "old", Acknowledged),
    Op::MakeDirectory("d", Acknowledged),
    Op::Create("d/x", Acknowledged),
    Op::Write("d/x", 0, 5_000, Acknowledged),
    Op::MakeDirectory("e", Acknowledged),
    Op::Flush,
];

/// All operations of workloads. `k` and `s` do not exist at first, and on a volume of two nodes they
/// are at another one than `f`, `g`, `d` and `e`. Stripes have 16 KiB.
pub(super) const VOCABULARY: &[(&str, Op)] = &[
    ("create-k", Op::Create("k", Acknowledged)),
    ("create-k-later", Op::Create("k", Later)),
    ("create-d/k", Op::Create("d/k", Acknowledged)),
    ("create-f", Op::Create("f", Acknowledged)),
    ("create-f-later", Op::Create("f", Later)),
    ("write-k", Op::Write("k", 0, 6_000, Later)),
    ("write-k-durable", Op::Write("k", 0, 6_000, Acknowledged)),
    ("overwrite-f", Op::Write("f", 100, 50, Later)),
    ("overwrite-f-durable", Op::Write("f", 100, 50, Acknowledged)),
    ("append-f", Op::Write("f", 10_000, 5_000, Later)),
    ("append-f-durable", Op::Write("f", 10_000, 5_000, Acknowledged)),
    ("hole-f", Op::Write("f", 50_000, 100, Later)),
    ("cross-g", Op::Write("g", 13_000, 6_000, Later)),
    ("cross-g-durable", Op::Write("g", 13_000, 6_000, Acknowledged)),
    ("write-d/x", Op::Write("d/x", 4_000, 200, Later)),
    ("cut-f", Op::Size("f", 100, Acknowledged)),
    ("cut-f-later", Op::Size("f", 100, Later)),
    ("cut-f-block", Op::Size("f", 4_096, Acknowledged)),
    ("lengthen-f", Op::Size("f", 20_000, Acknowledged)),
    ("cut-g-stripe", Op::Size("g", 16_384, Acknowledged)),
    ("cut-g-later", Op::Size("g", 20_000, Later)),
    ("empty-g", Op::Size("g", 0, Acknowledged)),
    ("punch-f-later", Op::Punch("f", 100, 9_000, Later)),
    ("punch-g", Op::Punch("g", 3_000, 30_000, Acknowledged)),
    ("tag-f", Op::Tag("f", "new", Acknowledged)),
    ("tag-g-later", Op::Tag("g", "new", Later)),
    ("commit-f", Op::Commit("f")),
    ("commit-g", Op::Commit("g")),
    ("commit-k", Op::Commit("k")),
    ("sync-root", Op::Sync("")),
    ("mkdir-s", Op::MakeDirectory("s", Acknowledged)),
    ("mkdir-d/s", Op::MakeDirectory("d/s", Acknowledged)),
    ("mkdir-s-later", Op::MakeDirectory("s", Later)),
    ("symlink-k", Op::Symlink("k")),
    ("fifo-d/k", Op::Fifo("d/k")),
    ("rmdir-e", Op::RemoveDirectory("e", Acknowledged)),
    ("rmdir-e-later", Op::RemoveDirectory("e", Later)),
    ("rmdir-s-later", Op::RemoveDirectory("s", Later)),
    ("remove-f", Op::Remove("f", Acknowledged)),
    ("remove-f-later", Op::Remove("f", Later)),
    ("remove-g", Op::Remove("g", Acknowledged)),
    ("remove-k", Op::Remove("k", Acknowledged)),
    ("remove-k-later", Op::Remove("k", Later)),
    ("remove-d/x", Op::Remove("d/x", Acknowledged)),
    ("rename-f-k", Op::Rename("f", "k", Acknowledged)),
    ("rename-f-k-later", Op::Rename("f", "k", Later)),
    ("rename-k-f-later", Op::Rename("k", "f", Later)),
    ("rename-d-e-later", Op::Rename("d", "e", Later)),
    ("rename-e-d/s-later", Op::Rename("e", "d/s", Later)),
    ("rename-f-g", Op::Rename("f", "g", Acknowledged)),
    ("rename-f-d/k", Op::Rename("f", "d/k", Acknowledged)),
    ("rename-f-d/x", Op::Rename("f", "d/x", Acknowledged)),
    ("rename-k-f", Op::Rename("k", "f", Acknowledged)),
    ("rename-d-s", Op::Rename("d", "s", Acknowledged)),
    ("rename-d-e", Op::Rename("d", "e", Acknowledged)),
    ("rename-e-d/s", Op::Rename("e", "d/s", Acknowledged)),
    ("link-f-k", Op::Link("f", "k", Acknowledged)),
    ("link-f-k-later", Op::Link("f", "k", Later)),
    ("link-f-d/k", Op::Link("f", "d/k", Acknowledged)),
    ("chmod-f", Op::Mode("f", 0o600, Acknowledged)),
    ("chmod-f-later", Op::Mode("f", 0o640, Later)),
    ("chmod-d", Op::Mode("d", 0o700, Acknowledged)),
    ("chown-g", Op::Owner("g", 1000, Acknowledged)),
    ("refill", Op::Refill),
    ("settle", Op::Flush),
    ("restart", Op::Restart),
    ("pause", Op::Pause),
];

/// How an operation that was answered ended.
pub(super) type Outcome = Result<(), Error>;

impl Op {
    /// The operation of that name.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        VOCABULARY.iter().find(|(known, _)| *known == name).map(|(_, op)| *op)
    }

    /// Its name.
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
            assert_eq!(super::Op::from_name(name), Some(*op));
            assert_eq!(op.name(), *name);
        }
    }
}
