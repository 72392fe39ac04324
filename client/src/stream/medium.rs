//! What a stream flows from and to.

use bytes::Bytes;

use crate::blocking::BlockingFile;
use crate::error::{Cause, Error};

/// What a stream needs of a file; tests put others in its place.
pub trait Medium {
    /// Fills `out` with the bytes from `offset`; fewer at the end only. Returns how many.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, Error>;
    /// The same without a copy, in pieces.
    fn read_bytes_at(&self, offset: u64, length: usize) -> Result<Vec<Bytes>, Error>;
    /// Writes all of `data` at `offset`.
    fn write_at(&self, offset: u64, data: Bytes) -> Result<(), Error>;
    /// Writes all of `data` at the end, and returns the new end.
    fn append(&self, data: Bytes) -> Result<u64, Error>;
    /// Bytes in it.
    fn size(&self) -> Result<u64, Error>;
    /// Makes what was written durable.
    fn sync(&self) -> Result<(), Error>;
    /// The error of an operation of the stream itself.
    fn error(&self, operation: &'static str, cause: Cause) -> Error;
}

impl Medium for BlockingFile {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, Error> {
        self.read_at(offset, out)
    }

    fn read_bytes_at(&self, offset: u64, length: usize) -> Result<Vec<Bytes>, Error> {
        self.read_bytes_at(offset, length)
    }

    fn write_at(&self, offset: u64, data: Bytes) -> Result<(), Error> {
        self.write_at(offset, data)
    }

    fn append(&self, data: Bytes) -> Result<u64, Error> {
        self.append(data)
    }

    fn size(&self) -> Result<u64, Error> {
        Ok(self.metadata()?.size)
    }

    fn sync(&self) -> Result<(), Error> {
        self.sync()
    }

    fn error(&self, operation: &'static str, cause: Cause) -> Error {
        Error::of(operation, self.path())(cause)
    }
}
