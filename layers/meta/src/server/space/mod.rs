//! Space of one node: allocated, freed, and exchanged with other nodes.

pub(super) mod allocate;
pub(super) mod emptying;
pub(super) mod groups;
pub(super) mod reclaim;

use std::rc::Rc;

use self::allocate::Allocator;
use self::emptying::GroupEmptier;
use self::groups::GroupExchange;
use self::reclaim::Reclaim;
use super::base::NodeBase;
use super::content::FileContent;
use crate::information::FileLocks;

/// The space of one node.
pub(super) struct SpaceManager {
    pub(super) allocator: Rc<Allocator>,
    pub(super) groups: Rc<GroupExchange>,
    pub(super) reclaim: Rc<Reclaim>,
}

impl SpaceManager {
    pub(super) fn new(
        base: &Rc<NodeBase>,
        reclaim: Rc<Reclaim>,
        content: &Rc<FileContent>,
        files: FileLocks,
    ) -> Self {
        let emptier = Rc::new(GroupEmptier::new(base, reclaim.clone(), content.clone(), files));
        let groups = Rc::new(GroupExchange::new(base, reclaim.clone(), emptier.clone()));
        let allocator = Rc::new(Allocator::new(base, reclaim.clone(), groups.clone(), emptier));
        Self { allocator, groups, reclaim }
    }
}
