//! Could a node do without disks that have failed?

use std::collections::BTreeSet;

use blockio::{DiskName, VolumeMap, incomplete_disks};

use super::StoreSpace;
use super::allocate::has_room_without;
use super::error::{StoreError, StoreResult};
use super::page::PageRef;

/// Times that a checkpoint may come between.
const TRIES_MAX: u32 = 64;

/// Why a node needs disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LossObstacle {
    /// A page of metadata is nowhere else.
    #[error("a page of metadata has no copy on another disk")]
    Page,
    /// A part of the log is nowhere else.
    #[error("a part of the log has no copy on another disk")]
    Log,
    /// The newest root is nowhere else.
    #[error("the newest root is on no other disk")]
    Root,
    /// Without it there is no room for log and checkpoints.
    #[error("there is no room for log and checkpoints on other disks")]
    Room,
}

impl StoreSpace<'_> {
    /// Why the store could not go on without `disk`, if that has failed, and without those that it
    /// does without already; `None` if it could.
    pub async fn check_loss(&self, disk: DiskName) -> StoreResult<Option<LossObstacle>> {
        let mut disks = incomplete_disks(&self.0.pages.device.map());
        disks.insert(disk);
        for _ in 0..TRIES_MAX {
            let generation = self.0.generation();
            let needs_page = self.needs_page_on(&disks).await;
            // The pages of that tree were given back meanwhile.
            if self.0.generation() == generation {
                return Ok(if needs_page? { Some(LossObstacle::Page) } else { self.needs(&disks) });
            }
        }
        Err(StoreError::Busy)
    }

    /// Are all copies of a page of the tree on these disks? Leaves are not read.
    async fn needs_page_on(&self, disks: &BTreeSet<DiskName>) -> StoreResult<bool> {
        let tree = self.0.state.borrow().root.tree;
        let map = self.0.pages.device.map();
        let top = tree.top.map(|top| (top, tree.height.saturating_sub(1)));
        let mut todo: Vec<(PageRef, u8)> = top.into_iter().collect();
        while let Some((place, level)) = todo.pop() {
            if is_only_on(&map, place, disks) {
                return Ok(true);
            }
            if level == 0 {
                continue;
            }
            let page = self.0.pages.load(place, level).await?;
            for index in 0..page.len() {
                let child = page.child(index).map_err(|_| place.damaged("a tree page"))?;
                todo.push((child, level - 1));
            }
        }
        Ok(false)
    }

    /// What else of this moment needs these disks.
    fn needs(&self, disks: &BTreeSet<DiskName>) -> Option<LossObstacle> {
        let state = self.0.state.borrow();
        let map = state.space.layout.map();
        if state.map_pages.iter().any(|page| is_only_on(map, *page, disks)) {
            return Some(LossObstacle::Page);
        }
        if state.log.is_only_on(map, disks) {
            return Some(LossObstacle::Log);
        }
        if state.root_holders.iter().all(|holder| disks.contains(holder)) {
            return Some(LossObstacle::Root);
        }
        let has_room = has_room_without(&state.space, disks, state.deletion_floor());
        (!has_room).then_some(LossObstacle::Room)
    }
}

/// Are all copies of a page on these disks?
fn is_only_on(map: &VolumeMap, page: PageRef, disks: &BTreeSet<DiskName>) -> bool {
    page.runs().all(|run| disks.contains(&map.place(map.geometry().block(run.start).0).disk))
}
