//! Our transport over libfabric.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fabric::FabricError;
use fabric::link::{EndpointOptions, Provider};
use fabric::policy::{CALIBRATES, Costs, Policy, PolicyOverride, answer_one};
use fabric::transport::{
    BulkPart, ConnectionId, FabricCounters, FabricEvent, TICKET_SIZE, Transport, TransportOptions,
};

use crate::bare::{hex, unhex};
use crate::method::{TransportMethod, now};

const TICKET: [u8; TICKET_SIZE] = *b"a bench's ticket";
const LIMIT: Duration = Duration::from_mins(1);
/// Polls in vain before a process that waits goes to sleep.
const POLLS: u32 = 20;

/// Whether the process polls or sleeps until something comes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdleMode {
    Polls,
    Sleeps,
}

pub(crate) struct MdfsTransport {
    pub(crate) transport: Transport,
    pub(crate) connection: ConnectionId,
    rest: IdleMode,
    content: Bytes,
}

fn open(provider: Provider, costs: Option<&Path>) -> Transport {
    let text = costs.and_then(|path| std::fs::read_to_string(path).ok());
    let policy =
        text.map_or_else(Policy::default, |text| Policy::new(Costs::from_text(&text).unwrap()));
    let setup = TransportOptions::new(EndpointOptions::new(provider), policy);
    Transport::open(TransportOptions { silence: LIMIT, ..setup }).unwrap()
}

/// The next event.
fn next(
    transport: &mut Transport,
    rest: IdleMode,
    is_over: &dyn Fn() -> bool,
) -> Option<FabricEvent> {
    let mut idle = 0u32;
    loop {
        if let Some(event) = transport.next_event() {
            return Some(event);
        }
        transport.poll().unwrap();
        idle += 1;
        if rest == IdleMode::Sleeps && idle > POLLS {
            transport.wait(idle, Duration::from_millis(10));
        }
        if idle.is_multiple_of(1024) && is_over() {
            return None;
        }
    }
}

/// What the other process does: a head tells what to answer.
pub(crate) fn serve(
    provider: Provider,
    rest: IdleMode,
    costs: Option<&Path>,
    announce: impl FnOnce(&str),
    is_over: &dyn Fn() -> bool,
) {
    let mut transport = open(provider, costs);
    transport.admit(TICKET, None).unwrap();
    announce(&hex(transport.address()));
    while let Some(event) = next(&mut transport, rest, is_over) {
        match event {
            FabricEvent::Received { connection, head, .. } if head.starts_with(CALIBRATES) => {
                answer_one(&mut transport, connection, &head).unwrap();
            }
            FabricEvent::Received { connection, head, bulk } => {
                let answer = match head[0] {
                    b'e' => vec![BulkPart::Bytes(bulk)],
                    b's' => continue,
                    _ => Vec::new(),
                };
                transport.send(connection, head.slice(..1), answer).unwrap();
            }
            FabricEvent::Closed { .. } => return,
            FabricEvent::Opened { .. } => {}
        }
    }
}

impl MdfsTransport {
    pub(crate) fn connect(
        provider: Provider,
        rest: IdleMode,
        costs: Option<&Path>,
        address: &str,
    ) -> Self {
        let mut transport = open(provider, costs);
        let connection = transport.connect(&unhex(address), TICKET, None).unwrap();
        let opened = next(&mut transport, rest, &|| false);
        assert!(matches!(opened, Some(FabricEvent::Opened { .. })), "{opened:?}");
        Self { transport, connection, rest, content: Bytes::new() }
    }

    pub(crate) fn send(&mut self, head: &'static [u8], bulk: &[Bytes]) {
        loop {
            let parts = bulk.iter().cloned().map(BulkPart::Bytes).collect();
            match self.transport.send(self.connection, Bytes::from_static(head), parts) {
                Ok(()) => return,
                Err(FabricError::Busy { .. }) => self.transport.poll().unwrap(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(crate) fn receive(&mut self) -> Bytes {
        match next(&mut self.transport, self.rest, &|| false) {
            Some(FabricEvent::Received { bulk, .. }) => bulk,
            other => panic!("{other:?}"),
        }
    }

    /// A message there and a short answer back: how long it took.
    pub(crate) fn there(&mut self, bulk: &[Bytes], forced: PolicyOverride) -> Duration {
        self.transport.policy.forced = forced;
        let start: Instant = now();
        self.send(b"acknowledge", bulk);
        self.receive();
        start.elapsed()
    }

    pub(crate) fn counters(&self) -> (FabricCounters, u64) {
        (self.transport.counters(), self.transport.link().registrations().0)
    }

    fn content(&mut self, content: &[u8]) -> Bytes {
        if self.content.len() < content.len() {
            self.content = Bytes::copy_from_slice(content);
        }
        self.content.slice(..content.len())
    }
}

impl TransportMethod for MdfsTransport {
    fn round_trip(&mut self, content: &[u8]) {
        let bulk = self.content(content);
        self.send(b"echo", &[bulk]);
        assert_eq!(self.receive().len(), content.len());
    }

    fn stream(&mut self, content: &[u8], count: usize) {
        let bulk = self.content(content);
        for number in 0..count {
            self.send(b"sink", std::slice::from_ref(&bulk));
            // As many on their way as a socket would hold.
            if number % 16 == 15 {
                while self.transport.in_use().0 > 16 {
                    self.transport.poll().unwrap();
                }
            }
        }
        self.send(b"acknowledge", &[]);
        self.receive();
        while self.transport.in_use().0 > 1 {
            self.transport.poll().unwrap();
        }
    }
}
