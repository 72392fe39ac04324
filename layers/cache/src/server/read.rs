//! Reading: from the line, or first from the disk.

use std::ops::Range;
use std::rc::Rc;

use blockio::BLOCK_SIZE;
use bytes::Bytes;
use runtime::Undelivered;

use super::lines::Found;
use super::room::Patience;
use super::{Server, count};
use crate::line::Line;
use crate::protocol::{Error, Read};

/// Times that a read finds bytes missing before it is refused. More than one means that somebody
/// drops them at the same time, or that they were damaged.
const MISSING_MAX: u32 = 8;

/// Times that a read may find damage before it is told: a second read of the disk may heal it.
const DAMAGES_MAX: u32 = 2;

impl Server {
    /// Answers [`Read`], if all of it is here.
    pub(super) fn read_at_once(&self, request: &Read) -> Option<Result<Bytes, Error>> {
        let &Read { stripe, offset, length, ref expect } = request;
        let range = self.range(stripe, offset, u64::from(length)).ok()?;
        if range.is_empty() || !fits(&range, expect) {
            return None;
        }
        // Damage is dropped; who asks again reads the disk again.
        let found = self.lines.borrow_mut().read(stripe, &range, expect);
        let Found::Whole(bytes) = found else { return None };
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
        let (mut missing, mut damages) = (0, 0);
        let mut is_hit = true;
        loop {
            let found = self.lines.borrow_mut().read(stripe, &range, &expect);
            match found {
                Found::Whole(bytes) => {
                    if is_hit {
                        count(&self.counters.hits);
                    }
                    return Ok(bytes);
                }
                Found::Damaged(block) => {
                    damages += 1;
                    if damages == DAMAGES_MAX {
                        return Err(Error::Corrupt { stripe, block });
                    }
                }
                Found::Missing if missing == MISSING_MAX => return Err(Undelivered::Busy.into()),
                Found::Missing => {
                    missing += 1;
                    is_hit &= !self.fill(stripe, &range).await?;
                }
            }
        }
    }

    /// Reads what the line of `stripe` lacks, if it lacks any of `range`, in one piece: the whole
    /// stripe if nothing is known of it. False if somebody else had done so meanwhile.
    async fn fill(self: &Rc<Self>, stripe: u64, range: &Range<u32>) -> Result<bool, Error> {
        let mut patience = Patience::new();
        let _pin = loop {
            if let Some(pin) = self.pin_new(stripe) {
                break pin;
            }
            self.make_room(&mut patience).await?;
        };
        let _turn = self.filling.exclusive(stripe).await;
        let gaps = {
            let lines = self.lines.borrow();
            lines.get(stripe).filter(|line| !line.has(range)).map(Line::gaps)
        };
        let Some((gaps, hull)) = gaps.and_then(|gaps| gaps.hull().map(|hull| (gaps, hull))) else {
            return Ok(false);
        };
        count(&self.counters.misses);
        let length = hull.end - hull.start;
        let from_disk = self.below.read(stripe, hull.start, length, Vec::new()).await?;
        if from_disk.len() != length as usize {
            return Err(Undelivered::Garbled.into());
        }
        loop {
            let pool = self.context.pool();
            let filled = self
                .lines
                .borrow_mut()
                .change(stripe, |line| line.fill(hull.start, &from_disk, &gaps, pool));
            if matches!(filled, Some(Ok(()))) {
                return Ok(true);
            }
            self.make_room(&mut patience).await?;
        }
    }
}

/// Checksums are for whole blocks, one for each block of the range.
fn fits(range: &Range<u32>, expect: &[u32]) -> bool {
    let block = BLOCK_SIZE as u32;
    let is_whole = range.start.is_multiple_of(block) && range.end.is_multiple_of(block);
    expect.is_empty() || is_whole && expect.len() == range.len() / BLOCK_SIZE
}
