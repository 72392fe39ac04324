//! Who has lost what: the lives of the disk nodes below, and what this cache tells of its own.
//!
//! A disk node that restarts may have lost what it was given and did not flush. As long as the cache
//! has the bytes it gives them again; what it has dropped since is lost, and then its life for this
//! disk node is over: whoever wrote in it is told so when he syncs.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use blockio::BootId;
use blockio::protocol::{Error, Unsynced};
use runtime::NodeId;

use super::Server;
use crate::line::Line;

/// The lives of one cache and of the disk nodes below it.
#[derive(Debug, Default)]
pub(super) struct BootIds {
    by_disk_node: BTreeMap<NodeId, Lived>,
    /// Restarts of disk nodes that were heard of.
    restarts: u64,
}

#[derive(Debug)]
struct Lived {
    /// The cache's life for stripes of this disk node.
    own: BootId,
    /// The disk node's, once something was written back to it.
    below: Option<BootId>,
    /// Bytes that it was given in this life are here no more.
    dropped: bool,
}

runtime::record! {
    /// A life of a cache that goes on at another process.
    #[derive(Copy)]
    pub struct HandedLife {
        /// Of stripes of this disk node.
        disk_node: NodeId,
        /// The cache's own.
        own: u64,
        /// The disk node's, once something was written back to it.
        below: Option<u64>,
    }
}

impl BootIds {
    pub(super) fn handed(&self) -> Vec<HandedLife> {
        let boot_ids = self.by_disk_node.iter();
        boot_ids
            .map(|(&disk_node, lived)| HandedLife { disk_node, own: lived.own, below: lived.below })
            .collect()
    }

    /// What those lives gave to the disk nodes is not here to be given again.
    pub(super) fn resume(&mut self, handed: &[HandedLife]) {
        for &HandedLife { disk_node, own, below } in handed {
            self.by_disk_node.insert(disk_node, Lived { own, below, dropped: true });
        }
    }
}

impl Server {
    fn with_lived<T>(&self, stripe: u64, look: impl FnOnce(&mut Lived) -> T) -> T {
        let mut boot_ids = self.boot_ids.borrow_mut();
        let fresh = || Lived { own: self.context.random(), below: None, dropped: false };
        let disk_node = self.geometry.disk_node(stripe);
        look(boot_ids.by_disk_node.entry(disk_node).or_insert_with(fresh))
    }

    /// The life in which a write of `stripe` is answered now.
    pub(super) fn boot_id(&self, stripe: u64) -> BootId {
        self.with_lived(stripe, |lived| lived.own)
    }

    /// Fails unless the cache has, or has given to living disk nodes, all that was written in these
    /// lives.
    pub(super) fn check_lives(&self, written: &[Unsynced]) -> Result<(), Error> {
        written.iter().try_for_each(|&Unsynced { stripe, boot_id }| {
            let own = self.boot_id(stripe);
            if own == boot_id { Ok(()) } else { Err(Error::LostWrites { stripe, boot_id: own }) }
        })
    }

    /// A stripe of each disk node that these stripes were given to, and its life.
    pub(super) fn lives_below(&self, stripes: &BTreeSet<u64>) -> Vec<Unsynced> {
        let mut below = BTreeMap::new();
        for &stripe in stripes {
            if let Some(boot_id) = self.with_lived(stripe, |lived| lived.below) {
                let disk_node = self.geometry.disk_node(stripe);
                below.entry(disk_node).or_insert(Unsynced { stripe, boot_id });
            }
        }
        below.into_values().collect()
    }

    /// The disk node of `stripe` has answered in this life.
    pub(super) fn note_boot_id_below(self: &Rc<Self>, stripe: u64, boot_id: BootId) {
        let own = self.context.random();
        let restarted = self.with_lived(stripe, |lived| {
            let restarted = lived.below.replace(boot_id).is_some_and(|before| before != boot_id);
            if restarted && std::mem::take(&mut lived.dropped) {
                lived.own = own;
            }
            restarted
        });
        if restarted {
            self.boot_ids.borrow_mut().restarts += 1;
            self.give_again(self.geometry.disk_node(stripe));
        }
    }

    /// Restarts of disk nodes that were heard of.
    pub(super) fn restarts_below(&self) -> u64 {
        self.boot_ids.borrow().restarts
    }

    /// Bytes of `stripe` that the disk was given are dropped here.
    pub(super) fn note_dropped(&self, stripe: u64) {
        self.with_lived(stripe, |lived| lived.dropped = true);
    }

    /// Makes everything dirty again that a disk node was given.
    fn give_again(self: &Rc<Self>, disk_node: NodeId) {
        let now = self.context.now();
        let mut lines = self.lines.borrow_mut();
        let given = lines.given().filter(|&stripe| self.geometry.disk_node(stripe) == disk_node);
        let given: Vec<u64> = given.collect();
        tracing::warn!(%disk_node, lines = given.len(), "a disk node has restarted");
        for stripe in given {
            lines.change(stripe, |line: &mut Line| line.give_again(now));
        }
        drop(lines);
        self.note_dirty();
    }
}
