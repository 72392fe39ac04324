//! What makes a directory and its disks a volume.

use runtime::Epoch;

/// The key of the volume's record in the coordination store.
pub const VOLUME_KEY: &str = "volume";

/// The epoch in which a volume is made. Disks of it that know no later one hold no data of anybody.
pub(crate) const FORMAT_EPOCH: Epoch = Epoch(1);
