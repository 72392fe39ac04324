//! A coordination engine that keeps what it has whatever happens to the nodes. It answers at once,
//! or, if it is slow, a while before or after it has written something.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use cluster::coordination::{
    Coordination, CoordinationError, CoordinationFuture, Expect, LeaseId, Listing, Record,
    RecordChange, Records, Version, Watch, WriteOutcome,
};
use futures::FutureExt as _;
use futures::future::{pending, ready};
use runtime::Context;

/// The longest time before or after a write of a slow engine.
const WAIT_MAX_US: u64 = 20_000;

/// The records of one volume.
pub(super) struct LocalEngine {
    records: Rc<RefCell<Records>>,
    /// The node at which a slow engine waits.
    slow_at: Option<Context>,
}

impl LocalEngine {
    pub(super) fn new(records: Rc<RefCell<Records>>, slow_at: Option<Context>) -> Self {
        Self { records, slow_at }
    }

    async fn wait(&self) {
        if let Some(context) = &self.slow_at {
            let time_us = context.random() % WAIT_MAX_US;
            context.sleep(Duration::from_micros(time_us)).await;
        }
    }
}

/// Nothing here needs leases or watches.
fn unsupported<'a, T: 'a>() -> CoordinationFuture<'a, T> {
    ready(Err(CoordinationError::Refused("it has no leases".to_owned()))).boxed_local()
}

impl Coordination for LocalEngine {
    fn get<'a>(&'a self, key: &'a str) -> CoordinationFuture<'a, Option<Record>> {
        ready(Ok(self.records.borrow().get(key))).boxed_local()
    }

    fn list<'a>(&'a self, prefix: &'a str) -> CoordinationFuture<'a, Listing> {
        ready(Ok(self.records.borrow().list(prefix))).boxed_local()
    }

    fn write<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        expect: Expect,
        lease: Option<LeaseId>,
    ) -> CoordinationFuture<'a, WriteOutcome> {
        async move {
            self.wait().await;
            let written = self.records.borrow_mut().write(key, value, expect, lease);
            self.wait().await;
            written
        }
        .boxed_local()
    }

    fn remove<'a>(&'a self, key: &'a str, expect: Expect) -> CoordinationFuture<'a, WriteOutcome> {
        ready(Ok(self.records.borrow_mut().remove(key, expect))).boxed_local()
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
