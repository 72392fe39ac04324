//! Operations that touch several nodes (ADR 7). One record of one node decides: it holds
//! the changes at that node and, as an intent, those that must follow elsewhere. The others apply
//! them once each, and remember that they did until the intent is retired. A node may
//! crash alone before the effects that it applied are durable: an intent is retired only when each
//! node has confirmed that they are, with the boot ID with which it applied them; else it is sent
//! again.
//!
//! ```text
//! record with intent, durable --> effects applied elsewhere --> answer
//! or, if all these nodes share a failure domain and no caller wants it durable,
//! record with intent --> effects applied elsewhere, not durable before that record --> answer
//!    in the background: effects durable elsewhere --> intent deleted --> marks of it forgotten
//! ```

pub(super) mod application;
pub(super) mod execution;
pub(super) mod recovery;
pub(super) mod retirement;
pub(super) mod sending;
pub(super) mod table;

use std::rc::Rc;

use self::application::IntentApplier;
use self::execution::Executor;
use self::recovery::Recovery;
use self::retirement::IntentRetirer;
use self::sending::IntentSender;
use self::table::IntentTable;
use super::space::reclaim::Reclaim;
use crate::server::base::NodeBase;
use crate::server::effects::Effects;
use crate::server::locks::LockManager;

/// The operations of one node, its intents, and those of others for it.
pub(super) struct IntentManager {
    pub(super) executor: Executor,
    pub(super) sender: Rc<IntentSender>,
    pub(super) applier: Rc<IntentApplier>,
    pub(super) recovery: Recovery,
}

impl IntentManager {
    pub(crate) fn new(
        base: &Rc<NodeBase>,
        locks: &LockManager,
        effects: Rc<Effects>,
        reclaim: Rc<Reclaim>,
        boot_id: u64,
    ) -> Self {
        let table = Rc::<IntentTable>::default();
        let sender = Rc::new(IntentSender::new(base, table.clone(), locks.names.clone()));
        let retirer = Rc::new(IntentRetirer::new(base, table.clone(), sender.clone()));
        let applier = IntentApplier::new(base, effects.clone(), locks.names.clone(), boot_id);
        let applier = Rc::new(applier);
        let recovery = Recovery::new(
            base,
            table.clone(),
            sender.clone(),
            retirer.clone(),
            applier.clone(),
            locks.orphans.clone(),
            reclaim,
        );
        let executor = Executor::new(
            base,
            locks.names.clone(),
            locks.directories.clone(),
            effects,
            table,
            sender.clone(),
            retirer,
        );
        Self { executor, sender, applier, recovery }
    }
}
