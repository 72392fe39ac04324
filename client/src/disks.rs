//! The disks of a volume, for its operator.

use fileio::protocol::{ChangeDisks, DiskChange, DiskList, GetDisks};
use runtime::Spawn;

use crate::error::Error;
use crate::file_system::FileSystem;

/// The disks of the volume.
pub async fn list_disks<S: Spawn>(volume: &FileSystem<S>) -> Result<DiskList, Error> {
    let (who, root) = (volume.session.who(), volume.session.root());
    let asked = volume.session.ask(GetDisks { who, root }).await;
    asked.map_err(Error::of("list the disks of", b"/"))
}

/// Changes the disks of the volume: root and the owner of its root directory may.
pub async fn change_disks<S: Spawn>(
    volume: &FileSystem<S>,
    change: DiskChange,
) -> Result<(), Error> {
    let (who, root) = (volume.session.who(), volume.session.root());
    let changed = volume.session.ask(ChangeDisks { who, root, change }).await;
    changed.map_err(Error::of("change the disks of", b"/"))
}
