//! `mdfs disk lost`.

use std::path::PathBuf;

use serde::Serialize;
use volume::{DiskName, VolumeMap};

use super::moving::DiskArgument;
use crate::connection::volume_directory;
use crate::exit::{CommandFailure, ServeError};
use crate::session::CommandSession;

/// Go on without a disk that is lost, in a volume with two copies of its data.
///
/// The volume must not be served. From then on it can be served without the disk, and all that was
/// on it is made anew on other disks from the other copies, while files are read and written. Every
/// block needs two disks: if only one is left, add another while it is served. The lost disk cannot
/// come back.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mdfs disk lost scratch n0d1 && mdfs serve scratch
  mdfs disk list scratch                       how much is left to make anew")]
pub(super) struct LostDisk {
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// The directory of the volume.
    #[arg(value_name = "VOL", value_parser = volume_directory())]
    volume: PathBuf,
    /// The disk, as `mdfs disk list` names it: n0d1 is disk 1 of disk node 0.
    #[arg(value_name = "DISK")]
    disk: DiskArgument,
}

#[derive(Debug, Serialize)]
struct LostReport {
    disk: String,
    disks_left: usize,
    disks_needed: u32,
}

impl LostDisk {
    pub(super) fn run(&self, session: &mut CommandSession) -> Result<(), CommandFailure> {
        let DiskArgument { disk_node, disk } = self.disk;
        let given_up = volume::give_up_disk(&self.volume, DiskName { disk_node, disk });
        let map = given_up.map_err(|error| CommandFailure::Serve {
            operation: "give up a disk of",
            volume: self.volume.clone(),
            error: ServeError::Stack(error),
        })?;
        let report = self.report(&map);
        if self.json {
            return session.print_json(&report);
        }
        let (volume, disk) = (self.volume.display(), &report.disk);
        session.print(format!(
            "{volume} goes on without {disk}. Next: mdfs serve {volume}, which makes anew what was \
             on it\n"
        ))?;
        if report.disks_left < report.disks_needed as usize {
            session.print(format!(
                "data need {} disks, and there is {}: mdfs disk add {volume}, while it is served; \
                 until then nothing can be written\n",
                report.disks_needed, report.disks_left
            ))?;
        }
        Ok(())
    }

    fn report(&self, map: &VolumeMap) -> LostReport {
        LostReport {
            disk: self.disk.to_string(),
            disks_left: map.disks().len(),
            disks_needed: map.redundancy().copies(),
        }
    }
}
