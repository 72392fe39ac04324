//! Space of one node: allocated, freed, and exchanged with other nodes.

pub(super) mod allocate;
mod content_mover;
pub(super) mod content_repair;
pub(super) mod disk_mover;
pub(super) mod emptying;
pub(super) mod encode_queue;
mod encoder;
pub(super) mod groups;
pub(super) mod reclaim;

use std::rc::Rc;
use std::sync::Arc;

use self::allocate::Allocator;
use self::content_mover::ContentMover;
use self::content_repair::ContentRepairer;
use self::disk_mover::DiskMover;
use self::emptying::GroupEmptier;
use self::encode_queue::EncodeQueue;
use self::encoder::WideStripeEncoder;
use self::groups::GroupExchange;
use self::reclaim::Reclaim;
use super::base::NodeBase;
use super::content::FileContent;
use super::wide_stripe_table::WideStripeTable;
use crate::information::FileLocks;
use crate::move_pace::MovePace;

/// The space of one node.
pub(super) struct SpaceManager {
    pub(super) allocator: Rc<Allocator>,
    pub(super) groups: Rc<GroupExchange>,
    pub(super) reclaim: Rc<Reclaim>,
    pub(super) disks: Rc<DiskMover>,
    pub(super) repairer: Rc<ContentRepairer>,
    pub(super) wide_stripes: Rc<WideStripeTable>,
    pub(super) encoder: Rc<WideStripeEncoder>,
}

impl SpaceManager {
    pub(super) fn new(
        base: &Rc<NodeBase>,
        reclaim: &Rc<Reclaim>,
        content: &Rc<FileContent>,
        files: &FileLocks,
        (pace, queue): (Arc<MovePace>, Rc<EncodeQueue>),
    ) -> Self {
        let wide_stripes = Rc::new(WideStripeTable::new(base));
        let (kept, table) = (content.clone(), wide_stripes.clone());
        let mover = Rc::new(ContentMover::new(base, reclaim.clone(), kept, table, files.clone()));
        let emptier = Rc::new(GroupEmptier::new(base, mover.clone()));
        let groups = Rc::new(GroupExchange::new(base, reclaim.clone(), emptier.clone()));
        let allocator = Rc::new(Allocator::new(base, reclaim.clone(), groups.clone(), emptier));
        let sources = (allocator.clone(), groups.clone());
        let repairer = Rc::new(ContentRepairer::new(mover.clone(), allocator.clone()));
        let disks = Rc::new(DiskMover::new(base, mover.clone(), sources, pace));
        let (parts, allocated) = ((mover, wide_stripes.clone()), allocator.clone());
        let encoder = WideStripeEncoder::new(base, parts, allocated, disks.clone(), queue);
        let reclaim = reclaim.clone();
        Self { allocator, groups, reclaim, disks, repairer, wide_stripes, encoder }
    }
}
