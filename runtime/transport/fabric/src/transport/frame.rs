//! Frames between two transports, byte by byte in docs/protocol.md ("Frames over libfabric").

use crc_fast::CrcAlgorithm::Crc32Iscsi;
use crc_fast::Digest;

use super::seal::{KEY_SIZE, Seal, SealUse, TAG_SIZE};
use crate::link::RemoteSegment;

/// Bytes of a header.
pub const HEADER_SIZE: usize = 64;
/// Goes up whenever a frame changes.
pub const VERSION: u8 = 1;
const MAGIC: [u8; 4] = *b"MDFF";
/// Bytes of a described segment.
pub(super) const SEGMENT_SIZE: usize = 24;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum PacketKind {
    /// Asks for a connection: the body is a [`PacketGreeting`].
    Hello = 1,
    /// Grants it: the body is a [`PacketGreeting`].
    Welcome = 2,
    /// A message as a whole: head and bulk.
    Message = 3,
    /// A message whose bulk is still at the sender: head and segments.
    RendezvousRequest = 4,
    /// The receiver grants memory for the bulk: one segment.
    Grant = 5,
    /// The receiver has read the bulk.
    Done = 6,
    /// The sender has written the bulk; brings its checksum.
    Written = 7,
    /// The checksum of a bulk that is read, if it was not known when the frame asked.
    Sum = 8,
    /// Nothing but what every header brings: credits, and that the sender lives.
    Alive = 9,
    /// The sender closes the connection.
    Leave = 10,
}

impl PacketKind {
    const ALL: [Self; 10] = [
        Self::Hello,
        Self::Welcome,
        Self::Message,
        Self::RendezvousRequest,
        Self::Grant,
        Self::Done,
        Self::Written,
        Self::Sum,
        Self::Alive,
        Self::Leave,
    ];

    /// Whether the sender pays with a credit: what the receiver did not ask for.
    pub(super) fn costs_credit(self) -> bool {
        matches!(self, Self::Message | Self::RendezvousRequest)
    }
}

/// The head is the first part of the bulk.
pub(super) const HEAD_IN_BULK: u8 = 1;
/// The sender is a server under heavy load.
pub(super) const HEAVY_SERVER: u8 = 2;
/// The bulk has no checksum: both sides trust the provider's.
pub(super) const UNCHECKED: u8 = 4;
/// The checksum of the bulk is in the frame that asks.
pub(super) const SUM_IS_HERE: u8 = 8;
/// The sender measures: the bulk shall be read, or written.
pub(super) const SHALL_READ: u8 = 16;
/// See [`SHALL_READ`].
pub(super) const SHALL_WRITE: u8 = 32;
/// What follows the header is sealed, a tag behind it; a bulk outside of the frame likewise.
pub(super) const SEALED: u8 = 64;

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketHeader {
    pub(super) kind: PacketKind,
    pub(super) flags: u8,
    /// The connection by the number that the receiver gave it.
    pub(super) connection: u32,
    /// Counts the frames of a connection and direction; those by fast slots have a count of their
    /// own.
    pub(super) sequence: u32,
    /// Chosen by the receiver for the life of the connection.
    pub(super) token: u64,
    /// Receive buffers that the sender has given back since its last frame.
    pub(super) credits: u16,
    /// Fast slots, likewise.
    pub(super) slots: u16,
    /// Operations on remote memory that the sender has open.
    pub(super) load: u32,
    /// Bytes of the head.
    pub(super) head_length: u32,
    /// Bytes of the bulk, in the frame or not.
    pub(super) bulk_length: u32,
    /// The transfer, by the number of whom the frame answers; of an `RendezvousRequest`, the
    /// sender's.
    pub(super) transfer: u64,
    /// The checksum of a bulk outside of the frame; if that is sealed, its number.
    pub(super) bulk_checksum: u32,
    /// Segments in the frame.
    pub(super) segments: u16,
}

impl PacketHeader {
    pub(super) fn new(kind: PacketKind) -> Self {
        Self {
            kind,
            flags: 0,
            connection: 0,
            sequence: 0,
            token: 0,
            credits: 0,
            slots: 0,
            load: 0,
            head_length: 0,
            bulk_length: 0,
            transfer: 0,
            bulk_checksum: 0,
            segments: 0,
        }
    }

    /// The header's bytes, with the checksum over them and `body`.
    pub(super) fn encode<'a>(&self, body: impl Iterator<Item = &'a [u8]>) -> [u8; HEADER_SIZE] {
        let mut bytes = self.encode_clear();
        let mut digest = Digest::new(Crc32Iscsi);
        digest.update(&bytes[..HEADER_SIZE - 4]);
        body.for_each(|part| digest.update(part));
        bytes[HEADER_SIZE - 4..].copy_from_slice(&(digest.finalize() as u32).to_le_bytes());
        bytes
    }

    /// The header's bytes without a checksum.
    fn encode_clear(&self) -> [u8; HEADER_SIZE] {
        let mut bytes = [0; HEADER_SIZE];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = self.kind as u8;
        bytes[6] = self.flags;
        bytes[8..12].copy_from_slice(&self.connection.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.token.to_le_bytes());
        bytes[24..26].copy_from_slice(&self.credits.to_le_bytes());
        bytes[26..28].copy_from_slice(&self.slots.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.load.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.head_length.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.bulk_length.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.transfer.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.bulk_checksum.to_le_bytes());
        bytes[52..54].copy_from_slice(&self.segments.to_le_bytes());
        bytes
    }

    /// Bytes of a frame with a body of `body` bytes.
    pub(super) fn frame_length(body: usize, seal: Option<&Seal>) -> usize {
        HEADER_SIZE + body + if seal.is_some() { TAG_SIZE } else { 0 }
    }

    /// Writes the frame into `out`, which is as long as [`PacketHeader::frame_length`] says. With
    /// `seal` the body is sealed as `what`, by `number`; the ticket of a greeting stays readable.
    pub(super) fn write(
        &self,
        body: &[&[u8]],
        seal: Option<(&mut Seal, SealUse, u32)>,
        out: &mut [u8],
    ) {
        let (first, mut rest) = out.split_at_mut(HEADER_SIZE);
        for part in body {
            let (here, after) = rest.split_at_mut(part.len());
            here.copy_from_slice(part);
            rest = after;
        }
        let Some((seal, what, number)) = seal else {
            first.copy_from_slice(&self.encode(body.iter().copied()));
            return;
        };
        let header = Self { flags: self.flags | SEALED, ..*self };
        first.copy_from_slice(&header.encode_clear());
        let (clear, sealed) = out.split_at_mut(HEADER_SIZE + clear_length(what));
        seal.seal(what, number, clear, sealed);
    }

    /// Opens the body of `frame`, which [`PacketHeader::decode`] has taken for a sealed one; false
    /// if its sender does not have the key, or it was changed on its way.
    pub(super) fn open(
        frame: &mut [u8],
        body: usize,
        seal: &Seal,
        what: SealUse,
        number: u32,
    ) -> bool {
        let Some(frame) = frame.get_mut(..HEADER_SIZE + body + TAG_SIZE) else { return false };
        let Some((clear, sealed)) = frame.split_at_mut_checked(HEADER_SIZE + clear_length(what))
        else {
            return false;
        };
        sealed.len() >= TAG_SIZE && seal.open(what, number, clear, sealed)
    }

    /// Whether its body is sealed.
    pub(super) fn is_sealed(&self) -> bool {
        self.flags & SEALED != 0
    }

    /// The header of `frame`, and how long its body is. `None` if it is no frame of this version,
    /// is cut, or its checksum does not match. A sealed one has none: nothing of it may be believed
    /// before [`PacketHeader::open`].
    pub(super) fn decode(frame: &[u8]) -> Option<(Self, usize)> {
        let bytes = frame.get(..HEADER_SIZE)?;
        if bytes[..4] != MAGIC || bytes[4] != VERSION || bytes[7] != 0 || bytes[54..60] != [0; 6] {
            return None;
        }
        let u16_at = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let u32_at = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let header = Self {
            kind: PacketKind::ALL.into_iter().find(|kind| *kind as u8 == bytes[5])?,
            flags: bytes[6],
            connection: u32_at(8)?,
            sequence: u32_at(12)?,
            token: u64_at(16)?,
            credits: u16_at(24)?,
            slots: u16_at(26)?,
            load: u32_at(28)?,
            head_length: u32_at(32)?,
            bulk_length: u32_at(36)?,
            transfer: u64_at(40)?,
            bulk_checksum: u32_at(48)?,
            segments: u16_at(52)?,
        };
        let body = header.body_length();
        let end = HEADER_SIZE.checked_add(body).filter(|end| *end <= frame.len())?;
        if header.is_sealed() {
            let is_whole = u32_at(HEADER_SIZE - 4)? == 0 && frame.len() >= end + TAG_SIZE;
            return is_whole.then_some((header, body));
        }
        let mut digest = Digest::new(Crc32Iscsi);
        digest.update(&bytes[..HEADER_SIZE - 4]);
        digest.update(&frame[HEADER_SIZE..end]);
        (digest.finalize() as u32 == u32_at(HEADER_SIZE - 4)?).then_some((header, body))
    }

    /// Bytes that follow the header in its frame.
    fn body_length(&self) -> usize {
        let head = if self.flags & HEAD_IN_BULK == 0 { self.head_length as usize } else { 0 };
        let bulk = if self.kind == PacketKind::Message { self.bulk_length as usize } else { 0 };
        head + bulk + usize::from(self.segments) * SEGMENT_SIZE
    }
}

/// Bytes after the header that are authenticated and not hidden.
fn clear_length(what: SealUse) -> usize {
    if what == SealUse::Hello { TICKET_SIZE } else { 0 }
}

/// Segments as they travel.
pub(super) fn encode_segments(segments: impl Iterator<Item = RemoteSegment>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for segment in segments {
        bytes.extend(segment.address.to_le_bytes());
        bytes.extend(segment.key.to_le_bytes());
        bytes.extend(segment.length.to_le_bytes());
    }
    bytes
}

/// The segments that `bytes` are; what is left over is none.
pub(super) fn decode_segments(bytes: &[u8]) -> Vec<RemoteSegment> {
    let u64_at = |bytes: &[u8], at: usize| {
        bytes[at..at + 8].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    bytes
        .chunks_exact(SEGMENT_SIZE)
        .map(|segment| RemoteSegment {
            address: u64_at(segment, 0),
            key: u64_at(segment, 8),
            length: u64_at(segment, 16),
        })
        .collect()
}

/// Bytes of a ticket: who shows it was told so over the control connection.
pub const TICKET_SIZE: usize = 16;
/// What both sides got over the control connection, besides the ticket: the key that seals all, if
/// it is to be sealed.
pub type SealKey = Option<[u8; KEY_SIZE]>;
/// Bytes of an endpoint's address, at most.
const ADDRESS_MAX: usize = 256;

/// What both sides tell each other first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PacketGreeting {
    pub(super) ticket: [u8; TICKET_SIZE],
    /// The number and the token by which the teller knows the connection.
    pub(super) connection: u32,
    pub(super) token: u64,
    pub(super) epoch: u64,
    /// Receive buffers that the teller keeps for this connection, and their bytes.
    pub(super) credits: u16,
    pub(super) eager: u32,
    /// Fast slots that the other may write.
    pub(super) slots: Vec<RemoteSegment>,
    /// The teller's endpoint.
    pub(super) address: Vec<u8>,
}

impl PacketGreeting {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.ticket.to_vec();
        bytes.extend(self.connection.to_le_bytes());
        bytes.extend(self.token.to_le_bytes());
        bytes.extend(self.epoch.to_le_bytes());
        bytes.extend(self.eager.to_le_bytes());
        bytes.extend(self.credits.to_le_bytes());
        bytes.extend((self.slots.len() as u16).to_le_bytes());
        bytes.extend((self.address.len() as u32).to_le_bytes());
        bytes.extend(encode_segments(self.slots.iter().copied()));
        bytes.extend(&self.address);
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (ticket, rest) = bytes.split_first_chunk::<TICKET_SIZE>()?;
        let (connection, rest) = rest.split_first_chunk::<4>()?;
        let (token, rest) = rest.split_first_chunk::<8>()?;
        let (epoch, rest) = rest.split_first_chunk::<8>()?;
        let (eager, rest) = rest.split_first_chunk::<4>()?;
        let (credits, rest) = rest.split_first_chunk::<2>()?;
        let (slots, rest) = rest.split_first_chunk::<2>()?;
        let (address, rest) = rest.split_first_chunk::<4>()?;
        let slots = usize::from(u16::from_le_bytes(*slots)) * SEGMENT_SIZE;
        let address = u32::from_le_bytes(*address) as usize;
        if address > ADDRESS_MAX || rest.len() != slots + address {
            return None;
        }
        Some(Self {
            ticket: *ticket,
            connection: u32::from_le_bytes(*connection),
            token: u64::from_le_bytes(*token),
            epoch: u64::from_le_bytes(*epoch),
            credits: u16::from_le_bytes(*credits),
            eager: u32::from_le_bytes(*eager),
            slots: decode_segments(&rest[..slots]),
            address: rest[slots..].to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Vec<u8> {
        let header = PacketHeader {
            connection: 3,
            sequence: 9,
            token: 0x0102_0304_0506_0708,
            credits: 2,
            head_length: 4,
            bulk_length: 7,
            ..PacketHeader::new(PacketKind::Message)
        };
        let body = b"headpayload";
        [&header.encode([&body[..]].into_iter())[..], body].concat()
    }

    #[test]
    fn a_frame_has_the_agreed_bytes() {
        let frame = sample();
        assert_eq!(frame[..12], *b"MDFF\x01\x03\x00\x00\x03\x00\x00\x00");
        assert_eq!(frame[16..24], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(frame[32..40], [4, 0, 0, 0, 7, 0, 0, 0]);
        assert_eq!(frame[60..64], 0x02cf_d38f_u32.to_le_bytes(), "{:x?}", &frame[60..64]);
    }

    #[test]
    fn a_sealed_frame_has_the_agreed_bytes() {
        let mut seal = Seal::new(&[1; KEY_SIZE], true);
        let header =
            PacketHeader { sequence: 9, head_length: 4, ..PacketHeader::new(PacketKind::Message) };
        let mut frame = vec![0; PacketHeader::frame_length(4, Some(&seal))];
        header.write(&[b"head"], Some((&mut seal, SealUse::Frame, 9)), &mut frame);
        assert_eq!(frame[..8], *b"MDFF\x01\x03\x40\x00");
        assert_eq!(frame[60..64], [0; 4], "no checksum");
        // AES-128-GCM: the cipher of `head`, then the tag over the header and it.
        let sealed = 0xc71a_3075_f96f_893b_09e6_6803_6660_a1f7_u128.to_be_bytes();
        assert_eq!(frame[64..80], sealed);
        assert_eq!(frame[80..], 0xc3e6_19fc_u32.to_be_bytes());
        let (decoded, body) = PacketHeader::decode(&frame).unwrap();
        assert!(decoded.is_sealed());
        assert!(PacketHeader::open(
            &mut frame,
            body,
            &Seal::new(&[1; KEY_SIZE], false),
            SealUse::Frame,
            9
        ));
        assert_eq!(frame[64..68], *b"head");
    }

    #[test]
    fn a_changed_bit_or_a_cut_is_no_frame() {
        let whole = sample();
        assert!(PacketHeader::decode(&whole).is_some());
        for bit in 0..whole.len() * 8 {
            let mut frame = whole.clone();
            frame[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(PacketHeader::decode(&frame), None, "bit {bit}");
        }
        for length in 0..whole.len() {
            assert_eq!(PacketHeader::decode(&whole[..length]), None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_frame_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(PacketHeader::decode(&bytes), None);
            if let Some(greeting) = PacketGreeting::decode(&bytes) {
                prop_assert_eq!(greeting.encode(), bytes);
            }
        }

        #[test]
        fn greetings_come_back(count in 0usize..8, address in proptest::collection::vec(any::<u8>(), 0..256)) {
            let slots = (0..count as u64).map(|i| RemoteSegment { address: i, key: !i, length: 1 << i });
            let greeting = PacketGreeting {
                ticket: [7; TICKET_SIZE], connection: 1, token: 2, epoch: 3, credits: 4, eager: 5,
                slots: slots.collect(), address,
            };
            prop_assert_eq!(PacketGreeting::decode(&greeting.encode()), Some(greeting));
        }
    }
}
