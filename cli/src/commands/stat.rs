//! `mdfs stat`: all that is known of a file.

use client::{Attributes, Kind};

use crate::exit::Failure;
use crate::output::{Record, is_device, kind, lossy, permissions, printable};
use crate::session::Session;
use crate::size::human;
use crate::time::date;
use crate::volume_path::VolumePath;

/// Show all that is known of a file (of a symbolic link itself).
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs stat scratch:/run1/results.h5
  mdfs stat --json scratch:/run1/results.h5 | jq .size_bytes")]
pub(crate) struct Stat {
    /// As JSON, sizes in bytes.
    #[arg(long)]
    json: bool,
    /// The file.
    #[arg(value_name = "VOL:/PATH", value_parser = VolumePath::parser())]
    path: VolumePath,
}

impl Stat {
    pub(super) fn run(&self, session: &mut Session) -> Result<(), Failure> {
        let volume = session.open(&self.path.volume)?;
        let inside = |error| Failure::inside(&self.path.volume, error);
        let found = volume.symlink_metadata(&self.path.path).map_err(inside)?;
        let is_link = found.kind == (Kind::Symlink {});
        let target =
            if is_link { Some(volume.read_link(&self.path.path).map_err(inside)?) } else { None };
        if self.json {
            return session.print_json(&Record::new(&self.path.path, &found, target.as_deref()));
        }
        session.print(describe(&self.path.path, &found, target.as_deref(), session.terminal))
    }
}

/// All that is known of a file, in lines.
pub(super) fn describe(
    path: &[u8],
    found: &Attributes,
    target: Option<&[u8]>,
    terminal: bool,
) -> String {
    let name = lossy(&printable(path, terminal));
    let mut lines = vec![format!("    path  {name}"), format!("    kind  {}", kind(found.kind))];
    if let Some(target) = target {
        let target = lossy(&printable(target, terminal));
        lines.push(format!("  target  {target}"));
    }
    if is_device(found.kind) {
        lines.push(format!("  device  {}, {}", found.major, found.minor));
    }
    lines.extend(numbers(found));
    lines.join("\n") + "\n"
}

fn numbers(found: &Attributes) -> [String; 8] {
    let (size, used_bytes) = (human(found.size), human(found.used_bytes));
    [
        format!("    size  {} bytes ({size}), {used_bytes} on disk", found.size),
        format!("    mode  {:04o} {}", found.mode, permissions(found)),
        format!("   owner  {}  group {}  links {}", found.uid, found.gid, found.links),
        format!("   inode  {}  generation {}", found.ino, found.generation),
        format!("accessed  {} UTC", date(found.atime)),
        format!("modified  {} UTC", date(found.mtime)),
        format!(" changed  {} UTC", date(found.ctime)),
        format!(" created  {} UTC", date(found.birth)),
    ]
}
