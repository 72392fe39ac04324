//! A coordination engine that answers at once, and keeps what it has whatever happens to the nodes.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use cluster::coordination::{
    Coordination, CoordinationError, CoordinationFuture, Expect, LeaseId, Listing, Record,
    RecordChange, Records, Version, Watch, WriteOutcome,
};
use futures::FutureExt as _;
use futures::future::{pending, ready};

/// The records of one volume.
pub(super) struct LocalEngine(pub(super) Rc<RefCell<Records>>);

/// Nothing here needs leases or watches.
fn unsupported<'a, T: 'a>() -> CoordinationFuture<'a, T> {
    ready(Err(CoordinationError::Refused("it has no leases".to_owned()))).boxed_local()
}

impl Coordination for LocalEngine {
    fn get<'a>(&'a self, key: &'a str) -> CoordinationFuture<'a, Option<Record>> {
        ready(Ok(self.0.borrow().get(key))).boxed_local()
    }

    fn list<'a>(&'a self, prefix: &'a str) -> CoordinationFuture<'a, Listing> {
        ready(Ok(self.0.borrow().list(prefix))).boxed_local()
    }

    fn write<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        expect: Expect,
        lease: Option<LeaseId>,
    ) -> CoordinationFuture<'a, WriteOutcome> {
        ready(self.0.borrow_mut().write(key, value, expect, lease)).boxed_local()
    }

    fn remove<'a>(&'a self, key: &'a str, expect: Expect) -> CoordinationFuture<'a, WriteOutcome> {
        ready(Ok(self.0.borrow_mut().remove(key, expect))).boxed_local()
    }

    fn grant(&self, _: Duration) -> CoordinationFuture<'_, LeaseId> {
        unsupported()
    }

    fn keep_alive(&self, _: LeaseId) -> CoordinationFuture<'_, ()> {
        unsupported()
    }

    fn revoke(&self, _: LeaseId) -> CoordinationFuture<'_, ()> {
        unsupported()
    }

    fn watch(&self, _: &str, _: Version) -> Box<dyn Watch> {
        Box::new(Nothing)
    }
}

struct Nothing;

impl Watch for Nothing {
    fn next(&mut self) -> CoordinationFuture<'_, RecordChange> {
        pending().boxed_local()
    }
}
