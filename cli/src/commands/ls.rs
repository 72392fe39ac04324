//! `mdfs ls`: lists directories.

use client::blocking::Volume;
use client::{Attributes, Kind};

use crate::connection::ConnectionArguments;
use crate::exit::CommandFailure;
use crate::output::{FileRecord, LIST_ALIGNED_RIGHT, ListedFile, list_row, printable, table};
use crate::session::CommandSession;
use crate::volume_path::{VolumePath, join};

/// List a directory, or show a file, by name.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs ls scratch:/                 names
  mdfs ls -l scratch:/run1          with permissions, links, owner, group, size, time (UTC)
  mdfs ls -lH scratch:/run1         with sizes like 1.5 GiB
  mdfs ls --json scratch:/run1 | jq '.[].size_bytes'")]
pub(crate) struct Ls {
    /// With all that is known of each.
    #[arg(short, long)]
    long: bool,
    /// Sizes in units that are easy to read, with -l.
    #[arg(short = 'H', long, requires = "long")]
    human: bool,
    /// As a JSON list, sizes in bytes.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
    /// A directory or a file.
    #[arg(value_name = "VOL:/PATH", value_parser = VolumePath::parser())]
    path: VolumePath,
}

impl Ls {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        session.connect_with(&self.connection);
        let volume = session.open(&self.path.volume)?;
        let lines = self.lines(&volume);
        let lines = lines.map_err(|error| CommandFailure::inside(&self.path.volume, error))?;
        if self.json {
            let record = |line: &ListedFile| {
                FileRecord::new(&line.name, &line.attributes, line.target.as_deref())
            };
            return session.print_json(&lines.iter().map(record).collect::<Vec<_>>());
        }
        if self.long {
            let row = |line| list_row(line, self.human, session.terminal);
            return session
                .print(table(&lines.iter().map(row).collect::<Vec<_>>(), &LIST_ALIGNED_RIGHT));
        }
        for line in lines {
            session.print(printable(&line.name, session.terminal))?;
            session.print("\n")?;
        }
        Ok(())
    }

    fn lines(&self, volume: &Volume) -> Result<Vec<ListedFile>, client::Error> {
        let path = &self.path.path;
        let found = volume.symlink_metadata(path)?;
        // As ls does: a link to a directory is shown as a link with -l only.
        let shown = if self.long || found.kind != (Kind::Symlink {}) {
            found
        } else {
            volume.metadata(path).unwrap_or(found)
        };
        let with_target = |path: &[u8], name: Vec<u8>, attributes: Attributes| {
            let is_link = attributes.kind == (Kind::Symlink {});
            let target = if is_link { Some(volume.read_link(path)?) } else { None };
            Ok(ListedFile { name, attributes, target })
        };
        if shown.kind != (Kind::Directory {}) {
            return Ok(vec![with_target(path, path.clone(), found)?]);
        }
        let mut entries = volume.read_dir(path)?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        // What was removed meanwhile has no attributes any more.
        let existing =
            entries.into_iter().filter_map(|entry| Some((entry.name, entry.attributes?)));
        existing
            .map(|(name, attributes)| {
                let name = name.as_bytes();
                with_target(&join(path, name), name.to_vec(), *attributes)
            })
            .collect()
    }
}
