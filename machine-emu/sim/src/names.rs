//! Clients that make, move and remove names, each in a directory of its own, compared with the
//! reference of the file layer while nothing crashes.

use fileio::model::Model;
use fileio::protocol::{
    Attributes, CallId, Change, Create, Created, Credentials, Error, Existing, FileIo,
    GetAttributes, GetXattr, Handle, Kind, Link, ListXattrs, Lookup, MakeNode, Name, NewNode, ROOT,
    ReadDirectory, ReadLink, Remove, RemoveDirectory, RemoveXattr, Rename, SetAttributes, SetXattr,
    XattrMode, XattrName, handle_of,
};
use futures::FutureExt as _;
use runtime::Call;
use runtime::seed::Rng;

use super::harness::{CallFailure, Harness};

/// Names of a crowded directory, at least, and how many more at most: the tree of a node has
/// several leaves then.
const CROWD_MIN: u64 = 100;
const CROWD_MORE: u64 = 200;
/// Bytes in the value of an extended attribute, at most: two pieces, and with them a record that
/// fits the smallest stripe.
const XATTR_BYTES_MAX: usize = 9_000;
/// Names of one page when a whole crowd is listed.
const CROWD_PAGE: u32 = 40;

/// The index of a directory, and a name in it.
pub(super) type NameKey = (usize, Name);

/// The same file on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HandlePair {
    real: Handle,
    model: Handle,
}

struct ClientTree<'a> {
    harness: &'a Harness,
    client: u32,
    model: Model,
    known: Vec<HandlePair>,
}

/// Runs the workload to its end.
pub(super) async fn run(harness: &Harness, clients: u32, rounds: u32, round_ms: u64) {
    harness.set_up().await;
    let mut trees = Vec::new();
    for client in 0..clients {
        let real = harness.make_directory(client, &format!("home-{client}")).await;
        let known = vec![HandlePair { real, model: ROOT }];
        trees.push(ClientTree { harness, client, model: Model::default(), known });
    }
    let mut rng = harness.fork_rng();
    if rng.chance(1, 3) {
        trees[0].crowd(CROWD_MIN + rng.below(CROWD_MORE)).await;
    }
    for _ in 0..rounds {
        let working =
            trees.iter_mut().map(|tree| tree.work(harness.fork_rng()).boxed_local()).collect();
        harness.round(working, round_ms).await;
        for tree in &trees {
            harness.within_limit("a check", tree.check_all()).await;
        }
        harness.stop_and_recover().await;
        for tree in &trees {
            harness.within_limit("a check", tree.check_all()).await;
        }
    }
}

pub(super) fn name(text: &str) -> Name {
    Name::new(text.as_bytes().to_vec()).expect("a name")
}

/// What both sides must agree on.
fn visible(a: &Attributes) -> (Kind, u32, u32, u32, u32, u64) {
    (a.kind, a.mode, a.links, a.uid, a.gid, a.size)
}

/// Is this call to be durable when it is answered? Half of them are.
pub(super) fn is_durable(call: CallId) -> bool {
    call.number.is_multiple_of(2)
}

fn any_user(rng: &mut Rng) -> Credentials {
    match rng.below(8) {
        0..6 => Credentials::root(),
        _ => Credentials { uid: 1000, gid: 1000, groups: vec![2000] },
    }
}

fn any_name(rng: &mut Rng) -> Name {
    name(&char::from(b'a' + rng.below(6) as u8).to_string())
}

impl ClientTree<'_> {
    async fn work(&mut self, mut rng: Rng) {
        while !self.harness.is_over() {
            self.step(&mut rng).await;
        }
    }

    /// Makes very many files in the home.
    async fn crowd(&self, count: u64) {
        let home = self.known[0];
        for number in 0..count {
            let call = self.harness.call_id();
            let made = self.both(|pick| Create {
                who: Credentials::root(),
                call,
                directory: pick(home),
                name: name(&format!("one-of-many-{number}")),
                existing: Existing::Refuse {},
                change: Change::default(),
                durable: false,
            });
            assert!(made.await.is_some(), "an empty volume has room for names");
        }
    }

    fn any(&self, rng: &mut Rng) -> HandlePair {
        let reach = if rng.chance(1, 3) { 1 } else { self.known.len() };
        self.known[rng.index(reach)]
    }

    /// Asks both sides; both succeed or fail in the same way.
    async fn both<C>(
        &self,
        make: impl Fn(fn(HandlePair) -> Handle) -> C,
    ) -> Option<(C::Reply, C::Reply)>
    where
        C: Call<Protocol = FileIo> + Clone + std::fmt::Debug,
    {
        let call = make(|pair| pair.real);
        let description = format!("client {}: {call:?}", self.client);
        let real = self.harness.ask(self.client, call).await;
        let model = self.model.ask(make(|pair| pair.model));
        match (real, model) {
            (Ok(real), Ok(model)) => Some((real, model)),
            (Err(CallFailure::Refused(real)), Err(model)) => {
                assert_eq!(real, model, "{description}");
                None
            }
            (Ok(_), Err(model)) => panic!("{description}: done, but the model says {model}"),
            (Err(real), _) => panic!("{description}: {real:?}, but the model has no objection"),
        }
    }

    async fn both_alike<C>(
        &self,
        make: impl Fn(fn(HandlePair) -> Handle) -> C,
    ) -> Option<HandlePair>
    where
        C: Call<Protocol = FileIo, Reply = Attributes> + Clone + std::fmt::Debug,
    {
        let description = format!("client {}: {:?}", self.client, make(|pair| pair.real));
        let (real, model) = self.both(make).await?;
        assert_eq!(visible(&real), visible(&model), "{description}");
        Some(HandlePair { real: handle_of(&real), model: handle_of(&model) })
    }

    fn learn(&mut self, pair: Option<HandlePair>) {
        if let Some(pair) = pair
            && !self.known.contains(&pair)
        {
            self.known.push(pair);
        }
    }

    async fn step(&mut self, rng: &mut Rng) {
        let (who, name, to_name) = (any_user(rng), any_name(rng), any_name(rng));
        let (one, other, call) = (self.any(rng), self.any(rng), self.harness.call_id());
        match rng.below(23) {
            0..4 => self.create(one, who, name, rng).await,
            4..7 => {
                let node = match rng.below(5) {
                    0..4 => NewNode::Directory {},
                    _ => NewNode::Symlink { target: b"../elsewhere".to_vec() },
                };
                let change =
                    Change { mode: rng.chance(1, 2).then_some(0o777), ..Change::default() };
                let made = self.both_alike(|pick| MakeNode {
                    who: who.clone(),
                    call,
                    directory: pick(one),
                    name: name.clone(),
                    node: node.clone(),
                    change: change.clone(),
                    durable: is_durable(call),
                });
                let made = made.await;
                self.learn(made);
            }
            7..9 => {
                let durable = rng.chance(1, 2);
                self.both(|pick| Remove {
                    who: who.clone(),
                    call,
                    directory: pick(one),
                    name: name.clone(),
                    durable,
                })
                .await;
            }
            9 => {
                let directory = |pick: fn(HandlePair) -> Handle| pick(one);
                self.both(|pick| RemoveDirectory {
                    who: who.clone(),
                    call,
                    directory: directory(pick),
                    name: name.clone(),
                    durable: is_durable(call),
                })
                .await;
            }
            drawn @ 10..13 => {
                self.both(|pick| Rename {
                    who: who.clone(),
                    call,
                    from_directory: pick(one),
                    from_name: name.clone(),
                    to_directory: pick(other),
                    to_name: to_name.clone(),
                    replace: drawn < 12,
                    durable: is_durable(call),
                })
                .await;
            }
            13 => {
                self.both_alike(|pick| Link {
                    who: who.clone(),
                    call,
                    file: pick(other),
                    directory: pick(one),
                    name: name.clone(),
                    durable: is_durable(call),
                })
                .await;
            }
            14 => {
                let change = Change { mode: Some(0o755), ..Change::default() };
                self.both_alike(|pick| SetAttributes {
                    who: who.clone(),
                    file: pick(one),
                    change: change.clone(),
                    only_if_ctime: None,
                    durable: false,
                })
                .await;
            }
            15 => {
                self.both(|pick| ReadLink { file: pick(one) }).await;
            }
            16..21 => self.change_xattr(one, &who, rng).await,
            21 if rng.chance(1, 4) => self.check_strange_handle(one).await,
            21 => self.check_directory(one, 1 + rng.below(4) as u32).await,
            _ => {
                self.both_alike(|pick| Lookup {
                    who: who.clone(),
                    directory: pick(one),
                    name: name.clone(),
                })
                .await;
            }
        }
    }

    /// Sets, reads or removes an extended attribute.
    async fn change_xattr(&self, file: HandlePair, who: &Credentials, rng: &mut Rng) {
        const NAMES: [&str; 5] = ["user.a", "user.ab", "user.b", "trusted.a", "security.a"];
        let name = XattrName::new(NAMES[rng.index(5)].as_bytes()).expect("a name");
        let (call, durable) = (self.harness.call_id(), rng.chance(1, 2));
        match rng.below(4) {
            0 | 1 => {
                let mode = match rng.below(4) {
                    0 => XattrMode::CreateNew {},
                    1 => XattrMode::Replace {},
                    _ => XattrMode::Either {},
                };
                // Some in several pieces, none too long for the smallest stripe.
                let most = if rng.chance(1, 4) { XATTR_BYTES_MAX } else { 100 };
                let mut value = vec![0; rng.index(most)];
                rng.fill(&mut value);
                self.both_alike(|pick| SetXattr {
                    who: who.clone(),
                    call,
                    file: pick(file),
                    name: name.clone(),
                    value: value.clone(),
                    mode,
                    durable,
                })
                .await;
            }
            2 => {
                self.both_alike(|pick| RemoveXattr {
                    who: who.clone(),
                    call,
                    file: pick(file),
                    name: name.clone(),
                    durable,
                })
                .await;
            }
            _ => self.check_xattr(file, who, name).await,
        }
    }

    async fn check_xattr(&self, file: HandlePair, who: &Credentials, name: XattrName) {
        let value =
            self.both(|pick| GetXattr { who: who.clone(), file: pick(file), name: name.clone() });
        if let Some((real, model)) = value.await {
            assert!(real == model, "client {}: another value of {name:?}", self.client);
        }
    }

    /// The extended attributes of a file are those of the model.
    async fn check_xattrs(&self, file: HandlePair) {
        let who = Credentials::root();
        let listed = self.both(|pick| ListXattrs { who: who.clone(), file: pick(file) });
        let Some((real, model)) = listed.await else { return };
        assert_eq!(real, model, "client {}: extended attributes of {file:?}", self.client);
        for name in real {
            self.check_xattr(file, &who, name).await;
        }
    }

    async fn create(&mut self, directory: HandlePair, who: Credentials, name: Name, rng: &mut Rng) {
        let call = self.harness.call_id();
        let existing = if rng.chance(1, 2) { Existing::Use {} } else { Existing::Refuse {} };
        let durable = rng.chance(1, 2);
        let created = self
            .both(|pick| Create {
                who: who.clone(),
                call,
                directory: pick(directory),
                name: name.clone(),
                existing,
                change: Change::default(),
                durable,
            })
            .await;
        if let Some((real, model)) = created {
            let Created { attributes, new } = real;
            assert_eq!(new, model.new, "{name:?} is new");
            assert_eq!(visible(&attributes), visible(&model.attributes), "{name:?}");
            let pair =
                HandlePair { real: handle_of(&attributes), model: handle_of(&model.attributes) };
            self.learn(Some(pair));
        }
    }

    /// A handle of another incarnation names nothing.
    async fn check_strange_handle(&self, pair: HandlePair) {
        let file = Handle { generation: pair.real.generation ^ 2, ..pair.real };
        let found = self.harness.ask(self.client, GetAttributes { file }).await;
        assert_eq!(found, Err(CallFailure::Refused(Error::Stale {})), "{file:?} was never given");
    }

    /// The names of a directory are those of the model.
    async fn check_directory(&self, directory: HandlePair, count_max: u32) {
        let real = list(self.harness, self.client, directory.real, count_max).await;
        let model = self.model.ask(ReadDirectory {
            who: Credentials::root(),
            directory: directory.model,
            after: 0,
            count_max: 4096,
            attributes: false,
        });
        match (real, model) {
            (Ok(real), Ok(model)) => {
                let mut model: Vec<(Name, Kind)> =
                    model.entries.into_iter().map(|entry| (entry.name, entry.kind)).collect();
                let mut real: Vec<(Name, Kind)> =
                    real.into_iter().map(|(name, kind, _)| (name, kind)).collect();
                real.sort_by(|one, other| one.0.cmp(&other.0));
                model.sort_by(|one, other| one.0.cmp(&other.0));
                assert_eq!(real, model, "client {}: names of {directory:?}", self.client);
            }
            (Err(real), Err(model)) => assert_eq!(real, model, "names of {directory:?}"),
            (real, model) => {
                panic!("client {}: {directory:?}: {real:?}, the model: {model:?}", self.client)
            }
        }
    }

    async fn check_all(&self) {
        for &pair in &self.known {
            self.both_alike(|pick| GetAttributes { file: pick(pair) }).await;
            self.check_xattrs(pair).await;
            self.check_directory(pair, if pair == self.known[0] { CROWD_PAGE } else { 3 }).await;
        }
    }
}

/// All names of a directory.
pub(super) async fn list(
    harness: &Harness,
    client: u32,
    directory: Handle,
    count_max: u32,
) -> Result<Vec<(Name, Kind, Handle)>, Error> {
    let mut names: Vec<(Name, Kind, Handle)> = Vec::new();
    let mut after = 0;
    loop {
        let who = Credentials::root();
        let call = ReadDirectory { who, directory, after, count_max, attributes: false };
        let page = match harness.ask(client, call).await {
            Ok(page) => page,
            Err(CallFailure::Refused(error)) => return Err(error),
            Err(CallFailure::PowerCut) => panic!("no crash was asked for"),
        };
        for entry in page.entries {
            after = entry.cookie;
            assert!(names.iter().all(|(name, ..)| *name != entry.name), "{:?} twice", entry.name);
            names.push((entry.name, entry.kind, entry.handle));
        }
        if page.end {
            return Ok(names);
        }
    }
}
