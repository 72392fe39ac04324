//! One frame: header, head, bulk.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use bytes::{Buf as _, Bytes, BytesMut};

use runtime::context::Context;
use runtime::delivery::{DepositUnit, PlacedBytes};
use runtime::ids::{Epoch, NodeId, VolumeId};
use runtime::mail::Envelope;
use runtime::net::StreamReader;
use runtime::protocol::{Caller, Class};
use runtime::wire::{
    BULK_LENGTH_MAX, Encoder, HEAD_LENGTH_MAX, Malformed, Wire, from_bytes, to_bytes,
};

/// Goes up whenever the header or what is said before the first request changes.
pub const FRAME_VERSION: u16 = 3;
/// Bytes of a header.
pub const FRAME_HEADER_SIZE: usize = 56;

/// Bytes of the head of a first frame, at most: a [`ClientHello`] with a token is the longest.
const FIRST_LENGTH_MAX: usize = 4096;

const MAGIC: u32 = u32::from_le_bytes(*b"MDFS");

/// What a frame is.
pub(super) mod kind {
    /// Greets a process: the head is a [`ServerHello`](super::ServerHello).
    pub(in super::super) const GREETING: u8 = 1;
    /// A request of the protocol's table.
    pub(in super::super) const REQUEST: u8 = 2;
    /// The reply to the call of the same id.
    pub(in super::super) const REPLY: u8 = 3;
    /// A process of the cluster introduces itself: the head is a [`PeerHello`](super::PeerHello).
    pub(in super::super) const HELLO: u8 = 4;
    /// Asks for a sign of life. That of a client has the epoch of its node map (u64) as head.
    pub(in super::super) const PING: u8 = 5;
    /// The sign. To a client with an older map the head is a [`ClientMap`](super::ClientMap).
    pub(in super::super) const PONG: u8 = 6;
    /// Of offers and grants: no call has this number.
    pub(in super::super) const NO_CALL: u64 = u64::MAX;
    /// Offers a faster way: the head is an [`FabricOffer`](super::FabricOffer).
    pub(in super::super) const OFFER: u8 = 7;
    /// The answer: the head is a [`FabricAnswer`](super::FabricAnswer).
    pub(in super::super) const GRANT: u8 = 8;
    /// A client introduces itself: the head is a [`ClientHello`](super::ClientHello).
    pub(in super::super) const CLIENT_HELLO: u8 = 9;
    /// Lets it in: the head is a [`Welcome`](super::Welcome), for a client that is limited to a
    /// subtree a [`SubtreeWelcome`](super::SubtreeWelcome).
    pub(in super::super) const WELCOME: u8 = 10;
    /// The client is not let in: the head is a [`ClientRefusal`](super::ClientRefusal).
    pub(in super::super) const REFUSAL: u8 = 11;
    /// The client ends its session; its outcomes need not be kept.
    pub(in super::super) const GOODBYE: u8 = 12;
    /// Bytes for a transfer of the client, whose number is the call: the head is
    /// [`DeliveredBytes`](super::DeliveredBytes).
    pub(in super::super) const DELIVERY: u8 = 13;
}

runtime::record! {
    /// The header of a frame.
    #[derive(Copy, Default)]
    pub struct FrameHeader {
        /// `MDFS`.
        magic: u32,
        /// [`FRAME_VERSION`].
        version: u16,
        /// See `kind`.
        kind: u8,
        /// The number of the table.
        protocol: u8,
        /// The version of the table.
        protocol_version: u16,
        /// 1 for control, 2 for bulk; 0 in replies and greetings.
        class: u8,
        /// Zero.
        reserved: u8,
        /// The node that shall answer.
        to: u32,
        /// The node that asks.
        from: u32,
        /// Bytes of the head.
        head_length: u32,
        /// Bytes of the bulk.
        bulk_length: u32,
        /// Zero.
        reserved_2: u32,
        /// Chosen by the asker, unique among its open calls; of a client: the number of the call in
        /// its session with this process, which a copy has too.
        call_id: u64,
        /// The asker's epoch. Of a client: its calls with lower numbers than this are answered.
        epoch: u64,
        /// CRC-32C of the 48 bytes before, the head and the bulk.
        checksum: u32,
        /// Zero.
        reserved_3: u32,
    }
}

impl FrameHeader {
    /// That of the reply to the request of this one.
    pub(super) fn of_reply(&self) -> Self {
        Self {
            kind: kind::REPLY,
            protocol: self.protocol,
            protocol_version: self.protocol_version,
            call_id: self.call_id,
            ..Self::default()
        }
    }

    /// For a request: to be answered before those that move data?
    pub(super) fn class(&self) -> Class {
        if self.class == 1 { Class::Control } else { Class::Bulk }
    }

    /// The process's node that asks, and its epoch.
    pub(super) fn caller(&self) -> Caller {
        Caller { node: NodeId(self.from), epoch: Epoch(self.epoch) }
    }
}

const CHECKED_SIZE: usize = FRAME_HEADER_SIZE - 8;

runtime::record! {
    /// What a process tells another one that it lets in.
    #[derive(Copy)]
    pub struct ServerHello {
        /// File-system nodes of the volume.
        fs_nodes: u32,
        /// Disk nodes of the volume.
        disk_nodes: u32,
        /// The epoch of the node map.
        epoch: u64,
    }
}

runtime::record! {
    /// What a process tells another one first, before it asks.
    #[derive(Copy)]
    pub struct PeerHello {
        /// The volume of which both are.
        volume: VolumeId,
        /// Who connects.
        process: u32,
        /// Its life.
        incarnation: u64,
        /// To whom.
        wanted: u32,
        /// Its life: another one, at the same address, is not asked.
        wanted_incarnation: u64,
        /// Which of its links this is: of two connections of one link the later one counts.
        link: u64,
    }
}

runtime::record! {
    /// What a client says first on each link.
    pub struct ClientHello {
        /// The name of the volume that it wants; empty for the one that is served.
        volume: String,
        /// Names its session, drawn by the client: all its links have the same.
        session: u128,
        /// Which link of the session with this process it is; the highest one counts.
        link: u64,
        /// A token that says whom it speaks for; empty if it has none.
        token: Vec<u8>,
        /// The program and its process, for people.
        program: String,
    }
}

impl ClientHello {
    /// The frame that it is sent in.
    pub fn frame(&self) -> Vec<Bytes> {
        frame_of(kind::CLIENT_HELLO, self)
    }
}

runtime::record! {
    /// What a client is told when it is let in.
    pub struct Welcome {
        /// The volume.
        volume: VolumeId,
        /// The number of the process; 0 if it is the only one.
        process: u32,
        /// Drawn when the process started to answer clients: another one knows of no earlier call.
        instance: u64,
        /// The session is known here: it goes on, and its open calls may be sent again.
        resumed: bool,
        /// The number by which the nodes know the client.
        client: u64,
        /// The application node at which it is let in.
        port: u32,
        /// Which process answers for which node.
        map: ClientMap,
    }
}

runtime::record! {
    /// What a client is told that is limited to a subtree.
    pub struct SubtreeWelcome {
        /// As for any client.
        welcome: Welcome,
        /// The inode of the directory at which it begins.
        ino: u64,
        /// Its generation, sealed.
        generation: u64,
    }
}

runtime::record! {
    /// Bytes that a client is sent for a request which another process answers.
    pub struct DeliveredBytes {
        /// In which execution of the request.
        execution: u64,
        /// The bytes, with their places in the transfer.
        parts: Vec<PlacedBytes>,
    }
}

runtime::record! {
    /// Why a client is not let in.
    pub struct ClientRefusal {
        /// It will not be let in later either.
        is_final: bool,
        /// The reason, for people.
        why: String,
    }
}

runtime::record! {
    /// Which process answers for which file-system node, as clients are told.
    #[derive(Default)]
    pub struct ClientMap {
        /// The epoch of the map.
        epoch: u64,
        /// File-system nodes of the volume.
        fs_nodes: u32,
        /// Disk nodes of the volume.
        disk_nodes: u32,
        /// The processes that answer clients; none if the one that sends it answers for all nodes.
        processes: Vec<ClientProcess>,
        /// By file-system node: the number of its process, or `u32::MAX` if there is none now.
        hosts: Vec<u32>,
        /// How large writes are cut.
        unit: DepositUnit,
    }
}

runtime::record! {
    /// A process that answers clients.
    pub struct ClientProcess {
        /// Its number.
        number: u32,
        /// Its incarnation.
        incarnation: u64,
        /// `host:port` where it listens.
        address: String,
    }
}

/// In a [`ClientMap`]: no process answers for the node now.
pub(crate) const NO_PROCESS: u32 = u32::MAX;

impl ClientMap {
    /// The map of a process that answers for all nodes itself.
    pub fn of_one(context: &Context) -> Self {
        let (fs_nodes, disk_nodes) = (context.fs_nodes(), context.disk_nodes());
        Self { epoch: context.epoch().0, fs_nodes, disk_nodes, ..Self::default() }
    }
}

runtime::record! {
    /// How a process that has connected could be reached faster.
    pub struct FabricOffer {
        /// Names a host: some ways do not leave it.
        host: String,
        /// Drawn when the program started: one that starts anew may still call itself by its last
        /// life.
        instance: u64,
        /// Providers of libfabric, the preferred one first.
        providers: Vec<String>,
    }
}

runtime::record! {
    /// What the other process says to an offer.
    #[derive(Default)]
    pub struct FabricAnswer {
        /// The provider; empty if there is none in common, or if what was granted with the ticket
        /// is over.
        provider: String,
        /// As in an offer.
        instance: u64,
        /// Its endpoint there.
        address: Vec<u8>,
        /// Shown once, to be let in.
        ticket: Vec<u8>,
        /// Seals all; empty where nothing is protected.
        key: Vec<u8>,
    }
}

/// A received frame.
#[derive(Debug)]
pub(super) struct LinkFrame {
    pub(super) header: FrameHeader,
    pub(super) head: Bytes,
    pub(super) bulk: Bytes,
}

/// A request as it travels.
pub(super) fn request(envelope: &Envelope, call_id: u64) -> (FrameHeader, Encoder) {
    let message = &envelope.message;
    let mut body = Encoder::new();
    message.encode(&mut body);
    let header = FrameHeader {
        kind: kind::REQUEST,
        protocol: message.protocol(),
        protocol_version: message.version(),
        class: match envelope.class {
            Class::Control => 1,
            Class::Bulk => 2,
        },
        to: envelope.to.0,
        from: envelope.caller.node.0,
        call_id,
        epoch: envelope.caller.epoch.0,
        ..FrameHeader::default()
    };
    (header, body)
}

/// A frame that is no request and no reply: its head is `content`.
pub(super) fn frame_of(kind: u8, content: &impl Wire) -> Vec<Bytes> {
    frame_with(FrameHeader { kind, ..FrameHeader::default() }, content)
}

/// The same, with more in its header.
pub(super) fn frame_with(header: FrameHeader, content: &impl Wire) -> Vec<Bytes> {
    let mut message = Encoder::new();
    content.put(&mut message);
    pack(header, message)
}

/// A frame about the link itself, which belongs to no call.
pub(super) fn frame_beside_calls(kind: u8, content: &impl Wire) -> Vec<Bytes> {
    let header = FrameHeader { kind, call_id: kind::NO_CALL, ..FrameHeader::default() };
    frame_with(header, content)
}

/// Bytes of the frame of such a body.
pub(super) fn frame_length(body: &Encoder) -> usize {
    FRAME_HEADER_SIZE + body.head_length() + body.bulk_length()
}

/// A reply of these bytes, for tests.
#[cfg(test)]
pub(super) fn bulk_reply(bytes: Bytes) -> (FrameHeader, Encoder) {
    let mut body = Encoder::new();
    body.payload(bytes);
    (FrameHeader { kind: kind::REPLY, ..FrameHeader::default() }, body)
}

/// Completes `header` for `message` and returns the pieces to send.
pub(super) fn pack(mut header: FrameHeader, message: Encoder) -> Vec<Bytes> {
    let (head, mut parts) = message.finish();
    let head = Bytes::from(head);
    header.magic = MAGIC;
    header.version = FRAME_VERSION;
    header.head_length = head.len() as u32;
    header.bulk_length = parts.iter().map(Bytes::len).sum::<usize>() as u32;
    let mut checksum = runtime::hash::Crc32c::new();
    checksum.update(&to_bytes(&header)[..CHECKED_SIZE]);
    checksum.update(&head);
    for part in &parts {
        checksum.update(part);
    }
    header.checksum = checksum.finish();
    parts.splice(0..0, [Bytes::from(to_bytes(&header)), head]);
    parts
}

/// The same for a way that carries head and bulk apart, and sums by itself: header and head in one
/// piece, and the bulk.
#[cfg(feature = "fabric")]
pub(super) fn pack_apart(mut header: FrameHeader, message: Encoder) -> (Bytes, Vec<Bytes>) {
    let (head, parts) = message.finish();
    header.magic = MAGIC;
    header.version = FRAME_VERSION;
    header.head_length = head.len() as u32;
    header.bulk_length = parts.iter().map(Bytes::len).sum::<usize>() as u32;
    let mut first = to_bytes(&header);
    first.extend_from_slice(&head);
    (first.into(), parts)
}

/// The frame whose header and head, and whose bulk, came as [`pack_apart`] makes them.
#[cfg(feature = "fabric")]
pub(super) fn unpack(mut first: Bytes, bulk: Bytes) -> Option<LinkFrame> {
    let header: FrameHeader = from_bytes(first.get(..FRAME_HEADER_SIZE)?).ok()?;
    let head = first.split_off(FRAME_HEADER_SIZE);
    let fits = header.magic == MAGIC
        && header.version == FRAME_VERSION
        && header.head_length as usize == head.len()
        && header.bulk_length as usize == bulk.len();
    fits.then_some(LinkFrame { header, head, bulk })
}

/// Takes frames out of a stream.
pub(crate) struct FrameReader {
    reader: Box<dyn StreamReader>,
    buffer: BytesMut,
    /// Bytes that have come.
    heard: Rc<Cell<u64>>,
    /// Bytes of head and bulk, at most.
    longest: [usize; 2],
}

impl FrameReader {
    pub(super) fn new(reader: Box<dyn StreamReader>) -> Self {
        let (buffer, heard) = (BytesMut::new(), Rc::default());
        Self { reader, buffer, heard, longest: [HEAD_LENGTH_MAX, BULK_LENGTH_MAX] }
    }

    /// Counts the bytes that have come, of frames that are not complete too.
    pub(super) fn heard(&self) -> Rc<Cell<u64>> {
        self.heard.clone()
    }

    /// The first frame of a peer that is not known yet: a short one or none.
    pub(super) async fn first(&mut self) -> io::Result<Option<LinkFrame>> {
        let usual = std::mem::replace(&mut self.longest, [FIRST_LENGTH_MAX, 0]);
        let first = self.next().await;
        self.longest = usual;
        first
    }

    /// The header of the next frame, which is still to be read.
    pub(super) async fn peek(&mut self) -> io::Result<Option<FrameHeader>> {
        if !self.fill(FRAME_HEADER_SIZE).await? {
            return Ok(None);
        }
        let header: FrameHeader = from_bytes(&self.buffer[..FRAME_HEADER_SIZE]).map_err(garbled)?;
        if header.magic != MAGIC || header.version != FRAME_VERSION {
            return Err(garbled(Malformed("not a frame of this version")));
        }
        let [head_max, bulk_max] = self.longest;
        if header.head_length as usize > head_max || header.bulk_length as usize > bulk_max {
            return Err(garbled(Malformed("frame too long")));
        }
        Ok(Some(header))
    }

    /// The next frame; `None` at the end of the stream. A frame that is not what it claims is an
    /// error, after which the stream cannot be used any more.
    pub(super) async fn next(&mut self) -> io::Result<Option<LinkFrame>> {
        let Some(header) = self.peek().await? else { return Ok(None) };
        let (head, bulk) = (header.head_length as usize, header.bulk_length as usize);
        let length = FRAME_HEADER_SIZE + head + bulk;
        if !self.fill(length).await? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut checksum = runtime::hash::Crc32c::new();
        checksum.update(&self.buffer[..CHECKED_SIZE]);
        checksum.update(&self.buffer[FRAME_HEADER_SIZE..length]);
        if checksum.finish() != header.checksum {
            return Err(garbled(Malformed("the checksum of the frame does not match")));
        }
        self.buffer.advance(FRAME_HEADER_SIZE);
        let head = self.buffer.split_to(head).freeze();
        let bulk = self.buffer.split_to(bulk).freeze();
        Ok(Some(LinkFrame { header, head, bulk }))
    }

    /// Reads until `length` bytes are there; false if the stream ends before the first of them.
    /// The buffer grows with what has really arrived, not with what a header promises.
    async fn fill(&mut self, length: usize) -> io::Result<bool> {
        while self.buffer.len() < length {
            let length = self.reader.read(&mut self.buffer).await?;
            self.heard.set(self.heard.get() + length as u64);
            if length == 0 {
                if self.buffer.is_empty() {
                    return Ok(false);
                }
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(true)
    }
}

pub(super) fn garbled(error: Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use futures::executor::block_on;
    use futures::future::LocalBoxFuture;

    use super::*;
    use runtime::seed::with_seed;

    /// Hands out its bytes in small pieces.
    struct Trickle(Bytes, usize);

    impl StreamReader for Trickle {
        fn read<'a>(
            &'a mut self,
            buffer: &'a mut BytesMut,
        ) -> LocalBoxFuture<'a, io::Result<usize>> {
            let piece = self.0.split_to(self.1.min(self.0.len()));
            buffer.extend_from_slice(&piece);
            futures::future::ready(Ok(piece.len())).boxed_local()
        }
    }

    fn frames(bytes: Vec<u8>, piece: usize) -> FrameReader {
        FrameReader::new(Box::new(Trickle(bytes.into(), piece)))
    }

    fn sample_bytes() -> Vec<u8> {
        let mut message = Encoder::new();
        message.bytes(b"head");
        message.payload(Bytes::from_static(b"payload"));
        let header =
            FrameHeader { kind: kind::REQUEST, protocol: 4, call_id: 9, ..FrameHeader::default() };
        pack(header, message).concat()
    }

    #[test]
    fn a_frame_has_the_agreed_bytes() {
        let bytes = sample_bytes();
        assert_eq!(bytes.len(), FRAME_HEADER_SIZE + 4 + 7);
        assert_eq!(&bytes[..12], b"MDFS\x03\x00\x02\x04\x00\x00\x00\x00");
        assert_eq!(bytes[20..24], 4u32.to_le_bytes());
        assert_eq!(bytes[24..28], 7u32.to_le_bytes());
        assert_eq!(bytes[32..40], 9u64.to_le_bytes());
    }

    #[test]
    fn frames_come_back_however_the_stream_is_cut() {
        for piece in [1, 3, 56, 1000] {
            let mut frames = frames(sample_bytes().repeat(3), piece);
            for _ in 0..3 {
                let frame = block_on(frames.next()).unwrap().unwrap();
                assert_eq!((&frame.head[..], &frame.bulk[..]), (&b"head"[..], &b"payload"[..]));
            }
            assert!(block_on(frames.next()).unwrap().is_none());
        }
    }

    #[test]
    fn a_changed_bit_or_a_cut_is_an_error() {
        let whole = sample_bytes();
        with_seed(|rng| {
            for bit in 0..CHECKED_SIZE * 8 {
                let mut bytes = whole.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(block_on(frames(bytes, 64).next()).is_err(), "bit {bit}");
            }
            for _ in 0..200 {
                let mut bytes = whole.clone();
                let at = FRAME_HEADER_SIZE + rng.index(11);
                bytes[at] = bytes[at].wrapping_add(1 + u8::sample(rng) % 255);
                assert!(block_on(frames(bytes, 64).next()).is_err());
            }
        });
        for length in 1..whole.len() {
            assert!(block_on(frames(whole[..length].to_vec(), 64).next()).is_err());
        }
    }
}
