//! Wires that priorities or directions share: an approximation, measured against the flits.
//!
//! On 4x4x4 the mean latency is within 2 % of theirs at load 0.02 and 8 % at 0.1. On 8x8x8 with
//! links shared it is within 3 % to 0.06, 10 % above at 0.08 and 29 % at 0.1, and saturates at 0.14
//! flit per node and cycle in place of 0.16 (`benches/mesh.rs`): past 0.06 ask the flits.

use super::{Mesh, channel_of, describe};
use crate::mesh::timing::{Priority, Wires};

impl Mesh {
    /// On a wire that others use as well: when the head really crosses, and what that costs the
    /// others. An approximation; exact are only the flits' own times ([`super::FlitMesh`]).
    pub(super) fn share(&mut self, slot: u32, channel: u32, cycle: u64, wires: Wires) -> u64 {
        let (node, level, direction) = describe(channel);
        let flits = u64::from(self.worms.get(slot).flits);
        let mut cycle = cycle;
        let other_level = channel ^ 8;
        if level == Priority::High {
            self.hold_up(other_level, cycle, flits);
        } else {
            cycle = cycle.max(self.channels[other_level as usize].passed());
        }
        if wires == Wires::Links
            && let Some(neighbour) = self.geometry.neighbour(node, direction)
        {
            let against = channel_of(neighbour, level, direction.opposite());
            self.meet(slot, against, cycle);
            if level == Priority::High {
                self.hold_up(against ^ 8, cycle, flits);
            } else {
                cycle = cycle.max(self.channels[(against ^ 8) as usize].passed());
            }
        }
        cycle
    }

    /// Two worms against each other on one link: flit by flit in turn, so each waits for as many of
    /// the other as it has itself. On the next links that they share they are slow already.
    fn meet(&mut self, slot: u32, against: u32, cycle: u64) {
        let state = &self.channels[against as usize];
        let rest = self.worms.rest(state, against, cycle);
        let rest = rest.min(u64::from(self.worms.get(slot).flits));
        if rest == 0 {
            return;
        }
        let owner = state.owner;
        let [own, other] = [slot, owner].map(|slot| *self.worms.get(slot));
        if own.rival == other.number || other.rival == own.number {
            return;
        }
        self.worms.get_mut(slot).rival = other.number;
        self.worms.get_mut(owner).rival = own.number;
        self.hold_up(against, cycle, rest);
        self.worms.get_mut(slot).stolen += rest;
        self.counters.stolen_flits += rest;
    }

    /// Others take `flits` cycles of the wire of a channel: its worm is late by as many.
    fn hold_up(&mut self, channel: u32, cycle: u64, flits: u64) {
        let state = &mut self.channels[channel as usize];
        let taken = flits.min(self.worms.rest(state, channel, cycle));
        if taken == 0 {
            return;
        }
        self.counters.stolen_flits += taken;
        if !state.occupied {
            state.free_at += taken;
            return;
        }
        let owner = state.owner;
        self.worms.get_mut(owner).stolen += taken;
        for hop in self.worms.hops_mut(owner) {
            if hop.channel == channel {
                hop.cycle += taken;
            }
        }
    }
}
