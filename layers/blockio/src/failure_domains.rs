//! Which disks of a volume fail together: the shards of a wide stripe are apart from one another.

use std::collections::BTreeSet;

use crate::disk_set::DiskName;
use crate::disk_state::DiskStage;
use crate::volume_map::VolumeMap;

/// Disks in use, as they fail together.
#[derive(Debug, Default)]
pub struct FailureDomains {
    /// In order.
    domains: Vec<DiskName>,
    are_nodes: bool,
}

impl FailureDomains {
    /// Those of the disks that are in use.
    pub fn in_use(map: &VolumeMap) -> Self {
        let disks = map.disks();
        let are_nodes = disks.windows(2).any(|pair| pair[0].disk_node != pair[1].disk_node);
        let mut found = Self { domains: Vec::new(), are_nodes };
        let online = disks.into_iter().filter(|disk| map.state(*disk) == DiskStage::Online {});
        let domains: BTreeSet<DiskName> = online.map(|disk| found.of(disk)).collect();
        found.domains = domains.into_iter().collect();
        found
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.domains.len() as u32
    }

    /// The number of that of a disk.
    pub fn number(&self, disk: DiskName) -> Option<u32> {
        self.domains.binary_search(&self.of(disk)).ok().map(|number| number as u32)
    }

    /// Who fails together with a disk: its disk node, unless there is only one.
    pub fn of(&self, disk: DiskName) -> DiskName {
        if self.are_nodes { DiskName { disk: 0, ..disk } } else { disk }
    }
}
