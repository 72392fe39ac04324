//! libfabric itself, by nothing but the safe wrapper: what ours is compared with.
//!
//! A round trip by messages is a send and a receive each way; one by RMA is a write with a number
//! each way, into memory that was told once.

use std::collections::VecDeque;

use fabric::FabricError;
use fabric::link::{
    Arena, BufferSegment, Completion, EndpointOptions, Exposure, Fabric, FabricBuffer,
    OperationKind, PeerAddress, Provider, RegionOwner, RemoteSegment,
};

use crate::method::{SIZE_MAX, TransportMethod};

const RECEIVES: usize = 16;
/// Send buffers. They are filled once, so that no copy is measured.
const STAGED: usize = 8;
/// What a write's number says.
const ECHO: u64 = 1 << 32;
const SINK: u64 = 2 << 32;
const ACKNOWLEDGE: u64 = 3 << 32;
const KIND: u64 = 0xf << 32;

pub(crate) struct BareFabric {
    link: Fabric,
    peer: PeerAddress,
    arena: Arena,
    by_rma: bool,
    /// Where the peer writes, and where we write there.
    inbox: FabricBuffer,
    exposure: Option<Exposure>,
    outbox: RemoteSegment,
    staged: Vec<FabricBuffer>,
    done: Vec<Completion>,
    numbers: VecDeque<u64>,
    received: VecDeque<FabricBuffer>,
    open: usize,
    serves: bool,
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

impl BareFabric {
    fn open(provider: Provider, by_rma: bool) -> (Self, Vec<u8>) {
        let mut link = Fabric::open(&EndpointOptions::new(provider)).unwrap();
        let arena = Arena::new(1 << 30);
        let mut inbox = arena.take(SIZE_MAX).unwrap();
        let exposure = link.expose_to_write(RegionOwner(1), &mut inbox).unwrap();
        let address = link.address().unwrap();
        // Some address to begin with: the peer's comes with its first message.
        let peer = link.insert(&address).unwrap();
        let staged = (0..STAGED).map(|_| arena.take(SIZE_MAX + 8).unwrap()).collect();
        let mut bare = Self {
            link,
            peer,
            arena,
            by_rma,
            inbox,
            exposure: Some(exposure),
            outbox: RemoteSegment::default(),
            staged,
            done: Vec::new(),
            numbers: VecDeque::new(),
            received: VecDeque::new(),
            open: 0,
            serves: false,
        };
        for _ in 0..RECEIVES {
            let buffer = bare.arena.take(SIZE_MAX + 8).unwrap();
            bare.link.receive(buffer, 0).map_err(|(error, _)| error).unwrap();
        }
        (bare, address)
    }

    fn introduction(&self, address: &[u8]) -> Vec<u8> {
        let remote = self.exposure.as_ref().unwrap().remote;
        let words = [remote.address, remote.key, remote.length];
        [&words.map(u64::to_le_bytes).concat()[..], address].concat()
    }

    fn meet(&mut self, introduction: &[u8]) {
        let word = |at: usize| u64::from_le_bytes(introduction[at..at + 8].try_into().unwrap());
        self.outbox = RemoteSegment { address: word(0), key: word(8), length: word(16) };
        self.peer = self.link.insert(&introduction[24..]).unwrap();
    }

    fn progress(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        self.link.poll(&mut done).unwrap();
        for completion in done.drain(..) {
            if completion.result.is_err() && self.serves {
                // The one who is served has ended.
                std::process::exit(0);
            }
            match completion.what {
                OperationKind::Immediate(number) => self.numbers.push_back(number),
                OperationKind::Receive => {
                    let length = completion.result.unwrap();
                    let mut buffer = completion.buffer.unwrap();
                    buffer.set_len(length);
                    self.received.push_back(buffer);
                }
                OperationKind::Send | OperationKind::Write | OperationKind::Read => {
                    completion.result.unwrap();
                    self.open -= 1;
                    self.staged.extend(completion.buffer);
                }
            }
        }
        self.done = done;
    }

    fn buffer(&mut self) -> FabricBuffer {
        loop {
            if let Some(buffer) = self.staged.pop() {
                return buffer;
            }
            self.progress();
        }
    }

    /// Sends a command, with `length` bytes behind it.
    fn send(&mut self, kind: u64, length: usize) {
        let mut buffer = self.buffer();
        buffer.set_len(length + 8);
        buffer.bytes_mut()[..8].copy_from_slice(&kind.to_le_bytes());
        let mut waiting = Some(buffer);
        while let Some(buffer) = waiting.take() {
            match self.link.send(self.peer, buffer, 1) {
                Ok(()) => self.open += 1,
                Err((FabricError::Busy { .. }, buffer)) => {
                    waiting = Some(buffer);
                    self.progress();
                }
                Err((error, _)) => panic!("{error}"),
            }
        }
    }

    fn write(&mut self, kind: u64, length: usize) {
        let mut staged = self.buffer();
        staged.set_len(length.max(1));
        let piece = BufferSegment { buffer: &staged, at: 0, length: length.max(1) };
        let number = Some(kind | length as u64);
        while let Err(error) = self.link.write(self.peer, &[piece], self.outbox, number, 2) {
            assert!(matches!(error, FabricError::Busy { .. }), "{error}");
            self.progress();
        }
        self.open += 1;
        self.staged.push(staged);
    }

    fn number(&mut self) -> u64 {
        while self.numbers.is_empty() {
            self.progress();
        }
        self.numbers.pop_front().unwrap()
    }

    fn message(&mut self) -> FabricBuffer {
        while self.received.is_empty() {
            self.progress();
        }
        self.received.pop_front().unwrap()
    }

    fn again(&mut self, mut buffer: FabricBuffer) {
        buffer.set_len(SIZE_MAX + 8);
        self.link.receive(buffer, 0).map_err(|(error, _)| error).unwrap();
    }

    fn serve(&mut self, is_over: &dyn Fn() -> bool) {
        let first = self.message();
        let introduction = first.bytes().to_vec();
        self.again(first);
        self.meet(&introduction);
        loop {
            self.progress();
            if let Some(number) = self.numbers.pop_front() {
                match number & KIND {
                    ECHO => self.write(ECHO, (number & 0xffff_ffff) as usize),
                    ACKNOWLEDGE => self.write(ACKNOWLEDGE, 0),
                    _ => {}
                }
            } else if let Some(buffer) = self.received.pop_front() {
                let kind = u64::from_le_bytes(buffer.bytes()[..8].try_into().unwrap());
                match kind {
                    ECHO => {
                        self.send(ECHO, buffer.len() - 8);
                    }
                    ACKNOWLEDGE => self.send(ACKNOWLEDGE, 0),
                    _ => {}
                }
                self.again(buffer);
            } else if is_over() {
                return;
            }
        }
    }
}

impl TransportMethod for BareFabric {
    fn round_trip(&mut self, content: &[u8]) {
        if self.by_rma {
            self.write(ECHO, content.len());
            assert_eq!(self.number(), ECHO | content.len() as u64);
        } else {
            self.send(ECHO, content.len());
            let back = self.message();
            assert_eq!(back.len(), content.len() + 8);
            self.again(back);
        }
    }

    fn stream(&mut self, content: &[u8], count: usize) {
        for _ in 0..count {
            if self.by_rma {
                self.write(SINK, content.len());
                while self.open > 16 {
                    self.progress();
                }
            } else {
                self.send(SINK, content.len());
            }
        }
        if self.by_rma {
            self.write(ACKNOWLEDGE, 0);
            while self.number() & KIND != ACKNOWLEDGE {}
        } else {
            self.send(ACKNOWLEDGE, 0);
            let back = self.message();
            self.again(back);
        }
    }
}

pub(crate) fn serve(provider: Provider, announce: impl FnOnce(&str), is_over: &dyn Fn() -> bool) {
    let (mut bare, address) = BareFabric::open(provider, false);
    announce(&hex(&bare.introduction(&address)));
    bare.serves = true;
    bare.serve(is_over);
    drop((bare.exposure.take(), bare.inbox));
}

pub(crate) fn connect(provider: Provider, by_rma: bool, address: &str) -> Box<dyn TransportMethod> {
    let (mut bare, own_address) = BareFabric::open(provider, by_rma);
    bare.meet(&unhex(address));
    let introduction = bare.introduction(&own_address);
    // As it is, without a command before it.
    let mut buffer = bare.buffer();
    buffer.set_len(introduction.len());
    buffer.bytes_mut().copy_from_slice(&introduction);
    let mut waiting = Some(buffer);
    while let Some(buffer) = waiting.take() {
        if let Err((error, buffer)) = bare.link.send(bare.peer, buffer, 1) {
            assert!(matches!(error, FabricError::Busy { .. }), "{error}");
            waiting = Some(buffer);
            bare.progress();
        }
    }
    bare.open += 1;
    while bare.open > 0 {
        bare.progress();
    }
    Box::new(bare)
}
