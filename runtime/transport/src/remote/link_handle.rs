//! The volume, for code on the thread of the links.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures::FutureExt as _;
use runtime::Spawn;
use runtime::client_handle::{CallNumbers, envelope};
use runtime::delivery::Transfers;
use runtime::ids::{Epoch, NodeId};
use runtime::protocol::{Call, Caller, ErrorOf};

use super::VolumeLinks;

/// A client of a volume on the thread of its links: its requests leave without a queue between.
#[derive(Clone)]
pub struct LinkHandle {
    links: Rc<VolumeLinks>,
    calls: Arc<CallNumbers>,
}

impl fmt::Debug for LinkHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkHandle").finish_non_exhaustive()
    }
}

impl LinkHandle {
    /// The client of `links`.
    pub fn new(links: Rc<VolumeLinks>) -> Self {
        let calls = Arc::new(CallNumbers::new(links.state.client.load(Relaxed)));
        Self { links, calls }
    }

    /// The number of the client, and those of its calls.
    pub fn calls(&self) -> Arc<CallNumbers> {
        self.calls.clone()
    }
}

impl Spawn for LinkHandle {
    fn spawn<C: Call>(
        &self,
        to: NodeId,
        call: C,
    ) -> impl Future<Output = Result<C::Reply, ErrorOf<C>>> + 'static {
        let epoch = Epoch(self.links.epoch());
        let caller = Caller { node: NodeId::application(0), epoch };
        let (envelope, answer) = envelope(caller, to, call);
        self.links.send(envelope);
        answer
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + 'static {
        self.links.environment.sleep(duration)
    }

    fn fs_nodes(&self) -> u32 {
        self.links.state.fs_nodes.load(Relaxed)
    }

    fn waits_for_ever(&self) -> bool {
        self.links.waits_for_ever()
    }

    fn restarts(&self) -> Option<u64> {
        Some(self.links.state.restarts.load(Relaxed))
    }

    fn transfers(&self) -> Option<Arc<Transfers>> {
        Some(self.links.state.transfers.clone())
    }

    fn root(&self) -> Option<(u64, u64)> {
        self.links.state.root.get().copied()
    }

    fn now(&self) -> Option<Duration> {
        Some(self.links.environment.now())
    }

    fn task<F: Future<Output = ()> + 'static>(
        &self,
        work: impl FnOnce(Self) -> F + Send + 'static,
    ) {
        self.links.environment.task(work(self.clone()).boxed_local());
    }
}
