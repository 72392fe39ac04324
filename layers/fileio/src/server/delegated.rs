//! What a node does about delegations: changes that wait for their recall, grants, and what its
//! store says of them (ADR 101).

use std::time::Duration;

use meta::protocol::{DelegatedBelow, NoteDelegations};
use runtime::Undelivered;

use super::base::MetadataAccess;
use super::delegations::{ChangeGuard, changed_file};
use crate::protocol::{BreakDelegations, Delegate, Error, Request};

impl MetadataAccess {
    /// Begins a change of a file, unless others may have what they read of it: then it is recalled,
    /// if they are known.
    pub(super) fn begin_change(&self, ino: u64) -> Option<ChangeGuard> {
        let now = self.context.now();
        if self.delegation_hold.applies_to(ino, now) {
            return None;
        }
        self.delegations.begin_change(ino, now)
    }

    /// Answers [`BreakDelegations`]: false while others may have the file. An open (with the holder
    /// that opens it) changes nothing yet, so it does not wait for those of before the start.
    pub(super) fn is_broken(&self, request: &BreakDelegations) -> bool {
        let now = self.context.now();
        let is_held = request.except == 0 && self.delegation_hold.applies_to(request.file.ino, now);
        !is_held && self.delegations.is_broken(request, now)
    }

    /// The same for a request, if it changes a file of this node.
    pub(super) fn begin_change_by(
        &self,
        request: &Request,
    ) -> Result<Option<ChangeGuard>, Undelivered> {
        let Some(ino) = changed_file(request) else { return Ok(None) };
        let begun = match request {
            // The lock was there before the start, so the file was not delegated then.
            Request::Lock(lock) if !lock.reclaim => self.begin_change(ino),
            // Those who have the file have read what was answered before the start.
            Request::Lock(_) | Request::ReplayWrite(_) | Request::ReplayPunch(_) => {
                self.delegations.begin_change(ino, self.context.now())
            }
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
        let hold = &self.delegation_hold;
        let grant = || {
            if is_locked() {
                return None;
            }
            let new_lease = self.context.random() | 1;
            self.delegations.delegate(request, new_lease, self.context.now())
        };
        if hold.is_noted.get() || self.is_read_only {
            return Ok(grant());
        }
        let _alone = hold.noting.exclusive(()).await;
        self.meta_here(NoteDelegations { may_be: true }).await?;
        hold.is_noted.set(true);
        Ok(grant())
    }

    /// Lets the store say that no file is delegated, if that is so: the next start need not wait.
    pub(super) async fn note_undelegated(&self) -> Result<(), Error> {
        let hold = &self.delegation_hold;
        let _alone = hold.noting.exclusive(()).await;
        let is_held = hold.left(self.context.now()) > Duration::ZERO;
        if hold.is_noted.get() && self.delegations.is_empty() && !is_held {
            hold.is_noted.set(false);
            self.meta_here(NoteDelegations { may_be: false }).await?;
        }
        Ok(())
    }

    /// After a start: finds out whether changes wait.
    pub(super) async fn load_delegation_hold(&self) {
        let below = self.meta_here(DelegatedBelow {}).await;
        self.delegation_hold.is_noted.set(below.as_ref().is_ok_and(|below| *below > 0));
        // If the metadata does not answer, all of them do.
        self.delegation_hold.learn(below.unwrap_or(u64::MAX), self.context.now());
    }
}
