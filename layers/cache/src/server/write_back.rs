//! Writing dirty bytes back to the disk nodes, on request or in the background.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use blockio::BootId;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;
use runtime::Undelivered;

use super::{Server, count};
use crate::line::Line;
use crate::protocol::{Error, Unsynced, WriteBack};

/// Lines that one request or task writes back at a time.
const LINES_CONCURRENCY_MAX: usize = 16;

/// Restarts of disk nodes that one request may meet.
const RESTARTS_MAX: u32 = 8;

/// Pieces of one line that are written at a time.
const PIECES_CONCURRENCY_MAX: usize = 4;

impl Server {
    /// Answers [`WriteBack`].
    ///
    /// On success every stripe was written back completely to the disk nodes under the boot IDs
    /// that it returns. If a disk node has restarted meanwhile, everything is written back to it
    /// again.
    pub(super) async fn write_back(
        self: &Rc<Self>,
        request: WriteBack,
    ) -> Result<Vec<Unsynced>, Error> {
        let WriteBack { written, restarted } = request;
        for unsynced in &written {
            self.range(unsynced.stripe, 0, 0)?;
        }
        if let Some(Unsynced { stripe, boot_id }) = restarted {
            if stripe >= self.map.stripes() {
                return Err(Error::OutOfRange { stripe, offset: 0, length: 0 });
            }
            self.note_boot_id_below(stripe, boot_id);
        }
        let stripes: BTreeSet<u64> = written.iter().map(|unsynced| unsynced.stripe).collect();
        for _ in 0..RESTARTS_MAX {
            self.boot_ids.check(&written)?;
            let before = self.boot_ids.restarts();
            self.write_back_lines(stripes.iter().copied().collect()).await?;
            self.boot_ids.check(&written)?;
            // Else some of the stripes may be dirty again.
            if before == self.boot_ids.restarts() {
                self.lines.borrow_mut().note_synced(&stripes);
                return Ok(self.boot_ids.below(&stripes));
            }
        }
        Err(Undelivered::Busy.into())
    }

    /// Writes the dirty bytes of these stripes back, several lines at a time. Goes on after an
    /// error, so that one broken disk does not keep the others from being written, and returns the
    /// first.
    pub(super) async fn write_back_lines(self: &Rc<Self>, stripes: Vec<u64>) -> Result<(), Error> {
        let first_error = Cell::new(None);
        let write_back = async |stripe| {
            if let Err(error) = self.write_back_line(stripe).await {
                first_error.set(first_error.get().or(Some(error)));
            }
        };
        stream::iter(stripes).for_each_concurrent(LINES_CONCURRENCY_MAX, write_back).await;
        first_error.get().map_or(Ok(()), Err)
    }

    /// Writes the dirty bytes of one stripe back. When it returns well, everything that was dirty
    /// at the call has been answered by the layer below: if a write-back is under way already it
    /// waits for that one and writes what is dirty then.
    pub(super) async fn write_back_line(self: &Rc<Self>, stripe: u64) -> Result<(), Error> {
        let is_dirty = self.lines.borrow().get(stripe).is_some_and(Line::is_dirty);
        let Some(_pin) = is_dirty.then(|| self.pin(stripe)).flatten() else { return Ok(()) };
        let _turn = self.writing_back.exclusive(stripe).await;
        let begun = self.lines.borrow_mut().change(stripe, Line::begin_write_back);
        let Some(begun) = begun else { return Ok(()) };
        let first_error = Cell::new(None);
        let write = async |(offset, data)| {
            if let Err(error) = self.write_piece(stripe, offset, data).await {
                first_error.set(first_error.get().or(Some(error)));
            }
        };
        stream::iter(begun.pieces).for_each_concurrent(PIECES_CONCURRENCY_MAX, write).await;
        let since = begun.dirty_since;
        self.lines.borrow_mut().change(stripe, |line| line.end_write_back(since));
        let result = first_error.get().map_or(Ok(()), Err);
        self.refusals.note(&self.map, stripe, result);
        result
    }

    async fn write_piece(
        self: &Rc<Self>,
        stripe: u64,
        offset: u32,
        data: Bytes,
    ) -> Result<(), Error> {
        let range = offset..offset + data.len() as u32;
        count(&self.counters.write_backs);
        let boot_id = self.below.write(stripe, offset, vec![data]).await?;
        self.note_boot_id_below(stripe, boot_id);
        self.lines.borrow_mut().change(stripe, |line| line.written_back(&range));
        Ok(())
    }

    /// Notes the boot ID that the disk node of `stripe` has returned. If it has restarted, all
    /// bytes that it received become dirty again.
    fn note_boot_id_below(self: &Rc<Self>, stripe: u64, boot_id: BootId) {
        if !self.boot_ids.note_below(stripe, boot_id) {
            return;
        }
        let (disk_node, now) = (self.map.disk_node(stripe), self.context.now());
        let mut lines = self.lines.borrow_mut();
        let given = lines.given().filter(|&stripe| self.map.disk_node(stripe) == disk_node);
        let given: Vec<u64> = given.collect();
        tracing::warn!(%disk_node, lines = given.len(), "a disk node has restarted");
        for stripe in given {
            lines.change(stripe, |line| line.give_again(now));
        }
        drop(lines);
        self.note_dirty();
    }
}
