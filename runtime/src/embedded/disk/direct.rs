//! Past the page cache, by the io_uring of the thread. Direct transfers move whole blocks between
//! aligned memory and the disk; what is not aligned takes a way round, through buffers of the pool.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, ready};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::access::check;
use super::growth::Growth;
use super::ring::{IoReceiver, PIECES_MAX, Ring, RingFile};
use super::writes::{WritePermit, Writes};
use crate::buffer::{ALIGNMENT, Buffer, Pool};
use crate::disk::{Disk, GOING_DOWN, cut};
use crate::embedded::shared;

const BLOCK: u64 = ALIGNMENT as u64;

pub(super) struct DirectDisk {
    inner: Rc<DirectFile>,
}

struct DirectFile {
    path: PathBuf,
    file: Rc<RingFile>,
    length: u64,
    pool: Pool,
    writes: Rc<Writes>,
    /// None of a block device, which has no holes.
    growth: Option<Growth>,
}

impl DirectDisk {
    /// Tries whether the host does direct transfers on this file, by reading its first block; if
    /// not, the file is as it was.
    pub(super) async fn open(
        path: &Path,
        ring: &Rc<Ring>,
        file: File,
        length: u64,
        pool: Pool,
    ) -> io::Result<Self> {
        let flags = fcntl_getfl(&file)?;
        fcntl_setfl(&file, flags | OFlags::DIRECT)?;
        let growth = file.metadata()?.is_file().then(|| Growth::new(length));
        let file = ring.adopt(file);
        let (path, writes) = (path.to_owned(), Rc::default());
        let inner = Rc::new(DirectFile { path, file, length, pool, writes, growth });
        if let Err(why) = inner.block(0).await {
            fcntl_setfl(inner.file.file(), flags)?;
            return Err(why);
        }
        inner.file.own_lock();
        Ok(Self { inner })
    }
}

impl Disk for DirectDisk {
    fn length(&self) -> u64 {
        self.inner.length
    }

    fn read(&self, offset: u64, length: usize) -> LocalBoxFuture<'static, io::Result<Bytes>> {
        DirectFile::read(self.inner.clone(), offset, length)
    }

    fn read_pieces(
        &self,
        offset: u64,
        lengths: Vec<usize>,
    ) -> LocalBoxFuture<'static, io::Result<Vec<Bytes>>> {
        let is_blocks = |length: &usize| *length > 0 && length.is_multiple_of(ALIGNMENT);
        if offset.is_multiple_of(BLOCK)
            && lengths.len() <= PIECES_MAX
            && lengths.iter().all(is_blocks)
        {
            return self.inner.read_blocks(offset, &lengths);
        }
        let all = self.read(offset, lengths.iter().sum());
        all.map(|all| Ok(cut(all?, lengths))).boxed_local()
    }

    fn write(&self, offset: u64, data: Vec<Bytes>) -> LocalBoxFuture<'static, io::Result<()>> {
        let length = data.iter().map(|piece| piece.len() as u64).sum::<u64>();
        if let Err(error) = check(offset, length, self.inner.length) {
            return ready(Err(error)).boxed_local();
        }
        if length == 0 {
            return ready(Ok(())).boxed_local();
        }
        let (first, end) = (offset - offset % BLOCK, (offset + length).next_multiple_of(BLOCK));
        if let Some(ahead) =
            self.inner.growth.as_ref().and_then(|growth| growth.note(&(first..end)))
        {
            self.inner.file.allocate(ahead.start, ahead.end - ahead.start);
        }
        let patches = (first, end) != (offset, offset + length);
        let inner = self.inner.clone();
        match inner.writes.enter(first..end, patches) {
            Some(entered) if !patches => inner.write_blocks(offset, data, entered),
            entered => {
                // A task, so that it goes on if the caller drops the future.
                let (done, answer) = tokio::sync::oneshot::channel();
                shared::spawn(async move {
                    let entered = match entered {
                        Some(entered) => entered,
                        None => inner.writes.entered(first..end, patches).await,
                    };
                    let written = if patches {
                        inner.patch(first..end, offset, data, entered).await
                    } else {
                        inner.write_blocks(offset, data, entered).await
                    };
                    // The caller may be gone.
                    let _ = done.send(written);
                });
                answered(answer).boxed_local()
            }
        }
    }

    fn sync(&self) -> LocalBoxFuture<'static, io::Result<()>> {
        answered(self.inner.file.sync()).boxed_local()
    }

    fn name(&self) -> String {
        self.inner.path.display().to_string()
    }
}

impl DirectFile {
    /// Reads the blocks around, and hands out the part that was asked for.
    fn read(
        self: Rc<Self>,
        offset: u64,
        length: usize,
    ) -> LocalBoxFuture<'static, io::Result<Bytes>> {
        if let Err(error) = check(offset, length as u64, self.length) {
            return ready(Err(error)).boxed_local();
        }
        if length == 0 {
            return ready(Ok(Bytes::new())).boxed_local();
        }
        let before = (offset % BLOCK) as usize;
        let Some(buffer) = self.pool.take((before + length).next_multiple_of(ALIGNMENT)) else {
            return ready(Err(io::ErrorKind::OutOfMemory.into())).boxed_local();
        };
        let answer = self.file.read(offset - before as u64, vec![buffer]);
        async move {
            let buffer = one_of(answered(answer).await?, before + length)?;
            Ok(buffer.lend().slice(before..before + length))
        }
        .boxed_local()
    }

    /// Reads whole blocks, at most [`PIECES_MAX`] pieces of them.
    fn read_blocks(
        &self,
        offset: u64,
        lengths: &[usize],
    ) -> LocalBoxFuture<'static, io::Result<Vec<Bytes>>> {
        let length = lengths.iter().sum();
        if let Err(error) = check(offset, length as u64, self.length) {
            return ready(Err(error)).boxed_local();
        }
        let buffers: Option<Vec<Buffer>> =
            lengths.iter().map(|length| self.pool.take(*length)).collect();
        let Some(buffers) = buffers else {
            return ready(Err(io::ErrorKind::OutOfMemory.into())).boxed_local();
        };
        let answer = self.file.read(offset, buffers);
        async move {
            let (buffers, found) = answered(answer).await?;
            if found < length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Ok(buffers.into_iter().map(Buffer::lend).collect())
        }
        .boxed_local()
    }

    /// Writes whole blocks.
    fn write_blocks(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        entered: WritePermit,
    ) -> LocalBoxFuture<'static, io::Result<()>> {
        let data = aligned(data, &self.pool);
        answered(self.file.write(offset, data, entered)).boxed_local()
    }

    /// Writes bytes within `blocks`, around which the disk keeps what it has.
    async fn patch(
        &self,
        blocks: std::ops::Range<u64>,
        offset: u64,
        data: Vec<Bytes>,
        entered: WritePermit,
    ) -> io::Result<()> {
        let length = data.iter().map(Bytes::len).sum::<usize>();
        let mut patched = self.pool.take_beyond((blocks.end - blocks.start) as usize);
        let (before, end) = ((offset - blocks.start) as usize, offset + length as u64);
        let last = blocks.end - BLOCK;
        if before > 0 {
            patched[..ALIGNMENT].copy_from_slice(&self.block(blocks.start).await?);
        }
        if end < blocks.end && (last > blocks.start || before == 0) {
            let within = (last - blocks.start) as usize;
            patched[within..].copy_from_slice(&self.block(last).await?);
        }
        copy_into(&mut patched[before..before + length], &data);
        self.pool.count_bounce(length);
        answered(self.file.write(blocks.start, vec![patched.freeze()], entered)).await
    }

    async fn block(&self, offset: u64) -> io::Result<Buffer> {
        let buffer = self.pool.take_beyond(ALIGNMENT);
        one_of(answered(self.file.read(offset, vec![buffer])).await?, ALIGNMENT)
    }
}

/// The only buffer of a read that has `found` all of `wanted`.
fn one_of((mut buffers, found): (Vec<Buffer>, usize), wanted: usize) -> io::Result<Buffer> {
    let buffer = buffers.pop().filter(|_| found >= wanted);
    buffer.ok_or(io::ErrorKind::UnexpectedEof.into())
}

/// The same bytes in pieces that can go to the disk as they are. What is aligned is not copied.
fn aligned(data: Vec<Bytes>, pool: &Pool) -> Vec<Bytes> {
    let is_aligned = |piece: &Bytes| {
        (piece.as_ptr() as usize).is_multiple_of(ALIGNMENT) && piece.len().is_multiple_of(ALIGNMENT)
    };
    if data.len() > PIECES_MAX {
        return vec![gathered(&data, pool)];
    }
    if data.iter().all(is_aligned) {
        return data;
    }
    let (mut pieces, mut loose) = (Vec::with_capacity(data.len()), Vec::new());
    // Bytes of `loose`: a piece that is aligned itself can go by itself only at a block's start.
    let mut loose_bytes = 0;
    for piece in data {
        if is_aligned(&piece) && loose_bytes % ALIGNMENT == 0 {
            if loose_bytes > 0 {
                pieces.push(gathered(&loose, pool));
                loose.clear();
                loose_bytes = 0;
            }
            pieces.push(piece);
        } else {
            loose_bytes += piece.len();
            loose.push(piece);
        }
    }
    if loose_bytes > 0 {
        pieces.push(gathered(&loose, pool));
    }
    pieces
}

/// A copy in one aligned piece.
fn gathered(data: &[Bytes], pool: &Pool) -> Bytes {
    let mut buffer = pool.take_beyond(data.iter().map(Bytes::len).sum());
    copy_into(&mut buffer, data);
    pool.count_bounce(buffer.len());
    buffer.freeze()
}

fn copy_into(mut target: &mut [u8], data: &[Bytes]) {
    for piece in data {
        let (here, rest) = target.split_at_mut(piece.len());
        here.copy_from_slice(piece);
        target = rest;
    }
}

/// What the ring or a task says; the machine is going down if it says nothing.
async fn answered<T>(answer: IoReceiver<T>) -> io::Result<T> {
    let lost = || io::Error::new(GOING_DOWN, "the machine is going down");
    answer.await.unwrap_or_else(|_| Err(lost()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_pieces_are_not_copied_and_the_others_are_gathered() {
        let pool = Pool::new(1 << 20);
        let page = |fill: u8| {
            let mut buffer = pool.take(ALIGNMENT).unwrap();
            buffer.fill(fill);
            buffer.freeze()
        };
        let (first, middle, last) = (page(1), page(2), page(3));
        let small = |length, fill| Bytes::from(vec![fill; length]);
        let data = vec![
            first.clone(),
            small(1000, 4),
            middle.clone(),
            small(ALIGNMENT - 1000, 5),
            Bytes::new(),
            last.clone(),
        ];
        let before = pool.bounced_bytes();
        let pieces = aligned(data.clone(), &pool);
        assert_eq!(pieces.concat(), data.concat());
        assert_eq!(pieces.len(), 3);
        assert_eq!(
            [pieces[0].as_ptr(), pieces[2].as_ptr()],
            [first.as_ptr(), last.as_ptr()],
            "not copied"
        );
        assert_eq!(pool.bounced_bytes() - before, 2 * ALIGNMENT as u64);
        assert!(pieces.iter().all(|piece| (piece.as_ptr() as usize).is_multiple_of(ALIGNMENT)));
    }
}
