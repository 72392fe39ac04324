//! mdtest's pattern: every rank makes, looks up, reads and removes many names in a tree of
//! directories.

use super::options::CommonOptions;
use super::report::BenchReport;
use super::side::BenchSide;
use crate::exit::CommandFailure;
use crate::size::{ByteSize, human};
use crate::tree::{FileTree, into};

/// Directories of the tree, at most.
const TREE_MAX: u64 = 1 << 20;

/// Make, look up, read and remove names, as mdtest does.
///
/// The names of a rank are spread evenly over a tree of directories (-z, -b). A file is made,
/// written (-w) and closed in one step. All ranks end one step before the next begins.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs bench mdtest -N 4 -n 1000 -F -u scratch:/         files, a directory for each rank
  mdfs bench mdtest -N 4 -n 1000 -F -w 3901 scratch:/    files with bytes, one directory for all
  mdfs bench mdtest -N 2 -n 310 -z 4 -b 2 -i 3 scratch:/ files and directories in a tree of 31")]
#[allow(clippy::struct_excessive_bools, reason = "independent switches, as mdtest has them")]
pub(super) struct Mdtest {
    #[command(flatten)]
    pub(super) common: CommonOptions,
    /// Names of each rank.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1000)]
    items: u64,
    /// Levels of the tree below its root.
    #[arg(short = 'z', long, value_name = "N", default_value_t = 0)]
    depth: u32,
    /// Directories in each directory of the tree.
    #[arg(short = 'b', long, value_name = "N", default_value_t = 1)]
    branch: u64,
    /// A tree for each rank.
    #[arg(short = 'u', long)]
    unique: bool,
    /// Files only; without -F and -D, both.
    #[arg(short = 'F', long)]
    files: bool,
    /// Directories only.
    #[arg(short = 'D', long)]
    directories: bool,
    /// Bytes that are written to each file, and read.
    #[arg(short = 'w', long, value_name = "SIZE", default_value = "0")]
    write: ByteSize,
    /// Make each file durable before it is closed.
    #[arg(short = 'y', long)]
    sync: bool,
}

/// One step: its name, whether it moves bytes, and its work on one name of the rank.
type MdtestStep<'a> =
    (&'static str, bool, &'a (dyn Fn(&dyn FileTree, &[u8]) -> Result<(), CommandFailure> + Sync));

impl Mdtest {
    pub(super) fn check(&self) -> Result<(), CommandFailure> {
        let levels = (0..=self.depth).map(|level| self.branch.checked_pow(level));
        let tree = levels.sum::<Option<u64>>().filter(|&directories| directories <= TREE_MAX);
        match tree {
            Some(directories) if self.branch > 0 && self.items >= directories => Ok(()),
            _ => {
                let text = "each directory of the tree (-z, -b) needs a name (-n), and there are 2^20 \
                            directories at most";
                Err(CommandFailure::Usage(text.into()))
            }
        }
    }

    /// What the figures mean.
    pub(super) fn words(&self) -> String {
        let trees = if self.unique { "a tree for each" } else { "one tree for all" };
        let durable = if self.sync {
            "Each file is durable when it counts (-y)"
        } else {
            "Names and bytes count when they are taken (no -y): on the volume they are durable a second or \
             two later, on this computer with its journal"
        };
        format!(
            "{} ranks, {trees} of {} directories, {} names each, {} in each file.\n{durable}.",
            self.common.ranks,
            self.tree(b"").len(),
            self.names(),
            human(self.write.0)
        )
    }

    /// One repetition on one side.
    pub(super) fn run(
        &self,
        side: &BenchSide,
        report: &mut BenchReport,
    ) -> Result<(), CommandFailure> {
        let ranks = u64::from(self.common.ranks);
        let roots: Vec<Vec<u8>> = (0..if self.unique { ranks } else { 1 })
            .map(|tree| into(&side.directory, format!("tree.{tree}").as_bytes()))
            .collect();
        let directories: Vec<Vec<u8>> = roots.iter().flat_map(|root| self.tree(root)).collect();
        for directory in &directories {
            side.trees[0].make_directory(directory)?;
        }
        if self.directories || !self.files {
            self.steps(
                side,
                report,
                &roots,
                b"dir",
                &[
                    ("directory create", false, &|tree, path| tree.make_directory(path).map(drop)),
                    ("directory stat", false, &lookup),
                    ("directory remove", false, &|tree, path| tree.remove_directory(path)),
                ],
            )?;
        }
        if self.files || !self.directories {
            let bytes = vec![7; self.write.0 as usize];
            self.steps(
                side,
                report,
                &roots,
                b"file",
                &[
                    ("file create", true, &|tree, path| self.make(tree, path, &bytes)),
                    ("file stat", false, &lookup),
                    ("file read", true, &|tree, path| read(tree, path, &bytes)),
                    ("file remove", false, &|tree, path| tree.remove(path)),
                ],
            )?;
        }
        directories.iter().rev().try_for_each(|path| side.trees[0].remove_directory(path))
    }

    fn steps(
        &self,
        side: &BenchSide,
        report: &mut BenchReport,
        roots: &[Vec<u8>],
        kind: &[u8],
        steps: &[MdtestStep<'_>],
    ) -> Result<(), CommandFailure> {
        let names = self.names() * u64::from(self.common.ranks);
        for (operation, moves, work) in steps {
            let elapsed = side.as_ranks(|tree, rank| {
                let root = &roots[rank as usize % roots.len()];
                for directory in self.tree(root) {
                    for number in 0..self.names_in_directory() {
                        let name = [kind, format!(".{rank}.{number}").as_bytes()].concat();
                        work(tree, &into(&directory, &name))?;
                    }
                }
                Ok(())
            })?;
            let bytes = if *moves { names * self.write.0 } else { 0 };
            report.add((operation, &side.name), (bytes, names), elapsed);
        }
        Ok(())
    }

    fn make(&self, tree: &dyn FileTree, path: &[u8], bytes: &[u8]) -> Result<(), CommandFailure> {
        let (file, _) = tree.part(path)?;
        if !bytes.is_empty() {
            file.write_from(0, bytes)?;
        }
        if self.sync { file.sync() } else { Ok(()) }
    }

    /// The directories of a tree, those above first.
    fn tree(&self, root: &[u8]) -> Vec<Vec<u8>> {
        let mut all = vec![root.to_vec()];
        let mut level = all.clone();
        for _ in 0..self.depth {
            let below = |above: &Vec<u8>| {
                let above = above.clone();
                (0..self.branch).map(move |branch| into(&above, format!("t{branch}").as_bytes()))
            };
            level = level.iter().flat_map(below).collect();
            all.extend(level.clone());
        }
        all
    }

    fn names_in_directory(&self) -> u64 {
        self.items / self.tree(b"").len() as u64
    }

    /// Names of each rank: the items, as far as they can be spread evenly.
    fn names(&self) -> u64 {
        self.names_in_directory() * self.tree(b"").len() as u64
    }
}

fn lookup(tree: &dyn FileTree, path: &[u8]) -> Result<(), CommandFailure> {
    let missing = || tree.refuse("look up", path, "it has just been made and is not there");
    tree.lookup(path)?.map(drop).ok_or_else(missing)
}

fn read(tree: &dyn FileTree, path: &[u8], bytes: &[u8]) -> Result<(), CommandFailure> {
    let mut buffer = vec![0; bytes.len()];
    let count = tree.open(path)?.read_into(0, &mut buffer)?;
    if count == bytes.len() && buffer == bytes {
        return Ok(());
    }
    Err(tree.refuse(
        "read",
        path,
        "it has not the bytes that were written; look at the server's log",
    ))
}
