//! Space of one node: allocated, freed, and exchanged with other nodes.

pub(super) mod allocate;
pub(super) mod groups;
pub(super) mod reclaim;

use std::rc::Rc;

use self::allocate::Allocator;
use self::groups::GroupExchange;
use self::reclaim::Reclaim;
use super::base::NodeBase;
use super::xattrs::Xattrs;

/// The space of one node.
pub(super) struct SpaceManager {
    pub(super) allocator: Rc<Allocator>,
    pub(super) groups: Rc<GroupExchange>,
    pub(super) reclaim: Rc<Reclaim>,
}

impl SpaceManager {
    pub(super) fn new(base: &Rc<NodeBase>, xattrs: Rc<Xattrs>) -> Self {
        let reclaim = Rc::new(Reclaim::new(base, xattrs));
        let groups = Rc::new(GroupExchange::new(base, reclaim.clone()));
        let allocator = Rc::new(Allocator::new(base, reclaim.clone(), groups.clone()));
        Self { allocator, groups, reclaim }
    }
}
