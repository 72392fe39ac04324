//! Watching the other processes: one that is found dead is taken over from before its lease is
//! over.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use cluster::membership::{Evidence, Keeper, NodeMap, Process, ProcessId};
use futures::future::{AbortHandle, Abortable};
use runtime::{Context, VolumeId};
use transport::{Guard, PeerHello, PeerLoss, WATCH_LINK, watch_peer};

/// The pause before a process that was found dead, and is in the map still, is watched again.
const AGAIN_PAUSE: Duration = Duration::from_millis(500);

/// Who this process is when it connects to others.
#[derive(Clone, Debug)]
pub(super) struct LocalPeer {
    pub(super) volume: VolumeId,
    pub(super) id: ProcessId,
    pub(super) guard: Arc<Guard>,
}

/// The watches of all other processes that live by the map.
pub(super) struct PeerWatches {
    context: Context,
    keeper: Keeper,
    me: LocalPeer,
    running: BTreeMap<(ProcessId, u64), AbortHandle>,
}

impl PeerWatches {
    pub(super) fn new(context: &Context, keeper: &Keeper, me: LocalPeer) -> Self {
        let (context, keeper) = (context.clone(), keeper.clone());
        Self { context, keeper, me, running: BTreeMap::new() }
    }

    /// Watches those that live by `map`.
    pub(super) fn follow(&mut self, map: &NodeMap) {
        let mine = map.process(self.me.id).map_or(0, |mine| mine.incarnation);
        let is_peer = |peer: &&Process| peer.is_living() && peer.id != self.me.id;
        let peers: Vec<&Process> = map.processes.iter().filter(is_peer).collect();
        let is_there = |&(id, incarnation): &(ProcessId, u64)| {
            peers.iter().any(|peer| peer.id == id && peer.incarnation == incarnation)
        };
        self.running.retain(|key, watch| {
            let stays = is_there(key);
            if !stays {
                watch.abort();
            }
            stays
        });
        for peer in peers {
            let key = (peer.id, peer.incarnation);
            let Some(address) = peer.addresses.first().cloned() else { continue };
            if let Entry::Vacant(vacant) = self.running.entry(key) {
                let (abort, aborted) = AbortHandle::new_pair();
                vacant.insert(abort);
                let watch = self.watch(key, mine, address);
                let watch = Abortable::new(watch, aborted);
                self.context.task(async move {
                    let _ = watch.await;
                });
            }
        }
    }

    fn watch(
        &self,
        (id, incarnation): (ProcessId, u64),
        mine: u64,
        address: String,
    ) -> impl Future<Output = ()> + 'static {
        let LocalPeer { volume, id: me, guard } = self.me.clone();
        let (context, keeper) = (self.context.clone(), self.keeper.clone());
        let hello = PeerHello {
            volume,
            process: me.0,
            incarnation: mine,
            wanted: id.0,
            wanted_incarnation: incarnation,
            link: WATCH_LINK,
        };
        async move {
            loop {
                let evidence = match watch_peer(&address, &hello, &guard).await {
                    PeerLoss::Refused => Evidence::Refused,
                    PeerLoss::Silent => Evidence::Silent,
                };
                keeper.suspect(id, incarnation, evidence);
                context.sleep(AGAIN_PAUSE).await;
            }
        }
    }
}

impl Drop for PeerWatches {
    fn drop(&mut self) {
        self.running.values().for_each(AbortHandle::abort);
    }
}
