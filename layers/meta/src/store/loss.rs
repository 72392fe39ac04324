//! Could a node do without a disk that has failed?

use std::collections::BTreeSet;

use blockio::{DiskName, VolumeMap};

use super::StoreSpace;
use super::allocate::has_room_without;
use super::error::{StoreError, StoreResult};
use super::page::PageRef;

/// Times that a checkpoint may come between.
const TRIES_MAX: u32 = 64;

/// Why a node needs a disk.
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
    /// Why the store could not go on without `disk`, if that has failed; `None` if it could.
    pub async fn check_loss(&self, disk: DiskName) -> StoreResult<Option<LossObstacle>> {
        for _ in 0..TRIES_MAX {
            let generation = self.0.generation();
            let needs_page = self.needs_page_on(disk).await;
            // The pages of that tree were given back meanwhile.
            if self.0.generation() == generation {
                return Ok(if needs_page? { Some(LossObstacle::Page) } else { self.needs(disk) });
            }
        }
        Err(StoreError::Busy)
    }

    /// Are all copies of a page of the tree on `disk`? Leaves are not read.
    async fn needs_page_on(&self, disk: DiskName) -> StoreResult<bool> {
        let tree = self.0.state.borrow().root.tree;
        let map = self.0.pages.device.map();
        let top = tree.top.map(|top| (top, tree.height.saturating_sub(1)));
        let mut todo: Vec<(PageRef, u8)> = top.into_iter().collect();
        while let Some((place, level)) = todo.pop() {
            if is_only_on(&map, place, disk) {
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

    /// What else of this moment needs `disk`.
    fn needs(&self, disk: DiskName) -> Option<LossObstacle> {
        let state = self.0.state.borrow();
        let map = state.space.layout.map();
        if state.map_pages.iter().any(|page| is_only_on(map, *page, disk)) {
            return Some(LossObstacle::Page);
        }
        if state.log.has_pair_on(map, disk) {
            return Some(LossObstacle::Log);
        }
        if state.root_holders.iter().all(|holder| *holder == disk) {
            return Some(LossObstacle::Root);
        }
        let has_room =
            has_room_without(&state.space, &BTreeSet::from([disk]), state.deletion_floor());
        (!has_room).then_some(LossObstacle::Room)
    }
}

/// Are all copies of a page on `disk`?
fn is_only_on(map: &VolumeMap, page: PageRef, disk: DiskName) -> bool {
    page.runs().all(|run| map.place(map.geometry().block(run.start).0).disk == disk)
}
