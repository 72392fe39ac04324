//! What all calls of version 4 share.

use std::rc::Rc;

use runtime::Context;

use super::state::{DelegationTotals, Nfs4State};
use crate::handle_keys::KeyRing;
use crate::metrics::Metrics;

/// The server of version 4: the keys of file handles, the state of clients, the metrics.
#[derive(Debug)]
pub(crate) struct Nfs4Server {
    pub(super) keys: Rc<KeyRing>,
    pub(super) state: Rc<Nfs4State>,
    pub(super) metrics: Rc<Metrics>,
}

impl Nfs4Server {
    /// A server without state of any client.
    pub(crate) fn new(ctx: Context, keys: Rc<KeyRing>, metrics: Rc<Metrics>) -> Self {
        Self { keys, state: Nfs4State::new(ctx), metrics }
    }

    /// The number of valid delegations, and what became of earlier ones.
    pub(crate) fn delegation_totals(&self) -> (usize, DelegationTotals) {
        self.state.tables().states.delegated.summary()
    }
}
