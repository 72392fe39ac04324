//! An open file: bytes at offsets.

use std::cell::Cell;
use std::sync::Arc;

use bytes::Bytes;
use fileio::protocol::{
    Allocate, Error as FileIoError, FILE_SIZE_MAX, GetAttributes, Handle, Read, Seek, SeekTarget,
    SetAttributes, TRANSFER_MAX,
};
use futures::{StreamExt as _, stream};
use runtime::{Spawn, Undelivered};

use crate::error::{Cause, Error};
use crate::leases::OpenFileGuard;
use crate::options::OpenOptions;
use crate::session::ClientSession;
use crate::unsynced::{UnsyncedMark, UnsyncedWrites};
use crate::wide::WideReader;
use crate::{Attributes, Change, Credentials};

/// Pieces of one transfer that are under way at once, at most.
pub const PIECES_MAX: usize = 4;

/// An open file. It remains after its last name is removed, until this and its clones are dropped.
/// No bytes are cached, so clones and other clients see each other's writes immediately; over links
/// with delay [other clients' writes](crate::wide) are seen after an open or a lock. Writes
/// that are not synced may be lost; [`sync`](Self::sync) reports that.
#[derive(Clone, Debug)]
pub struct File<S: Spawn> {
    pub(crate) session: ClientSession<S>,
    path: Arc<[u8]>,
    pub(crate) handle: Handle,
    options: OpenOptions,
    unsynced: Arc<UnsyncedMark>,
    /// The number of this opening, which identifies its locks and those of its clones.
    pub(crate) id: u64,
    /// What is read ahead of this opening and its clones.
    wide: Option<Arc<WideReader>>,
    _guard: Arc<OpenFileGuard<S>>,
}

impl<S: Spawn> File<S> {
    pub(crate) fn new(
        session: ClientSession<S>,
        path: &[u8],
        guard: OpenFileGuard<S>,
        options: OpenOptions,
    ) -> Self {
        let id = session.leases().call().number;
        let wide = session.wide().open(guard.file()).map(Arc::new);
        Self {
            session,
            wide,
            id,
            path: path.into(),
            handle: guard.file(),
            options,
            unsynced: Arc::default(),
            _guard: Arc::new(guard),
        }
    }

    pub(crate) fn machine(&self) -> &S {
        self.session.machine()
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
        if let Some(wide) = &self.wide
            && let Some(read) = wide.read(self, offset..offset + length).await
        {
            return read;
        }
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
    async fn read_piece(&self, piece: (u64, u32)) -> Result<(Vec<Bytes>, bool), Cause> {
        read_piece(self.machine(), &self.source(), piece).await
    }

    /// Where its bytes come from.
    pub(crate) fn source(&self) -> ReadSource {
        let (unsynced, who) = (self.session.unsynced().clone(), self.session.user().clone());
        ReadSource { unsynced, who, file: self.handle }
    }

    /// This client has changed the file, or locked it: what was read ahead is of no use any more.
    pub(crate) fn note_change(&self) {
        self.session.wide().note_change(self.handle);
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

    /// Writes `data` at the end of the file and returns the new end. Appends of many clients never
    /// overlap. Up to [`TRANSFER_MAX`] bytes are contiguous; a longer append may have those of
    /// others between its pieces. A request whose reply is lost is sent again and done once, also
    /// if the node has restarted meanwhile.
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
        let (unsynced, user) = (self.session.unsynced(), self.session.user());
        let place = (self.handle, vec![piece]);
        let appended = crate::append(self.machine(), unsynced, &self.unsynced, user, place).await;
        self.note_change();
        Ok(appended?.offset)
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
        write_each(pieces(offset, length), async |(at, length): (u64, u32)| {
            let start = (at - offset) as usize;
            self.write_piece(at, data.slice(start..start + length as usize)).await
        })
        .await
    }

    pub(crate) async fn write_piece(&self, offset: u64, piece: Bytes) -> Result<(), Cause> {
        let (unsynced, user) = (self.session.unsynced(), self.session.user());
        let place = (self.handle, offset, vec![piece]);
        let written = unsynced.write(self.machine(), &self.unsynced, user, place).await;
        self.note_change();
        written?;
        Ok(())
    }

    /// What of this opening, and its clones, is not synced.
    pub(crate) fn unsynced_mark(&self) -> &UnsyncedMark {
        &self.unsynced
    }

    /// Makes all writes to the file durable, those of other clients too.
    ///
    /// What a node that has crashed has lost is sent again, see [`unsynced`](crate::unsynced). If
    /// that is not possible, this reports once that writes since the last call through this opening
    /// of the file, or a clone of it, are lost: then all of them have to be repeated.
    pub async fn sync(&self) -> Result<(), Error> {
        let unsynced = self.session.unsynced();
        let synced = unsynced.sync(self.machine(), &self.unsynced, self.handle).await;
        synced.map_err(|error| Error::of("sync", &self.path)(Cause::from(error)))
    }

    /// Cuts the file, or lengthens it by a hole.
    pub async fn set_len(&self, size: u64) -> Result<(), Error> {
        self.check_writable().map_err(Error::of("cut", &self.path))?;
        self.set_attributes(Change { size: Some(size), ..Change::default() }).await.map(drop)
    }

    /// Makes a hole of `length` bytes from `offset` on: they read as zeros, and whole blocks of
    /// them become free space. The size stays. Works on a full volume.
    pub async fn punch_hole(&self, offset: u64, length: u64) -> Result<(), Error> {
        let punched = async {
            self.check_writable()?;
            let (unsynced, user) = (self.session.unsynced(), self.session.user());
            let place = (self.handle, offset, length);
            let punched = unsynced.punch(self.machine(), &self.unsynced, user, place).await;
            self.note_change();
            punched?;
            Ok(())
        };
        punched.await.map_err(|cause: Cause| Error::of("make a hole in", &self.path)(cause))
    }

    /// Prepares for writes of `length` bytes from `offset` on: fails if the volume cannot hold them
    /// now, and extends the file to their end unless `keep_size`. Reserves no space: a later write,
    /// even of a range that is written already, may still find the volume full.
    pub async fn allocate(
        &self,
        offset: u64,
        length: u64,
        keep_size: bool,
    ) -> Result<Attributes, Error> {
        let allocated = async {
            self.check_writable()?;
            let (who, file) = (self.session.who(), self.handle);
            let durable = !keep_size && self.session.unsynced().is_keeping();
            let call = Allocate { who, file, offset, length, keep_size, durable };
            let allocated = self.session.ask(call).await;
            self.note_change();
            allocated
        };
        allocated.await.map_err(Error::of("allocate space for", &self.path))
    }

    /// Zeroes `length` bytes from `offset` on by a hole; extends the file to their end unless
    /// `keep_size`. Two steps: if the second fails, the file may be longer, with its old bytes.
    pub async fn zero_range(&self, offset: u64, length: u64, keep_size: bool) -> Result<(), Error> {
        self.allocate(offset, length, keep_size).await?;
        self.punch_hole(offset, length).await
    }

    /// The first byte at or after `offset` that is data (`SEEK_DATA`); `None` (`ENXIO`) if there is
    /// none before the end of the file.
    pub async fn seek_data(&self, offset: u64) -> Result<Option<u64>, Error> {
        self.seek(offset, SeekTarget::Data {}).await
    }

    /// The first byte at or after `offset` that is in a hole (`SEEK_HOLE`): there is one at the end
    /// of each file. `None` (`ENXIO`) if `offset` is not before the end.
    pub async fn seek_hole(&self, offset: u64) -> Result<Option<u64>, Error> {
        self.seek(offset, SeekTarget::Hole {}).await
    }

    async fn seek(&self, offset: u64, target: SeekTarget) -> Result<Option<u64>, Error> {
        let call = Seek { who: self.session.who(), file: self.handle, offset, target };
        let (machine, user) = (self.machine(), self.session.user());
        // A failure is that of the next request, too.
        let _ = self.session.unsynced().refresh(machine, self.handle, user).await;
        self.session.ask(call).await.map_err(Error::of("seek in", &self.path))
    }

    /// Changes attributes.
    pub async fn set_attributes(&self, change: Change) -> Result<Attributes, Error> {
        let (who, file) = (self.session.who(), self.handle);
        // A cut is not sent again after a crash: it is durable when it is answered.
        let session = &self.session;
        let durable = session.names_durably() || session.unsynced().cuts_durably(&change);
        let change = SetAttributes { who, file, change, only_if_ctime: None, durable };
        let changed = self.session.ask(change).await;
        self.note_change();
        changed.map_err(Error::of("change", &self.path))
    }

    /// What is known of the file.
    pub async fn metadata(&self) -> Result<Attributes, Error> {
        let (machine, user) = (self.machine(), self.session.user());
        let refreshed = self.session.unsynced().refresh(machine, self.handle, user).await;
        let attributes = match refreshed {
            Ok(Some(known)) => Ok(known.attributes),
            _ => self.session.ask(GetAttributes { file: self.handle }).await,
        };
        if let (Some(wide), Ok(attributes)) = (&self.wide, &attributes) {
            wide.note_attributes(attributes);
        }
        attributes.map_err(Error::of("look up", &self.path))
    }
}

/// What a read needs to know.
#[derive(Clone, Debug)]
pub(crate) struct ReadSource {
    unsynced: Arc<UnsyncedWrites>,
    who: Arc<Credentials>,
    file: Handle,
}

/// One piece, and whether it is as long as asked for.
pub(crate) async fn read_piece<S: Spawn>(
    machine: &S,
    source: &ReadSource,
    (offset, length): (u64, u32),
) -> Result<(Vec<Bytes>, bool), Cause> {
    let mut parts = Vec::new();
    let mut done: u32 = 0;
    while done < length {
        let (offset, length) = (offset + u64::from(done), length - done);
        let read = Read { who: (*source.who).clone(), file: source.file, offset, length };
        let read = source.unsynced.read_large(machine, source.file, read).await?;
        let count: usize = read.data.iter().map(Bytes::len).sum();
        if count as u64 > u64::from(length) {
            return Err(FileIoError::from(Undelivered::ProtocolMismatch).into());
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

/// Writes the pieces of a transfer, up to [`PIECES_MAX`] at once. After a failure no more of them
/// start, but those that have started are waited for: a piece that is still under way could
/// overtake the caller's next attempt.
pub(crate) async fn write_each<P>(
    pieces: impl Iterator<Item = P>,
    write: impl AsyncFn(P) -> Result<(), Cause>,
) -> Result<(), Cause> {
    let (failed, write) = (&Cell::new(false), &write);
    let writes = stream::iter(pieces).map(|piece| async move {
        if failed.get() {
            return Ok(());
        }
        let written = write(piece).await;
        failed.set(failed.get() || written.is_err());
        written
    });
    let results: Vec<Result<(), Cause>> = writes.buffered(PIECES_MAX).collect().await;
    results.into_iter().collect()
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
