//! Reading: from the line, or first from the disk.

use std::ops::Range;
use std::rc::Rc;

use blockio::checksum::unit_bytes;
use bytes::Bytes;
use futures::future::try_join_all;
use runtime::Undelivered;

use super::lines::LineLookup;
use super::room::RetryBudget;
use super::{Server, count};
use crate::extents::Extents;
use crate::line::Line;
use crate::protocol::{Error, Read};

/// Times that a read finds bytes missing before it is refused. More than one means that they are
/// dropped at the same time, or that they were damaged.
const MISSING_MAX: u32 = 8;

/// Times that a read may find damage before it is told: a second read of the disk may heal it.
const DAMAGES_MAX: u32 = 2;

impl Server {
    /// Answers [`Read`], if all of it is here.
    pub(super) fn try_read_now(&self, request: &Read) -> Option<Result<Bytes, Error>> {
        let &Read { stripe, offset, length, ref expect } = request;
        let range = self.range(stripe, offset, u64::from(length)).ok()?;
        if range.is_empty() || !fits(&range, expect) {
            return None;
        }
        // Damage is dropped; who asks again reads the disk again.
        let found = self.lines.borrow_mut().read(stripe, &range, expect);
        let LineLookup::Whole(bytes) = found else { return None };
        count(&self.counters.hits);
        Some(Ok(bytes))
    }

    /// Answers [`Read`].
    pub(super) async fn read(self: &Rc<Self>, request: Read) -> Result<Bytes, Error> {
        let Read { stripe, offset, length, expect } = request;
        let range = self.range(stripe, offset, u64::from(length))?;
        if !fits(&range, &expect) {
            return Err(Error::OutOfRange { stripe, offset, length });
        }
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let look = || self.lines.borrow_mut().read(stripe, &range, &expect);
        // All that is not known, in one piece: of a new line the whole stripe.
        let plan = |gaps: &Extents| gaps.hull().into_iter().collect();
        self.read_until_whole(stripe, std::slice::from_ref(&range), look, plan).await
    }

    /// Looks for what is asked until all of it is here. Where the line of `stripe` lacks any of
    /// `wanted`, reads what `plan` makes of that which it lacks in all.
    pub(super) async fn read_until_whole<T>(
        self: &Rc<Self>,
        stripe: u64,
        wanted: &[Range<u32>],
        look: impl Fn() -> LineLookup<T>,
        plan: impl Fn(&Extents) -> Vec<Range<u32>>,
    ) -> Result<T, Error> {
        let (mut missing, mut damages) = (0, 0);
        let mut is_hit = true;
        loop {
            match look() {
                LineLookup::Whole(found) => {
                    if is_hit {
                        count(&self.counters.hits);
                    }
                    return Ok(found);
                }
                LineLookup::Damaged(block) => {
                    damages += 1;
                    if damages == DAMAGES_MAX {
                        return Err(Error::Corrupt { stripe, block });
                    }
                }
                LineLookup::Missing if missing == MISSING_MAX => {
                    return Err(Undelivered::Busy.into());
                }
                LineLookup::Missing => {
                    missing += 1;
                    is_hit &= !self.fill(stripe, wanted, &plan).await?;
                }
            }
        }
    }

    /// If the line of `stripe` lacks any of `wanted`, reads what `plan` makes of that which it
    /// lacks in all. False if another request has done so meanwhile.
    async fn fill(
        self: &Rc<Self>,
        stripe: u64,
        wanted: &[Range<u32>],
        plan: impl FnOnce(&Extents) -> Vec<Range<u32>>,
    ) -> Result<bool, Error> {
        let mut patience = RetryBudget::new();
        let _pin = loop {
            if let Some(pin) = self.pin_new(stripe) {
                break pin;
            }
            self.make_room(&mut patience).await?;
        };
        let _turn = self.filling.exclusive(stripe).await;
        let gaps = {
            let lines = self.lines.borrow();
            let lacks = |line: &&Line| wanted.iter().any(|range| !line.has(range));
            lines.get(stripe).filter(lacks).map(Line::gaps)
        };
        let Some(gaps) = gaps else { return Ok(false) };
        let from_disk = match self.read_below(stripe, plan(&gaps)).await {
            // Perhaps not a part that is wanted.
            Err(Error::Unreadable { .. }) => {
                let lacking = |range| gaps.intersection(range).iter().collect::<Vec<_>>();
                let parts = wanted.iter().flat_map(lacking);
                self.read_below(stripe, parts.collect()).await?
            }
            read => read?,
        };
        loop {
            let filled = self.lines.borrow_mut().change(stripe, |line| {
                from_disk.iter().try_for_each(|(range, bytes)| {
                    let wanted = gaps.intersection(range);
                    line.fill(range.start, bytes, &wanted, self.context.pool())
                })
            });
            if matches!(filled, Some(Ok(()))) {
                return Ok(true);
            }
            self.make_room(&mut patience).await?;
        }
    }

    /// Reads parts of a stripe from its disk, at the same time, and notes what that costs.
    async fn read_below(
        &self,
        stripe: u64,
        parts: Vec<Range<u32>>,
    ) -> Result<Vec<(Range<u32>, Bytes)>, Error> {
        let start = self.context.now();
        let reads = parts.into_iter().map(|part| {
            count(&self.counters.misses);
            let reading = self.below.read(stripe, part.start, part.len() as u32, Vec::new());
            async move {
                let bytes = reading.await?;
                if bytes.len() == part.len() {
                    Ok((part, bytes))
                } else {
                    Err(Error::from(Undelivered::ProtocolMismatch))
                }
            }
        });
        let read = try_join_all(reads).await?;
        let bytes = read.iter().map(|(part, _)| part.len() as u32).sum();
        let took = self.context.now().saturating_sub(start);
        self.costs.borrow_mut().note(read.len() as u32, bytes, took);
        Ok(read)
    }
}

/// Checksums are for whole logical blocks, one for each of the range.
fn fits(range: &Range<u32>, expect: &[u32]) -> bool {
    expect.is_empty() || unit_bytes(range, expect.len()).is_some()
}
