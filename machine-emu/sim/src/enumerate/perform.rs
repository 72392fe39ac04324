//! Doing an operation: of the volume, and in the same way of the reference model.

use std::future::Future;

use bytes::Bytes;
use fileio::model::Model;
use fileio::protocol::{
    Attributes, CallId, Change, Commit, Create, Credentials, Error, Existing, FileIo, Handle, Link,
    Lookup, MakeNode, Name, NewNode, PunchHole, ROOT, Remove, RemoveDirectory, Rename,
    SetAttributes, SetXattr, SyncDirectory, Write, XattrMode, XattrName,
};
use runtime::{Call, Context};

use super::vocabulary::{OperationOutcome, VolumeOperation};

/// When a change is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    /// When it is answered.
    Acknowledged,
    /// Some time after it.
    Later,
}

/// Who answers requests.
pub(super) trait FileService {
    /// Asks until there is an answer.
    fn ask<C>(&self, call: C) -> impl Future<Output = Result<C::Reply, Error>>
    where
        C: Call<Protocol = FileIo> + Clone;
}

impl FileService for Context {
    async fn ask<C: Call<Protocol = FileIo> + Clone>(&self, call: C) -> Result<C::Reply, Error> {
        fileio::client::ask(self, call).await
    }
}

impl FileService for Model {
    async fn ask<C: Call<Protocol = FileIo> + Clone>(&self, call: C) -> Result<C::Reply, Error> {
        Model::ask(self, call)
    }
}

/// An operation that was answered.
#[derive(Clone, Debug)]
pub(super) struct CompletedOperation {
    pub(super) outcome: OperationOutcome,
    /// The file that it found or made.
    pub(super) file: Option<Handle>,
}

/// A valid name.
pub(super) fn name(text: &str) -> Name {
    Name::new(text.as_bytes().to_vec()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The name of the extended attribute.
pub(super) fn tag() -> XattrName {
    XattrName::new(&b"user.tag"[..]).unwrap_or_else(|error| panic!("a name: {error}"))
}

/// The handle in attributes.
pub(super) fn handle(attributes: &Attributes) -> Handle {
    Handle { ino: attributes.ino, generation: attributes.generation }
}

/// What operation `number` of a workload writes: no two operations write the same.
pub(super) fn data(number: u64, length: usize) -> Bytes {
    let mut data = vec![0; length];
    runtime::seed::Rng::new(number ^ 0x0DA7_A000).fill(&mut data);
    data.into()
}

/// Does `op` as operation `number`. Those that concern nodes and not files are not done here.
pub(super) async fn perform(
    ask: &impl FileService,
    op: VolumeOperation,
    number: u64,
) -> CompletedOperation {
    match act(ask, op, number).await {
        Ok(file) => CompletedOperation { outcome: Ok(()), file },
        Err(error) => CompletedOperation { outcome: Err(error), file: None },
    }
}

async fn act(
    ask: &impl FileService,
    op: VolumeOperation,
    number: u64,
) -> Result<Option<Handle>, Error> {
    let who = Credentials::root();
    let call = CallId { client: 7, number };
    match op {
        VolumeOperation::Create(path, durable) => {
            let (directory, name) = place(ask, path).await?;
            let change = Change { size: Some(0), ..Change::default() };
            let (existing, durable) = (Existing::Use {}, is(durable));
            let create = Create { who, call, directory, name, existing, change, durable };
            Ok(Some(handle(&ask.ask(create).await?.attributes)))
        }
        VolumeOperation::Write(path, offset, length, durable) => {
            let file = find(ask, path).await?;
            let data = vec![data(number, length)];
            ask.ask(Write { who, file, offset, data, durable: is(durable) }).await?;
            Ok(Some(file))
        }
        VolumeOperation::Size(path, size, durable) => {
            let change = Change { size: Some(size), ..Change::default() };
            change_file(ask, path, change, durable).await
        }
        VolumeOperation::Mode(path, mode, durable) => {
            let change = Change { mode: Some(mode), ..Change::default() };
            change_file(ask, path, change, durable).await
        }
        VolumeOperation::Owner(path, uid, durable) => {
            let change = Change { uid: Some(uid), ..Change::default() };
            change_file(ask, path, change, durable).await
        }
        VolumeOperation::Punch(path, offset, length, durable) => {
            let file = find(ask, path).await?;
            ask.ask(PunchHole { who, file, offset, length, durable: is(durable) }).await?;
            Ok(Some(file))
        }
        VolumeOperation::Tag(path, value, durable) => {
            let file = find(ask, path).await?;
            let (name, value, mode) = (tag(), value.into(), XattrMode::Either {});
            let durable = is(durable);
            ask.ask(SetXattr { who, call, file, name, value, mode, durable }).await?;
            Ok(Some(file))
        }
        VolumeOperation::Commit(path) => {
            let file = find(ask, path).await?;
            ask.ask(Commit { file }).await?;
            Ok(Some(file))
        }
        VolumeOperation::Sync(path) => {
            let directory = if path.is_empty() { ROOT } else { find(ask, path).await? };
            ask.ask(SyncDirectory { directory }).await?;
            Ok(None)
        }
        VolumeOperation::MakeDirectory(path, durable) => {
            make(ask, call, path, NewNode::Directory {}, durable).await
        }
        VolumeOperation::Symlink(path) => {
            let node = NewNode::Symlink { target: b"d/x".to_vec() };
            make(ask, call, path, node, Durability::Acknowledged).await
        }
        VolumeOperation::Fifo(path) => {
            make(ask, call, path, NewNode::Fifo {}, Durability::Acknowledged).await
        }
        VolumeOperation::Remove(path, durable) => {
            let (directory, name) = place(ask, path).await?;
            ask.ask(Remove { who, call, directory, name, durable: is(durable) }).await?;
            Ok(None)
        }
        VolumeOperation::RemoveDirectory(path, durable) => {
            let (directory, name) = place(ask, path).await?;
            ask.ask(RemoveDirectory { who, call, directory, name, durable: is(durable) }).await?;
            Ok(None)
        }
        VolumeOperation::Rename(from, to, durable) => {
            let (from_directory, from_name) = place(ask, from).await?;
            let (to_directory, to_name) = place(ask, to).await?;
            let rename = Rename {
                who,
                call,
                from_directory,
                from_name,
                to_directory,
                to_name,
                replace: true,
                durable: is(durable),
            };
            ask.ask(rename).await?;
            Ok(None)
        }
        VolumeOperation::Link(from, to, durable) => {
            let file = find(ask, from).await?;
            let (directory, name) = place(ask, to).await?;
            ask.ask(Link { who, call, file, directory, name, durable: is(durable) }).await?;
            Ok(Some(file))
        }
        VolumeOperation::Refill
        | VolumeOperation::Flush
        | VolumeOperation::Restart
        | VolumeOperation::Pause => Ok(None),
    }
}

fn is(durable: Durability) -> bool {
    durable == Durability::Acknowledged
}

async fn change_file(
    ask: &impl FileService,
    path: &str,
    change: Change,
    durable: Durability,
) -> Result<Option<Handle>, Error> {
    let file = find(ask, path).await?;
    let (who, durable) = (Credentials::root(), is(durable));
    ask.ask(SetAttributes { who, file, change, only_if_ctime: None, durable }).await?;
    Ok(Some(file))
}

async fn make(
    ask: &impl FileService,
    call: CallId,
    path: &str,
    node: NewNode,
    durable: Durability,
) -> Result<Option<Handle>, Error> {
    let (directory, name) = place(ask, path).await?;
    let (who, change) = (Credentials::root(), Change::default());
    let made = ask
        .ask(MakeNode { who, call, directory, name, node, change, durable: is(durable) })
        .await?;
    Ok(Some(handle(&made)))
}

/// The directory of a path, and the last name in it.
async fn place(ask: &impl FileService, path: &str) -> Result<(Handle, Name), Error> {
    match path.rsplit_once('/') {
        None => Ok((ROOT, name(path))),
        Some((above, last)) => Ok((find(ask, above).await?, name(last))),
    }
}

async fn find(ask: &impl FileService, path: &str) -> Result<Handle, Error> {
    let mut found = ROOT;
    for part in path.split('/') {
        let (who, name) = (Credentials::root(), name(part));
        found = handle(&ask.ask(Lookup { who, directory: found, name }).await?);
    }
    Ok(found)
}
