//! Files that all programs open, write, append to, cut, sync and read.
//!
//! What a program reads after an open holds every byte that was written, by whomever, before that:
//! [`Content`] knows since when each byte was answered.

use std::cell::RefCell;

use client::{OpenOptions, Regions};
use runtime::seed::Rng;
use runtime::sync::KeyedLock;

use super::asker::Asker;
use super::reach::Reach;
use super::{PowerCut, end};
use crate::content::{BLOCK, Content};
use crate::files::{Habits, any_bytes};

/// So long a read is asked for in several pieces at once.
const LONG_READ_BYTES: usize = 9 << 20;

type File = client::File<Reach>;

/// The files, and what they may hold.
pub(super) struct Shared {
    habits: Habits,
    contents: Vec<RefCell<Content>>,
    /// Shared by those who write blocks of their own; exclusive to cut, to append, to write any.
    locks: KeyedLock<usize>,
    /// Blocks in a row that belong to one program.
    group: u64,
}

/// A file that a program keeps open, and the position in it.
struct Open {
    file: File,
    position: u64,
}

/// The files that one program keeps open.
pub(super) struct Handles(Vec<Option<Open>>);

impl Handles {
    /// None of `files` is open.
    pub(super) fn new(files: usize) -> Self {
        Self((0..files).map(|_| None).collect())
    }
}

fn path(file: usize) -> String {
    format!("/shared/{file}")
}

impl Shared {
    /// Files of these habits.
    pub(super) fn new(habits: Habits, group: u64) -> Self {
        let content = |_| RefCell::new(Content::new(habits.blocks));
        let contents = (0..habits.files).map(content).collect();
        Self { habits, contents, locks: KeyedLock::default(), group }
    }

    /// Makes the files, durably.
    pub(super) async fn create(&self, asker: &Asker<'_, Reach>) -> Result<(), PowerCut> {
        asker.ask(|| asker.system.mkdir("/shared")).await.or_else(end)?;
        for file in 0..self.contents.len() {
            asker.ask(|| asker.system.create(path(file))).await.or_else(end)?;
        }
        asker.ask(|| asker.system.sync()).await.or_else(end)
    }

    /// One operation on some file.
    pub(super) async fn step(
        &self,
        asker: &Asker<'_, Reach>,
        handles: &mut Handles,
        rng: &mut Rng,
    ) -> Result<(), PowerCut> {
        let index = rng.index(self.contents.len());
        let kept = &mut handles.0[index];
        if kept.is_none() || rng.chance(1, 8) {
            let options = OpenOptions::new().read(true).write(true);
            let file = asker.ask(|| asker.system.open(path(index), options)).await.or_else(end)?;
            *kept = Some(Open { file, position: 0 });
        }
        let Some(Open { file, position }) = kept else { return Ok(()) };
        match rng.below(74) {
            0..28 => self.write_own(asker, index, file, rng).await,
            28..32 => self.write_any(asker, index, file, rng).await,
            32..36 => self.append(asker, index, file, rng).await,
            36..40 => self.cut(asker, index, file, rng).await,
            40..50 => self.sync(asker, index, file).await,
            50..53 => self.look(asker, index, file).await,
            53..55 => {
                *kept = None;
                Ok(())
            }
            _ => {
                if rng.chance(1, 2) {
                    *position = rng.below(self.contents[index].borrow().size().1 + 2 * BLOCK);
                }
                *position += self.read(asker, index, file, *position, rng).await?;
                Ok(())
            }
        }
    }

    /// Writes somewhere in a group of blocks of the program's own.
    async fn write_own(
        &self,
        asker: &Asker<'_, Reach>,
        index: usize,
        file: &File,
        rng: &mut Rng,
    ) -> Result<(), PowerCut> {
        let _shared = self.locks.shared(index).await;
        if rng.chance(1, 4) {
            return self.write_own_list(asker, index, file, rng).await;
        }
        let range = self.habits.own_range(asker.client, self.group, false, rng);
        let Some(range) = range else { return Ok(()) };
        self.write(asker, index, file, range, rng).await
    }

    /// Writes a vector in a group of blocks of the program's own, and reads it.
    async fn write_own_list(
        &self,
        asker: &Asker<'_, Reach>,
        index: usize,
        file: &File,
        rng: &mut Rng,
    ) -> Result<(), PowerCut> {
        let range = self.habits.own_range(asker.client, self.group, false, rng);
        let Some((offset, length)) = range else { return Ok(()) };
        let block = rng.below(length.min(3 * BLOCK)) + 1;
        let stride = block + rng.below(2 * block);
        let count = ((length - block) / stride + 1).min(64);
        let regions = Regions::strided(offset, block, count, stride).expect("in a small file");
        let data = any_bytes(regions.bytes(), rng);
        let name = path(index);
        asker.tell(|| format!("{name}: write {count} times {block} from {offset}, each {stride}"));
        let content = &self.contents[index];
        let issued = content.borrow_mut().issue_list(&regions, &data);
        asker.ask(|| file.write_list(&regions, data.clone())).await.or_else(end)?;
        content.borrow_mut().acknowledge(&issued);

        let moment = content.borrow().moment();
        let read = || async {
            let mut out = vec![0; data.len()];
            let count = file.read_list(&regions, &mut out).await?;
            out.truncate(count);
            Ok(out)
        };
        let read = asker.ask(read).await.or_else(end)?;
        for region in regions.walk(0..u64::MAX) {
            let from = (region.position as usize).min(read.len());
            let to = ((region.position + region.length) as usize).min(read.len());
            let found = &read[from..to];
            let checked = content.borrow().check_read(&moment, region.offset, region.length, found);
            checked.unwrap_or_else(|wrong| panic!("{name}, in a list: {wrong}"));
        }
        Ok(())
    }

    /// Writes anywhere, while nobody else writes.
    async fn write_any(
        &self,
        asker: &Asker<'_, Reach>,
        index: usize,
        file: &File,
        rng: &mut Rng,
    ) -> Result<(), PowerCut> {
        let _alone = self.locks.exclusive(index).await;
        let range = self.habits.any_range(rng);
        self.write(asker, index, file, range, rng).await
    }

    async fn write(
        &self,
        asker: &Asker<'_, Reach>,
        index: usize,
        file: &File,
        (offset, length): (u64, u64),
        rng: &mut Rng,
    ) -> Result<(), PowerCut> {
        let data = any_bytes(length, rng);
        asker.tell(|| format!("{}: write {length} at {offset}", path(index)));
        let content = &self.contents[index];
        let issued = content.borrow_mut().issue_write(offset, &data);
        asker.ask(|| file.write_at(offset, data.clone())).await.or_else(end)?;
        content.borrow_mut().acknowledge(&issued);
        Ok(())
    }

    /// Appends, while nobody else writes. A program that does not know how much of it was done
    /// must not append again: it writes at the same place.
    async fn append(
        &self,
        asker: &Asker<'_, Reach>,
        index: usize,
        file: &File,
        rng: &mut Rng,
    ) -> Result<(), PowerCut> {
        let _alone = self.locks.exclusive(index).await;
        let content = &self.contents[index];
        let (offset, longest) = content.borrow().size();
        if offset != longest {
            assert!(asker.is_powerless(), "nobody else writes");
            return Err(PowerCut);
        }
        let room = self.habits.blocks as u64 * BLOCK - offset;
        let length = rng.below(self.habits.write_blocks * BLOCK) + 1;
        if length > room {
            return Ok(());
        }
        let data = any_bytes(length, rng);
        asker.tell(|| format!("{}: append {length} at {offset}", path(index)));
        let issued = content.borrow_mut().issue_write(offset, &data);
        let tried = std::cell::Cell::new(false);
        let append = || async {
            if tried.replace(true) {
                file.write_at(offset, data.clone()).await.map(|()| offset + length)
            } else {
                file.append(data.clone()).await
            }
        };
        let end_now = asker.ask(append).await.or_else(end)?;
        assert_eq!(end_now, offset + length, "where the appended bytes end");
        content.borrow_mut().acknowledge(&issued);
        Ok(())
    }

    /// Cuts or lengthens the file, or empties it by opening it.
    async fn cut(
        &self,
        asker: &Asker<'_, Reach>,
        index: usize,
        file: &File,
        rng: &mut Rng,
    ) -> Result<(), PowerCut> {
        let _alone = self.locks.exclusive(index).await;
        let content = &self.contents[index];
        let size = self.habits.any_size(content.borrow().size().1, rng);
        asker.tell(|| format!("{}: cut to {size}", path(index)));
        let issued = content.borrow_mut().issue_cut(size);
        if size == 0 && rng.chance(1, 2) {
            asker.ask(|| asker.system.create(path(index))).await.or_else(end)?;
        } else {
            asker.ask(|| file.set_len(size)).await.or_else(end)?;
        }
        content.borrow_mut().acknowledge(&issued);
        Ok(())
    }

    /// Reads from `offset`; how many bytes came.
    async fn read(
        &self,
        asker: &Asker<'_, Reach>,
        index: usize,
        file: &File,
        offset: u64,
        rng: &mut Rng,
    ) -> Result<u64, PowerCut> {
        let _shared = self.locks.shared(index).await;
        let length = match rng.below(16) {
            0 => LONG_READ_BYTES,
            _ => rng.below(40 * BLOCK) as usize,
        };
        let content = &self.contents[index];
        asker.tell(|| format!("{}: read {length} at {offset}", path(index)));
        let moment = content.borrow().moment();
        let read = asker.ask(|| file.read_bytes_at(offset, length)).await.or_else(end)?.concat();
        let checked = content.borrow().check_read(&moment, offset, length as u64, &read);
        checked.unwrap_or_else(|wrong| panic!("{}: {wrong}", path(index)));
        Ok(read.len() as u64)
    }

    async fn sync(
        &self,
        asker: &Asker<'_, Reach>,
        index: usize,
        file: &File,
    ) -> Result<(), PowerCut> {
        let _shared = self.locks.shared(index).await;
        let content = &self.contents[index];
        asker.tell(|| format!("{}: sync", path(index)));
        let moment = content.borrow().moment();
        asker.ask(|| file.sync()).await.or_else(end)?;
        content.borrow_mut().committed(&moment);
        Ok(())
    }

    /// Makes everything durable.
    pub(super) async fn sync_all(&self, asker: &Asker<'_, Reach>) -> Result<(), PowerCut> {
        asker.tell(|| "sync all".to_owned());
        let mut held = Vec::new();
        for index in 0..self.contents.len() {
            held.push(self.locks.shared(index).await);
        }
        let moments: Vec<_> =
            self.contents.iter().map(|content| content.borrow().moment()).collect();
        asker.ask(|| asker.system.sync()).await.or_else(end)?;
        for (content, moment) in self.contents.iter().zip(&moments) {
            content.borrow_mut().committed(moment);
        }
        Ok(())
    }

    async fn look(
        &self,
        asker: &Asker<'_, Reach>,
        index: usize,
        file: &File,
    ) -> Result<(), PowerCut> {
        let _shared = self.locks.shared(index).await;
        let content = &self.contents[index];
        let least = content.borrow().size().0;
        let by_handle = asker.ask(|| file.metadata()).await.or_else(end)?.size;
        let by_path = asker.ask(|| asker.system.metadata(path(index))).await.or_else(end)?.size;
        let most = content.borrow().size().1;
        for size in [by_handle, by_path] {
            let right = (least..=most).contains(&size);
            assert!(right, "{} has {size} bytes, not {least}..{most}", path(index));
        }
        Ok(())
    }

    async fn read_all(&self, asker: &Asker<'_, Reach>, index: usize) -> Vec<u8> {
        let length = (self.habits.blocks + 1) * BLOCK as usize;
        let options = OpenOptions::new().read(true);
        let read = asker.ask(|| async {
            let file = asker.system.open(path(index), options).await?;
            file.read_bytes_at(0, length).await
        });
        read.await.unwrap_or_else(|stop| panic!("{}: {stop:?}", path(index))).concat()
    }

    /// While nobody writes.
    pub(super) async fn check(&self, asker: &Asker<'_, Reach>) {
        for (index, content) in self.contents.iter().enumerate() {
            let data = self.read_all(asker, index).await;
            let observed = content.borrow_mut().observe(&data);
            observed.unwrap_or_else(|wrong| panic!("at rest, {}: {wrong}", path(index)));
        }
    }

    /// After the power went.
    pub(super) async fn check_after_crash(&self, asker: &Asker<'_, Reach>) {
        for (index, content) in self.contents.iter().enumerate() {
            let data = self.read_all(asker, index).await;
            let flushed = content.borrow_mut().flush(&data);
            flushed.unwrap_or_else(|wrong| panic!("after a crash, {}: {wrong}", path(index)));
        }
    }

    /// A clean stop follows.
    pub(super) fn all_committed(&self) {
        for content in &self.contents {
            let moment = content.borrow().moment();
            content.borrow_mut().committed(&moment);
        }
    }
}
