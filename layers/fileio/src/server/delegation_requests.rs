//! What a node does about delegations: changes that wait for their recall, grants, and what its
//! store says of them (ADR 101).

use std::time::Duration;

use meta::protocol::{DelegatedBelow, NoteDelegations};
use runtime::Undelivered;

use super::base::MetadataAccess;
use super::delegations::{ChangeGuard, changed_file};
use crate::protocol::{BreakDelegations, Delegate, Error, Lock, Request};

impl MetadataAccess {
    /// Begins a change of a file, unless others may have what they read of it: then it is recalled,
    /// if they are known.
    pub(super) fn begin_change(&self, ino: u64) -> Option<ChangeGuard> {
        let now = self.context.now();
        if self.restart_delay.applies_to(ino, now) {
            return None;
        }
        self.delegations.begin_change(ino, now)
    }

    /// Answers [`BreakDelegations`]: false while others may have the file. An open (with the holder
    /// that opens it) changes nothing yet, so it does not wait for those of before the start.
    pub(super) fn is_broken(&self, request: &BreakDelegations) -> bool {
        let now = self.context.now();
        let must_wait = request.except == 0 && self.restart_delay.applies_to(request.file.ino, now);
        !must_wait && self.delegations.is_broken(request, now)
    }

    /// The same for a request, if it changes a file of this node.
    pub(super) fn begin_change_by(
        &self,
        request: &Request,
    ) -> Result<Option<ChangeGuard>, Undelivered> {
        let Some(ino) = changed_file(request) else { return Ok(None) };
        let begun = match request {
            // Of before the start: a lock, with which the file was not delegated, or content that
            // those who kept any of the file have read.
            Request::Lock(Lock { reclaim: true, .. })
            | Request::ReplayWrite(_)
            | Request::ReplayPunch(_) => self.delegations.begin_change(ino, self.context.now()),
            _ => self.begin_change(ino),
        };
        begun.map(Some).ok_or(Undelivered::Busy)
    }

    /// Delegates a file as [`Delegate`] asks for it, or not; in any case not while it `is_locked`.
    /// The store says so before.
    pub(super) async fn delegate(
        &self,
        request: &Delegate,
        is_locked: impl Fn() -> bool,
    ) -> Result<Option<u64>, Error> {
        let delay = &self.restart_delay;
        let grant = || {
            if is_locked() {
                return None;
            }
            let new_lease = self.context.random() | 1;
            self.delegations.delegate(request, new_lease, self.context.now())
        };
        if delay.is_noted.get() || self.is_read_only {
            return Ok(grant());
        }
        let _alone = delay.noting.exclusive(()).await;
        self.meta_here(NoteDelegations { may_be: true }).await?;
        delay.is_noted.set(true);
        Ok(grant())
    }

    /// Lets the store say that no file is delegated, if that is so: the next start need not wait.
    pub(super) async fn note_undelegated(&self) -> Result<(), Error> {
        let delay = &self.restart_delay;
        let _alone = delay.noting.exclusive(()).await;
        let must_wait = delay.left(self.context.now()) > Duration::ZERO;
        if delay.is_noted.get() && self.delegations.is_empty() && !must_wait {
            delay.is_noted.set(false);
            self.meta_here(NoteDelegations { may_be: false }).await?;
        }
        Ok(())
    }

    /// After a start: finds out whether changes wait.
    pub(super) async fn load_restart_delay(&self) {
        let below = self.meta_here(DelegatedBelow {}).await;
        self.restart_delay.is_noted.set(below.as_ref().is_ok_and(|below| *below > 0));
        // If the metadata does not answer, all of them do.
        self.restart_delay.learn(below.unwrap_or(u64::MAX), self.context.now());
    }
}
