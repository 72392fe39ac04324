//! The calls of a client to one process, over a connection that is made anew when it breaks.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::select;
use runtime::host::undelivered;
use runtime::ids::NodeId;
use runtime::mail::Envelope;
use runtime::net::{Address, StreamWriter};
use runtime::protocol::Undelivered;
use runtime::sync::Event;
use runtime::wire::{Decoder, Wire, from_bytes};

use super::contact::Contact;
use super::volume_links::VolumeLinks;
use crate::fast_path::ClientAsking;
use crate::frame::{
    ClientProcess, DeliveredBytes, FrameHeader, FrameReader, LinkFrame, frame_of, frame_with,
    garbled, kind, pack, request,
};

/// Calls of one link that have no answer yet, at most; further ones wait here.
const OPEN_MAX: usize = 512;
/// Calls that are sent before the first open one is answered, at most: the process keeps the
/// outcomes of the others until then, and has a limit (`CALLS_MAX` in `ingress/session.rs`).
const WINDOW_MAX: usize = 1536;
/// The first pause before a connection is tried again; each later one is twice as long, up to the
/// last.
const RECONNECT_PAUSE: Duration = Duration::from_millis(20);
const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// A connection that has been silent for this long is given up.
const SILENCE_MAX: Duration = Duration::from_secs(4);
/// A process that has answered none of its calls for this long may have lost its nodes.
const QUIET_MAX: Duration = Duration::from_secs(1);
/// How often the other side is asked for a sign of life.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// A connection to another host without calls is closed after this time. Those of this host tell a
/// process whether it has clients (`ingress/count.rs`).
const IDLE_MAX: Duration = Duration::from_mins(1);

/// A call without an answer.
pub(super) struct OutgoingCall {
    envelope: Envelope,
    /// When it was made.
    begun: Duration,
    /// When it is given up.
    deadline: Option<Duration>,
    /// The last pause before it was sent again.
    pub(super) pause: Option<Duration>,
}

impl OutgoingCall {
    pub(super) fn new(envelope: Envelope, begun: Duration, deadline: Option<Duration>) -> Self {
        Self { envelope, begun, deadline, pause: None }
    }

    pub(super) fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.begun)
    }

    pub(super) fn node(&self) -> NodeId {
        self.envelope.to
    }

    pub(super) fn is_over(&self, now: Duration) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// The same at a process that has been silent for this long: the time in which it gave signs of
    /// life does not count.
    fn is_over_at(&self, now: Duration, silent: Duration) -> bool {
        let timeout = self.deadline.map(|deadline| deadline.saturating_sub(self.begun));
        timeout.is_some_and(|timeout| self.age(now).min(silent) >= timeout)
    }

    pub(super) fn fail(self, why: Undelivered) {
        self.envelope.message.refuse(why);
    }

    /// Its frame; none if it goes the faster way.
    fn frame(&self, number: u64, acknowledged: u64, fast: &ClientAsking) -> Vec<Bytes> {
        let (header, body) = request(&self.envelope, number);
        let sent = fast.send(FrameHeader { epoch: acknowledged, ..header }, body);
        sent.map_or_else(|(header, body)| pack(header, body), |()| Vec::new())
    }
}

/// The link to one incarnation of one process.
pub(super) struct ProcessLink {
    volume: Rc<VolumeLinks>,
    process: u32,
    incarnation: u64,
    addresses: Vec<Address>,
    /// A connection that was made before the link.
    adopted: RefCell<Option<Contact>>,
    /// Calls that were not sent.
    waiting: RefCell<VecDeque<OutgoingCall>>,
    /// Calls that were sent, by their numbers.
    open: RefCell<BTreeMap<u64, OutgoingCall>>,
    /// Of these, those to be sent again.
    again: RefCell<VecDeque<u64>>,
    /// The numbers of the calls that were sent since the first open one.
    sent: RefCell<VecDeque<u64>>,
    /// Calls that were answered on the present connection.
    answered: Cell<u64>,
    /// The instance of the process that has let the client in; 0 if none has.
    instance: Cell<u64>,
    is_up: Cell<bool>,
    /// The way for large frames that the present connection has beside itself.
    fast: RefCell<Rc<ClientAsking>>,
    /// The application node at which the client is let in.
    port: Cell<NodeId>,
    /// The link, as those know it who wait for bytes of it; none while what was sent may be lost.
    delivers: Cell<Option<u64>>,
    /// Since when no call was answered while some were open.
    quiet_since: Cell<Duration>,
    /// For how long it had been quiet when a newer map was last looked for.
    looked: Cell<Duration>,
    /// It has been tried in vain, and not with success since.
    is_down: Cell<bool>,
    /// Counts the bytes that come on the present connection, and the count at the last look.
    heard: RefCell<Rc<Cell<u64>>>,
    heard_before: Cell<u64>,
    /// Since when nothing has come while calls waited, as of the last look.
    silent_since: Cell<Duration>,
    is_ping_wanted: Cell<bool>,
    /// It is to connect though there is no call.
    is_wanted: Cell<bool>,
    /// Bytes have come that are no answer.
    has_delivered: Cell<bool>,
    is_abandoned: Cell<bool>,
    is_leaving: Cell<bool>,
    changed: Event,
}

impl ProcessLink {
    /// A link that connects when there is something to send.
    pub(super) fn new(
        volume: Rc<VolumeLinks>,
        process: u32,
        incarnation: u64,
        addresses: Vec<Address>,
    ) -> Rc<Self> {
        let link = Rc::new(Self {
            volume,
            process,
            incarnation,
            addresses,
            adopted: RefCell::default(),
            waiting: RefCell::default(),
            open: RefCell::default(),
            again: RefCell::default(),
            sent: RefCell::default(),
            answered: Cell::new(0),
            instance: Cell::new(0),
            is_up: Cell::new(false),
            fast: RefCell::default(),
            port: Cell::new(NodeId(0)),
            delivers: Cell::new(None),
            quiet_since: Cell::default(),
            looked: Cell::default(),
            is_down: Cell::new(false),
            heard: RefCell::default(),
            heard_before: Cell::new(0),
            silent_since: Cell::default(),
            is_ping_wanted: Cell::new(false),
            is_wanted: Cell::new(false),
            has_delivered: Cell::new(false),
            is_abandoned: Cell::new(false),
            is_leaving: Cell::new(false),
            changed: Event::default(),
        });
        link.volume.environment.task(link.clone().run().boxed_local());
        link
    }

    /// Uses a connection that was made already.
    pub(super) fn adopt(&self, contact: Contact) {
        self.adopted.replace(Some(contact));
        self.changed.tell();
    }

    pub(super) fn process(&self) -> u32 {
        self.process
    }

    /// Does it lead to `process`? One that lost its lease and returned with all that it held is
    /// another incarnation of the same instance (ADR 70), which answers the calls that are open. If
    /// another instance is there it says so when it lets the client in.
    pub(super) fn leads_to(&self, process: &ClientProcess) -> bool {
        process.incarnation == self.incarnation
            || self.addresses.contains(&Address::Tcp(process.address.clone()))
    }

    /// A call for this process.
    pub(super) fn push(&self, call: OutgoingCall) {
        if self.is_idle() {
            self.silent_since.set(self.volume.environment.now());
        }
        self.waiting.borrow_mut().push_back(call);
        self.changed.tell();
    }

    /// Calls that were not sent.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// Connects, if there is no connection.
    pub(super) fn connect_soon(&self) {
        if !self.is_up.get() {
            self.is_wanted.set(true);
            self.changed.tell();
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.borrow().is_empty() && self.open.borrow().is_empty()
    }

    /// Has it been tried in vain, and not with success since?
    pub(super) fn is_down(&self) -> bool {
        self.is_down.get()
    }

    /// How long nothing at all has come from the process while calls wait for it. One that is at
    /// work on a long call is not silent: it gives signs of life. To be looked at now and then.
    pub(super) fn silent_for(&self, now: Duration) -> Duration {
        let heard = self.heard.borrow().get();
        if self.heard_before.replace(heard) != heard || self.is_idle() {
            self.silent_since.set(now);
        }
        now.saturating_sub(self.silent_since.get())
    }

    /// How long no call was answered while some are open.
    fn quiet_for(&self, now: Duration) -> Duration {
        let is_asked = self.is_up.get() && !self.open.borrow().is_empty();
        if is_asked { now.saturating_sub(self.quiet_since.get()) } else { Duration::ZERO }
    }

    /// Shall a newer map be looked for elsewhere? The process is there and does not answer: others
    /// may have taken its nodes over. Then again each time that this has lasted twice as long.
    pub(super) fn is_worth_looking(&self, now: Duration) -> bool {
        let quiet = self.quiet_for(now);
        let is_due = quiet >= QUIET_MAX && quiet >= 2 * self.looked.get();
        if is_due || quiet < self.looked.get() {
            self.looked.set(if is_due { quiet } else { Duration::ZERO });
        }
        is_due
    }

    /// Asks for a newer map, if there is a connection.
    pub(super) fn ping(&self) -> bool {
        if self.is_up.get() {
            self.is_ping_wanted.set(true);
            self.changed.tell();
        }
        self.is_up.get()
    }

    /// Gives up calls for which nothing at all has come from the process for as long as they may
    /// wait. One that gives signs of life is at work, or will be, however long that takes: a call
    /// that was given up might be done all the same.
    pub(super) fn expire(&self, now: Duration) {
        let silent = self.silent_for(now);
        if self.is_up.get() && silent < SILENCE_MAX {
            return;
        }
        let mut late = Vec::new();
        let mut waiting = self.waiting.borrow_mut();
        while let Some(index) = waiting.iter().position(|call| call.is_over_at(now, silent)) {
            late.extend(waiting.remove(index));
        }
        drop(waiting);
        let mut open = self.open.borrow_mut();
        late.extend(open.extract_if(.., |_, call| call.is_over_at(now, silent)).map(|it| it.1));
        drop(open);
        for call in late {
            call.fail(Undelivered::TimedOut);
        }
    }

    /// The process is gone for good: what was sent to it is lost. Returns what was not.
    pub(super) fn abandon(&self) -> Vec<OutgoingCall> {
        self.is_abandoned.set(true);
        self.changed.tell();
        self.lose_open();
        self.waiting.take().into()
    }

    fn lose_open(&self) {
        self.again.take();
        for call in self.open.take().into_values() {
            call.fail(Undelivered::Gone);
        }
    }

    /// Ends the session with the process, if there is a connection.
    pub(super) async fn say_goodbye(&self) {
        self.is_leaving.set(true);
        self.changed.tell();
        let gone = self.changed.next();
        if self.is_up.get() {
            select(pin!(gone), self.volume.environment.sleep(RECONNECT_PAUSE)).await;
        }
    }

    fn is_over(&self) -> bool {
        self.is_abandoned.get() || self.is_leaving.get() || self.volume.is_closed.get()
    }

    /// Keeps the link until it is given up.
    async fn run(self: Rc<Self>) {
        let mut pause = RECONNECT_PAUSE;
        while !self.is_over() {
            let changed = self.changed.next();
            let adopted = self.adopted.take();
            let contact = match adopted {
                Some(contact) => contact,
                None if self.is_idle() && !self.is_wanted.take() => {
                    changed.await;
                    continue;
                }
                None => match self.connect().await {
                    Ok(contact) => contact,
                    Err(error) => {
                        self.note_failure(&error);
                        self.volume.environment.sleep(pause).await;
                        pause = RECONNECT_PAUSE_MAX.min(2 * pause);
                        continue;
                    }
                },
            };
            if self.is_abandoned.get() {
                return;
            }
            self.resume(&contact);
            self.answered.set(0);
            self.is_up.set(true);
            self.quiet_since.set(self.volume.environment.now());
            self.is_down.set(false);
            self.silent_since.set(self.volume.environment.now());
            self.heard.replace(contact.frames.heard());
            self.port.set(NodeId(contact.welcome.port));
            let process = contact.welcome.process;
            self.begin_deliveries(process);
            self.is_wanted.set(false);
            self.fast.replace(Rc::new(ClientAsking::new(&self.volume.options, process)));
            let ended = self.talk(contact).await;
            self.fast.take();
            self.end_deliveries();
            self.is_up.set(false);
            tracing::debug!(process = self.process, "a link has ended: {ended:?}");
            self.send_all_again();
            if self.answered.get() > 0 {
                pause = RECONNECT_PAUSE;
            } else {
                // It was let in, and then not served.
                self.volume.environment.sleep(pause).await;
                pause = RECONNECT_PAUSE_MAX.min(2 * pause);
            }
        }
    }

    /// Calls that are open are sent again, under their numbers.
    fn send_all_again(&self) {
        let open = self.open.borrow().keys().copied().collect();
        self.again.replace(open);
    }

    /// Bytes that come on the link are waited for from now on.
    fn begin_deliveries(&self, process: u32) {
        let link = self.volume.state.transfers.link_up(process, self.port.get());
        self.delivers.set(Some(link));
    }

    /// What was on its way may be lost.
    fn end_deliveries(&self) {
        if let Some(link) = self.delivers.take() {
            self.volume.state.transfers.link_down(link);
        }
    }

    fn is_local(&self) -> bool {
        self.addresses.iter().any(|address| matches!(address, Address::Unix(_)))
    }

    /// Connects to one of the addresses.
    async fn connect(&self) -> io::Result<Contact> {
        let process = (self.process != 0).then_some(self.process);
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for address in &self.addresses {
            match self.volume.contact(address, process).await {
                Ok(contact) => return Ok(contact),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn note_failure(&self, error: &io::Error) {
        self.is_down.set(true);
        tracing::debug!(process = self.process, %error, "no link");
        if error.kind() == io::ErrorKind::PermissionDenied {
            if !self.is_idle() {
                tracing::warn!(process = self.process, "this client is refused: {error}");
            }
            self.again.take();
            for call in self.waiting.take() {
                call.fail(Undelivered::Refused);
            }
            // These may have been done.
            for call in self.open.take().into_values() {
                call.fail(Undelivered::TimedOut);
            }
        }
    }

    /// The process has let the client in: if it does not know of the calls that were sent before,
    /// they are lost.
    fn resume(&self, contact: &Contact) {
        let welcome = &contact.welcome;
        let last = self.instance.replace(welcome.instance);
        if last != welcome.instance || !welcome.resumed {
            self.lose_open();
            if last != 0 {
                self.volume.note_restart();
            }
        }
        self.volume.take_map(welcome.map.clone());
    }

    /// Sends calls and takes answers until the connection breaks.
    async fn talk(&self, contact: Contact) -> io::Result<()> {
        let Contact { mut frames, mut writer, welcome, .. } = contact;
        let (fast, process) = (self.fast.borrow().clone(), welcome.process);
        let heard = frames.heard();
        let watch = async {
            loop {
                let before = heard.get();
                self.volume.environment.sleep(SILENCE_MAX).await;
                if heard.get() == before {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
        };
        let receive = self.receive(&mut frames, &fast, process).boxed_local();
        let send = self.send(&mut writer, &fast).boxed_local();
        let receive_fast = self.receive_fast(&fast).boxed_local();
        let ends = [receive, receive_fast, send, watch.boxed_local()];
        futures::future::select_all(ends).await.0
    }

    /// Takes what comes by the faster way.
    async fn receive_fast(&self, fast: &ClientAsking) -> io::Result<()> {
        loop {
            match fast.next().await {
                Some(frame) => self.take_frame(&frame)?,
                // It is over: that is told first.
                None => self.changed.tell(),
            }
        }
    }

    async fn receive(
        &self,
        frames: &mut FrameReader,
        fast: &ClientAsking,
        process: u32,
    ) -> io::Result<()> {
        while let Some(frame) = frames.next().await? {
            fast.note_moved(frame.head.len() + frame.bulk.len());
            match frame.header.kind {
                kind::GRANT => {
                    if fast.take_grant(&frame.head) && self.delivers.get().is_none() {
                        self.begin_deliveries(process);
                    }
                    self.changed.tell();
                }
                kind::PONG if !frame.head.is_empty() => {
                    if let Ok(map) = from_bytes(&frame.head) {
                        self.volume.take_map(map);
                    }
                }
                _ => self.take_frame(&frame)?,
            }
            if self.is_abandoned.get() {
                break;
            }
        }
        Ok(())
    }

    /// Takes an answer, or bytes for a transfer.
    fn take_frame(&self, frame: &LinkFrame) -> io::Result<()> {
        match frame.header.kind {
            kind::REPLY => self.answered(frame),
            kind::DELIVERY => {
                self.has_delivered.set(true);
                self.answered.set(self.answered.get() + 1);
                let mut content = Decoder::new(&frame.head, frame.bulk.clone());
                let bytes = DeliveredBytes::take(&mut content).map_err(garbled)?;
                content.finish().map_err(garbled)?;
                let DeliveredBytes { execution, parts } = bytes;
                let transfer = frame.header.call_id;
                self.volume.state.transfers.receive(transfer, execution, parts);
            }
            _ => {}
        }
        Ok(())
    }

    /// A call was answered. One that was not done is sent again later.
    fn answered(&self, frame: &LinkFrame) {
        self.fast.borrow().answered(frame.header.call_id);
        let Some(call) = self.open.borrow_mut().remove(&frame.header.call_id) else { return };
        self.quiet_since.set(self.volume.environment.now());
        self.answered.set(self.answered.get() + 1);
        if !self.waiting.borrow().is_empty() {
            self.changed.tell();
        }
        match undelivered(&frame.head) {
            Some(why) if why.not_applied() => self.volume.send_later(call, why),
            other => {
                if other == Some(Undelivered::Lost) {
                    self.volume.look_for_map();
                }
                call.envelope.message.answer_bytes(Decoder::new(&frame.head, frame.bulk.clone()));
            }
        }
    }

    async fn send(
        &self,
        writer: &mut Box<dyn StreamWriter>,
        fast: &ClientAsking,
    ) -> io::Result<()> {
        let environment = &self.volume.environment;
        let (mut pinged, mut used) = (environment.now(), environment.now());
        loop {
            let changed = self.changed.next();
            if fast.is_lost() {
                // Of calls that went there, or whose answers would have come there, none is lost.
                self.end_deliveries();
                self.send_all_again();
            }
            let mut parts = fast.offer();
            parts.extend(self.next_calls(fast));
            let now = environment.now();
            if !self.is_idle() || self.has_delivered.take() {
                used = now;
            }
            let is_unused = !self.is_local() && now.saturating_sub(used) >= IDLE_MAX;
            if self.is_leaving.get() || is_unused {
                writer.write(goodbye()).await?;
                self.changed.tell();
                return Ok(());
            }
            if self.is_ping_wanted.replace(false) || now.saturating_sub(pinged) >= PING_INTERVAL {
                pinged = now;
                parts.extend(self.ping_frame());
            }
            if !parts.is_empty() {
                fast.note_moved(parts.iter().map(Bytes::len).sum());
                writer.write(parts).await?;
            }
            if self.is_abandoned.get() {
                return Ok(());
            }
            select(pin!(changed), environment.sleep(PING_INTERVAL)).await;
        }
    }

    /// Asks for a sign of life, and says which outcomes the process need not keep.
    fn ping_frame(&self) -> Vec<Bytes> {
        let first = self.open.borrow().keys().next().copied();
        let epoch = first.unwrap_or_else(|| self.volume.last_call() + 1);
        let header = FrameHeader { kind: kind::PING, epoch, ..FrameHeader::default() };
        frame_with(header, &self.volume.epoch())
    }

    /// The frames of the calls to be sent now.
    fn next_calls(&self, fast: &ClientAsking) -> Vec<Bytes> {
        let mut parts = Vec::new();
        let mut open = self.open.borrow_mut();
        let mut first = open.keys().next().copied();
        for number in self.again.take() {
            if let Some(call) = open.get(&number) {
                parts.extend(call.frame(number, first.unwrap_or(number), fast));
            }
        }
        let mut waiting = self.waiting.borrow_mut();
        if open.is_empty() {
            self.quiet_since.set(self.volume.environment.now());
        }
        // The process keeps the outcomes of all calls after the first open one.
        while open.len() < OPEN_MAX
            && self.sent_since_first_open(&open) < WINDOW_MAX
            && let Some(call) = waiting.pop_front()
        {
            let number = self.volume.next_call();
            parts.extend(call.frame(number, *first.get_or_insert(number), fast));
            self.sent.borrow_mut().push_back(number);
            open.insert(number, call);
        }
        parts
    }

    /// Calls that were sent since the first one that is still open, and that one.
    fn sent_since_first_open(&self, open: &BTreeMap<u64, OutgoingCall>) -> usize {
        let mut sent = self.sent.borrow_mut();
        let first = open.keys().next().copied().unwrap_or(u64::MAX);
        while sent.front().is_some_and(|number| *number < first) {
            sent.pop_front();
        }
        sent.len()
    }
}

/// Ends a session.
pub(super) fn goodbye() -> Vec<Bytes> {
    frame_of(kind::GOODBYE, &())
}
