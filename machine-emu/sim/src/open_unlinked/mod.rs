//! Files that lose their last name while programs have them open: written, cut and read after that,
//! while nodes restart, while the power of the file system goes, while programs die. Each file is
//! used by one scenario, which knows exactly what must be in it. A file that is no longer open
//! must be freed soon, and in the end the metadata must hold no inode without a name.
//!
//! Programs also lock bytes of files, and compare what they believe to have.
//!
//! Programs that live through a power cut keep some files, whose content and loss of name were made
//! durable before: they find them again.

mod locks;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use client::{Attributes, Cause, Credentials, Error, FileSystem, OpenOptions};
use fileio::protocol::{Error as FileIoError, GetAttributes, Handle, LEASE, ROOT};
use futures::FutureExt as _;
use runtime::protocol::{ErrorOf, Undelivered};
use runtime::seed::Rng;
use runtime::{Call, Context, NodeId, Protocol, Spawn};

use crate::cluster::OBSERVER;
use crate::enumerate::volume::flaws;
use crate::harness::{Harness, PowerCut, RETRY_PAUSE, RoundEnd, TRIES_MAX, WorkResult};
use crate::names::name;

/// Bytes of a file, at most.
const FILE_BYTES_MAX: u64 = 40_000;
/// Files that live through the end of a round, at most.
const KEPT_MAX: usize = 8;
/// A file that is no longer open is freed within this, whatever messages were lost.
const GONE_WITHIN: Duration = Duration::from_secs(90);
/// The pause between two looks for that.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// After this a lease that was not renewed has expired, and a grace period is over.
const LEASE_AND_GRACE: Duration = Duration::from_secs(LEASE.as_secs() * 3 / 2);

/// A program's way to the cluster, until it dies: then nothing is sent and nothing answered.
#[derive(Clone)]
struct CrashableClient {
    context: Context,
    alive: Rc<Cell<bool>>,
}

impl Spawn for CrashableClient {
    fn spawn<C: Call>(
        &self,
        to: NodeId,
        call: C,
    ) -> impl Future<Output = Result<C::Reply, ErrorOf<C>>> + 'static {
        let me = self.clone();
        async move {
            me.live().await;
            let answer = me.context.spawn(to, call).await;
            me.live().await;
            answer
        }
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + 'static {
        let me = self.clone();
        async move {
            me.context.sleep(duration).await;
            me.live().await;
        }
    }

    fn fs_nodes(&self) -> u32 {
        self.context.fs_nodes()
    }

    fn try_shared<P: Protocol>(&self, request: &P::Request) -> Option<P::Reply> {
        self.alive.get().then(|| self.context.try_shared::<P>(request))?
    }

    fn task<F: Future<Output = ()> + 'static>(
        &self,
        work: impl FnOnce(Self) -> F + Send + 'static,
    ) {
        self.context.task(work(self.clone()));
    }
}

impl CrashableClient {
    /// Never resolves once the program is dead.
    async fn live(&self) {
        if !self.alive.get() {
            futures::future::pending::<()>().await;
        }
    }
}

type UnlinkedFile = client::File<CrashableClient>;

struct CrashableProgram {
    system: FileSystem<CrashableClient>,
}

impl CrashableProgram {
    fn die(&self) {
        self.system.machine().alive.set(false);
    }
}

/// A file without a name, durably so, that programs have open.
struct OpenUnlinkedFile {
    open: Vec<(CrashableProgram, UnlinkedFile)>,
    content: Vec<u8>,
    handle: Handle,
}

struct OpenUnlinked<'a> {
    harness: &'a Harness,
    names: Cell<u64>,
    kept: RefCell<Vec<OpenUnlinkedFile>>,
}

/// Runs the workload to its end.
pub(super) async fn run(harness: &Harness, clients: u32, rounds: u32, round_ms: u64) {
    harness.set_up().await;
    let workload = OpenUnlinked { harness, names: Cell::default(), kept: RefCell::default() };
    for _ in 0..rounds {
        let working =
            (0..clients).map(|client| workload.client(client, harness.fork_rng()).boxed_local());
        if harness.round(working.collect(), round_ms).await == RoundEnd::PowerCut {
            harness.recover().await;
        } else if harness.fork_rng().chance(1, 2) {
            harness.stop_and_recover().await;
        }
        harness.within_limit("a check", workload.check_kept()).await;
    }
    workload.kept.take();
    harness.within_limit("an end", workload.nothing_is_left()).await;
    harness.stop_and_recover().await;
    let audit = harness.audit().await.expect("a sound store");
    assert_eq!(flaws(audit), Vec::<String>::new());
}

impl OpenUnlinked<'_> {
    async fn client(&self, client: u32, mut rng: Rng) {
        while !self.harness.is_over() {
            let done = if rng.chance(1, 3) {
                self.lock_ranges(client, &mut rng).await
            } else {
                self.play(client, &mut rng).await
            };
            if done.is_err() {
                return;
            }
        }
    }

    fn program(&self, client: u32) -> CrashableProgram {
        let context = self.harness.cluster.application(client % OBSERVER);
        let mark = context.random();
        let machine = CrashableClient { context, alive: Rc::new(Cell::new(true)) };
        CrashableProgram { system: FileSystem::new(machine, Credentials::root(), mark) }
    }

    fn fresh_path(&self) -> String {
        self.names.set(self.names.get() + 1);
        format!("/held-{}", self.names.get())
    }

    /// Does an operation until there is an answer; whatever is asked here may be done twice.
    async fn ask<T>(
        &self,
        operation: impl AsyncFn() -> Result<T, Error>,
    ) -> WorkResult<Result<T, FileIoError>> {
        for _ in 0..TRIES_MAX {
            let answer = operation().await;
            if self.harness.is_power_off() {
                return Err(PowerCut);
            }
            match answer {
                Ok(done) => {
                    self.harness.answered();
                    return Ok(Ok(done));
                }
                Err(Error { cause: Cause::FileIo(FileIoError::Undelivered { why }), .. })
                    if why != Undelivered::ProtocolMismatch => {}
                Err(Error { cause: Cause::FileIo(error), .. }) => return Ok(Err(error)),
                Err(error) => panic!("{error}"),
            }
            self.harness.pass(RETRY_PAUSE).await;
        }
        panic!("no answer after {TRIES_MAX} tries");
    }

    /// One file from its beginning to its end.
    async fn play(&self, client: u32, rng: &mut Rng) -> WorkResult {
        let restarts = self.harness.restarts();
        let (path, first) = (self.fresh_path(), self.program(client));
        let options = OpenOptions::new().read(true).write(true);
        let opened =
            self.ask(async || first.system.open(&path, options.create(true)).await).await?;
        let file = opened.unwrap_or_else(|error| panic!("{path} cannot be made: {error}"));
        let mut content = Vec::new();
        if self.write(&file, &mut content, rng).await?.is_err() {
            // Its creation was lost before it was durable.
            assert!(
                self.harness.restarts() > restarts,
                "{path} was lost, and nothing has restarted"
            );
            return Ok(());
        }
        let mut open = vec![(first, file)];
        if rng.chance(1, 2) {
            let second = self.program(client + 1);
            let opened = self.ask(async || second.system.open(&path, options).await).await?;
            let file = opened.unwrap_or_else(|error| panic!("{path} was written: {error}"));
            open.push((second, file));
        }
        if !self.take_name(&path, client, restarts, rng).await? {
            return Ok(());
        }
        let handle = self.check(&open, &content).await?;
        for _ in 0..rng.below(4) {
            self.after(&mut open, &mut content, handle, rng).await?;
            self.check(&open, &content).await?;
        }
        let has_room = self.kept.borrow().len() < KEPT_MAX;
        if has_room && rng.chance(1, 3) {
            self.kept.borrow_mut().push(OpenUnlinkedFile { open, content, handle });
            return Ok(());
        }
        if rng.chance(1, 4) {
            for (program, _) in &open {
                program.die();
            }
        }
        drop(open);
        self.is_gone(handle).await
    }

    /// Writes something somewhere, durably. The first write is at the beginning.
    async fn write(
        &self,
        file: &UnlinkedFile,
        content: &mut Vec<u8>,
        rng: &mut Rng,
    ) -> WorkResult<Result<(), FileIoError>> {
        let offset = rng.below(content.len() as u64 + 1) as usize;
        let mut data = vec![0; 1 + rng.below(FILE_BYTES_MAX / 2) as usize];
        rng.fill(&mut data);
        loop {
            let written =
                self.ask(async || file.write_at(offset as u64, data.clone()).await).await?;
            if let Err(error) = written {
                return Ok(Err(error));
            }
            match self.ask(async || file.sync().await).await? {
                Err(FileIoError::LostWrites {}) => {}
                Err(error) => return Ok(Err(error)),
                Ok(()) => break,
            }
        }
        content.resize(content.len().max(offset + data.len()), 0);
        content[offset..offset + data.len()].copy_from_slice(&data);
        Ok(Ok(()))
    }

    /// Removes the name, or gives it to another file, durably. False if a restart of a node has
    /// come between: then it is unknown which file has the name.
    async fn take_name(
        &self,
        path: &str,
        client: u32,
        restarts: u64,
        rng: &mut Rng,
    ) -> WorkResult<bool> {
        let system = self.program(client + rng.below(3) as u32).system;
        if rng.chance(1, 4) {
            let other = self.fresh_path();
            let options = OpenOptions::new().write(true).create(true);
            let made = self.ask(async || system.open(&other, options).await).await?;
            made.unwrap_or_else(|error| panic!("{other} cannot be made: {error}"));
            self.rename(&system, &other, path).await?;
            self.ask(async || system.sync().await).await?.expect("all can be made durable");
            // A node that restarted before that has lost what it had answered.
            return Ok(self.harness.restarts() == restarts);
        }
        loop {
            match self.ask(async || system.remove_file(path).await).await? {
                Ok(()) | Err(FileIoError::NotFound {}) => {}
                Err(error) => panic!("{path} cannot be removed: {error}"),
            }
            self.ask(async || system.sync().await).await?.expect("all can be made durable");
            match self.ask(async || system.metadata(path).await).await? {
                Err(FileIoError::NotFound {}) => return Ok(true),
                Err(error) => panic!("{path}: {error}"),
                // A node has restarted before the removal was durable.
                Ok(_) => {}
            }
        }
    }

    async fn rename(
        &self,
        system: &FileSystem<CrashableClient>,
        from: &str,
        to: &str,
    ) -> WorkResult {
        for _ in 0..TRIES_MAX {
            let renamed = system.rename(from, to).await;
            if self.harness.is_power_off() {
                return Err(PowerCut);
            }
            match renamed {
                Ok(()) | Err(Error { cause: Cause::FileIo(FileIoError::NotFound {}), .. }) => {
                    return Ok(());
                }
                Err(Error { cause: Cause::FileIo(error), .. })
                    if self.harness.is_expected(error) => {}
                Err(error) => panic!("{from} cannot be renamed: {error}"),
            }
            self.harness.pass(RETRY_PAUSE).await;
        }
        panic!("no answer after {TRIES_MAX} tries");
    }

    /// Something that programs do to a file without a name.
    async fn after(
        &self,
        open: &mut Vec<(CrashableProgram, UnlinkedFile)>,
        content: &mut Vec<u8>,
        handle: Handle,
        rng: &mut Rng,
    ) -> WorkResult {
        let (some, what) = (rng.index(open.len()), rng.below(8));
        tracing::debug!(now = ?self.harness.cluster.world().now(), ?handle, open = open.len(), what);
        match what {
            0..3 => {
                let written = self.write(&open[some].1, content, rng).await?;
                written.unwrap_or_else(|error| panic!("a file without a name: {error}"));
            }
            3 => self.cut(&open[some].1, content, rng).await?,
            4 => self.link_is_refused(open, handle).await?,
            5 if open.len() > 1 => drop(open.remove(some)),
            6 if open.len() > 1 => {
                let (program, file) = open.remove(some);
                program.die();
                drop(file);
            }
            // Several of these would outlast what clients have to end their work.
            _ if rng.chance(1, 4) && !self.harness.is_over() => {
                self.harness.pass(LEASE_AND_GRACE).await;
            }
            _ => self.harness.pass(Duration::from_millis(rng.below(1_000))).await,
        }
        Ok(())
    }

    async fn cut(&self, file: &UnlinkedFile, content: &mut Vec<u8>, rng: &mut Rng) -> WorkResult {
        let size = rng.below(FILE_BYTES_MAX);
        loop {
            let cut = self.ask(async || file.set_len(size).await).await?;
            cut.unwrap_or_else(|error| panic!("a file without a name: {error}"));
            // Durable only with this, and a node may restart before.
            match self.ask(async || file.sync().await).await? {
                Ok(()) | Err(FileIoError::LostWrites {}) => {}
                Err(error) => panic!("a file without a name: {error}"),
            }
            let found = self.ask(async || file.metadata().await).await?;
            if found.unwrap_or_else(|error| panic!("a file without a name: {error}")).size == size {
                break;
            }
        }
        content.resize(size as usize, 0);
        Ok(())
    }

    async fn link_is_refused(
        &self,
        open: &[(CrashableProgram, UnlinkedFile)],
        handle: Handle,
    ) -> WorkResult {
        let Some((program, _)) = open.first() else { return Ok(()) };
        let (context, path) = (program.system.machine().context.clone(), self.fresh_path());
        let link = self.harness.link_request(handle, (ROOT, name(&path[1..])), true);
        loop {
            let linked = fileio::client::ask(&context, link.clone()).await;
            if self.harness.is_power_off() {
                return Err(PowerCut);
            }
            match linked {
                Err(FileIoError::NotFound {}) => return Ok(()),
                Err(FileIoError::Undelivered { .. }) => self.harness.pass(RETRY_PAUSE).await,
                outcome => panic!("a file without a name got one: {outcome:?}"),
            }
        }
    }

    /// All who have the file open see what was written; it has no name.
    async fn check(
        &self,
        open: &[(CrashableProgram, UnlinkedFile)],
        content: &[u8],
    ) -> WorkResult<Handle> {
        let mut handle = ROOT;
        for (_, file) in open {
            let path = String::from_utf8_lossy(file.path()).into_owned();
            let found = self.nameless(&path, file).await?;
            assert_eq!(found.size, content.len() as u64, "bytes of {path}");
            let length = content.len() + 1;
            let read = self.ask(async || file.read_bytes_at(0, length).await).await?;
            let read = read.unwrap_or_else(|error| panic!("{path} is open: {error}")).concat();
            assert!(read == content, "{path} has other bytes than were written");
            handle = Handle { ino: found.ino, generation: found.generation };
        }
        Ok(handle)
    }

    /// A file that has lost its name; after a restart its node may learn that late.
    async fn nameless(&self, path: &str, file: &UnlinkedFile) -> WorkResult<Attributes> {
        let until = self.harness.cluster.world().now() + GONE_WITHIN;
        loop {
            let found = self.ask(async || file.metadata().await).await?;
            let found = found.unwrap_or_else(|error| panic!("{path} is open: {error}"));
            if found.links == 0 {
                return Ok(found);
            }
            let waits = self.harness.restarts() > 0 && self.harness.cluster.world().now() < until;
            assert!(waits, "{path} has no name and counts {} links", found.links);
            self.harness.pass(LOOK_PAUSE).await;
        }
    }

    /// A file that is not open is freed in bounded time.
    async fn is_gone(&self, handle: Handle) -> WorkResult {
        let context = self.harness.cluster.application(OBSERVER);
        tracing::debug!(now = ?context.now(), ?handle, "is closed");
        let until = context.now() + GONE_WITHIN;
        while context.now() < until {
            let looked = fileio::client::ask(&context, GetAttributes { file: handle }).await;
            if self.harness.is_power_off() {
                return Err(PowerCut);
            }
            match looked {
                Err(FileIoError::Stale {}) => return Ok(()),
                Ok(_) | Err(FileIoError::Undelivered { .. }) => {}
                Err(error) => panic!("{handle:?}: {error}"),
            }
            self.harness.pass(LOOK_PAUSE).await;
        }
        panic!("{handle:?} has no name, is not open, and still exists");
    }

    /// Programs that lived through the end of the round find their files, and keep them when those
    /// who have not come back are forgotten.
    async fn check_kept(&self) {
        let mut kept = self.kept.take();
        for pause in [Duration::ZERO, LEASE_AND_GRACE] {
            self.harness.pass(pause).await;
            for OpenUnlinkedFile { open, content, .. } in &kept {
                assert!(self.check(open, content).await.is_ok(), "the power is on");
            }
        }
        let mut rng = self.harness.fork_rng();
        for OpenUnlinkedFile { open, handle, .. } in kept.extract_if(.., |_| rng.chance(1, 2)) {
            drop(open);
            assert!(self.is_gone(handle).await.is_ok(), "the power is on");
        }
        self.kept.replace(kept);
    }

    /// No node keeps a file without a name, or has one to free.
    async fn nothing_is_left(&self) {
        let context = self.harness.cluster.application(OBSERVER);
        let until = context.now() + GONE_WITHIN;
        loop {
            let audit = self.harness.audit().await;
            let audit = audit.unwrap_or_else(|error| panic!("the audit failed: {error}"));
            let left = audit.unlinked.len() + audit.trims.len();
            if left == 0 {
                return;
            }
            assert!(context.now() < until, "{left} files without a name, and none is open");
            self.harness.pass(LOOK_PAUSE).await;
        }
    }
}
