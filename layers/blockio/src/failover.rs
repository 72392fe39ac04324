//! Writes to a disk that has failed, where data has copies on others: they wait until the volume
//! has given the disk up, and are dropped from then on.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use runtime::Context;
use runtime::protocol::Undelivered;

use crate::disk_set::DiskName;
use crate::disk_state::DiskStage;
use crate::protocol::Error;
use crate::volume_map::VolumeMap;

/// Writes to a failed disk are answered with `Busy` for this long. If it is not given up by then,
/// they fail, and what depends on them stops.
pub const FAILOVER_MAX: Duration = Duration::from_secs(30);

/// The failed disks of one disk node.
pub(crate) struct Failover {
    context: Context,
    map: VolumeMap,
    disk_node: u32,
    /// Nothing is given up by a server that only reads.
    is_read_only: bool,
    /// Since when writes to a disk fail.
    failing: RefCell<BTreeMap<u32, Duration>>,
}

impl Failover {
    pub(crate) fn new(
        context: &Context,
        map: &VolumeMap,
        disk_node: u32,
        is_read_only: bool,
    ) -> Self {
        let (context, map) = (context.clone(), map.clone());
        Self { context, map, disk_node, is_read_only, failing: RefCell::default() }
    }

    /// Is the disk given up?
    pub(crate) fn is_lost(&self, disk: u32) -> bool {
        let name = DiskName { disk_node: self.disk_node, disk };
        self.map.state(name) == (DiskStage::Lost {})
    }

    /// The answer to a write or a flush that ended like this: that of a failed disk may succeed
    /// later, or is `dropped` as the disk is given up.
    pub(crate) fn answer<T>(
        &self,
        disk: u32,
        answer: Result<T, Error>,
        dropped: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        match answer {
            Err(_) if self.is_lost(disk) => dropped(),
            Err(Error::DiskFailed { .. }) if self.may_be_given_up(disk) => {
                Err(Undelivered::Busy.into())
            }
            answer => {
                if answer.is_ok() && !self.failing.borrow().is_empty() {
                    self.failing.borrow_mut().remove(&disk);
                }
                answer
            }
        }
    }

    fn may_be_given_up(&self, disk: u32) -> bool {
        if self.is_read_only || self.map.redundancy().copies() < 2 {
            return false;
        }
        let now = self.context.now();
        let since = *self.failing.borrow_mut().entry(disk).or_insert(now);
        now < since + FAILOVER_MAX
    }
}
