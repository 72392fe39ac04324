//! The disks of a host that was away, and is back: they take writes again at once, and are used
//! like others once a scrub has found that they have all that they should (ADR 96).

use std::collections::BTreeSet;

use blockio::geometry::STATES_MAX;
use blockio::protocol::{Describe, Error as DiskNodeAnswer, Sync};
use blockio::{DiskName, DiskStage, VolumeMap, VolumeRecord};
use fileio::protocol::{Error, Flush};
use futures::future::join_all;
use meta::protocol::{Scrub, ScrubFlaw};
use meta::store::roots_survive;
use runtime::NodeId;
use runtime::protocol::Undelivered;

use super::{AGAIN_PAUSE, DiskManager, LIST_WAIT, is_away, refused};

/// Looks at all data of a volume, at most, until one finds no flaw.
const PASSES_MAX: u32 = 8;

impl DiskManager {
    /// Brings disks up to date whose host is back, in the background.
    pub(super) fn take_back_later(&self) {
        let Some(me) = self.me.upgrade() else { return };
        if !self.taking_back.replace(true) {
            self.context.task(async move {
                if let Err(error) = me.take_back().await {
                    tracing::info!(%error, "the disks of a host that was away are not online yet");
                }
                me.context.sleep(AGAIN_PAUSE).await;
                me.taking_back.set(false);
            });
        }
    }

    async fn take_back(&self) -> Result<(), Error> {
        let behind: Vec<DiskName> = self.disks_behind();
        let nodes: BTreeSet<u32> = behind.iter().map(|disk| disk.disk_node).collect();
        let asked = nodes.into_iter().map(|node| async move { (node, self.is_back(node).await) });
        let asked = join_all(asked).await.into_iter();
        let back: BTreeSet<u32> =
            asked.filter_map(|(node, is_back)| is_back.then_some(node)).collect();
        if back.is_empty() {
            return Ok(());
        }
        let disks = behind.into_iter().filter(|disk| back.contains(&disk.disk_node));
        let disks: Vec<DiskName> = disks.collect();
        let version = self.set_stage(&disks, DiskStage::Returning {}, None).await?;
        tracing::info!(disk_nodes = ?back, "disks of hosts that were away are brought up to date");
        for _ in 0..PASSES_MAX {
            if self.has_no_flaw(&back).await? {
                self.set_stage(&disks, DiskStage::Online {}, Some(version)).await?;
                tracing::info!(disk_nodes = ?back, "disks of hosts that were away are online");
                break;
            }
            // With the next checkpoint of all nodes pages are written anew.
            let _alone = self.changing.exclusive(()).await;
            let (record, _) = self.read().await?;
            self.bring_about_unless_failed(&record, &record).await?;
        }
        Ok(())
    }

    /// Does a disk node answer, with all disks in order?
    pub(super) async fn is_back(&self, disk_node: u32) -> bool {
        let is_transient = DiskNodeAnswer::is_transient;
        let node = NodeId::disk(disk_node);
        let found = self.ask_within(LIST_WAIT, node, Describe {}, is_transient).await;
        found.is_some_and(|disks| disks.iter().all(|disk| disk.healthy))
    }

    /// Disks that may lack something.
    fn disks_behind(&self) -> Vec<DiskName> {
        let states = self.map.states().into_iter();
        states.filter(|entry| entry.state.is_behind()).map(|entry| entry.disk).collect()
    }

    /// Decides a stage of disks, if the record still has this version, and brings that about;
    /// returns the version then.
    async fn set_stage(
        &self,
        disks: &[DiskName],
        stage: DiskStage,
        expected: Option<u64>,
    ) -> Result<u64, Error> {
        let _alone = self.changing.exclusive(()).await;
        let (record, stored) = self.read().await?;
        let has_changed = expected.is_some_and(|version| version != record.version);
        if has_changed || !disks.iter().all(|disk| record.state(*disk).is_behind()) {
            // They may have been away again.
            return Err(Undelivered::Busy.into());
        }
        let next = disks.iter().fold(record.clone(), |record, disk| match record.state(*disk) {
            same if same == stage => record,
            _ => record.with_state(*disk, stage),
        });
        if next.version > record.version {
            self.write(&next, stored.as_ref()).await?;
        }
        self.bring_about_unless_failed(&record, &next).await?;
        Ok(next.version)
    }

    /// Compares all that nodes have with its checksums, in all copies, and makes bad ones anew.
    /// Was all of it good, and is it durable at these disk nodes?
    async fn has_no_flaw(&self, disk_nodes: &BTreeSet<u32>) -> Result<bool, Error> {
        let sync = || async {
            let synced = disk_nodes
                .iter()
                .map(|node| self.ask(NodeId::disk(*node), Sync {}, DiskNodeAnswer::is_transient));
            let synced = join_all(synced).await.into_iter().collect::<Result<Vec<_>, _>>();
            synced.map_err(|error| refused(&error))
        };
        let boot_ids = sync().await?;
        let nodes: Vec<NodeId> = (0..self.context.fs_nodes()).map(NodeId::fs).collect();
        // What was written while the disks were away is committed, and looked at, too.
        for flushed in join_all(nodes.iter().map(|node| self.context.spawn(*node, Flush {}))).await
        {
            flushed?;
        }
        let scrubs = nodes.into_iter().map(|node| async move {
            let (mut after, mut flaws) = (Vec::new(), 0);
            loop {
                let call = Scrub { after, data: true, repair: true };
                let part = self.ask(node, call, is_away).await.map_err(|error| refused(&error))?;
                // What is on others, or nowhere any more, these disks do not lack.
                let is_here = |flaw: &&ScrubFlaw| {
                    flaw.inode == 0 || flaw.disk_node.is_some_and(|node| disk_nodes.contains(&node))
                };
                flaws += part.flaws.iter().filter(is_here).count();
                let Some(next) = part.next else { return Ok::<_, Error>(flaws) };
                after = next;
            }
        });
        let mut flaws = 0;
        for found in join_all(scrubs).await {
            flaws += found?;
        }
        tracing::info!(flaws, "all data was compared with its checksums");
        // Else one has started again.
        Ok(flaws == 0 && boot_ids == sync().await?)
    }
}

/// Has all that is on the disks of `disk_node` a copy elsewhere, and can more be written with as
/// many copies? Nothing is being drained, which may be elsewhere only in part.
pub fn can_do_without(map: &VolumeMap, disk_node: u32) -> bool {
    let record = VolumeRecord::of(map);
    let copies = record.redundancy.copies() as usize;
    let (mut online, mut here) = (BTreeSet::new(), 0);
    for disk in map.disks() {
        let stage = map.state(disk);
        if disk.disk_node == disk_node {
            here += usize::from(!stage.is_absent());
        } else if stage == (DiskStage::Online {}) {
            online.insert(disk.disk_node);
        } else if !stage.is_behind() {
            return false;
        }
    }
    // Volumes that were born on fewer hosts may have both copies of metadata on one of them.
    let born = map.sets().take(map.born_sets()).flat_map(|placed| placed.set.members.iter());
    let born: BTreeSet<u32> = born.map(|member| member.disk.disk_node).collect();
    here > 0
        && record.can_lose_node(disk_node)
        && map.states().len() + here <= STATES_MAX
        && online.len() >= copies
        && born.len() > copies
        && roots_survive(map, disk_node)
}

#[cfg(test)]
mod tests {
    use blockio::{Geometry, RedundancyClass};
    use runtime::VolumeId;

    use super::*;

    /// A volume with two copies, on disks of these disk nodes, some of which are in these stages.
    fn map(disk_nodes: u32, states: &[(u32, DiskStage)]) -> VolumeMap {
        map_with(2, disk_nodes, states)
    }

    /// The same with this number of copies.
    fn map_with(count: u8, disk_nodes: u32, states: &[(u32, DiskStage)]) -> VolumeMap {
        let geometry = Geometry { volume: VolumeId(1), stripe_size: 65536, fs_nodes: 4 };
        let map = VolumeMap::grid(geometry, disk_nodes, 1, 1000).expect("a small volume");
        let record = VolumeRecord::of(&map);
        let record = VolumeRecord { redundancy: RedundancyClass::Copies { count }, ..record };
        let disk = |disk_node| DiskName { disk_node, disk: 0 };
        let record = states
            .iter()
            .fold(record, |record, &(node, state)| record.with_state(disk(node), state));
        VolumeMap::of_record(&record).expect("a volume")
    }

    #[test]
    fn with_three_copies_a_volume_does_without_two_of_five_hosts() {
        let (offline, lost) = (DiskStage::Offline {}, DiskStage::Lost {});
        assert!(can_do_without(&map_with(3, 5, &[]), 2));
        for stage in [offline, DiskStage::Returning {}, lost] {
            assert!(can_do_without(&map_with(3, 5, &[(0, stage)]), 2), "{stage:?}");
            assert!(!can_do_without(&map_with(3, 5, &[(0, stage), (1, offline)]), 2));
            assert!(!can_do_without(&map_with(3, 5, &[(0, stage), (1, lost)]), 2));
        }
        assert!(!can_do_without(&map_with(3, 5, &[(0, DiskStage::Draining {})]), 2));
        assert!(!can_do_without(&map_with(3, 4, &[(0, offline)]), 2), "two are left for copies");
        let states = [(0, offline), (2, DiskStage::Returning {})];
        assert!(can_do_without(&map_with(3, 5, &states), 2), "it is away again");
    }

    #[test]
    fn a_volume_does_without_one_of_three_hosts_and_not_without_two() {
        assert!(can_do_without(&map(3, &[]), 2));
        assert!(!can_do_without(&map(2, &[]), 1), "there is one copy of what is written then");
        assert!(!can_do_without(&map(3, &[]), 3), "there is no such disk node");
        for stage in [
            DiskStage::Offline {},
            DiskStage::Returning {},
            DiskStage::Lost {},
            DiskStage::Draining {},
        ] {
            assert!(!can_do_without(&map(3, &[(0, stage)]), 2), "{stage:?}");
            assert!(!can_do_without(&map(4, &[(0, stage)]), 2), "{stage:?}");
        }
        assert!(can_do_without(&map(3, &[(2, DiskStage::Returning {})]), 2), "it is away again");
        assert!(!can_do_without(&map(3, &[(2, DiskStage::Offline {})]), 2), "that is decided");
        let geometry = Geometry { volume: VolumeId(1), stripe_size: 65536, fs_nodes: 4 };
        let one_copy = VolumeMap::grid(geometry, 3, 1, 1000).expect("a small volume");
        assert!(!can_do_without(&one_copy, 2));
    }
}
