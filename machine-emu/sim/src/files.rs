//! Several clients write, read, cut, punch and commit some files, compared with
//! [`ExpectedContent`]. In some runs single nodes restart meanwhile: there clients write whole
//! blocks, and know by [`Losses`] what may be lost.

mod lists;
mod space;

use std::cell::{Cell, RefCell};
use std::time::Duration;

use bytes::Bytes;
use fileio::protocol::{
    Change, Commit, Credentials, Error, GetAttributes, Handle, Name, ROOT, Read, SetAttributes,
    TRANSFER_MAX, Time, Write, WriteList,
};
use futures::FutureExt as _;
use runtime::seed::Rng;
use runtime::sync::KeyedLock;

use super::classes::ClassChanger;
use super::content::{BLOCK, ExpectedContent, Moment};
use super::enumerate::volume::flaws;
use super::harness::{CallFailure, Harness, PowerCut, RoundEnd, WorkResult};
use super::losses::{CommitVerdict, Losses};
use super::operator::Operator;
use super::partitions::PartitionOperator;

/// How the clients behave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    pub(super) clients: u32,
    pub(super) files: usize,
    /// Blocks per file, at most.
    pub(super) blocks: usize,
    /// Blocks of one write, at most.
    pub(super) write_blocks: u64,
    /// The volume is too small for all that.
    pub(super) fills: bool,
    /// Disks come and go.
    pub(super) operates: bool,
    /// The files are in a partition, and others come and go.
    pub(super) partitions: bool,
    /// Rounds, each ended by a crash, a clean stop, or nothing.
    pub(super) rounds: u32,
    /// Virtual time of one round, at most.
    pub(super) round_ms: u64,
}

impl Habits {
    /// Bytes of a file, at most.
    fn length_max_bytes(&self) -> u64 {
        self.blocks as u64 * BLOCK
    }

    /// Somewhere in the blocks of `client`, which has `group` of them in a row, as (offset,
    /// length); if `is_hot` in its first ones. `None` if the file ends before them.
    pub(super) fn own_range(
        &self,
        client: u32,
        group: u64,
        is_hot: bool,
        rng: &mut Rng,
    ) -> Option<(u64, u64)> {
        let clients = u64::from(self.clients);
        let groups = self.blocks as u64 / group / clients;
        let chosen = if is_hot { 0 } else { rng.below(groups.max(1)) };
        let start = (chosen * clients + u64::from(client)) * group * BLOCK;
        let end = (start + group * BLOCK).min(self.length_max_bytes());
        (start < end).then(|| any_range(start, end, self.write_blocks * BLOCK, rng))
    }

    /// Anywhere in a file, as (offset, length).
    pub(super) fn any_range(&self, rng: &mut Rng) -> (u64, u64) {
        any_range(0, self.length_max_bytes(), 4 * self.write_blocks * BLOCK, rng)
    }

    /// The size to which a file is cut or lengthened that has `longest_bytes` at most.
    pub(super) fn any_size(&self, longest_bytes: u64, rng: &mut Rng) -> u64 {
        let most = self.length_max_bytes();
        match rng.below(4) {
            0 => 0,
            1 => rng.below(most),
            2 => rng.below(most / BLOCK) * BLOCK,
            _ => rng.below(longest_bytes + 1),
        }
    }
}

/// New content; sometimes zeros.
pub(super) fn any_bytes(length: u64, rng: &mut Rng) -> Bytes {
    let mut data = vec![0; length as usize];
    if rng.chance(15, 16) {
        rng.fill(&mut data);
    }
    data.into()
}

/// Some bytes within `start..end`: as (offset, length).
fn any_range(start: u64, end: u64, length_max: u64, rng: &mut Rng) -> (u64, u64) {
    let mut offset = start + rng.below(end - start);
    let mut length = 1 + rng.below((end - offset).min(length_max));
    if rng.chance(1, 2) {
        offset -= offset % BLOCK;
        length = length.next_multiple_of(BLOCK).min(end - offset);
    }
    (offset, length)
}

struct ContentFile {
    handle: Handle,
    content: RefCell<ExpectedContent>,
    /// The time of the last change, from an answer.
    changed: Cell<Option<Time>>,
    losses: RefCell<Losses>,
}

struct FilesWorkload<'a> {
    harness: &'a Harness,
    habits: Habits,
    all: Vec<ContentFile>,
    /// Shared by those who write blocks of their own; exclusive to cut, and to write any.
    locks: KeyedLock<usize>,
    /// Blocks in a row that belong to one client.
    group: u64,
    /// Single nodes may restart.
    restarts: bool,
    /// Single nodes that had restarted when all nodes started last.
    restarts_before: Cell<u64>,
}

/// Runs the workload to its end.
pub(super) async fn run(harness: &Harness, habits: Habits) {
    harness.set_up().await;
    let mut rng = harness.fork_rng();
    let mut files = Vec::new();
    let home = if habits.partitions {
        PartitionOperator::make_home(harness, &mut rng).await
    } else {
        ROOT
    };
    for number in 0..habits.files {
        files.push(create(harness, home, number, habits.blocks).await);
    }
    let group = 1 + rng.below(12);
    // What is to be in a wide stripe has one copy until its commit: a disk takes it along.
    let is_wide = harness.cluster.content().may_have_wide_stripes();
    let restarts = harness.may_restart_nodes() || habits.operates && is_wide;
    // Where commits may lie, stripes belong to several clients.
    let group = if restarts { 1 + group % 3 } else { group };
    let locks = KeyedLock::default();
    let workload = FilesWorkload {
        harness,
        habits,
        all: files,
        locks,
        group,
        restarts,
        restarts_before: Cell::default(),
    };
    let free_bytes = workload.harness.space().await.free_bytes;
    let operator = habits.operates.then(Operator::default);
    let handles: Vec<Handle> = workload.all.iter().map(|file| file.handle).collect();
    let classes = harness.cluster.content().changes_classes.then_some(ClassChanger);
    let partitions = habits.partitions.then(PartitionOperator::new);
    for _ in 0..habits.rounds {
        let clients = (0..habits.clients)
            .map(|client| workload.client(client, harness.fork_rng()).boxed_local());
        let mut clients: Vec<_> = clients.collect();
        if let Some(operator) = &operator {
            clients.push(operator.work(harness, harness.fork_rng()).boxed_local());
        }
        if let Some(classes) = &classes {
            clients.push(classes.work(harness, &handles, harness.fork_rng()).boxed_local());
        }
        if let Some(partitions) = &partitions {
            clients.push(partitions.work(harness, harness.fork_rng()).boxed_local());
        }
        match harness.round(clients, habits.round_ms).await {
            RoundEnd::PowerCut => {
                if let Some(operator) = &operator {
                    operator.learn(harness, &mut rng).await;
                }
                harness.recover().await;
                harness.within_limit("a check", workload.check_after_crash()).await;
                if let Some(partitions) = &partitions {
                    harness.within_limit("a check", partitions.check(harness)).await;
                }
            }
            RoundEnd::Orderly => {
                harness.within_limit("a check", workload.check_all()).await;
                if rng.chance(1, 2) {
                    workload.committed_all();
                    harness.stop().await;
                    if let Some(operator) = &operator {
                        operator.learn(harness, &mut rng).await;
                    }
                    harness.recover().await;
                    harness.within_limit("a check", workload.check_after_crash()).await;
                }
            }
        }
    }
    if let Some(partitions) = &partitions {
        harness.within_limit("the end of partitions", partitions.finish(harness)).await;
        harness.within_limit("a check", partitions.check(harness)).await;
        harness.stop_and_recover().await;
        harness.within_limit("a check", partitions.check(harness)).await;
        let audit = harness.audit().await.expect("a sound store");
        assert_eq!(flaws(audit), Vec::<String>::new());
    }
    if let Some(operator) = &operator {
        harness.within_limit("moving data", operator.finish(harness)).await;
        if let Some(classes) = &classes {
            let stored = classes.finish(harness, &handles);
            harness.within_limit("storing files as their classes want", stored).await;
            let flaws = harness.scrub(false).await;
            assert!(flaws.is_empty(), "{flaws:?}");
        }
        harness.within_limit("a check", workload.check_all()).await;
        let audit = harness.audit().await.expect("it can be read");
        let flaws = audit.final_checkpoint().flaws;
        assert!(flaws.is_empty(), "{flaws:?}");
    }
    if habits.fills {
        workload.check_space_returns(free_bytes).await;
    }
}

async fn create(harness: &Harness, home: Handle, number: usize, blocks: usize) -> ContentFile {
    let create = harness.create_request(
        home,
        Name::new(format!("file-{number}").into_bytes()).expect("a name"),
        true,
    );
    let made = harness.ask(0, create).await.expect("an empty volume has room for a file");
    let handle = Handle { ino: made.attributes.ino, generation: made.attributes.generation };
    let changed = Cell::new(Some(made.attributes.mtime));
    let content = ExpectedContent::new(blocks);
    let losses = RefCell::new(Losses::new(&content, harness.restarts()));
    ContentFile { handle, content: RefCell::new(content), changed, losses }
}

impl FilesWorkload<'_> {
    async fn client(&self, client: u32, mut rng: Rng) {
        while !self.harness.is_over() {
            let file = rng.index(self.all.len());
            let done = match rng.below(100) {
                0..40 => self.write_own(client, file, &mut rng).await,
                40..45 => self.write_any(client, file, &mut rng).await,
                45..60 => self.read(client, file, &mut rng).await,
                60..68 => self.read_list(client, file, &mut rng).await,
                68..79 => self.commit(client, file).await,
                79..86 => self.cut(client, file, &mut rng).await,
                86..96 if self.restarts => self.look(client, file).await,
                86..91 => self.punch(client, file, &mut rng).await,
                91..93 => self.allocate(client, file, &mut rng).await,
                93..96 => self.seek(client, file, &mut rng).await,
                96..99 => self.look(client, file).await,
                _ => {
                    self.harness.pass(Duration::from_millis(rng.below(3_000))).await;
                    Ok(())
                }
            };
            if let Err(PowerCut) = done {
                return;
            }
        }
    }

    /// No node has restarted since all started. After one has, a cache that gave writes to it may
    /// say of later ones, too, that they are lost: it learns of the restart when it needs the node.
    fn keeps_all(&self) -> bool {
        self.harness.restarts() == self.restarts_before.get()
    }

    /// No node has restarted since the file was looked at last.
    fn is_known(&self, file: usize) -> bool {
        !self.restarts || self.all[file].losses.borrow().is_known(self.harness.restarts())
    }

    /// After a node has restarted: finds out what is left of the file.
    async fn know(&self, client: u32, file: usize) -> WorkResult {
        if self.is_known(file) {
            return Ok(());
        }
        let _alone = self.locks.exclusive(file).await;
        while !self.is_known(file) {
            self.look_for_losses(client, file).await?;
        }
        Ok(())
    }

    /// Commits the file and reads it: what it is then is durable, unless one more node has
    /// restarted. The caller holds it alone.
    async fn look_for_losses(&self, client: u32, file: usize) -> WorkResult {
        let ContentFile { handle, content, losses, .. } = &self.all[file];
        let restarts = self.harness.restarts();
        let (mark, last) = losses.borrow_mut().begin_look();
        let answer = self.harness.ask(client, Commit { file: *handle }).await;
        let Some(committed) = self.unless_lost(file, answer)? else { return Ok(()) };
        let now = self.harness.cluster.world().now();
        let verifier = committed.write_verifier;
        let verdict = losses.borrow_mut().committed(mark, verifier, &mut content.borrow_mut());
        if verdict != CommitVerdict::Kept && self.harness.is_uncertain() {
            return Err(PowerCut);
        }
        let data = self.read_all(client, file).await?;
        // A read that fails makes the file be committed, and so does the encoder.
        let is_committed_alone = self.harness.has_failed_reads_now()
            || self.harness.cluster.content().may_have_wide_stripes();
        if verdict == CommitVerdict::Lost && !is_committed_alone {
            let checked = last.check(now, self.harness.moves(), &data);
            checked.unwrap_or_else(|wrong| panic!("all was lost of file {file}, and {wrong}"));
        }
        if self.harness.restarts() == restarts {
            let flushed = content.borrow_mut().settle_losses(&data);
            flushed.unwrap_or_else(|wrong| panic!("after a restart, file {file}: {wrong}"));
            losses.borrow_mut().flushed(&content.borrow(), restarts);
        }
        Ok(())
    }

    /// The answer, unless it is that something was lost before the request was done.
    fn unless_lost<T>(&self, file: usize, answer: Result<T, CallFailure>) -> WorkResult<Option<T>> {
        match answer {
            Err(CallFailure::Refused(Error::LostWrites {})) if self.harness.restarts() > 0 => {
                self.all[file].losses.borrow_mut().refused();
                Ok(None)
            }
            Err(failure) => Self::ended(failure),
            Ok(answer) => Ok(Some(answer)),
        }
    }

    /// What a read that begins now may see: if nothing can be lost, and if something can.
    fn moments(&self, file: usize) -> (bool, Moment, Moment) {
        let content = self.all[file].content.borrow();
        (self.keeps_all(), content.moment(), content.moment_of_loss())
    }

    /// The one of these that counts for a read which has ended.
    fn moment_of_read(&self, moments: (bool, Moment, Moment)) -> Moment {
        let (kept_all, otherwise, of_loss) = moments;
        if kept_all && self.keeps_all() { otherwise } else { of_loss }
    }

    /// Writes somewhere in a group of blocks of its own.
    async fn write_own(&self, client: u32, file: usize, rng: &mut Rng) -> WorkResult {
        self.know(client, file).await?;
        // A write that is refused is looked at before anybody else writes.
        let guard = if self.habits.fills {
            self.locks.exclusive(file).await
        } else {
            self.locks.shared(file).await
        };
        // Some blocks are rewritten again and again, before and after they are committed.
        let is_hot = !self.habits.fills && rng.chance(1, 2);
        let own = |rng: &mut Rng| self.habits.own_range(client, self.group, is_hot, rng);
        let ranges = Habits::few(rng, own);
        if ranges.is_empty() {
            return Ok(());
        }
        let full = self.write(client, file, ranges, rng).await?;
        let done = if full { self.make_room(client, file).await } else { Ok(()) };
        drop(guard);
        done
    }

    /// Writes anywhere, while there is no other writer.
    async fn write_any(&self, client: u32, file: usize, rng: &mut Rng) -> WorkResult {
        self.know(client, file).await?;
        let alone = self.locks.exclusive(file).await;
        let ranges = Habits::few(rng, |rng| Some(self.habits.any_range(rng)));
        let full = self.write(client, file, ranges, rng).await?;
        let done = if full { self.make_room(client, file).await } else { Ok(()) };
        drop(alone);
        done
    }

    /// True if the volume is full.
    async fn write(
        &self,
        client: u32,
        file: usize,
        mut ranges: Vec<(u64, u64)>,
        rng: &mut Rng,
    ) -> WorkResult<bool> {
        if self.restarts {
            for (offset, length) in &mut ranges {
                *length = (*length + *offset % BLOCK).next_multiple_of(BLOCK);
                *offset -= *offset % BLOCK;
            }
        }
        let regions = lists::list_of(&ranges);
        let data = any_bytes(regions.bytes(), rng);
        let durable = rng.chance(1, 10);
        let ContentFile { handle, content, changed, losses } = &self.all[file];
        if durable {
            losses.borrow_mut().begin_commit();
        } else {
            let now = self.harness.cluster.world().now();
            losses.borrow_mut().begin_write(now, self.harness.moves_ended());
        }
        let changed_before = changed.get();
        let issued = content.borrow_mut().issue_list(&regions, &data);
        // A list of many chunks is written in steps; without space for all of it a part may be
        // written.
        if regions.count() > 1 || self.habits.fills {
            content.borrow_mut().in_steps(&issued);
        }
        let who = Credentials::root();
        let answer = if let [(offset, _)] = ranges[..] {
            let cut = rng.index(data.len() + 1);
            let pieces = vec![data.slice(..cut), data.slice(cut..)];
            let call = Write { who, file: *handle, offset, data: pieces, durable };
            self.harness.ask(client, call).await
        } else {
            let regions = regions.clone();
            let call = WriteList { who, file: *handle, regions, skip: 0, data, durable };
            self.harness.ask(client, call).await
        };
        match answer {
            Ok(written) => {
                assert!(
                    written.attributes.size >= regions.end(),
                    "the file ends before what was written"
                );
                let time = Some(written.attributes.mtime);
                assert_ne!(time, changed_before, "a write does not change the time of change");
                changed.set(time);
                let content = &mut *content.borrow_mut();
                if durable {
                    content.acknowledge_durable(&issued);
                } else {
                    content.acknowledge(&issued);
                    losses.borrow_mut().written(issued, written.write_verifier);
                }
                Ok(false)
            }
            Err(CallFailure::Refused(Error::NoSpace {})) if self.habits.fills => Ok(true),
            refused => self.unless_lost(file, refused).map(|_| false),
        }
    }

    fn ended<T>(failure: CallFailure) -> WorkResult<T> {
        match failure {
            CallFailure::PowerCut => Err(PowerCut),
            CallFailure::Refused(error) => panic!("refused: {error}"),
        }
    }

    /// After a write that was refused for lack of space: nothing else was hurt, and cutting works.
    /// The caller holds the file alone.
    async fn make_room(&self, client: u32, file: usize) -> WorkResult {
        self.see_what_is_left(client, file).await?;
        self.cut_to(client, file, 0, true).await
    }

    /// After a change that was refused for lack of space. The caller holds the file alone.
    async fn see_what_is_left(&self, client: u32, file: usize) -> WorkResult {
        let data = self.read_all(client, file).await?;
        let observed = self.all[file].content.borrow_mut().observe(&data);
        observed.unwrap_or_else(|wrong| panic!("after a refusal, file {file}: {wrong}"));
        Ok(())
    }

    async fn read(&self, client: u32, file: usize, rng: &mut Rng) -> WorkResult {
        let _shared = self.locks.shared(file).await;
        let ContentFile { handle, content, .. } = &self.all[file];
        let most = content.borrow().size().1;
        let offset = rng.below(most + 2 * BLOCK);
        let length = (rng.below(40 * BLOCK) as u32).min(TRANSFER_MAX);
        let moments = self.moments(file);
        let call = Read { who: Credentials::root(), file: *handle, offset, length };
        let read = self.harness.ask(client, call).await;
        let read = read.or_else(Self::ended)?;
        let moment = self.moment_of_read(moments);
        let checked =
            content.borrow().check_read(&moment, offset, u64::from(length), &read.data.concat());
        checked.unwrap_or_else(|wrong| panic!("file {file}: {wrong}"));
        Ok(())
    }

    async fn commit(&self, client: u32, file: usize) -> WorkResult {
        self.know(client, file).await?;
        // Some commit alone, so that it is known how the file was then.
        let is_alone = self.restarts && client.is_multiple_of(2);
        let locks = &self.locks;
        let (_alone, _shared) = if is_alone {
            (Some(locks.exclusive(file).await), None)
        } else {
            (None, Some(locks.shared(file).await))
        };
        let ContentFile { handle, content, losses, .. } = &self.all[file];
        let kept_all = self.keeps_all();
        let moment = content.borrow().moment();
        let mark = losses.borrow_mut().begin_commit();
        let answer = self.harness.ask(client, Commit { file: *handle }).await;
        let Some(committed) = self.unless_lost(file, answer)? else { return Ok(()) };
        let verifier = committed.write_verifier;
        let verdict = losses.borrow_mut().committed(mark, verifier, &mut content.borrow_mut());
        if verdict != CommitVerdict::Kept && self.harness.is_uncertain() {
            return Err(PowerCut);
        }
        if kept_all && self.keeps_all() {
            assert_eq!(
                verdict,
                CommitVerdict::Kept,
                "a loss is reported, and no node has restarted"
            );
            content.borrow_mut().committed(&moment);
            if is_alone {
                losses.borrow_mut().rests(&content.borrow());
            }
        }
        Ok(())
    }

    async fn cut(&self, client: u32, file: usize, rng: &mut Rng) -> WorkResult {
        self.know(client, file).await?;
        let _alone = self.locks.exclusive(file).await;
        let longest = self.all[file].content.borrow().size().1;
        let size = self.habits.any_size(longest, rng);
        self.cut_to(client, file, size, rng.chance(1, 3)).await
    }

    async fn cut_to(&self, client: u32, file: usize, size: u64, durable: bool) -> WorkResult {
        let size = if self.restarts { size - size % BLOCK } else { size };
        let ContentFile { handle, content, losses, .. } = &self.all[file];
        losses.borrow_mut().begin_commit();
        let issued = content.borrow_mut().issue_cut(size);
        let change = Change { size: Some(size), ..Change::default() };
        let who = Credentials::root();
        let call = SetAttributes { who, file: *handle, change, only_if_ctime: None, durable };
        match self.harness.ask(client, call).await {
            Ok(attributes) => {
                assert_eq!(attributes.size, size, "a cut gives the size");
                content.borrow_mut().acknowledge(&issued);
                Ok(())
            }
            refused => self.unless_lost(file, refused).map(drop),
        }
    }

    async fn look(&self, client: u32, file: usize) -> WorkResult {
        let _shared = self.locks.shared(file).await;
        let ContentFile { handle, content, .. } = &self.all[file];
        let moments = self.moments(file);
        let call = GetAttributes { file: *handle };
        let size = self.harness.ask(client, call).await.or_else(Self::ended)?.size;
        let moment = self.moment_of_read(moments);
        let (least, most) = content.borrow().sizes(&moment);
        assert!(
            (least..=most).contains(&size),
            "file {file} has {size} bytes, not {least}..{most}"
        );
        Ok(())
    }

    async fn read_all(&self, client: u32, file: usize) -> WorkResult<Vec<u8>> {
        let mut data = Vec::new();
        loop {
            let offset = data.len() as u64;
            let (who, file) = (Credentials::root(), self.all[file].handle);
            let call = Read { who, file, offset, length: TRANSFER_MAX };
            let read = self.harness.ask(client, call).await.or_else(Self::ended)?;
            data.extend(read.data.concat());
            if read.end {
                return Ok(data);
            }
        }
    }

    async fn check_all(&self) {
        for file in 0..self.all.len() {
            if !self.keeps_all() {
                // Then a clean stop finds nothing that it could lose.
                self.all[file].losses.borrow_mut().refused();
                assert!(self.know(0, file).await.is_ok(), "no crash was asked for");
                continue;
            }
            let Ok(data) = self.read_all(0, file).await else { panic!("no crash was asked for") };
            let observed = self.all[file].content.borrow_mut().observe(&data);
            observed.unwrap_or_else(|wrong| panic!("at rest, file {file}: {wrong}"));
        }
    }

    async fn check_after_crash(&self) {
        self.restarts_before.set(self.harness.restarts());
        for file in 0..self.all.len() {
            let Ok(data) = self.read_all(0, file).await else { panic!("no crash was asked for") };
            let ContentFile { content, losses, .. } = &self.all[file];
            let flushed = if self.restarts {
                content.borrow_mut().settle_losses(&data)
            } else {
                content.borrow_mut().flush(&data)
            };
            flushed.unwrap_or_else(|wrong| panic!("after a crash, file {file}: {wrong}"));
            losses.borrow_mut().flushed(&content.borrow(), self.harness.restarts());
        }
    }

    /// A clean stop follows.
    fn committed_all(&self) {
        self.all.iter().for_each(|file| file.content.borrow_mut().all_committed());
    }

    async fn check_space_returns(&self, before: u64) {
        for file in 0..self.all.len() {
            assert!(self.cut_to(0, file, 0, true).await.is_ok(), "no crash was asked for");
        }
        self.harness.pass(Duration::from_secs(10)).await;
        let after = self.harness.space().await.free_bytes;
        assert!(after >= before / 10 * 9, "of {before} free bytes {after} came back");
        let range = (0, 16 * BLOCK);
        let full = self.write(0, 0, vec![range], &mut self.harness.fork_rng()).await;
        assert!(matches!(full, Ok(false)), "an empty volume has room");
    }
}
