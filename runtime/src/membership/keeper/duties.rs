//! From the map to what this process serves.

use super::{Event, Keeper, Standing};
use crate::ids::{Epoch, NodeId};
use crate::membership::map::{NodeMap, Seat};

impl Keeper {
    /// The epoch since when this process shall serve a node with this seat, if it shall.
    fn shall_serve(&self, map: &NodeMap, seat: Seat) -> Option<Epoch> {
        let life = self.valid_life().filter(|_| !self.state.ending.get())?;
        match seat {
            Seat::Serving { by, since } if by == self.id => {
                // The map knows this life: what it gave to an earlier one is no longer ours.
                let known = map.process(by)?;
                (known.incarnation == life.incarnation).then_some(since)
            }
            _ => None,
        }
    }

    /// Tells the process what is other than the map says.
    pub(super) fn look_to_duties(&self) {
        let Some(map) = self.map() else { return };
        let mut told = Vec::new();
        {
            let mut standing = self.state.standing.borrow_mut();
            for (node, seat) in map.seats() {
                let shall = self.shall_serve(&map, seat);
                match (standing.get(&node), shall) {
                    (None, Some(epoch)) => {
                        standing.insert(node, Standing::Serving(epoch));
                        told.push(Event::Serve { node, epoch });
                    }
                    (Some(Standing::Serving(epoch)), shall) if shall != Some(*epoch) => {
                        standing.insert(node, Standing::Stopping);
                        told.push(Event::Stop { node });
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
        let moves = |seat: Seat| matches!(seat, Seat::Settling { from, .. } if from == self.id);
        let settled =
            map.seats().filter(|(node, seat)| moves(*seat) && !standing.contains_key(node));
        settled.map(|(node, _)| node).collect()
    }
}
