//! The bulks that are under way in both directions, piece by piece.

use std::collections::{BTreeMap, VecDeque};

use crc_fast::CrcAlgorithm::Crc32Iscsi;

use super::frame_io::FrameIo;
use super::peer::PeerConnection;
use super::slots::Slots;
use super::types::{PendingOperation, RendezvousRequest, TRANSFERS_MAX, TransferRef};
use crate::FabricError;
use crate::link::{BufferSegment, Exposure, Fabric, FabricBuffer, RemoteSegment};
use crate::policy::Policy;

/// A bulk on its way in.
pub(super) struct IncomingBulk {
    pub(super) connection: u64,
    pub(super) ask: RendezvousRequest,
    pub(super) buffer: FabricBuffer,
    /// While the sender writes.
    pub(super) exposure: Option<Exposure>,
    /// The first byte that is not yet asked for, and how many have come.
    pub(super) next: usize,
    pub(super) arrived: usize,
    /// Its checksum, as soon as the sender told it.
    pub(super) sum: Option<u32>,
}

/// A bulk on its way out.
pub(super) struct OutgoingBulk {
    pub(super) connection: u64,
    pub(super) parts: Vec<FabricBuffer>,
    pub(super) exposures: Vec<Exposure>,
    pub(super) total: usize,
    /// Where the receiver wants it, and by which number it knows the transfer.
    pub(super) granted: Option<(u64, RemoteSegment)>,
    pub(super) next: usize,
    pub(super) written: usize,
}

/// All bulks under way.
pub(super) struct BulkTransfers {
    pub(super) incoming: Slots<IncomingBulk>,
    /// Those of `incoming` by connection and the sender's number.
    pub(super) asked: BTreeMap<(u64, u64), u64>,
    pub(super) outgoing: Slots<OutgoingBulk>,
    /// Transfers that have pieces to be moved.
    pub(super) ready: VecDeque<TransferRef>,
}

impl BulkTransfers {
    pub(super) fn new() -> Self {
        Self {
            incoming: Slots::new(TRANSFERS_MAX),
            asked: BTreeMap::new(),
            outgoing: Slots::new(TRANSFERS_MAX),
            ready: VecDeque::new(),
        }
    }

    pub(super) fn sum_of(&self, transfer: u64) -> u32 {
        let mut digest = crc_fast::Digest::new(Crc32Iscsi);
        if let Some(outgoing) = self.outgoing.get(transfer) {
            outgoing.parts.iter().for_each(|part| digest.update(part.bytes()));
        }
        digest.finalize() as u32
    }

    /// The receiver has granted memory; false if that breaks the rules.
    #[must_use]
    pub(super) fn take_grant(
        &mut self,
        number: u64,
        transfer: u64,
        theirs: u64,
        remote: RemoteSegment,
    ) -> bool {
        let outgoing = self.outgoing.get_mut(transfer).filter(|out| out.connection == number);
        match outgoing {
            Some(out) if out.granted.is_none() && remote.length == out.total as u64 => {
                out.granted = Some((theirs, remote));
                self.ready.push_back(TransferRef::Out(transfer));
                true
            }
            _ => false,
        }
    }

    /// Begins to read a piece. Returns whether there was room, and whether the transfer has more
    /// pieces. An error ends the connection.
    pub(super) fn read_piece(
        &mut self,
        io: &mut FrameIo,
        peers: &Slots<PeerConnection>,
        policy: &Policy,
        transfer: u64,
    ) -> Result<(bool, bool), (u64, FabricError)> {
        let Some(incoming) = self.incoming.get_mut(transfer) else { return Ok((true, false)) };
        let connection = incoming.connection;
        let Some(peer) = peers.get(connection).map(|open| open.peer) else {
            return Ok((true, false));
        };
        let (total, at) = (incoming.ask.total(), incoming.next);
        let length = policy.piece(total).min(total - at);
        let segments = &incoming.ask.segments;
        let remote: Vec<RemoteSegment> =
            cut(segments.iter().map(|segment| segment.length as usize), at, length)
                .map(|(index, start, length)| RemoteSegment {
                    address: segments[index].address.wrapping_add(start as u64),
                    length: length as u64,
                    ..segments[index]
                })
                .collect();
        let Ok(cookie) = io.pending.insert(PendingOperation::Read { transfer, length }) else {
            return Ok((false, true));
        };
        match io.link.read(peer, &remote, &mut incoming.buffer, at, cookie) {
            Ok(()) => {
                incoming.next += length;
                io.moving += 1;
                io.counters.moves += 1;
                Ok((true, at + length < total))
            }
            Err(error) => not_moved(io, cookie, connection, error),
        }
    }

    /// The same for a transfer on its way out.
    pub(super) fn write_piece(
        &mut self,
        io: &mut FrameIo,
        peers: &Slots<PeerConnection>,
        policy: &Policy,
        transfer: u64,
    ) -> Result<(bool, bool), (u64, FabricError)> {
        let Some(out) = self.outgoing.get_mut(transfer) else { return Ok((true, false)) };
        let connection = out.connection;
        let Some(peer) = peers.get(connection).map(|open| open.peer) else {
            return Ok((true, false));
        };
        let Some((_, granted)) = out.granted else { return Ok((true, false)) };
        let (total, at) = (out.total, out.next);
        let length = policy.piece(total).min(total - at);
        let pieces: Vec<BufferSegment<'_>> =
            cut(out.parts.iter().map(FabricBuffer::len), at, length)
                .map(|(index, at, length)| BufferSegment { buffer: &out.parts[index], at, length })
                .collect();
        let remote = RemoteSegment {
            address: granted.address.wrapping_add(at as u64),
            length: length as u64,
            ..granted
        };
        let Ok(cookie) = io.pending.insert(PendingOperation::Write { transfer, length }) else {
            return Ok((false, true));
        };
        match io.link.write(peer, &pieces, remote, None, cookie) {
            Ok(()) => {
                out.next += length;
                io.moving += 1;
                io.counters.moves += 1;
                Ok((true, at + length < total))
            }
            Err(error) => not_moved(io, cookie, connection, error),
        }
    }

    /// The receiver has read all of it; false if that breaks the rules.
    #[must_use]
    pub(super) fn take_done(&mut self, link: &mut Fabric, number: u64, transfer: u64) -> bool {
        let known = self.outgoing.get(transfer).filter(|out| out.connection == number);
        let is_known = known.is_some_and(|out| out.granted.is_none());
        if is_known {
            self.finish_out(link, transfer);
        }
        is_known
    }

    /// The sender has written all of it; false if that breaks the rules.
    #[must_use]
    pub(super) fn take_written(&mut self, link: &mut Fabric, number: u64, transfer: u64) -> bool {
        let known = self.incoming.get_mut(transfer).filter(|one| one.connection == number);
        let Some((incoming, exposure)) =
            known.and_then(|one| one.exposure.take().map(|exposure| (one, exposure)))
        else {
            return false;
        };
        incoming.arrived = incoming.ask.total();
        link.conceal(exposure);
        true
    }

    /// The sender tells a checksum. Returns the transfer, if it has begun.
    pub(super) fn take_sum(&mut self, number: u64, theirs: u64, sum: u32) -> Option<u64> {
        let transfer = self.asked.get(&(number, theirs)).copied()?;
        let one = self.incoming.get_mut(transfer).filter(|one| one.sum.is_none())?;
        one.sum = Some(sum);
        Some(transfer)
    }

    pub(super) fn finish_out(&mut self, link: &mut Fabric, transfer: u64) {
        if let Some(out) = self.outgoing.remove(transfer) {
            out.exposures.into_iter().for_each(|exposure| link.conceal(exposure));
        }
    }

    /// Gives up all transfers of a connection that is gone.
    pub(super) fn drop_transfers(&mut self, number: u64) {
        for transfer in self.incoming.numbers() {
            if self.incoming.get(transfer).is_some_and(|one| one.connection == number) {
                self.incoming.remove(transfer);
            }
        }
        self.asked.retain(|(connection, _), _| *connection != number);
        for transfer in self.outgoing.numbers() {
            if self.outgoing.get(transfer).is_some_and(|one| one.connection == number) {
                self.outgoing.remove(transfer);
            }
        }
    }
}

fn not_moved(
    io: &mut FrameIo,
    cookie: u64,
    connection: u64,
    error: FabricError,
) -> Result<(bool, bool), (u64, FabricError)> {
    io.pending.remove(cookie);
    match error {
        FabricError::Busy { .. } => Ok((false, true)),
        error => Err((connection, error)),
    }
}

/// Cuts `length` bytes from `at` on out of parts of the given lengths: index, start and length of
/// each piece.
fn cut(
    lengths: impl Iterator<Item = usize>,
    at: usize,
    length: usize,
) -> impl Iterator<Item = (usize, usize, usize)> {
    let mut before = 0;
    lengths.enumerate().filter_map(move |(index, part)| {
        let start = at.max(before);
        let end = (at + length).min(before + part);
        let piece = (start < end).then(|| (index, start - before, end - start));
        before += part;
        piece
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::cut;

    proptest! {
        #[test]
        fn pieces_are_cut_out_of_parts_without_gap_or_overlap(
            lengths in proptest::collection::vec(0usize..50, 1..20), piece in 1usize..60,
        ) {
            let total: usize = lengths.iter().sum();
            let mut seen = Vec::new();
            let mut at = 0;
            while at < total {
                let length = piece.min(total - at);
                let pieces: Vec<_> = cut(lengths.iter().copied(), at, length).collect();
                prop_assert_eq!(pieces.iter().map(|(_, _, length)| length).sum::<usize>(), length);
                for (index, start, length) in pieces {
                    prop_assert!(start + length <= lengths[index]);
                    seen.extend((start..start + length).map(|byte| (index, byte)));
                }
                at += length;
            }
            let all = lengths.iter().enumerate();
            let wanted: Vec<_> =
                all.flat_map(|(index, length)| (0..*length).map(move |byte| (index, byte))).collect();
            prop_assert_eq!(seen, wanted);
        }
    }
}
