//! Names that several clients change at the same time. Which one wins is undetermined, but one
//! order of all operations must explain every answer (linearizability); the link count of each file
//! is the number of its names; and a directory that is not empty is never removed. Each contest is
//! about names of its own, so it can be checked when it is over, and a power cut ends it. What is
//! left then is removed; in the end the volume must have as many inodes as before: no inode is left
//! without a name.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::time::Duration;

use fileio::protocol::{
    Create, Created, Credentials, Error, Existing, FileIo, GetAttributes, Handle, Lookup, Name,
    ROOT, handle_of,
};
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, join_all};
use runtime::Call;
use runtime::seed::Rng;

use super::cluster::OBSERVER;
use super::harness::{CallFailure, Harness, PowerCut, RoundEnd, WorkResult};
use super::history::{History, NameOperation};
use super::names::{is_durable, name};

/// Clients of one contest: two, plus fewer than this.
const CLIENTS_MORE: u64 = 4;
/// Operations of each of them, one after the other.
const OPERATIONS: u32 = 3;
/// Clients that only look names up.
const OBSERVERS: usize = 2;
/// Rounds of lookups of each of them, at most.
const LOOKS_MAX: u32 = 10;
/// The longest pause before the next time.
const LOOK_PAUSE_MAX_US: u64 = 1_000;

struct Contention<'a> {
    harness: &'a Harness,
    names: Cell<u64>,
}

/// Runs the workload to its end.
pub(super) async fn run(harness: &Harness, clients: u32, rounds: u32, round_ms: u64) {
    harness.set_up().await;
    let workload = Contention { harness, names: Cell::default() };
    for _ in 0..rounds {
        let before = harness.within_limit("a check", harness.space()).await.inodes;
        let working =
            (0..clients).map(|client| workload.client(client, harness.fork_rng()).boxed_local());
        match harness.round(working.collect(), round_ms).await {
            RoundEnd::PowerCut => harness.recover().await,
            RoundEnd::Orderly => {
                harness.stop_and_recover().await;
                let after = harness.within_limit("a check", harness.space()).await.inodes;
                assert_eq!(after, before, "inodes, once all names were removed again");
            }
        }
    }
}

impl Contention<'_> {
    async fn client(&self, client: u32, mut rng: Rng) {
        while !self.harness.is_over() {
            let done = if rng.chance(1, 2) {
                self.contend_for_files(client, &mut rng).await
            } else {
                self.contend_for_directory(client, &mut rng).await
            };
            if let Err(PowerCut) = done {
                return;
            }
        }
    }

    fn fresh_name(&self) -> Name {
        self.names.set(self.names.get() + 1);
        name(&format!("prize-{}", self.names.get()))
    }

    /// Lets some nodes, `client` among them, do what `moves` has for them, all at the same time.
    async fn contention<'b>(
        &self,
        client: u32,
        rng: &mut Rng,
        moves: impl Fn(u32, Rng) -> LocalBoxFuture<'b, WorkResult>,
    ) -> WorkResult {
        let count = 2 + rng.below(CLIENTS_MORE) as u32;
        let contention = (0..count)
            .map(|contender| moves((client + contender) % OBSERVER, Rng::new(rng.bits())));
        join_all(contention.collect::<Vec<_>>()).await.into_iter().collect()
    }

    /// Some make, take and move the files of a few names, while others look at these.
    async fn contend_for_files(&self, client: u32, rng: &mut Rng) -> WorkResult {
        let contended_count = 2 + rng.index(2);
        let count = 2 + rng.below(CLIENTS_MORE) as usize;
        let fight = ContendedNames {
            harness: self.harness,
            names: (0..contended_count + count).map(|_| self.fresh_name()).collect(),
            contended_count,
            active: Cell::new(count),
            history: History::default(),
        };
        let node = |number: usize| (client + number as u32) % OBSERVER;
        let contention = (0..count).map(|number| {
            let (own, rng) = (contended_count + number, Rng::new(rng.bits()));
            fight.contender(node(number), own, rng).boxed_local()
        });
        let mut all: Vec<_> = contention.collect();
        all.extend(
            (0..OBSERVERS).map(|number| {
                fight.observe(node(count + number), Rng::new(rng.bits())).boxed_local()
            }),
        );
        join_all(all).await.into_iter().collect::<Result<(), _>>()?;
        fight.judge(client).await
    }

    /// Some put files into a directory that others remove.
    async fn contend_for_directory(&self, client: u32, rng: &mut Rng) -> WorkResult {
        let contended = self.fresh_name();
        let mut make = self.harness.mkdir_request(ROOT, contended.clone(), false);
        make.durable = is_durable(make.call);
        let directory = match self.harness.ask(client, make).await {
            Ok(attributes) => handle_of(&attributes),
            Err(failure) => return failure.power_cut(),
        };
        let put = RefCell::new(Vec::new());
        self.contention(client, rng, |client, mut rng| {
            let (contended, put) = (&contended, &put);
            async move {
                if rng.chance(1, 2) {
                    self.put(client, directory, put).await
                } else {
                    self.remove_directory(client, contended).await
                }
            }
            .boxed_local()
        })
        .await?;
        for name in put.take() {
            let above = match self.harness.ask(client, GetAttributes { file: directory }).await {
                Err(CallFailure::PowerCut) => return Err(PowerCut),
                above => above,
            };
            assert!(above.is_ok(), "{contended} was removed with {name} in it: {above:?}");
            let found = match self.harness.lookup(client, directory, name.clone()).await {
                Err(CallFailure::PowerCut) => return Err(PowerCut),
                found => found,
            };
            assert!(found.is_ok(), "{name} was put into {contended}: {found:?}");
            self.remove(client, directory, name).await.or_else(CallFailure::power_cut)?;
        }
        self.remove_directory(client, &contended).await
    }

    async fn put(&self, client: u32, directory: Handle, put: &RefCell<Vec<Name>>) -> WorkResult {
        let name = self.fresh_name();
        match self.create(client, directory, name.clone()).await {
            Ok(()) => put.borrow_mut().push(name),
            Err(CallFailure::Refused(Error::Stale {} | Error::NotFound {})) => {}
            Err(failure) => failure.power_cut()?,
        }
        Ok(())
    }

    async fn remove_directory(&self, client: u32, contended: &Name) -> WorkResult {
        let mut remove = self.harness.rmdir_request(ROOT, contended.clone(), false);
        remove.durable = is_durable(remove.call);
        match self.harness.ask(client, remove).await {
            Ok(()) | Err(CallFailure::Refused(Error::NotEmpty {} | Error::NotFound {})) => Ok(()),
            Err(failure) => failure.power_cut(),
        }
    }

    async fn create(&self, client: u32, directory: Handle, name: Name) -> Result<(), CallFailure> {
        let create = self.harness.create_request(directory, name, false);
        self.harness.ask(client, create).await.map(drop)
    }

    async fn remove(&self, client: u32, directory: Handle, name: Name) -> Result<(), CallFailure> {
        self.harness.ask(client, self.harness.remove_request(directory, name, false)).await
    }
}

/// Several clients at a few names of the root.
struct ContendedNames<'a> {
    harness: &'a Harness,
    /// The prizes, then one name of each rival that no other rival knows.
    names: Vec<Name>,
    contended_count: usize,
    /// Rivals that have not done all their moves.
    active: Cell<usize>,
    history: History,
}

impl ContendedNames<'_> {
    async fn contender(&self, client: u32, own: usize, mut rng: Rng) -> WorkResult {
        let mut outcome = Ok(());
        for _ in 0..OPERATIONS {
            outcome = self.one_operation(client, own, &mut rng).await;
            if outcome.is_err() {
                break;
            }
        }
        self.active.set(self.active.get() - 1);
        outcome
    }

    async fn one_operation(&self, client: u32, own: usize, rng: &mut Rng) -> WorkResult {
        let (one, more) =
            (rng.index(self.contended_count), 1 + rng.index(self.contended_count - 1));
        let other = (one + more) % self.contended_count;
        let durable = rng.chance(1, 2);
        match rng.below(8) {
            0 => self.make(client, one, durable).await,
            1 => self.open(client, one, durable).await,
            2..4 => self.rename(client, one, other).await.map(|_| ()),
            4..6 => {
                // A file that is made here and renamed has its inode at another node.
                self.make(client, own, durable).await?;
                self.rename(client, own, one).await.map(|_| ())
            }
            6 => self.move_away(client, one, own, other).await,
            _ => self.remove(client, one, durable).await,
        }
    }

    /// Renames a file to a name that no other rival knows. It gets a prize for its name, unless
    /// that is taken, before the other one goes.
    async fn move_away(&self, client: u32, from: usize, own: usize, back: usize) -> WorkResult {
        if !self.rename(client, from, own).await? {
            return Ok(());
        }
        if let Some(file) = self.look(client, own).await? {
            self.link(client, file, back).await?;
        }
        self.remove(client, own, false).await
    }

    /// Looks at two names again and again while others fight.
    async fn observe(&self, client: u32, mut rng: Rng) -> WorkResult {
        let (one, other) = (rng.index(self.contended_count), rng.index(self.names.len()));
        for _ in 0..LOOKS_MAX {
            if self.active.get() == 0 {
                break;
            }
            self.look(client, one).await?;
            self.look(client, other).await?;
            self.harness.pass(Duration::from_micros(rng.below(LOOK_PAUSE_MAX_US))).await;
        }
        Ok(())
    }

    /// The contest is over: checks that what is left agrees with the answers.
    async fn judge(&self, client: u32) -> WorkResult {
        let mut found = Vec::new();
        for name in 0..self.names.len() {
            found.push(self.look(client, name).await?);
        }
        self.history.check(self.names.len());
        for file in self.history.files() {
            let names = found.iter().filter(|one| **one == Some(file)).count() as u32;
            match self.harness.ask(client, GetAttributes { file }).await {
                Ok(attributes) => assert!(
                    names > 0 && attributes.links == names,
                    "{file:?} has {names} names and {} links",
                    attributes.links
                ),
                Err(CallFailure::Refused(Error::Stale {})) => {
                    assert_eq!(names, 0, "names of {file:?}, which is gone");
                }
                Err(failure) => return failure.power_cut(),
            }
        }
        for name in (0..self.names.len()).filter(|name| found[*name].is_some()) {
            self.remove(client, name, false).await?;
        }
        Ok(())
    }

    /// Asks, and notes what `operation` takes the answer for.
    async fn ask<C>(
        &self,
        client: u32,
        call: C,
        operation: impl FnOnce(Result<C::Reply, Error>) -> Result<NameOperation, Error>,
    ) -> WorkResult
    where
        C: Call<Protocol = FileIo> + Clone + fmt::Debug,
    {
        let description = format!("{call:?}");
        let began = self.history.asked();
        let answer = match self.harness.ask(client, call).await {
            Ok(reply) => Ok(reply),
            Err(CallFailure::Refused(error)) => Err(error),
            Err(CallFailure::PowerCut) => return Err(PowerCut),
        };
        let operation = operation(answer).unwrap_or_else(|error| panic!("{description}: {error}"));
        self.history.answered(began, operation);
        Ok(())
    }

    fn creation(&self, name: usize, existing: Existing, durable: bool) -> Create {
        let name = self.names[name].clone();
        Create { existing, ..self.harness.create_request(ROOT, name, durable) }
    }

    async fn make(&self, client: u32, name: usize, durable: bool) -> WorkResult {
        let create = self.creation(name, Existing::Refuse {}, durable);
        self.ask(client, create, |answer| match answer {
            Ok(made) => Ok(NameOperation::Make { name, made: Some(handle_of(&made.attributes)) }),
            Err(Error::Exists {}) => Ok(NameOperation::Make { name, made: None }),
            Err(error) => Err(error),
        })
        .await
    }

    async fn open(&self, client: u32, name: usize, durable: bool) -> WorkResult {
        let create = self.creation(name, Existing::Use {}, durable);
        self.ask(client, create, |answer| {
            let Created { attributes, new } = answer?;
            Ok(NameOperation::Open { name, file: handle_of(&attributes), new })
        })
        .await
    }

    async fn look(&self, client: u32, name: usize) -> WorkResult<Option<Handle>> {
        let sought = self.names[name].clone();
        let lookup = Lookup { who: Credentials::root(), directory: ROOT, name: sought };
        let mut seen = None;
        self.ask(client, lookup, |answer| {
            seen = match answer {
                Ok(found) => Some(handle_of(&found)),
                Err(Error::NotFound {}) => None,
                Err(error) => return Err(error),
            };
            Ok(NameOperation::Look { name, found: seen })
        })
        .await?;
        Ok(seen)
    }

    async fn remove(&self, client: u32, name: usize, durable: bool) -> WorkResult {
        let remove = self.harness.remove_request(ROOT, self.names[name].clone(), durable);
        let operation =
            |answer| Ok(NameOperation::Remove { name, done: is_done(answer, Error::NotFound {})? });
        self.ask(client, remove, operation).await
    }

    async fn rename(&self, client: u32, from: usize, to: usize) -> WorkResult<bool> {
        let [old, new] = [from, to].map(|name| (ROOT, self.names[name].clone()));
        let mut rename = self.harness.rename_request(old, new, false);
        rename.durable = is_durable(rename.call);
        let mut done = false;
        self.ask(client, rename, |answer| {
            done = is_done(answer, Error::NotFound {})?;
            Ok(NameOperation::Rename { from, to, done })
        })
        .await?;
        Ok(done)
    }

    async fn link(&self, client: u32, file: Handle, name: usize) -> WorkResult {
        let mut link = self.harness.link_request(file, (ROOT, self.names[name].clone()), false);
        link.durable = is_durable(link.call);
        self.ask(client, link, |answer| {
            let done = is_done(answer.map(|_| ()), Error::Exists {})?;
            Ok(NameOperation::Link { file, name, done })
        })
        .await
    }
}

fn is_done(answer: Result<(), Error>, refusal: Error) -> Result<bool, Error> {
    match answer {
        Ok(()) => Ok(true),
        Err(error) if error == refusal => Ok(false),
        Err(error) => Err(error),
    }
}
