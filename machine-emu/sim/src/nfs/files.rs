//! Files that all hosts write, commit, cut and read, compared with [`ExpectedContent`].
//!
//! As a real client, a host keeps what it wrote unstably until a COMMIT with the same verifier;
//! when the verifier has changed it writes all of it again.

use std::cell::RefCell;
use std::ops::Range;

use bytes::Bytes;
use nfs3_types::nfs3::{
    COMMIT3args, COMMIT3res, CREATE3args, CREATE3res, GETATTR3args, GETATTR3res, NFS_PROGRAM,
    Nfs3Option, Nfs3Result, READ3args, READ3res, SETATTR3args, SETATTR3res, WRITE3args, WRITE3res,
    createhow3, nfs_fh3, nfsstat3, sattr3, stable_how, writeverf3,
};
use nfs3_types::xdr_codec::Opaque;
use runtime::seed::Rng;
use runtime::sync::KeyedLock;

use super::link::{HostLink, NfsCall, V3Worker};
use super::lookup::at;
use super::rules;
use super::unstable::{UnstableWrites, overlap};
use crate::content::{BLOCK, ExpectedContent};
use crate::files::{Habits, any_bytes};
use crate::harness::{PowerCut, WorkResult};
use crate::planted::Planted;

/// Bytes that one call reads, at most.
const READ_BYTES: u32 = 512 << 10;

/// A planted bug drops one write in this number.
const DROPPED_IN: u32 = 16;

/// A call that the power cut left unanswered.
enum UnansweredCall {
    Write { file: usize, offset: u64, data: Bytes, stable: stable_how, call: NfsCall },
    Cut { file: usize, size: u64, call: NfsCall },
}

struct V3ContentFile {
    handle: nfs_fh3,
    content: RefCell<ExpectedContent>,
    /// What late twins of calls may still do: see [`rules::HAS_A_LATE_TWIN`].
    twins: RefCell<Vec<Range<u64>>>,
}

/// The files, and what they may hold.
pub(super) struct V3Files {
    habits: Habits,
    planted: Option<Planted>,
    all: Vec<V3ContentFile>,
    /// Shared by those who write blocks of their own; exclusive to cut, and to write any.
    locks: KeyedLock<usize>,
    /// Blocks in a row that belong to one worker.
    group: u64,
    unstable: UnstableWrites,
    unanswered: RefCell<Vec<(u32, UnansweredCall)>>,
}

fn refused<E: std::fmt::Debug>(what: &str, error: &(nfsstat3, E)) -> ! {
    panic!("{what} is refused: {error:?}")
}

impl V3Files {
    /// Makes the files.
    pub(super) async fn create(
        link: &HostLink<'_>,
        root: &nfs_fh3,
        habits: Habits,
        planted: Option<Planted>,
        group: u64,
    ) -> WorkResult<Self> {
        let mut all = Vec::new();
        for number in 0..habits.files {
            let name = format!("file-{number}");
            let how = createhow3::UNCHECKED(sattr3::default());
            let create = CREATE3args { where_: at(root, name.as_bytes()), how };
            let mut call = link.prepare(NFS_PROGRAM::NFSPROC3_CREATE, &create);
            let created: CREATE3res = link.ask(&mut call).await?;
            let handle = match created {
                Nfs3Result::Ok(created) => created.obj.unwrap(),
                Nfs3Result::Err(error) => refused("a file on an empty volume", &error),
            };
            let content = RefCell::new(ExpectedContent::new(habits.blocks));
            all.push(V3ContentFile { handle, content, twins: RefCell::default() });
        }
        Ok(Self {
            habits,
            planted,
            all,
            locks: KeyedLock::default(),
            group,
            unstable: UnstableWrites::default(),
            unanswered: RefCell::default(),
        })
    }

    /// One operation on some file.
    pub(super) async fn step(&self, worker: &V3Worker<'_>, rng: &mut Rng) -> WorkResult {
        let file = rng.index(self.all.len());
        match rng.below(100) {
            0..45 => self.write_own(worker, file, rng).await,
            45..50 => self.write_any(worker, file, rng).await,
            50..74 => self.read(worker.link, file, rng).await,
            74..88 => self.commit(worker, file).await,
            88..94 => self.cut(worker, file, rng).await,
            _ => self.look(worker.link, file).await,
        }
    }

    /// Sends again what the power cut left unanswered.
    pub(super) async fn resume(&self, worker: &V3Worker<'_>) -> WorkResult {
        loop {
            let index =
                self.unanswered.borrow().iter().position(|(whose, _)| *whose == worker.number);
            let Some(index) = index else { return Ok(()) };
            let (_, unanswered) = self.unanswered.borrow_mut().swap_remove(index);
            match unanswered {
                UnansweredCall::Write { file, offset, data, stable, call } => {
                    let _alone = self.locks.exclusive(file).await;
                    self.send_write(worker, (file, offset, data, stable), call).await?;
                }
                UnansweredCall::Cut { file, size, call } => {
                    let _alone = self.locks.exclusive(file).await;
                    self.send_cut(worker, (file, size), call).await?;
                }
            }
        }
    }

    async fn write_own(&self, worker: &V3Worker<'_>, file: usize, rng: &mut Rng) -> WorkResult {
        let _shared = self.locks.shared(file).await;
        let range = self.habits.own_range(worker.number, self.group, false, rng);
        let Some(range) = range else { return Ok(()) };
        self.write(worker, file, range, rng).await
    }

    async fn write_any(&self, worker: &V3Worker<'_>, file: usize, rng: &mut Rng) -> WorkResult {
        let _alone = self.locks.exclusive(file).await;
        let range = self.habits.any_range(rng);
        self.write(worker, file, range, rng).await
    }

    async fn write(
        &self,
        worker: &V3Worker<'_>,
        file: usize,
        (offset, length): (u64, u64),
        rng: &mut Rng,
    ) -> WorkResult {
        let range = offset..offset + length;
        if self.all[file].twins.borrow().iter().any(|twin| overlap(twin, &range)) {
            return Ok(());
        }
        let data = any_bytes(length, rng);
        let stable = match rng.below(10) {
            0..7 => stable_how::UNSTABLE,
            7 => stable_how::DATA_SYNC,
            _ => stable_how::FILE_SYNC,
        };
        let call = self.prepare_write(worker.link, file, offset, &data, stable);
        self.send_write(worker, (file, offset, data, stable), call).await
    }

    fn prepare_write(
        &self,
        link: &HostLink<'_>,
        file: usize,
        offset: u64,
        data: &[u8],
        stable: stable_how,
    ) -> NfsCall {
        let handle = self.all[file].handle.clone();
        let count = data.len() as u32;
        let data = Opaque::borrowed(data);
        let arguments = WRITE3args { file: handle, offset, count, stable, data };
        link.prepare(NFS_PROGRAM::NFSPROC3_WRITE, &arguments)
    }

    async fn send_write(
        &self,
        worker: &V3Worker<'_>,
        (file, offset, data, stable): (usize, u64, Bytes, stable_how),
        mut call: NfsCall,
    ) -> WorkResult {
        let V3ContentFile { content, twins, .. } = &self.all[file];
        let range = offset..offset + data.len() as u64;
        // Overwritten data need not be written again.
        self.unstable.overwritten(file, &range);
        let issued = content.borrow_mut().issue_write(offset, &data);
        let drops = self.planted == Some(Planted::DroppedWrites) && call.is_one_in(DROPPED_IN);
        let written = if drops {
            self.send_nothing(worker.link, file, data.len()).await
        } else {
            worker.link.ask(&mut call).await
        };
        let written: WorkResult<WRITE3res> = written;
        let Ok(written) = written else {
            let unanswered = UnansweredCall::Write { file, offset, data, stable, call };
            self.unanswered.borrow_mut().push((worker.number, unanswered));
            return Err(PowerCut);
        };
        let written = match written {
            Nfs3Result::Ok(written) => written,
            Nfs3Result::Err(error) => refused("a write", &error),
        };
        assert_eq!(written.count as usize, data.len(), "all bytes are taken");
        if rules::HAS_A_LATE_TWIN && call.is_doubled() {
            twins.borrow_mut().push(range);
        }
        assert!(
            stable == stable_how::UNSTABLE || written.committed == stable_how::FILE_SYNC,
            "a write that shall be stable is not"
        );
        if written.committed == stable_how::FILE_SYNC {
            content.borrow_mut().acknowledge_durable(&issued);
        } else {
            content.borrow_mut().acknowledge(&issued);
            self.unstable.note((worker.number, file), (offset, data), written.verf.0);
        }
        Ok(())
    }

    async fn read(&self, link: &HostLink<'_>, file: usize, rng: &mut Rng) -> WorkResult {
        let _shared = self.locks.shared(file).await;
        let content = &self.all[file].content;
        let offset = rng.below(content.borrow().size().1 + 2 * BLOCK);
        let count = rng.below(40 * BLOCK) as u32;
        let moment = content.borrow().moment();
        let (data, _) = self.read_once(link, file, offset, count).await?;
        let checked = content.borrow().check_read(&moment, offset, u64::from(count), &data);
        checked.unwrap_or_else(|wrong| panic!("file {file}: {wrong}"));
        Ok(())
    }

    /// Bytes, and whether these are the last.
    async fn read_once(
        &self,
        link: &HostLink<'_>,
        file: usize,
        offset: u64,
        count: u32,
    ) -> WorkResult<(Vec<u8>, bool)> {
        let arguments = READ3args { file: self.all[file].handle.clone(), offset, count };
        let mut call = link.prepare(NFS_PROGRAM::NFSPROC3_READ, &arguments);
        let read: READ3res<'static> = link.ask(&mut call).await?;
        match read {
            Nfs3Result::Ok(read) => {
                assert_eq!(read.count as usize, read.data.as_ref().len(), "the count of a read");
                Ok((read.data.into_owned(), read.eof))
            }
            Nfs3Result::Err(error) => refused("a read", &error),
        }
    }

    async fn commit(&self, worker: &V3Worker<'_>, file: usize) -> WorkResult {
        let lost = {
            let _shared = self.locks.shared(file).await;
            let content = &self.all[file].content;
            let moment = content.borrow().moment();
            let verifier = self.send_commit(worker.link, file).await?;
            content.borrow_mut().committed(&moment);
            self.unstable.flush((worker.number, file), verifier.0)
        };
        if !lost.is_empty() {
            // The verifier has changed: all of it is written again. Others may write there by now.
            let _alone = self.locks.exclusive(file).await;
            for (offset, data) in lost {
                let stable = stable_how::UNSTABLE;
                let call = self.prepare_write(worker.link, file, offset, &data, stable);
                self.send_write(worker, (file, offset, data, stable), call).await?;
            }
        }
        Ok(())
    }

    async fn send_commit(&self, link: &HostLink<'_>, file: usize) -> WorkResult<writeverf3> {
        if self.planted == Some(Planted::IdleCommits) {
            return match self.send_nothing(link, file, 0).await? {
                Nfs3Result::Ok(written) => Ok(written.verf),
                Nfs3Result::Err(error) => refused("a write of nothing", &error),
            };
        }
        let handle = self.all[file].handle.clone();
        let arguments = COMMIT3args { file: handle, offset: 0, count: 0 };
        let mut call = link.prepare(NFS_PROGRAM::NFSPROC3_COMMIT, &arguments);
        let committed: COMMIT3res = link.ask(&mut call).await?;
        match committed {
            Nfs3Result::Ok(committed) => Ok(committed.verf),
            Nfs3Result::Err(error) => refused("a commit", &error),
        }
    }

    /// For planted bugs: what a server answers to a write of `count` bytes that does nothing.
    async fn send_nothing(
        &self,
        link: &HostLink<'_>,
        file: usize,
        count: usize,
    ) -> WorkResult<WRITE3res> {
        let mut call = self.prepare_write(link, file, 0, &[], stable_how::UNSTABLE);
        let written: WRITE3res = link.ask(&mut call).await?;
        Ok(match written {
            Nfs3Result::Ok(mut written) => {
                written.count = count as u32;
                written.committed = stable_how::FILE_SYNC;
                Nfs3Result::Ok(written)
            }
            failed @ Nfs3Result::Err(_) => failed,
        })
    }

    async fn cut(&self, worker: &V3Worker<'_>, file: usize, rng: &mut Rng) -> WorkResult {
        let _alone = self.locks.exclusive(file).await;
        let V3ContentFile { handle, content, twins } = &self.all[file];
        if !twins.borrow().is_empty() {
            return Ok(());
        }
        let size = self.habits.any_size(content.borrow().size().1, rng);
        let new_attributes = sattr3 { size: Nfs3Option::Some(size), ..sattr3::default() };
        let (object, guard) = (handle.clone(), Nfs3Option::None);
        let arguments = SETATTR3args { object, new_attributes, guard };
        let call = worker.link.prepare(NFS_PROGRAM::NFSPROC3_SETATTR, &arguments);
        self.send_cut(worker, (file, size), call).await
    }

    async fn send_cut(
        &self,
        worker: &V3Worker<'_>,
        (file, size): (usize, u64),
        mut call: NfsCall,
    ) -> WorkResult {
        let V3ContentFile { content, twins, .. } = &self.all[file];
        // The clients' pages of the file are no longer valid.
        self.unstable.overwritten(file, &(0..u64::MAX));
        let issued = content.borrow_mut().issue_cut(size);
        let cut: WorkResult<SETATTR3res> = worker.link.ask(&mut call).await;
        let Ok(cut) = cut else {
            self.unanswered
                .borrow_mut()
                .push((worker.number, UnansweredCall::Cut { file, size, call }));
            return Err(PowerCut);
        };
        match cut {
            Nfs3Result::Ok(cut) => {
                if let Nfs3Option::Some(after) = cut.obj_wcc.after {
                    assert_eq!(after.size, size, "a cut gives the size");
                }
            }
            Nfs3Result::Err(error) => refused("a cut", &error),
        }
        if rules::HAS_A_LATE_TWIN && call.is_doubled() {
            twins.borrow_mut().push(0..u64::MAX);
        }
        content.borrow_mut().acknowledge(&issued);
        Ok(())
    }

    async fn look(&self, link: &HostLink<'_>, file: usize) -> WorkResult {
        let _shared = self.locks.shared(file).await;
        let V3ContentFile { handle, content, .. } = &self.all[file];
        let least = content.borrow().size().0;
        let arguments = GETATTR3args { object: handle.clone() };
        let mut call = link.prepare(NFS_PROGRAM::NFSPROC3_GETATTR, &arguments);
        let looked: GETATTR3res = link.ask(&mut call).await?;
        let size = match looked {
            Nfs3Result::Ok(looked) => looked.obj_attributes.size,
            Nfs3Result::Err(error) => refused("a look", &error),
        };
        let most = content.borrow().size().1;
        let right = (least..=most).contains(&size);
        assert!(right, "file {file} has {size} bytes, not {least}..{most}");
        Ok(())
    }

    /// Compares all files while nothing is under way.
    pub(super) async fn check(&self, link: &HostLink<'_>, after_crash: bool) -> WorkResult {
        for (index, file) in self.all.iter().enumerate() {
            let mut data = Vec::new();
            loop {
                let offset = data.len() as u64;
                let (more, end) = self.read_once(link, index, offset, READ_BYTES).await?;
                data.extend(more);
                if end {
                    break;
                }
            }
            let right = file.content.borrow_mut().check_all(&data, after_crash);
            right.unwrap_or_else(|wrong| panic!("file {index}: {wrong}"));
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
