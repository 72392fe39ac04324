//! One client host: a connection that breaks and comes back, with many calls under way on it.
//!
//! As a hard mount does, it sends every call again on the next connection until there is a reply.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::channel::oneshot;
use futures::future::{Either, select};
use nfs3_types::nfs3::{NFS_PROGRAM, Nfs3Result, PROGRAM, VERSION, nfsstat3};
use nfs3_types::xdr_codec::{Pack, Unpack};
use runtime::net::{Address, ByteStream, StreamReader, StreamWriter};
use runtime::seed::Rng;
use runtime::sync::Event;

use super::rpc::{self, GatewayMessage};
use crate::cluster::OBSERVER;
use crate::harness::{Harness, PowerCut, RETRY_PAUSE, TRIES_MAX, WorkResult};

/// The reserved ports that a host uses in turn.
const PORT_FIRST: u16 = 600;
const PORTS: u16 = 400;

/// The pause before a host connects again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(10);

/// One call, which keeps its bytes as long as it may have to be sent again.
#[derive(Clone, Debug)]
pub(super) struct NfsCall {
    xid: u32,
    record: Bytes,
    sent: Rc<Cell<u32>>,
    has_stray_twin: bool,
}

impl NfsCall {
    /// It was sent more than once, so a copy may be about when it has been answered.
    pub(super) fn is_doubled(&self) -> bool {
        self.sent.get() > 1
    }

    /// It was answered that it will be better later, while an earlier copy was about: that one has
    /// another number and is another call, so this one may meet its work.
    pub(super) fn has_stray_twin(&self) -> bool {
        self.has_stray_twin
    }

    /// One in `count` calls is.
    pub(super) fn is_one_in(&self, count: u32) -> bool {
        self.xid.is_multiple_of(count)
    }
}

struct PendingCall {
    call: NfsCall,
    reply: oneshot::Sender<Bytes>,
}

/// A call of the gateway.
pub(super) struct GatewayCallback {
    connection: u16,
    xid: u32,
    pub(super) procedure: u32,
    pub(super) arguments: Bytes,
}

/// A client host.
pub(super) struct HostLink<'a> {
    harness: &'a Harness,
    /// Its address, without a port: it has another one each time that it connects.
    host: String,
    connections: Cell<u16>,
    gateways: Range<u32>,
    rng: RefCell<Rng>,
    xid: Cell<u32>,
    connected: Cell<bool>,
    waiting: RefCell<BTreeMap<u32, PendingCall>>,
    queue: RefCell<VecDeque<Bytes>>,
    queued: Event,
    /// Calls of the gateway that the host has not taken yet.
    callbacks: RefCell<VecDeque<GatewayCallback>>,
    called: Event,
}

/// Makes one call at a time, over the link of a host.
#[derive(Clone, Copy)]
pub(super) struct V3Worker<'a> {
    pub(super) link: &'a HostLink<'a>,
    /// Among all.
    pub(super) number: u32,
}

/// Where gateway `index` listens.
pub(super) fn address(index: u32) -> Address {
    Address::Tcp(format!("gateway-{index}:2049"))
}

impl<'a> HostLink<'a> {
    /// Host `index`, which uses any of `gateways`.
    pub(super) fn new(harness: &'a Harness, index: u32, gateways: Range<u32>) -> Self {
        let mut rng = harness.fork_rng();
        Self {
            harness,
            host: format!("10.0.0.{}", index + 1),
            connections: Cell::new(0),
            gateways,
            xid: Cell::new(rng.bits() as u32),
            rng: RefCell::new(rng),
            connected: Cell::new(false),
            waiting: RefCell::default(),
            queue: RefCell::default(),
            queued: Event::default(),
            callbacks: RefCell::default(),
            called: Event::default(),
        }
    }

    /// The run that the host belongs to.
    pub(super) fn harness(&self) -> &'a Harness {
        self.harness
    }

    /// Logs the next operation, to debug a repeated run.
    pub(super) fn log(&self, what: impl FnOnce() -> String) {
        if tracing::enabled!(tracing::Level::DEBUG) {
            let now = self.harness.cluster.world().now();
            tracing::debug!(?now, host = self.host, what = what());
        }
    }

    fn next_xid(&self) -> u32 {
        self.xid.set(self.xid.get().wrapping_add(1));
        self.xid.get()
    }

    /// A call of an NFS procedure, not sent yet.
    pub(super) fn prepare(&self, procedure: NFS_PROGRAM, arguments: &impl Pack) -> NfsCall {
        self.prepare_any([PROGRAM, VERSION, procedure as u32], arguments)
    }

    /// A call of any procedure.
    pub(super) fn prepare_any(&self, program: [u32; 3], arguments: &impl Pack) -> NfsCall {
        self.prepare_bytes(program, &rpc::packed(arguments))
    }

    /// The same of arguments that are bytes already.
    pub(super) fn prepare_bytes(&self, program: [u32; 3], arguments: &[u8]) -> NfsCall {
        let xid = self.next_xid();
        let record = rpc::record(xid, program, arguments);
        NfsCall { xid, record, sent: Rc::default(), has_stray_twin: false }
    }

    /// Makes a call, again as long as the server says that it will be better later.
    pub(super) async fn ask<T, E>(&self, call: &mut NfsCall) -> WorkResult<Nfs3Result<T, E>>
    where
        Nfs3Result<T, E>: Unpack,
    {
        for _ in 0..TRIES_MAX {
            let result: Nfs3Result<T, E> = rpc::decode(&self.exchange(call).await?);
            let excused = match &result {
                Nfs3Result::Ok(_) => false,
                Nfs3Result::Err((status, _)) => self.is_expected(*status),
            };
            if !excused {
                return Ok(result);
            }
            self.harness.pass(RETRY_PAUSE).await;
            call.xid = self.next_xid();
            call.record = rpc::renumbered(&call.record, call.xid);
            // It was answered that nothing was done; only an earlier twin may still be about.
            call.sent.set(call.sent.get() - 1);
            call.has_stray_twin |= call.sent.get() > 0;
        }
        panic!("no answer after {TRIES_MAX} tries");
    }

    fn is_expected(&self, status: nfsstat3) -> bool {
        match status {
            nfsstat3::NFS3ERR_JUKEBOX => true,
            nfsstat3::NFS3ERR_IO => self.harness.is_expected(fileio::protocol::Error::Damaged {}),
            _ => false,
        }
    }

    /// The result of `call`, whatever happens to the connection meanwhile.
    pub(super) async fn exchange(&self, call: &NfsCall) -> WorkResult<Bytes> {
        if self.harness.is_power_off() {
            return Err(PowerCut);
        }
        let (reply, replied) = oneshot::channel();
        self.waiting.borrow_mut().insert(call.xid, PendingCall { call: call.clone(), reply });
        if self.connected.get() {
            self.transmit(call);
        }
        let result = replied.await;
        if self.harness.is_power_off() {
            return Err(PowerCut);
        }
        self.harness.answered();
        result.map_err(|_| PowerCut)
    }

    /// The number of the connection, if there is one.
    pub(super) fn connection(&self) -> Option<u16> {
        self.connected.get().then(|| self.connections.get())
    }

    /// The next call of the gateway.
    pub(super) async fn next_callback(&self) -> GatewayCallback {
        loop {
            let called = self.called.next();
            if let Some(callback) = self.callbacks.borrow_mut().pop_front() {
                return callback;
            }
            called.await;
        }
    }

    /// Answers a call of the gateway, over the connection by which it came.
    pub(super) fn answer(&self, callback: &GatewayCallback, result: &[u8]) {
        if self.connection() == Some(callback.connection) {
            self.queue.borrow_mut().push_back(rpc::reply_record(callback.xid, result));
            self.queued.tell();
        }
    }

    fn transmit(&self, call: &NfsCall) {
        call.sent.set(call.sent.get() + 1);
        self.queue.borrow_mut().push_back(call.record.clone());
        self.queued.tell();
    }

    /// Runs `work` of this host, and its connection meanwhile.
    pub(super) async fn run<T>(&self, work: impl Future<Output = T>) -> T {
        match select(pin!(work), pin!(self.stay_connected())).await {
            Either::Left((outcome, _)) => {
                self.connected.set(false);
                self.waiting.take();
                outcome
            }
            Either::Right((never, _)) => match never {},
        }
    }

    async fn stay_connected(&self) -> std::convert::Infallible {
        loop {
            if self.harness.is_power_off() {
                // All pending calls are abandoned.
                self.waiting.take();
            } else if let Some(stream) = self.connect() {
                self.serve(stream).await;
            }
            self.connected.set(false);
            self.harness.pass(RECONNECT_PAUSE).await;
        }
    }

    fn connect(&self) -> Option<ByteStream> {
        let Range { start, end } = self.gateways;
        let gateway = start + self.rng.borrow_mut().below(u64::from(end - start)) as u32;
        let connections = self.connections.get();
        self.connections.set(connections.wrapping_add(1));
        let port = PORT_FIRST + connections % PORTS;
        let peer = format!("{}:{port}", self.host);
        self.harness.cluster.world().connect_from(&peer, &address(gateway)).ok()
    }

    /// Uses one connection until it breaks, or the host hangs up.
    async fn serve(&self, stream: ByteStream) {
        let ByteStream { reader, writer, .. } = stream;
        self.connected.set(true);
        self.queue.take();
        let calls: Vec<NfsCall> =
            self.waiting.borrow().values().map(|waiting| waiting.call.clone()).collect();
        for call in &calls {
            self.transmit(call);
        }
        let (reading, writing) = (pin!(self.read(reader)), pin!(self.write(writer)));
        let both = select(reading, writing);
        let context = self.harness.cluster.application(OBSERVER);
        let patience = Duration::from_millis(1 << self.rng.borrow_mut().below(16));
        select(both, pin!(context.sleep(patience))).await;
    }

    async fn read(&self, mut reader: Box<dyn StreamReader>) {
        let mut received = BytesMut::new();
        while reader.read(&mut received).await.unwrap_or(0) > 0 {
            while let Some(message) = rpc::next_message(&mut received) {
                self.received(message);
            }
        }
    }

    fn received(&self, message: GatewayMessage) {
        match message {
            GatewayMessage::Reply(xid, result) => {
                // A call that was sent twice may be answered twice.
                let waiting = self.waiting.borrow_mut().remove(&xid);
                if let Some(waiting) = waiting {
                    let _ = waiting.reply.send(result);
                }
            }
            GatewayMessage::Call(xid, procedure, arguments) => {
                let connection = self.connections.get();
                let callback = GatewayCallback { connection, xid, procedure, arguments };
                self.callbacks.borrow_mut().push_back(callback);
                self.called.tell();
            }
        }
    }

    async fn write(&self, mut writer: Box<dyn StreamWriter>) {
        loop {
            let queued = self.queued.next();
            let records: Vec<Bytes> = self.queue.borrow_mut().drain(..).collect();
            if records.is_empty() {
                queued.await;
            } else if writer.write(records).await.is_err() {
                return;
            }
        }
    }
}
