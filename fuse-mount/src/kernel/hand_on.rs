//! To which seat an operation goes.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::rc::Rc;
use std::time::Duration;

use client::hash;
use client::protocol::Name;
use fuser::INodeNo;
use futures::channel::oneshot;
use runtime::{NodeId, NodeKind, Spawn};

use super::asked::place;
use crate::known::Known;
use crate::operations::{Operations, Place};
use crate::worker::Worker;

/// The side of a mount that the kernel talks to.
#[derive(Debug)]
pub(crate) struct Kernel<S> {
    pub(super) workers: Vec<Worker<S>>,
    fs_nodes: u32,
    /// How long the kernel may keep names and attributes.
    pub(super) cache: Duration,
    /// Dropped when the mount has ended.
    pub(super) ended: Option<oneshot::Sender<Infallible>>,
}

impl<S: Spawn> Kernel<S> {
    /// `workers`, at least one, of a volume of `fs_nodes` nodes.
    pub(crate) fn new(
        workers: Vec<Worker<S>>,
        fs_nodes: u32,
        cache: Duration,
        ended: oneshot::Sender<Infallible>,
    ) -> Self {
        Self { workers, fs_nodes, cache, ended: Some(ended) }
    }

    /// The seat at the thread of `node`: node `i` is on thread `i mod threads`, as is seat `i`.
    fn worker(&self, node: NodeId) -> &Worker<S> {
        let (NodeKind::Fs(index) | NodeKind::Disk(index) | NodeKind::Application(index)) =
            node.kind();
        &self.workers[index as usize % self.workers.len()]
    }

    /// What the kernel has numbers for.
    pub(super) fn known(&self) -> &Known {
        self.workers[0].known()
    }

    /// Hands on what is asked of a file.
    pub(super) fn of_file<F>(
        &self,
        ino: INodeNo,
        work: impl FnOnce(Rc<Operations<S>>, u64) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + 'static,
    {
        let ino = ino.0;
        self.worker(hash::ino_node(ino, self.fs_nodes)).hand_on(move |system| work(system, ino));
    }

    /// Hands on what is asked of a name.
    pub(super) fn of_name<F>(
        &self,
        directory: INodeNo,
        name: &OsStr,
        work: impl FnOnce(Rc<Operations<S>>, Place) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + 'static,
    {
        let place = place(directory, name);
        // A name that cannot be is refused at any seat.
        let node = Name::new(place.name.clone())
            .map_or(NodeId::fs(0), |name| hash::name_node(place.directory, &name, self.fs_nodes));
        self.worker(node).hand_on(move |system| work(system, place));
    }
}
