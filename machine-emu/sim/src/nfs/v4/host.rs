//! One client host: its session and slots, what it has open and locked, and how it gets all of that
//! back when the gateway has forgotten it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use runtime::seed::Rng;
use runtime::sync::KeyedLock;

use super::back_channel_v4::{CALLBACK_PROGRAM, CallbackPath, HostBackChannel};
use super::wire::{
    COMPOUND, CompoundOps, ReplyReader, WireOpenClaim, WireSessionId, WireStateid, op, status,
};
use crate::harness::WorkResult;
use crate::harness::{RETRY_PAUSE, TRIES_MAX};
use crate::nfs::gateways::Gateways;
use crate::nfs::link::{HostLink, NfsCall};

/// The lease of a client that is silent.
pub(super) const LEASE: Duration = Duration::from_secs(30);
/// A host that has nothing to say says so as often.
pub(super) const RENEW_PAUSE: Duration = Duration::from_secs(10);
/// Gateways renew their own leases at this interval, so a node may count from that much earlier,
/// plus latency.
const SLACK: Duration = Duration::from_secs(11);
/// One in this number of non-idempotent requests is sent again after its answer,
const AGAIN_IN: u64 = 8;
/// or another request with its sequence id.
const FALSE_IN: u64 = 16;

/// A file that a host has open.
#[derive(Clone, Debug)]
pub(super) struct V4Open {
    /// Its handle.
    pub(super) file: Bytes,
    /// Its opener.
    pub(super) owner: Vec<u8>,
    /// What it is open for, and what others may not do.
    pub(super) sharing: (u32, u32),
    /// The state.
    pub(super) stateid: WireStateid,
    /// The lock that its opener has on it.
    pub(super) lock: Option<V4Lock>,
    /// A CLOSE is under way: if it was done and not answered, a file without a name is freed.
    pub(super) closing: bool,
}

/// A lock of bytes.
#[derive(Clone, Debug)]
pub(super) struct V4Lock {
    /// The state of the locks.
    pub(super) stateid: WireStateid,
    /// To write, too.
    pub(super) exclusive: bool,
    /// The first byte, and how many.
    pub(super) range: (u64, u64),
}

struct V4Session {
    id: WireSessionId,
    client: u64,
    /// The numbers of the last requests.
    slots: Vec<u32>,
    /// How often the gateway had started when it was made.
    start: u64,
}

pub(super) struct V4Answer {
    /// What came of it.
    pub(super) status: u32,
    /// The results behind that of SEQUENCE.
    pub(super) reply: ReplyReader,
    /// It was sent in a session that is lost, too: that copy may have been done, or may still be.
    pub(super) has_stray_twin: bool,
}

/// The gateway does not know the session.
struct SessionLost {
    /// A copy of the request may have been done in it.
    perhaps_done: bool,
}

pub(super) struct V4Host<'a> {
    /// Its connection.
    pub(super) link: HostLink<'a>,
    gateways: &'a Gateways<'a>,
    /// The one that it uses.
    pub(super) gateway: u32,
    name: String,
    /// Of this life of the host.
    verifier: Cell<u64>,
    rng: RefCell<Rng>,
    slots: usize,
    session: RefCell<Option<V4Session>>,
    sessions: Cell<u64>,
    recovering: KeyedLock<()>,
    /// When it last said something that was answered.
    heard: Cell<Duration>,
    /// The lease had not ended when the recovery began that is under way.
    in_time: Cell<bool>,
    /// The power was away, so the nodes below are in their grace.
    after_power: Cell<bool>,
    opens: RefCell<BTreeMap<u64, V4Open>>,
    next_open: Cell<u64>,
    /// It is called back.
    pub(super) back_channel: HostBackChannel,
}

impl<'a> V4Host<'a> {
    /// Host `index`, with a slot for each of `workers` and one for itself.
    pub(super) fn new(gateways: &'a Gateways<'a>, index: u32, workers: usize) -> Self {
        let harness = gateways.harness();
        let gateway = index % gateways.count();
        let link = HostLink::new(harness, index, gateway..gateway + 1);
        Self {
            link,
            gateways,
            gateway,
            name: format!("host-{index}"),
            verifier: Cell::new(1),
            rng: RefCell::new(harness.fork_rng()),
            slots: workers + 1,
            session: RefCell::default(),
            sessions: Cell::new(0),
            recovering: KeyedLock::default(),
            heard: Cell::default(),
            in_time: Cell::new(true),
            after_power: Cell::new(false),
            opens: RefCell::default(),
            next_open: Cell::new(0),
            back_channel: HostBackChannel::new(harness),
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.link.harness().cluster.world().now()
    }

    /// The power was away: the nodes have begun a grace, and the host gets back its locks before it
    /// ends.
    pub(super) fn power_is_back(&self) {
        self.after_power.set(true);
    }

    /// Its lease is certainly valid, so its locks are still its own.
    pub(super) fn is_within_lease(&self) -> bool {
        self.now() + SLACK < self.heard.get() + LEASE
    }

    // --- What is open ---

    /// An open file, if it was not lost.
    pub(super) fn open(&self, number: u64) -> Option<V4Open> {
        self.opens.borrow().get(&number).cloned()
    }

    /// Changes what is known of an open file.
    pub(super) fn with_open(&self, number: u64, change: impl FnOnce(&mut V4Open)) {
        if let Some(open) = self.opens.borrow_mut().get_mut(&number) {
            change(open);
        }
    }

    /// Notes an open file: its number.
    pub(super) fn add_open(&self, open: V4Open) -> u64 {
        let number = self.next_open.get();
        self.next_open.set(number + 1);
        self.opens.borrow_mut().insert(number, open);
        number
    }

    /// It is closed.
    pub(super) fn forget_open(&self, number: u64) {
        self.opens.borrow_mut().remove(&number);
    }

    /// Sessions that it had: another one than before may not know what an earlier one did.
    pub(super) fn sessions(&self) -> u64 {
        self.sessions.get()
    }

    /// The gateway knows all that the host has.
    pub(super) fn has_everything(&self) -> bool {
        let start = self.gateways.starts(self.gateway);
        let is_known = self.session.borrow().as_ref().is_some_and(|session| session.start == start);
        is_known && self.recovering.is_open(&())
    }

    /// It has nothing.
    pub(super) fn is_fresh(&self) -> bool {
        self.opens.borrow().is_empty()
    }

    // --- Requests ---

    /// The answer to a request, which `make` makes anew as long as it will be better later, and
    /// after each recovery: `None` if it cannot any more, since what it is about is lost. What is
    /// `once` done must be answered as before when it comes again.
    pub(super) async fn ask(
        &self,
        slot: usize,
        once: bool,
        make: impl Fn() -> Option<CompoundOps>,
    ) -> WorkResult<Option<V4Answer>> {
        let mut has_stray_twin = false;
        for _ in 0..TRIES_MAX {
            let session = self.ready().await?;
            // As in kernels, state is not reclaimed while a request is in flight, which could open
            // more.
            let under_way = self.recovering.shared(()).await;
            if self.sessions.get() != session {
                continue;
            }
            let Some(ops) = make() else { return Ok(None) };
            let answered = self.in_session(slot, once, &ops).await?;
            drop(under_way);
            match answered {
                Err(forgotten) => {
                    has_stray_twin |= forgotten.perhaps_done;
                    self.recover(session).await?;
                }
                Ok(reader) if self.is_expected(reader.status) => {
                    self.link.harness().pass(RETRY_PAUSE).await;
                }
                Ok(reader) => {
                    return Ok(Some(V4Answer {
                        status: reader.status,
                        reply: reader,
                        has_stray_twin,
                    }));
                }
            }
        }
        panic!("no answer after {TRIES_MAX} tries");
    }

    fn is_expected(&self, status: u32) -> bool {
        match status {
            status::DELAY | status::RETRY_UNCACHED_REP => true,
            status::IO => self.link.harness().is_expected(fileio::protocol::Error::Damaged {}),
            _ => false,
        }
    }

    /// The next request of a slot; the reply, behind that of SEQUENCE.
    async fn in_session(
        &self,
        slot: usize,
        once: bool,
        ops: &CompoundOps,
    ) -> WorkResult<Result<ReplyReader, SessionLost>> {
        let (id, number) = {
            let mut session = self.session.borrow_mut();
            let Some(session) = session.as_mut() else {
                return Ok(Err(SessionLost { perhaps_done: false }));
            };
            session.slots[slot] += 1;
            (session.id, session.slots[slot])
        };
        let arguments = ops.in_sequence(&id, (slot, number), once);
        let call = self.link.prepare_bytes(COMPOUND, &arguments);
        let began = self.now();
        let reply = self.exchange(&call).await?;
        let mut reader = ReplyReader::of(reply.clone());
        if reader.status == status::BADSESSION {
            return Ok(Err(SessionLost { perhaps_done: call.is_doubled() }));
        }
        if reader.status == status::RETRY_UNCACHED_REP {
            assert!(!once, "{ops:?}: the reply was to be kept, and was not");
            return Ok(Ok(reader));
        }
        reader.sequence((slot, number));
        self.heard.set(self.heard.get().max(began));
        if once {
            self.once_more(&id, &call, &reply).await?;
            self.in_its_place(&id, (slot, number)).await?;
        }
        Ok(Ok(reader))
    }

    /// The reply to a call that begins with SEQUENCE; waits for a copy of it that is being done.
    async fn exchange(&self, call: &NfsCall) -> WorkResult<Bytes> {
        for _ in 0..TRIES_MAX {
            let reply = self.link.exchange(call).await?;
            let reader = ReplyReader::of(reply.clone());
            if reader.status != status::DELAY || reader.results > 1 {
                return Ok(reply);
            }
            self.link.harness().pass(RETRY_PAUSE).await;
        }
        panic!("a copy of a request is being done for ever");
    }

    fn chance(&self, one_in: u64) -> bool {
        self.rng.borrow_mut().chance(1, one_in)
    }

    /// Now and then: a request that was answered comes again, and is answered as before; by a
    /// gateway that has forgotten the session with other attributes, or not at all.
    async fn once_more(&self, id: &WireSessionId, call: &NfsCall, reply: &Bytes) -> WorkResult {
        if self.chance(AGAIN_IN) {
            let again = self.exchange(call).await?;
            let [reader, status_again] =
                [reply, &again].map(|reply| ReplyReader::of(reply.clone()).status);
            let is_same = again == *reply
                || status_again == status::BADSESSION
                || status_again == reader && self.may_be_forgotten(id);
            assert!(is_same, "answered {reply:?}, and when it came again {again:?}");
        }
        Ok(())
    }

    /// Now and then: another request has the number of one that was answered.
    async fn in_its_place(&self, id: &WireSessionId, at: (usize, u32)) -> WorkResult {
        if self.chance(FALSE_IN) {
            let other = CompoundOps::default().root().op(op::GETFH).op(op::GETFH).op(op::GETFH);
            let call = self.link.prepare_bytes(COMPOUND, &other.in_sequence(id, at, true));
            let reader = ReplyReader::of(self.exchange(&call).await?).status;
            let refused = [status::SEQ_FALSE_RETRY, status::BADSESSION].contains(&reader);
            assert!(refused, "another request under the same number: {reader}");
        }
        Ok(())
    }

    // --- Sessions ---

    /// The gateway may have forgotten the session: it has started again, the lease has ended, or
    /// the host has another one.
    fn may_be_forgotten(&self, id: &WireSessionId) -> bool {
        let starts = self.gateways.starts(self.gateway);
        let session = self.session.borrow();
        let is_known = session.as_ref().is_some_and(|now| now.id == *id && now.start == starts);
        !is_known || self.now() > self.heard.get() + LEASE
    }

    /// There is a session, in which all is open again that was: the number of the last one.
    async fn ready(&self) -> WorkResult<u64> {
        drop(self.recovering.shared(()).await);
        if self.session.borrow().is_none() {
            self.recover(self.sessions.get()).await?;
        }
        Ok(self.sessions.get())
    }

    /// Says something, so that the lease does not end.
    pub(super) async fn renew(&self) -> WorkResult {
        let own = self.slots - 1;
        self.ask(own, false, || Some(CompoundOps::default())).await.map(drop)
    }

    /// The host starts again, and knows nothing of what it had.
    pub(super) fn reboot(&self) {
        self.opens.borrow_mut().clear();
        *self.session.borrow_mut() = None;
        self.verifier.set(self.verifier.get() + 1);
    }

    /// Makes a new session, unless another worker has since `session`, and reclaims opens and
    /// locks.
    async fn recover(&self, session: u64) -> WorkResult {
        let _alone = self.recovering.exclusive(()).await;
        if self.sessions.get() != session {
            return Ok(());
        }
        let before = self.session.borrow_mut().take();
        if let Some(V4Session { start, .. }) = &before {
            let has_reason = *start != self.gateways.starts(self.gateway)
                || self.now() > self.heard.get() + LEASE;
            let (name, now, heard) = (&self.name, self.now(), self.heard.get());
            assert!(
                has_reason,
                "at {now:?} gateway {} has lost the session of {name}, made after start {start}, without a reason; last renewed at {heard:?}",
                self.gateway
            );
        }
        let mut had = before.map(|session| session.client);
        for _ in 0..TRIES_MAX {
            let Some(session) = self.new_session().await? else { continue };
            let client = session.client;
            *self.session.borrow_mut() = Some(session);
            let known = had.replace(client) == Some(client);
            let complete = if known { Ok(Ok(())) } else { self.get_again().await };
            match complete {
                Ok(Ok(())) => {
                    self.sessions.set(self.sessions.get() + 1);
                    self.after_power.set(false);
                    return Ok(());
                }
                Ok(Err(_)) => {}
                Err(cut) => {
                    // Who waits for this recovery must not take it for one that has succeeded.
                    *self.session.borrow_mut() = None;
                    return Err(cut);
                }
            }
        }
        panic!("{} got no session", self.name);
    }

    /// `EXCHANGE_ID` and `CREATE_SESSION`; `None` if the gateway has started again in between.
    async fn new_session(&self) -> WorkResult<Option<V4Session>> {
        let (start, began) = (self.gateways.starts(self.gateway), self.now());
        let exchange = CompoundOps::default().op(op::EXCHANGE_ID).long(self.verifier.get());
        let exchange = exchange.opaque(self.name.as_bytes()).word(0).word(0).word(0);
        let mut reader = self.alone(&exchange).await?;
        assert_eq!(reader.status, status::OK, "EXCHANGE_ID");
        let reader = reader.done(op::EXCHANGE_ID);
        let (client, number) = (reader.long(), reader.word());
        let channel = |ops: CompoundOps| {
            let sizes = ops.word(0).word(1 << 20).word(1 << 20).word(4096);
            sizes.word(16).word(self.slots as u32).word(0)
        };
        let create =
            CompoundOps::default().op(op::CREATE_SESSION).long(client).word(number).word(0);
        // Callbacks are without a credential.
        let back = channel(channel(create)).word(CALLBACK_PROGRAM).word(1).word(0);
        let mut reader = self.alone(&back).await?;
        if reader.status == status::STALE_CLIENTID {
            return Ok(None);
        }
        assert_eq!(reader.status, status::OK, "CREATE_SESSION");
        let id = reader.done(op::CREATE_SESSION).fixed();
        self.heard.set(self.heard.get().max(began));
        Ok(Some(V4Session { id, client, slots: vec![0; self.slots], start }))
    }

    /// A request outside of sessions.
    async fn alone(&self, ops: &CompoundOps) -> WorkResult<ReplyReader> {
        loop {
            let call = self.link.prepare_bytes(COMPOUND, &ops.compound());
            let reader = ReplyReader::of(self.link.exchange(&call).await?);
            if reader.status != status::DELAY {
                return Ok(reader);
            }
            self.link.harness().pass(RETRY_PAUSE).await;
        }
    }

    /// Binds the connection to the back channel of the session, unless it is.
    pub(super) async fn bind(&self) -> WorkResult<Option<CallbackPath>> {
        let id = self.session.borrow().as_ref().map(|session| session.id);
        let (Some(id), Some(connection)) = (id, self.link.connection()) else { return Ok(None) };
        let path = CallbackPath {
            session: self.sessions.get(),
            start: self.gateways.starts(self.gateway),
            connection,
        };
        if self.back_channel.is_bound(&path) {
            return Ok(Some(path));
        }
        let bind = CompoundOps::default().op(op::BIND_CONN_TO_SESSION).fixed(&id);
        // To be called, too; without RDMA.
        let reader = self.alone(&bind.word(3).word(0)).await?;
        let is_done = reader.status == status::OK && self.is_path(&path);
        Ok(is_done.then(|| self.back_channel.bound(path)))
    }

    /// Has nothing broken since the connection was bound?
    pub(super) fn is_path(&self, path: &CallbackPath) -> bool {
        self.sessions.get() == path.session
            && self.gateways.starts(self.gateway) == path.start
            && self.link.connection() == Some(path.connection)
            && self.recovering.is_open(&())
    }

    /// Opens and locks again what the gateway has forgotten, and says that this is all.
    async fn get_again(&self) -> WorkResult<Result<(), SessionLost>> {
        let numbers: Vec<u64> = self.opens.borrow().keys().copied().collect();
        for number in numbers {
            if let Err(forgotten) = self.open_again(number).await? {
                return Ok(Err(forgotten));
            }
        }
        let complete = CompoundOps::default().op(op::RECLAIM_COMPLETE).word(0);
        let reader = match self.for_itself(&complete).await? {
            Ok(reader) => reader,
            Err(forgotten) => return Ok(Err(forgotten)),
        };
        assert_eq!(reader.status, status::OK, "RECLAIM_COMPLETE");
        Ok(Ok(()))
    }

    /// A request of the recovery.
    async fn for_itself(&self, ops: &CompoundOps) -> WorkResult<Result<ReplyReader, SessionLost>> {
        loop {
            match self.in_session(self.slots - 1, true, ops).await? {
                Ok(reader) if self.is_expected(reader.status) => {
                    self.link.harness().pass(RETRY_PAUSE).await;
                }
                answer => return Ok(answer),
            }
        }
    }

    async fn open_again(&self, number: u64) -> WorkResult<Result<(), SessionLost>> {
        let Some(open) = self.open(number) else { return Ok(Ok(())) };
        let ops = CompoundOps::default().put(&open.file).open(
            &open.owner,
            open.sharing,
            WireOpenClaim::Again,
        );
        let mut reader = match self.for_itself(&ops).await? {
            Ok(reader) => reader,
            Err(forgotten) => return Ok(Err(forgotten)),
        };
        // Until it has claimed it, another one may do what this opening forbids (ADR 21); and who
        // did so is the one that is refused if the gateway starts again before that.
        let contested = reader.status == status::RECLAIM_CONFLICT;
        if reader.status != status::OK {
            let gone = reader.status == status::STALE && open.closing;
            let (in_time, refused) = (self.in_time.get(), reader.status);
            assert!(
                contested || gone || !in_time,
                "{open:?} was open, and cannot be again: {refused}"
            );
            self.forget_open(number);
            return Ok(Ok(()));
        }
        reader.done(op::PUTFH);
        let stateid = reader.opened();
        self.with_open(number, |open| open.stateid = stateid);
        self.lock_again(number).await
    }

    async fn lock_again(&self, number: u64) -> WorkResult<Result<(), SessionLost>> {
        let Some(V4Open { file, owner, stateid, lock: Some(lock), .. }) = self.open(number) else {
            return Ok(Ok(()));
        };
        let ops = CompoundOps::default().put(&file);
        let ops = lock_by(ops, &owner, &stateid, (lock.exclusive, lock.range), true);
        let mut reader = match self.for_itself(&ops).await? {
            Ok(reader) => reader,
            Err(forgotten) => return Ok(Err(forgotten)),
        };
        let lock = match reader.status {
            status::OK => {
                reader.done(op::PUTFH);
                Some(V4Lock { stateid: reader.done(op::LOCK).fixed(), ..lock })
            }
            refused => {
                let expected = [status::NO_GRACE, status::RECLAIM_CONFLICT].contains(&refused);
                let must_be = self.after_power.get() && self.in_time.get();
                assert!(
                    expected && !must_be,
                    "{lock:?} was locked, and cannot be again: {refused}"
                );
                None
            }
        };
        self.with_open(number, |open| open.lock = lock);
        Ok(Ok(()))
    }
}

/// LOCK by an owner that may be new to the open file.
pub(super) fn lock_by(
    ops: CompoundOps,
    owner: &[u8],
    open: &WireStateid,
    (exclusive, (first, count)): (bool, (u64, u64)),
    again: bool,
) -> CompoundOps {
    let ops = ops.op(op::LOCK).word(1 + u32::from(exclusive)).word(again.into());
    let ops = ops.long(first).long(count).word(1).word(0).fixed(open);
    ops.word(0).long(0).opaque(owner)
}
