//! Several parts of one stripe in one request (list I/O).

use std::ops::Range;
use std::rc::Rc;

use blockio::{BLOCK_SIZE, BootId, blocks_of};
use bytes::Bytes;

use super::lines::LineLookup;
use super::{Server, count};
use crate::extents::Extents;
use crate::line::Line;
use crate::protocol::{Error, Extent, PARTS_MAX, ReadList, WriteList};

impl Server {
    /// Answers [`ReadList`], if all of it is here.
    pub(super) fn try_read_list_now(
        &self,
        request: &ReadList,
    ) -> Option<Result<Vec<Bytes>, Error>> {
        let ranges = self.ranges(request).ok()?;
        match self.look(request, &ranges) {
            LineLookup::Whole(parts) => {
                count(&self.counters.hits);
                Some(Ok(parts))
            }
            LineLookup::Damaged(_) | LineLookup::Missing => None,
        }
    }

    /// Answers [`ReadList`]. What is not here is read in as many pieces as cost least.
    pub(super) async fn read_list(self: &Rc<Self>, request: ReadList) -> Result<Vec<Bytes>, Error> {
        let ranges = self.ranges(&request)?;
        let look = || self.look(&request, &ranges);
        let plan = |gaps: &Extents| self.plan(gaps, &ranges);
        self.read_until_whole(request.stripe, &ranges, look, plan).await
    }

    fn look(&self, request: &ReadList, ranges: &[Range<u32>]) -> LineLookup<Vec<Bytes>> {
        let ReadList { stripe, extents, expect, unit } = request;
        let mut lines = self.lines.borrow_mut();
        let unit_bytes = unit * BLOCK_SIZE as u32;
        lines.read_list(*stripe, (extents, ranges), (expect, unit_bytes), self.context.pool())
    }

    /// What to read of that which a line lacks, if `wanted` is asked for.
    fn plan(&self, gaps: &Extents, wanted: &[Range<u32>]) -> Vec<Range<u32>> {
        let mut missing = Extents::default();
        for range in wanted {
            missing.insert_all(&gaps.intersection(range));
        }
        self.costs.borrow_mut().plan(missing.iter())
    }

    /// The logical blocks of the parts of a request that can be answered.
    fn ranges(&self, request: &ReadList) -> Result<Vec<Range<u32>>, Error> {
        let &ReadList { ref stripe, ref extents, ref expect, unit } = request;
        let mut end = 0;
        for &Extent { offset, length } in extents {
            let range = self.range(*stripe, offset, u64::from(length))?;
            if range.is_empty() || range.start < end {
                return Err(Error::OutOfRange { stripe: *stripe, offset, length });
            }
            end = range.end;
        }
        if self.map.geometry().is_unit(unit) {
            let ranges = blocks_of(extents, unit);
            let bytes: usize = ranges.iter().map(Range::len).sum();
            let fits = expect.is_empty() || expect.len() == bytes / (unit as usize * BLOCK_SIZE);
            if fits && !extents.is_empty() && extents.len() <= PARTS_MAX {
                return Ok(ranges);
            }
        }
        Err(Error::OutOfRange { stripe: *stripe, offset: 0, length: end })
    }

    /// Answers [`WriteList`], if there is room.
    pub(super) fn try_write_list_now(
        self: &Rc<Self>,
        request: &WriteList,
    ) -> Option<Result<BootId, Error>> {
        let WriteList { stripe, parts } = request;
        self.check_parts(request).ok()?;
        if self.must_wait(*stripe) {
            return None;
        }
        let (pool, now) = (self.context.pool(), self.context.now());
        if !self.try_change(*stripe, |line| line.write_list(parts, pool, now)) {
            return None;
        }
        self.note_written(*stripe);
        Some(Ok(self.boot_ids.own(*stripe)))
    }

    /// Answers [`WriteList`].
    pub(super) async fn write_list(self: &Rc<Self>, request: WriteList) -> Result<BootId, Error> {
        self.check_parts(&request)?;
        let WriteList { stripe, parts } = request;
        let change =
            |line: &mut Line| line.write_list(&parts, self.context.pool(), self.context.now());
        self.change(stripe, change).await
    }

    fn check_parts(&self, request: &WriteList) -> Result<(), Error> {
        let WriteList { stripe, parts } = request;
        if parts.is_empty() || parts.len() > PARTS_MAX {
            return Err(Error::OutOfRange { stripe: *stripe, offset: 0, length: 0 });
        }
        let mut ranges =
            parts.iter().map(|part| self.range(*stripe, part.offset, part.data.len() as u64));
        ranges.try_for_each(|range| range.map(drop))
    }
}
