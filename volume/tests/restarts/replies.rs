//! Calls whose replies get lost, while nodes restart and the power goes: each is done once, and who
//! asks again is told what came of it the first time.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::time::Duration;

use fileio::client::ask;
use fileio::protocol::*;
use futures::future::{Either, join, join_all, select};
use runtime::seed::{Rng, with_seed};
use runtime::{Context, NodeId};

use crate::cluster::{APPLICATIONS, Cluster, nodes};

const CLIENTS: u64 = 3;
/// Names of each client: few, so that each is made and removed again and again.
const NAMES: u64 = 5;
/// Calls of each client.
const CALLS: u64 = 120;
/// Answered calls that may come once more.
const REMEMBERED: usize = 40;
/// Attempts of a call, at most.
const TRIES_MAX: u32 = 5_000;

/// What a name names, and whether that is a directory.
type Named = (Handle, bool);

/// What can be told from a reply.
type Told = Option<Handle>;

struct Client<'a> {
    cluster: &'a Cluster,
    number: u64,
    rng: Rng,
    names: BTreeMap<Name, Named>,
    calls: u64,
    answered: VecDeque<(Request, Told)>,
    sent: &'a Cell<u64>,
}

fn handle(attributes: &Attributes) -> Handle {
    Handle { ino: attributes.ino, generation: attributes.generation }
}

fn who() -> Credentials {
    Credentials::root()
}

async fn send(context: &Context, request: Request) -> Result<Told, Error> {
    let made = |attributes: Attributes| Some(handle(&attributes));
    match request {
        Request::Create(call) => {
            let created = ask(context, call).await?;
            assert!(created.new, "it is told to be there before");
            Ok(made(created.attributes))
        }
        Request::MakeNode(call) => ask(context, call).await.map(made),
        Request::Link(call) => ask(context, call).await.map(made),
        Request::Remove(call) => ask(context, call).await.map(|()| None),
        Request::RemoveDirectory(call) => ask(context, call).await.map(|()| None),
        Request::Rename(call) => ask(context, call).await.map(|()| None),
        other => unreachable!("{other:?} has no call id"),
    }
}

impl Client<'_> {
    /// Sends a call, from one gateway or the other, until a reply gets through.
    async fn exchange(&mut self, request: &Request) -> Told {
        for _ in 0..TRIES_MAX {
            let index = self.rng.below(u64::from(APPLICATIONS)) as u32;
            let context = self.cluster.application(index);
            let most = 64 << self.rng.below(15);
            let patience = Duration::from_micros(self.rng.below(most));
            self.sent.set(self.sent.get() + 1);
            let sending = pin!(send(&context, request.clone()));
            match select(sending, context.sleep(patience)).await {
                Either::Left((Ok(told), _)) if self.rng.chance(1, 2) => return told,
                Either::Left((Err(Error::Undelivered { .. } | Error::Damaged {}), _)) => {
                    self.cluster.pass(Duration::from_millis(5)).await;
                }
                Either::Left((Err(error), _)) => {
                    panic!("{request:?}: {error}; {:?}", self.names);
                }
                // The reply is lost.
                Either::Left((Ok(_), _)) | Either::Right(_) => {}
            }
        }
        panic!("{request:?}: sent in vain");
    }

    async fn work(&mut self) {
        while self.calls < CALLS {
            if self.rng.chance(1, 6) && !self.answered.is_empty() {
                let index = self.rng.index(self.answered.len());
                let (request, first) = self.answered[index].clone();
                assert_eq!(self.exchange(&request).await, first, "{request:?} came late");
            } else {
                // What was answered is seen at once, at whichever node.
                for name in self.change().await {
                    self.look(&name).await;
                }
            }
            let name = self.any_name();
            self.look(&name).await;
            let pause = Duration::from_micros(self.rng.below(10_000));
            self.cluster.pass(pause).await;
        }
    }

    /// The name names what it must.
    async fn look(&self, name: &Name) {
        let wanted = self.names.get(name).map(|(handle, _)| *handle);
        assert_eq!(self.cluster.find(name).await, wanted, "{name:?}");
    }

    fn any_name(&mut self) -> Name {
        let (client, number) = (self.number, self.rng.below(NAMES));
        Name::new(format!("{client}-{number}").into_bytes()).unwrap()
    }

    /// One call that must succeed; the names that it may change.
    async fn change(&mut self) -> [Name; 2] {
        let (name, other) = (self.any_name(), self.any_name());
        let changed = [name.clone(), other.clone()];
        self.calls += 1;
        let call = CallId { client: self.number, number: self.calls };
        let (who, directory) = (who(), ROOT);
        let (change, existing) = (Change::default(), Existing::Refuse {});
        let found = self.names.get(&name).copied();
        let (moved, target) = (found, self.names.get(&other).copied());
        let is_file = |named: Named| !named.1;
        match (found, self.rng.below(4)) {
            (None, 0) => {
                let node = NewNode::Directory {};
                let order = MakeNode {
                    who,
                    call,
                    directory,
                    name: name.clone(),
                    node,
                    change,
                    durable: true,
                }
                .into();
                let made = self.done(order).await.unwrap();
                self.names.insert(name, (made, true));
            }
            (None, _) => {
                let change = Change { size: Some(7), ..change };
                let create = Create {
                    who,
                    call,
                    directory,
                    name: name.clone(),
                    existing,
                    change,
                    durable: true,
                };
                let made = self.done(create.into()).await.unwrap();
                self.names.insert(name, (made, false));
            }
            (Some(_), 0) if moved.is_some_and(is_file) && target.is_none() => {
                let (file, is_directory) = moved.unwrap();
                let link = Link { who, call, file, directory, name: other.clone(), durable: true };
                assert_eq!(self.done(link.into()).await, Some(file));
                self.names.insert(other, (file, is_directory));
            }
            (Some(_), 1) if moved.is_some() && may_replace(moved, target) => {
                let (from_name, to_name) = (name.clone(), other.clone());
                let (from_directory, to_directory) = (ROOT, ROOT);
                let rename = Rename {
                    who,
                    call,
                    from_directory,
                    from_name,
                    to_directory,
                    to_name,
                    replace: true,
                    durable: true,
                };
                self.done(rename.into()).await;
                self.names.remove(&name);
                self.names.insert(other, moved.unwrap());
            }
            (Some((_, true)), _) => {
                let remove =
                    RemoveDirectory { who, call, directory, name: name.clone(), durable: true };
                self.done(remove.into()).await;
                self.names.remove(&name);
            }
            (Some((_, false)), _) => {
                let remove = Remove { who, call, directory, name: name.clone(), durable: true };
                self.done(remove.into()).await;
                self.names.remove(&name);
            }
        }
        changed
    }

    async fn done(&mut self, request: Request) -> Told {
        let told = self.exchange(&request).await;
        if self.answered.len() == REMEMBERED {
            self.answered.pop_front();
        }
        self.answered.push_back((request, told));
        told
    }
}

/// Both are files and not the same one, or there is nothing to replace.
fn may_replace(moved: Option<Named>, target: Option<Named>) -> bool {
    let (Some(moved), Some(target)) = (moved, target) else { return true };
    moved.0 != target.0 && !moved.1 && !target.1
}

/// The power goes now and then, or one node restarts.
async fn disturb(cluster: &Cluster, one_by_one: bool, over: &Cell<bool>, mut rng: Rng) {
    let nodes: Vec<NodeId> = nodes().collect();
    while !over.get() {
        let most = 1 << (12 + rng.below(10));
        cluster.pass(Duration::from_micros(rng.below(most))).await;
        if one_by_one && rng.chance(3, 4) {
            cluster.restart(nodes[rng.index(nodes.len())]).await;
        } else {
            cluster.power_cut().await;
        }
    }
}

/// All names are there, and files and the root have the links that they need.
async fn check(cluster: &Cluster, clients: &[Client<'_>]) {
    let wanted: BTreeMap<Name, Named> =
        clients.iter().flat_map(|client| client.names.clone()).collect();
    let list =
        ReadDirectory { who: who(), directory: ROOT, after: 0, count_max: 1_000, attributes: true };
    let page = cluster.ask(list).await;
    let found = page
        .entries
        .iter()
        .map(|entry| (entry.name.clone(), (entry.handle, entry.kind == (Kind::Directory {}))));
    assert_eq!(found.collect::<BTreeMap<_, _>>(), wanted);
    let directories = wanted.values().filter(|(_, is_directory)| *is_directory).count();
    assert_eq!(page.directory.links as usize, 2 + directories, "links of the root");
    for (name, (file, is_directory)) in &wanted {
        let attributes = cluster.ask(GetAttributes { file: *file }).await;
        let names = wanted.values().filter(|(other, _)| other == file).count();
        let links = if *is_directory { 2 } else { names };
        assert_eq!(attributes.links as usize, links, "links of {name:?}");
        assert!(*is_directory || attributes.size == 7, "size of {name:?}");
    }
}

fn lost_replies(rng: &mut Rng, one_by_one: bool) {
    let cluster = Cluster::new(rng.bits());
    let (over, sent) = (Cell::new(false), Cell::new(0));
    let disturber = Rng::new(rng.bits());
    let mut clients: Vec<Client<'_>> = (0..CLIENTS)
        .map(|number| Client {
            cluster: &cluster,
            number,
            rng: Rng::new(rng.bits()),
            names: BTreeMap::new(),
            calls: 0,
            answered: VecDeque::new(),
            sent: &sent,
        })
        .collect();
    let world = cluster.world.clone();
    world.run(async {
        let working = async {
            join_all(clients.iter_mut().map(Client::work)).await;
            over.set(true);
        };
        join(working, disturb(&cluster, one_by_one, &over, disturber)).await;
        cluster.power_cut().await;
        check(&cluster, &clients).await;
    });
    println!("{} calls, sent {} times", CLIENTS * CALLS, sent.get());
}

fn seeds() -> u64 {
    std::env::var("SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(6)
}

#[test]
fn a_call_whose_reply_is_lost_is_done_once_whenever_the_power_goes() {
    (0..seeds()).for_each(|_| with_seed(|rng| lost_replies(rng, false)));
}

#[test]
fn a_call_whose_reply_is_lost_is_done_once_whichever_node_restarts() {
    (0..seeds()).for_each(|_| with_seed(|rng| lost_replies(rng, true)));
}

/// Calls that are refused as long as `name` names a file, or as long as it does not, each with the
/// error.
fn refused_calls(is_there: bool, name: &Name, other: &Name) -> Vec<(Request, Error)> {
    let call = |number| CallId { client: 8, number: number + 10 * u64::from(is_there) };
    let (who, directory, name) = (who(), ROOT, name.clone());
    let (change, existing, durable) = (Change::default(), Existing::Refuse {}, true);
    if is_there {
        let (call_1, call_2, node) = (call(1), call(2), NewNode::Directory {});
        let (named, above) = (name.clone(), who.clone());
        let make = MakeNode {
            who: above,
            call: call_1,
            directory,
            name: named,
            node,
            change: change.clone(),
            durable: true,
        };
        let create = Create { who, call: call_2, directory, name, existing, change, durable };
        return vec![(make.into(), Error::Exists {}), (create.into(), Error::Exists {})];
    }
    let (from_directory, from_name) = (directory, name.clone());
    let (to_directory, to_name) = (directory, other.clone());
    let rename = Rename {
        who: who.clone(),
        call: call(1),
        from_directory,
        from_name,
        to_directory,
        to_name,
        replace: true,
        durable: true,
    };
    let remove = Remove { who, call: call(2), directory, name, durable };
    vec![(rename.into(), Error::NotFound {}), (remove.into(), Error::NotFound {})]
}

#[test]
fn a_late_copy_of_a_call_that_was_refused_does_nothing() {
    let cluster = Cluster::new(30);
    let world = cluster.world.clone();
    world.run(async {
        let (name, other) =
            (Name::new(&b"contested"[..]).unwrap(), Name::new(&b"other"[..]).unwrap());
        let (context, directory) = (cluster.application(0), ROOT);
        let mut numbers = 0..;
        let mut call = || CallId { client: 9, number: numbers.next().unwrap() };
        for is_there in [true, false] {
            let file = if is_there { Some(cluster.make(call(), &name).await) } else { None };
            let refused = refused_calls(is_there, &name, &other);
            for (request, error) in &refused {
                assert_eq!(send(&context, request.clone()).await, Err(*error), "{request:?}");
            }
            // Now each of them could be done.
            let then = if file.is_some() {
                let name = name.clone();
                cluster
                    .ask(Remove { who: who(), call: call(), directory, name, durable: true })
                    .await;
                None
            } else {
                Some(cluster.make(call(), &name).await)
            };
            for (request, error) in &refused {
                assert_eq!(send(&context, request.clone()).await, Err(*error), "late {request:?}");
                assert_eq!(cluster.find(&name).await, then, "after a late {request:?}");
                assert_eq!(cluster.find(&other).await, None, "after a late {request:?}");
            }
        }
    });
}
