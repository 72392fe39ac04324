//! Paths of one program, compared with the same program on the reference; and what a sync of the
//! file system made durable.
//!
//! The reference knows nothing of power cuts: after one a program goes on in a fresh directory.

use std::collections::BTreeMap;
use std::rc::Rc;

use client::{Attributes, Cause, Credentials, FileSystem, Kind, OpenOptions};
use fileio::model::Model;
use runtime::Spawn;
use runtime::seed::Rng;

use super::asker::{Asker, Stop};
use super::reach::{Reach, Reference};

/// Bytes that a file in a home gets by one write, at most.
const WRITE_BYTES_MAX: u64 = 5_000;

/// The directory in a home in which all happens, so that links may lead out of it.
const WORK: &str = "work";

/// One operation on paths.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Open { path: String, options: OpenOptions, data: Vec<u8>, offset: u64 },
    MakeDirectory(String),
    MakeAll(String),
    MakeLink { target: String, path: String },
    HardLink { original: String, path: String },
    RemoveFile(String),
    RemoveDirectory(String),
    RemoveAll(String),
    Rename { from: String, to: String },
    List(String),
    Look(String),
    LookAtLink(String),
    SetLength { path: String, size: u64 },
    SetMode { path: String, mode: u32 },
}

/// What both sides must agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Nothing,
    File(Visible),
    Content(Vec<u8>),
    Names(Vec<(Vec<u8>, Kind)>),
    Target(Vec<u8>),
}

/// Attributes but for numbers of inodes and times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Visible {
    kind: Kind,
    mode: u32,
    links: u32,
    owner: (u32, u32),
    size: u64,
}

fn visible(a: &Attributes) -> Visible {
    Visible { kind: a.kind, mode: a.mode, links: a.links, owner: (a.uid, a.gid), size: a.size }
}

/// One program's own directory.
pub(super) struct Home {
    path: String,
    reference: Asker<'static, Reference>,
    /// Durable, and not touched since: what is there after a power cut.
    durable: BTreeMap<String, Visible>,
}

impl Home {
    /// A home at `path`, on the side of the reference.
    pub(super) async fn new(path: String) -> Self {
        let reference = Reference(Rc::new(Model::default()));
        let system = FileSystem::new(reference, Credentials::root(), 1);
        let reference = Asker { system, client: 0, harness: None };
        let home = Self { path, reference, durable: BTreeMap::new() };
        let made = perform(&home.reference, &home.first()).await;
        assert!(made.is_ok(), "the reference has room");
        home
    }

    /// What makes it.
    pub(super) fn first(&self) -> Step {
        Step::MakeAll(format!("{}/{WORK}", self.path))
    }

    /// Some operation.
    pub(super) fn draw(&self, rng: &mut Rng) -> Step {
        let path = self.any_path(rng);
        match rng.below(32) {
            0..6 => Self::draw_open(path, rng),
            6..10 => Step::MakeDirectory(path),
            10 => Step::MakeAll(format!("{path}/d/{}", any_name(rng))),
            11 => {
                let target = ["a", "../b", "./a/b", "c/", "a/missing"][rng.index(5)];
                Step::MakeLink { target: target.to_owned(), path }
            }
            12..14 => Step::HardLink { original: self.any_path(rng), path },
            14..16 => Step::RemoveFile(path),
            16 => Step::RemoveDirectory(path),
            17 => Step::RemoveAll(path),
            18..23 => Step::Rename { from: path, to: self.any_path(rng) },
            23..25 => Step::List(path),
            25..27 => Step::Look(path),
            27 => Step::LookAtLink(path),
            28..30 => Step::SetLength { path, size: rng.below(WRITE_BYTES_MAX) },
            _ => Step::SetMode { path, mode: 0o600 + rng.below(0o200) as u32 },
        }
    }

    fn draw_open(path: String, rng: &mut Rng) -> Step {
        let mut data = vec![0; rng.below(WRITE_BYTES_MAX) as usize];
        rng.fill(&mut data);
        let options = OpenOptions::new().read(true);
        let options = match rng.below(6) {
            0 => options,
            1 => options.write(true),
            2 => options.write(true).create(true),
            3 => options.write(true).create_new(true),
            4 => options.write(true).create(true).truncate(true),
            _ => options.append(true).create(true),
        };
        Step::Open { path, options, data, offset: rng.below(WRITE_BYTES_MAX) }
    }

    fn any_path(&self, rng: &mut Rng) -> String {
        let mut path = format!("{}/{WORK}/{}", self.path, any_name(rng));
        while rng.chance(1, 3) {
            path = format!("{path}/{}", any_name(rng));
        }
        if rng.chance(1, 16) { format!("{path}/") } else { path }
    }

    /// Does `step` on the side of the reference. From now on nobody knows, until it is answered
    /// and made durable, what is there of all that it touches.
    pub(super) async fn foresee(&mut self, step: &Step) -> Result<Told, Cause> {
        let told = perform(&self.reference, step).await;
        if !self.durable.is_empty() {
            let now = self.reference_tree().await;
            self.durable.retain(|path, visible| now.get(path) == Some(visible));
        }
        told.map_err(|stop| match stop {
            Stop::Refused(cause) => cause,
            Stop::PowerCut => unreachable!("the reference needs no power"),
        })
    }

    /// All that was answered is durable.
    pub(super) async fn made_durable(&mut self) {
        self.durable = self.reference_tree().await;
    }

    async fn reference_tree(&self) -> BTreeMap<String, Visible> {
        let Ok(tree) = tree(&self.reference, &self.path).await else {
            panic!("the reference can be read")
        };
        tree
    }

    /// While nothing is under way: both sides have the same names, with the same attributes.
    pub(super) async fn check(&self, real: &Asker<'_, Reach>) {
        let found = tree(real, &self.path).await;
        let wanted = self.reference_tree().await;
        assert_eq!(found.as_ref(), Ok(&wanted), "the home {}", self.path);
    }

    /// After a power cut: what was durable is there, and all that is there can be looked at.
    pub(super) async fn check_after_crash(&self, real: &Asker<'_, Reach>) {
        for (path, wanted) in &self.durable {
            let found = look(real, path).await;
            // Other names of the file may have come or gone.
            let found = found.map(|found| Visible { links: wanted.links, ..found });
            assert_eq!(found.as_ref(), Ok(wanted), "{path} was durable");
        }
        if self.durable.contains_key(&self.path) {
            let found = tree(real, &self.path).await;
            assert!(found.is_ok(), "what is left of {}: {found:?}", self.path);
        }
    }
}

fn any_name(rng: &mut Rng) -> char {
    char::from(b'a' + rng.below(4) as u8)
}

async fn look<S: Spawn>(asker: &Asker<'_, S>, path: &str) -> Result<Visible, Stop> {
    Ok(visible(&asker.ask(|| asker.system.symlink_metadata(path)).await?))
}

/// Everything at and below `path`.
async fn tree<S: Spawn>(
    asker: &Asker<'_, S>,
    path: &str,
) -> Result<BTreeMap<String, Visible>, Stop> {
    let mut found = BTreeMap::new();
    let mut left = vec![path.to_owned()];
    while let Some(path) = left.pop() {
        let attributes = look(asker, &path).await?;
        if attributes.kind == (Kind::Directory {}) {
            for (name, _) in list(asker, &path).await? {
                left.push(format!("{path}/{}", String::from_utf8_lossy(&name)));
            }
        }
        assert!(found.insert(path.clone(), attributes).is_none(), "{path} is listed twice");
    }
    Ok(found)
}

async fn list<S: Spawn>(asker: &Asker<'_, S>, path: &str) -> Result<Vec<(Vec<u8>, Kind)>, Stop> {
    let list = || async { asker.system.read_dir(path).await?.with_attributes().rest().await };
    let entries = asker.ask(list).await?.into_iter();
    let mut names: Vec<_> =
        entries.map(|entry| (entry.name.as_bytes().to_vec(), entry.kind)).collect();
    names.sort();
    Ok(names)
}

/// Does `step`, on either side.
pub(super) async fn perform<S: Spawn>(asker: &Asker<'_, S>, step: &Step) -> Result<Told, Stop> {
    let system = &asker.system;
    let file = |attributes: Attributes| Told::File(visible(&attributes));
    let nothing = |()| Told::Nothing;
    match step {
        Step::Open { path, options, data, offset } => {
            use_file(asker, path, *options, data, *offset).await
        }
        Step::MakeDirectory(path) => asker.ask(|| system.mkdir(path)).await.map(file),
        Step::MakeAll(path) => asker.ask(|| system.mkdir_all(path)).await.map(file),
        Step::MakeLink { target, path } => {
            asker.ask(|| system.symlink(target, path)).await?;
            asker.ask(|| system.read_link(path)).await.map(Told::Target)
        }
        Step::HardLink { original, path } => {
            asker.ask(|| system.hard_link(original, path)).await.map(file)
        }
        Step::RemoveFile(path) => asker.ask(|| system.remove_file(path)).await.map(nothing),
        Step::RemoveDirectory(path) => asker.ask(|| system.remove_dir(path)).await.map(nothing),
        Step::RemoveAll(path) => asker.ask(|| system.remove_all(path)).await.map(nothing),
        Step::Rename { from, to } => asker.ask(|| system.rename(from, to)).await.map(nothing),
        Step::List(path) => list(asker, path).await.map(Told::Names),
        Step::Look(path) => asker.ask(|| system.metadata(path)).await.map(file),
        Step::LookAtLink(path) => asker.ask(|| system.symlink_metadata(path)).await.map(file),
        Step::SetLength { path, size } => asker.ask(|| system.set_len(path, *size)).await.map(file),
        Step::SetMode { path, mode } => asker.ask(|| system.set_mode(path, *mode)).await.map(file),
    }
}

/// Opens, writes if it may, reads all.
async fn use_file<S: Spawn>(
    asker: &Asker<'_, S>,
    path: &str,
    options: OpenOptions,
    data: &[u8],
    offset: u64,
) -> Result<Told, Stop> {
    let file = asker.ask(|| asker.system.open(path, options)).await?;
    if options == options.append(true) {
        asker.ask(|| file.append(data.to_vec())).await?;
    } else if options == options.write(true) {
        asker.ask(|| file.write_at(offset, data.to_vec())).await?;
    }
    let size = asker.ask(|| file.metadata()).await?.size;
    let read = asker.ask(|| file.read_bytes_at(0, size as usize + 1)).await?;
    Ok(Told::Content(read.concat()))
}
