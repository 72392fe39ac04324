//! The messages in the mesh, and the channels that they hold.

use std::collections::BTreeSet;

use super::{NONE, rows};
use crate::mesh::timing::{Letter, MeshTiming, Priority};

/// A channel of one direction and one priority.
#[derive(Clone, Copy, Debug)]
pub(in crate::mesh) struct WormChannel {
    /// If not held: since or from when.
    pub(super) free_at: u64,
    /// The last worm whose head has crossed.
    pub(super) owner: u32,
    /// When the owner's tail has crossed is not known yet.
    pub(super) occupied: bool,
    pub(super) first_waiter: u32,
    pub(super) last_waiter: u32,
}

impl WormChannel {
    /// When the tail that streams over it has passed; 0 if its worm does not move.
    pub(super) fn passed(&self) -> u64 {
        if self.occupied { 0 } else { self.free_at }
    }
}

/// The crossing of one channel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hop {
    /// When the head crossed, plus the cycles that others took of the wire since.
    pub(super) cycle: u64,
    pub(super) channel: u32,
}

/// One message on one leg of its route.
#[derive(Clone, Copy, Debug)]
pub(in crate::mesh) struct Worm {
    /// Where its head is, or will be once it has what it requests.
    pub(super) at: u32,
    /// The end of this leg.
    pub(super) to: u32,
    pub(super) flits: u32,
    /// Channels behind the head that its flits can fill: floor((F-1)/B).
    pub(super) window: u32,
    /// Channels that the head has crossed.
    pub(super) crossed: u32,
    /// The next in the line for a channel.
    pub(super) next: u32,
    /// When it requested what it waits for.
    pub(super) asked: u64,
    /// Cycles that others took of its shared wires: see [`Wires`].
    pub(super) stolen: u64,
    /// The last that it met on a link, in the other direction.
    pub(super) rival: u64,
    pub(super) level: Priority,
    pub(in crate::mesh) number: u64,
    pub(super) letter: Letter,
    pub(super) sent: u64,
    pub(super) via: Option<u32>,
    /// The queue of the forwarder that this leg comes from.
    pub(super) room: Option<u32>,
}

impl Worm {
    /// Words of this message, without the header for a forwarder.
    pub(super) fn letter_words(&self) -> u32 {
        if self.letter.count == 1 { self.letter.last_words } else { self.letter.words }
    }

    /// Words that the message takes in the queue at the end of this leg.
    pub(super) fn queue_rows(&self, timing: &MeshTiming) -> u32 {
        // Flits are two to a word, after the header.
        rows((self.flits - timing.header_flits) / 2)
    }
}

/// All messages in the mesh.
#[derive(Debug)]
pub(in crate::mesh) struct WormTable {
    worms: Vec<Worm>,
    free: Vec<u32>,
    /// The crossings of all worms, `stride` for each.
    hops: Vec<Hop>,
    stride: usize,
}

impl WormTable {
    /// For worms that cross up to `stride` channels.
    pub(super) fn new(stride: usize) -> Self {
        Self { worms: Vec::new(), free: Vec::new(), hops: Vec::new(), stride }
    }

    pub(super) fn len(&self) -> usize {
        self.worms.len() - self.free.len()
    }

    /// Inserts a worm; its slot.
    pub(super) fn insert(&mut self, worm: Worm) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.worms[slot as usize] = worm;
            return slot;
        }
        self.worms.push(worm);
        self.hops.resize(self.hops.len() + self.stride, Hop::default());
        self.worms.len() as u32 - 1
    }

    pub(super) fn free(&mut self, slot: u32) {
        self.free.push(slot);
    }

    pub(in crate::mesh) fn get(&self, slot: u32) -> &Worm {
        &self.worms[slot as usize]
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> &mut Worm {
        &mut self.worms[slot as usize]
    }

    /// The channels that the head of a worm has crossed.
    pub(super) fn hops(&self, slot: u32) -> &[Hop] {
        let start = slot as usize * self.stride;
        &self.hops[start..start + self.get(slot).crossed as usize]
    }

    pub(super) fn hops_mut(&mut self, slot: u32) -> &mut [Hop] {
        let start = slot as usize * self.stride;
        let count = self.get(slot).crossed as usize;
        &mut self.hops[start..start + count]
    }

    /// Flits of the worm on a channel that have not crossed it, if it moves.
    pub(super) fn rest(&self, state: &WormChannel, channel: u32, cycle: u64) -> u64 {
        if !state.occupied {
            return state.free_at.saturating_sub(cycle);
        }
        let flits = u64::from(self.get(state.owner).flits);
        let hop = self.hops(state.owner).iter().rev().find(|hop| hop.channel == channel);
        hop.map_or(0, |hop| (hop.cycle + flits).saturating_sub(cycle))
    }

    /// Each message that waits in the line for a channel: its number, the channel, and the number
    /// of the message that holds it.
    pub(in crate::mesh) fn waiters(
        &self,
        channels: &[WormChannel],
    ) -> impl Iterator<Item = (u64, u32, u64)> {
        let occupied = (0..).zip(channels).filter(|(_, channel)| channel.occupied);
        occupied.flat_map(move |(index, channel)| {
            let owner = self.get(channel.owner).number;
            let first = Some(channel.first_waiter).filter(|&slot| slot != NONE);
            let line = std::iter::successors(first, |&slot| {
                Some(self.get(slot).next).filter(|&next| next != NONE)
            });
            line.map(move |slot| (self.get(slot).number, index, owner))
        })
    }

    /// Each message that still takes room in the queue of its forwarder, and the queue.
    pub(in crate::mesh) fn passing(&self) -> impl Iterator<Item = (u64, u32)> {
        let free: BTreeSet<u32> = self.free.iter().copied().collect();
        let live = (0..).zip(&self.worms).filter(move |(slot, _)| !free.contains(slot));
        live.filter_map(|(_, worm)| worm.room.map(|queue| (worm.number, queue)))
    }

    /// Sender and receiver of the message of this number, if it is under way.
    pub(in crate::mesh) fn ends_of(&self, number: u64) -> Option<(u32, u32)> {
        let worm = self.worms.iter().rev().find(|worm| worm.number == number)?;
        Some((worm.letter.from, worm.letter.to))
    }
}
