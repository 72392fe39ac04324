//! Making a disk part of a volume.

use std::time::Duration;

use bytes::Bytes;
use runtime::Epoch;
use runtime::disk::Disk;

use crate::disk_set::DiskName;
use crate::geometry::BLOCK_SIZE;
use crate::open::{DiskError, whole_blocks};
use crate::probe::END_BYTES;
use crate::superblock::{Decided, Superblock, VERSION, features_of};
use crate::volume_map::VolumeMap;

/// Bytes of the slot area that are cleared at a time, at most.
const CLEAR_BYTES: u64 = 64 << 10;

static ZEROS: [u8; CLEAR_BYTES as usize] = [0; CLEAR_BYTES as usize];

/// Makes `disk` the disk `name` of a volume, with the random number `id`, at time `now` since 1970.
/// What it holds is gone, and [`probe`](crate::probe()) tells beforehand.
///
/// A crash on the way leaves an unformatted disk. Stripes keep their old bytes; root slots, and all
/// that another program could know the disk by, are zeros.
pub async fn format_disk(
    disk: &dyn Disk,
    map: &VolumeMap,
    name: DiskName,
    id: u128,
    now: Duration,
) -> Result<Superblock, DiskError> {
    format_as(disk, (map, map.decided()), name, id, now).await
}

/// The same for a volume of which not all is decided yet.
pub(crate) async fn format_as(
    disk: &dyn Disk,
    (map, decided): (&VolumeMap, Decided),
    name: DiskName,
    id: u128,
    now: Duration,
) -> Result<Superblock, DiskError> {
    let geometry = map.geometry();
    let length = whole_blocks(disk.length());
    let needed_bytes = map.disk_length(name);
    if length < needed_bytes {
        return Err(DiskError::TooSmall { needed_bytes, real_bytes: disk.length() });
    }
    let superblock = Superblock {
        version: VERSION,
        disk: name,
        features: features_of(map),
        geometry,
        id,
        length,
        formatted_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
        epoch: Epoch::default(),
        sets: map.rows_of(name),
        decided,
    };
    let copy_offset = superblock.copy_offset();
    // The old identity goes first and the new one comes last: in between, the disk has none.
    clear(disk, 0, BLOCK_SIZE as u64).await?;
    clear(disk, copy_offset, length).await?;
    disk.sync().await?;
    clear(disk, 0, END_BYTES.min(length)).await?;
    clear(disk, disk.length().saturating_sub(END_BYTES), disk.length()).await?;
    clear(disk, geometry.slot_offset(0), geometry.slot_offset(geometry.slots_per_disk())).await?;
    disk.sync().await?;
    for offset in [copy_offset, 0] {
        disk.write(offset, vec![superblock.encode()]).await?;
        disk.sync().await?;
    }
    Ok(superblock)
}

/// Makes bytes `start..end` zeros. What is zero already is not written, so that the file of
/// a disk stays sparse.
async fn clear(disk: &dyn Disk, start: u64, end: u64) -> Result<(), DiskError> {
    let mut offset = start;
    while offset < end {
        let length = CLEAR_BYTES.min(end - offset) as usize;
        let zeros = &ZEROS[..length];
        // What cannot be read may still be replaced.
        let is_clear = disk.read(offset, length).await.is_ok_and(|found| found == zeros);
        if !is_clear {
            disk.write(offset, vec![Bytes::from_static(zeros)]).await?;
        }
        offset += length as u64;
    }
    Ok(())
}
