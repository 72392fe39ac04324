//! Checkpoints: all clients write a large file each at the same time, commit, read what another
//! wrote, and remove what is old.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use fileio::protocol::{
    Commit, Credentials, Error, Handle, ROOT, Read, TRANSFER_MAX, Write, handle_of,
};
use futures::FutureExt as _;
use futures::future::join;
use runtime::seed::Rng;

use super::content::BLOCK;
use super::harness::{CallFailure, Harness, RoundEnd};
use super::names::name;

/// What is known of one checkpoint of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckpointState {
    /// Being written: it may be there, whole or in part.
    Begun,
    /// Its commit was answered.
    Committed(Handle),
    /// Being removed.
    Leaving,
    /// Its removal was answered.
    Gone,
}

/// Generation and client.
type CheckpointKey = (u64, u32);

struct CheckpointWorkload<'a> {
    harness: &'a Harness,
    clients: u32,
    bytes: usize,
    states: RefCell<BTreeMap<CheckpointKey, CheckpointState>>,
    next: RefCell<Vec<u64>>,
}

/// Runs the workload to its end: each checkpoint has `bytes` bytes.
pub(super) async fn run(harness: &Harness, clients: u32, bytes: usize, rounds: u32, round_ms: u64) {
    harness.set_up().await;
    let next = RefCell::new(vec![0; clients as usize]);
    let workload = CheckpointWorkload { harness, clients, bytes, states: RefCell::default(), next };
    for _ in 0..rounds {
        let working =
            (0..clients).map(|client| workload.client(client, harness.fork_rng()).boxed_local());
        if harness.round(working.collect(), round_ms).await == RoundEnd::PowerCut {
            harness.recover().await;
        } else {
            harness.stop_and_recover().await;
        }
        harness.within_limit("a check", workload.check_all()).await;
    }
}

fn content((generation, client): CheckpointKey, bytes: usize) -> Bytes {
    let mut data = vec![0; bytes];
    Rng::new(generation << 16 | u64::from(client)).fill(&mut data);
    data.into()
}

fn file_name((generation, client): CheckpointKey) -> fileio::protocol::Name {
    name(&format!("checkpoint-{client}-{generation}"))
}

impl CheckpointWorkload<'_> {
    async fn client(&self, client: u32, mut rng: Rng) {
        while !self.harness.is_over() {
            let generation = self.next.borrow()[client as usize];
            self.next.borrow_mut()[client as usize] += 1;
            match self.checkpoint((generation, client), &mut rng).await {
                Ok(()) => {}
                Err(CallFailure::PowerCut) => return,
                Err(failure) => panic!("client {client}: {failure:?}"),
            }
        }
    }

    fn set(&self, key: CheckpointKey, state: CheckpointState) {
        self.states.borrow_mut().insert(key, state);
    }

    async fn checkpoint(&self, key: CheckpointKey, rng: &mut Rng) -> Result<(), CallFailure> {
        let (generation, client) = key;
        self.set(key, CheckpointState::Begun);
        let create = self.harness.create_request(ROOT, file_name(key), false);
        let made = self.harness.ask(client, create).await?;
        let file = handle_of(&made.attributes);
        let data = content(key, self.bytes);
        let mut offset = 0;
        let mut verifiers = BTreeSet::new();
        while offset < data.len() {
            let length = (1 + rng.index(512 << 10)).min(data.len() - offset);
            let pieces = vec![data.slice(offset..offset + length)];
            let (who, at) = (Credentials::root(), offset as u64);
            let write = Write { who, file, offset: at, data: pieces, durable: false };
            verifiers.insert(self.harness.ask(client, write).await?.write_verifier);
            offset += length;
        }
        verifiers.insert(self.harness.ask(client, Commit { file }).await?.write_verifier);
        assert_eq!(verifiers.len(), 1, "a loss is reported, and no node has restarted");
        self.set(key, CheckpointState::Committed(file));

        let neighbour = (generation.saturating_sub(1), (client + 1) % self.clients);
        let state = self.states.borrow().get(&neighbour).copied();
        if let Some(CheckpointState::Committed(file)) = state {
            self.check_committed(client, neighbour, file).await?;
        }
        let old = (generation.saturating_sub(3), client);
        let state = self.states.borrow().get(&old).copied();
        if let Some(CheckpointState::Committed(file)) = state
            && old != key
        {
            // Another client reads it meanwhile: it reads all of it, or the file is gone.
            let reader = (client + 1) % self.clients;
            let reading = self.check_committed(reader, old, file);
            let (removed, read) = join(self.remove(client, old), reading).await;
            removed.and(read)?;
        }
        Ok(())
    }

    async fn remove(&self, client: u32, key: CheckpointKey) -> Result<(), CallFailure> {
        self.set(key, CheckpointState::Leaving);
        let remove = self.harness.remove_request(ROOT, file_name(key), true);
        self.harness.ask(client, remove).await?;
        self.set(key, CheckpointState::Gone);
        Ok(())
    }

    async fn check_committed(
        &self,
        client: u32,
        key: CheckpointKey,
        file: Handle,
    ) -> Result<(), CallFailure> {
        match self.read_all(client, file).await {
            Ok(data) => {
                assert!(data == content(key, self.bytes), "checkpoint {key:?} is not as committed");
                Ok(())
            }
            // Its owner has removed it meanwhile.
            Err(CallFailure::Refused(Error::Stale {}))
                if self.states.borrow().get(&key) != Some(&CheckpointState::Committed(file)) =>
            {
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    async fn read_all(&self, client: u32, file: Handle) -> Result<Vec<u8>, CallFailure> {
        let mut data = Vec::new();
        loop {
            let (who, offset) = (Credentials::root(), data.len() as u64);
            let call = Read { who, file, offset, length: TRANSFER_MAX };
            let read = self.harness.ask(client, call).await?;
            data.extend(read.data.concat());
            if read.end {
                return Ok(data);
            }
        }
    }

    async fn check_all(&self) {
        let states: Vec<(CheckpointKey, CheckpointState)> =
            self.states.borrow().iter().map(|(&key, &state)| (key, state)).collect();
        for (key, state) in states {
            match self.harness.lookup(0, ROOT, file_name(key)).await {
                Ok(found) => {
                    assert!(
                        state != CheckpointState::Gone,
                        "checkpoint {key:?} was removed and is back"
                    );
                    self.check_content(key, state, handle_of(&found)).await;
                    // One way or the other: it is not looked at again.
                    let removed = self.remove(0, key).await;
                    removed.unwrap_or_else(|failure| panic!("{key:?}: {failure:?}"));
                }
                Err(CallFailure::Refused(Error::NotFound {})) => {
                    let is_lost = matches!(state, CheckpointState::Committed(_));
                    assert!(!is_lost, "checkpoint {key:?} was committed and is gone");
                }
                Err(failure) => panic!("checkpoint {key:?}: {failure:?}"),
            }
        }
        self.states.borrow_mut().clear();
    }

    async fn check_content(&self, key: CheckpointKey, state: CheckpointState, file: Handle) {
        let data = self.read_all(0, file).await;
        let data = data.unwrap_or_else(|failure| panic!("checkpoint {key:?}: {failure:?}"));
        let wanted = content(key, self.bytes);
        if state != CheckpointState::Begun {
            assert!(data == wanted, "checkpoint {key:?} is not as committed");
            return;
        }
        assert!(data.len() <= wanted.len(), "checkpoint {key:?} is too long");
        for (seen, block) in data.chunks(BLOCK as usize).zip(wanted.chunks(BLOCK as usize)) {
            // The last block of each write may still lack what the next write brought.
            let written = seen.iter().zip(block).take_while(|(one, other)| one == other).count();
            let rest_is_empty = seen[written..].iter().all(|&byte| byte == 0);
            assert!(rest_is_empty, "checkpoint {key:?} has bytes that were never written");
        }
    }
}
