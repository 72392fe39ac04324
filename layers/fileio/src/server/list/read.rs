//! Reading a window of a list.

use std::rc::Rc;

use bytes::Bytes;
use meta::attributes::access;
use runtime::buffer::{Buffer, Pool};
use runtime::protocol::Undelivered;

use super::super::base::MetadataAccess;
use super::super::commit::{ContentComponents, FileCommits};
use super::super::content::{ContentAccess, zeros};
use super::gather::PackedPart;
use super::{CHUNKS_MAX, ChunkParts, split, window};
use crate::protocol::{Error, Handle, ListData, ReadList};

/// Pieces that are shorter than this, in the middle, are packed by a copy: handing on a slice of
/// the cache costs more.
const SLICE_MIN: usize = 1024;

/// Zeros in one piece of an answer, at most.
const ZEROS_MAX: usize = 1 << 16;

/// The bytes of a window as they come, in any order.
enum PackedWindow {
    /// Copied to their places.
    Copied { buffer: Buffer, pool: Pool },
    /// As slices of the cache.
    Slices(Vec<(usize, Bytes)>),
}

impl PackedWindow {
    fn take(&mut self, part: PackedPart<'_>) {
        match (self, part) {
            (Self::Copied { buffer, .. }, PackedPart::Hole { position, length }) => {
                buffer[position..position + length].fill(0);
            }
            (Self::Copied { buffer, pool }, PackedPart::Data { position, bytes, range }) => {
                let length = range.len();
                buffer[position..position + length].copy_from_slice(&bytes[range]);
                pool.count_copy(length);
            }
            (Self::Slices(slices), PackedPart::Data { position, bytes, range }) => {
                slices.push((position, bytes.slice(range)));
            }
            (Self::Slices(slices), PackedPart::Hole { position, length }) => {
                for at in (0..length).step_by(ZEROS_MAX) {
                    slices.push((position + at, zeros(ZEROS_MAX.min(length - at))));
                }
            }
        }
    }

    /// The bytes in order.
    fn finish(self) -> Vec<Bytes> {
        match self {
            Self::Copied { buffer, .. } => vec![buffer.freeze()],
            Self::Slices(mut slices) => {
                if !slices.is_sorted_by_key(|&(position, _)| position) {
                    slices.sort_by_key(|&(position, _)| position);
                }
                slices.into_iter().map(|(_, bytes)| bytes).collect()
            }
        }
    }
}

/// Answers [`ReadList`].
pub(in super::super) struct ListReader {
    base: MetadataAccess,
    content: Rc<ContentAccess>,
    commits: Rc<FileCommits>,
}

impl ListReader {
    pub(in super::super) fn new((base, content, commits): ContentComponents) -> Self {
        Self { base, content, commits }
    }

    pub(in super::super) async fn read_list(&self, request: ReadList) -> Result<ListData, Error> {
        let outcome = self.read_list_once(&request).await;
        if outcome != Err(Error::Damaged {}) || self.base.is_read_only {
            return outcome;
        }
        self.commits.recover_lost_writes(request.file).await;
        self.read_list_once(&request).await
    }

    async fn read_list_once(&self, request: &ReadList) -> Result<ListData, Error> {
        let &ReadList { ref who, file, ref regions, skip, length } = request;
        let window = window(regions, skip, length as usize)?;
        let _reading = self.content.files.shared(file.ino).await;
        let before = self.base.attributes(file).await?;
        let write_verifier = self.base.information.write_verifier(file.ino);
        self.base.check_transfer(who, &before, access::READ)?;
        let chunk_size = u64::from(self.content.geometry.stripe_size);
        let groups = split(regions.walk(window), skip, chunk_size, before.size);
        let ends = groups.iter().flat_map(|group| &group.pieces);
        let ends = ends.map(|piece| piece.position + piece.length);
        let Some(end) = ends.max() else {
            return Ok(ListData { data: Vec::new(), attributes: before, write_verifier });
        };
        let data = self.read_groups(file, &groups, end).await?;
        let attributes = self.base.note_access(&before).await?;
        Ok(ListData { data, attributes, write_verifier })
    }

    /// The packed bytes of `groups`, which are `end` with what lies past the file's end between
    /// them.
    async fn read_groups(
        &self,
        file: Handle,
        groups: &[ChunkParts],
        end: usize,
    ) -> Result<Vec<Bytes>, Error> {
        let pieces = || groups.iter().flat_map(|group| &group.pieces);
        let mut packed = if end >= SLICE_MIN * pieces().count() {
            PackedWindow::Slices(Vec::with_capacity(pieces().count()))
        } else {
            let pool = self.base.context.pool().clone();
            PackedWindow::Copied { buffer: pool.take(end).ok_or(Undelivered::Busy)?, pool }
        };
        let inside: usize = pieces().map(|piece| piece.length).sum();
        if inside < end {
            Self::zeros_between(groups, &mut packed);
        }
        for step in groups.chunks(CHUNKS_MAX) {
            let mut held = Vec::with_capacity(step.len());
            for group in step {
                held.push(self.content.chunks.shared((file.ino, group.index)).await);
            }
            let chunks = self.content.maps(file, step).await?;
            self.content.gather((file.ino, step), &chunks, |part| packed.take(part)).await?;
        }
        Ok(packed.finish())
    }

    /// Zeros where no piece is packed: past the end of the file, before the last byte that is in
    /// it.
    fn zeros_between(groups: &[ChunkParts], packed: &mut PackedWindow) {
        let pieces = groups.iter().flat_map(|group| &group.pieces);
        let mut known: Vec<(usize, usize)> =
            pieces.map(|piece| (piece.position, piece.position + piece.length)).collect();
        known.sort_unstable();
        let mut at = 0;
        for (position, end) in known {
            if at < position {
                packed.take(PackedPart::Hole { position: at, length: position - at });
            }
            at = end;
        }
    }
}
