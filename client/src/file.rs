//! An open file: bytes at offsets.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fileio::protocol::{
    Allocate, Append, Commit, Error as FileIoError, FILE_SIZE_MAX, GetAttributes, Handle,
    PunchHole, Read, Seek, SeekTarget, SetAttributes, TRANSFER_MAX, Write,
};
use futures::{StreamExt as _, stream};
use runtime::{Spawn, Undelivered};

use crate::error::{Cause, Error};
use crate::leases::{Leases, OpenFileGuard};
use crate::options::OpenOptions;
use crate::session::ClientSession;
use crate::{Attributes, Change};

/// Pieces of one transfer that are under way at once, at most.
pub const PIECES_MAX: usize = 4;

/// Attempts of an append whose reply was lost.
const APPEND_TRIES_MAX: u32 = 12;

/// The first pause before that; each later one is twice as long.
const APPEND_PAUSE: Duration = Duration::from_millis(2);

/// An open file. It lives on when it loses its last name, until this and its clones are dropped.
/// Keeps no bytes, so clones and other clients see each other's writes at once; only what is written and not yet synced may be lost, of which
/// [`sync`](Self::sync) tells.
#[derive(Clone, Debug)]
pub struct File<S: Spawn> {
    session: ClientSession<S>,
    path: Arc<[u8]>,
    handle: Handle,
    options: OpenOptions,
    unsynced: Arc<UnsyncedBytes>,
    id: u64,
    _holding: Arc<OpenFileGuard<S>>,
}

impl<S: Spawn> File<S> {
    pub(crate) fn new(
        session: ClientSession<S>,
        path: &[u8],
        holding: OpenFileGuard<S>,
        options: OpenOptions,
    ) -> Self {
        let id = session.leases().call().number;
        Self {
            session,
            id,
            path: path.into(),
            handle: holding.file(),
            options,
            unsynced: Arc::default(),
            _holding: Arc::new(holding),
        }
    }

    pub(crate) fn session(&self) -> &ClientSession<S> {
        &self.session
    }

    pub(crate) fn machine(&self) -> &S {
        self.session.machine()
    }

    pub(crate) fn leases(&self) -> &Arc<Leases> {
        self.session.leases()
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    /// The number of this opening, which identifies its locks and those of its clones.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The path by which it was opened.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// How it was opened.
    pub fn options(&self) -> OpenOptions {
        self.options
    }

    /// Fills `out` with the bytes from `offset`; fewer at the end of the file only. Returns how
    /// many.
    pub async fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, Error> {
        let mut filled = 0;
        for part in self.read_bytes_at(offset, out.len()).await? {
            out[filled..filled + part.len()].copy_from_slice(&part);
            filled += part.len();
        }
        self.machine().count_copy(filled);
        Ok(filled)
    }

    /// The bytes from `offset`, at most `length` and fewer at the end of the file only, in the
    /// pieces in which they came: nothing is copied.
    pub async fn read_bytes_at(&self, offset: u64, length: usize) -> Result<Vec<Bytes>, Error> {
        self.read_pieces(offset, length).await.map_err(Error::of("read", &self.path))
    }

    pub(crate) async fn read_pieces(
        &self,
        offset: u64,
        length: usize,
    ) -> Result<Vec<Bytes>, Cause> {
        if !self.options.read {
            return Err(Cause::NotReadable);
        }
        // Nothing is past the largest offset.
        let length = (length as u64).min(FILE_SIZE_MAX.saturating_sub(offset));
        if (1..=u64::from(TRANSFER_MAX)).contains(&length) {
            return Ok(self.read_piece((offset, length as u32)).await?.0);
        }
        let pieces = stream::iter(pieces(offset, length));
        let mut reads = pieces.map(|piece| self.read_piece(piece)).buffered(PIECES_MAX);
        let mut parts = Vec::new();
        while let Some(read) = reads.next().await {
            let (data, complete) = read?;
            parts.extend(data);
            if !complete {
                // What others append meanwhile is not joined to what was the end.
                break;
            }
        }
        Ok(parts)
    }

    /// One piece, and whether it is as long as asked for.
    async fn read_piece(&self, (offset, length): (u64, u32)) -> Result<(Vec<Bytes>, bool), Cause> {
        let who = self.session.who();
        let mut parts = Vec::new();
        let mut done: u32 = 0;
        while done < length {
            let (offset, length) = (offset + u64::from(done), length - done);
            let read = Read { who: who.clone(), file: self.handle, offset, length };
            let read = self.session.ask(read).await?;
            let count: usize = read.data.iter().map(Bytes::len).sum();
            if count as u64 > u64::from(length) {
                return Err(FileIoError::from(runtime::Undelivered::ProtocolMismatch).into());
            }
            done += count as u32;
            if parts.is_empty() {
                parts = read.data;
            } else {
                parts.extend(read.data);
            }
            if read.end || count == 0 {
                break;
            }
        }
        Ok((parts, done == length))
    }

    /// Writes `data` at `offset`. If that fails, any part of it may have been written.
    pub async fn write_at(&self, offset: u64, data: impl Into<Bytes>) -> Result<(), Error> {
        let data = data.into();
        let written = async {
            self.check_writable()?;
            self.write_pieces(offset, data).await
        };
        written.await.map_err(Error::of("write", &self.path))
    }

    /// Writes `data` at the end of the file, wherever that is by then, and returns the new end. Appends of
    /// many clients never overlap, and up to [`TRANSFER_MAX`] bytes lie together; longer ones may have
    /// those of others between their pieces. A request whose reply is lost is sent again; if it is unknown what came
    /// of it, since a node has restarted, the error is [`Undelivered::Lost`].
    pub async fn append(&self, data: impl Into<Bytes>) -> Result<u64, Error> {
        let mut rest = data.into();
        let appended = async {
            self.check_writable()?;
            loop {
                let piece = rest.split_to(rest.len().min(TRANSFER_MAX as usize));
                let length = piece.len() as u64;
                let offset = self.append_piece(piece).await?;
                if rest.is_empty() {
                    return Ok(offset + length);
                }
            }
        };
        appended.await.map_err(|cause: Cause| Error::of("append to", &self.path)(cause))
    }

    /// Where it was put.
    async fn append_piece(&self, piece: Bytes) -> Result<u64, Cause> {
        let lost = FileIoError::from(Undelivered::Lost);
        let lease = self.leases().lease_of(self.handle, self.machine().fs_nodes());
        let (who, file, call, data) =
            (self.session.who(), self.handle, self.leases().call(), vec![piece]);
        let mut append = Append { who, call, sent_under: None, file, data };
        let (mut pause, mut failure) = (APPEND_PAUSE, lost);
        for _ in 1..APPEND_TRIES_MAX {
            match fileio::client::ask(self.machine(), append.clone()).await {
                Ok(appended) => {
                    self.note_unsynced(appended.written.write_verifier);
                    return Ok(appended.offset);
                }
                Err(error) if error == lost => (append.sent_under, failure) = (Some(lease), lost),
                // If not this time, then perhaps before.
                Err(error) if error.not_applied() && append.sent_under.is_some() => {}
                Err(error) if error.not_applied() => failure = error,
                Err(error) => return Err(error.into()),
            }
            self.machine().sleep(pause).await;
            pause *= 2;
        }
        Err(failure.into())
    }

    pub(crate) fn check_writable(&self) -> Result<(), Cause> {
        if self.options.writes() { Ok(()) } else { Err(Cause::NotWritable) }
    }

    async fn write_pieces(&self, offset: u64, data: Bytes) -> Result<(), Cause> {
        let length = data.len() as u64;
        if offset.checked_add(length).is_none_or(|end| end > FILE_SIZE_MAX) {
            return Err(FileIoError::FileTooLarge {}.into());
        }
        if (1..=u64::from(TRANSFER_MAX)).contains(&length) {
            return self.write_piece(offset, data).await;
        }
        // After a failure nothing more starts, but what has started is waited for: a piece that is
        // still on its way could else overtake the caller's next attempt.
        let failed = Cell::new(false);
        let write = |(at, length): (u64, u32)| {
            let start = (at - offset) as usize;
            let piece = data.slice(start..start + length as usize);
            let failed = &failed;
            async move {
                if failed.get() {
                    return Ok(());
                }
                let written = self.write_piece(at, piece).await;
                failed.set(failed.get() || written.is_err());
                written
            }
        };
        let pieces = stream::iter(pieces(offset, length));
        let results: Vec<Result<(), Cause>> =
            pieces.map(write).buffered(PIECES_MAX).collect().await;
        results.into_iter().collect()
    }

    pub(crate) async fn write_piece(&self, offset: u64, piece: Bytes) -> Result<(), Cause> {
        let (who, data) = (self.session.who(), vec![piece]);
        let write = Write { who, file: self.handle, offset, data, durable: false };
        let written = self.session.ask(write).await?;
        self.note_unsynced(written.write_verifier);
        Ok(())
    }

    /// Something was written, and answered with this verifier.
    pub(crate) fn note_unsynced(&self, write_verifier: u64) {
        self.unsynced.note(write_verifier);
    }

    /// Makes all that was written to the file durable, by whomever.
    ///
    /// Reports once if something that was written through this opening of the file, or a clone of it,
    /// since the last call is lost, because a node of the file session has restarted: then all of it
    /// has to be written again.
    pub async fn sync(&self) -> Result<(), Error> {
        let before = self.unsynced.take();
        let committed = self.session.ask(Commit { file: self.handle }).await;
        let outcome = match committed {
            Ok(committed) if before.is_none_or(|before| before == committed.write_verifier) => {
                Ok(())
            }
            Ok(_) => Err(FileIoError::LostWrites {}.into()),
            Err(cause) => {
                if let Some(before) = before {
                    self.unsynced.note_first(before);
                }
                Err(cause)
            }
        };
        outcome.map_err(Error::of("sync", &self.path))
    }

    /// Cuts the file, or lengthens it by a hole.
    pub async fn set_len(&self, size: u64) -> Result<(), Error> {
        self.check_writable().map_err(Error::of("cut", &self.path))?;
        self.set_attributes(Change { size: Some(size), ..Change::default() }).await.map(drop)
    }

    /// Makes a hole of `length` bytes from `offset` on: they read as zeros, and whole blocks of them are
    /// free space again. The size stays. Works on a full volume.
    pub async fn punch_hole(&self, offset: u64, length: u64) -> Result<(), Error> {
        let punched = async {
            self.check_writable()?;
            let (who, file) = (self.session.who(), self.handle);
            let call = PunchHole { who, file, offset, length, durable: false };
            let punched = self.session.ask(call).await?;
            self.unsynced.note(punched.write_verifier);
            Ok(())
        };
        punched.await.map_err(|cause: Cause| Error::of("make a hole in", &self.path)(cause))
    }

    /// Prepares for writes of `length` bytes from `offset` on: fails at once if the volume cannot hold
    /// them now, and lengthens the file to their end unless `keep_size`. Sets no space aside: a later
    /// write, even of a range that is written already, may still find the volume full.
    pub async fn allocate(
        &self,
        offset: u64,
        length: u64,
        keep_size: bool,
    ) -> Result<Attributes, Error> {
        let allocated = async {
            self.check_writable()?;
            let (who, file) = (self.session.who(), self.handle);
            let call = Allocate { who, file, offset, length, keep_size, durable: false };
            self.session.ask(call).await
        };
        allocated.await.map_err(Error::of("allocate space for", &self.path))
    }

    /// Makes `length` bytes from `offset` on zeros, by a hole; lengthens the file to their end unless
    /// `keep_size`. Two steps: if the second fails, the file may be longer, but its bytes are as before.
    pub async fn zero_range(&self, offset: u64, length: u64, keep_size: bool) -> Result<(), Error> {
        self.allocate(offset, length, keep_size).await?;
        self.punch_hole(offset, length).await
    }

    /// The first byte at or after `offset` that is data, as `SEEK_DATA` has it; `None` (`ENXIO`) if there
    /// is none before the end of the file.
    pub async fn seek_data(&self, offset: u64) -> Result<Option<u64>, Error> {
        self.seek(offset, SeekTarget::Data {}).await
    }

    /// The first byte at or after `offset` that is in a hole, as `SEEK_HOLE` has it: there is one at the
    /// end of each file. `None` (`ENXIO`) if `offset` is not before the end.
    pub async fn seek_hole(&self, offset: u64) -> Result<Option<u64>, Error> {
        self.seek(offset, SeekTarget::Hole {}).await
    }

    async fn seek(&self, offset: u64, target: SeekTarget) -> Result<Option<u64>, Error> {
        let call = Seek { who: self.session.who(), file: self.handle, offset, target };
        self.session.ask(call).await.map_err(Error::of("seek in", &self.path))
    }

    /// Changes attributes.
    pub async fn set_attributes(&self, change: Change) -> Result<Attributes, Error> {
        let (who, file) = (self.session.who(), self.handle);
        let change = SetAttributes { who, file, change, only_if_ctime: None, durable: false };
        self.session.ask(change).await.map_err(Error::of("change", &self.path))
    }

    /// What is known of the file.
    pub async fn metadata(&self) -> Result<Attributes, Error> {
        let attributes = self.session.ask(GetAttributes { file: self.handle }).await;
        attributes.map_err(Error::of("look up", &self.path))
    }
}

/// The write verifier with which the first write since the last sync was answered. If that write is
/// there, so are all later ones that are not told to be lost; 0 if there is none.
#[derive(Debug, Default)]
struct UnsyncedBytes(AtomicU64);

impl UnsyncedBytes {
    fn note(&self, write_verifier: u64) {
        // Two verifiers since the last sync: one of them is wrong, and the first stays.
        let _ = self.0.compare_exchange(0, write_verifier, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// A sync has failed: what it should have covered is still to be synced.
    fn note_first(&self, write_verifier: u64) {
        self.0.store(write_verifier, Ordering::Relaxed);
    }

    fn take(&self) -> Option<u64> {
        let first = self.0.swap(0, Ordering::Relaxed);
        (first != 0).then_some(first)
    }
}

/// Cuts a transfer at the multiples of [`TRANSFER_MAX`], so that all but the first and the last
/// piece are whole stripes; one that fits into a piece stays whole.
fn pieces(offset: u64, length: u64) -> impl Iterator<Item = (u64, u32)> {
    let whole = u64::from(TRANSFER_MAX);
    let end = offset + length;
    let mut next = offset;
    std::iter::from_fn(move || {
        let cut = if end - next <= whole { end } else { (next / whole + 1) * whole };
        let piece = (next, (cut - next) as u32);
        next = cut;
        (piece.1 > 0).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_is_cut_at_multiples_of_the_largest_piece() {
        let whole = u64::from(TRANSFER_MAX);
        let cut = |offset, length| pieces(offset, length).collect::<Vec<_>>();
        assert_eq!(cut(7, 0), []);
        assert_eq!(cut(7, whole), [(7, TRANSFER_MAX)]);
        assert_eq!(
            cut(whole - 1, whole + 8),
            [(whole - 1, 1), (whole, TRANSFER_MAX), (2 * whole, 7)]
        );
    }
}
