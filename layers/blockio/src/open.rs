//! Checking that a disk is the one expected, and taking it for an epoch.

use std::cell::Cell;
use std::io;

use runtime::disk::Disk;
use runtime::{Epoch, VolumeId};

use crate::disk_set::DiskName;
use crate::geometry::BLOCK_SIZE;
use crate::superblock::{Superblock, SuperblockFlaw, VERSION, VERSION_ONE_SET, features_of};
use crate::volume_map::VolumeMap;

/// What the opener knows of a disk before it looks.
#[derive(Clone, Debug)]
pub struct ExpectedDisk {
    /// The disks of the volume.
    pub map: VolumeMap,
    /// Which of them it should be.
    pub disk: DiskName,
    /// The epoch of the opener.
    pub epoch: Epoch,
    /// The last epoch that was durable on all disks of the volume, as far as the opener knows; 0 if
    /// it does not. A disk that has not seen it is an old image.
    pub served: Epoch,
}

/// Why a disk cannot be used. Nothing has been written to it, except after [`Io`](Self::Io).
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// There is no superblock.
    #[error("the disk is not formatted: it has no superblock, neither at its start nor at its end")]
    Unformatted,
    /// The disk is part of another volume.
    #[error("the disk belongs to volume {found}, not to volume {expected}")]
    Foreign {
        /// The volume to be opened.
        expected: VolumeId,
        /// The volume that the disk is part of.
        found: VolumeId,
    },
    /// The disk is of this volume, in another place: disks were swapped.
    #[error("this is disk {found}, but disk {expected} was expected: disks were swapped")]
    WrongPosition {
        /// The disk that was expected.
        expected: DiskName,
        /// The disk that it was formatted as.
        found: DiskName,
    },
    /// The disk names this volume, but another shape of it.
    #[error(
        "the disk and the description of volume {volume} disagree about its shape: \
         one of them comes from another copy of the volume"
    )]
    OtherShape {
        /// The volume.
        volume: VolumeId,
    },
    /// The disk knows a later decision about the disks of the volume than the opener.
    #[error(
        "the disk knows version {found} of the volume's record, which is here in version {ours}: \
         the record is an old copy, or a newer process owns the volume"
    )]
    NewerRecord {
        /// The version that the disk knows.
        found: u64,
        /// That of the opener.
        ours: u64,
    },
    /// The end of the disk is missing.
    #[error("the disk was cut off: {real_bytes} bytes of {expected_bytes} are left")]
    Truncated {
        /// Bytes that the disk had when it was formatted, or has at least.
        expected_bytes: u64,
        /// Bytes that it has.
        real_bytes: u64,
    },
    /// The disk was formatted by a newer program.
    #[error(
        "the disk has format version {found}, this program knows {VERSION} at most: \
         use a newer program"
    )]
    FutureVersion {
        /// The version of the disk.
        found: u32,
    },
    /// The disk uses features of a newer program.
    #[error(
        "the disk uses features that this program does not know ({unknown:#x}): use a newer one"
    )]
    UnknownFeatures {
        /// The bits that are not known.
        unknown: u32,
    },
    /// Neither superblock can be trusted.
    #[error("both superblocks of the disk are damaged: its content cannot be identified")]
    Damaged,
    /// A newer epoch has opened the disk: the opener has been replaced and must stop.
    #[error(
        "the disk was opened in epoch {found}, ours is {ours}: a newer process owns the volume"
    )]
    Fenced {
        /// The epoch on the disk.
        found: u64,
        /// The epoch of the opener.
        ours: u64,
    },
    /// The disk missed what was written to the volume after it was copied: its stripes would be of
    /// another time than those of the other disks.
    #[error(
        "the disk is an old image: it was last in use in epoch {found}, the volume in epoch {served}"
    )]
    Outdated {
        /// The epoch on the disk.
        found: u64,
        /// The last epoch in which all disks of the volume were in use.
        served: u64,
    },
    /// A disk to be formatted has no room.
    #[error("the disk has {real_bytes} bytes, the volume needs {needed_bytes} on each disk")]
    TooSmall {
        /// Bytes that the volume needs.
        needed_bytes: u64,
        /// Bytes that the disk has.
        real_bytes: u64,
    },
    /// The disk cannot be read or written.
    #[error("the disk failed: {0}")]
    Io(#[from] io::Error),
}

/// The identity of `disk`, without a check.
pub async fn identify(disk: &dyn Disk) -> Result<Superblock, DiskError> {
    find(disk).await.map(|found| found.superblock)
}

/// Checks that `disk` is the one expected and makes the opener's epoch durable on it, so that
/// earlier ones are refused from now on. A damaged superblock is replaced from its copy.
pub async fn open_disk(disk: &dyn Disk, expected: &ExpectedDisk) -> Result<Superblock, DiskError> {
    let found = check_disk(disk, expected).await?;
    found.take_over(disk, &expected.map, expected.epoch).await
}

impl CheckedDisk {
    /// Is one of the two superblocks missing, damaged or old?
    pub(crate) fn needs_repair(&self) -> bool {
        self.needs_repair
    }
}

/// A disk that was checked, but not yet taken for the opener's epoch.
#[derive(Clone, Debug)]
pub(crate) struct CheckedDisk {
    superblock: Superblock,
    /// Where the two superblocks are, in the order in which to replace them: a good one is
    /// replaced only while the other is good.
    rewrite: [u64; 2],
    /// One of them is missing, damaged or old.
    needs_repair: bool,
}

/// The first half of [`open_disk`]: only reads.
pub(crate) async fn check_disk(
    disk: &dyn Disk,
    expected: &ExpectedDisk,
) -> Result<CheckedDisk, DiskError> {
    let expected_bytes = expected.map.disk_length(expected.disk);
    let found = match find(disk).await {
        Err(DiskError::Unformatted | DiskError::Damaged) if disk.length() < expected_bytes => {
            return Err(DiskError::Truncated { expected_bytes, real_bytes: disk.length() });
        }
        found => found?,
    };
    found.superblock.check(expected)?;
    Ok(found)
}

/// Whether a disk that lacks its end is the one expected, as far as its first superblock tells.
pub(crate) async fn check_first(disk: &dyn Disk, expected: &ExpectedDisk) -> Result<(), DiskError> {
    match read_at(disk, 0).await {
        Ok(superblock) => superblock.check(expected),
        Err(_) => Ok(()),
    }
}

impl Superblock {
    fn check(&self, expected: &ExpectedDisk) -> Result<(), DiskError> {
        let volume = expected.map.volume();
        if self.volume() != volume {
            return Err(DiskError::Foreign { expected: volume, found: self.volume() });
        }
        if self.geometry != expected.map.geometry() {
            return Err(DiskError::OtherShape { volume });
        }
        if self.disk != expected.disk {
            return Err(DiskError::WrongPosition { expected: expected.disk, found: self.disk });
        }
        let (found, ours) = (self.decided.version, expected.map.version());
        if found > ours {
            return Err(DiskError::NewerRecord { found, ours });
        }
        // A disk that was away while sets were added learns of them now.
        let rows = expected.map.rows_of(self.disk);
        let is_known = rows.starts_with(&self.sets) && (found < ours || rows == self.sets);
        if !is_known || self.decided.born_sets != expected.map.decided().born_sets {
            return Err(DiskError::OtherShape { volume });
        }
        if self.epoch > expected.epoch {
            return Err(DiskError::Fenced { found: self.epoch.0, ours: expected.epoch.0 });
        }
        // A disk that was made ready has never been in use, whatever was decided since.
        if self.epoch < expected.served && self.decided.is_decided {
            return Err(DiskError::Outdated { found: self.epoch.0, served: expected.served.0 });
        }
        Ok(())
    }
}

impl Superblock {
    /// The same after all that `map` has decided. A volume of version 1 decides nothing.
    fn following(&self, map: &VolumeMap) -> Self {
        if self.version == VERSION_ONE_SET {
            return self.clone();
        }
        let (sets, features) = (map.rows_of(self.disk), features_of(map));
        Self { sets, features, decided: map.decided(), ..self.clone() }
    }

    /// Is this the same disk, opened or decided upon later than `other` tells?
    fn is_later_than(&self, other: &Self) -> bool {
        let age = |superblock: &Self| (superblock.epoch, superblock.decided.version);
        let identity = |superblock: &Self| {
            // Features follow from what was decided.
            let Self { version, disk, geometry, id, length, formatted_ms, .. } = *superblock;
            (version, disk, geometry, id, length, formatted_ms)
        };
        age(self) > age(other) && identity(self) == identity(other)
    }
}

/// Makes durable on a disk of `map`, which was opened, what the map has decided since.
pub(crate) async fn update_disk(
    disk: &dyn Disk,
    map: &VolumeMap,
    unproven: &UnprovenCopy,
) -> Result<Superblock, DiskError> {
    let mut found = find(disk).await?;
    if let Some(offset) = unproven.get() {
        found.needs_repair = true;
        if found.rewrite[1] == offset {
            found.rewrite.reverse();
        }
    }
    let epoch = found.superblock.epoch;
    found.replace(disk, map, epoch, unproven).await
}

/// Are both superblocks of a disk good, and the same? An error if neither is good.
pub(crate) async fn check_superblocks(disk: &dyn Disk) -> Result<bool, DiskError> {
    Ok(!find(disk).await?.needs_repair)
}

/// Where the superblock is that was written and is not known to be durable. It is the one to begin
/// with, whatever is read there: after a sync that failed the host may show what a crash undoes.
pub(crate) type UnprovenCopy = Cell<Option<u64>>;

impl CheckedDisk {
    /// The second half of [`open_disk`]: makes `epoch` durable, and what `map` has decided.
    pub(crate) async fn take_over(
        self,
        disk: &dyn Disk,
        map: &VolumeMap,
        epoch: Epoch,
    ) -> Result<Superblock, DiskError> {
        self.replace(disk, map, epoch, &UnprovenCopy::default()).await
    }

    async fn replace(
        self,
        disk: &dyn Disk,
        map: &VolumeMap,
        epoch: Epoch,
        unproven: &UnprovenCopy,
    ) -> Result<Superblock, DiskError> {
        let superblock = Superblock { epoch, ..self.superblock.following(map) };
        if superblock == self.superblock && !self.needs_repair {
            return Ok(superblock);
        }
        write_both(disk, &superblock, self.rewrite, unproven).await?;
        Ok(superblock)
    }
}

/// Makes a disk of an older version one of the newest, with the random number `id`. Programs that
/// know only the older one refuse it from then on. `false` if it was of the newest already.
///
/// A crash on the way leaves it as it was, or done.
pub async fn upgrade_disk(disk: &dyn Disk, id: u128) -> Result<bool, DiskError> {
    let found = find(disk).await?;
    if found.superblock.version == VERSION {
        return Ok(false);
    }
    let upgraded = Superblock { version: VERSION, id, ..found.superblock };
    write_both(disk, &upgraded, found.rewrite, &UnprovenCopy::default()).await?;
    Ok(true)
}

/// One after the other, each durable before the next: a crash tears one of them at most.
async fn write_both(
    disk: &dyn Disk,
    superblock: &Superblock,
    offsets: [u64; 2],
    unproven: &UnprovenCopy,
) -> Result<(), DiskError> {
    for offset in offsets {
        unproven.set(Some(offset));
        disk.write(offset, vec![superblock.encode()]).await?;
        disk.sync().await?;
    }
    unproven.set(None);
    Ok(())
}

/// The part of a disk that consists of whole blocks, in bytes.
pub(crate) fn whole_blocks(length: u64) -> u64 {
    length - length % BLOCK_SIZE as u64
}

async fn find(disk: &dyn Disk) -> Result<CheckedDisk, DiskError> {
    let real_bytes = disk.length();
    // Less than two superblocks and something between them cannot have been formatted.
    let Some(mut copy_offset) = whole_blocks(real_bytes).checked_sub(BLOCK_SIZE as u64) else {
        return Err(DiskError::Unformatted);
    };
    let first = read_at(disk, 0).await;
    if let Ok(superblock) = &first {
        let expected_bytes = superblock.length;
        if real_bytes < expected_bytes {
            return Err(DiskError::Truncated { expected_bytes, real_bytes });
        }
        // A disk that has grown keeps its copy where it was.
        copy_offset = superblock.copy_offset();
    }
    let copy = read_at(disk, copy_offset).await;
    choose(first, copy, copy_offset)
}

/// Takes the better one of two superblocks.
fn choose(
    first: Result<Superblock, Unusable>,
    copy: Result<Superblock, Unusable>,
    copy_offset: u64,
) -> Result<CheckedDisk, DiskError> {
    match (first, copy) {
        (Ok(first), Ok(copy)) => {
            // After a crash while an epoch was made durable one is behind. Neither has been acted
            // upon in the newer epoch, but the older one must not be taken for the truth.
            let needs_repair = first != copy;
            let copy_is_newer = copy.is_later_than(&first);
            let superblock = if copy_is_newer { copy } else { first };
            let rewrite = if copy_is_newer { [0, copy_offset] } else { [copy_offset, 0] };
            Ok(CheckedDisk { superblock, rewrite, needs_repair })
        }
        (Ok(superblock), Err(_)) => {
            Ok(CheckedDisk { superblock, rewrite: [copy_offset, 0], needs_repair: true })
        }
        (Err(_), Ok(superblock)) => {
            Ok(CheckedDisk { superblock, rewrite: [0, copy_offset], needs_repair: true })
        }
        (Err(first), Err(copy)) => Err(first.worse(copy)),
    }
}

/// Why a superblock cannot be used.
enum Unusable {
    Flawed(SuperblockFlaw),
    Unreadable(io::Error),
}

impl Unusable {
    /// What is said if neither of two can be used: what tells the operator most.
    fn worse(self, other: Self) -> DiskError {
        match (self, other) {
            (Self::Flawed(SuperblockFlaw::Version(found)), _)
            | (_, Self::Flawed(SuperblockFlaw::Version(found))) => {
                DiskError::FutureVersion { found }
            }
            (Self::Flawed(SuperblockFlaw::Features(unknown)), _)
            | (_, Self::Flawed(SuperblockFlaw::Features(unknown))) => {
                DiskError::UnknownFeatures { unknown }
            }
            (Self::Unreadable(why), _) | (_, Self::Unreadable(why)) => DiskError::Io(why),
            (Self::Flawed(SuperblockFlaw::NoMagic), Self::Flawed(SuperblockFlaw::NoMagic)) => {
                DiskError::Unformatted
            }
            (Self::Flawed(_), Self::Flawed(_)) => DiskError::Damaged,
        }
    }
}

async fn read_at(disk: &dyn Disk, offset: u64) -> Result<Superblock, Unusable> {
    let block = disk.read(offset, BLOCK_SIZE).await.map_err(Unusable::Unreadable)?;
    Superblock::decode(&block).map_err(Unusable::Flawed)
}
