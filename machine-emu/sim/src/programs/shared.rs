//! Files that all programs open, write, append to, cut, sync and read.
//!
//! A program reads every byte that any program wrote before the open: [`ExpectedContent`] knows
//! when each byte was answered.

use std::cell::RefCell;

use client::{OpenOptions, Regions};
use runtime::seed::Rng;
use runtime::sync::KeyedLock;

use super::retrying_client::ClusterClient;
use super::spawn::ClusterSpawn;
use crate::content::{BLOCK, ExpectedContent};
use crate::files::{Habits, any_bytes};
use crate::harness::{PowerCut, WorkResult};

/// A read of this length is split into several concurrent requests.
const LONG_READ_BYTES: usize = 9 << 20;

type SharedFile = client::File<ClusterSpawn>;

/// The files, and what they may hold.
pub(super) struct SharedFiles {
    habits: Habits,
    contents: Vec<RefCell<ExpectedContent>>,
    /// Shared to write one's own blocks; exclusive to cut, to append, to write any.
    locks: KeyedLock<usize>,
    /// Blocks in a row that belong to one program.
    group: u64,
}

/// A file that a program keeps open, and the position in it.
struct OpenSharedFile {
    file: SharedFile,
    position: u64,
}

/// One operation of a program on an open file.
struct SharedTurn<'a> {
    client: &'a ClusterClient<'a>,
    index: usize,
    file: &'a SharedFile,
    content: &'a RefCell<ExpectedContent>,
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
    pub(super) async fn create(&self, client: &ClusterClient<'_>) -> WorkResult {
        client.must(|| client.system.mkdir("/shared")).await?;
        for file in 0..self.contents.len() {
            client.must(|| client.system.create(path(file))).await?;
        }
        client.must(|| client.system.sync()).await
    }

    /// One operation on some file.
    pub(super) async fn step(
        &self,
        client: &ClusterClient<'_>,
        handles: &mut Handles,
        rng: &mut Rng,
    ) -> WorkResult {
        let index = rng.index(self.contents.len());
        let kept = &mut handles.0[index];
        if kept.is_none() || rng.chance(1, 8) {
            let options = OpenOptions::new().read(true).write(true);
            let file = client.must(|| client.system.open(path(index), options)).await?;
            *kept = Some(OpenSharedFile { file, position: 0 });
        }
        let Some(OpenSharedFile { file, position }) = kept else { return Ok(()) };
        let turn = &SharedTurn { client, index, file, content: &self.contents[index] };
        match rng.below(74) {
            0..28 => self.write_own(turn, rng).await,
            28..32 => self.write_any(turn, rng).await,
            32..36 => self.append(turn, rng).await,
            36..40 => self.cut(turn, rng).await,
            40..50 => self.sync(turn).await,
            50..53 => self.look(turn).await,
            53..55 => {
                *kept = None;
                Ok(())
            }
            _ => {
                if rng.chance(1, 2) {
                    *position = rng.below(turn.content.borrow().size().1 + 2 * BLOCK);
                }
                *position += self.read(turn, *position, rng).await?;
                Ok(())
            }
        }
    }

    /// Writes somewhere in a group of blocks of the program's own.
    async fn write_own(&self, turn: &SharedTurn<'_>, rng: &mut Rng) -> WorkResult {
        let _shared = self.locks.shared(turn.index).await;
        if rng.chance(1, 4) {
            return self.write_own_list(turn, rng).await;
        }
        let range = self.habits.own_range(turn.client.number, self.group, false, rng);
        let Some(range) = range else { return Ok(()) };
        self.write(turn, range, rng).await
    }

    /// Writes a vector in a group of blocks of the program's own, and reads it.
    async fn write_own_list(&self, turn: &SharedTurn<'_>, rng: &mut Rng) -> WorkResult {
        let range = self.habits.own_range(turn.client.number, self.group, false, rng);
        let Some((offset, length)) = range else { return Ok(()) };
        let block = rng.below(length.min(3 * BLOCK)) + 1;
        let stride = block + rng.below(2 * block);
        let count = ((length - block) / stride + 1).min(64);
        let regions = Regions::strided(offset, block, count, stride).expect("in a small file");
        let data = any_bytes(regions.bytes(), rng);
        let name = path(turn.index);
        turn.client
            .log(|| format!("{name}: write {count} times {block} from {offset}, each {stride}"));
        let issued = turn.content.borrow_mut().issue_list(&regions, &data);
        turn.client.must(|| turn.file.write_list(&regions, data.clone())).await?;
        turn.content.borrow_mut().acknowledge(&issued);

        let moment = turn.content.borrow().moment();
        let read = || async {
            let mut out = vec![0; data.len()];
            let count = turn.file.read_list(&regions, &mut out).await?;
            out.truncate(count);
            Ok(out)
        };
        let read = turn.client.must(read).await?;
        for region in regions.walk(0..u64::MAX) {
            let from = (region.position as usize).min(read.len());
            let to = ((region.position + region.length) as usize).min(read.len());
            let found = &read[from..to];
            let checked =
                turn.content.borrow().check_read(&moment, region.offset, region.length, found);
            checked.unwrap_or_else(|wrong| panic!("{name}, in a list: {wrong}"));
        }
        Ok(())
    }

    /// Writes anywhere, while there is no other writer.
    async fn write_any(&self, turn: &SharedTurn<'_>, rng: &mut Rng) -> WorkResult {
        let _alone = self.locks.exclusive(turn.index).await;
        let range = self.habits.any_range(rng);
        self.write(turn, range, rng).await
    }

    async fn write(
        &self,
        turn: &SharedTurn<'_>,
        (offset, length): (u64, u64),
        rng: &mut Rng,
    ) -> WorkResult {
        let data = any_bytes(length, rng);
        turn.client.log(|| format!("{}: write {length} at {offset}", path(turn.index)));
        let issued = turn.content.borrow_mut().issue_write(offset, &data);
        turn.client.must(|| turn.file.write_at(offset, data.clone())).await?;
        turn.content.borrow_mut().acknowledge(&issued);
        Ok(())
    }

    /// Appends, while there is no other writer. A program that does not know how much of it was
    /// done must not append again: it writes at the same place.
    async fn append(&self, turn: &SharedTurn<'_>, rng: &mut Rng) -> WorkResult {
        let _alone = self.locks.exclusive(turn.index).await;
        let (offset, longest) = turn.content.borrow().size();
        if offset != longest {
            assert!(turn.client.is_power_off(), "there is no other writer");
            return Err(PowerCut);
        }
        let room = self.habits.blocks as u64 * BLOCK - offset;
        let length = rng.below(self.habits.write_blocks * BLOCK) + 1;
        if length > room {
            return Ok(());
        }
        let data = any_bytes(length, rng);
        turn.client.log(|| format!("{}: append {length} at {offset}", path(turn.index)));
        let issued = turn.content.borrow_mut().issue_write(offset, &data);
        let tried = std::cell::Cell::new(false);
        let append = || async {
            if tried.replace(true) {
                turn.file.write_at(offset, data.clone()).await.map(|()| offset + length)
            } else {
                turn.file.append(data.clone()).await
            }
        };
        let end_now = turn.client.must(append).await?;
        assert_eq!(end_now, offset + length, "where the appended bytes end");
        turn.content.borrow_mut().acknowledge(&issued);
        Ok(())
    }

    /// Cuts or lengthens the file, or empties it by opening it.
    async fn cut(&self, turn: &SharedTurn<'_>, rng: &mut Rng) -> WorkResult {
        let _alone = self.locks.exclusive(turn.index).await;
        let size = self.habits.any_size(turn.content.borrow().size().1, rng);
        turn.client.log(|| format!("{}: cut to {size}", path(turn.index)));
        let issued = turn.content.borrow_mut().issue_cut(size);
        if size == 0 && rng.chance(1, 2) {
            turn.client.must(|| turn.client.system.create(path(turn.index))).await?;
        } else {
            turn.client.must(|| turn.file.set_len(size)).await?;
        }
        turn.content.borrow_mut().acknowledge(&issued);
        Ok(())
    }

    /// Reads from `offset`; how many bytes came.
    async fn read(&self, turn: &SharedTurn<'_>, offset: u64, rng: &mut Rng) -> WorkResult<u64> {
        let _shared = self.locks.shared(turn.index).await;
        let length = match rng.below(16) {
            0 => LONG_READ_BYTES,
            _ => rng.below(40 * BLOCK) as usize,
        };
        turn.client.log(|| format!("{}: read {length} at {offset}", path(turn.index)));
        let moment = turn.content.borrow().moment();
        let read = turn.client.must(|| turn.file.read_bytes_at(offset, length)).await?.concat();
        let checked = turn.content.borrow().check_read(&moment, offset, length as u64, &read);
        checked.unwrap_or_else(|wrong| panic!("{}: {wrong}", path(turn.index)));
        Ok(read.len() as u64)
    }

    async fn sync(&self, turn: &SharedTurn<'_>) -> WorkResult {
        let _shared = self.locks.shared(turn.index).await;
        turn.client.log(|| format!("{}: sync", path(turn.index)));
        let moment = turn.content.borrow().moment();
        turn.client.must(|| turn.file.sync()).await?;
        turn.content.borrow_mut().committed(&moment);
        Ok(())
    }

    /// Makes everything durable.
    pub(super) async fn sync_all(&self, client: &ClusterClient<'_>) -> WorkResult {
        client.log(|| "sync all".to_owned());
        let mut guards = Vec::new();
        for index in 0..self.contents.len() {
            guards.push(self.locks.shared(index).await);
        }
        let moments: Vec<_> =
            self.contents.iter().map(|content| content.borrow().moment()).collect();
        client.must(|| client.system.sync()).await?;
        for (content, moment) in self.contents.iter().zip(&moments) {
            content.borrow_mut().committed(moment);
        }
        Ok(())
    }

    async fn look(&self, turn: &SharedTurn<'_>) -> WorkResult {
        let _shared = self.locks.shared(turn.index).await;
        let least = turn.content.borrow().size().0;
        let by_handle = turn.client.must(|| turn.file.metadata()).await?.size;
        let by_path =
            turn.client.must(|| turn.client.system.metadata(path(turn.index))).await?.size;
        let most = turn.content.borrow().size().1;
        for size in [by_handle, by_path] {
            let right = (least..=most).contains(&size);
            assert!(right, "{} has {size} bytes, not {least}..{most}", path(turn.index));
        }
        Ok(())
    }

    async fn read_all(&self, client: &ClusterClient<'_>, index: usize) -> Vec<u8> {
        let length = (self.habits.blocks + 1) * BLOCK as usize;
        let options = OpenOptions::new().read(true);
        let read = client.ask(|| async {
            let file = client.system.open(path(index), options).await?;
            file.read_bytes_at(0, length).await
        });
        read.await.unwrap_or_else(|stop| panic!("{}: {stop:?}", path(index))).concat()
    }

    /// Compares all files while there is no writer, or after a power cut.
    pub(super) async fn check(&self, client: &ClusterClient<'_>, after_crash: bool) {
        for (index, content) in self.contents.iter().enumerate() {
            let data = self.read_all(client, index).await;
            let checked = content.borrow_mut().check_all(&data, after_crash);
            checked.unwrap_or_else(|wrong| panic!("{}: {wrong}", path(index)));
        }
    }

    /// A clean stop follows.
    pub(super) fn all_committed(&self) {
        self.contents.iter().for_each(|content| content.borrow_mut().all_committed());
    }
}
