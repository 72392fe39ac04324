//! Files that all programs open, write, append to, cut, sync and read.
//!
//! What a program reads after an open holds every byte that was written, by whomever, before that:
//! [`ExpectedContent`] knows since when each byte was answered.

use std::cell::RefCell;

use client::{OpenOptions, Regions};
use runtime::seed::Rng;
use runtime::sync::KeyedLock;

use super::end;
use super::retrying_client::RetryingClient;
use super::spawn::ClusterSpawn;
use crate::content::{BLOCK, ExpectedContent};
use crate::files::{Habits, any_bytes};
use crate::harness::PowerCut;

/// A read of this length is split into several concurrent requests.
const LONG_READ_BYTES: usize = 9 << 20;

type SharedFile = client::File<ClusterSpawn>;

/// The files, and what they may hold.
pub(super) struct SharedFiles {
    habits: Habits,
    contents: Vec<RefCell<ExpectedContent>>,
    /// Shared by those who write blocks of their own; exclusive to cut, to append, to write any.
    locks: KeyedLock<usize>,
    /// Blocks in a row that belong to one program.
    group: u64,
}

/// A file that a program keeps open, and the position in it.
struct OpenSharedFile {
    file: SharedFile,
    position: u64,
}

/// The files that one program keeps open.
pub(super) struct Handles(Vec<Option<OpenSharedFile>>);

impl Handles {
    /// None of `files` is open.
    pub(super) fn new(files: usize) -> Self {
        Self((0..files).map(|_| None).collect())
    }
}

fn path(file: usize) -> String {
    format!("/shared/{file}")
}

impl SharedFiles {
    /// Files of these habits.
    pub(super) fn new(habits: Habits, group: u64) -> Self {
        let content = |_| RefCell::new(ExpectedContent::new(habits.blocks));
        let contents = (0..habits.files).map(content).collect();
        Self { habits, contents, locks: KeyedLock::default(), group }
    }

    /// Makes the files, durably.
    pub(super) async fn create(
        &self,
        client: &RetryingClient<'_, ClusterSpawn>,
    ) -> Result<(), PowerCut> {
        client.ask(|| client.system.mkdir("/shared")).await.or_else(end)?;
        for file in 0..self.contents.len() {
            client.ask(|| client.system.create(path(file))).await.or_else(end)?;
        }
        client.ask(|| client.system.sync()).await.or_else(end)
    }

    /// One operation on some file.
    pub(super) async fn step(
        &self,
        client: &RetryingClient<'_, ClusterSpawn>,
        handles: &mut Handles,
        rng: &mut Rng,
    ) -> Result<(), PowerCut> {
        let index = rng.index(self.contents.len());
        let kept = &mut handles.0[index];
        if kept.is_none() || rng.chance(1, 8) {
            let options = OpenOptions::new().read(true).write(true);
            let file =
                client.ask(|| client.system.open(path(index), options)).await.or_else(end)?;
            *kept = Some(OpenSharedFile { file, position: 0 });
        }
        let Some(OpenSharedFile { file, position }) = kept else { return Ok(()) };
        match rng.below(74) {
            0..28 => self.write_own(client, index, file, rng).await,
            28..32 => self.write_any(client, index, file, rng).await,
            32..36 => self.append(client, index, file, rng).await,
            36..40 => self.cut(client, index, file, rng).await,
            40..50 => self.sync(client, index, file).await,
            50..53 => self.look(client, index, file).await,
            53..55 => {
                *kept = None;
                Ok(())
            }
            _ => {
                if rng.chance(1, 2) {
                    *position = rng.below(self.contents[index].borrow().size().1 + 2 * BLOCK);
                }
                *position += self.read(client, index, file, *position, rng).await?;
                Ok(())
            }
        }
    }

    /// Writes somewhere in a group of blocks of the program's own.
    async fn write_own(
        &self,
        client: &RetryingClient<'_, ClusterSpawn>,
        index: usize,
        file: &SharedFile,
        rng: &mut Rng,
    ) -> Result<(), PowerCut> {
        let _shared = self.locks.shared(index).await;
        if rng.chance(1, 4) {
            return self.write_own_list(client, index, file, rng).await;
        }
        let range = self.habits.own_range(client.number, self.group, false, rng);
        let Some(range) = range else { return Ok(()) };
        self.write(client, index, file, range, rng).await
    }

    /// Writes a vector in a group of blocks of the program's own, and reads it.
    async fn write_own_list(
        &self,
        client: &RetryingClient<'_, ClusterSpawn>,
        index: usize,
        file: &SharedFile,
        rng: &mut Rng,
    ) -> Result<(), PowerCut> {
        let range = self.habits.own_range(client.number, self.group, false, rng);
        let Some((offset, length)) = range else { return Ok(()) };
        let block = rng.below(length.min(3 * BLOCK)) + 1;
        let stride = block + rng.below(2 * block);
        let count = ((length - block) / stride + 1).min(64);
        let regions = Regions::strided(offset, block, count, stride).expect("in a small file");
        let data = any_bytes(regions.bytes(), rng);
        let name = path(index);
        client.tell(|| format!("{name}: write {count} times {block} from {offset}, each {stride}"));
        let content = &self.contents[index];
        let issued = content.borrow_mut().issue_list(&regions, &data);
        client.ask(|| file.write_list(&regions, data.clone())).await.or_else(end)?;
        content.borrow_mut().acknowledge(&issued);

        let moment = content.borrow().moment();
        let read = || async {
            let mut out = vec![0; data.len()];
            let count = file.read_list(&regions, &mut out).await?;
            out.truncate(count);
            Ok(out)
        };
        let read = client.ask(read).await.or_else(end)?;
        for region in regions.walk(0..u64::MAX) {
            let from = (region.position as usize).min(read.len());
            let to = ((region.position + region.length) as usize).min(read.len());
            let found = &read[from..to];
            let checked = content.borrow().check_read(&moment, region.offset, region.length, found);
            checked.unwrap_or_else(|wrong| panic!("{name}, in a list: {wrong}"));
        }
        Ok(())
    }

    /// Writes anywhere, while there is no other writer.
    async fn write_any(
        &self,
        client: &RetryingClient<'_, ClusterSpawn>,
        index: usize,
        file: &SharedFile,
        rng: &mut Rng,
    ) -> Result<(), PowerCut> {
        let _alone = self.locks.exclusive(index).await;
        let range = self.habits.any_range(rng);
        self.write(client, index, file, range, rng).await
    }

    async fn write(
        &self,
        client: &RetryingClient<'_, ClusterSpawn>,
        index: usize,
        file: &SharedFile,
        (offset, length): (u64, u64),
        rng: &mut Rng,
    ) -> Result<(), PowerCut> {
        let data = any_bytes(length, rng);
        client.tell(|| format!("{}: write {length} at {offset}", path(index)));
        let content = &self.contents[index];
        let issued = content.borrow_mut().issue_write(offset, &data);
        client.ask(|| file.write_at(offset, data.clone())).await.or_else(end)?;
        content.borrow_mut().acknowledge(&issued);
        Ok(())
    }

    /// Appends, while there is no other writer. A program that does not know how much of it was done
    /// must not append again: it writes at the same place.
    async fn append(
        &self,
        client: &RetryingClient<'_, ClusterSpawn>,
        index: usize,
        file: &SharedFile,
        rng: &mut Rng,
    ) -> Result<(), PowerCut> {
        let _alone = self.locks.exclusive(index).await;
        let content = &self.contents[index];
        let (offset, longest) = content.borrow().size();
        if offset != longest {
            assert!(client.is_power_off(), "there is no other writer");
            return Err(PowerCut);
        }
        let room = self.habits.blocks as u64 * BLOCK - offset;
        let length = rng.below(self.habits.write_blocks * BLOCK) + 1;
        if length > room {
            return Ok(());
        }
        let data = any_bytes(length, rng);
        client.tell(|| format!("{}: append {length} at {offset}", path(index)));
        let issued = content.borrow_mut().issue_write(offset, &data);
        let tried = std::cell::Cell::new(false);
        let append = || async {
            if tried.replace(true) {
                file.write_at(offset, data.clone()).await.map(|()| offset + length)
            } else {
                file.append(data.clone()).await
            }
        };
        let end_now = client.ask(append).await.or_else(end)?;
        assert_eq!(end_now, offset + length, "where the appended bytes end");
        content.borrow_mut().acknowledge(&issued);
        Ok(())
    }

    /// Cuts or lengthens the file, or empties it by opening it.
    async fn cut(
        &self,
        client: &RetryingClient<'_, ClusterSpawn>,
        index: usize,
        file: &SharedFile,
        rng: &mut Rng,
    ) -> Result<(), PowerCut> {
        let _alone = self.locks.exclusive(index).await;
        let content = &self.contents[index];
        let size = self.habits.any_size(content.borrow().size().1, rng);
        client.tell(|| format!("{}: cut to {size}", path(index)));
        let issued = content.borrow_mut().issue_cut(size);
        if size == 0 && rng.chance(1, 2) {
            client.ask(|| client.system.create(path(index))).await.or_else(end)?;
        } else {
            client.ask(|| file.set_len(size)).await.or_else(end)?;
        }
        content.borrow_mut().acknowledge(&issued);
        Ok(())
    }

    /// Reads from `offset`; how many bytes came.
    async fn read(
        &self,
        client: &RetryingClient<'_, ClusterSpawn>,
        index: usize,
        file: &SharedFile,
        offset: u64,
        rng: &mut Rng,
    ) -> Result<u64, PowerCut> {
        let _shared = self.locks.shared(index).await;
        let length = match rng.below(16) {
            0 => LONG_READ_BYTES,
            _ => rng.below(40 * BLOCK) as usize,
        };
        let content = &self.contents[index];
        client.tell(|| format!("{}: read {length} at {offset}", path(index)));
        let moment = content.borrow().moment();
        let read = client.ask(|| file.read_bytes_at(offset, length)).await.or_else(end)?.concat();
        let checked = content.borrow().check_read(&moment, offset, length as u64, &read);
        checked.unwrap_or_else(|wrong| panic!("{}: {wrong}", path(index)));
        Ok(read.len() as u64)
    }

    async fn sync(
        &self,
        client: &RetryingClient<'_, ClusterSpawn>,
        index: usize,
        file: &SharedFile,
    ) -> Result<(), PowerCut> {
        let _shared = self.locks.shared(index).await;
        let content = &self.contents[index];
        client.tell(|| format!("{}: sync", path(index)));
        let moment = content.borrow().moment();
        client.ask(|| file.sync()).await.or_else(end)?;
        content.borrow_mut().committed(&moment);
        Ok(())
    }

    /// Makes everything durable.
    pub(super) async fn sync_all(
        &self,
        client: &RetryingClient<'_, ClusterSpawn>,
    ) -> Result<(), PowerCut> {
        client.tell(|| "sync all".to_owned());
        let mut held = Vec::new();
        for index in 0..self.contents.len() {
            held.push(self.locks.shared(index).await);
        }
        let moments: Vec<_> =
            self.contents.iter().map(|content| content.borrow().moment()).collect();
        client.ask(|| client.system.sync()).await.or_else(end)?;
        for (content, moment) in self.contents.iter().zip(&moments) {
            content.borrow_mut().committed(moment);
        }
        Ok(())
    }

    async fn look(
        &self,
        client: &RetryingClient<'_, ClusterSpawn>,
        index: usize,
        file: &SharedFile,
    ) -> Result<(), PowerCut> {
        let _shared = self.locks.shared(index).await;
        let content = &self.contents[index];
        let least = content.borrow().size().0;
        let by_handle = client.ask(|| file.metadata()).await.or_else(end)?.size;
        let by_path = client.ask(|| client.system.metadata(path(index))).await.or_else(end)?.size;
        let most = content.borrow().size().1;
        for size in [by_handle, by_path] {
            let right = (least..=most).contains(&size);
            assert!(right, "{} has {size} bytes, not {least}..{most}", path(index));
        }
        Ok(())
    }

    async fn read_all(&self, client: &RetryingClient<'_, ClusterSpawn>, index: usize) -> Vec<u8> {
        let length = (self.habits.blocks + 1) * BLOCK as usize;
        let options = OpenOptions::new().read(true);
        let read = client.ask(|| async {
            let file = client.system.open(path(index), options).await?;
            file.read_bytes_at(0, length).await
        });
        read.await.unwrap_or_else(|stop| panic!("{}: {stop:?}", path(index))).concat()
    }

    /// While there is no writer.
    pub(super) async fn check(&self, client: &RetryingClient<'_, ClusterSpawn>) {
        for (index, content) in self.contents.iter().enumerate() {
            let data = self.read_all(client, index).await;
            let observed = content.borrow_mut().observe(&data);
            observed.unwrap_or_else(|wrong| panic!("at rest, {}: {wrong}", path(index)));
        }
    }

    /// After the power went.
    pub(super) async fn check_after_crash(&self, client: &RetryingClient<'_, ClusterSpawn>) {
        for (index, content) in self.contents.iter().enumerate() {
            let data = self.read_all(client, index).await;
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
