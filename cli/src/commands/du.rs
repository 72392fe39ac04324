//! `mdfs du`: the space of files and directories.

use std::collections::BTreeSet;

use client::blocking::Volume;
use client::protocol::DiskList;
use client::{Attributes, Kind};
use serde::Serialize;
use volume::RedundancyClass;

use crate::connection::ConnectionArguments;
use crate::exit::CommandFailure;
use crate::output::{lossy, printable, table};
use crate::session::CommandSession;
use crate::size::human;
use crate::volume_path::{VolumePath, join};

/// Show the space that files take: what they contain, what of it is stored, and what the disks
/// give for it.
///
/// Size: bytes of the content. Stored: its blocks, each once; holes take none. Raw: the same with
/// all copies and parity, as the redundancy of each file wants them. With copies that is exact.
/// With `K+M`, as in 4+1, it is a range: whole stripes of large files take (K+M)/K of what is
/// stored, the rest M+1 times as much, and which is which is not told. A file with several names
/// counts once; symbolic links and the metadata of the volume do not count.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs du scratch:/run1
  mdfs du -d 1 scratch:/            each directory in it, too
  mdfs du --json scratch:/run1 | jq '.entries[0].raw_bytes_max'")]
pub(crate) struct Du {
    /// Show the directories below, too, down to this depth.
    #[arg(short, long, value_name = "LEVELS", default_value_t = 0)]
    depth: usize,
    /// As JSON, in bytes.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// Files and directories.
    #[arg(value_name = "VOL:/PATH", value_parser = VolumePath::parser(), required = true)]
    paths: Vec<VolumePath>,
}

/// What the files of a tree take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TreeUse {
    files: u64,
    size_bytes: u64,
    used_bytes: u64,
    /// At least and at most; without if the class of the volume is not known.
    raw_bytes: Option<(u64, u64)>,
}

#[derive(Debug, Serialize)]
struct DuEntry {
    path: String,
    files: u64,
    size_bytes: u64,
    used_bytes: u64,
    /// Null if the redundancy of the volume cannot be asked.
    raw_bytes_min: Option<u64>,
    raw_bytes_max: Option<u64>,
    /// Some of it is being stored anew: it takes `raw_bytes` when that is done.
    is_changing: bool,
}

#[derive(Debug, Serialize)]
struct DuReport {
    entries: Vec<DuEntry>,
}

impl TreeUse {
    /// Nothing, with the raw space of it if that can be known.
    fn nothing(class: Option<RedundancyClass>) -> Self {
        Self { raw_bytes: class.map(|_| (0, 0)), ..Self::default() }
    }

    /// With what `file` takes in a volume of this class.
    fn with_file(self, file: &Attributes, class: Option<RedundancyClass>) -> Self {
        let raw = class.map(|class| raw_bytes(file.used_bytes, file.redundancy.unwrap_or(class)));
        self.with(Self {
            files: 1,
            size_bytes: file.size,
            used_bytes: file.used_bytes,
            raw_bytes: raw,
        })
    }

    fn with(self, other: Self) -> Self {
        let raw = self.raw_bytes.zip(other.raw_bytes);
        Self {
            files: self.files + other.files,
            size_bytes: self.size_bytes + other.size_bytes,
            used_bytes: self.used_bytes + other.used_bytes,
            raw_bytes: raw.map(|(a, b)| (a.0 + b.0, a.1 + b.1)),
        }
    }
}

/// What the disks give for `used_bytes` of a file of this class, at least and at most.
fn raw_bytes(used_bytes: u64, class: RedundancyClass) -> (u64, u64) {
    let in_copies = used_bytes * u64::from(class.copies());
    let in_wide_stripes = class.wide_stripes().map(|shape| {
        let raw = u128::from(used_bytes) * u128::from(shape.shards()) / u128::from(shape.data);
        u64::try_from(raw).unwrap_or(u64::MAX)
    });
    (in_wide_stripes.unwrap_or(in_copies), in_copies)
}

/// A walk through the files of a volume.
struct TreeWalk<'a> {
    volume: &'a Volume,
    class: Option<RedundancyClass>,
    /// Files with several names that were counted.
    counted: BTreeSet<(u64, u64)>,
    depth: usize,
    /// The directories that are shown, each behind those in it.
    shown: Vec<(Vec<u8>, TreeUse)>,
}

impl TreeWalk<'_> {
    fn of_path(&mut self, path: &[u8]) -> Result<(), client::Error> {
        let found = self.volume.symlink_metadata(path)?;
        let used = if found.kind == (Kind::Directory {}) {
            self.of_directory(path, 1)?
        } else {
            self.of_file(&found)
        };
        self.shown.push((path.to_vec(), used));
        Ok(())
    }

    /// `level` is that of what is in it.
    fn of_directory(&mut self, path: &[u8], level: usize) -> Result<TreeUse, client::Error> {
        let mut all = TreeUse::nothing(self.class);
        let mut entries = self.volume.read_dir(path)?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        for entry in entries {
            // What was removed meanwhile has none any more.
            let Some(attributes) = entry.attributes else { continue };
            if attributes.kind != (Kind::Directory {}) {
                all = all.with(self.of_file(&attributes));
                continue;
            }
            let path = join(path, entry.name.as_bytes());
            let below = match self.of_directory(&path, level + 1) {
                Err(error) if error.cause.is_not_found() => continue,
                below => below?,
            };
            if level <= self.depth {
                self.shown.push((path, below));
            }
            all = all.with(below);
        }
        Ok(all)
    }

    fn of_file(&mut self, file: &Attributes) -> TreeUse {
        let none = TreeUse::nothing(self.class);
        let is_counted = file.links > 1 && !self.counted.insert((file.ino, file.generation));
        if file.kind != (Kind::File {}) || is_counted {
            return none;
        }
        none.with_file(file, self.class)
    }
}

impl Du {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        session.connect_with(&self.connection);
        let mut entries = Vec::new();
        for VolumePath { volume: address, path } in &self.paths {
            let volume = session.open(address)?;
            // Clients that are limited to a part of the volume are not told.
            let list = volume.disks().ok();
            let class = list.as_ref().and_then(|list| list.redundancy.parse().ok());
            let (counted, shown) = (BTreeSet::new(), Vec::new());
            let depth = self.depth;
            let mut walk = TreeWalk { volume: &volume, class, counted, depth, shown };
            walk.of_path(path).map_err(|error| CommandFailure::inside(address, error))?;
            let is_changing = list.as_ref().is_some_and(is_changing);
            entries.extend(walk.shown.iter().map(|(path, used)| DuEntry {
                path: lossy(path),
                files: used.files,
                size_bytes: used.size_bytes,
                used_bytes: used.used_bytes,
                raw_bytes_min: used.raw_bytes.map(|(min, _)| min),
                raw_bytes_max: used.raw_bytes.map(|(_, max)| max),
                is_changing,
            }));
        }
        if self.json {
            return session.print_json(&DuReport { entries });
        }
        let heads = ["Size", "Stored", "Raw", "Files", "Path"];
        let mut rows = vec![heads.map(|head| head.as_bytes().to_vec()).to_vec()];
        rows.extend(entries.iter().map(|entry| row(entry, session.terminal)));
        session.print(table(&rows, &[true, true, true, true, false]))?;
        if entries.iter().any(|entry| entry.is_changing) {
            session.print(
                "some of the volume is being stored anew, or waits for disks: Raw is what it takes \
                 when that is done\n",
            )?;
        }
        Ok(())
    }
}

/// Is some data not stored as its class wants it?
fn is_changing(list: &DiskList) -> bool {
    list.waiting_pieces > 0 || list.silent_nodes > 0 || crate::disk_report::degraded_bytes(list) > 0
}

fn row(entry: &DuEntry, terminal: bool) -> Vec<Vec<u8>> {
    let raw = match (entry.raw_bytes_min, entry.raw_bytes_max) {
        (Some(min), Some(max)) if min < max => format!("{} to {}", human(min), human(max)),
        (Some(raw), _) => human(raw),
        (None, _) => "-".to_owned(),
    };
    let cells = [human(entry.size_bytes), human(entry.used_bytes), raw, entry.files.to_string()];
    let path = printable(entry.path.as_bytes(), terminal);
    cells.into_iter().map(String::into_bytes).chain([path]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_space_is_exact_with_copies_and_a_range_with_parity() {
        let raw = |class: &str, bytes| raw_bytes(bytes, class.parse().unwrap());
        assert_eq!(raw("none", 4096), (4096, 4096));
        assert_eq!(raw("2x", 4096), (8192, 8192));
        assert_eq!(raw("3x", 4096), (12_288, 12_288));
        assert_eq!(raw("4+1", 8192), (10_240, 16_384));
        assert_eq!(raw("8+2", 8192), (10_240, 24_576));
    }

    #[test]
    fn without_the_class_of_the_volume_nothing_is_said_of_raw_space() {
        let known = TreeUse::nothing(Some(RedundancyClass::None {}));
        assert_eq!(known.raw_bytes, Some((0, 0)));
        assert_eq!(known.with(TreeUse::nothing(None)).raw_bytes, None);
    }
}
