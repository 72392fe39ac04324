//! Several ranges in one request.

use fileio::protocol::{Credentials, ReadList, TRANSFER_MAX};
use fileio::regions::Regions;
use runtime::seed::Rng;

use super::super::content::BLOCK;
use super::super::harness::WorkResult;
use super::{ContentFile, FilesWorkload, Habits, any_range};

/// Ranges of one list, at most.
const RANGES_MAX: u64 = 8;

impl Habits {
    /// One range, or a few: each an `any`.
    pub(super) fn few(
        rng: &mut Rng,
        mut any: impl FnMut(&mut Rng) -> Option<(u64, u64)>,
    ) -> Vec<(u64, u64)> {
        let count = if rng.chance(1, 3) { rng.below(RANGES_MAX) + 1 } else { 1 };
        (0..count).filter_map(|_| any(rng)).collect()
    }
}

/// The list of some ranges that is short enough for one request.
pub(super) fn list_of(ranges: &[(u64, u64)]) -> Regions {
    let mut room = u64::from(TRANSFER_MAX);
    let ranges = ranges.iter().map(|&(offset, length)| {
        let length = length.min(room);
        room -= length;
        (offset, length)
    });
    Regions::indexed(ranges).expect("a few ranges of a small file")
}

impl FilesWorkload<'_> {
    /// Reads a few ranges anywhere.
    pub(super) async fn read_list(&self, client: u32, file: usize, rng: &mut Rng) -> WorkResult {
        let _shared = self.locks.shared(file).await;
        let ContentFile { handle, content, .. } = &self.all[file];
        let most = content.borrow().size().1 + 2 * BLOCK;
        let count = rng.below(RANGES_MAX) + 1;
        let ranges: Vec<_> = (0..count).map(|_| any_range(0, most, 10 * BLOCK, rng)).collect();
        let regions = list_of(&ranges);
        let moments = self.moments(file);
        let (who, length) = (Credentials::root(), regions.bytes() as u32);
        let call = ReadList { who, file: *handle, regions: regions.clone(), skip: 0, length };
        let read = self.harness.ask(client, call).await;
        let data = read.or_else(Self::ended)?.data.concat();
        let moment = self.moment_of_read(moments);
        let content = content.borrow();
        let (least, longest) = content.sizes(&moment);
        for region in regions.walk(0..u64::MAX) {
            // What is surely in the file; of the rest it is known only that it may be missing.
            let sure = least.saturating_sub(region.offset).min(region.length);
            let (from, to) = (region.position as usize, (region.position + sure) as usize);
            let found = data.get(from..to.max(from)).unwrap_or_default();
            let checked = content.check_read(&moment, region.offset, sure, found);
            checked.unwrap_or_else(|wrong| panic!("file {file}, in a list: {wrong}"));
            let possible = longest.saturating_sub(region.offset).min(region.length);
            let past =
                (region.position + possible) as usize..(region.position + region.length) as usize;
            let past = past.start.min(data.len())..past.end.min(data.len());
            let is_empty = data[past].iter().all(|&byte| byte == 0);
            assert!(is_empty, "file {file}: past its end a list is not zeros");
        }
        Ok(())
    }
}
