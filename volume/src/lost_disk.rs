//! Going on without a disk that is lost, with the other copies of what was on it.

use std::path::Path;

use blockio::{DiskName, DiskStage, VolumeMap, VolumeRecord, lost_disks};
use cluster::coordination::Coordination as _;
use futures::executor::block_on;
use meta::store::Examination;
use runtime::Epoch;

use crate::VolumeError;
use crate::boot::examine_nodes;
use crate::check::serve_whole_disks;
use crate::degraded::{KnownVolume, serve_disks};
use crate::directory::VolumeDirectory;
use crate::lost_disk_refusal::LostDiskRefusal;
use crate::record::VOLUME_KEY;
use crate::volume::{current_map, served, with_path};

/// What is done if data is nowhere else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataLoss {
    /// The disk is not given up.
    Refused,
    /// The files concerned lose it. Metadata must be elsewhere all the same.
    Accepted,
}

/// Gives up `disk` of the volume in the directory `path`, which must not be served: it can be
/// opened without it from then on, and what was on the disk is made anew on others while it is
/// served. The disk cannot come back after that. Returns the volume as it is then.
///
/// Refused unless enough other disks are there to have all data, if its `loss` is not accepted, and
/// all metadata, and room to start.
pub fn give_up_disk(path: &Path, disk: DiskName, loss: DataLoss) -> Result<VolumeMap, VolumeError> {
    let mut directory = VolumeDirectory::open(path)?;
    directory.finish()?;
    let engine = directory.coordination()?;
    let (map, epoch) = current_map(&directory, &engine, path)?;
    if map.state(disk) == (DiskStage::Lost {}) {
        return Ok(map);
    }
    check(&map, disk, loss)?;
    let record = VolumeRecord::of(&map).with_state(disk, DiskStage::Lost {});
    let next = VolumeMap::of_record(&record)?;
    let known = KnownVolume { map: next.clone(), epoch, served: Epoch(served(&engine)?) };
    let machine = known.start_to_read(0, 0)?;
    let impaired = serve_disks(&machine, &directory, &known)?;
    let missing = impaired.iter().filter(|disk| disk.is_left_out).count();
    // As the record is once the disk is lost.
    let most = match loss {
        DataLoss::Refused => record.losses_left(),
        DataLoss::Accepted => record.metadata_losses_left(),
    };
    if missing > most as usize || missing < impaired.len() {
        // It says what is wrong with which one.
        serve_whole_disks(&known.start_to_read(0, 0)?, &directory, &known)?;
    }
    let examined = examine_nodes(&machine, &next, Examination::All);
    examined.map_err(|error| with_path(error, &directory, &next))?;
    block_on(engine.put(VOLUME_KEY, &record.to_stored()))?;
    tracing::info!(%disk, "a disk is given up");
    Ok(next)
}

fn check(map: &VolumeMap, disk: DiskName, loss: DataLoss) -> Result<(), LostDiskRefusal> {
    if !map.disks().contains(&disk) {
        return Err(LostDiskRefusal::NoSuchDisk(disk));
    }
    if loss == DataLoss::Accepted {
        return Ok(());
    }
    if map.redundancy().copies() < 2 {
        return Err(LostDiskRefusal::OneCopy(disk));
    }
    if VolumeRecord::of(map).can_lose(disk) {
        return Ok(());
    }
    let other = lost_disks(map).first().copied();
    Err(other.map_or(LostDiskRefusal::HostAway(disk), LostDiskRefusal::OtherLost))
}
