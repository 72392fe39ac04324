//! A disk that fails while the volume is served, or whose host does not come back, is given up,
//! where data has copies on others: from then on it is lost, and what was on it is made anew.
//!
//! Its disk node holds writes to it off meanwhile ([`blockio::failover::FAILOVER_MAX`]).

use std::pin::pin;
use std::time::Duration;

use blockio::protocol::DiskStatus;
use blockio::{DiskName, VolumeRecord, has_disk_behind};
use fileio::protocol::{DiskChange, DiskRefusal, Error, NEVER_LOST};
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
                let given_up = match me.failed_disk().await {
                    Some(disk) => me.give_up(disk).await.map_err(|error| (disk, error)),
                    None => me.give_up_missed().await,
                };
                if let Err((disk, error)) = given_up {
                    tracing::warn!(%disk, %error, "a disk is not given up yet");
                }
            }
        });
    }

    /// Gives up a disk whose host has been away for too long, unless others have no room. That is
    /// tried again after the same time.
    async fn give_up_missed(&self) -> Result<(), (DiskName, Error)> {
        let now = self.context.now();
        let Some(disk) = self.missed_disk(now) else { return Ok(()) };
        // It is brought up to date once those that came before it are.
        if self.is_back(disk.disk_node).await {
            return Ok(());
        }
        let record = VolumeRecord::of(&self.map);
        let given_up = match self.check_room(&record, disk).await {
            Ok(()) => self.give_up(disk).await,
            Err(error) => Err(error),
        };
        given_up.map_err(|error| {
            self.away_since.borrow_mut().insert(disk.disk_node, now);
            (disk, error)
        })
    }

    /// A disk whose host has been away for too long now.
    fn missed_disk(&self, now: Duration) -> Option<DiskName> {
        let record = VolumeRecord::of(&self.map);
        let away = record.states.iter().filter(|entry| entry.state.is_absent());
        let away: Vec<DiskName> = away.map(|entry| entry.disk).collect();
        let mut since = self.away_since.borrow_mut();
        since.retain(|node, _| away.iter().any(|disk| disk.disk_node == *node));
        let delay = Duration::from_secs(record.loss_delay_seconds.into());
        let is_missed = |disk: &DiskName| {
            let begun = *since.entry(disk.disk_node).or_insert(now);
            now >= begun + delay && record.loss_delay_seconds != NEVER_LOST
        };
        away.into_iter().filter(is_missed).find(|disk| record.can_lose(*disk))
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
            found.filter(|(disk, status)| !status.healthy && is_in_use(&record, *disk));
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

    /// Decides that a disk is lost.
    async fn give_up(&self, disk: DiskName) -> Result<(), Error> {
        self.change_once(DiskChange::DeclareLost { disk_node: disk.disk_node, disk: disk.disk })
            .await?;
        tracing::warn!(%disk, "a disk is given up: what was on it is made anew on others");
        Ok(())
    }

    /// Is `disk` of no use now, and can all nodes do without it?
    pub(super) async fn check_loss(
        &self,
        record: &VolumeRecord,
        disk: DiskName,
    ) -> Result<(), Error> {
        if !record.can_lose(disk) {
            return Err(DiskRefusal::OnlyCopy {}.into());
        }
        let has_failed = |status: &DiskStatus| !status.healthy;
        let is_absent = record.state(disk).is_absent();
        if !is_absent && !self.describe().await.get(&disk).is_some_and(has_failed) {
            return Err(DiskRefusal::NotFailed {}.into());
        }
        let can_do_without = self.can_do_without(disk).await;
        if can_do_without { Ok(()) } else { Err(DiskRefusal::OnlyCopy {}.into()) }
    }

    /// Do all nodes say so?
    async fn can_do_without(&self, disk: DiskName) -> bool {
        let call = CheckLoss { disk_node: disk.disk_node, disk: disk.disk };
        let nodes = (0..self.context.fs_nodes()).map(NodeId::fs);
        let asked = nodes.map(|node| self.ask_within(CHECK_WAIT, node, call.clone(), is_away));
        join_all(asked).await.into_iter().all(|answer| answer == Some(true))
    }
}

/// May `disk` be given up, and is its host there?
fn is_in_use(record: &VolumeRecord, disk: DiskName) -> bool {
    record.can_lose(disk) && !record.state(disk).is_absent()
}
