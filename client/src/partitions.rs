//! The partitions of a volume, for its operator.

use fileio::protocol::{
    ChangePartitions, Error as FileIoError, GetPartitions, GetSpace, PartitionChange,
    PartitionRefusal, PartitionTable,
};
use runtime::Spawn;

use crate::Space;
use crate::error::Error;
use crate::file_system::FileSystem;

/// The partitions of the volume besides partition 0.
pub async fn list_partitions<S: Spawn>(volume: &FileSystem<S>) -> Result<PartitionTable, Error> {
    let asked = volume.session.ask(GetPartitions { root: volume.session.root() }).await;
    asked.map_err(Error::of("list the partitions of", b"/"))
}

/// Changes the partitions of the volume: root and the owner of its root directory may.
pub async fn change_partitions<S: Spawn>(
    volume: &FileSystem<S>,
    change: PartitionChange,
) -> Result<(), Error> {
    let (who, root) = (volume.session.who(), volume.session.root());
    let (operation, name) = match &change {
        PartitionChange::Create { name, .. } => ("create partition", name.clone()),
        PartitionChange::SetLimit { name, .. } => ("limit partition", name.clone()),
        PartitionChange::Remove { name, .. } => ("remove partition", name.clone()),
    };
    let is_removal = matches!(change, PartitionChange::Remove { .. })
        && list_partitions(volume).await?.named(&name).is_some();
    let changed = volume.session.ask(ChangePartitions { who, root, change }).await;
    let gone = FileIoError::from(PartitionRefusal::NotFound {});
    match changed {
        // It was removed at once, and the request came again after its answer was lost.
        Err(error) if is_removal && error == gone.into() => Ok(()),
        changed => {
            let path = [&b"/"[..], name.as_bytes()].concat();
            changed.map_err(Error::of(operation, &path))
        }
    }
}

/// The space of a partition, by its number.
pub async fn partition_space<S: Spawn>(
    volume: &FileSystem<S>,
    partition: u16,
) -> Result<Space, Error> {
    let asked = volume.session.ask(GetSpace { partition }).await;
    asked.map_err(Error::of("ask for the space of", b"/"))
}
