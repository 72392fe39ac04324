//! Names that several clients want at the same time. Who wins nobody knows beforehand, but what was
//! answered must add up: each file that was made is taken once, and a directory into which somebody
//! put a file is not removed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use fileio::protocol::{
    Attributes, Change, Create, Credentials, Error, Existing, GetAttributes, Handle, Link, Lookup,
    MakeNode, Name, NewNode, ROOT, Remove, RemoveDirectory, Rename,
};
use futures::FutureExt as _;
use futures::future::join_all;
use runtime::seed::Rng;

use super::cluster::OBSERVER;
use super::names::{handle_of, name};
use super::scene::{End, Failure, Scene};

/// Names that files are made under.
const NAMES: u64 = 2;
/// Who fights for a name at one time: two, or up to so many more, less one.
const RIVALS_MORE: u64 = 3;
/// All names begin with it.
const PREFIX: &str = "prize-";

/// The power went.
struct PowerCut;

/// What was answered so far, of names that no power cut has touched.
struct Rivals<'a> {
    scene: &'a Scene,
    /// A number for each name that is used once.
    fresh: Cell<u64>,
    /// The names in use: others after a power cut, since nobody knows what it left.
    generation: Cell<u64>,
    /// Files made under a name, less those taken away.
    made: RefCell<BTreeMap<u64, i64>>,
    /// The directory that some fill and some remove.
    arena: RefCell<Option<(Name, Handle)>>,
    /// Files that were put into such directories.
    put: RefCell<Vec<(Handle, Name)>>,
}

/// Runs the workload to its end.
pub(super) async fn run(scene: &Scene, clients: u32, rounds: u32, round_ms: u64) {
    scene.set_up().await;
    let workload = Rivals {
        scene,
        fresh: Cell::default(),
        generation: Cell::default(),
        made: RefCell::default(),
        arena: RefCell::default(),
        put: RefCell::default(),
    };
    for _ in 0..rounds {
        let working =
            (0..clients).map(|client| workload.client(client, scene.fork_rng()).boxed_local());
        match scene.round(working.collect(), round_ms).await {
            End::PowerCut => {
                scene.come_back().await;
                workload.forget();
            }
            End::Orderly => {
                scene.lively("a check", workload.check()).await;
                scene.stop_and_start().await;
                scene.lively("a check", workload.check()).await;
                workload.put.take();
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
            if let Err(PowerCut) = self.step(client, &mut rng).await {
                return;
            }
        }
    }

    /// The power went: what is left is nobody's.
    fn forget(&self) {
        self.generation.set(self.generation.get() + 1);
        self.made.take();
        self.arena.take();
        self.put.take();
    }

    fn fresh_name(&self) -> Name {
        self.fresh.set(self.fresh.get() + 1);
        name(&format!("{PREFIX}fresh-{}", self.fresh.get()))
    }

    fn shared_name(&self, number: u64) -> Name {
        name(&format!("{PREFIX}{}-{number}", self.generation.get()))
    }

    /// Some nodes do something about the same names at the same time.
    async fn step(&self, client: u32, rng: &mut Rng) -> Result<(), PowerCut> {
        let (number, about_files) = (rng.below(NAMES), rng.chance(1, 2));
        let moves = (0..2 + rng.below(RIVALS_MORE)).map(|rival| {
            let (asker, choice) = ((client + rival as u32) % OBSERVER, rng.below(3));
            if about_files {
                self.move_file(asker, number, choice).boxed_local()
            } else {
                self.meet(asker, choice > 0).boxed_local()
            }
        });
        join_all(moves.collect::<Vec<_>>()).await.into_iter().collect()
    }

    async fn move_file(&self, client: u32, number: u64, choice: u64) -> Result<(), PowerCut> {
        match choice {
            0 => self.make(client, number).await,
            1 => self.take(client, number).await,
            _ => self.carry_off(client, number).await,
        }
    }

    fn count(&self, number: u64, more: i64) {
        *self.made.borrow_mut().entry(number).or_default() += more;
    }

    async fn make(&self, client: u32, number: u64) -> Result<(), PowerCut> {
        match self.create(client, ROOT, self.shared_name(number)).await {
            Ok(_) => self.count(number, 1),
            Err(Failure::Refused(Error::Exists {})) => {}
            Err(failure) => end(failure)?,
        }
        Ok(())
    }

    async fn create(&self, client: u32, directory: Handle, name: Name) -> Result<Handle, Failure> {
        let create = Create {
            who: Credentials::root(),
            call: self.scene.call_id(),
            directory,
            name,
            existing: Existing::Refuse {},
            change: Change::default(),
            durable: false,
        };
        let created = self.scene.ask(client, create).await?;
        Ok(handle_of(&created.attributes))
    }

    async fn take(&self, client: u32, number: u64) -> Result<(), PowerCut> {
        match self.remove(client, self.shared_name(number)).await {
            Ok(()) => self.count(number, -1),
            Err(Failure::Refused(Error::NotFound {})) => {}
            Err(failure) => end(failure)?,
        }
        Ok(())
    }

    async fn remove(&self, client: u32, name: Name) -> Result<(), Failure> {
        let (who, call) = (Credentials::root(), self.scene.call_id());
        let remove = Remove { who, call, directory: ROOT, name, durable: false };
        self.scene.ask(client, remove).await
    }

    /// Renames a file to a name that nobody else knows, where it must be then. It may get its old
    /// name back, before the new one goes: then its inode is not at the node of its name.
    async fn carry_off(&self, client: u32, number: u64) -> Result<(), PowerCut> {
        let to_name = self.fresh_name();
        let rename = Rename {
            who: Credentials::root(),
            call: self.scene.call_id(),
            from_directory: ROOT,
            from_name: self.shared_name(number),
            to_directory: ROOT,
            to_name: to_name.clone(),
        };
        match self.scene.ask(client, rename).await {
            Ok(()) => self.count(number, -1),
            Err(Failure::Refused(Error::NotFound {})) => return Ok(()),
            Err(failure) => return end(failure),
        }
        let found = match self.lookup(client, ROOT, to_name.clone()).await {
            Ok(found) => found,
            Err(failure) => return end(failure),
        };
        // Whoever had the file before may not have removed its name yet.
        assert!((1..=2).contains(&found.links), "{to_name} has {} links", found.links);
        let link = Link {
            who: Credentials::root(),
            call: self.scene.call_id(),
            file: handle_of(&found),
            directory: ROOT,
            name: self.shared_name(number),
        };
        match self.scene.ask(client, link).await {
            Ok(_) => self.count(number, 1),
            Err(Failure::Refused(Error::Exists {})) => {}
            Err(failure) => return end(failure),
        }
        self.remove(client, to_name).await.or_else(end)
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

    /// Makes a directory, puts a file into it, or removes it.
    async fn meet(&self, client: u32, fills: bool) -> Result<(), PowerCut> {
        let arena = self.arena.borrow().clone();
        let (who, call) = (Credentials::root(), self.scene.call_id());
        let Some((arena, handle)) = arena else {
            let name = self.fresh_name();
            let (node, change) = (NewNode::Directory {}, Change::default());
            let asked = MakeNode { who, call, directory: ROOT, name: name.clone(), node, change };
            match self.scene.ask(client, asked).await {
                Ok(made) => *self.arena.borrow_mut() = Some((name, handle_of(&made))),
                Err(failure) => end(failure)?,
            }
            return Ok(());
        };
        if fills {
            let name = self.fresh_name();
            match self.create(client, handle, name.clone()).await {
                Ok(_) => self.put.borrow_mut().push((handle, name)),
                Err(Failure::Refused(Error::Stale {} | Error::NotFound {})) => {}
                Err(failure) => end(failure)?,
            }
            return Ok(());
        }
        let remove = RemoveDirectory { who, call, directory: ROOT, name: arena };
        match self.scene.ask(client, remove).await {
            Ok(()) | Err(Failure::Refused(Error::NotEmpty {} | Error::NotFound {})) => {}
            Err(failure) => end(failure)?,
        }
        self.arena.borrow_mut().take_if(|(_, known)| *known == handle);
        Ok(())
    }

    /// Nothing is under way: what was answered adds up.
    async fn check(&self) {
        let made = self.made.borrow().clone();
        for (number, made) in made {
            let found = self.lookup(0, ROOT, self.shared_name(number)).await;
            let present = match found {
                Ok(found) => {
                    assert_eq!(found.links, 1, "prize {number} has one name");
                    1
                }
                Err(Failure::Refused(Error::NotFound {})) => 0,
                Err(failure) => panic!("prize {number} cannot be looked up: {failure:?}"),
            };
            assert_eq!(made, present, "files of prize {number} made less those taken away");
        }
        let put = self.put.borrow().clone();
        for (directory, name) in put {
            let above = self.scene.ask(0, GetAttributes { file: directory }).await;
            assert!(above.is_ok(), "{directory:?} was removed with {name} in it: {above:?}");
            let found = self.lookup(0, directory, name.clone()).await;
            assert!(found.is_ok(), "{name} was put into {directory:?}: {found:?}");
        }
    }
}
