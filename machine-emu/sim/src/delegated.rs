//! Front ends that keep what they have read of a file as long as they hold it (ADR 101), and
//! clients that change it meanwhile: who trusts what it keeps has seen each change that was
//! answered. Front ends die, forget to return files, and return them late.
//!
//! A file holds the number of its last change, once for each eight bytes. One client changes it at
//! a time, durably. A node that restarts alone has forgotten who holds its files. A client of the
//! front end, which does not hear of that, trusts what it was given for [`CLIENT_TRUST`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::delegations::DelegationHolder;
use fileio::protocol::{
    Change, Credentials, DELEGATION_LEASE, DELEGATION_TRUST, Error, FileIo, Flush, Handle,
    PunchHole, ROOT, Read, SetAttributes, Write, handle_of,
};
use futures::FutureExt as _;
use runtime::seed::Rng;
use runtime::{Call, Context, NodeId};

use crate::harness::{CallFailure, Harness, PowerCut, RETRY_PAUSE, RoundEnd, WorkResult};
use crate::names::name;

/// Files, few of them: they shall be in each other's way.
const FILES: usize = 3;
/// Bytes of a file.
const FILE_BYTES: usize = 6_000;
/// Looks at a kept file before it is returned, at most.
const LOOKS_MAX: u64 = 20;
/// The pause between two of them, at most.
const LOOK_PAUSE_MS_MAX: u64 = 120;
/// A client of a front end asks it within this time whether its lease goes on.
const CLIENT_TRUST: Duration = Duration::from_secs(DELEGATION_LEASE.as_secs() - 2);
/// A front end trusts no file of a node that has restarted, or is away, after this.
const DISTRUST_WITHIN: Duration = Duration::from_secs(2 * DELEGATION_TRUST.as_secs());

struct DelegatedFile {
    handle: Handle,
    /// The number of the last change that was begun, and of the last one that was answered.
    begun: Cell<u64>,
    answered: Cell<u64>,
    /// A client changes it.
    is_changing: Cell<bool>,
}

struct Delegated<'a> {
    harness: &'a Harness,
    files: Vec<DelegatedFile>,
    /// Who was ever granted a file, for the log.
    granted: RefCell<BTreeSet<u64>>,
}

/// Runs the workload to its end.
pub(super) async fn run(harness: &Harness, clients: u32, rounds: u32, round_ms: u64) {
    harness.set_up().await;
    let mut files = Vec::new();
    for number in 0..FILES {
        let create = harness.create_request(ROOT, name(&format!("delegated-{number}")), true);
        let made = harness.ask(0, create).await;
        let handle = handle_of(&made.expect("no fault before the first round").attributes);
        let (begun, answered, is_changing) = Default::default();
        files.push(DelegatedFile { handle, begun, answered, is_changing });
    }
    let workload = Delegated { harness, files, granted: RefCell::default() };
    for _ in 0..rounds {
        assert_eq!(workload.settle().await, Ok(()), "the power is on");
        let clients = clients.max(2);
        let working =
            (0..clients).map(|client| workload.client(client, harness.fork_rng()).boxed_local());
        if harness.round(working.collect(), round_ms).await == RoundEnd::PowerCut {
            harness.recover().await;
        }
    }
    harness.stop_and_recover().await;
}

impl Delegated<'_> {
    /// What was lost with the power is written again.
    async fn settle(&self) -> WorkResult {
        for file in &self.files {
            file.is_changing.set(false);
            self.write(0, file).await?;
        }
        Ok(())
    }

    async fn client(&self, client: u32, mut rng: Rng) {
        let context = self.harness.cluster.application(client);
        let mut holder = DelegationHolder::new(context.random());
        while !self.harness.is_over() {
            let file = &self.files[rng.index(self.files.len())];
            let done = if rng.chance(1, 3) {
                self.change(client, file, &mut rng).await
            } else {
                self.keep(client, &holder, file, &mut rng).await
            };
            if done.is_err() {
                return;
            }
            if rng.chance(1, 20) {
                // Whether it succeeds or not: others work on.
                let node = NodeId::fs(rng.below(u64::from(context.fs_nodes())) as u32);
                let _ = context.spawn(node, Flush {}).await;
            }
            if rng.chance(1, 30) {
                // It dies: it returns nothing any more, and asks for no recalls.
                holder = DelegationHolder::new(context.random());
            }
            self.harness.pass(Duration::from_millis(rng.below(50))).await;
        }
    }

    async fn change(&self, client: u32, file: &DelegatedFile, rng: &mut Rng) -> WorkResult {
        if file.is_changing.replace(true) {
            return Ok(());
        }
        let changed = match rng.below(6) {
            0 => self.cut(client, file).await,
            1 => self.punch(client, file).await,
            _ => self.write(client, file).await,
        };
        file.is_changing.set(false);
        changed
    }

    async fn write(&self, client: u32, file: &DelegatedFile) -> WorkResult {
        let number = file.begun.get() + 1;
        file.begun.set(number);
        let data = Bytes::from(number.to_le_bytes().repeat(FILE_BYTES / 8));
        let write = Write {
            who: Credentials::root(),
            file: file.handle,
            offset: 0,
            data: vec![data],
            durable: true,
        };
        self.do_durably(client, write).await?;
        file.answered.set(number);
        Ok(())
    }

    /// Asks until it is done, also if a node that has restarted lost it before it was durable.
    async fn do_durably<C>(&self, client: u32, call: C) -> WorkResult
    where
        C: Call<Protocol = FileIo> + Clone + fmt::Debug,
    {
        loop {
            match self.harness.ask(client, call.clone()).await {
                Ok(_) => return Ok(()),
                Err(CallFailure::Refused(Error::LostWrites {})) => {}
                Err(failure) => failure.power_cut::<()>()?,
            }
            self.harness.pass(RETRY_PAUSE).await;
        }
    }

    /// Cuts all of it off, and writes it again: nothing else is seen of the cut.
    async fn cut(&self, client: u32, file: &DelegatedFile) -> WorkResult {
        file.begun.set(file.begun.get() + 1);
        let cut = SetAttributes {
            who: Credentials::root(),
            file: file.handle,
            change: Change { size: Some(0), ..Change::default() },
            only_if_ctime: None,
            durable: true,
        };
        self.do_durably(client, cut).await?;
        file.answered.set(file.begun.get());
        self.write(client, file).await
    }

    /// The same with a hole.
    async fn punch(&self, client: u32, file: &DelegatedFile) -> WorkResult {
        file.begun.set(file.begun.get() + 1);
        let punch = PunchHole {
            who: Credentials::root(),
            file: file.handle,
            offset: 0,
            length: FILE_BYTES as u64,
            durable: true,
        };
        self.do_durably(client, punch).await?;
        file.answered.set(file.begun.get());
        self.write(client, file).await
    }

    /// Holds a file for a while, and what was read of it.
    async fn keep(
        &self,
        client: u32,
        holder: &Arc<DelegationHolder>,
        file: &DelegatedFile,
        rng: &mut Rng,
    ) -> WorkResult {
        let context = self.harness.cluster.application(client);
        let restarts = self.harness.restarts();
        if !holder.delegate(&context, file.handle).await {
            return Ok(());
        }
        self.granted.borrow_mut().insert(holder.number());
        let answered = file.answered.get();
        let kept = self.read(client, file).await?;
        let Some(kept) = kept else {
            // A cut or a hole was seen: then it was recalled, or was there before.
            self.check_cut(holder, file, restarts);
            holder.give_back(&context, file.handle);
            return Ok(());
        };
        assert!(
            kept >= answered || self.harness.restarts() > restarts,
            "{kept} is before {answered}"
        );
        for _ in 0..=rng.below(LOOKS_MAX) {
            self.look(file, kept);
            if !holder.holds(file.handle) {
                break;
            }
            self.pass(rng.below(LOOK_PAUSE_MS_MAX)).await?;
        }
        let is_lost = self.harness.restarts() > restarts || !holder.holds(file.handle);
        if is_lost && rng.chance(1, 3) {
            self.trust_on(holder, file, kept, rng).await?;
        }
        self.let_go(&context, holder, file, rng).await
    }

    async fn pass(&self, millis: u64) -> WorkResult {
        self.harness.pass(Duration::from_millis(millis)).await;
        if self.harness.is_power_off() { Err(PowerCut) } else { Ok(()) }
    }

    /// What a client of the front end does that hears of no recall, and the front end itself if it
    /// has not noticed that its lease is lost.
    async fn trust_on(
        &self,
        holder: &DelegationHolder,
        file: &DelegatedFile,
        kept: u64,
        rng: &mut Rng,
    ) -> WorkResult {
        let until = self.now() + CLIENT_TRUST;
        let trusts =
            |now| now < until || holder.holds(file.handle) && now < until + DELEGATION_LEASE;
        while trusts(self.now()) {
            self.look(file, kept);
            self.pass(1 + rng.below(10 * LOOK_PAUSE_MS_MAX)).await?;
        }
        Ok(())
    }

    fn now(&self) -> Duration {
        self.harness.cluster.world().now()
    }

    /// What was read of a file that was not returned since has each change that was answered.
    fn look(&self, file: &DelegatedFile, kept: u64) {
        let answered = file.answered.get();
        assert!(
            kept >= answered,
            "{:?} is held with change {kept} at {:?}, and change {answered} was answered",
            file.handle,
            self.now()
        );
    }

    /// Zeros were read. They are what the last change left, unless the file is not held any more.
    fn check_cut(&self, holder: &DelegationHolder, file: &DelegatedFile, restarts: u64) {
        let is_under_way = file.begun.get() > file.answered.get() || file.is_changing.get();
        assert!(
            is_under_way || !holder.holds(file.handle) || self.harness.restarts() > restarts,
            "{:?} was cut, and written again since",
            file.handle
        );
    }

    /// Returns a file: at once, late, or never.
    async fn let_go(
        &self,
        context: &Context,
        holder: &Arc<DelegationHolder>,
        file: &DelegatedFile,
        rng: &mut Rng,
    ) -> WorkResult {
        match rng.below(20) {
            0 => {
                // It goes on to ask for recalls, and returns nothing before it trusts nothing.
                self.harness.pass(DISTRUST_WITHIN).await;
            }
            1..4 => self.harness.pass(Duration::from_millis(rng.below(1_000))).await,
            _ => {}
        }
        holder.give_back(context, file.handle);
        if self.harness.is_power_off() { Err(PowerCut) } else { Ok(()) }
    }

    /// The number of the change that the file shows; `None` if it is cut.
    async fn read(&self, client: u32, file: &DelegatedFile) -> WorkResult<Option<u64>> {
        let read = Read {
            who: Credentials::root(),
            file: file.handle,
            offset: 0,
            length: FILE_BYTES as u32,
        };
        loop {
            let read = self.harness.ask(client, read.clone()).await;
            let data = match read {
                Ok(read) => read.data.concat(),
                Err(failure) => {
                    failure.power_cut::<()>()?;
                    self.harness.pass(RETRY_PAUSE).await;
                    continue;
                }
            };
            let number = |word: &[u8]| u64::from_le_bytes(word.try_into().unwrap_or_default());
            let numbers: BTreeSet<u64> = data.chunks_exact(8).map(number).collect();
            return match numbers.len() {
                0 => Ok(None),
                1 => Ok(numbers.first().copied().filter(|number| *number > 0)),
                _ => panic!("{:?} has several changes: {numbers:?}", file.handle),
            };
        }
    }
}
