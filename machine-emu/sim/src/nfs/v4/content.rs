//! Files that all hosts open, write, commit, cut, read and close, compared with
//! [`ExpectedContent`].

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use runtime::seed::Rng;
use runtime::sync::KeyedLock;

use super::host::V4Open;
use super::wire::{ANONYMOUS, CompoundOps, CreateMode, WireOpenClaim, WireStateid, op, status};
use super::worker::V4Worker;
use crate::content::{BLOCK, ExpectedContent};
use crate::files::{Habits, any_bytes};
use crate::harness::WorkResult;
use crate::nfs::unstable::{UnstableWrites, overlap};

/// Bytes that one call reads, at most.
const READ_BYTES: u32 = 512 << 10;
/// To read and to write; nothing is forbidden to others.
const BOTH: (u32, u32) = (3, 0);
const FILE_SYNC: u32 = 2;

struct V4ContentFile {
    name: String,
    content: RefCell<ExpectedContent>,
    /// Its handle, once it was made.
    handle: RefCell<Option<Bytes>>,
    /// What copies of calls in sessions that are lost may still do.
    twins: RefCell<Vec<Range<u64>>>,
}

/// The files, and what they may hold.
pub(super) struct V4Files {
    habits: Habits,
    all: Vec<V4ContentFile>,
    /// Shared by those who write blocks of their own; exclusive to cut, and to write any.
    locks: KeyedLock<usize>,
    /// Blocks in a row that belong to one worker.
    group: u64,
    unstable: UnstableWrites,
    /// The opening of each worker.
    opened: RefCell<BTreeMap<(u32, usize), u64>>,
}

impl V4Files {
    /// They are made when they are opened first.
    pub(super) fn new(habits: Habits, group: u64) -> Self {
        let file = |number| V4ContentFile {
            name: format!("file-{number}"),
            content: RefCell::new(ExpectedContent::new(habits.blocks)),
            handle: RefCell::default(),
            twins: RefCell::default(),
        };
        Self {
            habits,
            all: (0..habits.files).map(file).collect(),
            locks: KeyedLock::default(),
            group,
            unstable: UnstableWrites::default(),
            opened: RefCell::default(),
        }
    }

    /// One operation on some file.
    pub(super) async fn step(&self, worker: &V4Worker<'_>, rng: &mut Rng) -> WorkResult {
        let file = rng.index(self.all.len());
        match rng.below(100) {
            0..45 => self.write_own(worker, file, rng).await,
            45..50 => self.write_any(worker, file, rng).await,
            50..70 => self.read(worker, file, rng).await,
            70..83 => self.commit(worker, file).await,
            83..89 => self.cut(worker, file, rng).await,
            89..94 => self.look(worker, file).await,
            _ => self.close(worker, file).await,
        }
    }

    async fn write_own(&self, worker: &V4Worker<'_>, file: usize, rng: &mut Rng) -> WorkResult {
        let _shared = self.locks.shared(file).await;
        let range = self.habits.own_range(worker.number, self.group, false, rng);
        let Some(range) = range else { return Ok(()) };
        self.write(worker, file, range, rng).await
    }

    async fn write_any(&self, worker: &V4Worker<'_>, file: usize, rng: &mut Rng) -> WorkResult {
        let _alone = self.locks.exclusive(file).await;
        self.write(worker, file, self.habits.any_range(rng), rng).await
    }

    async fn write(
        &self,
        worker: &V4Worker<'_>,
        file: usize,
        (offset, length): (u64, u64),
        rng: &mut Rng,
    ) -> WorkResult {
        let data = any_bytes(length, rng);
        let stable = rng.below(10).saturating_sub(7) as u32;
        self.send_write(worker, (file, offset, data, stable), rng.chance(1, 8)).await
    }

    /// `stable_how4` in `stable`; without a state id if `anonymous`.
    async fn send_write(
        &self,
        worker: &V4Worker<'_>,
        (file, offset, data, stable): (usize, u64, Bytes, u32),
        anonymous: bool,
    ) -> WorkResult {
        let V4ContentFile { content, twins, .. } = &self.all[file];
        let range = offset..offset + data.len() as u64;
        if twins.borrow().iter().any(|twin| overlap(twin, &range)) {
            return Ok(());
        }
        let number = self.open(worker, file).await?;
        self.unstable.overwritten(file, &range);
        let issued = content.borrow_mut().issue_write(offset, &data);
        let answer = worker.ask(false, || {
            let (ops, stateid) = on(worker, number, anonymous)?;
            Some(ops.op(op::WRITE).fixed(&stateid).long(offset).word(stable).opaque(&data))
        });
        let Some(mut answer) = answer.await? else {
            twins.borrow_mut().push(range);
            self.forget(worker, file);
            return Ok(());
        };
        assert_eq!(answer.status, status::OK, "a write is refused");
        if answer.has_stray_twin {
            twins.borrow_mut().push(range);
        }
        answer.reply.done(op::PUTFH);
        let written = answer.reply.done(op::WRITE);
        let (count, committed, verifier) = (written.word(), written.word(), written.fixed());
        assert_eq!(count as usize, data.len(), "all bytes are taken");
        assert!(committed >= stable, "a write that shall be stable is not");
        if committed == FILE_SYNC {
            content.borrow_mut().acknowledge_durable(&issued);
        } else {
            content.borrow_mut().acknowledge(&issued);
            self.unstable.note((worker.number, file), (offset, data), verifier);
        }
        Ok(())
    }

    async fn read(&self, worker: &V4Worker<'_>, file: usize, rng: &mut Rng) -> WorkResult {
        let _shared = self.locks.shared(file).await;
        let number = self.open(worker, file).await?;
        let content = &self.all[file].content;
        let offset = rng.below(content.borrow().size().1 + 2 * BLOCK);
        let count = rng.below(40 * BLOCK) as u32;
        let moment = content.borrow().moment();
        let read = self.read_once(worker, number, (offset, count), rng.chance(1, 8)).await?;
        let Some((data, _)) = read else {
            self.forget(worker, file);
            return Ok(());
        };
        let checked = content.borrow().check_read(&moment, offset, u64::from(count), &data);
        checked.unwrap_or_else(|wrong| panic!("file {file}: {wrong}"));
        Ok(())
    }

    /// Bytes, and whether these are the last.
    async fn read_once(
        &self,
        worker: &V4Worker<'_>,
        number: u64,
        (offset, count): (u64, u32),
        anonymous: bool,
    ) -> WorkResult<Option<(Bytes, bool)>> {
        let answer = worker.ask(false, || {
            let (ops, stateid) = on(worker, number, anonymous)?;
            Some(ops.op(op::READ).fixed(&stateid).long(offset).word(count))
        });
        let Some(mut answer) = answer.await? else { return Ok(None) };
        assert_eq!(answer.status, status::OK, "a read is refused");
        answer.reply.done(op::PUTFH);
        let read = answer.reply.done(op::READ);
        let end = read.word() == 1;
        Ok(Some((read.opaque(), end)))
    }

    async fn commit(&self, worker: &V4Worker<'_>, file: usize) -> WorkResult {
        let lost = {
            let _shared = self.locks.shared(file).await;
            let number = self.open(worker, file).await?;
            let content = &self.all[file].content;
            let moment = content.borrow().moment();
            let answer = worker.ask(false, || {
                let (ops, _) = on(worker, number, false)?;
                Some(ops.op(op::COMMIT).long(0).word(0))
            });
            let Some(mut answer) = answer.await? else {
                self.forget(worker, file);
                return Ok(());
            };
            assert_eq!(answer.status, status::OK, "a commit is refused");
            answer.reply.done(op::PUTFH);
            let verifier = answer.reply.done(op::COMMIT).fixed();
            content.borrow_mut().committed(&moment);
            self.unstable.flush((worker.number, file), verifier)
        };
        if !lost.is_empty() {
            // The verifier has changed: all of it is written again. Others may write there by now.
            let _alone = self.locks.exclusive(file).await;
            for (offset, data) in lost {
                self.send_write(worker, (file, offset, data, 0), false).await?;
            }
        }
        Ok(())
    }

    async fn cut(&self, worker: &V4Worker<'_>, file: usize, rng: &mut Rng) -> WorkResult {
        let _alone = self.locks.exclusive(file).await;
        let V4ContentFile { content, twins, .. } = &self.all[file];
        if !twins.borrow().is_empty() {
            return Ok(());
        }
        let number = self.open(worker, file).await?;
        let size = self.habits.any_size(content.borrow().size().1, rng);
        let anonymous = rng.chance(1, 8);
        self.unstable.overwritten(file, &(0..u64::MAX));
        let issued = content.borrow_mut().issue_cut(size);
        let answer = worker.ask(true, || {
            let (ops, stateid) = on(worker, number, anonymous)?;
            Some(ops.cut(&stateid, size).look())
        });
        let answer = answer.await?;
        if answer.as_ref().is_none_or(|answer| answer.has_stray_twin) {
            twins.borrow_mut().push(0..u64::MAX);
        }
        let Some(mut answer) = answer else {
            self.forget(worker, file);
            return Ok(());
        };
        assert_eq!(answer.status, status::OK, "a cut is refused");
        answer.reply.done(op::PUTFH);
        let set = answer.reply.done(op::SETATTR);
        assert_eq!([set.word(), set.word()], [1, 1 << 4], "the size is set");
        assert_eq!(answer.reply.looked().0, size, "a cut gives the size");
        content.borrow_mut().acknowledge(&issued);
        Ok(())
    }

    async fn look(&self, worker: &V4Worker<'_>, file: usize) -> WorkResult {
        let _shared = self.locks.shared(file).await;
        let number = self.open(worker, file).await?;
        let content = &self.all[file].content;
        let least = content.borrow().size().0;
        let answer = worker.ask(false, || Some(on(worker, number, false)?.0.look())).await?;
        let Some(mut answer) = answer else {
            self.forget(worker, file);
            return Ok(());
        };
        assert_eq!(answer.status, status::OK, "a look is refused");
        let size = answer.reply.done_then_looked().0;
        let most = content.borrow().size().1;
        let right = (least..=most).contains(&size);
        assert!(right, "file {file} has {size} bytes, not {least}..{most}");
        Ok(())
    }

    async fn open(&self, worker: &V4Worker<'_>, file: usize) -> WorkResult<u64> {
        let key = (worker.number, file);
        let opened = self.opened.borrow().get(&key).copied();
        if let Some(number) = opened.filter(|number| worker.host.open(*number).is_some()) {
            return Ok(number);
        }
        let owner = format!("content-{}-{file}", worker.number);
        let V4ContentFile { name, handle, .. } = &self.all[file];
        let known = handle.borrow().clone();
        // By name or by handle, in turn.
        let opened = match known.filter(|_| self.opened.borrow().len().is_multiple_of(2)) {
            Some(handle) => open_handle(worker, &owner, BOTH, handle).await?,
            None if handle.borrow().is_some() => {
                open_root(worker, &owner, BOTH, (name, CreateMode::Existing)).await?
            }
            None => open_root(worker, &owner, BOTH, (name, CreateMode::Unchecked)).await?,
        };
        let open = opened.unwrap_or_else(|status| panic!("{name} cannot be opened: {status}"));
        handle.borrow_mut().get_or_insert_with(|| open.file.clone());
        let number = worker.host.add_open(open);
        self.opened.borrow_mut().insert(key, number);
        Ok(number)
    }

    /// The opening is of no use any more: the gateway has forgotten it with reason, or it is
    /// closed.
    fn forget(&self, worker: &V4Worker<'_>, file: usize) {
        self.opened.borrow_mut().remove(&(worker.number, file));
    }

    async fn close(&self, worker: &V4Worker<'_>, file: usize) -> WorkResult {
        let _shared = self.locks.shared(file).await;
        let Some(number) = self.opened.borrow_mut().remove(&(worker.number, file)) else {
            return Ok(());
        };
        worker.close(number).await
    }

    /// Compares all files while nothing is under way.
    pub(super) async fn check(&self, worker: &V4Worker<'_>, after_crash: bool) -> WorkResult {
        for (index, file) in self.all.iter().enumerate() {
            let mut data = Vec::new();
            let number = self.open(worker, index).await?;
            loop {
                let range = (data.len() as u64, READ_BYTES);
                let read = self.read_once(worker, number, range, false).await?;
                let (more, end) = read.unwrap_or_else(|| panic!("file {index} was closed"));
                data.extend(more);
                if end {
                    break;
                }
            }
            let right = file.content.borrow_mut().check_all(&data, after_crash);
            right.unwrap_or_else(|wrong| panic!("file {index}: {wrong}"));
            self.forget(worker, index);
            worker.close(number).await?;
        }
        Ok(())
    }

    /// A clean stop follows.
    pub(super) fn all_committed(&self) {
        self.all.iter().for_each(|file| file.content.borrow_mut().all_committed());
    }

    /// The server has started again.
    pub(super) fn restarted(&self) {
        self.unstable.restarted();
    }

    /// No gateway has anything under way.
    pub(super) fn forget_twins(&self) {
        self.all.iter().for_each(|file| file.twins.borrow_mut().clear());
    }
}

/// The beginning of a request on an open file, and the state id with which bytes are used.
pub(super) fn on(
    worker: &V4Worker<'_>,
    number: u64,
    anonymous: bool,
) -> Option<(CompoundOps, WireStateid)> {
    let V4Open { file, stateid, lock, .. } = worker.host.open(number)?;
    // Who has a lock says so.
    let stateid = lock.map_or(stateid, |lock| lock.stateid);
    Some((CompoundOps::default().put(&file), if anonymous { ANONYMOUS } else { stateid }))
}

/// Opens a name in the root; the error is the status.
pub(super) async fn open_root(
    worker: &V4Worker<'_>,
    owner: &str,
    sharing: (u32, u32),
    (name, how): (&str, CreateMode),
) -> WorkResult<Result<V4Open, u32>> {
    let claim = WireOpenClaim::Name(name, how);
    let answer = worker.ask(true, || {
        Some(CompoundOps::default().root().open(owner.as_bytes(), sharing, claim).op(op::GETFH))
    });
    let mut answer = answer.await?.unwrap_or_else(|| unreachable!("it needs nothing"));
    if answer.status != status::OK {
        return Ok(Err(answer.status));
    }
    answer.reply.done(op::PUTROOTFH);
    let stateid = answer.reply.opened();
    let file = answer.reply.done(op::GETFH).opaque();
    let owner = owner.as_bytes().to_vec();
    Ok(Ok(V4Open { file, owner, sharing, stateid, lock: None, closing: false }))
}

/// Opens what a handle stands for.
async fn open_handle(
    worker: &V4Worker<'_>,
    owner: &str,
    sharing: (u32, u32),
    file: Bytes,
) -> WorkResult<Result<V4Open, u32>> {
    let (owner, claim) = (owner.as_bytes().to_vec(), WireOpenClaim::Here);
    let answer =
        worker.ask(true, || Some(CompoundOps::default().put(&file).open(&owner, sharing, claim)));
    let mut answer = answer.await?.unwrap_or_else(|| unreachable!("it needs nothing"));
    if answer.status != status::OK {
        return Ok(Err(answer.status));
    }
    answer.reply.done(op::PUTFH);
    let stateid = answer.reply.opened();
    Ok(Ok(V4Open { file, owner, sharing, stateid, lock: None, closing: false }))
}
