//! The three ways to write and read regions.

use std::future::Future;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use client::{File, Region, Regions};
use futures::executor::block_on;
use runtime::protocol::{Call, ErrorOf};
use runtime::{ClientHandle, NodeId, Spawn};

/// Bytes of one piece of a span that is sieved: what ROMIO reads at a time.
const SIEVE_BYTES: u64 = 4 << 20;

/// A door that counts the requests which go through it.
#[derive(Clone, Debug)]
pub(crate) struct CountedResult {
    client_handle: ClientHandle,
    pub(crate) requests: Arc<AtomicU64>,
}

impl CountedResult {
    pub(crate) fn new(client_handle: ClientHandle) -> Self {
        Self { client_handle, requests: Arc::default() }
    }
}

impl Spawn for CountedResult {
    fn spawn<C: Call>(
        &self,
        to: NodeId,
        call: C,
    ) -> impl Future<Output = Result<C::Reply, ErrorOf<C>>> + 'static {
        self.requests.fetch_add(1, Relaxed);
        self.client_handle.spawn(to, call)
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + 'static {
        self.client_handle.sleep(duration)
    }

    fn fs_nodes(&self) -> u32 {
        self.client_handle.fs_nodes()
    }

    fn task<F: Future<Output = ()> + 'static>(
        &self,
        work: impl FnOnce(Self) -> F + Send + 'static,
    ) {
        let counted = self.clone();
        self.client_handle.task(move |client_handle| work(Self { client_handle, ..counted }));
    }
}

/// How.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListMethod {
    Single,
    Sieve,
    List,
}

impl ListMethod {
    pub(crate) const ALL: [Self; 3] = [Self::Single, Self::Sieve, Self::List];

    /// Writes the packed `data` to `regions`; those who sieve take `turns`.
    pub(crate) fn write(
        self,
        file: &File<CountedResult>,
        regions: &Regions,
        data: &Bytes,
        turns: &Mutex<()>,
    ) {
        match self {
            Self::Single => {
                for region in regions.walk(0..u64::MAX) {
                    let part = data.slice(packed(&region));
                    block_on(file.write_at(region.offset, part)).expect("there is room");
                }
            }
            Self::Sieve => {
                let _turn = turns.lock().unwrap_or_else(PoisonError::into_inner);
                block_on(sieve_write(file, regions, data));
            }
            Self::List => {
                block_on(file.write_list(regions, data.clone())).expect("there is room");
            }
        }
    }

    /// Reads `regions`, packed, into `out`.
    pub(crate) async fn read(self, file: &File<CountedResult>, regions: &Regions, out: &mut [u8]) {
        match self {
            Self::Single => {
                for region in regions.walk(0..u64::MAX) {
                    let part = &mut out[packed(&region)];
                    file.read_at(region.offset, part).await.expect("it was written");
                }
            }
            Self::Sieve => sieve_read(file, regions, out).await,
            Self::List => {
                let room = regions.bytes() as usize;
                let read = file.read_list(regions, &mut out[..room]).await;
                assert_eq!(read.expect("it was written"), room);
            }
        }
    }
}

/// Where a region's bytes are packed.
fn packed(region: &Region) -> Range<usize> {
    region.position as usize..(region.position + region.length) as usize
}

/// A piece of a span, and the parts in it.
type Sieved = (Range<u64>, Vec<(usize, Range<usize>)>);

/// The span of regions that are in order, in pieces, each with the parts of regions in it: where
/// they are in the piece, and where they are packed.
fn pieces(regions: &Regions) -> Vec<Sieved> {
    let mut pieces: Vec<Sieved> = Vec::new();
    for mut region in regions.walk(0..u64::MAX) {
        while region.length > 0 {
            if pieces.last().is_none_or(|(span, _)| region.offset >= span.start + SIEVE_BYTES) {
                pieces.push((region.offset..region.offset, Vec::new()));
            }
            let Some((span, parts)) = pieces.last_mut() else { break };
            let length = region.length.min(span.start + SIEVE_BYTES - region.offset);
            let part = Region { length, ..region };
            parts.push(((region.offset - span.start) as usize, packed(&part)));
            span.end = region.offset + length;
            region.offset += length;
            region.position += length;
            region.length -= length;
        }
    }
    pieces
}

async fn sieve_read(file: &File<CountedResult>, regions: &Regions, out: &mut [u8]) {
    let mut buffer = vec![0; SIEVE_BYTES as usize];
    for (span, parts) in pieces(regions) {
        let piece = &mut buffer[..(span.end - span.start) as usize];
        file.read_at(span.start, piece).await.expect("it was written");
        for (at, packed) in parts {
            out[packed.clone()].copy_from_slice(&piece[at..at + packed.len()]);
        }
    }
}

async fn sieve_write(file: &File<CountedResult>, regions: &Regions, data: &Bytes) {
    for (span, parts) in pieces(regions) {
        let mut piece = vec![0; (span.end - span.start) as usize];
        file.read_at(span.start, &mut piece).await.expect("it can be read");
        for (at, packed) in parts {
            piece[at..at + packed.len()].copy_from_slice(&data[packed]);
        }
        file.write_at(span.start, piece).await.expect("there is room");
    }
}
