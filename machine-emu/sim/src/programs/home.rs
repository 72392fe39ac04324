//! Paths of one program, compared with the same program on the reference; and what a sync of the
//! file system made durable.
//!
//! The reference knows nothing of power cuts: after one a program goes on in a fresh directory.

use std::collections::BTreeMap;
use std::rc::Rc;

use client::{Attributes, Cause, Change, Credentials, FileSystem, Kind, OpenOptions};
use fileio::model::Model;
use runtime::Spawn;
use runtime::seed::Rng;

use super::retrying_client::{ClusterClient, OperationFailure, RetryingClient};
use super::spawn::ModelSpawn;

/// Bytes that a file in a home gets by one write, at most.
const WRITE_BYTES_MAX: u64 = 5_000;

/// The directory in a home in which all happens, so that links may lead out of it.
const WORK: &str = "work";

/// One operation on paths.
#[derive(Clone, Debug)]
pub(super) enum PathOperation {
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
pub(super) enum PathResult {
    Nothing,
    File(VisibleAttributes),
    ExpectedContent(Vec<u8>),
    Names(Vec<(Vec<u8>, Kind)>),
    Target(Vec<u8>),
}

/// Attributes but for numbers of inodes and times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VisibleAttributes {
    kind: Kind,
    mode: u32,
    links: u32,
    owner: (u32, u32),
    size: u64,
}

fn visible(a: &Attributes) -> VisibleAttributes {
    VisibleAttributes {
        kind: a.kind,
        mode: a.mode,
        links: a.links,
        owner: (a.uid, a.gid),
        size: a.size,
    }
}

/// One program's own directory.
pub(super) struct ProgramHome {
    path: String,
    reference: RetryingClient<'static, ModelSpawn>,
    /// Durable, and not touched since: what is there after a power cut.
    durable: BTreeMap<String, VisibleAttributes>,
}

impl ProgramHome {
    /// A home at `path`, on the side of the reference.
    pub(super) async fn new(path: String) -> Self {
        let reference = ModelSpawn(Rc::new(Model::default()));
        let system = FileSystem::new(reference, Credentials::root(), 1);
        let reference = RetryingClient { system, number: 0, harness: None };
        let home = Self { path, reference, durable: BTreeMap::new() };
        let made = perform(&home.reference, &home.first()).await;
        assert!(made.is_ok(), "the reference has room");
        home
    }

    /// What makes it.
    pub(super) fn first(&self) -> PathOperation {
        PathOperation::MakeAll(format!("{}/{WORK}", self.path))
    }

    /// Some operation.
    pub(super) fn draw(&self, rng: &mut Rng) -> PathOperation {
        let path = self.any_path(rng);
        match rng.below(32) {
            0..6 => Self::draw_open(path, rng),
            6..10 => PathOperation::MakeDirectory(path),
            10 => PathOperation::MakeAll(format!("{path}/d/{}", any_name(rng))),
            11 => {
                let target = ["a", "../b", "./a/b", "c/", "a/missing"][rng.index(5)];
                PathOperation::MakeLink { target: target.to_owned(), path }
            }
            12..14 => PathOperation::HardLink { original: self.any_path(rng), path },
            14..16 => PathOperation::RemoveFile(path),
            16 => PathOperation::RemoveDirectory(path),
            17 => PathOperation::RemoveAll(path),
            18..23 => PathOperation::Rename { from: path, to: self.any_path(rng) },
            23..25 => PathOperation::List(path),
            25..27 => PathOperation::Look(path),
            27 => PathOperation::LookAtLink(path),
            28..30 => PathOperation::SetLength { path, size: rng.below(WRITE_BYTES_MAX) },
            _ => PathOperation::SetMode { path, mode: 0o600 + rng.below(0o200) as u32 },
        }
    }

    fn draw_open(path: String, rng: &mut Rng) -> PathOperation {
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
        PathOperation::Open { path, options, data, offset: rng.below(WRITE_BYTES_MAX) }
    }

    fn any_path(&self, rng: &mut Rng) -> String {
        let mut path = format!("{}/{WORK}/{}", self.path, any_name(rng));
        while rng.chance(1, 3) {
            path = format!("{path}/{}", any_name(rng));
        }
        if rng.chance(1, 16) { format!("{path}/") } else { path }
    }

    /// Does `step` on the reference. From now on it is unknown, until it is answered
    /// and made durable, what is there of all that it touches.
    pub(super) async fn foresee(&mut self, step: &PathOperation) -> Result<PathResult, Cause> {
        let outcome = perform(&self.reference, step).await;
        if !self.durable.is_empty() {
            let now = self.reference_tree().await;
            self.durable.retain(|path, visible| now.get(path) == Some(visible));
        }
        outcome.map_err(|stop| match stop {
            OperationFailure::Refused(cause) => cause,
            OperationFailure::PowerCut => unreachable!("the reference needs no power"),
        })
    }

    /// All that was answered is durable.
    pub(super) async fn made_durable(&mut self) {
        self.durable = self.reference_tree().await;
    }

    async fn reference_tree(&self) -> BTreeMap<String, VisibleAttributes> {
        let Ok(tree) = tree(&self.reference, &self.path).await else {
            panic!("the reference can be read")
        };
        tree
    }

    /// While nothing is under way: both sides have the same names, with the same attributes. After
    /// a power cut: what was durable is there, and all that is there can be read.
    pub(super) async fn check(&self, real: &ClusterClient<'_>, after_crash: bool) {
        if after_crash {
            return self.check_after_crash(real).await;
        }
        let found = tree(real, &self.path).await;
        let wanted = self.reference_tree().await;
        assert_eq!(found.as_ref(), Ok(&wanted), "the home {}", self.path);
    }

    async fn check_after_crash(&self, real: &ClusterClient<'_>) {
        for (path, wanted) in &self.durable {
            let found = look(real, path).await;
            // Other names of the file may have come or gone.
            let found = found.map(|found| VisibleAttributes { links: wanted.links, ..found });
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

async fn look<S: Spawn>(
    client: &RetryingClient<'_, S>,
    path: &str,
) -> Result<VisibleAttributes, OperationFailure> {
    Ok(visible(&client.ask(|| client.system.symlink_metadata(path)).await?))
}

/// Everything at and below `path`.
async fn tree<S: Spawn>(
    client: &RetryingClient<'_, S>,
    path: &str,
) -> Result<BTreeMap<String, VisibleAttributes>, OperationFailure> {
    let mut found = BTreeMap::new();
    let mut left = vec![path.to_owned()];
    while let Some(path) = left.pop() {
        let attributes = look(client, &path).await?;
        if attributes.kind == (Kind::Directory {}) {
            for (name, _) in list(client, &path).await? {
                left.push(format!("{path}/{}", String::from_utf8_lossy(&name)));
            }
        }
        assert!(found.insert(path.clone(), attributes).is_none(), "{path} is listed twice");
    }
    Ok(found)
}

async fn list<S: Spawn>(
    client: &RetryingClient<'_, S>,
    path: &str,
) -> Result<Vec<(Vec<u8>, Kind)>, OperationFailure> {
    let list = || async { client.system.read_dir(path).await?.with_attributes().rest().await };
    let entries = client.ask(list).await?.into_iter();
    let mut names: Vec<_> =
        entries.map(|entry| (entry.name.as_bytes().to_vec(), entry.kind)).collect();
    names.sort();
    Ok(names)
}

/// Does `step`, on either side.
pub(super) async fn perform<S: Spawn>(
    client: &RetryingClient<'_, S>,
    step: &PathOperation,
) -> Result<PathResult, OperationFailure> {
    let system = &client.system;
    let file = |attributes: Attributes| PathResult::File(visible(&attributes));
    let nothing = |()| PathResult::Nothing;
    match step {
        PathOperation::Open { path, options, data, offset } => {
            use_file(client, path, *options, data, *offset).await
        }
        PathOperation::MakeDirectory(path) => client.ask(|| system.mkdir(path)).await.map(file),
        PathOperation::MakeAll(path) => client.ask(|| system.mkdir_all(path)).await.map(file),
        PathOperation::MakeLink { target, path } => {
            client.ask(|| system.symlink(target, path)).await?;
            client.ask(|| system.read_link(path)).await.map(PathResult::Target)
        }
        PathOperation::HardLink { original, path } => {
            client.ask(|| system.hard_link(original, path)).await.map(file)
        }
        PathOperation::RemoveFile(path) => {
            client.ask(|| system.remove_file(path)).await.map(nothing)
        }
        PathOperation::RemoveDirectory(path) => {
            client.ask(|| system.remove_dir(path)).await.map(nothing)
        }
        PathOperation::RemoveAll(path) => client.ask(|| system.remove_all(path)).await.map(nothing),
        PathOperation::Rename { from, to } => {
            client.ask(|| system.rename(from, to)).await.map(nothing)
        }
        PathOperation::List(path) => list(client, path).await.map(PathResult::Names),
        PathOperation::Look(path) => client.ask(|| system.metadata(path)).await.map(file),
        PathOperation::LookAtLink(path) => {
            client.ask(|| system.symlink_metadata(path)).await.map(file)
        }
        PathOperation::SetLength { path, size } => {
            let change = Change { size: Some(*size), ..Change::default() };
            client.ask(|| system.set_attributes(path, change.clone())).await.map(file)
        }
        PathOperation::SetMode { path, mode } => {
            let change = Change { mode: Some(*mode), ..Change::default() };
            client.ask(|| system.set_attributes(path, change.clone())).await.map(file)
        }
    }
}

/// Opens, writes if it may, reads all.
async fn use_file<S: Spawn>(
    client: &RetryingClient<'_, S>,
    path: &str,
    options: OpenOptions,
    data: &[u8],
    offset: u64,
) -> Result<PathResult, OperationFailure> {
    let file = client.ask(|| client.system.open(path, options)).await?;
    if options == options.append(true) {
        client.ask(|| file.append(data.to_vec())).await?;
    } else if options == options.write(true) {
        client.ask(|| file.write_at(offset, data.to_vec())).await?;
    }
    let size = client.ask(|| file.metadata()).await?.size;
    let read = client.ask(|| file.read_bytes_at(0, size as usize + 1)).await?;
    Ok(PathResult::ExpectedContent(read.concat()))
}
