//! A coordination engine in the world: the rules of `cluster::coordination::Records` at one node,
//! asked over the emulated network, so that calls and answers are late or lost and ways are cut.
//!
//! What it keeps survives its node, as that of a real engine survives its processes. Its leases end
//! by the clock of its node; after a restart they begin anew, as etcd's do after a change of
//! leader.
//!
//! It must not be asked twice for one call (`duplicate_ppm` stays 0): what carries a real engine's
//! calls is TCP.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use cluster::coordination::{
    Coordination, CoordinationError, CoordinationFuture, Expect, LeaseId, Listing, Record,
    RecordChange, Records, Version, Watch, WriteOutcome, check_lengths,
};
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, select};
use runtime::sync::Event;
use runtime::{Caller, Context, NodeId, Undelivered};

/// A question for changes is answered after this time at the latest.
const CHANGES_HELD_MAX: Duration = Duration::from_millis(400);
/// Changes in one answer, at most.
const CHANGES_MAX: usize = 64;

runtime::protocol! {
    /// The simulated engine.
    Engine id 6 version 1;

    /// See `Coordination::get`.
    1 Control Get { key: String } -> Option<Record>,
        by caller, retry never, from any, after recovery;
    /// See `Coordination::list`.
    2 Control List { prefix: String } -> Listing, by caller, retry never, from any, after recovery;
    /// See `Coordination::write`.
    3 Control Write {
        key: String, value: Vec<u8>, expect: Expect, lease: Option<LeaseId>
    } -> WriteOutcome, by caller, retry never, from any, after recovery;
    /// See `Coordination::remove`.
    4 Control Remove { key: String, expect: Expect } -> WriteOutcome,
        by caller, retry never, from any, after recovery;
    /// See `Coordination::grant`.
    5 Control Grant { length_ns: u64 } -> LeaseId, by caller, retry never, from any, after recovery;
    /// See `Coordination::keep_alive`.
    6 Control KeepAlive { lease: LeaseId } -> (), by caller, retry never, from any, after recovery;
    /// See `Coordination::revoke`.
    7 Control Revoke { lease: LeaseId } -> (), by caller, retry never, from any, after recovery;
    /// The changes of a prefix after a version, and up to which these are all; waits for the first.
    8 Control Changes { prefix: String, after: Version } -> (Version, Vec<RecordChange>),
        by caller, retry never, from any, after recovery;
}

runtime::choice! {
    /// Why the engine did not do it.
    pub enum Error {
        /// The call, or its answer, did not arrive.
        1 Undelivered { /// Why.
            why: Undelivered },
        /// See `CoordinationError::LeaseOver`.
        2 LeaseOver {},
        /// See `CoordinationError::Refused`.
        3 Refused { /// Why.
            why: String },
    }
}

impl From<Undelivered> for Error {
    fn from(why: Undelivered) -> Self {
        Self::Undelivered { why }
    }
}

impl From<CoordinationError> for Error {
    fn from(error: CoordinationError) -> Self {
        match error {
            CoordinationError::LeaseOver => Self::LeaseOver {},
            error => Self::Refused { why: error.to_string() },
        }
    }
}

impl From<Error> for CoordinationError {
    fn from(error: Error) -> Self {
        match error {
            Error::LeaseOver {} => Self::LeaseOver,
            Error::Refused { why } => Self::Refused(why),
            Error::Undelivered { why: why @ Undelivered::Lost } => Self::Unknown(why.to_string()),
            Error::Undelivered { why: why @ Undelivered::ProtocolMismatch } => {
                Self::Refused(why.to_string())
            }
            Error::Undelivered { why } => Self::Unreachable(why.to_string()),
        }
    }
}

/// What the engine keeps, whatever happens to its node.
#[derive(Clone, Debug, Default)]
pub struct EngineStore {
    records: Rc<RefCell<Records>>,
    renews_gone: Rc<Cell<bool>>,
}

impl EngineStore {
    /// Serves it at a node that has just begun.
    pub fn serve(&self, context: &Context) {
        self.records.borrow_mut().extend_all(context.now());
        let server = Rc::new(EngineServer {
            context: context.clone(),
            store: self.clone(),
            changed: Event::default(),
        });
        context.serve::<Engine>(server.clone());
        let work = async move { server.end_leases().await };
        context.task(work);
    }
}

impl EngineStore {
    /// From now on leases that are over are renewed, to no effect, as by a leader of etcd that is
    /// one no more and does not know it (etcd-io/etcd#15247).
    pub fn renew_gone_leases(&self) {
        self.renews_gone.set(true);
    }

    /// When the lease of a record ends by the clock of the engine's node, unless it is renewed;
    /// `None` if there is no such record, or no lease. For those who judge what others do.
    pub fn end_of(&self, key: &str) -> Option<Duration> {
        self.records.borrow().end_of(key)
    }

    /// All of it as it is now, as a snapshot of a real engine.
    pub fn snapshot(&self) -> Records {
        self.records.borrow().clone()
    }

    /// Brings an earlier snapshot back; leases begin anew at `now`, by the clock of the engine.
    pub fn restore(&self, snapshot: &Records, now: Duration) {
        let mut records = snapshot.clone();
        records.extend_all(now);
        self.records.replace(records);
    }

    /// Revokes the lease of a record, if it has one.
    pub fn end_lease_of(&self, key: &str) {
        let lease = self.records.borrow().lease_of(key);
        if let Some(lease) = lease {
            self.records.borrow_mut().revoke(lease);
        }
    }

    /// A record as it is now, for those who judge.
    pub fn record(&self, key: &str) -> Option<Record> {
        self.records.borrow().get(key)
    }
}

struct EngineServer {
    context: Context,
    store: EngineStore,
    changed: Event,
}

impl EngineServer {
    /// Does `work` with the records as they are now.
    fn with<T>(&self, work: impl FnOnce(&mut Records) -> T) -> T {
        let mut records = self.store.records.borrow_mut();
        let before = records.version();
        records.pass_time(self.context.now());
        let done = work(&mut records);
        if records.version() != before {
            self.changed.tell();
        }
        done
    }

    /// Leases end when they expire, not at the next request.
    async fn end_leases(&self) {
        loop {
            self.with(|_| {});
            // Two times a second, as etcd does.
            self.context.sleep(Duration::from_millis(500)).await;
        }
    }

    async fn changes(&self, prefix: &str, after: Version) -> (Version, Vec<RecordChange>) {
        let until = self.context.now() + CHANGES_HELD_MAX;
        loop {
            let changed = self.changed.next();
            let found = self.with(|records| changes_after(records, prefix, after));
            let rest = until.saturating_sub(self.context.now());
            if !found.1.is_empty() || rest.is_zero() {
                return found;
            }
            select(Box::pin(changed), self.context.sleep(rest)).await;
        }
    }

    async fn answer(&self, request: Request) -> Reply {
        let now = self.context.now();
        match request {
            Request::Get(Get { key }) => Reply::Get(Ok(self.with(|records| records.get(&key)))),
            Request::List(List { prefix }) => {
                Reply::List(Ok(self.with(|records| records.list(&prefix))))
            }
            Request::Write(Write { key, value, expect, lease }) => {
                let written = self.with(|records| records.write(&key, &value, expect, lease));
                Reply::Write(written.map_err(Error::from))
            }
            Request::Remove(Remove { key, expect }) => {
                Reply::Remove(Ok(self.with(|records| records.remove(&key, expect))))
            }
            Request::Grant(Grant { length_ns }) => {
                let length = Duration::from_nanos(length_ns);
                let granted = self.with(|records| records.grant(length, now));
                Reply::Grant(granted.map_err(Error::from))
            }
            Request::KeepAlive(KeepAlive { lease }) => {
                let kept = self.with(|records| records.keep_alive(lease, now));
                let kept = if self.store.renews_gone.get() { Ok(()) } else { kept };
                Reply::KeepAlive(kept.map_err(Error::from))
            }
            Request::Revoke(Revoke { lease }) => {
                self.with(|records| records.revoke(lease));
                Reply::Revoke(Ok(()))
            }
            Request::Changes(Changes { prefix, after }) => {
                Reply::Changes(Ok(self.changes(&prefix, after).await))
            }
        }
    }
}

/// Up to [`CHANGES_MAX`] changes, and the version of the last.
fn changes_after(records: &Records, prefix: &str, after: Version) -> (Version, Vec<RecordChange>) {
    let (mut version, mut changes) = (after, Vec::new());
    while changes.len() < CHANGES_MAX
        && let Some((next, change)) = records.change_after(prefix, version)
    {
        version = next;
        changes.push(change);
    }
    (version, changes)
}

impl runtime::Server<Engine> for EngineServer {
    fn handle(self: Rc<Self>, _: Caller, request: Request) -> LocalBoxFuture<'static, Reply> {
        async move { self.answer(request).await }.boxed_local()
    }
}

/// A client of the engine, in a task of some node.
#[derive(Clone, Debug)]
pub struct SimulatedEngine {
    context: Context,
    engine: NodeId,
}

impl SimulatedEngine {
    /// The client of a node; the engine is at `engine`.
    pub fn new(context: Context, engine: NodeId) -> Self {
        Self { context, engine }
    }

    fn ask<C>(&self, call: C) -> CoordinationFuture<'static, C::Reply>
    where
        C: runtime::Call<Protocol = Engine>,
    {
        self.context.spawn(self.engine, call).map(|answer| answer.map_err(Into::into)).boxed_local()
    }
}

impl Coordination for SimulatedEngine {
    fn get<'a>(&'a self, key: &'a str) -> CoordinationFuture<'a, Option<Record>> {
        self.ask(Get { key: key.to_owned() })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> CoordinationFuture<'a, Listing> {
        self.ask(List { prefix: prefix.to_owned() })
    }

    fn write<'a>(
        &'a self,
        key: &'a str,
        value: &'a [u8],
        expect: Expect,
        lease: Option<LeaseId>,
    ) -> CoordinationFuture<'a, WriteOutcome> {
        if let Err(error) = check_lengths(key, value) {
            return futures::future::ready(Err(error)).boxed_local();
        }
        self.ask(Write { key: key.to_owned(), value: value.to_vec(), expect, lease })
    }

    fn remove<'a>(&'a self, key: &'a str, expect: Expect) -> CoordinationFuture<'a, WriteOutcome> {
        self.ask(Remove { key: key.to_owned(), expect })
    }

    fn grant(&self, length: Duration) -> CoordinationFuture<'_, LeaseId> {
        let length_ns = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        self.ask(Grant { length_ns })
    }

    fn keep_alive(&self, lease: LeaseId) -> CoordinationFuture<'_, ()> {
        self.ask(KeepAlive { lease })
    }

    fn revoke(&self, lease: LeaseId) -> CoordinationFuture<'_, ()> {
        self.ask(Revoke { lease })
    }

    fn watch(&self, prefix: &str, after: Version) -> Box<dyn Watch> {
        let received = std::collections::VecDeque::new();
        Box::new(SimulatedWatch {
            engine: self.clone(),
            prefix: prefix.to_owned(),
            after,
            received,
        })
    }
}

struct SimulatedWatch {
    engine: SimulatedEngine,
    prefix: String,
    after: Version,
    received: std::collections::VecDeque<RecordChange>,
}

impl Watch for SimulatedWatch {
    fn next(&mut self) -> CoordinationFuture<'_, RecordChange> {
        async move {
            loop {
                if let Some(change) = self.received.pop_front() {
                    return Ok(change);
                }
                let changes = Changes { prefix: self.prefix.clone(), after: self.after };
                let (version, changes) = self.engine.ask(changes).await?;
                self.after = version;
                self.received.extend(changes);
            }
        }
        .boxed_local()
    }
}
