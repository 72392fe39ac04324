//! Holes: making them, preparing for writes, and telling data from holes.

use fileio::protocol::{Allocate, Credentials, Error, PunchHole, Seek, SeekTarget};
use runtime::seed::Rng;

use super::super::content::BLOCK;
use super::super::harness::{CallFailure, PowerCut, WorkResult};
use super::{ContentFile, FilesWorkload, any_range};

impl FilesWorkload<'_> {
    /// Makes a hole, on a full volume too.
    pub(super) async fn punch(&self, client: u32, file: usize, rng: &mut Rng) -> WorkResult {
        let _alone = self.locks.exclusive(file).await;
        let end = self.habits.blocks as u64 * BLOCK;
        let (offset, length) = any_range(0, end, end, rng);
        let durable = rng.chance(1, 4);
        let ContentFile { handle, content, .. } = &self.all[file];
        let issued = content.borrow_mut().issue_punch(offset, length);
        let who = Credentials::root();
        let call = PunchHole { who, file: *handle, offset, length, durable };
        self.harness.ask(client, call).await.map(drop).or_else(Self::ended)?;
        if durable {
            content.borrow_mut().acknowledge_durable(&issued);
        } else {
            content.borrow_mut().acknowledge(&issued);
        }
        self.see_the_hole(client, file, (offset, offset + length)).await
    }

    /// No block is left in a hole that was just made. The caller holds the file alone.
    async fn see_the_hole(&self, client: u32, file: usize, (from, to): (u64, u64)) -> WorkResult {
        let block = self.harness.cluster.block_bytes();
        let (from, to) = (from.next_multiple_of(block), to / block * block);
        let size = self.all[file].content.borrow().size().0;
        if from >= to || from >= size {
            return Ok(());
        }
        let hole = self.find(client, file, from, SeekTarget::Hole {}).await?;
        assert_eq!(hole, Some(from), "file {file}: a hole begins there, of {size} bytes");
        let data = self.find(client, file, from, SeekTarget::Data {}).await?;
        assert!(data.is_none_or(|data| data >= to), "file {file}: {data:?} is in {from}..{to}");
        Ok(())
    }

    async fn find(
        &self,
        client: u32,
        file: usize,
        offset: u64,
        target: SeekTarget,
    ) -> WorkResult<Option<u64>> {
        let (who, file) = (Credentials::root(), self.all[file].handle);
        self.harness.ask(client, Seek { who, file, offset, target }).await.or_else(Self::ended)
    }

    /// Allocates blocks; the file may become longer.
    pub(super) async fn allocate(&self, client: u32, file: usize, rng: &mut Rng) -> WorkResult {
        let _alone = self.locks.exclusive(file).await;
        let end = self.habits.blocks as u64 * BLOCK;
        let (offset, length) = any_range(0, end, end, rng);
        let (keep_size, durable) = (rng.chance(1, 2), rng.chance(1, 4));
        let ContentFile { handle, content, .. } = &self.all[file];
        let before = content.borrow().size().1;
        let size = if keep_size { before } else { before.max(offset + length) };
        let issued = (size > before).then(|| content.borrow_mut().issue_cut(size));
        let who = Credentials::root();
        let call = Allocate { who, file: *handle, offset, length, keep_size, durable };
        match self.harness.ask(client, call).await {
            Ok(attributes) => {
                if attributes.size != size && self.harness.is_uncertain() {
                    return Err(PowerCut);
                }
                assert_eq!(attributes.size, size, "file {file}: the size after an allocation");
                if let Some(issued) = issued {
                    content.borrow_mut().acknowledge(&issued);
                }
                Ok(())
            }
            Err(CallFailure::Refused(Error::NoSpace {})) if self.habits.fills => {
                self.see_what_is_left(client, file).await
            }
            Err(failure) => Self::ended(failure),
        }
    }

    /// Looks for data or a hole: what is passed over as a hole must be able to be zeros.
    pub(super) async fn seek(&self, client: u32, file: usize, rng: &mut Rng) -> WorkResult {
        let _shared = self.locks.shared(file).await;
        let content = &self.all[file].content;
        let (least, most) = content.borrow().size();
        let offset = rng.below(most + BLOCK);
        let is_data = rng.chance(1, 2);
        let target = if is_data { SeekTarget::Data {} } else { SeekTarget::Hole {} };
        let moment = content.borrow().moment();
        let found = self.find(client, file, offset, target).await?;

        let content = content.borrow();
        let most = content.size().1;
        let case = format!("file {file} of {least}..{most} bytes, {target:?} from {offset}");
        let zeros = match found {
            Some(found) => {
                let at_end = !is_data && (least..=most).contains(&found);
                let at_block = found == offset || found.is_multiple_of(BLOCK);
                assert!(at_block || at_end, "{case}: {found} is inside of a block");
                assert!((offset..=most).contains(&found), "{case}: {found} is elsewhere");
                let block_end = (found / BLOCK + 1) * BLOCK;
                if is_data { offset..found } else { found..block_end.min(least).max(found) }
            }
            None if is_data => offset..least.max(offset),
            None => {
                assert!(offset >= least, "{case}: no hole, not even the end");
                return Ok(());
            }
        };
        let length = zeros.end - zeros.start;
        let checked = content.check_read(&moment, zeros.start, length, &vec![0; length as usize]);
        checked.unwrap_or_else(|wrong| panic!("{case}: {found:?}, but {wrong}"));
        Ok(())
    }
}
