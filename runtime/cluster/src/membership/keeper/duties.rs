//! From the map to what this process serves.

use super::{Keeper, KeeperEvent, ServeState};
use crate::membership::map::{Assignment, NodeMap};
use runtime::ids::{Epoch, NodeId};

impl Keeper {
    /// The epoch since which this process shall serve a node with this assignment, if it shall.
    fn shall_serve(&self, map: &NodeMap, assignment: Assignment) -> Option<Epoch> {
        let life = self.valid_lease().filter(|_| !self.state.ending.get())?;
        match assignment {
            Assignment::Serving { by, since } if by == self.id => {
                // The map knows this life: what it gave to an earlier one is no longer ours.
                let known = map.process(by)?;
                (known.incarnation == life.incarnation).then_some(since)
            }
            _ => None,
        }
    }

    /// Tells the process what is other than the map says. While the lease cannot be renewed
    /// everything stays: nothing is answered, and no other process may have it.
    pub(super) fn look_to_duties(&self) {
        let is_paused = self.state.life.get().is_some() && self.valid_lease().is_none();
        let Some(map) = self.map() else { return };
        if is_paused && !self.state.ending.get() {
            return;
        }
        let mut told = Vec::new();
        {
            let mut standing = self.state.standing.borrow_mut();
            for (node, assignment) in map.assignments() {
                let shall = self.shall_serve(&map, assignment);
                match (standing.get(&node), shall) {
                    (None, Some(epoch)) => {
                        standing.insert(node, ServeState::Serving(epoch));
                        told.push(KeeperEvent::Serve { node, epoch });
                    }
                    (Some(ServeState::Serving(epoch)), shall) if shall != Some(*epoch) => {
                        standing.insert(node, ServeState::Stopping);
                        told.push(KeeperEvent::Stop { node });
                    }
                    // It is as it shall be; or it has to stop first, and then we look again.
                    _ => {}
                }
            }
        }
        for event in told {
            self.duties.tell(event);
        }
    }

    /// Nodes that shall move, and of which nothing goes on here.
    pub(super) fn settled_nodes(&self, map: &NodeMap) -> Vec<NodeId> {
        let standing = self.state.standing.borrow();
        let moves = |assignment: Assignment| matches!(assignment, Assignment::Moving { from, .. } if from == self.id);
        let flushed = map
            .assignments()
            .filter(|(node, assignment)| moves(*assignment) && !standing.contains_key(node));
        flushed.map(|(node, _)| node).collect()
    }
}
