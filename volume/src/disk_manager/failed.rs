//! A disk that fails while the volume is served is given up, where data has copies on others: from
//! then on it is lost, and what was on it is made anew.
//!
//! Its disk node holds writes to it off meanwhile ([`blockio::failover::FAILOVER_MAX`]).

use std::pin::pin;
use std::time::Duration;

use blockio::{DiskName, DiskStage, VolumeRecord, has_disk_behind};
use fileio::protocol::Error;
use futures::future::{Either, join_all, select};
use meta::protocol::CheckLoss;
use runtime::NodeId;
use runtime::protocol::Undelivered;

use super::{DiskManager, is_away};

/// The time between two looks at the disks.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// Nodes say within this time whether they can do without a disk.
const CHECK_WAIT: Duration = Duration::from_secs(8);

impl DiskManager {
    /// Looks for failed disks, in the background, where something can be done about them.
    pub(super) fn watch_disks(&self) {
        if self.map.redundancy().copies() < 2 {
            return;
        }
        let me = self.me.clone();
        let context = self.context.clone();
        self.context.task(async move {
            loop {
                context.sleep(LOOK_PAUSE).await;
                let Some(me) = me.upgrade() else { break };
                me.follow_others();
                let Some(disk) = me.failed_disk().await else { continue };
                if let Err(error) = me.give_up(disk).await {
                    tracing::warn!(%disk, %error, "a disk that has failed is not given up yet");
                }
            }
        });
    }

    /// Brings about what processes of a cluster have decided, and looks for hosts that are back.
    fn follow_others(&self) {
        if self.map.version() > self.brought_about.get() {
            self.resume_later();
        } else if has_disk_behind(&self.map) {
            self.take_back_later();
        }
    }

    /// A disk that has failed and can be given up.
    async fn failed_disk(&self) -> Option<DiskName> {
        let found = self.describe().await.into_iter();
        let record = VolumeRecord::of(&self.map);
        let mut failed =
            found.filter(|(disk, status)| !status.healthy && can_be_lost(&record, *disk));
        failed.next().map(|(disk, _)| disk)
    }

    /// Brings about what the record says, unless a disk fails: it is given up first, since what is
    /// asked of the nodes waits for it.
    pub(super) async fn bring_about_unless_failed(
        &self,
        before: &VolumeRecord,
        record: &VolumeRecord,
    ) -> Result<(), Error> {
        let (done, failure) = (self.bring_about(before, record), self.disk_fails());
        match select(pin!(done), pin!(failure)).await {
            Either::Left((done, _)) => done,
            Either::Right(_) => Err(Undelivered::Busy.into()),
        }
    }

    /// Waits until a disk has failed that can be given up.
    async fn disk_fails(&self) {
        if self.map.redundancy().copies() < 2 {
            return std::future::pending().await;
        }
        loop {
            self.context.sleep(LOOK_PAUSE).await;
            if self.failed_disk().await.is_some() {
                break;
            }
        }
    }

    /// Decides that a disk that has failed is lost, if all nodes can do without it.
    async fn give_up(&self, disk: DiskName) -> Result<(), Error> {
        let _alone = self.changing.exclusive(()).await;
        let (record, stored) = self.read().await?;
        if record.state(disk).is_gone() {
            return Ok(());
        }
        if !can_be_lost(&record, disk) || !self.can_do_without(disk).await {
            return Err(Undelivered::Busy.into());
        }
        let next = record.with_state(disk, DiskStage::Lost {});
        self.write(&next, stored.as_ref()).await?;
        tracing::warn!(%disk, "a disk has failed and is given up: what was on it is made anew");
        if let Err(error) = self.bring_about(&record, &next).await {
            self.resume_later();
            return Err(error);
        }
        self.watch_moves();
        Ok(())
    }

    /// Do all nodes say so?
    async fn can_do_without(&self, disk: DiskName) -> bool {
        let call = CheckLoss { disk_node: disk.disk_node, disk: disk.disk };
        let nodes = (0..self.context.fs_nodes()).map(NodeId::fs);
        let asked = nodes.map(|node| self.ask_within(CHECK_WAIT, node, call.clone(), is_away));
        join_all(asked).await.into_iter().all(|answer| answer == Some(true))
    }
}

/// May `disk` be given up? One is lost at a time, and the disks of other disk nodes have all that
/// they should.
fn can_be_lost(record: &VolumeRecord, disk: DiskName) -> bool {
    let is_whole = |state: DiskStage, other: DiskName| match state {
        DiskStage::Lost {} => false,
        state => !state.is_behind() || other.disk_node == disk.disk_node,
    };
    let stage = record.state(disk);
    !stage.is_gone()
        && !stage.is_absent()
        && record.states.iter().all(|entry| is_whole(entry.state, entry.disk))
}
