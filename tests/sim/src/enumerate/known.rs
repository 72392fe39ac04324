//! What is known to be left half done by a crash today: the operations that are several records
//! until their intents stand in a log. Each line is a promise still to be kept; whoever keeps it
//! takes the line away, and then every state that breaks it is a violation.

use super::vocabulary::Op;

/// One kind of half-done operation.
#[derive(Debug)]
pub(super) struct Known {
    /// What is left half done.
    pub(super) name: &'static str,
    /// For these operations, if the power goes while they are under way.
    hits: fn(Op) -> bool,
    /// Only if there are several nodes.
    several_nodes: bool,
    /// What is moved may have both names.
    pub(super) both_names: bool,
    /// The flaws that may be found then, by how they begin.
    flaws: &'static [&'static str],
}

static KNOWN: &[Known] = &[
    Known {
        name: "the links of the directory above, after mkdir and rmdir",
        hits: |op| matches!(op, Op::MakeDirectory(_) | Op::RemoveDirectory(_)),
        several_nodes: false,
        both_names: false,
        flaws: &["a directory counts"],
    },
    Known {
        name: "a link that is counted and has no name",
        hits: |op| matches!(op, Op::Link(..)),
        several_nodes: false,
        both_names: false,
        flaws: &["a file counts"],
    },
    Known {
        name: "a renamed file: both names, a link too many, what it replaced without a name",
        hits: |op| matches!(op, Op::Rename(from, _) if !is_directory(from)),
        several_nodes: false,
        both_names: true,
        flaws: &["a file counts", "a file has no name"],
    },
    Known {
        name: "a renamed directory: both names, the one above, links, what it replaced without a name",
        hits: |op| matches!(op, Op::Rename(from, _) if is_directory(from)),
        several_nodes: false,
        both_names: true,
        flaws: &["a directory counts", "a directory has 2 names", "a directory has 0 names"],
    },
    Known {
        name: "a file that lost its name at one node and not its link at another",
        hits: |op| matches!(op, Op::Remove(..)),
        several_nodes: true,
        both_names: false,
        flaws: &["a file has no name", "a file counts"],
    },
];

/// The names that are a directory's, if there is one.
fn is_directory(path: &str) -> bool {
    matches!(path, "d" | "e" | "s" | "d/s")
}

/// What may be left half done by `op`.
pub(super) fn of(fs_nodes: u32, op: Op) -> Option<&'static Known> {
    KNOWN.iter().find(|known| (known.hits)(op) && (fs_nodes > 1 || !known.several_nodes))
}

impl Known {
    /// All of these flaws belong to it.
    pub(super) fn explains(&self, flaws: &[String]) -> bool {
        flaws.iter().all(|flaw| self.flaws.iter().any(|start| flaw.starts_with(start)))
    }
}
