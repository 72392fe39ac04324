//! Names that several nodes want at the same time. Who wins nobody knows beforehand, but what was
//! answered must add up: each file that was made is taken once, and a directory into which somebody
//! put a file is not removed. Each fight is about a name of its own, so it can be judged when it is
//! over, and a power cut ends it. What is left then is removed, so that in the end the volume has as
//! many inodes as before: nothing was left over that no name leads to.

use std::cell::{Cell, RefCell};

use fileio::protocol::{
    Attributes, Change, Create, Credentials, Error, Existing, GetAttributes, GetSpace, Handle,
    Link, Lookup, MakeNode, Name, NewNode, ROOT, Remove, RemoveDirectory, Rename,
};
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, join_all};
use runtime::seed::Rng;

use super::cluster::OBSERVER;
use super::names::{handle_of, name};
use super::scene::{End, Failure, Scene};

/// Who fights for a name: two, or up to so many more, less one.
const RIVALS_MORE: u64 = 4;
/// What each of them does, one after the other.
const MOVES: u32 = 3;

struct Rivals<'a> {
    scene: &'a Scene,
    names: Cell<u64>,
}

/// The power went.
struct PowerCut;

/// Runs the workload to its end.
pub(super) async fn run(scene: &Scene, clients: u32, rounds: u32, round_ms: u64) {
    scene.set_up().await;
    let workload = Rivals { scene, names: Cell::default() };
    for _ in 0..rounds {
        let before = scene.lively("a check", workload.inodes()).await;
        let working =
            (0..clients).map(|client| workload.client(client, scene.fork_rng()).boxed_local());
        match scene.round(working.collect(), round_ms).await {
            End::PowerCut => scene.come_back().await,
            End::Orderly => {
                scene.stop_and_start().await;
                let after = scene.lively("a check", workload.inodes()).await;
                assert_eq!(after, before, "inodes, once all names were removed again");
            }
        }
    }
}

fn end(failure: Failure) -> Result<(), PowerCut> {
    match failure {
        Failure::PowerCut => Err(PowerCut),
        Failure::Refused(error) => panic!("refused: {error}"),
    }
}

impl Rivals<'_> {
    async fn client(&self, client: u32, mut rng: Rng) {
        while !self.scene.is_over() {
            let done = if rng.chance(1, 2) {
                self.fight_for_file(client, &mut rng).await
            } else {
                self.fight_for_directory(client, &mut rng).await
            };
            if let Err(PowerCut) = done {
                return;
            }
        }
    }

    async fn inodes(&self) -> u64 {
        let space = self.scene.ask(0, GetSpace {}).await;
        space.unwrap_or_else(|failure| panic!("no space is told: {failure:?}")).inodes
    }

    fn fresh_name(&self) -> Name {
        self.names.set(self.names.get() + 1);
        name(&format!("prize-{}", self.names.get()))
    }

    /// Lets some nodes, `client` among them, do what `moves` has for them, all at the same time.
    async fn rivals<'b>(
        &self,
        client: u32,
        rng: &mut Rng,
        moves: impl Fn(u32, Rng) -> LocalBoxFuture<'b, Result<(), PowerCut>>,
    ) -> Result<(), PowerCut> {
        let count = 2 + rng.below(RIVALS_MORE) as u32;
        let rivals =
            (0..count).map(|rival| moves((client + rival) % OBSERVER, Rng::new(rng.bits())));
        join_all(rivals.collect::<Vec<_>>()).await.into_iter().collect()
    }

    /// Some make, take and carry off the file of one name.
    async fn fight_for_file(&self, client: u32, rng: &mut Rng) -> Result<(), PowerCut> {
        let prize = self.fresh_name();
        // Files made under the name, less those taken away.
        let made = Cell::new(0);
        self.rivals(client, rng, |client, mut rng| {
            let (prize, made) = (&prize, &made);
            async move {
                for _ in 0..MOVES {
                    match rng.below(3) {
                        0 => self.make(client, prize, made).await?,
                        1 => self.take(client, prize, made).await?,
                        _ => self.carry_off(client, prize, made).await?,
                    }
                }
                Ok(())
            }
            .boxed_local()
        })
        .await?;
        let present = match self.lookup(client, ROOT, prize.clone()).await {
            Ok(found) => {
                assert_eq!(found.links, 1, "{prize} has one name");
                self.remove(client, ROOT, prize.clone()).await.or_else(end)?;
                1
            }
            Err(Failure::Refused(Error::NotFound {})) => 0,
            Err(failure) => return end(failure),
        };
        assert_eq!(made.get(), present, "files of {prize} made, less those taken away");
        Ok(())
    }

    async fn make(&self, client: u32, prize: &Name, made: &Cell<i64>) -> Result<(), PowerCut> {
        match self.create(client, ROOT, prize.clone()).await {
            Ok(()) => made.set(made.get() + 1),
            Err(Failure::Refused(Error::Exists {})) => {}
            Err(failure) => end(failure)?,
        }
        Ok(())
    }

    async fn take(&self, client: u32, prize: &Name, made: &Cell<i64>) -> Result<(), PowerCut> {
        match self.remove(client, ROOT, prize.clone()).await {
            Ok(()) => made.set(made.get() - 1),
            Err(Failure::Refused(Error::NotFound {})) => {}
            Err(failure) => end(failure)?,
        }
        Ok(())
    }

    /// Renames the file to a name that nobody else knows, where it must be then. It gets its old
    /// name back, unless that is taken, before the new one goes: then its inode may be at another
    /// node than its name.
    async fn carry_off(&self, client: u32, prize: &Name, made: &Cell<i64>) -> Result<(), PowerCut> {
        let to_name = self.fresh_name();
        let rename = Rename {
            who: Credentials::root(),
            call: self.scene.call_id(),
            from_directory: ROOT,
            from_name: prize.clone(),
            to_directory: ROOT,
            to_name: to_name.clone(),
        };
        match self.scene.ask(client, rename).await {
            Ok(()) => made.set(made.get() - 1),
            Err(Failure::Refused(Error::NotFound {})) => return Ok(()),
            Err(failure) => return end(failure),
        }
        let found = match self.lookup(client, ROOT, to_name.clone()).await {
            Ok(found) => found,
            Err(failure) => return end(failure),
        };
        let link = Link {
            who: Credentials::root(),
            call: self.scene.call_id(),
            file: handle_of(&found),
            directory: ROOT,
            name: prize.clone(),
        };
        match self.scene.ask(client, link).await {
            Ok(_) => made.set(made.get() + 1),
            Err(Failure::Refused(Error::Exists {})) => {}
            Err(failure) => return end(failure),
        }
        self.remove(client, ROOT, to_name).await.or_else(end)
    }

    /// Some put files into a directory that others remove.
    async fn fight_for_directory(&self, client: u32, rng: &mut Rng) -> Result<(), PowerCut> {
        let prize = self.fresh_name();
        let make = MakeNode {
            who: Credentials::root(),
            call: self.scene.call_id(),
            directory: ROOT,
            name: prize.clone(),
            node: NewNode::Directory {},
            change: Change::default(),
        };
        let directory = match self.scene.ask(client, make).await {
            Ok(attributes) => handle_of(&attributes),
            Err(failure) => return end(failure),
        };
        let put = RefCell::new(Vec::new());
        self.rivals(client, rng, |client, mut rng| {
            let (prize, put) = (&prize, &put);
            async move {
                if rng.chance(1, 2) {
                    self.put(client, directory, put).await
                } else {
                    self.remove_directory(client, prize).await
                }
            }
            .boxed_local()
        })
        .await?;
        for name in put.take() {
            let above = match self.scene.ask(client, GetAttributes { file: directory }).await {
                Err(Failure::PowerCut) => return Err(PowerCut),
                above => above,
            };
            assert!(above.is_ok(), "{prize} was removed with {name} in it: {above:?}");
            let found = match self.lookup(client, directory, name.clone()).await {
                Err(Failure::PowerCut) => return Err(PowerCut),
                found => found,
            };
            assert!(found.is_ok(), "{name} was put into {prize}: {found:?}");
            self.remove(client, directory, name).await.or_else(end)?;
        }
        self.remove_directory(client, &prize).await
    }

    async fn put(
        &self,
        client: u32,
        directory: Handle,
        put: &RefCell<Vec<Name>>,
    ) -> Result<(), PowerCut> {
        let name = self.fresh_name();
        match self.create(client, directory, name.clone()).await {
            Ok(()) => put.borrow_mut().push(name),
            Err(Failure::Refused(Error::Stale {} | Error::NotFound {})) => {}
            Err(failure) => end(failure)?,
        }
        Ok(())
    }

    async fn remove_directory(&self, client: u32, prize: &Name) -> Result<(), PowerCut> {
        let (who, call) = (Credentials::root(), self.scene.call_id());
        let remove = RemoveDirectory { who, call, directory: ROOT, name: prize.clone() };
        match self.scene.ask(client, remove).await {
            Ok(()) | Err(Failure::Refused(Error::NotEmpty {} | Error::NotFound {})) => Ok(()),
            Err(failure) => end(failure),
        }
    }

    async fn create(&self, client: u32, directory: Handle, name: Name) -> Result<(), Failure> {
        let create = Create {
            who: Credentials::root(),
            call: self.scene.call_id(),
            directory,
            name,
            existing: Existing::Refuse {},
            change: Change::default(),
            durable: false,
        };
        self.scene.ask(client, create).await.map(drop)
    }

    async fn remove(&self, client: u32, directory: Handle, name: Name) -> Result<(), Failure> {
        let (who, call) = (Credentials::root(), self.scene.call_id());
        let remove = Remove { who, call, directory, name, durable: false };
        self.scene.ask(client, remove).await
    }

    async fn lookup(
        &self,
        client: u32,
        directory: Handle,
        name: Name,
    ) -> Result<Attributes, Failure> {
        let lookup = Lookup { who: Credentials::root(), directory, name };
        self.scene.ask(client, lookup).await
    }
}
