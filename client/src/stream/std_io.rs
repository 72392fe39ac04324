//! A stream as the standard library's traits have it.

use std::io::{self, Read, Seek, SeekFrom, Write};

use super::{Medium, Stream, Whence};
use crate::error::Cause;

impl<M: Medium> Read for Stream<M> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        Ok(self.read(out)?)
    }
}

impl<M: Medium> Write for Stream<M> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write(data)?;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(self.flush()?)
    }
}

impl<M: Medium> Seek for Stream<M> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (offset, whence) = match to {
            SeekFrom::Start(offset) => match i64::try_from(offset) {
                Ok(offset) => (offset, Whence::Set),
                Err(_) => return Err(self.medium.error("seek in", Cause::BadPosition).into()),
            },
            SeekFrom::Current(offset) => (offset, Whence::Current),
            SeekFrom::End(offset) => (offset, Whence::End),
        };
        Ok(self.seek(offset, whence)?)
    }

    fn stream_position(&mut self) -> io::Result<u64> {
        Ok(self.tell())
    }
}
