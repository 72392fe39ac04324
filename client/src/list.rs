//! List I/O: many regions of a file in one call (the programs of thesis section 2.6 read and write
//! parts of arrays).
//!
//! A long list goes in windows, several at once. A request contains the description of its regions;
//! the file's node computes where they lie.

use std::ops::Range;

use bytes::Bytes;
use fileio::protocol::{Error as FileIoError, ReadList, TRANSFER_MAX, WriteList};
use fileio::regions::Regions;
use futures::{StreamExt as _, stream};
use runtime::{Spawn, Undelivered};

use crate::error::{Cause, Error};
use crate::file::{File, PIECES_MAX, write_each};

/// Where a long region is cut, in the file: at whole blocks.
const ALIGN: u64 = 4096;

impl<S: Spawn> File<S> {
    /// Reads `regions`, one after the other, into `out`, which is long enough for all of them.
    /// Returns the number of bytes up to the last one that is in the file; bytes past its end
    /// before that one are zeros.
    pub async fn read_list(&self, regions: &Regions, out: &mut [u8]) -> Result<usize, Error> {
        let memory = Regions::contiguous(0, out.len() as u64).unwrap_or_default();
        self.read_list_into(regions, &memory, out).await
    }

    /// The same into regions of `out`: the first byte of `regions` goes to the first one of
    /// `memory`, and so on.
    pub async fn read_list_into(
        &self,
        regions: &Regions,
        memory: &Regions,
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let read = async {
            check_memory(regions, memory, out.len())?;
            if !self.options().read {
                return Err(Cause::NotReadable);
            }
            let windows = stream::iter(regions.windows(u64::from(TRANSFER_MAX), ALIGN));
            let mut reads =
                windows.map(|window| self.read_window(regions, window)).buffered(PIECES_MAX);
            let mut end = 0;
            while let Some(read) = reads.next().await {
                let (window, data) = read?;
                if data.is_empty() {
                    continue;
                }
                scatter(memory, end..window.start, &[], out);
                end = window.start + data.iter().map(|part| part.len() as u64).sum::<u64>();
                scatter(memory, window.start..end, &data, out);
            }
            self.machine().count_copy(end as usize);
            Ok(end as usize)
        };
        read.await.map_err(Error::of("read", self.path()))
    }

    async fn read_window(
        &self,
        regions: &Regions,
        window: Range<u64>,
    ) -> Result<(Range<u64>, Vec<Bytes>), Cause> {
        if let Some(offset) = only_region(regions, &window) {
            let data = self.read_pieces(offset, (window.end - window.start) as usize).await?;
            return Ok((window, data));
        }
        let (part, asked) = regions.part(&window);
        let (who, file, skip) = (self.session.who(), self.handle, asked.start);
        let length = (asked.end - asked.start) as u32;
        let read = ReadList { who, file, regions: part, skip, length };
        let unsynced = self.session.unsynced();
        let data = unsynced.read(self.machine(), self.handle, read).await?.data;
        if data.iter().map(Bytes::len).sum::<usize>() > length as usize {
            return Err(FileIoError::from(Undelivered::ProtocolMismatch).into());
        }
        Ok((window, data))
    }

    /// Writes `data` to `regions`, one after the other; it is as long as they are. Where regions
    /// overlap, either byte may stay. After a failure any part of it may have been written.
    pub async fn write_list(&self, regions: &Regions, data: impl Into<Bytes>) -> Result<(), Error> {
        let data = data.into();
        let written = async {
            let memory = Regions::contiguous(0, data.len() as u64).unwrap_or_default();
            check_memory(regions, &memory, data.len())?;
            let packed =
                |window: &Range<u64>| data.slice(window.start as usize..window.end as usize);
            self.write_windows(regions, packed).await
        };
        written.await.map_err(Error::of("write", self.path()))
    }

    /// The same out of regions of `data`: the first byte of `memory` goes to the first one of
    /// `regions`, and so on.
    pub async fn write_list_from(
        &self,
        regions: &Regions,
        memory: &Regions,
        data: &[u8],
    ) -> Result<(), Error> {
        let written = async {
            check_memory(regions, memory, data.len())?;
            self.write_windows(regions, |window| {
                let packed = gather(memory, window, data);
                self.machine().count_copy(packed.len());
                packed
            })
            .await
        };
        written.await.map_err(Error::of("write", self.path()))
    }

    async fn write_windows(
        &self,
        regions: &Regions,
        packed: impl Fn(&Range<u64>) -> Bytes,
    ) -> Result<(), Cause> {
        self.check_writable()?;
        let windows = regions.windows(u64::from(TRANSFER_MAX), ALIGN);
        write_each(windows, async |window: Range<u64>| {
            self.write_window(regions, &window, packed(&window)).await
        })
        .await
    }

    async fn write_window(
        &self,
        regions: &Regions,
        window: &Range<u64>,
        data: Bytes,
    ) -> Result<(), Cause> {
        if let Some(offset) = only_region(regions, window) {
            return self.write_piece(offset, data).await;
        }
        let (part, asked) = regions.part(window);
        let (who, file, skip) = (self.session.who(), self.handle, asked.start);
        let write = WriteList { who, file, regions: part, skip, data, durable: false };
        let (unsynced, user) = (self.session.unsynced(), self.session.user());
        let written = unsynced.write_list(self.machine(), self.unsynced_mark(), user, write).await;
        self.note_change();
        written?;
        Ok(())
    }
}

/// Where the window lies in the file, if it lies together.
fn only_region(regions: &Regions, window: &Range<u64>) -> Option<u64> {
    let mut walk = regions.walk(window.clone());
    let first = walk.next()?;
    walk.next().is_none().then_some(first.offset)
}

/// Is there a place in memory for each byte of the regions, and none outside of it?
fn check_memory(regions: &Regions, memory: &Regions, size: usize) -> Result<(), Cause> {
    let fits = memory.bytes() >= regions.bytes() && memory.end() <= size as u64;
    if fits { Ok(()) } else { Err(FileIoError::Invalid {}.into()) }
}

/// The bytes of a window, packed, from their places in memory.
fn gather(memory: &Regions, window: &Range<u64>, data: &[u8]) -> Bytes {
    let mut packed = Vec::with_capacity((window.end - window.start) as usize);
    for region in memory.walk(window.clone()) {
        packed.extend_from_slice(&data[region.offset as usize..][..region.length as usize]);
    }
    packed.into()
}

/// Copies the packed bytes of a window to their places in memory; zeros if there are none.
fn scatter(memory: &Regions, window: Range<u64>, data: &[Bytes], out: &mut [u8]) {
    let mut places = memory.walk(window.clone());
    if data.is_empty() {
        for place in places {
            out[place.offset as usize..][..place.length as usize].fill(0);
        }
        return;
    }
    let mut position = window.start;
    for part in data {
        let end = position + part.len() as u64;
        while position < end {
            places.skip_to(position);
            let Some(place) = places.next() else { return };
            let length = place.length.min(end - position) as usize;
            let start = part.len() - (end - position) as usize;
            out[place.offset as usize..][..length].copy_from_slice(&part[start..start + length]);
            position += length as u64;
        }
    }
}
