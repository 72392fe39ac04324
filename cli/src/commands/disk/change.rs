//! Asking the servers of a volume for a change of its disks.

use client::VolumeAddress;
use client::protocol::DiskChange;

use crate::exit::CommandFailure;
use crate::session::CommandSession;

/// Asks the servers for a change.
pub(crate) fn change(
    session: &mut CommandSession,
    address: &VolumeAddress,
    change: DiskChange,
) -> Result<(), CommandFailure> {
    let volume = session.open(address)?;
    volume.change_disks(change).map_err(|error| CommandFailure::inside(address, error))
}
