//! The stdio-like interface (thesis section 2.6): an open file with a position and a buffer.
//!
//! It behaves as ANSI C's `FILE` does, with two promises of the thesis: the position does not
//! change if an operation fails, and a transfer of at least the buffer's size goes past the buffer.
//!
//! # Copies
//!
//! Bulk data is copied by this module in these places only, and [`Stream::copied_bytes`] counts
//! them:
//!
//! - a short write: into the buffer, which is then handed on as it is;
//! - a short read: out of the buffer, whose content is held as it came;
//! - a long write of a borrowed slice: into a buffer of its own, because the file system may keep
//!   what it is given longer than the caller keeps its slice.
//!
//! A long write by [`Stream::write_bytes`] and a long read are not copied here at all.

mod medium;
mod mode;
mod std_io;

use bytes::{Buf as _, Bytes};

pub use self::medium::Medium;
pub use self::mode::{BadMode, Mode};
use crate::blocking::BlockingFile;
use crate::error::{Cause, Error};

/// Bytes of a stream's buffer, unless set otherwise: one stripe.
pub const BUFFER_SIZE: usize = 64 << 10;

/// Bytes of a buffer, at most.
pub const BUFFER_SIZE_MAX: usize = 64 << 20;

/// Bytes that can be pushed back, at most.
pub const UNREAD_MAX: usize = 64;

/// Where a seek counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// From the start of the file (`SEEK_SET`).
    Set,
    /// From the position (`SEEK_CUR`).
    Current,
    /// From the end of the file (`SEEK_END`).
    End,
}

/// An open file with a position, a buffer, and the indicators of C's `FILE`.
///
/// Dropping a stream writes its buffer out but cannot report a failure: [`close`](Self::close) it.
#[derive(Debug)]
pub struct Stream<M: Medium = BlockingFile> {
    medium: M,
    mode: Mode,
    buffer_size: usize,
    /// Of the next byte, pushed-back bytes aside.
    position: u64,
    /// Read ahead, from `position`.
    ahead: Bytes,
    /// Written, not yet handed on; they end at `position`.
    pending: Vec<u8>,
    /// To be read again, the next one last.
    unread: Vec<u8>,
    at_end: bool,
    failed: bool,
    copied_bytes: u64,
}

impl<M: Medium> Stream<M> {
    /// A stream on an open file, which was opened with the options of `mode`.
    pub fn new(medium: M, mode: Mode) -> Result<Self, Error> {
        // As in glibc: a stream that only appends starts at the end.
        let position = if mode.appends && !mode.readable { medium.size()? } else { 0 };
        Ok(Self {
            medium,
            mode,
            buffer_size: BUFFER_SIZE,
            position,
            ahead: Bytes::new(),
            pending: Vec::new(),
            unread: Vec::new(),
            at_end: false,
            failed: false,
            copied_bytes: 0,
        })
    }

    /// The file below. What the stream still holds is not in it.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// Fills `out` from the position on; fewer bytes at the end of the file only, which sets the
    /// end indicator. Returns how many.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, Error> {
        if out.is_empty() {
            return Ok(0);
        }
        self.start_reading()?;
        let mut filled = self.take_unread(out);
        filled += self.take_ahead(&mut out[filled..]);
        // The end indicator is sticky: it stays until a seek, an unread or `clear_error`.
        while filled < out.len() && !self.at_end {
            let rest = &mut out[filled..];
            let taken = if rest.len() >= self.buffer_size {
                self.read_past_buffer(rest)
            } else {
                self.fill_ahead().map(|()| self.take_ahead(rest))
            };
            match taken {
                Ok(count) => filled += count,
                // The bytes read are returned first; the indicator has the failure.
                Err(_) if filled > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    /// The bytes from the position on, at most `length`, in pieces and without a copy: only what
    /// was pushed back before is copied.
    pub fn read_bytes(&mut self, length: usize) -> Result<Vec<Bytes>, Error> {
        self.start_reading()?;
        let mut pushed_back = vec![0; self.unread.len().min(length)];
        let mut done = self.take_unread(&mut pushed_back);
        let mut parts = vec![Bytes::from(pushed_back)];
        let count = self.ahead.len().min(length - done);
        parts.push(self.ahead.split_to(count));
        self.position += count as u64;
        done += count;
        if done < length && !self.at_end {
            let read = self.medium.read_bytes_at(self.position, length - done);
            let read = self.note(read)?;
            let count: usize = read.iter().map(Bytes::len).sum();
            self.position += count as u64;
            self.at_end = count < length - done;
            parts.extend(read);
        }
        parts.retain(|part| !part.is_empty());
        Ok(parts)
    }

    /// Fills `out` from the position on, up to and including the first `delimiter`. Returns how
    /// many bytes; fewer than `out` has, without a `delimiter` at their end, at the end of the file
    /// only.
    pub fn read_until(&mut self, delimiter: u8, out: &mut [u8]) -> Result<usize, Error> {
        self.start_reading()?;
        let mut filled = 0;
        while filled < out.len() {
            let count = match self.read_some_until(delimiter, &mut out[filled..]) {
                Ok(0) => break,
                Ok(count) => count,
                // The bytes read are returned first; the indicator has the failure.
                Err(_) if filled > 0 => break,
                Err(error) => return Err(error),
            };
            filled += count;
            if out[filled - 1] == delimiter {
                break;
            }
        }
        Ok(filled)
    }

    /// Some bytes, of which only the last may be `delimiter`; none at the end of the file.
    fn read_some_until(&mut self, delimiter: u8, out: &mut [u8]) -> Result<usize, Error> {
        if !self.unread.is_empty() {
            return Ok(self.take_unread(&mut out[..1]));
        }
        if self.ahead.is_empty() && !self.at_end {
            if self.buffer_size == 0 {
                return self.read_past_buffer(&mut out[..1]);
            }
            self.fill_ahead()?;
        }
        let near = &self.ahead[..self.ahead.len().min(out.len())];
        let found = near.iter().position(|&byte| byte == delimiter);
        let count = found.map_or(near.len(), |index| index + 1);
        Ok(self.take_ahead(&mut out[..count]))
    }

    fn start_reading(&mut self) -> Result<(), Error> {
        if !self.mode.readable {
            return self.refuse("read", Cause::NotReadable);
        }
        self.flush()
    }

    fn take_unread(&mut self, out: &mut [u8]) -> usize {
        let count = out.len().min(self.unread.len());
        for byte in &mut out[..count] {
            *byte = self.unread.pop().unwrap_or_default();
        }
        count
    }

    fn take_ahead(&mut self, out: &mut [u8]) -> usize {
        let count = out.len().min(self.ahead.len());
        self.ahead.copy_to_slice(&mut out[..count]);
        self.position += count as u64;
        self.copied_bytes += count as u64;
        count
    }

    fn read_past_buffer(&mut self, out: &mut [u8]) -> Result<usize, Error> {
        let read = self.medium.read_at(self.position, out);
        let count = self.note(read)?;
        self.position += count as u64;
        self.at_end = count < out.len();
        Ok(count)
    }

    /// Reads ahead to the next multiple of the buffer's size, so that later fills are whole
    /// stripes.
    fn fill_ahead(&mut self) -> Result<(), Error> {
        let size = self.buffer_size as u64;
        let length = size - self.position % size;
        let read = self.medium.read_bytes_at(self.position, length as usize);
        let mut parts = self.note(read)?;
        self.ahead = match parts.len() {
            0 | 1 => parts.pop().unwrap_or_default(),
            _ => {
                let joined = Bytes::from(parts.concat());
                self.copied_bytes += joined.len() as u64;
                joined
            }
        };
        self.at_end = self.ahead.is_empty();
        Ok(())
    }

    /// Writes all of `data` at the position (at the end of the file, if the stream appends).
    ///
    /// If that fails the position is as before, and so is what the stream holds: a short write that
    /// failed because the buffer could not be written out can be tried again.
    pub fn write(&mut self, data: &[u8]) -> Result<(), Error> {
        if data.is_empty() {
            return Ok(());
        }
        self.start_writing()?;
        if data.len() < self.buffer_size {
            return self.write_buffered(data);
        }
        self.flush()?;
        self.copied_bytes += data.len() as u64;
        self.write_past_buffer(Bytes::copy_from_slice(data))
    }

    /// Writes all of `data` without a copy, if it is at least as long as the buffer.
    pub fn write_bytes(&mut self, data: Bytes) -> Result<(), Error> {
        if data.len() < self.buffer_size || data.is_empty() {
            return self.write(&data);
        }
        self.start_writing()?;
        self.flush()?;
        self.write_past_buffer(data)
    }

    /// Forgets what was read ahead or pushed back, and finds the place to write.
    fn start_writing(&mut self) -> Result<(), Error> {
        if !self.mode.writable {
            return self.refuse("write", Cause::NotWritable);
        }
        if self.pending.is_empty() && self.mode.appends {
            let size = self.medium.size();
            self.position = self.note(size)?;
        } else {
            self.position = self.tell();
        }
        self.ahead.clear();
        self.unread.clear();
        Ok(())
    }

    fn write_past_buffer(&mut self, data: Bytes) -> Result<(), Error> {
        let length = data.len() as u64;
        let written = if self.mode.appends {
            self.medium.append(data)
        } else {
            self.medium.write_at(self.position, data).map(|()| self.position + length)
        };
        self.position = self.note(written)?;
        Ok(())
    }

    fn write_buffered(&mut self, data: &[u8]) -> Result<(), Error> {
        let size = self.buffer_size;
        let start = self.position - self.pending.len() as u64;
        // The first buffer ends at a multiple of its size, so that later ones are whole stripes.
        let room = size - (start % size as u64) as usize - self.pending.len();
        let (now, later) = data.split_at(data.len().min(room));
        let (held, position) = (self.pending.len(), self.position);
        self.hold(now);
        if now.len() == room
            && let Err(error) = self.flush()
        {
            self.pending.truncate(held);
            self.position = position;
            return Err(error);
        }
        self.hold(later);
        Ok(())
    }

    fn hold(&mut self, data: &[u8]) {
        if self.pending.capacity() == 0 {
            self.pending.reserve_exact(self.buffer_size);
        }
        self.pending.extend_from_slice(data);
        self.position += data.len() as u64;
        self.copied_bytes += data.len() as u64;
    }

    /// Hands on what was written. If that fails it is kept.
    pub fn flush(&mut self) -> Result<(), Error> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let data = Bytes::from(std::mem::take(&mut self.pending));
        let start = self.position - data.len() as u64;
        let written = if self.mode.appends {
            self.medium.append(data.clone())
        } else {
            self.medium.write_at(start, data.clone()).map(|()| self.position)
        };
        match written {
            Ok(end) => {
                self.position = end;
                Ok(())
            }
            Err(error) => {
                self.pending = data.into();
                self.failed = true;
                Err(error)
            }
        }
    }

    /// Makes all that was written durable.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.flush()?;
        let synced = self.medium.sync();
        self.note(synced)
    }

    /// Moves the position, and returns it. Clears the end indicator and what was pushed back.
    pub fn seek(&mut self, offset: i64, whence: Whence) -> Result<u64, Error> {
        self.flush()?;
        let from = match whence {
            Whence::Set => 0,
            Whence::Current => self.tell(),
            Whence::End => {
                let size = self.medium.size();
                self.note(size)?
            }
        };
        let to = from.checked_add_signed(offset).filter(|&to| i64::try_from(to).is_ok());
        // As in C: the error indicator is for transfers only.
        let to = to.ok_or_else(|| self.medium.error("seek in", Cause::BadPosition))?;
        self.unread.clear();
        self.at_end = false;
        match to.checked_sub(self.position).and_then(|skip| usize::try_from(skip).ok()) {
            Some(skip) if skip <= self.ahead.len() => self.ahead.advance(skip),
            _ => self.ahead.clear(),
        }
        self.position = to;
        Ok(to)
    }

    /// The position of the next byte.
    pub fn tell(&self) -> u64 {
        self.position.saturating_sub(self.unread.len() as u64)
    }

    /// Pushes `byte` back: it is the next to be read, and the position is one less. Clears the end
    /// indicator. The file is not changed.
    pub fn unread(&mut self, byte: u8) -> Result<(), Error> {
        self.start_reading()?;
        if self.unread.len() == UNREAD_MAX {
            return Err(self.medium.error("push back into", Cause::UnreadFull));
        }
        self.unread.push(byte);
        self.at_end = false;
        Ok(())
    }

    /// Uses a buffer of `size` bytes from now on, at most [`BUFFER_SIZE_MAX`]; of none if 0.
    pub fn set_buffer(&mut self, size: usize) -> Result<(), Error> {
        self.flush()?;
        self.pending = Vec::new();
        self.ahead.clear();
        self.buffer_size = size.min(BUFFER_SIZE_MAX);
        Ok(())
    }

    /// Did a read meet the end of the file?
    pub fn is_at_end(&self) -> bool {
        self.at_end
    }

    /// Did a transfer fail?
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Clears both indicators.
    pub fn clear_error(&mut self) {
        self.at_end = false;
        self.failed = false;
    }

    /// Bytes that this stream has copied so far; see the module's list.
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    /// Hands on what was written and closes the stream. What could not be written is lost. It is
    /// durable only after a [`sync`](Self::sync).
    pub fn close(mut self) -> Result<(), Error> {
        let flushed = self.flush();
        self.pending.clear();
        flushed
    }

    /// Sets the error indicator if a transfer failed.
    fn note<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        self.failed |= result.is_err();
        result
    }

    fn refuse(&mut self, operation: &'static str, cause: Cause) -> Result<(), Error> {
        self.failed = true;
        Err(self.medium.error(operation, cause))
    }
}

impl<M: Medium> Drop for Stream<M> {
    fn drop(&mut self) {
        if let Err(error) = self.flush() {
            tracing::error!(%error, "a stream was dropped, not closed, and its last bytes are lost");
        }
    }
}
