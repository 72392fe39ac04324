//! `mdfs format`: makes a volume.

use std::path::{Path, PathBuf};

use client::blocking::Volume;
use client::volume::{OpenCause, OpenError};
use client::{Credentials, Space};
use runtime::ids::{DISK_NODES_MAX, FS_NODES_MAX};
use serde::Serialize;
use volume::{FormatOptions, RedundancyClass, RootOwner, RunOptions, Spread};

use crate::connection::volume_directory;
use crate::exit::CommandFailure;
use crate::session::CommandSession;
use crate::size::{ByteSize, human};

/// What a file of one block takes, with its name and all else that is kept of it.
const SMALL_FILE_BYTES: u64 = 5 << 10;

/// Make a volume: its directory, its disks and an empty file system.
///
/// Without --disk, each disk is a file in the volume's directory. A disk that is mounted, otherwise
/// in use, or holds anything at its start or end (a file system, a partition table, another volume,
/// any byte that is not zero) is refused, and the message tells what it holds, and its id for
/// --force. A format that was stopped can be repeated.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs format scratch                                         one disk of 4 GiB, in a file
  mdfs format scratch --disk-nodes 2 --disks-per-node 2       four disks in files
  mdfs format scratch --disk /dev/sdb --disk /dev/sdc --disk-nodes 2 --redundancy 2x")]
pub(crate) struct FormatCommand {
    /// The directory of the volume; made if it does not exist.
    #[arg(value_name = "VOL", value_parser = volume_directory())]
    volume: PathBuf,
    /// Disk nodes: groups of disks that work side by side.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(DISK_NODES_MAX)))]
    disk_nodes: u32,
    /// Disks of each disk node.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=256))]
    disks_per_node: u32,
    /// Size of each disk that is a file, as in 4GiB; files grow only as they are written.
    #[arg(long, value_name = "SIZE", default_value = "4GiB", conflicts_with = "disks")]
    disk_size: ByteSize,
    /// A block device or file to use as a disk; one for each disk, node after node.
    #[arg(long = "disk", value_name = "PATH")]
    disks: Vec<PathBuf>,
    /// File-system nodes, which share the work; the number never changes. Without it 64, and fewer
    /// for less than 4 GiB.
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(FS_NODES_MAX)))]
    nodes: Option<u32>,
    /// Bytes of a stripe: so much goes to one disk before the next one.
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    stripe: ByteSize,
    /// Overwrite the disk with this id, as the refusal told it; once for each such disk.
    #[arg(long, value_name = "DEVICE-ID")]
    force: Vec<String>,
    /// How stripes go over disks and caches: in units of 1 MiB, or one by one as in the thesis.
    #[arg(long, value_name = "WAY", default_value = "units")]
    spread: SpreadChoice,
    /// `2x` or `3x`: all data is on two or three disks, of different disk nodes if there are
    /// enough. `K+M`, as in 4+1 or 8+2: large files have M stripes of parity for K stripes of data,
    /// the rest has M+1 copies.
    #[arg(long, value_name = "CLASS", default_value = "none")]
    redundancy: RedundancyClass,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// See [`Spread`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum SpreadChoice {
    Units,
    Modulo,
}

/// What was made.
#[derive(Debug, Serialize)]
struct FormatReport {
    volume: String,
    id: String,
    disk_nodes: u32,
    disks: u32,
    total_bytes: u64,
    /// What one file can have.
    available_bytes: u64,
    /// Files of one block that there can be, about.
    files_max: u64,
    nodes: u32,
    stripe_bytes: u64,
    redundancy: String,
}

impl FormatCommand {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let options = self.options()?;
        let map = volume::format(&self.volume, &options)
            .map_err(|error| CommandFailure::Format { volume: self.volume.clone(), error })?;
        let space = self.space()?;
        let report = FormatReport {
            volume: self.volume.display().to_string(),
            id: map.volume().to_string(),
            disk_nodes: map.disk_nodes(),
            disks: map.disks().len() as u32,
            total_bytes: map.bytes(),
            available_bytes: space.available_bytes,
            files_max: space.available_bytes / SMALL_FILE_BYTES,
            nodes: map.geometry().fs_nodes,
            stripe_bytes: u64::from(map.geometry().stripe_size),
            redundancy: map.redundancy().to_string(),
        };
        self.report(&report, session)
    }

    /// The space of the new volume.
    fn space(&self) -> Result<Space, CommandFailure> {
        let failed = |cause| OpenError { address: self.volume.as_path().into(), cause };
        let running = volume::open(&self.volume, &RunOptions::default());
        let running = running.map_err(|error| failed(OpenCause::Stack(error)))?;
        let volume = Volume::new(running.client_handle(), Credentials::root());
        let space = volume.space();
        let space =
            space.map_err(|error| CommandFailure::inside(&self.volume.as_path().into(), error))?;
        running.stop().map_err(|error| failed(OpenCause::Stack(error)))?;
        Ok(space)
    }

    fn options(&self) -> Result<FormatOptions, CommandFailure> {
        let user = client::process::credentials().map_err(|error| {
            CommandFailure::local("read", Path::new("/proc/self/status"), error)
        })?;
        let too_long =
            || CommandFailure::Usage(format!("a stripe of {} is too long", human(self.stripe.0)));
        Ok(FormatOptions {
            disk_nodes: self.disk_nodes,
            disks_per_node: self.disks_per_node,
            disk_bytes: self.disk_size.0,
            disks: self.disks.clone(),
            fs_nodes: self.nodes.unwrap_or(0),
            stripe_size: u32::try_from(self.stripe.0).map_err(|_| too_long())?,
            force: self.force.clone(),
            // The volume belongs to the user who makes it, not to root.
            owner: RootOwner { uid: user.uid, gid: user.gid },
            spread: match self.spread {
                SpreadChoice::Units => Spread::Units,
                SpreadChoice::Modulo => Spread::Modulo,
            },
            redundancy: self.redundancy,
        })
    }

    /// Prints the result and the next command.
    fn report(
        &self,
        made: &FormatReport,
        session: &mut CommandSession,
    ) -> Result<(), CommandFailure> {
        if self.json {
            return session.print_json(made);
        }
        let FormatReport { volume, id, disk_nodes, disks, nodes, files_max, redundancy, .. } = made;
        session.print(format!(
            "volume {volume} ({id})
  {} on {disks} disks of {disk_nodes} disk nodes, stripes of {}, {nodes} nodes, redundancy {redundancy}
  room for {} of data in large files, or for {files_max} files of up to 4 KiB
next: mdfs serve {volume}
",
            human(made.total_bytes),
            human(made.stripe_bytes),
            human(made.available_bytes),
        ))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct FormatProgram {
        #[command(flatten)]
        format: FormatCommand,
    }

    fn parse(arguments: &[&str]) -> Result<FormatCommand, String> {
        let arguments = ["format", "VOL"].iter().chain(arguments);
        Ok(FormatProgram::try_parse_from(arguments).map_err(|error| error.to_string())?.format)
    }

    #[test]
    fn sizes_and_counts_are_checked() {
        let plain = parse(&["--disk-size", "1TiB", "--stripe", "1MiB"]).unwrap();
        let options = plain.options().unwrap();
        assert_eq!((options.disk_bytes, options.stripe_size), (1 << 40, 1 << 20));
        for bad in [["--nodes", "0"], ["--nodes", "4097"], ["--disk-size", "x"]] {
            assert!(parse(&bad).is_err(), "{bad:?}");
        }
        assert!(parse(&["--disk-size", "1GiB", "--disk", "a"]).is_err());
        let long = parse(&["--stripe", "8GiB"]).unwrap().options().unwrap_err();
        assert_eq!(long.to_string(), "a stripe of 8 GiB is too long");
    }
}
