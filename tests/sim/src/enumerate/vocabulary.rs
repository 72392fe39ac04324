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
    Commit(&'static str),
    MakeDirectory(&'static str),
    Symlink(&'static str),
    Fifo(&'static str),
    Remove(&'static str, Durable),
    RemoveDirectory(&'static str),
    Rename(&'static str, &'static str),
    Link(&'static str, &'static str),
    /// All nodes make everything durable.
    Settle,
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
    Op::MakeDirectory("d"),
    Op::Create("d/x", Acknowledged),
    Op::Write("d/x", 0, 5_000, Acknowledged),
    Op::MakeDirectory("e"),
    Op::Settle,
];

/// All operations of workloads. `n` does not exist at first, `m` neither; stripes have 16 KiB.
pub(super) const VOCABULARY: &[(&str, Op)] = &[
    ("create-n", Op::Create("n", Acknowledged)),
    ("create-n-later", Op::Create("n", Later)),
    ("create-d/n", Op::Create("d/n", Acknowledged)),
    ("create-f", Op::Create("f", Acknowledged)),
    ("create-f-later", Op::Create("f", Later)),
    ("write-n", Op::Write("n", 0, 6_000, Later)),
    ("write-n-durable", Op::Write("n", 0, 6_000, Acknowledged)),
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
    ("commit-f", Op::Commit("f")),
    ("commit-g", Op::Commit("g")),
    ("commit-n", Op::Commit("n")),
    ("mkdir-m", Op::MakeDirectory("m")),
    ("mkdir-d/m", Op::MakeDirectory("d/m")),
    ("symlink-n", Op::Symlink("n")),
    ("fifo-d/n", Op::Fifo("d/n")),
    ("rmdir-e", Op::RemoveDirectory("e")),
    ("remove-f", Op::Remove("f", Acknowledged)),
    ("remove-f-later", Op::Remove("f", Later)),
    ("remove-g", Op::Remove("g", Acknowledged)),
    ("remove-n", Op::Remove("n", Acknowledged)),
    ("remove-d/x", Op::Remove("d/x", Acknowledged)),
    ("rename-f-n", Op::Rename("f", "n")),
    ("rename-f-g", Op::Rename("f", "g")),
    ("rename-f-d/n", Op::Rename("f", "d/n")),
    ("rename-f-d/x", Op::Rename("f", "d/x")),
    ("rename-n-f", Op::Rename("n", "f")),
    ("rename-d-m", Op::Rename("d", "m")),
    ("rename-d-e", Op::Rename("d", "e")),
    ("rename-e-d/m", Op::Rename("e", "d/m")),
    ("link-f-n", Op::Link("f", "n")),
    ("link-f-d/n", Op::Link("f", "d/n")),
    ("chmod-f", Op::Mode("f", 0o600, Acknowledged)),
    ("chmod-f-later", Op::Mode("f", 0o640, Later)),
    ("chmod-d", Op::Mode("d", 0o700, Acknowledged)),
    ("chown-g", Op::Owner("g", 1000, Acknowledged)),
    ("settle", Op::Settle),
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
            | Self::Remove(_, durable) => durable == Acknowledged,
            Self::Commit(_)
            | Self::MakeDirectory(_)
            | Self::Symlink(_)
            | Self::Fifo(_)
            | Self::RemoveDirectory(_)
            | Self::Rename(..)
            | Self::Link(..)
            | Self::Settle
            | Self::Restart
            | Self::Pause => true,
        }
    }

    /// A commit of the file makes it durable.
    pub(super) fn is_committed_with_file(self) -> bool {
        matches!(
            self,
            Self::Create(..) | Self::Write(..) | Self::Size(..) | Self::Mode(..) | Self::Owner(..)
        )
    }

    /// It changes nothing that is seen.
    pub(super) fn is_silent(self) -> bool {
        matches!(self, Self::Commit(_) | Self::Settle | Self::Restart | Self::Pause)
    }
}
