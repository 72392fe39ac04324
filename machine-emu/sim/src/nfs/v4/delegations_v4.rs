//! Files that hosts keep as long as they have a delegation (RFC 8881 section 10.4), and others
//! change meanwhile: a host that was not called back has seen each change that was answered.
//!
//! A file holds the number of its last change, once for each eight bytes. One host changes it at a
//! time, durably. A host trusts a delegation as long as the connection stands that it has bound to
//! its session, and no recall of it has come. (What came of a recall that finds no connection, only
//! the lease ends; that is not judged.) It returns files at once, late, or never.

use std::cell::Cell;
use std::time::Duration;

use bytes::Bytes;
use runtime::seed::Rng;

use super::back_channel_v4::CallbackPath;
use super::host::V4Open;
use super::wire::{
    ANONYMOUS, CompoundOps, CreateMode, WANT_READ, WireOpenClaim, WireStateid, op, status,
};
use super::worker::V4Worker;
use crate::harness::WorkResult;

/// Files, few of them: they shall be in each other's way.
const FILES: u64 = 2;
/// Bytes of a file.
const FILE_BYTES: usize = 512;
/// Looks at a kept file before it is returned, at most.
const LOOKS_MAX: u64 = 20;
/// The pause between two of them, at most.
const LOOK_PAUSE_MS_MAX: u64 = 100;
/// A late return comes after this time, at most.
const LATE_MS_MAX: u64 = 1_000;

#[derive(Default)]
struct DelegatedFileV4 {
    /// The numbers of the last change that was begun, and of the last one that was answered.
    begun: Cell<u64>,
    answered: Cell<u64>,
    is_changing: Cell<bool>,
    /// A copy of a change in a lost session may still be applied.
    is_unsettled: Cell<bool>,
}

/// The files.
#[derive(Default)]
pub(super) struct DelegatedFilesV4 {
    files: [DelegatedFileV4; FILES as usize],
}

/// A delegation that a host has.
struct HeldDelegation {
    path: CallbackPath,
    stateid: WireStateid,
    /// The restarts of nodes when it was granted.
    restarts: u64,
}

fn name(file: u64) -> String {
    format!("delegated-{file}")
}

impl DelegatedFilesV4 {
    /// Changes a file, or keeps one for a while.
    pub(super) async fn step(&self, worker: &V4Worker<'_>, rng: &mut Rng) -> WorkResult {
        let file = rng.below(FILES);
        if rng.chance(1, 2) {
            self.change(worker, file).await
        } else {
            self.keep(worker, file, rng).await
        }
    }

    /// No copy of a change is under way any more, and no host changes anything.
    pub(super) fn settle(&self) {
        for file in &self.files {
            file.is_changing.set(false);
            if file.is_unsettled.replace(false) {
                file.answered.set(0);
            }
        }
    }

    fn file(&self, file: u64) -> &DelegatedFileV4 {
        &self.files[file as usize]
    }

    async fn change(&self, worker: &V4Worker<'_>, number: u64) -> WorkResult {
        let file = self.file(number);
        if file.is_unsettled.get() || file.is_changing.replace(true) {
            return Ok(());
        }
        let change = file.begun.get() + 1;
        file.begun.set(change);
        let data = Bytes::from(change.to_le_bytes().repeat(FILE_BYTES / 8));
        let name = name(number);
        // By name, so the file may have to be made.
        let claim = WireOpenClaim::Name(&name, CreateMode::Unchecked);
        let owner = format!("changer-{}", worker.number);
        let opened = worker.ask(true, || {
            let open = CompoundOps::default().root().open(owner.as_bytes(), (3, 0), claim);
            Some(open.op(op::GETFH))
        });
        let mut opened = opened.await?.unwrap_or_else(|| unreachable!("it needs nothing"));
        assert_eq!(opened.status, status::OK, "{name} cannot be opened");
        opened.reply.done(op::PUTROOTFH);
        let stateid = opened.reply.opened();
        let handle = opened.reply.done(op::GETFH).opaque();
        let owner = owner.into_bytes();
        let open = V4Open {
            file: handle.clone(),
            owner,
            sharing: (3, 0),
            stateid,
            lock: None,
            closing: false,
        };
        let open = worker.host.add_open(open);
        let written = worker.ask(false, || {
            let ops = CompoundOps::default().put(&handle).op(op::WRITE).fixed(&ANONYMOUS);
            Some(ops.long(0).word(2).opaque(&data))
        });
        let written = written.await?.unwrap_or_else(|| unreachable!("it needs nothing"));
        assert_eq!(written.status, status::OK, "a write is refused");
        worker.host.link.log(|| format!("{name} has change {change}"));
        file.answered.set(change);
        file.is_unsettled.set(written.has_stray_twin);
        file.is_changing.set(false);
        worker.close(open).await
    }

    /// Opens a file to be read, and keeps what it holds as long as it has a delegation.
    async fn keep(&self, worker: &V4Worker<'_>, number: u64, rng: &mut Rng) -> WorkResult {
        let host = worker.host;
        let Some(path) = host.bind().await? else { return Ok(()) };
        let restarts = host.link.harness().restarts();
        let name = name(number);
        let claim = WireOpenClaim::Name(&name, CreateMode::Unchecked);
        let owner = format!("keeper-{}", worker.number);
        let opened = worker.ask(true, || {
            let access = (1 | WANT_READ, 0);
            Some(CompoundOps::default().root().open(owner.as_bytes(), access, claim).op(op::GETFH))
        });
        let mut opened = opened.await?.unwrap_or_else(|| unreachable!("it needs nothing"));
        assert_eq!(opened.status, status::OK, "{name} cannot be opened");
        opened.reply.done(op::PUTROOTFH);
        let (stateid, delegation) = opened.reply.opened_or_delegated();
        let handle = opened.reply.done(op::GETFH).opaque();
        let owner = owner.into_bytes();
        let open = V4Open {
            file: handle.clone(),
            owner,
            sharing: (1, 0),
            stateid,
            lock: None,
            closing: false,
        };
        let open = host.add_open(open);
        if let Some(stateid) = delegation {
            let held = HeldDelegation { path, stateid, restarts };
            self.hold(worker, (number, &handle), &held, rng).await?;
        }
        worker.close(open).await
    }

    async fn hold(
        &self,
        worker: &V4Worker<'_>,
        (number, handle): (u64, &[u8]),
        held: &HeldDelegation,
        rng: &mut Rng,
    ) -> WorkResult {
        let file = self.file(number);
        let harness = worker.host.link.harness();
        let answered = file.answered.get();
        let kept = read(worker, handle).await?;
        let is_judged = !file.is_unsettled.get();
        assert!(!is_judged || kept >= answered, "{kept} is before {answered}");
        for _ in 0..=rng.below(LOOKS_MAX) {
            if !is_judged || !is_trusted(worker, held) || file.is_unsettled.get() {
                break;
            }
            let answered = file.answered.get();
            assert!(
                kept >= answered,
                "{} holds change {kept} of {}, and change {answered} was answered",
                worker.number,
                name(number)
            );
            harness.pass(Duration::from_millis(rng.below(LOOK_PAUSE_MS_MAX))).await;
        }
        match rng.below(20) {
            // It never returns it.
            0 => return Ok(()),
            1..4 => harness.pass(Duration::from_millis(rng.below(LATE_MS_MAX))).await,
            _ => {}
        }
        let answer = worker.ask(true, || {
            // Another session may be that of another client.
            let is_known = worker.host.sessions() == held.path.session;
            let ops = CompoundOps::default().put(handle).op(op::DELEGRETURN);
            is_known.then(|| ops.fixed(&held.stateid))
        });
        if let Some(answer) = answer.await? {
            let expected = [status::OK, status::BAD_STATEID, status::DELEG_REVOKED];
            assert!(expected.contains(&answer.status), "a return is refused: {}", answer.status);
        }
        Ok(())
    }
}

fn is_trusted(worker: &V4Worker<'_>, held: &HeldDelegation) -> bool {
    let host = worker.host;
    host.is_path(&held.path)
        && !host.back_channel.is_recalled(&held.stateid)
        && host.link.harness().restarts() == held.restarts
}

/// The number of the change that a file shows; 0 if there was none.
async fn read(worker: &V4Worker<'_>, handle: &[u8]) -> WorkResult<u64> {
    let answer = worker.ask(false, || {
        let ops = CompoundOps::default().put(handle).op(op::READ).fixed(&ANONYMOUS);
        Some(ops.long(0).word(FILE_BYTES as u32))
    });
    let mut answer = answer.await?.unwrap_or_else(|| unreachable!("it needs nothing"));
    assert_eq!(answer.status, status::OK, "a read is refused");
    answer.reply.done(op::PUTFH);
    let read = answer.reply.done(op::READ);
    let _end = read.word();
    let data = read.opaque();
    let Some(first) = data.first_chunk::<8>() else { return Ok(0) };
    assert!(data.chunks(8).all(|word| word == first), "several changes: {data:?}");
    Ok(u64::from_le_bytes(*first))
}
