//! Intents after a crash: of all nodes together, or of one while others lived on (ADR 13).

use std::ops::Bound;
use std::rc::Rc;

use futures::future::join_all;
use futures::stream::{self, StreamExt as _};
use runtime::NodeId;

use super::super::{MetaServer, decode};
use super::table::{Open, Stage};
use super::{FINISHED_AT_ONCE, moves_directory};
use crate::client::{ask, first_remote_lock};
use crate::keys;
use crate::protocol::{Error, NodeRestarted};
use crate::store::StoreError;

/// Rounds in which a mount tries to finish what a crash has left; each of them tries several times.
const FINISH_ROUNDS_MAX: u32 = 10;

impl MetaServer {
    /// Reads the intents that a crash has left open. At a mount, before anything is served.
    pub(in crate::server) async fn load_promises(&self) -> Result<(), StoreError> {
        let bad = || StoreError::Damaged { what: "an intent", block: 0 };
        let (from, end) = keys::intents(keys::PROMISES);
        for (key, value) in self.store.scan(Bound::Included(&from), &end, usize::MAX).await? {
            let number = keys::intent_number(&key).ok_or_else(bad)?;
            let (_, effects) = self.split(decode(&value).map_err(|_| bad())?);
            self.intents.open.borrow_mut().insert(number, Open::new(effects, Stage::Left));
        }
        Ok(())
    }

    /// Brings about, durably, what was promised before a crash.
    pub(in crate::server) async fn finish_intents(&self) -> Result<(), Error> {
        for round in 1..=FINISH_ROUNDS_MAX {
            match self.finish(self.intents.at_stage(Stage::Left), true).await {
                Err(Error::Undelivered { .. }) if round < FINISH_ROUNDS_MAX => {}
                outcome => {
                    outcome?;
                    break;
                }
            }
        }
        let finished = self.intents.at_stage(Stage::Applied);
        self.delete_promises(&finished).await?;
        self.intents.retired(&finished);
        Ok(())
    }

    /// This node has come back while others lived on.
    pub(in crate::server) async fn rejoin(self: &Rc<Self>) -> Result<(), Error> {
        // First: whoever gives up what an earlier life has claimed must have what that has promised.
        self.finish_intents().await?;
        let others = (0..self.context.fs_nodes()).filter(|node| *node != self.node);
        let call =
            NodeRestarted { node: self.node, below: first_remote_lock(self.context.epoch()) };
        let told = others.map(|node| ask(&self.context, NodeId::fs(node), call.clone()));
        join_all(told).await.into_iter().collect::<Result<Vec<()>, Error>>()?;
        self.recovered();
        // The others keep marks of what was promised here.
        Self::retire_later(self);
        Ok(())
    }

    /// Tells a node that has come back alone what it may have forgotten. What is decided from now on
    /// was begun in this epoch, and so leans on its new life.
    pub(in crate::server) async fn node_restarted(
        &self,
        request: NodeRestarted,
    ) -> Result<(), Error> {
        let NodeRestarted { node, below } = request;
        self.release_orphaned_locks(NodeId::fs(node), below, &[]).await?;
        loop {
            let decided = self.intents.decided.next();
            if !self.intents.are_deciding(node) {
                break;
            }
            decided.await;
        }
        let forgotten = self.intents.forgotten_by(node);
        let sent = forgotten.into_iter().map(|(number, effects)| {
            let durable = effects.iter().any(moves_directory);
            self.send_to(node, number, effects, durable)
        });
        let mut sent = stream::iter(sent).buffer_unordered(FINISHED_AT_ONCE);
        while let Some(applied) = sent.next().await {
            applied?;
        }
        Ok(())
    }

    /// From now on names and inodes are what they seem.
    fn recovered(&self) {
        self.recovering.set(false);
        self.publisher.begin();
    }

    /// No intent is open anywhere: forgets what was applied, and frees what is gone.
    pub(in crate::server) async fn end_recovery(&self) -> Result<(), Error> {
        let (from, to) = keys::all_applied();
        self.forget_marks(from, to).await?;
        self.intents.untold.borrow_mut().clear();
        self.recovered();
        for ino in self.find_gone().await {
            self.trim(ino).await?;
        }
        Ok(())
    }
}
